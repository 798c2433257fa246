"""Tests of the zoo: sizes, seeds, and that decisions are real and come out as described."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.models import CORE, ZOO, build
from benchmarks.models.attention import Attention
from benchmarks.models.blockdrop import BlockDropConfig, BlockDropPolicy, keep_pattern
from benchmarks.models.rae import RAEConfig, config_tree, tree_from_shape, tree_inputs
from benchmarks.models.seq2seq import EOS, Seq2Seq, Seq2SeqConfig, draw_lengths
from benchmarks.models.skipnet import SkipNet

SHAPES = Path(__file__).parents[3] / "shared" / "data" / "sst_dev_shapes.txt"


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def tensors(value: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else value


def in_float64(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    wide = (x.double() if x.is_floating_point() else x for x in inputs)
    return tensors(copy.deepcopy(model).double()(*wide))


@pytest.mark.parametrize("name", ZOO)
def test_float32_agrees_with_float64(name: str) -> None:
    model, inputs = build(name, "small")
    for got, wanted in zip(tensors(model(*inputs)), in_float64(model, inputs), strict=True):
        assert got.shape == wanted.shape
        assert wanted.abs().max() > 0.01  # large enough for a relative error to mean something
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("name", CORE)
def test_the_seed_says_it_all_and_inputs_are_left_alone(name: str) -> None:
    model, inputs = build(name, "small", seed=3)
    before = [x.clone() for x in inputs]
    first = tensors(model(*inputs))
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))
    again_model, again_inputs = build(name, "small", seed=3)
    again = tensors(again_model(*again_inputs))
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    other_model, other_inputs = build(name, "small", seed=4)
    other = tensors(other_model(*other_inputs))
    assert not all(torch.equal(x, y) for x, y in zip(first, other, strict=True))


@pytest.mark.parametrize("name", [name for name in CORE if ZOO[name].batched])
def test_a_batch_of_three(name: str) -> None:
    model, inputs = build(name, "small", batch=3)
    for got, wanted in zip(tensors(model(*inputs)), in_float64(model, inputs), strict=True):
        assert 3 in got.shape
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("name", CORE)
def test_work_is_positive_and_grows_with_the_size(name: str) -> None:
    small, full = (ZOO[name].work(ZOO[name].presets[preset]) for preset in ("small", "full"))
    assert all(phase.flops > 0 and phase.bytes > 0 for phase in (*small, *full))
    assert sum(phase.flops for phase in full) > 100 * sum(phase.flops for phase in small)


@pytest.mark.parametrize(
    ("name", "megaflops", "shapes"),
    [
        ("lstm", 671.1, [(256,)]),
        ("lstm100", 1048.6, [(256,)]),
        ("nasrnn", 2097.2, [(256,)]),
        ("attention", 18.9, [(1, 12, 1, 64), (1, 12, 64, 64), (1, 12, 64, 64)]),
        ("seq2seq", 29.9, [(50, 1), (1, 256)]),
        ("blockdrop", 64.6, [(1, 10)]),
        ("blockdrop_100", 137.7, [(1, 10)]),
        ("rae", 33.6, [(512,)]),
    ],
)
def test_published_sizes(name: str, megaflops: float, shapes: list[tuple[int, ...]]) -> None:
    work = ZOO[name].work(ZOO[name].presets["full"])
    assert sum(phase.flops for phase in work) == pytest.approx(megaflops * 1e6, rel=0.01)
    model, inputs = build(name)
    assert [tuple(x.shape) for x in tensors(model(*inputs))] == shapes


def test_deepspeech2_has_75_steps() -> None:
    config = ZOO["deepspeech2"].presets["full"]
    assert config.convolved() == ((150, 86), (75, 86))


def test_attention_writes_the_second_half_of_the_cache() -> None:
    model, (x, keys, values) = build("attention")
    assert isinstance(model, Attention)
    _, new_keys, new_values = model(x, keys, values)
    for new, old in ((new_keys, keys), (new_values, values)):
        assert torch.equal(new[:, :, :32], old[:, :, :32])
        assert (new[:, :, 32:] != old[:, :, 32:]).all()


@pytest.mark.parametrize("seed", range(4))
def test_seq2seq_stops_by_the_end_token_after_ten(seed: int) -> None:
    model, (h, c) = build("seq2seq", seed=seed)
    tokens, _ = model(h, c)
    assert (tokens[:9] != EOS).all()
    assert (tokens[9:] == EOS).all()
    assert len(set(tokens[:9].flatten().tolist())) > 3


def test_seq2seq_decides_with_a_margin() -> None:
    model, (h, c) = build("seq2seq")
    assert isinstance(model, Seq2Seq)
    gaps: list[float] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
        best = logits.topk(2).values
        gaps.append(float((best[:, 0] - best[:, 1]).min()))

    model.output.register_forward_hook(watch)
    model(h, c)
    assert len(gaps) == 10
    assert min(gaps) > 1e-3


def test_seq2seq_batch_has_lengths_of_mean_ten() -> None:
    config = Seq2SeqConfig(batch=64)
    lengths = draw_lengths(config, 2)
    assert float(lengths.mean()) == pytest.approx(10, abs=1)
    model, (h, c) = build("seq2seq", batch=64)
    tokens, _ = model(h, c)
    counted = (tokens != EOS).sum(dim=0) + 1
    assert (counted - lengths).abs().max() <= 1


def test_blockdrop_patterns() -> None:
    assert keep_pattern(BlockDropConfig()) == [i % 2 == 1 for i in range(15)]
    for percent, kept in ((0, 0), (25, 4), (50, 8), (75, 11), (100, 15)):
        assert sum(keep_pattern(BlockDropConfig.at_rate(percent))) == kept


def test_blockdrop_policy_runs_seven_and_the_image_decides_which() -> None:
    model, (image,) = build("blockdrop_policy")
    assert isinstance(model, BlockDropPolicy)
    keep = model.policy(image)
    assert int((keep >= 0.5).sum()) == 7
    assert (keep - 0.5).abs().min() > 1e-3
    other = model.policy(image * 0.3)
    assert ((keep >= 0.5) != (other >= 0.5)).any()


def count_blocks(model: SkipNet, image: Tensor) -> tuple[int, list[float]]:
    """How many blocks ran, and the logit of each gate."""
    ran: list[int] = []
    logits: list[float] = []
    handles = [
        block.register_forward_hook(lambda *arguments: ran.append(1)) for block in model.blocks
    ]
    handles.append(
        model.gate_output.register_forward_hook(
            lambda module, inputs, output: logits.append(float(output))
        )
    )
    model(image)
    for handle in handles:
        handle.remove()
    return len(ran), logits


def test_skipnet_runs_23_of_33_and_the_image_decides() -> None:
    model, (image,) = build("skipnet")
    assert isinstance(model, SkipNet)
    ran, logits = count_blocks(model, image)
    assert (ran, len(logits), len(model.blocks)) == (23, 32, 33)
    assert min(abs(logit) for logit in logits) > 0.1
    assert count_blocks(model, image * 3.0)[0] != ran


def test_rae_tree_has_65_nodes_and_does_not_depend_on_the_seed() -> None:
    tree = config_tree(RAEConfig())
    assert len(tree.left) == 65
    assert sum(tree.is_leaf) == 33
    assert tree.root == 64
    _, first = build("rae", seed=0)
    _, second = build("rae", seed=1)
    assert all(torch.equal(x, y) for x, y in zip(first[1:], second[1:], strict=True))


def test_trees_of_different_size_share_one_signature() -> None:
    config = RAEConfig(hidden=8)
    shapes = [
        [tuple(x.shape) for x in tree_inputs(config, tree_from_shape(shape), 0)]
        for shape in (".", "(.(..))")
    ]
    assert shapes[0] == shapes[1]


def test_tree_from_shape_numbers_children_first() -> None:
    tree = tree_from_shape("(.(..))")
    assert tree.left == (0, 0, 0, 1, 0)
    assert tree.right == (0, 0, 0, 2, 3)
    assert tree.is_leaf == (True, True, True, False, False)


@pytest.mark.parametrize("shape", ["", "..", "(.)", "(..", ")", "(..)x", ")..("])
def test_a_shape_that_is_no_tree(shape: str) -> None:
    with pytest.raises(ValueError, match="not a tree"):
        tree_from_shape(shape)


def test_a_tree_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="5 nodes do not fit in 3 slots"):
        tree_inputs(RAEConfig(hidden=8, slots=3), tree_from_shape("(.(..))"), 0)


@pytest.mark.skipif(not SHAPES.is_file(), reason="the tree shapes of the data set are not here")
def test_all_trees_of_the_data_set_fit() -> None:
    shapes = SHAPES.read_text().split()
    trees = [tree_from_shape(shape) for shape in shapes]
    assert len(trees) == 1101
    assert max(len(tree.left) for tree in trees) <= RAEConfig().slots
    model, _ = build("rae", hidden=8)
    for tree in trees[:20]:
        inputs = tree_inputs(RAEConfig(hidden=8), tree, 0)
        (wanted,) = in_float64(model, inputs)
        assert torch.allclose(model(*inputs).double(), wanted, rtol=1e-4, atol=1e-5)
