"""Programs that are compiled for a GPU elsewhere, saved, and loaded where that GPU is.

The GPU is the stand-in of the tests: its memory is the CPU's, and it interprets the texts of the
kernels whose machine code it is given.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from benchmarks.models import ZOO
from stretto.call.saved_code import compressed
from stretto.call.saved_file import Content, read, write
from stretto.errors import BuildError, LoadError, RunError, StrettoWarning
from stretto.machines.cuda import device as cuda_device
from stretto.machines.cuda import machine as cuda_machine
from stretto.machines.cuda.printer.source import TritonSource
from stretto.machines.machine import BuildStage, Machine
from tests.machines.cuda.cuda_fakes import FakeCuda, FakeGpu

pytest.importorskip("triton")
pytest.importorskip("greenlet")

UNITS = stretto.Options(units=4)


class Steps(nn.Module):
    """A loop whose number of rounds depends on the data, and a branch in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.outer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        rounds = 0
        while x.abs().sum() > 1.0 and rounds < 5:
            x = torch.tanh(self.inner(x)) * 0.5
            if x.sum() > 0:
                x = x + 0.01 * self.outer(x)
            rounds += 1
        return x, rounds


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> cuda_device.Gpu:
    """An H100 that keeps its tensors in the memory of the host. Nothing can be built for it."""
    found = cuda_device.Gpu(0, "NVIDIA H100 80GB HBM3", (9, 0), 132)
    for module in (cuda_device, cuda_machine):
        monkeypatch.setattr(module, "find_gpu", lambda place: found)

    def launcher(place: object, compiled: object, sources: Sequence[TritonSource]) -> FakeGpu:
        return FakeGpu(cuda, sources)

    monkeypatch.setattr(cuda_device, "launcher_for", launcher)
    return found


@pytest.fixture
def build_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that captures, schedules or compiles."""

    def refuse(*args: object, **settings: object) -> Any:
        raise AssertionError("something is built again")

    monkeypatch.setattr("stretto.call.loaded.build", refuse)
    monkeypatch.setattr("stretto.call.saved_code.PASSES", BuildStage("passes", refuse))
    monkeypatch.setattr("stretto.machines.cuda.styles.compile_source", refuse)
    monkeypatch.setattr("stretto.machines.cuda.machine.choose_plan", refuse)
    monkeypatch.setattr("stretto.machines.cuda.toolchain.require_triton", refuse)


def compiled_for(
    function: Callable[..., Any], *inputs: Any, target: str = "h100", **settings: Any
) -> stretto.Compiled:
    options = settings.pop("options", UNITS)
    return stretto.compile(
        function, inputs, backend="cuda", target=target, options=options, **settings
    )


def saved(path: Path, *inputs: Tensor) -> Steps:
    torch.manual_seed(3)
    model = Steps().eval()
    compiled_for(model, *inputs).save(path)
    return model


def on_stand_in(path: Path, **settings: Any) -> stretto.Loaded:
    return stretto.load(path, backend="cuda", device="cpu", **settings)


def check(run: Callable[..., Any], model: Steps, *shapes: int) -> None:
    x = torch.rand(shapes or (3, 8)) * 4
    expected, rounds = model(x)
    found, counted = run(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert counted == rounds and type(counted) is int


def test_nothing_is_built_again(
    tmp_path: Path, gpu: cuda_device.Gpu, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "steps.stretto"
    model = saved(path, torch.ones(3, 8))
    request.getfixturevalue("build_nothing")
    run = on_stand_in(path)
    for _ in range(2):
        check(run, model)
    assert set(run.tensors) == set(model.state_dict())
    assert "backend cuda" in run.explain()


def test_weights_that_the_file_is_without(tmp_path: Path, gpu: cuda_device.Gpu) -> None:
    path, whole = tmp_path / "small.stretto", tmp_path / "whole.stretto"
    model = Steps().eval()
    compiled = compiled_for(model, torch.ones(3, 8))
    compiled.save(whole)
    compiled.save(path, weights=False)
    assert path.stat().st_size < whole.stat().st_size - 400
    with pytest.raises(LoadError, match=r"without its weights, and `tensors` lacks .*inner.weight"):
        on_stand_in(path)
    wrong = model.state_dict() | {"inner.bias": torch.ones(9)}
    with pytest.raises(LoadError, match=r"'inner.bias' is torch.float32 of shape \[9\], and"):
        on_stand_in(path, tensors=wrong)
    run = on_stand_in(path, tensors=model.state_dict())
    check(run, model)
    assert run.tensors["inner.weight"].data_ptr() == model.inner.weight.data_ptr()
    again = tmp_path / "again.stretto"
    run.save(again)
    check(on_stand_in(again), model)


@pytest.fixture
def compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that schedules or compiles; passes may run."""

    def refuse(*args: object, **settings: object) -> Any:
        raise AssertionError("something is compiled again")

    monkeypatch.setattr("stretto.call.loaded.build", refuse)


