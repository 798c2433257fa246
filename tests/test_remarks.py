"""Everything that stages decline is reported once, with the reason and the user's line."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import stretto
from stretto.errors import SourceLocation
from stretto.remarks import Remark, Remarks
from stretto.tools.cli import app
from tests.backends import avx512_figures

WEIGHT = torch.linspace(-1.0, 1.0, 16).view(4, 4)
X = torch.linspace(0.0, 1.0, 8).view(2, 4)


def test_equal_remarks_are_counted() -> None:
    remarks = Remarks()
    for _ in range(2):
        remarks.decline("inline", "call @f", "@f is recursive", SourceLocation("a/b.py", 3))
    remarks.decline("schedule", "several units", "no gain")
    first = Remark("inline", "call @f", "@f is recursive", "a/b.py:3")
    assert dict(remarks) == {first: 2, Remark("schedule", "several units", "no gain", ""): 1}


def descended(x: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
    if depth <= 0:
        return x
    return descended(torch.tanh(x @ WEIGHT), depth - 1)


def varied(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    for _ in range(7):
        x = x @ (WEIGHT * scale)  # the weight is not constant
    return torch.tanh(x)


def chosen(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.softmax(x @ WEIGHT, -1)
    return y.argmax(), (y @ WEIGHT).sum(0)


def reasons(function: object, *inputs: torch.Tensor, backend: str = "cpu") -> set[Remark]:
    options = stretto.Options(threads=2, units=3)
    fast = stretto.compile(function, inputs, backend=backend, options=options)  # type: ignore[call-overload]
    return {remark for remark, _ in fast.signatures[0].stages.remarks}


def test_passes_say_what_they_decline() -> None:
    found = reasons(descended, X, torch.tensor(3))
    inline = [remark for remark in found if remark.stage == "inline"]
    assert {remark.reason for remark in inline} == {"@descended is recursive"}
    assert len(inline) == 2  # the call from outside, and the one inside
    assert all(remark.place.startswith(__file__) for remark in inline)
    found = reasons(varied, X, torch.tensor(2.0))
    assert {r.reason for r in found if r.stage == "horizontal"} == {"the weight is not constant"}
    assert {r.reason for r in found if r.stage == "distribute"} == {"it carries one value"}
    (batch,) = [r for r in found if (r.stage, r.subject) == ("batch_loops", "for")]
    assert batch.reason == "no contraction depends on the index alone"


def test_fusion_and_scheduling_say_what_they_decline(monkeypatch: pytest.MonkeyPatch) -> None:
    avx512_figures(monkeypatch)
    found = reasons(chosen, torch.linspace(-1.0, 1.0, 2048).view(512, 4))
    (schedule,) = [remark for remark in found if remark.stage == "schedule"]
    assert schedule.subject == "several units"
    fuse = {remark.subject: remark for remark in found if remark.stage == "fuse"}
    assert fuse["argmax with map"].reason == "one kernel would have 1 tasks instead of 8"
    assert "read all of an operand" in fuse["contraction with map"].reason
    assert all(remark.place.startswith(__file__) for remark in fuse.values())


def test_remarks_are_shown_with_source_lines() -> None:
    options = stretto.Options(threads=2)
    fast = stretto.compile(varied, (X, torch.tensor(2.0)), backend="cpu", options=options)
    text = fast.explain()
    assert "remarks: what was declined, and why" in text
    (line,) = [line for line in text.splitlines() if "the weight is not constant  " in line]
    assert line.split()[0] == "horizontal"
    assert "test_remarks.py:" in line and "x = x @ (WEIGHT * scale)" in line


def test_an_option_prints_remarks_when_a_signature_is_compiled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fast = stretto.compile(
        varied, backend="interpreter", options=stretto.Options(debug=stretto.Debug(remarks=True))
    )
    for _ in range(2):
        fast(X, torch.tensor(2.0))
    shown = capsys.readouterr().err
    assert shown.count("the weight is not constant  ") == 1


def test_the_command_line_shows_remarks() -> None:
    arguments = ["explain", "lstm", "--small", "--threads", "2", "--remarks"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].split() == [
        "stage",
        "declined",
        "because",
        "line",
        "source",
    ]
    assert "several units" in result.stdout
