"""TracedTensor: the object that the user's code sees in place of a tensor while it is traced.

It wraps a FakeTensor (shape, strides, dtype) and refers to an IR value through its storage: a
storage holds the current value of a base tensor, and a traced tensor is a chain of view steps on
it. A write through any alias replaces the storage's value, and all aliases see it.

A traced *number* replaces a Python number of eager code (`.item()`, a loop index, a counter that
became traced). It is a tensor without dims, and promotes like a number in arithmetic.
"""

# pyright: reportPrivateUsage=false
# wrapper subclasses need torch's private constructor

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch

from stretto.errors import SourceLocation
from stretto.frontends.python.tracing.locations import MARK, at
from stretto.frontends.python.tracing.signals import BINARY, COMPARISONS, UNARY, Abort, fail
from stretto.ir.core import Block, Value, argument_values, map_argument
from stretto.ir.ops import Argument
from stretto.ir.sizes import Size
from stretto.ir.types import Dim, TensorType


@dataclass(eq=False, slots=True)
class BlockScope:
    """A block under construction, and the function it belongs to.

    joined: the scope that took over the ops of this one.
    """

    block: Block
    context: FunctionContext
    depth: int
    is_open: bool = True
    joined: BlockScope | None = None

    @property
    def here(self) -> BlockScope:
        """The scope whose block contains the ops now."""
        scope = self
        while scope.joined is not None:
            scope = scope.joined
        return scope

    @property
    def open(self) -> bool:
        return self.here.is_open


@dataclass(eq=False, slots=True)
class FunctionContext:
    """A Program function under construction."""

    name: str
    constants: dict[str, Value] = field(default_factory=dict[str, Value])
    captures: dict[Value, Value] = field(default_factory=dict[Value, Value])
    root: BlockScope | None = None


@dataclass(frozen=True, slots=True)
class ListLength:
    """Length of a list: `offset` more than that of `base`; known at the call if base is None."""

    base: object | None
    offset: Dim

    @property
    def static(self) -> int | None:
        """The length, if it is a number; else None."""
        return self.offset if self.base is None and isinstance(self.offset, int) else None

    @property
    def size(self) -> Size | None:
        """The length, if it is known at the call and not a number; else None."""
        return self.offset if self.base is None and isinstance(self.offset, Size) else None

    def plus(self, more: Dim) -> ListLength:
        """Return the length of a list with `more` additional items."""
        return ListLength(self.base, (Size.of(more) + self.offset).dim)


@dataclass(frozen=True, slots=True)
class StorageState:
    """The contents of a storage at one time: a value, or the key of a constant.

    `stale`: the error to raise when it is read, if a write through another storage may have
    changed it.
    """

    base: Value | str
    length: ListLength | None = None
    stale: Abort | None = None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Storage:
    """Memory shared by aliases. `fake` has the base tensor's shape (None for a list).

    `made`: its first contents. `any_layout`: the strides depend on the run. For the other
    fields see `aliasing`. `parts` is ordered because it decides the order of operators, which
    must not depend on addresses.
    """

    state: StorageState
    scope: BlockScope
    fake: torch.Tensor | None = None
    made: Value | str = field(init=False)
    any_layout: bool = False
    sources: tuple[MemorySource, ...] = ()
    parts: WeakKeyDictionary[Storage, None] | None = None
    links: WeakSet[Storage] | None = None
    same_list: WeakSet[Storage] | None = None

    def __post_init__(self) -> None:
        self.made = self.state.base


@dataclass(frozen=True, slots=True, eq=False)
class MemorySource:
    """If `flag` holds, the storage with this source is the memory that `tensor` views.

    is_own: if it holds, the storage of `tensor` is memory created in a loop, and not one of its
    own sources from before that loop.
    """

    tensor: TracedTensor
    flag: Callable[[], Value | None]
    is_own: bool = False


_SCATTERS = {
    "aten.select.int": "aten.select_scatter.default",
    "aten.slice.Tensor": "aten.slice_scatter.default",
    "aten.diagonal.default": "aten.diagonal_scatter.default",
    "aten.as_strided.default": "aten.as_strided_scatter.default",
    "stretto.narrow": "stretto.narrow_scatter",
}
"""The operators that write a part of a tensor, by the operator that views it."""


