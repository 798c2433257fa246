"""What a machine takes to do things: the figures that all choices between ways come from.

Lowering decides by it what is computed again, fusion and splitting what is one kernel, selection
templates and tiles, scheduling where tasks run. A machine's own model derives from `CostModel` and
adds what its templates ask (`machines/*/costs.py`). The figures rank choices, they do not predict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, prod
from typing import ClassVar, Self

from stretto.device.expr import Apply, Expr, Extent, Var, expr_atoms
from stretto.device.functions import FUNCTIONS
from stretto.device.operator import SORTS, Combine, Operator
from stretto.device.user_kernels import kernel_of
from stretto.ir.sizes import Size, Symbol, usual_value

_ENOUGH = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """`_seconds` are seconds, `_bytes` bytes, everything else counts; of one unit where it matters.

    The defaults are those of the threads of a CPU.
    """

    # ---- tasks and units ---------------------------------------------------------------------
    start_seconds: float = 2e-8
    """To start a task."""
    task_seconds: float = 1e-6
    """A task whose kernel has no estimate."""
    call_seconds: float = 5e-6
    """A library call."""
    wait_seconds: float = 2e-7
    """One unit waits for another that has just finished."""
    wake_seconds: float = 5e-6
    """The workers are woken for a launch that uses more than one unit."""
    launch_seconds: float = 0.0
    """From a call in Python until the first unit begins, and back; where it was not measured, it is
    left out."""
    small_waits: float = 1.5
    """A kernel that takes less than this many waits runs on one unit."""
    share_bytes: int = 16384
    """A smaller buffer gets memory of its own, so that it causes no waits."""
    planning_seconds: float = 1.2e-5
    """The compiler looks at one kernel on one unit while it plans."""
    planning_share: float = 0.02
    """What a second of planning may cost of the seconds of one run."""
    uniform: bool = False
    """All units run one text, as the thread blocks of one GPU kernel: all of them run even where
    nothing is gained, and tasks are dealt among them."""
    gpu: str = ""
    """The GPU that the figures are for, by its name in `simulator/devices.py`."""
    slow_denormals: bool = True
    """Arithmetic with numbers below the normal ones takes much longer than with others."""

    # ---- products ----------------------------------------------------------------------------
    flops: float = 220e9
    """f32 operations per second of a product."""
    bandwidth: float = 90e9
    """Bytes per second from a unit's own cache."""
    memory_bandwidth: float = 1e10
    """Bytes per second from beyond it."""
    stream_bandwidth: float = 2e10
    """Bytes per second that one unit reads from main memory."""
    cache_bytes: int = 1 << 20
    """What the own cache of a unit holds for long."""
    element_seconds: float = 0.12e-9
    """An element and function application of vectorised pointwise work."""

    # ---- what only the run knows -------------------------------------------------------------
    taken: tuple[tuple[Symbol, int], ...] = ()
    """Sizes that symbols are taken to have; others are taken to be usual ones."""
    unknown_size: int = 64
    """The size of a dim that data decide, where none was seen."""
    unknown_tiles: int = 8
    """The tiles of a grid dim."""
    unknown_trips: int = 16
    """The iterations of a loop, the activations of a function that calls itself once, the tasks of
    a grid."""
    unknown_activations: int = 1000
    """The activations behind a call of a function that calls itself several times: a tree's."""
    unknown_parallelism: int = 1 << 20
    """The tasks that a grid dim could give."""

    # ---- computing again ---------------------------------------------------------------------
    most_applies: int = 48
    """An expression with more function applications is stored."""
    cheap_applies: int = 2
    """Up to as many applications, none of them expensive, may be computed again per use."""

    repeated_uses: int = 4
    """An operand that is not cheap is stored where each of its elements is used as often."""

    # ---- fusion ------------------------------------------------------------------------------
    small_work: int = 20_000
    """Scalar operations up to which one task is as good as many."""
    vector: int = 16
    """f32 numbers that are computed at once: along a contiguous dim they count as one."""

    # ---- variants of a kernel ----------------------------------------------------------------
    later_gain: float = 1.0
    """A later variant, which has more tasks, must be faster by this factor."""

    # ---- branches on sizes -------------------------------------------------------------------
    branch_gain: float = 1.3
    """Kernels of their own must make a call of a small size faster by this factor."""
    branch_seconds: float = 2e-5
    """And save so much of it."""
    branch_operators: int = 60
    """What has more operators is not compiled twice."""

    # ---- branches --------------------------------------------------------------------------
    branch_miss_seconds: float = 1e-8
    """What a branch costs a unit that works alone: sometimes it has begun with the wrong arm."""
    speculated_bytes: int = 1 << 21
    """What an arm may have computed before it is known whether it runs."""
    level_rows: int = 4
    """Activations of a recursion that are computed at a time: as many rows as a product computes
    while it reads its weights."""
    level_bytes: float = 1 << 18
    """Weights that an activation reads, from which on it pays to compute several at a time."""
    rows_before: bool = False
    """Whether the activations of one height are computed in one kernel, which reads the results of
    calls where they lie: that saves waits, where products take any expression as a factor."""
    activation_seconds: float = 7e-9
    """A call of a recursive function, without its body: a frame, arguments, results."""
    in_turn: bool = True
    """Whether iterations of parallel loops may call functions, for which each unit has frames of
    its own, and stop the run: the machine then runs them again, one after the other, to find the
    first that does."""
    early_lookups: bool = False
    """Whether numbers that an arm reads from memory are read before its branch: a load takes so
    long, and others that need nothing of it are under way meanwhile."""
    row_results: bool = False
    """Whether functions hand back which row of a parameter their result is, and copy nothing."""
    stacked_layers: int = 0
    """So many layers of equal ops, side by side in a loop, become one; 0: none do."""

    # ---- splitting ---------------------------------------------------------------------------
    split_gain: float = 1.3
    """A reduction in two steps must be faster than one by this factor."""
    selected_share: int = 8
    """Up to one of as many elements are selected; where more are wanted, all are sorted."""
    selected_part: int = 8192
    """Elements that one unit looks through before another one could begin."""
    compared_slice: int = 128
    """Elements, at least, that are compared each with each when some of many are wanted."""
    compared_spare: int = 16
    """A slice has so many times more elements than are wanted of it."""
    most_comparisons: int = 1 << 25
    """With more of them a library call is used: a GPU needs some 10 us for these (an estimate), the
    emulated one some 30 s."""

    spread_figures: ClassVar[Mapping[str, float]] = {}
    """What makes the machine's own selection cut finely."""

    def spread(self) -> Self:
        """The machine as tests take it: however small the work is, it is cut finely, all units have
        a part of it, and buffers share memory."""
        waits = {"wait_seconds": 1e-12, "wake_seconds": -1e9, "small_waits": 0.0}
        figures = {**waits, "branch_seconds": inf, "level_bytes": 0, **self.spread_figures}
        return replace(self, share_bytes=0, small_work=0, **figures)

    @property
    def dependent_seconds(self) -> float:
        """What a product takes beside its work where it needs what another unit has just made."""
        return self.wait_seconds

    def product_seconds(self, operations: float, nbytes: float, units: int) -> float:
        """Products of so many operations, shared out to units. nbytes: of the weights that are read
        again and again, where they are read once in this time."""
        rate = self.bandwidth if nbytes / units <= self.cache_bytes else self.memory_bandwidth
        return max(operations / self.flops, nbytes / rate) / units

    def taking(self, sizes: Mapping[Symbol, int]) -> Self:
        """The model for calls of these sizes."""
        return replace(self, taken=tuple(sizes.items()))

    def parallelism(self, extent: Extent) -> int:
        """The tasks that a grid dim could give."""
        if isinstance(extent, int):
            return extent
        known = isinstance(extent, Size) and any(
            symbol in extent.symbols for symbol, _ in self.taken
        )
        return self.size(extent) if known else self.unknown_parallelism

    def size(self, extent: Extent) -> int:
        """How large a dim is, or is taken to be; at least 1 where the run decides."""
        if isinstance(extent, int):
            return extent
        if not isinstance(extent, Size):
            return extent.usual or self.unknown_size
        return max(usual_value(extent, dict(self.taken)), 1)

    def points(self, extents: Iterable[Extent]) -> int:
        """The elements of a box."""
        return prod((self.size(extent) for extent in extents), start=1)

    def is_cheap(self, expr: Expr) -> bool:
        """Cheap enough to compute at every use."""
        return count_applies(expr) <= self.cheap_applies and not _is_expensive(expr)

    def work(self, operator: Operator) -> int:
        """The scalar operations of an operator."""
        each = 1 + count_applies(operator.value)
        if operator.combine in SORTS:
            length, keep = (self.size(extent) for extent in operator.reduce)
            return self.points(operator.dims) * length * (each + self._sort_steps(length, keep))
        if operator.combine is Combine.ATTENTION:
            return self._attention_work(operator)
        if operator.combine is Combine.KERNEL:
            return int(self.points(operator.dims) * kernel_of(operator).operations)
        return self.points((*operator.dims, *operator.reduce)) * each

    def _attention_work(self, operator: Operator) -> int:
        """Each score takes a product of the depth, its softmax, and a row of values."""
        assert isinstance(operator.value, Apply)
        used = {atom for atom in expr_atoms(operator.value.args[0]) if isinstance(atom, Var)}
        sizes = [self.size(extent) for extent in operator.dims]
        columns = prod(size for dim, size in enumerate(sizes) if Var(dim) not in used)
        keys, depth = (self.size(extent) for extent in operator.reduce)
        scores = prod(sizes) // max(columns, 1) * keys
        return scores * (2 * depth + 2 * columns + self.most_applies)

    def _sort_steps(self, length: int, keep: int) -> int:
        """Operations that finding the first `keep` of `length` elements takes for each of them."""
        most = 64 if keep * self.selected_share > length else 4
        return min(length // 4, most)


def count_applies(expr: Expr) -> int:
    """Function applications, shared ones counted each time; stops counting at about 1000."""
    if not isinstance(expr, Apply):
        return 0
    total = 1
    for arg in expr.args:
        total += count_applies(arg)
        if total > _ENOUGH:
            break
    return total


def count_expensive(expr: Expr) -> int:
    """Those of the applications that `count_applies` counts which take long, as tanh; stops
    counting at about 1000, too."""
    if not isinstance(expr, Apply):
        return 0
    total = int(FUNCTIONS[expr.function].is_expensive)
    for arg in expr.args:
        total += count_expensive(arg)
        if total > _ENOUGH:
            break
    return total


def _is_expensive(expr: Expr) -> bool:
    if not isinstance(expr, Apply):
        return False
    return FUNCTIONS[expr.function].is_expensive or any(_is_expensive(arg) for arg in expr.args)


HOST_COSTS = CostModel()
"""What is assumed where no machine is known."""
