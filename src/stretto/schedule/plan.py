"""Plans: device programs and library calls in order, with control on the host where needed.

A kernel on a GPU cannot call a library. `make_plan` takes a scheduled and verified DeviceProgram
apart where library calls are: what is between them stays whole, control flow and all, as a *launch*
of its own; a control node with a library call inside is executed by the host, which reads the
condition from device memory. A launch begins when all before it has ended, so a wait for what an
earlier launch did is left out. The same cut bounds the size of one launch.
"""

from __future__ import annotations

from collections.abc import Iterator

from stretto.device.expr import Access, Buffer, Expr, Index, Position, Reg, constant, limit_register
from stretto.device.plan import Action, Launch, Library, Plan, address_name
from stretto.device.program import DeviceProgram, Item, Run, Schedule
from stretto.device.tree import (
    Call,
    For,
    If,
    Leaf,
    Let,
    Node,
    Seq,
    Tree,
    TreeFunction,
    While,
    rotating,
    walk,
)
from stretto.schedule.merge import RunStep, Step, merge
from stretto.schedule.pieces import piece, piece_registers

MOST_KERNELS = 400
"""Kernels of one launch; more are compiled as several."""


def make_plan(program: DeviceProgram, most_kernels: int = MOST_KERNELS) -> Plan:
    """The plan of a verified program. A program without library calls, of moderate size, is one
    launch."""
    return _Planner(program, most_kernels).plan()


class _Planner:
    def __init__(self, program: DeviceProgram, most_kernels: int) -> None:
        self.program = program
        self.most = most_kernels
        self.kernels = {kernel.name: kernel for kernel in program.kernels}
        self.functions = {f.name: f for f in program.tree.functions}
        self.hosted: set[str] = set()
        self._find_hosted()

    def _find_hosted(self) -> None:
        """Functions that the host must execute: those with a library call, or that call such."""
        while True:
            more = {
                name
                for name, function in self.functions.items()
                if name not in self.hosted and self._needs_host(function.body)
            }
            if not more:
                return
            self.hosted |= more

    def _needs_host(self, node: Node[Schedule]) -> bool:
        for item in walk(node):
            if isinstance(item, Leaf) and any(
                isinstance(i, Run) and self.kernels[i.kernel].call is not None
                for items in item.body.units
                for i in items
            ):
                return True
            if isinstance(item, Call) and item.function in self.hosted:
                return True
        return False

    def size(self, node: Node[Schedule]) -> int:
        """About how much text: kernels, once for every place where they run."""
        total = 0
        for item in walk(node):
            if isinstance(item, Leaf):
                total += len({i.kernel for u in item.body.units for i in u if isinstance(i, Run)})
        return total

    def plan(self) -> Plan:
        functions = [self.functions["main"]]
        functions += [f for n, f in self.functions.items() if n in self.hosted and n != "main"]
        made: list[TreeFunction[Action]] = []
        words: dict[str, dict[str, int]] = {}
        for function in functions:
            cutter = _Cutter(self, function)
            body = cutter.function()
            words[function.name] = cutter.words
            made.append(
                TreeFunction(
                    function.name,
                    function.params,
                    function.tensors,
                    function.written,
                    function.results,
                    function.locals,
                    body,
                )
            )
        return Plan(self.program, Tree(tuple(made), self.program.tree.externals), words)

    def on_host(self, node: Node[Schedule]) -> bool:
        return self._needs_host(node) or (
            not isinstance(node, Leaf | Call) and self.size(node) > self.most
        )

    def reached(self, node: Node[Schedule]) -> tuple[TreeFunction[Schedule], ...]:
        """The functions that a piece calls, by others too."""
        found: dict[str, TreeFunction[Schedule]] = {}
        waiting = [node]
        while waiting:
            for item in walk(waiting.pop()):
                if isinstance(item, Call) and item.function not in found:
                    found[item.function] = self.functions[item.function]
                    waiting.append(self.functions[item.function].body)
        return tuple(found.values())


