"""Reading what a tensor contains while a function is captured; all such reads happen here.

Python code reads contents by `item`, `tolist`, `numpy` and the like. An external tensor
that the program does not write is read directly, and guards check at later calls that it is
unchanged. An external tensor that the program writes is *updated*: it is traced from the
start of the capture, so that each read sees its state at that point of the program. If
Python cannot continue without a number, or needs an array, the contents at that point are
evaluated if they follow from external tensors alone. Everything else is an error.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch

from stretto.frontends.python.tracing.signals import Replan, abort
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import Tracer, tracer
from stretto.ir.core import Block, Op, Value
from stretto.ir.ops import ConstantOp, LiteralOp, TensorOp
from stretto.ir.sizes import Size
from stretto.ir.types import TensorType
from stretto.ops.effects import is_draw
from stretto.ops.infer import named_arguments, resolve
from stretto.ops.properties import is_random, properties

# ---- Evaluation of traced tensors that depend on no input, such as `torch.arange(8)[3]`.
#
# This happens where Python cannot continue without a number, and for the condition of an `if`, so
# that an arm that is never taken is not captured. A loop over such a tensor is part of the program
# like any other.
#
# A tensor of symbolic size is known if all its elements along the symbolic dims are equal, like
# those of `torch.ones(n)`: it is evaluated with size 1 there.
#
# Where only the value itself helps, as for a NumPy array, external tensors are read too: the
# program is then valid while their contents are unchanged.


MOST_OPS = 256
_MOST_READING_OPS = 1 << 14
"""The same limit if external tensors are read."""
MOST_ELEMENTS = 1 << 20

_PRODUCTS = frozenset({"aten.mul.Tensor", "aten.bitwise_and.Tensor", "aten.logical_and.default"})
"""On bools and ints these are zero if one operand is zero, whatever the other is."""


_FULL = "aten.full.default"
_QUANTIFIERS = {"aten.all.default": True, "aten.any.default": False}
"""The result of each for no elements, and so for any number of elements that have this value."""


OPERATOR_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, ArithmeticError)
"""Errors that operators raise for bad arguments."""


class Unknown(Exception):
    """The value is not known: its operands are not available, or it would take too much work."""


def literal(op: LiteralOp) -> torch.Tensor:
    """Return the 0-dim tensor of a literal."""
    return torch.tensor(op.value, dtype=op.results[0].tensor.dtype.torch)


class ContentEvaluation(ABC):
    """Runs operators on known tensors.

    known, unknown: the values that have been computed, and those that cannot be.
    """

    known: dict[Value, torch.Tensor]
    unknown: set[Value]

    def evaluated(self, value: Value) -> torch.Tensor:
        """Return the tensor of a value after computing its operands, without recursion, since
        chains are long. Raises Unknown."""
        pending = [value]
        while pending:
            item = pending[-1]
            missing = None
            if item not in self.known and item not in self.unknown:
                try:
                    missing = self._advance(item)
                except Unknown:
                    self.unknown.add(item)
            if missing is None:
                pending.pop()
            else:
                pending.append(missing)
        return self.value(value)

    def _advance(self, value: Value) -> Value | None:
        """Compute a value, or return an operand that has to be computed first. Raises Unknown."""
        op = self.made_by(value)
        missing = self.missing(op)
        if missing is None:
            self.known.update(zip(op.results, self.run(op), strict=True))
        return missing

    def value(self, value: Value) -> torch.Tensor:
        """Return the tensor of an operand. Raises Unknown."""
        if value not in self.known:
            raise Unknown
        return self.known[value]

    @abstractmethod
    def made_by(self, value: Value) -> Op:
        """Return the op of a value that has not been computed. Raises Unknown."""

    def missing(self, op: Op) -> Value | None:
        """Return an operand that has to be computed before the op; None if there is none. Raises
        Unknown if the op cannot be run."""
        for item in op.operands:
            if item in self.unknown:
                raise Unknown
            if item not in self.known:
                return item
        return None

    @abstractmethod
    def run(self, op: Op) -> tuple[torch.Tensor, ...]:
        """Return the results of an op whose operands are computed. Raises Unknown."""

    @abstractmethod
    def size(self, size: Size) -> int:
        """Return the value of a symbolic size among the arguments. Raises Unknown."""

    def results(self, op: TensorOp) -> tuple[torch.Tensor, ...]:
        """Return the results of an operator."""
        pairs = named_arguments(op.target, op.args, op.kwargs)
        items = [self.argument(item, is_tensor=parameter.is_tensor) for parameter, item in pairs]
        count = len(op.args)
        keywords = {key: item for (key, _), item in zip(op.kwargs, items[count:], strict=True)}
        result = resolve(op.target)(*items[:count], **keywords)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    def argument(self, item: Any, *, is_tensor: bool) -> Any:
        """Return an argument of an operator with its values and sizes replaced by known ones."""
        if isinstance(item, Value):
            found = self.value(item)
            return found if is_tensor else found.item()
        if isinstance(item, Size):
            return self.size(item)
        if isinstance(item, tuple):
            return [self.argument(part, is_tensor=is_tensor) for part in item]  # pyright: ignore[reportUnknownVariableType]
        return item


def evaluated(value: Value, most_ops: int = MOST_OPS) -> torch.Tensor | None:
    """Return the value's contents if they are the same in every run of the program; else None."""
    return _found(_OfAnyCall(tracer(), most_ops), value)


