"""Tests of the models written for one instance, and of what was written by hand for a batch."""

import copy
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness import relative_error
from benchmarks.models.instances import INSTANCE_ZOO, as_it_is, build
from benchmarks.models.instances.data import as_arrays, in_float64, leaves, with_tensors
from benchmarks.models.instances.expression import (
    Call,
    Evaluator,
    ExpressionConfig,
    Negation,
    Number,
    Operation,
    Variable,
    is_vector,
)
from benchmarks.models.instances.treelstm import Node
from benchmarks.models.instances.trees import (
    SHAPES_VARIABLE,
    folded,
    height,
    leaf_count,
    tree_shapes,
)

BATCHED = [name for name, entry in INSTANCE_ZOO.items() if entry.batched is not None]
SIZES = [(name, size) for name, entry in INSTANCE_ZOO.items() for size in entry.sizes]


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def _random_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHAPES_VARIABLE, raising=False)


def by_hand(name: str, model: Any, instances: Sequence[Any]) -> list[Any]:
    batched = INSTANCE_ZOO[name].batched
    if batched is None:
        return [model(one) for one in instances]
    return batched(model, as_it_is)(instances)


def require_equal(got: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> None:
    """Instance by instance, so that a small result is not measured by a large one."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert [path for path, _ in leaves(one)] == [path for path, _ in leaves(other)]
        assert relative_error(as_arrays(one), as_arrays(other)) <= tolerance


@pytest.mark.parametrize("name", INSTANCE_ZOO)
def test_float32_agrees_with_float64(name: str) -> None:
    model, instances = build(name, "small", 12)
    precise = copy.deepcopy(model).double()
    got = [model(one) for one in instances]
    require_equal(got, [precise(one) for one in in_float64(instances)], 1e-4)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("name", BATCHED)
def test_what_is_written_for_a_batch_agrees_with_each_instance_in_float64(
    name: str, count: int
) -> None:
    model, instances = build(name, "small", count, seed=count)
    precise, wide = copy.deepcopy(model).double(), in_float64(instances)
    require_equal(by_hand(name, precise, wide), [precise(one) for one in wide], 1e-10)


@pytest.mark.parametrize("name", BATCHED)
def test_what_is_written_for_a_batch_leaves_instances_alone_and_can_be_called_again(
    name: str,
) -> None:
    model, instances = build(name, "small", 7)
    before = as_arrays(instances)
    batched = INSTANCE_ZOO[name].batched
    assert batched is not None
    many = batched(model, as_it_is)
    first = many(instances)
    require_equal(many(instances[::-1])[::-1], first, 1e-5)
    require_equal(many(instances), first, 0.0)
    assert relative_error(as_arrays(instances), before) == 0.0
    require_equal(first, [model(one) for one in instances], 1e-4)


@pytest.mark.parametrize("name", INSTANCE_ZOO)
def test_the_seed_says_it_all(name: str) -> None:
    runs = []
    for seed in (3, 3, 4):
        model, instances = build(name, "small", 5, seed)
        runs.append(as_arrays([model(one) for one in instances]))
    assert relative_error(runs[0], runs[1]) == 0.0
    assert relative_error(runs[0], runs[2]) > 0.0


@pytest.mark.parametrize(("name", "size"), [pair for pair in SIZES if pair[0] != "berxit"])
def test_a_published_size_takes_the_steps_that_it_states(name: str, size: str) -> None:
    entry = INSTANCE_ZOO[name]
    count = 16 if name == "nestedrnn" else 64
    changes = {"words": 100} if name in ("treelstm", "mvrnn") else {}
    model, instances = build(name, size, count, **changes)
    results = by_hand(name, model, instances)
    lowest, highest = entry.mean_steps
    mean = statistics.mean(map(entry.steps, instances, results))
    assert lowest <= mean <= highest


@pytest.mark.parametrize("name", [name for name, entry in INSTANCE_ZOO.items() if entry.decides])
def test_decisions_differ_between_instances(name: str) -> None:
    model, instances = build(name, "small", 24)
    results = [model(one) for one in instances]
    # Structures and whole numbers, as they follow from decisions.
    decided = {
        str(
            [(path, leaf) for path, leaf in leaves(result) if isinstance(leaf, int)]
            or [path for path, _ in leaves(result)]
        )
        for result in results
    }
    assert len(decided) > 3


@pytest.mark.parametrize("name", INSTANCE_ZOO)
def test_work_grows_with_the_batch_and_is_none_without_instances(name: str) -> None:
    entry = INSTANCE_ZOO[name]
    config = entry.presets["small"]
    model, instances = build(name, "small", 8)
    results = [model(one) for one in instances]

    def flops(count: int) -> float:
        return sum(p.flops for p in entry.work(config, instances[:count], results[:count]))

    assert flops(0) == 0
    assert 0 < flops(4) < flops(8)
    assert all(phase.bytes > 0 for phase in entry.work(config, instances, results))


def test_multiplications_of_the_published_tree_lstm() -> None:
    tree = Node(Node(None, None, 0), Node(None, None, 1), 2)
    config = INSTANCE_ZOO["treelstm"].presets["256"]
    work = INSTANCE_ZOO["treelstm"].work(config, [tree], [None])
    # Three gates of two leaves; four of the inner node; three and two forget gates from states.
    assert sum(phase.flops for phase in work) == 2 * 256**2 * (2 * 3 + 4 + 3 + 2)


def test_random_trees_have_the_statistics_of_the_treebank() -> None:
    trees = [folded(shape, leaf, inner) for shape in tree_shapes(400, 0)]
    assert statistics.mean(map(leaf_count, trees)) == pytest.approx(19.3, abs=1.5)
    assert statistics.mean(height(tree) + 1 for tree in trees) == pytest.approx(10.9, abs=1.0)
    assert max(map(leaf_count, trees)) <= 49


def leaf() -> Node:
    return Node(None, None, 0)


def inner(left: Node, right: Node) -> Node:
    return Node(left, right, 0)


def test_shapes_come_from_a_file_by_path_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shapes.txt"
    file.write_text("(..)\n(.(..))\n((..).)\n")
    drawn = tree_shapes(6, 1, str(file))
    assert sorted(drawn[:3]) == sorted(drawn[3:]) == sorted(file.read_text().split())
    monkeypatch.setenv(SHAPES_VARIABLE, str(file))
    assert tree_shapes(6, 1) == drawn
    config = replace(INSTANCE_ZOO["treelstm"].presets["small"], shapes=str(file))
    trees = INSTANCE_ZOO["treelstm"].instances(config, 3, 1)
    assert sorted(map(leaf_count, trees)) == [2, 3, 3]


def test_words_that_repeat_are_the_same_tensors_also_in_float64() -> None:
    _, trees = build("mvrnn", "small", 7)

    def words(tree: Any) -> list[Any]:
        return words(tree.left) + words(tree.right) if hasattr(tree, "left") else [tree]

    kept = [word for tree in trees for word in words(tree)]
    assert len({id(word) for word in kept}) < len(kept)
    wide = [word for tree in in_float64(trees) for word in words(tree)]
    assert len({id(word) for word in wide}) == len({id(word) for word in kept})


def test_expressions_of_numbers_stay_numbers() -> None:
    model = Evaluator(ExpressionConfig(hidden=4))
    two = Negation(Operation("-", Number(1.0), Number(3.0)))
    assert model(two) == 2.0
    assert model(Operation("*", two, Call("tanh", Number(0.0)))) == 0.0
    vector = torch.ones(4)
    assert torch.equal(model(Operation("*", two, Variable(vector))), 2 * vector)
    assert is_vector(Call("layer", two)) and not is_vector(two)
    with pytest.raises(ValueError, match="unknown operation '/'"):
        model(Operation("/", two, two))


def test_leaves_name_the_structure() -> None:
    data = {"a": [1, (None, "x")], "b": [], "c": Number(0.5)}
    assert list(leaves(data)) == [
        ("dict.a/list.0/", 1),
        ("dict.a/list.1/tuple.0/", None),
        ("dict.a/list.1/tuple.1/", "x"),
        ("dict.b/list()", None),
        ("dict.c/Number.value/", 0.5),
    ]
    assert relative_error(as_arrays([1, "x"]), as_arrays([1, "y"])) == float("inf")
    assert relative_error(as_arrays([1, 2]), as_arrays([1, 3])) == float("inf")
    assert relative_error(as_arrays([1, [2]]), as_arrays([[1], 2])) == float("inf")
    with pytest.raises(TypeError, match="set is no data of an instance"):
        list(leaves({1}))


def test_tensors_that_are_shared_are_shared_in_a_copy() -> None:
    x = torch.ones(2)
    first, (second, third) = with_tensors([x, (x, 3)], lambda tensor: tensor + 1)
    assert first is second and torch.equal(first, x + 1) and third == 3