class Folded(nn.Module):
    """A product of two weights is computed before the program runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.rand(8, 8))
        self.second = nn.Parameter(torch.rand(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.first @ self.second)


def test_what_passes_made_of_weights(
    tmp_path: Path, gpu: cuda_device.Gpu, request: pytest.FixtureRequest
) -> None:
    path, x = tmp_path / "folded.stretto", torch.rand(2, 8)
    model, other = Folded(), Folded()
    compiled = compiled_for(model, x)
    (entry,) = compiled.signatures
    assert entry.stages.program.folded.results, "the test wants a folded constant"
    compiled.save(path)
    compiled.save(tmp_path / "without.stretto", weights=False)
    request.getfixturevalue("compile_nothing")
    run = on_stand_in(path, tensors=other.state_dict())
    torch.testing.assert_close(run(x), other(x))
    run = on_stand_in(tmp_path / "without.stretto", tensors=model.state_dict())
    torch.testing.assert_close(run(x), model(x))
    run = on_stand_in(path)
    torch.testing.assert_close(run(x), model(x))
    run.tensors["first"].mul_(2.0)
    torch.testing.assert_close(run(x), 2 * model(x))
    run.save(tmp_path / "changed.stretto")
    torch.testing.assert_close(on_stand_in(tmp_path / "changed.stretto")(x), 2 * model(x))


def test_layers_whose_weights_are_joined(
    tmp_path: Path, gpu: cuda_device.Gpu, request: pytest.FixtureRequest
) -> None:
    """Passes name what they make anew; the program is the same for all that."""
    path = tmp_path / "lstm.stretto"
    entry = ZOO["lstm"]
    model, (x,) = entry.make(entry.presets["small"], 0)
    compiled = compiled_for(model, x)
    (signature,) = compiled.signatures
    assert signature.stages.program.folded.results, "the test wants joined weights"
    compiled.save(path, weights=False)
    request.getfixturevalue("compile_nothing")
    run = on_stand_in(path, tensors=model.state_dict())
    torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)


def test_tensors_that_the_capture_has_read(tmp_path: Path, gpu: cuda_device.Gpu) -> None:
    """Their content is part of the program, which no file says otherwise."""

    class Signed(nn.Module):
        positive: Tensor

        def __init__(self, positive: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4))
            self.register_buffer("positive", torch.tensor(positive))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.weight if self.positive.item() else x - self.weight

    path, x, model = tmp_path / "signed.stretto", torch.rand(4), Signed(True)
    compiled_for(model, x).save(path, weights=False)
    same, other = Signed(True), Signed(False)
    run = on_stand_in(path, tensors=same.state_dict())
    torch.testing.assert_close(run(x), same(x))
    with pytest.raises(LoadError, match="has read 'positive' while it was captured"):
        on_stand_in(path, tensors=other.state_dict())


def test_weights_that_make_another_program_build_it(
    tmp_path: Path, gpu: cuda_device.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(factor))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    path, x = tmp_path / "scaled.stretto", torch.rand(5)
    compiled_for(Scaled(2.0), x).save(path)
    torch.testing.assert_close(on_stand_in(path)(x), x * 2.0)

    def build(*args: object) -> Any:
        raise BuildError("the stand-in compiles nothing")

    monkeypatch.setattr("stretto.call.loaded.build", build)
    with (
        pytest.warns(StrettoWarning, match="with these tensors, .* the program is another one"),
        pytest.raises(BuildError, match="compiles nothing"),
    ):
        on_stand_in(path, tensors={"factor": torch.tensor(3.0)})


def test_views_of_weights_stay_views(tmp_path: Path, gpu: cuda_device.Gpu) -> None:
    """A part of a weight follows it when it changes, though the program has it as a constant of
    its own."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8, 6))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight[2:5, 1:].t() + self.weight[0, :3]

    path, x, model = tmp_path / "part.stretto", torch.rand(4, 5), Part()
    compiled_for(model, x).save(path)
    run = on_stand_in(path)
    torch.testing.assert_close(run(x), model(x))
    run.tensors["weight"].add_(1.0)
    model.weight.add_(1.0)
    torch.testing.assert_close(run(x), model(x))
    spread = torch.rand(8, 12)[:, ::2]
    model.weight.copy_(spread)
    torch.testing.assert_close(on_stand_in(path, tensors={"weight": spread})(x), model(x))


