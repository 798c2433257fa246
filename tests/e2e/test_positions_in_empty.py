"""Positions in tensors and selections without elements: eager PyTorch looks at some of them."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

SHAPES = ((0,), (0, 4), (4, 0), (0, 0), (3, 4), (2, 0, 3), ())
EXPRESSIONS = (
    "x.index_fill(0, i, 9.0)",
    "x.index_fill_(-1, i, 9.0)",
    "x.index_select(0, i)",
    "x.index_select(-1, i)",
    "x.index_copy(0, i, torch.ones([i.numel(), *x.shape[1:]]))",
    "x.index_copy_(-1, i, torch.ones([*x.shape[:-1], i.numel()]))",
    "x.index_add(0, i, torch.ones([i.numel(), *x.shape[1:]]))",
    "x.index_add_(-1, i, torch.ones([*x.shape[:-1], i.numel()]))",
    "x.index_add_(-1, i, torch.ones([4, 1]))",
    "x[i]",
    "x[..., i]",
    "x[:, i]",
    "x.index_put((i,), torch.tensor(1.0))",
    "x.index_put_((i,), torch.tensor(1.0), accumulate=True)",
    "x.take(i)",
    "x.gather(-1, i[:0])",
    "x.gather(0, i.reshape(-1, 1))",
    "x.scatter(-1, i[:0], 1.0)",
    "x.scatter_(0, i.reshape(-1, 1), 1.0)",
    "x.scatter_add(0, i[:0], torch.ones(0))",
    "F.embedding(i, x)",
)
INDICES: dict[str, Callable[[], Tensor]] = {
    "none": lambda: torch.zeros(0, dtype=torch.int64),
    "first": lambda: torch.tensor([0]),
    "last": lambda: torch.tensor([-1]),
    "beyond": lambda: torch.tensor([5]),
}


def _function(expression: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    source = f"def f(x, i):\n    x = x * 1\n    found = {expression}\n    return found, x\n"
    name = f"<{expression}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(source, name, "exec"), namespace)
    return namespace["f"]


def _outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (RuntimeError, IndexError) as error:
        return error


def _agree(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, Exception) or isinstance(found, Exception):
        return isinstance(wanted, Exception) and isinstance(found, type(wanted) | stretto.RunError)
    return all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))


@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_positions_where_there_is_nothing(expression: str, backend: str) -> None:
    function = _function(expression)
    compiled = stretto.compile(
        function,
        backend=backend,
        options=stretto.Options(debug=stretto.Debug(max_signatures_before_warning=99)),
    )
    failures = list[str]()
    for shape in SHAPES:
        x = torch.arange(12.0)[: int(torch.Size(shape).numel())].reshape(shape)
        for name, index in INDICES.items():
            wanted = _outcome(function, x, index())
            found = _outcome(compiled, x, index())
            if not _agree(wanted, found):
                failures.append(f"{shape}, {name}: {wanted!r}, found {found!r}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("backend", ["interpreter", "emulator", "cpu"])
def test_index_fill_counts_from_the_end(backend: str) -> None:
    function = _function("x.index_fill_(0, i, 9.0)")
    x = torch.arange(12.0).reshape(3, 4)
    for index in (torch.tensor([-1]), torch.tensor([0, -3]), torch.tensor(-2)):
        found = stretto.compile(function, backend=backend)(x, index)
        assert torch.equal(found[0], function(x, index)[0])


@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
def test_a_column_that_is_not_there_is_a_runtime_error(backend: str) -> None:
    function = _function("x.index_select(1, i)")
    with pytest.raises(
        RuntimeError, match="INDICES element is out of DATA bounds, id=5 axis_dim=4"
    ):
        stretto.compile(function, backend=backend)(torch.ones(3, 4), torch.tensor([5]))


def test_index_add_wants_a_source_of_the_right_shape() -> None:
    function = _function("x.index_add(1, i, torch.ones(4, 1))")
    with pytest.raises(RuntimeError, match="source tensor shape must match self tensor shape"):
        stretto.compile(function, backend="emulator")(torch.ones(3, 4), torch.tensor([0]))
