"""Recursion as a loop over an explicit stack, with a state for each place to go on from.

A GPU has no call stack worth the name. All functions of a recursive program are cut at their calls
into *states*: pieces without a call, which stay structured, and for control nodes with a call
inside a state per head, body and join. A loop runs the state at hand until main is done. A call
pushes what its caller still needs, each unit on a stack of its own (units run at their own pace);
frames of intermediate values are common to all units, as on the CPU machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.device.expr import Access, Buffer, Index, Position, Reg
from stretto.device.program import Schedule
from stretto.device.tree import Call, For, If, Node, TreeFunction, While, rotating, walk
from stretto.machines import statements as code
from stretto.machines.control import goes_on
from stretto.machines.cuda.printer.function import TeamPrinter
from stretto.machines.cuda.printer.parts import ModuleParts
from stretto.machines.cuda.printer.scalar import BARRIER, MEMORY_TYPES, OK, UNIT, VALUE_TYPES
from stretto.machines.terms import Term, call, infix, literal, variable
from stretto.machines.usage import used
from stretto.runtime.status import Status

FRAME_UNIT = 64
"""Bytes in which frames are counted: the compiler then sees how addresses are aligned."""
STATE, FRAME, DEPTH, STACK, TOP = (
    variable(name) for name in ("state", "frame", "depth", "stack", "top")
)
MAX_DEPTH, ARENA_BYTES, STACK_WORDS = (
    variable(name) for name in ("max_depth", "arena_bytes", "stack_words")
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A variable that a caller keeps over a call, and its Triton type."""

    name: Term
    type: str


def has_call(node: Node[Schedule]) -> bool:
    return any(isinstance(item, Call) for item in walk(node))


@dataclass(slots=True)
class StateMachine:
    """All functions of a program.

    `external` is what holds the address of an external buffer or of a tensor of main. `first` says
    what registers of main hold at first, by variable, where that is not 0. states: each with the
    function it belongs to.
    """

    parts: ModuleParts
    external: Mapping[Buffer, Term]
    first: Mapping[Term, Term]
    states: list[tuple[StatePrinter, code.Builder]] = field(
        default_factory=list[tuple["StatePrinter", code.Builder]]
    )
    functions: dict[str, StatePrinter] = field(default_factory=dict[str, "StatePrinter"])

    def __post_init__(self) -> None:
        functions = self.parts.program.tree.functions
        callees = {
            f.name: {n.function for n in walk(f.body) if isinstance(n, Call)} for f in functions
        }
        for function in functions:
            reaches = _reachable(function.name, callees)
            self.functions[function.name] = StatePrinter(self, function, reaches)

    def statements(self, results: code.Block) -> code.Block:
        """The loop over states. `results` hand main's results over."""
        for function in self.functions.values():
            function.body(results)
        main = self.functions["main"]
        out = code.Builder()
        self._declare(out)
        out.assign(STATE, call("tl.cast", main.entry, "tl.int32"))
        with out.within(code.Loop(OK & infix(STATE, ">=", 0))):
            for number, (owner, state) in enumerate(self.states):
                body = tuple(state.statements)
                names = code.mentioned(body)
                places = (
                    code.Assign(name, owner.address(buffer))
                    for buffer, name in owner.fixed.items()
                    if name.text in names
                )
                here = OK & infix(STATE, "==", number)
                out.add(
                    code.If(
                        here, (*owner.returns.get(number, ()), *places, *body), (), owner.tree.name
                    )
                )
        return tuple(out.statements)

    def _declare(self, out: code.Builder) -> None:
        zero = call("tl.cast", 0, "tl.int64")
        out.assign(FRAME, zero)
        out.assign(DEPTH, zero)
        out.assign(STACK, STACK + UNIT * STACK_WORDS)
        out.assign(TOP, zero)
        external = {*self.external.values()}
        for function in self.functions.values():
            for kept in [*function.registers, *function.loops]:
                out.assign(kept.name, self.first.get(kept.name, call("tl.cast", 0, kept.type)))
            for buffer, kept in function.moving.items():
                if kept.name not in external:
                    out.assign(kept.name, arena(buffer))


