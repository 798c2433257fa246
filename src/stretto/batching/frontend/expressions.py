"""Expressions of the user's source."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable
from typing import Any, NoReturn

from stretto.batching.frontend.arithmetic import binary, compare, unary
from stretto.batching.frontend.builder import PathEnds
from stretto.batching.frontend.choices import bound, chosen
from stretto.batching.frontend.data import (
    attribute,
    new_dict,
    read_number,
    subscript,
    text_parts,
)
from stretto.batching.frontend.dispatch import apply, assign_to, at, evaluate, evaluates
from stretto.batching.frontend.frame import Frame, constant
from stretto.batching.frontend.iteration import Plan, iterate, plan_of
from stretto.batching.frontend.joins import branch, truth_of_constant
from stretto.batching.frontend.kinds import each_type
from stretto.batching.frontend.narrowing import narrow
from stretto.batching.frontend.operators import is_static
from stretto.batching.frontend.values import (
    NONE,
    Choice,
    Closure,
    Dynamic,
    Iterator_,
    SliceValue,
    Static,
    Text,
    TupleValue,
    Unbound,
    Value,
)
from stretto.batching.program import Operand
from stretto.batching.types import (
    DictType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    alternatives,
)

# ---- names -----------------------------------------------------------------------------------


@evaluates(ast.Constant)
def _constant(frame: Frame, node: ast.Constant) -> Value:
    return Static(node.value)


@evaluates(ast.Name)
def _name(frame: Frame, node: ast.Name) -> Value:
    return lookup(frame, node.id)


def lookup(frame: Frame, name: str) -> Value:
    """The value of a name, as Python finds it."""
    found = _local(frame, name)
    if found is not None:
        return found
    if name in frame.free:
        return Static(frame.free[name])
    if name in frame.globals:
        value = frame.globals[name]
        frame.evaluation.read("global", frame.globals, name, value)
        return Static(value)
    if hasattr(builtins, name):
        return Static(getattr(builtins, name))
    frame.fail(NameError, f"name '{name}' is not defined")
    raise PathEnds


def _unbound(frame: Frame, scope: Frame, name: str) -> NoReturn:
    if scope is frame:
        message = f"cannot access local variable '{name}' where it is not associated with a value"
        frame.fail(UnboundLocalError, message)
    else:
        message = f"cannot access free variable '{name}' where it is not associated with a value"
        frame.fail(NameError, f"{message} in enclosing scope")
    raise PathEnds


def _bound(frame: Frame, scope: Frame, name: str, value: Choice) -> Value:
    return bound(frame, value, lambda: _unbound(frame, scope, name))


def _local(frame: Frame, name: str) -> Value | None:
    scope: Frame | None = frame
    while scope is not None:
        if name in scope.locals:
            value = scope.locals[name]
            if isinstance(value, Unbound):
                _unbound(frame, scope, name)
            if isinstance(value, Choice):
                value = scope.locals[name] = _bound(frame, scope, name, value)
            return value
        if name in scope.local_names:
            _unbound(frame, scope, name)
        if scope.outer is None and scope is not frame and name in scope.free:
            return Static(scope.free[name])
        scope = scope.outer
    return None


@evaluates(ast.NamedExpr)
def _named(frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(frame, node.value)
    frame.locals[node.target.id] = value
    return value


@evaluates(ast.Attribute)
def _attribute(frame: Frame, node: ast.Attribute) -> Value:
    return attribute(frame, evaluate(frame, node.value), node.attr)


@evaluates(ast.Subscript)
def _subscript(frame: Frame, node: ast.Subscript) -> Value:
    return subscript(frame, evaluate(frame, node.value), evaluate(frame, node.slice))


@evaluates(ast.Slice)
def _slice(frame: Frame, node: ast.Slice) -> Value:
    parts = (node.lower, node.upper, node.step)
    found = (NONE if part is None else evaluate(frame, part) for part in parts)
    made = SliceValue(*(_position(frame, part) for part in found))
    if is_static(made):
        return Static(slice(*(constant(x) for x in (made.start, made.stop, made.step))))
    return made


def _position(frame: Frame, value: Value) -> Value:
    """A bound of a slice; the number in a tensor."""
    if isinstance(value, Dynamic) and isinstance(value.type, TensorType):
        return read_number(frame, value, int)
    return value


# ---- displays --------------------------------------------------------------------------------


def parts_of(frame: Frame, nodes: list[ast.expr]) -> list[Value | Plan]:
    """The items of a display, each evaluated once; a plan for each starred one."""
    return [
        plan_of(frame, evaluate(frame, node.value))
        if isinstance(node, ast.Starred)
        else evaluate(frame, node)
        for node in nodes
    ]


def known_items(parts: list[Value | Plan]) -> tuple[Value, ...] | None:
    """The items; None where the instance decides how many there are."""
    found: list[Value] = []
    for part in parts:
        if not isinstance(part, Plan):
            found.append(part)
        elif part.known is None:
            return None
        else:
            found.extend(part.known)
    return tuple(found)


@evaluates(ast.Tuple)
def _tuple(frame: Frame, node: ast.Tuple) -> Value:
    parts = parts_of(frame, node.elts)
    items = known_items(parts)
    if items is None:
        made = listed(frame, parts)
        return frame.assign(
            "to_list", ListType(_cell_of(made), is_tuple=True), made.operand, detail=True
        )
    if all(isinstance(item, Static) for item in items):
        return Static(tuple(item.value for item in items if isinstance(item, Static)))
    return TupleValue(items)


def _cell_of(value: Dynamic) -> int:
    assert isinstance(value.type, ListType)
    return value.type.cell


@evaluates(ast.List)
def _list(frame: Frame, node: ast.List) -> Value:
    return listed(frame, parts_of(frame, node.elts))


def listed(frame: Frame, parts: list[Value | Plan]) -> Dynamic:
    """A new list."""
    cell = frame.evaluation.cell(frame.site("list"))
    items = known_items(parts)
    if items is not None:
        return new_list(frame, cell, items)
    made = new_list(frame, cell, ())
    for part in parts:
        if isinstance(part, Plan):
            iterate(frame, part, lambda item: append(frame, made, item))
        else:
            append(frame, made, part)
    return made


def new_list(frame: Frame, cell: int, items: tuple[Value, ...]) -> Dynamic:
    given = [frame.dynamic(item) for item in items]
    for item in given:
        frame.evaluation.grow(cell, item.type)
    return frame.assign("list", ListType(cell), *(v.operand for v in given), detail=False)


def append(frame: Frame, target: Dynamic, item: Value) -> None:
    given = frame.dynamic(item)
    for kind in alternatives(target.type):
        assert isinstance(kind, ListType)
        frame.evaluation.grow(kind.cell, given.type)
    frame.do("append", target.operand, given.operand)


@evaluates(ast.Dict)
def _dict(frame: Frame, node: ast.Dict) -> Value:
    if any(key is None for key in node.keys):
        frame.refuse("** in a dict display")
    keys = [evaluate(frame, key) for key in node.keys if key is not None]
    values = [evaluate(frame, value) for value in node.values]
    if keys and all(isinstance(k, Static) and isinstance(k.value, str) for k in keys):
        return new_dict(frame, tuple(constant(key) for key in keys), values)
    cell = frame.evaluation.cell(frame.site("dict"))
    operands: list[Operand] = []
    for key, value in zip(keys, values, strict=True):
        given = frame.dynamic(value)
        frame.evaluation.grow(cell, given.type)
        operands += [frame.operand(key), given.operand]
    kinds = {frame.type_of(key) for key in keys}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None and keys:
        frame.refuse("the keys of a dict have several types", "use keys of one type")
    if kind is not None:
        if kind not in (Scalar.INT, Scalar.STR, Scalar.BOOL):
            frame.refuse(f"a key of a dict is {frame.show(kind)}", "use an int or a string as key")
        frame.evaluation.has_keys(cell, kind)
    return frame.assign("dict", frame.evaluation.dict_type(cell), *operands)


# ---- comprehensions --------------------------------------------------------------------------


@evaluates(ast.ListComp, ast.GeneratorExp)
def _comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> Value:
    """A list; a generator is gone through at once, as in `sum(...)`."""
    return comprehension(frame, node, _first_plan(frame, node))


def _first_plan(frame: Frame, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> Plan:
    return plan_of(frame, evaluate(frame, node.generators[0].iter))


def comprehension(frame: Frame, node: ast.ListComp | ast.GeneratorExp, plan: Plan) -> Dynamic:
    cell = frame.evaluation.cell(frame.site("comprehension"))
    made = new_list(frame, cell, ())
    _generators(
        frame, node.generators, plan, lambda: append(frame, made, evaluate(frame, node.elt))
    )
    return made


def known_comprehension(
    frame: Frame, node: ast.ListComp | ast.GeneratorExp, plan: Plan
) -> tuple[Value, ...] | None:
    """The items of a comprehension over something of known length, without conditions."""
    if len(node.generators) != 1 or node.generators[0].ifs or plan.known is None:
        return None
    outer = dict(frame.locals)
    found: list[Value] = []
    for item in plan.known:
        assign_to(frame, node.generators[0].target, item)
        found.append(evaluate(frame, node.elt))
    frame.locals = outer
    return tuple(found)


@evaluates(ast.DictComp)
def _dict_comprehension(frame: Frame, node: ast.DictComp) -> Value:
    cell = frame.evaluation.cell(frame.site("dict"))
    made = frame.assign("dict", frame.evaluation.dict_type(cell))

    def store() -> None:
        key = frame.dynamic(evaluate(frame, node.key))
        value = frame.dynamic(evaluate(frame, node.value))
        frame.evaluation.grow(cell, value.type)
        if key.type not in (Scalar.INT, Scalar.STR, Scalar.BOOL):
            frame.refuse(f"a key of a dict is {frame.show(key.type)}", "use ints or strings")
        assert isinstance(key.type, Scalar)
        frame.evaluation.has_keys(cell, key.type)
        frame.do("store", made.operand, key.operand, value.operand)

    _generators(frame, node.generators, _first_plan(frame, node), store)
    return made


def _named_in(node: ast.AST | None) -> frozenset[str]:
    """The variables that `:=` assigns within a comprehension."""
    found = ast.walk(node) if node is not None else ()
    return frozenset(part.target.id for part in found if isinstance(part, ast.NamedExpr))


def _generators(
    frame: Frame, generators: list[ast.comprehension], plan: Plan, body: Callable[[], None]
) -> None:
    """Goes through generators, of which the first one's iterable has been evaluated."""
    first, *rest = generators
    outer = dict(frame.locals)

    def step(item: Value) -> None:
        assign_to(frame, first.target, item)
        conditions(first.ifs)

    def conditions(tests: list[ast.expr]) -> None:
        if not tests and not rest:
            return body()
        if not tests:
            inner = plan_of(frame, evaluate(frame, rest[0].iter))
            return _generators(frame, rest, inner, body)
        condition = truth(frame, evaluate(frame, tests[0]))
        if isinstance(condition, bool):
            return conditions(tests[1:]) if condition else None

        def holds() -> None:
            narrow(frame, tests[0], True)
            conditions(tests[1:])

        branch(frame, condition, (holds, lambda: None))
        return None

    iterate(frame, plan, step, _named_in(frame.place))
    hidden = {n.id for n in ast.walk(first.target) if isinstance(n, ast.Name)}
    frame.locals = {name: v for name, v in frame.locals.items() if name not in hidden}
    frame.locals |= {name: outer[name] for name in hidden if name in outer}


