"""`Compiled.save` and `stretto.load`: what comes back is what was saved, without its source."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import stretto
from stretto.errors import LoadError, RunError, SaveError
from stretto.frontends.python import Captured


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def interpreted(function: Any, **settings: Any) -> stretto.Compiled:
    return stretto.compile(function, backend="interpreter", **settings)


def loaded(compiled: stretto.Compiled, folder: Path, **settings: Any) -> stretto.Loaded:
    path = folder / "function.stretto"
    compiled.save(path)
    return stretto.load(path, **{"backend": "interpreter", **settings})


def check_equal(found: Any, expected: Any) -> None:
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    for one, other in pairs:
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, equal_nan=True)
        else:
            assert type(one) is type(other)
            assert one == (pytest.approx(other) if isinstance(other, float) else other)


class Doubling(nn.Module):
    """Control flow, a buffer and an argument that change, keywords, results of several kinds."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, least: float, *, mask: Any = None, scale: Any = None) -> Any:
        self.count += 1
        y = torch.relu(self.linear(x))
        while y.sum() < least:
            y = y * 2 + 1
        y = y if mask is None else y * mask["a"]
        y = y if scale is None else y * scale
        x.add_(1)
        return {"y": y, 2: (x.shape[0], None, "text", 0.5)}, [y[0], y.sum().item()], self.count


@pytest.mark.whole
@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_a_module_comes_back(tmp_path: Path, backend: str) -> None:
    eager = Doubling().eval()
    module = copy.deepcopy(eager)
    fast = stretto.compile(module, backend=backend)
    mask = {"a": torch.rand(4)}
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((torch.randn(3, 4), 10.0), {}),
        ((torch.randn(3, 4), 20.0), {}),
        ((torch.randn(3, 4), 10.0), {"scale": 3, "mask": mask}),
    ]
    for args, kwargs in calls:
        fast(*args, **kwargs)
    module.count.zero_()
    again = loaded(fast, tmp_path, backend=backend)
    for args, kwargs in calls:
        given = copy.deepcopy(args)
        found = again(*args, **dict(reversed(kwargs.items())))
        check_equal(found, eager(*given, **kwargs))
        check_equal(args, given)
    assert again.tensors["count"].item() == 3
    assert len(again.signatures) == 3
    assert again.signatures[0].stages.backend == backend


def test_what_changed_is_saved_again(tmp_path: Path) -> None:
    module = Doubling().eval()
    fast = interpreted(module, example_inputs=(torch.randn(2, 4), 1.0))
    first = loaded(fast, tmp_path)
    first(torch.randn(2, 4), 1.0)
    assert first.tensors["count"].item() == 1
    first.tensors["linear.bias"].fill_(7)
    first.save(tmp_path / "second")
    second = stretto.load(tmp_path / "second", backend="interpreter")
    x = torch.randn(2, 4)
    _, _, count = second(x.clone(), 1.0)
    assert count.item() == 2
    module.linear.bias.fill_(7)
    check_equal(second(x.clone(), 1.0)[0], module(x.clone(), 1.0)[0])


def test_weights_that_were_folded_are_folded_anew(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * (self.scale.exp() + 1)

    module = Scaled().eval()
    again = loaded(stretto.compile(module, (torch.ones(3),)), tmp_path, backend="cpu")
    for value in (2.0, 0.5):
        again.tensors["scale"].fill_(value)
        module.scale.fill_(value)
        check_equal(again(torch.ones(3)), module(torch.ones(3)))


@pytest.mark.whole
def test_another_process_needs_no_source(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text(
        "from torch import nn\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))\n"
        "    def forward(self, x):\n"
        "        return self.layers(x).clamp(min=0)\n"
    )
    names: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), names)
    module = names["Model"]().eval()
    x = torch.randn(4, 3)
    stretto.compile(module, (x,)).save(tmp_path / "model.stretto")
    torch.save((x, module(x)), tmp_path / "expected.pt")
    source.unlink()
    script = (
        "import sys, torch, stretto\n"
        "x, expected = torch.load(sys.argv[2])\n"
        "torch.testing.assert_close(stretto.load(sys.argv[1])(x), expected)\n"
    )
    files = [str(tmp_path / name) for name in ("model.stretto", "expected.pt")]
    subprocess.run([sys.executable, "-c", script, *files], check=True, timeout=300)


