"""Programs with kernels of users against eager, on one unit and many, cut as finely as can be."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto import Options
from stretto.device.user_kernels import kernel_for
from stretto.machines.cpu.machine import CpuMachine
from stretto.machines.registry import default_machine, registered
from tests.extending.operators import fast_gelu, register, rotary, row_sums, smooth
from tests.sampling import sampled

Program = Callable[..., Any]


@pytest.fixture(autouse=True)
def _kernels() -> Generator[None]:
    register()
    machine = default_machine()
    assert isinstance(machine, CpuMachine)
    with registered(replace(machine, name="spread", costs=machine.costs.spread())):
        yield


def table(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    angles = torch.arange(rows)[:, None] / 10000 ** (torch.arange(columns) / columns)
    return angles.cos(), angles.sin()


def between(x: Tensor, w: Tensor) -> Tensor:
    return fast_gelu(x @ w + 1).relu() * 2 + fast_gelu(x @ w)


def alone(x: Tensor) -> Tensor:
    return fast_gelu(x)


def chain(x: Tensor) -> Tensor:
    return smooth(fast_gelu(smooth(x, 0.5)), 2.0, 3, True)


def views(x: Tensor) -> tuple[Tensor, ...]:
    """Slices, steps, transposed and expanded tensors, and one whose elements no strides find."""
    return (
        fast_gelu(x[1:, 2:-1]),
        fast_gelu(x.t()),
        fast_gelu(x[:, ::2])[1:],
        fast_gelu(x[0].expand(3, x.size(1))),
        smooth(x.t()[2:], 0.25),
        fast_gelu(x.flip(1)),
        fast_gelu((x + 1).t().reshape(-1)),
        fast_gelu(x[2, 1:2]),
    )


def loop(x: Tensor, w: Tensor) -> Tensor:
    for step in range(20):
        x = fast_gelu(x @ w) / (step + 1)
    return x


def search(x: Tensor, w: Tensor) -> Tensor:
    while x.abs().sum() > 1:
        if x.sum() > 0:
            x = fast_gelu(x @ w) * 0.25
        else:
            x = smooth(x.repeat(1, 2), 0.1)[:, : x.size(1)] * 0.5
    return x


def descend(x: Tensor, depth: int) -> Tensor:
    if depth == 0:
        return fast_gelu(x)
    for row in range(2):
        x = x + fast_gelu(x) * row
    return descend(x * 0.5, depth - 1) + descend(fast_gelu(x), depth - 1)


def recursion(x: Tensor, n: Tensor) -> Tensor:
    out = x
    for _ in range(int(n)):
        if out.sum() > 0:
            out = out - descend(out, 2)
        out = out + 1
    return out


def attention(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads are views of one product, which rotary gets with strides."""
    b, s, _ = x.shape
    q, k = (x * scale for scale in (1.0, 2.0))
    q, k = (part.view(b, s, 2, -1).transpose(1, 2) for part in (q, k))
    scores = rotary(q, cos, sin) @ rotary(k, cos, sin).transpose(-1, -2)
    return scores.softmax(-1)


def numbers(x: Tensor) -> Tensor:
    """Numbers of the source, and the size of a tensor."""
    return smooth(x, 0.1, x.size(0), True) + smooth(x, -2.7, x.size(1), x.size(0) == 3)


def integers(x: Tensor) -> Tensor:
    return row_sums(x.int()) + row_sums(x.int()[:, 1:] * 2)


def into_a_list(x: Tensor) -> Tensor:
    rows = [fast_gelu(row) for row in x]
    return torch.stack(rows[::-1])


def in_place(x: Tensor) -> Tensor:
    """What is overwritten while a kernel still needs it."""
    state = x.clone()
    for row in range(x.size(0)):
        state[row] = fast_gelu(state[-1 - row])
        state[:, 1:3] = fast_gelu(state)[:, 0:2]
    return state


torch.manual_seed(0)
CASES: dict[str, tuple[Program, list[tuple[Any, ...]]]] = {
    "between": (between, [(torch.randn(33, 19), torch.randn(19, 70))]),
    "alone": (
        alone,
        [(torch.randn(shape),) for shape in ((), (1,), (0,), (3, 0), (1, 1), (37,), (2, 3, 5, 7))],
    ),
    "chain": (chain, [(torch.randn(shape),) for shape in ((7,), (3, 4), (5, 37), (0, 9))]),
    "views": (views, [(torch.randn(7, 12),)]),
    "loop": (loop, [(torch.randn(3, 17), torch.randn(17, 17) / 4)]),
    "search": (search, [(torch.randn(2, 16) * s, torch.randn(16, 16) / 5) for s in (0, 2)]),
    "recursion": (recursion, [(torch.randn(4, 9), torch.tensor(n)) for n in (0, 3)]),
    "attention": (attention, [(torch.randn(2, 11, 24), *table(11, 6))]),
    "numbers": (numbers, [(torch.randn(3, 9),)]),
    "integers": (integers, [(torch.randn(9, 5) * 9,)]),
    "into_a_list": (into_a_list, [(torch.randn(5, 6),)]),
    "in_place": (in_place, [(torch.randn(5, 8),)]),
}


