"""Which programs of a file are refused. A text may name any operator that this process knows, and
asking torch for the type of a result already calls it, so names come first."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator
from math import prod

from stretto.errors import LoadError
from stretto.ir.core import Program, Value
from stretto.ir.ops import TensorOp
from stretto.ir.types import ListType, TensorType
from stretto.ir.verifier import verify
from stretto.ops.infer import resolve

NAMESPACES = ("aten", "stretto")
"""Libraries of operators that every program may use."""

_FORBIDDEN_WORDS = ("file", "path", "url")
"""Parts of the names of arguments, and of operators, that reach beyond the tensors."""


def check_program(program: Program, namespaces: Collection[str]) -> None:
    """Verifies a program of a file. Raises LoadError, and VerifyError for one that is no program.

    namespaces: libraries that the caller allows besides torch's own operators.
    """
    for op in program.walk():
        if isinstance(op, TensorOp):
            check_operator(op.target, namespaces)
    _check_memory(program)
    verify(program)


def check_operator(target: str, namespaces: Collection[str]) -> None:
    """Raises LoadError for an operator that no program of a file may call."""
    namespace = target.partition(".")[0]
    if namespace not in NAMESPACES and namespace not in namespaces:
        raise LoadError(
            f"a program in the file uses the operator `{target}`, which is not one of torch",
            remedy="if you trust the file, allow it: "
            f'stretto.load(path, namespaces=["{namespace}"])',
        )
    schema = resolve(target)._schema
    words = [schema.name, *(argument.name for argument in schema.arguments)]
    reaches_out = any(part in word for word in words for part in _FORBIDDEN_WORDS)
    if schema.is_mutable or reaches_out:
        raise LoadError(f"a program in the file uses the operator `{target}`, which no program may")


def _check_memory(program: Program) -> None:
    """Raises LoadError for a tensor that is larger than all memory that there is."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for value in _values(program):
        found = value.type.element if isinstance(value.type, ListType) else value.type
        needed = _bytes(found)
        if needed > most:
            raise LoadError(
                f"a program in the file has a tensor of {needed} bytes, type {found}, and this "
                f"machine has {most} bytes of memory"
            )


def _values(program: Program) -> Iterator[Value]:
    for function in program.functions.values():
        yield from function.params
        for op in function.body.walk():
            yield from op.results
            for block in op.blocks:
                yield from block.params


def _bytes(found: TensorType) -> int:
    """Those of the dims that are numbers."""
    return prod(dim for dim in found.shape if isinstance(dim, int)) * found.dtype.itemsize


_ARITHMETIC = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.IfExp, ast.Load,
)  # fmt: skip
_FUNCTIONS = frozenset(
    ("abs", "bool", "float", "int", "max", "min", "round", "math.ceil", "math.floor", "math.pow",
     "math.sqrt", "math.trunc")
)  # fmt: skip


def check_condition(text: str, names: Collection[str]) -> None:
    """Raises LoadError for a condition on sizes that is more than arithmetic with these names: it
    is run as Python. There are no powers of ints, which may take forever."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise LoadError("a condition on sizes is no expression") from error
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=int() | float()):
                continue
            case ast.Name(id=name) if name in names or name in _FUNCTIONS or name == "math":
                continue
            case ast.Attribute() if ast.unparse(node) in _FUNCTIONS:
                continue
            case ast.Call(func=function, keywords=[]) if ast.unparse(function) in _FUNCTIONS:
                continue
            case _ if isinstance(node, _ARITHMETIC):
                continue
            case _:
                raise LoadError(f"a condition on sizes holds {ast.unparse(node)}")
