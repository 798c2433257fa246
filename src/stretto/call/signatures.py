"""Keys of signatures: what calls that share a program have in common, and which of their sizes
vary."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.errors import CaptureError
from stretto.frontends.python import (
    CallSizes,
    ObjectState,
    SeenSizes,
    SizePlan,
    SizeRange,
    SizeSource,
)
from stretto.frontends.python.results.inputs import key_of
from stretto.frontends.python.tracing.admission import foreign_input
from stretto.ir.types import Dim

Key = tuple[Any, ...]

BY_STRUCTURE = object()
"""First item of the keys of signatures that take any objects of the arguments' classes."""


def key_of_call(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Key, list[torch.Tensor], str | None]:
    """Return the key of a call, the tensors in it, and a reason to run eager or None."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    why = foreign_input(leaves)
    if why is not None:
        return (), tensors, why
    return (spec, *(key_of(leaf) for leaf in leaves)), tensors, None


def callable_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of a module's class."""
    return getattr(function, "__name__", None) or type(function).__name__


def parameter_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the positional parameters, the last one perhaps as `*rest`; none if the
    function has no signature."""
    called = getattr(function, "forward", function)
    try:
        found = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return []
    plain = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [*plain, *(f"*{p.name}" for p in found if p.kind is p.VAR_POSITIONAL)]


def argument_name(path: Any, parameters: Sequence[str]) -> str:
    """Return the name of an argument, from its path in `(args, kwargs)`: `x`, `rest[0]`,
    `state['h']`."""
    kind, first, *rest = path
    if kind.idx == 1:
        name = str(first.key)
    elif parameters and parameters[-1].startswith("*") and first.idx >= len(parameters) - 1:
        name = f"{parameters[-1][1:]}[{first.idx - len(parameters) + 1}]"
    elif first.idx < len(parameters):
        name = str(parameters[first.idx])
    else:
        name = f"argument {first.idx}"
    return name + pytree.keystr(tuple(rest))


def is_by_structure(key: Any) -> bool:
    """Return True if a key, or the one that it extends, matches objects by class instead of
    identity."""
    while isinstance(key, tuple) and key:
        if key[0] is BY_STRUCTURE:
            return True
        key = key[-1]  # pyright: ignore[reportUnknownVariableType]
    return False


def varying(keys: list[Key]) -> str:
    """Describe, for a warning, which part of the signatures differs."""
    shapes = [sizes for key in keys if (sizes := _shapes(key))]
    count = min((len(s) for s in shapes), default=0)
    found: list[str] = []
    for number in range(count):
        ranks = {len(s[number]) for s in shapes}
        if len(ranks) > 1:
            found.append(f"the number of dims of tensor {number} varies")
            continue
        for dim in range(ranks.pop()):
            sizes = sorted({s[number][dim] for s in shapes})
            if len(sizes) > 1:
                shown = ", ".join(str(size) for size in sizes[:6])
                more = ", ..." if len(sizes) > 6 else ""
                found.append(f"dimension {dim} of tensor {number} varies ({shown}{more})")
    return "; ".join(found) or "a value that is not a tensor varies"


def _shapes(key: Any) -> list[tuple[int, ...]]:
    """Return all shapes in a key, in order."""
    if isinstance(key, torch.Size):
        return [tuple(key)]
    if isinstance(key, tuple):
        return [shape for part in key for shape in _shapes(part)]  # pyright: ignore[reportUnknownVariableType]
    return []


# ---- Families of calls that differ in sizes only, and their programs for many sizes.
#
# A *family* is everything in a key except the sizes of tensors and the values of ints. Its first
# call gets a program for exactly its sizes. At the second size a program is made in which the
# sizes that differed are symbols; it is found by its guards, so there is no entry per size.


Shapes = Sequence[Sequence[int]]
Fits = Callable[[Shapes, Sequence[int], Shapes], bool]
"""Tests if a program serves a call, by the shapes of its tensor arguments, its ints, and the
shapes of the tensors that objects hold."""

_INT = "int"
"""Replaces any int that may be a size in the key of a family."""

_LARGEST = 2**31
"""Ints from here on are not treated as sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeKey:
    """The key of a program for many sizes, compared by identity."""

    family: Family
    plan: SizePlan


def size_key(key: Any) -> SizeKey | None:
    """Return the SizeKey that a key is or extends; None if there is none."""
    while isinstance(key, tuple) and key:
        key = key[-1]  # pyright: ignore[reportUnknownVariableType]
    return key if isinstance(key, SizeKey) else None


def is_size_key(key: object) -> bool:
    """Return True for a SizeKey itself, False for a longer key that extends one."""
    return isinstance(key, SizeKey)


