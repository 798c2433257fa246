"""The interpreter: runs a Program with plain torch calls, op by op. The reference of all tests.

Each op class has one function in `EVALUATE`. A frame is one activation of a function; nested
blocks share it. Every result is checked against its type, so a Program with wrong shapes stops
at the op that is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from stretto.deadline import Deadline
from stretto.errors import RunError
from stretto.interp.type_check import bind_results, bind_values, size_value
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.failure import eager_class, run_error
from stretto.ir.ops import (
    Argument,
    CallOp,
    CheckOp,
    ConstantOp,
    ForOp,
    IfOp,
    ListExtendOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    LiteralOp,
    SizeOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import symbols_of_types
from stretto.ir.text import print_op
from stretto.locks import ForkSafeLock
from stretto.ops.effects import generator_named
from stretto.ops.infer import named_arguments, resolve
from stretto.ops.properties import misfit, relations_of_sizes
from stretto.stack import depth_within_stack

# ---- Python's recursion limit, raised during a run: one Program call is many Python calls -----


_PYTHON_CALLS_PER_CALL = 40
"""Upper limit of the Python calls for one call that is nested in several ifs and loops."""


@dataclass
class _Raised:
    """The number of runs that need a raised limit now, and the limit before the first of them."""

    runs: int = 0
    before: int = 0


_raised = _Raised()
_lock = ForkSafeLock()


@contextmanager
def deep_recursion(depth: int) -> Generator[None]:
    """Raise the recursion limit for Programs that call `depth` deep. Threads may overlap."""
    with _lock:
        if _raised.runs == 0:
            _raised.before = sys.getrecursionlimit()
        _raised.runs += 1
        needed = depth_within_stack(_raised.before + depth * _PYTHON_CALLS_PER_CALL)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), needed))
    try:
        yield
    finally:
        with _lock:
            _raised.runs -= 1
            if _raised.runs == 0:
                sys.setrecursionlimit(_raised.before)


STACK_ENDED = "recursion is deeper than Python's stack allows"

Datum = torch.Tensor | list[torch.Tensor]
"""The run-time form of a value. It is never changed in place."""


@dataclass(slots=True)
class InterpreterFrame:
    """One activation of a function."""

    program: Program
    function: Function
    dtype: torch.dtype | None
    """If not None, every float is computed in this dtype."""
    calls_left: int
    deadline: Deadline = field(default_factory=Deadline)
    values: dict[Value, Datum] = field(default_factory=dict[Value, Datum])
    sizes: dict[Symbol, int] = field(default_factory=dict[Symbol, int])
    """The values of the symbols in scope."""

    def tensor(self, value: Value) -> torch.Tensor:
        datum = self.values[value]
        assert isinstance(datum, torch.Tensor)
        return datum

    def items(self, value: Value) -> list[torch.Tensor]:
        datum = self.values[value]
        assert isinstance(datum, list)
        return datum

    def number(self, value: Value) -> Any:
        return self.tensor(value).item()

    def all(self, values: Iterable[Value]) -> tuple[Datum, ...]:
        return tuple([self.values[value] for value in values])

    def cast(self, datum: Datum) -> Datum:
        """Return the datum with floats in the frame's dtype."""
        if isinstance(datum, list):
            return [_cast(item, self.dtype) for item in datum]
        return _cast(datum, self.dtype)


def run(
    program: Program,
    inputs: Sequence[torch.Tensor | Sequence[torch.Tensor]],
    *,
    dtype: torch.dtype | None = None,
    max_depth: int = 10_000,
    timeout: float | None = None,
) -> tuple[Datum, ...]:
    """Return the results of `main` on `inputs`, which must have the types of its parameters.

    With `dtype=torch.float64` all float inputs, constants and literals are converted first and
    every op computes in it, as a more accurate reference. Results never share memory with inputs.
    Raise the exception of a check that fails, and RunError if an op stops the run, if inputs have
    other types, if recursion is deeper than `max_depth`, and after `timeout` seconds.
    """
    arguments = tuple(item if isinstance(item, torch.Tensor) else list(item) for item in inputs)
    frame = InterpreterFrame(program, program.main, dtype, max_depth, Deadline.after(timeout))
    with torch.no_grad(), _default_dtype(dtype), deep_recursion(max_depth):
        try:
            results = _activate(frame, tuple(frame.cast(item) for item in arguments))
        except RecursionError:
            raise RunError(STACK_ENDED) from None
    return tuple(
        [item.clone() for item in result] if isinstance(result, list) else result.clone()
        for result in results
    )