# ---- operators -------------------------------------------------------------------------------

_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("truediv", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.MatMult: ("matmul", operator.matmul),
    ast.BitAnd: ("and", operator.and_),
    ast.BitOr: ("or", operator.or_),
    ast.BitXor: ("xor", operator.xor),
    ast.LShift: ("lshift", operator.lshift),
    ast.RShift: ("rshift", operator.rshift),
}


@evaluates(ast.BinOp)
def _binary(frame: Frame, node: ast.BinOp) -> Value:
    left = evaluate(frame, node.left)
    return binary_operator(frame, node.op, left, evaluate(frame, node.right))


def binary_operator(frame: Frame, op: ast.operator, left: Value, right: Value) -> Value:
    name, function = _BINARY[type(op)]
    return binary(frame, name, function, left, right)


@evaluates(ast.UnaryOp)
def _unary(frame: Frame, node: ast.UnaryOp) -> Value:
    value = evaluate(frame, node.operand)
    match node.op:
        case ast.Not():
            condition = truth(frame, value)
            if isinstance(condition, bool):
                return Static(not condition)
            return frame.assign("not", Scalar.BOOL, condition)
        case ast.USub():
            return unary(frame, "neg", operator.neg, value)
        case ast.Invert():
            return unary(frame, "invert", operator.invert, value)
        case _:
            return unary(frame, "pos", operator.pos, value)


