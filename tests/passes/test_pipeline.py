"""A pass in a file of its own is part of the pipeline: nothing else is touched."""

from pathlib import Path

import pytest

import stretto.passes
from stretto.ir.text import parse_program, print_program
from stretto.passes.manager import Pass, Repeat, run_passes
from stretto.passes.pipeline import pipeline

FILE = '''
"""Double negation: the negation of a negation is a copy."""

from dataclasses import dataclass
from typing import ClassVar

from stretto.ir.core import Program
from stretto.ir.ops import TensorOp


@dataclass(frozen=True, slots=True)
class ReluTwice:
    name: ClassVar[str] = "relu_twice"
    after: ClassVar[str] = "AFTER"

    def apply(self, program: Program) -> bool:
        """The relu of a relu reads what the first one reads."""
        changed = False
        makers = {value: op for op in program.main.body.ops for value in op.results}
        for op in program.main.body.ops:
            maker = makers.get(op.operands[0]) if op.operands else None
            if _is_relu(op) and _is_relu(maker):
                op.substitute(lambda value: maker.operands[0])
                changed = True
        return changed


def _is_relu(op):
    return isinstance(op, TensorOp) and op.target == "aten.relu.default"
'''

TEXT = """
func @main(%x: f32[4]) -> (f32[4]) {
  %a = aten.relu.default(%x) : f32[4]
  %b = aten.relu.default(%a) : f32[4]
  return %b
}
"""


def names(steps: tuple[Pass, ...]) -> list[str]:
    found: list[str] = []
    for step in steps:
        found += names(step.passes) if isinstance(step, Repeat) else [step.name]
    return found


@pytest.mark.parametrize("after", ["hoist", "simplify"])
def test_a_pass_is_one_file(after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = names(pipeline())
    name = f"relu_twice_after_{after}"
    (tmp_path / f"{name}.py").write_text(FILE.replace("AFTER", after))
    monkeypatch.setattr(stretto.passes, "__path__", [*stretto.passes.__path__, str(tmp_path)])
    steps = pipeline()
    expected = [
        item for one in before for item in ((one, "relu_twice") if one == after else (one,))
    ]
    assert names(steps) == expected
    program = run_passes(parse_program(TEXT), steps)
    assert print_program(program).count("relu") == 1


def test_the_usual_pipeline_names_all_its_passes() -> None:
    assert names(pipeline())[:2] == ["inline", "expand"]
    assert len(set(names(pipeline()))) == 28
