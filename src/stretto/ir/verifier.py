"""Well-formedness of a Program: one rule per function, run over all ops.

Scope and signatures are checked for every op; the further rules of each op class are in `RULES`.
`ops.infer` adds the rules of tensor ops, which compare their types with torch's own shape rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import VerifyError
from stretto.ir.call_graph import called_from, callees, outside_parallel
from stretto.ir.core import Block, Function, Op, Program, Value
from stretto.ir.ops import (
    CallOp,
    CheckOp,
    ConstantOp,
    ForOp,
    IfOp,
    ListExtendOp,
    ListGetOp,
    ListLengthOp,
    ListNewOp,
    ListPopOp,
    ListPushOp,
    ListSetOp,
    ListStackOp,
    LiteralOp,
    SizeOp,
    TensorOp,
    WhileOp,
)
from stretto.ir.rewrite import defined_values, uses
from stretto.ir.size_bounds import at_most, in_range
from stretto.ir.sizes import Size
from stretto.ir.symbols import (
    Renaming,
    bound_symbols,
    dims_of,
    match_types,
    symbols_of_block,
    symbols_of_types,
)
from stretto.ir.text import print_op
from stretto.ir.types import FLAG, INDEX, DType, TensorListType, TensorType, Type

Rule = Callable[[Program, Any], str | None]
"""Returns why the op breaks the rule, or None if it does not. Each takes ops of its own class."""


def verify(program: Program) -> None:
    """Raise VerifyError for the first broken rule, with the function, the op and the rule."""
    if "main" not in program.functions:
        raise VerifyError("the Program has no function @main")
    checker = _Checker(program)
    for name, function in program.functions.items():
        if function.name != name:
            raise VerifyError(f"the function @{function.name} is stored under the name @{name}")
        checker.function(function)


@dataclass
class _Checker:
    program: Program
    defined: set[Value] = field(default_factory=set[Value])
    """Every value defined so far, in any function: a value has one definition."""

    def function(self, function: Function) -> None:
        self.block(function, function.body, set(), None)
        self.sizes(function)

    def sizes(self, function: Function) -> None:
        """Check that symbols are bound, each with one range, and that no dim may be negative."""
        params = [value.type for value in function.params]
        bound = symbols_of_types(params) | bound_symbols(function.body)
        used = symbols_of_block(function.body)
        for symbol in sorted(used - bound, key=str):
            _fail(function, None, "size_bound", f"nothing binds the size {symbol}")
        if len({symbol.name for symbol in used}) != len(used):
            names = ", ".join(sorted(symbol.declaration for symbol in used))
            _fail(function, None, "size_range", f"a size has two ranges: {names}")
        if function.name == "main":
            alone = {dim for type in params for dim in dims_of(type)}
            for symbol in sorted(symbols_of_types(params), key=str):
                if Size.of(symbol) not in alone:
                    reason = f"the size {symbol} is not a dim of any parameter itself"
                    _fail(function, None, "size_bound", reason)
        for value in defined_values(function.body):
            for dim in dims_of(value.type):
                if not isinstance(dim, int) and not at_most(0, dim):
                    reason = f"the size {dim} of %{value.hint} may be negative"
                    _fail(function, None, "size_sign", reason)

    def block(self, function: Function, block: Block, scope: set[Value], owner: Op | None) -> None:
        """Check the block; `scope` holds the values of the enclosing blocks."""
        scope = set(scope)
        self.define(function, block.params, scope, owner)
        for op in block.ops:
            self.read(function, op.operands, scope, op)
            for nested in op.blocks:
                self.block(function, nested, scope, op)
            if type(op) not in RULES:
                _fail(function, op, "op_class", "the verifier has no rules for ops of this class")
            for rule in RULES[type(op)]:
                if reason := rule(self.program, op):
                    _fail(function, op, rule.__name__, reason)
            self.define(function, op.results, scope, op)
        self.read(function, block.yields, scope, owner)

    def define(
        self, function: Function, values: tuple[Value, ...], scope: set[Value], op: Op | None
    ) -> None:
        for value in values:
            if value in self.defined:
                _fail(function, op, "one_definition", f"{value!r} is defined more than once")
            self.defined.add(value)
            scope.add(value)

    def read(
        self, function: Function, values: tuple[Value, ...], scope: set[Value], op: Op | None
    ) -> None:
        for value in values:
            if value not in scope:
                _fail(function, op, "scope", f"{value!r} is read where it is not defined")


def _fail(function: Function, op: Op | None, rule: str, reason: str) -> None:
    raise VerifyError(
        f"@{function.name} breaks the rule `{rule}`: {reason}",
        op=print_op(op, function) if op else None,
        location=op.location if op else None,
    )


def constant_present(program: Program, op: ConstantOp) -> str | None:
    if op.key not in program.constants:
        return f"the Program has no constant {op.key!r}"
    return None


def constant_type(program: Program, op: ConstantOp) -> str | None:
    tensor = program.constants[op.key]
    expected = TensorType(DType.from_torch(tensor.dtype), tuple(tensor.shape))
    return _results(op, expected)


def literal_type(_: Program, op: LiteralOp) -> str | None:
    """The number has the kind of its dtype, and fits it."""
    if len(op.results) != 1 or not isinstance(op.result.type, TensorType) or op.result.type.shape:
        return "the result is not one tensor without dims"
    dtype = op.result.type.dtype
    kind = bool if dtype is DType.BOOL else float if dtype.is_float else int
    if type(op.value) is not kind:
        return f"a {dtype.value} holds a {kind.__name__}, not {op.value!r}"
    if dtype.is_integer:
        bits = dtype.itemsize * 8 - (dtype is not DType.U8)
        low = 0 if dtype is DType.U8 else -(2**bits)
        if not low <= op.value < 2**bits:
            return f"{op.value} does not fit {dtype.value}"
    return None


def size_number(_: Program, op: SizeOp) -> str | None:
    return _expect("the number", _types((op.number,)), (INDEX,)) or _results(op, INDEX)


def size_symbol(_: Program, op: SizeOp) -> str | None:
    return None if op.size.symbol is not None else f"{op.size} is not a symbol"


def new_types(_: Program, op: ListNewOp) -> str | None:
    if len(op.results) != 1 or not isinstance(op.result.type, TensorListType):
        return "the result is not one list"
    return _expect("the items", _types(op.items), (op.result.type.element,) * len(op.items))


def push_types(_: Program, op: ListPushOp) -> str | None:
    return _item(op.list, op.item) or _results(op, op.list.type)


def extend_types(_: Program, op: ListExtendOp) -> str | None:
    if reason := _list(op.list):
        return reason
    element, rows = op.list.list.element, op.rows.type
    if not isinstance(rows, TensorType) or not rows.shape:
        return f"the rows should be a tensor with dims, found {rows}"
    item = TensorType(rows.dtype, rows.shape[1:])
    return _expect("a row", (item,), (element,)) or _results(op, op.list.type)


def get_types(_: Program, op: ListGetOp) -> str | None:
    if reason := _expect("the index", _types((op.index,)), (INDEX,)):
        return reason
    return _list(op.list) or _results(op, op.list.list.element)


def set_types(_: Program, op: ListSetOp) -> str | None:
    if reason := _expect("the index", _types((op.index,)), (INDEX,)):
        return reason
    return _item(op.list, op.item) or _results(op, op.list.type)


def pop_types(_: Program, op: ListPopOp) -> str | None:
    return _list(op.list) or _results(op, op.list.type, op.list.list.element)


def length_types(_: Program, op: ListLengthOp) -> str | None:
    return _list(op.list) or _results(op, INDEX)


def stack_types(_: Program, op: ListStackOp) -> str | None:
    if reason := _list(op.list):
        return reason
    element = op.list.list.element
    if len(op.results) != 1 or not isinstance(op.result.type, TensorType):
        return "the result is not one tensor"
    found = op.result.type
    if found.dtype is not element.dtype or found.shape[1:] != element.shape or not found.shape:
        return f"the items are {element}, the result is {found}"
    return None


def check_operands(_: Program, op: CheckOp) -> str | None:
    expected = (FLAG,) if op.detail is None else (FLAG, INDEX)
    return _expect("the operands", _types(op.operands), expected)


def check_results(_: Program, op: CheckOp) -> str | None:
    return _results(op)


def if_condition(_: Program, op: IfOp) -> str | None:
    return _expect("the condition", (op.condition.type,), (FLAG,))


def if_params(_: Program, op: IfOp) -> str | None:
    if op.then.params or op.orelse.params:
        return "the blocks of an if have no parameters"
    return None


def if_yields(_: Program, op: IfOp) -> str | None:
    """Both arms yield the results' types, up to the names of symbols."""
    for name, block in (("then", op.then), ("else", op.orelse)):
        if not match_types(_types(op.results), _types(block.yields), {}):
            return _expect(f"what `{name}` yields", _types(block.yields), _types(op.results))
    return None


