"""Choice of the products, convolutions and attentions that torch computes if `Options.library` is
"auto".

The program with our own kernels is already scheduled. First comes an estimate of each product by
itself: the launch of our kernel, or the product's share of it, against the kernel of the library by
the table of `simulator/library_kernels.py` plus a gap between two launches, since what was fused
with the product becomes a separate launch. The products that promise a gain then give at most three
further programs: with those outside loops and branches, with those that make up half of the gain of
these, and with all. Each is scheduled and cut into the plan that it would be run as. The fastest
plan in simulation is taken if it is faster than the one with our own kernels by `LEAST_GAIN`. So a
library call in a loop, which cuts the persistent kernel around it, is taken only if the whole plan
is faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stretto.device.operator import Combine, Kernel, LibraryCall, operator_name, origin
from stretto.device.program import DeviceProgram
from stretto.errors import CodegenError, ScheduleError
from stretto.ir.ops import TensorOp
from stretto.lowering.library_calls import is_left
from stretto.lowering.lower_program import lower
from stretto.machines.machine import BuildStage, LibraryChoice, ProductSummary, Stages
from stretto.machines.stages import LOWER, SCHEDULE, SELECT, VERIFY
from stretto.ops.properties import properties
from stretto.remarks import Remarks
from stretto.schedule.plan_cost import alone_seconds
from stretto.simulator.devices import Device, device_for
from stretto.simulator.graph_run import NodeProfiler
from stretto.simulator.launches import LEAST_GAIN
from stretto.simulator.library_kernels import library_estimate

AUTO = "auto"
"""Value of `Options.library` that requests this choice."""


PlanSeconds = Callable[[DeviceProgram], float]
"""Simulated seconds of the plan that a scheduled program is run as. Raises ScheduleError if the
run is too long to simulate."""


def choice_stage(seconds: Callable[[Stages, DeviceProgram], float]) -> BuildStage:
    """Return the stage after scheduling that replaces the program by one with library calls, if
    `Options.library` requests the choice and that one is faster."""

    def run(stages: Stages) -> None:
        if stages.options.library != AUTO or stages.library is not None:
            return
        stages.library = choose_library(stages, lambda program: seconds(stages, program))

    return BuildStage("library", run)


def choose_library(stages: Stages, seconds: PlanSeconds) -> LibraryChoice:
    """Compare programs, and leave the fastest one in `stages`."""
    own, _ = stages.runnable()
    costs = stages.machine.costs
    products = tuple(_products(stages, own, device_for(costs, own.units)))
    candidates = list(_candidates(products))
    if not candidates:
        reason = "none promises a gain" if products else "there is none that it could compute"
        return LibraryChoice(products, reason=reason)
    try:
        best = seconds(own)
    except ScheduleError:
        return LibraryChoice(products, reason="the run is too long to be simulated")
    tried, chosen = [(0, best)], None
    best *= 1 - LEAST_GAIN
    for candidate in candidates:
        made = _with_library(stages, candidate)
        if made is None:
            continue
        try:
            taken = seconds(made.runnable()[0])
        except ScheduleError:
            continue
        tried.append((sum(len(product.ops) for product in candidate), taken))
        if taken < best:
            best, chosen = taken, (candidate, made)
    if chosen is None:
        return LibraryChoice(products, tuple(tried))
    _adopt(stages, chosen[1])
    return LibraryChoice(products, tuple(tried), chosen[0])


def _candidates(products: Sequence[ProductSummary]) -> Iterator[tuple[ProductSummary, ...]]:
    """Yield the sets of products that the library may compute (see the module docstring)."""
    gaining = sorted((p for p in products if p.gain > 0), key=lambda p: -p.gain)
    outer = tuple(product for product in gaining if not product.nested)
    if outer:
        yield outer
    half: list[ProductSummary] = []
    for product in outer:
        half.append(product)
        if 2 * sum(p.gain for p in half) >= sum(p.gain for p in outer):
            break
    if len(half) < len(outer):
        yield tuple(half)
    if len(outer) < len(gaining):
        yield tuple(gaining)


# ---- Estimates -------------------------------------------------------------------------------
def _products(stages: Stages, own: DeviceProgram, device: Device) -> Iterator[ProductSummary]:
    """Yield all products for which there is both a kernel of ours and one of the library."""
    places: dict[tuple[str, bool], list[TensorOp]] = defaultdict(list)
    for op, nested in _operators(stages):
        places[_name(op), nested].append(op)
    if not places:
        return
    found = frozenset(op for ops in places.values() for op in ops)
    calls = _calls(stages, found)
    seconds = _own_seconds(own, stages, device)
    gap = device.next_launch_seconds
    for (name, nested), ops in places.items():
        if name in calls and name in seconds:
            estimate = library_estimate(calls[name], device, stages.machine.costs)
            taken = estimate.overhead + estimate.seconds(device)
            yield ProductSummary(name, tuple(ops), nested, seconds[name], taken + gap)


def _operators(stages: Stages) -> Iterator[tuple[TensorOp, bool]]:
    """Yield the products of a Program, and True if the product is in a loop, a branch or a
    function."""
    for name, function in stages.program.functions.items():
        outer = {id(op) for op in function.body.ops} if name == "main" else set[int]()
        for op in function.body.walk():
            if not isinstance(op, TensorOp) or not properties(op.target).is_product:
                continue
            if is_left(op, ("*",)):
                yield op, id(op) not in outer


def _name(op: TensorOp) -> str:
    """Return the name of the operator that lowering makes of `op`."""
    return origin(op.location, operator_name(op.target))


def _calls(stages: Stages, ops: frozenset[TensorOp]) -> dict[str, LibraryCall]:
    """Return the library calls that the ops would become, by name; empty if lowering fails."""
    machine = stages.machine
    program = replace(stages.program, remarks=Remarks())
    try:
        made = lower(program, machine.costs, stages.updates, machine.languages, ops)
    except CodegenError:
        return {}
    items = (item for body in made.tree.leaves() for item in body)
    return {item.origin: item for item in items if isinstance(item, LibraryCall)}


def _own_seconds(program: DeviceProgram, stages: Stages, device: Device) -> dict[str, float]:
    """Return the seconds of each product by name: its kernel as a separate launch. If a kernel has
    several stages, the product gets its share of the kernel's arithmetic."""
    costs = stages.machine.costs
    profiler = NodeProfiler(program, device, costs)
    found: dict[str, float] = defaultdict(float)
    for kernel in program.kernels:
        if kernel.call is not None or not any(map(_is_sum, _combines(kernel))):
            continue
        whole = sum(costs.work(stage.operator) for stage in kernel.stages)
        alone = alone_seconds(profiler.kernel(kernel, program.units), device)
        for stage in kernel.stages:
            if _is_sum(stage.operator.combine):
                part = costs.work(stage.operator) / max(whole, 1)
                found[stage.operator.origin] += alone * part
    return found


