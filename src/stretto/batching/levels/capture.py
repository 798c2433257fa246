"""The Program of a block for one instance, by the front end of `stretto.compile`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.batching.lengths import least_lengths, length_groups
from stretto.batching.levels.few_rows import ENOUGH, holds_for_few
from stretto.batching.levels.filled_lists import FilledLists
from stretto.batching.program import (
    Block,
    Composition,
    Operation,
    Step,
    call_operation,
    filled,
    leaf_of,
    rows_in,
)
from stretto.batching.types import RowsType, Scalar, TensorType
from stretto.errors import CaptureError, SourceLocation, StrettoError
from stretto.frontends.python import (
    Captured,
    ConstantSource,
    InputLeaf,
    NewContainer,
    ResultLeaf,
    SizePlan,
    SizeRange,
    SizeSource,
    Watch,
    capture,
    staging,
)
from stretto.frontends.python.tracing.locations import at
from stretto.frontends.python.tracing.tracer import tracer
from stretto.ir.core import Program
from stretto.ir.sizes import Size
from stretto.options import Options
from stretto.passes.check_unused import CheckUnused
from stretto.passes.cse import EliminateCommonSubexpressions
from stretto.passes.dce import EliminateDeadCode
from stretto.passes.fold import FoldConstants
from stretto.passes.inline import InlineFunctions
from stretto.passes.manager import Repeat, run_passes
from stretto.passes.simplify import Simplify

_SCALARS = {Scalar.BOOL: torch.bool, Scalar.INT: torch.int64, Scalar.FLOAT: torch.float64}
_ROWS = 3
"""The length that rows have while a block is captured, if they may be so few; the Program holds for
any."""

_AS_WRITTEN: dict[Any, Callable[..., Any]] = {torch.Tensor.__getitem__: operator.getitem}
"""What calls of a function are in the source of the user."""

_DIRECT = (leaf_of, rows_in, operator.add, operator.sub, operator.mul, operator.floordiv)
"""What compositions call that is no operator: parts of results, and sizes."""


@dataclass(frozen=True, slots=True)
class CapturedBlock:
    """A block as a Program of one instance: `program.main` takes the inputs in order (scalars as
    tensors without dims) and yields the outputs. sources: the tensors that it relies on. watch:
    notices what has changed since. groups: which inputs have one length (`length_groups`)."""

    block: Block
    program: Program
    sources: tuple[ConstantSource, ...]
    watch: Watch
    groups: dict[int, int]

    @property
    def least(self) -> int:
        """The least length that is known of any rows."""
        params = self.program.main.params
        symbols = [
            Size.of(params[n].tensor.shape[0]).symbol for n in self.groups if n < len(params)
        ]
        return max((symbol.low for symbol in symbols if symbol is not None), default=0)


@contextmanager
def naming(block: Block) -> Generator[None]:
    """Errors raised inside say which block they are about."""
    try:
        yield
    except StrettoError as error:
        error.add_note(f"in the block {block.name}")
        raise


def capture_block(block: Block, options: Options) -> CapturedBlock:
    """The Program of one instance. Raises CaptureError, with the user's line, for operators that
    cannot be captured."""
    with naming(block), torch.no_grad():
        captured, least = _captured(block, {}, options), {}
        if _asks(captured):
            least = least_lengths(block)
            captured = _captured(block, least, options)
        few = _asks(captured)
        if few:
            groups = set(length_groups(block).values())
            enough = {group: max(least.get(group, 0), ENOUGH) for group in groups}
            captured = _captured(block, enough, options)
        _check(captured)
        program = run_passes(captured.program, _passes(), verify=options.verify)
    main = program.main.body
    main.yields = tuple(
        main.params[leaf.index] if isinstance(leaf, InputLeaf) else main.yields[leaf.index]
        for leaf in _leaves(captured)
    )
    if few and not holds_for_few(program, block, least):
        with naming(block):
            raise _other_lengths(block.steps[-1].operation.location)
    watch = Watch.of(captured)
    return CapturedBlock(block, program, captured.constants, watch, length_groups(block))


def _captured(block: Block, least: Mapping[int, int], options: Options) -> Captured:
    """The block as it was traced. least: the least length of groups of rows (lengths.py)."""
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
    """What makes a block smaller before it is batched; the level program has all passes."""
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
        case TensorType(dtype, shape):
            return torch.zeros(shape, dtype=dtype.torch)
        case RowsType(TensorType(dtype, shape)):
            return torch.zeros((length, *shape), dtype=dtype.torch)
        case _:
            return torch.zeros((), dtype=_SCALARS[type_])


def _instance(block: Block) -> Callable[..., Any]:
    """The block as the front end traces it: as if the user's own code called the operators."""

    def instance(*given: torch.Tensor) -> tuple[Any, ...]:
        tracer().splits_attention = True  # batches of a run's sizes have rules for its parts
        values: list[Any] = [
            value.item() if isinstance(type_, Scalar) else value
            for value, type_ in zip(given, block.inputs, strict=True)
        ]
        for step in block.steps:
            with at(step.operation.location):
                values.extend(_made(step, values))
        return tuple(values[number] for number in block.outputs)

    return instance


def _made(step: Step, values: list[Any]) -> list[torch.Tensor]:
    made = _staged(step.operation, [values[number] for number in step.operands])
    leaves = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
    # A float of an instance is a tensor of f64 here, and makes results of f64 where a Python
    # number would make them of the default dtype.
    wanted = [_row(type_).dtype.torch for type_ in step.operation.results]
    return [
        leaf if leaf.dtype == dtype else staging.call(torch.Tensor.to, leaf, dtype)
        for leaf, dtype in zip(leaves, wanted, strict=True)
    ]


def _staged(operation: Operation, operands: list[Any]) -> Any:
    """A call as the front end traces it."""
    if isinstance(operation.function, Composition):
        return operation.function.run(filled(operation.args, operands), _staged)
    if operation.function in _DIRECT:
        return call_operation(operation, operands)
    function = _AS_WRITTEN.get(operation.function, operation.function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return staging.call(function, *args, **kwargs)

    return call_operation(replace(operation, function=call), operands)


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
    if _asks(captured):
        assert captured.sizes is not None
        conditions = captured.sizes.conditions
        raise _other_lengths(conditions[0].location if conditions else None)


def _asks(captured: Captured) -> bool:
    """Whether the block was captured for some lengths of rows only."""
    return captured.sizes is not None and bool(captured.sizes.conditions or captured.sizes.fixed)


def _other_lengths(location: SourceLocation | None) -> CaptureError:
    return CaptureError(
        "an operator works for some numbers of rows only, and instances decide how many rows "
        "a tensor has",
        location=location,
        remedy="go through its rows in a loop",
    )
