"""What the command line names: zoo models, and the user's own in files and modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from stretto.tools.models import find_model, zoo_module
from stretto.tools.names import UsageError, require_known

SOURCE = """
import torch

def double(x):
    return x * 2

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1

class Sized(Net):
    def __init__(self, size):
        super().__init__()

net = Net()
number = 3

def example_inputs():
    return (torch.ones(3),)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my_models.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_model_of_the_zoo() -> None:
    found = find_model("rae", small=True)
    assert found.name == "rae"
    assert isinstance(found.function, torch.nn.Module)
    assert found.inputs[0].shape == (9, 8)


@pytest.mark.parametrize(
    ("attribute", "result"), [("double", 2.0), ("net", 2.0), ("Net", 2.0), ("net.forward", 2.0)]
)
def test_a_function_module_or_class_of_a_file(file: str, attribute: str, result: float) -> None:
    found = find_model(f"{file}:{attribute}")
    assert torch.equal(found.function(*found.inputs), torch.full((3,), result))


def test_a_single_input_need_not_be_a_tuple(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(SOURCE.replace("(torch.ones(3),)", "torch.ones(3)"))
    assert len(find_model(f"{path}:double").inputs) == 1


def test_a_file_may_have_the_name_of_a_module_and_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_random.py").write_text("factor = 2\n")
    path = tmp_path / "random.py"
    path.write_text("from neighbour_of_random import factor\n" + SOURCE)
    find_model(f"{path}:double")
    import random

    assert hasattr(random, "Random")
    assert str(tmp_path) not in sys.path


def test_an_attribute_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_a_user.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    found = find_model("module_of_a_user:double")
    assert found.function(torch.ones(1)).item() == 2.0


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("seq2sec", "unknown model 'seq2sec'; did you mean 'seq2seq'? known are lstm, "),
        ("LSTM", "did you mean 'lstm'?"),
        ("zzz", "unknown model 'zzz'; known are lstm, "),
        ("gone.py:f", "there is no file gone.py"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("stretto.no_such:f", "there is no module 'stretto.no_such'"),
        ("FILE:dubble", "has no 'dubble'; did you mean 'double'? known are "),
        ("FILE:number", "is a int, not a function or module"),
        ("FILE:Sized", "Sized cannot be made without arguments"),
        ("FILE:", "has no ''"),
    ],
)
def test_what_cannot_be_found(file: str, target: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_model(target.replace("FILE", file))
    assert message in str(caught.value)


def test_a_file_without_inputs(tmp_path: Path) -> None:
    path = tmp_path / "bare.py"
    path.write_text("def f(x):\n    return x\n")
    with pytest.raises(UsageError, match=r"no function `example_inputs\(\)`; write one"):
        find_model(f"{path}:f")


def test_an_error_inside_the_users_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        find_model(f"{path}:f")


def test_the_zoo_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.tools.models.PACKAGES", ("no_zoo", "stretto._no_zoo"))
    with pytest.raises(UsageError, match="the model zoo is not installed"):
        zoo_module("models")


def test_known_names_pass() -> None:
    require_known("peer", ["a", "b"], ["b", "a"])
    with pytest.raises(UsageError, match="unknown peer 'c'; known are b, a"):
        require_known("peer", ["a", "c"], ["b", "a"])
