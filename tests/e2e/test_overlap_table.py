"""Every kind of write, with every way in which its operands share memory, against eager PyTorch.

Eager raises for most operands that share memory in part, not for all. Where it raises, so must the
compiled function. Where eager computes, it gives the same, or refuses what depends on an order.
"""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from tests.sampling import sampled

VIEWS = {
    "same": ("y", "y"),
    "same_view": ("y.t()", "y.t()"),
    "another_view": ("y", "y.detach().view(4, 4)"),
    "rows": ("y[1:]", "y[:-1]"),
    "columns": ("y[:, 1:]", "y[:, :-1]"),
    "transposed": ("y", "y.t()"),
    "first_row": ("y", "y[:1]"),
    "first_column": ("y", "y[:, :1]"),
    "one_element": ("y", "y[0, 0]"),
    "one_row": ("y[1]", "y[1]"),
    "diagonal": ("y.diagonal()", "y[0]"),
    "expanded": ("y", "y[0, 0].expand(4, 4)"),
    "written_expanded": ("y[:1].expand(4, 4)", "y"),
    "halves": ("y[:2]", "y[2:]"),
    "interleaved": ("y[:, ::2]", "y[:, 1::2]"),
    "flat": ("y.flatten()[:6]", "y.flatten()[2:8]"),
    "empty": ("y[:0]", "y[1:1]"),
    "other_memory": ("y", "z"),
}
WRITES = (
    "{t}.add_({o})",
    "{t}.pow_({o})",
    "{t}.copy_({o})",
    "{t}.addcmul_({o}, {o})",
    "{t}.lerp_({o}, 0.5)",
    "{t}.atan2_({o})",
    "{t}.floor_divide_({o})",
    "{t}.fill_({o})",
    "{t}.masked_fill_({o} > 3, 1)",
    "{t}.masked_scatter_({o} > 3, {o})",
    "{t}.index_add_(0, torch.tensor([0]), {o})",
    "{t}.index_add_(0, torch.arange({t}.shape[0]), {o})",
    "{t}.index_copy_(0, torch.arange({t}.shape[0]).flip(0), {o})",
    "{t}.index_put_((torch.tensor([0, 1]),), {o}[:1], accumulate=True)",
    "{t}.scatter_add_(0, torch.zeros({o}.shape, dtype=torch.int64), {o})",
    "{t}[0] = {o}",
    "{t}[torch.tensor([0])] = {o}",
    "{t}[:] += {o}",
    "{t}.addr_({o}[0], {o}[0])",
    "{t}.cumsum_(0)",
    "torch.neg({o}, out={t})",
    "torch.mm({o}, {o}, out={t})",
    "torch.cat([{o}], out={t})",
    "torch.sum({o}, 0, out={t}[0])",
    "torch.gather({o}, 0, torch.zeros({o}.shape, dtype=torch.int64), out={t})",
    "torch.topk({o}, 1, out=({t}, torch.zeros(0, dtype=torch.int64)))",
)
SAMPLE = tuple(WRITES[place] for place in (0, 5, 9, 10, 12, 22, 23))
ARGUMENTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.arange(1.0, 17.0).view(4, 4) * 1,
    "transposed": lambda: (torch.arange(1.0, 17.0).view(4, 4) * 1).t(),
    "strided": lambda: torch.arange(1.0, 33.0).view(4, 8)[:, ::2],
    "integers": lambda: torch.arange(1, 17).view(4, 4) * 1,
}


def _function(write: str, target: str, operand: str) -> Callable[[Tensor, Tensor], Tensor]:
    line = write.format(t=target, o=operand)
    source = f"def f(y, z):\n    {line}\n    return y\n"
    name = f"<{line}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(source, name, "exec"), namespace)
    return namespace["f"]


def _outcome(function: Callable[..., Any], y: Tensor, z: Tensor) -> Tensor | Exception:
    try:
        return function(y, z)
    except (RuntimeError, IndexError, ZeroDivisionError, stretto.CaptureError) as error:
        return error


def _equal(wanted: Tensor, found: Tensor) -> bool:
    """Whether they agree in all but the last bits, in which torch's own functions of contiguous
    and of strided operands differ (vectors, single elements)."""
    same = wanted.dtype == found.dtype and wanted.shape == found.shape
    return same and torch.allclose(wanted, found, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded")
@pytest.mark.parametrize("write", sampled(WRITES, SAMPLE))
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_writes_of_operands_that_share_memory(write: str, kind: str) -> None:
    failures = list[str]()
    for target, operand in VIEWS.values():
        function = _function(write, target, operand)
        z = ARGUMENTS[kind]() + 3
        wanted = _outcome(function, ARGUMENTS[kind](), z.clone())
        found = _outcome(
            stretto.compile(function, backend="interpreter"), ARGUMENTS[kind](), z.clone()
        )
        match wanted, found:
            case _, stretto.CaptureError():
                good = operand != "z" or "would resize" in str(found)
            case Exception(), Exception():
                good = isinstance(found, type(wanted))
                if "single memory" in str(wanted):
                    good &= "single memory" in str(found)
            case Tensor(), Tensor():
                good = _equal(wanted, found)
            case _:
                good = False
        if not good:
            failures.append(f"{function.__code__.co_filename}: {wanted!r}, found {found!r}")
    assert not failures, "\n".join(failures)


def by_a_layout_of_the_run(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x
    y = y * 0.5
    y.index_add_(0, torch.tensor([0]), y[:1])
    return y


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
def test_strides_that_are_not_known_are_no_reason_to_raise(backend: str) -> None:
    """Eager raises for y[:1] of a contiguous tensor, not of a transposed one; y[0] += y[0]."""
    compiled = stretto.compile(by_a_layout_of_the_run, backend=backend)
    x, y = torch.arange(1.0, 17.0).view(4, 4).t(), torch.ones(4, 4)
    assert torch.equal(compiled(x, y), by_a_layout_of_the_run(x, y))


def by_a_layout_and_an_order(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x
    y = y * 0.5
    y[1:].add_(y[:-1])
    return y


def test_an_order_that_shows_is_one() -> None:
    compiled = stretto.compile(by_a_layout_and_an_order, backend="interpreter")
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        compiled(torch.arange(1.0, 17.0).view(4, 4).t(), torch.ones(4, 4))


def into_another_shape(x: Tensor, out: Tensor) -> Tensor:
    return torch.neg(x, out=out)


def test_an_output_that_eager_would_resize_is_refused() -> None:
    compiled = stretto.compile(into_another_shape, backend="interpreter")
    with pytest.raises(stretto.CaptureError, match=r"eager PyTorch would resize it") as found:
        compiled(torch.ones(3), torch.empty(0))
    assert found.value.remedy == "give `out` a tensor of the shape of the result"