# ---- sizes -----------------------------------------------------------------------------------
def rows(x: Tensor, n: int, *, by: Tensor) -> Any:
    if x.shape[0] % 2 == 0:
        return x.view(2, -1).sum(1) * n, x.shape[0] + n
    return x.sum(0) * by.shape[0], n


def test_programs_for_many_sizes(tmp_path: Path) -> None:
    fast = interpreted(rows)
    for size, n in ((4, 3), (6, 5)):
        fast(torch.randn(size, 2), n, by=torch.ones(3))
    assert len(fast.signatures) == 2
    again = loaded(fast, tmp_path)
    for size, n in ((4, 3), (6, 5), (8, 2), (10, 7)):
        x, by = torch.randn(size, 2), torch.ones(3)
        check_equal(again(x, n, by=by), rows(x, n, by=by))
    with pytest.raises(RunError, match=r"sizes are others than it takes: .*% 2"):
        again(torch.randn(5, 2), 3, by=torch.ones(3))
    with pytest.raises(RunError, match=r"'by' is float32\[3, 1\] on cpu, and it takes"):
        again(torch.randn(4, 2), 3, by=torch.ones(3, 1))


def selected(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0] * 2


def test_sizes_that_data_decide_within_a_size(tmp_path: Path) -> None:
    fast = interpreted(selected)
    for size in (4, 6):
        fast(torch.randn(size, 2))
    again = loaded(fast, tmp_path)
    for size in (5, 1, 40):
        x = torch.randn(size, 2)
        check_equal(again(x), selected(x))


# ---- what files hold -------------------------------------------------------------------------
class Pair(NamedTuple):
    first: Tensor
    second: int


@dataclass
class Record:
    values: Tensor
    name: str


class Table(OrderedDict[str, Any]):
    pass


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x, [x, {"a": (x + 1, None)}], True, 3, 2.5, "text"),
        lambda x: (float("nan"), float("inf"), 1e-300, 1 - 2j, slice(1, None), range(3)),
        lambda x: (torch.float16, x.shape, x.device, OrderedDict(b=x, a=x)),
        lambda x: torch.max(x, 0),
        lambda x: x if x.sum() > 0 else x * 2,
        lambda x: (),
    ],
)
def test_results_of_all_kinds(function: Any, tmp_path: Path) -> None:
    x = torch.randn(3, 2)
    again = loaded(interpreted(function, example_inputs=(x,)), tmp_path)
    found, expected = again(x), function(x)
    if isinstance(expected, tuple) and expected and isinstance(expected[0], float):
        assert repr(found) == repr(expected)
    else:
        check_equal(found, expected)


def test_classes_are_those_that_the_caller_passes(tmp_path: Path) -> None:
    def function(x: Tensor) -> Any:
        return Pair(x + 1, 2), Record(x * 2, "name"), Table(a=x)

    x = torch.randn(2)
    fast = interpreted(function, example_inputs=(x,))
    with pytest.raises(LoadError, match=r"of class .*Pair, which stretto.load does not import"):
        loaded(fast, tmp_path)
    pair, record, table = loaded(fast, tmp_path, classes=[Pair, Record, Table])(x)
    assert isinstance(pair, Pair) and isinstance(table, Table) and isinstance(record, Record)
    check_equal((pair[0], record.values, table["a"]), (x + 1, x * 2, x))


