"""Build the Program of a block for one instance, by the front end of `stretto.compile`."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.batching.instance_program import (
    BlockStep,
    Composition,
    ProgramOperator,
    StaticBlock,
    call_operation,
    filled,
    leaf_of,
    rows_in,
)
from stretto.batching.levels.filled_lists import FilledLists
from stretto.batching.levels.tables import least_lengths, length_groups, trial
from stretto.errors import CaptureError, SourceLocation, StrettoError
from stretto.frontends.python import (
    Captured,
    CaptureWatch,
    ConstantSource,
    InputLeaf,
    NewContainer,
    ResultLeaf,
    SizePlan,
    SizeRange,
    SizeSource,
    call_in_program,
    capture,
)
from stretto.frontends.python.tracing.locations import at
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values.leaves import wrap
from stretto.frontends.python.values.scalars import LeafKind
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.data import Operation
from stretto.ir.ops import TensorOp
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import Renaming, rename_symbols
from stretto.ir.types import RowsType, Scalar, TensorType
from stretto.ops.infer import infer
from stretto.ops.positions import CHECK
from stretto.options import Options
from stretto.passes.check_unused import CheckUnused
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.inline import InlineFunctions
from stretto.passes.manager import Repeat, run_passes
from stretto.passes.simplify import Simplify

# ---- Blocks for which torch tests whether there is more than one row, as in attention's strides.
#
# Memory of [n, heads, width] counts as contiguous if n is 0 or 1, and torch's modules choose
# between equivalent code paths by it. So such a block is captured for at least two rows, and the
# captured program is compared with torch's own results for fewer.


ENOUGH = 2
"""From this many rows on, torch's tests of the number of rows have one answer."""
_MORE = 3
"""A length that is not few: groups are also tried with this many rows while another has few."""
_TOLERANCE = 1e-5


def holds_for_few(program: Program, block: StaticBlock, least: Mapping[int, int]) -> bool:
    """Return True if the Program of a block, captured for `ENOUGH` rows or more, also agrees with
    the block for fewer.

    As a side effect the least sizes of the Program become `least`, by group (tables.py). The
    values compared are random. Where the block itself raises, any result of the Program is
    accepted, since an instance with so few rows has already ended.
    """
    groups = length_groups(block)
    _widen(program, block, {group: least.get(group, 0) for group in set(groups.values())})
    random = torch.Generator().manual_seed(0)
    return all(
        _agrees(
            program,
            block,
            [
                _row_example(t, lengths.get(groups.get(n, -1), 0), random)
                for n, t in enumerate(block.inputs)
            ],
        )
        for lengths in _lengths(groups, least)
    )


def _widen(program: Program, block: StaticBlock, least: Mapping[int, int]) -> None:
    groups = length_groups(block)
    renaming: Renaming = {}
    for number, param in enumerate(program.main.params):
        symbol = Size.of(param.tensor.shape[0]).symbol if number in groups else None
        if symbol is not None:
            low = least[groups[number]]
            renaming[Size.of(symbol)] = Size.of(Symbol(symbol.name, low, symbol.high)).dim
    rename_symbols(program.main.body, renaming)


