"""Builds one random Program: what blocks may read, and functions, constants and symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import Argument, CallOp, ConstantOp, IfOp, ListNewOp, LiteralOp
from stretto.ir.sizes import Size, symbol
from stretto.ir.types import FLAG, INDEX, DType, TensorListType, TensorType, Type
from stretto.ops.infer import tensor_op

SCALAR = TensorType(DType.F32)
VECTOR = TensorType(DType.F32, (3,))
MATRIX = TensorType(DType.F32, (2, 3))
TURNED = TensorType(DType.F32, (3, 2))
LONG = TensorType(DType.F32, (6,))
POSITIONS = TensorType(DType.I64, (3,))
FLOATS = (SCALAR, VECTOR, MATRIX, TURNED, LONG)
TENSORS = (*FLOATS, POSITIONS, INDEX, FLAG)
LISTS = (TensorListType(VECTOR), TensorListType(MATRIX), TensorListType(INDEX))


@dataclass(frozen=True)
class Features:
    """What may occur. A block gets up to `ops` ops or groups of them; blocks nest `depth` deep."""

    ops: int = 5
    depth: int = 2
    functions: int = 2
    lists: bool = True
    symbols: bool = True
    recursion: bool = True
    while_loops: bool = True
    list_results: bool = False
    """Whether `main` may return lists."""
    list_arguments: bool = True
    """Whether other functions may take and return lists."""


class ProgramMaker:
    """The functions, constants and symbols made so far."""

    def __init__(self, draw: st.DrawFn, features: Features, choices: ChoicesFor) -> None:
        self.draw = draw
        self.features = features
        self.choices = choices
        self.constants: dict[str, torch.Tensor] = {}
        self.helpers: list[Function] = []
        self.recursive: set[str] = set()
        self.symbols = 0

    def program(self) -> Program:
        for number in range(self.draw(st.integers(0, self.features.functions))):
            recursive = self.features.recursion and self.draw(st.booleans())
            make = self.recursive_function if recursive else self.function
            types = self.types(1, 3, lists=self.features.list_arguments)
            self.helpers.append(make(f"f{number}", types))
            if recursive:
                self.recursive.add(f"f{number}")
        main = self.function("main", self.main_types())
        functions = {item.name: item for item in (main, *self.helpers)}
        return Program(functions, self.constants)

    def main_types(self) -> Sequence[Type]:
        """What `main` takes: one tensor of each type in `TENSORS`."""
        return TENSORS

    def types(self, low: int, high: int, *, lists: bool = True) -> tuple[Type, ...]:
        choices: tuple[Type, ...] = TENSORS + (LISTS if lists and self.features.lists else ())
        return tuple(self.draw(st.lists(st.sampled_from(choices), min_size=low, max_size=high)))

    def function(self, name: str, types: Sequence[Type]) -> Function:
        body = BlockMaker(self, tuple(Value(type) for type in types))
        body.fill(self.features.depth, least=2)
        features = self.features
        lists = features.list_results if name == "main" else features.list_arguments
        block = body.ending(self.types(0, 2, lists=lists))
        own = [item for item in body.values if lists or isinstance(item.type, TensorType)]
        for _ in range(self.draw(st.integers(1, 3))):  # late values, so that much is live
            block.yields += (own[-1 - self.draw(st.integers(0, min(4, len(own) - 1)))],)
        if body.symbolic and self.draw(st.booleans()):
            block.yields += (self.draw(st.sampled_from(body.symbolic)),)
        return Function(name, block)

    def recursive_function(self, name: str, types: Sequence[Type]) -> Function:
        """Counts its first parameter down to 0 and calls itself in between other ops."""
        body = BlockMaker(self, (Value(INDEX, "n"), *(Value(type) for type in types)))
        count = body.params[0]
        flag = body.tensor("aten.gt.Scalar", count, 0)
        then = body.nested()
        then.fill(1)
        less = then.tensor("aten.sub.Tensor", count, 1)
        results = tuple(Value(type) for type in types)
        then.add(CallOp(name, (less, *then.pick_all(types)), results=results))
        then.values.extend(results)
        then.fill(0)
        orelse = body.nested()
        orelse.fill(0)
        results = tuple(Value(type) for type in types)
        body.add(IfOp(flag, then.ending(types), orelse.ending(types), results=results))
        body.block.yields = results
        return Function(name, body.block)

    def constant(self, type: TensorType) -> str:
        """The key of a new constant: floats of half size, positions 0 and 1."""
        key = f"c{len(self.constants)}"
        generator = torch.Generator().manual_seed(self.draw(st.integers(0, 9)))
        shape = type.static_shape()
        if type.dtype.is_float:
            self.constants[key] = torch.randn(shape, generator=generator) / 2
        else:
            self.constants[key] = torch.randint(2, shape, generator=generator)
        return key

    def symbol(self) -> Size:
        self.symbols += 1
        return symbol(f"s{self.symbols - 1}")


@dataclass(frozen=True)
class Length:
    """How long a list is."""

    least: int
    is_exact: bool = False


@dataclass
class BlockMaker:
    """A block that is being filled, and the values that its ops may read."""

    maker: ProgramMaker
    params: tuple[Value, ...]
    outside: tuple[Value, ...] = ()
    lengths: dict[Value, Length] = field(default_factory=dict[Value, Length])
    symbolic: list[Value] = field(default_factory=list[Value])
    """Floats whose first dim is a symbol."""

    def __post_init__(self) -> None:
        self.block = Block(self.params)
        self.values: list[Value] = [*self.outside, *self.params]
        self.draw = self.maker.draw

    def nested(self, params: tuple[Value, ...] = ()) -> BlockMaker:
        seen = (tuple(self.values), dict(self.lengths), list(self.symbolic))
        return BlockMaker(self.maker, params, *seen)

    def fill(self, depth: int, least: int = 0) -> None:
        """Adds random ops, control ops among them while `depth` is left."""
        options = self.maker.choices(self.maker, depth)
        for _ in range(self.draw(st.integers(least, self.maker.features.ops))):
            self.draw(st.sampled_from(options))(self, depth)

    def ending(self, types: Sequence[Type]) -> Block:
        """The block, which yields values of the types."""
        self.block.yields = self.pick_all(types)
        return self.block

    def add(self, op: Op) -> Op:
        self.block.ops.append(op)
        return op

    def tensor(self, target: str, *args: Argument, **kwargs: Argument) -> Value:
        """Adds a tensor op; its result is not offered to later ops."""
        return self.add(tensor_op(target, *args, **kwargs)).result

    def literal(self, value: bool | int | float, type: TensorType) -> Value:
        return self.add(LiteralOp(value, results=(Value(type),))).result

    def index_below(self, size: int) -> Value:
        """An index from 0 to `size - 1`, made of any other."""
        return self.tensor("aten.remainder.Scalar", self.pick(INDEX), size)

    def pick_all(self, types: Sequence[Type]) -> tuple[Value, ...]:
        return tuple(self.pick(type) for type in types)

    def pick(self, type: Type) -> Value:
        """A value of the type: one that is there, most of the time, or a new one; of a type whose
        size the call decides always one that is there."""
        found = [value for value in self.values if value.type == type]
        is_sized = isinstance(type, TensorType) and not type.is_static
        if found and (is_sized or self.draw(st.integers(0, 4)) < 4):
            return found[-1 - self.draw(st.integers(0, len(found) - 1))]
        value = self.new(type)
        self.values.append(value)
        return value

    def new(self, type: Type) -> Value:
        if isinstance(type, TensorListType):
            items = self.pick_all((type.element,) * self.draw(st.integers(0, 2)))
            value = self.add(ListNewOp(items, results=(Value(type),))).result
            self.lengths[value] = Length(len(items), is_exact=True)
            return value
        if type == INDEX:
            return self.literal(self.draw(st.integers(0, 3)), type)
        if type == FLAG:
            return self.literal(self.draw(st.booleans()), type)
        if type == SCALAR:
            return self.literal(self.draw(st.sampled_from((0.0, -0.0, 1.0, 0.5, -1.25))), type)
        return self.add(ConstantOp(self.maker.constant(type), results=(Value(type),))).result


Choice = Callable[[BlockMaker, int], None]
"""Adds an op or a few, and offers their results."""

ChoicesFor = Callable[[ProgramMaker, int], Sequence[Choice]]
"""What a block may be filled with while that depth is left."""
