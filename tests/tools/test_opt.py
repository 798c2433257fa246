"""`stretto opt`: every form is read back, continued, printed and run; wrong dumps are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import stretto
from stretto.passes.pipeline import passes_by_name, pipeline
from stretto.tools.cli import app

WEIGHT = torch.linspace(-1.0, 1.0, 64).view(8, 8)
X = torch.linspace(0.0, 2.0, 64).view(8, 8)
OPTIONS = ("--threads", "2", "--units", "3")
FORMS = ("captured", "optimised", "operators", "kernels", "scheduled")
WITH_PLAN = (*FORMS, "plan")


def grown(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    while x.abs().sum() < 100:
        x = torch.tanh(x @ WEIGHT) * 2 + x
    return x, x.argmax()


def run(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["opt", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """By backend and form, the files of one program, and files of tensors for it."""
    found: dict[str, dict[str, Path]] = {}
    for backend in ("cpu", "cuda-emulated"):
        folder = tmp_path_factory.mktemp(backend)
        options = stretto.Options(threads=2, units=3, debug=stretto.Debug(dump_dir=folder))
        stretto.compile(grown, (X,), backend=backend, options=options)
        found[backend] = {p.stem.split("-", 1)[1]: p for p in sorted(folder.iterdir())}
        for name, tensors in (("inputs", [X]), ("constants", {"tensor": WEIGHT})):
            found[backend][name] = folder / f"{name}.pt"
            torch.save(tensors, found[backend][name])
    return found


CASES = [*(("cpu", form) for form in FORMS), *(("cuda-emulated", form) for form in WITH_PLAN)]


@pytest.mark.parametrize(("backend", "form"), CASES)
def test_each_form_is_printed_as_it_was_read(
    dumps: dict[str, dict[str, Path]], backend: str, form: str
) -> None:
    file = dumps[backend][form]
    assert run(file, "--backend", backend).stdout == file.read_text()


@pytest.mark.parametrize(("backend", "form"), CASES)
def test_each_form_runs(dumps: dict[str, dict[str, Path]], backend: str, form: str) -> None:
    """With the tensors of the user, the results are those of eager."""
    files = dumps[backend]
    given = ("--inputs", files["inputs"], "--constants", files["constants"])
    result = run(files[form], "--backend", backend, "--run", *given, *OPTIONS)
    first, second = result.stdout.split("result 1: ")
    assert first.startswith("result 0: tensor([[")
    assert int(second) == int(grown(X)[1])


def test_drawn_tensors_are_the_same_in_every_form(dumps: dict[str, dict[str, Path]]) -> None:
    files = dumps["cpu"]
    shown = {run(files[form], "--run", *OPTIONS).stdout for form in ("captured", "scheduled")}
    assert len(shown) == 1
    assert run(files["captured"], "--run", "--seed", "1", *OPTIONS).stdout not in shown


def test_a_form_goes_on_to_another(dumps: dict[str, dict[str, Path]]) -> None:
    """The source lines of operators are not in the text of a Program, nor in names then."""
    files = dumps["cpu"]
    for form, first in (("scheduled", "captured"), ("operators", "optimised")):
        wanted = re.sub(r' source "[^"]*"|\b\w+:\d+\.', "", files[form].read_text())
        assert run(files[first], "--from", first, "--to", form, *OPTIONS).stdout == wanted
    wanted = files["kernels"].read_text()
    assert run(files["operators"], "--to", "kernels", *OPTIONS).stdout == wanted
    assert "stretto_run" in run(files["kernels"], "--to", "text", *OPTIONS).stdout


def test_an_edited_kernel_runs_otherwise(dumps: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    text = dumps["cpu"]["scheduled"].read_text()
    assert text.count("tanh(") == 1
    edited = tmp_path / "edited.txt"
    edited.write_text(text.replace("tanh(", "sin("))
    before, after = (
        run(file, "--run", *OPTIONS).stdout for file in (dumps["cpu"]["scheduled"], edited)
    )
    assert before != after


def test_only_the_passes_that_are_named_run(tmp_path: Path) -> None:
    file = tmp_path / "twice.txt"
    file.write_text(
        """func @main(%x: f32[4]) -> (f32[4]) {
  %unused = aten.exp.default(%x) : f32[4]
  %a = aten.sin.default(%x) : f32[4]
  %b = aten.sin.default(%x) : f32[4]
  %c = aten.add.Tensor(%a, %b) : f32[4]
  return %c
}
"""
    )
    only_dce = run(file, "--pass", "dce").stdout
    assert only_dce.count("aten.sin") == 2 and "aten.exp" not in only_dce
    both = run(file, "--pass", "dce", "--pass", "cse").stdout
    assert both.count("aten.sin") == 1
    assert run(file, "--pass", "cse", "--to", "operators").stdout.startswith("operators\n")
    assert {"inline", "dce", "hoist", "distribute"} <= set(passes_by_name(pipeline()))


# ---- what is refused -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("form", "arguments", "message"),
    [
        ("scheduled", ("--to", "plan"), "unknown form of cpu 'plan'; known are captured, optim"),
        ("scheduled", ("--from", "lowered"), "unknown form of cpu 'lowered'"),
        ("scheduled", ("--to", "kernels"), "the form kernels comes before scheduled"),
        ("scheduled", ("--pass", "cse"), "passes run on a Program; this is of the form sched"),
        ("captured", ("--pass", "csee"), "unknown pass 'csee'; did you mean 'cse'?"),
        ("program", (), "cannot be seen from the first word '#include'"),
        ("program", ("--from", "text"), "the form text cannot be read back"),
        ("scheduled", ("--backend", "interpreter"), "those of interpreter begin with func"),
        ("captured", ("--run", "--to", "kernels"), "it does not go with --to"),
        ("captured", ("--backend", "gpu"), "unknown backend 'gpu'"),
        ("captured", ("--run", "--inputs", "no.pt"), "cannot read tensors from no.pt"),
    ],
)
def test_wrong_arguments(
    dumps: dict[str, dict[str, Path]], form: str, arguments: tuple[str, ...], message: str
) -> None:
    assert message in run(dumps["cpu"][form], *arguments, code=2).stderr


def test_tensors_that_do_not_fit(dumps: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    file = tmp_path / "tensors.pt"
    captured = dumps["cpu"]["captured"]
    torch.save([X, X], file)
    wrong = run(captured, "--run", "--inputs", file, code=2).stderr
    assert "takes torch.float32[8, 8]; given are torch.float32[8, 8], torch.float32[8, 8]" in wrong
    assert "is no dict of tensors" in run(captured, "--constants", file, code=2).stderr
    torch.save({"tensor": X[0]}, file)
    assert "is no list of tensors" in run(captured, "--run", "--inputs", file, code=2).stderr
    wrong = run(captured, "--constants", file, code=2).stderr
    assert "the constant tensor is torch.float32[8] in the file, but torch.float32[8, 8]" in wrong


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot read" in run(tmp_path / "no.txt", code=2).stderr


def test_a_mistake_in_the_text_has_its_line(
    dumps: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(dumps["cpu"]["scheduled"].read_text().replace("buffer in0", "bufer in0", 1))
    assert f"ScheduleError: {wrong}:2: " in run(wrong, code=1).stderr
    wrong.write_text(dumps["cpu"]["captured"].read_text().replace("default(%1)", "default(%9)", 1))
    assert f"{wrong}:4, column 27: %9 is not defined here" in run(wrong, code=1).stderr
    wrong.write_text(dumps["cpu"]["kernels"].read_text())
    message = run(wrong, "--from", "scheduled", code=1).stderr
    assert f"{wrong}:1: this is a form of another stage: kernels" in message


def test_a_schedule_with_a_race_is_refused(
    dumps: dict[str, dict[str, Path]], tmp_path: Path
) -> None:
    """A wait that was cut out of the text of a schedule, and of a plan."""
    for form in ("scheduled", "plan"):
        lines = dumps["cuda-emulated"][form].read_text().splitlines(keepends=True)
        found: set[str] = set()
        for number, line in enumerate(lines):
            if line.strip().startswith("wait "):
                file = tmp_path / "raced.txt"
                file.write_text("".join(lines[:number] + lines[number + 1 :]))
                result = CliRunner().invoke(app, ["opt", str(file), "--backend", "cuda-emulated"])
                found.add(result.stderr.split(":")[0])
                if "VerifyError" in found:
                    break
        assert "VerifyError" in found


def test_a_loop_without_end_ends_in_time(tmp_path: Path) -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 10:
            x = x * 0
        return x

    compiled = stretto.compile(
        endless, options=stretto.Options(debug=stretto.Debug(dump_dir=tmp_path))
    )
    compiled(torch.full((4,), 5.0))
    (file,) = tmp_path.glob("*-operators.txt")
    shown = run(file, "--run", "--timeout", "0.2", *OPTIONS, code=1)
    assert "the run took longer than" in shown.stderr
