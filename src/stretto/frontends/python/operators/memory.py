"""Methods of tensors that look at memory themselves, in place of calling an operator.

While a function is captured, a traced tensor has no memory, and what is in that of a real one need
not be what it holds at this point of the program. So these methods are replaced meanwhile: those
that read return what `contents` says, and the others are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from stretto.frontends.python.operators.checks import OF_OPERATORS
from stretto.frontends.python.tracing.contents import content
from stretto.frontends.python.tracing.fakes import tensors_of
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import Storage, TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, active, tracer
from stretto.ops.properties import properties

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


# ---- Checks writes through views to elements that another operand reads, as in
# `x[1:].add_(x[:-1])`.
#
# A kernel reads and writes element by element, so the result depends on its order. The pure form
# of an operator has no such order. Eager PyTorch refuses most of these calls, and is asked
# whether it does. If it accepts a call whose result depends on the order, the call is a
# CaptureError.
#
# Whether eager PyTorch refuses a call may depend on strides. Where these are known only at run
# time, the call is refused if its order matters, and computed otherwise.


MOST = 1 << 26
"""The most elements of a memory for which eager PyTorch is asked."""

_MESSAGE = "refer to a single memory location", "refers to a single memory location"

_TRIALS = 3
"""The number of contents with which a call is tried."""


def check_overlap(func: Any, args: Any, kwargs: Any, targets: Sequence[Any]) -> None:
    """Raises where `func` writes to `targets`, and another operand, or another element of a target,
    is in part in the same memory. Views at positions known at run time are not looked at."""
    given = tensors_of((args, kwargs))
    if len(given) == 1 and not _repeats(given[0]):
        return
    state = tracer()
    traced = {id(item): _traced(state, item) for item in given}
    elementwise = properties(str(func)).elementwise
    if not any(_may_overlap(item, targets, given, traced, elementwise) for item in targets):
        return
    with state.native():
        _ask(func, args, kwargs, targets, traced)


def _ask(func: Any, args: Any, kwargs: Any, targets: Sequence[Any], traced: Any) -> None:
    """Makes the call on real tensors that share memory as the traced ones do."""
    spread = any(item.memory.any_layout for item in traced.values())
    refused = None
    for apart in (False, True) if spread else (False,):
        made = _real_tensors(traced, targets, None, apart)
        if made is None:
            return
        error = _error_of(func, args, kwargs, made)
        if error is None or not any(text in str(error) for text in _MESSAGE):
            break
        refused = error
    else:
        assert refused is not None
        raise refused from None
    shows = any(
        not _is_as_pure(func, args, kwargs, targets, traced, trial, spread)
        for trial in range(_TRIALS)
    )
    if shows and refused is not None:
        raise refused from None
    if shows:
        fail(
            f"{func} writes elements that it reads at another place; the result depends "
            "on the order in which eager PyTorch goes through them",
            "call clone() on the tensor that is read",
        )


def _is_as_pure(
    func: Any, args: Any, kwargs: Any, targets: Sequence[Any], traced: Any, trial: int, apart: bool
) -> bool:
    """Whether the call gives what it gives where the operands that are read are copies."""
    one, other = (_real_tensors(traced, targets, trial, apart) for _ in range(2))
    assert one is not None and other is not None
    copied = {name: item.clone() for name, item in other.items()}
    problems = [
        _error_of(func, args, kwargs, one),
        _error_of(func, args, kwargs, other, copied),
    ]
    if any(problems):
        return all(problems)  # the values of this trial are refused
    return all(
        torch.allclose(one[id(item)].double(), other[id(item)].double(), equal_nan=True)
        for item in targets
    )


def _error_of(
    func: Any, args: Any, kwargs: Any, written: Any, read: Any = None
) -> Exception | None:
    """The error of `func` on real tensors: `written` for what it changes, `read` for all else."""

    def replaced(item: Any, given: dict[int, torch.Tensor]) -> Any:
        return tree_map(lambda x: given[id(x)] if isinstance(x, torch.Tensor) else x, item)

    places = dict[str, Any]()
    for place, parameter in enumerate(func._schema.arguments):
        is_written = parameter.alias_info is not None and parameter.alias_info.is_write
        places[parameter.name] = place, written if is_written or read is None else read
    used = dict(places.values())
    try:
        func(
            *(replaced(item, used[place]) for place, item in enumerate(args)),
            **{name: replaced(item, places[name][1]) for name, item in kwargs.items()},
        )
    except OF_OPERATORS as error:
        return error.with_traceback(None)
    return None


def _traced(state: Tracer, item: torch.Tensor) -> TracedTensor:
    return item if isinstance(item, TracedTensor) else state.promote(item)


def _repeats(item: torch.Tensor) -> bool:
    """Whether a tensor has several elements at one address."""
    return 0 in item.stride()


def _may_overlap(
    target: Any, targets: Sequence[Any], given: Iterable[Any], traced: Any, elementwise: bool
) -> bool:
    """Whether it is worth asking. Mostly an operator reads other memory, or it goes through all
    operands element by element and reads the same elements that it writes."""
    if _repeats(traced[id(target)].fake):
        return True
    own = traced[id(target)]
    written = sum(item is target for item in targets)
    again = sum(item is target for item in given) > written
    if again and not elementwise:
        return True
    others = (traced[id(item)] for item in given if item is not target)
    return any(
        other.memory is own.memory
        and not (elementwise and other.steps == own.steps)
        and _meet(own.fake, other.fake)
        for other in others
    )


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the ranges from the first to the last element of two views of a memory meet. They may
    if sizes are known only at run time."""
    if _is_symbolic(one) or _is_symbolic(other):
        return True
    if 0 in (*one.shape, *other.shape):
        return False
    (first, last), (begin, end) = map(_range_of, (one, other))
    return first <= end and begin <= last