def evaluated_by_reading(value: Value) -> torch.Tensor | None:
    """Return the value's contents if they follow from external tensors only; else None. Guards
    then check that these tensors are unchanged since the capture."""
    if not value.tensor.is_static:
        return None
    state, evaluation = tracer(), _OfOutside(tracer(), _MOST_READING_OPS)
    found = _found(evaluation, value)
    if found is not None:
        state.read_values |= {id(tensor): tensor for tensor in evaluation.read}
    return found


def _found(evaluation: _OfAnyCall, value: Value) -> torch.Tensor | None:
    try:
        with evaluation.state.native(), torch.no_grad():
            return evaluation.evaluated(value)
    except Unknown:
        return None
    except OPERATOR_ERRORS:
        return None  # the operator fails when the program reaches it


class _OfAnyCall(ContentEvaluation):
    """Runs the operators that produce a value, each once. Raises Unknown if it depends on an
    input, a weight or a loop, or needs too many operators."""

    def __init__(self, state: Tracer, most_ops: int) -> None:
        self.state = state
        self.known, self.unknown = {}, set()
        self.ops_left = most_ops
        self.begun = set[Op]()
        self.makers: dict[Block, dict[Value, Op]] = {}

    def size(self, size: Size) -> int:
        raise Unknown

    def made_by(self, value: Value) -> Op:
        home = self.state.home.get(value)
        if home is None:
            raise Unknown
        block = home.here.block
        if block not in self.makers:
            self.makers[block] = {result: op for op in block.ops for result in op.results}
        op = self.makers[block].get(value)
        if op is None:
            raise Unknown
        if op not in self.begun:
            self.begun.add(op)
            self.ops_left -= 1
        if self.ops_left < 0:
            raise Unknown
        return op

    def missing(self, op: Op) -> Value | None:
        for result in op.results:
            _shape(result.tensor)
        if isinstance(op, LiteralOp):
            return None
        if not isinstance(op, TensorOp) or is_random(op):
            raise Unknown
        if self._is_zero(op):
            return None
        if op.target == _FULL:
            fill = op.args[1]
            return fill if isinstance(fill, Value) and not self._is_computed(fill) else None
        if op.target in _PRODUCTS:  # an unknown operand does not matter if another one is zero
            return next((item for item in op.operands if not self._is_computed(item)), None)
        return super().missing(op)

    def _is_computed(self, item: Value) -> bool:
        return item in self.known or item in self.unknown

    def run(self, op: Op) -> tuple[torch.Tensor, ...]:
        shapes = [_shape(result.tensor) for result in op.results]
        if isinstance(op, LiteralOp):
            return (literal(op),)
        assert isinstance(op, TensorOp)
        if self._is_zero(op):
            pairs = zip(shapes, _types(op), strict=True)
            return tuple(torch.zeros(shape, dtype=of.dtype.torch) for shape, of in pairs)
        if op.target == _FULL:
            return (torch.full(shapes[0], self._fill(op), dtype=_types(op)[0].dtype.torch),)
        results = self.results(op)
        if not _is_static(op):
            self._check_same(op, results, shapes)
        return results

    def _fill(self, op: TensorOp) -> Any:
        return self.argument(op.args[1], is_tensor=False)

    def _check_same(
        self, op: TensorOp, results: tuple[torch.Tensor, ...], shapes: list[list[int]]
    ) -> None:
        """Raise Unknown if the results differ along symbolic dims, so that those for size 1 do not
        hold."""
        is_known = properties(op.target).elementwise or (
            op.target in _QUANTIFIERS and bool(results[0]) is _QUANTIFIERS[op.target]
        )
        if not is_known or [list(result.shape) for result in results] != shapes:
            raise Unknown

    def _is_zero(self, op: TensorOp) -> bool:
        """True for a product of which a known operand is zero."""
        if op.target not in _PRODUCTS or any(of.dtype.is_float for of in _types(op)):
            return False  # zero times infinity is not zero
        known = (self.known.get(item) for item in op.args if isinstance(item, Value))
        return any(item is not None and not item.any() for item in known)


