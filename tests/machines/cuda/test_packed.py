"""What a file keeps of a printed and compiled launch."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from stretto.machines.cuda import packed
from stretto.machines.cuda.compile import CompiledTriton, Resources
from tests.machines.cuda.cuda_programs import swap_case

SAMPLES: dict[str, Any] = {
    "tables": (3, 4),
    "kernels": ("one", "two"),
    "shares": {"one": {"c": 0.5}},
    "shared_reads": {"one": 64},
    "target": "sm_90",
    "entry": "stretto_run",
}
"""Values that are no defaults; a number or bool is taken for the other fields."""


def sample(name: str, kind: object) -> Any:
    if name in SAMPLES:
        return SAMPLES[name]
    return {"bool": True, "int": 7}[str(kind)]


def test_all_of_a_source_and_of_its_machine_code_is_kept() -> None:
    """Fields that are added later, too."""
    source = swap_case(torch.ones(48)).source
    own = {"text", "parameters", "arguments", "user_kernels"}
    source = replace(
        source, **{f.name: sample(f.name, f.type) for f in fields(source) if f.name not in own}
    )
    externals = [*source.arguments]
    places = {buffer: place for place, buffer in enumerate(externals)}
    facts: Any = json.loads(json.dumps(packed.source_facts(source, places)))
    assert packed.source_of(facts, source.text, externals) == source

    needs = Resources(40, 1024, 0, 16, 4, 2, "registers")
    given = {"binary": b"code", "parameters": source.parameters, "resources": needs}
    given |= {"seconds": 0.0, "from_cache": True}
    others = (f for f in fields(CompiledTriton) if f.name not in given)
    kernel = CompiledTriton(**given, **{f.name: sample(f.name, f.type) for f in others})
    facts = json.loads(json.dumps(packed.kernel_facts(kernel)))
    assert packed.kernel_of(facts, b"code", source.parameters) == kernel


@pytest.mark.parametrize("facts", [{}, {"units": 3}])
def test_a_file_that_lacks_a_field_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(KeyError):
        packed.source_of({"parameters": [], "arguments": [], **facts}, "", [])