@pytest.mark.parametrize(
    ("name", "threads"),
    sampled([(n, t) for n in CASES for t in (1, 2, 3)], [(n, 3) for n in CASES]),
)
def test_programs(name: str, threads: int) -> None:
    program, calls = CASES[name]
    compiled = stretto.compile(program, backend="spread", options=Options(threads=threads))
    for arguments in calls:
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(*arguments), program(*arguments), rtol=1e-4, atol=1e-5
            )


def sizes(x: Tensor, cos: Tensor, sin: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (
        rotary(x, cos, sin) * 2,
        fast_gelu(x[0] @ w),
        smooth(x, 0.5),
        fast_gelu(x.transpose(0, 1)),
    )


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 3])
def test_symbolic_sizes(threads: int) -> None:
    """One program for all sizes, of which no tile divides most."""
    compiled = stretto.compile(
        sizes, backend="spread", dynamic=True, options=Options(threads=threads)
    )
    w = torch.randn(8, 5)
    for batch, rows in ((3, 10), (4, 37), (5, 2), (130, 3)):
        given = (torch.randn(batch, rows, 8), *table(rows, 4), w)
        for found, wanted in zip(compiled(*given), sizes(*given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(compiled.signatures) == 1
    stages = compiled.signatures[0].stages
    assert stages.device is not None
    assert not [k.call for k in stages.device.kernels if k.call is not None]


def library_calls(compiled: Any) -> list[str]:
    """The reasons of the library calls of a program."""
    device = compiled.signatures[0].stages.device
    return [kernel.call.reason for kernel in device.kernels if kernel.call is not None]


@pytest.mark.parametrize(
    ("backend", "x", "reason"),
    [
        ("cpu", torch.randn(5), None),
        ("cpu", torch.randn(5).half(), "declared for torch.float32 and torch.float64"),
        ("cpu", torch.randn(()), "another number of dims"),
        ("emulator", torch.randn(5), "no source for this machine"),
    ],
)
def test_library_calls(backend: str, x: Tensor, reason: str | None) -> None:
    compiled = stretto.compile(alone, backend=backend, options=Options(threads=2))
    torch.testing.assert_close(compiled(x), alone(x), rtol=1e-4, atol=1e-5)
    found = library_calls(compiled)
    assert (not found) if reason is None else (len(found) == 1 and reason in found[0])
    assert reason is None or reason in compiled.explain()


def test_a_later_kernel_counts_from_then_on() -> None:
    x = torch.randn(9)
    first = stretto.compile(alone)
    first(x)
    cpp = "template <class X, class Out> void fast_gelu(stretto::Range i, X x, Out out)"
    body = "{ for (auto k = i.begin; k < i.end; ++k) out(k) = 7; }"
    stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", cpp=f"{cpp} {body}")
    torch.testing.assert_close(first(x), alone(x), rtol=1e-4, atol=1e-5)
    assert stretto.compile(alone)(x).tolist() == [7.0] * 9


def test_neighbours_are_in_the_launch() -> None:
    compiled = stretto.compile(between)
    compiled(torch.randn(33, 19), torch.randn(19, 70))
    assert library_calls(compiled) == []
    assert "user" in compiled.explain()


def one_instance(x: Tensor) -> Tensor:
    total = fast_gelu(x)
    while total.sum() < 3:
        total = fast_gelu(total + 1)
    return total


def test_batches() -> None:
    """An instance of a batch runs the operator."""
    instances = [torch.randn(4) for _ in range(5)]
    many = stretto.batch(one_instance)
    for found, x in zip(many(instances), instances, strict=True):
        torch.testing.assert_close(found, one_instance(x), rtol=1e-4, atol=1e-5)
    assert list(many([])) == []


def test_saved(tmp_path: Path) -> None:
    """A file has the digest of a kernel; the programs that are loaded run the kernel."""
    x, file = torch.randn(9), tmp_path / "f.safetensors"
    compiled = stretto.compile(alone)
    compiled(x)
    compiled.save(file)
    loaded = stretto.load(file, namespaces=["stretto_test"])
    torch.testing.assert_close(loaded(x), alone(x), rtol=1e-4, atol=1e-5)
    kernel = kernel_for("stretto_test.fast_gelu.default")
    assert kernel is not None
    assert loaded.built_with["kernels"] == {kernel.target: kernel.digest}
