"""Reads the text of a size, such as `2*n + 1` or `max(0, n - 3)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from stretto.errors import VerifyError
from stretto.ir.size_bounds import at_most, maximum, minimum, with_maximum_outside
from stretto.ir.sizes import Size, Symbol


def parse_size(text: str, symbols: Mapping[str, Symbol] | None = None) -> int | Size:
    """The size that a text says; a name that is not in `symbols` has the default range.

    VerifyError for what is not a formula over names.
    """
    known = symbols or {}
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise VerifyError(f"the size `{text}` is not a name or a formula over names") from None
    return with_maximum_outside(_read(tree, known)).dim


_CALLS: dict[str, Callable[..., Size]] = {"max": maximum, "min": minimum}


def _read(node: ast.expr, known: Mapping[str, Symbol]) -> Size:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return Size(const=value)
        case ast.Name(id=name):
            return Size.of(known.get(name) or Symbol(name))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand, known)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _read(left, known) + _read(right, known)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _read(left, known) - _read(right, known)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _read(left, known) * _read(right, known)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod() as op, right=right):
            divisor = _read(right, known)
            if not at_most(1, divisor):
                raise VerifyError(f"the divisor in the size `{ast.unparse(node)}` may be 0")
            size = _read(left, known)
            return size // divisor if isinstance(op, ast.FloorDiv) else size % divisor
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as items, keywords=[]):
            if name in _CALLS:
                return _CALLS[name](*(_read(item, known) for item in items))
        case _:
            pass
    raise VerifyError(f"`{ast.unparse(node)}` is not a formula that sizes may have")
