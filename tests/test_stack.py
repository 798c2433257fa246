"""Deep recursion while TorchDynamo evaluates Python's frames."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BODY = """
import sys
import torch
import torch._dynamo
from torch._C._dynamo.eval_frame import set_eval_frame
import stretto
from stretto import Options

def walk(x, n):
    return x if n <= 0 else walk(x * 0.5, n - 1) + 1

fast = stretto.compile(walk, backend=sys.argv[1], options=Options(check=True))
x = torch.ones(3)
set_eval_frame(False)
try:
    with torch.no_grad():
        print(fast(x, torch.tensor(20_000)).tolist())
except stretto.RunError as error:
    print(error.message)
set_eval_frame(None)
with torch.no_grad():
    print(fast(x, torch.tensor(4)).tolist())
"""


DEPTHS = """
from torch._C._dynamo.eval_frame import set_eval_frame
from stretto.stack import depth_within_stack
print(depth_within_stack(10**9))
set_eval_frame(False)
print(depth_within_stack(10**9) < 10**7, depth_within_stack(10))
set_eval_frame(None)
print(depth_within_stack(10**9))
"""


def test_python_itself_needs_no_stack() -> None:
    done = subprocess.run([sys.executable, "-c", DEPTHS], capture_output=True, text=True)
    assert done.stdout.split() == ["1000000000", "True", "10", "1000000000"], done.stderr


@pytest.mark.parametrize(
    ("backend", "found"),
    [
        ("interpreter", "recursion is deeper than Python's stack allows"),
        ("cpu", "[20000.0, 20000.0, 20000.0]"),
    ],
)
def test_the_process_lives(tmp_path: Path, backend: str, found: str) -> None:
    """The interpreter stops; a program of the cpu runs, and is not checked by the interpreter."""
    script = tmp_path / "deep.py"
    script.write_text(BODY)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), backend], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, last = done.stdout.splitlines()
    assert first == found and last == "[4.0625, 4.0625, 4.0625]", done.stdout