@dataclass(slots=True)
class CallForm:
    """A key split into the key of its family and the sizes, in the order of the arguments. held:
    shapes of tensors that objects hold."""

    family: Key
    shapes: Shapes
    ints: Sequence[int]
    held: Shapes = ()

    @staticmethod
    def of(key: Key) -> CallForm:
        """Split the key of a call."""
        shapes, ints = list[Sequence[int]](), list[int]()
        return CallForm(_without_sizes(key, shapes, ints), shapes, ints)

    def holding(self, key: Hashable, shapes: Shapes) -> CallForm:
        """Return the form of the same call with what objects hold: the key of their state, and the
        shapes in it."""
        return CallForm((key, self.family), self.shapes, self.ints, shapes)

    def value(self, source: SizeSource) -> int:
        """Return the size that a source names."""
        if source.dim is None:
            return self.ints[source.number]
        return (self.held if source.held else self.shapes)[source.number][source.dim]

    def sources(self) -> Iterable[SizeSource]:
        """Yield the sources of all sizes of the call. Ints that cannot be sizes are left out."""
        for number, shape in enumerate(self.shapes):
            for dim in range(len(shape)):
                yield SizeSource(number, dim)
        for number, value in enumerate(self.ints):
            if 0 <= value < _LARGEST:
                yield SizeSource(number)
        for number, shape in enumerate(self.held):
            for dim in range(len(shape)):
                yield SizeSource(number, dim, held=True)


def _without_sizes(key: Key, shapes: list[Sequence[int]], ints: list[int]) -> Key:
    """Return the key of the family; append the sizes to `shapes` and `ints`. A module's `key`
    starts with its mode."""
    if len(key) == 2 and type(key[0]) is bool:
        return (key[0], _without_sizes(key[1], shapes, ints))
    parts = list[Any]()
    for part in key:
        if type(part) is not tuple or not part:
            parts.append(part)
            continue
        first, *rest = part  # pyright: ignore[reportUnknownVariableType]
        if type(first) is torch.Size:
            shapes.append(first)
            parts.append((len(first), *rest))
        elif first is int:
            value = rest[0]  # pyright: ignore[reportUnknownVariableType]
            ints.append(value)  # pyright: ignore[reportUnknownArgumentType]
            parts.append(_INT if 0 <= value < _LARGEST else value)
        else:
            parts.append(part)
    return tuple(parts)


