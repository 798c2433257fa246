"""Stacking: equal layers that a loop computes independently become rows of one tensor.

In a skewed loop the layers of a stack run in one iteration, each a step behind the previous one,
and nothing in an iteration depends on another layer. As separate ops they are one kernel each, with
separate addresses for everything that they read and write; stacked they are one kernel whose tasks
are the rows of all layers, so that the units of a GPU are shared among the layers.

    for %d carry (%p, %a, %b, %c) {                  %W = stack(%U, %V, %X)     # constants
      %p2 = f(x[%d])                                 for %d carry (%s = [%p, %a, %b, %c]) {
      %a2 = tanh(linear(%p, %U) + %a)                  %p2 = f(x[%d])
      %b2 = tanh(linear(%a, %V) + %b)         =>       %r = tanh(bmm(%W, %s[:3]) + %s[1:])
      %c2 = tanh(linear(%b, %X) + %c)                  %s2 = cat(%p2, %r)
      yield %p2, %a2, %b2, %c2 }                       yield %s2 }

Changes: `for` loops whose body has at least as many connected parts of equal ops as the machine's
costs require. Needs: skewed loops. Guarantees: the same values, up to how a product of several
matrices is summed. Parts are connected by the values that ops in the body pass to each other; ops
that depend only on the loop's index belong to no part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from stretto.components import components
from stretto.errors import VerifyError
from stretto.ir.core import Block, Op, Program, Value
from stretto.ir.ops import Argument, ForOp, TensorOp
from stretto.ir.rewrite import all_blocks, clone_op, free_values_of_op, substitute, uses
from stretto.ir.types import TensorType
from stretto.ops.arguments import value_argument
from stretto.ops.infer import tensor_op
from stretto.ops.properties import is_random, stop_reason
from stretto.passes.batching.rules import Batch, NotBatchable
from stretto.passes.manager import Target

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True, slots=True)
class StackLayers:
    """The pass. target: the machine, whose costs give the least number of equal layers to stack;
    without one no layers are. least: if not 0, this number instead."""

    target: Target | None = None
    least: int = 0
    name: ClassVar[str] = "stack_layers"

    def apply(self, program: Program) -> bool:
        least = self.least or (self.target.costs.stacked_layers if self.target else 0)
        if not least:
            return False
        changed = False
        for function in program.functions.values():
            for block in list(all_blocks(function.body)):
                for loop in [op for op in block.ops if isinstance(op, ForOp)]:
                    while (made := _stacked(loop, function.body, least)) is not None:
                        if isinstance(made, str):
                            program.remarks.decline(self.name, "for", made, loop.location)
                            break
                        loop = _replace_loop(made, loop, block, function.body)
                        changed = True
        return changed


Yield = tuple[int, int, int]
"""A result that the body yields: the number of the op in the layer, of its result, and of earlier
yields of the same value."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A connected part of a body. leaves: values that its ops read from outside, in order of first
    use. yields: the place of each yield. key: equal for layers of equal ops."""

    ops: tuple[TensorOp, ...]
    leaves: tuple[Value, ...]
    yields: Mapping[Yield, int]
    key: Hashable


@dataclass(frozen=True, slots=True)
class StackedLoop:
    """A loop that replaces another one, with ops before it, and ops after it that unpack its
    results. results: the replacement of each result of the old loop."""

    before: list[Op]
    loop: ForOp
    behind: list[Op]
    results: dict[Value, Value]


def _replace_loop(made: StackedLoop, loop: ForOp, block: Block, body: Block) -> ForOp:
    place = block.ops.index(loop)
    block.ops[place : place + 1] = [*made.before, made.loop, *made.behind]
    substitute(body, made.results)
    return made.loop


def _stacked(loop: ForOp, body: Block, least: int) -> StackedLoop | str | None:
    """Return a loop's replacement or the reason why it stays; None if it has no equal layers."""
    if loop.parallel or loop.independent:
        return None
    groups = defaultdict[Hashable, list[Layer]](list)
    for layer in _layers(loop):
        groups[layer.key].append(layer)
    reason: str | None = None
    for layers in groups.values():
        for end in range(len(layers), least - 1, -1):  # the last ones may follow another layer
            try:
                return _Stack(loop, layers[:end], frozenset(uses(body))).made()
            except NotBatchable as why:
                reason = reason or str(why)
            except VerifyError as error:
                reason = reason or error.message
    return reason


