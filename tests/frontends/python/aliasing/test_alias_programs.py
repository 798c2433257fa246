"""Random programs whose tensors share memory equal eager PyTorch, or are refused by name."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from stretto.errors import CaptureError
from stretto.frontends.python import capture
from stretto.ir.text import print_program
from stretto.ir.verifier import verify
from stretto.options import Debug, Options
from tests.frontends.python.aliasing.alias_programs import AliasWriter
from tests.frontends.python.checks import assert_same, run_captured
from tests.frontends.python.writer import load

GROUPS = 8
EACH = 20


def equals_eager(seed: int, folder: Path) -> bool:
    """Whether the program of a seed was captured; then outputs, inputs and buffers are compared."""
    text = AliasWriter(seed).program()
    module = load(text, folder / f"program_{seed}.py")
    draw = torch.Generator().manual_seed(seed)
    cases = [tuple(torch.randn(4, generator=draw) for _ in range(2)) for _ in range(4)]
    actual, weight = module.Module(), module.WEIGHT.clone()
    expected = copy.deepcopy(actual)
    try:
        captured = capture(
            actual, copy.deepcopy(cases[0]), {}, Options(debug=Debug(unroll=(0, 2, 4)[seed % 3]))
        )
    except CaptureError as error:
        assert "in place" in error.message, text
        assert error.location is not None
        return False
    verify(captured.program)
    for case in cases:
        eager_args, args = copy.deepcopy(case), copy.deepcopy(case)
        before = module.WEIGHT.clone()
        with torch.no_grad():
            wanted = copy.deepcopy(expected(*eager_args))
        after = module.WEIGHT.clone()
        module.WEIGHT.copy_(before)
        found = run_captured(captured, args, {})
        try:
            assert_same(found, wanted)
            assert_same(args, eager_args)
            assert_same(dict(actual.named_buffers()), dict(expected.named_buffers()))
            assert_same(module.WEIGHT, after)
        except AssertionError:
            print(text)
            raise
    module.WEIGHT.copy_(weight)
    return True


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_programs_with_aliases(group: int, tmp_path: Path) -> None:
    captured = [equals_eager(seed, tmp_path) for seed in range(group * EACH, (group + 1) * EACH)]
    assert sum(captured) > EACH // 2


@pytest.mark.parametrize("seed", [7022])
def test_a_capture_does_not_depend_on_where_objects_lie_in_memory(
    seed: int, tmp_path: Path
) -> None:
    module = load(AliasWriter(seed).program(), tmp_path / f"program_{seed}.py")
    given = tuple(torch.ones(4) for _ in range(2))
    captures = [
        capture(module.Module(), given, {}, Options(debug=Debug(unroll=2))) for _ in range(4)
    ]
    assert len({print_program(captured.program) for captured in captures}) == 1
