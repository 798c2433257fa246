"""Result types of tensor ops, found by running the ATen overload on fake tensors.

torch's own rules are used, so a new operator needs no entry; a family of operators may replace a
rule that is wrong or needs numbers (`table.ShapeRule`). Symbols become unbacked SymInts of the
same range; the dims of results, which are sympy expressions over these, become sizes again
(`symints`). If torch cannot infer the result without a size's value, a VerifyError names the
operator.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import (
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)

from stretto.errors import VerifyError
from stretto.ir.core import Op, Program, Value
from stretto.ir.ops import Argument, LiteralOp, TensorOp
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size, Symbol, symbols_in
from stretto.ir.symbols import Renaming, rename_dim, rename_type, symbols_of_types
from stretto.ir.types import INDEX, Dim, DType, TensorType
from stretto.ir.verifier import RULES
from stretto.ops.symints import (
    SizeEnv,
    backed_symint,
    comparisons,
    from_sympy,
    on_fakes,
    plainly,
    to_symint,
    without_cache,
)
from stretto.ops.table import load_families

Abstract = Any
"""An argument whose Values are replaced by their TensorTypes."""


def tensor_op(target: str, *args: Argument, **kwargs: Argument) -> TensorOp:
    """Return the op with fresh results of the inferred types; raise VerifyError if ATen refuses
    it."""
    types = infer(target, args, tuple(kwargs.items()))
    return TensorOp(
        target, args, tuple(kwargs.items()), results=tuple(Value(type) for type in types)
    )


@dataclass(slots=True)
class Emitter:
    """Ops under construction, in order."""

    ops: list[Op] = field(default_factory=list[Op], kw_only=True)

    def emit(self, target: str, *args: Argument, **kwargs: Argument) -> Value:
        """Add a tensor op and return its only result. Raises VerifyError if torch refuses the
        arguments."""
        return self.add(tensor_op(target, *args, **kwargs)).result

    def add(self, op: Op) -> Op:
        self.ops.append(op)
        return op


def size_op(size: Dim) -> Op:
    """Return the op whose result is a size, as an i64 without dims."""
    if isinstance(size, int):
        return LiteralOp(size, results=(Value(INDEX),))
    return tensor_op("aten.scalar_tensor.default", size, dtype=torch.int64)


def infer(
    target: str, args: Sequence[Argument], kwargs: Iterable[tuple[str, Argument]] = ()
) -> tuple[TensorType, ...]:
    """Return the result types in order; a result that is a list of tensors gives one type per item.

    Raise VerifyError if the operator is unknown, refuses the arguments, or would have a result
    whose shape depends on a run-time number.
    """
    named = tuple((key, _Frozen.of(value)) for key, value in kwargs)
    return _infer(target, tuple(_Frozen.of(value) for value in args), named).types


def relations(op: TensorOp) -> tuple[Relation, ...]:
    """Return the comparisons between sizes that the op needs and that the sizes' ranges do not
    guarantee."""
    named = tuple((key, _Frozen.of(value)) for key, value in op.kwargs)
    return _infer(op.target, tuple(_Frozen.of(value) for value in op.args), named).relations


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of two sizes, with Python's operator."""

    sign: str
    left: Dim
    right: Dim

    @property
    def is_known(self) -> bool:
        """True if it holds for all values in the symbols' ranges."""
        match self.sign:
            case "<=" | "<":
                return at_most(Size.of(self.left) + (self.sign == "<"), self.right)
            case ">=" | ">":
                return at_most(Size.of(self.right) + (self.sign == ">"), self.left)
            case _:
                return self.sign == "==" and self.left == self.right

    def holds(self, left: int, right: int) -> bool:
        """Compare two numbers in place of the left and the right size."""
        return bool(COMPARISONS[self.sign](left, right))

    def renamed(self, renaming: Renaming) -> Relation:
        """Return the relation with symbols renamed."""
        left, right = (rename_dim(side, renaming) for side in (self.left, self.right))
        return Relation(self.sign, left, right)

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"