def while_params(_: Program, op: WhileOp) -> str | None:
    inits = _types(op.inits)
    return _expect("parameters of the condition", _types(op.condition.params), inits) or _expect(
        "parameters of the body", _types(op.body.params), inits
    )


def while_condition(_: Program, op: WhileOp) -> str | None:
    return _expect("what the condition yields", _types(op.condition.yields), (FLAG,))


def while_yields(_: Program, op: WhileOp) -> str | None:
    return _expect("what the body yields", _types(op.body.yields), _types(op.inits))


def while_results(_: Program, op: WhileOp) -> str | None:
    return _results(op, *_types(op.inits))


def for_bounds(_: Program, op: ForOp) -> str | None:
    bounds = tuple(item.type for item in (op.start, op.stop) if isinstance(item, Value))
    if reason := _expect("bounds", bounds, (INDEX,) * len(bounds)):
        return reason
    return "the step is 0" if op.step == 0 else None


def for_independent(_: Program, op: ForOp) -> str | None:
    carries = all(isinstance(value.type, TensorType) and value.type.shape for value in op.inits)
    return None if carries or not op.independent else "it may carry only tensors with dims"


def for_parallel(program: Program, op: ForOp) -> str | None:
    if not op.parallel:
        return None
    if reason := _calls_apart(program, op):
        return reason
    if any(isinstance(inner, ForOp) and inner.parallel for inner in op.body.walk()):
        return "a parallel loop may not contain another parallel loop"
    if all(updates_its_row(op, number) for number in range(len(op.inits))):
        return None
    return "the only use of a carried tensor in a parallel loop is to update the iteration's row"


