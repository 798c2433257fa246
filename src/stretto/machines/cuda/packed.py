"""Conversion of a compiled program to the content of a file and back: plan, texts and machine code.

On a GPU the result is the same as that of `CudaMachine.load` after a compilation: nothing is
captured, scheduled or compiled again, and Triton need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch

from stretto.device.expr import Buffer
from stretto.device.forms import Planned, ProgramInterface
from stretto.device.launch_graph import Arrangement
from stretto.device.plan import Action, Plan
from stretto.device.text import parse_form, print_form
from stretto.device.tree import Seq
from stretto.machines.cuda.compile import CompiledTriton, Resources
from stretto.machines.cuda.graphs.graph_builder import Arranged, Arrangements
from stretto.machines.cuda.printer.source import KernelParameter, TritonSource
from stretto.machines.cuda.styles import GpuProgram
from stretto.machines.cuda.templates import TEMPLATES
from stretto.machines.machine import PackedProgram
from stretto.schedule.plan_search import ChosenBranch

_PLAN = "plan"


def _plain(kind: type, *others: str) -> tuple[str, ...]:
    """The fields of a class but for those that are written in a way of their own: plain values, or
    tuples of them."""
    return tuple(field.name for field in fields(kind) if field.name not in others)


_SOURCE = _plain(TritonSource, "text", "parameters", "arguments", "user_kernels")
_COMPILED = _plain(CompiledTriton, "binary", "parameters", "resources", "seconds", "from_cache")


@dataclass(frozen=True, slots=True)
class UnpackedProgram:
    """A program read from a file. device: the name of the GPU that it was compiled for."""

    device: str
    program: GpuProgram
    interface: ProgramInterface
    arranged: Arrangements | None

    @property
    def target(self) -> str:
        """Architecture of the machine code, such as sm_90."""
        return self.program.compiled[0].target


def pack(
    device: str, made: GpuProgram, interface: ProgramInterface, arranged: Arrangements | None
) -> PackedProgram:
    """Return the content of a file; the interface's constants are not part of it."""
    plan = made.plan
    places = {buffer: place for place, buffer in enumerate(plan.program.tree.externals)}
    texts = {_PLAN: print_form(Planned(plan, interface))}
    binaries: dict[str, bytes] = {}
    launches: list[Any] = []
    for number, (source, kernel) in enumerate(zip(made.sources, made.compiled, strict=True)):
        texts[f"launch.{number}"] = source.text
        binaries[f"launch.{number}"] = kernel.binary
        launches.append([source_facts(source, places), kernel_facts(kernel)])
    facts = {
        "device": device,
        "repeatable": interface.repeatable,
        "as_graph": made.as_graph,
        "branches": [[b.condition, b.execution, b.reason] for b in made.branches],
        "arranged": None if arranged is None else _arranged_facts(plan, arranged),
        "launches": launches,
    }
    return PackedProgram(facts, texts, binaries)


def unpack(packed: PackedProgram, constants: Mapping[int, torch.Tensor]) -> UnpackedProgram:
    """Return the program of a file. constants: the tensor of each slot of the interface.

    Raises ValueError, ScheduleError, or any other Python error, for content that `pack` has not
    made.
    """
    facts = packed.facts
    form = parse_form(packed.texts[_PLAN], None, TEMPLATES)
    if not isinstance(form, Planned):
        raise ValueError("the file's program is not a plan of launches")
    plan = form.plan
    interface = replace(
        form.interface, constants=dict(constants), repeatable=bool(facts["repeatable"])
    )
    if len(plan.launches) != len(facts["launches"]):
        raise ValueError("the file has machine code for a different number of launches")
    sources: list[TritonSource] = []
    kernels: list[CompiledTriton] = []
    externals = plan.program.tree.externals
    for number, (source, kernel) in enumerate(facts["launches"]):
        name = f"launch.{number}"
        sources.append(source_of(source, packed.texts[name], externals))
        kernels.append(kernel_of(kernel, packed.binaries[name], sources[-1].parameters))
    made = GpuProgram(
        plan,
        tuple(sources),
        tuple(kernels),
        bool(facts["as_graph"]),
        tuple(ChosenBranch(*map(str, branch)) for branch in facts["branches"]),
    )
    arranged = None if facts["arranged"] is None else _arranged(plan, facts["arranged"])
    return UnpackedProgram(str(facts["device"]), made, interface, arranged)


def source_facts(source: TritonSource, places: Mapping[Buffer, int]) -> dict[str, Any]:
    facts = {name: getattr(source, name) for name in _SOURCE}
    facts["parameters"] = [[p.name, p.type, p.kind, p.place] for p in source.parameters]
    facts["arguments"] = [places[buffer] for buffer in source.arguments]
    return facts


def source_of(facts: Mapping[str, Any], text: str, externals: Sequence[Buffer]) -> TritonSource:
    return TritonSource(
        text=text,
        parameters=tuple(KernelParameter(*fields) for fields in facts["parameters"]),
        arguments=tuple(externals[place] for place in facts["arguments"]),
        **{name: _value(facts[name]) for name in _SOURCE},
    )


def _value(fact: Any) -> Any:
    """A file has lists where the program has tuples."""
    return tuple(map(_value, fact)) if isinstance(fact, list) else fact


def kernel_facts(kernel: CompiledTriton) -> dict[str, Any]:
    return {name: getattr(kernel, name) for name in _COMPILED} | {
        "resources": asdict(kernel.resources)
    }


def kernel_of(
    facts: Mapping[str, Any], binary: bytes, parameters: tuple[KernelParameter, ...]
) -> CompiledTriton:
    needs = {field.name: facts["resources"][field.name] for field in fields(Resources)}
    return CompiledTriton(
        binary=binary,
        parameters=parameters,
        resources=Resources(**needs),
        seconds=0.0,
        from_cache=True,
        **{name: _value(facts[name]) for name in _COMPILED},
    )


# ---- how captured graphs are arranged ---------------------------------------------------------
def _sequences(plan: Plan) -> Iterator[Seq[Action]]:
    return (node for node in plan.tree.walk() if isinstance(node, Seq))


def _arranged_facts(plan: Plan, arranged: Arrangements) -> list[Any]:
    """Return the arrangement of each sequence of the plan, in the order of a walk; None if it has
    none."""
    found = (arranged.get(id(sequence)) for sequence in _sequences(plan))
    return [
        one and [*map(list, (one.arrangement.order, one.arrangement.streams)),
                 list(map(list, one.arrangement.events)), list(map(list, one.after))]
        for one in found
    ]  # fmt: skip


def _arranged(plan: Plan, facts: Sequence[Any]) -> Arrangements:
    found: dict[int, Arranged] = {}
    for sequence, one in zip(_sequences(plan), facts, strict=True):
        if one is not None:
            order, streams, events, after = one
            arrangement = Arrangement(
                tuple(order), tuple(streams), tuple((a, b) for a, b in events)
            )
            found[id(sequence)] = Arranged(arrangement, tuple(map(tuple, after)))
    return found
