"""Loads constants before the task that uses them may begin.

Which constants a task reads often depends on nothing but its number. Such loads go ahead of the
wait of their kernel, so that they are under way meanwhile, or ahead of the loop around it, so that
the weights stay in the registers of the unit that uses them in every iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod

from stretto.device.names import label
from stretto.machines import statements as code
from stretto.machines.cuda.printer.kernel import TritonKernel
from stretto.machines.cuda.printer.load_order import loads_first
from stretto.machines.cuda.printer.scalar import BARRIER, OK, TASK
from stretto.machines.terms import Term, call, infix, separated

LEAST_BYTES = 2048
"""Less than this of a unit is not worth a function of its own."""


@dataclass(frozen=True, slots=True)
class EarlyKernel:
    """A kernel in two functions.

    early: (constants ..., task), returns `values`. body: the rest, (buffers ..., registers ...,
    control, task, values ...). constants: the arguments of `early`, as places in the kernel's
    buffers. nbytes: what the values take in registers.
    """

    early: code.Function
    body: code.Function
    constants: tuple[int, ...]
    values: tuple[Term, ...]
    nbytes: int


def split_early(kernel: TritonKernel) -> EarlyKernel | None:
    """The two functions of a kernel; None where it has little or nothing to load early."""
    parameters, body = kernel.function.parameters, kernel.function.body
    constants = {b: place for place, b in enumerate(kernel.buffers) if b.kind == "constant"}
    assignments = Counter(name for statement in code.walk(body) for name in code.defines(statement))
    computable = {*TASK.names, *(name for p in constants.values() for name in parameters[p].names)}
    addresses: list[code.Assign] = []
    loads: list[code.Assign] = []
    for statement in body:
        if not isinstance(statement, code.Assign) or not computable.issuperset(
            statement.value.names
        ):
            continue
        if assignments[statement.target.text] > 1 or statement.value.effect:
            continue
        if not statement.value.reads:
            computable.add(statement.target.text)
            addresses.append(statement)
        elif statement.value.reads[0] in constants:
            loads.append(statement)
    nbytes = sum(prod(load.shape) * max(_itemsize(load), 4) for load in loads)
    if nbytes < LEAST_BYTES:
        return None
    places = tuple(sorted({constants[load.value.reads[0]] for load in loads}))
    needed = {name for load in loads for name in load.value.names}
    for address in reversed(addresses):
        if address.target.text in needed:
            needed.update(address.value.names)
    values = tuple(load.target for load in loads)
    first = (*(a for a in addresses if a.target.text in needed), *loads, code.Return(values))
    rest = loads_first(tuple(statement for statement in body if statement not in loads))
    return EarlyKernel(
        code.Function((*(parameters[place] for place in places), TASK), first),
        code.Function((*parameters, *values), rest),
        places,
        values,
        nbytes,
    )


def _itemsize(load: code.Assign) -> int:
    return load.value.reads[0].dtype.itemsize


@dataclass(slots=True)
class EarlyLoads:
    """Places loads in a function of the module, and makes loops of the `Run`s of its kernels.

    kernels: by name. define: the name of a function of the module that is inlined where it is
    called, or not, and is made for a kernel. fresh: a new variable. budget: bytes of registers for
    what is held. most: different texts of kernels that may be split, since each is compiled
    wherever it stands; `texts` are those that are. held: by the kernel and its first task, the
    values in registers. functions: by kernel, and whether it is given values.
    """

    kernels: dict[str, TritonKernel]
    define: Callable[[str, code.Function, bool, str], str]
    fresh: Callable[[str], Term]
    budget: int = 0
    most: int = 24
    splits: dict[str, EarlyKernel] = field(default_factory=dict[str, EarlyKernel])
    held: dict[tuple[str, Term], tuple[Term, ...]] = field(
        default_factory=dict[tuple[str, Term], tuple[Term, ...]]
    )
    functions: dict[tuple[str, bool], str] = field(default_factory=dict[tuple[str, bool], str])
    texts: set[code.Function] = field(default_factory=set[code.Function])

    def placed(self, block: code.Block) -> code.Block:
        """The statements with their early loads. Loads, the wait behind them and the kernel are a
        section: a function for all kernels of one text that wait alike."""
        found: list[code.Statement] = []
        done = 0
        for place, statement in enumerate(block):
            if place < done:
                continue
            run = _run_behind_waits(block[place:])
            if run is not None and _key(run) not in self.held and (loads := self.load([run])):
                done = block.index(run, place) + 1
                waits = block[place : done - 1]
                found.append(code.Section((*loads, *waits, self.tasks(run)), least=1))
                self.drop([_key(run)])
                continue
            match statement:
                case code.Run():
                    found.append(self.tasks(statement))
                case code.If(_, then, orelse):
                    arms = self.placed(then), self.placed(orelse)
                    found.append(replace(statement, then=arms[0], orelse=arms[1]))
                case code.For(body=body) | code.Section(body=body):
                    found.append(replace(statement, body=self.placed(body)))
                case code.Loop():
                    found.append(self.loop(statement))
                case _:
                    found.append(statement)
        return tuple(found)

    def loop(self, loop: code.Loop) -> code.Statement:
        """A loop whose kernels keep in registers what they read in every iteration."""
        before = set(self.held)
        runs = [run for run in every_iteration(loop) if _key(run) not in before]
        loads = self.load(runs)
        made = replace(loop, head=self.placed(loop.head), body=self.placed(loop.body))
        self.drop(self.held.keys() - before)
        return code.Section((*loads, made), least=1) if loads else made

    def load(self, runs: Iterable[code.Run]) -> list[code.Statement]:
        """The loads of kernels that need not wait, as far as there are registers for them."""
        loads: list[code.Statement] = []
        for run in runs:
            split = self.split(run.kernel) if run.tasks else None
            if split is None or split.nbytes > self.budget:
                continue
            values = tuple(self.fresh(f"early_{v.text}") for v in split.values)
            function = self.define(f"e_{label(run.kernel)}", split.early, True, run.kernel)
            pointers = (run.arguments[place] for place in split.constants)
            task = call("tl.minimum", run.first, run.tasks - 1)
            loads.append(code.Assign(separated(values), call(function, *pointers, task)))
            self.held[_key(run)] = values
            self.budget -= split.nbytes
        return loads

    def split(self, kernel: str) -> EarlyKernel | None:
        if kernel not in self.splits:
            made = split_early(self.kernels[kernel])
            if made is None or (len(self.texts) >= self.most and made.body not in self.texts):
                return None
            self.texts.add(made.body)
            self.splits[kernel] = made
        return self.splits[kernel]

    def drop(self, keys: Iterable[tuple[str, Term]]) -> None:
        """Gives registers back."""
        for key in [*keys]:
            del self.held[key]
            self.budget += self.splits[key[0]].nbytes

    def tasks(self, run: code.Run) -> code.Statement:
        """Calls of the kernel's function, with the values that are at hand already."""
        values = self.held.get(_key(run), ())
        key = run.kernel, bool(values)
        if key not in self.functions:
            body = self.splits[run.kernel].body if values else self.kernels[run.kernel].function
            name = f"k_{label(run.kernel)}"
            self.functions[key] = self.define(name, body, bool(values), run.kernel)
        task = code.Do(call(self.functions[key], *run.arguments, *values))
        if run.tasks:
            mine = code.If(OK & infix(TASK, "<", run.last), (task,))
            return code.Section((code.Assign(TASK, run.first), mine))
        return code.For(TASK, run.first, call("tl.where", OK, run.last, 0), run.stride, (task,))


def every_iteration(loop: code.Loop) -> list[code.Run]:
    """The kernels that a loop runs outside of branches and inner loops, each in one place."""
    found = list(_runs((*loop.head, *loop.body)))
    counts = Counter(run.kernel for run in found)
    return [run for run in found if counts[run.kernel] == 1]


def _runs(block: code.Block) -> Iterator[code.Run]:
    for statement in block:
        match statement:
            case code.Run():
                yield statement
            case code.For(body=body) | code.Section(body=body):
                yield from _runs(body)
            case _:
                pass


def _run_behind_waits(block: code.Block) -> code.Run | None:
    """The run that the waits at the beginning of `block` are for."""
    if not _waits(block[0]):
        return None
    behind = next((s for s in block if not _waits(s) and s != BARRIER), None)
    return behind if isinstance(behind, code.Run) else None


def _waits(statement: code.Statement) -> bool:
    match statement:
        case code.Wait():
            return True
        case code.If(then=body) | code.For(body=body):
            return any(isinstance(inner, code.Wait) for inner in body)
        case _:
            return False


def _key(run: code.Run) -> tuple[str, Term]:
    return run.kernel, run.first