class _Cutter:
    """Cuts one function. `words` numbers the registers that the host or several launches use."""

    def __init__(self, planner: _Planner, function: TreeFunction[Schedule]) -> None:
        self.planner = planner
        self.source = function
        self.words: dict[str, int] = {}
        self.pieces: list[Node[Schedule]] = []
        self.made = 0
        for reg in (*function.results, *function.params):
            self.word(reg)

    def word(self, reg: Reg) -> int:
        return self.words.setdefault(reg.name, len(self.words))

    def function(self) -> Node[Action]:
        body = self.source.body
        parts = list(self.flat(body))
        if len(parts) == 1 and not self.planner.on_host(body):
            return self.launch([body], set(), ())
        moving = {*self.source.tensors, *rotating(body)}
        for buffer in sorted(moving, key=lambda b: b.name):
            self.words[address_name(buffer)] = len(self.words)
        return self.node(body, moving)

    # ---- cutting -----------------------------------------------------------------------------
    def node(self, node: Node[Schedule], moving: set[Buffer]) -> Node[Action]:
        parts = list(self.parts(node, moving))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def parts(self, node: Node[Schedule], moving: set[Buffer]) -> Iterator[Node[Action]]:
        """What the host does for a node, in order."""
        gathered: list[Node[Schedule]] = []
        size = 0
        for item in self.flat(node):
            if isinstance(item, Library):
                yield from self.flush(gathered, moving)
                size = 0
                yield Leaf(item)
            elif self.planner.on_host(item):
                ahead, hosted = self.control(item, moving)
                gathered += ahead
                yield from self.flush(gathered, moving)
                size = 0
                yield hosted
            else:
                more = self.planner.size(item)
                if size + more > self.planner.most:
                    yield from self.flush(gathered, moving)
                    size = 0
                gathered.append(item)
                size += more
        yield from self.flush(gathered, moving)

    def flush(self, gathered: list[Node[Schedule]], moving: set[Buffer]) -> Iterator[Node[Action]]:
        if gathered:
            yield self.launch(list(gathered), moving, None)
            gathered.clear()

    def flat(self, node: Node[Schedule]) -> Iterator[Node[Schedule] | Library]:
        """Sequences and leaves taken apart where the host has to come in."""
        if not self.planner.on_host(node):
            if isinstance(node, Leaf) and self.planner.size(node) > self.planner.most:
                yield from self.cut_leaf(node.body)
            else:
                yield node
            return
        match node:
            case Seq(children):
                for child in children:
                    yield from self.flat(child)
            case Leaf(schedule):
                yield from self.cut_leaf(schedule)
            case _:
                yield node

    def cut_leaf(self, schedule: Schedule) -> Iterator[Node[Schedule] | Library]:
        gathered: list[Step] = []
        kernels = 0
        begins = False  # the piece is the first of its launch
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
        call = self.planner.kernels[step.kernel].call if isinstance(step, RunStep) else None
        return Library(call, step.kernel) if isinstance(step, RunStep) and call else None

    # ---- control on the host -----------------------------------------------------------------
    def control(
        self, node: Node[Schedule], moving: set[Buffer]
    ) -> tuple[list[Node[Schedule]], Node[Action]]:
        """A node as the host executes it, and what the device computes before it."""
        ahead: list[Node[Schedule]] = []
        match node:
            case For(index, start, stop, step, body, rotate):
                self.word(index)
                bounds = [self.number(expr, ahead) for expr in (start, stop)]
                inner = self.node(body, moving)
                return ahead, For(index, bounds[0], bounds[1], step, inner, rotate)
            case While(head, condition, body, rotate):
                self.word(condition)
                first, inner = self.node(head, moving), self.node(body, moving)
                return ahead, While(first, condition, inner, rotate)
            case If(condition, then, orelse):
                self.word(condition)
                arms = self.node(then, moving), self.node(orelse, moving)
                return ahead, If(condition, *arms)
            case Call(function, registers, tensors, results):
                passed = tuple((reg, self.number(expr, ahead)) for reg, expr in registers)
                places = tuple((buffer, self.place(access, ahead)) for buffer, access in tensors)
                for mine, _ in results:
                    self.word(mine)
                return ahead, Call(function, passed, places, results)
            case _:
                raise TypeError(node)

    def number(self, expr: Expr, ahead: list[Node[Schedule]]) -> Expr:
        """A number, or a register that a launch computes for the host."""
        if constant(expr) is not None:
            return expr
        self.made += 1
        reg = Reg(f"{self.source.name}.host.{self.made}", expr.dtype)
        self.word(reg)
        items: tuple[Item, ...] = (Let(reg, expr),)
        ahead.append(Leaf(Schedule((items,) * self.planner.program.units, 1)))
        return Position(Index.of(reg))

    def place(self, access: Access, ahead: list[Node[Schedule]]) -> Access:
        offset = self.number(Position(access.offset), ahead)
        assert isinstance(offset, Position)
        return Access(access.buffer, (1,), (offset.index,))

    # ---- launches ----------------------------------------------------------------------------
    def launch(
        self, nodes: list[Node[Schedule]], moving: set[Buffer], results: tuple[Reg, ...] | None
    ) -> Node[Action]:
        """A device program of nodes; `results` None: all that it assigns."""
        program, source = self.planner.program, self.source
        body: Node[Schedule] = nodes[0] if len(nodes) == 1 else Seq(tuple(nodes))
        if results is not None:
            results = source.results
            takes = source.params
        else:
            limits = frozenset(limit_register(b.slot) for b in program.lists)
            taken, assigned = piece_registers(body, self.planner.kernels, limits)
            results = tuple(sorted(assigned, key=lambda r: r.name))
            takes = tuple(sorted(taken, key=lambda r: r.name))
            for reg in (*takes, *results):
                self.word(reg)
        functions = self.planner.reached(body)
        main = TreeFunction(
            "main",
            takes,
            tuple(sorted(moving, key=lambda b: b.name)),
            (),
            results,
            source.locals,
            body,
        )
        used = {
            i.kernel
            for f in (main, *functions)
            for n in walk(f.body)
            if isinstance(n, Leaf)
            for items in n.body.units
            for i in items
            if isinstance(i, Run)
        }
        frames = [("main", program.frame(source.name))]
        frames += [(f.name, program.frame(f.name)) for f in functions]
        return Leaf(
            Launch(
                DeviceProgram(
                    program.units,
                    Tree((main, *functions), program.tree.externals),
                    tuple(k for k in program.kernels if k.name in used),
                    tuple(frames),
                    program.lists,
                ),
                tuple(b for b in main.tensors if b in rotating(body)),
            )
        )