def _combines(kernel: Kernel) -> list[Combine]:
    return [stage.operator.combine for stage in kernel.stages]


def _is_sum(combine: Combine) -> bool:
    return combine in (Combine.SUM, Combine.ATTENTION)


# ---- Programs --------------------------------------------------------------------------------
def _with_library(stages: Stages, candidate: Sequence[ProductSummary]) -> Stages | None:
    """Return the program scheduled and verified again, with library calls for some products; None
    if that fails."""
    left = frozenset(op for product in candidate for op in product.ops)
    captured = replace(stages.captured, remarks=Remarks())
    made = replace(stages, captured=captured, left=left)
    made.program = replace(stages.program, remarks=captured.remarks)
    try:
        for step in (LOWER, SELECT, SCHEDULE, VERIFY):
            step.run(made)
    except CodegenError as error:
        stages.remarks.decline("library", "library calls", str(error).splitlines()[0])
        return None
    return made


def _adopt(stages: Stages, made: Stages) -> None:
    """Replace the program in `stages` by `made`, with its remarks and dumps."""
    stages.left = made.left
    stages.lowered, stages.selected = made.lowered, made.selected
    stages.scheduled, stages.report, stages.proof = made.scheduled, made.report, made.proof
    for remark, count in made.remarks:
        for _ in range(count):
            stages.remarks.decline(remark.stage, remark.subject, remark.reason, remark.place)
    if stages.dumper.folder is not None:
        for step in (LOWER, SELECT, SCHEDULE):
            assert step.form is not None
            for text in step.form.texts(stages):
                stages.dumper.text(f"library-{step.form.file}", text)
