"""Constants in shared memory: interpreted, whole programs, and the machine code of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from checks.machine_code import check
from checks.machine_code import sass as sass_text
from checks.machine_code.loops import looped
from stretto.errors import RunError
from stretto.machines.cuda import compile as triton_compile
from stretto.machines.cuda import machine_code as ptx_text
from stretto.machines.cuda.compile import compile_source, vectors_are_neighbours
from stretto.machines.cuda.device import emulated_cuda_executable
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.machine_code import Instruction, MachineFunction, MemoryEffect
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.cuda.printer.triton_module import Style, library_text, print_plan
from stretto.options import Debug, Options
from tests.machines.cuda.triton_text import control_block, pointer, program

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

PARTS = Path(stretto.__file__).parent / "machines/cuda/printer/library/shared.py"
FUNCTIONS = PARTS.read_text().partition("# ---- ")[2].partition("\n")[2]
PLENTY = 1 << 40
BARRIER = "tl.debug_barrier()"


# ---- interpreted -----------------------------------------------------------------------------
def run(body: str, size: int, *buffers: Tensor, units: int = 1) -> None:
    """`body` has `end`, the end of `size` bytes of shared memory, and the buffers p, q."""
    kinds = {torch.float32: "fp32", torch.int64: "i64", torch.float64: "fp64"}
    names = [pointer(n, kinds[b.dtype]) for n, b in zip("pq", buffers, strict=False)]
    text = f"end = stretto_shared_end()\n{body}"
    source = program(text, *names, units=units, functions=FUNCTIONS)
    kernel = InterpretedKernel(replace(source, shared_bytes=size))
    kernel.launch([control_block(units), *buffers, PLENTY])


LINE = f"""at = tl.arange(0, 64)
stretto_keep(end, 256, tl.load(p + at), 64, 0, 0)
{BARRIER}
tl.store(q + at, stretto_kept(end, 256, tl.float32, 64, 0, 0) + 1)
"""


def test_what_was_stored_is_loaded() -> None:
    p, q = torch.randn(64), torch.zeros(64)
    for size in (256, 1024):
        run(LINE, size, p, q)
        assert torch.equal(q, p + 1)


@pytest.mark.parametrize("shape", [(8, 4, 2), (128, 2, 1), (4, 16, 0), (1, 8, 4)])
def test_blocks_of_several_axes(shape: tuple[int, int, int]) -> None:
    a, b, c = shape
    numbers = f"stretto_numbered({a}, {b}, {c})"
    size = a * b * max(c, 1)
    p, q = torch.randn(size), torch.zeros(size)
    body = f"""at = {numbers}
stretto_keep(end, {size * 4 + 64}, tl.load(p + at), {a}, {b}, {c})
stretto_keep(end, 64, tl.arange(0, 16).to(tl.float32), 16, 0, 0)
{BARRIER}
tl.store(q + at, stretto_kept(end, {size * 4 + 64}, tl.float32, {a}, {b}, {c}))
"""
    run(body, size * 4 + 64, p, q)
    assert torch.equal(p, q)


def test_a_number_and_wide_values() -> None:
    body = f"""at = tl.arange(0, 16)
stretto_keep(end, 16, tl.load(p + 3), 0, 0, 0)
stretto_keep(end, 144, tl.load(p + at), 16, 0, 0)
{BARRIER}
once = stretto_kept(end, 16, tl.int64, 0, 0, 0)
tl.store(q + at, stretto_kept(end, 144, tl.int64, 16, 0, 0) * once)
"""
    p, q = torch.arange(16) + (1 << 40), torch.zeros(16, dtype=torch.int64)
    run(body, 144, p, q)
    assert torch.equal(q, p * p[3])


def test_of_lanes_that_are_alike_one_is_kept() -> None:
    body = f"""rows = stretto_numbered(1, 4, 2)