# ---- layers --------------------------------------------------------------------------------------
def _layers(loop: ForOp) -> Iterator[Layer]:
    """Yield the connected parts of the body that consist only of operators without side effects,
    in the order of their first ops."""
    index_ops = _of_the_index(loop)
    ops = [op for op in loop.body.ops if op not in index_ops]
    makers = {value: op for op in ops for value in op.results}
    linked: dict[Op, dict[Op, None]] = {op: {} for op in ops}
    for op in ops:
        for value in free_values_of_op(op):
            if value in makers:
                linked[op][makers[value]] = linked[makers[value]][op] = None
    place = {op: n for n, op in enumerate(ops)}
    parts = [sorted(part, key=place.__getitem__) for part in components(linked)]
    for part in sorted(parts, key=lambda part: place[part[0]]):
        found = [op for op in part if isinstance(op, TensorOp) and not _stays(op)]
        if len(found) == len(part):
            yield _layer(loop, found, index_ops)


def _of_the_index(loop: ForOp) -> set[Op]:
    """Return the ops that compute single numbers from the loop's index and from values known
    before the loop."""
    found: set[Op] = set()
    inside = {value for op in loop.body.ops for value in op.results} | {*loop.carried}
    for op in loop.body.ops:
        known = all(value not in inside for value in op.operands)
        if isinstance(op, TensorOp) and known and not any(r.tensor.rank for r in op.results):
            found.add(op)
            inside -= {*op.results}
    return found


def _stays(op: TensorOp) -> bool:
    return is_random(op) or stop_reason(op) is not None


def _layer(loop: ForOp, ops: Sequence[TensorOp], index_ops: set[Op]) -> Layer:
    names = {v: ("op", n, r) for n, op in enumerate(ops) for r, v in enumerate(op.results)}
    numbers = {value for op in index_ops for value in op.results}
    leaves: dict[Value, int] = {}

    def named(value: Value) -> Hashable:
        if value in names:
            return names[value]
        kind = "number" if value in numbers else "carried" if value in loop.carried else "outer"
        return kind, leaves.setdefault(value, len(leaves)), value.type

    rows: list[Hashable] = []
    for op in ops:
        arguments = tuple(_encoded(item, named) for item in op.args)
        keywords = tuple((key, _encoded(item, named)) for key, item in op.kwargs)
        rows.append((op.target, arguments, keywords, tuple(r.type for r in op.results)))
    yields: dict[Yield, int] = {}
    counts = defaultdict[Hashable, int](int)
    for place, value in enumerate(loop.body.yields):
        if value in names:
            _, op, result = names[value]
            yields[op, result, counts[value]] = place
            counts[value] += 1
    return Layer(tuple(ops), tuple(leaves), yields, tuple(rows))


def _encoded(item: Argument, named: Callable[[Value], Hashable]) -> Hashable:
    """Return an argument as a key for comparison, with values replaced by their names."""
    if isinstance(item, Value):
        return named(item)
    if isinstance(item, tuple):
        return tuple(_encoded(one, named) for one in item)
    return type(item).__name__, repr(item) if isinstance(item, float) else item  # 0.0 and -0.0


