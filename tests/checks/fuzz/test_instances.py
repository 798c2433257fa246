"""Random programs for one instance: batches of them give what eager gives for each instance."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from checks.fuzz.instances import Instances, OneByOne
from checks.fuzz.outcome import FAILURES
from checks.fuzz.programs import random_programs
from checks.fuzz.records import DTYPES
from checks.fuzz.source import load
from checks.fuzz.trial import try_program
from checks.fuzz.writer import write
from tests.sampling import sampled

FOUND = (11, 215)
"""Once wrong: an index out of range was not noticed where nothing used the result."""


@pytest.mark.whole
@pytest.mark.parametrize("seed", sampled(range(12), (9, 11)))
def test_random_instances(seed: int) -> None:
    """The same as `python -m checks.fuzz --part instances`, which tries many more."""
    job = random_programs("instances", seed, 1, ("emulator", "cpu-1", "cpu-2"), 120.0)
    outcome = job.run(seed, lambda _: None)
    assert outcome.verdict not in FAILURES, f"{outcome}\n{outcome.detail}\n{outcome.source}"


def test_the_seed_says_it_all() -> None:
    assert write("instances", 5) == write("instances", 5) != write("instances", 6)


def test_data_of_all_styles_are_drawn() -> None:
    texts = [write("instances", seed) for seed in range(25)]
    for text in texts:
        ast.parse(text)
    text = "".join(texts)
    styles = ("@dataclass(eq=False)", "(frozen=True, eq=False)", "(NamedTuple)", "def __init__(")
    assert all(style in text for style in styles)
    words = ("list[", "tuple[", "dict[int", "| None", "str", "float", "match ", "def walk0")
    assert all(word in text for word in words)
    assert sum(f"torch.{dtype}, (" in text for dtype in DTYPES) > 4


HEAD = """
import torch

class Item:
    def __init__(self, values):
        self.values = values

def calls():
    items = [Item([1, 2]), Item([]), Item([3])]
    yield items, [0, 1, 0]
    yield items[::-1], [0, 0, 0]
"""


def verdict(body: str) -> tuple[str, str, str]:
    found = try_program(Instances("case", HEAD + body, machines=("interpreter",)).program())
    return found.verdict, found.reason, found.detail


def test_verdicts() -> None:
    assert verdict("def main(item, n):\n    return item.values[n], item\n")[0] == "equal"
    assert verdict("def main(item, n):\n    print(n)\n    return n\n")[0] == "refused"
    changed = "def main(item, n):\n    item.values.append(n)\n    return n\n"
    assert verdict(changed)[0] in ("wrong", "refused")


def test_shared_objects_count(tmp_path: Path) -> None:
    """A copy in the place of an object is another result."""
    text = HEAD + "def main(item, n):\n    return item, [item.values]\n"
    module = load(text, tmp_path)
    columns: Any = next(module.calls())
    same = OneByOne(module.main)(*columns)
    copied = OneByOne(lambda item, n: (item, [list(item.values)]))(*columns)
    with torch.no_grad():
        assert same[1] != copied[1]
