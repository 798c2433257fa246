"""Programs written by hand: as the printer would give them, each with what belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

import torch
from torch import Tensor

from stretto.device.expr import Buffer, Reg
from stretto.device.forms import OutputList, OutputTensor, ProgramInterface
from stretto.device.program import DeviceProgram, FrameLayout
from stretto.device.tree import Seq, Tree, TreeFunction
from stretto.ir.types import DType
from stretto.machines.cuda.printer.source import ENTRY, PROGRESS, KernelParameter, TritonSource
from stretto.machines.cuda.printer.triton_module import library_text
from stretto.runtime.results import Status

UNITS = 3
BLOCK = 16
SIZE = UNITS * BLOCK

HEAD = f"""
    unit = tl.program_id(0)
    base = tl.load(control + {PROGRESS} + unit)
    ok = stopped(control) == 0
    lanes = tl.arange(0, {BLOCK})
    here = unit * {BLOCK} + lanes
"""


@dataclass(frozen=True)
class Case:
    """program, source and interface are what CudaExecutable takes."""

    program: DeviceProgram
    source: TritonSource
    interface: ProgramInterface


def swap_case(constant: Tensor) -> Case:
    """y[unit] = 2 * x[last - unit] + c[unit], through the arena. An x below zero does not hold."""
    x = Buffer("x", DType.F32, (SIZE,), "input", 0)
    y = Buffer("y", DType.F32, (SIZE,), "output", 1)
    c = Buffer("c", DType.F32, (SIZE,), "constant", 2)
    body = f"""
        given = tl.load(x + here)
        if tl.min(given, axis=0) < 0:
            fail(control, {Status.ASSERTION.value}, unit + 40)
        if ok:
            tl.store(arena_float32 + here, given * 2)
        signal(control, unit, base + 1)
        ok = wait(control, unit, 0, {UNITS}, base + 1, polls, ok, 4)
        if ok:
            there = ({UNITS} - 1 - unit) * {BLOCK} + lanes
            tl.store(y + here, tl.load(arena_float32 + there) + tl.load(c + here))
        signal(control, unit, base + 2)
    """
    parameters = (
        KernelParameter("control", "*i64", "control"),
        KernelParameter("polls", "i64", "polls"),
        KernelParameter("arena_float32", "*fp32", "arena"),
        KernelParameter("x", "*fp32", "buffer", 0),
        KernelParameter("y", "*fp32", "buffer", 1),
        KernelParameter("c", "*fp32", "buffer", 2),
    )
    source = _source(body, parameters, (x, y, c))
    program = _program((x, y, c), (), SIZE * 4)
    outputs = (OutputTensor(y, (SIZE,)),)
    return Case(program, source, ProgramInterface((x,), outputs, {2: constant}))


def swapped(x: Tensor, constant: Tensor) -> Tensor:
    """What the program of `swap_case` computes."""
    return x.view(UNITS, BLOCK).flip(0).reshape(SIZE) * 2 + constant


def stuck_case() -> Case:
    """y = x + 1; where x[0] is below zero, unit 0 waits for what unit 1 never does."""
    x = Buffer("x", DType.F32, (SIZE,), "input", 0)
    y = Buffer("y", DType.F32, (SIZE,), "output", 1)
    body = f"""
        if tl.load(x) < 0:
            if unit == 0:
                ok = wait(control, unit, 1, 1, base + 5, polls, ok, 1)
        if ok:
            tl.store(y + here, tl.load(x + here) + 1)
        signal(control, unit, base + 1)
        ok = wait(control, unit, 0, {UNITS}, base + 1, polls, ok, 4)
        signal(control, unit, base + 2)
    """
    parameters = (
        KernelParameter("control", "*i64", "control"),
        KernelParameter("polls", "i64", "polls"),
        KernelParameter("x", "*fp32", "buffer", 0),
        KernelParameter("y", "*fp32", "buffer", 1),
    )
    program = _program((x, y), (), 0)
    outputs = (OutputTensor(y, (SIZE,)),)
    return Case(program, _source(body, parameters, (x, y)), ProgramInterface((x,), outputs, {}))


def count_case() -> Case:
    """A list of int(x[0]) times x, and in `tables` what is added to each."""
    x = Buffer("x", DType.F32, (BLOCK,), "input", 0)
    room = Reg("room", DType.I64)
    items = Buffer("items", DType.F32, (room, BLOCK), "list", 1)
    length = Reg("length", DType.I64)
    body = f"""
        count = tl.load(x).to(tl.int64)
        if count > limit1:
            if unit == 0:
                fail(control, {Status.LIST_FULL.value}, 1)
        else:
            more = tl.load(tables + unit).to(tl.float32)
            for number in range(unit, count, {UNITS}):
                tl.store(items + number * {BLOCK} + lanes, tl.load(x + lanes) + more * 0 + number)
            tl.store(words, count, mask=unit == 0)
        signal(control, unit, base + 1)
    """
    parameters = (
        KernelParameter("control", "*i64", "control"),
        KernelParameter("words", "*i64", "words"),
        KernelParameter("tables", "*i32", "tables"),
        KernelParameter("limit1", "i64", "limit", 1),
        KernelParameter("x", "*fp32", "buffer", 0),
        KernelParameter("items", "*fp32", "buffer", 1),
    )
    source = _source(body, parameters, (x, items), tables=(1, 2, 3))
    program = _program((x, items), (length,), 0)
    outputs = (OutputList(items, length),)
    return Case(program, source, ProgramInterface((x,), outputs, {}))


def deep_case() -> Case:
    """y = x[0] frames of the arena, touched with x[1] words of the stack; x[2] is the depth."""
    x = Buffer("x", DType.I64, (BLOCK,), "input", 0)
    y = Buffer("y", DType.I64, (BLOCK,), "output", 1)
    body = f"""
        frames = tl.load(x)
        used = tl.load(x + 1)
        depth = tl.load(x + 2)
        if depth > max_depth:
            fail(control, {Status.TOO_DEEP.value}, depth)
        elif frames * 64 > arena_bytes:
            fail(control, {Status.ARENA_FULL.value}, frames * 64)
        elif used > stack_words:
            fail(control, {Status.ARENA_FULL.value}, 0)
        else:
            tl.store(arena_int8 + frames * 64 - 1, 1)
            tl.store(stack + stack_words * unit + used - 1, 1)
            tl.store(y + lanes, tl.full(({BLOCK},), 0, tl.int64) + frames, mask=unit == lanes)
        signal(control, unit, base + 1)
    """
    parameters = (
        KernelParameter("control", "*i64", "control"),
        KernelParameter("arena_int8", "*i8", "arena"),
        KernelParameter("stack", "*i64", "stack"),
        KernelParameter("stack_words", "i64", "stack_words"),
        KernelParameter("arena_bytes", "i64", "arena_bytes"),
        KernelParameter("max_depth", "i64", "max_depth"),
        KernelParameter("x", "*i64", "buffer", 0),
        KernelParameter("y", "*i64", "buffer", 1),
    )
    source = _source(body, parameters, (x, y), recursive=True)
    program = _program((x, y), (), 64)
    outputs = (OutputTensor(y, (BLOCK,)),)
    return Case(program, source, ProgramInterface((x,), outputs, {}))


def _source(
    body: str,
    parameters: tuple[KernelParameter, ...],
    arguments: tuple[Buffer, ...],
    *,
    tables: tuple[int, ...] = (),
    recursive: bool = False,
) -> TritonSource:
    names = ", ".join(parameter.name for parameter in parameters)
    entry = f"@triton.jit\ndef {ENTRY}({names}):{HEAD}{indent(dedent(body), '    ')}"
    text = f"import triton\nimport triton.language as tl\n\n\n{library_text()}\n\n{entry}"
    return TritonSource(text, parameters, arguments, UNITS, 4, tables, (), recursive)


def _program(externals: tuple[Buffer, ...], results: tuple[Reg, ...], frame: int) -> DeviceProgram:
    main = TreeFunction("main", (), (), (), results, (), Seq(()))
    return DeviceProgram(UNITS, Tree((main,), externals), (), (("main", FrameLayout(frame, ())),))


def _tree(program: DeviceProgram) -> Tree[tuple[()]]:
    return Tree((), program.tree.externals)


def inputs(*values: float, size: int = SIZE, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """One tensor that begins with these values; the rest is zero."""
    x = torch.zeros(size, dtype=dtype)
    x[: len(values)] = torch.tensor(values, dtype=dtype)
    return [x]
