"""Memory of the lists that functions take and return.

Each list parameter and each list result of a function has a *slot*: a buffer, shared by the
whole program, that grows at run time. A parameter and a result share a slot if the function
returns the list that it takes, and so do the parameters that a list is passed on to, so that a
list that is passed through a recursion stays in place. Two parameters of one function never
share a slot, nor do two results.

A slot is a stack. Everything below the *base* of an activation belongs to its callers: an
argument begins at the base, and so does the result (`Lowering.base`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from stretto.components import Partition
from stretto.device.expr import Buffer, Extent, Reg
from stretto.errors import CodegenError, NotLowered, SourceLocation
from stretto.ir.core import Function, Program, Value
from stretto.ir.failure import NUMBER_BITS, Failure, Stop
from stretto.ir.ops import CallOp, ListGetOp, ListLengthOp, ListStackOp
from stretto.ir.rewrite import all_blocks
from stretto.ir.types import DType, TensorListType
from stretto.lowering.lists.storage import list_groups

# ---- The argument block of a program that is being lowered ------------------------------------


@dataclass(slots=True)
class Externals:
    """The argument block, shared by all functions: buffers by slot, and the tensors of constants.

    stops: the exceptions of the program's checks, by number. stacks: lists that grow at run time.
    Each activation of a function has a separate part of them (`Lowering.base`).
    """

    buffers: list[Buffer] = field(default_factory=list[Buffer])
    constants: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    tensors: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    draws: Buffer | None = None
    """Counts the draws of random numbers, which keeps them in order; None if there are none."""
    stops: list[Stop] = field(default_factory=list[Stop])
    stacks: list[Buffer] = field(default_factory=list[Buffer])

    def add(self, name: str, dtype: DType, shape: tuple[Extent, ...], kind: str) -> Buffer:
        """Add a buffer of the given kind, in the next slot."""
        buffer = Buffer(name, dtype, shape, kind, len(self.buffers))
        self.buffers.append(buffer)
        return buffer

    def stack(self, name: str, dtype: DType, shape: tuple[Extent, ...]) -> Buffer:
        """Add a list that grows at run time and is shared by the activations of functions."""
        buffer = self.add(name, dtype, shape, "list")
        self.stacks.append(buffer)
        return buffer

    def constant(self, key: str, tensor: torch.Tensor) -> Buffer:
        """Return the buffer of a constant, added once per key."""
        if key not in self.constants:
            dtype = DType.from_torch(tensor.dtype)
            buffer = self.add(key, dtype, tuple(tensor.shape), "constant")
            self.constants[key] = buffer
            self.tensors[buffer.slot] = tensor
        return self.constants[key]

    def stop(self, failure: Failure, location: SourceLocation | None) -> int:
        """Return the number of a check that raises `failure`, added once per failure and place."""
        entry = Stop(failure, location)
        for number, known in enumerate(self.stops):
            if known == entry and known.failure.raised is failure.raised:
                return number
        if len(self.stops) == 1 << NUMBER_BITS:
            raise CodegenError(
                f"a program with more than {1 << NUMBER_BITS} checks", location=location
            )
        self.stops.append(entry)
        return len(self.stops) - 1


Place = tuple[str, str, int]
"""(function, "param" or "result", number)."""


@dataclass(frozen=True, slots=True)
class ListSlots:
    """buffers: the slot of each list parameter and result. constant: slots that no function writes.

    wanted: maps each group of lists of a function, by its root, to the slots that its lists come
    from or go to; a new list is best created there.
    """

    buffers: Mapping[Place, Buffer] = field(default_factory=dict[Place, Buffer])
    constant: frozenset[Buffer] = frozenset()
    wanted: Mapping[Value, Sequence[Buffer]] = field(default_factory=dict[Value, Sequence[Buffer]])


def list_slots(program: Program, called: Sequence[str], externals: Externals) -> ListSlots:
    """Create the slots of the functions `called`, which main reaches."""
    functions = [program.functions[name] for name in called]
    shared = Partition[Place]()
    groups: dict[Value, list[Place]] = {}
    for function in (program.main, *functions):
        _collect(program, function, groups)
    for places in groups.values():
        for place in places[1:]:
            for other in places[: places.index(place)]:
                # A slot has at most one parameter and one result of a function.
                kinds = ({p[:2] for p in shared.members(one)} for one in (other, place))
                if set.isdisjoint(*kinds):
                    shared.join(other, place)
    made: dict[Place, Buffer] = {}
    buffers: dict[Place, Buffer] = {}
    for function in functions:
        for place, value in _signature(function):
            root = shared.root(place)
            if root not in made:
                made[root] = _slot(externals, root, value)
            buffers[place] = made[root]
    written = {buffer for function in functions for buffer in _written(function, buffers)}
    wanted = {
        root: tuple(dict.fromkeys(buffers[place] for place in places))
        for root, places in groups.items()
    }
    return ListSlots(buffers, frozenset(made.values()) - written, wanted)


def _signature(function: Function) -> Iterator[tuple[Place, Value]]:
    """Iterate over the list parameters and list results of a function."""
    for kind, values in (("param", function.params), ("result", function.body.yields)):
        for number, value in enumerate(values):
            if isinstance(value.type, TensorListType):
                yield (function.name, kind, number), value


def _collect(program: Program, function: Function, groups: dict[Value, list[Place]]) -> None:
    """Add to `groups`, for each group of lists of a function, the places its lists come from or go
    to."""
    own = list_groups(function)

    def enter(value: Value, place: Place) -> None:
        places = groups.setdefault(own.root(value), [])
        if place not in places:
            places.append(place)

    if function is not program.main:
        for place, value in _signature(function):
            enter(value, place)
    for op in function.body.walk():
        if isinstance(op, CallOp):
            for kind, values in (("param", op.arguments), ("result", op.results)):
                for number, value in enumerate(values):
                    if isinstance(value.type, TensorListType):
                        enter(value, (op.function, kind, number))


def _slot(externals: Externals, place: Place, value: Value) -> Buffer:
    element = value.list.element
    if not element.is_static:
        raise NotLowered(
            f"`{place[0]}` takes or returns a list of tensors whose size is known only at run time",
            remedy="give the items of the list one fixed shape",
        )
    function, kind, number = place
    shape = (Reg("capacity"), *element.static_shape())
    return externals.stack(f"{function}.{kind}.{number}", element.dtype, shape)


def _written(function: Function, buffers: Mapping[Place, Buffer]) -> Iterator[Buffer]:
    """Iterate over the slots in which a function may change a list, or to which it may move one."""
    homes = {value: buffers[place] for place, value in _signature(function)}
    params = {value: homes[value] for value in function.params if value in homes}
    for place, _ in _signature(function):
        if place[1] == "result":
            yield buffers[place]
    for value in (value for block in all_blocks(function.body) for value in block.yields):
        if value in params:
            yield params[value]
    for op in function.body.walk():
        match op:
            case ListGetOp() | ListLengthOp() | ListStackOp():
                pass
            case CallOp():
                for number, value in enumerate(op.arguments):
                    if isinstance(value.type, TensorListType):
                        slot = buffers[op.function, "param", number]
                        if params.get(value) != slot:
                            yield slot
            case _:
                yield from (params[value] for value in op.operands if value in params)
