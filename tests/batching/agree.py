"""Compares an InstanceProgram, run by the interpreter, with the function that it was made of."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from stretto.batching.frontend import Evaluation, Observer, evaluate
from stretto.batching.instance_program import InstanceProgram
from stretto.batching.interpreter import UNSET, interpret
from stretto.batching.primitives import has_type
from stretto.ir.core import Variable
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    TupleType,
    alternatives,
)
from tests.batching.texts import assert_reads_back


def program_of(function: Callable[..., Any], *columns: Sequence[Any]) -> InstanceProgram:
    """The program of a function, made for the types of some instances."""
    evaluation = Evaluation()
    observer = Observer(evaluation)
    parameters = [
        (f"p{number}", observer.observe(column, number, f"argument {number}"))
        for number, column in enumerate(columns)
    ]
    with torch.no_grad():
        return evaluate(function, parameters, evaluation)


def check(function: Callable[..., Any], *columns: Sequence[Any]) -> InstanceProgram:
    """Asserts that the program gives what the function gives for each instance: results with
    their types and the objects that they share, exceptions with their messages, and what became
    of the arguments. Each value must have the type that the program says."""
    program = assert_reads_back(program_of(function, *columns))
    for args in zip(*columns, strict=True):
        compare(program, function, args)
    return program


def compare(
    program: InstanceProgram,
    function: Callable[..., Any],
    args: Sequence[Any],
    order: Callable[[int], Iterable[int]] = range,
) -> None:
    """Asserts that the program gives for one instance what the function gives. order: that in which
    concurrent bodies run."""
    ours, theirs = copy.deepcopy(tuple(args)), copy.deepcopy(tuple(args))
    with torch.no_grad():
        wanted = outcome(lambda: function(*theirs))
        found = outcome(
            lambda: interpret(program, ours, lambda v, x: assert_typed(program, v, x), order)
        )
    if isinstance(wanted, BaseException) or isinstance(found, BaseException):
        shown = f"wanted {wanted!r}, found {found!r} for {args!r}"
        if isinstance(wanted, RecursionError) and isinstance(found, RecursionError):
            return  # its message depends on what was called last
        if isinstance(wanted, NameError) and isinstance(found, NameError):
            return  # which of its classes depends on the version of Python, in comprehensions
        assert type(wanted) is type(found), shown
        assert str(wanted) == str(found), shown
        return
    seen: dict[int, Any] = {}
    difference = differs((wanted, theirs), (found, ours), "result", seen, {})
    assert difference is None, f"{difference}: wanted {wanted!r}, found {found!r} for {args!r}"


def outcome(run: Callable[[], Any]) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        return run()
    except AssertionError as error:
        if error.args[:1] == (BROKEN,):
            raise
        return error
    except Exception as error:
        return error


BROKEN = "a value has not the type that the program says"


def assert_typed(program: InstanceProgram, variable: Variable, value: Any) -> None:
    """Asserts that a value has the type of its variable, down to what lists and objects hold."""
    wrong = _untyped(program, value, variable.type, variable.name, set())
    if wrong is not None:
        raise AssertionError(BROKEN, wrong)


def _untyped(
    program: InstanceProgram,
    value: Any,
    type_: DataType,
    path: str,
    seen: set[tuple[int, DataType]],
) -> str | None:
    if value is UNSET or (id(value), type_) in seen:
        return None
    seen.add((id(value), type_))
    kinds = [k for k in alternatives(type_) if has_type(program, value, k)]
    if len(kinds) > 1:
        tries = [_untyped(program, value, kind, path, seen) for kind in kinds]
        return None if None in tries else tries[0]
    if not kinds:
        return f"{path} = {value!r} is not {type_}"
    (kind,) = kinds
    parts: list[tuple[Any, DataType, str]] = []
    match kind:
        case RecordType(number):
            info = program.classes[number]
            for name, cell in zip(info.fields, info.cells, strict=True):
                held = value if type(value) is dict else None
                item = held.get(name) if held is not None else getattr(value, name, held)
                if (held is not None and name in held) or (held is None and hasattr(value, name)):
                    parts.append((item, program.cells[cell], f"{path}.{name}"))
        case TupleType(items):
            parts = [
                (v, t, f"{path}[{i}]") for i, (v, t) in enumerate(zip(value, items, strict=True))
            ]
        case ListType(cell):
            parts = [(v, program.cells[cell], f"{path}[{i}]") for i, v in enumerate(value)]
        case DictType(key, cell):
            parts = [(k, key, f"a key of {path}") for k in value]
            parts += [(v, program.cells[cell], f"{path}[{k!r}]") for k, v in value.items()]
        case _:
            pass
    for part, wanted, where in parts:
        wrong = _untyped(program, part, wanted, where, seen)
        if wrong is not None:
            return wrong
    return None


def differs(
    wanted: Any, found: Any, path: str, seen: dict[int, Any], back: dict[int, Any]
) -> str | None:
    """Where two values differ; None where they are the same data with the same sharing."""
    if type(wanted) is not type(found):
        return f"{path} is {type(found).__name__}, not {type(wanted).__name__}"
    if isinstance(wanted, torch.Tensor):
        same = wanted.dtype == found.dtype and wanted.shape == found.shape
        close = same and torch.allclose(wanted, found, atol=1e-5, equal_nan=True)
        return None if close else path
    if isinstance(wanted, float):
        close = abs(wanted - found) <= 1e-5 * max(1.0, abs(wanted)) or wanted == found
        return None if close or (wanted != wanted and found != found) else path
    if wanted is None or isinstance(wanted, int | str | bool | type):
        return None if wanted == found else path
    mutable = not isinstance(wanted, tuple)
    if mutable and (id(wanted) in seen or id(found) in back):
        shared = seen.get(id(wanted)) is found and back.get(id(found)) is wanted
        return None if shared else f"{path} is shared otherwise"
    if mutable:
        seen[id(wanted)], back[id(found)] = found, wanted
    if isinstance(wanted, dict):
        if list(wanted) != list(found):
            return f"the keys of {path}"
        pairs = [(wanted[k], found[k], f"{path}[{k!r}]") for k in wanted]
    elif isinstance(wanted, list | tuple):
        if len(wanted) != len(found):
            return f"the length of {path}"
        pairs = [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(wanted, found, strict=True))]
    else:
        if set(vars(wanted)) != set(vars(found)):
            return f"the fields of {path}"
        pairs = [(v, vars(found)[k], f"{path}.{k}") for k, v in vars(wanted).items()]
    for a, b, where in pairs:
        wrong = differs(a, b, where, seen, back)
        if wrong is not None:
            return wrong
    return None
