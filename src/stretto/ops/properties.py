"""Properties of operators: failures, positions, random numbers, aliasing, speculation, batching,
cost.

`properties` is the only source. It combines torch's tags and schemas with `table`, which
describes what those do not. The other functions here answer for one op with its given arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from stretto.errors import OnlyInPython
from stretto.ir.core import Op, argument_values
from stretto.ir.failure import Failure, eager_class
from stretto.ir.ops import TensorOp
from stretto.ir.size_bounds import at_most
from stretto.ir.sizes import Size
from stretto.ir.types import DType, TensorType
from stretto.ops import table
from stretto.ops.arguments import arguments
from stretto.ops.infer import Relation, named_arguments, parameters, relations, resolve
from stretto.ops.table import (
    Aliases,
    Batching,
    Cost,
    ElementByElement,
    Fails,
    PositionArgument,
    Reach,
    entry,
)


@dataclass(frozen=True, slots=True)
class Properties:
    """One line of the table of operators.

    elementwise: each element of the result depends only on the operands' elements at that
    place. rearranges: the result only renames elements of one operand. positions: the argument
    whose positions are checked; None if unknown. switches: None if it draws no random numbers;
    else the arguments that can switch that off. updates, whole, raises: see `table.OperatorFacts`.
    """

    target: str
    elementwise: bool
    rearranges: bool
    aliases: Aliases
    fails: Fails
    cost: Cost
    batching: Batching | None
    positions: PositionArgument | None
    switches: tuple[str, ...] | None
    raises: tuple[str, ...]
    updates: bool
    whole: bool

    @property
    def is_random(self) -> bool:
        """True if two runs may differ, for some arguments."""
        return self.switches is not None

    @property
    def reads_positions(self) -> bool:
        """True if a position may be out of bounds; the operator checks it."""
        return self.fails is Fails.POSITIONS

    @property
    def is_cheap(self) -> bool:
        return self.cost in (Cost.FREE, Cost.ELEMENT)

    @property
    def is_product(self) -> bool:
        """True if it is a contraction."""
        return self.cost is Cost.PRODUCT


@cache
def properties(target: str) -> Properties:
    """Return the properties of `namespace.name.overload`; raise VerifyError if torch has no such
    operator."""
    known, said = resolve(target), entry(target)
    schema = known._schema
    returns: list[Any] = schema.returns
    shares = any(item.alias_info is not None and not item.alias_info.is_write for item in returns)
    gives_tensors = all(str(item.type) == "Tensor" for item in returns)
    elementwise = said.elementwise or (torch.Tag.pointwise in known.tags and gives_tensors)
    rearranges = said.rearranges or shares or torch.Tag.view_copy in known.tags
    switches = _switches(target) if torch.Tag.nondeterministic_seeded in known.tags else None
    cost = Cost.FREE if rearranges else Cost.ELEMENT if elementwise else Cost.OTHER
    batching = ElementByElement() if elementwise else None
    return Properties(
        target,
        elementwise,
        rearranges,
        said.aliases or (Aliases.ALWAYS if shares else Aliases.NEVER),
        said.fails or _fails(target, elementwise or rearranges),
        said.cost or cost,
        (said.batching or batching) if switches != () else None,
        said.positions,
        switches,
        said.raises or (),
        bool(said.updates),
        bool(said.whole) and not schema.is_mutable,
    )


def describe(target: str, **said: Any) -> None:
    """Add to the entry of an operator what torch's tags and schema do not say: fields of
    `table.OperatorFacts`."""
    namespace, _, name = target.partition(".")
    table.describe(name, namespace, **said)
    properties.cache_clear()


POSITION_NAMES = frozenset(("index", "indices", "offsets"))
"""ATen's names of the parameters that hold positions."""


def _fails(target: str, is_total: bool) -> Fails:
    known = resolve(target)
    if not known._schema.returns:
        return Fails.CHECKS
    named = (item.name for item in parameters(target).values() if item.is_tensor)
    if entry(target).positions is not None or not POSITION_NAMES.isdisjoint(named):
        return Fails.POSITIONS
    return Fails.NEVER if is_total or torch.Tag.core in known.tags else Fails.UNKNOWN


def _switches(target: str) -> tuple[str, ...]:
    """Return the arguments of a random operator that switch off its draws if one of them is 0 or
    False."""
    names = parameters(target)
    modes = tuple(name for name in ("train", "training") if name in names)
    rates = ("dropout_p", "dropout", *(("p",) if modes else ()))
    return (*modes, *(name for name in rates if name in names))


# ---- properties of one op --------------------------------------------------------------------


def is_contraction(op: Op) -> bool:
    return isinstance(op, TensorOp) and properties(op.target).is_product


def is_view(op: Op) -> bool:
    """True for operators that only rename elements, and so cost nothing wherever they run."""
    return isinstance(op, TensorOp) and properties(op.target).rearranges


def is_random(op: TensorOp) -> bool:
    """True if two runs of the op may differ: dropout, unless it is switched off, and the like."""
    return draws(op.target, op.args, op.kwargs)


def draws(target: str, args: Sequence[Any], kwargs: Iterable[tuple[str, Any]]) -> bool:
    """True if an operator draws random numbers for these arguments."""
    switches = properties(target).switches
    if not switches:
        return switches is not None
    given = arguments(target, args, kwargs)
    return not any(type(given[name]) in (bool, int, float) and not given[name] for name in switches)