def evaluate(
    op: Op, operands: Mapping[Value, Datum], sizes: Mapping[Symbol, int]
) -> tuple[Datum, ...]:
    """Return the results of one op (not a constant or a call) for the given operands and symbols.

    Raise RunError if the op stops the run.
    """
    function = Function("main", Block((), [op]))
    frame = InterpreterFrame(
        Program({}), function, None, 0, values=dict(operands), sizes=dict(sizes)
    )
    with torch.no_grad():
        return _run_op(frame, op)


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Generator[None]:
    """Make torch promote integers to `dtype`, if that is not None."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(before if dtype is None else dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _activate(frame: InterpreterFrame, arguments: tuple[Datum, ...]) -> tuple[Datum, ...]:
    """Run the frame's function from its first op."""
    params = frame.function.params
    if len(params) != len(arguments):
        raise RunError(f"@{frame.function.name} takes {len(params)} inputs, not {len(arguments)}")
    bind_values(params, arguments, frame.sizes, frame.dtype)
    return _run_block(frame, frame.function.body, arguments)


def _run_block(
    frame: InterpreterFrame, block: Block, arguments: tuple[Datum, ...] = ()
) -> tuple[Datum, ...]:
    frame.values.update(zip(block.params, arguments, strict=True))
    for op in block.ops:
        frame.values.update(zip(op.results, _run_op(frame, op), strict=True))
    return frame.all(block.yields)


def _run_op(frame: InterpreterFrame, op: Op) -> tuple[Datum, ...]:
    try:
        frame.deadline.check()
        results = EVALUATE[type(op)](frame, op)
        bind_results(op, results, frame.sizes, frame.dtype)
    except RunError as error:
        error.op = error.op or print_op(op, frame.function)
        error.location = error.location or op.location
        raise
    return results


def _constant(frame: InterpreterFrame, op: ConstantOp) -> tuple[Datum, ...]:
    return (frame.cast(frame.program.constants[op.key].detach().contiguous()),)


def _literal(frame: InterpreterFrame, op: LiteralOp) -> tuple[Datum, ...]:
    return (frame.cast(torch.tensor(op.value, dtype=op.result.tensor.dtype.torch)),)


def _size(frame: InterpreterFrame, op: SizeOp) -> tuple[Datum, ...]:
    found, symbol = int(frame.number(op.number)), op.symbol
    if found < symbol.low or (symbol.high is not None and found > symbol.high):
        raise RunError(f"the size {found} is out of the range {symbol.declaration}")
    frame.sizes[symbol] = found
    return (frame.tensor(op.number),)


def _tensor(frame: InterpreterFrame, op: TensorOp) -> tuple[Datum, ...]:
    for relation in relations_of_sizes(op):
        left, right = (size_value(side, frame.sizes) for side in (relation.left, relation.right))
        if not relation.holds(left, right):
            failure = misfit(op, relation)
            raise run_error(eager_class(failure.error), failure.message.format(left))
    overload, count = resolve(op.target), len(op.args)
    items = [
        _argument(frame, item.is_tensor, argument)
        for item, argument in named_arguments(op.target, op.args, op.kwargs)
    ]
    if op.target.startswith("aten.as_strided"):
        items[0] = items[0].clone()  # offsets count from the start of the storage, not of a view
    keywords = {key: item for (key, _), item in zip(op.kwargs, items[count:], strict=True)}
    if "generator" in keywords:
        keywords["generator"] = generator_named(keywords["generator"])
    try:
        result = overload(*items[:count], **keywords)
    except Exception as error:  # torch raises RuntimeError, IndexError, ZeroDivisionError ...
        raise run_error(type(error), str(error).strip()) from error
    # Values have no layout, so results are contiguous: a view of a transposed one is a reshape.
    return tuple([_cast(item, frame.dtype).contiguous() for item in _flatten(result)])


def _argument(frame: InterpreterFrame, is_tensor: bool, argument: Argument) -> Any:
    match argument:
        case Value():
            return frame.tensor(argument) if is_tensor else frame.number(argument)
        case tuple():
            return [_argument(frame, is_tensor, item) for item in argument]
        case Size():
            return size_value(argument, frame.sizes)
        case torch.dtype() if frame.dtype is not None and argument.is_floating_point:
            return frame.dtype
        case _:
            return argument


def _flatten(result: Any) -> list[torch.Tensor]:
    if result is None:
        return []
    if isinstance(result, torch.Tensor):
        return [result]
    return [leaf for item in result for leaf in _flatten(item)]


def _list_new(frame: InterpreterFrame, op: ListNewOp) -> tuple[Datum, ...]:
    return ([frame.tensor(item) for item in op.items],)


def _list_push(frame: InterpreterFrame, op: ListPushOp) -> tuple[Datum, ...]:
    return ([*frame.items(op.list), frame.tensor(op.item)],)


