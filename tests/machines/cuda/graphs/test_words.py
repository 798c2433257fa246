"""Operations on words: the kernel's PTX, the emulation and the fake driver do the same."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stretto.machines.cuda.graphs.words import PTX, Opcode, WordOperation, encoded, follow
from stretto.machines.cuda.toolchain import require_triton
from tests.machines.cuda.graphs.ptx import run_ptx

WORDS = 6
HANDLES = 3


def drawn(draw: random.Random, memory: torch.Tensor) -> list[WordOperation]:
    """Any operations on any words, some of them on one word twice."""
    place = [memory.data_ptr() + 8 * n for n in range(WORDS)]
    found: list[WordOperation] = []
    for _ in range(draw.randrange(12)):
        code = draw.choice(list(Opcode))
        a, b = draw.choice(place), draw.choice(place)
        if code in (Opcode.DECIDE, Opcode.REFUSE):
            a = draw.randrange(HANDLES)
        if code in (Opcode.STORE, Opcode.ADD):
            b = draw.randrange(-3, 4)
        found.append(WordOperation(code, a, b))
    return found


def by_ptx(words: list[int], control: int, decide: Callable[[int, bool], None]) -> None:
    table = torch.tensor([*words, 0], dtype=torch.int64)
    given = {"operations": table.data_ptr(), "count": len(words) // 3, "control": control}
    run_ptx(PTX, given, decide)


@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_does_what_the_emulation_does(seed: int) -> None:
    draw = random.Random(seed)
    control = torch.tensor([draw.choice((0, 0, 0, 5))])
    start = torch.tensor([draw.randrange(-2, 3) for _ in range(WORDS)])
    memory = start.clone()
    words = encoded(drawn(draw, memory))
    results: list[tuple[list[int], dict[int, bool]]] = []
    for run in (follow, by_ptx):
        memory.copy_(start)
        handles: dict[int, bool] = {}
        run(words, control.data_ptr(), handles.__setitem__)
        results.append((memory.tolist(), handles))
    assert results[0] == results[1]


def test_a_run_that_was_stopped_goes_into_no_body() -> None:
    stopped, word = torch.tensor([3]), torch.tensor([1])
    operations = [
        WordOperation(Opcode.TEST, word.data_ptr()),
        WordOperation(Opcode.DECIDE, 1),
        WordOperation(Opcode.REFUSE, 2),
    ]
    for run in (follow, by_ptx):
        handles: dict[int, bool] = {}
        run(encoded(operations), stopped.data_ptr(), handles.__setitem__)
        assert handles == {1: False, 2: False}


def test_a_loop_counts_as_a_range_does() -> None:
    for start, stop, step in ((0, 5, 1), (3, 3, 1), (7, 2, 1), (9, -2, -3), (2, 9, 4)):
        cells = torch.tensor([start, stop])
        index = torch.tensor([-1])
        at, last = cells.data_ptr(), cells.data_ptr() + 8
        test = [
            WordOperation(Opcode.LESS if step > 0 else Opcode.MORE, at, last),
            WordOperation(Opcode.MOVE, index.data_ptr(), at),
            WordOperation(Opcode.DECIDE, 1),
        ]
        free = torch.zeros(1, dtype=torch.int64)
        handles: dict[int, bool] = {}
        found: list[int] = []
        follow(encoded(test), free.data_ptr(), handles.__setitem__)
        while handles[1]:
            found.append(int(index))
            more = [WordOperation(Opcode.ADD, at, step), *test]
            follow(encoded(more), free.data_ptr(), handles.__setitem__)
        assert found == list(range(start, stop, step))
        assert int(index) == (found[-1] if found else -1)


def test_words_are_64_bits() -> None:
    big = torch.tensor([-(1 << 62), 0])
    operations = [WordOperation(Opcode.COPY, big.data_ptr() + 8, big.data_ptr())]
    free = ctypes.c_int64(0)
    for run in (follow, by_ptx):
        big[1] = 0
        run(encoded(operations), ctypes.addressof(free), lambda handle, value: None)
        assert int(big[1]) == -(1 << 62)


def test_the_kernel_is_what_the_assembler_takes(tmp_path: Path) -> None:
    require_triton()
    import triton

    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    assembler = next(iter(sorted(folder.glob("ptxas*"))), None) or shutil.which("ptxas")
    if assembler is None:
        pytest.skip("no ptxas is installed")
    source = tmp_path / "words.ptx"
    source.write_text(PTX)
    command = [assembler, "-arch=sm_90", "-c", source, "-o", tmp_path / "words.o"]
    subprocess.run(command, check=True, capture_output=True)