def test_all_sizes_of_a_dim(
    tmp_path: Path, gpu: cuda_device.Gpu, request: pytest.FixtureRequest
) -> None:
    path, model = tmp_path / "sizes.stretto", Steps().eval()
    compiled_for(model, torch.ones(6, 8), dynamic=True).save(path)
    request.getfixturevalue("build_nothing")
    run = on_stand_in(path)
    for rows in (6, 1, 13):
        check(run, model, rows, 8)


def test_a_captured_graph_and_library_calls(
    tmp_path: Path, gpu: cuda_device.Gpu, request: pytest.FixtureRequest
) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x @ y).cumsum(0), torch.relu(y @ x) + 1.0

    options = stretto.Options(
        units=4,
        enqueue="graph",
        debug=stretto.Debug(launches="per_kernel"),
        library=("aten.mm.default",),
    )
    x, y = torch.rand(6, 5), torch.rand(5, 6)
    path = tmp_path / "graph.stretto"
    compiled_for(function, x, y, options=options).save(path)
    request.getfixturevalue("build_nothing")
    run = on_stand_in(path)
    for _ in range(2):
        torch.testing.assert_close(run(x, y), function(x, y))
    (entry,) = run.signatures
    assert type(entry.executable).__name__ == "GraphExecutable"
    with pytest.raises(LoadError, match="which is not one of torch"):
        forged = path.with_name("forged.stretto")
        _with_call(path, forged, "aten.mm.default", "somebody.mm.default")
        on_stand_in(forged)


def _with_call(path: Path, forged: Path, before: str, after: str) -> None:
    """The same file with another library call in its plan, and the digests that it needs."""
    content = read(path)
    plan = zlib.decompress(content.tensors[PLAN].numpy().tobytes()).decode()
    assert before in plan
    write(forged, _with_plan(content, plan.replace(before, after)))


PLAN = "program.0.plan.text"


def _with_plan(content: Content, plan: str) -> Content:
    return replace(content, tensors={**content.tensors, PLAN: compressed(plan.encode())})