def _list_extend(frame: InterpreterFrame, op: ListExtendOp) -> tuple[Datum, ...]:
    return ([*frame.items(op.list), *frame.tensor(op.rows).unbind()],)


def _list_get(frame: InterpreterFrame, op: ListGetOp) -> tuple[Datum, ...]:
    items, index = frame.items(op.list), frame.number(op.index)
    _check_index(index, len(items), "list index out of range")
    return (items[index],)


def _list_set(frame: InterpreterFrame, op: ListSetOp) -> tuple[Datum, ...]:
    items, index = list(frame.items(op.list)), frame.number(op.index)
    _check_index(index, len(items), "list assignment index out of range")
    items[index] = frame.tensor(op.item)
    return (items,)


def _list_pop(frame: InterpreterFrame, op: ListPopOp) -> tuple[Datum, ...]:
    items = frame.items(op.list)
    if not items:
        raise run_error(IndexError, "pop from empty list")
    return (items[:-1], items[-1])


def _list_length(frame: InterpreterFrame, op: ListLengthOp) -> tuple[Datum, ...]:
    return (torch.tensor(len(frame.items(op.list)), dtype=torch.int64),)


def _list_stack(frame: InterpreterFrame, op: ListStackOp) -> tuple[Datum, ...]:
    items = frame.items(op.list)
    element, leading = op.list.list.element, op.result.tensor.shape[0]
    params = symbols_of_types(value.type for value in frame.function.params)
    if not items and (isinstance(leading, int) or at_most(1, leading)):
        raise run_error(RuntimeError, "stack expects a non-empty TensorList")
    if isinstance(leading, int) or leading.symbol in (None, *params):
        expected = size_value(leading, frame.sizes)
        if expected != len(items):
            raise RunError(f"stack of {len(items)} items where {expected} are expected")
    if not items:
        shape = [size_value(dim, frame.sizes) for dim in element.shape]
        dtype = frame.dtype if element.dtype.is_float and frame.dtype else element.dtype.torch
        return (torch.empty((0, *shape), dtype=dtype),)
    return (torch.stack(items),)


def _check_index(index: int, length: int, message: str) -> None:
    if not -length <= index < length:
        raise run_error(IndexError, message)


def _check(frame: InterpreterFrame, op: CheckOp) -> tuple[Datum, ...]:
    if not frame.number(op.condition):
        detail = None if op.detail is None else frame.number(op.detail)
        raise op.failure.exception(op.location, detail)
    return ()


def _if(frame: InterpreterFrame, op: IfOp) -> tuple[Datum, ...]:
    return _run_block(frame, op.then if frame.number(op.condition) else op.orelse)


def _while(frame: InterpreterFrame, op: WhileOp) -> tuple[Datum, ...]:
    carried = frame.all(op.inits)
    while _is_true(_run_block(frame, op.condition, carried)):
        frame.deadline.check()
        carried = _run_block(frame, op.body, carried)
    return carried


def _is_true(flags: tuple[Datum, ...]) -> bool:
    (flag,) = flags
    assert isinstance(flag, torch.Tensor)
    return bool(flag.item())


def _for(frame: InterpreterFrame, op: ForOp) -> tuple[Datum, ...]:
    start, stop = (
        frame.number(item) if isinstance(item, Value) else size_value(item, frame.sizes)
        for item in (op.start, op.stop)
    )
    carried = frame.all(op.inits)
    for position in range(start, stop, op.step):
        index = torch.tensor(position, dtype=torch.int64)
        carried = _run_block(frame, op.body, (index, *carried))
    return carried


def _call(frame: InterpreterFrame, op: CallOp) -> tuple[Datum, ...]:
    if frame.calls_left == 0:
        raise RunError(
            f"recursion is deeper than allowed at @{op.function}",
            remedy="check that the recursion ends, or allow a greater depth",
        )
    function = frame.program.functions[op.function]
    inner = InterpreterFrame(
        frame.program, function, frame.dtype, frame.calls_left - 1, frame.deadline
    )
    return _activate(inner, frame.all(op.arguments))


def _cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


EVALUATE: dict[type[Op], Callable[[InterpreterFrame, Any], tuple[Datum, ...]]] = {
    ConstantOp: _constant,
    LiteralOp: _literal,
    SizeOp: _size,
    TensorOp: _tensor,
    ListNewOp: _list_new,
    ListPushOp: _list_push,
    ListExtendOp: _list_extend,
    ListGetOp: _list_get,
    ListSetOp: _list_set,
    ListPopOp: _list_pop,
    ListLengthOp: _list_length,
    ListStackOp: _list_stack,
    CheckOp: _check,
    IfOp: _if,
    WhileOp: _while,
    ForOp: _for,
    CallOp: _call,
}
"""The evaluation function of each op class. A stage that adds an op class adds its
function here."""
