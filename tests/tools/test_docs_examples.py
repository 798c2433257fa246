"""The Python in README.md and docs/ runs as it stands, block after block of a page.

A block that is only a sketch is marked by an HTML comment `<!-- not run -->` on the line before it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "tutorial/start",
            "tutorial/control-flow",
            "tutorial/batch",
            "tutorial/gpu",
            "tutorial/deploy",
            "how-to/debugging",
            "how-to/gpu-graphs",
            "how-to/timelines",
            "how-to/torch-compile",
            "reference/options",
            "reference/python",
            "reference/signatures",
        )
    ),
]

_BLOCK = re.compile(r"(<!-- not run -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """(line, code) of each Python block that is to be run."""
    return [
        (text.count("\n", 0, found.start(2)) + 1, found[2])
        for found in _BLOCK.finditer(text)
        if not found[1]
    ]


@pytest.mark.whole
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page.read_text())
    assert found
    # A real file, because capture reads the source of functions; lines are those of the page.
    lines: list[str] = []
    for line, code in found:
        lines += [""] * (line - 1 - len(lines)) + code.splitlines()
    script = tmp_path / f"{page.stem}.py"
    script.write_text("\n".join(lines) + "\n")
    module = ModuleType("__example__")
    module.__file__ = str(script)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look there
    torch.manual_seed(0)
    exec(compile(script.read_text(), str(script), "exec"), vars(module))


def test_blocks_are_found_with_their_lines() -> None:
    text = "a\n```python\nx = 1\n```\n<!-- not run -->\n```python\ny\n```\n```\nz\n```\n"
    assert blocks(text) == [(3, "x = 1\n")]