lanes = rows + tl.arange(0, 32)[:, None, None] * 0
stretto_keep(end, 32, tl.load(p + lanes), 1, 4, 2)
{BARRIER}
tl.store(q + rows, stretto_kept(end, 32, tl.float32, 1, 4, 2))
"""
    p, q = torch.randn(8), torch.zeros(8)
    run(body, 32, p, q)
    assert torch.equal(p, q)
    with pytest.raises(RunError, match="lanes store different values in one place"):
        other = "+ tl.arange(0, 32)[:, None, None] // 31"
        run(body.replace("+ tl.arange(0, 32)[:, None, None] * 0", other), 32, torch.arange(9.0), q)


def test_units_have_memory_of_their_own() -> None:
    p, q = torch.randn(192), torch.zeros(192)
    body = "p += unit * 64\nq += unit * 64\n" + LINE.replace(
        BARRIER, f"{BARRIER}\nsignal(control, unit, base + 1)\n"
        "ok = wait(control, unit, 0, 3, base + 1, polls, ok, 4)"
    )  # fmt: skip
    run(body, 256, p, q, units=3)
    assert torch.equal(q, p + 1)


def test_errors_of_shared_memory() -> None:
    p, q = torch.randn(64), torch.zeros(64)
    with pytest.raises(RunError, match="is read here, and was written by the same unit"):
        run(LINE.replace(BARRIER, ""), 256, p, q)
    stores = f"stretto_keep(end, 256, tl.load(p + at), 64, 0, 0)\n{BARRIER}\n"
    with pytest.raises(RunError, match="is written here, and was read by the same unit"):
        run(LINE + stores, 256, p, q)
    with pytest.raises(
        RunError, match="byte 256 of the unit's shared memory is read, but was never written"
    ):
        run(LINE.replace("stretto_keep(end, 256", "stretto_keep(end, 512"), 512, p, q)
    with pytest.raises(RunError, match="192 bytes before the start of the unit's shared memory"):
        run(LINE, 64, p, q)
    with pytest.raises(RunError, match="of the unit's shared memory, which has 256 bytes"):
        run(LINE.replace("256", "128"), 256, p, q)
    with pytest.raises(RunError, match="is not aligned"):
        run(LINE.replace("256", "258"), 300, p, q)


# ---- whole programs --------------------------------------------------------------------------
ALL = Style(warps=8, registers=0, shared=195 << 10)
PARTLY = Style(warps=8, registers=8, shared=195 << 10)
SMALL = Style(warps=4, registers=8, shared=8 << 10)


class Cells(nn.Module):
    """Two layers in a loop over the rows of the input, again and again in a loop around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.LSTMCell(width, width) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, xs: Tensor, turns: Tensor) -> Tensor:
        h = c = torch.zeros(1, xs.shape[1])
        total = torch.zeros(1, xs.shape[1])
        while turns.sum() > 0:
            for x in xs:
                h, c = self.first(x.unsqueeze(0), (h, c))
                g, c = self.second(h, (h, c))
                total = total + g
            total = torch.tanh(self.out(total))
            turns = turns - 1
        return total


def emulated(model: nn.Module, inputs: tuple[Tensor, ...], style: Style, units: int) -> Any:
    options = Options(units=units, debug=Debug(unroll=0))
    fast: Any = stretto.compile(model, inputs, backend="cuda-emulated", options=options)
    entry = fast.signatures[0]
    sources = print_plan(entry.stages.product.plan, style)
    interface = entry.stages.lowered.interface
    plan = entry.stages.product.plan
    entry.executable = emulated_cuda_executable(plan, sources, interface, options)
    return fast, sources


@pytest.mark.whole
@pytest.mark.parametrize("style", [ALL, PARTLY, SMALL], ids=["all", "partly", "small"])
@pytest.mark.parametrize(("width", "units"), [(40, 1), (72, 7), (130, 16)])
def test_loops_in_loops(style: Style, width: int, units: int) -> None:
    torch.manual_seed(0)
    model, xs = Cells(width).requires_grad_(False), torch.randn(3, width)
    fast, (source,) = emulated(model, (xs, torch.tensor(1)), style, units)
    for turns in (2, 0, 1):
        turn = torch.tensor(turns)
        torch.testing.assert_close(fast(xs, turn), model(xs, turn), rtol=1e-5, atol=1e-5)
    text = source.text.replace(library_text(), "")
    assert bool(source.shared_bytes) == ("stretto_keep(" in text) == ("stretto_kept(" in text)
    assert source.shared_bytes <= style.shared
    assert sum(source.shared_reads.values()) <= max(source.shared_bytes, 0)
    if style is ALL and units == 16:
        assert source.shared_bytes and not source.kept


