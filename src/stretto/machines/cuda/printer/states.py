"""Recursion as a loop over an explicit stack, with a state for each point at which to continue.

A GPU has no usable call stack. All functions of a recursive program are cut at their calls into
*states*: parts without a call, which stay structured, and for control statements with a call inside
a state per head, body and join. A loop runs the current state until main is done. A call pushes the
caller's variables that are live after it on a stack; each unit has its own, since units run at
their own pace. Frames of local buffers are common to all units, as on the CPU machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.device.runs import called, reached
from stretto.ir.sizes import Size, ceil_div
from stretto.machines import statements as code
from stretto.machines.cuda.printer.early import STATES, EarlyLoads
from stretto.machines.cuda.printer.function import FRAME, FRAME_UNIT, FunctionPrinter, requirement
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import OK, UNIT
from stretto.machines.cuda.printer.triton_terms import size_term
from stretto.machines.terms import Term, call, infix, literal, variable
from stretto.runtime.results import Status

STATE, DEPTH, STACK, TOP = map(variable, ("state", "depth", "stack", "top"))
MAX_DEPTH, ARENA_BYTES, STACK_WORDS = map(variable, ("max_depth", "arena_bytes", "stack_words"))
ZERO = call("tl.cast", 0, "tl.int64")


@dataclass(slots=True)
class FunctionState:
    """A part of a function. prologue: what is executed first after a call, before the addresses in
    the frame are known."""

    owner: Routine
    prologue: code.Statements = ()
    body: list[code.Statement] = field(default_factory=list[code.Statement])


@dataclass(frozen=True, slots=True)
class Routine:
    """A function that is cut into states. frame: number of FRAME_UNITs of its local buffers, which
    may depend on sizes that its calls pass.

    reaches: the functions that may run while it waits for a call.
    """

    printer: FunctionPrinter
    entry: int
    frame: int | Size
    reaches: set[str]

    @property
    def name(self) -> str:
        return self.printer.function.name

    @property
    def sizes(self) -> frozenset[str]:
        """Variables on which the places of its local buffers depend."""
        terms = (*self.printer.places.values(), size_term(self.frame, self.printer.reg))
        return frozenset(name for term in terms for name in term.names)

    def frame_with(self, arguments: tuple[Term, ...]) -> Term:
        """Return the frame of a call with these arguments."""
        given = dict(zip(self.printer.function.params, arguments, strict=False))
        return size_term(self.frame, lambda reg: given.get(reg) or self.printer.reg(reg))


@dataclass(slots=True)
class StateMachine:
    """Cuts the functions of a recursive program into states, and builds the loop over them."""

    parts: ModuleParts
    early: EarlyLoads
    states: list[FunctionState] = field(default_factory=list[FunctionState])
    routines: dict[str, Routine] = field(default_factory=dict[str, Routine])

    def __post_init__(self) -> None:
        tree = self.parts.program.tree
        callees = {f.name: called(f.body) for f in tree.functions}
        for function in tree.functions:
            frame = ceil_div(self.parts.program.frame(function.name).end, FRAME_UNIT).dim
            printer = FunctionPrinter(self.parts, self.early, self.parts.functions[function.name])
            routine = Routine(printer, len(self.states), frame, reached(function.name, callees))
            self.routines[function.name] = routine
            self.states.append(FunctionState(routine))

    def statements(self, results: code.Statements, first: Mapping[str, Term]) -> code.Statements:
        """Return the loop over states. results: statements that store main's results. first:
        initial values of variables, where they are not 0."""
        recursive = self.recursive
        bodies = [self.parts.functions[name].body for name in self.routines]
        again = [self.parts.functions[name].body for name in self.routines if name in recursive]
        self.early.loop(STATES, bodies, again)
        for routine in self.routines.values():
            routine.printer.whole()
        for routine in self.routines.values():
            self.add(routine, tuple(routine.printer.out.statements), results)
        out = code.StatementBuilder()
        for name in (FRAME, DEPTH, TOP):
            out.assign(name, ZERO)
        out.assign(STACK, STACK + UNIT * STACK_WORDS)
        entry = self.routines["main"].entry
        with out.block() as branches:
            for number, state in enumerate(self.states):
                here = OK & infix(STATE, "==", number)
                body = (*state.prologue, *self.places(state), *state.body)
                out.add(code.Branch(here, body, note=state.owner.name))
        carried = frozenset[str]().union(*(code.live((b,), frozenset()) for b in branches))
        external = {*self.parts.externals.values()}
        for routine in self.routines.values():
            for name, kept in routine.printer.saved.items():
                if name in carried and variable(name) not in external:
                    out.assign(variable(name), first.get(name, kept.first))
        out.assign(STATE, call("tl.cast", entry, "tl.int32"))
        loop = code.WhileLoop(OK & infix(STATE, ">=", 0), body=tuple(branches))
        out.add(*self.early.around(STATES, loop))
        return tuple(out.statements)

    @property
    def recursive(self) -> frozenset[str]:
        """Functions that run repeatedly: recursive ones, and those that they call."""
        reached = (r.reaches for r in self.routines.values() if r.name in r.reaches)
        return frozenset[str]().union(*reached)

    def places(self, state: FunctionState) -> code.Statements:
        """Return assignments of the addresses in the frame that a state uses."""
        used = code.mentioned(tuple(state.body))
        places = state.owner.printer.places.items()
        return tuple(code.Assign(name, place) for name, place in places if name.text in used)

    def add(self, routine: Routine, body: code.Statements, results: code.Statements) -> None:
        """Add the states of a function."""
        printer = routine.printer
        if routine.name == "main":
            body = (*body, *results, code.Assign(STATE, literal(-1)))
            after = frozenset[str]()
        else:
            after = frozenset(printer.reg(reg).text for reg in printer.function.results)
        after |= routine.sizes
        moving = (code.Assign(name, place) for name, place in printer.moving.items())
        last = self.cut(routine, (*moving, *body), routine.entry, after)
        if routine.name != "main":
            following = call("tl.cast", call("tl.load", STACK + TOP, effect=True), "tl.int32")
            self.states[last].body += [_down(TOP, 1), code.Assign(STATE, following)]

    # ---- cutting -----------------------------------------------------------------------------
    def new(self, routine: Routine, prologue: code.Statements = ()) -> int:
        """Add a state; return its number."""
        self.states.append(FunctionState(routine, prologue))
        return len(self.states) - 1

    def goto(self, state: int, following: int) -> None:
        """End a state with a jump to another one."""
        self.states[state].body.append(code.Assign(STATE, literal(following)))

    def choose(self, state: int, condition: Term, yes: int, no: int) -> None:
        """End a state with a conditional jump."""
        choice = call("tl.where", condition, yes, no)
        self.states[state].body.append(code.Assign(STATE, choice))

    def cut(self, owner: Routine, block: code.Statements, state: int, after: frozenset[str]) -> int:
        """Append statements to a state, and return the state in which they end.

        after: the variables that are live after them.
        """
        for statement, behind in zip(block, code.live_behind(block, after), strict=True):
            if not any(isinstance(inner, code.FunctionCall) for inner in code.walk((statement,))):
                self.states[state].body.append(statement)
                continue
            match statement:
                case code.FunctionCall():
                    state = self.call(owner, statement, state, behind)
                case code.Section(body):
                    state = self.cut(owner, body, state, behind)
                case code.Branch(condition, then, orelse):
                    yes, no, join = (self.new(owner) for _ in range(3))
                    self.choose(state, condition, yes, no)
                    for arm, block in ((yes, then), (no, orelse)):
                        self.goto(self.cut(owner, block, arm, behind), join)
                    state = join
                case code.WhileLoop(condition, head, body):
                    first, again, end = (self.new(owner) for _ in range(3))
                    live_body, live_head = code.live_inside(statement, behind)
                    self.goto(state, first)
                    self.choose(self.cut(owner, head, first, live_body), condition, again, end)
                    self.goto(self.cut(owner, body, again, live_head), first)
                    state = end
                case _:
                    raise TypeError(statement)
        return state

    def call(
        self, caller: Routine, node: code.FunctionCall, state: int, behind: frozenset[str]
    ) -> int:
        """Emit a call; return the state that follows it."""
        callee = self.routines[node.function]
        types = caller.printer.saved if caller.name in callee.reaches else {}
        given = {name for result in node.results for name in result.names}
        kept = [variable(name) for name in types if name in behind and name not in given]
        frame = size_term(caller.frame, caller.printer.reg)
        if isinstance(caller.frame, int) and isinstance(callee.frame, int):
            frames = literal(caller.frame + callee.frame)
        else:
            frames = frame + callee.frame_with(node.arguments)
        needed = (FRAME + frames) * FRAME_UNIT
        room = TOP + (len(kept) + 1)
        back = self.new(caller)
        out = code.StatementBuilder(self.states[state].body)
        out.assign(DEPTH, 1, operator="+=")
        out.add(
            requirement(infix(DEPTH, "<=", MAX_DEPTH), Status.TOO_DEEP, DEPTH),
            requirement(infix(needed, "<=", ARENA_BYTES), Status.ARENA_FULL, needed),
            requirement(infix(room, "<=", STACK_WORDS), Status.ARENA_FULL, literal(0)),
        )
        words = [*(as_word(name, types[name.text].type) for name in kept), literal(back)]
        for place, word in enumerate(words):
            out.add(code.Store(None, STACK + TOP + place, word, OK))
        out.assign(TOP, call("tl.where", OK, len(words), 0), operator="+=")
        moved = variable(f"frame_{callee.entry}")
        if frame.names:  # the arguments may assign the variables that the frame depends on
            out.assign(moved, frame)
        _move(out, callee.printer.parameters, node.arguments, f"argument{{}}_{callee.entry}")
        out.assign(FRAME, moved if frame.names else frame, operator="+=")
        self.goto(state, callee.entry)
        restored = code.StatementBuilder()
        if kept:
            restored.add(_down(TOP, len(kept)))
        loads = (call("tl.load", STACK + TOP + place, effect=True) for place in range(len(kept)))
        old = [
            from_word(load, types[name.text].type) for name, load in zip(kept, loads, strict=True)
        ]
        returned = [callee.printer.reg(reg) for reg in callee.printer.function.results]
        # In a recursive call both have the same registers, so results are read before the
        # caller's registers are restored.
        temporaries = [variable(f"result{n}_{callee.entry}") for n in range(len(returned))]
        for targets, values in ((temporaries, returned), (kept, old), (node.results, temporaries)):
            for target, value in zip(targets, values, strict=True):
                restored.assign(target, value)
        down = (code.Assign(FRAME, frame, operator="-="), _down(DEPTH, 1))
        if frame.names:
            self.states[back].prologue = (*restored.statements, *down)
        else:
            self.states[back].prologue = down
            self.states[back].body += restored.statements
        return back


def _move(
    out: code.StatementBuilder, targets: tuple[Term, ...], values: tuple[Term, ...], name: str
) -> None:
    """Assign all values in parallel, through temporary variables of this name with a number."""
    temporaries = [variable(name.format(number)) for number in range(len(targets))]
    for pairs in (zip(temporaries, values, strict=True), zip(targets, temporaries, strict=True)):
        for target, value in pairs:
            out.assign(target, value)


def _down(name: Term, step: int) -> code.Assign:
    return code.Assign(name, literal(step), operator="-=")


def as_word(value: Term, kind: str) -> Term:
    """Convert a value of Triton type `kind` to an i64 word."""
    match kind:
        case "tl.float64":
            return value.to("tl.int64, bitcast=True")
        case "tl.float32":
            return value.to("tl.int32, bitcast=True").to("tl.int64")
        case _:
            return value.to("tl.int64")


def from_word(word: Term, kind: str) -> Term:
    match kind:
        case "tl.float64":
            return word.to("tl.float64, bitcast=True")
        case "tl.float32":
            return word.to("tl.int32").to("tl.float32, bitcast=True")
        case "tl.int1":
            return infix(word, "!=", 0)
        case _:
            return word.to(kind)
