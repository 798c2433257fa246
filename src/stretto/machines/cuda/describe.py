"""Text of `explain()` for a GPU program: launches and their resources, and the host's actions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stretto.components import reachable
from stretto.device.costs import CostModel
from stretto.device.expr import Buffer, Position, Reg, expr_regs
from stretto.device.launch_graph import needed
from stretto.device.operator import LibraryCall
from stretto.device.plan import Action, Launch, Library, Plan
from stretto.device.program import DeviceProgram, Wait
from stretto.device.runs import NEVER, Runs, call_graph, called, tree_runs
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    While,
    is_predicated,
    leaves,
    reads,
    title,
    walk,
)
from stretto.errors import ScheduleError
from stretto.machines.cuda.compile import CompiledTriton
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.frequencies import keep_frequencies
from stretto.machines.cuda.graphs.graph_builder import WAITS_IN_BODIES
from stretto.machines.cuda.graphs.graph_executable import GraphExecutable
from stretto.machines.cuda.graphs.words import BranchCount
from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.cuda.printer.source import ENTRY, TritonSource
from stretto.machines.cuda.styles import GpuProgram, kept_of
from stretto.machines.machine import Description, Stages
from stretto.schedule.plan import MOST_KERNELS
from stretto.schedule.plan_cost import profiled
from stretto.schedule.plan_search import ChosenBranch, placements, search_plan
from stretto.simulator.devices import BlockNeeds, device_for
from stretto.simulator.launches import launch_per_kernel
from stretto.simulator.simulate import simulate
from stretto.text import TextSection, bytes_text, counted, seconds_text

# ---- A plan as a graph: nodes, streams, events, simulated times.


MOST_NODES = 400
"""Largest graph, in nodes, for which all orders are tried."""


def _graph(made: GpuProgram, costs: CostModel) -> Iterator[TextSection]:
    """List the nodes of a plan of which the host enqueues more than one action, in the order in
    which they are enqueued, each with the nodes that it must follow, without transitively implied
    ones."""
    needs = {
        id(launch): BlockNeeds(
            compiled.resources.warps * WARP,
            compiled.resources.registers,
            compiled.resources.shared_bytes,
        )
        for (_, launch), compiled in zip(made.plan.launches, made.compiled, strict=False)
    }
    device = device_for(costs, made.plan.program.units)
    try:
        given = profiled(made.plan, device, costs, needs)
    except ScheduleError:  # a launch that is too long to be simulated
        return
    nodes = given.graph.nodes
    if not 1 < len(nodes) <= MOST_NODES:
        return
    way, after = given.enqueued_by_opara(), needed(given.graph.before, range(len(nodes)))
    rows = [
        (
            number,
            nodes[number].kind,
            nodes[number].name,
            ", ".join(map(str, after[number])) or "-",
            way.arrangement.streams[number],
            given.profiles[number].blocks,
            "bytes" if given.profiles[number].is_memory_bound(device) else "arithmetic",
            seconds_text(way.run.starts[number]),
            seconds_text(way.run.ends[number]),
        )
        for number in way.arrangement.order
    ]
    title = f"main as a graph, on {device.name} simulated (not measured), as Opara enqueues it"
    headers = (
        "node", "what", "name", "after", "stream", "blocks", "bound by", "begins", "ends",
    )  # fmt: skip
    yield TextSection(title, rows, headers)


_OWN = re.compile(rf"^def (k_|e_|loop_|{ENTRY}\b)", re.MULTILINE)


def describe(
    stages: Stages,
    made: GpuProgram,
    multiprocessors: int | None,
    more: Sequence[tuple[str, str]] = (),
) -> Description:
    """Describe a GPU program. multiprocessors: of the GPU that the program was compiled for; None
    if unknown. more: additional lines of the machine."""
    facts = [("registers", registers_text(made.plan)), *more, *_facts(stages, made)]
    found = list(_sections(stages, made, launch_rows(made, multiprocessors)))
    hosted = {row.what: row.why for row in host_rows(made.plan)}
    return Description(_launch_text(made.plan), "between launches", facts, found, hosted)


def _facts(stages: Stages, made: GpuProgram) -> Iterator[tuple[str, str]]:
    waits = "; ".join(why_calls_wait(made))
    yield "calls wait", f"for the GPU: {waits}" if waits else "for nothing: they enqueue"
    if stages.device is not None:
        yield "as launches", _apart_text(stages.device, made, stages.machine.costs)
    if stages.library is not None:
        yield "library by cost", stages.library.text()
    if kept := max(made.sources, key=_kept_bytes, default=None):
        yield from _kept_lines(kept)
    if made.compiled:
        cached = all(compiled.from_cache for compiled in made.compiled)
        yield "build cache", "hit" if cached else "miss, built now"
    executable = stages.executable
    if isinstance(executable, CudaExecutable):
        yield "launched", counted(executable.launches, "time")
    if isinstance(executable, PlanExecutable) and host_rows(made.plan):
        reads = counted(executable.reads, "value")
        calls = counted(executable.library_runs, "library call")
        yield "host so far", f"{calls}, {reads} read from the GPU"
    if isinstance(executable, GraphExecutable):
        yield "captured graphs", graph_text(executable)
        if kept_out := driver_text(executable):
            yield "not in graphs", kept_out


def _sections(
    stages: Stages, made: GpuProgram, launches: Sequence[LaunchRow]
) -> Iterator[TextSection]:
    """Yield the launches and their resources, and what the host does."""
    rows = [(x.function, x.runs, x.kernels, x.control, x.waits, x.lines) for x in launches]
    title = "launches (kernels, loops and branches, waits on one unit, lines of text)"
    yield TextSection(title, rows, ("launch", "runs", "kernels", "control", "waits", "lines"))
    if made.compiled:
        rows = [(one.function, *one.resource_cells()) for one in launches]
        headers = (
            "launch", "registers", "shared", "spills", "stack", "warps", "per SM", "room",
            "compile", "binary",
        )  # fmt: skip
        yield TextSection(f"resources of a unit on {made.compiled[0].target}", rows, headers)
    headers = ("function", "the host runs", "reads from the GPU", "because")
    yield TextSection("what the host does between launches", host_rows(made.plan), headers)
    if stages.device is not None:
        yield _placements(stages.device, stages)
    if stages.library is not None:
        yield stages.library.section()
    yield from _graph(made, stages.machine.costs)
    executable = stages.executable
    if isinstance(executable, GraphExecutable):
        headers = ("the host runs", "where", "because")
        yield TextSection(
            "library calls that cannot be captured", refusal_rows(executable), headers
        )
        counts = executable.branch_counts()
        keep_frequencies(stages, counts)
        yield _branches(made.branches, counts)


def _kept_bytes(source: TritonSource) -> int:
    return source.kept + source.shared_bytes


def _kept_lines(source: TritonSource) -> list[tuple[str, str]]:
    """Describe what the launch that holds most constants on chip over its loops holds."""
    places = ((source.kept, "a unit's registers"), (source.shared_bytes, "its shared memory"))
    found = [f"{bytes_text(nbytes)} in {place}" for nbytes, place in places if nbytes]
    if not found:
        return []
    more = f"; {bytes_text(source.lacking)} more find no room" if source.lacking else ""
    return [("on chip", f"of constants {', '.join(found)}{more}")]


def graph_text(executable: GraphExecutable) -> str:
    """Describe the number of graphs, and how often arguments were unchanged."""
    counts = executable.counts
    again = counts.replayed - counts.made
    text = f"{counted(executable.graph_count, 'graph')} of {counts.made} made"
    text += f", {counted(counts.replayed, 'replay')}"
    if again:
        text += f", {100 * counts.as_they_were // again} % of the later ones with all arguments as "
        text += f"they were, {counts.patched} arguments of launches patched"
    for name, hits in (("inputs", counts.inputs), ("results", counts.results)):
        if hits.seen:
            text += f", {100 * hits.hit // hits.seen} % of the {name} where they were"
    text += f", {bytes_text(executable.graph_bytes)}; all programs: {executable.store.memory()}"
    refused = counted(len(executable.refusals), "library call")
    return f"{text}; {refused} cannot be captured" if executable.refusals else text


def driver_text(executable: GraphExecutable) -> str:
    """Name the loops and branches that the host executes because the driver is too old; empty if
    none."""
    names = ", ".join(f"`{title(node)}`" for node in executable.needs_newer_driver)
    if not names:
        return ""
    found, least = (".".join(map(str, v)) for v in (executable.launcher.cuda, WAITS_IN_BODIES))
    return (
        f"{names}: the host executes them, since units wait for each other in launches there, "
        f"which graphs have from CUDA {least} on; the driver is of CUDA {found}"
    )


def refusal_rows(executable: GraphExecutable) -> list[tuple[str, ...]]:
    """Return a row for each library call that torch has refused to capture."""
    found = executable.refusals
    return [(one.call.target, one.call.origin or one.call.source, one.reason) for one in found]


def _branches(chosen: Sequence[ChosenBranch], counts: Mapping[str, BranchCount]) -> TextSection:
    """List how each branch is executed, and how often it took its first arm so far."""
    rows: list[tuple[object, ...]] = []
    for branch in chosen:
        known = counts.get(branch.condition)
        numbers = ("?", "?") if known is None else (known.first, known.total)
        rows.append((f"if {branch.condition}", branch.execution, branch.reason, *numbers))
    headers = ("branch", "executed as", "because", "first arm", "come to")
    return TextSection("branches of the graph", rows, headers)


def _apart_text(program: DeviceProgram, made: GpuProgram, costs: CostModel) -> str:
    """Compare the simulated times of one launch per kernel and of one launch."""
    device = device_for(costs, program.units)
    try:
        whole = simulate(program, device, costs=costs, kept=kept_of(made.sources))
        apart = launch_per_kernel(program, device, costs=costs)
    except ScheduleError as error:
        return f"not simulated: {error.message}"
    times = (
        f"{seconds_text(apart.seconds)} with one per kernel, {seconds_text(whole.seconds)} whole"
    )
    faster = ", ".join(apart.faster(whole, device)) or "nothing"
    return f"{times}, simulated ({device.name}); faster so: {faster}"


def _placements(program: DeviceProgram, stages: Stages) -> TextSection:
    """List the executor of the outer loops and branches of main, and the simulated time of each
    choice. If units execute them, all units do, each in its own registers."""
    costs, options = stages.machine.costs, stages.options
    chosen = search_plan(program, costs, options.debug.launches, options.debug.control)
    try:
        found = placements(program, costs, chosen.cuts)
    except ScheduleError:
        found = ()
    rows = [
        (
            one.title,
            "the host" if one.on_host else "all units",
            seconds_text(one.units_seconds),
            seconds_text(one.host_seconds),
        )
        for one in found
    ]
    headers = ("node", "executed by", "with the units", "with the host")
    return TextSection("where control is executed (simulated)", rows, headers)


def _launch_text(plan: Plan) -> str:
    total = sum(launch_runs(plan).values(), NEVER)
    whole = total == Runs() and not host_rows(plan)
    return f"{total}, the whole program" if whole else str(total)


# ---- launches --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch. control: number of loops, branches and calls in its text; waits: of the unit that
    has most, in the text; lines: of the text, without the common library.

    The other fields are None if nothing was compiled. room: number of units that the GPU holds at
    once, None if unknown.
    """

    function: str
    runs: str
    kernels: int
    control: int
    waits: int
    lines: int
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    warps: int | None = None
    units_per_multiprocessor: int | None = None
    limit: str | None = None
    room: int | None = None
    seconds: float | None = None
    binary_bytes: int | None = None
    from_cache: bool | None = None

    def resource_cells(self) -> tuple[str, ...]:
        """Return the cells about the compiled launch; only for a launch that was compiled."""
        assert self.seconds is not None and self.binary_bytes is not None
        known = bool(self.registers)
        return (
            str(self.registers) if known else "?",
            bytes_text(self.shared_bytes or 0),
            bytes_text(self.spill_bytes or 0) if known else "?",
            bytes_text(self.stack_bytes or 0) if known else "?",
            str(self.warps),
            "?" if self.room is None else f"{self.units_per_multiprocessor} ({self.limit})",
            "?" if self.room is None else str(self.room),
            seconds_text(self.seconds) + (" (cached)" if self.from_cache else ""),
            bytes_text(self.binary_bytes),
        )


