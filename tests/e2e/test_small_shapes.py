"""Every kind of operator on tensors of no elements, of no dims, and of one element."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stretto
from tests.frontends.python.checks import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:.*(degrees of freedom|deprecated)")

NOTHING = torch.zeros(0, dtype=torch.long)
SHAPES = ((), (0,), (1,), (0, 3), (3, 0), (1, 1), (2, 0, 3), (1, 3, 1))


def rows(x: Tensor) -> Tensor:
    """Positions of the first dim."""
    return torch.zeros(x.shape, dtype=torch.long)


FUNCTIONS: tuple[Callable[[Tensor], object], ...] = (
    # views of what is computed
    lambda x: (x + 1).ravel(), lambda x: (x * 2).flatten(), lambda x: (x + 1).reshape(-1),
    lambda x: (x + 1).transpose(0, -1) + 1, lambda x: (x + 1).transpose(0, -1).reshape(-1),
    lambda x: (x + 1).movedim(0, -1), lambda x: x.movedim((0,), (-1,)),
    lambda x: (x + 1).unsqueeze(-1), lambda x: (x + 1).squeeze(), lambda x: x[..., None],
    lambda x: x[:0], lambda x: x[..., :1], lambda x: x[0], lambda x: x.diagonal(), lambda x: x.t(),
    lambda x: x.narrow(0, 0, 0), lambda x: x.chunk(2), lambda x: x.split(1), lambda x: x.unbind(),
    lambda x: (x + 1).expand(2, *x.shape), lambda x: x.unfold(0, 1, 1), lambda x: x.view(-1),
    # moves
    lambda x: x.flip(0), lambda x: x.roll(1), lambda x: torch.cat([x, x]), lambda x: x.tile(2),
    lambda x: torch.stack([x, x]), lambda x: x.repeat_interleave(2), lambda x: F.pad(x, (1, 1)),
    lambda x: x.tril(), lambda x: x.diag(), lambda x: torch.rot90(x), lambda x: torch.kron(x, x),
    # reductions
    lambda x: x.sum(), lambda x: x.sum(-1), lambda x: x.sum(0, keepdim=True), lambda x: x.prod(),
    lambda x: x.mean(), lambda x: x.mean(-1), lambda x: x.var(-1), lambda x: x.std(),
    lambda x: x.var(unbiased=False), lambda x: x.max(), lambda x: x.max(-1), lambda x: x.amin(0),
    lambda x: x.argmax(-1), lambda x: x.argmin(), lambda x: x.any(), lambda x: x.all(-1),
    lambda x: x.norm(), lambda x: x.norm(dim=-1), lambda x: x.logsumexp(-1), torch.trace,
    lambda x: x.count_nonzero(), torch.nanmean, torch.aminmax, lambda x: x.median(),
    # scans, order
    lambda x: x.cumsum(0), lambda x: x.cumprod(-1), lambda x: x.cummax(0), lambda x: x.sort(),
    lambda x: x.sort(0, descending=True), lambda x: x.argsort(), lambda x: x.topk(0),
    lambda x: x.diff(), lambda x: torch.searchsorted(torch.tensor([0.0, 1.0]), x),
    # reductions of these
    lambda x: x.sort()[0].sum(), lambda x: x.sort(0)[1].sum(), lambda x: x.topk(0)[0].sum(),
    lambda x: x.cummax(0)[0].sum(0), lambda x: x.flip(0).sum(), lambda x: x[NOTHING].sum(0),
    lambda x: x.gather(0, rows(x)).sum(-1), lambda x: x.roll(1).mean(), lambda x: x.tril().sum(),
    # positions
    lambda x: x[NOTHING], lambda x: x.index_select(0, NOTHING), lambda x: x.gather(0, rows(x)),
    lambda x: x.scatter(0, rows(x), x), lambda x: x.scatter_add(0, rows(x), x),
    lambda x: x.index_fill(0, NOTHING, 1.0), lambda x: x.index_add(0, NOTHING, x[:0]),
    lambda x: x.index_put((NOTHING,), torch.zeros(0)), lambda x: x.take(NOTHING),
    lambda x: F.embedding(x.long(), torch.ones(3, 2)), lambda x: F.one_hot(x.long(), 3),
    # products
    lambda x: x @ x, lambda x: x @ x.transpose(-1, -2), lambda x: torch.outer(x, x),
    lambda x: torch.dot(x, x), lambda x: torch.einsum("...i,...j->...ij", x, x),
    lambda x: F.linear(x, torch.ones(2, x.shape[-1])), lambda x: torch.bmm(x, x.mT),
    lambda x: F.linear(x, torch.ones(0, x.shape[-1])), lambda x: torch.cdist(x, x),
    lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    # networks
    lambda x: x.softmax(-1), lambda x: x.log_softmax(0), lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: F.gelu(x), lambda x: F.normalize(x), lambda x: F.mse_loss(x, x),
    lambda x: F.batch_norm(x, torch.zeros(x.shape[-1]), torch.ones(x.shape[-1])),
    lambda x: F.group_norm(x[None], 1), lambda x: F.conv1d(x[None], torch.ones(2, x.shape[0], 1)),
    lambda x: F.max_pool1d(x[None], 1), lambda x: F.adaptive_avg_pool1d(x[None], 2),
    lambda x: F.interpolate(x[None], scale_factor=2.0),
    lambda x: F.dropout(x + 1, 0.5, False, True),
)  # fmt: skip


def outcome(function: Callable[[Tensor], object], x: Tensor) -> object:
    """The result, or the exception."""
    try:
        return function(x)
    except Exception as error:
        return error


@pytest.mark.whole
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backend", ("emulator", "cpu"))
def test_small_shapes(shape: tuple[int, ...], backend: str) -> None:
    x = torch.ones(shape)
    fits = [f for f in FUNCTIONS if not isinstance(outcome(f, x), Exception)]

    def every(x: Tensor) -> list[object]:
        return [function(x) for function in fits]

    assert_same(stretto.compile(every, backend=backend)(x), every(x))


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_eager_refuses_is_refused_alike(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.ones(shape, dtype=dtype)
    for number, function in enumerate(FUNCTIONS):
        wanted = outcome(function, x)
        if isinstance(wanted, Exception):
            with pytest.raises(type(wanted)):
                pytest.fail(f"{number}: {stretto.compile(function, backend='interpreter')(x)}")


@pytest.mark.parametrize(
    "function",
    (
        lambda i, x: i.var(), lambda i, x: F.gelu(i), lambda i, x: F.linear(x, i.float().double()),
        lambda i, x: i @ x, lambda i, x: -(i > 0), lambda i, x: (i > 0) - (i > 0),
        lambda i, x: i.softmax(0), lambda i, x: i**-1, lambda i, x: F.embedding(x, x),
        lambda i, x: F.cross_entropy(x, i[0].int()),
        lambda i, x: F.layer_norm(x, (3,), x[0].double()),
    ),
)  # fmt: skip
def test_dtypes_that_eager_refuses(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    arguments = (torch.ones(3, 3, dtype=torch.long), torch.ones(3, 3))
    with pytest.raises(RuntimeError) as wanted:
        function(*arguments)
    with pytest.raises(type(wanted.value)) as found:
        stretto.compile(function, backend="interpreter")(*arguments)
    assert str(wanted.value).splitlines()[0] in str(found.value)


@pytest.mark.parametrize("value", [(1, 3, 8), (1, 8, 8), (1, 3, 0), (1, 0, 8)])
@pytest.mark.parametrize("key", [(1, 0, 8), (1, 3, 8), (1, 3, 0)])
@pytest.mark.parametrize("query", [(1, 0, 8), (1, 3, 0)])
def test_attention_of_nothing(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> None:
    """Eager looks at no other size where the result is empty."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    given = torch.ones(query), torch.ones(key), torch.ones(value)
    compiled = stretto.compile(attend, backend="interpreter")
    try:
        wanted = attend(*given)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            compiled(*given)
        return
    torch.testing.assert_close(compiled(*given), wanted)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_the_loss_of_a_single_row_has_no_dims(shape: tuple[int, ...], reduction: str) -> None:
    loss = torch.nn.MultiLabelMarginLoss(reduction=reduction)
    x, target = torch.rand(shape), torch.zeros(shape, dtype=torch.long)
    found, wanted = stretto.compile(loss, backend="emulator")(x, target), loss(x, target)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("offsets", [[0, 3, 6], [0, 0, 2, 6], [0, 6, 6]])
def test_bags_up_to_the_last_offset(offsets: list[int], mode: str, dtype: torch.dtype) -> None:
    def f(ids: Tensor, offsets: Tensor) -> Tensor:
        return F.embedding_bag(ids, weight, offsets, mode=mode, include_last_offset=True)

    weight = torch.arange(20.0).reshape(5, 4).to(dtype)
    args = torch.tensor([4, 1, 0, 2, 2, 3]), torch.tensor(offsets)
    found, wanted = stretto.compile(f, backend="emulator")(*args), f(*args)
    assert found.dtype == dtype and found.shape == wanted.shape
    assert torch.equal(found, wanted)