class StatePrinter(TeamPrinter):
    """One function. Nodes without calls are printed as everywhere; others become states.

    fixed: the variables of buffers with a place in the frame. moving: those of buffers whose
    address changes. registers, loops: what else the function keeps over its calls. returns: what
    a state behind a call does first.
    """

    def __init__(
        self, machine: StateMachine, function: TreeFunction[Schedule], reaches: frozenset[str]
    ) -> None:
        super().__init__(machine.parts, function.name, self.address_variable)
        self.machine = machine
        self.tree = function
        self.reaches = reaches
        self.fixed: dict[Buffer, Term] = {}
        self.moving: dict[Buffer, Kept] = {}
        self.loops: list[Kept] = []
        self.returns: dict[int, code.Block] = {}
        self.entry = self.new_state()
        buffers, regs = used(function.body, machine.parts.texts)
        rotated = rotating(function.body)
        for buffer in sorted(buffers | set(function.tensors), key=lambda b: b.name):
            if function.name == "main" and buffer in function.tensors:
                if buffer in rotated:
                    self.moving[buffer] = Kept(machine.external[buffer], pointer_type(buffer))
            elif buffer.kind == "param" or buffer in rotated:
                self.moving[buffer] = Kept(self.local(buffer), pointer_type(buffer))
            elif buffer.kind in ("local", "items"):
                self.fixed[buffer] = self.local(buffer)
        regs = sorted(regs | {*function.params, *function.results}, key=lambda r: r.name)
        limits = machine.parts.limits
        self.registers = [self.kept(reg) for reg in regs if reg not in limits]

    def local(self, buffer: Buffer) -> Term:
        return self.parts.variable((self.function, "buffer", buffer.name), f"b_{buffer.name}")

    def kept(self, reg: Reg) -> Kept:
        return Kept(self.reg(reg), VALUE_TYPES[reg.dtype])

    def address_variable(self, buffer: Buffer) -> Term:
        if buffer in self.moving:
            return self.moving[buffer].name
        return self.fixed.get(buffer) or self.machine.external[buffer]

    def address(self, buffer: Buffer) -> Term:
        """The address of a buffer that has a fixed place in the frame or outside."""
        if buffer.kind not in ("local", "items"):
            return self.machine.external[buffer]
        size = buffer.dtype.itemsize
        offset = self.parts.program.frame(self.function)[buffer.name].offset // size
        return arena(buffer) + FRAME * (FRAME_UNIT // size) + offset

    def body(self, results: code.Block) -> None:
        self.enter(self.entry)
        external = {*self.machine.external.values()}
        for buffer, kept in self.moving.items():
            if buffer.kind != "param" and kept.name not in external:
                self.out.assign(kept.name, self.address(buffer))
        self.node(self.tree.body)
        if self.function == "main":
            self.out.add(*results)
            self.goto(-1)
            return
        self.settle()
        self.out.assign(TOP, literal(1), operator="-=")
        self.out.assign(
            STATE, call("tl.cast", call("tl.load", STACK + TOP, effect=True), "tl.int32")
        )

    # ---- states ------------------------------------------------------------------------------
    def new_state(self) -> int:
        self.machine.states.append((self, code.Builder()))
        return len(self.machine.states) - 1

    def enter(self, state: int) -> None:
        self.out = self.machine.states[state][1]
        self.clean = False

    def goto(self, state: int) -> None:
        self.out.assign(STATE, literal(state))

    def choose(self, condition: Term, yes: int, no: int) -> None:
        self.out.assign(STATE, call("tl.where", condition, yes, no))

    # ---- nodes -------------------------------------------------------------------------------
    def branch(self, node: If[Schedule]) -> None:
        if not has_call(node):
            return super().branch(node)
        yes, no, join = (self.new_state() for _ in range(3))
        self.choose(self.reg(node.condition), yes, no)
        for state, arm in ((yes, node.then), (no, node.orelse)):
            self.enter(state)
            self.node(arm)
            self.goto(join)
        self.enter(join)

    def while_loop(self, node: While[Schedule]) -> None:
        if not has_call(node):
            return super().while_loop(node)
        first, again, end = (self.new_state() for _ in range(3))
        self.goto(first)
        self.enter(first)
        self.node(node.head)
        self.choose(self.reg(node.condition), again, end)
        self.enter(again)
        self.node(node.body)
        self.rotate(node.rotate)
        self.goto(first)
        self.enter(end)

    def for_loop(self, node: For[Schedule]) -> None:
        if not has_call(node):
            return super().for_loop(node)
        at, stop = self.begin(node)
        self.loops += [Kept(name, "tl.int64") for name in (at, stop)]
        head, body, end = (self.new_state() for _ in range(3))
        self.goto(head)
        self.enter(head)
        self.choose(goes_on(node, at, stop), body, end)
        self.enter(body)
        self.iteration(node, at, stop)
        self.goto(head)
        self.enter(end)

    # ---- calls -------------------------------------------------------------------------------
    def call(self, node: Call[Schedule]) -> None:
        callee = self.machine.functions[node.function]
        kept = self.all_kept() if self.function in callee.reaches else []
        mine, theirs = self.frame_units(), callee.frame_units()
        out = self.out
        out.assign(DEPTH, literal(1), operator="+=")
        self.require(infix(DEPTH, "<=", MAX_DEPTH), Status.TOO_DEEP, DEPTH)
        needed = (FRAME + (mine + theirs)) * FRAME_UNIT
        self.require(infix(needed, "<=", ARENA_BYTES), Status.ARENA_FULL, needed)
        self.require(infix(TOP + (len(kept) + 1), "<=", STACK_WORDS), Status.ARENA_FULL, literal(0))
        out.add(BARRIER)  # nobody still reads what is overwritten here
        back = self.new_state()
        self.returns[back] = (
            code.Assign(FRAME, literal(mine), operator="-="),
            code.Assign(DEPTH, literal(1), operator="-="),
        )
        words = [*(as_word(variable.name, variable.type) for variable in kept), literal(back)]
        for place, word in enumerate(words):
            out.add(code.Store(None, STACK + TOP + place, word, OK))
        out.assign(TOP, call("tl.where", OK, len(words), 0), operator="+=")
        self.pass_arguments(callee, node)
        out.assign(FRAME, literal(mine), operator="+=")
        self.goto(callee.entry)
        self.enter(back)
        self.come_back(callee, node, kept)

    def all_kept(self) -> list[Kept]:
        return [*self.registers, *self.moving.values(), *self.loops]

    def pass_arguments(self, callee: StatePrinter, node: Call[Schedule]) -> None:
        registers, tensors = dict(node.registers), dict(node.tensors)
        if registers:
            self.settle()
        pairs: list[tuple[Term, Term]] = []
        for reg in callee.tree.params:
            value = call("tl.cast", self.scalar(registers[reg]), VALUE_TYPES[reg.dtype])
            pairs.append((callee.reg(reg), value))
        for buffer in callee.tree.tensors:
            pairs.append((callee.moving[buffer].name, self.passed(tensors[buffer])))
        self.move(pairs, f"argument{{}}_{callee.entry}")

    def passed(self, access: Access) -> Term:
        base = self.buffer(access.buffer)
        if access.offset == Index():
            return base
        return base + self.scalar(Position(access.offset))

    def move(self, pairs: Sequence[tuple[Term, Term]], name: str) -> None:
        """Assigns all values at once, by variables of this name with a number."""
        between = [variable(name.format(number)) for number in range(len(pairs))]
        for temporary, (_, value) in zip(between, pairs, strict=True):
            self.out.assign(temporary, value)
        for temporary, (target, _) in zip(between, pairs, strict=True):
            self.out.assign(target, temporary)

    def come_back(self, callee: StatePrinter, node: Call[Schedule], kept: Sequence[Kept]) -> None:
        out = self.out
        results = [variable(f"result{n}_{callee.entry}") for n in range(len(node.results))]
        for result, (_, theirs) in zip(results, node.results, strict=True):
            out.assign(result, callee.reg(theirs))
        if kept:
            out.assign(TOP, literal(len(kept)), operator="-=")
            for place, variable_ in enumerate(kept):
                word = call("tl.load", STACK + TOP + place, effect=True)
                out.assign(variable_.name, from_word(word, variable_.type))
        for result, (mine, _) in zip(results, node.results, strict=True):
            out.assign(self.reg(mine), result)

    def frame_units(self) -> int:
        return -(-self.parts.program.frame(self.function).nbytes // FRAME_UNIT)


def _reachable(name: str, callees: Mapping[str, set[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = callees[waiting.pop()] - found
        found |= new
        waiting += new
    return frozenset(found)


def arena(buffer: Buffer) -> Term:
    """The parameter that is the arena as memory of the buffer's elements."""
    return variable(f"arena_{MEMORY_TYPES[buffer.dtype].removeprefix('tl.')}")


def pointer_type(buffer: Buffer) -> str:
    return f"tl.pointer_type({MEMORY_TYPES[buffer.dtype]})"


def as_word(value: Term, kind: str) -> Term:
    """A value of Triton type `kind` as an i64."""
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
