"""The result of `capture`: a Program, and how to bind its inputs and rebuild its Python outputs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stretto.errors import SourceLocation
from stretto.frontends.python.calls.journal import SideEffectSite, act_out
from stretto.frontends.python.guards.guards import Guards
from stretto.frontends.python.guards.reading import Arguments, Reading, Root, read_state
from stretto.frontends.python.tracing.admission import Gradients
from stretto.frontends.python.tracing.frames import UNDEFINED
from stretto.frontends.python.tracing.symbolic_sizes import CallSizes
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
    """A tensor or counter in an object of the user: input `index` of the reading."""

    index: int
    name: str
    device: torch.device
    is_tensor: bool = True


@dataclass(frozen=True, slots=True)
class IntLeaf:
    """Int leaf `index` of the arguments, counting ints only, passed as the number of rows of an
    empty tensor."""

    index: int
    name: str


InputBinding = ArgumentLeaf | External | Fetched | IntLeaf


@dataclass(frozen=True, slots=True, eq=False)
class ConstantSource:
    """A tensor on whose content the Program relies.

    `key` names it in `Program.constants`; None if its value was only read during the capture.
    The Program stays right while `owner[name]` is `tensor`, at `version`. `owner` is None for
    closure tensors and globals. `version` is None for inference tensors, which have none.
    """

    key: str | None
    tensor: torch.Tensor
    version: int | None
    address: int
    owner: dict[str, Any] | None
    name: str | None

    def is_current(self) -> bool:
        """Return True if the tensor is unchanged since the capture, and its owner still
        holds it."""
        if self.version is not None and self.tensor._version != self.version:
            return False
        if self.tensor.data_ptr() != self.address:
            return False
        if self.owner is None or self.name is None:
            return True
        return self.owner.get(self.name) is self.tensor


@dataclass(frozen=True, slots=True)
class ResultLeaf:
    """Yield `index` of main: a tensor, or a list of tensors.

    number: returned as Python number(s). order: order of its dims in memory, if not the usual one.
    """

    index: int
    number: bool = False
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PythonLeaf:
    """A value that does not depend on the inputs' content, returned as it is."""

    value: Any


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """The tensor bound to input `index` itself, so identity is preserved."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceLeaf:
    """The first of `options` whose flag, a yield of main or a bool, is True."""

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
    """Build the Python result from the yields of main and the tensors bound to its params.

    objects: those of the reading. made: containers already built, since each is built once.
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
    """Return the tensor with its dims in this order in memory."""
    inverse = sorted(range(len(order)), key=lambda dim: order[dim])
    return tensor.permute(order).contiguous().permute(inverse)


@dataclass(frozen=True, slots=True, eq=False)
class ObjectChange:
    """A change of an object after a run: remove the `removed` entries, then `put` these into it.

    place: the number of an object of the reading, or ~number of a fixed box. whole: `put` is
    everything that the object holds afterwards. items: all items of a list that grew.
    """

    place: int
    put: tuple[tuple[Any, OutputSpec], ...]
    removed: tuple[Any, ...]
    whole: bool
    items: OutputSpec | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ObjectState:
    """State that a program reads in the user's objects before a run and changes after it.

    key, shapes: the key of the state at capture, and the shapes of the tensors in it.
    """

    roots: tuple[Root, ...]
    arguments: bool
    fixed: tuple[Any, ...]
    key: Hashable
    effects: tuple[ObjectChange, ...]
    counted: frozenset[tuple[type, Any]] = frozenset()
    shapes: tuple[torch.Size, ...] = ()

    def read(self, tensors: Sequence[torch.Tensor], arguments: Arguments) -> Reading:
        """Read the current state. `tensors` are those among the `arguments`, positional and
        keyword."""
        whole = arguments if self.arguments else None
        return read_state(self.roots, whole, tensors, self.fixed, self.counted)

    def finish(
        self,
        output: OutputSpec,
        results: Sequence[Any],
        inputs: Sequence[torch.Tensor],
        reading: Reading,
    ) -> Any:
        """Change the objects and return the result. All values are made before the first change."""
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
                held = contents(box)
                for key in effect.removed:
                    held.pop(key, None)
                values = {**held, **values}
            values = {key: value for key, value in values.items() if value is not UNDEFINED}
            refill(box, values)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class JournalSpec:
    """Output of a run (print, warnings, logs): its sites, the order of those reached, and all
    columns of values."""

    sites: tuple[SideEffectSite, ...]
    order: OutputSpec
    columns: tuple[OutputSpec, ...]

    @property
    def is_of_user(self) -> bool:
        """True if the user's own code prints, warns or logs, and not only library code."""
        return any(site.of_user for site in self.sites)

    def act_out(
        self, results: Sequence[Any], inputs: Sequence[torch.Tensor], reading: Reading | None
    ) -> None:
        """Print, warn and log what the run has recorded."""
        objects: Sequence[Any] = () if reading is None else reading.objects
        made = dict[OutputSpec, Any]()
        order, *columns = (
            build_output(spec, results, inputs, objects, made)
            for spec in (self.order, *self.columns)
        )
        act_out(self.sites, order, columns)


@dataclass(frozen=True, slots=True, eq=False)
class Differentiable:
    """Tensors that make a call run in eager PyTorch, since a program returns no gradients to them.

    mode: the grad mode of the capture. tensors: outside tensors that were read with grad mode
    on and may later require grad. inputs: True if the function itself enables grad mode, so
    that its inputs decide also in a call without grad mode.
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
    """After a run, copy result `result` into input `input`."""

    input: int
    result: int


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A captured function. `inputs` has one entry per param of main, in order.

    guards: other state it was captured with. writes: it changes something in place, so it
    matters which views are copies. identical: inputs that the function also reaches in another
    way. objects: the user's objects that it reads and changes; None if it changes none. sizes:
    accepted sizes of the arguments, if some are symbols. windows: slices assumed to be inside
    of their dim. journal: what a run prints, warns about and logs. replaces: handlers of the
    function raise other exceptions in place of those raised in a run.
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