class OperatorEmitter(Protocol):
    """An object that emits operators: the tracer."""

    def use(self, value: Value) -> Value: ...

    def tensor_op(self, target: str, args: tuple[Argument, ...], type: TensorType) -> Value: ...


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view: `target(base, *arguments)`. Equal steps view the same elements.

    It is written back by a scatter, or, if the view keeps all elements, by `target(part,
    *inverse)`. A view with neither cannot be written. `place`: the user's line.
    """

    target: str
    arguments: tuple[Argument, ...]
    type: TensorType
    inverse: tuple[Argument, ...] | None = None
    place: SourceLocation | None = field(default=None, compare=False)

    @property
    def values(self) -> tuple[Value, ...]:
        """The values that both reading and writing depend on, besides the base."""
        return argument_values((self.arguments, self.inverse or ()))

    @property
    def is_writable(self) -> bool:
        return self.target in _SCATTERS or self.inverse is not None

    @property
    def is_comparable(self) -> bool:
        return all(map(_is_comparable, (*self.arguments, *(self.inverse or ()))))

    def mapped(self, lookup: Callable[[Value], Any]) -> ViewStep:
        """Return the same view with its values replaced by `lookup`."""
        inverse = None if self.inverse is None else _mapped(self.inverse, lookup)
        return replace(self, arguments=_mapped(self.arguments, lookup), inverse=inverse)

    def read(self, state: OperatorEmitter, base: Value) -> Value:
        with at(self.place):
            arguments = _mapped(self.arguments, state.use)
            return state.tensor_op(self.target, (base, *arguments), self.type)

    def write(self, state: OperatorEmitter, base: Value, part: Value) -> Value:
        """Return `base` with the elements of the view replaced by `part`. Raises Abort if the view
        is not writable."""
        whole = base.tensor
        if self.inverse is not None:
            return state.tensor_op(self.target, (part, *_mapped(self.inverse, state.use)), whole)
        scatter = _SCATTERS.get(self.target)
        if scatter is None:
            fail("an expanded tensor is written in place", "call clone() on it first")
        dim, *rest = _mapped(self.arguments, state.use)
        if self.target == "aten.select.int" and isinstance(rest[0], Value | Size):
            assert isinstance(dim, int)
            shape = self.type.shape
            row = TensorType(self.type.dtype, (*shape[:dim], 1, *shape[dim:]))
            part = state.tensor_op("aten.unsqueeze.default", (part, dim), row)
            return state.tensor_op("stretto.narrow_scatter", (base, part, dim, *rest), whole)
        if self.target == "stretto.narrow":
            rest = rest[:1]
        return state.tensor_op(scatter, (base, part, dim, *rest), whole)


def _is_comparable(argument: Any) -> bool:
    if isinstance(argument, tuple):
        return all(map(_is_comparable, argument))  # pyright: ignore[reportUnknownArgumentType]
    return argument is None or isinstance(argument, int | float | str | Value | Size)


def _mapped(arguments: tuple[Argument, ...], lookup: Callable[[Value], Any]) -> Any:
    return map_argument(arguments, lookup)


@dataclass(frozen=True, slots=True)
class LinearForm:
    """An integer known as a sum of values times coefficients, plus a constant."""

    terms: frozenset[tuple[Value, int]]
    constant: int

    def plus(self, other: LinearForm, sign: int = 1) -> LinearForm:
        total = dict(self.terms)
        for value, coefficient in other.terms:
            total[value] = total.get(value, 0) + sign * coefficient
        kept = frozenset((value, c) for value, c in total.items() if c)
        return LinearForm(kept, self.constant + sign * other.constant)

    def times(self, factor: int) -> LinearForm:
        terms = frozenset((value, c * factor) for value, c in self.terms if factor)
        return LinearForm(terms, self.constant * factor)


UNKNOWN_BITS = 64
"""The bits of an int about which nothing is known except that the Program can hold it."""
SIZE_BITS = 48
"""The bits of a size, a length, or an iteration number."""


@dataclass(frozen=True, slots=True)
class NumberMark:
    """Marks a traced tensor as a Python number. `loops`: the loops whose unrolling would make it
    known.

    A negative loop represents a counter, whose value is known if the capture is repeated. bits:
    an upper bound on the bits of an int's absolute value.
    """

    linear: LinearForm | None = None
    loops: frozenset[int] = frozenset()
    bits: int = UNKNOWN_BITS


@dataclass(slots=True)
class Cached:
    """The value of a view chain, valid while `base` is current."""

    base: Value
    value: Value


OF_GRADIENTS = ("grad", "grad_fn", "is_leaf", "requires_grad")
"""Attributes of a tensor that concern its gradients."""

Index = Any
Hook = Callable[..., Any]


def _outside_of_a_capture(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError("a value of a capture is used when no capture is running")


class Hooks:
    """Callbacks for the Python methods of traced values, set by the modules of higher layers."""

    getitem: Hook
    setitem: Hook
    item: Hook
    concrete: Hook
    is_tracing: Hook
    compared_lists: Hook
    list_items: Hook
    list_length: Hook
    numbers: Hook
    of_text: Hook
    text_method: Hook
    shown: Hook
    spelled: Hook
    number_attribute: Hook
    written: Hook
    arithmetic: Hook
    arithmetic_of_one: Hook
    of_operator: Hook
    of_function: Hook

    # Set by the interpreter, for the time of a capture.
    python: Any = None
    call: Hook = _outside_of_a_capture
    own: Hook = _outside_of_a_capture
    use: Hook = _outside_of_a_capture
    values_in_use: Hook = _outside_of_a_capture


def _numeric(name: str, inplace: str) -> Callable[[Any, Any], Any]:
    def method(self: TracedTensor, other: Any) -> Any:
        if self.number is not None:
            return getattr(self, name)(other)
        return getattr(torch.Tensor, inplace)(self, other)

    method.__name__ = inplace
    return method


def _of_numbers(name: str, *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    """Return a binary operator method; on numbers it is Python's."""
    method_name = f"__r{name}__" if swapped else f"__{name}__"

    def method(self: TracedTensor, other: Any) -> Any:
        if self.number is not None:
            operands = (other, self) if swapped else (self, other)
            outcome = Hooks.arithmetic(name, *operands)
            if outcome is not NotImplemented or not isinstance(other, torch.Tensor):
                return outcome  # NotImplemented: the other operand may have the operator
        return getattr(torch.Tensor, method_name)(self, other)

    method.__name__ = method_name
    return method


