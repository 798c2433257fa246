"""Tests of the static zoo and of the programs around models, small, against eager in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import stretto
from benchmarks.harness import reference_outputs, relative_error
from benchmarks.models.entry import Made, ZooEntry
from benchmarks.models.loops import LOOPS
from benchmarks.models.nasbench import (
    MAX_EDGES,
    MAX_VERTICES,
    Cell,
    NASBenchConfig,
    random_cell,
    vertex_channels,
)
from benchmarks.models.nasbench import make as make_cell
from benchmarks.models.real import MissingPackage
from benchmarks.models.static import OWN
from benchmarks.models.weights import seed_weights
from benchmarks.peers.base import tensors_to_numpy
from tests.sampling import sampled

ENTRIES: dict[str, ZooEntry] = {**OWN, **LOOPS}


def small(name: str) -> Made:
    entry = ENTRIES[name]
    try:
        return entry.make(entry.presets["small"], 0)
    except MissingPackage as missing:
        pytest.skip(str(missing))


def error_of(found: Tensor | tuple[Tensor, ...], made: Made) -> float:
    return relative_error(tensors_to_numpy(found), reference_outputs(*made))


@pytest.mark.parametrize("name", ENTRIES)
def test_float32_agrees_with_float64_and_the_seed_says_it_all(name: str) -> None:
    made, again = small(name), small(name)
    with torch.no_grad():
        first, second = made[0](*made[1]), again[0](*again[1])
    assert error_of(first, made) < 1e-4
    assert relative_error(tensors_to_numpy(first), tensors_to_numpy(second)) == 0
    assert all(abs(one).max() > 1e-2 for one in tensors_to_numpy(first))


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", sampled(list(ENTRIES), ("nasbench", "nmt", "deepfm", "wide", "diffusion", "rollout"))
)
def test_compiled_agrees_with_eager(name: str) -> None:
    made = small(name)
    with torch.no_grad():
        compiled = stretto.compile(made[0], options=stretto.Options(threads=2))
        assert error_of(compiled(*made[1]), made) < 1e-4


def test_random_cells_are_valid_and_differ() -> None:
    cells = [random_cell(seed) for seed in range(1000)]
    assert cells == [random_cell(seed) for seed in range(1000)]
    assert len(set(cells)) > 850
    for cell in cells:
        last = cell.vertices - 1
        assert cell.vertices <= MAX_VERTICES and 1 <= len(cell.edges) <= MAX_EDGES
        assert {end for _, end in cell.edges} == set(range(1, cell.vertices))
        assert {start for start, _ in cell.edges} == set(range(last))


@pytest.mark.parametrize("seed", range(20))
def test_a_cell_keeps_its_shape(seed: int) -> None:
    model, inputs = make_cell(NASBenchConfig(cell=seed, channels=13, image=5, batch=2))
    with torch.no_grad():
        assert model(*inputs).shape == (2, 13, 5, 5)


def test_channels_of_a_cell() -> None:
    """Two vertices share the output's channels; one that leads to both has the larger share."""
    edges = ((0, 1), (1, 2), (1, 3), (2, 4), (3, 4))
    assert vertex_channels(Cell(edges, ("conv1x1",) * 3), 13) == [13, 7, 7, 6, 13]


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm2d(4), nn.BatchNorm1d(4)]
)
def test_norms_keep_their_scale(norm: nn.Module) -> None:
    seed_weights(norm, 0)
    assert isinstance(norm.weight, Tensor) and 0.9 <= norm.weight.min() <= norm.weight.max() <= 1.1


def test_norms_without_weights_are_left_alone() -> None:
    seed_weights(nn.LayerNorm(4, elementwise_affine=False), 0)
