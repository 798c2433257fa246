"""What a program is on a GPU: its launches and their resources, and what the host does."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from stretto.build import Stages
from stretto.device.expr import Expr, Reg, expr_regs
from stretto.device.operator import LibraryCall
from stretto.device.plan import Action, Launch, Library, Plan, constant
from stretto.device.program import DeviceProgram, Wait
from stretto.device.tree import Call, For, If, Leaf, Let, Node, Seq, While, trip_count, walk
from stretto.machines.cuda.compile import CompiledTriton
from stretto.machines.cuda.printer.source import ENTRY, TritonSource
from stretto.runtime.library import extents
from stretto.text import bytes_text, seconds_text
from stretto.tools.control import NEVER, Runs, reached

_OWN = re.compile(rf"^def (k_|e_|loop_|{ENTRY}\b)", re.MULTILINE)

# ---- launches --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch. control: loops, branches and calls in its text; waits: those of the unit that
    has most, in the text; lines: of the text, without the library that all have in common.

    What follows is None where nothing was compiled. room: units that the GPU holds at once, None
    where that is not known.
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

    def text_cells(self) -> tuple[str, ...]:
        """Of the text alone."""
        counts = (self.kernels, self.control, self.waits, self.lines)
        return (self.function, self.runs, *map(str, counts))

    def resource_cells(self) -> tuple[str, ...]:
        """What the compiler made of it; only of a launch that was compiled."""
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


TEXT_HEADERS = ("launch", "runs", "kernels", "control", "waits", "lines")
RESOURCE_HEADERS = (
    "registers",
    "shared",
    "spills",
    "stack",
    "warps",
    "per SM",
    "room",
    "compile",
    "binary",
)


def launch_rows(stages: Stages, multiprocessors: int | None) -> list[LaunchRow]:
    """A row for each launch of the plan, with its resources where it was compiled."""
    plan = stages.plan
    assert plan is not None
    runs = launch_runs(plan)
    rows: list[LaunchRow] = []
    for number, ((name, launch), source) in enumerate(
        zip(plan.launches, stages.triton, strict=True)
    ):
        shape = _shape(f"{name} {number + 1}", str(runs[id(launch)]), launch.program, source)
        if stages.compiled:
            rows.append(_compiled(shape, stages.compiled[number], multiprocessors))
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
    """Lines of the kernels and the entry, without the library that stands before them."""
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
    """How often each launch is enqueued in one call, by its `id`."""
    found = {id(launch): NEVER for _, launch in plan.launches}

    def visit(node: Node[Action], runs: Runs, path: tuple[str, ...]) -> None:
        match node:
            case Leaf(Launch() as launch):
                found[id(launch)] = found[id(launch)] + runs
            case Leaf():
                pass
            case Seq(nodes):
                for child in nodes:
                    visit(child, runs, path)
            case For(body=body):
                visit(body, runs.times(trip_count(node)), path)
            case While(head=head, body=body):
                visit(head, runs.times(None), path)
                visit(body, runs.times(None), path)
            case If(then=then, orelse=orelse):
                for arm in (then, orelse):
                    visit(arm, Runs(runs.count, False), path)
            case Call(function=name):
                if name not in path:
                    inner = Runs(None) if _is_recursive(name, plan) else runs
                    visit(plan.tree.function(name).body, inner, (*path, name))

    visit(plan.tree.main.body, Runs(), ("main",))
    return found


def _is_recursive(name: str, plan: Plan) -> bool:
    callees = {
        function.name: {n.function for n in walk(function.body) if isinstance(n, Call)}
        for function in plan.tree.functions
    }
    return name in reached(name, callees)


# ---- the host --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostRow:
    """Something that the host does between launches, and the reason."""

    function: str
    what: str
    reads: str
    why: str

    def cells(self) -> tuple[str, str, str, str]:
        return (self.function, self.what, self.reads, self.why)


NOTHING = "nothing"
HOST_HEADERS = ("function", "the host runs", "reads from the GPU", "because")


def host_rows(plan: Plan) -> list[HostRow]:
    """Control that the host executes, and library calls."""
    return [
        row
        for function in plan.tree.functions
        for node in walk(function.body)
        if (row := _host_row(function.name, node, plan)) is not None
    ]


def _host_row(function: str, node: Node[Action], plan: Plan) -> HostRow | None:
    match node:
        case Leaf(Library(call)):
            reads = [reg.name for reg in sorted(library_reads(call), key=lambda reg: reg.name)]
            reads += [f"the place of {name}" for name in sorted(_moved(call, plan))]
            return HostRow(function, call.target, ", ".join(reads) or NOTHING, call.reason)
        case For():
            regs = _registers(node.start) | _registers(node.stop)
            return HostRow(function, f"for {node.index.name}", _names(regs), _why(node, plan))
        case While():
            reads = f"{node.condition.name}, each trip"
            return HostRow(function, f"while {node.condition.name}", reads, _why(node, plan))
        case If():
            name = node.condition.name
            return HostRow(function, f"if {name}", name, _why(node, plan))
        case Call():
            offsets = [access.offset for _, access in node.tensors]
            regs = {atom for o in offsets for atom, _ in o.terms if isinstance(atom, Reg)}
            return HostRow(function, f"call {node.function}", _names(regs), _why(node, plan))
        case _:
            return None


def library_reads(call: LibraryCall) -> set[Reg]:
    """The registers that the host must know for a call: numbers and sizes."""
    found: set[Reg] = set()
    for operand in call.operands:
        found |= {operand} if isinstance(operand, Reg) else set(extents(operand))
    return found


def _moved(call: LibraryCall, plan: Plan) -> set[str]:
    """The operands that a loop of a launch lets trade places."""
    rotated = {buffer.name for _, launch in plan.launches for buffer in launch.rotated}
    return {operand.name for operand in call.operands if operand.name in rotated}


def _registers(expr: Expr) -> set[Reg]:
    return set() if constant(expr) is not None else set(expr_regs(expr))


def _names(regs: set[Reg]) -> str:
    return ", ".join(sorted(reg.name for reg in regs)) or NOTHING


def _why(node: Node[Action], plan: Plan) -> str:
    calls = library_targets(node, plan)
    if calls:
        return f"{', '.join(calls)} inside"
    return "too many kernels inside for one launch"


def library_targets(node: Node[Action], plan: Plan) -> list[str]:
    """The operators that run as library calls in a node, and in what it calls."""
    found: dict[str, None] = {}  # in order
    seen: set[str] = set()
    waiting = [node]
    while waiting:
        for item in walk(waiting.pop()):
            if isinstance(item, Leaf) and isinstance(item.body, Library):
                found[item.body.call.target] = None
            if isinstance(item, Call) and item.function not in seen:
                seen.add(item.function)
                waiting.append(plan.tree.function(item.function).body)
    return list(found)


def why_calls_wait(stages: Stages) -> list[str]:
    """The reasons for which a call returns only when the GPU has done; none: it returns at once."""
    plan = stages.plan
    assert plan is not None
    reasons: list[str] = []
    if plan.program.tree.main.results or plan.program.lists:
        reasons.append("the sizes or numbers of its results are read on the host")
    if any(source.recursive for source in stages.triton):
        reasons.append("the host must see whether the recursion had memory enough")
    if plan.decides_on_host:
        reasons.append("the host reads values in the midst of it")
    return reasons


# ---- registers -------------------------------------------------------------------------------


def registers_text(plan: Plan) -> str:
    """How many values control is decided by, and where they live."""
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
