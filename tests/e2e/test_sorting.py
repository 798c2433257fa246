"""`sort`, `topk` and what is built from them, on every machine, against eager.

Which of several equal elements comes first is open in eager unless the sort is stable. So values
are compared, and that the positions are different ones and those of the values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.options import Options
from tests.e2e.machines import CUDA, costs_of, spread
from tests.sampling import every, sampled

Function = Callable[[Tensor], object]
BACKENDS = ("interpreter", "emulator", "cpu", CUDA)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SPECIAL = (float("nan"), -float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 65000.0)


def elements(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Numbers of which many are equal; of floats also every special one."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-9, 10, shape, generator=generator)
    if dtype.is_floating_point:
        x = x / 4 + torch.randn(shape, generator=generator).round(decimals=1)
        special = torch.rand(shape, generator=generator) < 0.2
        x[special] = torch.tensor(SPECIAL)[
            torch.randint(len(SPECIAL), shape, generator=generator)[special]
        ]
    elif dtype in (torch.int64, torch.int32) and x.numel() > 4:
        x = x.to(dtype)
        limits = torch.iinfo(dtype)
        x.view(-1)[1:4] = torch.tensor([limits.max, limits.min, limits.max])
    elif dtype == torch.uint8:
        x = x.abs() * 28
    return x.to(dtype)


def compiled(function: Function, x: Tensor, backend: str, units: int = 2) -> object:
    options = Options() if backend in ("interpreter", "emulator") else Options(units=units)
    return stretto.compile(function, backend=backend, options=options)(x)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, NaN too."""
    return a.dtype == b.dtype and bool(torch.isclose(a, b, rtol=0, atol=0, equal_nan=True).all())


def assert_order(found: object, wanted: object, x: Tensor, dim: int, backend: str) -> None:
    """Values as eager's, at positions that are different ones."""
    assert isinstance(found, tuple) and isinstance(wanted, tuple)
    values, places = found
    assert values.shape == wanted[0].shape and places.shape == wanted[1].shape, backend
    assert same(values, wanted[0]), backend
    assert places.dtype == torch.int64
    if x.dim():
        assert same(x.gather(dim, places), values), backend
        distinct = places.sort(dim)[0].diff(dim=dim)
        assert bool((distinct > 0).all()), backend


@pytest.mark.parametrize(("dtype", "backend"), every(3, DTYPES, BACKENDS), ids=str)
def test_every_dtype(dtype: torch.dtype, backend: str) -> None:
    x = elements((5, 37), dtype)

    def results(x: Tensor) -> tuple[object, ...]:
        found = x.sort(), x.sort(0, descending=True), x.sort(dim=1, stable=True, descending=True)
        if dtype == torch.bool:
            return found
        return *found, x.topk(4), x.topk(2, 0), x.topk(7, largest=False), x.topk(3, sorted=False)

    found, wanted = compiled(results, x, backend), results(x)
    assert isinstance(found, tuple)
    dims = (1, 0, 1, 1, 0, 1)
    for one, other, dim in zip(found, wanted, dims, strict=False):
        assert_order(tuple(one), tuple(other), x, dim, backend)
    stable = wanted[2]
    assert isinstance(stable, tuple)
    assert torch.equal(found[2][1], stable[1])
    assert dtype == torch.bool or same(found[6][0], x.topk(3)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape", ((1,), (0,), (3, 0), (0, 3), (1, 1), (2, 1, 3), (7, 4, 3)), ids=str
)
def test_every_shape(shape: tuple[int, ...], backend: str) -> None:
    x = elements(shape, torch.float32)

    def results(x: Tensor) -> list[object]:
        found: list[object] = []
        for dim in range(x.dim()):
            size = x.size(dim)
            found += [x.sort(dim), x.argsort(dim), x.topk(size, dim), x.topk(0, dim), x.msort()]
            found += [x.topk((size + 1) // 2, dim - x.dim(), largest=False)]
        return found

    found, wanted = compiled(results, x, backend), results(x)
    assert isinstance(found, list)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, tuple):
            assert same(one[0], other[0]) and one[1].shape == other[1].shape
        else:
            assert isinstance(other, Tensor)
            assert one.shape == other.shape and one.dtype == other.dtype


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_dims(backend: str) -> None:
    def results(x: Tensor) -> tuple[object, ...]:
        return x.sort(), x.topk(1), x.argsort(), x.kthvalue(1), x.median(), x.median(0)

    x = torch.tensor(2.5)
    assert repr(compiled(results, x, backend)) == repr(results(x))


VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.t(), lambda x: x[1::2, ::3], lambda x: x.flip(1),
    lambda x: x[:, 3].expand(4, -1), lambda x: x.unfold(1, 5, 2), lambda x: (x * 2).t() + 1,
    lambda x: torch.exp(x).t(),
)  # fmt: skip