def launch_rows(made: GpuProgram, multiprocessors: int | None) -> list[LaunchRow]:
    """Return a row for each launch of the plan, with its resources if it was compiled."""
    runs = launch_runs(made.plan)
    rows: list[LaunchRow] = []
    launches = zip(made.plan.launches, made.sources, strict=True)
    for number, ((name, launch), source) in enumerate(launches):
        shape = _shape(f"{name} {number + 1}", str(runs[id(launch)]), launch.program, source)
        if made.compiled:
            rows.append(_compiled(shape, made.compiled[number], multiprocessors))
        else:
            rows.append(LaunchRow(*shape))
    return rows


Shape = tuple[str, str, int, int, int, int]


def _shape(name: str, runs: str, program: DeviceProgram, source: TritonSource) -> Shape:
    control = waits = 0
    for function in program.tree.functions:
        per_unit = [0] * program.units
        for node in walk(function.body):
            control += not isinstance(node, Leaf | Seq)
            if isinstance(node, Leaf):
                for unit, items in enumerate(node.body.units):
                    per_unit[unit] += sum(isinstance(item, Wait) for item in items)
        waits += max(per_unit)
    return name, runs, len(program.kernels), control, waits, own_lines(source)


def own_lines(source: TritonSource) -> int:
    """Return the number of lines of the kernels and the entry, without the library before them."""
    first = _OWN.search(source.text)
    return source.text.count("\n", first.start() if first else 0)


