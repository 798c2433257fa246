"""Fast programs of packages that the normal installation has; `make outside` runs all."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict

import pytest
import torch

from tests.outside.judge import judged
from tests.outside.registry import programs
from tests.outside.run import BEGIN, END, JOURNAL, Row, kept, table, write
from tests.sampling import sampled

FAST = [name for name, program in programs().items() if program.fast]


def test_ten_programs_are_fast() -> None:
    assert len(FAST) == 10
    assert len({programs()[name].field for name in FAST}) > 2


@pytest.fixture(autouse=True)
def _dynamo_is_left_alone() -> Generator[None]:
    """The programs of torchvision turn it off."""
    before = torch._dynamo.config.disable
    yield
    torch._dynamo.config.disable = before


@pytest.mark.parametrize("name", sampled(FAST, ["box_losses", "logits_rules"]))
def test_fast_programs(name: str) -> None:
    program = programs()[name]
    pytest.importorskip(program.package)
    row = judged(program, "interpreter", fallback=False)
    assert row.verdict == "right", row.reason


def test_the_table_of_the_page(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    name = FAST[0]
    known = programs()
    row = Row(name, "right", "", 1.5)
    write(page, table(known, [row]))
    assert page.read_text() == (
        f"before\n{BEGIN}\n1 programs: 1 right.\n\n| program | package | verdict | why | "
        "first call, s |\n|---|---|---|---|---|\n"
        f"| {name} | {known[name].package} | right |  | 1.5 |\n{END}\nafter\n"
    )


def test_the_folder_keeps_the_last_row_of_each_program(tmp_path) -> None:
    assert kept(tmp_path) == {}
    rows = [Row("one", "refused", "why"), Row("other", "right"), Row("one", "right", "", 2.0)]
    lines = [json.dumps(asdict(row)) + "\n" for row in rows]
    (tmp_path / JOURNAL).write_text("".join(lines))
    assert kept(tmp_path) == {"other": rows[1], "one": rows[2]}