@evaluates(ast.BoolOp)
def _bool_operator(frame: Frame, node: ast.BoolOp) -> Value:
    return _bool_chain(frame, node.values, isinstance(node.op, ast.And))


def _bool_chain(frame: Frame, nodes: list[ast.expr], is_and: bool) -> Value:
    first, *rest = nodes
    value = evaluate(frame, first)
    if not rest:
        return value
    condition = truth(frame, value)
    if isinstance(condition, bool):
        return _bool_chain(frame, rest, is_and) if condition == is_and else value

    def others() -> Value:
        narrow(frame, first, is_and)
        return _bool_chain(frame, rest, is_and)

    def stays() -> Value:
        return Static(not is_and) if frame.type_of(value) is Scalar.BOOL else value

    arms = (others, stays) if is_and else (stays, others)
    found = branch(frame, condition, arms)
    assert found is not None
    return found


@evaluates(ast.Compare)
def _compare(frame: Frame, node: ast.Compare) -> Value:
    left = evaluate(frame, node.left)
    return _compare_chain(frame, left, list(zip(node.ops, node.comparators, strict=True)))


def _compare_chain(frame: Frame, left: Value, pairs: list[tuple[ast.cmpop, ast.expr]]) -> Value:
    (op, node), *rest = pairs
    right = evaluate(frame, node)
    found = compare(frame, op, left, right)
    if not rest:
        return found
    condition = truth(frame, found)
    if isinstance(condition, bool):
        return _compare_chain(frame, right, rest) if condition else found
    chained = branch(
        frame, condition, (lambda: _compare_chain(frame, right, rest), lambda: Static(False))
    )
    assert chained is not None
    return chained