class _OfOutside(_OfAnyCall):
    """Also reads the external tensors that a value follows from; `read` has those that may change
    between calls."""

    def __init__(self, state: Tracer, most_ops: int) -> None:
        super().__init__(state, most_ops)
        self.read: list[torch.Tensor] = []
        by_key = {constant.key: constant for constant in state.constants.values()}
        self.constants = {
            value: by_key[key]
            for context in (state.context, state.regions[0].scope.context)
            for key, value in context.constants.items()
        }

    def _advance(self, value: Value) -> Value | None:
        constant = self.constants.get(value)
        if constant is None:
            return super()._advance(value)
        if constant.guarded:
            self.read.append(constant.tensor)
        self.known[value] = constant.tensor
        return None


def _types(op: Op) -> list[TensorType]:
    return [result.tensor for result in op.results]


def _shape(type: TensorType) -> list[int]:
    """Return the shape for evaluation: symbolic dims are 1. Raises Unknown if it is too large."""
    shape = [dim if isinstance(dim, int) else 1 for dim in type.shape]
    if math.prod(shape) > MOST_ELEMENTS:
        raise Unknown
    return shape


def _is_static(op: Op) -> bool:
    values = (*op.results, *op.operands)
    return all(not isinstance(value.type, TensorType) or value.type.is_static for value in values)


def content(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Return a tensor with the contents of `tensor` at this point of the program. kind: the type
    that Python needs, for the error if the contents are unknown."""
    found = known_content(tensor)
    if found is None:
        raise abort(
            f"a {kind} is needed here, but the value is that of a traced tensor",
            "use torch operators on it, compute it outside of the compiled function and pass it "
            "in, or compile with fallback=True",
        )
    return found


def known_content(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the contents of `tensor`, which must not be changed; None if inputs or the run decide
    them."""
    state = tracer()
    if not isinstance(tensor, TracedTensor):
        tensor = readable(tensor)
    if not isinstance(tensor, TracedTensor):
        return tensor
    return evaluated_by_reading(state.read(tensor))


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return an external tensor itself if native code may read it, with guards on it; or the
    traced one if the program tracks its state."""
    state = tracer()
    if _is_followed(state, tensor):
        return state.promote(tensor)
    state.read_as_found[id(tensor)] = state.read_values[id(tensor)] = tensor
    return tensor


def _is_followed(state: Tracer, tensor: torch.Tensor) -> bool:
    """True if the program tracks the state of an external tensor. Raises Replan if it should have
    been traced from the start."""
    if id(tensor) in state.inputs or id(tensor) in state.updated:
        return True
    constant = state.constants.get(id(tensor))
    if constant is not None and constant.key in state.written_keys:
        state.read_as_found[id(tensor)] = tensor
        raise Replan
    return False


def newly_updated(state: Tracer) -> dict[int, torch.Tensor]:
    """Return the tensors, by id, that were read directly but are written by the program."""
    return {
        key: tensor
        for key, tensor in state.read_as_found.items()
        if key in state.constants and state.constants[key].key in state.written_keys
    }


# ---- The contents of a traced value in the captured call, found by running its operators.
#
# A program must not rely on them unless it checks them in each run.


def in_this_call(value: Value) -> torch.Tensor | None:
    """Return the value for the arguments of the captured call; None if it cannot be computed
    outside of the program."""
    state = tracer()
    block = state.regions[0].scope.block
    if any(is_draw(op) for op in block.walk()):
        return None
    made_by = {result: op for op in block.ops for result in op.results}
    try:
        with state.native(), torch.no_grad():
            return _OfThisCall(state, made_by).evaluated(value)
    except Unknown:
        return None
    except OPERATOR_ERRORS:
        return None  # the operator fails when the program reaches it


class _OfThisCall(ContentEvaluation):
    """Runs operators on the arguments of the captured call."""

    def __init__(self, state: Tracer, made_by: dict[Value, Op]) -> None:
        self.state, self.makers = state, made_by
        self.known, self.unknown = dict(state.given), set()
        keys = state.regions[0].scope.context.constants.items()
        self.known |= {value: state.constant_tensors[key] for key, value in keys}

    def made_by(self, value: Value) -> Op:
        if value not in self.makers:
            raise Unknown
        return self.makers[value]

    def run(self, op: Op) -> tuple[torch.Tensor, ...]:
        if isinstance(op, LiteralOp):
            return (literal(op),)
        if isinstance(op, ConstantOp):
            return (self.state.constant_tensors[op.key],)
        if not isinstance(op, TensorOp):
            raise Unknown
        return self.results(op)

    def size(self, size: Size) -> int:
        found: Any = self.state.symbolic_dim(size)
        hint = found if isinstance(found, int) else found.node.hint
        if hint is None:
            raise Unknown
        return int(hint)
