"""`python -O` leaves out assertions: no behaviour of the package may depend on them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "stretto"
CHANGES = frozenset(
    (
        "add", "append", "clear", "discard", "emit", "enter", "extend", "insert", "next", "pop",
        "popitem", "popleft", "register", "remove", "setdefault", "update", "write",
    )
)  # fmt: skip
"""Names of functions with side effects."""

PROGRAM = """
import torch, stretto
assert False, "assertions are on"

def fall(x, depth):
    return x if depth == 0 else fall(x * 0.5, depth - 1) + 1

def program(x):
    rows = []
    assert x.sum() > 1e9, "a test of the user's"
    while x.abs().max() > 0.5:
        x = x * 0.5
        rows.append(x)
    for row in x:
        if row.sum() > 0:
            rows.append(row * torch.ones(len(x), 1))
    return torch.stack(rows), fall(x, 3), torch.softmax(x @ x.t(), -1)

def instance(x):
    assert x.sum() > 1e9
    return x * 2 if x.sum() > 0 else x

x = torch.linspace(-1, 2, 8).reshape(2, 4)
for backend in ("cpu", "emulator", "interpreter"):
    fast = stretto.compile(program, backend=backend)
    for given in (x, -x, x * 9, torch.cat([x, x * 3])):
        for got, wanted in zip(fast(given), program(given)):
            if not torch.allclose(got, wanted):
                raise ValueError((backend, got, wanted))
rows = stretto.batch(instance, backend="interpreter")([x, -x])
if not all(torch.equal(got, instance(given)) for got, given in zip(rows, [x, -x])):
    raise ValueError(rows)
print("equal")
"""


def changing(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of assertions that have a side effect."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assert):
            continue
        for part in ast.walk(node):
            match part:
                case ast.NamedExpr() | ast.Yield() | ast.YieldFrom() | ast.Await():
                    yield node.lineno
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                    if name in CHANGES or name.endswith("_"):
                        yield node.lineno
                case _:
                    pass


def test_no_assertion_changes_anything() -> None:
    for path in SOURCE.rglob("*.py"):
        lines = list(changing(ast.parse(path.read_text())))
        assert not lines, f"{path.relative_to(SOURCE)}: {lines}"


@pytest.mark.parametrize(
    "text", ["assert known.setdefault(name, it) is it", "assert (n := f(x)) > 0", "assert s.pop()"]
)
def test_such_assertions_are_found(text: str) -> None:
    assert list(changing(ast.parse(text))) == [1]


def test_programs_are_right_without_assertions(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-O", "-W", "ignore", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("equal\n"), done.stderr