@dataclass(frozen=True, slots=True)
class Inferred:
    """The types of an operator's results, valid if the relations hold."""

    types: tuple[TensorType, ...]
    relations: tuple[Relation, ...]


@cache
def resolve(target: str) -> Any:
    """Return the torch OpOverload for `namespace.name.overload`; without an overload, the default
    one."""
    namespace, _, rest = target.partition(".")
    if namespace == "stretto":
        load_families()  # which define these operators
    name, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except (AttributeError, RuntimeError):
        raise VerifyError(f"`{target}` is not an operator of this torch") from None


@dataclass(frozen=True, slots=True)
class SchemaParameter:
    """One parameter of an operator's schema."""

    name: str
    is_tensor: bool
    """True for Tensor, Tensor?, and lists of them; a Value in any other parameter is a run-time
    number."""
    is_scalar: bool
    """True for a Scalar of the schema: a number that is not a position, dim or size."""


@cache
def parameters(target: str) -> dict[str, SchemaParameter]:
    """Return the schema's parameters by name, positional ones first and in order."""
    arguments = resolve(target)._schema.arguments
    types = {item.name: str(item.type) for item in arguments}
    return {
        name: SchemaParameter(name, "Tensor" in type, "number" in type)
        for name, type in types.items()
    }


def named_arguments(
    target: str, args: Sequence[Any], kwargs: Iterable[tuple[str, Any]] = ()
) -> list[tuple[SchemaParameter, Any]]:
    """Return each given argument with its parameter; raise VerifyError for too many or unknown
    ones."""
    known = parameters(target)
    if len(args) > len(known):
        raise VerifyError(f"`{target}` takes {len(known)} arguments, not {len(args)}")
    pairs = list(zip(known.values(), args, strict=False))
    for key, value in kwargs:
        if key not in known:
            raise VerifyError(f"`{target}` has no argument `{key}`")
        pairs.append((known[key], value))
    return pairs


@dataclass(frozen=True, slots=True)
class _Frozen:
    """An argument as a cache key: 1, 1.0 and True are equal in Python but differ to an operator."""

    kind: type
    value: Abstract

    @staticmethod
    def of(argument: Argument) -> _Frozen:
        if isinstance(argument, tuple):
            return _Frozen(tuple, tuple(_Frozen.of(item) for item in argument))
        if isinstance(argument, Value):
            if not isinstance(argument.type, TensorType):
                raise VerifyError(f"a tensor op cannot read a {argument.type}")
            return _Frozen(TensorType, argument.type)
        return _Frozen(type(argument), argument)

    def renamed(self, renaming: Renaming) -> _Frozen:
        """Return the argument with the symbols in its sizes renamed."""
        if self.kind is tuple:
            return _Frozen(tuple, tuple(item.renamed(renaming) for item in self.value))
        if self.kind is TensorType:
            return _Frozen(TensorType, rename_type(self.value, renaming))
        if self.kind is Size:
            return _Frozen(Size, rename_dim(self.value, renaming))
        return self


@lru_cache(maxsize=16384)
def _infer(
    target: str, args: tuple[_Frozen, ...], kwargs: tuple[tuple[str, _Frozen], ...]
) -> Inferred:
    """Infer with symbols renamed to standard names, so that torch runs once for operators that
    differ only in symbols, such as those of equal blocks."""
    symbols = symbols_in(size for item in (*args, *(v for _, v in kwargs)) for size in _sizes(item))
    plain = tuple(Symbol(f"s{n}", item.low, item.high) for n, item in enumerate(symbols))
    if symbols == plain:
        return _inferred(target, args, kwargs)
    there: Renaming = dict(zip(map(Size.of, symbols), map(Size.of, plain), strict=True))
    back: Renaming = dict(zip(map(Size.of, plain), map(Size.of, symbols), strict=True))
    named = tuple((key, value.renamed(there)) for key, value in kwargs)
    try:
        found = _inferred(target, tuple(value.renamed(there) for value in args), named)
    except VerifyError:  # run again, so that the message has the caller's names
        return _inferred(target, args, kwargs)
    types = tuple(rename_type(item, back) for item in found.types)
    return Inferred(
        tuple(item for item in types if isinstance(item, TensorType)),
        tuple(item.renamed(back) for item in found.relations),
    )