# ---- the loop with one of them -------------------------------------------------------------------
@dataclass(slots=True)
class _Stack:
    """Builds the loop with stacked layers. carried: for each result that layers yield, the places
    of its carried values, None for a layer that does not yield it. heads: for a result that
    each layer reads from the previous one, the place of the value that the first layer reads.
    params: the carried value that stacks each result, after the head."""

    loop: ForOp
    layers: list[Layer]
    used: frozenset[Value]
    before: list[Op] = field(default_factory=list[Op])
    comparisons: dict[Hashable, Value] = field(default_factory=dict[Hashable, Value])
    carried: dict[Yield, list[int | None]] = field(init=False)
    heads: dict[Yield, int] = field(default_factory=dict[Yield, int])
    params: dict[Yield, Value] = field(init=False)
    batch: Batch = field(init=False)

    def __post_init__(self) -> None:
        keys = dict.fromkeys(key for layer in self.layers for key in layer.yields)
        self.carried = {key: [one.yields.get(key) for one in self.layers] for key in keys}
        for slot in range(len(self.layers[0].leaves)):
            places = self.places_of([layer.leaves[slot] for layer in self.layers])
            for key, carried in self.carried.items():
                if places and carried[:-1] == places[1:] and not self.is_stacked(places[0]):
                    self.heads.setdefault(key, places[0])
        self.params = {key: Value(self.param_type(key)) for key in self.carried}
        self.batch = Batch(len(self.layers))

    def places_of(self, values: list[Value]) -> list[int]:
        """Return the places of the values among the carried ones; empty if some are not carried."""
        carried = self.loop.carried
        known = all(value in carried for value in values)
        return [carried.index(value) for value in values] if known else []

    def param_type(self, key: Yield) -> TensorType:
        op, result, _ = key
        each = self.layers[0].ops[op].results[result].tensor
        return TensorType(each.dtype, (len(self.layers) + self.offset(key), *each.shape))

    def offset(self, key: Yield) -> int:
        """Return the row of the first layer."""
        return int(key in self.heads)

    def made(self) -> StackedLoop:
        first = self.layers[0]
        for slot, leaf in enumerate(first.leaves):
            values = [layer.leaves[slot] for layer in self.layers]
            if any(value is not leaf for value in values):
                self.batch.twins[leaf] = self.twin(values)
        for op in first.ops:
            self.compute(op)
        return self.assembled()

    def twin(self, values: list[Value]) -> Value:
        """Return all layers' values of a leaf, along a new leading dim."""
        if places := self.places_of(values):
            return self.handed_over(places)
        makers = {value: op for op in self.loop.body.ops for value in op.results}
        if all(value in makers for value in values):
            return self.compared([makers[value] for value in values])
        if any(value in makers or value in self.loop.carried for value in values):
            raise NotBatchable("layers read values of different kinds")
        return self.put_before("aten.stack.default", tuple(values), 0)

    def handed_over(self, places: list[int]) -> Value:
        """Return the stack of carried values, which are those of one result for the layers
        themselves or for the previous layers."""
        for key, carried in self.carried.items():
            if carried == places:
                return self.rows(key, self.offset(key))
            if carried[:-1] == places[1:] and self.heads.get(key) == places[0]:
                return self.rows(key, 0)
        raise NotBatchable("layers read carried values that are not those of the previous layer")

    def rows(self, key: Yield, start: int) -> Value:
        if key not in self.heads:
            return self.params[key]
        end = start + len(self.layers)
        return self.emit("aten.slice.Tensor", self.params[key], 0, start, end)

    def is_stacked(self, place: int) -> bool:
        return any(place in carried for carried in self.carried.values())

    def compared(self, makers: list[Op]) -> Value:
        """Return the comparisons of one number with one integer per layer; the integers must
        increase evenly."""
        found = [_comparison(op) for op in makers]
        name, number, start = found[0] or ("", None, 0)
        step = found[1][2] - start if found[1] else 0
        wanted = [(name, number, start + n * step) for n in range(len(found))]
        if number is None or not step or found != wanted:
            raise NotBatchable("layers do other things with the loop's index")
        key = name, number, start, step
        if key not in self.comparisons:
            stop = start + len(found) * step
            numbers = self.put_before("aten.arange.start_step", start, stop, step)
            self.comparisons[key] = self.emit(f"aten.{name}.Tensor", number, numbers)
        return self.comparisons[key]

    def compute(self, op: TensorOp) -> None:
        batch = self.batch
        if not any(batch.is_batched(value) for value in op.operands):
            copy = batch.add(clone_op(op, dict(batch.invariants)))
            batch.invariants.update(zip(op.results, copy.results, strict=True))
            return
        if (row := self.linear_of_a_row(op)) is not None:
            batch.twins[op.result] = row
            return
        batch.twins.update(zip(op.results, batch.by_rule(op), strict=True))

    def linear_of_a_row(self, op: TensorOp) -> Value | None:
        """Return the twin of a linear layer of one row, or None: each weight, which is stored row
        by row, times a column."""
        if op.target != "aten.linear.default":
            return None
        source, weight = value_argument(op, "input"), value_argument(op, "weight")
        bias, batch, shape = value_argument(op, "bias"), self.batch, op.result.tensor.shape
        if source is None or not batch.is_batched(weight) or any(dim != 1 for dim in shape[:-1]):
            return None
        assert weight is not None
        columns = batch.reshape(batch.expanded(source), (batch.length, source.tensor.shape[-1], 1))
        product = self.emit("aten.bmm.default", batch.twins[weight], columns)
        product = batch.reshape(product, (batch.length, *shape))
        if bias is None:
            return product
        return self.emit("aten.add.Tensor", product, batch.aligned(bias, len(shape)))

    def put_before(self, target: str, *args: Argument) -> Value:
        self.before.append(tensor_op(target, *args))
        return self.before[-1].results[0]

    def emit(self, target: str, *args: Argument) -> Value:
        return self.batch.emit(target, *args)

    # ---- the new loop ----------------------------------------------------------------------------
    def assembled(self) -> StackedLoop:
        loop = self.loop
        gone = {op for layer in self.layers for op in layer.ops}
        kept = [n for n in range(len(loop.carried)) if not self.is_stacked(n)]
        rows: list[Op] = []
        renamed = {
            loop.carried[place]: self.row(rows, self.params[key], n)
            for key, n, place in self.places()
        }
        inside = Block((), [op for op in loop.body.ops if op not in gone])
        read = {renamed.get(value) for value in (*uses(inside), *loop.body.yields)}
        rows = [op for op in rows if op.results[0] in read]
        yields = [renamed.get(value, value) for value in loop.body.yields]
        following = [self.following(key, yields) for key in self.carried]
        substitute(inside, renamed)  # the first change of the old loop; no NotBatchable after this
        body = Block(
            (loop.index, *(loop.carried[n] for n in kept), *self.params.values()),
            [*rows, *inside.ops, *self.batch.ops],
            (*(yields[n] for n in kept), *following),
        )
        inits = [*(loop.inits[n] for n in kept), *map(self.init, self.carried)]
        results = [*(loop.results[n] for n in kept), *(Value(p.type) for p in self.params.values())]
        new = replace(loop, inits=tuple(inits), body=body, results=tuple(results))
        behind: list[Op] = []
        stacked = dict(zip(self.params, results[len(kept) :], strict=True))
        given = {
            loop.results[place]: self.row(behind, stacked[key], n)
            for key, n, place in self.places()
            if loop.results[place] in self.used
        }
        return StackedLoop(self.before, new, behind, given)

    def following(self, key: Yield, yields: Sequence[Value]) -> Value:
        """Return the value of a stacked result for the next iteration."""
        op, result, _ = key
        made = self.batch.expanded(self.layers[0].ops[op].results[result])
        if key not in self.heads:
            return made
        head = self.emit("aten.unsqueeze.default", yields[self.heads[key]], 0)
        return self.emit("aten.cat.default", (head, made), 0)

    def places(self) -> Iterator[tuple[Yield, int, int]]:
        """Yield (result, row, place) of each carried value that is stacked."""
        for key, places in self.carried.items():
            rows = enumerate(places, self.offset(key))
            yield from ((key, row, place) for row, place in rows if place is not None)

    def row(self, ops: list[Op], stack: Value, number: int) -> Value:
        ops.append(tensor_op("aten.select.int", stack, 0, number))
        return ops[-1].results[0]

    def init(self, key: Yield) -> Value:
        """Return the initial values of the layers; a layer that does not yield the result gets any
        of them."""
        places = self.carried[key]
        found = [None if n is None else self.loop.inits[n] for n in places]
        some = next(value for value in found if value is not None)
        head = [self.loop.inits[self.heads[key]]] if key in self.heads else []
        rows = (*head, *(some if value is None else value for value in found))
        return self.put_before("aten.stack.default", rows, 0)


def _comparison(op: Op) -> tuple[str, Value, int] | None:
    """Return the name of a comparison with an integer, and its operands; None if the op is none."""
    if not isinstance(op, TensorOp) or len(op.args) != 2:
        return None
    name, (number, other) = op.target.removeprefix("aten.").removesuffix(".Scalar"), op.args
    if name not in COMPARISONS or not isinstance(number, Value) or type(other) is not int:
        return None
    return name, number, other
