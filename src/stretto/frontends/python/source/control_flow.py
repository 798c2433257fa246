"""From a user's function, as AST, to one whose control flow and calls go through `staging`.

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
from collections.abc import Sequence
from typing import Any

from stretto.frontends.python.source import liveness
from stretto.frontends.python.source.jumps import VALUE, JumpLowering, name
from stretto.frontends.python.source.liveness import Names
from stretto.frontends.python.source.targets import TargetLowering

STAGING = "__stretto"
FRAME = "__stretto_frame"


def staged(function: str, arguments: Sequence[ast.expr], like: ast.AST) -> ast.Call:
    """`__stretto.function(arguments)` at the place of `like`."""
    target = ast.copy_location(ast.Attribute(name(STAGING, like), function, ast.Load()), like)
    return ast.copy_location(ast.Call(target, list(arguments), []), like)


def thunk(body: ast.expr) -> ast.Lambda:
    none = ast.arguments([], [], None, [], [], None, [])
    return ast.copy_location(ast.Lambda(none, body), body)


def _text(value: object, like: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Constant(value), like)  # type: ignore[arg-type]


class ExpressionLowering(ast.NodeTransformer):
    """Calls, subscripts, boolean operators and conditional expressions of one function."""

    def __init__(self, self_name: str | None, unsure: Names) -> None:
        self.self_name = self_name
        self.unsure = unsure
        self.operands = dict[str, ast.expr]()
        """Parts of expressions that bind variables of this function, as local functions."""
        self.scopes = 0
        """Lambdas and comprehensions around the expression."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return lower_function(node, unsure=self.unsure)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A variable that may have no value here is looked at when it is read."""
        if not isinstance(node.ctx, ast.Load) or node.id not in self.unsure:
            return node
        return staged("bound", [_text(node.id, node), thunk(node)], node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return staged("local", [self._scope(node)], node)

    def _scope(self, node: Any) -> Any:
        self.scopes += 1
        self.generic_visit(node)
        self.scopes -= 1
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _scope

    def _operand(self, node: ast.expr) -> ast.expr:
        """A part that may not be evaluated, as a function. `:=` in a lambda would bind nothing."""
        if not _has_walrus([node]):
            return thunk(node)
        function = f"__stretto_operand_{len(self.operands)}"
        self.operands[function] = node
        return name(function, node)

    def _binds_elsewhere(self, nodes: Sequence[ast.expr]) -> bool:
        """Whether `:=` stands where no function of ours could bind its variable."""
        return self.scopes > 0 and _has_walrus(nodes)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            if not node.args and self.self_name:
                node.args = [name("__class__", node), name(self.self_name, node)]
            return node
        if isinstance(node.func, ast.Name) and node.func.id in ("locals", "globals", "vars"):
            return node
        call = staged("call", [node.func, *node.args], node)
        call.keywords = node.keywords
        return call

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        return staged("getitem", [node.value, _index(node.slice)], node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        plain = self._binds_elsewhere(node.values[1:])
        self.generic_visit(node)
        if plain:
            *first, last = node.values
            node.values = [*(staged("plain", [value], value) for value in first), last]
            return node
        function = "and_" if isinstance(node.op, ast.And) else "or_"
        rest = [self._operand(value) for value in node.values[1:]]
        return staged(function, [node.values[0], *rest], node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return staged("not_", [node.operand], node) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        plain = self._binds_elsewhere([node.body, node.orelse])
        self.generic_visit(node)
        if plain:
            node.test = staged("plain", [node.test], node.test)
            return node
        arms = [self._operand(node.body), self._operand(node.orelse)]
        return staged("ifexp", [node.test, *arms], node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        plain = len(node.ops) > 1 and self._binds_elsewhere(node.comparators)
        self.generic_visit(node)
        if plain:
            return node
        if len(node.ops) == 1:
            if isinstance(node.ops[0], ast.In | ast.NotIn):
                found = staged("contains", [node.comparators[0], node.left], node)
                return found if isinstance(node.ops[0], ast.In) else staged("not_", [found], node)
            if isinstance(node.ops[0], ast.Is | ast.IsNot):
                found = staged("is_", [node.left, node.comparators[0]], node)
                return found if isinstance(node.ops[0], ast.Is) else staged("not_", [found], node)
            return node
        operators = [_text(type(operator).__name__, node) for operator in node.ops]
        names = ast.copy_location(ast.Tuple(list(operators), ast.Load()), node)
        operands = [self._operand(operand) for operand in node.comparators]
        return staged("chain", [names, node.left, *operands], node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self._assigned(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        return self._assigned(node)

    def _assigned(self, node: ast.Assign) -> ast.stmt:
        """Stores into attributes and items are staged; each is a statement of its own."""
        node.value = self.visit(node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            call = self._stored(node.targets[0], node.value)
            return ast.copy_location(ast.Expr(call), node)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def _stored(self, target: ast.Attribute | ast.Subscript, value: ast.expr) -> ast.expr:
        holder = self.visit(target.value)
        if isinstance(target, ast.Attribute):
            return staged("setattr", [holder, _text(target.attr, target), value], target)
        return staged("setitem", [holder, _index(self.visit(target.slice)), value], target)

    def visit_Delete(self, node: ast.Delete) -> ast.stmt:
        (target,) = node.targets
        match target:
            case ast.Subscript(value=holder, slice=index):
                call = staged("delitem", [self.visit(holder), _index(self.visit(index))], node)
            case ast.Attribute(value=holder, attr=attribute):
                call = staged("delattr", [self.visit(holder), _text(attribute, node)], node)
            case _:
                return node
        return ast.copy_location(ast.Expr(call), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | list[ast.stmt]:
        node.value = self.visit(node.value)
        operator = _text(type(node.op).__name__, node)
        match node.target:
            case ast.Subscript(value=holder, slice=index):
                arguments = [self.visit(holder), _index(self.visit(index)), operator, node.value]
                return ast.copy_location(ast.Expr(staged("augment_item", arguments, node)), node)
            case ast.Attribute(value=holder, attr=attribute):
                arguments = [self.visit(holder), _text(attribute, node), operator, node.value]
                return ast.copy_location(ast.Expr(staged("augment_attr", arguments, node)), node)
            case ast.Name(id=target) if isinstance(node.op, ast.Add):
                read = self.visit(name(target, node))
                value = staged("augment", [read, node.value], node)
                assign = ast.Assign([name(target, node, store=True)], value)
                return ast.copy_location(assign, node)
            case ast.Name(id=target):
                if target not in self.unsure:
                    return node
                read = self.visit(name(target, node))
                assign = ast.Assign([name(target, node, store=True)], read)
                return [ast.copy_location(assign, node), node]

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        self.generic_visit(node)
        message = thunk(node.msg or _text(None, node))
        shown = thunk(_text(node.msg is not None, node))
        call = staged("assert_", [node.test, message, shown], node)
        return ast.copy_location(ast.Expr(call), node)


def _has_walrus(nodes: Sequence[ast.AST]) -> bool:
    return any(isinstance(item, ast.NamedExpr) for node in nodes for item in ast.walk(node))


def _index(index: ast.expr) -> ast.expr:
    """A subscript as an expression: slices become calls of `slice`."""
    if isinstance(index, ast.Slice):
        none = _text(None, index)
        parts = [index.lower or none, index.upper or none, index.step or none]
        return staged("slice", parts, index)
    if isinstance(index, ast.Tuple):
        items = [_index(item) for item in index.elts]
        return ast.copy_location(ast.Tuple(items, ast.Load()), index)
    return index


class StatementLowering:
    """Structured statements of one function, with known liveness."""

    def __init__(self, shared: Names, always: Names, outer: Names) -> None:
        self.shared = shared
        self.always = always
        self.globals = outer
        self.count = 0

    def block(self, statements: Sequence[ast.stmt], after: Names) -> list[ast.stmt]:
        """Lower statements; `after` are the names live behind them."""
        out = list[list[ast.stmt]]()
        for statement in reversed(statements):
            out.append(self._one(statement, after))
            after = liveness.live_before_one(statement, after)
        return [statement for group in reversed(out) for statement in group]

    def _one(self, statement: ast.stmt, after: Names) -> list[ast.stmt]:
        match statement:
            case ast.If():
                return self._if(statement, after)
            case ast.While():
                return self._while(statement, after)
            case ast.For():
                return self._for(statement, after)
            case ast.With():
                statement.body = self.block(statement.body, after)
                return [statement]
            case ast.Try():
                return [self._try(statement, after)]
            case ast.Match():
                for case in statement.cases:
                    case.body = self.block(case.body, after)
                return [statement]
            case _:
                return [statement]

    def _if(self, statement: ast.If, after: Names) -> list[ast.stmt]:
        then = self._part("then", self.block(statement.body, after), statement)
        orelse = self._part("else", self.block(statement.orelse, after), statement)
        arguments = [statement.test, name(then.name, statement), name(orelse.name, statement)]
        call = staged(
            "if_",
            [name(FRAME, statement), *arguments, self._live(after, statement)],
            statement.test,
        )
        return [then, orelse, ast.copy_location(ast.Expr(call), statement)]

    def _while(self, statement: ast.While, after: Names) -> list[ast.stmt]:
        head = liveness.live_at_head(statement, after)
        value = ast.copy_location(ast.Return(statement.test), statement.test)
        test = self._part("test", [value], statement)
        body = self._part("body", self.block(statement.body, head), statement)
        arguments = [name(test.name, statement), name(body.name, statement)]
        call = staged(
            "while_",
            [name(FRAME, statement), *arguments, self._live(head, statement)],
            statement.test,
        )
        return [test, body, ast.copy_location(ast.Expr(call), statement)]

    def _for(self, statement: ast.For, after: Names) -> list[ast.stmt]:
        head = liveness.live_at_head(statement, after | liveness.stop_names(statement))
        item = name("__stretto_item", statement.target)
        first = ast.copy_location(ast.Assign([statement.target], item), statement.target)
        lowered = self.block(statement.body, head)
        body = self._part("body", [first, *lowered], statement, argument="__stretto_item")
        flags = [name(flag, statement) for flag in getattr(statement, "stop_flags", ())]
        arguments: list[ast.expr] = [statement.iter, name(body.name, statement)]
        live = self._live(head - (liveness.stores([statement.target]) - after), statement)
        call = staged("for_", [name(FRAME, statement), *arguments, live], statement.iter)
        if flags:
            rest: list[ast.expr] = [thunk(flag) for flag in flags[1:]]
            stop = staged("or_", [flags[0], *rest], statement) if rest else flags[0]
            call.args.append(thunk(stop))
        return [body, ast.copy_location(ast.Expr(call), statement)]

    def _try(self, statement: ast.Try, after: Names) -> ast.stmt:
        statement.body = self.block(statement.body, after)
        for handler in statement.handlers:
            handler.body = self.block(handler.body, after)
        statement.orelse = self.block(statement.orelse, after)
        statement.finalbody = self.block(statement.finalbody, after)
        if statement.handlers:
            every = [
                handler.type or name("BaseException", statement) for handler in statement.handlers
            ]
            handled = thunk(ast.copy_location(ast.Tuple(every, ast.Load()), statement))
            entered = staged("enter_try", [copy.deepcopy(handled)], statement)
            entered = ast.copy_location(ast.Expr(entered), statement)
            left = ast.copy_location(ast.Expr(staged("leave_try", [], statement)), statement)
            inner = ast.copy_location(ast.Try(statement.body, [], [], [left]), statement)
            statement.body = [entered, inner]
        return statement

    def _part(
        self, kind: str, body: list[ast.stmt], like: ast.stmt, argument: str | None = None
    ) -> ast.FunctionDef:
        """A local function for a part of a statement."""
        self.count += 1
        return self.function(f"__stretto_{kind}_{self.count}", body, like, argument)

    def operand(self, function: str, value: ast.expr) -> ast.FunctionDef:
        """A local function for a part of an expression that binds variables."""
        result = ast.copy_location(ast.Return(value), value)
        return self.function(function, [result], result)

    def function(
        self, function: str, body: list[ast.stmt], like: ast.stmt, argument: str | None = None
    ) -> ast.FunctionDef:
        """A local function that shares the variables of the one around it."""
        stored = liveness.stores(body)
        assigned, outer = sorted(stored & self.shared), sorted(stored & self.globals)
        parameters = [ast.copy_location(ast.arg(argument), like)] if argument else []
        arguments = ast.arguments([], parameters, None, [], [], None, [])
        head: list[ast.stmt] = [ast.Nonlocal(assigned)] if assigned else []
        head += [ast.Global(outer)] if outer else []
        made = ast.FunctionDef(function, arguments, [*head, *body], [], None)
        made.body = made.body or [ast.Pass()]
        if hasattr(made, "type_params") or "type_params" in ast.FunctionDef._fields:
            made.type_params = []  # type: ignore[attr-defined]
        return ast.fix_missing_locations(ast.copy_location(made, like))

    def _live(self, after: Names, like: ast.AST) -> ast.expr:
        names = sorted((after | self.always) & self.shared)
        return _text(tuple(names), like)


def parameters(arguments: ast.arguments) -> list[str]:
    """Names of all parameters, positional ones first."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return [item.arg for item in (*every, *extra)]


def lower_function(
    node: ast.FunctionDef, *, is_outer: bool = False, unsure: Names = liveness.EMPTY
) -> ast.FunctionDef:
    """The staged form of a function definition. `unsure`: see `liveness`, of functions around."""
    if _is_generator(node):
        return node
    names = parameters(node.args)
    targets = TargetLowering()
    body = _flat([targets.visit(statement) for statement in _without_docstring(node.body)])
    body = JumpLowering().function(body, node)
    declared = _declared(node, ast.Nonlocal) | _declared(node, ast.Global)
    local = (liveness.stores(body) | set(names)) - declared
    always = liveness.captured(node.body) | frozenset({VALUE})
    may_lack = liveness.unsure(body, frozenset(names)) & local
    expressions = ExpressionLowering(names[0] if names else None, (unsure - local) | may_lack)
    body = _flat([expressions.visit(statement) for statement in _watch_outer(body, node)])
    nonlocals, outer = _declared(node, ast.Nonlocal), _declared(node, ast.Global)
    for value in expressions.operands.values():
        always |= liveness.loads(value) | liveness.stores([value])
    statements = StatementLowering(local | nonlocals, always | nonlocals, outer)
    lowered = statements.block(body, frozenset({VALUE}))
    parts = [statements.operand(*item) for item in expressions.operands.items()]
    _strip_annotations(node.args)
    if not is_outer:
        expressions.generic_visit(node.args)
    node.body = _framed(node, [*parts, *lowered], local, names, _declared(node, ast.Nonlocal))
    node.returns = None
    if is_outer:
        node.decorator_list = []
    else:
        node.decorator_list = [*node.decorator_list, _attribute("local", node)]
    return ast.fix_missing_locations(node)


def _flat(statements: list[ast.stmt | list[ast.stmt]]) -> list[ast.stmt]:
    lists = (item if isinstance(item, list) else [item] for item in statements)
    return [statement for item in lists for statement in item]


def _strip_annotations(arguments: ast.arguments) -> None:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for item in (*every, arguments.vararg, arguments.kwarg):
        if item is not None:
            item.annotation = None


def _attribute(function: str, like: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Attribute(name(STAGING, like), function, ast.Load()), like)


def _framed(
    node: ast.FunctionDef, body: list[ast.stmt], local: Names, names: list[str], outer: Names
) -> list[ast.stmt]:
    """The body between `enter` and `leave`, with every local variable declared."""
    first = body[0] if body else node
    unbound = sorted(local - set(names))
    declared = [ast.Assign([ast.Name(item, ast.Store())], ast.Constant(None)) for item in unbound]
    binding: list[ast.stmt] = [ast.If(ast.Constant(False), list(declared), [])] if declared else []
    visible = sorted(local | outer)
    probe = thunk(
        ast.copy_location(ast.Tuple([name(v, first) for v in visible], ast.Load()), first)
    )
    enter = staged("enter", [_text(node.name, first), probe], first)
    entered = ast.Assign([ast.Name(FRAME, ast.Store())], enter)
    left = ast.Expr(staged("leave", [name(FRAME, first)], first))
    guarded = ast.Try([*body, ast.Return(name(VALUE, first))], [], [], [left])
    head = [item for item in _own(node) if isinstance(item, ast.Nonlocal | ast.Global)]
    made: list[ast.stmt] = [*binding, entered, guarded]
    for statement in made:
        ast.copy_location(statement, first)
        for item in ast.walk(statement):
            if "lineno" in item._attributes and not hasattr(item, "lineno"):
                ast.copy_location(item, first)
    return [*head, *made]


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return body[1:]
    return body


def _declared(node: ast.FunctionDef, kind: type[Any]) -> Names:
    declarations: list[Any] = [item for item in _own(node) if isinstance(item, kind)]
    return frozenset(declared for item in declarations for declared in item.names)


def _own(node: ast.AST) -> list[ast.AST]:
    """All nodes of a function but those of nested functions and classes."""
    found = list[ast.AST]()
    pending = list(ast.iter_child_nodes(node))
    while pending:
        item = pending.pop()
        found.append(item)
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(item)
    return found


def _is_generator(node: ast.FunctionDef) -> bool:
    return any(isinstance(item, ast.Yield | ast.YieldFrom | ast.Await) for item in _own(node))


class _OuterWatch(ast.NodeTransformer):
    """After a write to a global or nonlocal variable, `staging` notes it."""

    def __init__(self, node: ast.FunctionDef) -> None:
        self.outer = {kind: _declared(node, kind) for kind in (ast.Global, ast.Nonlocal)}

    def visit_Global(self, node: ast.Global) -> None:
        return None

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        return None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def _watched(self, node: ast.stmt) -> Any:
        self.generic_visit(node)
        notes = list[ast.stmt]()
        for kind, names in self.outer.items():
            for written in sorted(liveness.stores([node]) & names):
                table = ast.Call(name("globals", node), [], [])
                place = table if kind is ast.Global else name(FRAME, node)
                call = staged("wrote_outer", [place, _text(written, node)], node)
                notes.append(ast.fix_missing_locations(ast.copy_location(ast.Expr(call), node)))
        return [node, *notes] if notes else node

    visit_Assign = visit_AugAssign = visit_AnnAssign = _watched


def _watch_outer(body: list[ast.stmt], node: ast.FunctionDef) -> list[ast.stmt]:
    if not (_declared(node, ast.Global) or _declared(node, ast.Nonlocal)):
        return body
    module = _OuterWatch(node).visit(ast.Module(body, []))
    return module.body