@lru_cache(maxsize=16384)
def _inferred(
    target: str, args: tuple[_Frozen, ...], kwargs: tuple[tuple[str, _Frozen], ...]
) -> Inferred:
    pairs = named_arguments(target, args, kwargs)
    if not any(not item.is_tensor and _has_type(value) for item, value in pairs):
        return _evaluate(target, args, kwargs, 0)
    types, others = (_attempt(target, args, kwargs, position) for position in (0, 1))
    if types is None or others is None:  # one position may be out of range, the other not
        return types or others or _evaluate(target, args, kwargs, 0)
    if types.types != others.types:
        raise VerifyError(
            f"the shape of the result of `{target}` depends on a run-time number",
            remedy="use stretto.narrow for a slice of static length",
        )
    return types


def _has_type(item: _Frozen) -> bool:
    if item.kind is tuple:
        return any(_has_type(part) for part in item.value)
    return item.kind is TensorType


def _attempt(
    target: str,
    args: tuple[_Frozen, ...],
    kwargs: tuple[tuple[str, _Frozen], ...],
    position: int,
) -> Inferred | None:
    try:
        return _evaluate(target, args, kwargs, position)
    except VerifyError:
        return None


def _evaluate(
    target: str,
    args: tuple[_Frozen, ...],
    kwargs: tuple[tuple[str, _Frozen], ...],
    position: int,
) -> Inferred:
    symbols = _Symbols.of((*args, *(value for _, value in kwargs)))
    try:
        return _evaluated(target, args, kwargs, position, symbols)
    except VerifyError as error:
        found = _evaluated_by_cases(target, args, kwargs, position, symbols.symbols)
        if found is None:
            raise error from None
        return found


def _evaluated_by_cases(
    target: str,
    args: tuple[_Frozen, ...],
    kwargs: tuple[tuple[str, _Frozen], ...],
    position: int,
    symbols: tuple[Symbol, ...],
) -> Inferred | None:
    """Infer an operator that asks for the values of sizes: derive a formula from example values,
    and require that it is right for other values too, including the smallest."""
    first, *others = _cases(symbols)
    if not first:
        return None
    try:
        found = _evaluated(target, args, kwargs, position, _BackedSymbols(symbols, first))
        for sizes in others:
            values = dict(zip(symbols, sizes, strict=True))
            exact = _evaluated(target, args, kwargs, position, _NumberSymbols(values))
            if exact.types != tuple(type.at(values) for type in found.types):
                return None
    except VerifyError:
        return None
    return Inferred(found.types, ())


def _cases(symbols: tuple[Symbol, ...]) -> list[tuple[int, ...]]:
    """Return sizes to try: first large ones without common factors, then the smallest for each
    symbol."""
    if len(symbols) > len(_PRIMES):
        return [()]

    def size(symbol: Symbol, more: int) -> int:
        return symbol.low + more if symbol.high is None else min(symbol.low + more, symbol.high)

    large = tuple(map(size, symbols, _PRIMES))
    cases = [large]
    for more in range(3):
        cases.append(tuple(size(symbol, more) for symbol in symbols))
        for place, symbol in enumerate(symbols):
            cases.append((*large[:place], size(symbol, more), *large[place + 1 :]))
    return cases


_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137)


