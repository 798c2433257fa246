"""The level program: one Program that runs a table of steps, each a block for n rows of pools.

main(steps, indices, numbers, largest, longest, *pools):
    next = 0
    while next < steps.shape[0]:                          # a level
        first, next = next, steps[next, END]
        for s in range(first, next):                      # its steps, independent: no waits
            block, n, begin, ... = steps[s]
            if block < 2:                                 # a balanced tree of branches
                if block < 1:
                    rows = indices[begin : begin + n]     # gathers, then the block for n rows
                    ...
                    pool[base : base + n] = result
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import methodcaller

import torch

from stretto.batching.instance_program import StaticBlock
from stretto.batching.levels.batched import Prologue, RowLoop, batched_block
from stretto.batching.levels.capture import CapturedBlock, capture_block, naming
from stretto.batching.levels.tables import (
    BASES,
    BLOCK,
    END,
    INDICES,
    LIMITS,
    NUMBERS,
    ROWS,
    TableLayout,
    Tables,
    output_types,
    pool_types,
    row_type,
)
from stretto.call.compiler import build
from stretto.errors import LibraryLayoutError
from stretto.frontends.python import CaptureWatch, ConstantSource
from stretto.ir import core
from stretto.ir.core import Function, Program, Value, fresh
from stretto.ir.ops import ForOp, IfOp, LiteralOp, SizeOp, WhileOp
from stretto.ir.rewrite import free_values_of_op
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import Renaming, symbols_of_types
from stretto.ir.types import INDEX, Dim, DType, RowsType, Scalar, TensorType
from stretto.ir.verifier import verify
from stretto.lowering.targets import InputUpdates
from stretto.machines.machine import HOST, Stages
from stretto.machines.registry import default_machine, find_machine
from stretto.ops.infer import Emitter
from stretto.options import Options
from stretto.runtime.constants import ConstantFreshness
from stretto.runtime.results import Result


@dataclass(frozen=True, slots=True)
class LevelCode:
    """The Program of some blocks. loops: by block, the operators that run once per row. sources:
    the tensors that it relies on. watches: detect changes of the user's objects since capture."""

    layout: TableLayout
    program: Program
    loops: tuple[tuple[RowLoop, ...], ...]
    sources: tuple[ConstantSource, ...]
    watches: tuple[CaptureWatch, ...]
    least: tuple[int, int]
    """The least values that a launch may announce for `LIMITS`."""


def level_code(
    blocks: Sequence[StaticBlock],
    options: Options,
    pools: Sequence[TensorType] = (),
    by_row: Collection[str] = (),
    rows: Sequence[int] = (),
    skipped: frozenset[str] = frozenset(),
) -> LevelCode:
    """Build the level program of some blocks. pools: types whose pools come first, in this order;
    other types that blocks read or write follow. by_row: operators that run once per row. rows:
    the usual number of rows of each block, for which kernels are chosen; 0 where it is not
    known. skipped: names of passes that do not run. Raises CaptureError, with the user's line,
    for what cannot be captured or batched."""
    types = tuple(dict.fromkeys((*pools, *pool_types(blocks))))
    layout = TableLayout(tuple(blocks), types)
    captured = [capture_block(block, options) for block in blocks]
    least = 1, max(1, *(block.least for block in captured))
    maker = _LevelMaker(layout, captured, by_row, rows, _Params.of(layout, least))
    program = maker.program()
    program.skipped = skipped
    for item in captured:
        program.folded.sources |= item.program.folded.sources
    verify(program)
    sources = {id(s.tensor): s for item in captured for s in item.sources}
    watches = tuple(item.watch for item in captured)
    return LevelCode(layout, program, tuple(maker.loops), tuple(sources.values()), watches, least)


@dataclass(frozen=True, slots=True)
class _Params:
    """The parameters of the program. limits: empty tensors whose number of rows is the limit."""

    steps: Value
    indices: Value
    numbers: Value
    limits: tuple[Value, ...]
    pools: tuple[Value, ...]

    @staticmethod
    def of(layout: TableLayout, least: Sequence[int]) -> _Params:
        def table(name: str, dtype: DType, *row: Dim, low: int = 0) -> Value:
            return Value(TensorType(dtype, (Size.of(Symbol(name, low)), *row)), name)

        return _Params(
            table("steps", DType.I64, layout.width),
            table("indices", DType.I64),
            table("numbers", DType.F64),
            tuple(
                table(name, DType.U8, 0, low=low) for name, low in zip(LIMITS, least, strict=True)
            ),
            tuple(table(f"pool{n}", of.dtype, *of.shape) for n, of in enumerate(layout.pools)),
        )

    @property
    def all(self) -> tuple[Value, ...]:
        return (self.steps, self.indices, self.numbers, *self.limits, *self.pools)