@dataclass(slots=True)
class Family:
    """The observed sizes of a family, and its programs for many sizes.

    first: the sizes of the first call. varying: sizes that have differed, or are declared to.
    fixed: the numbers that guards required of a size. seen: the calls that programs were captured
    for. refused: why there can be no program for many sizes; None if there can. state: what objects
    held when a program found sizes in them; `outer` is then the family of the same calls whatever
    objects hold, and `inner` are, conversely, the families with such states.
    """

    first: CallForm
    state: ObjectState | None = None
    outer: Family | None = None
    inner: list[Family] = field(default_factory=list["Family"])
    varying: dict[SizeSource, SizeRange] = field(default_factory=dict[SizeSource, SizeRange])
    fixed: dict[SizeSource, set[int]] = field(default_factory=dict[SizeSource, set[int]])
    programs: dict[SizeKey, Fits] = field(default_factory=dict["SizeKey", Fits])
    ranges: dict[SizeSource, SizeRange] = field(default_factory=dict[SizeSource, SizeRange])
    """Declared ranges of sizes."""
    seen: SeenSizes = field(default_factory=SeenSizes)
    refused: str | None = None
    uncaptured: Exception | None = None
    """The exception of the last capture with symbols: torch and the user's function may raise any
    exception on a symbol."""

    def find(self, form: CallForm) -> SizeKey | None:
        """Return the key of the program whose guards hold; None if there is none."""
        for key, fits in self.programs.items():
            if fits(form.shapes, form.ints, form.held):
                return key
        return None

    @contextmanager
    def capturing(self) -> Generator[None]:
        """Store the exception of a capture in `uncaptured`."""
        try:
            yield
        except Exception as error:
            self.uncaptured = error
            raise

    def enter(self, key: SizeKey, fits: Fits, objects: ObjectState | None) -> None:
        """Add a program. If it reads other objects than lookups in this family do, later calls
        would not find it: then no program for many sizes is possible."""
        if self.state is not None and (objects is None or objects.key != self.first.family[0]):
            self.refused = "what is read in objects depends on their sizes"
        else:
            self.programs[key] = fits

    @property
    def declared(self) -> bool:
        """True if the user has declared sizes that differ."""
        return bool(self.ranges)

    def check_declared(self, form: CallForm) -> None:
        """Raise CaptureError for a size that is outside of its declared range."""
        for source, limits in self.ranges.items():
            check_declared(form.value(source), source, limits)

    def plan(
        self, form: CallForm, tensors: Sequence[torch.Tensor], dynamic: bool | None
    ) -> SizePlan:
        """Choose the sizes that become symbols, for a call that no program fits."""
        declared = declared_ranges(tensors)
        static = {source for source in form.sources() if _is_static(tensors, source)}
        for source in form.sources():
            if source in declared:
                self.varying[source] = self.ranges[source] = declared[source]
            elif dynamic or form.value(source) != self.first.value(source):
                self.varying.setdefault(source, SizeRange())
        if self.outer is not None:
            self.varying = self.outer.varying | self.varying
        chosen = {
            source: limits
            for source, limits in self.varying.items()
            if source in self.ranges
            or not (source in static or len(self.fixed.get(source, ())) > 1)
        }
        sources = set(form.sources())
        found = {s: limits for s, limits in chosen.items() if s in sources}
        for call in (self.first, form):
            self.seen.add({source: call.value(source) for source in call.sources()})
        return SizePlan.of(found, self._alike(found, form), self.seen)

    def _alike(self, sources: Iterable[SizeSource], form: CallForm) -> dict[SizeSource, SizeSource]:
        """Map each size of objects that has changed since the first call to the first one with the
        same values in both calls, such as the lengths of all keys and values in a cache. Mapped
        sizes share a symbol; a call in which they differ gets another program, with separate
        symbols."""
        first, found = dict[tuple[int, int], SizeSource](), dict[SizeSource, SizeSource]()
        for source in sources:
            sizes = (self.first.value(source), form.value(source))
            if source.held and sizes[0] != sizes[1]:
                found[source] = first.setdefault(sizes, source)
        return found

    def settle(self, key: SizeKey, sizes: CallSizes, tensors: Sequence[torch.Tensor]) -> None:
        """Record the sizes that a capture found to be fixed. Raises CaptureError for one that was
        declared to differ."""
        for source, fixed in sizes.fixed.items():
            self.fixed.setdefault(source, set()).add(fixed.value)
        for source in must_vary(tensors) & sizes.fixed.keys():
            fixed = sizes.fixed[source]
            raise CaptureError(
                f"dim {source.dim} of tensor {source.number} among the arguments is marked as "
                f"dynamic, but the function needs it to be {fixed.value}",
                location=fixed.location,
                remedy="use maybe_mark_dynamic, or do not decide by the size",
            )


# ---- declarations ----------------------------------------------------------------------------


def declared_ranges(tensors: Sequence[torch.Tensor]) -> dict[SizeSource, SizeRange]:
    """Return the ranges of sizes marked by `torch._dynamo.mark_dynamic`, `maybe_mark_dynamic`
    and `mark_unbacked`.

    Raises CaptureError if a tensor's own size is outside of the range declared with it.
    """
    found = dict[SizeSource, SizeRange]()
    for number, tensor in enumerate(tensors):
        limits = dict[int, tuple[Any, Any]](getattr(tensor, "_dynamo_unbacked_bounds", ()))
        limits |= {r.dim: (r.min, r.max) for r in getattr(tensor, "_dynamo_dynamic_range", ())}
        for name in _MARKS:
            for dim in getattr(tensor, name, ()):
                low, high = limits.get(dim, (None, None))
                found[SizeSource(number, dim % tensor.dim())] = SizeRange(low or 0, high)
    for source, limits in found.items():
        assert source.dim is not None
        check_declared(tensors[source.number].shape[source.dim], source, limits)
    return found


_MARKS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
)


def must_vary(tensors: Sequence[torch.Tensor]) -> set[SizeSource]:
    """Return the sizes that may not be fixed: it is an error if the function needs one number for
    them."""
    return {
        SizeSource(number, dim % tensor.dim())
        for number, tensor in enumerate(tensors)
        for name in ("_dynamo_dynamic_indices", "_dynamo_strict_unbacked_indices")
        for dim in getattr(tensor, name, ())
    }


def check_ranks(form: CallForm, families: Iterable[Family]) -> None:
    """Raise CaptureError for a tensor whose number of dims is not that of the tensor whose sizes
    were declared."""
    for family in families:
        before = family.first.shapes
        if len(before) != len(form.shapes):
            continue
        for source in family.ranges:
            was, rank = len(before[source.number]), len(form.shapes[source.number])
            if was != rank:
                raise CaptureError(
                    f"tensor {source.number} among the arguments has {rank} dims, and sizes were "
                    f"declared for one with {was}",
                    remedy="pass tensors with as many dims, or compile the function once more",
                )


