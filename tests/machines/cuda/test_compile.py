"""Ahead-of-time compilation of Triton programs; no GPU is needed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import stretto
from stretto.errors import BuildError
from stretto.machines.cuda import compile as triton_compile
from stretto.machines.cuda import toolchain as triton_toolchain
from stretto.machines.cuda import triton_stages
from stretto.machines.cuda.compile import Resources, compile_source, units_per_multiprocessor
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.source import ENTRY, TritonSource
from stretto.machines.cuda.toolchain import GpuTarget
from stretto.machines.cuda.triton_stages import quick_stages
from stretto.options import Options
from stretto.tools.doctor import CacheFolder
from tests.machines.cuda.triton_text import control_block, number, pointer, program

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

CALLED = """
    @triton.jit(noinline=True)
    def add_one(x, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
"""
BODY = """
    turn = tl.cast(0, tl.int64)
    while ok & (turn < 3):
        if unit == 0:
            ok = wait(control, unit, 0, 3, base + turn, polls, ok, 4)
        else:
            ok = wait(control, unit, unit - 1, 1, base + turn + 1, polls, ok, 1)
        if ok:
            add_one(x, n, 128)
        turn += 1
        signal(control, unit, base + turn)
"""
SOURCE = program(BODY, pointer("x"), number("n"), units=3, functions=CALLED)


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=tmp_path)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_103", "sm_121"])
def test_compiles_for_nvidia(target: str, options: Options) -> None:
    compiled = compile_source(SOURCE, target, options)
    assert compiled.binary.startswith(b"\x7fELF")
    assert compiled.entry == ENTRY and ENTRY.encode() in compiled.binary
    assert compiled.parameters == SOURCE.parameters
    assert (compiled.scratch_parameters, compiled.scratch_bytes) == (2, 0)
    needs = compiled.resources
    assert 0 < needs.registers < 64
    assert needs.shared_bytes == compiled.shared_bytes == 0  # waits and signals need none
    assert needs.spill_bytes == 0
    assert needs.units_per_sm >= 8


def test_compiles_for_the_newest_or_says_that_triton_is_too_old(options: Options) -> None:
    """The assembler of Triton 3.6 is older than the name sm_110."""
    import triton

    if triton.__version__.startswith("3.6."):
        with pytest.raises(BuildError, match=r"does not know this GPU: .*sm_110") as caught:
            compile_source(SOURCE, "sm_110", options)
        assert "install a newer Triton" in (caught.value.remedy or "")
    else:
        assert compile_source(SOURCE, "sm_110", options).resources.units_per_sm >= 8


def test_compiles_for_amd(options: Options) -> None:
    compiled = compile_source(SOURCE, "gfx942", options)
    assert compiled.binary.startswith(b"\x7fELF")
    assert compiled.scratch_parameters == 0
    assert compiled.resources.limit == "unknown"


def test_the_same_text_is_interpreted_before_and_after(options: Options) -> None:
    x = torch.zeros(128)
    for launches in (1, 2):
        InterpretedKernel(SOURCE).launch([control_block(3), x, 100, 1 << 40])
        compile_source(replace(SOURCE, warps=launches), "sm_90", options)
        assert x[:101].tolist() == [9.0 * launches] * 100 + [0]


def test_spills_and_the_stack_of_functions_are_counted(options: Options) -> None:
    body = """
        at = x + tl.arange(0, 64)[:, None] * 128 + tl.arange(0, 128)[None, :]
        tile = tl.load(at)
        for i in range(n):
            tile = tile * tile + 1
        tl.store(at, tile)
    """
    source = program(body, pointer("x"), number("n"), warps=1)
    needs = compile_source(source, "sm_90", options).resources
    assert needs.registers == 255
    assert needs.spill_bytes > 0 and needs.stack_bytes > 0
    assert (needs.units_per_sm, needs.limit) == (8, "registers")


def test_triton_is_as_before_behind_a_compilation(options: Options) -> None:
    from triton import knobs
    from triton.compiler import code_generator

    before = vars(code_generator).copy()
    with quick_stages() as assembled:
        assert (vars(code_generator) == before) is (triton_stages.CLONE not in before)
        assert knobs.compilation.disable_line_info
    assert assembled.log == "" and vars(code_generator) == before
    assert knobs.runtime.add_stages_inspection_hook is None
    assert not knobs.compilation.disable_line_info
    with pytest.raises(BuildError):
        compile_source(program("x = nonsense"), "sm_90", options)
    assert vars(code_generator) == before


def test_copies_of_variables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same program as Triton makes it by itself."""
    texts: list[str] = []
    for name in ("quick", "plain"):
        if name == "plain":
            monkeypatch.setattr(triton_stages, "CLONE", "_no_such_function")
        with quick_stages():
            texts.append(triton_compile._run_triton(SOURCE, GpuTarget.parse("sm_90")).asm["ptx"])
    assert texts[0] == texts[1]


def test_an_error_of_ptxas_is_told(options: Options) -> None:
    source = program(
        """
        y = tl.inline_asm_elementwise(
            "no.such.instruction $0, $1;", "=r,r", [unit], dtype=tl.int32, is_pure=False, pack=1
        )
        tl.store(x, y)
        """,
        pointer("x", "i32"),
    )
    with pytest.raises(BuildError, match=r"ptxas fails with 255: .*Unknown modifier '\.such'"):
        compile_source(source, "sm_90", options)


# ---- the cache -----------------------------------------------------------------------------------
def test_the_cache_has_what_was_compiled(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_source(SOURCE, "sm_90", options)
    assert not first.from_cache

    def unexpected(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(triton_compile, "_compile", unexpected)
    again = compile_source(SOURCE, "sm_90", options)
    assert again == replace(first, from_cache=True)
    for other in (
        (replace(SOURCE, warps=8), "sm_90"),
        (replace(SOURCE, text=SOURCE.text + "\n"), "sm_90"),
        (replace(SOURCE, parameters=SOURCE.parameters[::-1]), "sm_90"),
        (SOURCE, "sm_100"),
    ):
        with pytest.raises(AssertionError, match="compiled again"):
            compile_source(*other, options)
    folder = CacheFolder(options.cache_path())
    assert folder.entries == 1
    assert folder.clear() == 1


def test_triton_leaves_nothing_in_the_home_folder(options: Options, tmp_path: Path) -> None:
    from triton import knobs

    before = knobs.cache.dir
    compile_source(SOURCE, "sm_90", options)
    assert knobs.cache.dir == before
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".triton"]


# ---- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["sm_70", "sm90", "gfx90a", "h100", ""])
def test_another_target_names_those_there_are(name: str, options: Options) -> None:
    with pytest.raises(ValueError, match="no target '.*'; there are sm_80, .*, sm_121, .*gfx942"):
        compile_source(SOURCE, name, options)


def test_a_rejected_program_names_the_printed_line(options: Options) -> None:
    functions = """
        @triton.jit
        def wrong(x):
            y = x + 1
            return tl.no_such_function(y)
    """
    source = program("wrong(tl.arange(0, 8))", functions=functions)
    line = "    return tl.no_such_function(y)"
    with pytest.raises(
        BuildError, match="Triton rejects the program: .*no_such_function"
    ) as caught:
        compile_source(source, "sm_90", options)
    assert caught.value.location is not None
    assert caught.value.location.line == source.text.splitlines().index(line) + 1
    assert line.strip() in str(caught.value)
    assert CacheFolder(options.cache_path()).entries == 0


def test_without_triton_the_remedy_is_named(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    triton_toolchain.require_triton.cache_clear()
    with pytest.raises(BuildError, match=r"(?s)Triton cannot be imported.*remedy: "):
        compile_source(SOURCE, "sm_90", options)


def test_triton_set_to_interpret_cannot_compile(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", True)
    with pytest.raises(BuildError, match="TRITON_INTERPRET is set"):
        compile_source(SOURCE, "sm_90", options)


def test_stretto_is_imported_without_triton() -> None:
    code = "import sys; sys.modules.update(triton=None, greenlet=None)\n" + "".join(
        f"import stretto.machines.cuda.{name}\n" for name in ("compile", "interpreter")
    )
    folder = Path(stretto.__file__).parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(folder)})


# ---- occupancy -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "expected"),
    [
        # By hand, by the rules of the occupancy calculator; equal limits: the first one.
        ("sm_90", 24, 0, 4, (16, "threads")),
        ("sm_90", 32, 0, 4, (16, "registers")),
        ("sm_90", 128, 0, 4, (4, "registers")),
        ("sm_90", 168, 0, 4, (3, "registers")),
        ("sm_90", 255, 0, 8, (1, "registers")),
        ("sm_90", 32, 227 * 1024, 4, (1, "shared memory")),
        ("sm_90", 32, 228 * 1024, 4, (0, "shared memory")),
        ("sm_90", 16, 0, 1, (32, "blocks")),
        ("sm_80", 64, 80 * 1024, 8, (2, "shared memory")),
        ("sm_86", 40, 0, 8, (6, "registers")),
    ],
)
def test_units_per_multiprocessor(
    target: str, registers: int, shared: int, warps: int, expected: tuple[int, str]
) -> None:
    machine = GpuTarget.parse(target).multiprocessor
    assert machine is not None
    assert units_per_multiprocessor(registers, shared, warps, machine) == expected


def test_resources_of_a_program_are_plain_numbers(options: Options) -> None:
    source: TritonSource = program("tl.store(x, 1.0)", pointer("x"))
    assert isinstance(compile_source(source, "sm_90", options).resources, Resources)
