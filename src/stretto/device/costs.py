"""The cost model: the figures that all choices between alternatives are based on.

Lowering uses it to decide what is recomputed, fusion and splitting which operators form
a kernel, selection the templates and tiles, scheduling where tasks run. A machine's own
model derives from `CostModel` and adds what its templates need (`machines/*/costs.py`).
The figures rank choices, they do not predict times.
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
    """Estimated times and limits of a machine. `_seconds` are seconds, `_bytes` bytes,
    everything else counts; per unit where that matters.

    The defaults are those of the threads of a CPU.
    """

    # ---- tasks and units ---------------------------------------------------------------------
    start_seconds: float = 2e-8
    """Time to start a task."""
    task_seconds: float = 1e-6
    """Time of a task whose kernel has no estimate."""
    call_seconds: float = 5e-6
    """Time of a library call."""
    wait_seconds: float = 2e-7
    """Time for a unit to notice that another one has just finished."""
    wake_seconds: float = 5e-6
    """Time to wake the workers for a launch that uses more than one unit."""
    launch_seconds: float = 0.0
    """Time from a call in Python until the first unit begins, and back; 0 if it was not
    measured."""
    small_waits: float = 1.5
    """A kernel that takes less time than this many waits runs on one unit."""
    share_bytes: int = 16384
    """Buffers smaller than this get separate memory, so that they cause no waits."""
    planning_seconds: float = 1.2e-5
    """Compile time to consider one kernel on one unit during planning."""
    planning_share: float = 0.02
    """Weight of planning time: a second of planning counts as this many seconds of one run."""
    uniform: bool = False
    """True if all units run the same code, as the thread blocks of one GPU kernel: all of them run
    even if nothing is gained, and tasks are dealt among them."""
    gpu: str = ""
    """The GPU that the figures are for, by its name in `simulator/devices.py`; empty for a CPU."""
    slow_denormals: bool = True
    """True if arithmetic on denormal numbers is much slower than on normal ones."""

    # ---- products ----------------------------------------------------------------------------
    flops: float = 220e9
    """f32 operations per second of a product."""
    bandwidth: float = 90e9
    """Bytes per second from a unit's own cache."""
    memory_bandwidth: float = 1e10
    """Bytes per second from beyond the unit's own cache."""
    stream_bandwidth: float = 2e10
    """Bytes per second that one unit reads from main memory."""
    cache_bytes: int = 1 << 20
    """Bytes that stay in a unit's own cache."""
    element_seconds: float = 0.12e-9
    """Time per element and function application of vectorised pointwise work."""

    # ---- values known only at run time -------------------------------------------------------
    taken: tuple[tuple[Symbol, int], ...] = ()
    """Assumed sizes of symbols; other symbols are assumed to have their usual size."""
    unknown_size: int = 64
    """Assumed size of a dim that data decide, if none was seen."""
    unknown_tiles: int = 8
    """Assumed number of tiles of a grid dim of unknown extent."""
    unknown_trips: int = 16
    """Assumed iterations of a loop, activations of a function that calls itself once, and tasks of
    a grid, if unknown."""
    unknown_activations: int = 1000
    """Assumed activations caused by one call of a function that calls itself several times, as for
    a tree."""
    unknown_parallelism: int = 1 << 20
    """Assumed number of tasks that a grid dim of unknown extent could give."""

    # ---- recomputation -----------------------------------------------------------------------
    most_applies: int = 48
    """An expression with more function applications than this is stored in a buffer."""
    cheap_applies: int = 2
    """An expression with at most this many applications, none of them expensive, may be recomputed
    per use."""

    repeated_uses: int = 4
    """An operand that is not cheap is stored if each of its elements is used at least this many
    times."""

    # ---- fusion ------------------------------------------------------------------------------
    small_work: int = 20_000
    """Number of scalar operations up to which one task is as good as many."""
    vector: int = 16
    """Number of f32 values computed at once: along a contiguous dim they count as one."""

    # ---- variants of a kernel ----------------------------------------------------------------
    later_gain: float = 1.0
    """A later variant, which has more tasks, must be faster by this factor."""

    # ---- branches on sizes -------------------------------------------------------------------
    branch_gain: float = 1.3
    """Separate kernels for small sizes must make such a call faster by this factor."""
    branch_seconds: float = 2e-5
    """Separate kernels for small sizes must also save more than this many seconds of a call."""
    branch_operators: int = 60
    """Groups with more operators than this are not compiled twice."""

    # ---- branches --------------------------------------------------------------------------
    branch_miss_seconds: float = 1e-8
    """Average cost of a branch to a unit that works alone, from branch mispredictions."""
    speculated_bytes: int = 1 << 21
    """Bytes that an arm may have computed before it is known whether it runs."""
    level_rows: int = 4
    """Activations of a recursion that are computed at a time: as many rows as a product computes
    in the time in which it reads its weights."""
    level_bytes: float = 1 << 18
    """Bytes of weights read per activation from which on it pays to compute several activations at
    a time."""
    rows_before: bool = False
    """True if the activations of one height are computed in one kernel that reads the results of
    calls in place. This saves waits, but needs products that accept any expression as a factor."""
    activation_seconds: float = 7e-9
    """Time of a call of a recursive function without its body: frame, arguments, results."""
    in_turn: bool = True
    """True if iterations of parallel loops may call functions, with separate frames for each unit,
    and may stop the run: the machine then repeats the loop sequentially to find the first
    failure."""
    early_lookups: bool = False
    """True if numbers that an arm reads from memory are loaded before its branch, so that the
    latency of several loads overlaps."""
    row_results: bool = False
    """True if functions return the index of the parameter row that is their result, instead of a
    copy."""
    stacked_layers: int = 0
    """Minimum number of layers of equal ops, side by side in a loop, that are stacked into one; 0:
    never."""

    # ---- splitting ---------------------------------------------------------------------------
    split_gain: float = 1.3
    """A reduction in two steps must be faster than one in a single step by this factor."""
    selected_share: int = 8
    """If at most one in this many elements is wanted they are selected; otherwise all elements are
    sorted."""
    selected_part: int = 8192
    """Number of elements that one unit scans in the time that another unit needs to start."""
    compared_slice: int = 128
    """Minimum length of a slice whose elements are compared pairwise, if a few of many are
    wanted."""
    compared_spare: int = 16
    """A slice has at least this many times more elements than are wanted of it."""
    most_comparisons: int = 1 << 25
    """Limit on comparisons beyond which a library call is used: a GPU needs about 10 us for these
    (an estimate), the emulated one about 30 s."""

    spread_figures: ClassVar[Mapping[str, float]] = {}
    """Figures that make the machine's own selection cut work finely (see `spread`)."""

    def spread(self) -> Self:
        """Return the model that tests use: however small the work is, it is cut finely, all units
        get a part of it, and buffers share memory."""
        waits = {"wait_seconds": 1e-12, "wake_seconds": -1e9, "small_waits": 0.0}
        figures = {**waits, "branch_seconds": inf, "level_bytes": 0, **self.spread_figures}
        return replace(self, share_bytes=0, small_work=0, **figures)

    @property
    def dependent_seconds(self) -> float:
        """Extra time of a product whose operands another unit has just computed."""
        return self.wait_seconds

    def product_seconds(self, operations: float, nbytes: float, units: int) -> float:
        """Return the time of products with this many operations, divided among units. nbytes: size
        of the weights that are read repeatedly, counted once."""
        rate = self.bandwidth if nbytes / units <= self.cache_bytes else self.memory_bandwidth
        return max(operations / self.flops, nbytes / rate) / units

    def taking(self, sizes: Mapping[Symbol, int]) -> Self:
        """Return the model for calls of these sizes."""
        return replace(self, taken=tuple(sizes.items()))

    def parallelism(self, extent: Extent) -> int:
        """Return the number of tasks that a grid dim could give."""
        if isinstance(extent, int):
            return extent
        known = isinstance(extent, Size) and any(
            symbol in extent.symbols for symbol, _ in self.taken
        )
        return self.size(extent) if known else self.unknown_parallelism

    def size(self, extent: Extent) -> int:
        """Return the known or assumed size of a dim; at least 1 if it is decided at run time."""
        if isinstance(extent, int):
            return extent
        if not isinstance(extent, Size):
            return extent.usual or self.unknown_size
        return max(usual_value(extent, dict(self.taken)), 1)

    def points(self, extents: Iterable[Extent]) -> int:
        """Return the number of elements of a box."""
        return prod((self.size(extent) for extent in extents), start=1)

    def user_seconds(self, operator: Operator) -> float:
        """Return the time of one element of an operator that calls a user's kernel."""
        kernel = kernel_of(operator)
        nbytes = kernel.nbytes
        if nbytes is None:
            found = {load.access.buffer for load in operator.reads()} | {operator.out.buffer}
            nbytes = sum(buffer.dtype.itemsize for buffer in found)
        return max(kernel.operations * self.element_seconds, nbytes / self.bandwidth)

    def is_cheap(self, expr: Expr) -> bool:
        """Return True if an expression is cheap enough to recompute at every use."""
        return count_applies(expr) <= self.cheap_applies and not _is_expensive(expr)

    def work(self, operator: Operator) -> int:
        """Return the number of scalar operations of an operator."""
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
        """Count for each score a product over the depth, its softmax, and a row of values."""
        assert isinstance(operator.value, Apply)
        used = {atom for atom in expr_atoms(operator.value.args[0]) if isinstance(atom, Var)}
        sizes = [self.size(extent) for extent in operator.dims]
        columns = prod(size for dim, size in enumerate(sizes) if Var(dim) not in used)
        keys, depth = (self.size(extent) for extent in operator.reduce)
        scores = prod(sizes) // max(columns, 1) * keys
        return scores * (2 * depth + 2 * columns + self.most_applies)

    def _sort_steps(self, length: int, keep: int) -> int:
        """Return the operations per element of finding the first `keep` of `length` elements."""
        most = 64 if keep * self.selected_share > length else 4
        return min(length // 4, most)


def count_applies(expr: Expr) -> int:
    """Count function applications, shared ones each time; stops at about 1000."""
    if not isinstance(expr, Apply):
        return 0
    total = 1
    for arg in expr.args:
        total += count_applies(arg)
        if total > _ENOUGH:
            break
    return total


def count_expensive(expr: Expr) -> int:
    """Count the expensive function applications, such as tanh, shared ones each time; stops at
    about 1000."""
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
"""The cost model that is assumed if no machine is known."""