def test_a_file_for_another_gpu_is_built_again_and_says_so(
    tmp_path: Path, gpu: cuda_device.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "steps.stretto"
    torch.manual_seed(0)
    compiled_for(Steps().eval(), torch.ones(3, 8), target="sm_80").save(path)
    asked: list[Machine] = []

    def build(program: object, machine: Machine, *rest: object) -> Any:
        asked.append(machine)
        raise BuildError("the stand-in compiles nothing")

    monkeypatch.setattr("stretto.call.loaded.build", build)
    with (
        pytest.warns(
            StrettoWarning, match=r"built again, .* for sm_80, as of the a100, and cuda:0"
        ),
        pytest.raises(BuildError, match="compiles nothing"),
    ):
        on_stand_in(path)
    assert [machine.name for machine in asked] == ["cuda"]


def test_when_the_code_of_a_file_is_not_used(tmp_path: Path, gpu: cuda_device.Gpu) -> None:
    path = tmp_path / "steps.stretto"
    model = saved(path, torch.ones(3, 8))
    check(stretto.load(path, device="cpu", backend="interpreter"), model)
    with pytest.raises(LoadError, match="saved for a device of type cuda, which is not"):
        stretto.load(path)
    run = stretto.load(
        path, backend="cuda-emulated", device="cpu", options=stretto.Options(units=2)
    )
    check(run, model)


def test_options_that_code_depends_on(
    tmp_path: Path, gpu: cuda_device.Gpu, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "steps.stretto"
    model = saved(path, torch.ones(3, 8))
    request.getfixturevalue("compile_nothing")
    check(
        on_stand_in(path, options=replace(UNITS, max_depth=9, debug=stretto.Debug(seed=5))), model
    )
    for settings in ({"options": stretto.Options(units=2)}, {"machine_code": False}):
        with pytest.raises(AssertionError, match="compiled again"):
            on_stand_in(path, **settings)


# ---- what a function with a target does where its device is not --------------------------------
def test_a_call_compiles_and_runs_eager_with_a_warning(tmp_path: Path, cuda: FakeCuda) -> None:
    model = Steps().eval()
    compiled = stretto.compile(model, backend="cuda", target="h100", options=UNITS)
    with pytest.warns(
        StrettoWarning, match="was compiled for h100, and does not run here: running"
    ):
        check(compiled, model)
    assert len(compiled.signatures) == 1
    text = compiled.explain()
    assert "1 signature compiled" in text and "backend cuda" in text
    with pytest.raises(RunError, match="compiled for h100, and does not run here"):
        compiled.signatures[0].executable([])


def test_targets_that_nothing_can_be_compiled_for() -> None:
    with pytest.raises(ValueError, match="unknown target 'h1000'; known are .*sm_90.* h100"):
        stretto.compile(Steps(), backend="cuda", target="h1000")
    with pytest.raises(ValueError, match="unknown target 'h100'"):
        stretto.compile(Steps(), backend="cpu", target="h100")
    with pytest.raises(ValueError, match="compiles for gfx942, but has nothing that runs it"):
        stretto.compile(Steps(), target="gfx942")
    with pytest.raises(ValueError, match="cannot have fallback=True"):
        stretto.compile(Steps(), target="h100", fallback=True)


@pytest.mark.parametrize("damage", ["binary", "plan", "launches", "compressed"])
def test_a_damaged_file(tmp_path: Path, gpu: cuda_device.Gpu, damage: str) -> None:
    path = tmp_path / "steps.stretto"
    saved(path, torch.ones(3, 8))
    content = read(path)
    code = content.manifest["signatures"][0]["code"]
    if damage == "binary":
        kept = {n: x for n, x in content.tensors.items() if not n.endswith("launch.0")}
        content = replace(content, tensors=kept)
    elif damage == "plan":
        content = _with_plan(content, "plan\nnothing of the kind")
    elif damage == "compressed":
        content = replace(content, tensors={**content.tensors, PLAN: torch.ones(9).byte()})
    else:
        code["facts"]["launches"].append(code["facts"]["launches"][0])
    write(path, content)
    with pytest.raises(LoadError, match="code of a program is not as it was written"):
        on_stand_in(path)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import stretto
from stretto.machines.cuda import device, machine
from stretto.machines.machine import Executable

gpu = device.Gpu(0, "NVIDIA H100 80GB HBM3", (9, 0), 132)
device.find_gpu = machine.find_gpu = lambda place: gpu


class Ready(Executable):
    def __call__(self, inputs, sizes=None):
        raise AssertionError


machine.cuda_executable = lambda *given: Ready()
print(stretto.load(sys.argv[1], backend="cuda", device="cpu"))
"""


def test_loading_needs_no_triton(tmp_path: Path) -> None:
    path = tmp_path / "steps.stretto"
    saved(path, torch.ones(3, 8))
    command = [sys.executable, "-c", WITHOUT_TRITON, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "<stretto.load of Steps: 1 signature>\n", done.stderr