def test_arguments_in_containers(tmp_path: Path) -> None:
    def function(data: dict[str, Any], pairs: list[Any], flag: bool) -> Tensor:
        return data["a"] * 2 + pairs[0][1] if flag else data["a"]

    data, pairs = {"a": torch.ones(2), "n": None}, [(1.5, torch.ones(2))]
    again = loaded(interpreted(function, example_inputs=(data, pairs, True)), tmp_path)
    check_equal(again(data, pairs, True), torch.full((2,), 3.0))
    with pytest.raises(RunError, match=r"'pairs\[0\]\[1\]' is float32\[3\] on cpu"):
        again(data, [(1.5, torch.ones(3))], True)
    with pytest.raises(RunError, match="'flag' is False, and it takes True"):
        again(data, pairs, False)
    with pytest.raises(RunError, match=r"the arguments are \(dict of a, list of 1, bool\)"):
        again({"a": torch.ones(2)}, pairs, True)


def test_checks_raise_with_their_lines(tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        if x.sum() < 0:
            raise ValueError("below zero")
        return x

    again = loaded(interpreted(function, example_inputs=(torch.ones(2),)), tmp_path)
    with pytest.raises(ValueError, match="below zero") as caught:
        again(-torch.ones(2))
    assert isinstance(caught.value, RunError)
    assert caught.value.location is not None and caught.value.location.file == __file__


def test_shared_memory_is_part_of_a_signature(tmp_path: Path) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    again = loaded(interpreted(function, example_inputs=(torch.ones(2), torch.ones(2))), tmp_path)
    check_equal(again(torch.ones(2), torch.ones(2)), torch.full((2,), 3.0))
    x = torch.ones(2)
    with pytest.raises(RunError, match="their shared memory"):
        again(x, x)


def test_one_mode_of_a_module_is_saved(tmp_path: Path) -> None:
    module = nn.BatchNorm1d(3)
    fast = interpreted(module)
    x = torch.randn(4, 3)
    for training in (True, False):
        fast.train(training)
        fast(x)
    again = loaded(fast, tmp_path)
    check_equal(again(x), module.eval()(x))
    assert len(again.signatures) == 1


def test_explain_and_text(tmp_path: Path) -> None:
    again = loaded(interpreted(Doubling().eval(), example_inputs=(torch.ones(2, 4), 1.0)), tmp_path)
    text = again.explain()
    assert text.startswith("Doubling: loaded, 1 signature\nsaved by stretto ")
    assert "argument, written back after each call" in text
    assert repr(again) == "<stretto.load of Doubling: 1 signature>"
    assert again.built_with["machine"] == "interpreter"
    with safe_open(tmp_path / "function.stretto", framework="pt") as file:
        assert file.metadata()["program.0"].startswith("func @main(")
        assert {*file.keys()} == {"linear.weight", "linear.bias", "count"}


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Parameter(torch.randn(3, 3))
            self.other = nn.Parameter(self.one.t())
            self.register_buffer("row", self.one.data[1])

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.one + x @ self.other + self.row

    module, x = Tied().eval(), torch.randn(2, 3)
    check_equal(loaded(interpreted(module, example_inputs=(x,)), tmp_path)(x), module(x))

    def changes(x: Tensor) -> Tensor:
        whole[0].add_(x)
        return part * 2

    whole = torch.zeros(2, 3)
    part = torch.zeros(3)
    fast = interpreted(changes, example_inputs=(torch.ones(3),))
    part.set_(whole[1])
    with pytest.raises((SaveError, stretto.CaptureError), match=r"shares memory|changed since"):
        fast.save(tmp_path / "file")


def test_everything_that_is_captured_is_written() -> None:
    """A new field of these needs a place in the file, or a refusal. `windows` are for capturing
    once more, which a loaded function cannot; all tensors of a file are `differentiable`."""
    assert {item.name for item in fields(Captured)} == {
        "program", "inputs", "constants", "output", "mutations", "notes", "guards", "writes",
        "identical", "objects", "sizes", "windows", "journal", "differentiable",
        "replaces",
    }  # fmt: skip


# ---- what cannot be saved --------------------------------------------------------------------
def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="nothing has been compiled yet"):
        stretto.compile(torch.relu).save(tmp_path / "file")


