"""Programs of instances as text that can be read back: those of models here, those that other
tests of this folder make in `agree.py`, `passes/checking.py` and `conftest.py`."""

from __future__ import annotations

import pytest

from benchmarks.models.instances import INSTANCE_ZOO
from stretto.batching.frontend import Evaluation, evaluate
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.instances.observe import Observer
from stretto.batching.passes.pipeline import run_passes
from stretto.batching.printer import parse_program, program_text
from stretto.errors import VerifyError
from tests.batching.programs import tree_lstm
from tests.batching.texts import assert_reads_back
from tests.golden.zoo import build_instances


@pytest.mark.parametrize("name", INSTANCE_ZOO)
def test_models_are_read_back(name: str) -> None:
    model, instances = build_instances(name, "small", count=5)
    evaluation = Evaluation()
    observed = Observer(evaluation).observe(instances, 0, "instance")
    program = evaluate(model, [("instance", observed)], evaluation, [], {})
    assert_reads_back(program)
    run_passes(program, None)
    assert_reads_back(program)


def test_a_program_is_read_back_as_it_was() -> None:
    made = tree_lstm()
    again = assert_reads_back(made)
    assert isinstance(again, InstanceProgram)
    assert again.classes == made.classes and again.cells == made.cells
    assert [block.types for block in again.blocks] == [block.types for block in made.blocks]
    assert again.main.name == "forward" and again.main.result == made.main.result


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data.get(%node)", "data.got(%node)", "is not a primitive"),
        ("%h, %c = record 0(%word)", "%h, %c = record 0(%words)", "is not defined here"),
        (": None | record0", ": None | records", "is not a type"),
        ("$embed", "$embedding", "no object"),
        ("record 1", "record one", "the number of a block"),
    ],
)
def test_mistakes_are_found(old: str, new: str, message: str) -> None:
    text, objects = program_text(tree_lstm())
    assert old in text
    with pytest.raises(VerifyError, match=message):
        parse_program(text.replace(old, new), objects)
