"""Description of the traced function's result: yields of main, and an OutputSpec."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from stretto.frontends.python.aliasing.aliases import overlapping
from stretto.frontends.python.calls.generated import Generated
from stretto.frontends.python.calls.recurrent import PaddedSequence
from stretto.frontends.python.lists.iterators import TracedIterator
from stretto.frontends.python.lists.sources import Indexed, Iterated, SizedTuple, TracedRange
from stretto.frontends.python.objects.copies import check_kept, stand_ins
from stretto.frontends.python.objects.heap import Heap
from stretto.frontends.python.results.captured import (
    ChoiceLeaf,
    InputLeaf,
    NewContainer,
    ObjectLeaf,
    OutputSpec,
    PythonLeaf,
    ResultLeaf,
)
from stretto.frontends.python.source.rewrite import is_rewritten
from stretto.frontends.python.tracing.fakes import dims_by_stride, tensors_of
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.locations import MARK
from stretto.frontends.python.tracing.signals import CaptureSignal, Poison, fail
from stretto.frontends.python.tracing.tensor import Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.data_dependent_sizes import number_of_size, plain
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import known_value
from stretto.frontends.python.values.spelling import settled_size
from stretto.frontends.python.values.state import (
    TracedList,
    attributes_of,
    container_of,
    is_box,
    stored_items,
    stored_keys,
)
from stretto.frontends.python.values.texts import TextOf, is_text
from stretto.ir.core import Value

# ---- Builders of the containers that the captured function makes: each call builds new ones from
# their class and items.


@dataclass(frozen=True, slots=True)
class TupleOf:
    """Builds a tuple, a namedtuple, a range or a slice."""

    kind: type

    def __call__(self, items: Sequence[Any]) -> Any:
        if self.kind in (range, slice):
            return self.kind(*items)
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)


@dataclass(frozen=True, slots=True)
class CollectionOf:
    """Builds a list, set or deque. most: `maxlen` of a deque."""

    kind: type
    most: int | None = None

    def __call__(self, items: Sequence[Any]) -> Any:
        return deque(items, self.most) if self.kind is deque else self.kind(items)


@dataclass(frozen=True, slots=True, eq=False)
class DictOf:
    """Builds a dict, or a standard subclass of it. factory: of a defaultdict."""

    kind: type
    keys: tuple[Any, ...]
    factory: Callable[[], Any] | None = None

    def __call__(self, items: Sequence[Any]) -> Any:
        pairs = dict(zip(self.keys, items, strict=True))
        if self.kind is defaultdict:
            return defaultdict(self.factory, pairs)
        return pairs if self.kind is dict else self.kind(pairs)


@dataclass(frozen=True, slots=True)
class RecordOf:
    """Builds an object from its attributes, without calling its class."""

    kind: type
    names: tuple[str, ...]

    def __call__(self, items: Sequence[Any]) -> Any:
        made = object.__new__(self.kind)
        for name, item in zip(self.names, items, strict=True):
            object.__setattr__(made, name, item)
        return made


@dataclass(frozen=True, slots=True)
class SubclassOf:
    """Builds an object of a class derived from a built-in container, without calling its class.
    Its items are the contents, then the attributes."""

    kind: type
    base: type
    keys: tuple[Any, ...]
    names: tuple[str, ...]
    options: tuple[Any, ...] = ()

    def __call__(self, items: Sequence[Any]) -> Any:
        count = len(items) - len(self.names)
        held: Any = dict(zip(self.keys, items, strict=False)) if self.keys else items[:count]
        made: Any = self.base.__new__(self.kind, *([held] if self.base is frozenset else ()))
        if self.base is not frozenset:
            self.base.__init__(made, *self.options, held)  # type: ignore[call-arg]
        for name, item in zip(self.names, items[count:], strict=True):
            object.__setattr__(made, name, item)
        return made


Container = TupleOf | CollectionOf | DictOf | RecordOf | SubclassOf


_IMMUTABLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type, Enum,
    BuiltinFunctionType, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


@dataclass(eq=False)
class Flattener:
    """Describes values of the captured function; the same value always gets the same spec.

    inputs: numbers of the inputs, by the id of the traced tensor. numbers: numbers of the objects
    that are read before a run, by id. storing: the values are stored in the user's objects, so each
    must be known completely. layouts: tensors must have the memory layout of eager PyTorch.
    """

    heap: Heap
    inputs: dict[int, int]
    numbers: dict[int, int]
    storing: bool = True
    layouts: bool = False
    stand_ins: dict[int, tuple[list[Any], TracedList]] = field(default_factory=stand_ins)
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

    def _spec(self, value: Any) -> OutputSpec:
        value = plain(value)
        match value:
            case TracedTensor():
                return self._tensor(value)
            case torch.SymInt() | torch.SymFloat():
                return self.spec(number_of_size(tracer(), value, torch.float64))
            case torch.SymBool():
                return PythonLeaf(bool(value))
            case TracedList() if id(value) in self.stand_ins:
                return self.spec(self.stand_ins[id(value)][0])
            case TracedList():
                return self.items(value)
            case PaddedSequence():
                return self.spec(value.items())
            case Either():
                return self._choice(value)
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
            case _ if value is UNDEFINED:
                fail(
                    "an attribute or item is kept that is set in one arm of a traced branch only",
                    "set it in both arms",
                )
            case _ if self.numbers.get(id(value), -1) >= 0:
                return ObjectLeaf(self.numbers[id(value)])
            case _ if self.heap.knows(value):
                if id(value) in self.heap.arguments:
                    raise ArgumentReturned
                return PythonLeaf(value)
            case _:
                return self._new(value)

    def items(self, value: TracedList) -> OutputSpec:
        """Return the spec of a list that is a result of main."""
        self.yields.append(tracer().current(value.memory))
        self.made.append((value.memory, None))
        return ResultLeaf(len(self.yields) - 1, value.numbers)

    def entry(self, value: Any) -> OutputSpec:
        """Return the spec of an attribute or item, which may be missing in some runs."""
        if isinstance(value, Either) and any(x is UNDEFINED for x in value.stretto_options):
            return self._choice(value, is_entry=True)
        return self.spec(value)

    def _choice(self, value: Either, *, is_entry: bool = False) -> OutputSpec:
        """Return the spec of a value that is one of several."""
        options = (
            PythonLeaf(option) if is_entry and option is UNDEFINED else self.spec(option)
            for option in value.stretto_options
        )
        return ChoiceLeaf(tuple(map(self.spec, value.stretto_flags)), tuple(options))

    def _new(self, value: Any) -> OutputSpec:
        """Return the spec of a value made during the capture, which each call makes anew."""
        check_kept(value)
        match value:
            case SizedTuple():
                return NewContainer(TupleOf(tuple), tuple(self.spec(item) for item in value))
            case TracedIterator():
                fail(
                    f"an iterator of class {value.kind.__name__} leaves the compiled function",
                    "return a list or a tuple",
                )
            case Generated() | Iterator() | Iterated():
                fail(
                    "a generator or iterator leaves the compiled function",
                    "return a list of its values, or compile with fallback=True",
                )
            case TracedRange():
                return NewContainer(TupleOf(range), tuple(map(self.spec, value.bounds)))
            case slice():
                bounds = (value.start, value.stop, value.step)
                return NewContainer(TupleOf(slice), tuple(map(self.spec, bounds)))
            case Indexed() if not self.storing:
                return NewContainer(CollectionOf(list), tuple(self.spec(item) for item in value))
            case list() | set() | frozenset() | deque() | dict() if _needs_attributes(value):
                return self._subclass(value)
            case dict():
                return self._dict(value)
            case tuple():
                return NewContainer(TupleOf(type(value)), tuple(self.spec(item) for item in value))
            case list() | set() | frozenset() | deque():
                build = CollectionOf(type(value), getattr(value, "maxlen", None))
                return NewContainer(build, tuple(self.spec(item) for item in value))
            case nn.Module() | type():
                return self._python(value)
            case _ if is_box(value):
                return self._record(value)
            case _:
                return self._python(value)

    def _python(self, value: Any) -> OutputSpec:
        """Return the spec of a value that is the same at each call, or is assumed to be if it is
        returned."""
        foreign = isinstance(value, FunctionType) and not is_rewritten(value)
        if self.storing and not foreign and not isinstance(value, _IMMUTABLE):
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

    def _dict(self, value: dict[Any, Any]) -> OutputSpec:
        factory = value.default_factory if isinstance(value, defaultdict) else None
        build = DictOf(type(value), _known_keys(value), factory)
        return NewContainer(build, tuple(self.spec(item) for item in value.values()))

    def _subclass(self, value: Any) -> OutputSpec:
        """Return the spec of an object of a class that derives from a container and has
        attributes."""
        base = container_of(value)
        assert base is not None
        keys = _known_keys(stored_keys(value)) if isinstance(value, dict) else ()
        held = attributes_of(value)
        children = [self.spec(item) for item in stored_items(value)]
        children += map(self.entry, held.values())
        return NewContainer(SubclassOf(type(value), base, keys, tuple(held)), tuple(children))

    def _record(self, value: Any) -> OutputSpec:
        """Return the spec of an object that is rebuilt without calling its class."""
        held = attributes_of(value)
        build = RecordOf(type(value), tuple(held))
        return NewContainer(build, tuple(map(self.entry, held.values())))


def _known_keys(keys: Iterable[Any]) -> tuple[Any, ...]:
    """Return the keys of a dict with sizes as numbers of this call: hashing has settled them."""
    known = tree_map_only((torch.SymInt, torch.SymFloat), settled_size, tuple(keys))
    if tensors_of(list(known)):
        fail(
            "a tensor is a key of a dict that leaves the compiled function",
            "return the keys and the values as lists",
        )
    return known


def _needs_attributes(value: Any) -> bool:
    """Return True for a container that its class cannot make from its contents alone: it has
    further attributes, or its own `__init__`."""
    kind, base = type(value), container_of(value)
    if base is kind or isinstance(value, defaultdict | Counter):
        return False
    held = dict(zip(stored_keys(value), stored_items(value), strict=True)) if base in _DICTS else {}
    extra = any(held.get(name) is not item for name, item in attributes_of(value).items())
    return extra or not (dataclasses.is_dataclass(kind) or kind.__init__ is base.__init__)


_DICTS = (dict, OrderedDict)


def _outer() -> list[TracedTensor]:
    """Return the traced tensors that existed before the call."""
    state = tracer()
    return [*state.inputs.values(), *(constant.traced for constant in state.constants.values())]


class ArgumentReturned(CaptureSignal):
    """A container among the arguments is part of the result."""
