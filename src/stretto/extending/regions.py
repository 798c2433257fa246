"""Reads the regions of a kernel: `x[..., s, :], cos[s, :] -> [..., s, :]`.

A dim of a tensor is an affine expression of indices (`i`, `2 * i + 1`), some values from one on
(`i : i + 3`), or `:`, the whole. `...` stands for any number of leading dims, which are the same
for all tensors that have them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from stretto.device.user_kernels import Linear, Part, Region

RESULT = "result"


def parse_regions(text: str) -> tuple[tuple[Region, ...], Region]:
    """The regions that are read, and the one that is written. Raises ValueError."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"regions are `what is read -> [what is written]`, and not {text!r}")
    reads = tuple(_region(node, left) for node in _items(left))
    write = _region(_expression(RESULT + right.strip(), right), right)
    _check_write(write, text)
    known = {part.start.name for part in write.parts if part.start is not None}
    for read in reads:
        _check_read(read, write, known, text)
    if len({read.tensor for read in reads}) != len(reads):
        raise ValueError(f"a tensor is listed twice: {text!r}")
    return reads, write


def _items(text: str) -> list[ast.expr]:
    if not text.strip():
        return []
    found = _expression(f"({text.strip()},)", text)
    assert isinstance(found, ast.Tuple)
    return found.elts


def _expression(source: str, text: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"cannot read the regions {text.strip()!r}: {error.msg}") from error


def _region(node: ast.expr, text: str) -> Region:
    match node:
        case ast.Name(id=name):
            return Region(name, False, ())
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            dims = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        case _:
            raise ValueError(f"a region is a name with dims in brackets, and not {text.strip()!r}")
    leads = bool(dims) and _is_ellipsis(dims[0])
    parts = tuple(_part(dim) for dim in (dims[1:] if leads else dims))
    return Region(name, leads, parts)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _part(node: ast.expr) -> Part:
    if _is_ellipsis(node):
        raise ValueError("`...` stands before all dims that are named")
    if not isinstance(node, ast.Slice):
        return Part(_linear(node))
    if node.step is not None:
        raise ValueError(f"a region has no step: {ast.unparse(node)}")
    if node.lower is None and node.upper is None:
        return Part(None)
    if node.lower is None or node.upper is None:
        raise ValueError(f"name both ends of a region, or none: {ast.unparse(node)}")
    first, last = _linear(node.lower), _linear(node.upper)
    if first.terms != last.terms or last.const <= first.const:
        raise ValueError(f"a region has a fixed number of values: {ast.unparse(node)}")
    return Part(first, last.const - first.const)


def _linear(node: ast.expr) -> Linear:
    terms: dict[str, int] = {}
    const = 0
    for name, factor in _terms(node, 1):
        if name is None:
            const += factor
        else:
            terms[name] = terms.get(name, 0) + factor
    return Linear(tuple((name, factor) for name, factor in terms.items() if factor), const)


def _terms(node: ast.expr, factor: int) -> Iterator[tuple[str | None, int]]:
    """Names with their factors; None stands for 1."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield None, factor * value
        case ast.Name(id=name):
            yield name, factor
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            yield from _terms(inner, -factor)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _terms(left, factor)
            yield from _terms(right, factor)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield from _terms(left, factor)
            yield from _terms(right, -factor)
        case ast.BinOp(left=ast.Constant(value=int(value)), op=ast.Mult(), right=inner):
            yield from _terms(inner, factor * value)
        case ast.BinOp(left=inner, op=ast.Mult(), right=ast.Constant(value=int(value))):
            yield from _terms(inner, factor * value)
        case _:
            raise ValueError(
                f"a position is a sum of indices, each times a number: {ast.unparse(node)}"
            )


def _check_write(write: Region, text: str) -> None:
    names = [part.start.name for part in write.parts if part.start is not None]
    if None in names or any(part.length != 1 for part in write.parts):
        raise ValueError(f"dims of the result are indices or `:`, in {text!r}")
    if len(set(names)) != len(names):
        raise ValueError(f"two dims of the result have one index, in {text!r}")


def _check_read(read: Region, write: Region, known: set[str | None], text: str) -> None:
    if read.leads and not write.leads:
        raise ValueError(f"`{read.tensor}` has leading dims, which the result has not: {text!r}")
    seen = set[str]()
    for part in read.parts:
        for name, _ in part.start.terms if part.start is not None else ():
            if name not in known:
                raise ValueError(
                    f"index {name} of `{read.tensor}` is none of the result: write `:` for all "
                    f"values of a dim, or `{name} : {name} + 3` for some, in {text!r}"
                )
            if name in seen:
                raise ValueError(f"`{read.tensor}` has index {name} twice, in {text!r}")
            seen.add(name)
