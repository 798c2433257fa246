"""The steps in which a product walks through its depth."""

import pytest

from stretto.machines.cuda.templates.dot import LEAST_DEPTH, DepthStep, steps_of


@pytest.mark.parametrize(
    ("depth", "deep", "parts", "expected"),
    [
        (144, 128, 4, [DepthStep(0, 4, 32), DepthStep(128, 1, 16)]),
        (576, 128, 4, [DepthStep(0, 4, 32, 4), DepthStep(512, 1, 64)]),
        (27, 32, 1, [DepthStep(0, 1, 32)]),
        (147, 32, 1, [DepthStep(0, 1, 32, 4), DepthStep(128, 1, 32)]),
        (200, 128, 4, [DepthStep(0, 4, 32), DepthStep(128, 1, 64), DepthStep(192, 1, 16)]),
        (9, 16, 1, [DepthStep(0, 1, 16)]),
    ],
)
def test_steps(depth: int, deep: int, parts: int, expected: list[DepthStep]) -> None:
    assert steps_of(depth, deep, parts) == expected


@pytest.mark.parametrize(
    ("deep", "parts"), [(16, 1), (32, 1), (64, 1), (64, 4), (128, 4), (256, 4)]
)
def test_every_depth_is_covered_once(deep: int, parts: int) -> None:
    for depth in range(1, 700):
        end = 0
        for step in steps_of(depth, deep, parts):
            assert step.start == end < depth
            assert step.deep >= LEAST_DEPTH and step.size & (step.size - 1) == 0
            end += step.count * step.size
            assert step.parts == 1 or end <= depth  # only steps of one part have a mask
        assert depth <= end < depth + LEAST_DEPTH
