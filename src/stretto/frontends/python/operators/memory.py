"""Methods of tensors that look at memory themselves, in place of calling an operator.

While a function is captured, a traced tensor has no memory, and what is in that of a real one need
not be what it holds at this point of the program. So these methods are replaced meanwhile: those
that read return what `contents` says, and the others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from stretto.frontends.python.tracing.contents import content
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import active, tracer

Method = Callable[..., Any]


@contextmanager
def replaced_methods() -> Generator[None]:
    """Replaces the methods while a function is captured."""
    before = [(kind, name, vars(kind).get(name)) for kind, name in _REPLACED]
    try:
        for (kind, name), replace in _REPLACED.items():
            setattr(kind, name, _asked_by_user(getattr(kind, name), replace))
        yield
    finally:
        for kind, name, own in before:
            delattr(kind, name) if own is None else setattr(kind, name, own)


def _asked_by_user(original: Method, replace: Callable[[Method], Method]) -> Method:
    """The method that is called in the place of `original`. Other threads, the tracer, and torch
    below an operator get the original one."""
    replacement = replace(original)

    def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        state = active()
        if state is None or state.is_native or isinstance(tensor, FakeTensor) or not _is_recorded():
            return original(tensor, *args, **kwargs)
        return replacement(tensor, *args, **kwargs)

    method.__name__ = original.__name__
    return method


def _is_recorded() -> bool:
    return torch._C._len_torch_dispatch_stack() > 0  # pyright: ignore


def _reading(original: Method) -> Method:
    """The result of the method for what the tensor holds, which shares no memory with it."""

    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        held = content(tensor, f"value for '{original.__name__}'")
        with tracer().native():
            return original(held, *args, **kwargs)

    return read


def _array(original: Method) -> Method:
    """A NumPy array with what the tensor holds. In eager PyTorch it is the memory of the tensor, so
    here neither may be changed."""

    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        held = content(tensor, "NumPy array")
        with tracer().native():
            array = original(held, *args, **kwargs).copy()
        array.setflags(write=False)
        return array

    return read


def _new_array(original: Method) -> Method:
    read = _array(original)

    def convert(tensor: Any, dtype: Any = None, copy: Any = None) -> Any:
        array = read(tensor) if dtype is None else read(tensor, dtype)
        return array.copy() if copy else array

    return convert


def _cloned(original: Method) -> Method:
    return lambda tensor, memo: tensor.clone()


def _refused(original: Method) -> Method:
    def refuse(tensor: Any, *args: Any, **kwargs: Any) -> NoReturn:
        fail(
            f"'{original.__name__}' is about the memory of a tensor, which a program may place "
            "elsewhere",
            "use torch operators, call it outside of the compiled function, or compile with "
            "fallback=True",
        )

    return refuse


def _address(original: Method) -> Method:
    """The address of a real tensor, which guards check."""

    def address(tensor: Any) -> Any:
        if isinstance(tensor, TracedTensor):
            _refused(original)(tensor)
        tracer().read_values[id(tensor)] = tensor
        return original(tensor)

    return address


_REFUSED = (
    "__dlpack__", "__reduce_ex__", "_typed_storage", "apply_", "map2_", "map_", "share_memory_",
    "storage", "untyped_storage",
)  # fmt: skip
_REPLACED: dict[tuple[type, str], Callable[[Method], Method]] = {
    (torch.Tensor, "tolist"): _reading,
    (torch.Tensor, "__repr__"): _reading,
    (torch.Tensor, "numpy"): _array,
    (torch.Tensor, "__array__"): _new_array,
    (torch.Tensor, "__deepcopy__"): _cloned,
    (torch.Tensor, "data_ptr"): _address,
    **{(torch.Tensor, name): _refused for name in _REFUSED},
    (nn.Parameter, "__reduce_ex__"): _refused,
}
