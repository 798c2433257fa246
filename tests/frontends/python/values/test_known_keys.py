"""Keys of dicts and items of sets that are numbers of tensors, known in every run, and of sizes."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import stretto
from stretto.errors import CaptureError

from ..checks import defined, identical

MADE = [
    "torch.zeros(4).sum().item()",
    "int(torch.zeros(2)[0])",
    "bool(torch.ones(1))",
    "len(x) - 3",
]
FORMS = """bag.add(v); bag.update([v]); bag.update({v}); bag.update((v, 1)); bag.discard(v)
bag |= {v}; bag.add((v, 1)); bag.symmetric_difference_update({v, 5})
bag.intersection_update([v]); bag -= {v, 7}; bag ^= {v}; bag &= {v, 7}
bag.difference_update((v,)); bag.remove(v); bag.update(map(abs, [v])); table[v] = 2
table[v, 2] = v; table.setdefault(v, 3); table.update({v: 1}); table.update([(v, 1)])
table.update([("n", len(x))]); table.update(n=v); table.pop(v, None); del table[v]
table |= {v: 2}; table.update(dict([(v, 3)])); table.get(v); table.update({k: 1 for k in [v]})
table.setdefault((v,), []).append(v); table[7] = {v}; table[7] = {v: v}; tally[v] += 1
tally.update([v]); tally.subtract([v, 1]); tally += Counter([v]); tally &= Counter([v])
tally |= Counter([v, 9]); order[v] = 1; order.move_to_end(v); order.update({v: 2})
lists[v].append(1); lists[v, 1] += [v]; place.bag = {v, 2}; place.bag.add(v); place.bag |= {v}
place.table[v] = v; place.table = {v: 1}; place.bag = frozenset([v]); place.bag = set([v, 2])
place.table = dict.fromkeys([v, 1], 2); place.bag = {v + 1, (v, v)}"""
TEXTS = [text.strip() for line in FORMS.splitlines() for text in line.split(";")]
CALLS = (4, 3, 4, 5)


def state() -> dict[str, Any]:
    return {
        "bag": {7}, "table": {7: 2, "a": 1}, "tally": Counter([7]),
        "order": OrderedDict({0: 1, 5: 2}), "lists": defaultdict(list),
        "place": SimpleNamespace(bag=set(), table={}),
    }  # fmt: skip


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.filterwarnings("ignore")
def test_state_with_known_keys(text: str, made: str, tmp_path: Path) -> None:
    names = "global bag, table, tally, order, lists, place"
    source = f"def program(x):\n    {names}\n    v = {made}\n    {text}\n    return x + 1\n"
    space = defined(source, {"torch": torch, "Counter": Counter, **state()}, tmp_path)
    function: Any = space["program"]
    compiled = stretto.compile(function, backend="interpreter")
    for size in CALLS:
        results = list[Any]()
        for one in (function, compiled):
            space.update(state())
            try:
                results.append(one(torch.ones(size)))
            except CaptureError:
                assert space["bag"] == {7} and space["table"] == {7: 2, "a": 1}
                return
            except KeyError:
                results.append(KeyError)
            results.append(copy.deepcopy([space[name] for name in state()]))
        wanted, before, found, after = results
        assert found is wanted or identical(found, wanted)
        assert identical([*before[:5], vars(before[5])], [*after[:5], vars(after[5])])


# These are not refused.
CAPTURED = ["bag.add(v)", "bag.update([v])", "table[v] = 2", "tally[v] += 1", "place.bag.add(v)"]


@pytest.mark.parametrize("text", CAPTURED)
def test_captured(text: str, tmp_path: Path) -> None:
    source = f"def program(x):\n    v = torch.zeros(4).sum().item()\n    {text}\n    return x + 1\n"
    space = defined(source, {"torch": torch, **state()}, tmp_path)
    compiled: Any = stretto.compile(space["program"], backend="interpreter")
    compiled(torch.ones(3))
    found = next(space[name] for name in ("place", "bag", "table", "tally") if name in text)
    holder = found.bag if isinstance(found, SimpleNamespace) else found
    assert any(type(key) is float and key == 0.0 for key in holder)
