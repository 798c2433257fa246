"""Operators with kernels, which the tests of this folder share: they are those of the guide."""

import torch

import stretto

FAST_GELU = r"""
template <class X, class Out>
void fast_gelu(stretto::Range i, X x, Out out) {
#pragma omp simd
    for (int64_t at = i.begin; at < i.end; ++at) {
        auto v = x(at);
        using T = decltype(v);
        T u = T(0.7978845608) * (v + T(0.044715) * v * v * v);
        out(at) = v / (1 + stretto::exp(-2 * u));
    }
}
"""
ROTARY = r"""
template <class X, class Table, class Out>
void rotary(stretto::Range s, X x, Table cos, Table sin, Out out) {
    const int64_t half = x.size[1] / 2;
    for (int64_t row = s.begin; row < s.end; ++row)
#pragma omp simd
        for (int64_t at = 0; at < half; ++at) {
            float first = x(row, at), second = x(row, at + half);
            out(row, at) = first * cos(row, at) - second * sin(row, at);
            out(row, at + half) = second * cos(row, at) + first * sin(row, at);
        }
}
"""
SMOOTH = r"""
template <class X, class Out>
void smooth(stretto::Range i, X x, double weight, int64_t shift, bool sharp, Out out) {
    for (int64_t at = i.begin; at < i.end; ++at) {
        float side = x(at) + x(at + 2);
        out(at) = (sharp ? -weight : weight) * side + x(at + 1) + shift;
    }
}
"""
ROW_SUMS = r"""
template <class X, class Out>
void row_sums(stretto::Range i, X x, Out out) {
    for (int64_t row = i.begin; row < i.end; ++row) {
        int64_t total = 0;
        for (int64_t at = 0; at < x.size[1]; ++at) total += x(row, at);
        out(row) = total;
    }
}
"""


@torch.library.custom_op("stretto_test::fast_gelu", mutates_args=())
def fast_gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh").contiguous()


@fast_gelu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("stretto_test::rotary", mutates_args=())
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


@rotary.register_fake
def _(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    for table in (cos, sin):
        torch._check(table.size(0) == x.size(-2))  # pyright: ignore[reportPrivateUsage]
    return x.new_empty(x.shape)


@torch.library.custom_op("stretto_test::smooth", mutates_args=())
def smooth(x: torch.Tensor, weight: float, shift: int = 0, sharp: bool = False) -> torch.Tensor:
    side = x[..., :-2] + x[..., 2:]
    return (-weight if sharp else weight) * side + x[..., 1:-1] + shift


@smooth.register_fake
def _(x: torch.Tensor, weight: float, shift: int = 0, sharp: bool = False) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] - 2))


@torch.library.custom_op("stretto_test::row_sums", mutates_args=())
def row_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


@row_sums.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.int64)


@torch.library.custom_op("stretto_test::pairs", mutates_args=())
def pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y.t()


@pairs.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.size(0), y.size(0)))


def register() -> None:
    """The kernels, as if their modules had just been imported."""
    floats = (torch.float32, torch.float64)
    stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", cpp=FAST_GELU, operations=12, dtypes=floats)
    stretto.kernel(
        "stretto_test::rotary",
        "x[..., s, :], cos[s, :], sin[s, :] -> [..., s, :]",
        cpp=ROTARY,
        operations=4,
    )
    stretto.kernel(smooth, "x[..., i : i + 3] -> [..., i]", cpp=SMOOTH, operations=4)
    stretto.kernel(row_sums, "x[i, :] -> [i]", cpp=ROW_SUMS, operations=8)
