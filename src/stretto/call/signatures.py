"""Keys of signatures: what calls that share a program have in common, and what varies, in words."""

from __future__ import annotations

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
"""Begins the keys of signatures in which objects among the arguments may be any of their class."""


def key_of_call(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Key, list[torch.Tensor], str | None]:
    """The key of any call, the tensors in it, and a reason to run eager."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    why = foreign_input(leaves)
    if why is not None:
        return (), tensors, why
    return (spec, *(key_of(leaf) for leaf in leaves)), tensors, None


def is_by_structure(key: Any) -> bool:
    """Whether a key, or the one that it makes longer, is one of objects of any identity."""
    while isinstance(key, tuple) and key:
        if key[0] is BY_STRUCTURE:
            return True
        key = key[-1]  # pyright: ignore[reportUnknownVariableType]
    return False


def varying(keys: list[Key]) -> str:
    """Which part of the signatures differs, in words."""
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
    if isinstance(key, torch.Size):
        return [tuple(key)]
    if isinstance(key, tuple):
        return [shape for part in key for shape in _shapes(part)]  # pyright: ignore[reportUnknownVariableType]
    return []


# ---- Families of calls that differ in sizes only, and the programs that serve any of these
# sizes.
#
# A *family* is all that a key says of a call but the sizes of tensors and the values of ints. Its
# first call gets a program for just these sizes. From the second size on a program is made in
# which what has differed is a symbol; it is found by its guards, so there is no entry per size.


Shapes = Sequence[Sequence[int]]
Fits = Callable[[Shapes, Sequence[int], Shapes], bool]
"""Says of the shapes of arguments, of the ints among them, and of the shapes of the tensors that
objects hold."""

_INT = "int"
"""Stands in the key of a family for any int that is not negative."""

_LARGEST = 2**31
"""Ints from here on are no sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeKey:
    """The key of a program for many sizes. Each such program has a key of its own."""

    family: Family
    plan: SizePlan


def size_key(key: Any) -> SizeKey | None:
    """The key for many sizes that a key is, or that it makes longer."""
    while isinstance(key, tuple) and key:
        key = key[-1]  # pyright: ignore[reportUnknownVariableType]
    return key if isinstance(key, SizeKey) else None


def is_size_key(key: object) -> bool:
    """Whether it is one, and not a longer key that begins with one."""
    return isinstance(key, SizeKey)


@dataclass(slots=True)
class CallForm:
    """A key, taken apart: the family, and the sizes in the order of the arguments."""

    family: Key
    shapes: Shapes
    ints: Sequence[int]
    held: Shapes = ()

    @staticmethod
    def of(key: Key) -> CallForm:
        shapes, ints = list[Sequence[int]](), list[int]()
        return CallForm(_without_sizes(key, shapes, ints), shapes, ints)

    def holding(self, key: Hashable, shapes: Shapes) -> CallForm:
        """The same call, with what objects hold: the key of their state, and the sizes in it."""
        return CallForm((key, self.family), self.shapes, self.ints, shapes)

    def value(self, source: SizeSource) -> int:
        if source.dim is None:
            return self.ints[source.number]
        return (self.held if source.held else self.shapes)[source.number][source.dim]

    def sources(self) -> Iterable[SizeSource]:
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
    """The key of the family. `key` is one of tensors and values, or of a module: with its mode."""
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
    """What is known of the sizes of a family, and its programs for many of them.

    first: the sizes of the first call. varying: those that have differed, or are declared. fixed:
    which numbers guards said that a size has to be. seen: the calls that programs were captured
    for. refused: why there can be no such program.
    state: what objects hold, as a program found it, where their sizes are some of the family's;
    then `outer` is the family of the same calls whatever objects hold. inner: such families.
    """

    first: CallForm
    state: ObjectState | None = None
    outer: Family | None = None
    inner: list[Family] = field(default_factory=list["Family"])
    varying: dict[SizeSource, SizeRange] = field(default_factory=dict[SizeSource, SizeRange])
    fixed: dict[SizeSource, set[int]] = field(default_factory=dict[SizeSource, set[int]])
    programs: dict[SizeKey, Fits] = field(default_factory=dict["SizeKey", Fits])
    ranges: dict[SizeSource, SizeRange] = field(default_factory=dict[SizeSource, SizeRange])
    """Those that are declared."""
    seen: SeenSizes = field(default_factory=SeenSizes)
    refused: str | None = None
    uncaptured: Exception | None = None
    """What the last capture with symbols raised: torch and the user's function may raise anything
    where they meet a symbol."""

    def find(self, form: CallForm) -> SizeKey | None:
        """The program whose guards hold."""
        for key, fits in self.programs.items():
            if fits(form.shapes, form.ints, form.held):
                return key
        return None

    @contextmanager
    def capturing(self) -> Generator[None]:
        """Notes what a capture raises."""
        try:
            yield
        except Exception as error:
            self.uncaptured = error
            raise

    def enter(self, key: SizeKey, fits: Fits, objects: ObjectState | None) -> None:
        """Enters a program, unless it reads other objects than those that were read before it was
        looked for: its sizes would not be found."""
        if self.state is not None and (objects is None or objects.key != self.first.family[0]):
            self.refused = "what is read in objects depends on their sizes"
        else:
            self.programs[key] = fits

    @property
    def declared(self) -> bool:
        """Whether the user has said which sizes differ."""
        return bool(self.ranges)

    def check_declared(self, form: CallForm) -> None:
        """Raises CaptureError for a size that is not in the range which was declared for it."""
        for source, limits in self.ranges.items():
            check_declared(form.value(source), source, limits)

    def plan(
        self, form: CallForm, tensors: Sequence[torch.Tensor], dynamic: bool | None
    ) -> SizePlan:
        """Which sizes of a call that no program fits are to be symbols."""
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
        """Sizes that objects hold and that were equal in the first call and are in this one, as
        those of all keys and values in a cache, by the first of them. A call in which they differ
        gets a program of its own, in which they are symbols of their own."""
        first, found = dict[tuple[int, int], SizeSource](), dict[SizeSource, SizeSource]()
        for source in sources:
            sizes = (self.first.value(source), form.value(source))
            if source.held and sizes[0] != sizes[1]:
                found[source] = first.setdefault(sizes, source)
        return found

    def settle(self, key: SizeKey, sizes: CallSizes, tensors: Sequence[torch.Tensor]) -> None:
        """Learns what a capture found. Raises CaptureError where a size must be one number that was
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
    """The sizes that `torch._dynamo.mark_dynamic`, `maybe_mark_dynamic` and `mark_unbacked` name.

    Raises CaptureError where a tensor itself is not in the range that was declared with it.
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
    """The sizes of which it is an error that the function needs a certain one."""
    return {
        SizeSource(number, dim % tensor.dim())
        for number, tensor in enumerate(tensors)
        for name in ("_dynamo_dynamic_indices", "_dynamo_strict_unbacked_indices")
        for dim in getattr(tensor, name, ())
    }