def _is_symbolic(item: torch.Tensor) -> bool:
    """Whether it depends on sizes of the call which elements of which memory it has."""
    used = (*item.shape, *item.stride(), item.storage_offset(), item.untyped_storage().nbytes())
    return any(isinstance(size, torch.SymInt) for size in used)


def _range_of(item: torch.Tensor) -> tuple[int, int]:
    start = int(item.storage_offset())
    dims = zip(item.shape, item.stride(), strict=True)
    return start, start + sum((size - 1) * stride for size, stride in dims)


def _real_tensors(
    traced: dict[int, TracedTensor], targets: Sequence[Any], trial: int | None, apart: bool
) -> dict[int, torch.Tensor] | None:
    """Real tensors that share memory as the traced ones do: of zeros, or, in a trial, of numbers
    that differ.

    None where the place of the elements is not known, or there are very many. apart: unused
    elements lie in between, so that eager PyTorch cannot tell whether two views meet.
    """
    memories: dict[tuple[Storage, torch.dtype], torch.Tensor] = {}
    made: dict[int, torch.Tensor] = {}
    changed = {traced[id(item)].memory for item in targets}
    step = 2 if apart else 1
    for name, item in traced.items():
        fake = item.fake
        if _is_symbolic(fake) or any(view.values for view in item.steps):
            return None
        elements = fake.untyped_storage().nbytes() // fake.element_size()
        if elements > MOST:
            return None
        key = item.memory, fake.dtype
        if key not in memories:
            content = _content(elements, fake.dtype, trial, item.memory in changed)
            memories[key] = content.repeat_interleave(step)
        strides = [stride * step for stride in fake.stride()]
        start = int(fake.storage_offset()) * step
        made[name] = memories[key].as_strided(fake.shape, strides, start)
    return made


def _content(
    elements: int, dtype: torch.dtype, trial: int | None, is_changed: bool
) -> torch.Tensor:
    """The content of a memory. Integers that are not changed may be positions, so they are
    small."""
    if trial is None:
        return torch.zeros(elements, dtype=dtype)
    numbers = torch.arange(elements)
    if dtype is torch.bool:
        return (numbers * 40503 % 97 + trial) % (trial + 2) == 0
    if dtype.is_floating_point:
        return (numbers * 40503 % 97 + trial + 1).to(dtype) / 16
    if is_changed:
        return (numbers * 40503 % 97 + trial + 1).to(dtype)
    positions = (torch.zeros_like(numbers), numbers.flip(0), numbers % 3)
    return positions[trial].to(dtype)