def _evaluated(
    target: str,
    args: tuple[_Frozen, ...],
    kwargs: tuple[tuple[str, _Frozen], ...],
    position: int,
    symbols: _Symbols,
) -> Inferred:
    overload, known = resolve(target), parameters(target)
    with quiet(), _disable_current_modes(), torch.no_grad(), symbols.mode:
        symbols.create()

        def make(name: str, item: _Frozen) -> Any:
            if name == "generator":  # types do not depend on it, and names are not generators
                return None
            return _placeholder(item, known[name].is_tensor, position, symbols)

        positional = [make(name, item) for name, item in zip(known, args, strict=False)]
        keywords = {name: make(name, item) for name, item in kwargs}
        try:
            run = on_fakes if symbols.symbols else plainly
            result = run(overload, positional, keywords)
        except Exception as error:  # torch raises RuntimeError, TypeError, IndexError, and others
            over = f" of size {', '.join(map(str, symbols.symbols))}" if symbols.symbols else ""
            raise VerifyError(
                f"`{target}` refuses its arguments{over}: {_first_line(error)}"
            ) from error
        types = tuple(_type_of(target, item, symbols) for item in _flatten(result))
        return Inferred(types, symbols.relations())


_quiet = threading.local()


@contextmanager
def quiet() -> Generator[None]:
    """Keep torch from logging a traceback in this thread if an operator refuses fake tensors: the
    caller raises instead."""
    _quiet.depth = getattr(_quiet, "depth", 0) + 1
    try:
        yield
    finally:
        _quiet.depth -= 1


def _is_wanted(record: logging.LogRecord) -> bool:
    return not getattr(_quiet, "depth", 0)


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_is_wanted)


_modes = threading.local()


def _plain_mode() -> FakeTensorMode:
    """Return this thread's mode for tensors without symbols. It is reused, because torch records
    the Python stack when a mode is created, which takes as long as most operators."""
    if not hasattr(_modes, "plain"):
        _modes.plain = FakeTensorMode()
    return _modes.plain


class _Symbols:
    """The SymInts for the symbols of sizes while one op is inferred."""

    def __init__(self, symbols: tuple[Symbol, ...]) -> None:
        self.symbols = symbols
        self.sizes: dict[Symbol, torch.SymInt] = {}
        # Keyed by sympy symbol. If torch later finds out what a symbol is equal to, its SymInt has
        # that expression from then on, while relations still use the symbol.
        self.ours: dict[Any, Symbol] = {}
        self.env = SizeEnv() if symbols else None
        self.seen: set[str] = set()
        self.mode: AbstractContextManager[Any] = (
            without_cache(FakeTensorMode(shape_env=self.env)) if symbols else _plain_mode()
        )

    @staticmethod
    def of(items: Sequence[_Frozen]) -> _Symbols:
        return _Symbols(symbols_in(size for item in items for size in _sizes(item)))

    def create(self) -> None:
        for symbol in self.symbols:
            assert self.env is not None
            size: torch.SymInt = self.env.create_unbacked_symint()
            self.ours[size.node.expr] = symbol
            torch._check(size >= symbol.low)  # pyright: ignore[reportPrivateUsage]
            if symbol.high is not None:
                torch._check(size <= symbol.high)  # pyright: ignore[reportPrivateUsage]
            self.sizes[symbol] = size
        self.relations()

    def relations(self) -> tuple[Relation, ...]:
        """Return the conditions that torch has deferred to run time since the last call, without
        those that ranges guarantee."""
        if self.env is None:
            return ()
        deferred = self.env.deferred_runtime_asserts.values()
        found: dict[str, Any] = {str(one.expr): one.expr for items in deferred for one in items}
        new = [expression for text, expression in found.items() if text not in self.seen]
        self.seen.update(found)
        relations = (
            Relation(item.rel_op, *(from_sympy(side, self.ours) for side in item.args))
            for expression in new
            for item in comparisons(expression)
        )
        return tuple(relation for relation in relations if not relation.is_known)

    def size(self, dim: Dim) -> int | torch.SymInt:
        return to_symint(dim, self.sizes)

    def dim(self, size: int | torch.SymInt) -> Dim:
        """Return the dim of a result, in the Program's symbols."""
        if isinstance(size, int):
            return size
        return from_sympy(size.node.expr, self.ours)