@pytest.mark.parametrize(("view", "backend"), every(2, VIEWS, ("emulator", "cpu", CUDA)))
def test_views_and_what_is_computed(view: Callable[[Tensor], Tensor], backend: str) -> None:
    x = torch.randn(6, 23, generator=torch.Generator().manual_seed(1))
    for dim in range(view(x).dim()):
        for function in (
            lambda x, dim=dim: view(x).sort(dim),
            lambda x, dim=dim: view(x).topk(2, dim),
        ):
            found = compiled(function, x, backend)
            assert torch.allclose(found[0], function(x)[0])  # type: ignore[index]
            assert torch.allclose(view(x).gather(dim, found[1]), found[0])  # type: ignore[index]


@pytest.mark.parametrize(
    ("dtype", "largest", "backend"),
    every(
        5,
        (torch.float32, torch.int32, torch.uint8, torch.float16),
        (True, False),
        ("emulator", "cpu", CUDA),
    ),
    ids=str,
)
def test_selecting_from_long_rows_in_slices(
    dtype: torch.dtype, largest: bool, backend: str
) -> None:
    """Sizes that slices do not divide, and slices of nothing but what comes last."""
    x = elements((2, 263), dtype)
    if dtype.is_floating_point:
        x[1, 40:] = -torch.inf if largest else torch.nan

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (*x.topk(5, largest=largest), *x[1].topk(9, largest=largest))

    with costs_of(backend, selected_part=30, compared_slice=16):
        found = stretto.compile(function, backend=backend, options=Options(units=4))(x)
    for rows, keep, values, places in ((x, 5, *found[:2]), (x[1], 9, *found[2:])):
        wanted = rows.sort(stable=True, descending=largest)
        assert same(values, wanted[0][..., :keep])
        assert torch.equal(places, wanted[1][..., :keep])


def test_a_gpu_sorts_very_long_rows_by_the_library() -> None:
    x = elements((3, 40), torch.float32)
    run = stretto.compile(lambda x: (x + 0).sort(dim=0, stable=True), backend=CUDA)
    other = stretto.compile(lambda x: x.sort(dim=1, stable=True, descending=True), backend=CUDA)
    with costs_of(CUDA, most_comparisons=1000):
        short, long = run(x), other(x)
    assert "library calls: none" in run.explain()
    assert "aten.argsort.stable" in other.explain()
    for found, wanted in ((short, x.sort(dim=0, stable=True)),
                          (long, x.sort(dim=1, stable=True, descending=True))):  # fmt: skip
        assert same(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


WAYS_BETWEEN = ("linear", "lower", "higher", "midpoint", "nearest")


# ---- what is built from them -----------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(
    ("function", "interpolation"),
    sampled(
        list(itertools.product((torch.quantile, torch.nanquantile), WAYS_BETWEEN)),
        [(torch.quantile, "midpoint"), (torch.quantile, "higher"), (torch.nanquantile, "linear")],
    ),
)
def test_quantiles(function: Callable[..., Tensor], interpolation: str) -> None:
    x = elements((4, 5, 3), torch.float32, 3)
    x[0, 1, 2] = x[:, 2, 1] = torch.nan
    x[1, :2, 0], x[2, 0, 0] = torch.inf, -torch.inf

    def results(x: Tensor, several: Tensor, one: Tensor) -> list[Any]:
        found = [function(x[0, 0, 0], q, dim, True) for q in (several, 0.5) for dim in (0, None)]
        for dim in (None, 0, 1, -1):
            for keepdim in (False, True):
                for q in (0.3, several, one):
                    found += [function(x, q, dim, keepdim, interpolation=interpolation)]
        return found

    args = (x, torch.tensor([0.0, 0.25, 0.7, 1.0]), torch.tensor(0.4))
    found: list[Any] = stretto.compile(results, backend="cpu")(*args)
    for number, (one, other) in enumerate(zip(found, results(*args), strict=True)):
        torch.testing.assert_close(one, other, equal_nan=True, msg=lambda m, n=number: f"{n}: {m}")


