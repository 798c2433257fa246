"""The rules of plans and launch graphs: a plan does what its program does and has all it needs.

A launch begins when all earlier ones have ended. So a plan is equivalent to the program in which
all units wait for each other before each launch and each library call, and that program is verified
like any other. Registers and addresses pass between launches and the host in words: each has its
own word, which is written before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from stretto.device.expr import Access, Expr, Index, Position, Reg, limit_register
from stretto.device.flow import Facts, Loop
from stretto.device.launch_graph import Arrangement, LaunchGraph, ancestors, dependences
from stretto.device.plan import Action, Guard, Launch, Library, Plan, address_name, arms
from stretto.device.program import (
    DeviceProgram,
    Item,
    Run,
    Schedule,
    Signal,
    Wait,
    assigned_registers,
)
from stretto.device.regions import kernel_reads
from stretto.device.tree import (
    Branching,
    Call,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    children,
    flattened,
    is_loop,
    is_predicated,
    joined,
    leaves,
    reads,
    rebuilt,
    rotating,
    title,
    with_inputs,
)
from stretto.device.verifier.assignment import Assigned, Assignment
from stretto.errors import VerifyError

Written = frozenset[str]
"""Names of the registers whose words definitely hold their values."""


def check_words(plan: Plan) -> None:
    """Raise VerifyError for a word that is missing, shared, or read before it is written."""
    limits = {limit_register(buffer.slot).name for buffer in plan.program.lists}
    for function in plan.tree.functions:
        words = plan.words.get(function.name, {})
        if sorted(words.values()) != list(range(len(words))):
            raise VerifyError(f"the words of function {function.name} are not numbered in order")
        for name, launch in plan.launches:
            if name == function.name:
                _check_launch(launch, function, plan)
        _check_predicated(function, plan)
        passing = _Passing(function.name, frozenset(words), frozenset(limits))
        start = frozenset(register.name for register in function.params)
        end = passing.end(function.body, start)
        passing.require(function.results, end, "the end of the function")


def _check_launch(launch: Launch, function: TreeFunction[Action], plan: Plan) -> None:
    """Check that a launch takes its kernels, functions and memory from the program."""
    program, mine = plan.program, launch.program
    main, *others = mine.tree.functions
    known = dict(program.frames)
    frames = [(main.name, known.get(function.name)), *((f.name, known.get(f.name)) for f in others)]
    if (
        mine.units != program.units
        or mine.lists != program.lists
        or mine.tree.externals != program.tree.externals
        or list(mine.frames) != frames
        or not set(mine.kernels) <= set(program.kernels)
        or not set(others) <= set(program.tree.functions)
        or main.locals != function.locals
    ):
        raise VerifyError(f"a launch of function {function.name} is not a part of the program")
    run = {name for f in mine.tree.functions for leaf in leaves(f.body) for name in leaf.kernels}
    for name in sorted(run - {kernel.name for kernel in mine.kernels}):
        raise VerifyError(f"a launch of function {function.name} has no kernel {name}")
    moving = {buffer for buffer in main.tensors if buffer in rotating(main.body)}
    if set(launch.rotated) != moving:
        raise VerifyError(
            f"the rotated buffers of a launch of function {function.name} are not those that its "
            "loops rotate"
        )
    words = plan.words[function.name]
    for buffer in main.tensors:
        if address_name(buffer) not in words:
            raise VerifyError(f"the address of {buffer.name} has no word")
    for register in (*main.params, *main.results):
        if register.name not in words:
            raise VerifyError(f"register {register.name} of function {function.name} has no word")


def _check_predicated(function: TreeFunction[Action], plan: Plan) -> None:
    """Check that a launch is guarded by exactly the predicated branches that contain it. Their
    arms may contain only launches, and no launch writes its guards' registers, since a later
    launch would read the new value."""

    def check(node: Node[Action], guards: tuple[Guard, ...]) -> None:
        match node:
            case Leaf(Launch() as launch):
                if launch.guards != guards:
                    raise VerifyError(
                        f"a launch of function {function.name} has other guards than the "
                        "predicated branches that it is in"
                    )
                written = {*launch.program.tree.main.results} & {g.register for g in guards}
                for register in sorted(written, key=lambda register: register.name):
                    raise VerifyError(f"a launch writes register {register.name}, which guards it")
                for guard in guards:
                    if guard.register.name not in plan.words[function.name]:
                        raise VerifyError(f"register {guard.register.name} has no word")
            case If() if is_predicated(node):
                for guard, arm in arms(node):
                    check(arm, (*guards, guard))
            case _ if guards and not isinstance(node, Seq):
                raise VerifyError(
                    f"{title(node)} of function {function.name} is in an arm of a predicated branch"
                )
            case _:
                for child in children(node):
                    check(child, guards)

    check(function.body, ())


class _Passing(Facts[Action, Written]):
    """Propagates the registers whose words are written through the nodes that the host executes."""

    def __init__(self, function: str, words: frozenset[str], limits: frozenset[str]) -> None:
        super().__init__()
        self._function = function
        self._words = words
        self._limits = limits

    def require(self, registers: Iterable[Reg], written: Written, who: str) -> None:
        for name in sorted({register.name for register in registers} - self._limits):
            if name not in self._words:
                raise VerifyError(f"register {name} of function {self._function} has no word")
            if name not in written:
                raise VerifyError(
                    f"the word of register {name} may be read before it is written: {who} "
                    f"(function {self._function})"
                )

    def after(self, body: Action, state: Written) -> Written:
        match body:
            case Launch(program):
                needed, assigned = _registers(program)
                params = {register.name for register in program.tree.main.params}
                for name in sorted(needed - params - self._limits):
                    raise VerifyError(f"a launch reads register {name} but does not take it")
                self.require(
                    (r for r in program.tree.main.params if r.name in needed), state, "a launch"
                )
                results = {register.name for register in program.tree.main.results}
                return state | (assigned & results)
            case Library(call):
                used = [item for item in call.operands if isinstance(item, Reg)]
                self.require(used, state, f"library call {call.name}")
                return state

    def call(self, call: Call[Action], state: Written) -> tuple[Node[Action], Written]:
        self.require(reads(call), state, f"call of {call.function}")
        return call, state | {mine.name for mine, _ in call.results}

    def decide(self, node: Loop[Action] | If[Action], state: Written) -> None:
        self.require(reads(node), state, "the host")

    def begin(self, node: For[Action], state: Written) -> Written:
        return state | {node.index.name}

    def merge(self, a: Written, b: Written) -> Written:
        return a & b


def _registers(program: DeviceProgram) -> tuple[Written, Written]:
    """Return the registers that a launch may read before it assigns them, and those it definitely
    assigns."""
    kernels = {kernel.name: kernel for kernel in program.kernels}
    needed: set[str] = set()

    def note(registers: Iterable[Reg], assigned: Assigned, _: str) -> None:
        needed.update(register.name for register in registers if register.name not in assigned)

    analysis = Assignment(lambda name: kernel_reads(kernels[name]), note)
    assigned = analysis.end(program.tree.main.body, frozenset())
    return frozenset(needed), assigned


# ---- the plan as one program -----------------------------------------------------------------
@dataclass(slots=True)
class Marks:
    """Leaves in the program of a plan that represent work of the host. begins: the barrier before
    each launch. reads: the places where the host reads a register of the device."""

    begins: list[Leaf[Schedule]] = field(default_factory=list["Leaf[Schedule]"])
    reads: list[Leaf[Schedule]] = field(default_factory=list["Leaf[Schedule]"])


def as_program(plan: Plan, marks: Marks | None = None) -> DeviceProgram:
    """Return the program of a plan: the nodes of the host in place, and a barrier before each
    launch.

    marks: filled for a simulation of the plan; leaves are then not joined, and an empty
    leaf marks each place where the host reads.
    """
    hosted = {function.name: function for function in plan.tree.functions}
    functions = tuple(
        function.with_body(_LaunchInliner(plan, function, marks).node(hosted[function.name].body))
        if function.name in hosted
        else function
        for function in plan.program.tree.functions
    )
    return replace(plan.program, tree=Tree(functions, plan.program.tree.externals))


class _LaunchInliner:
    """Joins the launches of one function into one body.

    Some registers exist for the host alone: a launch computes a loop bound into one, and
    the host reads it. Where the host reads them they are replaced by their values.
    """

    def __init__(
        self, plan: Plan, function: TreeFunction[Schedule], marks: Marks | None = None
    ) -> None:
        self._marks = marks
        self._units = plan.program.units
        self._own = {register.name for register in function.params}
        self._own.update(register.name for register in assigned_registers(function.body))
        self._for_host: dict[str, Expr] = {}

    def node(self, node: Node[Action]) -> Node[Schedule]:
        made = [new for part in flattened(node) for new in self._nodes(part)]
        if self._marks is not None:
            return Seq(tuple(made))
        return joined(made, _one_leaf, lambda schedule: schedule.steps == 0)

    def _nodes(self, node: Node[Action]) -> Iterator[Node[Schedule]]:
        match node:
            case Leaf(Launch(program)):
                yield self._barrier()
                yield from (
                    self._without_host_registers(part) for part in flattened(program.tree.main.body)
                )
            case Leaf(Library(_, kernel)):
                yield self._barrier()
                run: tuple[Item, ...] = (Run(kernel, 0),)
                yield Leaf(Schedule((run, *[()] * (self._units - 1)), 1))
            case _:
                read = with_inputs(node, self._in_place, self._access)
                self._for_host = {}
                if isinstance(read, Call):
                    yield cast("Call[Schedule]", read)
                else:
                    yield from self._control(node, read)
                self._for_host = {}

    def _control(self, node: Node[Action], read: Node[Action]) -> Iterator[Node[Schedule]]:
        """Yield a node of the host. read: the node with its inputs as the program has them."""
        parts = [self.node(part) for part in children(node)]
        if self._marks is not None and reads(node) and not is_predicated(node):
            mark = Leaf(Schedule(((),) * self._units, 1))
            self._marks.reads.append(mark)
            if is_loop(node) and not isinstance(node, For):  # a `while` decides after its head
                parts[0] = Seq((parts[0], mark))
            else:
                yield mark
        made = rebuilt(read, parts)
        yield replace(made, branching=Branching.CONDITIONAL) if isinstance(made, If) else made

    def _barrier(self) -> Leaf[Schedule]:
        waits: tuple[Item, ...] = (Wait(0, 0, self._units),) if self._units > 1 else ()
        barrier = Leaf(Schedule((waits,) * self._units, 1))
        if self._marks is not None:
            self._marks.begins.append(barrier)
        return barrier

    def _without_host_registers(self, node: Node[Schedule]) -> Node[Schedule]:
        if not isinstance(node, Leaf):
            self._for_host = {}
            return node
        for item in node.body.statements:
            if isinstance(item, Let):
                if item.reg.name in self._own:
                    self._for_host = {}
                else:
                    self._for_host[item.reg.name] = item.value
        units = tuple(
            tuple(i for i in items if not (isinstance(i, Let) and i.reg.name not in self._own))
            for items in node.body.units
        )
        return Leaf(replace(node.body, units=units))

    def _in_place(self, expr: Expr) -> Expr:
        for name, value in self._for_host.items():
            if expr == Position(Index.of(Reg(name, value.dtype))):
                return value
        return expr

    def _access(self, access: Access) -> Access:
        (index,) = access.index
        found = self._in_place(Position(index))
        assert isinstance(found, Position)
        return replace(access, index=(found.index,))


def _one_leaf(first: Schedule, second: Schedule) -> Schedule:
    """Join two consecutive leaves: the steps of the second continue those of the first."""
    if second.steps == 0:
        return first
    moved = [[_later(item, first.steps) for item in items] for items in second.units]
    units = tuple(
        (*before, Signal(first.steps), *after)
        for before, after in zip(first.units, moved, strict=True)
    )
    return Schedule(units, first.steps + second.steps)


def _later(item: Item, steps: int) -> Item:
    match item:
        case Wait() | Signal():
            return replace(item, step=item.step + steps)
        case _:
            return item


# ---- Rules of a launch graph: every order that its edges allow gives the same results.


def verify_graph(graph: LaunchGraph) -> None:
    """Raise VerifyError for an edge against the plan's order, and for two nodes whose order
    matters but that no path of edges orders; also in the graphs of control nodes."""
    for edge in graph.edges:
        if not 0 <= edge.before < edge.after < len(graph.nodes):
            raise VerifyError(
                f"graph {graph.name}: an edge goes from node {edge.before} to {edge.after}; edges "
                "go from a node to a later one of the plan, so that they are in no circle"
            )
    _require_order(graph, graph.before, range(len(graph.nodes)), "edges")
    for node in graph.nodes:
        for body in node.bodies:
            verify_graph(body)


def verify_arrangement(graph: LaunchGraph, arrangement: Arrangement) -> None:
    """Raise VerifyError for an order that lacks nodes, and for two nodes whose order matters but
    that neither a stream nor events put in the plan's order."""
    numbers = list(range(len(graph.nodes)))
    if sorted(arrangement.order) != numbers or len(arrangement.streams) != len(numbers):
        raise VerifyError(f"graph {graph.name}: not every node is enqueued once, on a stream")
    place = {number: n for n, number in enumerate(arrangement.order)}
    for before, after in arrangement.events:
        if place[before] >= place[after]:
            raise VerifyError(
                f"graph {graph.name}: node {after} waits for node {before}, which is enqueued later"
            )
    _require_order(graph, arrangement.waits, arrangement.order, "streams and events")


def _require_order(
    graph: LaunchGraph, before: Sequence[Sequence[int]], order: Sequence[int], what: str
) -> None:
    known = ancestors(before, order)
    for needed in dependences(graph.nodes, graph.shares):
        if not known[needed.after] >> needed.before & 1:
            first, second = (graph.nodes[n] for n in (needed.before, needed.after))
            raise VerifyError(
                f"graph {graph.name}: {first.name} ({needed.before}) has to come before "
                f"{second.name} ({needed.after}) for {needed.reason}, and no {what} say so"
            )