class _BackedSymbols(_Symbols):
    """SymInts with example values, which operators may ask for."""

    def __init__(self, symbols: tuple[Symbol, ...], sizes: tuple[int, ...]) -> None:
        super().__init__(symbols)
        self.env = SizeEnv(specialize_zero_one=False, duck_shape=False)
        self.mode = without_cache(FakeTensorMode(shape_env=self.env))
        self.backing = dict(zip(symbols, sizes, strict=True))

    def create(self) -> None:
        assert isinstance(self.env, SizeEnv)
        for symbol, size in self.backing.items():
            made: Any = backed_symint(self.env, symbol.name, size, symbol.low, symbol.high)
            self.ours[made.node.expr] = symbol
            self.sizes[symbol] = made


class _NumberSymbols(_Symbols):
    """Numbers in place of the symbols."""

    def __init__(self, values: Mapping[Symbol, int]) -> None:
        super().__init__(())
        self.values = values

    def size(self, dim: Dim) -> int:
        return dim if isinstance(dim, int) else dim.evaluate(self.values.__getitem__)


def _sizes(item: _Frozen) -> Iterable[Dim]:
    if item.kind is tuple:
        for part in item.value:
            yield from _sizes(part)
    elif item.kind is TensorType:
        yield from item.value.shape
    elif item.kind is Size:
        yield item.value


_NUMBERS: dict[bool, Callable[[int], int | float]] = {True: float, False: int}


def _placeholder(item: _Frozen, is_tensor: bool, position: int, symbols: _Symbols) -> Any:
    if item.kind is tuple:
        return [_placeholder(part, is_tensor, position, symbols) for part in item.value]
    if item.kind is Size:
        return symbols.size(item.value)
    if item.kind is not TensorType:
        return item.value
    type: TensorType = item.value
    if is_tensor:
        shape: Any = tuple(symbols.size(dim) for dim in type.shape)
        return torch.empty(shape, dtype=type.dtype.torch)
    if type.shape:
        raise VerifyError(f"a run-time number has no dims, found {type}")
    return bool(position) if type.dtype is DType.BOOL else _NUMBERS[type.dtype.is_float](position)


def _flatten(result: Any) -> list[Any]:
    if result is None:  # the operator has no results and only checks values
        return []
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _flatten(item)]  # pyright: ignore
    return [result]


def _type_of(target: str, item: Any, symbols: _Symbols) -> TensorType:
    if not isinstance(item, torch.Tensor):
        raise VerifyError(f"`{target}` has a result that is not a tensor: {item!r}")
    try:
        dtype = DType.from_torch(item.dtype)
    except KeyError:
        raise VerifyError(f"`{target}` has a result of dtype {item.dtype}") from None
    return TensorType(dtype, tuple(symbols.dim(size) for size in item.shape))


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def functional_operator(_: Program, op: TensorOp) -> str | None:
    """Verifier rule: the operator exists and changes none of its arguments."""
    try:
        overload = resolve(op.target)
    except VerifyError as error:
        return error.message
    return f"`{op.target}` changes its arguments" if overload._schema.is_mutable else None


def inferred_types(_: Program, op: TensorOp) -> str | None:
    """Verifier rule: the results have the types that torch infers."""
    try:
        expected = infer(op.target, op.args, op.kwargs)
    except VerifyError as error:
        return error.message
    found = tuple(value.type for value in op.results)
    if found == expected:
        return None
    texts = (", ".join(map(str, types)) or "none" for types in (expected, found))
    return f"the results should be {next(texts)}, found {next(texts)}"


def known_relations(program: Program, op: TensorOp) -> str | None:
    """Verifier rule: no operator needs an unproven relation between sizes that the caller chooses.

    A relation with a data-dependent size is checked at run time, as in eager PyTorch; one between
    sizes that guards have compared needs no proof.
    """
    if program.is_guarded:
        return None
    for relation in relations(op):
        symbols = set(symbols_in((relation.left, relation.right)))
        functions = program.functions.values()
        if symbols <= symbols_of_types(v.type for f in functions for v in f.params):
            return (
                f"`{op.target}` cannot treat the symbolic sizes of its arguments: {relation} would "
                "have to hold, but is not guaranteed"
            )
    return None


RULES[TensorOp] = (functional_operator, inferred_types, known_relations)
