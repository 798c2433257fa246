"""An interpreter of Python functions over a heap of its own.

Functions are read as syntax trees. Values are Python objects, traced tensors and numbers, and
references to containers (`heap.Ref`). A statement returns how it ends (`End`), or None if the
next one runs; after a branch on a traced value this can depend on a flag (`Perhaps`), and then the
rest of the block is a branch too.
"""

from __future__ import annotations

import ast
import builtins
import operator
import types
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.reader import objects, recursion, regions
from experiments.reader.heap import CELL, ITEMS, MISSING, Heap, Ref, Table, rebuild_tuple
from stretto.errors import SourceLocation
from stretto.frontends.python.control import branches
from stretto.frontends.python.source.rewrite import definition_of
from stretto.frontends.python.tracing import locations
from stretto.frontends.python.tracing.signals import fail
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.values import texts

RETURN, BREAK, CONTINUE = "return", "break", "continue"


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """How a block ends: by a jump, and the value that it returns."""

    jump: str
    value: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Perhaps:
    """A block that ends by one of several jumps, each if its flag holds, or not at all.

    value: what is returned if it returns."""

    flags: dict[str, Any]
    value: Any = MISSING


@dataclass(eq=False)
class Frame:
    function: types.FunctionType
    code: types.CodeType
    vars: Table = field(default_factory=dict)
    cells: dict[str, types.CellType] = field(default_factory=dict)
    parent: Frame | None = None
    node: ast.AST | None = None
    error: BaseException | None = None
    globals_named: frozenset[str] = frozenset()
    names: Any = None
    """In the body of a class: its namespace."""


_DEFINITIONS: dict[int, tuple[types.CodeType, ast.FunctionDef | None]] = {}


def definition(code: types.CodeType) -> ast.FunctionDef | None:
    found = _DEFINITIONS.get(id(code))
    if found is None:
        _DEFINITIONS[id(code)] = found = code, definition_of(code)
    return found[1]


