"""What torch's operator database says that eager PyTorch refuses, the compiled function refuses."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

import stretto

OPERATORS = {
    f"{info.name} {info.variant_test_name}".strip(): info
    for info in op_db
    if info.error_inputs_func is not None
}
OTHER_ERRORS = {"gradient"}
"""Several of their arguments are wrong, and another one is named first."""


def _calls(info: Any) -> list[tuple[Callable[..., Any], list[Tensor]]]:
    """Functions of the tensors among an operator's arguments, and these tensors."""
    calls = list[tuple[Callable[..., Any], list[Tensor]]]()
    for item in info.error_inputs("cpu"):
        sample = item.sample_input
        given = ((sample.input, *sample.args), sample.kwargs)
        flat, structure = tree_flatten(given)
        places = [place for place, leaf in enumerate(flat) if isinstance(leaf, Tensor)]

        def call(*tensors: Tensor, flat=flat, structure=structure, places=places) -> Any:
            leaves = list(flat)
            for place, tensor in zip(places, tensors, strict=True):
                leaves[place] = tensor
            args, kwargs = tree_unflatten(leaves, structure)
            return info.op(*args, **kwargs)

        calls.append((call, [flat[place] for place in places]))
    return calls


def _error(function: Callable[..., Any], tensors: list[Tensor]) -> Exception | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*copy.deepcopy(tensors))
    except Exception as error:  # of whatever class: that is the question
        return error
    return None


@pytest.mark.whole
@pytest.mark.parametrize("name", OPERATORS)
def test_refused_inputs(name: str) -> None:
    for call, tensors in _calls(OPERATORS[name]):
        wanted = _error(call, tensors)
        if wanted is None:
            continue  # only refused on another device
        found = _error(stretto.compile(call), tensors)
        message = f"eager refuses {wanted!r}, found {found!r}"
        assert found is not None, message
        if name not in OTHER_ERRORS:
            assert isinstance(found, (type(wanted), stretto.CaptureError)), message


def _unused(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does not use the result."""

    def function(flag: Tensor, *tensors: Tensor) -> Tensor:
        call(*tensors)
        return flag + 1

    return function


def _in_an_arm(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that comes to the call if its first argument says so."""

    def function(flag: Tensor, *tensors: Tensor) -> Tensor:
        if flag > 0:
            call(*tensors)
        return flag + 1

    return function


@pytest.mark.whole
@pytest.mark.parametrize("name", OPERATORS)
def test_refused_inputs_of_unused_results(name: str) -> None:
    """They are refused where the call is reached, and only there."""
    for call, tensors in _calls(OPERATORS[name]):
        if _error(call, tensors) is None:
            continue  # only refused on another device
        for made, values in ((_unused, (0,)), (_in_an_arm, (0, 1, 0))):
            function = made(call)
            compiled = stretto.compile(function, backend="interpreter")
            for value in values:
                given = [torch.tensor(value), *tensors]
                wanted, found = _error(function, given), _error(compiled, given)
                if isinstance(found, stretto.CaptureError):
                    break
                message = f"{made.__name__}, {value}: eager says {wanted!r}, found {found!r}"
                assert (wanted is None) == (found is None), message


SELECTIONS = {
    "vector": (8, [0], ((6,), (2,), (1, 2), (2, 1), (1, 1, 1), (1,))),
    "rows": ((4, 3), [0, 2], ((2, 3), (3,), (2, 1), (1,), (2,), (3, 3), (4, 2, 3), (1, 2, 3))),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
def test_values_that_do_not_fit_a_selection(name: str, dynamic: bool, accumulate: bool) -> None:
    shape, places, values = SELECTIONS[name]

    def put(y: Tensor, z: Tensor) -> Tensor:
        return y.index_put((torch.tensor(places),), z, accumulate)

    compiled = stretto.compile(put, dynamic=dynamic)
    for size in values:
        y, z = torch.zeros(shape), torch.ones(size)
        wanted, found = _error(put, [y, z]), _error(compiled, [y, z])
        assert (wanted is None) == (found is None), f"{size}: {wanted!r}, found {found!r}"
        if wanted is None:
            torch.testing.assert_close(compiled(y, z), put(y, z))


def test_dtypes_that_eager_refuses_are_refused_at_every_size() -> None:
    def program(matrix: Tensor, vector: Tensor) -> Tensor:
        return matrix @ vector

    compiled = stretto.compile(program, backend="interpreter")
    for size in (4, 3, 5, 4):
        matrix, vector = torch.rand(size, size), torch.rand(size)
        torch.testing.assert_close(compiled(matrix, vector), program(matrix, vector))
        for pair in ((matrix.double(), vector), (matrix, vector.double())):
            with pytest.raises(RuntimeError, match="must have the same dtype"):
                compiled(*pair)