@pytest.mark.whole
def test_the_barrier_behind_the_stores_is_needed() -> None:
    torch.manual_seed(0)
    model, xs = Cells(72).requires_grad_(False), torch.randn(2, 72)
    inputs = xs, torch.tensor(1)
    fast, (source,) = emulated(model, inputs, ALL, 7)
    before = r"(\n +s_\w+\([^\n]*\))+\n +tl\.debug_barrier\(\)\n"
    assert re.search(before, source.text)
    changed = re.sub(before, lambda m: m[0].replace(BARRIER, "pass"), source.text)
    entry = fast.signatures[0]
    plan, interface = entry.stages.product.plan, entry.stages.lowered.interface
    broken = (replace(source, text=changed),)
    entry.executable = emulated_cuda_executable(plan, broken, interface, Options(units=7))
    with pytest.raises(RunError, match="shared memory is read here, and was written"):
        fast(*inputs)


# ---- machine code ----------------------------------------------------------------------------
class Recurrence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)

    def forward(self, xs: Tensor) -> Tensor:
        h = c = torch.zeros(1, xs.shape[1])
        for x in xs:
            h, c = self.cell(x.unsqueeze(0), (h, c))
        return h


@pytest.fixture(scope="module")
def recurrence() -> TritonSource:
    """Of which registers hold nothing, and shared memory the weights."""
    torch.manual_seed(0)
    model, xs = Recurrence(128).requires_grad_(False), torch.randn(5, 128)
    _, (source,) = emulated(model, (xs,), ALL, 16)
    return source


def assembled(source: TritonSource, options: Options) -> dict[str, list[MachineFunction]]:
    found: dict[str, Any] = {}
    run_triton = triton_compile._run_triton  # pyright: ignore[reportPrivateUsage]

    def recorded(*arguments: Any, **named: Any) -> Any:
        found["made"] = run_triton(*arguments, **named)
        return found["made"]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(triton_compile, "_run_triton", recorded)
        compile_source(source, "sm_90", options)
    from triton import knobs

    cubin = found["made"].asm["cubin"]
    sass = sass_text.disassemble(cubin, knobs.nvidia.nvdisasm.path)
    ptx = ptx_text.functions(found["made"].asm["ptx"])
    return {"ptx": ptx, "sass": sass_text.functions(sass)}


def loads_in_loops(functions: list[MachineFunction], name: str) -> tuple[int, int]:
    """Loads of constants in shared memory by an instruction of this name: in loops, and not."""

    def wanted(one: Instruction) -> bool:
        return MemoryEffect.KEPT in one.effects and f"{name} " in f"{one.text} "

    found = [inside for _, inside in looped(functions, wanted)]
    return sum(found), len(found) - sum(found)


def vectors(source: TritonSource) -> int:
    """Loads by fours of one thread, in the text."""
    blocks = re.findall(r"= stretto_kept\(end, \d+, tl.float32, 128, 8, (\d+)\)", source.text)
    assert blocks
    return sum(map(int, blocks))


WIDE = {"ptx": "ld.shared::cta.v4.b32", "sass": "LDS.128"}
SINGLE = {"ptx": "ld.shared::cta.b32", "sass": "LDS"}


@pytest.mark.whole
def test_weights_are_read_by_fours_in_the_loop(recurrence: TritonSource, tmp_path: Path) -> None:
    """One instruction for each thread and row of a warp; none runs before the loop."""
    wanted = vectors(recurrence)
    for level, functions in assembled(recurrence, Options(cache_dir=tmp_path)).items():
        assert not check(functions).violations
        inside, outside = loads_in_loops(functions, WIDE[level])
        assert inside >= wanted and not outside  # ptxas may have made two ways of one
        if level == "ptx":
            assert inside == wanted


@pytest.mark.whole
def test_what_the_rules_find_of_a_changed_text(recurrence: TritonSource, tmp_path: Path) -> None:
    options = Options(cache_dir=tmp_path)

    def changed(before: str, after: str) -> TritonSource:
        assert len(re.findall(before, recurrence.text)) == 1
        return replace(recurrence, text=re.sub(before, after, recurrence.text))

    fills = r"((?:\n +s_\w+\([^\n]*\))+)\n +tl\.debug_barrier\(\)\n"
    for functions in assembled(changed(fills, r"\1\n"), options).values():
        found = check(functions).violations
        assert found and {one.rule for one in found} == {"kept"}
    narrow = changed(r"VECTORS = tl.constexpr\(True\)", "VECTORS = tl.constexpr(False)")
    narrow = replace(narrow, text=re.sub(r"VECTORS and", "False and", narrow.text))
    for level, functions in assembled(narrow, options).items():
        assert loads_in_loops(functions, WIDE[level]) == (0, 0)
        assert loads_in_loops(functions, SINGLE[level])[0] >= 4 * vectors(recurrence)
    # A load before the loop, of what is stored at once. Its layout has no neighbours by fours.
    match = re.search(r"stretto_kept\(end, (\d+), tl.float32, (128, 8, \d+)\)", recurrence.text)
    assert match is not None
    lines = (
        "end = stretto_shared_end()",
        f"ahead = {match[0]}",
        f"stretto_keep(end, {match[1]}, ahead, {match[2]})",
        "while ok",
    )
    for level, functions in assembled(changed(r"while ok", "\n    ".join(lines)), options).items():
        assert loads_in_loops(functions, SINGLE[level])[1] > 0
        assert {one.rule for one in check(functions).violations} == {"kept"}


