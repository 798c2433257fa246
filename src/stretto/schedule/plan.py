"""Plans: launches and library calls in order, with control on the host where needed.

A kernel on a GPU cannot call a library. `make_plan` cuts a scheduled and verified DeviceProgram
around its library calls: the code between them, with its control flow, stays whole as one *launch*;
a control node with a library call inside is executed by the host, which reads the condition from
device memory. A launch begins when everything earlier has ended, so waits for an earlier launch are
dropped. The same cut bounds the size of one launch.

`cuts` names further nodes of main to take apart, by identity. A leaf among them becomes one launch
per kernel, with its tasks dealt over all units; a control node among them, or around one, is
executed by the host. `schedule/plan_search.py` chooses the cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import cast

from stretto.components import reachable
from stretto.device.expr import (
    SIZE,
    Access,
    Buffer,
    Expr,
    Index,
    Position,
    Reg,
    constant,
    depends_on_sizes,
    limit_register,
    size_register,
)
from stretto.device.operator import Kernel
from stretto.device.plan import (
    Action,
    Guard,
    Launch,
    Library,
    Plan,
    address_name,
    formula_name,
    is_unlikely,
    needs_host,
)
from stretto.device.program import DeviceProgram, Item, Run, Schedule, assigned_registers
from stretto.device.regions import item_regions
from stretto.device.runs import call_graph, called
from stretto.device.tree import (
    Branching,
    Call,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    assigns,
    children,
    flattened,
    is_loop,
    is_parallel,
    is_predicated,
    joined,
    leaves,
    reads,
    rebuilt,
    rotating,
    title,
    walk,
    with_inputs,
)
from stretto.schedule.merge import RunStep, StatementStep, Step, merge, piece, piece_registers

# ---- Predicated branches: the launches of both arms are enqueued like those around them, and
# those of the arm that is not taken return at once.
#
# Grape (Zheng et al., MICRO 2023, section 3.3) predicates every kernel of an arm, so that a
# program with branches is one straight line. Here an arm may contain launches only: the kernels of
# a library cannot test a predicate, and neither can a loop of the host. A register that guards
# launches must not change among them.


Asked = Callable[[Node[Schedule]], bool]


def why_not_predicated(branch: If[Schedule], on_host: Asked, has_call: Asked) -> str | None:
    """Return why a branch cannot be predicated, None if it can. `on_host`: True for a node that
    the plan takes apart; `has_call`: True for a node that contains a library call."""
    if has_call(branch):
        return "a library call is in an arm"
    return _why_not(branch, on_host, ())


def _why_not(branch: If[Schedule], on_host: Asked, outer: tuple[Reg, ...]) -> str | None:
    """As `why_not_predicated`, without library calls; `outer` are the conditions of branches
    around it."""
    guards = (*outer, branch.condition)
    if changed := sorted({*guards} & {*assigned_registers(branch)}, key=lambda reg: reg.name):
        return f"an arm changes {changed[0].name}, which decides"
    for arm in children(branch):
        for node in flattened(arm):
            if isinstance(node, Leaf) or not on_host(node):
                continue
            if not isinstance(node, If):
                return f"{title(node)} is taken apart in an arm"
            if (reason := _why_not(node, on_host, guards)) is not None:
                return reason
    return None


MOST_KERNELS = 400
"""Number of kernels of one launch; a longer piece is split into several launches."""


CALL_BUFFER_KINDS = ("input", "output", "updated", "list")
"""Kinds of buffers that each call provides."""


class LaunchBoundary:
    """Marker between two pieces that must not be in one launch."""


LAUNCH_BOUNDARY = LaunchBoundary()

Part = Node[Schedule] | Library | LaunchBoundary


def make_plan(
    program: DeviceProgram,
    most_kernels: int = MOST_KERNELS,
    cuts: frozenset[int] = frozenset(),
    *,
    by_address: bool = False,
    predicated: frozenset[int] = frozenset(),
    unlikely: Mapping[int, Branching] | None = None,
) -> Plan:
    """Return the plan of a verified program; one launch if it is of moderate size and has no
    library call.

    cuts: `id`s of nodes of main that are taken apart in any case. by_address: launches in loops and
    branches of the host read from the block of words the addresses of the inputs and outputs that
    they use, and the sizes of the program, so that their arguments are the same for all calls.
    predicated: `id`s of branches of main, among the cuts, to predicate where that is possible
    (`why_not_predicated`). unlikely: `id`s of other branches, each with the arm that is hardly ever
    taken; not those in heads of loops. With unlikely branches all launches read the addresses of
    inputs and outputs from the block of words, if `by_address`.
    """
    planner = _LaunchPlanner(program, most_kernels, cuts, by_address, predicated, unlikely)
    return planner.plan()


def host_branches(
    program: DeviceProgram, cuts: frozenset[int]
) -> tuple[tuple[If[Schedule], str | None], ...]:
    """Return the branches of main that a plan with these cuts takes apart, each with the reason
    why it cannot be predicated, or None."""
    planner = _LaunchPlanner(program, MOST_KERNELS, cuts)
    apart = [
        node
        for node in walk(program.tree.main.body)
        if isinstance(node, If) and planner.on_host(node)
    ]
    return tuple((branch, planner.why_not_predicated(branch)) for branch in apart)


def cannot_be_captured(
    program: DeviceProgram, node: Node[Schedule], without: Collection[int] = ()
) -> bool:
    """True if no captured graph can contain this node of main: a library call in it draws random
    numbers or needs a size that only the device knows, or the host calls a function. Nodes
    whose `id` is in `without` are skipped."""
    planner = _LaunchPlanner(program, MOST_KERNELS)

    def asks(part: Node[Schedule]) -> bool:
        if id(part) in without:
            return False
        if isinstance(part, Call):
            return part.function in planner.hosted
        if isinstance(part, Leaf):
            calls = (planner.kernels[name].call for name in part.body.kernels)
            return any(call is not None and needs_host(call) for call in calls)
        return any(map(asks, children(part)))

    return asks(node)


class _LaunchPlanner:
    """Builder of the plan of a program; the fields are the arguments of `make_plan`."""

    def __init__(
        self,
        program: DeviceProgram,
        most_kernels: int,
        cuts: frozenset[int] = frozenset(),
        by_address: bool = False,
        predicated: frozenset[int] = frozenset(),
        unlikely: Mapping[int, Branching] | None = None,
    ) -> None:
        self.program = program
        self.unlikely = unlikely or {}
        self.predicated = predicated
        self.cuts = cuts
        self.by_address = by_address
        self.most = most_kernels
        self.kernels = {kernel.name: kernel for kernel in program.kernels}
        self.functions = {f.name: f for f in program.tree.functions}
        self.graph = call_graph(program.tree.functions)
        calling = {name for name, f in self.functions.items() if self._has_library_call(f.body)}
        # The host must execute every function that reaches a library call.
        self.hosted = {name for name in self.graph if reachable((name,), self.graph) & calling}

    def _has_library_call(self, node: Node[Schedule]) -> bool:
        return any(self.kernels[name].call for leaf in leaves(node) for name in leaf.kernels)

    def _needs_host(self, node: Node[Schedule]) -> bool:
        """True if a node contains or reaches a library call."""
        return bool(called(node) & self.hosted) or self._has_library_call(node)

    def size(self, node: Node[Schedule]) -> int:
        """Return the approximate size of the text: kernels, counted once for every place where
        they run."""
        return sum(len(schedule.kernels) for schedule in leaves(node))

    def plan(self) -> Plan:
        """Return the plan: main, and every other function that the host executes."""
        names = ["main", *(name for name in self.functions if name in self.hosted - {"main"})]
        cutters = {name: _FunctionCutter(self, self.functions[name]) for name in names}
        made = [cutter.source.with_body(cutter.function()) for cutter in cutters.values()]
        words = {name: cutter.words for name, cutter in cutters.items()}
        return Plan(self.program, Tree(tuple(made), self.program.tree.externals), words)

    def on_host(self, node: Node[Schedule]) -> bool:
        """True if the plan takes a node apart, because of a library call, a cut, or its size."""
        if is_parallel(node):  # Each unit runs separate iterations, so the host cannot.
            return False
        return (
            self._needs_host(node)
            or self._has_cut(node)
            or (not isinstance(node, Leaf | Call) and self.size(node) > self.most)
        )

    def is_predicated(self, node: Node[Schedule]) -> bool:
        """True for a branch, executed by the host, whose launches are guarded."""
        return (
            isinstance(node, If)
            and id(node) in self.predicated
            and self.why_not_predicated(node) is None
        )

    def why_not_predicated(self, branch: If[Schedule]) -> str | None:
        return why_not_predicated(branch, self.on_host, self._has_library_call)

    def _has_cut(self, node: Node[Schedule]) -> bool:
        return bool(self.cuts) and any(id(inner) in self.cuts for inner in walk(node))

    def below(self, node: Node[Schedule]) -> tuple[TreeFunction[Schedule], ...]:
        """Return the functions that a piece calls, directly or indirectly."""
        found = reachable(called(node), self.graph)
        return tuple(function for name, function in self.functions.items() if name in found)


class _FunctionCutter:
    """Cutter of one function. `words` numbers the registers and addresses that the host or several
    launches use."""

    def __init__(self, planner: _LaunchPlanner, function: TreeFunction[Schedule]) -> None:
        self.planner = planner
        self.source = function
        self.words: dict[str, int] = {}
        self.register_count = 0
        self.host_depth = 0
        self.addressed_buffers: tuple[Buffer, ...] = ()
        self.guards: tuple[Guard, ...] = ()
        self.stays = function.name != "main"  # Only a branch of main may leave a captured graph.
        for reg in (*function.results, *function.params):
            self.word(reg.name)

    def word(self, name: str) -> int:
        """Return the number of the word with this name; the first use allocates it."""
        return self.words.setdefault(name, len(self.words))

    def function(self) -> Node[Action]:
        """Return the body of the function as actions; one launch if nothing is taken apart."""
        body = self.source.body
        if not self.planner.on_host(body) and len(list(self.flat(body))) == 1:
            return self.launch(body, self.source.params, self.source.results)
        moving = {*self.source.tensors, *rotating(body), *self.addressed(body)}
        self.addressed_buffers = tuple(sorted(moving, key=lambda buffer: buffer.name))
        for buffer in self.addressed_buffers:
            self.word(address_name(buffer))
        return self.node(body)

    def addressed(self, body: Node[Schedule]) -> set[Buffer]:
        """Return the inputs and outputs whose addresses are in the block of words (see
        `make_plan`). Those that a library call uses are excluded: the host creates their
        tensors."""
        planner = self.planner
        if not planner.by_address or self.source.name != "main":
            return set()
        found, called = set[Buffer](), set[Buffer]()
        for node in walk(body):
            everywhere = bool(planner.unlikely) and node is body
            if not everywhere and (isinstance(node, Leaf | Seq) or not planner.on_host(node)):
                continue
            for schedule in leaves(node):
                kernels = [planner.kernels[name] for name in schedule.kernels]
                for item in (*kernels, *schedule.statements):
                    used = {region.buffer for region in item_regions(item)}
                    calls = isinstance(item, Kernel) and item.call is not None
                    (called if calls else found).update(used)
        return {buffer for buffer in found - called if buffer.kind in CALL_BUFFER_KINDS}

    # ---- cutting -----------------------------------------------------------------------------
    def node(self, node: Node[Schedule]) -> Node[Action]:
        """Return the actions of the host for a node, in order."""
        parts: list[Node[Action]] = []
        gathered: list[Node[Schedule]] = []
        size = 0

        def flush() -> None:
            nonlocal size
            if gathered:
                parts.append(self.piece(joined(gathered)))
                gathered.clear()
                size = 0

        for item in self.flat(node):
            if isinstance(item, LaunchBoundary):
                flush()
            elif isinstance(item, Library):
                flush()
                parts.append(Leaf(item))
            elif self.planner.on_host(item):
                hosted = self.control(item, gathered)
                flush()
                parts.append(hosted)
            else:
                more = self.planner.size(item)
                if size + more > self.planner.most:
                    flush()
                gathered.append(item)
                size += more
        flush()
        # A branch that is predicated, or may leave a graph, must be in a sequence.
        alone = len(parts) == 1 and not (is_predicated(parts[0]) or is_unlikely(parts[0]))
        return parts[0] if alone else Seq(tuple(parts))

    def flat(self, node: Node[Schedule]) -> Iterator[Part]:
        """Yield the parts of a node: sequences and leaves are split where the host must act."""
        on_host = self.planner.on_host(node)
        if isinstance(node, Seq) and on_host:
            for child in node.children:
                yield from self.flat(child)
        elif not isinstance(node, Leaf):
            yield node
        elif on_host and id(node) in self.planner.cuts:
            yield from self.kernels_apart(node.body)
        elif on_host or self.planner.size(node) > self.planner.most:
            yield from self.cut_leaf(node.body)
        else:
            yield node

    def kernels_apart(self, schedule: Schedule) -> Iterator[Part]:
        """Yield one launch per kernel. Statements are executed in the launch of the kernel after
        them.

        A kernel whose tasks are all at one place of the merged order is dealt again over all units:
        the launches are in that order, so any unit may run its tasks. If statements precede it,
        which may read memory that the kernel overwrites, the piece keeps its tasks and waits.
        """
        steps = merge(schedule)
        places = Counter(step.kernel for step in steps if isinstance(step, RunStep))
        gathered: list[Step] = []
        yield LAUNCH_BOUNDARY
        for step in steps:
            if (library := self.library(step)) is not None:
                if gathered:
                    yield Leaf(piece(gathered, schedule, begins=True))
                    gathered = []
                yield library
                continue
            gathered.append(step)
            if not isinstance(step, RunStep):
                continue
            if places[step.kernel] == 1 and not _has_statements(gathered):
                yield Leaf(self.dealt(step))
            else:
                yield Leaf(piece(gathered, schedule, begins=True))
            yield LAUNCH_BOUNDARY
            gathered = []
        if _has_statements(gathered):
            yield Leaf(piece(gathered, schedule, begins=True))
            yield LAUNCH_BOUNDARY

    def dealt(self, step: RunStep) -> Schedule:
        """Deal all tasks of a kernel over all units. Those of a dynamic grid already are."""
        units, name = self.planner.program.units, step.kernel
        lists = [step.runs.get(unit, ()) for unit in range(units)]
        if all(run.count is not None for runs in lists for run in runs):
            tasks = self.planner.kernels[name].tasks
            counts = [len(range(unit, tasks, units)) for unit in range(units)]
            lists = [(Run(name, u, n, units),) if n else () for u, n in enumerate(counts)]
        return Schedule(tuple(lists), 1)

    def cut_leaf(self, schedule: Schedule) -> Iterator[Part]:
        """Yield the pieces of a leaf between its library calls, each of at most `most` kernels."""
        gathered: list[Step] = []
        kernels = 0
        begins = False  # True if the piece is the first of its launch.
        for step in merge(schedule):
            library = self.library(step)
            if library is not None or kernels >= self.planner.most:
                if gathered:
                    yield Leaf(piece(gathered, schedule, begins))
                gathered, kernels, begins = [], 0, library is not None
            if library is not None:
                yield library
                continue
            kernels += isinstance(step, RunStep)
            gathered.append(step)
        if gathered:
            yield Leaf(piece(gathered, schedule, begins))

    def library(self, step: Step) -> Library | None:
        """Return the library call of a step, or None."""
        call = self.planner.kernels[step.kernel].call if isinstance(step, RunStep) else None
        return Library(call, step.kernel) if isinstance(step, RunStep) and call else None

    # ---- control on the host -----------------------------------------------------------------
    def control(self, node: Node[Schedule], prelude: list[Node[Schedule]]) -> Node[Action]:
        """Return a node as the host executes it; leaves that compute its inputs on the device are
        appended to `prelude`."""
        given = node
        for reg in assigns(node):
            self.word(reg.name)
        node = with_inputs(
            node,
            lambda expr: self.number(expr, prelude),
            lambda access: self.place(access, prelude),
        )
        for reg in sorted(reads(node), key=lambda reg: reg.name):
            self.word(reg.name)
        if isinstance(node, Call):
            return cast("Call[Action]", node)
        if isinstance(node, If) and (self.guards or self.planner.is_predicated(given)):
            return self.predicated(node)
        self.host_depth += 1
        made = self.body_of(node, given)
        self.host_depth -= 1
        return made

    def body_of(self, node: Node[Schedule], given: Node[Schedule]) -> Node[Action]:
        """Return a control node with the actions in it. `given`: the node in the program."""
        if isinstance(node, If) and id(given) in self.planner.unlikely and not self.stays:
            then, orelse = self.node(node.then), self.node(node.orelse)
            return If(node.condition, then, orelse, self.planner.unlikely[id(given)])
        if is_loop(node):
            *heads, body = children(node)
            return rebuilt(node, [*map(self.staying, heads), self.node(body)])
        return rebuilt(node, [self.node(child) for child in children(node)])

    def staying(self, node: Node[Schedule]) -> Node[Action]:
        """Return a node in which no branch may leave a captured graph."""
        outer, self.stays = self.stays, True
        made = self.node(node)
        self.stays = outer
        return made

    def predicated(self, branch: If[Schedule]) -> Node[Action]:
        """Return a branch whose launches are guarded by its condition."""
        outer = self.guards
        arms: list[Node[Action]] = []
        for negated, arm in enumerate((branch.then, branch.orelse)):
            self.guards = (*outer, Guard(branch.condition, bool(negated)))
            arms.append(self.node(arm))
        self.guards = outer
        return If(branch.condition, arms[0], arms[1], Branching.PREDICATED)

    def number(self, expr: Expr, prelude: list[Node[Schedule]]) -> Expr:
        """Return a number, a size that the host knows, or a register that a launch computes for
        the host."""
        if isinstance(expr, Position) and depends_on_sizes(expr.index):
            if self.planner.by_address:
                self.word(formula_name(expr.index))
            return expr
        if constant(expr) is not None:
            return expr
        self.register_count += 1
        reg = Reg(f"{self.source.name}.host.{self.register_count}", expr.dtype)
        self.word(reg.name)
        items: tuple[Item, ...] = (Let(reg, expr),)
        prelude.append(Leaf(Schedule((items,) * self.planner.program.units, 1)))
        return Position(Index.of(reg))

    def place(self, access: Access, prelude: list[Node[Schedule]]) -> Access:
        """Return an access whose offset is a number, a size that the host knows, or a register
        computed for it."""
        offset = self.number(Position(access.offset), prelude)
        assert isinstance(offset, Position)
        return Access(access.buffer, (1,), (offset.index,))

    # ---- launches ----------------------------------------------------------------------------
    def piece(self, body: Node[Schedule]) -> Node[Action]:
        """Return one of several launches, with the registers that pass between launches as params
        and results."""
        limits = {limit_register(buffer.slot) for buffer in self.planner.program.lists}
        taken, assigned = piece_registers(body, self.planner.kernels)
        sizes = {reg for reg in self.source.params if reg.name.startswith(SIZE)}
        in_body = self.host_depth or self.planner.unlikely  # Code after an exit is in bodies, too.
        if in_body and self.planner.by_address and self.source.name == "main":
            sizes.update(map(size_register, self.planner.program.symbols))
        takes = tuple(sorted((taken - limits) | sizes, key=lambda reg: reg.name))
        gives = tuple(sorted(assigned, key=lambda reg: reg.name))
        for reg in (*takes, *gives):
            self.word(reg.name)
        return self.launch(body, takes, gives)

    def launch(
        self, body: Node[Schedule], params: tuple[Reg, ...], results: tuple[Reg, ...]
    ) -> Node[Action]:
        """Return a launch of `body`, with the functions, kernels and frames that it needs."""
        program, source = self.planner.program, self.source
        main = TreeFunction(
            "main", params, self.addressed_buffers, (), results, source.locals, body
        )
        below = self.planner.below(body)
        used = {name for f in (main, *below) for leaf in leaves(f.body) for name in leaf.kernels}
        frames = (
            ("main", program.frame(source.name)),
            *((f.name, program.frame(f.name)) for f in below),
        )
        launched = replace(
            program,
            tree=Tree((main, *below), program.tree.externals),
            kernels=tuple(kernel for kernel in program.kernels if kernel.name in used),
            frames=frames,
        )
        turned = rotating(body)
        return Leaf(
            Launch(launched, tuple(b for b in self.addressed_buffers if b in turned), self.guards)
        )


def _has_statements(steps: list[Step]) -> bool:
    return any(isinstance(step, StatementStep) for step in steps)