def stop_reason(op: TensorOp) -> str | None:
    """Return why the op may stop the run although its types are right, or None if it cannot.

    An op that cannot stop may run earlier, or where it did not run before.
    """
    known = properties(op.target)
    if known.fails is Fails.CHECKS:
        return known.fails.value
    if (reason := _run_time_number(op)) is not None:
        return reason
    if (reason := _known_position(op)) is not None:
        return reason
    if relations_of_sizes(op):
        return "whether the symbolic dims of its operands agree is known only at run time"
    if known.fails is Fails.POSITIONS and _has_positions(op):
        return known.fails.value
    return refusal_of_values(op)


def relations_of_sizes(op: TensorOp) -> tuple[Relation, ...]:
    """Return the comparisons of sizes that the operands must pass and that are known only at run
    time."""
    is_static = all(type.is_static for type in _tensor_types(op))
    return () if is_static else relations(op)


def misfit(op: TensorOp, relation: Relation) -> Failure:
    """Return the failure of an op whose sizes do not fit together. The call then runs in Python,
    where eager PyTorch raises, or broadcasts a size of 1."""
    message = f"{op.target} needs sizes with {relation}; found {{}}"
    return Failure(OnlyInPython.__name__, message)


def refusal_of_values(op: TensorOp) -> str | None:
    """Return why the op may refuse values of its operands (positions excluded), or None."""
    known = properties(op.target)
    match known.fails:
        case Fails.DIVISOR if not _divides_by_number(op):
            is_integer = any(type.dtype.is_integer for type in _tensor_types(op))
            return known.fails.value if is_integer else None
        case Fails.UNKNOWN | Fails.VALUES:
            return f"`{op.target}`: {known.fails.value}"
        case _:
            return None


def _divides_by_number(op: TensorOp) -> bool:
    """True if the divisor is a nonzero number, or the exponent a nonnegative one."""
    given = {item.name: value for item, value in named_arguments(op.target, op.args, op.kwargs)}
    match given:
        case {"exponent": int() as exponent}:
            return exponent >= 0
        case {"other": int() as divisor}:
            return divisor != 0
        case _:
            return False


def stay_reason(op: TensorOp) -> str | None:
    """Return why the op may neither be moved nor run more or less often, or None."""
    return "it is random" if is_random(op) else stop_reason(op)


def eager_errors(op: TensorOp) -> tuple[type[Exception], ...]:
    """Return the exception classes that the op may raise for the values of its operands, as code
    that catches them sees them: positions out of range, integers divided by 0, matrices without
    a solution."""
    known = properties(op.target)
    reads = known.reads_positions and _has_positions(op)
    if reads or _run_time_number(op) is not None or _known_position(op) is not None:
        return (IndexError, RuntimeError)
    if known.fails is Fails.DIVISOR and not any(one.dtype.is_float for one in _tensor_types(op)):
        return (ZeroDivisionError, RuntimeError)
    return tuple(eager_class(name) for name in known.raises)


def _has_positions(op: TensorOp) -> bool:
    own = properties(op.target).positions
    names = POSITION_NAMES if own is None else {own.name}
    return any(
        item.name in names and argument_values(value)
        for item, value in named_arguments(op.target, op.args, op.kwargs)
    )


def _run_time_number(op: TensorOp) -> str | None:
    """Return why an argument may be out of range: a run-time number that may be a position or a
    size (a `Scalar` of a schema is neither). None if there is none."""
    if properties(op.target).elementwise:
        return None
    for item, value in named_arguments(op.target, op.args, op.kwargs):
        if not item.is_tensor and not item.is_scalar and argument_values(value):
            return f"its argument `{item.name}` is a run-time number that may be out of range"
    return None


def _known_position(op: TensorOp) -> str | None:
    """Return why a position that is a number or a size may be out of range (a branch around the op
    may have tested the size), or None."""
    positions = properties(op.target).positions
    if positions is None or positions.reach is not Reach.DIM:
        return None
    given = {item.name: value for item, value in named_arguments(op.target, op.args, op.kwargs)}
    position, dim = given.get(positions.name), given.get("dim")
    if not isinstance(position, int | Size) or not isinstance(dim, int):
        return None
    size = given["self"].tensor.shape[dim]
    if at_most(0, position) and at_most(position + 1, size):
        return None
    if at_most(position, -1) and at_most(-position, size):
        return None
    return f"its argument `{positions.name}` may be out of range for the size {size}"


def _tensor_types(op: TensorOp) -> list[TensorType]:
    named = named_arguments(op.target, op.args, op.kwargs)
    values = (value for one, item in named if one.is_tensor for value in argument_values(item))
    return [value.tensor for value in values]


def is_lossless(source: DType, target: DType) -> bool:
    """True if every number of `source` exists in `target`: casting there and back is exact."""
    if source is target or source is DType.BOOL:
        return True
    if target is DType.BOOL or (source.is_float and not target.is_float):
        return False
    if source.is_float:
        return target is DType.F64 or (target is DType.F32 and source is not DType.F64)
    if not target.is_float:
        signed = source is not DType.U8 and target is DType.U8
        return not signed and target.itemsize > source.itemsize
    bits = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}[target]
    return source.itemsize * 8 - (source is not DType.U8) <= bits
