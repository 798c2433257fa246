"""`stretto.kernel`: declaration of a user's tile function for an operator of torch."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from stretto.device.user_kernels import DeclaredPart, DeclaredRegion, Linear, UserKernel, register
from stretto.errors import SourceLocation
from stretto.extending.check import check
from stretto.extending.triton_source import read_triton
from stretto.ir.types import DType
from stretto.ops.infer import resolve

# ---- Parser of the regions of a kernel: `x[..., s, :], cos[s, :] -> [..., s, :]`.
#
# A dim of a tensor is an affine expression of indices (`i`, `2 * i + 1`), a range of fixed length
# (`i : i + 3`), or `:`, the whole. `...` represents any number of leading dims, which are the
# same for all tensors that have them.


RESULT = "result"


def parse_regions(text: str) -> tuple[tuple[DeclaredRegion, ...], DeclaredRegion]:
    """Return the regions that a kernel reads, and the one that it writes. Raise ValueError for
    wrong text."""
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"regions have the form `x[i], ... -> [i]`, unlike {text!r}")
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


def _region(node: ast.expr, text: str) -> DeclaredRegion:
    match node:
        case ast.Name(id=name):
            return DeclaredRegion(name, False, ())
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            dims = list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
        case _:
            raise ValueError(f"a region is a name with dims in brackets, and not {text.strip()!r}")
    leads = bool(dims) and _is_ellipsis(dims[0])
    parts = tuple(_part(dim) for dim in (dims[1:] if leads else dims))
    return DeclaredRegion(name, leads, parts)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _part(node: ast.expr) -> DeclaredPart:
    if _is_ellipsis(node):
        raise ValueError("`...` must come before all dims that are named")
    if not isinstance(node, ast.Slice):
        return DeclaredPart(_linear(node))
    if node.step is not None:
        raise ValueError(f"a region must have no step: {ast.unparse(node)}")
    if node.lower is None and node.upper is None:
        return DeclaredPart(None)
    if node.lower is None or node.upper is None:
        raise ValueError(f"name both ends of a region, or none: {ast.unparse(node)}")
    first, last = _linear(node.lower), _linear(node.upper)
    if first.terms != last.terms or last.const <= first.const:
        raise ValueError(f"a region must have a fixed number of values: {ast.unparse(node)}")
    return DeclaredPart(first, last.const - first.const)


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
    """Yield the names of a sum with their factors; None for the constant term."""
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
                f"a position must be a sum of indices, each times a number: {ast.unparse(node)}"
            )


def _check_write(write: DeclaredRegion, text: str) -> None:
    names = [part.start.name for part in write.parts if part.start is not None]
    if None in names or any(part.length != 1 for part in write.parts):
        raise ValueError(f"dims of the result must be indices or `:`, in {text!r}")
    if len(set(names)) != len(names):
        raise ValueError(f"two dims of the result have one index, in {text!r}")


def _check_read(
    read: DeclaredRegion, write: DeclaredRegion, known: set[str | None], text: str
) -> None:
    if read.leads and not write.leads:
        raise ValueError(f"`{read.tensor}` has leading dims but the result has none: {text!r}")
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


_NUMBERS = {"float": "f64", "int": "i64", "SymInt": "i64", "bool": "bool", "number": "f64"}
"""The dtype in which a kernel receives a number, by its type in the schema."""


class Kernels:
    """The type of `stretto.kernel`: a call registers a kernel; `check` tests one."""

    check = staticmethod(check)

    def __call__(
        self,
        operator: Any,
        regions: str,
        *,
        cpp: str | None = None,
        triton: Any = None,
        operations: float = 1.0,
        nbytes: float | None = None,
        dtypes: Iterable[torch.dtype] = (torch.float32,),
        multiples: Mapping[str, int] | None = None,
    ) -> UserKernel:
        """Register a kernel for an operator of `torch.library`: it runs as tasks of programs.

        operator: its name, `"mylib::fast_gelu"`, or the result of `torch.library.custom_op`. It
            computes one new tensor, changes nothing, and takes tensors and numbers. Eager code, and
            machines without a source, still use its own implementation.
        regions: what an element of the result depends on,
            `"x[..., s, :], cos[s, :] -> [..., s, :]"`: every tensor by its name in the schema. A
            dim is an affine expression of indices of the result, a range of fixed length
            (`i : i + 3`), or `:`, the whole. `...` represents any leading dims; a tensor that has
            fewer of them, or some of size 1, is broadcast.
        cpp: C++17 that defines a function template with the name of the operator. Its arguments
            are a `stretto::Range` per index of the result, a `stretto::View<const T, R>` per
            tensor and a number per other parameter, each in the order of the schema, and a
            `stretto::View<T, R>` for the result, of which it must write all elements in the ranges
            and no others. Views have the dims after `...`, and any strides. The header tile.h
            declares them.
        triton: a function of `triton.jit` with any name, for GPUs. It gets the same arguments in
            the same order, positionally: an index has `begin`, `end` and `block`, the power of two
            that `tl.arange` needs; a tensor has `data`, a pointer to its first element, and the
            tuples `size` and `stride`. The functions and the `tl.constexpr` that it refers to are
            copied with it, as they are at this call.
        operations: arithmetic operations per element of the result. nbytes: bytes moved per
            element; by default those of one element of each tensor.
        dtypes: those that floating tensors may have. Calls with others are library calls.
        multiples: for some indices, a number that the length of each range is a multiple of,
            except at the end of the dim.

        A later kernel for the operator replaces an earlier one, in programs that are compiled
        from then on. Raises ValueError for an operator that is unknown or cannot have a kernel,
        for regions that do not fit its schema, and for Triton code that refers to values that a
        program cannot contain.
        """
        target = _target(operator)
        schema = resolve(target)._schema
        reads, write = parse_regions(regions)
        tensors, numbers = _parameters(schema)
        by_name = {read.tensor: read for read in reads}
        if by_name.keys() != set(tensors):
            named = ", ".join(f"`{name}`" for name in tensors) or "none"
            raise ValueError(
                f"the regions of {target} name its tensors, which are {named}: {regions!r}"
            )
        if cpp is None and triton is None:
            raise ValueError(f"the kernel of {target} has no source: give it `cpp` or `triton`")
        chosen = dict(multiples or {})
        indices = {part.start.name for part in write.parts if part.start is not None}
        if not chosen.keys() <= indices or any(value < 1 for value in chosen.values()):
            raise ValueError(f"multiples are positive numbers by indices of the result: {chosen}")
        named = [part.start.name or "" for part in write.parts if part.start is not None]
        found = UserKernel(
            target,
            tuple(by_name[name] for name in tensors),
            write,
            numbers,
            _positive("operations", operations),
            None if nbytes is None else _positive("nbytes", nbytes),
            tuple(_floating(dtype) for dtype in dtypes),
            tuple(sorted(chosen.items())),
            cpp,
            None
            if triton is None
            else read_triton(triton, [*named, *tensors], [n for n, _ in numbers], "out"),
            _location(cpp, inspect.stack(0)[1].filename),
        )
        if cpp is not None and found.entry not in cpp:
            raise ValueError(f"the C++ of {target} defines no function `{found.entry}`")
        register(found)
        return found


kernel = Kernels()


def _target(operator: Any) -> str:
    """Return `library.name.overload` of an operator. Raise ValueError if torch does not know it."""
    name = operator if isinstance(operator, str) else getattr(operator, "_qualname", None)
    if isinstance(operator, type(torch.ops.aten.add.Tensor)):
        name = operator.name()
    if not isinstance(name, str) or "::" not in name:
        raise ValueError(f"an operator must be named `library::name`, unlike {operator!r}")
    library, _, rest = name.partition("::")
    short, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, library), short, None)
    if packet is None or (overload or "default") not in packet.overloads():
        raise ValueError(
            f"torch knows no operator {name}: define it with torch.library.custom_op before its "
            "kernel"
        )
    return f"{library}.{short}.{overload or 'default'}"


def _parameters(schema: Any) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """Return the tensors of a schema, and its numbers with their dtypes. Raise ValueError for
    other arguments or results."""
    tensors: list[str] = []
    numbers: list[tuple[str, str]] = []
    results = [str(result.type) for result in schema.returns]
    if results != ["Tensor"] or schema.is_mutable or schema.returns[0].alias_info is not None:
        raise ValueError(
            f"a kernel must compute one new tensor and change nothing, unlike {schema}"
        )
    for argument in schema.arguments:
        kind = str(argument.type)
        if kind == "Tensor":
            tensors.append(argument.name)
        elif kind in _NUMBERS:
            numbers.append((argument.name, _NUMBERS[kind]))
        else:
            raise ValueError(
                f"a kernel takes tensors and numbers, and `{argument.name}` of {schema.name} is "
                f"{kind}"
            )
    return tensors, tuple(numbers)


def _positive(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"`{name}` must be a number that is not negative, not {value!r}")
    return float(value)


def _floating(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"`dtypes` must be floating dtypes, not {dtype!r}")
    DType.from_torch(dtype)
    return dtype


def _location(source: str | None, file: str) -> SourceLocation | None:
    """Return the line of a file in which a source begins, or None if it is not found there."""
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeError):
        return None
    place = text.find(source) if source else -1
    return SourceLocation(file, text.count("\n", 0, place) + 1) if place >= 0 else None
