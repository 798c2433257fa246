"""Which products, convolutions and attentions torch computes, where `Options.library` is "auto".

The program with our own kernels is there already, scheduled. First comes an estimate of each
product by itself: the launch of our kernel, or its part of it, against the kernel of the library by
the table of `simulator/library_kernels.py` and a gap between two launches, since what was fused
with the product becomes a launch of its own. The products that promise a gain then make at most
three further programs: those outside of loops and branches, those that make up half of what these
gain, and all. Each is scheduled and cut into the plan that it would be run as, and the fastest plan
in simulation is taken, if it gains `LEAST_GAIN` of the one with our own kernels. So a library call
in a loop, which cuts the persistent kernel around it, is taken only where the whole plan says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stretto.device.operator import Combine, Kernel, LibraryCall, operator_name, origin
from stretto.device.program import DeviceProgram
from stretto.device.tree import Leaf, walk
from stretto.errors import CodegenError, ScheduleError
from stretto.ir.ops import TensorOp
from stretto.lowering.library import is_left
from stretto.lowering.program import lower
from stretto.machines.machine import BuildStage, LibraryChoice, Product, Stages
from stretto.machines.stages import LOWER, SCHEDULE, SELECT, VERIFY
from stretto.ops.properties import properties
from stretto.remarks import Remarks
from stretto.schedule.plan_cost import alone_seconds
from stretto.simulator.devices import Device, device_for
from stretto.simulator.graph_run import Profiler
from stretto.simulator.launches import LEAST_GAIN
from stretto.simulator.library_kernels import library_estimate

AUTO = "auto"
"""What `Options.library` is where this choice is made."""


PlanSeconds = Callable[[DeviceProgram], float]
"""Simulated seconds of the plan that a scheduled program is run as. Raises ScheduleError for a run
that is too long to be simulated."""


def choice_stage(seconds: Callable[[Stages, DeviceProgram], float]) -> BuildStage:
    """The stage behind scheduling that puts the program with library calls in the place of the one
    with our own kernels, where `Options.library` asks for the choice and it is faster."""

    def run(stages: Stages) -> None:
        if stages.options.library != AUTO or stages.library is not None:
            return
        stages.library = choose_library(stages, lambda program: seconds(stages, program))

    return BuildStage("library", run)


def choose_library(stages: Stages, seconds: PlanSeconds) -> LibraryChoice:
    """Compares programs, and leaves the fastest one in `stages`."""
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


def _candidates(products: Sequence[Product]) -> Iterator[tuple[Product, ...]]:
    """What the library may compute: see the head of the file."""
    gaining = sorted((p for p in products if p.gain > 0), key=lambda p: -p.gain)
    outer = tuple(product for product in gaining if not product.nested)
    if outer:
        yield outer
    half: list[Product] = []
    for product in outer:
        half.append(product)
        if 2 * sum(p.gain for p in half) >= sum(p.gain for p in outer):
            break
    if len(half) < len(outer):
        yield tuple(half)
    if len(outer) < len(gaining):
        yield tuple(gaining)


# ---- estimates -------------------------------------------------------------------------------
def _products(stages: Stages, own: DeviceProgram, device: Device) -> Iterator[Product]:
    """All products that have a kernel of ours and one of the library's."""
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
            yield Product(name, tuple(ops), nested, seconds[name], taken + gap)


def _operators(stages: Stages) -> Iterator[tuple[TensorOp, bool]]:
    """The products of a Program, and whether each is in a loop, a branch or a function."""
    for name, function in stages.program.functions.items():
        outer = {id(op) for op in function.body.ops} if name == "main" else set[int]()
        for op in function.body.walk():
            if not isinstance(op, TensorOp) or not properties(op.target).is_product:
                continue
            if is_left(op, ("*",)):
                yield op, id(op) not in outer


def _name(op: TensorOp) -> str:
    """As lowering calls it."""
    return origin(op.location, operator_name(op.target))


def _calls(stages: Stages, ops: frozenset[TensorOp]) -> dict[str, LibraryCall]:
    """The library calls that operators would be, by name; none, where one cannot be made."""
    machine = stages.machine
    program = replace(stages.program, remarks=Remarks())
    try:
        made = lower(program, machine.costs, stages.updates, machine.languages, ops)
    except CodegenError:
        return {}
    found: dict[str, LibraryCall] = {}
    for function in made.tree.functions:
        for node in walk(function.body):
            if isinstance(node, Leaf):
                calls = (item for item in node.body if isinstance(item, LibraryCall))
                found |= {call.origin: call for call in calls}
    return found


def _own_seconds(program: DeviceProgram, stages: Stages, device: Device) -> dict[str, float]:
    """Of each product by name, the seconds of its kernel as a launch by itself; of one of several
    in a kernel the part that its arithmetic is of all."""
    costs = stages.machine.costs
    profiler = Profiler(program, device, costs)
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


# ---- programs --------------------------------------------------------------------------------
def _with_library(stages: Stages, candidate: Sequence[Product]) -> Stages | None:
    """The program again, scheduled and verified, with library calls for some products; None where
    it cannot be made."""
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