def _compiled(shape: Shape, compiled: CompiledTriton, multiprocessors: int | None) -> LaunchRow:
    needs = compiled.resources
    known = needs.limit != "unknown" and multiprocessors is not None
    return LaunchRow(
        *shape,
        registers=needs.registers,
        shared_bytes=needs.shared_bytes,
        spill_bytes=needs.spill_bytes,
        stack_bytes=needs.stack_bytes,
        warps=needs.warps,
        units_per_multiprocessor=needs.units_per_sm if known else None,
        limit=needs.limit if known else None,
        room=needs.units_per_sm * multiprocessors if known and multiprocessors else None,
        seconds=compiled.seconds,
        binary_bytes=len(compiled.binary),
        from_cache=compiled.from_cache,
    )


def launch_runs(plan: Plan) -> dict[int, Runs]:
    """Return how often each launch is enqueued in one call, by its `id`."""
    found = {id(launch): NEVER for _, launch in plan.launches}
    for node, runs in tree_runs(plan.tree):
        if isinstance(node, Leaf) and isinstance(node.body, Launch):
            found[id(node.body)] = found[id(node.body)] + runs
    return found


# ---- the host --------------------------------------------------------------------------------


class HostRow(NamedTuple):
    """An action of the host between launches, and the reason."""

    function: str
    what: str
    reads: str
    why: str


