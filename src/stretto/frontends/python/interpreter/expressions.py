"""ExpressionValues."""

from __future__ import annotations
import __future__

import ast
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.frames import (
    PythonFrame,
)
from stretto.frontends.python.interpreter.heap import (
    CELL,
    MISSING,
)
from stretto.frontends.python.interpreter.syntax import (
    DoStatement,
    EvaluatedExpression,
)
from stretto.frontends.python.tracing.signals import (
    fail,
)
from stretto.frontends.python.tracing.tracer import tracer
from stretto.frontends.python.values import texts
from stretto.frontends.python.values.scalars import number_kind

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class ExpressionValues:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap

    def value(self, frame: PythonFrame, node: ast.expr) -> Any:
        return EXPRESSIONS[type(node)](self, frame, node)

    def test(self, frame: PythonFrame, node: ast.expr) -> Any:
        """Return the truth of an expression: a bool, or a traced flag."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.interpreter.regions.negated(self.test(frame, operand))
            case ast.BoolOp(op=op, values=values):
                return self._tests(frame, isinstance(op, ast.And), values)
            case ast.Compare(ops=[_, _, *_]):
                return self._chain(frame, self.value(frame, node.left), node, 0, is_test=True)
            case _:
                return self.interpreter.operators.truth(self.value(frame, node))

    def _tests(self, frame: PythonFrame, is_and: bool, values: list[ast.expr]) -> Any:
        first = self.test(frame, values[0])
        if len(values) == 1:
            return first

        def rest() -> Any:
            return self._tests(frame, is_and, values[1:])

        return self.interpreter.regions.logical(is_and, first, rest)

    def eval_constant(self, frame: PythonFrame, node: ast.Constant) -> Any:
        return node.value

    def eval_name(self, frame: PythonFrame, node: ast.Name) -> Any:
        return self.interpreter.load(frame, node.id)

    def eval_attribute(self, frame: PythonFrame, node: ast.Attribute) -> Any:
        holder = self.value(frame, node.value)
        frame.node = node
        return self.interpreter.attributes.getattr(holder, node.attr)

    def index(self, frame: PythonFrame, node: ast.expr) -> Any:
        match node:
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(
                    *(None if x is None else self.value(frame, x) for x in (lower, upper, step))
                )
            case ast.Tuple(elts=elts):
                return tuple(self.index(frame, item) for item in elts)
            case _:
                return self.value(frame, node)

    def eval_subscript(self, frame: PythonFrame, node: ast.Subscript) -> Any:
        holder, index = self.value(frame, node.value), self.index(frame, node.slice)
        frame.node = node
        return self.interpreter.containers.getitem(holder, index)

    def eval_call(self, frame: PythonFrame, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self.interpreter.attributes.super_of(frame)
        function = self.value(frame, node.func)
        args: list[Any] = []
        for item in node.args:
            if isinstance(item, ast.Starred):
                args += self.interpreter.iteration.iterate(self.value(frame, item.value))
            else:
                args.append(self.value(frame, item))
        kwargs: dict[str, Any] = {}
        for item in node.keywords:
            given = self.value(frame, item.value)
            more: dict[Any, Any] = {item.arg or "": given}
            if item.arg is None:
                more = self.interpreter.containers.keywords(given)
                if not all(isinstance(name, str) for name in more):
                    raise TypeError("keywords must be strings")
            if not kwargs.keys().isdisjoint(more):
                name = next(name for name in more if name in kwargs)
                shown = getattr(function, "__qualname__", "function")
                raise TypeError(f"{shown}() got multiple values for keyword argument '{name}'")
            kwargs |= more
        frame.node = node
        return self._called(function, tuple(args), kwargs)

    def _called(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function, as a branch for each keyword that only some runs give."""
        regions = self.interpreter.regions
        for name, value in kwargs.items():
            bound = regions.is_bound(value)
            if bound is not True:
                given = {**kwargs, name: regions.present(value)}
                others = {key: item for key, item in kwargs.items() if key != name}
                return regions.branch(
                    bound,
                    lambda given=given: self._called(function, args, given),
                    lambda others=others: self._called(function, args, others),
                )
        return self.interpreter.calls.call(function, args, kwargs)

    def eval_binary(self, frame: PythonFrame, node: ast.BinOp) -> Any:
        left, right = self.value(frame, node.left), self.value(frame, node.right)
        frame.node = node
        return self.interpreter.operators.binary(BINARY[type(node.op)], left, right)

    def eval_unary(self, frame: PythonFrame, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self.interpreter.regions.negated(self.test(frame, node.operand))
        return self.interpreter.operators.unary(
            _UNARY[type(node.op)], self.value(frame, node.operand)
        )

    def eval_bool(self, frame: PythonFrame, node: ast.BoolOp) -> Any:
        return self._operands(frame, isinstance(node.op, ast.And), node.values)

    def _operands(self, frame: PythonFrame, is_and: bool, values: list[ast.expr]) -> Any:
        first = self.value(frame, values[0])
        if len(values) == 1:
            return first
        return self._one_of(is_and, first, lambda: self._operands(frame, is_and, values[1:]))

    def _one_of(self, is_and: bool, first: Any, rest: Callable[[], Any]) -> Any:
        """Return `first and rest()`, or `first or rest()`: one of the operands."""
        truth, regions = self.interpreter.operators.truth(first), self.interpreter.regions
        if isinstance(truth, bool):
            return rest() if truth is is_and else first
        if not is_flag(first):
            arms = (rest, lambda: first) if is_and else (lambda: first, rest)
            return regions.branch(truth, *arms)
        second = regions.spliced(lambda: found if is_flag(found := rest()) else None)
        if second is not None:
            return regions.logical(is_and, truth, lambda: second)
        return regions.branch(truth, *((rest, lambda: False) if is_and else (lambda: True, rest)))

    def eval_compare(self, frame: PythonFrame, node: ast.Compare) -> Any:
        return self._chain(frame, self.value(frame, node.left), node, 0)

    def _chain(
        self,
        frame: PythonFrame,
        first: Any,
        node: ast.Compare,
        number: int,
        *,
        is_test: bool = False,
    ) -> Any:
        """Return the value of a chain of comparisons from a position on; as a test, its truth."""
        second = self.value(frame, node.comparators[number])
        frame.node = node
        found = self.interpreter.operators.compare(type(node.ops[number]), first, second)
        if is_test:
            found = self.interpreter.operators.truth(found)
        if number + 1 == len(node.ops):
            return found

        def rest() -> Any:
            return self._chain(frame, second, node, number + 1, is_test=is_test)

        return self._one_of(True, found, rest)

    def eval_if(self, frame: PythonFrame, node: ast.IfExp) -> Any:
        condition = self.test(frame, node.test)
        if isinstance(condition, bool):
            return self.value(frame, node.body if condition else node.orelse)
        return self.interpreter.regions.branch(
            condition, lambda: self.value(frame, node.body), lambda: self.value(frame, node.orelse)
        )

    def eval_tuple(self, frame: PythonFrame, node: ast.Tuple) -> Any:
        return tuple(self.items(frame, node.elts))

    def eval_list(self, frame: PythonFrame, node: ast.List) -> Any:
        frame.node = node
        made = self.heap.list(())
        for item in node.elts:
            if isinstance(item, ast.Starred):
                given = self.value(frame, item.value)
                self.interpreter.containers.method_call(made, "extend", (given,), {})
            else:
                self.interpreter.containers.append(made, self.value(frame, item))
        return made

    def eval_set(self, frame: PythonFrame, node: ast.Set) -> Any:
        frame.node = node
        items, containers = self.items(frame, node.elts), self.interpreter.containers
        frame.node = node
        if tracer().data is not None and tracer().data.is_data_here(set):
            made = self.heap.new(set, {})
            containers.method_call(made, "update", (tuple(items),), {})
            return made
        for item in items if tracer().data is not None else ():
            tracer().data.check_key(item, set)
        return self.heap.new(set, dict.fromkeys(map(containers.key, items)))

    def items(self, frame: PythonFrame, nodes: list[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for item in nodes:
            if isinstance(item, ast.Starred):
                found += self.interpreter.iteration.iterate(self.value(frame, item.value))
            else:
                found.append(self.value(frame, item))
        return found

    def eval_dict(self, frame: PythonFrame, node: ast.Dict) -> Any:
        frame.node = node
        found: dict[Any, Any] = {}
        if tracer().data is not None and tracer().data.is_data_here(dict):
            made, containers = self.heap.new(dict, {}), self.interpreter.containers
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    containers.method_call(made, "update", (self.value(frame, value),), {})
                else:
                    at = self.value(frame, key)
                    containers.setitem(made, at, self.value(frame, value))
            return made
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found |= self.interpreter.containers.mapping(self.value(frame, value))
            else:
                held, frame.node = self.value(frame, key), node
                if tracer().data is not None:
                    tracer().data.check_key(held, dict)
                at = self.interpreter.containers.key(held)
                found[at] = self.value(frame, value)
        frame.node = node
        return self.heap.new(dict, found)

    def eval_lambda(self, frame: PythonFrame, node: ast.Lambda) -> Any:
        return self.function(frame, node, "<lambda>")

    def function(self, frame: PythonFrame, node: ast.FunctionDef | ast.Lambda, name: str) -> Any:
        """Make a function: a real one, whose cells are empty."""
        code = self.interpreter.definitions.code_of(frame, node, name)
        arguments = node.args
        defaults = tuple(self.value(frame, item) for item in arguments.defaults) or None
        closure = tuple(self._cell(frame, item) for item in code.co_freevars)
        made = types.FunctionType(code, frame.function.__globals__, name, defaults, closure)
        made.__kwdefaults__ = {
            arg.arg: self.value(frame, item)
            for arg, item in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if item is not None
        } or None
        made.__qualname__ = code.co_qualname
        if isinstance(node, ast.FunctionDef):
            made.__annotations__ = self._annotations(frame, node)
        self.heap.own[id(made)] = made
        self.heap.note(self.heap.table_of(made))
        return made

    def _annotations(self, frame: PythonFrame, node: ast.FunctionDef) -> dict[str, Any]:
        """Return the annotations of a function, in the order in which Python evaluates them."""
        arguments = node.args
        every = [*arguments.args, *arguments.posonlyargs, arguments.vararg, *arguments.kwonlyargs]
        named = [(arg.arg, arg.annotation) for arg in (*every, arguments.kwarg) if arg is not None]
        return {
            name: self.annotation(frame, found)
            for name, found in (*named, ("return", node.returns))
            if found is not None
        }

    def annotation(self, frame: PythonFrame, node: ast.expr) -> Any:
        """Return the value of an annotation: its text, if the module says so."""
        are_texts = frame.code.co_flags & __future__.annotations.compiler_flag
        return ast.unparse(node) if are_texts else self.heap.real(self.value(frame, node))

    def _cell(self, frame: PythonFrame, name: str) -> types.CellType:
        scope: PythonFrame | None = frame
        while scope is not None:
            if name in scope.cells:
                return scope.cells[name]
            scope = scope.parent
        # a variable of a comprehension: its own cell
        scope = frame
        cell = self.heap.new_cell()
        self.heap.set(self.heap.table_of(cell), CELL, scope.vars.pop(name, MISSING))
        scope.cells[name] = cell
        return cell

    def eval_list_comp(self, frame: PythonFrame, node: ast.ListComp) -> Any:
        frame.node = node
        items = self.heap.list(())
        self.comprehension(
            frame,
            node.generators,
            lambda inner: self.interpreter.containers.append(items, self.value(inner, node.elt)),
        )
        return items

    def eval_set_comp(self, frame: PythonFrame, node: ast.SetComp) -> Any:
        frame.node = node
        items = self.heap.new(set, {})

        def add(inner: PythonFrame) -> None:
            value = self.value(inner, node.elt)
            self.interpreter.containers.method_call(items, "add", (value,), {})

        self.comprehension(frame, node.generators, add)
        return items

    def eval_dict_comp(self, frame: PythonFrame, node: ast.DictComp) -> Any:
        frame.node = node
        items = self.heap.new(dict, {})

        def add(inner: PythonFrame) -> None:
            key = self.value(inner, node.key)
            self.interpreter.containers.setitem(items, key, self.value(inner, node.value))

        self.comprehension(frame, node.generators, add)
        return items

    def eval_generator(self, frame: PythonFrame, node: ast.GeneratorExp) -> Any:
        return self.interpreter.generators.expression(frame, node)

    def known(self, condition: Any) -> bool:
        if not isinstance(condition, bool):
            fail("a condition here depends on a tensor", "use an if statement")
        return condition

    def comprehension(
        self,
        frame: PythonFrame,
        generators: list[ast.comprehension],
        add: Callable[[PythonFrame], None],
    ) -> None:
        """Run a comprehension as the nested loops that it abbreviates."""
        inner = PythonFrame(frame.function, frame.code, self.heap.new_table(), parent=frame)
        body: list[ast.stmt] = [DoStatement(add)]
        for number, part in reversed(list(enumerate(generators))):
            for condition in reversed(part.ifs):
                body = [ast.If(condition, body, [])]
            iterable = EvaluatedExpression(frame, part.iter) if number == 0 else part.iter
            body = [ast.For(part.target, iterable, body, [])]
        inner.node = frame.node
        with self.interpreter.regions.inside_of_statement():
            self.interpreter.finish(self.interpreter.statements.block(inner, body))

    def eval_named(self, frame: PythonFrame, node: ast.NamedExpr) -> Any:
        value = self.value(frame, node.value)
        scope = frame
        while scope.parent is not None and scope.names is None:
            scope = scope.parent
        self.interpreter.store_name(scope, node.target.id, value)
        return value

    def eval_joined(self, frame: PythonFrame, node: ast.JoinedStr) -> Any:
        parts: list[Any] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                spec = "" if part.format_spec is None else self.value(frame, part.format_spec)
                parts.append(
                    self.interpreter.strings.formatted(
                        self.value(frame, part.value), part.conversion, spec
                    )
                )
            else:
                parts.append(self.value(frame, part))
        return texts.joined(tuple(parts))

    def eval_starred(self, frame: PythonFrame, node: ast.Starred) -> Any:
        return self.value(frame, node.value)


def is_flag(value: Any) -> bool:
    """True for a bool, also one that only the run knows."""
    return isinstance(value, bool) or number_kind(value) is bool


EXPRESSIONS: dict[type, Callable[[ExpressionValues, PythonFrame, Any], Any]] = {
    ast.Constant: ExpressionValues.eval_constant,
    ast.Name: ExpressionValues.eval_name,
    ast.Attribute: ExpressionValues.eval_attribute,
    ast.Subscript: ExpressionValues.eval_subscript,
    ast.Slice: ExpressionValues.index,
    ast.Call: ExpressionValues.eval_call,
    ast.BinOp: ExpressionValues.eval_binary,
    ast.UnaryOp: ExpressionValues.eval_unary,
    ast.BoolOp: ExpressionValues.eval_bool,
    ast.Compare: ExpressionValues.eval_compare,
    ast.IfExp: ExpressionValues.eval_if,
    ast.Tuple: ExpressionValues.eval_tuple,
    ast.List: ExpressionValues.eval_list,
    ast.Set: ExpressionValues.eval_set,
    ast.Dict: ExpressionValues.eval_dict,
    ast.Lambda: ExpressionValues.eval_lambda,
    ast.ListComp: ExpressionValues.eval_list_comp,
    ast.SetComp: ExpressionValues.eval_set_comp,
    ast.DictComp: ExpressionValues.eval_dict_comp,
    ast.GeneratorExp: ExpressionValues.eval_generator,
    ast.NamedExpr: ExpressionValues.eval_named,
    ast.JoinedStr: ExpressionValues.eval_joined,
    ast.Starred: ExpressionValues.eval_starred,
    EvaluatedExpression: lambda self, frame, node: self.value(node.frame, node.node),
}
BINARY: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.BitAnd: "and",
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
