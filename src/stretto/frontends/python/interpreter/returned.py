"""Description of results, and of values that are stored outside: yields of main, and an
OutputSpec."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.aliasing.aliases import overlapping
from stretto.frontends.python.calls.recurrent import PaddedSequence
from stretto.frontends.python.interpreter.frames import BoundMethod
from stretto.frontends.python.interpreter.heap import (
    CELL,
    CONTAINERS,
    ITEMS,
    MISSING,
    DictView,
    HeapObject,
    IteratorRef,
    PythonHeap,
    Ref,
    check_state,
)
from stretto.frontends.python.lists.sources import Indexed, TracedRange
from stretto.frontends.python.results.captured import (
    ChoiceLeaf,
    InputLeaf,
    NewContainer,
    ObjectLeaf,
    OutputSpec,
    PythonLeaf,
    ResultLeaf,
)
from stretto.frontends.python.results.output import (
    ArgumentReturned,
    CollectionOf,
    DictOf,
    FunctionOf,
    PartialOf,
    RecordOf,
    SubclassOf,
    TupleOf,
)
from stretto.frontends.python.tracing.fakes import dims_by_stride
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.locations import MARK
from stretto.frontends.python.tracing.signals import Poison, fail
from stretto.frontends.python.tracing.tensor import Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import number_of_size, plain
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import known_value
from stretto.frontends.python.values.state import TracedList, attributes_of, container_of, is_box
from stretto.frontends.python.values.texts import TextOf, is_text
from stretto.ir.core import Value

_IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type, Enum,
    types.BuiltinFunctionType, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


@dataclass(eq=False)
class Flattener:
    """Describes values of the interpreter; the same value always gets the same spec.

    inputs: numbers of the inputs, by the id of the traced tensor. numbers: numbers of the objects
    that are read before a run, by id. storing: the values are stored in the user's objects, so each
    must be known completely. layouts: tensors must have the memory layout of eager PyTorch.
    """

    heap: PythonHeap
    inputs: dict[int, int]
    numbers: dict[int, int]
    storing: bool = True
    layouts: bool = False
    yields: list[Value] = field(default_factory=list[Value])
    """Yields of main."""
    seen: dict[int, OutputSpec | None] = field(default_factory=dict[int, OutputSpec | None])
    keep: list[Any] = field(default_factory=list[Any])
    made: list[tuple[Storage, int | None]] = field(
        default_factory=list[tuple[Storage, "int | None"]]
    )
    """Memory of the tensors and lists among the yields, and the statement of a segment that made
    the tensor."""
    given: dict[Storage, set[Storage]] = field(default_factory=dict[Storage, set[Storage]])
    """For the memory of a tensor that is an input itself in some runs, the memory of these
    inputs."""

    def spec(self, value: Any) -> OutputSpec:
        """Return the spec of a value; fail for a new object that contains itself."""
        if type(value) in (str, int, float, bool, type(None)):
            return self._spec(value)
        if id(value) not in self.seen:
            self.keep.append(value)
            self.seen[id(value)] = None
            self.seen[id(value)] = self._spec(value)
        found = self.seen[id(value)]
        if found is None:
            fail(
                f"a new {type(value).__name__} that contains itself leaves the compiled function",
                "make it outside of the compiled function",
            )
        return found

    def _check_class(self, value: Any) -> None:
        """Fail for a class that the program has made and changed, and for an object of it: no call
        makes the class again."""
        kind: type = value.kind if isinstance(value, HeapObject) else type(value)
        for base in (value if isinstance(value, type) else kind).__mro__:
            table = self.heap.tables.get(id(base), (base, {}))[1]
            if self.heap.is_born_after(table, 0) and any(t is table for t, _, _ in self.heap.trail):
                fail(
                    f"the class {base.__name__}, which the function makes and changes, leaves it",
                    "make it outside of the compiled function",
                )

    def _spec(self, value: Any) -> OutputSpec:
        value = plain(value)
        self._check_class(value)
        match value:
            case Ref():
                known = value.origin is not None
                return self._outside(value.origin) if known else self._container(value)
            case DictView():
                return NewContainer(_ViewOf(value.name), (self.spec(value.holder),))
            case _ if value is MISSING:
                return PythonLeaf(UNDEFINED)
            case TracedTensor():
                return self._tensor(value)
            case torch.SymInt() | torch.SymFloat():
                return self.spec(number_of_size(tracer(), value, torch.float64))
            case torch.SymBool():
                return PythonLeaf(bool(value))
            case TracedList():
                return self.items(value)
            case PaddedSequence():
                return self.spec(value.items())
            case Either():
                options = tuple(map(self.spec, value.stretto_options))
                return ChoiceLeaf(tuple(map(self.spec, value.stretto_flags)), options)
            case Poison():
                value.fail_at_origin()
            case _ if is_text(value):
                build = TextOf(value.stretto_pieces)
                return NewContainer(build, tuple(map(self.spec, value.stretto_values)))
            case str():
                return PythonLeaf(value)
            case torch.Tensor():
                known = id(value) in tracer().inputs
                return self.spec(tracer().promote(value)) if known else PythonLeaf(value)
            case _ if self.heap.is_own(value):
                return self._own(value)
            case types.MethodType():
                children = (self.spec(value.__func__), self.spec(value.__self__))
                if all(isinstance(child, PythonLeaf) for child in children):
                    return PythonLeaf(value)
                return NewContainer(_method, children)
            case tuple() if type(value) is tuple:
                items = tuple(map(self.spec, value))
                if value and all(_is_same(item, x) for item, x in zip(items, value, strict=True)):
                    return PythonLeaf(value)
                return NewContainer(TupleOf(tuple), items)
            case _:
                known = id(value) in self.numbers or self.heap.knows(value)
                return self._outside(value) if known else self._new(value)

    def items(self, value: TracedList) -> OutputSpec:
        """Return the spec of a list that is a result of main."""
        self.yields.append(tracer().current(value.memory))
        self.made.append((value.memory, None))
        return ResultLeaf(len(self.yields) - 1, value.numbers)

    def _new(self, value: Any) -> OutputSpec:
        """Return the spec of another value made during the capture, which each call makes anew."""
        match value:
            case IteratorRef() | Iterator():
                fail(
                    "a generator or iterator leaves the compiled function",
                    "return a list of its values, or compile with fallback=True",
                )
            case BoundMethod():
                fail(
                    f"the method {value.name} of an object of the program leaves it",
                    "return the object",
                )
            case TracedRange():
                return NewContainer(TupleOf(range), tuple(map(self.spec, value.bounds)))
            case Indexed():
                return NewContainer(TupleOf(tuple), tuple(map(self.spec, value)))
            case slice():
                bounds = (value.start, value.stop, value.step)
                return NewContainer(TupleOf(slice), tuple(map(self.spec, bounds)))
            case tuple():
                return NewContainer(TupleOf(type(value)), tuple(map(self.spec, value)))
            case frozenset():
                return NewContainer(CollectionOf(type(value)), tuple(map(self.spec, value)))
            case _ if isinstance(value, CONTAINERS):  # of native code
                return self.spec(self.heap.received(value))
            case nn.Module() | type():
                return self._python(value)
            case functools.partial():
                return self._partial(value)
            case _ if is_box(value):
                held = attributes_of(value)
                build = RecordOf(type(value), tuple(held))
                return NewContainer(build, tuple(map(self.spec, held.values())))
            case _:
                return self._python(value)

    def _python(self, value: Any) -> OutputSpec:
        """Return the spec of a value that is the same at each call, or is assumed to be if it is
        returned."""
        if (
            self.storing
            and not isinstance(value, types.FunctionType)
            and not isinstance(value, _IMMUTABLE)
        ):
            fail(
                f"a new object of class {type(value).__name__}, which cannot be made again by "
                "each call, is kept in an object of the user",
                "make it before the first call, or keep tensors, numbers and plain containers",
            )
        return PythonLeaf(value)

    def check_apart(self) -> None:
        """Fail if a result shares memory with another result, an input or a constant.

        After a run each has separate memory, so a change of one would not be visible in the other.
        The statements that made the later ones are blamed.
        """
        taken: dict[Storage, int | None] = {traced.memory: None for traced in _outer()}
        blamed = list[int | None]()
        for memory, statement in self.made:
            shared = overlapping(memory) - self.given.get(memory, set())
            others = [taken[other] for other in {memory, *shared} if other in taken]
            if others:
                known = [number for number in (statement, *others) if number is not None]
                blamed.append(max(known, default=None))
            taken[memory] = statement
        if blamed:
            MARK.blamed = frozenset(number for number in blamed if number is not None)
            fail(
                "a tensor that may be a view of another one, or the same one, is passed to code "
                "that runs in Python",
                "call clone() if it is not meant to share memory",
            )

    def _tensor(self, value: TracedTensor) -> OutputSpec:
        if id(value) in self.inputs:
            return InputLeaf(self.inputs[id(value)])
        for constant in tracer().constants.values():
            if constant.traced is value:
                return PythonLeaf(constant.tensor)
        known = known_value(value)
        if known is not None:
            return PythonLeaf(known)
        tracer().gradients.check_made(value)
        self.yields.append(tracer().read(value))
        if value.number is None:
            self.made.append((value.memory, value.statement))
        order = self._order(value) if self.layouts else ()
        made = ResultLeaf(len(self.yields) - 1, value.number is not None, order)
        return self._or_source(value, made) if self.storing else made

    def _order(self, value: TracedTensor) -> tuple[int, ...]:
        """Return the order of the dims in memory; () if it is the usual one."""
        fake = value.fake
        if fake.is_contiguous():
            return ()
        order = dims_by_stride(fake)[::-1]
        with tracer().faking():
            is_dense = fake.permute(order).is_contiguous()
        if not is_dense:
            fail(
                "a tensor with gaps between its elements is passed to code that runs in Python",
                "call contiguous()",
            )
        return order

    def _or_source(self, value: TracedTensor, made: OutputSpec) -> OutputSpec:
        """Return the spec of a tensor that is stored: the input itself in the runs in which the
        tensor is that input."""
        pairs = list[tuple[OutputSpec, OutputSpec]]()
        outer = {*self.inputs, *(id(item.traced) for item in tracer().constants.values())}
        for source in () if value.steps else value.memory.sources:
            tensor = source.tensor
            if self.layouts and not tensor.steps:
                tensor = next((t for t in _outer() if t.memory is tensor.memory), tensor)
            flag = source.flag() if id(tensor) in outer else None
            if flag is not None:
                pairs.append((self.spec(tracer().number(flag)), self.spec(tensor)))
                self.given.setdefault(value.memory, set()).add(source.tensor.memory)
        if not pairs:
            return made
        flags, options = zip(*pairs, strict=True)
        return ChoiceLeaf((*flags, PythonLeaf(True)), (*options, made))

    def _own(self, value: Any) -> OutputSpec:
        """Return the spec of a function or object that the program has made."""
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            return self._partial(value)
        if isinstance(value, types.CellType):
            return NewContainer(_cell, (self.spec(self.heap.field(value, CELL)),))
        return self._object(value)

    def _outside(self, real: Any) -> OutputSpec:
        """Return the spec of an object from outside."""
        number = self.numbers.get(id(real), -1)
        if number >= 0:
            return ObjectLeaf(number)
        if id(real) in self.heap.outside.arguments:
            raise ArgumentReturned
        return PythonLeaf(real)

    def _container(self, value: Ref) -> OutputSpec:
        kind, items = value.kind, value.table[ITEMS]
        names = tuple(name for name in value.table if isinstance(name, str))
        factory = value.table.get("default_factory")
        most = value.table.get("maxlen")
        if isinstance(items, TracedList):
            found = self.items(items)
            return found if kind is list else NewContainer(_CollectionOfList(kind), (found,))
        if isinstance(items, Either):
            options = [
                self._container(Ref(kind, {**value.table, ITEMS: option}, 0))
                for option in items.stretto_options
            ]
            return ChoiceLeaf(tuple(map(self.spec, items.stretto_flags)), tuple(options))
        in_some_runs = isinstance(items, dict) and any(map(_may_be_missing, items.values()))
        if in_some_runs and kind not in (dict, defaultdict, OrderedDict):
            fail(
                f"a {kind.__name__} with an entry that only some runs have leaves the compiled "
                "function",
                "set the entry in all arms",
            )
        keys = tuple(items) if isinstance(items, dict) else ()
        if any(isinstance(key, torch.Tensor) for key in keys):
            fail(
                f"a {kind.__name__} with a tensor as a key leaves the compiled function",
                "return the tensors as values",
            )
        children = (
            keys
            if issubclass(kind, set | frozenset)
            else (tuple(items.values()) if isinstance(items, dict) else items)
        )
        specs = tuple(map(self.spec, children))
        base = next(b for b in (dict, list, set, frozenset, deque) if issubclass(kind, b))
        extra = tuple(n for n in names if n not in ("default_factory", "maxlen"))
        if kind not in _KNOWN and not self._is_made_by_its_class(value, base, extra):
            held = tuple(self.spec(value.table[name]) for name in extra)
            is_dict = issubclass(kind, dict)
            maker: Any = kind.__new__
            real_base: Any = container_of(maker(kind)) or base
            build = SubclassOf(kind, real_base, keys if is_dict else (), extra)
            return NewContainer(build, (*specs, *held))
        if issubclass(kind, dict):
            return NewContainer(DictOf(kind, keys, factory), specs)
        return NewContainer(CollectionOf(kind, most), specs)

    def _is_made_by_its_class(self, value: Ref, base: type, names: tuple[str, ...]) -> bool:
        """True for a container that a call of its class with the content makes, attributes
        included."""
        items = value.table[ITEMS]
        entries = items if isinstance(items, dict) and base is dict else {}
        if any(entries.get(name) is not value.table[name] for name in names):
            return False
        made: Any = next(
            b for b in value.kind.__mro__ if b.__module__ in ("builtins", "collections")
        )
        return dataclasses.is_dataclass(value.kind) or value.kind.__init__ is made.__init__

    def _object(self, value: Any) -> OutputSpec:
        """Return the spec of an object that the program has made."""
        check_state(type(value))
        table = self.heap.table_of(value)
        names = tuple(n for n, x in table.items() if isinstance(n, str) and x is not MISSING)
        children = tuple(self.spec(table[name]) for name in names)
        return NewContainer(RecordOf(type(value), names), children)

    def _partial(self, value: functools.partial[Any]) -> OutputSpec:
        held = {n: x for n, x in self.heap.table_of(value).items() if isinstance(n, str)}
        parts = (value.func, *value.args, *value.keywords.values(), *held.values())
        build = PartialOf(type(value), tuple(value.keywords), tuple(held))
        return NewContainer(build, tuple(map(self.spec, parts)))

    def _function(self, value: types.FunctionType) -> OutputSpec:
        """Return the spec of a function that the program has made, which each call makes anew."""
        cells = value.__closure__ or ()
        is_in = [self.heap.is_own(x) and self.heap.field(x, CELL) is value for x in cells]
        for cell, is_here in zip(cells, is_in, strict=True):
            if is_here:
                self.keep.append(cell)
                self.seen[id(cell)] = NewContainer(_cell, (PythonLeaf(UNDEFINED),))
        held = [pair for pair in self.heap.table_of(value).items() if isinstance(pair[0], str)]
        children = (
            *(self.spec(cell) if self.heap.is_own(cell) else PythonLeaf(cell) for cell in cells),
            *map(self.spec, value.__defaults__ or ()),
            *map(self.spec, (value.__kwdefaults__ or {}).values()),
            *(self.spec(item) for _, item in held),
        )
        return NewContainer(FunctionOf(value, tuple(is_in), tuple(n for n, _ in held)), children)


def _outer() -> list[TracedTensor]:
    """Return the traced tensors that existed before the call."""
    state = tracer()
    return [*state.inputs.values(), *(constant.traced for constant in state.constants.values())]


_KNOWN = frozenset((dict, list, set, deque, defaultdict))


class _CollectionOfList:
    """Makes a collection from a list of a run."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __call__(self, items: Sequence[Any]) -> Any:
        return self.kind(items[0])


class _ViewOf:
    """Makes a view of a dict. name: the method of the dict that gives it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, items: Sequence[Any]) -> Any:
        return getattr(items[0], self.name)()


def _method(items: Sequence[Any]) -> Any:
    return types.MethodType(*items)


def _cell(items: Sequence[Any]) -> types.CellType:
    return types.CellType() if items[0] is UNDEFINED else types.CellType(items[0])


def _is_same(spec: OutputSpec, value: Any) -> bool:
    return isinstance(spec, PythonLeaf) and spec.value is value


def _may_be_missing(value: Any) -> bool:
    return value is MISSING or (
        isinstance(value, Either) and any(option is MISSING for option in value.stretto_options)
    )