NOTHING = "nothing"


def host_rows(plan: Plan) -> list[HostRow]:
    """Return the control that the host executes, and library calls."""
    return [
        row
        for function in plan.tree.functions
        for node in walk(function.body)
        if not is_predicated(node)
        if (row := _host_row(function.name, node, plan)) is not None
    ]


def _host_row(function: str, node: Node[Action], plan: Plan) -> HostRow | None:
    names = _names(reads(node))
    match node:
        case Leaf(Library(call)):
            needed = sorted(reg.name for reg in library_reads(call))
            needed += [f"the place of {name}" for name in sorted(_moved(call, plan))]
            return HostRow(function, call.target, ", ".join(needed) or NOTHING, call.reason)
        case Leaf() | Seq():
            return None
        case For() | If():
            pass
        case While():
            names = f"{names}, each trip"
        case Call():  # register arguments are copied from words to words on the GPU
            offsets = [expr_regs(Position(access.offset)) for _, access in node.tensors]
            names = _names({reg for regs in offsets for reg in regs})
    return HostRow(function, title(node), names, _why(node, plan))


def _names(regs: Iterable[Reg]) -> str:
    return ", ".join(sorted(reg.name for reg in regs)) or NOTHING


def library_reads(call: LibraryCall) -> set[Reg]:
    """Return the registers that the host must know for a call: numbers and sizes."""
    return {operand for operand in call.operands if isinstance(operand, Reg)}


