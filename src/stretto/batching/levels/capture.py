"""The Program of a block for one instance, by the front end of `stretto.compile`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from stretto.batching.program import Block, Step, call_operation
from stretto.batching.types import RowsType, Scalar, TensorType
from stretto.errors import CaptureError, StrettoError
from stretto.frontends.python import (
    Captured,
    ConstantSource,
    InputLeaf,
    NewContainer,
    ResultLeaf,
    SizePlan,
    SizeRange,
    SizeSource,
    capture,
    staging,
)
from stretto.frontends.python.tracing.locations import at
from stretto.ir.core import Program
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
"""The length that rows have while a block is captured; the Program holds for any."""

_AS_WRITTEN: dict[Any, Callable[..., Any]] = {torch.Tensor.__getitem__: operator.getitem}
"""What calls of a function are in the source of the user."""


@dataclass(frozen=True, slots=True)
class CapturedBlock:
    """A block as a Program of one instance: `program.main` takes the inputs in order (scalars as
    tensors without dims) and yields the outputs. sources: the tensors that it relies on."""

    block: Block
    program: Program
    sources: tuple[ConstantSource, ...]


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
    examples = tuple(_example(type_) for type_ in block.inputs)
    lengths = {
        SizeSource(place, 0): SizeRange(0)
        for place, type_ in enumerate(block.inputs)
        if isinstance(type_, RowsType)
    }
    plan = SizePlan.of(lengths) if lengths else None
    with naming(block), torch.no_grad():
        captured = capture(_instance(block), examples, {}, options, sizes=plan)
        _check(captured, len(lengths))
        program = run_passes(captured.program, _passes(), verify=options.verify)
    main = program.main.body
    main.yields = tuple(
        main.params[leaf.index] if isinstance(leaf, InputLeaf) else main.yields[leaf.index]
        for leaf in _leaves(captured)
    )
    return CapturedBlock(block, program, captured.constants)


def _passes() -> tuple[Any, ...]:
    """What makes a block smaller before it is batched; the level program has all passes."""
    tidy = (FoldConstants(), Simplify(), EliminateCommonSubexpressions())
    return (
        InlineFunctions(),
        Repeat((*tidy, EliminateDeadCode(keep_positions=True))),
        CheckUnused(),
        Repeat((*tidy, EliminateDeadCode())),
    )


def _example(type_: TensorType | RowsType | Scalar) -> torch.Tensor:
    match type_:
        case TensorType(dtype, shape):
            return torch.zeros(shape, dtype=dtype.torch)
        case RowsType(TensorType(dtype, shape)):
            return torch.zeros((_ROWS, *shape), dtype=dtype.torch)
        case _:
            return torch.zeros((), dtype=_SCALARS[type_])


def _instance(block: Block) -> Callable[..., Any]:
    """The block as the front end traces it: as if the user's own code called the operators."""

    def instance(*given: torch.Tensor) -> tuple[Any, ...]:
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
    function = _AS_WRITTEN.get(step.operation.function, step.operation.function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return staging.call(function, *args, **kwargs)

    operation = replace(step.operation, function=call)
    made = call_operation(operation, [values[number] for number in step.operands])
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _leaves(captured: Captured) -> list[ResultLeaf | InputLeaf]:
    assert isinstance(captured.output, NewContainer)
    leaves = list(captured.output.children)
    found = [leaf for leaf in leaves if isinstance(leaf, ResultLeaf | InputLeaf)]
    if len(found) != len(leaves):
        raise CaptureError("a result of a block is not a tensor that it computes")
    return found


def _check(captured: Captured, lengths: int) -> None:
    if captured.mutations or captured.objects is not None:
        raise CaptureError(
            "an operator changes a tensor that it is given, or an object outside of the function",
            remedy="use the operator that returns a new tensor",
        )
    known = 0 if captured.sizes is None else len(captured.sizes.symbols)
    if known != lengths or (captured.sizes is not None and captured.sizes.conditions):
        raise CaptureError(
            "an operator needs to know how many rows a tensor has that instances decide",
            remedy="go through its rows in a loop",
        )