_Pools = dict[int, Value]
"""The pools at some point of the program, by number."""


@dataclass(slots=True)
class _LevelMaker:
    """Emits the program of the module's docstring. names: the key of each constant, by the
    identity of the tensor."""

    layout: TableLayout
    captured: list[CapturedBlock]
    by_row: Collection[str]
    rows: Sequence[int]
    params: _Params
    constants: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    names: dict[int, str] = field(default_factory=dict[int, str])
    prologue: Prologue = field(default_factory=Prologue)
    loops: list[tuple[RowLoop, ...]] = field(default_factory=list[tuple[RowLoop, ...]])

    def program(self) -> Program:
        out = Emitter()
        results = self.levels(out)
        main = core.Block(self.params.all, [*self.prologue.ops, *out.ops], results)
        return Program({"main": Function("main", main)}, self.constants)

    def levels(self, out: Emitter) -> tuple[Value, ...]:
        """Emit the loop over the levels; return the written pools after it."""
        steps, pools = self.params.steps, self.params.pools
        zero = out.add(LiteralOp(0, results=(Value(INDEX),))).result
        inits = (zero, *(pools[n] for n in self.layout.written))
        head, test = tuple(map(fresh, inits)), Emitter()
        going = test.emit("aten.lt.Scalar", head[0], steps.tensor.shape[0])
        params, inside = tuple(map(fresh, inits)), Emitter()
        row = inside.emit("aten.select.int", steps, 0, params[0])
        end = _column(inside, row, END)
        after = self.steps(inside, (params[0], end), params[1:])
        blocks = core.Block(head, test.ops, (going,)), core.Block(params, inside.ops, (end, *after))
        loop = out.add(WhileOp(inits, *blocks, results=tuple(map(fresh, inits))))
        return loop.results[1:]

    def steps(
        self, out: Emitter, bounds: tuple[Value, Value], inits: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Emit the loop over the steps of a level; return the written pools after it."""
        written = self.layout.written
        carried, index, inside = tuple(map(fresh, inits)), Value(INDEX, "step"), Emitter()
        row = inside.emit("aten.select.int", self.params.steps, 0, index)
        pools = dict(enumerate(self.params.pools)) | dict(zip(written, carried, strict=True))
        number = _column(inside, row, BLOCK)
        after = self.tree(inside, row, number, range(len(self.captured)), pools)
        body = core.Block((index, *carried), inside.ops, tuple(after[n] for n in written))
        results = tuple(map(fresh, inits))
        return out.add(ForOp(*bounds, 1, inits, body, results=results, independent=True)).results

    def tree(self, out: Emitter, row: Value, number: Value, blocks: range, pools: _Pools) -> _Pools:
        """Emit a balanced tree of branches over `blocks`; return the pools after the step's
        block."""
        if len(blocks) == 1:
            return self.block(out, row, blocks[0], pools)
        middle = len(blocks) // 2
        condition = out.emit("aten.lt.Scalar", number, blocks[middle])
        arms = Emitter(), Emitter()
        ends = [
            self.tree(arm, row, number, some, pools)
            for arm, some in zip(arms, (blocks[:middle], blocks[middle:]), strict=True)
        ]
        changed = [n for n in pools if any(end[n] is not pools[n] for end in ends)]
        then, orelse = (
            core.Block((), arm.ops, tuple(end[n] for n in changed))
            for arm, end in zip(arms, ends, strict=True)
        )
        results = tuple(fresh(pools[n]) for n in changed)
        out.add(IfOp(condition, then, orelse, results=results))
        return pools | dict(zip(changed, results, strict=True))

    def block(self, out: Emitter, row: Value, number: int, pools: _Pools) -> _Pools:
        """Gather the operands, compute the block for n rows, and write its results; return the
        pools after it."""
        captured = self.captured[number]
        usual = self.rows[number] if self.rows else 0
        n = Size.of(Symbol(f"n{number}", 0, usual=usual or None))
        gather = _Gather(self, out, row, number, pools, n, _size(out, row, ROWS, n, self.most(0)))
        operands = [
            gather.operand(place, type_) for place, type_ in enumerate(captured.block.inputs)
        ]
        lengths: Renaming = {}
        for param, value in zip(captured.program.main.params, operands, strict=True):
            if symbols_of_types((param.type,)):
                lengths[Size.of(param.tensor.shape[0])] = value.tensor.shape[1]
        with naming(captured.block):
            keys = self.keys(captured.program)
            batched = batched_block(
                captured, operands, n, lengths, keys, self.prologue, self.by_row
            )
        self.loops.append(batched.loops)
        out.ops.extend(batched.ops)
        after = dict(pools)
        types = output_types(captured.block)
        for place, (type_, value) in enumerate(zip(types, batched.outputs, strict=True)):
            pool = self.layout.pools.index(row_type(type_))
            base = _column(out, row, BASES + place)
            shape = value.tensor.shape
            if isinstance(type_, RowsType):
                rows = (Size.of(shape[0]) * shape[1]).dim
                value = out.emit("aten.view.default", value, (rows, *shape[2:]))
            after[pool] = out.emit("stretto.narrow_scatter", after[pool], value, 0, base)
        return after

    def keys(self, program: Program) -> dict[str, str]:
        """Return the names of a block's constants in the level program; a tensor that several
        blocks use has one name."""
        found: dict[str, str] = {}
        for key, tensor in program.constants.items():
            if id(tensor) not in self.names:
                name, number = key, 1
                while name in self.constants:
                    name, number = f"{key}_{number}", number + 1
                self.names[id(tensor)] = name
                self.constants[name] = tensor
            found[key] = self.names[id(tensor)]
        return found

    def most(self, limit: int) -> Size:
        return Size.of(self.params.limits[limit].tensor.shape[0])


def _column(out: Emitter, row: Value, number: int) -> Value:
    return out.emit("aten.select.int", row, 0, number)


def _size(out: Emitter, row: Value, number: int, size: Size, most: Size) -> Value:
    """Bind a size to column `number` of a step; `most` is its upper bound. Return it as a
    number."""
    column = _column(out, row, number)
    return out.add(SizeOp(column, size, most, results=(Value(INDEX),))).result


@dataclass(slots=True)
class _Gather:
    """Reader of the operands of block `number`, in order. row: the step. n: its number of rows as
    a size; count: the same as a run-time number."""

    maker: _LevelMaker
    out: Emitter
    row: Value
    number: int
    pools: _Pools
    n: Size
    count: Value
    next: dict[int, Value] = field(default_factory=dict[int, Value])
    """The position of the next item of each table, by the column that has the first."""
    lengths: dict[int, tuple[Size, Value]] = field(default_factory=dict[int, tuple[Size, Value]])
    """For each group of rows (`length_groups`) the length as a size and as a run-time number."""
    columns: Iterator[int] = field(init=False)
    """The columns of the lengths that are not read yet."""
    used: set[Value] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = iter(range(self.maker.layout.lengths, self.maker.layout.width))
        body = self.captured.program.main.body
        self.used = {*body.yields, *(v for op in body.ops for v in free_values_of_op(op))}

    @property
    def captured(self) -> CapturedBlock:
        return self.maker.captured[self.number]

    def operand(self, place: int, type_: TensorType | RowsType | Scalar) -> Value:
        emit = self.out.emit
        match type_:
            case Scalar.FLOAT:
                return self.part(self.maker.params.numbers, NUMBERS, self.n, self.count)
            case TensorType():
                return self.gathered(type_, self.indices(self.n, self.count))
            case RowsType():
                size, length = self.length(place)
                flat = emit("aten.mul.Tensor", self.count, length)
                indices = self.indices(self.n * size, flat)
                if self.captured.program.main.params[place] not in self.used:
                    # The block uses only the number of these rows, not their values.
                    shape, dtype = (self.n.dim, size.dim, *type_.row.shape), type_.row.dtype.torch
                    return emit("aten.zeros.default", shape, dtype=dtype)
                indices = emit("aten.view.default", indices, (self.n, size))
                return self.gathered(type_.row, indices)
            case Scalar.BOOL:
                return emit("aten.ne.Scalar", self.indices(self.n, self.count), 0)
            case _:
                return self.indices(self.n, self.count)

    def length(self, place: int) -> tuple[Size, Value]:
        """Return the length of the rows of input `place`, as a size and as a run-time number."""
        column, group = next(self.columns), self.captured.groups[place]
        if group not in self.lengths:
            of_one = Size.of(self.captured.program.main.params[place].tensor.shape[0]).symbol
            low = of_one.low if of_one is not None else 0
            size = Size.of(Symbol(f"rows{self.number}_{len(self.lengths)}", low))
            number = _size(self.out, self.row, column, size, self.maker.most(1))
            self.lengths[group] = size, number
        return self.lengths[group]

    def gathered(self, type_: TensorType, indices: Value) -> Value:
        pool = self.pools[self.maker.layout.pools.index(type_)]
        return self.out.emit("aten.index.Tensor", pool, (indices,))

    def indices(self, size: Size, count: Value) -> Value:
        return self.part(self.maker.params.indices, INDICES, size, count)

    def part(self, table: Value, column: int, size: Size, count: Value) -> Value:
        """Read the next items of a table: `count` of them, which is `size`. column: that of the
        first item's position."""
        if column not in self.next:
            self.next[column] = _column(self.out, self.row, column)
        first = self.next[column]
        found = self.out.emit("stretto.narrow", table, 0, first, size)
        self.next[column] = self.out.emit("aten.add.Tensor", first, count)
        return found


# ---- A level program that is built for a machine, ready to be called with tables.


class LevelProgram:
    """All blocks of an instance program as one program of a machine.

    It changes pools in place. A run that begins again computes the same from the same tables, since
    no step writes rows that it or an earlier step reads.

    code: its Program, and the operators that run once per row. stages: its forms on the machine.
    """

    def __init__(
        self,
        blocks: Sequence[StaticBlock],
        pools: Sequence[TensorType] = (),
        options: Options | None = None,
        backend: str | None = None,
        device: torch.device = HOST,
        rows: Sequence[int] = (),
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        """Build the program. backend: the machine's name; None is the default one. pools: the
        types of pools that come first, in this order; types that only blocks have follow. rows,
        skipped: as for `level_code`. Raises CaptureError, with the user's line, for a block
        that cannot be captured, and the error of the build stage that fails."""
        options = options or Options()
        machine = default_machine() if backend is None else find_machine(backend)
        machine.require_ready()
        machine.prepare(options)
        by_row = set[str]()
        while True:
            self.code: LevelCode = level_code(blocks, options, pools, by_row, rows, skipped)
            try:
                self.stages: Stages = build(
                    self.code.program, machine, options, device, _updates(self.code)
                )
                break
            except LibraryLayoutError as error:
                if error.target in by_row:
                    raise
                by_row.add(error.target)
        assert self.stages.executable is not None
        self._executable = self.stages.executable
        if machine.is_native:
            self._places = _places(self.code, self.stages)
        self._call = self._run_native if machine.is_native else self._run_sized
        folded = self.stages.program.folded.sources | self.code.program.folded.sources
        self.weights = ConstantFreshness(
            [
                source.tensor
                for source in self.code.sources
                if source.tensor.is_cpu
                and (source.key is None or source.tensor.untyped_storage().data_ptr() in folded)
            ],
            self._executable.copies,
            native=machine.is_native,
        )

    @property
    def layout(self) -> TableLayout:
        return self.code.layout

    def is_current(self) -> bool:
        """Return True if the program still agrees with the user's modules and parameters. Copies
        of parameters that have changed are refreshed."""
        return all(watch.is_current() for watch in self.code.watches) and self.weights.is_current()

    def expect(self) -> None:
        """Announce a run, so that threads wake up while its tables are being filled."""
        self._executable.expect()

    def run(self, tables: Tables, pools: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the steps; return the pools with the results, in the same order.

        pools: contiguous tensors [capacity, *shape], one for each of `layout.pools`. They are
        changed in place; a run that stops with an error has written some of the results.
        """
        results = list(pools)
        if not _rows(tables.steps):
            return results
        made = self._call(tables, results)
        for number, pool in zip(self.layout.written, made, strict=True):
            assert isinstance(pool, torch.Tensor)
            results[number] = pool
        return results

    def _limits(self, tables: Tables) -> tuple[int, int]:
        rows, length = self.code.least
        return max(rows, tables.largest), max(length, tables.longest)

    def _run_sized(self, tables: Tables, pools: list[torch.Tensor]) -> list[Result]:
        """Run the executable with limits as empty tensors, from whose shapes it reads the sizes."""
        limits = [
            torch.empty((limit, 0), dtype=torch.uint8, device=tables.steps.device)
            for limit in self._limits(tables)
        ]
        return self._executable([tables.steps, tables.indices, tables.numbers, *limits, *pools])

    def _run_native(self, tables: Tables, pools: list[torch.Tensor]) -> list[Result]:
        """Pass the sizes explicitly to skip the shape checks: a launch may take microseconds."""
        steps, indices, numbers = tables.steps, tables.indices, tables.numbers
        known = [
            *map(_rows, (steps, indices, numbers)),
            *self._limits(tables),
            *map(_rows, pools),
        ]
        sizes = [known[place] for place in self._places]
        return self._executable([steps, indices, numbers, _NOTHING, _NOTHING, *pools], sizes)


_NOTHING = torch.empty((1, 0), dtype=torch.uint8)
"""Placeholder for a limit, which is never read."""


_rows = methodcaller("size", 0)
"""Number of rows: faster than `len` of a tensor, which takes ten times as long."""


def _updates(code: LevelCode) -> InputUpdates:
    """Return the parameters that are changed in place: the pools that blocks write."""
    first = len(code.program.main.params) - len(code.layout.pools)
    pairs = tuple((first + pool, n) for n, pool in enumerate(code.layout.written))
    return InputUpdates(pairs, repeatable=True)


def _places(code: LevelCode, stages: Stages) -> list[int]:
    """Return for each symbol of the executable the parameter whose first dim it is."""
    leads = [Size.of(param.tensor.shape[0]).symbol for param in code.program.main.params]
    _, interface = stages.runnable()
    return [leads.index(symbol) for symbol in interface.symbols]