def _calls_apart(program: Program, op: ForOp) -> str | None:
    """A function called in parallel iterations is run by one unit each time, so nothing else calls
    it."""
    apart = called_from(program, [op])
    for name in apart & program.functions.keys():
        ops = program.functions[name].body.walk()
        if any(isinstance(inner, ForOp) and inner.parallel for inner in ops):
            return f"@{name} has a parallel loop, but is called in another parallel loop"
    for name in program.functions.keys() - apart:
        calls = callees(outside_parallel(program.functions[name].body))
        if both := sorted(calls.keys() & apart):
            return f"@{both[0]} is called in parallel iterations and by @{name}"
    return None


def updates_its_row(op: ForOp, number: int) -> bool:
    """True if each iteration's only use of carried tensor `number` is to update the row at its
    index."""
    if number >= len(op.carried) or number >= len(op.body.yields):
        return False
    carried, yielded = op.carried[number], op.body.yields[number]
    counts = uses(op.body)
    if not isinstance(carried.type, TensorType) or counts.get(carried) != 1:
        return False
    update = next((inner for inner in op.body.ops if yielded in inner.results), None)
    if not isinstance(update, TensorOp) or counts[yielded] != 1:
        return False
    if not update.target.startswith("stretto.narrow_scatter") or len(update.args) != 4:
        return False
    base, row, dim, start = update.args
    if base is not carried or dim != 0 or start is not op.index:
        return False
    return isinstance(row, Value) and row is not carried and row.tensor.shape[0] == 1


def for_params(_: Program, op: ForOp) -> str | None:
    return _expect("parameters", _types(op.body.params), (INDEX, *_types(op.inits)))


def for_yields(_: Program, op: ForOp) -> str | None:
    return _expect("what the body yields", _types(op.body.yields), _types(op.inits))


def for_results(_: Program, op: ForOp) -> str | None:
    return _results(op, *_types(op.inits))


def call_function(program: Program, op: CallOp) -> str | None:
    if op.function not in program.functions:
        return f"the Program has no function @{op.function}"
    return None


def call_arguments(program: Program, op: CallOp) -> str | None:
    params = _types(program.functions[op.function].params)
    sizes: Renaming = {}
    if not match_types(params, _types(op.arguments), sizes):
        return _expect("the arguments", _types(op.arguments), params)
    for size, given in sizes.items():
        symbol = size.symbol
        if symbol is not None and not in_range(given, symbol):
            return f"the size {given} may be out of the range {symbol.declaration}"
    return None


def call_results(program: Program, op: CallOp) -> str | None:
    """The results have the function's result types; symbols not bound by its parameters may be
    renamed."""
    function = program.functions[op.function]
    renaming: Renaming = {}
    match_types(_types(function.params), _types(op.arguments), renaming)
    if not match_types(function.result_types, _types(op.results), renaming):
        return _expect("the results", _types(op.results), function.result_types)
    return None


def _list(value: Value) -> str | None:
    return (
        None if isinstance(value.type, TensorListType) else f"expected a list, found {value.type}"
    )


def _item(list: Value, item: Value) -> str | None:
    return _list(list) or _expect("the item", (item.type,), (list.list.element,))


def _results(op: Op, *types: Type) -> str | None:
    return _expect("the results", _types(op.results), types)


def _types(values: tuple[Value, ...]) -> tuple[Type, ...]:
    return tuple(value.type for value in values)


def _expect(what: str, found: tuple[Type, ...], expected: tuple[Type, ...]) -> str | None:
    if found == expected:
        return None
    texts = (", ".join(str(type) for type in types) or "none" for types in (expected, found))
    return f"{what} should be {next(texts)}, found {next(texts)}"


RULES: dict[type[Op], tuple[Rule, ...]] = {
    ConstantOp: (constant_present, constant_type),
    LiteralOp: (literal_type,),
    SizeOp: (size_number, size_symbol),
    ListNewOp: (new_types,),
    ListPushOp: (push_types,),
    ListExtendOp: (extend_types,),
    ListGetOp: (get_types,),
    ListSetOp: (set_types,),
    ListPopOp: (pop_types,),
    ListLengthOp: (length_types,),
    ListStackOp: (stack_types,),
    CheckOp: (check_operands, check_results),
    IfOp: (if_condition, if_params, if_yields),
    WhileOp: (while_params, while_condition, while_yields, while_results),
    ForOp: (for_bounds, for_independent, for_params, for_yields, for_results, for_parallel),
    CallOp: (call_function, call_arguments, call_results),
}
"""The rules of each op class. A stage that adds an op class adds its rules here."""
