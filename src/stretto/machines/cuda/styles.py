"""Print and compile the launches of a plan, each in the first style whose registers suffice."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from math import ceil

from stretto.device.expr import Buffer
from stretto.device.plan import Launch, Plan
from stretto.device.program import DeviceProgram
from stretto.machines.cuda.compile import CompiledTriton, compile_source
from stretto.machines.cuda.costs import WARP
from stretto.machines.cuda.printer.dead_stores import handed_over
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.printer.triton_module import Style, print_launch
from stretto.machines.cuda.templates.dot import Dot
from stretto.machines.cuda.toolchain import GpuTarget
from stretto.options import Options
from stretto.schedule.plan import make_plan
from stretto.schedule.plan_search import ChosenBranch
from stretto.simulator.work import Kept, KeptPart

USUAL_KEPT = 136
"""Registers of a thread that ptxas usually leaves for constants if a loop wants all, from the
recurrent models of the zoo (144 in an LSTM of ten layers, 134 to 142 in DeepSpeech2). A search
begins there."""
SHARED_KEPT = 195 << 10
"""Bytes of a unit's shared memory for constants that registers have no room for: of 227 KiB that a
block of an sm_90 may have, without Triton's usual needs. `_StyleSearch` lowers it if the target has
less, or Triton needs more."""
STYLES = (
    Style(),
    Style(warps=8, registers=USUAL_KEPT, shared=SHARED_KEPT),
    Style(registers=48),
    Style(registers=0, warps=8, shared=SHARED_KEPT),
    Style(registers=0, warps=8),
    Style(registers=0),
    Style(registers=0, inline=True),
)
"""Styles for a launch, the best first. The fewer constants are held in registers, and the more
threads share the work, the more registers are free; a call needs some, too."""
MOST_WARPS = 8
"""Warps of a unit at most: they use all registers of a multiprocessor, since a thread has at most
255."""
PATIENCE = 30.0
"""Processor seconds of compilations after which no further style is tried."""
FAR_OFF = 256
"""Bytes of spills, without constants held by loops, above which styles that hold constants are no
longer tried."""
STEP = 8
"""Registers of a thread by which a style holds less than the estimate, since loads in every
iteration instead take registers, too."""
LEAST_KEPT = 16
"""Registers of a thread below which holding constants is not worth another compilation."""
REGISTER_BYTES = 4
WIDE = 4096
"""Elements of a product's result block above which four warps have too few registers."""
MOST_INLINE = 20
"""Kernels of a program up to which their text may be inlined wherever they run."""


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """A scheduled program on its way through the CUDA machine: the plan, and the text of each of
    its launches; `compiled` is empty until they have been compiled. as_graph: True if its
    launches run concurrently, in a captured graph or on several streams."""

    plan: Plan
    sources: tuple[TritonSource, ...] = ()
    compiled: tuple[CompiledTriton, ...] = ()
    as_graph: bool = False
    branches: tuple[ChosenBranch, ...] = ()


def styles_for(program: DeviceProgram) -> tuple[Style, ...]:
    """Return the styles to try for a program."""
    templates = [stage.template for kernel in program.kernels for stage in kernel.stages]
    products = [template for template in templates if isinstance(template, Dot)]
    if any(product.rows * product.columns > WIDE for product in products):
        return (STYLES[1], *STYLES[3:5], *STYLES)
    return STYLES


def usual_sources(plan: Plan) -> tuple[TritonSource, ...]:
    """Return the texts of a plan's launches as most compilations choose them, without compiling:
    in the first style, or in the second if four warps have too few registers for the constants
    of loops."""
    buffers = handed_over(plan)
    found: list[TritonSource] = []
    for name, launch in plan.launches:
        source = print_launch(launch, plan.words[name], STYLES[0], buffers)
        if source.lacking:
            source = print_launch(launch, plan.words[name], STYLES[1], buffers)
        found.append(source)
    return tuple(found)


def kept_constants(program: DeviceProgram) -> Kept:
    """Return the constants that loops hold on chip, as far as known without a compilation."""
    return kept_of(usual_sources(make_plan(program)))


def kept_of(sources: Iterable[TritonSource]) -> Kept:
    """Return the constants that the loops of launches hold on chip."""
    return {
        kernel: KeptPart(shares, source.shared_reads.get(kernel, 0))
        for source in sources
        for kernel, shares in source.shares.items()
    }


def compile_plan(program: GpuProgram, target: str, options: Options) -> GpuProgram:
    """Compile each launch in the first of its styles that spills nothing, else in the one that
    spills least. Raises as `compile_source`."""
    plan = program.plan
    kept = handed_over(plan)
    chosen = [
        _compile(launch, plan.words[name], kept, target, options) for name, launch in plan.launches
    ]
    sources = tuple(source for source, _ in chosen)
    return replace(program, sources=sources, compiled=tuple(kernel for _, kernel in chosen))


def _compile(
    launch: Launch,
    words: dict[str, int],
    kept: Collection[Buffer],
    target: str,
    options: Options,
) -> tuple[TritonSource, CompiledTriton]:
    search = _StyleSearch(launch, words, kept, target, options)
    for style in styles_for(launch.program):
        if style.inline and len(launch.program.kernels) > MOST_INLINE:
            continue
        if style.registers and search.is_far_off:
            continue
        if search.fits(style) or search.spent > PATIENCE:
            break
    return min(search.tried.values(), key=lambda pair: pair[1].resources.spill_bytes)


@dataclass(slots=True)
class _StyleSearch:
    """Styles tried for one launch: `tried` has the results by text and warps."""

    launch: Launch
    words: dict[str, int]
    kept: Collection[Buffer]
    target: str
    options: Options
    tried: dict[tuple[str, int], tuple[TritonSource, CompiledTriton]] = field(
        default_factory=dict[tuple[str, int], tuple[TritonSource, CompiledTriton]]
    )
    spent: float = 0.0
    most_shared: int = field(init=False)
    is_far_off: bool = False

    def __post_init__(self) -> None:
        machine = GpuTarget.parse(self.target).multiprocessor
        self.most_shared = machine.most_shared_bytes if machine is not None else 0

    def fits(self, style: Style) -> bool:
        """Return True if nothing spills in a style, or in a variant of it that holds fewer
        constants over loops: fewer by the registers that ptxas lacked, repeatedly; and less
        shared memory if Triton needs more of it. With fewer warps than possible, a style that
        can hold only some of the constants is not tried."""
        style = replace(style, shared=min(style.shared, self.most_shared))
        while True:
            source = print_launch(self.launch, self.words, style, self.kept)
            if style.registers and source.lacking and style.warps < MOST_WARPS:
                return False
            if (source.text, style.warps) in self.tried:
                return False
            kernel = compile_source(source, self.target, self.options)
            self.spent += kernel.seconds
            if source.shared_bytes and kernel.shared_bytes > self.most_shared:
                own = kernel.shared_bytes - source.shared_bytes
                style = replace(style, shared=max(self.most_shared - own, 0))
                continue
            self.tried[source.text, style.warps] = source, kernel
            if kernel.resources.spill_bytes == 0:
                return True
            held = source.kept // (style.warps * WARP * REGISTER_BYTES)
            if not held:
                self.is_far_off |= kernel.resources.spill_bytes > FAR_OFF
            if not held or style.warps < MOST_WARPS:
                return False
            lacking = ceil(kernel.resources.stack_bytes / REGISTER_BYTES)
            room = min(held, style.registers) - lacking - STEP
            if room < LEAST_KEPT or self.spent + kernel.seconds > PATIENCE:
                self.is_far_off = True
                return False
            style = replace(style, registers=room)
