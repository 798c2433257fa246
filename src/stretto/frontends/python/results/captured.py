"""What `capture` hands to the caller: a Program and how to bind and rebuild Python values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stretto.errors import SourceLocation
from stretto.frontends.python.guards.guards import Guards
from stretto.frontends.python.guards.reading import Arguments, Reading, Root, read_state
from stretto.frontends.python.objects.heap import Site, act_out
from stretto.frontends.python.tracing.admission import Gradients
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.sizes import CallSizes
from stretto.frontends.python.values.state import contents, refill
from stretto.ir.core import Program


@dataclass(frozen=True, slots=True)
class ArgumentLeaf:
    """Tensor leaf `index` of `tree_flatten((args, kwargs))`, counting tensor leaves only."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class External:
    """A buffer or closure tensor that the program changes; `name` is its qualified name."""

    tensor: torch.Tensor
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """A tensor or counter that an object of the user holds: input `index` of the reading."""

    index: int
    name: str
    device: torch.device
    is_tensor: bool = True


@dataclass(frozen=True, slots=True)
class IntLeaf:
    """Int leaf `index` of the arguments, counting ints only: the number of rows of an empty
    tensor."""

    index: int
    name: str


InputBinding = ArgumentLeaf | External | Fetched | IntLeaf


@dataclass(frozen=True, slots=True, eq=False)
class ConstantSource:
    """A tensor whose content the Program relies on.

    `key` names it in `Program.constants`, or is None when its value was only read while capturing.
    `owner[name]` still being `tensor`, at `version`, means that the Program is still right.
    `owner` is None for closure tensors and globals. Inference tensors have no version.
    """

    key: str | None
    tensor: torch.Tensor
    version: int | None
    address: int
    owner: dict[str, Any] | None
    name: str | None

    def is_current(self) -> bool:
        """Whether the tensor is unchanged since capture, and still what its owner holds."""
        if self.version is not None and self.tensor._version != self.version:
            return False
        if self.tensor.data_ptr() != self.address:
            return False
        if self.owner is None or self.name is None:
            return True
        return self.owner.get(self.name) is self.tensor


@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """Yield `index` of main: a tensor, or a list of tensors. `number`: as Python numbers. `order`:
    its dims as they lie in memory, where that is not their own order."""

    index: int
    number: bool = False
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PythonLeaf:
    """A value that does not depend on the inputs' content, returned as it is."""

    value: Any


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """The tensor bound to input `index` itself, so identity is kept."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceLeaf:
    """The first of `options` whose flag, a yield of main or a bool, is set."""

    flags: tuple[OutputSpec, ...]
    options: tuple[OutputSpec, ...]


@dataclass(frozen=True, slots=True)
class ObjectLeaf:
    """Object `index` of the reading, after its effects."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class NewContainer:
    """A container: `build` makes it from its children."""

    build: Callable[[Sequence[Any]], Any]
    children: tuple[OutputSpec, ...]


OutputSpec = ResultLeaf | PythonLeaf | InputLeaf | ObjectLeaf | ChoiceLeaf | NewContainer


def build_output(
    spec: OutputSpec,
    results: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    objects: Sequence[Any],
    made: dict[OutputSpec, Any],
) -> Any:
    """The Python result from the yields of main and the tensors bound to its params.

    objects: those of the reading. made: containers that were built already, which are built once.
    """
    match spec:
        case ResultLeaf(index, number, order):
            found = results[index]
            if order and spec not in made:
                made[spec] = _ordered(found, order)
            if order:
                return made[spec]
            if not number:
                return found
            return [item.item() for item in found] if isinstance(found, list) else found.item()
        case PythonLeaf(value):
            return value
        case InputLeaf(index):
            return inputs[index]
        case ObjectLeaf(index):
            return objects[index]
        case ChoiceLeaf(flags, options):
            chosen = (
                option
                for flag, option in zip(flags, options, strict=True)
                if build_output(flag, results, inputs, objects, made)
            )
            return build_output(next(chosen), results, inputs, objects, made)
        case NewContainer(build, children):
            if spec not in made:
                made[spec] = build(
                    [build_output(child, results, inputs, objects, made) for child in children]
                )
            return made[spec]