def _is_static(tensors: Sequence[torch.Tensor], source: SizeSource) -> bool:
    """Return True if the user has marked the dim with `mark_static`."""
    if source.dim is None or source.held:
        return False
    marked = getattr(tensors[source.number], "_dynamo_static_indices", ())
    return source.dim in marked or source.dim - tensors[source.number].dim() in marked


def check_declared(size: int, source: SizeSource, limits: SizeRange) -> None:
    """Raise CaptureError for a size that is outside of the declared range."""
    if size < limits.low or (limits.high is not None and size > limits.high):
        most = "" if limits.high is None else f" and at most {limits.high}"
        raise CaptureError(
            f"dim {source.dim} of tensor {source.number} among the arguments has size {size}, and "
            f"was declared to be at least {limits.low}{most}",
            remedy="pass tensors of such sizes, or declare another range with mark_dynamic",
        )


# ---- the check of a call ---------------------------------------------------------------------


def fitting(sizes: CallSizes, ints: Sequence[int], *, holding: bool = False) -> Fits:
    """Generate a Python function that tests if a program serves the sizes of a call.

    ints: those of the call that the program was made for; ints that are no symbols must
    be equal to them. holding: the sizes that objects hold are compared, too.
    """
    conditions = _Conditions()
    for number, shape in enumerate(sizes.shapes):
        for dim, size in enumerate(shape):
            conditions.compare(f"shapes[{number}][{dim}]", size)
    for number, value in enumerate(ints):
        conditions.compare(f"ints[{number}]", sizes.ints.get(number, value))
    for number, shape in enumerate(sizes.held if holding else ()):
        for dim, size in enumerate(shape):
            conditions.compare(f"held[{number}][{dim}]", size)
    return conditions.function("shapes, ints, held=()", sizes)


def matching(family: Key, sizes: CallSizes) -> Callable[[Key], bool] | None:
    """Generate a function that tests if a program serves the calls of a key; None if calls have
    anything but tensors. It does not hash the key, so it is quick."""
    conditions = _Conditions()
    if len(family) == 2 and type(family[0]) is bool:
        conditions.known["mode"] = family[0]
        conditions.lines.append("  if key[0] is not mode: return False")
        conditions.lines.append("  key = key[1]")
        family = family[1]
    if not all(type(part) is tuple and len(part) == 3 and type(part[0]) is int for part in family):
        return None
    conditions.lines.append(f"  if len(key) != {len(family)}: return False")
    for number, ((rank, dtype, device), shape) in enumerate(zip(family, sizes.shapes, strict=True)):
        dims = [f"t{number}d{dim}" for dim in range(rank)]
        conditions.known |= {f"dtype{number}": dtype, f"device{number}": device}
        conditions.lines += [
            f"  shape, dtype, device = key[{number}]",
            f"  if dtype is not dtype{number} or len(shape) != {rank}: return False",
            f"  if device != device{number}: return False",
            *([f"  {', '.join(dims)}, = shape"] if dims else []),
        ]
        for place, size in zip(dims, shape, strict=True):
            conditions.compare(place, size)
    return conditions.function("key", sizes)


@dataclass(slots=True)
class _Conditions:
    """A generated function that compares the sizes of calls, under construction."""

    lines: list[str] = field(default_factory=list[str])
    known: dict[str, Any] = field(default_factory=lambda: dict[str, Any](math=math))
    bound: set[str] = field(default_factory=set[str])
    tests: list[str] = field(default_factory=list[str])

    def compare(self, place: str, dim: Dim) -> None:
        """Bind a symbol where it occurs first; compare everything else."""
        symbol = None if isinstance(dim, int) else dim.symbol
        if symbol is not None and symbol.name not in self.bound:
            self.bound.add(symbol.name)
            self.lines.append(f"  {symbol.name} = {place}")
        else:
            self.tests.append(f"{place} == {dim}")

    def function(self, parameters: str, sizes: CallSizes) -> Any:
        """Compile the function: it returns True if all tests, ranges and guards hold. A guard that
        divides by 0, or shifts by a negative number, does not hold."""
        tests = list(self.tests)
        for symbol in sizes.symbols:
            tests += [f"{symbol.low} <= {symbol.name}"] if symbol.low else []
            tests += [] if symbol.high is None else [f"{symbol.name} <= {symbol.high}"]
        tests += [f"({condition.text})" for condition in sizes.conditions]
        text = [
            f"def fits({parameters}):",
            *self.lines,
            f"  try: return {' and '.join(tests) or 'True'}",
            "  except (ArithmeticError, ValueError): return False",
        ]
        exec("\n".join(text), self.known)
        return self.known["fits"]
