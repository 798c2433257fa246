"""Lowering of a user's function, as AST, to one whose control flow and calls go through `staging`.

Each `if`, `while` and `for` turns its parts into local functions that share the variables with the
function around them (nonlocal), so that `staging` may trace them, restore the variables, and trace
them again:

    def f(x):                      def f(x):
        if x.sum() > 0:                frame = __stretto.enter("f", lambda: (x, y, ...))
            y = x                      def then(): nonlocal y; y = x
        else:                          def orelse(): nonlocal y; y = __stretto.call(g, x)
            y = g(x)                   __stretto.if_(frame, x.sum() > 0, then, orelse, ("y",))
        return y                       __stretto_value = y ...
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from itertools import compress
from operator import not_
from typing import Any

from stretto.frontends.python.source import desugar, jumps, syntax_trees
from stretto.frontends.python.source.desugar import MatchLowering, TargetLowering
from stretto.frontends.python.source.jumps import VALUE, JumpLowering
from stretto.frontends.python.source.syntax_trees import (
    NameSet,
    assign,
    at,
    constant,
    definition,
    is_staging,
    name,
    names,
    own_nodes,
    own_statements,
    staged,
    staging,
    thunk,
)
from stretto.frontends.python.tracing.tensor import OF_CODE, OF_ERRORS, OF_TENSORS

FRAME = "__stretto_frame"
_WATCHED = frozenset((*OF_TENSORS, *OF_CODE, *OF_ERRORS, "__class__"))
"""Attributes whose reads go through `staging`."""


class ExpressionLowering(ast.NodeTransformer):
    """Lowers calls, subscripts, boolean operators and conditional expressions of one function."""

    def __init__(self, self_name: str | None, unsure: NameSet, pulled: bool = False) -> None:
        self.self_name = self_name
        self.pulled = pulled
        self.unsure = unsure
        self.operands = dict[str, ast.expr]()
        """Parts of expressions that bind variables of this function, to become local functions."""
        self.functions = list[ast.FunctionDef]()
        """Comprehensions as local functions, so that their loops and conditions are staged."""
        self.scopes = 0
        """Number of lambdas and comprehensions around the expression."""
        self.tests = set[ast.AST]()
        """Expressions used only for their truth value."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return lower_function(node, unsure=self.unsure)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Check a variable that may lack a value when it is read."""
        if not isinstance(node.ctx, ast.Load) or node.id not in self.unsure:
            return node
        return staged(node, "bound", ast.Constant(node.id), thunk(node))

    def _left_alone(self, node: Any) -> Any:
        return node

    visit_AsyncFunctionDef = _left_alone

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Register the class; its methods are rewritten when they are called."""
        node.decorator_list.append(at(node, staging("defined")))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return staged(node, "local", self._scope(node))

    def _scope(self, node: Any) -> Any:
        self.scopes += 1
        self.generic_visit(node)
        self.scopes -= 1
        return node

    visit_SetComp = visit_DictComp = _scope

    def visit_ListComp(self, node: ast.ListComp) -> ast.expr:
        """Turn a comprehension with conditions or several loops into a function. For others the
        first iterable is passed in, so that it may be a list of the Program."""
        return self._comprehension(node, "listed", desugar.listing)

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.iter = staged(node.iter, "whole", node.iter)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.Starred:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = staged(node.value, "whole", node.value)
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        """Stage a generator expression, which stays one unless its number of items is no Python
        number."""
        return self._comprehension(node, "yielded", desugar.yielding)

    def _comprehension(
        self, node: Any, kind: str, function: Callable[[Any, str], ast.FunctionDef]
    ) -> ast.expr:
        if not desugar.is_plain(node):
            return self._scope(node)
        made = list[ast.expr]()
        if not self.scopes and desugar.has_control_flow(node):
            identifier = f"__stretto_{kind}_{len(self.functions)}"
            lowered = function(node, identifier)
            self.functions.append(lowered)
            self.functions[-1] = lower_function(lowered, unsure=self.unsure)
            made.append(name(identifier))
        self._scope(node)
        first = node.generators[0]
        items, first.iter = first.iter, at(first.iter, name(desugar.ITEMS))
        only = ast.arguments([], [ast.arg(desugar.ITEMS)], None, [], [], None, [])
        return staged(node, kind, items, at(node, ast.Lambda(only, node)), *made)

    def _operand(self, node: ast.expr) -> ast.expr:
        """Return a part that may be skipped, as a function. A part with `:=` becomes a local
        function, since a lambda would not bind the variable."""
        if not _has_walrus([node]):
            return thunk(node)
        function = f"__stretto_operand_{len(self.operands)}"
        self.operands[function] = node
        return name(function)

    def _binds_elsewhere(self, nodes: Sequence[ast.expr]) -> bool:
        """True if a `:=` is inside a lambda or comprehension, where no function made here can bind
        its variable."""
        return self.scopes > 0 and _has_walrus(nodes)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if is_staging(node.func) and _is_globals(node.args[:1]):
            return node  # generated by `_watch_outer`
        self.generic_visit(node)
        if is_staging(node.func):
            return node
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            if not node.args and self.self_name:
                node.args = [name("__class__"), name(self.self_name)]
            return node
        if _is_globals([node]):
            return staged(node, "namespace", node)
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in ("dir", "locals", "vars") and not node.args:
            return staged(node, "variables", node)
        call = staged(node, "call", node.func, *node.args)
        call.keywords = node.keywords
        return call

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        self.generic_visit(node)
        parts: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                form = part.format_spec or constant("")
                part = ast.Tuple([part.value, constant(part.conversion), form], ast.Load())
            parts.append(at(node, part))
        return staged(node, "text", *parts)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Stage the read of an attribute that tensors have and numbers lack, or that rewriting
        changes."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or node.attr not in _WATCHED:
            return node
        return staged(node, "attribute", node.value, ast.Constant(node.attr))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return staged(node, "getitem", node.value, _index(node.slice))

    def visit(self, node: ast.AST) -> Any:
        """Lower a node, and record tests. Expressions that skip parts and contain a yield stay
        Python's."""
        if isinstance(node, ast.BoolOp | ast.IfExp | ast.Compare) and desugar.has_yield(node):
            return self.generic_visit(node)
        match node:
            case (
                ast.If(test=test)
                | ast.While(test=test)
                | ast.IfExp(test=test)
                | ast.Assert(test=test)
            ):
                self.tests.add(test)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.tests.add(operand)
            case ast.BoolOp(values=values) if node in self.tests:
                self.tests.update(values)
            case _:
                pass
        found = super().visit(node)
        is_kept = _may_compare_sizes(node) and node not in self.tests
        return staged(node, "as_flag", found) if is_kept else found

    def visit_Yield(self, node: ast.Yield) -> ast.expr:
        self.generic_visit(node)
        if self.pulled:
            return node
        assert node.value is not None
        return staged(node, "pass_to_consumer", node.value)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        plain = self._binds_elsewhere(node.values[1:])
        self.generic_visit(node)
        if plain:
            *first, last = node.values
            node.values = [*(staged(value, "plain", value) for value in first), last]
            return node
        function = "and_" if isinstance(node.op, ast.And) else "or_"
        rest = [self._operand(value) for value in node.values[1:]]
        return staged(node, self._of_truth(node, function), node.values[0], *rest)

    def _of_truth(self, node: ast.expr, function: str) -> str:
        """Return the function that gives the value of the expression, or only its truth if that
        suffices."""
        return function if node in self.tests else f"value_of_{function}"

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        match node.op:
            case ast.Add():
                return staged(node, "added", node.left, node.right)
            case ast.Mod() if not _is_number(node.left):
                return staged(node, "modulo", node.left, node.right)
            case _:
                return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return staged(node, "not_", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        plain = self._binds_elsewhere([node.body, node.orelse])
        self.generic_visit(node)
        if plain:
            node.test = staged(node.test, "plain", node.test)
            return node
        arms = [self._operand(node.body), self._operand(node.orelse)]
        return staged(node, "ifexp", node.test, *arms)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        plain = len(node.ops) > 1 and self._binds_elsewhere(node.comparators)
        self.generic_visit(node)
        if plain:
            return node
        if len(node.ops) == 1:
            (operator,), (other,) = node.ops, node.comparators
            match operator:
                case ast.In() | ast.NotIn():
                    found = staged(node, "contains", other, node.left)
                case ast.Is() | ast.IsNot():
                    found = staged(node, "is_", node.left, other)
                case ast.Eq():
                    return staged(node, "equal", node.left, other)
                case ast.NotEq():
                    return staged(node, "not_equal", node.left, other)
                case _:
                    return node
            is_negated = isinstance(operator, ast.NotIn | ast.IsNot)
            return staged(node, "not_", found) if is_negated else found
        operators = constant(tuple(type(operator).__name__ for operator in node.ops))
        operands = [self._operand(operand) for operand in node.comparators]
        return staged(node, self._of_truth(node, "chain"), operators, node.left, *operands)

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        """Raise, after its `try`, an exception that was recorded and not handled."""
        self.generic_visit(node)
        if not isinstance(node.exc, ast.Name) or not node.exc.id.startswith(jumps.ERROR):
            return node
        throw = ast.Attribute(staging("statements"), "throw", ast.Load())
        return at(node, ast.Expr(ast.Call(throw, [node.exc], [])))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return at(node, ast.Pass())
        return self.visit_Assign(at(node, ast.Assign([node.target], node.value)))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        """Stage stores into attributes and items; `TargetLowering` has made each a separate
        statement."""
        node.value = self.visit(node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            call = self._stored(node.targets[0], node.value)
            return at(node, ast.Expr(call))
        if any(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
            node.value = staged(node.value, "whole", node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def _stored(self, target: ast.Attribute | ast.Subscript, value: ast.expr) -> ast.expr:
        """Return the staged store. The value is evaluated first, as in Python."""
        holder = self.visit(target.value)
        if isinstance(target, ast.Attribute):
            return staged(target, "store", value, holder, ast.Constant(target.attr))
        return staged(target, "store_item", value, holder, _index(self.visit(target.slice)))

    def visit_Delete(self, node: ast.Delete) -> ast.stmt:
        (target,) = node.targets
        match target:
            case ast.Subscript(value=holder, slice=index):
                call = staged(node, "delitem", self.visit(holder), _index(self.visit(index)))
            case ast.Attribute(value=holder, attr=attribute):
                call = staged(node, "delattr", self.visit(holder), ast.Constant(attribute))
            case _:
                return node
        return at(node, ast.Expr(call))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        """Stage an augmented assignment. A value with calls is evaluated after the target is read,
        as in Python, since it may change the target."""
        acts = any(isinstance(item, ast.Call) for item in ast.walk(node.value))
        is_late = acts and not desugar.has_yield(node.value)
        node.value = self.visit(node.value)
        operator = ast.Constant(type(node.op).__name__)
        value = [self._operand(node.value), ast.Constant(True)] if is_late else [node.value]
        match node.target:
            case ast.Subscript(value=holder, slice=index):
                arguments = [self.visit(holder), _index(self.visit(index)), operator, *value]
                return at(node, ast.Expr(staged(node, "augment_item", *arguments)))
            case ast.Attribute(value=holder, attr=attribute):
                arguments = [self.visit(holder), ast.Constant(attribute), operator, *value]
                return at(node, ast.Expr(staged(node, "augment_attr", *arguments)))
            case ast.Name(id=target):
                value = staged(node, "augment", operator, self.visit(name(target)), node.value)
                return at(node, assign(target, value))

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        if not __debug__:  # `python -O` removes the user's assertions too
            return at(node, ast.Pass())
        self.generic_visit(node)
        message = thunk(node.msg or ast.Constant(None))
        shown = thunk(ast.Constant(node.msg is not None))
        call = staged(node, "assert_", node.test, message, shown)
        return at(node, ast.Expr(call))


def _has_walrus(nodes: Sequence[ast.AST]) -> bool:
    return any(isinstance(item, ast.NamedExpr) for node in nodes for item in ast.walk(node))


def _index(index: ast.expr) -> ast.expr:
    """Return a subscript as an expression: slices become calls of `slice`."""
    if isinstance(index, ast.Slice):
        none = ast.Constant(None)
        parts = [index.lower or none, index.upper or none, index.step or none]
        return staged(index, "slice", *parts)
    if isinstance(index, ast.Tuple):
        items = [_index(item) for item in index.elts]
        return at(index, ast.Tuple(items, ast.Load()))
    return index


class StatementLowering:
    """Lowers the structured statements of one function, with known liveness."""

    def __init__(self, shared: NameSet, always: NameSet, outer: NameSet) -> None:
        """shared: variables of the function and its nonlocals. always: variables live everywhere.
        outer: declared globals."""
        self.shared = shared
        self.always = always
        self.globals = outer
        self.count = 0

    def block(self, statements: Sequence[ast.stmt], after: NameSet) -> list[ast.stmt]:
        """Lower statements; `after` are the names live after them."""
        out = list[list[ast.stmt]]()
        for statement in reversed(statements):
            out.append(self._one(statement, after))
            after = syntax_trees.live_before_one(statement, after)
        return [statement for group in reversed(out) for statement in group]

    def _one(self, statement: ast.stmt, after: NameSet) -> list[ast.stmt]:
        match statement:
            case ast.If() | ast.While() | ast.For() if desugar.has_yield(statement):
                return [self._pythons(statement, after)]
            case ast.If():
                return self._if(statement, after)
            case ast.While():
                return self._while(statement, after)
            case ast.For():
                return self._for(statement, after)
            case ast.With():
                statement.body = self.block(statement.body, after)
                notes = [constant(True)] if getattr(statement, "notes", False) else []
                for item in statement.items:
                    item.context_expr = staged(
                        item.context_expr, "context", item.context_expr, *notes
                    )
                return [statement]
            case ast.Try():
                return [self._try(statement, after)]
            case _:
                return [statement]

    def _pythons(self, statement: ast.If | ast.While | ast.For, after: NameSet) -> ast.stmt:
        """Lower a statement that contains a yield, in a pulled generator: it stays Python's, only
        its blocks are lowered."""
        match statement:
            case ast.For():
                after = syntax_trees.live_at_head(
                    statement, after | syntax_trees.stop_names(statement)
                )
            case ast.While():
                after = syntax_trees.live_at_head(statement, after)
            case ast.If():
                pass
        statement.body = self.block(statement.body, after)
        statement.orelse = self.block(statement.orelse, after)
        flags: list[ast.expr] = [name(flag) for flag in getattr(statement, "stop_flags", ())]
        if flags and isinstance(statement, ast.For):
            stop = flags[0] if len(flags) == 1 else ast.BoolOp(ast.Or(), flags)
            statement.body.append(at(statement, ast.If(stop, [ast.Break()], [])))
        return statement

    def _if(self, statement: ast.If, after: NameSet) -> list[ast.stmt]:
        then = self._part("then", self.block(statement.body, after), statement)
        orelse = self._part("else", self.block(statement.orelse, after), statement)
        parts = [statement.test, name(then.name), name(orelse.name)]
        call = staged(statement.test, "if_", name(FRAME), *parts, self._live(after))
        return [then, orelse, at(statement, ast.Expr(call))]

    def _while(self, statement: ast.While, after: NameSet) -> list[ast.stmt]:
        head = syntax_trees.live_at_head(statement, after)
        value = at(statement.test, ast.Return(statement.test))
        test = self._part("test", [value], statement)
        body = self._part("body", self.block(statement.body, head), statement)
        parts = [name(test.name), name(body.name)]
        call = staged(statement.test, "while_", name(FRAME), *parts, self._live(head))
        return [test, body, at(statement, ast.Expr(call))]

    def _for(self, statement: ast.For, after: NameSet) -> list[ast.stmt]:
        head = syntax_trees.live_at_head(statement, after | syntax_trees.stop_names(statement))
        first = at(statement.target, ast.Assign([statement.target], name("__stretto_item")))
        lowered = self.block(statement.body, head)
        body = self._part("body", [first, *lowered], statement, argument="__stretto_item")
        flags = [name(flag) for flag in getattr(statement, "stop_flags", ())]
        live = self._live(head - (syntax_trees.stores([statement.target]) - after))
        parts = [statement.iter, name(body.name)]
        call = staged(statement.iter, "for_", name(FRAME), *parts, live)
        if flags:
            stop = staged(statement, "or_", flags[0], *map(thunk, flags[1:]))
            call.args.append(thunk(stop))
        return [body, at(statement, ast.Expr(call))]

    def _try(self, statement: ast.Try, after: NameSet) -> ast.stmt:
        """Lower a `try`: its blocks are lowered in place, and `enter_try` declares which classes
        its handlers catch."""
        raising = [_always_raises(handler.body) for handler in statement.handlers]
        behind, always = after, self.always
        after = syntax_trees.live_before(statement.finalbody, after)
        self.always = always | after | syntax_trees.live_in_handlers(statement, after)
        statement.body = self.block(
            statement.body, syntax_trees.live_before(statement.orelse, after)
        )
        self.always = always
        for handler in statement.handlers:
            handler.body = self.block(handler.body, after)
        statement.orelse = self.block(statement.orelse, after)
        statement.finalbody = self.block(statement.finalbody, behind)
        if statement.handlers:
            every = [handler.type or name("BaseException") for handler in statement.handlers]
            kinds = [
                thunk(at(statement, ast.Tuple([*compress(every, chosen)], ast.Load())))
                for chosen in (map(not_, raising), raising)
            ]
            entered = ast.Expr(staged(statement, "enter_try", *copy.deepcopy(kinds)))
            left = ast.Expr(staged(statement, "leave_try"))
            inner = ast.Try(statement.body, [], [], [left])
            statement.body = [at(statement, entered), at(statement, inner)]
        return statement

    def _part(
        self, kind: str, body: list[ast.stmt], like: ast.stmt, argument: str | None = None
    ) -> ast.FunctionDef:
        """Return a local function for a part of a statement."""
        self.count += 1
        return self.function(f"__stretto_{kind}_{self.count}", body, like, argument)

    def operand(self, function: str, value: ast.expr) -> ast.FunctionDef:
        """Return a local function for a part of an expression that binds variables."""
        result = at(value, ast.Return(value))
        return self.function(function, [result], result)

    def function(
        self, function: str, body: list[ast.stmt], like: ast.stmt, argument: str | None = None
    ) -> ast.FunctionDef:
        """Return a local function that shares the variables of the enclosing one."""
        stored = syntax_trees.stores(body)
        assigned, outer = sorted(stored & self.shared), sorted(stored & self.globals)
        head: list[ast.stmt] = [ast.Nonlocal(assigned)] if assigned else []
        head += [ast.Global(outer)] if outer else []
        made = definition(function, [argument] if argument else [], [*head, *body])
        return at(like, made)

    def _live(self, after: NameSet) -> ast.expr:
        return constant(tuple(sorted((after | self.always) & self.shared)))


def _always_raises(body: Sequence[ast.stmt]) -> bool:
    """True if statements end by raising on every path."""
    jumps = (ast.Return, ast.Break, ast.Continue)
    if any(isinstance(node, jumps) for statement in body for node in ast.walk(statement)):
        return False
    match body[-1] if body else None:
        case ast.Raise():
            return True
        case ast.If(body=then, orelse=orelse):
            return _always_raises(then) and _always_raises(orelse)
        case _:
            return False


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, str)


def parameters(arguments: ast.arguments) -> list[str]:
    """Return the names of all parameters, positional ones first."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return [item.arg for item in (*every, *extra)]


def lower_function(
    node: ast.FunctionDef,
    *,
    is_outer: bool = False,
    unsure: NameSet = syntax_trees.EMPTY,
    pulled: bool = False,
) -> ast.FunctionDef:
    """Return the staged form of a function definition. unsure: variables of enclosing functions
    that may lack a value (`syntax_trees.unsure`). pulled: it stays a generator function."""
    if any(isinstance(item, ast.Await) for item in own_nodes(node)):
        return node
    is_generator = desugar.is_generator(node) and not pulled
    if is_generator and is_outer:
        node.decorator_list = []
    if is_generator and not desugar.can_be_lowered(node):
        return node
    given = parameters(node.args)
    if is_generator:
        values = desugar.GeneratorLowering()
        given_nothing = at(node.body[0], assign(VALUE, ast.Constant(None)))
        node.body = [given_nothing, *_flat([values.visit(item) for item in node.body])]
    body = jump_free(node)
    expressions = _expressions(node, body, given, unsure, pulled)
    text = ast.get_docstring(node, clean=False)
    node.body = _staged_body(node, body, given, expressions, name(VALUE), frozenset({VALUE}))
    if is_outer:  # defaults and annotations come from the function object
        _strip_annotations(node.args)
        node.returns = None
        node.decorator_list = []
    else:
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        visited = {id(item): expressions.visit(item) for item in defaults}
        node.args.defaults = [visited[id(item)] for item in node.args.defaults]
        node.args.kw_defaults = [item and visited[id(item)] for item in node.args.kw_defaults]
        if text is not None:
            node.body.insert(0, at(node, ast.Expr(ast.Constant(text))))
        kind = "generator" if is_generator else "local"
        node.decorator_list = [*node.decorator_list, at(node, staging(kind))]
    return ast.fix_missing_locations(node)


def jump_free(node: ast.FunctionDef) -> list[ast.stmt]:
    """Return the body of a function as statements without jumps, which assign the result to
    `VALUE`."""
    matches, targets = MatchLowering(), TargetLowering()
    body = _flat([matches.visit(statement) for statement in _without_docstring(node.body)])
    body = _flat([targets.visit(statement) for statement in body])
    return JumpLowering().function(body, node)


def lower_segment(node: ast.FunctionDef, result: ast.expr, after: NameSet) -> ast.FunctionDef:
    """Return the staged form of a definition whose body has no jumps. It returns `result`, which
    reads the variables `after`."""
    given = parameters(node.args)
    expressions = _expressions(node, node.body, given, syntax_trees.EMPTY)
    node.body = _staged_body(node, node.body, given, expressions, result, after)
    return ast.fix_missing_locations(node)


def _local(node: ast.FunctionDef, body: list[ast.stmt], given: list[str]) -> NameSet:
    declared = _declared(node, ast.Nonlocal) | _declared(node, ast.Global)
    return (syntax_trees.stores(body) | set(given)) - declared


def _expressions(
    node: ast.FunctionDef,
    body: list[ast.stmt],
    given: list[str],
    unsure: NameSet,
    pulled: bool = False,
) -> ExpressionLowering:
    local = _local(node, body, given)
    may_lack = syntax_trees.unsure(body, frozenset(given)) & local
    first = given[0] if given else None
    return ExpressionLowering(first, (unsure - local) | may_lack, pulled)


def _staged_body(
    node: ast.FunctionDef,
    body: list[ast.stmt],
    given: list[str],
    expressions: ExpressionLowering,
    result: ast.expr,
    after: NameSet,
) -> list[ast.stmt]:
    """Return the staged form of a body without jumps, in the frame of its function."""
    local = _local(node, body, given)
    always = syntax_trees.captured(node.body) | after
    body = _flat([expressions.visit(statement) for statement in _watch_outer(body, node)])
    nonlocals, outer = _declared(node, ast.Nonlocal), _declared(node, ast.Global)
    for value in expressions.operands.values():
        always |= syntax_trees.loads(value) | syntax_trees.stores([value])
    for function in expressions.functions:
        always |= syntax_trees.loads(function)
    statements = StatementLowering(local | nonlocals, always | nonlocals, outer)
    lowered = statements.block(body, after)
    parts = [statements.operand(*item) for item in expressions.operands.items()]
    parts += expressions.functions
    return _framed(node, [*parts, *lowered], local, given, result)


def _flat(statements: list[ast.stmt | list[ast.stmt]]) -> list[ast.stmt]:
    lists = (item if isinstance(item, list) else [item] for item in statements)
    return [statement for item in lists for statement in item]


def _strip_annotations(arguments: ast.arguments) -> None:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for item in (*every, arguments.vararg, arguments.kwarg):
        if item is not None:
            item.annotation = None


def _framed(
    node: ast.FunctionDef,
    body: list[ast.stmt],
    local: NameSet,
    given: list[str],
    result: ast.expr,
) -> list[ast.stmt]:
    """Return the body between `enter` and `leave`, with every local variable declared."""
    first = body[0] if body else node
    unbound = sorted(local - set(given))
    binding = ast.If(ast.Constant(False), [assign(n, ast.Constant(None)) for n in unbound], [])
    probe = thunk(names(sorted(local | _declared(node, ast.Nonlocal))))
    entered = assign(FRAME, staged(first, "enter", ast.Constant(node.name), probe))
    left = ast.Expr(staged(first, "leave", name(FRAME)))
    guarded = ast.Try([*body, ast.Return(result)], [], [], [left])
    head = [item for item in own_statements(node) if isinstance(item, ast.Nonlocal | ast.Global)]
    made: list[ast.stmt] = [*([binding] if unbound else []), entered, guarded]
    return [*head, *(at(first, statement) for statement in made)]


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return body[1:]
    return body


def _declared(node: ast.FunctionDef, kind: type[Any]) -> NameSet:
    declarations: list[Any] = [item for item in own_statements(node) if isinstance(item, kind)]
    return frozenset(declared for item in declarations for declared in item.names)


def _is_globals(nodes: Sequence[ast.expr]) -> bool:
    """True for a single call of `globals`."""
    match nodes:
        case [ast.Call(ast.Name("globals"))]:
            return True
        case _:
            return False


class _OuterWatch(ast.NodeTransformer):
    """Inserts a call of `staging` after each write to a global or nonlocal variable."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self.outer = {kind: _declared(node, kind) for kind in (ast.Global, ast.Nonlocal)}

    def _dropped(self, node: ast.stmt) -> None:
        return None

    visit_Global = visit_Nonlocal = _dropped

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def _watched(self, node: ast.stmt) -> Any:
        self.generic_visit(node)
        notes = list[ast.stmt]()
        for kind, declared in self.outer.items():
            for written in sorted(syntax_trees.stores([node]) & declared):
                table = ast.Call(name("globals"), [], [])
                place = table if kind is ast.Global else name(FRAME)
                call = staged(node, "wrote_outer", place, ast.Constant(written))
                notes.append(at(node, ast.Expr(call)))
        return [node, *notes] if notes else node

    visit_Assign = visit_AugAssign = visit_AnnAssign = _watched


def _watch_outer(body: list[ast.stmt], node: ast.FunctionDef) -> list[ast.stmt]:
    if not (_declared(node, ast.Global) or _declared(node, ast.Nonlocal)):
        return body
    module = _OuterWatch(node).visit(ast.Module(body, []))
    return module.body


def _may_compare_sizes(node: ast.AST) -> bool:
    """True if the expression may be a condition on sizes."""
    match node:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return False
        case ast.Compare() | ast.UnaryOp(op=ast.Not()):
            return True
        case _:
            return False
