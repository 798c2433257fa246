"""What is refused of kernels, and what the messages say."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from stretto.errors import BuildError, CodegenError, RunError
from stretto.extending.check import check
from stretto.extending.declare import parse_regions
from tests.extending.operators import FAST_GELU, ROTARY, SMOOTH, fast_gelu, register, rotary, smooth


@pytest.fixture(autouse=True)
def _kernels() -> Generator[None]:
    register()
    yield
    register()


@torch.library.custom_op("stretto_test::split", mutates_args=())
def split(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x + 2


@torch.library.custom_op("stretto_test::change", mutates_args=("x",))
def change(x: Tensor) -> Tensor:
    x.add_(1)
    return x + 2


@torch.library.custom_op("stretto_test::named", mutates_args=())
def named(x: Tensor, mode: str) -> Tensor:
    return x + 1


@pytest.mark.parametrize(
    ("operator", "regions", "options", "message"),
    [
        ("stretto_test::nothing", "x[i] -> [i]", {"cpp": ""}, "torch knows no operator"),
        ("gelu", "x[i] -> [i]", {"cpp": ""}, "library::name"),
        (split, "x[i] -> [i]", {"cpp": ""}, "one new tensor"),
        (change, "x[i] -> [i]", {"cpp": ""}, "one new tensor"),
        (named, "x[i] -> [i]", {"cpp": ""}, "`mode`"),
        (fast_gelu, "y[i] -> [i]", {"cpp": ""}, "`x`"),
        (rotary, "x[s, :], cos[s, :] -> [s, :]", {"cpp": ROTARY}, "`sin`"),
        (fast_gelu, "x[i] -> [i]", {}, "no source"),
        (fast_gelu, "x[i] -> [i]", {"cpp": "void f() {}"}, "no function `fast_gelu`"),
        (fast_gelu, "x[i] -> [i]", {"cpp": FAST_GELU, "dtypes": (torch.int32,)}, "floating"),
        (fast_gelu, "x[i] -> [i]", {"cpp": FAST_GELU, "multiples": {"j": 2}}, "multiples"),
        (fast_gelu, "x[i] -> [i]", {"cpp": FAST_GELU, "operations": -1}, "`operations`"),
    ],
)
def test_declarations(operator: Any, regions: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stretto.kernel(operator, regions, **options)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ("x[i]", "regions have the form"),
        ("x[i -> [i]", "cannot read"),
        ("x[i] -> [i + 1]", "indices or `:`"),
        ("x[i] -> [i, i]", "one index"),
        ("x[j] -> [i]", "index j of `x` is none of the result"),
        ("x[i, i] -> [i]", "index i twice"),
        ("x[i * i] -> [i]", "a sum of indices"),
        ("x[i : i + n] -> [i]", "a fixed number"),
        ("x[i : i] -> [i]", "a fixed number"),
        ("x[: i] -> [i]", "both ends"),
        ("x[::2] -> [i]", "no step"),
        ("x[i, ...] -> [i]", "before all dims"),
        ("x[..., i] -> [i]", "leading dims"),
        ("x[i], x[i] -> [i]", "listed twice"),
        ("3 -> [i]", "a name with dims"),
    ],
)
def test_regions(regions: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_regions(regions)


def test_a_region_outside_of_its_tensor() -> None:
    found = stretto.kernel(smooth, "x[..., i : i + 4] -> [..., i]", cpp=SMOOTH)
    with pytest.raises(CodegenError, match="reads element 9 of dim 0 of `x`, which has 9") as error:
        stretto.compile(lambda x: smooth(x, 0.5))(torch.randn(9))
    assert error.value.location is not None and error.value.location.file == __file__
    with pytest.raises(ValueError, match="names elements 6 to 9 of a dim of size 9"):
        check(found, [torch.randn(9), 1.0])


def test_source_that_does_not_compile() -> None:
    found = stretto.kernel(
        fast_gelu,
        "x[..., i] -> [..., i]",
        cpp=r"""
template <class X, class Out>
void fast_gelu(stretto::Range i, X x, Out out) {
    for (int64_t at = i.begin; at < i.end; ++at)
        out(at) = no_such_function(float(x(at)));
}
""",
    )
    with pytest.raises(BuildError, match="no_such_function") as error:
        stretto.compile(lambda x: fast_gelu(x))(torch.randn(9))
    place = error.value.location
    assert place is not None and "no_such_function(float" in place.source()
    with pytest.raises(BuildError, match="line 5"):
        check(found, [torch.randn(9)])


LIARS = {
    "writes outside": "out(i.end) = 1; for (auto k = i.begin; k < i.end; ++k) out(k) = x(k);",
    "unwritten": "for (auto k = i.begin + 1; k < i.end; ++k) out(k) = x(k);",
    "no region declares": "for (auto k = i.begin; k < i.end; ++k) out(k) = x(k) + 0 * x(0);",
    "differs": "for (auto k = i.begin; k < i.end; ++k) out(k) = x(k) + 1;",
}


@pytest.mark.parametrize("message", LIARS)
def test_check_finds(message: str) -> None:
    head = "template <class X, class Out> void fast_gelu(stretto::Range i, X x, Out out)"
    kernel = stretto.kernel(
        fast_gelu, "x[..., i] -> [..., i]", cpp=f"{head} {{ {LIARS[message]} }}"
    )
    with pytest.raises(RunError, match=message):
        check(kernel, [torch.randn(2, 9) + 9])


def test_check_passes() -> None:
    register()
    from stretto.device.user_kernels import kernel_for

    calls: dict[str, list[list[Any]]] = {
        "fast_gelu": [[torch.randn(s)] for s in ((9,), (2, 3, 4), (0,), (1,))]
        + [[torch.randn(7, dtype=torch.float64)]],
        "rotary": [[torch.randn(2, 1, 5, 6), torch.randn(5, 3), torch.randn(5, 3)]],
        "smooth": [[torch.randn(2, 9), 0.5, 2, True], [torch.randn(3), 0.5]],
        "row_sums": [[torch.randint(9, (4, 3), dtype=torch.int32)]],
    }
    for name, given in calls.items():
        kernel = kernel_for(f"stretto_test.{name}.default")
        assert kernel is not None
        check(kernel, *given)


def test_a_digest_is_of_what_is_declared() -> None:
    first = stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", cpp=FAST_GELU)
    inline = "template <class X, class Out> void fast_gelu(stretto::Range i, X x, Out out) {}"
    here = stretto.kernel(
        fast_gelu,
        "x[..., i] -> [..., i]",
        cpp="template <class X, class Out> void fast_gelu(stretto::Range i, X x, Out out) {}",
    )
    there = stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", cpp=inline)
    assert here.location is not None and here.digest == there.digest != first.digest


def test_check_refuses() -> None:
    kernel = stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", cpp=FAST_GELU)
    with pytest.raises(ValueError, match=r"float32, and not torch\.float16"):
        check(kernel, [torch.randn(9).half()])
