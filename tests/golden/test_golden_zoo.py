"""All forms of the models of the zoo are as they were: the net under changes that should change
nothing of what is compiled. Where a change is meant, `make golden` writes the files anew, and the
failing test shows which lines differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.models.instances import INSTANCE_ZOO
from tests.golden.zoo import instance_forms, model_forms

MODELS = (
    *("lstm", "nasrnn", "attention", "seq2seq", "blockdrop", "blockdrop_policy", "skipnet", "rae"),
    "deepspeech2",
)
SLOW_TO_PLAN = ("nasrnn", "blockdrop", "blockdrop_policy", "skipnet")
"""Their full size is laid out for a GPU by the same stages as others, but takes up to half a
minute."""
CASES = [
    *((name, preset, "cpu") for name in MODELS for preset in ("small", "full")),
    *((name, "small", "cuda") for name in MODELS),
    *((name, "full", "cuda") for name in MODELS if name not in SLOW_TO_PLAN),
]


@pytest.mark.parametrize(("name", "preset", "machine"), CASES)
def test_forms_of_models(
    name: str, preset: str, machine: str, golden: Callable[[str, str], None]
) -> None:
    golden(model_forms(name, preset, machine), f"zoo/{name}-{preset}-{machine}.txt.xz")


@pytest.mark.parametrize("name", INSTANCE_ZOO)
def test_forms_of_models_for_one_instance(name: str, golden: Callable[[str, str], None]) -> None:
    golden(instance_forms(name), f"zoo/instances-{name}.txt.xz")
