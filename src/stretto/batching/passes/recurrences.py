"""Analysis: tensors that depend on a recurrence, so that their depth grows with the instance.

A value is *recurrent* if it is computed by operators from earlier results of the same operators: a
state that a loop carries, the result of a recursive call, or a value that is stored in a list and
read again. The depth of a value that needs no recurrent one is fixed by the program, so all of its
instances in a batch can run as one (ACRoBat, section B.1, uses taint analysis; here it is cycles).
The analysis is a graph of variables, cells of lists and records, and results of functions, with an
edge for every flow of data. A value is recurrent if it can be reached from a cycle that contains an
operator. Variables are distinguished, the objects that share a cell are not: a value that is not
recurrent may be reported as recurrent, which only costs speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stretto.batching.instance_program import Body, InstanceProgram, walk
from stretto.components import components, reachable
from stretto.ir.call_graph import called_from
from stretto.ir.core import Literal, Op, Operand, Variable
from stretto.ir.data import AssignOp, InvokeOp, OperateOp, ReadOp, RecordOp, ReturnOp
from stretto.ir.data_effects import STORING
from stretto.ir.types import (
    DataType,
    DictType,
    ListType,
    RecordType,
    Scalar,
    TupleType,
    alternatives,
)


@dataclass(frozen=True, slots=True)
class CellNode:
    number: int


@dataclass(frozen=True, slots=True)
class ResultNode:
    """The result of a function, as a node."""

    function: str


Node = Variable | CellNode | ResultNode


def recurrent(program: InstanceProgram, parts: Iterable[Body]) -> set[Node]:
    """Return the values that depend on a recurrence within some bodies and the functions they
    call."""
    graph = DataFlowGraph(program)
    for body in parts:
        graph.add(body)
    return graph.recurrent()


def reads_tensors(program: InstanceProgram, body: Body) -> bool:
    """Return True if an instance may wait in a body, or in a function it calls, for the value of a
    tensor."""
    parts = [body, *(program.functions[name].body.ops for name in called_from(program, body))]
    return any(isinstance(item, ReadOp) for part in parts for item in walk(part))


@dataclass(slots=True)
class DataFlowGraph:
    """The graph of data flow in some bodies and in the functions that they call."""

    program: InstanceProgram
    edges: dict[Node, set[Node]] = field(default_factory=dict["Node", "set[Node]"])
    operators: set[tuple[Node, Node]] = field(default_factory=set["tuple[Node, Node]"])
    """The edges from an operand of an operator to its result."""
    operators_seen: list[OperateOp | RecordOp] = field(default_factory=list["OperateOp | RecordOp"])
    functions: set[str] = field(default_factory=set[str])

    def add(self, body: Body, function: str = "") -> None:
        for statement in walk(body):
            self.statement(statement, function)

    def statement(self, statement: Op, function: str) -> None:
        match statement:
            case OperateOp(targets, _, operands) | RecordOp(targets, _, operands):
                self.operators_seen.append(statement)
                for operand in operands:
                    for target in targets:
                        for node in self.nodes(operand):
                            self.edge(node, target)
                            self.operators.add((node, target))
            case AssignOp(target, op, args, detail):
                self.assign(target, op, args, detail)
            case ReadOp(target, tensor):
                self.flow(tensor, [target])
            case InvokeOp(target, name, args):
                self.call(target, name, args)
            case ReturnOp(value):
                self.flow(value, [ResultNode(function)])
            case _:
                pass

    def assign(
        self, target: Variable | None, op: str, args: tuple[Operand, ...], detail: object
    ) -> None:
        if op == "get":
            assert target is not None
            for cell in self.fields(args[0], detail):
                self.edge(cell, target)
            if not isinstance(target.type, Scalar):
                self.flow(args[0], [target])
            return
        into: list[Node] = [] if target is None else [target]
        if target is not None:
            into += self.cells(target.type)
        if op in STORING:
            into += self.fields(args[0], detail) if op == "set" else self.cells(args[0])
        for arg in args:
            self.flow(arg, into)

    def call(self, target: Variable | None, name: str, args: tuple[Operand, ...]) -> None:
        called_function = self.program.functions[name]
        for parameter, arg in zip(called_function.parameters, args, strict=True):
            self.flow(arg, [parameter])
        if target is not None:
            self.edge(ResultNode(name), target)
        if name not in self.functions:
            self.functions.add(name)
            self.add(called_function.body.ops, name)

    def flow(self, operand: Operand, into: Iterable[Node]) -> None:
        into = list(into)
        for node in self.nodes(operand):
            for other in into:
                self.edge(node, other)

    def nodes(self, operand: Operand) -> Iterator[Node]:
        """Yield the nodes that the tensors in an operand come from."""
        if isinstance(operand, Variable):
            yield operand
            yield from self.cells(operand)

    def cells(self, value: Operand | DataType) -> list[CellNode]:
        """Return the cells of the lists and dicts that a value may be, without those nested in
        them."""
        if isinstance(value, Literal):
            return []
        types = _types(value.type if isinstance(value, Variable) else value)
        return [CellNode(item.cell) for item in types if isinstance(item, ListType | DictType)]

    def fields(self, record: Operand, name: object) -> list[CellNode]:
        assert isinstance(record, Variable)
        found: list[CellNode] = []
        for item in alternatives(record.type):
            if isinstance(item, RecordType):
                info = self.program.classes[item.number]
                cells = zip(info.fields, info.cells, strict=True)
                found += [CellNode(cell) for field_name, cell in cells if field_name == name]
        return found

    def edge(self, source: Node, target: Node) -> None:
        self.edges.setdefault(source, set()).add(target)
        self.edges.setdefault(target, set())

    # ---- cycles

    def recurrent(self) -> set[Node]:
        groups = enumerate(components(self.edges))
        component = {node: number for number, group in groups for node in group}
        inside = {
            source for source, target in self.operators if component[source] == component[target]
        }
        cyclic = {component[node] for node in inside}
        seeds = (node for node in self.edges if component[node] in cyclic)
        return reachable(seeds, self.edges)

    def reachable_cells(self, type_: DataType) -> set[CellNode]:
        """Return the cells reachable from a type, nested ones included."""
        found: set[CellNode] = set()
        waiting = [type_]
        while waiting:
            for item in _types(waiting.pop()):
                numbers: tuple[int, ...] = ()
                if isinstance(item, ListType | DictType):
                    numbers = (item.cell,)
                elif isinstance(item, RecordType):
                    numbers = self.program.classes[item.number].cells
                for number in numbers:
                    if CellNode(number) not in found:
                        found.add(CellNode(number))
                        waiting.append(self.program.cells[number])
        return found


def _types(type_: DataType) -> Iterator[DataType]:
    """Yield the types that a value may have, tuples replaced by the types of their items."""
    for item in alternatives(type_):
        if isinstance(item, TupleType):
            for part in item.items:
                yield from _types(part)
        else:
            yield item