@evaluates(ast.IfExp)
def _if_expression(frame: Frame, node: ast.IfExp) -> Value:
    condition = truth(frame, evaluate(frame, node.test))
    if isinstance(condition, bool):
        return evaluate(frame, node.body if condition else node.orelse)

    def arm(part: ast.expr, holds: bool) -> Value:
        narrow(frame, node.test, holds)
        return evaluate(frame, part)

    found = branch(
        frame, condition, (lambda: arm(node.body, True), lambda: arm(node.orelse, False))
    )
    assert found is not None
    return found


# ---- truth -----------------------------------------------------------------------------------


def truth(frame: Frame, value: Value) -> bool | Operand:
    """The truth of a value as a condition: known, or a bool that the instance decides."""
    known = truth_of_constant(value)
    if known is not None:
        return known
    if isinstance(value, Choice):
        found = chosen(frame, value, lambda option: _as_bool(truth(frame, option)))
        return _truth_value(frame, frame.dynamic(found))
    if isinstance(value, Iterator_):
        return True
    if isinstance(value, Static):
        frame.refuse(f"the truth of an object of class {type(value.value).__name__} is not known")
    given = frame.dynamic(value)
    if given.type is Scalar.BOOL:
        known = constant(given)
        return given.operand if known is ... else bool(known)
    return _truth_value(frame, frame.dynamic(each_type(frame, given, lambda v: _true(frame, v))))


def _as_bool(condition: bool | Operand) -> Value:
    if isinstance(condition, bool):
        return Static(condition)
    return Dynamic(condition, Scalar.BOOL)


def _truth_value(frame: Frame, value: Dynamic) -> bool | Operand:
    known = constant(value)
    return value.operand if known is ... else bool(known)


