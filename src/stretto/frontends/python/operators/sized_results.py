"""Operators of users whose result has as many elements along one dim as data decide.

Their fake function says so by `torch.library.get_ctx().new_dynamic_size()`. In the Program such a
call is two operators: the first one tells how many elements there are, and the second one makes the
result, into memory that is set apart meanwhile. Both call the operator of the user, which is taken
to give the same again, as each of its results is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stretto.frontends.python.operators.eager import OF_OPERATORS
from stretto.frontends.python.tracing.fakes import mapped
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.scalars import to_number
from stretto.frontends.python.values.sizes import bounded_dim
from stretto.ops.symints import SizeEnv

_library = torch.library.Library("stretto_sized", "FRAGMENT")
_OURS = ("aten", "prims", "stretto", "stretto_sized")


@dataclass(frozen=True, slots=True)
class _Form:
    """A result: its sizes, with None for the one that data decide, and its dtype."""

    sizes: tuple[int | None, ...]
    dtype: torch.dtype

    @property
    def dim(self) -> int:
        return self.sizes.index(None)

    def of_size(self, size: Any) -> tuple[Any, ...]:
        return tuple([size if known is None else known for known in self.sizes])


def with_decided_size(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of such an operator; NotImplemented for any other one."""
    if func.namespace in _OURS or [str(item.type) for item in func._schema.returns] != ["Tensor"]:
        return NotImplemented
    form = _form(func, args, kwargs)
    if form is None:
        return NotImplemented
    count, made = _operators(func, form)
    with tracer().mode:
        size: Any = bounded_dim(to_number(count(*args, **kwargs)))
        return made(*args, **kwargs, stretto_size=size)


def _form(func: Any, args: Any, kwargs: Any) -> _Form | None:
    """What the operator gives for operands of these sizes, and also where all that the run or the
    call decides is larger; None where these forms differ."""
    forms = {_form_with(func, args, kwargs, size) for size in (7, 11)}
    (found,) = forms if len(forms) == 1 else (None,)
    return found


def _form_with(func: Any, args: Any, kwargs: Any, size: int) -> _Form | None:
    mode = FakeTensorMode(shape_env=SizeEnv(), allow_non_fake_inputs=False)

    def known(item: Any) -> Any:
        if isinstance(item, torch.SymInt):
            return size
        if not isinstance(item, torch.Tensor):
            return item
        shape = [size if isinstance(dim, torch.SymInt) else dim for dim in item.shape]
        return torch.empty(shape, dtype=item.dtype, device=item.device)

    try:
        with tracer().native(), mode:
            named = {name: mapped(known, item) for name, item in kwargs.items()}
            found = func(*mapped(known, args), **named)
    except OF_OPERATORS:  # it has no fake function, or that refuses these sizes
        return None
    if not isinstance(found, torch.Tensor):
        return None
    sizes = tuple([None if isinstance(dim, torch.SymInt) else int(dim) for dim in found.shape])
    return _Form(sizes, found.dtype) if sizes.count(None) == 1 else None


@cache
def _operators(func: Any, form: _Form) -> tuple[Any, Any]:
    """The two operators for one of a user's whose result has this form."""
    name = "_".join((*str(func).split("."), str(_operators.cache_info().currsize)))
    text = str(func._schema)
    given = text[text.index("(") + 1 : text.rindex(") ->")]
    mark = "" if "*" in given else "*, "
    _library.define(f"{name}_count({given}) -> Tensor")
    _library.define(f"{name}({given}, {mark}SymInt stretto_size) -> Tensor")

    def count(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = func(*args, **kwargs)
        return torch.full((), found.shape[form.dim], dtype=torch.int64, device=found.device)

    def fake_count(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _like(args, kwargs, (), torch.int64)

    def made(*args: Any, stretto_size: int, **kwargs: Any) -> torch.Tensor:
        found = func(*args, **kwargs)
        if tuple(found.shape) != form.of_size(stretto_size):
            raise RuntimeError(f"{func} gives another number of elements when it is called again")
        return found

    def fake_made(*args: Any, stretto_size: Any, **kwargs: Any) -> torch.Tensor:
        return _like(args, kwargs, form.of_size(stretto_size), form.dtype)

    for suffix, kernel, fake in (("_count", count, fake_count), ("", made, fake_made)):
        _library.impl(f"{name}{suffix}", kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"stretto_sized::{name}{suffix}", fake, lib=_library)
    space = torch.ops.stretto_sized
    return getattr(space, f"{name}_count").default, getattr(space, name).default


def _like(args: Any, kwargs: Any, shape: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor on the device of the first tensor among the arguments."""
    tensors = [item for item in (*args, *kwargs.values()) if isinstance(item, torch.Tensor)]
    return torch.empty(shape, dtype=dtype, device=tensors[0].device if tensors else None)
