"""Prints and compiles the launches of a plan, each in the first style whose registers suffice."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from stretto.device.expr import Buffer
from stretto.device.plan import Plan
from stretto.device.program import DeviceProgram
from stretto.machines.cuda.compile import CompiledTriton, compile_source
from stretto.machines.cuda.printer.dead_stores import handed_over
from stretto.machines.cuda.printer.program import EARLY_REGISTERS, Style, print_program
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.templates.dot import Dot
from stretto.options import Options

WAYS = (
    Style(registers=EARLY_REGISTERS),
    Style(registers=160, warps=8),
    Style(registers=48),
    Style(registers=0, warps=8),
    Style(registers=0),
    Style(registers=0, inline=True),
)
"""Ways to print a launch, the best first. The less constants are kept in registers, and the more
threads share the work, the more registers are free; a call needs some, too."""
PATIENCE = 30.0
"""Seconds of compilations after which no other way is tried."""
FAR_OFF = 256
"""Where so many bytes spill, ways that keep constants are not tried any more."""
WIDE = 4096
"""Results of a block of a product that four warps have no registers for."""
MOST_INLINE = 20
"""Kernels of a program whose text may stand wherever they run."""


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """What the CUDA machine makes of a scheduled program: the plan, and the text of each of its
    launches; `compiled` is empty until they have been compiled. as_graph: its launches run
    beside each other, in a captured graph or on several streams."""

    plan: Plan
    sources: tuple[TritonSource, ...] = ()
    compiled: tuple[CompiledTriton, ...] = ()
    as_graph: bool = False


def ways(program: DeviceProgram) -> tuple[Style, ...]:
    """The styles to try for a program."""
    templates = [stage.template for kernel in program.kernels for stage in kernel.stages]
    products = [template for template in templates if isinstance(template, Dot)]
    if any(product.rows * product.columns > WIDE for product in products):
        return (Style(warps=8), Style(warps=8, registers=0), *WAYS)
    return WAYS


def compile_plan(program: GpuProgram, target: str, options: Options) -> GpuProgram:
    """Each launch in the first of its styles that spills nothing, else in the one that spills
    least. Raises as `compile_source`."""
    plan = program.plan
    kept = handed_over(plan)
    chosen = [
        _compile(launch.program, plan.words[name], kept, target, options)
        for name, launch in plan.launches
    ]
    sources = tuple(source for source, _ in chosen)
    return replace(program, sources=sources, compiled=tuple(kernel for _, kernel in chosen))


def _compile(
    program: DeviceProgram,
    words: dict[str, int],
    kept: Collection[Buffer],
    target: str,
    options: Options,
) -> tuple[TritonSource, CompiledTriton]:
    tried: dict[tuple[str, int], tuple[TritonSource, CompiledTriton]] = {}
    spent = 0.0
    for style in ways(program):
        if style.inline and len(program.kernels) > MOST_INLINE:
            continue
        if style.registers and any(k.resources.spill_bytes > FAR_OFF for _, k in tried.values()):
            continue
        source = print_program(program, words, style, kept)
        if (source.text, style.warps) in tried:
            continue
        kernel = compile_source(source, target, options)
        tried[source.text, style.warps] = source, kernel
        spent += kernel.seconds
        if kernel.resources.spill_bytes == 0 or spent + kernel.seconds > PATIENCE:
            break
    return min(tried.values(), key=lambda pair: pair[1].resources.spill_bytes)