def check_ranks(form: CallForm, families: Iterable[Family]) -> None:
    """Raises CaptureError for a tensor with another number of dims than one that was declared."""
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
    if source.dim is None or source.held:
        return False
    marked = getattr(tensors[source.number], "_dynamo_static_indices", ())
    return source.dim in marked or source.dim - tensors[source.number].dim() in marked


def check_declared(size: int, source: SizeSource, limits: SizeRange) -> None:
    """Raises CaptureError for a size that is not in the declared range."""
    if size < limits.low or (limits.high is not None and size > limits.high):
        most = "" if limits.high is None else f" and at most {limits.high}"
        raise CaptureError(
            f"dim {source.dim} of tensor {source.number} among the arguments has size {size}, and "
            f"was declared to be at least {limits.low}{most}",
            remedy="pass tensors of such sizes, or declare another range with mark_dynamic",
        )


# ---- the check of a call ---------------------------------------------------------------------


def fitting(sizes: CallSizes, ints: Sequence[int], *, holding: bool = False) -> Fits:
    """Makes a function that says whether a program is for the sizes of a call.

    It is printed as Python. `ints` are those of the call that it was made for: what is no symbol
    must be the same. holding: the sizes that objects hold are compared, too.
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
    """Makes a function that says whether a program is for the calls of a key, where these have
    tensors only; else None. Nothing of the key is hashed, so it is quick."""
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
    """A function under construction that compares the sizes of calls."""

    lines: list[str] = field(default_factory=list[str])
    known: dict[str, Any] = field(default_factory=lambda: dict[str, Any](math=math))
    bound: set[str] = field(default_factory=set[str])
    tests: list[str] = field(default_factory=list[str])

    def compare(self, place: str, dim: Dim) -> None:
        """Binds a symbol where it stands first; all else is compared."""
        symbol = None if isinstance(dim, int) else dim.symbol
        if symbol is not None and symbol.name not in self.bound:
            self.bound.add(symbol.name)
            self.lines.append(f"  {symbol.name} = {place}")
        else:
            self.tests.append(f"{place} == {dim}")

    def function(self, parameters: str, sizes: CallSizes) -> Any:
        tests = list(self.tests)
        for symbol in sizes.symbols:
            tests += [f"{symbol.low} <= {symbol.name}"] if symbol.low else []
            tests += [] if symbol.high is None else [f"{symbol.name} <= {symbol.high}"]
        tests += [f"({condition.text})" for condition in sizes.conditions]
        text = [f"def fits({parameters}):", *self.lines]
        text.append(f"  return {' and '.join(tests) or 'True'}")
        exec("\n".join(text), self.known)
        return self.known["fits"]
