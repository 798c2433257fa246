"""Printing of kernels as C++ functions `(ctx, buffers ..., registers ..., task)`.

Buffers and registers are parameters in the order of first use, so kernels that differ only in them
share one function: the thirty convolutions of a network become a handful, and the program compiles
quickly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from types import MappingProxyType

from stretto.device.expr import Buffer, Index, Reg
from stretto.device.operator import Kernel, Loops, Stage, TileDim
from stretto.ir.sizes import Size
from stretto.machines.cpu.printer.cpp_terms import MEMORY_TYPES, VALUE_TYPES, ScalarPrinter
from stretto.machines.cpu.printer.loop_nests import LoopPrinter
from stretto.machines.cpu.template import CpuTemplate, Shared, Strip, transposed_operands
from stretto.machines.statements import (
    Branch,
    CountedLoop,
    FunctionDefinition,
    Naming,
    Parameters,
    Section,
    StatementBuilder,
)
from stretto.machines.terms import Term, call, filled, infix, joined, literal, variable

# ---- Statements of one stage of a task, by the template that selection chose.


def header(stage: Stage) -> str | None:
    """Return the header that the text of a stage needs in addition to those of PRELUDE, or None."""
    if isinstance(stage.template, CpuTemplate):
        return stage.template.header
    return None if transposed_operands(stage.operator) is None else "transpose.h"


def shared(stage: Stage) -> tuple[Shared, ...]:
    """Return the separately compiled instances that the text of a stage calls."""
    return stage.template.shared(stage) if isinstance(stage.template, CpuTemplate) else ()


def definitions(stage: Stage) -> tuple[str, ...]:
    """Return source that must precede the text of a stage."""
    return stage.template.definitions(stage) if isinstance(stage.template, CpuTemplate) else ()


def kernel_strip(kernel: Kernel) -> Strip | None:
    """Return the strips in which all stages of a task are computed: those of its only stage with a
    template, if plain loops follow; else None."""
    first, *rest = kernel.stages
    if not rest or not isinstance(first.template, CpuTemplate):
        return None
    strip = first.template.strip(first)
    if strip is None or not all(isinstance(stage.template, Loops) for stage in rest):
        return None
    tile = kernel.grid[strip.grid]
    return strip if tile.parts is not None or strip.size < tile.tile else None


def streamed(stage: Stage, grid: Sequence[TileDim]) -> int:
    """Return the bytes of constants that a task of a stage reads once, in any order; else 0."""
    template = stage.template
    return template.streamed(stage, grid) if isinstance(template, CpuTemplate) else 0


def print_stage(
    out: StatementBuilder,
    names: Naming,
    stage: Stage,
    grid: tuple[tuple[Term, Term], ...],
    back: Term | None = None,
) -> None:
    """Print a stage as a section; `grid` are the bounds (first, last) of the task's grid dims,
    `back` is as in NestPrinter."""
    printer = LoopPrinter(out, names, stage, grid, back)
    with out.within(Section()):
        if isinstance(stage.template, CpuTemplate):
            stage.template.write(printer)
        else:
            printer.loops()


TASK = variable("task")
LARGE_STREAM = 1 << 17
"""Bytes from which a part of the constants may have left the cache when a task runs again."""
NO_BASES: Mapping[Buffer, Index] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class KernelText:
    """A printed kernel; `buffers` and `regs` are the arguments of the function, in order.

    bases: the position in a buffer that its argument points to, if not its start. first: the start
    of the first access to a buffer, if not the buffer's start.
    """

    function: FunctionDefinition
    buffers: tuple[Buffer, ...]
    regs: tuple[Reg, ...]
    bases: Mapping[Buffer, Index]
    first: Mapping[Buffer, Index]


def print_kernels(kernels: Iterable[Kernel]) -> dict[str, KernelText]:
    """Return the functions of kernels, by kernel name.

    Kernels that differ only in their start positions in buffers, such as those of layers that read
    their own part of one cache, share a function, which gets pointers to these positions.
    """
    plain, moved = dict[str, KernelText](), dict[str, KernelText]()
    merged = dict[FunctionDefinition, set[FunctionDefinition]]()
    for kernel in kernels:
        text = plain[kernel.name] = moved[kernel.name] = print_kernel(kernel)
        if text.first:
            moved[kernel.name] = print_kernel(kernel, text.first)
        merged.setdefault(moved[kernel.name].function, set()).add(text.function)
    return {
        name: moved[name] if len(merged[moved[name].function]) > 1 else text
        for name, text in plain.items()
    }


def print_kernel(kernel: Kernel, bases: Mapping[Buffer, Index] = NO_BASES) -> KernelText:
    """Return the function of one kernel. `bases`: as in KernelText."""
    parameters = Parameters(bases)
    out = StatementBuilder()
    grid = _grid(kernel, parameters, out)
    strip = kernel_strip(kernel)
    if strip is None:
        _print_stages(kernel, parameters, grid, out)
    else:
        _print_strips(strip, kernel, parameters, grid, out)
    arguments = (
        literal("stretto::Context* ctx"),
        *(joined(f"{MEMORY_TYPES[b.dtype]}* ", name) for b, name in parameters.buffers.items()),
        *(joined(f"{VALUE_TYPES[r.dtype]} ", name) for r, name in parameters.regs.items()),
        joined("int64_t ", TASK),
    )
    function = FunctionDefinition(arguments, tuple(out.statements))
    buffers, regs = tuple(parameters.buffers), tuple(parameters.regs)
    return KernelText(function, buffers, regs, bases, parameters.first_places())


def _print_stages(
    kernel: Kernel, names: Naming, grid: tuple[tuple[Term, Term], ...], out: StatementBuilder
) -> None:
    """Print the stages, one after the other.

    Stages that stream constants and do not depend on each other run in reverse order, backwards
    over their constants, every other time that a task runs: what a cache still holds of them is
    then read before it is replaced.
    """
    count = _streaming(kernel)
    if count:
        back, turn, part = variable("back"), variable("turn"), variable("part")
        out.assign(back, call("STRETTO_BACK", TASK), "const bool")
        if count == 1:
            print_stage(out, names, kernel.stages[0], grid, back)
        else:
            with out.within(CountedLoop(turn, literal(0), literal(count))):
                order = filled("{} ? {} - {} : {}", back, count - 1, turn, turn)
                out.assign(part, order, "const int64_t")
                for number, stage in enumerate(kernel.stages[:count]):
                    with out.within(Branch(filled("{} == {}", part, number), ())):
                        print_stage(out, names, stage, grid, back)
    for stage in kernel.stages[count:]:
        print_stage(out, names, stage, grid)


def _streaming(kernel: Kernel) -> int:
    """Return the number of stages at the start of a task that stream constants independently; 0 if
    a cache holds all that they read."""
    sizes = list[int]()
    for stage in kernel.stages:
        size = streamed(stage, kernel.grid)
        if not size or any(_depend(stage, other) for other in kernel.stages[: len(sizes)]):
            break
        sizes.append(size)
    return len(sizes) if sum(sizes) >= LARGE_STREAM else 0


def _depend(stage: Stage, other: Stage) -> bool:
    """True if one of two stages may write what the other one reads or writes."""
    first, second = stage.operator, other.operator
    if first == second:  # Parts of one operator are disjoint unless their boxes are equal.
        return stage.box == other.box
    outputs = {first.out.buffer, second.out.buffer}
    read = {load.access.buffer for operator in (first, second) for load in operator.reads()}
    return len(outputs) < 2 or not outputs.isdisjoint(read)


def _print_strips(
    strip: Strip,
    kernel: Kernel,
    names: Naming,
    grid: tuple[tuple[Term, Term], ...],
    out: StatementBuilder,
) -> None:
    """Print the stages for a few values of a grid dim at a time."""
    first, last = grid[strip.grid]
    begin, end = variable("strip"), variable("strip_end")
    with out.within(CountedLoop(begin, first, last, literal(strip.size))):
        following = begin + strip.size
        stop = filled("{} < {} ? {} : {}", following, last, following, last)
        out.assign(end, stop, "const int64_t")
        part = tuple((begin, end) if n == strip.grid else b for n, b in enumerate(grid))
        for stage in kernel.stages:
            print_stage(out, names, stage, part)


def _grid(kernel: Kernel, names: Naming, out: StatementBuilder) -> tuple[tuple[Term, Term], ...]:
    """Return the bounds of the task in each grid dim: g<n> up to e<n>."""
    bounds: list[tuple[Term, Term]] = []
    rest = TASK
    for number, dim in reversed(list(enumerate(kernel.grid))):
        first, last = variable(f"g{number}"), variable(f"e{number}")
        if dim.parts is not None:
            place = infix(rest, "%", dim.parts) if number else rest
            bounds.append(_part(number, dim, place, names, out))
            rest = infix(rest, "/", dim.parts)
            continue
        if isinstance(dim.extent, int) and dim.tile >= dim.extent:
            bounds.append((literal(0), literal(dim.extent)))
            continue
        extent = _extent(dim, names)
        if not extent.is_name and isinstance(dim.extent, Size):
            named = variable(f"n{number}")
            out.assign(named, extent, "const int64_t")
            extent = named
        tiles = _tiles(dim, extent)
        place = infix(rest, "%", tiles) if number else rest
        out.assign(first, place * dim.tile, "const int64_t")
        end = first + dim.tile
        stop = filled("{} < {} ? {} : {}", end, extent, end, extent)
        out.assign(last, stop, "const int64_t")
        rest = infix(rest, "/", tiles)
        bounds.append((first, last))
    return tuple(reversed(bounds))


def _part(
    number: int, dim: TileDim, place: Term, names: Naming, out: StatementBuilder
) -> tuple[Term, Term]:
    """Return the bounds of one of the parts that a dim is cut into; it may be empty."""
    assert dim.parts is not None
    size, tiles, ends = variable(f"n{number}"), variable(f"t{number}"), list[Term]()
    extent = ScalarPrinter(names, out).index(Index.of(dim.extent))
    out.assign(size, extent, "const int64_t")
    out.assign(tiles, infix(size + (dim.tile - 1), "/", dim.tile), "const int64_t")
    for name, position in ((f"g{number}", place), (f"e{number}", place + 1)):
        begin = infix(position * tiles + (dim.parts - 1), "/", dim.parts) * dim.tile
        end = filled("{} < {} ? {} : {}", begin, size, begin, size)
        out.assign(variable(name), end, "const int64_t")
        ends.append(variable(name))
    return ends[0], ends[1]


def _extent(dim: TileDim, names: Naming) -> Term:
    if isinstance(dim.extent, int):
        return call("int64_t", dim.extent)
    return ScalarPrinter(names, StatementBuilder()).index(Index.of(dim.extent))


def _tiles(dim: TileDim, extent: Term) -> Term:
    return infix(extent + (dim.tile - 1), "/", dim.tile)


def task_count(kernel: Kernel, names: Naming) -> Term:
    """Return the number of tasks; `names` has the registers of a dynamic grid."""
    if kernel.is_static:
        return literal(kernel.tasks)
    return reduce(mul, (_tiles(dim, _extent(dim, names)) for dim in kernel.grid))
