"""Views that the strides of a tensor do not allow raise what eager PyTorch raises."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import stretto

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().view(-1),
    "two dims": lambda x: x.t().view(2, -1),
    "expanded": lambda x: x.expand(2, *x.shape).view(-1),
    "split": lambda x: x[:, 1:5].unflatten(1, (2, 2)).view(-1),
    "fresh": lambda x: (x + 1).t().contiguous().t().view(-1),
    "cast": lambda x: x.t().view(torch.int16),
    "size": lambda x: x.view(7),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_is_none(name: str) -> None:
    x = torch.ones(4, 6)
    with pytest.raises(RuntimeError) as wanted:
        VIEWS[name](x)
    with pytest.raises(RuntimeError) as found:
        stretto.compile(VIEWS[name], backend="interpreter")(x)
    assert str(wanted.value) in str(found.value)