@pytest.mark.parametrize("function", [torch.quantile, torch.nanquantile], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "args",
    [
        (torch.ones(3), torch.tensor([0.5, 1.5])),
        (torch.ones(3), -0.5),
        (torch.ones(3), 0.5, 3),
        (torch.ones(0), 0.5),
        (torch.ones(3).long(), 0.5),
        (torch.ones(3), torch.ones(2, 2)),
        (torch.ones(3), torch.ones(2).double()),
    ],
    ids=["range", "number", "dim", "empty", "dtype", "rank", "other dtype"],
)
def test_what_quantiles_refuse(function: Callable[..., Tensor], args: tuple[Any, ...]) -> None:
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        function(*args)
    with pytest.raises(type(wanted.value)) as found:
        stretto.compile(function)(*args)
    assert str(wanted.value).splitlines()[0] in str(found.value)


@pytest.mark.parametrize(
    ("dtype", "backend"),
    every(3, (torch.float32, torch.float64, torch.bfloat16, torch.int64), BACKENDS),
    ids=str,
)
def test_medians_and_the_kth(dtype: torch.dtype, backend: str) -> None:
    x = elements((6, 9), dtype, 3)
    if dtype.is_floating_point:
        x[0], x[1] = torch.nan, torch.arange(9)

    def results(x: Tensor) -> list[object]:
        return [
            x.median(), x[1].median(), x.nanmedian(), x.median(1), x.median(0, keepdim=True),
            x.nanmedian(1), x.nanmedian(0, keepdim=True), x.kthvalue(2), x.kthvalue(5, 0),
            x.kthvalue(9, 1, keepdim=True), x.quantile(0.3, 1) if dtype == torch.float32 else x[0],
        ]  # fmt: skip

    found = compiled(results, x, backend)
    assert isinstance(found, list)
    for number, (one, other) in enumerate(zip(found, results(x), strict=True)):
        if isinstance(other, Tensor):
            assert same(one, other), number
            continue
        assert isinstance(other, tuple)
        assert one[0].shape == other[0].shape and same(one[0], other[0]), number
        dim = (3, 5, 7, 9).count(number)
        kept = other[0].dim() == x.dim()
        places = one[1] if kept else one[1].unsqueeze(dim)
        assert same(x.gather(dim, places), one[0] if kept else one[0].unsqueeze(dim)), number


def test_the_place_of_a_nan_is_the_first_one() -> None:
    x = torch.tensor([[1.0, 2.0, torch.nan, 0.0, torch.nan], [3.0, 1.0, 2.0, 5.0, 4.0]])
    found = stretto.compile(lambda x: x.median(1))(x)
    assert torch.equal(found[1], x.median(1)[1])


