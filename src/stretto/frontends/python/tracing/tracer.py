"""The tracer: blocks under construction, values in scope, storages, constants.

At most one tracer is active per thread. It does not handle Python control flow: the interpreter
builds that on `region` (a nested block whose writes can be undone).
"""

# pyright: reportPrivateUsage=false
# torch's dispatcher modes have no public names

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from stretto.errors import CaptureError, SourceLocation, VerifyError
from stretto.frontends.python.tracing.admission import Gradients, check_constant
from stretto.frontends.python.tracing.fakes import fake_like, fake_of_layout, without_modes
from stretto.frontends.python.tracing.frames import Tries
from stretto.frontends.python.tracing.history import (
    MOST_NESTED,
    MOST_WORK,
    REGION_WORK,
    Arm,
    Hints,
    SettledBranches,
)
from stretto.frontends.python.tracing.locations import current_module, user_location
from stretto.frontends.python.tracing.signals import (
    Abort,
    GradientsWanted,
    NoAlternative,
    abort,
    fail,
)
from stretto.frontends.python.tracing.symbolic_sizes import CaptureSizes, SizePlan
from stretto.frontends.python.tracing.tensor import (
    SIZE_BITS,
    UNKNOWN_BITS,
    BlockScope,
    Cached,
    FunctionContext,
    Hooks,
    LinearForm,
    ListLength,
    NumberMark,
    Storage,
    StorageState,
    TracedTensor,
)
from stretto.ir.core import Block, Function, Op, Value
from stretto.ir.ops import Argument, ConstantOp, ListLengthOp, LiteralOp, SizeOp, TensorOp
from stretto.ir.sizes import Size, Symbol
from stretto.ir.types import INDEX, Dim, DType, TensorType, Type
from stretto.ops.symints import from_sympy, to_symint, without_cache
from stretto.options import Options


@dataclass(eq=False, slots=True)
class TracedRegion:
    """A block being traced, and the state of every storage before the region wrote to it."""

    scope: BlockScope
    before: dict[Storage, StorageState] = field(default_factory=dict[Storage, StorageState])
    is_transaction: bool = False
    kept: set[Storage] = field(default_factory=set[Storage])
    """Storages from outside that a later iteration of a loop may access under several names."""

    def undo(self) -> None:
        """Restore the storages that were written inside."""
        for storage, state in self.before.items():
            storage.state = state
        self.before.clear()


@dataclass(eq=False, slots=True)
class Constant:
    """A real tensor used by the traced function."""

    key: str
    tensor: torch.Tensor
    memory: Storage
    traced: TracedTensor
    guarded: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ParameterOwner:
    """The table and name that hold a parameter or buffer."""

    table: dict[str, Any]
    name: str
    qualified: str


class Caller(Enum):
    """The caller of the captured function.

    COMPILED: any caller of a compiled function. CUT: the same, and statements that cannot be
    captured, such as those with side effects, run in Python. PYTHON: a function that runs in
    Python and may change the results in place, so results may share memory with nothing else.
    """

    COMPILED = auto()
    CUT = auto()
    PYTHON = auto()