def _moved(call: LibraryCall, plan: Plan) -> set[str]:
    """Return the operands that a loop of a launch rotates."""
    rotated = {buffer.name for _, launch in plan.launches for buffer in launch.rotated}
    operands = (operand for operand in call.operands if isinstance(operand, Buffer))
    return {operand.name for operand in operands if operand.name in rotated}


def _why(node: Node[Action], plan: Plan) -> str:
    calls = library_targets(node, plan)
    if calls:
        return f"{', '.join(calls)} inside"
    launched = [action for action in leaves(node) if isinstance(action, Launch)]
    if sum(len(launch.program.kernels) for launch in launched) > MOST_KERNELS:
        return "too many kernels inside for one launch"
    return "the options say so, or the simulated plan is faster"


def library_targets(node: Node[Action], plan: Plan) -> list[str]:
    """Return the operators that run as library calls in a node, and in its callees."""
    names = reachable(called(node), call_graph(plan.tree.functions))
    nodes = [node, *(plan.tree.function(name).body for name in sorted(names))]
    bodies = (body for inside in nodes for body in leaves(inside))
    return list(dict.fromkeys(body.call.target for body in bodies if isinstance(body, Library)))


def why_calls_wait(made: GpuProgram) -> list[str]:
    """Return the reasons why a call returns only after the GPU has finished; empty if it returns
    at once."""
    plan = made.plan
    reasons: list[str] = []
    if plan.program.tree.main.results or plan.program.lists:
        reasons.append("the sizes or numbers of its results are read on the host")
    if any(source.recursive for source in made.sources):
        reasons.append("the host must see whether the recursion had memory enough")
    if plan.decides_on_host:
        reasons.append("the host reads values in the midst of it")
    return reasons


# ---- registers -------------------------------------------------------------------------------


def registers_text(plan: Plan) -> str:
    """Describe the number of values that decide control, and where they are stored."""
    program = plan.program
    assigned: set[str] = set()
    for function in program.tree.functions:
        assigned |= {reg.name for reg in function.params}
        for node in walk(function.body):
            if isinstance(node, For):
                assigned.add(node.index.name)
            if isinstance(node, Leaf) and node.body.units:
                assigned |= {item.reg.name for item in node.body.units[0] if isinstance(item, Let)}
    parts = [f"{len(assigned)}, each unit computes its own"]
    if results := len(program.tree.main.results):
        parts.append(f"{results} of them results, in pinned memory of the host")
    passed = sum(not name.startswith("&") for words in plan.words.values() for name in words)
    if len(plan.launches) > 1 and passed:
        parts.append(f"{passed} pass between launches in a block of words on the GPU")
    return "; ".join(parts)