def _ordered(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """The same tensor with its dims in this order in memory."""
    inverse = sorted(range(len(order)), key=lambda dim: order[dim])
    return tensor.permute(order).contiguous().permute(inverse)


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """After a run, `put` these entries into an object and take the `removed` ones out of it.

    place: the number of an object of the reading, or the complement of the number of a fixed box.
    whole: `put` is all that the object holds. items: all items of a list that grew.
    """

    place: int
    put: tuple[tuple[Any, OutputSpec], ...]
    removed: tuple[Any, ...]
    whole: bool
    items: OutputSpec | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ObjectState:
    """What a program reads in the user's objects before a run, and changes in them after it.

    key, shapes: what it was captured with, and the shapes of the tensors in it.
    """

    roots: tuple[Root, ...]
    arguments: bool
    fixed: tuple[Any, ...]
    key: Hashable
    effects: tuple[Effect, ...]
    counted: frozenset[tuple[type, Any]] = frozenset()
    shapes: tuple[torch.Size, ...] = ()

    def read(self, tensors: Sequence[torch.Tensor], arguments: Arguments) -> Reading:
        """`tensors` are those among the `arguments`, positional and keyword."""
        whole = arguments if self.arguments else None
        return read_state(self.roots, whole, tensors, self.fixed, self.counted)

    def finish(
        self,
        output: OutputSpec,
        results: Sequence[Any],
        inputs: Sequence[torch.Tensor],
        reading: Reading,
    ) -> Any:
        """Change the objects; the result. All values are made before the first change."""
        objects, made = reading.objects, dict[OutputSpec, Any]()
        result = build_output(output, results, inputs, objects, made)
        puts = list[dict[Any, Any]]()
        for effect in self.effects:
            put = effect.put
            if effect.items is not None:
                values = build_output(effect.items, results, inputs, objects, made)
                puts.append(dict(enumerate(values)))
                continue
            puts.append({k: build_output(s, results, inputs, objects, made) for k, s in put})
        for effect, values in zip(self.effects, puts, strict=True):
            place = effect.place
            box = objects[place] if place >= 0 else self.fixed[~place]
            if not effect.whole:
                values = {**contents(box), **values}
                for key in effect.removed:
                    values.pop(key, None)
            values = {key: value for key, value in values.items() if value is not UNDEFINED}
            refill(box, values)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class JournalSpec:
    """What a run does to the world outside: its sites, the numbers of those that it comes to in
    order, and the columns of all sites."""

    sites: tuple[Site, ...]
    order: OutputSpec
    columns: tuple[OutputSpec, ...]

    @property
    def is_of_user(self) -> bool:
        """Whether the user's own code acts, and not only that of libraries."""
        return any(site.of_user for site in self.sites)

    def act_out(
        self, results: Sequence[Any], inputs: Sequence[torch.Tensor], reading: Reading | None
    ) -> None:
        """Prints, warns and logs what the run has come to."""
        objects: Sequence[Any] = () if reading is None else reading.objects
        made = dict[OutputSpec, Any]()
        order, *columns = (
            build_output(spec, results, inputs, objects, made)
            for spec in (self.order, *self.columns)
        )
        act_out(self.sites, order, columns)


@dataclass(frozen=True, slots=True, eq=False)
class Differentiable:
    """Which tensors decide that a call runs eager, since a program hands no gradients to them.

    mode: the grad mode that the function was captured in. tensors: those of outside that it read
    with grad mode on, and that may come to require grad. inputs: True if it switches grad mode on
    by itself, so that its inputs decide also in a call without grad mode.
    """

    mode: bool = False
    tensors: tuple[torch.Tensor, ...] = ()
    inputs: bool = False

    @staticmethod
    def of(gradients: Gradients) -> Differentiable:
        return Differentiable(
            gradients.mode, tuple(gradients.tensors.values()), gradients.uses_inputs
        )


@dataclass(frozen=True, slots=True)
class Mutation:
    """After a run, result `result` is to be copied into input `input`."""

    input: int
    result: int


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A captured function. `inputs` has one entry per param of main, in order.

    `guards`: what else it was captured with. `writes`: it changes something in place, so it matters
    which views are copies. `identical`: inputs that the function also reaches in another way.
    `objects`: the objects of the user that it reads and changes, if it changes any. `sizes`: which
    sizes of the arguments it takes, where some of them are symbols. `windows`: slices that are
    taken to lie inside of their dim. `journal`: what a run does to the world outside. `replaces`:
    handlers of the function raise other exceptions in place of those that a run comes to.
    """

    program: Program
    inputs: tuple[InputBinding, ...]
    constants: tuple[ConstantSource, ...]
    output: OutputSpec
    mutations: tuple[Mutation, ...]
    notes: tuple[str, ...]
    guards: Guards
    writes: bool
    identical: tuple[tuple[int, torch.Tensor], ...] = ()
    objects: ObjectState | None = None
    sizes: CallSizes | None = None
    windows: frozenset[SourceLocation] = frozenset()
    journal: JournalSpec | None = None
    differentiable: Differentiable = Differentiable()
    replaces: bool = False
