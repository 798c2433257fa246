"""Exceptions that depend on the run: checks, and arms of traced branches that raise.

An exception that leaves an arm while it is traced becomes, at that place of the Program, a
check that always fails. So an arm may raise, or use an operator on types that the operator
refuses: eager PyTorch raises when it gets there, and so does the compiled program.
"""

from __future__ import annotations

import dis
import os
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import torch

from stretto.errors import RaisesInPython, SourceLocation, StrettoError
from stretto.frontends.python.tracing.locations import is_user_file, located
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.scalars import flag_of, logical
from stretto.ir.core import Block, Value
from stretto.ir.data import RaiseOp
from stretto.ir.failure import Failure, eager_class
from stretto.ir.ops import CheckOp, ConstantOp, IfOp, LiteralOp, TensorOp
from stretto.ir.types import DType
from stretto.ops.effects import is_draw

_STRETTO = str(Path(__file__).parents[3])
_TORCH = str(Path(torch.__file__).parent)
_OF_OPERATORS = (RuntimeError, IndexError, ValueError, ZeroDivisionError, OverflowError)
"""Error classes of operators, which the capture runs instead of eager PyTorch."""
_FOR_THE_USER = tuple(
    str(Path(__file__).parents[1] / name)
    for name in (
        "calls/builtins.py",
        "calls/arguments.py",
        "calls/texts.py",
        "lists/sources.py",
        "interpreter/host.py",
        "interpreter/native_calls.py",
        "lists/indexing.py",
        "tracing/tensor.py",
        "values/either.py",
        "values/number_methods.py",
    )
)
"""Files of the capture that act for the user's code: eager PyTorch raises their errors too."""
_OF_THE_CAPTURE = tuple(
    os.path.join(Path(__file__).parents[1], part)
    for part in ("aliasing/", "guards/", "interpreter/", "results/", "source/", "tracing/")
)
"""Folders whose code indexes only its own values."""
_RAISE = dis.opmap["RAISE_VARARGS"]
"""Opcode of `raise`: an explicit `raise` in the capture raises eager's error, or a CaptureError."""
_INDEXING = frozenset(
    dis.opmap[name]
    for name in ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR", "UNPACK_SEQUENCE", "UNPACK_EX")
)
_OF_NAMES = frozenset(
    dis.opmap[name]
    for name in (
        *("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_FAST", "LOAD_DEREF"),
        *("LOAD_FAST_CHECK", "LOAD_GLOBAL"),
    )
    if name in dis.opmap
)
"""Opcodes that read an attribute or a variable: the host reads those of the program by a call."""
_NEVER = (StrettoError, RecursionError, MemoryError)


@dataclass(eq=False, slots=True)
class RaisingArm:
    """An arm that ends by raising. The last op of its region stops the run."""

    region: TracedRegion
    error: Exception
    failure: Failure
    location: SourceLocation | None
    trace: TracebackType | None

    def again(self) -> Exception:
        """Return the error, with the traceback it had when it left the arm."""
        return self.error.with_traceback(self.trace)


def check(condition: Any, error: str, message: str, detail: Value | None = None) -> None:
    """Stop the run, unless `condition` holds, with the error that eager PyTorch raises.

    condition: a traced tensor of one element, or a bool. error: the name of the class. detail:
    an i64 value for the `{}` in the message.
    """
    if isinstance(condition, TracedTensor):
        require(flag_of(condition), Failure(error, message), detail)
    elif not condition:
        raise eager_class(error)(message)


def require(flag: Value, failure: Failure, detail: Value | None = None) -> CheckOp:
    """Emit a check of a flag at the user's line."""
    raised = failure.raised
    tracer().tries.refuse(type(raised) if raised else eager_class(failure.error))
    op = CheckOp(flag, failure, detail)
    tracer().emit(op, ())
    return op