def _true(frame: Frame, value: Dynamic) -> Value:
    match value.type:
        case TensorType():
            return read_number(frame, value, bool)
        case RecordType() as kind:
            python = frame.evaluation.info(kind).python
            if python is dict:
                return Static(bool(frame.evaluation.info(kind).fields))
            for name in ("__bool__", "__len__"):
                if hasattr(python, name) and not issubclass(python, tuple):
                    found = apply(frame, attribute(frame, value, name), [])
                    return _as_bool(truth(frame, found))
            return Static(True)
        case TupleType(items):
            return Static(bool(items))
        case Scalar.NONE:
            return Static(False)
        case Scalar.BOOL:
            return value
        case ListType() | DictType() | Scalar():
            return frame.assign("truth", Scalar.BOOL, value.operand)
        case RowsType():
            frame.fail(
                RuntimeError, "Boolean value of Tensor with more than one value is ambiguous"
            )
            raise PathEnds
        case _:
            return Static(True)


# ---- functions and calls ---------------------------------------------------------------------


@evaluates(ast.Lambda)
def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    return closure(frame, node)


def closure(frame: Frame, node: ast.Lambda | ast.FunctionDef) -> Closure:
    """The function that a definition inside of a function makes."""
    made = frame.evaluation.definitions.get(node)
    if made is None:
        if isinstance(node, ast.Lambda):
            returned = ast.copy_location(ast.Return(node.body), node.body)
            made = ast.FunctionDef("<lambda>", node.args, [returned], [], None)
            ast.copy_location(made, node)
        else:
            made = node
        frame.evaluation.definitions[node] = made
    defaults = tuple(evaluate(frame, item) for item in node.args.defaults)
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    named = {arg.arg: evaluate(frame, item) for arg, item in pairs if item is not None}
    return Closure(made, frame, defaults, named, made.name)


@evaluates(ast.Call)
def _call(frame: Frame, node: ast.Call) -> Value:
    function = evaluate(frame, node.func)
    args: list[Value] = []
    for item in node.args:
        if isinstance(item, ast.Starred):
            plan = plan_of(frame, argument(frame, item.value))
            if plan.known is None:
                frame.refuse("* of a list whose length the instance decides, in a call")
            args.extend(plan.known)
        else:
            args.append(argument(frame, item))
    kwargs: dict[str, Value] = {}
    for keyword in node.keywords:
        if keyword.arg is not None:
            kwargs[keyword.arg] = argument(frame, keyword.value)
            continue
        given = evaluate(frame, keyword.value)
        if not isinstance(given, Static) or not isinstance(given.value, dict):
            frame.refuse("** of a dict that differs from instance to instance, in a call")
        kwargs |= {name: Static(value) for name, value in given.value.items()}
    return apply(frame, function, args, kwargs)


def argument(frame: Frame, node: ast.expr) -> Value:
    """An argument of a call. A list display there is known item by item."""
    with at(frame, node):
        if isinstance(node, ast.List):
            parts = parts_of(frame, node.elts)
            items = known_items(parts)
            return listed(frame, parts) if items is None else TupleValue(items, is_list=True)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            plan = _first_plan(frame, node)
            items = known_comprehension(frame, node, plan)
            if items is None:
                return comprehension(frame, node, plan)
            return TupleValue(items, is_list=True)
    return evaluate(frame, node)


@evaluates(ast.JoinedStr)
def _joined(frame: Frame, node: ast.JoinedStr) -> Value:
    parts: list[str | Operand] = []
    for item in node.values:
        if isinstance(item, ast.Constant):
            parts.append(str(item.value))
            continue
        assert isinstance(item, ast.FormattedValue)
        value = evaluate(frame, item.value)
        if isinstance(value, Static):
            parts.append(_formatted(frame, item, value))
        elif item.format_spec is None and item.conversion in (-1, 114):
            parts.extend(text_parts(frame, value))
        else:
            frame.refuse("a value of an instance is formatted with a specification")
    if all(isinstance(part, str) for part in parts):
        return Static("".join(part for part in parts if isinstance(part, str)))
    return Text(tuple(parts))


def _formatted(frame: Frame, item: ast.FormattedValue, value: Static) -> str:
    spec = "" if item.format_spec is None else constant(evaluate(frame, item.format_spec))
    shown: Any = value.value
    if item.conversion != -1:
        shown = {115: str, 114: repr, 97: ascii}[item.conversion](shown)
    return format(shown, spec)
