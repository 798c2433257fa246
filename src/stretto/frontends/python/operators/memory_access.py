"""Tensor methods that access memory directly instead of calling an operator, and overlapping
writes.

During a capture a traced tensor has no memory, and the memory of a real one need not hold
its contents at this point of the program. So these methods are replaced: those that read
use `contents`, and the others are refused.
"""

from __future__ import annotations

import weakref
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
    """Replace the methods during a capture."""
    before = [(kind, name, vars(kind).get(name)) for kind, name in _REPLACED]
    try:
        for (kind, name), replace in _REPLACED.items():
            setattr(kind, name, _asked_by_user(getattr(kind, name), replace))
        yield
    finally:
        for kind, name, own in before:
            delattr(kind, name) if own is None else setattr(kind, name, own)


def _asked_by_user(original: Method, replace: Callable[[Method], Method]) -> Method:
    """Return the method to install instead of `original`. Other threads, the tracer, and torch
    below an operator still get the original one."""
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
    """Return a method that reads the contents of the tensor; its result shares no memory
    with it."""

    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        held = content(tensor, f"value for '{original.__name__}'")
        with tracer().native():
            return original(held, *args, **kwargs)

    return read


def _array(original: Method) -> Method:
    """Return a method that makes a read-only NumPy array of the contents. In eager PyTorch the
    array shares the tensor's memory, so neither may be changed here while the array exists."""

    def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        held = content(tensor, "NumPy array")
        with tracer().native():
            shared = original(held, *args, **kwargs)
            array = shared.copy(order="K")
            is_shared = shared.ctypes.data == held.data_ptr()
        array.setflags(write=False)
        if is_shared:
            tracer().arrays.append((weakref.ref(array), tensor))
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
            f"'{original.__name__}' accesses the memory of a tensor, which a program may place "
            "elsewhere",
            "use torch operators, call it outside of the compiled function, or compile with "
            "fallback=True",
        )

    return refuse


def _address(original: Method) -> Method:
    """Return a method that returns the address of a real tensor, which guards check."""

    def address(tensor: Any) -> Any:
        if isinstance(tensor, TracedTensor):
            _refused(original)(tensor)
        tracer().read_values[id(tensor)] = tensor
        return original(tensor)

    return address


_REFUSED = (
    "__dlpack__", "__reduce_ex__", "_typed_storage", "apply_", "is_pinned", "map2_", "map_",
    "pin_memory", "share_memory_", "storage", "untyped_storage",
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


# ---- Writes through views to elements that another operand reads, as in `x[1:].add_(x[:-1])`.
#
# A kernel reads and writes element by element, so the result depends on its order. The pure form of
# an operator has no such order. Eager PyTorch refuses most of these calls; a trial run finds out if
# it does. If it accepts a call whose result depends on the order, the call is a CaptureError.
#
# The refusal of eager PyTorch may depend on strides. If these are known only at run time, the call
# is refused if its order matters, and computed otherwise.


MOST = 1 << 26
"""Maximum number of elements of a memory for which eager PyTorch is tried."""

_MESSAGE = "refer to a single memory location", "refers to a single memory location"

_TRIALS = 3
"""Number of different contents with which a call is tried."""


def check_overlap(func: Any, args: Any, kwargs: Any, targets: Sequence[Any]) -> None:
    """Raise an error if `func` writes to `targets`, and another operand or another element of a
    target shares their memory in part. Views at positions known only at run time are not
    checked."""
    given = tensors_of((args, kwargs))
    if len(given) == 1 and not _repeats(given[0]):
        return
    state = tracer()
    traced = {id(item): _traced(state, item) for item in given}
    elementwise = properties(str(func)).elementwise
    if not any(_may_overlap(item, targets, given, traced, elementwise) for item in targets):
        return
    with state.native():
        _try_in_eager(func, args, kwargs, targets, traced)


def _try_in_eager(func: Any, args: Any, kwargs: Any, targets: Sequence[Any], traced: Any) -> None:
    """Make the call on real tensors that share memory as the traced ones do, and raise its
    error."""
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
            f"{func} writes elements that it also reads at another position; the result depends "
            "on the order in which eager PyTorch processes them",
            "call clone() on the tensor that is read",
        )


def _is_as_pure(
    func: Any, args: Any, kwargs: Any, targets: Sequence[Any], traced: Any, trial: int, apart: bool
) -> bool:
    """True if the result is the same when the operands that are read are copies."""
    one, other = (_real_tensors(traced, targets, trial, apart) for _ in range(2))
    assert one is not None and other is not None
    copied = {name: item.clone() for name, item in other.items()}
    problems = [
        _error_of(func, args, kwargs, one),
        _error_of(func, args, kwargs, other, copied),
    ]
    if any(problems):
        return all(problems)  # the operator refuses the values of this trial
    return all(
        torch.allclose(one[id(item)].double(), other[id(item)].double(), equal_nan=True)
        for item in targets
    )


def _error_of(
    func: Any, args: Any, kwargs: Any, written: Any, read: Any = None
) -> Exception | None:
    """Return the error of `func` on real tensors: `written` for operands that it changes, `read`
    for the others."""

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
    """True if a tensor has several elements at one address."""
    return 0 in item.stride()


def _may_overlap(
    target: Any, targets: Sequence[Any], given: Iterable[Any], traced: Any, elementwise: bool
) -> bool:
    """True if a trial is needed. Mostly an operator reads other memory, or it processes all
    operands element by element and reads exactly the elements that it writes."""
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
        and _ranges_overlap(own.fake, other.fake)
        for other in others
    )


def _ranges_overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the ranges from the first to the last element of two views of a memory overlap, or
    may for sizes known only at run time."""
    if _is_symbolic(one) or _is_symbolic(other):
        return True
    if 0 in (*one.shape, *other.shape):
        return False
    (first, last), (begin, end) = map(_range_of, (one, other))
    return first <= end and begin <= last


def _is_symbolic(item: torch.Tensor) -> bool:
    """True if the layout of the tensor depends on sizes of the call."""
    used = (*item.shape, *item.stride(), item.storage_offset(), item.untyped_storage().nbytes())
    return any(isinstance(size, torch.SymInt) for size in used)


def _range_of(item: torch.Tensor) -> tuple[int, int]:
    start = int(item.storage_offset())
    dims = zip(item.shape, item.stride(), strict=True)
    return start, start + sum((size - 1) * stride for size, stride in dims)


def _real_tensors(
    traced: dict[int, TracedTensor], targets: Sequence[Any], trial: int | None, apart: bool
) -> dict[int, torch.Tensor] | None:
    """Return real tensors that share memory as the traced ones do, filled with zeros or, in a
    trial, with different numbers.

    None if the addresses of the elements are not known, or there are too many. apart: unused
    elements are between the others, so that eager PyTorch cannot tell if two views overlap.
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
    """Return the contents of a memory. Integers that are not changed may be positions, so they are
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