def raises(error: Exception) -> bool:
    """True if eager PyTorch raises `error` at the same place. False for a bug of the capture."""
    if isinstance(error, _NEVER) or type(error).__module__.startswith(("torch.fx", "torch._sub")):
        return False
    place = _innermost(error)
    if place is None:
        return True
    code = place.tb_frame.f_code
    if not code.co_filename.startswith(_STRETTO) or is_user_file(code.co_filename):
        return True
    instruction = code.co_code[place.tb_lasti]
    if instruction in _OF_NAMES:
        return False
    if is_by_statement(code) or code.co_filename in _FOR_THE_USER or code.co_name == "infer":
        return True
    if instruction == _RAISE:
        return not isinstance(error, AssertionError)
    if instruction in _INDEXING and code.co_filename.startswith(_OF_THE_CAPTURE):
        return False
    return isinstance(error, _OF_OPERATORS)


def stop_at(region: TracedRegion, error: Exception) -> RaisingArm:
    """Emit the op that raises `error`, at the end of the open region that it left."""
    tracer().tries.refuse(type(error))
    trace, place, failure = error.__traceback__, place_of(error), _failure(error)
    op: CheckOp | RaiseOp
    if tracer().data is not None and shows_values(error):
        op = tracer().data.raise_op(error)
        tracer().emit(op, ())
    else:
        op = require(tracer().literal(False, DType.BOOL), failure)
    op.location = place or op.location
    return RaisingArm(region, error, failure, op.location, trace)


def leave(flag: Value, when: bool, raised: RaisingArm) -> None:
    """Emit the raising arm of a branch, which runs if `flag` is `when`."""
    block = raised.region.scope.block
    if isinstance(block.ops[-1], CheckOp) and all(
        isinstance(op, TensorOp | LiteralOp | ConstantOp) and not is_draw(op)
        for op in block.ops[:-1]
    ):
        require(logical("not", flag) if when else flag, raised.failure).location = raised.location
        return
    arms = (block, Block()) if when else (Block(), block)
    tracer().place(IfOp(flag, *arms), ())


def shows_values(error: BaseException) -> bool:
    """True if an exception holds traced values, or texts that show some."""
    pending, seen = list[Any]([error]), set[int]()
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor | Either) or hasattr(value, "stretto_pieces"):
            return True
        if isinstance(value, BaseException) and id(value) not in seen:
            seen.add(id(value))
            pending += [value.args, vars(value), value.__cause__]
        elif isinstance(value, dict | list | tuple):
            pending += value.values() if isinstance(value, dict) else value
    return False


def is_of_user(error: Exception) -> bool:
    """True if the user's code raises the error, not an operator."""
    code = _raising(error)
    return code is not None and (is_user_file(code.co_filename) or is_by_statement(code))


def is_by_statement(code: CodeType) -> bool:
    """True for the code by which a `raise` or an `assert` of the user raises."""
    return code.co_filename.startswith(_STRETTO) and code.co_name in ("fails", "simple_raise")


def is_of_library(error: Exception) -> bool:
    """True if the error comes from a function that the tracer does not trace: a C function called
    by it, or one of Python's library."""
    code = _raising(error)
    if code is None or code.co_filename.startswith(_STRETTO):
        return code is not None and (code.co_name in ("_native", "setattr"))
    return not is_user_file(code.co_filename) and not code.co_filename.startswith(_TORCH)


def _failure(error: Exception) -> Failure:
    if shows_values(error):
        name = type(error).__name__
        return Failure(RaisesInPython.__name__, f"the {name} here shows values of the run")
    if not is_of_user(error) and eager_class(type(error).__name__) is type(error):
        return Failure(type(error).__name__, str(error))
    return Failure.of(error.with_traceback(None))


def _raising(error: Exception) -> CodeType | None:
    """Return the code that raised the error, or None."""
    place = _innermost(error)
    return None if place is None else place.tb_frame.f_code


def _innermost(error: Exception) -> TracebackType | None:
    """Return the innermost traceback entry of the error, or None."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place


def place_of(error: Exception) -> SourceLocation | None:
    """Return the innermost user line that the error passed through, or None."""
    place = None
    at = error.__traceback__
    while at is not None:
        if is_user_file(at.tb_frame.f_code.co_filename):
            place = located(at.tb_frame.f_code, at.tb_lasti)
        at = at.tb_next
    return place
