"""`explain()`: each thing that it has to tell. The whole text is in `tests/golden/`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import stretto
from stretto import text as text_module
from tests.tools.masks import mask_times
from tests.tools.programs import DECAY, DEPTH, blocks, decay, depth, inverted, until_small

OPTIONS = stretto.Options(threads=2)


def explained(
    function: Callable[..., object],
    *inputs: torch.Tensor,
    backend: str = "emulator",
    options: stretto.Options = OPTIONS,
) -> str:
    return stretto.compile(function, inputs, backend=backend, options=options).explain()


def test_the_same_program_gives_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    mask_times(monkeypatch)
    assert explained(decay, *DECAY) == explained(decay, *DECAY)


def test_nothing_compiled_yet() -> None:
    assert stretto.compile(decay).explain() == (
        "decay: nothing compiled yet; call it once, or give stretto.compile its inputs\n"
    )


def test_signatures_and_calls_are_counted() -> None:
    fast = stretto.compile(until_small, backend="interpreter")
    for size in (3, 4, 4):
        fast(torch.full((size,), 5.0))
    text = fast.explain()
    assert text.startswith("until_small: 2 signatures compiled\n")
    assert "signature 1: backend interpreter, 1 call\n" in text
    assert "signature 2: backend interpreter, 2 calls\n" in text
    assert "f32[3]" in text and "f32[s0]" in text


def _added(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0] + torch.ones(2)


def test_calls_that_ran_in_python_are_counted() -> None:
    compiled: Any = stretto.compile(_added, backend="emulator")
    for values in ([1.0, 2.0], [1.0, -1.0], [3.0, 4.0]):
        compiled(torch.tensor(values))
    assert "3 calls, 1 of them in Python" in compiled.explain()


def test_it_says_for_which_sizes_a_program_was_verified() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w) @ w

    fast = stretto.compile(function, backend="emulator", dynamic=True, options=OPTIONS)
    fast(torch.randn(5, 4), torch.randn(4, 4))
    text = fast.explain()
    assert "verified           for 0 <= s0" in text
    assert "accesses in range" in text
    assert "and by sizes " in text


def test_a_module_goes_by_its_class() -> None:
    module = torch.nn.Linear(3, 2).eval()
    assert stretto.compile(module).explain().startswith("Linear: nothing compiled yet")


def test_the_build_cache_is_hit_or_missed(tmp_path: Path) -> None:
    options = stretto.Options(threads=1, cache_dir=tmp_path)
    first = explained(decay, *DECAY, backend="cpu", options=options)
    second = explained(decay, *DECAY, backend="cpu", options=options)
    assert "build cache        miss, built now" in first
    assert "build cache        hit" in second


def test_a_loop_by_value_and_its_line() -> None:
    text = explained(until_small, torch.full((4,), 9.0))
    (line,) = [line for line in text.splitlines() if "while   by value" in line]
    assert line.rstrip().endswith("while x.abs().max() > 1.0:")
    assert "tasks per call: by value" in text


def test_recursion_shows_its_frame() -> None:
    text = explained(depth, *DEPTH)
    assert "depth (recursive)" in text
    assert "call depth" in text
    assert "recursion frame    depth:" in text
    assert "activations by value" in text


def test_a_library_call_has_its_reason() -> None:
    text = explained(inverted, 2 * torch.eye(3))
    assert "library calls (run by torch inside the launch)" in text
    (line,) = [line for line in text.splitlines() if "linalg_inv" in line and "aten" in line]
    assert "no native lowering" in line
    assert "programs.py:" in line


def test_branches_that_look_the_same_are_one_row() -> None:
    text = explained(blocks, torch.ones(4), torch.tensor([True, False, True]))
    assert "if (3 in a row)" in text


def test_a_mutated_buffer_is_named() -> None:
    class Counter(torch.nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)
            return self.total + 1

    text = explained(Counter().eval(), torch.ones(2))
    (line,) = [line for line in text.splitlines() if "buffer" in line]
    assert line.split()[0] == "total"
    assert "written back after each call" in line


def test_inputs_go_by_the_users_names() -> None:
    def f(x: torch.Tensor, *rest: torch.Tensor, state: tuple[Any, ...], **more: Any) -> Any:
        return x + rest[0] + state[1]["h"] + more["z"]

    fast = stretto.compile(f, backend="interpreter")
    fast(*torch.ones(2, 3), state=(2, {"h": torch.ones(3)}), z=torch.ones(3))
    lines = fast.explain().splitlines()
    start = lines.index("  inputs")
    names = [line.split()[0] for line in lines[start + 3 : start + 7]]
    assert names == ["x", "rest[0]", "state[1]['h']", "z"]


def test_a_long_table_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MOST_ROWS", 2)
    text = explained(decay, *DECAY)
    assert "... and " in text and " more rows" in text


def test_paths_lose_their_folders() -> None:
    text = explained(decay, *DECAY)
    assert "programs.py:" in text
    assert str(Path(__file__).parent) not in text