def _lengths(groups: Mapping[int, int], least: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Yield all combinations of lengths of the groups: each from its least to `ENOUGH - 1`, or
    `_MORE`."""
    found = sorted(set(groups.values()))
    each = [(*range(least.get(group, 0), ENOUGH), _MORE) for group in found]
    for lengths in itertools.product(*each):
        yield dict(zip(found, lengths, strict=True))


def _row_example(
    type_: TensorType | RowsType | Scalar, length: int, random: torch.Generator
) -> Any:
    match type_:
        case TensorType() as kind:
            return _tensor(kind.static_shape(), kind.dtype.torch, random)
        case RowsType(row):
            return _tensor((length, *row.static_shape()), row.dtype.torch, random)
        case Scalar.FLOAT:
            return 0.5
        case Scalar.BOOL:
            return True
        case _:
            return 0


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=random)
    return torch.zeros(shape, dtype=dtype)  # integers are positions, as a rule: 0 is valid


def _agrees(program: Program, block: StaticBlock, operands: list[Any]) -> bool:
    given = [
        one if isinstance(one, torch.Tensor) else torch.tensor(one, dtype=_ROW_SCALARS[type(one)])
        for one in operands
    ]
    with trial(), torch.no_grad():
        try:
            expected = block(*operands)
        except (TypeError, RuntimeError, IndexError, ValueError):
            return True
        try:
            found = run(program, given)
        except (StrettoError, RuntimeError):
            return False
    return all(map(_same, found, expected))


_ROW_SCALARS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def _same(found: Any, expected: torch.Tensor) -> bool:
    return (
        isinstance(found, torch.Tensor)
        and found.shape == expected.shape
        and found.dtype == expected.dtype
        and torch.allclose(found, expected, _TOLERANCE, _TOLERANCE, equal_nan=True)
    )


_SCALARS = {Scalar.BOOL: torch.bool, Scalar.INT: torch.int64, Scalar.FLOAT: torch.float64}
_ROWS = 3
"""The length of rows while a block is captured, if that few are allowed; the Program holds for any
length."""

_AS_WRITTEN: dict[Any, Callable[..., Any]] = {torch.Tensor.__getitem__: operator.getitem}
"""Functions to trace in place of those that an operation holds: the form in the user's source."""

_DIRECT = (leaf_of, rows_in, operator.add, operator.sub, operator.mul, operator.floordiv)
"""Functions called in compositions that are not operators: selecting parts of results, and size
arithmetic."""


@dataclass(frozen=True, slots=True)
class CapturedBlock:
    """A block as a Program of one instance: `program.main` takes the inputs in order (scalars as
    tensors without dims) and yields the outputs. sources: the tensors that it relies on. watch:
    detects changes of what the capture read. groups: the inputs that have the same length
    (`length_groups`)."""

    block: StaticBlock
    program: Program
    sources: tuple[ConstantSource, ...]
    watch: CaptureWatch
    groups: dict[int, int]

    @property
    def least(self) -> int:
        """The largest of the least lengths known for its rows; 0 if there are none."""
        params = self.program.main.params
        symbols = [
            Size.of(params[n].tensor.shape[0]).symbol for n in self.groups if n < len(params)
        ]
        return max((symbol.low for symbol in symbols if symbol is not None), default=0)


@contextmanager
def naming(block: StaticBlock) -> Generator[None]:
    """Add a note with the block's name to errors raised inside."""
    try:
        yield
    except StrettoError as error:
        error.add_note(f"in the block {block.name}")
        raise


def capture_block(block: StaticBlock, options: Options) -> CapturedBlock:
    """Build the Program of one instance. Raises CaptureError, with the user's line, for operators
    that cannot be captured."""
    with naming(block), torch.no_grad():
        captured, least = _captured(block, {}, options), {}
        if _depends_on_length(captured):
            least = least_lengths(block)
            captured = _captured(block, least, options)
        few = _depends_on_length(captured)
        if few:
            groups = set(length_groups(block).values())
            enough = {group: max(least.get(group, 0), ENOUGH) for group in groups}
            captured = _captured(block, enough, options)
        _check(captured)
        program = run_passes(captured.program, _passes(), verify=options.debug.verify)
    main = program.main.body
    main.yields = tuple(
        main.params[leaf.index] if isinstance(leaf, InputLeaf) else main.yields[leaf.index]
        for leaf in _leaves(captured)
    )
    if few and not holds_for_few(program, block, least):
        with naming(block):
            raise _other_lengths(block.steps[-1].operation.location)
    watch = CaptureWatch.of(captured)
    return CapturedBlock(block, program, captured.constants, watch, length_groups(block))


def _captured(block: StaticBlock, least: Mapping[int, int], options: Options) -> Captured:
    """Trace the block. least: the least length of each group of rows (tables.py)."""
    groups = length_groups(block)
    places = [n for n, type_ in enumerate(block.inputs) if isinstance(type_, RowsType)]
    lengths = {SizeSource(n, 0): SizeRange(least.get(groups[n], 0)) for n in places}
    alike = {SizeSource(n, 0): SizeSource(groups[n], 0) for n in places}
    plan = SizePlan.of(lengths, alike) if lengths else None
    examples = tuple(
        _example(type_, max(_ROWS, least.get(groups.get(n, n), 0)))
        for n, type_ in enumerate(block.inputs)
    )
    return capture(_instance(block), examples, {}, options, sizes=plan)


def _passes() -> tuple[Any, ...]:
    """Return the passes that simplify a block before it is batched; the level program gets all
    passes."""
    tidy = (FoldConstants(), Simplify(), EliminateCommonSubexpressions())
    return (
        InlineFunctions(),
        FilledLists(),
        Repeat((*tidy, EliminateDeadCode(keep_stopping=True))),
        CheckUnused(),
        Repeat((*tidy, EliminateDeadCode())),
    )


def _example(type_: TensorType | RowsType | Scalar, length: int) -> torch.Tensor:
    match type_:
        case TensorType() as kind:
            return torch.zeros(kind.static_shape(), dtype=kind.dtype.torch)
        case RowsType(row):
            return torch.zeros((length, *row.static_shape()), dtype=row.dtype.torch)
        case _:
            return torch.zeros((), dtype=_SCALARS[type_])


def _instance(block: StaticBlock) -> Callable[..., Any]:
    """Return a function that calls the block's operators as the user's own code would, for the
    front end to trace."""

    def instance(*given: torch.Tensor) -> tuple[Any, ...]:
        # Attention is split, since only its parts have batching rules for run-time sizes.
        tracer().splits_attention = True
        values: list[Any] = [
            value.item() if isinstance(type_, Scalar) else value
            for value, type_ in zip(given, block.inputs, strict=True)
        ]
        for step in block.steps:
            with at(step.operation.location):
                values.extend(_made(step, values))
        return tuple(values[number] for number in block.outputs)

    return instance


def _made(step: BlockStep, values: list[Any]) -> list[torch.Tensor]:
    made = _staged(step.operation, [values[number] for number in step.operands])
    leaves = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
    # A float of an instance is an f64 tensor here, which gives f64 results where a Python number
    # would give the default dtype.
    wanted = [_row(type_).dtype.torch for type_ in step.operation.results]
    return [
        leaf if leaf.dtype == dtype else call_in_program(torch.Tensor.to, leaf, dtype)
        for leaf, dtype in zip(leaves, wanted, strict=True)
    ]


def _staged(operation: Operation, operands: list[Any]) -> Any:
    """Trace a call of an operation."""
    if isinstance(operation.function, Composition):
        return operation.function.run(filled(operation.args, operands), _staged)
    if isinstance(operation.function, ProgramOperator):
        return _emitted(operation, operation.function, operands)
    if operation.function in _DIRECT:
        return call_operation(operation, operands)
    function = _AS_WRITTEN.get(operation.function, operation.function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return call_in_program(function, *args, **kwargs)

    return call_operation(replace(operation, function=call), operands)


def _emitted(operation: Operation, operator: ProgramOperator, operands: list[Any]) -> Any:
    """Emit an operator as it was captured."""
    state = tracer()

    def value(item: Any) -> Any:
        if isinstance(item, TracedTensor):
            return state.read(item)
        if isinstance(item, torch.Tensor):
            return state.read(state.promote(item))
        if isinstance(item, tuple | list):
            return tuple(map(value, item))
        return state.dim(item) if isinstance(item, torch.SymInt) else item

    *checks, args = filled(operation.args, operands)
    kwargs = tuple((name, value(filled(item, operands))) for name, item in operation.kwargs)
    for target, parts in zip(operator.targets, checks, strict=False):
        state.emit(TensorOp(target, value(parts)), ())
    known = [type_ for type_ in operation.results if isinstance(type_, TensorType)]
    if operator.targets[-1] == CHECK:
        state.emit(TensorOp(CHECK, value(args)), ())
        return wrap(state.read(args[0]), LeafKind(known[0], False))
    op = TensorOp(operator.targets[-1], value(args), kwargs)
    is_known = known and len(known) == len(operation.results)
    types = known if is_known else infer(op.target, op.args, op.kwargs)
    values = state.emit(op, types)
    made = [wrap(v, LeafKind(its, False)) for v, its in zip(values, types, strict=True)]
    return made[0] if len(made) == 1 else tuple(made)


def _row(type_: TensorType | RowsType) -> TensorType:
    return type_.row if isinstance(type_, RowsType) else type_


def _leaves(captured: Captured) -> list[ResultLeaf | InputLeaf]:
    assert isinstance(captured.output, NewContainer)
    leaves = list(captured.output.children)
    found = [leaf for leaf in leaves if isinstance(leaf, ResultLeaf | InputLeaf)]
    if len(found) != len(leaves):
        raise CaptureError("a result of a block is not a tensor that it computes")
    return found


def _check(captured: Captured) -> None:
    if captured.mutations or captured.objects is not None or captured.journal is not None:
        raise CaptureError(
            "an operator changes a tensor that it is given, or an object outside of the function",
            remedy="use the operator that returns a new tensor",
        )
    if _depends_on_length(captured):
        assert captured.sizes is not None
        conditions = captured.sizes.conditions
        raise _other_lengths(conditions[0].location if conditions else None)


def _depends_on_length(captured: Captured) -> bool:
    """Return True if the capture holds only for some lengths of rows."""
    return captured.sizes is not None and bool(captured.sizes.conditions or captured.sizes.fixed)


def _other_lengths(location: SourceLocation | None) -> CaptureError:
    return CaptureError(
        "an operator works for some numbers of rows only, and instances decide how many rows "
        "a tensor has",
        location=location,
        remedy="go through its rows in a loop",
    )
