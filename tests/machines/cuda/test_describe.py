"""Programs for GPUs, as `explain()` and the surveys show them: launches, resources, the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import stretto
from stretto.call.compiler import build
from stretto.errors import BuildError
from stretto.frontends.python import capture
from stretto.machines.cuda import toolchain as triton_toolchain
from stretto.machines.cuda.describe import (
    describe,
    host_rows,
    launch_rows,
    launch_runs,
    why_calls_wait,
)
from stretto.machines.cuda.host import PlanExecutable
from stretto.machines.cuda.machine import CUDA, gpu_program
from stretto.machines.machine import Stages
from stretto.tools import simulate
from stretto.tools.explain import explain_target
from stretto.tools.models import Model, require_device
from stretto.tools.names import UsageError
from tests.tools.programs import DEPTH, depth, inverted, until_small

LARGE = torch.full((4,), 9.0)
MATRIX = 2 * torch.eye(3)


def inverted_often(x: torch.Tensor) -> torch.Tensor:
    """A loop and a branch that only the host can execute."""
    while x.abs().max() > 1.0:
        x = torch.linalg.inv(x) * 0.5
        if x.sum() > 2.0:
            x = torch.linalg.inv(x)
    return x


def inverted_deep(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """A recursion that only the host can execute."""
    if count <= 0:
        return x
    return torch.linalg.inv(inverted_deep(x, count - 1))


def listed(x: torch.Tensor) -> list[torch.Tensor]:
    """A result whose length the GPU decides."""
    found = [x]
    while x.sum() < 100:
        x = x * 2
        found.append(x)
    return found


def emulated(function: Callable[..., object], *inputs: torch.Tensor) -> stretto.Compiled:
    options = stretto.Options(units=3)
    return stretto.compile(function, inputs, backend="cuda-emulated", options=options)


def stages_of(function: Callable[..., object], *inputs: torch.Tensor) -> Stages:
    return emulated(function, *inputs).signatures[0].stages


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """A loop for an H100."""
    options = stretto.Options(cache_dir=tmp_path_factory.mktemp("cache"))
    captured = capture(until_small, (LARGE,), {}, options)
    return build(captured.program, CUDA.for_target("sm_90", 132), options)


# ---- for a target ------------------------------------------------------------------------------
def test_a_program_is_compiled_for_a_gpu_that_is_not_there(compiled: Stages) -> None:
    assert compiled.backend == "cuda"
    made = gpu_program(compiled)
    assert made.plan.program.units == 132
    (kernel,) = made.compiled
    assert kernel.target == "sm_90" and kernel.binary.startswith(b"\x7fELF")
    assert {"passes", "select", "schedule", "verify", "compile"} <= set(compiled.seconds)


def test_a_launch_has_its_resources(compiled: Stages) -> None:
    made = gpu_program(compiled)
    (row,) = launch_rows(made, 132)
    assert (row.function, row.runs, row.control) == ("main 1", "1", 1)
    assert row.kernels >= 2 and row.waits >= 1 and row.lines > 20
    assert row.registers is not None and 16 <= row.registers <= 255
    assert row.warps == 4 and row.binary_bytes == len(made.compiled[0].binary)
    assert row.units_per_multiprocessor is not None and row.limit is not None
    assert row.room == 132 * row.units_per_multiprocessor
    assert row.spill_bytes == 0


def test_explain_for_a_target(compiled: Stages) -> None:
    model = Model("until_small", until_small, (LARGE,))
    captured = capture(model.function, model.inputs, {}, compiled.options)
    text = explain_target("sm_90", model, captured, compiled)
    assert text.startswith("until_small: compiled for sm_90, not run\n")
    assert "launches per call  1, the whole program" in text
    assert "calls wait         for nothing: they enqueue" in text
    (line,) = [line for line in text.splitlines() if "as launches " in line]
    assert "with one per kernel" in line and line.endswith("simulated (h200); faster so: nothing")
    assert "resources of a unit on sm_90" in text
    assert "0 x131" in text.replace("x132", "x131")  # units alike are counted, not listed
    assert max(map(len, text.splitlines())) < 200


@pytest.mark.whole
def test_what_loops_keep_on_chip(compiled: Stages) -> None:
    made = gpu_program(compiled)

    def line(kept: int, lacking: int, shared: int = 0) -> str | None:
        source = replace(made.sources[0], kept=kept, lacking=lacking, shared_bytes=shared)
        return dict(describe(compiled, replace(made, sources=(source,)), 132).lines).get("on chip")

    assert line(0, 4096) is None
    assert line(150_528, 0) == "of constants 147.0 KiB in a unit's registers"
    assert line(2048, 512) == (
        "of constants 2.0 KiB in a unit's registers; 512 B more find no room"
    )
    assert line(2048, 0, 4096) == (
        "of constants 2.0 KiB in a unit's registers, 4.0 KiB in its shared memory"
    )
    assert line(0, 0, 4096) == "of constants 4.0 KiB in its shared memory"


def test_a_target_whose_resources_are_unknown(compiled: Stages) -> None:
    program = gpu_program(compiled)
    kernel = program.compiled[0]
    needs = replace(kernel.resources, registers=0, units_per_sm=0, limit="unknown")
    made = replace(kernel, target="gfx942", resources=needs, from_cache=True)
    (row,) = launch_rows(replace(program, compiled=(made,)), 304)
    assert row.room is None
    cells = row.resource_cells()
    assert cells[0] == cells[2] == cells[5] == cells[6] == "?"
    assert cells[7].endswith(" (cached)")


def test_an_unknown_target() -> None:
    with pytest.raises(ValueError, match="no target 'sm_70'; there are sm_80, .*, gfx942"):
        CUDA.for_target("sm_70", 80)
    with pytest.raises(UsageError, match="unknown target 'sm90'; did you mean 'sm_90'"):
        simulate.target_machine("sm90")


def test_every_target_has_a_usual_number_of_units() -> None:
    for name in triton_toolchain.TARGETS:
        machine = simulate.target_machine(name)
        assert 20 <= machine.units(stretto.Options(), torch.device("cpu")) <= 304
    assert triton_toolchain.GpuTarget.parse("sm_90a").name == "sm_90"


def test_another_version_of_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_toolchain, "SUPPORTED", ((9, 0), (9, 1)))
    triton_toolchain.require_triton.cache_clear()
    with pytest.raises(BuildError, match="is not supported, only >=9.0,<9.1"):
        simulate.target_machine("sm_90")
    monkeypatch.undo()
    triton_toolchain.require_triton.cache_clear()


# ---- launches and the host ---------------------------------------------------------------------
def test_a_program_without_library_calls_is_one_launch() -> None:
    fast = emulated(until_small, LARGE)
    text = fast.explain()
    assert "signature 1: backend cuda-emulated, 0 calls" in text
    assert "launches per call  1, the whole program" in text
    assert "launched           0 times" in text
    assert "interpreted on the CPU" in text
    assert "resources of a unit" not in text
    assert "what the host does" not in text
    fast(LARGE)
    assert "launched           1 time\n" in fast.explain()


def test_a_library_call_between_launches() -> None:
    text = emulated(inverted, MATRIX).explain()
    assert "launches per call  1\n" in text
    assert "library calls (run by torch between launches)" in text
    (line,) = [line for line in text.splitlines() if "nothing" in line and "linalg_inv" in line]
    assert line.split()[0] == "main" and line.rstrip().endswith("no native lowering")
    assert "calls wait         for nothing" in text


def test_control_on_the_host_says_what_it_reads_and_why() -> None:
    fast = emulated(inverted_often, MATRIX * 3)
    torch.testing.assert_close(fast(MATRIX * 3), inverted_often(MATRIX * 3))
    rows = {
        row.what.split()[0]: row for row in host_rows(gpu_program(fast.signatures[0].stages).plan)
    }
    assert rows["while"].reads.endswith(", each trip")
    assert rows["if"].why == (
        "aten.linalg_inv_ex.default, aten._linalg_check_errors.default inside"
    )
    text = fast.explain()
    assert "launches per call  by value" in text
    assert "the host reads values in the midst of it" in text
    (line,) = [line for line in text.splitlines() if "host so far" in line]
    assert "0 values" not in line and "library call" in line


def test_recursion_on_the_host() -> None:
    plan = gpu_program(stages_of(inverted_deep, MATRIX, torch.tensor(2))).plan
    assert {row.function for row in host_rows(plan)} == {"main", "inverted_deep"}
    names = {id(launch): name for name, launch in plan.launches}
    by_value = {names[key] for key, runs in launch_runs(plan).items() if runs.count is None}
    assert by_value == {"inverted_deep"}


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (until_small, (LARGE,), None),
        (inverted, (MATRIX,), None),
        (depth, DEPTH, "recursion had memory enough"),
        (listed, (LARGE,), "sizes or numbers of its results"),
        (inverted_often, (MATRIX,), "the host reads values"),
    ],
)
def test_whether_calls_wait_agrees_with_the_machine(
    function: Callable[..., object], inputs: tuple[torch.Tensor, ...], reason: str | None
) -> None:
    fast = emulated(function, *inputs)
    entry = fast.signatures[0]
    reasons = why_calls_wait(gpu_program(entry.stages))
    assert (reason in "; ".join(reasons)) if reason else not reasons
    executable = entry.executable
    assert isinstance(executable, PlanExecutable)
    plan = executable.plan
    waits = executable.sized or executable.recursive or plan.decides_on_host
    assert bool(reasons) == waits


def stacked(x: torch.Tensor) -> torch.Tensor:
    """A library call of a size that only the GPU knows."""
    found = [x]
    while x.sum() < 100:
        x = x * 2
        found.append(x)
    return torch.logcumsumexp(torch.stack(found), 0).sum()


def inverted_last(x: torch.Tensor) -> torch.Tensor:
    """A library call on what a loop has left in one of two places."""
    for _ in range(6):
        x = torch.tanh(x @ x)
    return torch.linalg.inv(x)


@pytest.mark.parametrize(
    ("function", "reads"),
    [(stacked, ["main.length"]), (inverted_last, ["the place of main.carried", "nothing"])],
)
def test_what_a_library_call_makes_the_host_read(
    function: Callable[[torch.Tensor], torch.Tensor], reads: list[str]
) -> None:
    """Such calls wait, and so cannot be captured."""
    x = 0.9 * torch.eye(4)
    fast = emulated(function, x)
    executable = fast.signatures[0].executable
    assert isinstance(executable, PlanExecutable)
    rows = host_rows(executable.plan)
    assert [row.reads.rstrip(".0123456789") for row in rows] == reads
    assert executable.plan.decides_on_host and executable.waits
    assert executable.why_not_captured == "the host reads values during the run"
    torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-4)
    assert executable.reads > 0


# ---- GPUs that are not there -------------------------------------------------------------------
def test_no_gpu_says_what_can_be_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(device: torch.device) -> object:
        raise BuildError("no GPU here", remedy="buy one")

    monkeypatch.setattr("stretto.machines.cuda.machine.find_gpu", missing)
    with pytest.raises(BuildError, match="no GPU here") as raised:
        require_device(CUDA)
    assert raised.value.remedy is not None
    assert raised.value.remedy.startswith("buy one; without a GPU: --backend cuda-emulated")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_program_without_inputs_needs_a_gpu_too() -> None:
    with pytest.raises(BuildError):
        stretto.compile(lambda: torch.ones(2) * 3, backend="cuda")()


# ---- the survey of the zoo ---------------------------------------------------------------------
def test_the_survey_writes_a_table_and_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import resources

    page, record = tmp_path / "page.md", tmp_path / "record.json"
    page.write_text(f"before\n{resources.BEGIN}\nold\n{resources.END}\nafter\n")
    arguments = ["rae", "--preset", "small", "--units", "4", "--others", "gfx942"]
    resources.main([*arguments, "--out", str(page), "--json", str(record)])
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| rae | 1 |" in text and "| gfx942 |" in text and "4 units" in text
    assert '"registers"' in record.read_text()
    assert "rae: gfx942" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lstn"], "unknown model 'lstn'; did you mean 'lstm'"),
        (["--target", "sm_9"], "unknown target 'sm_9'"),
        (["--others", "sm_90,sm_71"], "unknown target 'sm_71'"),
        (["--out", "no-such-page.md"], "is not a page with a line"),
    ],
)
def test_wrong_arguments_of_the_survey(arguments: list[str], message: str) -> None:
    from benchmarks import resources

    with pytest.raises(SystemExit, match=message):
        resources.main(arguments)


def test_a_model_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import resources

    def fail(*arguments: object) -> Stages:
        raise BuildError("no | luck")

    monkeypatch.setattr(resources, "compile_model", fail)
    found = resources.survey(["rae"], preset="small", units=4)
    assert found.models[0].problem == "BuildError: no | luck"
    assert "| rae | failed: BuildError: no / luck |" in resources.markdown(found)


def test_a_survey_goes_on_where_it_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import resources

    record = tmp_path / "record.json"
    arguments = ["--preset", "small", "--units", "4", "--others", "gfx942", "--json", str(record)]
    with pytest.raises(SystemExit, match="cannot go on: "):
        resources.main(["rae", "nasrnn", "--go-on", *arguments])
    resources.main(["rae", *arguments])
    before = resources.models_of(record, "sm_90", "small")
    compiled: list[str] = []

    def fail(model: Any, *_: object) -> Stages:
        compiled.append(model.name)
        raise BuildError("no luck")

    monkeypatch.setattr(resources, "compile_model", fail)
    resources.main(["rae", "nasrnn", "--go-on", *arguments])
    after = resources.models_of(record, "sm_90", "small")
    assert compiled == ["nasrnn"]
    assert after["rae"] == before["rae"] and after["rae"].launches
    assert after["nasrnn"].problem == "BuildError: no luck"
    with pytest.raises(SystemExit, match="is of target sm_90, not sm_80"):
        resources.main(["rae", "--go-on", "--target", "sm_80", *arguments])


def test_a_page_without_markers(tmp_path: Path) -> None:
    from benchmarks import resources

    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="has no lines"):
        resources.insert(page, "table")