class Tracer:
    """State of one capture."""

    def __init__(
        self,
        options: Options,
        plan: SizePlan | None = None,
        cuts: Collection[SourceLocation] = (),
    ) -> None:
        self.options = options
        # Slices `x[i:i + 3]` that may end past the dim, and those assumed to end within it.
        self.cuts, self.windows = cuts, set[SourceLocation]()
        # Branches of which the program has only one arm, those whose arms turned out to differ too
        # much, and the arms in which the capture failed, the innermost first.
        self.settling: SettledBranches | None = None
        self.divided = list[SourceLocation]()
        self.broken_arms: dict[CaptureError, list[Arm]] = {}
        self.given: dict[Value, torch.Tensor] = {}  # real input tensors of the captured call
        self.not_negative = set[Value]()  # indices of loops
        self.sizes = CaptureSizes(plan)
        self.notes: list[str] = []
        self.sourceless: list[str] = []
        self.is_native = False  # True while user code runs untraced
        self.functions: dict[str, Function] = {}
        self.home: dict[Value, BlockScope] = {}
        self.regions: list[TracedRegion] = []
        self.constants: dict[int, Constant] = {}
        self.gradients = Gradients(torch.is_grad_enabled())
        self.constant_tensors: dict[str, torch.Tensor] = {}
        # External tensors, by id (`contents`): those whose content guards check, those that were
        # read before the program wrote to them, and those that are traced from the start.
        self.read_values: dict[int, torch.Tensor] = {}
        self.read_as_found: dict[int, torch.Tensor] = {}
        self.updated: dict[int, torch.Tensor] = {}
        self.written_keys = set[str]()  # of constants that the program writes
        # NumPy arrays and other buffers, each with a tensor that shares its memory in eager
        # PyTorch; a function returns the array, or None if it no longer exists.
        self.arrays: list[tuple[Callable[[], Any], torch.Tensor]] = []
        # The contents of packed weights, by the id of the packed object, with that object.
        self.unpacked: dict[int, Any] = {}
        self.owners: dict[int, ParameterOwner] = {}
        self.paths: dict[int, str] = {}
        self.fast_path = False  # eager PyTorch uses its fused kernels for transformers
        self.splits_attention = False  # attention is products and a softmax for all sizes
        self.masks_to_nan = False  # a row whose keys are all masked gives NaN in these
        # Functions called to read external state, with their answers.
        self.asked: dict[Any, tuple[Callable[[], Any], Any]] = {}
        self.writes = False
        self.surroundings = Caller.COMPILED
        self.inputs: dict[int, TracedTensor] = {}
        self.met: dict[int, torch.Tensor] = {}
        # The symbols of data-dependent sizes, by torch's symbols; their values and SymInts.
        self.symbols: dict[Any, Symbol] = {}
        self.symbol_dims: dict[Symbol, torch.SymInt] = {}
        self.symbol_values: dict[Symbol, Value] = {}
        self.sizes_of: dict[Value, torch.SymInt] = {}
        self.size_values: dict[Size, Value] = {}
        # Flags of conditions on sizes: torch's form of the condition, and the line that tests it.
        self.size_flags: dict[Value, tuple[Any, SourceLocation]] = {}
        self.sizes_read: dict[Value, Size] = {}
        self.chosen: dict[Value, Any] = {}
        self.slices: dict[Any, Any] = {}
        self.tries = Tries()
        self.has_texts = False  # True once a text shows a size
        self.written = 0
        # Number of times that a recursive function was traced inline inside its own traced branch.
        self.expansions = Counter[CodeType]()
        self.loop_numbers: dict[int, tuple[int, object]] = {}
        self.sized_loops = set[int]()
        """Loops whose trip count is a size: unrolling one settles that size."""
        self.mode: Any = None
        self.facts: dict[Value, bool] = {}
        self.derived: dict[Value, tuple[bool | None, tuple[Value, ...]]] = {}
        self.keeps_apart = False
        self.hints = Hints()
        self.heap: Any = None
        self.data: Any = None
        """The state of a capture for one instance of a batch (`batching.capture`); else None."""
        self.fake_mode = FakeTensorMode(
            shape_env=self.sizes.env, allow_non_fake_inputs=True, static_shapes=True
        )
        if self.sizes.plan.symbols:
            without_cache(self.fake_mode)

    @contextmanager
    def faking(self) -> Generator[None]:
        """Run operators on fake tensors, unrecorded."""
        try:
            with without_modes(), self.fake_mode:
                yield
        finally:
            self.sizes.env.forget_equal(self.symbols)

    def native(self) -> AbstractContextManager[object]:
        """Return a context that runs operators on real tensors, unrecorded."""
        return without_modes()

    @contextmanager
    def running_natively(self) -> Generator[None]:
        """Run the user's code untraced."""
        before, self.is_native = self.is_native, True
        try:
            yield
        finally:
            self.is_native = before

    # -- scopes ---------------------------------------------------------------------------------

    @property
    def scope(self) -> BlockScope:
        return self.regions[-1].scope

    @property
    def context(self) -> FunctionContext:
        return self.scope.context

    @contextmanager
    def region(self, context: FunctionContext | None = None) -> Generator[TracedRegion]:
        """Trace into a new block. Storages written inside are restored on leaving."""
        context = context or self.context
        self.works(REGION_WORK)
        region = TracedRegion(BlockScope(Block(), context, len(self.regions)))
        if context.root is None or not context.root.open:
            context.root = region.scope
        self.regions.append(region)
        tries = self.tries
        self.tries = Tries() if context.root is region.scope else self.tries
        try:
            yield region
        finally:
            tries.replaces |= self.tries.replaces
            self.tries = tries
            region.undo()
            region.scope.is_open = False
            del self.regions[region.scope.depth :]

    @contextmanager
    def transaction(self) -> Generator[Callable[[], None]]:
        """Continue in the current block; the yielded function undoes everything done inside."""
        region = TracedRegion(self.scope, is_transaction=True)
        last, depth = self.last_op(), len(self.regions)
        self.regions.append(region)

        def rollback() -> None:
            region.undo()
            self.take_back(region.scope.block, last)

        try:
            yield rollback
        finally:
            del self.regions[depth:]

    def last_op(self) -> Op | None:
        """Return the last op of the current block, or None."""
        ops = self.scope.block.ops
        return ops[-1] if ops else None

    def take_back(self, block: Block, last: Op | None) -> None:
        """Remove all ops of a block after `last`, as if they had not been traced."""
        while block.ops and block.ops[-1] is not last:
            for value in block.ops.pop().results:
                del self.home[value]

    @contextmanager
    def reopened(
        self, region: TracedRegion, states: dict[Storage, StorageState]
    ) -> Generator[None]:
        """Continue in a region that was left, with storages in the given states, those at
        its end."""
        current = {storage: storage.state for storage in states}
        self.regions.append(region)
        region.scope.is_open = True
        try:
            for storage, state in states.items():
                storage.state = state
            yield
        finally:
            for storage, state in current.items():
                storage.state = state
            region.scope.is_open = False
            self.regions.pop()

    def works(self, amount: int) -> None:
        """Count traced work, and raise NoAlternative for a capture that may never end."""
        self.hints.work += amount
        nested = sum(not region.is_transaction for region in self.regions) if amount > 1 else 0
        if self.hints.work > MOST_WORK or nested > MOST_NESTED:
            raise NoAlternative(
                abort(
                    "the capture comes to no end: loops, calls or branches inside of each other "
                    "are traced again and again",
                    "write it as a loop over tensors, or compile with fallback=True",
                )
            )

    def emit(self, op: Op, types: Sequence[Type], hint: str = "") -> tuple[Value, ...]:
        """Append an op with fresh results of `types` to the current block, and return the
        results."""
        self.works(1)
        op.results = tuple(Value(type, hint) for type in types)
        op.location = user_location()
        self.scope.block.ops.append(op)
        for value in op.results:
            self.home[value] = self.scope
        self.tries.refuse_caught_by(op)
        return op.results

    def place(self, op: Op, results: tuple[Value, ...]) -> None:
        """Append an op whose results exist already."""
        op.results = results
        op.location = user_location()
        self.scope.block.ops.append(op)

    def param(self, type: Type, hint: str = "") -> Value:
        """Return a fresh block parameter of the current scope; the caller adds it to the block."""
        value = Value(type, hint)
        self.home[value] = self.scope
        return value

    def use(self, value: Value) -> Value:
        """Return `value` as usable in the current function: captured through a parameter if it is
        from an outer one. Raises Abort if its region has been left."""
        context, home = self.context, self.home[value]
        if home.context is context:
            if not home.open:
                fail(
                    "a tensor made inside a traced branch or loop is used outside of it",
                    "return it, or assign it to a local variable in all arms",
                )
            return value
        if value not in context.captures:
            assert context.root is not None
            inner = Value(value.type, value.hint)
            self.home[inner] = context.root
            context.captures[value] = inner
        return context.captures[value]

    # -- storages -------------------------------------------------------------------------------

    def current(self, storage: Storage) -> Value:
        """Return the current value of a storage, usable in the current scope."""
        if storage.state.stale is not None:
            raise storage.state.stale
        base = storage.state.base
        if isinstance(base, str):
            return self.constant_value(base)
        return self.use(base)

    def type_in(self, state: StorageState) -> Type:
        """Return the type of the value in a storage state."""
        base = state.base
        return (self.constant_value(base) if isinstance(base, str) else base).type

    def write(self, storage: Storage, base: Value, length: ListLength | None = None) -> None:
        """Replace the value of a storage, and update storages that may share its memory."""
        if self.data is not None:
            if isinstance(storage.made, str):
                fail(
                    "a tensor that all instances share is changed in place",
                    "compute a new tensor, and return it; call model.eval() where it is that of a "
                    "normalisation",
                )
            if storage in self.data.kept_as_it_is:
                fail(
                    "a tensor of an instance, or one that a branch, a loop or a call returns, is "
                    "changed in place",
                    "compute a new tensor",
                )
        self.set_state(storage, StorageState(base, length))
        self.written += storage.fake is not None
        Hooks.written(storage)

    def set_state(self, storage: Storage, value: StorageState) -> None:
        """Replace the state of one storage. Every enclosing region undoes this at its end."""
        for region in reversed(self.regions):
            if region.scope is storage.scope.here and not region.is_transaction:
                break
            region.before.setdefault(storage, storage.state)
        if isinstance(storage.made, str):
            self.written_keys.add(storage.made)
        storage.state = value

    def adopt(self, region: TracedRegion) -> None:
        """Make the ops of a region that was left part of the current block."""
        region.scope.joined = self.scope
        self.scope.block.ops += region.scope.block.ops

    def fresh(
        self, value: Value, fake: torch.Tensor, number: NumberMark | None = None
    ) -> TracedTensor:
        """Return a traced tensor with its own new storage."""
        return TracedTensor(fake, Storage(StorageState(value), self.scope, fake), (), number)

    def read(self, tensor: TracedTensor) -> Value:
        """Return the current value of a traced tensor. Raises GradientsWanted if it requires grad
        in grad mode."""
        if tensor.requires_grad and torch.is_grad_enabled():
            raise GradientsWanted(None)
        base = self.current(tensor.memory)
        if not tensor.steps:
            return base
        cached = tensor.cached
        if cached and cached.base is base and self._is_usable(cached.value):
            return cached.value
        value = base
        for step in tensor.steps:
            value = step.read(self, value)
        tensor.cached = Cached(base, value)
        return value

    def _is_usable(self, value: Value) -> bool:
        """True if a value can be used here directly. A value that was taken back has no home."""
        home = self.home.get(value)
        return home is not None and home.open and home.context is self.context

    def is_known(self, value: Value) -> bool:
        """True if a value can be used here, directly or captured through a parameter."""
        home = self.home.get(value)
        return home is not None and home.open

    def assign(self, tensor: TracedTensor, value: Value) -> None:
        """Write `value` (of the tensor's own type) through its view chain into its storage."""
        self.writes = True
        self.write(tensor.memory, self.replaced(tensor, value) if tensor.steps else value)

    def replaced(self, tensor: TracedTensor, value: Value) -> Value:
        """Return the value of a view's storage after `value` is written to the view."""
        bases = [self.current(tensor.memory)]
        for step in tensor.steps[:-1]:
            bases.append(step.read(self, bases[-1]))
        for step, base in zip(reversed(tensor.steps), reversed(bases), strict=False):
            value = step.write(self, base, value)
        return value

    # -- constants ------------------------------------------------------------------------------

    def constant_value(self, key: str) -> Value:
        """Return the result of the `constant` op of `key` in the current function."""
        context = self.context
        if key not in context.constants:
            value = Value(self.type_of(self.constant_tensors[key]), key.rsplit(".", 1)[-1])
            assert context.root is not None
            self.home[value] = context.root
            context.constants[key] = value
        return context.constants[key]

    def promote(self, tensor: torch.Tensor, *, guarded: bool = True) -> TracedTensor:
        """Return the traced tensor for a real one: an input if it is one, else a constant."""
        if id(tensor) in self.inputs:
            self.met[id(tensor)] = tensor
            return self.inputs[id(tensor)]
        self.gradients.read(tensor)
        if id(tensor) not in self.constants:
            key = self._constant_key(tensor)
            check_constant(tensor, key)
            fake = fake_like(self.fake_mode, tensor)
            root = self.regions[0].scope
            storage = Storage(StorageState(key), root, fake)
            traced = TracedTensor(fake, storage)
            self.constants[id(tensor)] = Constant(key, tensor, storage, traced, guarded)
            self.constant_tensors[key] = tensor
            self.note_arrays(tensor, traced)
        return self.constants[id(tensor)].traced

    def note_arrays(self, tensor: torch.Tensor, traced: TracedTensor) -> None:
        """Record for a traced tensor the arrays whose memory the real one has, as after
        `torch.from_numpy`."""
        for reference, _ in list(self.arrays):
            array = reference()
            with self.native():
                place = tensor.data_ptr()
            known = isinstance(array, np.ndarray)
            if known and 0 <= place - array.ctypes.data < array.nbytes:
                self.arrays.append((reference, traced))

    def path_of(self, module: nn.Module) -> str:
        """Return the path of a module. A module created during the capture has no path: it is
        named after its class, below the module that calls it."""
        known = self.paths.get(id(module))
        if known is not None:
            return known
        caller = current_module()
        return ".".join(name for name in (caller, type(module).__name__) if name)

    def _constant_key(self, tensor: torch.Tensor) -> str:
        owner = self.owners.get(id(tensor))
        wanted = owner.qualified if owner else "tensor"
        key, number = wanted, 0
        while key in self.constant_tensors:
            number += 1
            key = f"{wanted}_{number}"
        return key

    def close_function(self, context: FunctionContext, block: Block) -> None:
        """Insert the constants that a function uses at the start of its body."""
        used = {value for op in block.walk() for value in op.operands}
        used |= {value for op in block.walk() for inner in op.blocks for value in inner.yields}
        used |= set(block.yields)
        block.ops[:0] = [
            ConstantOp(key, results=(value,))
            for key, value in context.constants.items()
            if value in used and value not in block.params
        ]

    # -- numbers --------------------------------------------------------------------------------

    def literal(self, value: bool | int | float, dtype: DType) -> Value:
        """Emit a Python number as a scalar of `dtype`."""
        cast = {True: float, False: int}[dtype.is_float]
        shown = bool(value) if dtype is DType.BOOL else cast(value)
        return self.emit(LiteralOp(shown), (TensorType(dtype),))[0]

    def number(
        self,
        value: Value,
        linear: LinearForm | None = None,
        loops: frozenset[int] = frozenset(),
        bits: int = UNKNOWN_BITS,
    ) -> TracedTensor:
        """Return a traced number for a value without dims. bits: for an int, an upper bound on its
        bits."""
        if linear is None and value.tensor.dtype is DType.I64:
            linear = LinearForm(frozenset({(value, 1)}), 0)
        dtype, device = value.tensor.dtype.torch, torch.get_default_device()
        fake = fake_of_layout(self.fake_mode, (), (), dtype, device)
        return self.fresh(value, fake, NumberMark(linear, loops, bits))

    # -- types ----------------------------------------------------------------------------------

    def type_of(self, tensor: torch.Tensor) -> TensorType:
        """Return the IR type of a real, fake or traced tensor. Raises Abort for tensors that
        cannot be captured."""
        try:
            dtype = DType.from_torch(tensor.dtype)
        except KeyError:
            fail(
                f"dtype {str(tensor.dtype).removeprefix('torch.')} is not supported",
                "convert to a float, integer or bool dtype outside of the compiled function",
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            fail("only dense tensors can be captured", "call to_dense() or dequantize() before")
        if is_lazy(tensor):
            fail(
                "a parameter of a lazy module has no shape yet",
                "call the module once, which gives its parameters their shapes, then compile it",
            )
        if tensor.device.type == "meta":
            fail("a tensor on the meta device has no data", "make it on the CPU")
        shape = tuple([dim if type(dim) is int else self.dim(dim) for dim in tensor.shape])
        return TensorType(dtype, shape)

    def dim(self, dim: int | torch.SymInt) -> Dim:
        """Return a dim of a fake tensor as a dim of an IR type. Raises Abort for a size that is
        not known."""
        if isinstance(dim, int):
            return dim
        expression = dim.node.expr
        known = self.dim_of(expression)
        if known is not None:
            return known
        if expression.free_symbols <= self.sizes.known.keys():
            if self.sizes.settle_ints(dim):
                return self.dim(dim)
            return int(dim)  # sizes cannot express it: a guard settles it
        raise data_dependent_shape()

    def dim_of(self, expression: Any) -> Dim | None:
        """Return a sympy expression as a size; None if sizes cannot express it."""
        try:
            return from_sympy(expression, {**self.sizes.known, **self.symbols})
        except VerifyError:
            return None

    def new_symbol(self, number: Value, low: int = 0, high: int | None = None) -> torch.SymInt:
        """Return a fresh symbolic dim whose size is `number`, which is between `low` and `high`."""
        shape_env = self.fake_mode.shape_env
        assert shape_env is not None
        size = shape_env.create_unbacked_symint()
        torch._check(size >= low)
        if high is not None:
            torch._check(size <= high)
        shape_env.pending_fresh_unbacked_symbols.clear()
        symbol = Symbol(str(size.node.expr), low, high)
        self.symbols[size.node.expr] = symbol
        self.symbol_dims[symbol] = size
        self.symbol_values[symbol] = number
        return size

    def new_size(
        self, number: Value, low: int = 0, high: int | None = None, most: Size | None = None
    ) -> torch.SymInt:
        """Return a fresh symbolic dim bound by its own SizeOp. The caller has checked that the
        number is in the range, and at most `most`."""
        size = self.new_symbol(number, low, high)
        named = Size.of(self.symbols[size.node.expr])
        (value,) = self.emit(SizeOp(number, named, most), (INDEX,))
        self.symbol_values[named.symbols[0]] = value
        return size

    def symbolic_dim(self, dim: Dim) -> int | torch.SymInt:
        """Return a dim as it appears in shapes of fake tensors."""
        return to_symint(dim, {**self.sizes.values, **self.symbol_dims})

    def tensor_op(
        self,
        target: str,
        args: tuple[Argument, ...],
        type: Type,
        kwargs: tuple[tuple[str, Argument], ...] = (),
    ) -> Value:
        """Emit a TensorOp with one result."""
        return self.emit(TensorOp(target, args, kwargs), (type,))[0]

    def list_length(self, value: Value) -> Value:
        return self.emit(ListLengthOp(value), (TensorType(DType.I64),))[0]

    def number_of_dim(self, dim: int | torch.SymInt) -> Any:
        """Return a symbolic dim of a fake tensor as a traced number."""
        return self.number_of_size(self.dim(dim))

    def number_of_size(self, size: Dim) -> Any:
        """Return a dim of an IR type as a traced number."""
        if isinstance(size, int):
            return size
        if size.symbol in self.symbol_values:
            bound = self.symbol_values[size.symbol]
            value = self.use(bound)
            if value is bound:  # otherwise another function binds the symbol
                self.sizes_read[value] = size
            return self.number(value, bits=SIZE_BITS)
        return self.number(self._size_value(size), bits=SIZE_BITS)

    def _size_value(self, size: Size) -> Value:
        """Return a size as a scalar value of the Program."""
        value = self.size_values.get(size)
        if value is None or not self._is_usable(value):
            op = TensorOp("aten.scalar_tensor.default", (size,), (("dtype", torch.int64),))
            value = self.emit(op, (INDEX,), "size")[0]
            self.size_values[size] = value
            self.sizes_read[value] = size
        return value

    def loop_of(self, source: object) -> int:
        """Return the number that identifies a loop."""
        return self.loop_numbers.setdefault(id(source), (len(self.loop_numbers), source))[0]

    def note(self, text: str) -> None:
        """Record a line for `explain()`, prefixed with the user's line; each text once."""
        place = user_location()
        line = f"{place.file}:{place.line}: {text}" if place else text
        if line not in self.notes:
            self.notes.append(line)


def data_dependent_shape(what: str = "a shape") -> Abort:
    """Return the signal for a shape that depends on the content of a tensor."""
    return abort(
        f"{what} depends on the content of a tensor",
        "use masks (torch.where, masked_fill), or tensors of fixed size; or compile with "
        "fallback=True, which runs it in Python",
    )


def is_tracing() -> bool:
    """Return True if this thread is tracing a function."""
    state = active()
    return state is not None and bool(state.regions)


Hooks.is_tracing = is_tracing
_local = threading.local()


def active() -> Tracer | None:
    """Return the tracer of this thread; None if no capture is active."""
    return getattr(_local, "tracer", None)


def tracer() -> Tracer:
    """Return the tracer of this thread, which must be capturing."""
    found = active()
    assert found is not None, "no capture is going on"
    return found


@contextmanager
def suspended() -> Generator[None]:
    """Run code as if no capture were active."""
    state = tracer()
    _local.tracer = None
    try:
        with state.native():
            yield
    finally:
        _local.tracer = state


@contextmanager
def activate(value: Tracer) -> Generator[None]:
    """Make `value` the tracer of this thread. Raises CaptureError if one is already active."""
    if active() is not None:
        raise CaptureError("a capture is going on already in this thread")
    _local.tracer = value
    try:
        yield
    finally:
        _local.tracer = None