class Interpreter:
    def __init__(self, heap: Heap) -> None:
        self.heap = heap
        self.frames: list[Frame] = []
        self.objects = objects.Objects(self)
        self.regions = regions.Regions(self)
        self.calls = recursion.Calls(self.regions)

    # -- functions ------------------------------------------------------------------------------

    def run(
        self, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Interpret a call of a Python function."""
        code = function.__code__
        tree = definition(code)
        if tree is None:
            fail(f"the source of {code.co_qualname} is not found", "define it in a file")
        frame = Frame(function, code, self.heap.new_table())
        frame.cells = {name: self.heap.new_cell() for name in code.co_cellvars}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            frame.cells[name] = cell
        frame.globals_named = frozenset(
            n for s in ast.walk(tree) if isinstance(s, ast.Global) for n in s.names
        )
        for name, value in self.objects.bound(function, args, kwargs).items():
            self.store_name(frame, name, value)
        if code.co_flags & 0x20:
            return self.objects.generator(frame, self.body(frame, tree.body))
        steps = self.body(frame, tree.body)
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("yield outside of a generator")

    def body(self, frame: Frame, statements: list[ast.stmt]) -> Generator[Any, Any, Any]:
        self.frames.append(frame)
        try:
            end = yield from self.block(frame, statements)
        finally:
            self.frames.remove(frame)
        match end:
            case End(value=value):
                return value
            case Perhaps(flags=flags, value=value):
                return self.regions.choose(flags[RETURN], value, None)
            case _:
                return None

    # -- statements -----------------------------------------------------------------------------

    def block(self, frame: Frame, statements: list[ast.stmt]) -> Generator[Any, Any, Any]:
        for number, statement in enumerate(statements):
            frame.node = statement
            simple = SIMPLE.get(type(statement))
            if simple is not None:
                simple(self, frame, statement)
                continue
            end = yield from COMPOUND[type(statement)](self, frame, statement)
            if end is None:
                continue
            if isinstance(end, End):
                return end
            rest = statements[number + 1 :]
            if not rest:
                return end
            return self.after(frame, end, lambda: self.finish(self.block(frame, rest)))
        return None

    def after(self, frame: Frame, end: Perhaps, rest: Callable[[], Any]) -> Any:
        """Run the rest of a block if it has not ended."""
        ended = self.regions.any_of(end.flags.values())
        return self.regions.branch(ended, lambda: self.regions.forced(end), rest, joins_ends=True)

    def finish(self, steps: Generator[Any, Any, Any]) -> Any:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
        fail("a generator yields inside of a branch or loop on a tensor", "collect a list")

    def statement_if(self, frame: Frame, node: ast.If) -> Generator[Any, Any, Any]:
        condition = self.test(frame, node.test)
        if isinstance(condition, bool):
            return (yield from self.block(frame, node.body if condition else node.orelse))
        return self.regions.branch(
            condition,
            lambda: self.finish(self.block(frame, node.body)),
            lambda: self.finish(self.block(frame, node.orelse)),
            joins_ends=True,
        )

    def statement_while(self, frame: Frame, node: ast.While) -> Generator[Any, Any, Any]:
        while True:
            condition = self.test(frame, node.test)
            if not isinstance(condition, bool):
                return self.after_loop(frame, node, self.regions.traced_while(frame, node))
            if not condition:
                return (yield from self.block(frame, node.orelse))
            end = yield from self.block(frame, node.body)
            if isinstance(end, End):
                if end.jump == BREAK:
                    return None
                if end.jump == RETURN:
                    return end
            elif end is not None:
                return self.perhaps_again(
                    frame, end, lambda: self.regions.while_again(frame, node)
                )

    def perhaps_again(self, frame: Frame, end: Perhaps, again: Callable[[], Any]) -> Any:
        """Go on with a loop, after an iteration that has perhaps ended it."""
        stops = {jump: flag for jump, flag in end.flags.items() if jump != CONTINUE}
        if not stops:
            return again()
        stopped = Perhaps(stops, end.value)
        ended = self.regions.any_of(stops.values())
        found = self.regions.branch(
            ended, lambda: self.regions.forced(stopped), again, joins_ends=True
        )
        return self.without_break(found)

    def after_loop(self, frame: Frame, node: ast.For | ast.While, end: Any) -> Any:
        """Run the `else` of a loop of the program, unless it was left by `break`."""
        if node.orelse and (end is None or isinstance(end, Perhaps)):
            rest = lambda: self.finish(self.block(frame, node.orelse))
            end = rest() if end is None else self.after(frame, end, rest)
        return self.without_break(end)

    def without_break(self, end: Any) -> Any:
        if isinstance(end, End):
            return None if end.jump == BREAK else end
        if isinstance(end, Perhaps):
            flags = {jump: flag for jump, flag in end.flags.items() if jump == RETURN}
            return Perhaps(flags, end.value) if flags else None
        return None

    def statement_for(self, frame: Frame, node: ast.For) -> Generator[Any, Any, Any]:
        iterable = self.value(frame, node.iter)
        indexed = self.objects.indexed(iterable)
        if indexed is not None:
            found = self.regions.traced_for(frame, node, indexed)
            if found is not NotImplemented:
                return self.after_loop(frame, node, found)
        items = self.objects.iterate(iterable)
        return (yield from self.each(frame, node, items))

    def each(self, frame: Frame, node: ast.For, items: Iterator[Any]) -> Generator[Any, Any, Any]:
        for item in items:
            self.assign(frame, node.target, item)
            end = yield from self.block(frame, node.body)
            if isinstance(end, End):
                if end.jump == BREAK:
                    return None
                if end.jump == RETURN:
                    return end
            elif end is not None:
                return self.perhaps_again(
                    frame, end, lambda: self.finish(self.each(frame, node, items))
                )
        return (yield from self.block(frame, node.orelse))

    def statement_with(self, frame: Frame, node: ast.With) -> Generator[Any, Any, Any]:
        return (yield from self.with_items(frame, node, 0))

    def with_items(self, frame: Frame, node: ast.With, number: int) -> Generator[Any, Any, Any]:
        if number == len(node.items):
            return (yield from self.block(frame, node.body))
        item = node.items[number]
        manager = self.value(frame, item.context_expr)
        entered = self.objects.enter(manager)
        if item.optional_vars is not None:
            self.assign(frame, item.optional_vars, entered)
        try:
            end = yield from self.with_items(frame, node, number + 1)
        except Exception as error:
            if not self.objects.leave(manager, error):
                raise
            return None
        self.objects.leave(manager, None)
        return end

    def statement_try(self, frame: Frame, node: ast.Try) -> Generator[Any, Any, Any]:
        try:
            end = yield from self.try_body(frame, node)
        except Exception:
            if node.finalbody:
                end = yield from self.block(frame, node.finalbody)
                if end is not None:
                    return end
            raise
        if node.finalbody:
            last = yield from self.block(frame, node.finalbody)
            if last is not None:
                return last
        return end

    def try_body(self, frame: Frame, node: ast.Try) -> Generator[Any, Any, Any]:
        try:
            end = yield from self.block(frame, node.body)
        except Exception as error:
            for handler in node.handlers:
                if handler.type is None or self.objects.matches(
                    error, self.value(frame, handler.type)
                ):
                    before, frame.error = frame.error, error
                    if handler.name:
                        self.store_name(frame, handler.name, error)
                    end = yield from self.block(frame, handler.body)
                    if handler.name:
                        self.store_name(frame, handler.name, MISSING)
                    frame.error = before
                    return end
            raise
        if end is not None:
            return end
        return (yield from self.block(frame, node.orelse))

    def statement_match(self, frame: Frame, node: ast.Match) -> Generator[Any, Any, Any]:
        subject = self.value(frame, node.subject)
        for number, case in enumerate(node.cases):
            found = self.objects.match(frame, case.pattern, subject)
            if found is False:
                continue
            if case.guard is not None:
                guard = lambda case=case: self.test(frame, case.guard)
                found = (
                    guard() if found is True else self.regions.branch(found, guard, lambda: False)
                )
                if found is False:
                    continue
            if found is True:
                return (yield from self.block(frame, case.body))
            rest = ast.Match(node.subject, node.cases[number + 1 :])
            return self.regions.branch(
                found,
                lambda case=case: self.finish(self.block(frame, case.body)),
                lambda: self.finish(self.match_rest(frame, rest, subject)),
                joins_ends=True,
            )
        return None

    def match_rest(self, frame: Frame, node: ast.Match, subject: Any) -> Generator[Any, Any, Any]:
        holder = f"<subject {id(node)}>"
        self.store_name(frame, holder, subject)
        node.subject = ast.Name(holder, ast.Load())
        return (yield from self.statement_match(frame, node))

    def statement_return(self, frame: Frame, node: ast.Return) -> Generator[Any, Any, Any]:
        value = yield from self.perhaps_yields(frame, node.value)
        return End(RETURN, value)

    def perhaps_yields(self, frame: Frame, node: ast.expr | None) -> Generator[Any, Any, Any]:
        """Evaluate an expression that may be a `yield` as a whole."""
        match node:
            case None:
                return None
            case ast.Yield(value=value):
                return (yield None if value is None else self.value(frame, value))
            case ast.YieldFrom(value=value):
                return (yield from self.objects.delegate(self.value(frame, value)))
            case _:
                return self.value(frame, node)

    def statement_break(self, frame: Frame, node: ast.Break) -> Generator[Any, Any, Any]:
        return End(BREAK)
        yield

    def statement_continue(self, frame: Frame, node: ast.Continue) -> Generator[Any, Any, Any]:
        return End(CONTINUE)
        yield

    def statement_expr(self, frame: Frame, node: ast.Expr) -> Generator[Any, Any, Any]:
        yield from self.perhaps_yields(frame, node.value)
        return None

    def statement_assign(self, frame: Frame, node: ast.Assign) -> Generator[Any, Any, Any]:
        value = yield from self.perhaps_yields(frame, node.value)
        for target in node.targets:
            self.assign(frame, target, value)
        return None

    # -- simple statements ----------------------------------------------------------------------

    def simple_ann_assign(self, frame: Frame, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(frame, node.target, self.value(frame, node.value))
        if frame.names is not None and isinstance(node.target, ast.Name):
            shown = self.value(frame, node.annotation)
            frame.names.setdefault("__annotations__", {})[node.target.id] = shown

    def simple_aug_assign(self, frame: Frame, node: ast.AugAssign) -> None:
        operation = _INPLACE[type(node.op)]
        match node.target:
            case ast.Name(id=name):
                before = self.load(frame, name)
                self.store_name(
                    frame,
                    name,
                    self.objects.augment(operation, before, self.value(frame, node.value)),
                )
            case ast.Attribute(value=holder, attr=attribute):
                held = self.value(frame, holder)
                before = self.objects.getattr(held, attribute)
                after = self.objects.augment(operation, before, self.value(frame, node.value))
                self.objects.setattr(held, attribute, after)
            case ast.Subscript(value=holder, slice=index):
                held, at = self.value(frame, holder), self.index(frame, index)
                before = self.objects.getitem(held, at)
                after = self.objects.augment(operation, before, self.value(frame, node.value))
                self.objects.setitem(held, at, after)

    def simple_delete(self, frame: Frame, node: ast.Delete) -> None:
        for target in node.targets:
            match target:
                case ast.Name(id=name):
                    self.load(frame, name)
                    self.store_name(frame, name, MISSING)
                case ast.Attribute(value=holder, attr=name):
                    self.objects.delattr(self.value(frame, holder), name)
                case ast.Subscript(value=holder, slice=index):
                    self.objects.delitem(self.value(frame, holder), self.index(frame, index))
                case ast.Tuple(elts=elts) | ast.List(elts=elts):
                    self.simple_delete(frame, ast.Delete(elts))

    def simple_assert(self, frame: Frame, node: ast.Assert) -> None:
        condition = self.test(frame, node.test)

        def fails() -> None:
            raise AssertionError(*([self.value(frame, node.msg)] if node.msg else []))

        if condition is not True:
            self.regions.branch(
                condition, lambda: None, fails
            ) if condition is not False else fails()

    def simple_raise(self, frame: Frame, node: ast.Raise) -> None:
        if node.exc is None:
            error = next((f.error for f in (frame,) if f.error is not None), None)
            if error is None:
                raise RuntimeError("No active exception to reraise")
            raise error
        error = self.value(frame, node.exc)
        if isinstance(error, type):
            error = self.objects.call(error, (), {})
        if node.cause is not None:
            raise error from self.value(frame, node.cause)
        raise error

    def simple_pass(self, frame: Frame, node: ast.AST) -> None:
        return

    def simple_function(self, frame: Frame, node: ast.FunctionDef) -> None:
        made: Any = self.function(frame, node, node.name)
        for decorator in reversed([self.value(frame, d) for d in node.decorator_list]):
            made = self.objects.call(decorator, (made,), {})
        self.store_name(frame, node.name, made)

    def simple_class(self, frame: Frame, node: ast.ClassDef) -> None:
        self.store_name(frame, node.name, self.objects.make_class(frame, node))

    def simple_import(self, frame: Frame, node: ast.Import | ast.ImportFrom) -> None:
        names: dict[str, Any] = {}
        module = ast.Module([node], [])
        exec(compile(module, "<import>", "exec"), dict(frame.function.__globals__), names)
        for name, value in names.items():
            self.store_name(frame, name, value)

    # -- variables ------------------------------------------------------------------------------

    def load(self, frame: Frame, name: str) -> Any:
        scope: Frame | None = frame
        while scope is not None:
            if scope.names is not None and name in scope.names:
                return scope.names[name]
            if name in scope.cells:
                return self._of_cell(scope.cells[name], name)
            if name in scope.vars:
                value = scope.vars[name]
                if value is MISSING:
                    break
                return self.regions.bound(value, name)
            if name in scope.code.co_varnames and scope.parent is None and scope.names is None:
                break
            scope = scope.parent
        else:
            return self._global(frame, name)
        raise UnboundLocalError(
            f"cannot access local variable '{name}' where it is not associated with a value"
        )

    def _of_cell(self, cell: types.CellType, name: str) -> Any:
        table = self.heap.table_of(cell)
        if CELL in table:
            value = table[CELL]
        else:
            try:
                value = self.heap.adopt(cell.cell_contents)
            except ValueError:
                value = MISSING
        if value is MISSING:
            raise NameError(
                f"cannot access free variable '{name}' where it is not associated with a value "
                "in enclosing scope"
            )
        return self.regions.bound(value, name)

    def _global(self, frame: Frame, name: str) -> Any:
        space = frame.function.__globals__
        table = self.heap.table_of(space)
        if name in table:
            value = table[name]
        elif name in space:
            value = self.heap.adopt(space[name])
            self.heap.reads.append((space, name, space[name]))
        else:
            value = getattr(builtins, name, MISSING)
        if value is MISSING:
            raise NameError(f"name '{name}' is not defined")
        return value

    def store_name(self, frame: Frame, name: str, value: Any) -> None:
        if frame.names is not None:
            frame.names[name] = value
        elif name in frame.globals_named:
            self.heap.set(self.heap.table_of(frame.function.__globals__), name, value)
        elif name in frame.cells:
            self.heap.set(self.heap.table_of(frame.cells[name]), CELL, value)
        else:
            self.heap.set(frame.vars, name, value)

    def assign(self, frame: Frame, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.store_name(frame, name, value)
            case ast.Attribute(value=holder, attr=name):
                self.objects.setattr(self.value(frame, holder), name, value)
            case ast.Subscript(value=holder, slice=index):
                self.objects.setitem(self.value(frame, holder), self.index(frame, index), value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                self._unpack(frame, targets, value)
            case ast.Starred(value=inner):
                self.assign(frame, inner, value)
            case _:
                raise AssertionError(target)

    def _unpack(self, frame: Frame, targets: list[ast.expr], value: Any) -> None:
        items = list(self.objects.iterate(value))
        starred = [n for n, item in enumerate(targets) if isinstance(item, ast.Starred)]
        if starred:
            (at,) = starred
            rest = len(targets) - at - 1
            if len(items) < len(targets) - 1:
                raise ValueError(
                    f"not enough values to unpack (expected at least {len(targets) - 1}, "
                    f"got {len(items)})"
                )
            middle = self.heap.list(items[at : len(items) - rest])
            items = [*items[:at], middle, *items[len(items) - rest :]]
        if len(items) != len(targets):
            many = "too many" if len(items) > len(targets) else "not enough"
            got = "" if len(items) > len(targets) else f", got {len(items)}"
            raise ValueError(f"{many} values to unpack (expected {len(targets)}{got})")
        for target, item in zip(targets, items, strict=True):
            self.assign(frame, target, item)

    # -- expressions ----------------------------------------------------------------------------

    def value(self, frame: Frame, node: ast.expr) -> Any:
        return EXPRESSIONS[type(node)](self, frame, node)

    def test(self, frame: Frame, node: ast.expr) -> Any:
        """Return the truth of an expression: a bool, or a traced flag."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.regions.negated(self.test(frame, operand))
            case ast.BoolOp(op=op, values=values):
                return self._tests(frame, isinstance(op, ast.And), values)
            case _:
                return self.objects.truth(self.value(frame, node))

    def _tests(self, frame: Frame, is_and: bool, values: list[ast.expr]) -> Any:
        first = self.test(frame, values[0])
        if len(values) == 1 or (isinstance(first, bool) and first is not is_and):
            return first
        rest = lambda: self._tests(frame, is_and, values[1:])
        if isinstance(first, bool):
            return rest()
        if is_and:
            return self.regions.branch(first, rest, lambda: False)
        return self.regions.branch(first, lambda: True, rest)

    def eval_constant(self, frame: Frame, node: ast.Constant) -> Any:
        return node.value

    def eval_name(self, frame: Frame, node: ast.Name) -> Any:
        return self.load(frame, node.id)

    def eval_attribute(self, frame: Frame, node: ast.Attribute) -> Any:
        return self.objects.getattr(self.value(frame, node.value), node.attr)

    def index(self, frame: Frame, node: ast.expr) -> Any:
        match node:
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(
                    *(None if x is None else self.value(frame, x) for x in (lower, upper, step))
                )
            case ast.Tuple(elts=elts):
                return tuple(self.index(frame, item) for item in elts)
            case _:
                return self.value(frame, node)

    def eval_subscript(self, frame: Frame, node: ast.Subscript) -> Any:
        return self.objects.getitem(self.value(frame, node.value), self.index(frame, node.slice))

    def eval_call(self, frame: Frame, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self.objects.super_of(frame)
        function = self.value(frame, node.func)
        args: list[Any] = []
        for item in node.args:
            if isinstance(item, ast.Starred):
                args += self.objects.iterate(self.value(frame, item.value))
            else:
                args.append(self.value(frame, item))
        kwargs: dict[str, Any] = {}
        for item in node.keywords:
            given = self.value(frame, item.value)
            if item.arg is None:
                kwargs |= self.objects.mapping(given)
            else:
                kwargs[item.arg] = given
        return self.objects.call(function, tuple(args), kwargs)

    def eval_binary(self, frame: Frame, node: ast.BinOp) -> Any:
        return self.objects.binary(
            _BINARY[type(node.op)], self.value(frame, node.left), self.value(frame, node.right)
        )

    def eval_unary(self, frame: Frame, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self.regions.negated(self.test(frame, node.operand))
        return self.objects.unary(_UNARY[type(node.op)], self.value(frame, node.operand))

    def eval_bool(self, frame: Frame, node: ast.BoolOp) -> Any:
        return self._operands(frame, isinstance(node.op, ast.And), node.values)

    def _operands(self, frame: Frame, is_and: bool, values: list[ast.expr]) -> Any:
        first = self.value(frame, values[0])
        if len(values) == 1:
            return first
        truth = self.objects.truth(first)
        rest = lambda: self._operands(frame, is_and, values[1:])
        if isinstance(truth, bool):
            return rest() if truth is is_and else first
        arms = (rest, lambda: first) if is_and else (lambda: first, rest)
        return self.regions.branch(truth, *arms)

    def eval_compare(self, frame: Frame, node: ast.Compare) -> Any:
        return self._chain(frame, self.value(frame, node.left), node.ops, node.comparators)

    def _chain(self, frame: Frame, first: Any, ops: list[Any], others: list[ast.expr]) -> Any:
        second = self.value(frame, others[0])
        found = self.objects.compare(type(ops[0]), first, second)
        if len(ops) == 1:
            return found
        truth = self.objects.truth(found)
        rest = lambda: self._chain(frame, second, ops[1:], others[1:])
        if isinstance(truth, bool):
            return rest() if truth else found
        return self.regions.branch(truth, rest, lambda: found)

    def eval_if(self, frame: Frame, node: ast.IfExp) -> Any:
        condition = self.test(frame, node.test)
        if isinstance(condition, bool):
            return self.value(frame, node.body if condition else node.orelse)
        return self.regions.branch(
            condition, lambda: self.value(frame, node.body), lambda: self.value(frame, node.orelse)
        )

    def eval_tuple(self, frame: Frame, node: ast.Tuple) -> Any:
        return tuple(self._items(frame, node.elts))

    def eval_list(self, frame: Frame, node: ast.List) -> Any:
        return self.heap.list(self._items(frame, node.elts))

    def eval_set(self, frame: Frame, node: ast.Set) -> Any:
        return self.heap.new(set, dict.fromkeys(self._items(frame, node.elts)))

    def _items(self, frame: Frame, nodes: list[ast.expr]) -> list[Any]:
        found: list[Any] = []
        for item in nodes:
            if isinstance(item, ast.Starred):
                found += self.objects.iterate(self.value(frame, item.value))
            else:
                found.append(self.value(frame, item))
        return found

    def eval_dict(self, frame: Frame, node: ast.Dict) -> Any:
        found: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                found |= self.objects.mapping(self.value(frame, value))
            else:
                at = self.objects.key(self.value(frame, key))
                found[at] = self.value(frame, value)
        return self.heap.new(dict, found)

    def eval_lambda(self, frame: Frame, node: ast.Lambda) -> Any:
        return self.function(frame, node, "<lambda>")

    def function(self, frame: Frame, node: ast.FunctionDef | ast.Lambda, name: str) -> Any:
        """Make a function: a real one, whose cells are empty."""
        code = self.objects.code_of(frame, node, name)
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
        self.heap.own.add(id(made))
        self.heap.table_of(made)
        return made

    def _cell(self, frame: Frame, name: str) -> types.CellType:
        scope: Frame | None = frame
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

    def eval_list_comp(self, frame: Frame, node: ast.ListComp) -> Any:
        items = self.heap.list(())
        self.comprehension(
            frame,
            node.generators,
            lambda inner: self.objects.append(items, self.value(inner, node.elt)),
        )
        return items

    def eval_set_comp(self, frame: Frame, node: ast.SetComp) -> Any:
        items = self.heap.new(set, {})

        def add(inner: Frame) -> None:
            self.objects.setitem_of_table(items, self.value(inner, node.elt), None)

        self.comprehension(frame, node.generators, add)
        return items

    def eval_dict_comp(self, frame: Frame, node: ast.DictComp) -> Any:
        items = self.heap.new(dict, {})

        def add(inner: Frame) -> None:
            key = self.value(inner, node.key)
            self.objects.setitem(items, key, self.value(inner, node.value))

        self.comprehension(frame, node.generators, add)
        return items

    def eval_generator(self, frame: Frame, node: ast.GeneratorExp) -> Any:
        first = self.objects.iterate(self.value(frame, node.generators[0].iter))
        inner = Frame(frame.function, frame.code, self.heap.new_table(), parent=frame)

        def steps(number: int) -> Generator[Any, Any, Any]:
            if number == len(node.generators):
                yield self.value(inner, node.elt)
                return
            part = node.generators[number]
            items = first if number == 0 else self.objects.iterate(self.value(inner, part.iter))
            for item in items:
                self.assign(inner, part.target, item)
                if all(self._known(self.test(inner, condition)) for condition in part.ifs):
                    yield from steps(number + 1)

        return self.objects.generator(inner, steps(0))

    def _known(self, condition: Any) -> bool:
        if not isinstance(condition, bool):
            fail("a condition of a generator expression depends on a tensor", "use a loop")
        return condition

    def comprehension(
        self, frame: Frame, generators: list[ast.comprehension], add: Callable[[Frame], None]
    ) -> None:
        """Run a comprehension as the nested loops that it abbreviates."""
        inner = Frame(frame.function, frame.code, self.heap.new_table(), parent=frame)
        body: list[ast.stmt] = [_Do(add)]
        for number, part in reversed(list(enumerate(generators))):
            for condition in reversed(part.ifs):
                body = [ast.If(condition, body, [])]
            iterable = _Evaluated(frame, part.iter) if number == 0 else part.iter
            body = [ast.For(part.target, iterable, body, [])]
        inner.node = frame.node
        self.finish(self.block(inner, body))

    def eval_named(self, frame: Frame, node: ast.NamedExpr) -> Any:
        value = self.value(frame, node.value)
        scope = frame
        while scope.parent is not None and scope.names is None:
            scope = scope.parent
        self.store_name(scope, node.target.id, value)
        return value

    def eval_joined(self, frame: Frame, node: ast.JoinedStr) -> Any:
        parts: list[Any] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                spec = "" if part.format_spec is None else self.value(frame, part.format_spec)
                parts.append(
                    self.objects.formatted(self.value(frame, part.value), part.conversion, spec)
                )
            else:
                parts.append(self.value(frame, part))
        return texts.joined(tuple(parts))

    def eval_starred(self, frame: Frame, node: ast.Starred) -> Any:
        return self.value(frame, node.value)

    def place(self) -> SourceLocation | None:
        for frame in reversed(self.frames):
            if (
                frame.node is not None
                and hasattr(frame.node, "lineno")
                and locations.is_user_file(frame.code.co_filename)
            ):
                return SourceLocation(
                    frame.code.co_filename,
                    frame.node.lineno,
                    function=locations.shown_function(frame.code.co_qualname),
                )
        return None


class _Do(ast.stmt):
    def __init__(self, action: Callable[[Frame], None]) -> None:
        self.action = action
        self.lineno = 0


class _Evaluated(ast.expr):
    """An expression that is evaluated in another frame."""

    def __init__(self, frame: Frame, node: ast.expr) -> None:
        self.frame, self.node = frame, node


SIMPLE: dict[type, Callable[[Interpreter, Frame, Any], None]] = {
    ast.AnnAssign: Interpreter.simple_ann_assign,
    ast.AugAssign: Interpreter.simple_aug_assign,
    ast.Delete: Interpreter.simple_delete,
    ast.Assert: Interpreter.simple_assert,
    ast.Raise: Interpreter.simple_raise,
    ast.Pass: Interpreter.simple_pass,
    ast.Global: Interpreter.simple_pass,
    ast.Nonlocal: Interpreter.simple_pass,
    ast.FunctionDef: Interpreter.simple_function,
    ast.ClassDef: Interpreter.simple_class,
    ast.Import: Interpreter.simple_import,
    ast.ImportFrom: Interpreter.simple_import,
    _Do: lambda self, frame, node: node.action(frame),
}
COMPOUND: dict[type, Callable[[Interpreter, Frame, Any], Generator[Any, Any, Any]]] = {
    ast.If: Interpreter.statement_if,
    ast.While: Interpreter.statement_while,
    ast.For: Interpreter.statement_for,
    ast.With: Interpreter.statement_with,
    ast.Try: Interpreter.statement_try,
    ast.Match: Interpreter.statement_match,
    ast.Return: Interpreter.statement_return,
    ast.Break: Interpreter.statement_break,
    ast.Continue: Interpreter.statement_continue,
    ast.Expr: Interpreter.statement_expr,
    ast.Assign: Interpreter.statement_assign,
}
EXPRESSIONS: dict[type, Callable[[Interpreter, Frame, Any], Any]] = {
    ast.Constant: Interpreter.eval_constant,
    ast.Name: Interpreter.eval_name,
    ast.Attribute: Interpreter.eval_attribute,
    ast.Subscript: Interpreter.eval_subscript,
    ast.Slice: Interpreter.index,
    ast.Call: Interpreter.eval_call,
    ast.BinOp: Interpreter.eval_binary,
    ast.UnaryOp: Interpreter.eval_unary,
    ast.BoolOp: Interpreter.eval_bool,
    ast.Compare: Interpreter.eval_compare,
    ast.IfExp: Interpreter.eval_if,
    ast.Tuple: Interpreter.eval_tuple,
    ast.List: Interpreter.eval_list,
    ast.Set: Interpreter.eval_set,
    ast.Dict: Interpreter.eval_dict,
    ast.Lambda: Interpreter.eval_lambda,
    ast.ListComp: Interpreter.eval_list_comp,
    ast.SetComp: Interpreter.eval_set_comp,
    ast.DictComp: Interpreter.eval_dict_comp,
    ast.GeneratorExp: Interpreter.eval_generator,
    ast.NamedExpr: Interpreter.eval_named,
    ast.JoinedStr: Interpreter.eval_joined,
    ast.Starred: Interpreter.eval_starred,
    _Evaluated: lambda self, frame, node: self.value(node.frame, node.node),
}
_BINARY: dict[type, str] = {
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
_INPLACE = _BINARY
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def _called(self: Interpreter, frame: Frame, node: Any) -> Generator[Any, Any, Any]:
    return node.run()
    yield


COMPOUND[regions._Call] = _called
