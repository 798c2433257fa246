"""The Triton of small programs for five units, without the library that every module begins with.

To be read beside a `program.py` of `dump_dir`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stretto.machines.cuda.printer.triton_module import library_text, print_plan
from stretto.schedule.plan import make_plan
from tests.backends import built_cuda
from tests.golden import test_golden_cpp
from tests.support import program_of

PROGRAMS = {name: test_golden_cpp.PROGRAMS[name] for name in ("softmax", "lstm-loop", "recursion")}
PROGRAMS["library-call"] = """
    func @main(%x: f32[6, 40], %n: i64[]) -> (f32[6, 40]) {
      %y = for %i in (0, %n, 1) carry (%a = %x) {
        %t = aten.tanh.default(%a) : f32[6, 40]
        %s, %k = aten.sort.default(%t, 1, False) : f32[6, 40], i64[6, 40]
        %b = aten.add.Tensor(%s, %i) : f32[6, 40]
        yield %b
      } : f32[6, 40]
      return %y
    }
    """


@pytest.mark.parametrize("name", PROGRAMS)
def test_triton(name: str, golden: Callable[[str, str], None]) -> None:
    built = built_cuda(program_of(PROGRAMS[name]), units=5)
    parts: list[str] = []
    for number, source in enumerate(print_plan(make_plan(built.device))):
        parameters = [f"#   {p.name}: {p.type}, {p.kind}" for p in source.parameters]
        _, text = source.text.split(library_text())
        parts.append("\n".join([f"# launch {number}", *parameters, text.strip(), ""]))
    golden("\n\n".join(parts), f"{name}.triton")