def _of_number(name: str) -> Callable[[Any], Any]:
    """Return a unary operator method; on numbers it is Python's."""

    def method(self: TracedTensor) -> Any:
        if self.number is not None:
            return Hooks.arithmetic_of_one(name, self)
        return getattr(torch.Tensor, f"__{name}__")(self)

    method.__name__ = f"__{name}__"
    return method


def _is_number(value: Any) -> bool:
    """True for a Python number, known or traced."""
    if isinstance(value, TracedTensor):
        return value.number is not None
    return isinstance(value, int | float | complex)


def _product(name: str) -> Callable[[Any, Any], Any]:
    """Return a matrix product method, which raises TypeError for numbers."""

    def method(self: TracedTensor, other: Any) -> Any:
        if _is_number(self) or _is_number(other):
            raise TypeError("unsupported operand type(s) for @: a number of Python is none")
        return getattr(torch.Tensor, name)(self, other)

    method.__name__ = name
    return method


class TracedTensor(torch.Tensor):
    """A tensor of the traced program. See the module's docstring."""

    fake: torch.Tensor
    memory: Storage
    steps: tuple[ViewStep, ...]
    number: NumberMark | None
    cached: Cached | None
    statement: int | None
    """Number of the segment's statement that created it; None outside of segments."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(
        cls: type[TracedTensor],
        fake: torch.Tensor,
        storage: Storage,
        steps: tuple[ViewStep, ...] = (),
        number: NumberMark | None = None,
    ) -> TracedTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            fake.shape,
            strides=fake.stride(),
            storage_offset=fake.storage_offset(),
            dtype=fake.dtype,
            device=fake.device,
            requires_grad=False,
        )
        made.fake = fake
        made.memory = storage
        made.steps = steps
        made.number = number
        made.cached = None
        made.statement = MARK.statement
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """torch.Tensor for tensors, so that user code sees one; TracedTensor for numbers, which
        would pass for known numbers under a Python class."""
        return torch.Tensor if self.number is None else TracedTensor

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that numbers have and tensors lack."""
        if name in TracedTensor.__annotations__ or self.number is None:
            raise AttributeError(f"'Tensor' object has no attribute '{name}'", name=name, obj=self)
        return Hooks.number_attribute(self, name)

    @property
    def real(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return super().real if self.number is None else Hooks.number_attribute(self, "real")

    @property
    def imag(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return super().imag if self.number is None else Hooks.number_attribute(self, "imag")

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        fail(
            f"{func} was called on a traced tensor outside of its capture",
            "do not keep tensors of a compiled function in globals or attributes",
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:
        """Return the text for code that is not rewritten; fails if the value is not known."""
        return str(Hooks.shown(self, repr))

    def __str__(self) -> str:
        return str(Hooks.shown(self, str))

    def __format__(self, spec: str) -> str:
        return str(Hooks.python.text((self, -1, spec)))

    def __hash__(self) -> int:
        """Hash a number by its value, a tensor by its identity."""
        if self.number is not None and Hooks.is_tracing():
            return hash(Hooks.concrete(self, "number for a key"))
        return super().__hash__()

    def __getitem__(self, index: Index) -> Any:
        return Hooks.getitem(self, index)

    def __setitem__(self, index: Index, value: Any) -> None:
        Hooks.setitem(self, index, value)

    def item(self) -> Any:
        return Hooks.item(self)

    def equal(self, other: Any) -> Any:
        """Return the Python flag that eager returns, as a traced number."""
        if _is_number(other):
            raise TypeError("equal(): argument 'other' (position 1) must be Tensor")
        if self.shape != other.shape:
            return False
        return (self == other).all().item()

    def allclose(self, other: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_number(other):
            raise TypeError("allclose(): argument 'other' (position 1) must be Tensor")
        return torch.isclose(self, other, *args, **kwargs).all().item()

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        """Call the operator: PyTorch's own method returns a contiguous tensor itself, before the
        tracer sees the call."""
        return torch.ops.aten.contiguous.default(self, memory_format=memory_format)

    def new_tensor(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Create a tensor from data that may contain traced numbers."""
        kinds = {"dtype": self.dtype, "device": self.device}
        return Hooks.call(torch.tensor, data, *args, **{**kinds, **kwargs})

    def tolist(self) -> Any:
        if not self.shape:
            return Hooks.item(self)
        found = Hooks.numbers(self)
        return [row.tolist() for row in self] if found is NotImplemented else found

    def __bool__(self) -> bool:
        return bool(Hooks.concrete(self, "bool"))

    def __int__(self) -> int:
        return int(Hooks.concrete(self, "int"))

    def __index__(self) -> int:
        return int(Hooks.concrete(self, "int"))

    def __float__(self) -> float:
        return float(Hooks.concrete(self, "float"))

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()


for _name in BINARY:
    if _name != "matmul":
        setattr(TracedTensor, f"__{_name}__", _of_numbers(_name))
        setattr(TracedTensor, f"__r{_name}__", _of_numbers(_name, swapped=True))
        setattr(TracedTensor, f"__i{_name}__", _numeric(f"__{_name}__", f"__i{_name}__"))
for _name in ("__matmul__", "__rmatmul__"):
    setattr(TracedTensor, _name, _product(_name))
for _name in COMPARISONS:
    setattr(TracedTensor, f"__{_name}__", _of_numbers(_name))
for _name in UNARY:
    setattr(TracedTensor, f"__{_name}__", _of_number(_name))
TracedTensor.__name__ = "Tensor"  # the name that Python's error messages show to the user