@pytest.mark.parametrize(
    "function",
    (
        lambda x: x.topk(8), lambda x: x.topk(-1), lambda x: x.topk(1, 2), lambda x: x.sort(2),
        lambda x: x.kthvalue(0), lambda x: x.kthvalue(8), lambda x: x.median(3),
        lambda x: x.kthvalue(8, 0), lambda x: (x > 0).median(), lambda x: x.argsort(-3),
    ),
)  # fmt: skip
def test_what_eager_refuses(function: Function) -> None:
    x = torch.zeros(3, 7)
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        function(x)
    with pytest.raises(type(wanted.value)) as found:
        stretto.compile(function)(x)
    assert str(wanted.value).splitlines()[0] in str(found.value)


# ---- in programs -----------------------------------------------------------------------------


def beam_search(table: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Four beams over a vocabulary, until enough steps are done or all beams have ended."""
    beams, vocabulary = 4, table.shape[1]
    scores = torch.tensor([0.0, -1e9, -1e9, -1e9])
    tokens = torch.zeros(beams, dtype=torch.long)
    ended = torch.zeros(beams, dtype=torch.bool)
    n = 0
    while n < steps and not ended.all():
        following = scores[:, None] + torch.log_softmax(table[tokens], -1)
        following = torch.where(ended[:, None], scores[:, None] - 1, following)
        scores, places = following.reshape(-1).topk(beams)
        tokens = places % vocabulary
        ended = ended[places // vocabulary] | (tokens == 0)
        n = n + 1
    order = tokens.argsort(stable=True)
    return scores[order], tokens[order]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("units", (1, 3))
def test_beam_search(backend: str, units: int) -> None:
    table = torch.randn(11, 11, generator=torch.Generator().manual_seed(4))
    with spread():
        options = Options(units=units) if backend in ("cpu", CUDA) else Options()
        run = stretto.compile(beam_search, backend=backend, options=options)
        for steps in (0, 1, 5):
            found, wanted = (f(table, torch.tensor(steps)) for f in (run, beam_search))
            assert torch.allclose(found[0], wanted[0], atol=1e-5)
            assert torch.equal(found[1], wanted[1])
    assert backend == "interpreter" or "library calls: none" in run.explain()


def sorting_network(x: Tensor, n: Tensor) -> Tensor:
    """Sorts, writes in place, and sorts what a branch chose, in a loop."""
    for _ in range(n):
        if x.sum() > 0:
            order = x.argsort(stable=True)
        else:
            order = x.abs().sort(stable=True, descending=True)[1]
        y = x[order]
        y[:3].mul_(-1)
        x = torch.sin(y) + x.topk(1)[0]
    return x


@pytest.mark.parametrize("backend", ("emulator", "cpu", CUDA))
def test_in_loops_and_branches(backend: str) -> None:
    x = torch.randn(19, generator=torch.Generator().manual_seed(5))
    run = stretto.compile(sorting_network, backend=backend)
    for n in (0, 1, 6):
        assert torch.allclose(
            run(x, torch.tensor(n)), sorting_network(x, torch.tensor(n)), atol=1e-5
        )


def test_a_list_whose_length_is_known_in_the_run() -> None:
    def function(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        items: list[Tensor] = []
        for i in range(n):
            items.append(x * i)
        rows = torch.stack(items)
        return rows.sort(0, descending=True)[0], rows.sum(1).argsort(stable=True)

    x = torch.tensor([1.0, -2.0, 0.5])
    for backend in ("interpreter", "cpu", CUDA):
        run = stretto.compile(function, backend=backend)
        for n in (1, 6, 9):
            found, wanted = (f(x, torch.tensor(n)) for f in (run, function))
            assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


def test_they_are_native() -> None:
    def function(x: Tensor) -> tuple[object, ...]:
        return (
            x.sort(),
            x.topk(3),
            x.argsort(),
            x.kthvalue(2),
            x.median(),
            x.msort(),
            x.nanmedian(0),
        )

    for backend in ("cpu", CUDA):
        run = stretto.compile(function, (torch.randn(4, 9),), backend=backend)
        assert "library calls: none" in run.explain()
