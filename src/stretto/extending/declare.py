"""`stretto.kernel`: a tile function of the user for an operator of torch."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from stretto.device.user_kernels import UserKernel, register
from stretto.errors import SourceLocation
from stretto.extending.check import check
from stretto.extending.regions import parse_regions
from stretto.extending.triton_source import read_triton
from stretto.ir.types import DType
from stretto.ops.infer import resolve

_NUMBERS = {"float": "f64", "int": "i64", "SymInt": "i64", "bool": "bool", "number": "f64"}
"""Types of a schema, and the dtypes that a kernel gets numbers of them in."""


class Kernels:
    """What `stretto.kernel` is: called, it registers a kernel; `check` tries one out."""

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
        """Registers a kernel for an operator of `torch.library`: it runs as tasks of programs.

        operator: its name, `"mylib::fast_gelu"`, or what `torch.library.custom_op` gave. It
            computes one new tensor, changes nothing, and takes tensors and numbers. Eager code, and
            machines without a source, go on with its own implementation.
        regions: what an element of the result depends on,
            `"x[..., s, :], cos[s, :] -> [..., s, :]"`: every tensor by its name in the schema. A
            dim is an affine expression of indices of the result, some values from one on
            (`i : i + 3`), or `:`, the whole. `...` stands for any leading dims; a tensor that has
            fewer of them, or some of size 1, is broadcast.
        cpp: C++17 that defines a function template with the name of the operator. It gets a
            `stretto::Range` per index of the result, a `stretto::View<const T, R>` per tensor and a
            number per other parameter, each in the order of the schema, and a
            `stretto::View<T, R>` for the result, of which it writes the elements in the ranges: all
            of those, and no others. Views have the dims behind `...`, and any strides. The header
            has them: tile.h.
        triton: a function of `triton.jit` with any name, for GPUs. It gets the same in the same
            order, positionally: an index has `begin`, `end` and `block`, the power of two that
            `tl.arange` wants; a tensor `data`, a pointer to its first element, and the tuples
            `size` and `stride`. The functions and the `tl.constexpr` that it refers to come with
            it, as they are at this call.
        operations: arithmetic operations for an element of the result. nbytes: bytes moved for one;
            by default those of one element of each tensor.
        dtypes: those that floating tensors may have. Calls with others are library calls.
        multiples: by index, what the ranges are multiples of, as far as the dim goes.

        A later kernel for the operator takes the place of an earlier one, in programs that are
        compiled from then on. Raises ValueError for an operator that is not known or cannot have a
        kernel, for regions that do not fit its schema, and for Triton that refers to what a program
        cannot have.
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
    """`library.name.overload` of an operator that torch knows."""
    name = operator if isinstance(operator, str) else getattr(operator, "_qualname", None)
    if isinstance(operator, type(torch.ops.aten.add.Tensor)):
        name = operator.name()
    if not isinstance(name, str) or "::" not in name:
        raise ValueError(f"an operator is named as in `library::name`, and not {operator!r}")
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
    """The tensors of a schema, and its numbers with their dtypes."""
    tensors: list[str] = []
    numbers: list[tuple[str, str]] = []
    results = [str(result.type) for result in schema.returns]
    if results != ["Tensor"] or schema.is_mutable or schema.returns[0].alias_info is not None:
        raise ValueError(f"a kernel computes one new tensor and changes nothing, unlike {schema}")
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
        raise ValueError(f"`{name}` is a number that is not negative, and not {value!r}")
    return float(value)


def _floating(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"`dtypes` are floating dtypes, and not {dtype!r}")
    DType.from_torch(dtype)
    return dtype


def _location(source: str | None, file: str) -> SourceLocation | None:
    """The line of a file in which a source begins."""
    try:
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
    except (OSError, UnicodeError):
        return None
    place = text.find(source) if source else -1
    return SourceLocation(file, text.count("\n", 0, place) + 1) if place >= 0 else None