@pytest.mark.whole
def test_weights_that_are_loaded_again_are_found(recurrence: TritonSource, tmp_path: Path) -> None:
    """The loop reads its input and its state by fours, and no weights."""

    def count(source: TritonSource) -> int:
        functions = assembled(source, Options(cache_dir=tmp_path))["sass"]
        found = looped(functions, lambda one: "LDG.E.128" in one.text)
        return sum(inside for _, inside in found)

    kept = count(recurrence)
    match = re.search(r"\n( +)(v\d+) = stretto_kept\(end, \d+, tl.float32, 128,.*", recurrence.text)
    assert match is not None
    again = f"\n{match[1]}{match[2]} = tl.load(p0 + task * 512 + stretto_numbered(128, 8, 1))"
    text = recurrence.text[: match.start()] + again + recurrence.text[match.end() :]
    assert count(replace(recurrence, text=text)) > kept


@pytest.mark.whole
def test_a_launch_asks_for_both_parts(recurrence: TritonSource, tmp_path: Path) -> None:
    options = Options(cache_dir=tmp_path)
    made = compile_source(recurrence, "sm_90", options)
    bare = compile_source(replace(recurrence, shared_bytes=0), "sm_90", options)
    assert bare.shared_bytes <= made.shared_bytes - recurrence.shared_bytes < bare.shared_bytes + 16
    assert made.resources.shared_bytes == made.shared_bytes
    many = compile_source(replace(recurrence, shared_bytes=200 << 10), "sm_90", options)
    assert (many.resources.units_per_sm, many.resources.limit) == (1, "shared memory")


def test_triton_may_need_no_shared_memory(tmp_path: Path) -> None:
    source = program(
        f"end = stretto_shared_end()\n{LINE}", pointer("p"), pointer("q"), functions=FUNCTIONS
    )
    options = Options(cache_dir=tmp_path)
    assert compile_source(replace(source, shared_bytes=256), "sm_90", options).shared_bytes == 256


# ---- vectors ---------------------------------------------------------------------------------
GOOD = "#b1 = #ttg.blocked<{sizePerThread = [4, 1, 1], warpsPerCTA = [1, 8, 1], order = [0, 1, 2]}>"
USE = (
    '    %2 = tt.elementwise_inline_asm "ld.shared::cta.v4.b32 {$0, $1, $2, $3}, [$4];" '
    "{packed_element = 4 : i32} %1 : tensor<128x8x1xi32, #b1> -> tensor<128x8x1xi32, #b1> loc(#l)"
)


@pytest.mark.parametrize(
    ("before", "after", "right"),
    [
        ("", "", True),
        ("[4, 1, 1]", "[8, 1, 1]", True),
        ("[4, 1, 1]", "[2, 1, 1]", False),
        ("[4, 1, 1]", "[1, 4, 1]", False),
        ("[0, 1, 2]", "[1, 0, 2]", False),
        ("#ttg.blocked", "#ttg.linear", False),
        ("-> tensor<128x8x1xi32, #b1>", "-> tensor<128x8x1xi32, #b2>", False),
        ("tt.elementwise_inline_asm", "tt.other", False),
    ],
)
def test_which_layouts_have_neighbours(before: str, after: str, right: bool) -> None:
    text = f"{GOOD}\n{USE}\n"
    changed = text.replace(before, after) if before else text
    assert changed != text or not before
    assert vectors_are_neighbours(changed) is right


@pytest.mark.whole
def test_where_layouts_do_not_agree_each_element_is_loaded_by_itself(
    recurrence: TritonSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_compile, "vectors_are_neighbours", lambda ttgir: False)
    functions = assembled(recurrence, Options(cache_dir=tmp_path))["sass"]
    assert loads_in_loops(functions, "LDS.128") == (0, 0)
    assert loads_in_loops(functions, "LDS")[0] >= 4 * vectors(recurrence)