def test_a_program_that_switches_grad_mode_on_is_not_saved(tmp_path: Path) -> None:
    fast = interpreted(torch.enable_grad()(lambda x: x * 2), example_inputs=(torch.ones(2),))
    with pytest.raises(SaveError, match="asks for gradients by itself"):
        fast.save(tmp_path / "file")


def test_a_program_with_a_handler_that_raises_is_not_saved(tmp_path: Path) -> None:
    def checked(x: torch.Tensor) -> torch.Tensor:
        try:
            return x[x.long().sum()]
        except IndexError:
            raise ValueError("no such item") from None

    fast = interpreted(checked, example_inputs=(torch.tensor([1.0, 0.0]),))
    with pytest.raises(SaveError, match="handlers that raise another exception"):
        fast.save(tmp_path / "file")


def test_a_stale_program_is_not_saved(tmp_path: Path) -> None:
    factor = [2.0]
    fast = interpreted(lambda x: x * factor[0], example_inputs=(torch.ones(2),))
    factor[0] = 3.0
    with pytest.raises(SaveError, match="has changed since"):
        fast.save(tmp_path / "file")
    fast(torch.ones(2))
    check_equal(loaded(fast, tmp_path)(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize(
    "says",
    [
        lambda x: (print(x), x)[1],
        lambda x: [1.0, 2.0][{"0": 0, "1": 1}[str(int(x[0]))]] * x,
    ],
)
def test_what_python_says_is_not_saved(says: Any, tmp_path: Path) -> None:
    fast = interpreted(says, example_inputs=(torch.ones(2),))
    with pytest.raises(SaveError, match="shows values of the run, or prints or logs"):
        fast.save(tmp_path / "file")


def test_objects_are_not_saved(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def remembers(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    path = tmp_path / "file"
    fast = interpreted(remembers, example_inputs=(torch.ones(2),))
    with pytest.raises(SaveError, match="reads or changes attributes or items of objects"):
        fast.save(path)
    fast = interpreted(lambda x, y: x, example_inputs=(torch.ones(2), object()))
    with pytest.raises(SaveError, match="an argument is of class builtins.object"):
        fast.save(path)
    fast = interpreted(lambda x: (x, sys), example_inputs=(torch.ones(2),))
    with pytest.raises(SaveError, match="a result is of class builtins.module"):
        fast.save(path)
    assert not path.exists()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    fast = interpreted(torch.relu, example_inputs=(torch.ones(2),))
    with pytest.raises(SaveError, match="No such file or directory"):
        fast.save(tmp_path / "missing" / "file")


def test_in_inference_mode(tmp_path: Path) -> None:
    module, x = Doubling().eval(), torch.ones(2, 4)
    fast = interpreted(module, example_inputs=(x.clone(), 1.0))
    with torch.inference_mode():
        again = loaded(fast, tmp_path)
        check_equal(again(x.clone(), 1.0), module(x.clone(), 1.0))


# ---- calls -----------------------------------------------------------------------------------
def test_calls_that_want_the_original(tmp_path: Path) -> None:
    again = loaded(interpreted(torch.relu, example_inputs=(torch.ones(2),)), tmp_path)
    with (
        torch.enable_grad(),
        pytest.raises(RunError, match="an input or a tensor of the file requires grad"),
    ):
        again(torch.ones(2, requires_grad=True))
    with pytest.raises(RunError, match="called within torch.func"):
        torch.vmap(again)(torch.ones(3, 2))
    with pytest.raises(RunError, match=r"the arguments are \(\), and it takes \(tensor\)"):
        again()


def test_inside_of_torch_compile(tmp_path: Path) -> None:
    again = loaded(interpreted(torch.relu, example_inputs=(torch.ones(2),)), tmp_path)
    torch._dynamo.reset()
    fast = torch.compile(lambda x: again(x - 1) + 1, backend="eager")
    check_equal(fast(torch.ones(2)), torch.ones(2))
