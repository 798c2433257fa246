"""Weights that the units of a GPU keep on chip over a loop, estimated without printing the
program.

Choices between plans are made before anything is printed. A persistent kernel loads weights
that a loop reads in every iteration once, and keeps them in registers and shared memory;
separate launches read them again each time. So a comparison without this estimate favours
launches.

Assumptions: weights are the constants that a task reads at positions that depend only on
its number. A unit keeps those of a kernel of which it has one task in every iteration of
the innermost enclosing loop, the smallest kernels first, as long as they fit into
`Device.kept_registers` and, after them, `Device.kept_shared`; in a recursive function all
activations are iterations. Inner loops have priority over outer ones. Products on tensor
cores, which load their factors step by step, keep nothing. The printer counts by blocks of
loads, and ptxas may have fewer registers; the actual outcome is known only after the
program is compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.device.costs import CostModel
from stretto.device.evaluate import task_count
from stretto.device.expr import Access, Var
from stretto.device.operator import Kernel
from stretto.device.program import DeviceProgram, Schedule
from stretto.device.tree import Call, If, Leaf, Node, TreeFunction, children, is_loop, walk
from stretto.simulator.devices import Device
from stretto.simulator.work import TENSOR_TEMPLATE, Kept, KeptPart, Known, Works

LEAST_BYTES = 2048
"""Least number of bytes of a kernel's constants that a unit keeps."""


def kept_in_loops(
    program: DeviceProgram, device: Device, costs: CostModel, works: Works | None = None
) -> Kept:
    """Return what units keep of each kernel's constants. works: those of the program's kernels, if
    computed already."""
    if not device.kept_registers:
        return {}
    found = _Estimate(program, device, works or Works(program.kernels, device, costs), costs)
    for function in program.tree.functions:
        if _recurs(program, function):
            found.keep(list(_leaves(function.body, branches=True)), 0)
        found.node(function.body)
    return found.kept


@dataclass(slots=True)
class _Estimate:
    """The estimate of one program. kept: by kernel."""

    program: DeviceProgram
    device: Device
    works: Works
    costs: CostModel
    kept: dict[str, KeptPart] = field(default_factory=dict[str, KeptPart])

    def node(self, node: Node[Schedule]) -> int:
        """Return the bytes that the loops in a node keep; of loops in sequence the maximum."""
        inner = max(map(self.node, children(node)), default=0)
        return self.keep(list(_iteration(node)), inner) if is_loop(node) else inner

    def keep(self, schedules: list[Schedule], taken: int) -> int:
        """Keep the constants that one iteration reads, in addition to `taken` bytes that inner
        loops keep; return the bytes of all."""
        counts = Counter(name for schedule in schedules for name in schedule.kernels)
        wanted: list[tuple[float, str, dict[str, float]]] = []
        for name, count in counts.items():
            constants = self.constants(self.works.kernel(name)) if count == 1 else {}
            if sum(constants.values()) >= LEAST_BYTES:
                wanted.append((sum(constants.values()), name, constants))
        in_registers, most = self.device.kept_registers, self._most
        for nbytes, name, constants in sorted(wanted, key=lambda one: one[:2]):
            part = min(max(most - taken, 0) / nbytes, 1.0)
            shared = max(taken + part * nbytes - max(in_registers, taken), 0.0)
            if part and name not in self.kept:
                self.kept[name] = KeptPart(dict.fromkeys(constants, part), round(shared))
                taken += round(part * nbytes)
        return taken

    @property
    def _most(self) -> int:
        return self.device.kept_registers + self.device.kept_shared

    def constants(self, kernel: Kernel) -> dict[str, float]:
        """Return the bytes of each constant that a kernel's task reads, if each unit has at most
        one task; else none."""
        registers = Known({}, self.costs.unknown_trips)
        if kernel.call is not None or task_count(kernel, registers) > self.program.units:
            return {}
        if any(stage.template.name == TENSOR_TEMPLATE for stage in kernel.stages):
            return {}
        found = [load.access for stage in kernel.stages for load in stage.operator.reads()]
        moving = {access.buffer.name for access in found if not _is_fixed(access)}
        fixed = {access.buffer.name for access in found if _is_fixed(access)} - moving
        work = self.works.task(kernel, 0, registers)
        return {name: nbytes for name, nbytes in work.moved if name in fixed}


def _is_fixed(access: Access) -> bool:
    """True if it accesses a constant, at positions that depend only on iteration variables."""
    atoms = (atom for index in access.index for atom in index.atoms())
    return access.buffer.kind == "constant" and all(isinstance(atom, Var) for atom in atoms)


def _iteration(loop: Node[Schedule]) -> Iterator[Schedule]:
    """Yield the leaves that run in every iteration of a loop, and in no inner loop."""
    for child in children(loop):
        yield from _leaves(child)


def _leaves(node: Node[Schedule], *, branches: bool = False) -> Iterator[Schedule]:
    if isinstance(node, Leaf):
        yield node.body
    elif not is_loop(node) and (branches or not isinstance(node, If)):
        for child in children(node):
            yield from _leaves(child, branches=branches)


def _recurs(program: DeviceProgram, function: TreeFunction[Schedule]) -> bool:
    """True if a function may call itself, directly or through others."""
    pending, seen = [function.name], set[str]()
    while pending:
        body = program.tree.function(pending.pop()).body
        called = {node.function for node in walk(body) if isinstance(node, Call)}
        if function.name in called:
            return True
        pending += called - seen
        seen |= called
    return False
