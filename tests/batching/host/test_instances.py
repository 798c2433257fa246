"""Instances that are read, checked and given back."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from stretto.batching.host.host_program import HostProgram, OtherInstance
from stretto.batching.instance_program import ClassInfo, InstanceProgram, instance_program
from stretto.errors import RunError, SourceLocation
from stretto.ir.core import Block, Literal, Op, Variable
from stretto.ir.data import (
    AssignOp,
    InstanceFunction,
    InvokeOp,
    RaiseOp,
    RecordOp,
    ReturnOp,
    body_of,
)
from stretto.ir.ops import IfOp
from stretto.ir.types import (
    DataType,
    DictType,
    DType,
    ListType,
    RecordType,
    RowsType,
    Scalar,
    TensorType,
    TupleType,
    UnionType,
)
from tests.batching.host.execution import Executor
from tests.batching.programs import Node, block, f32, optional, tree, tree_lstm


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Frozen:
    value: Any


@dataclass(slots=True)
class Slots:
    value: Any


def either(*types: DataType) -> UnionType:
    return UnionType(frozenset(types))


CLASSES = [
    ClassInfo(Pair, "namedtuple", ("first", "second"), (0, 0)),
    ClassInfo(Frozen, "object", ("value",), (0,)),
    ClassInfo(Slots, "object", ("value",), (0,)),
    ClassInfo(dict, "dict", ("x", "y"), (0, 0)),
]
ANYTHING = either(
    *Scalar,
    *(RecordType(number) for number in range(len(CLASSES))),
    ListType(0),
    ListType(0, True),
    f32(2),
    f32(),
    TensorType(DType.I64, (2, 2)),
    RowsType(f32(3)),
)


def program(parameters: tuple[Variable, ...], *body: Op, blocks: Any = ()) -> InstanceProgram:
    return instance_program(
        [InstanceFunction("f", Block(parameters, list(body)), ANYTHING)],
        list(CLASSES),
        [ANYTHING],
        list(blocks),
    )


x = Variable("x", ANYTHING)


@cache
def same() -> Executor:
    found = program((x,), ReturnOp(x))
    found.tested = frozenset(name for info in found.classes for name in info.fields)  # reads all
    return Executor(HostProgram(found))


@cache
def rebuilt() -> Executor:
    """A new object of each class, which hold each other and what came in."""
    made = [Variable(f"made{n}", RecordType(n)) for n in range(4)]
    items, both = Variable("items", ListType(0)), Variable("both", ListType(0, True))
    body = (
        AssignOp("list", (x,), False, results=(items,)),
        AssignOp("record", (x, items), (0, ("first", "second")), results=(made[0],)),
        AssignOp("record", (made[0],), (1, ("value",)), results=(made[1],)),
        AssignOp("record", (made[1],), (2, ("value",)), results=(made[2],)),
        AssignOp("record", (items, made[2]), (3, ("y", "x")), results=(made[3],)),
        AssignOp("append", (items, made[3])),
        AssignOp("list", (made[3], items, made[0]), True, results=(both,)),
        ReturnOp(both),
    )
    return Executor(HostProgram(program((x,), *body)))


VALUES = [
    None,
    True,
    -3,
    2.5,
    "word",
    "üñí → 💡",
    [],
    [1, [2, [3]]],
    (1, "x", (None,)),
    Pair(1, Pair(2, [])),
    Frozen(Frozen(1.0)),
    Slots([Slots(None)]),
    {"x": 1, "y": [2]},
    torch.ones(2),
    torch.zeros(2, 2, dtype=torch.int64),
    torch.tensor(3.0),
    torch.rand(5, 3),
    torch.rand(0, 3),
    nn.Parameter(torch.ones(2)),
]


def test_what_came_in_is_given_back() -> None:
    for result, value in zip(same()([VALUES]), VALUES, strict=True):
        assert result is value or (isinstance(value, int | float) and result == value)


def test_new_objects_keep_what_they_share() -> None:
    for result, value in zip(rebuilt()([VALUES]), VALUES, strict=True):
        outer, items, pair = result
        assert type(result) is tuple and type(outer) is dict
        assert outer["y"] is items and items[1] is outer and pair.second is items
        assert type(outer["x"]) is Slots and outer["x"].value == Frozen(pair)
        assert type(pair) is Pair
        is_number = isinstance(value, int | float)  # numbers are made anew
        assert pair.first is value or (is_number and pair.first == value)
        assert items[0] is value or (is_number and items[0] == value)


def test_shared_and_cyclic_instances() -> None:
    shared = Slots([1])
    cycle = Slots(None)
    cycle.value = [cycle, (shared, cycle)]
    results = same()([[shared, [shared, shared], cycle]])
    assert results[0] is shared and results[1][0] is shared and results[2] is cycle


def test_no_instances() -> None:
    assert same()([[]]) == []


DEPTH = 100_000


def test_deep_data() -> None:
    deep: Any = None
    for _ in range(DEPTH):
        deep = Slots((deep,))
    assert same()([[deep]])[0] is deep
    while deep is not None:  # Python's own destructor of deep data would overflow its stack
        deep, held = deep.value[0], deep
        held.value = None


def depth_program() -> InstanceProgram:
    """f(node): 1 + f(node.left), 0 for None."""
    node, left = Variable("node", optional(RecordType(0))), Variable("l", optional(RecordType(0)))
    test, count = Variable("test", Scalar.BOOL), Variable("count", Scalar.INT)
    body = (
        AssignOp("is", (node, Literal(None)), results=(test,)),
        IfOp(test, body_of((ReturnOp(Literal(0)),)), Block()),
        AssignOp("get", (node,), "left", results=(left,)),
        InvokeOp("f", (left,), results=(count,)),
        AssignOp("add", (count, Literal(1)), results=(count,)),
        ReturnOp(count),
    )
    return instance_program(
        [InstanceFunction("f", Block((node,), list(body)), Scalar.INT)],
        [ClassInfo(Node, "object", ("left", "right", "word"), (0, 0, 1))],
        [optional(RecordType(0)), Scalar.INT],
    )


@pytest.mark.whole
def test_deep_recursion() -> None:
    executor = Executor(HostProgram(depth_program()))
    deep = None
    for _ in range(DEPTH):
        deep = Node(deep, None, 0)
    cycle = Node(None, None, 0)
    cycle.left = cycle
    none, found, endless, one = executor([[None, deep, cycle, Node(None, None, 1)]])
    assert (none, found, one) == (0, DEPTH, 1)
    assert isinstance(endless, RecursionError)
    assert endless.__notes__ == ["in instance 2"]
    while deep is not None:
        deep.left, deep = None, deep.left


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, "x[2]: expected .*, found set"),
        ([1, {"x": 0, "z": 0}], r"x[2][1]: expected .*, found dict with keys ['x', 'z']"),
        (Slots([1, Pair(b"", 0)]), "x[2].value[1].first: expected .*, found bytes"),
        ({"x": 0, "y": 2**70}, f"x[2]['y']: expected an int of 64 bits, found {2**70}"),
        ([torch.ones(4)], r"x[2][0]: expected .*, found f32[4]"),
        ([torch.ones(2, dtype=torch.complex64)], "x[2][0]: expected .*, found a tensor of torch.c"),
        ([torch.ones(2, device="meta")], "x[2][0]: expected .*, found f32[2] on meta"),
        ([torch.ones(2).to_sparse()], "x[2][0]: expected .*, found f32[2] of layout torch.spars"),
    ],
)
def test_another_type(value: Any, message: str) -> None:
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(OtherInstance, match=pattern) as raised:
        same()([[1, 2, value]])
    assert raised.value.instance == 2
    assert same()([[4]]) == [4]


def test_a_list_that_is_met_under_two_types() -> None:
    """Fields of other types hold the same list: it must fit both."""
    a, b = Variable("a", ListType(0)), Variable("b", ListType(1))
    test_program = instance_program(
        [InstanceFunction("f", Block((a, b), [ReturnOp(a)]), ListType(0))],
        cells=[either(Scalar.INT, Scalar.STR), Scalar.INT],
    )
    executor = Executor(HostProgram(test_program))
    numbers, mixed = [1, 2], [1, "x"]
    assert executor([[numbers], [numbers]]) == [numbers]
    with pytest.raises(OtherInstance, match=r"b\[0\]\[1\]: expected int, found str"):
        executor([[mixed], [mixed]])


def test_dicts_with_any_keys() -> None:
    d, key = Variable("d", DictType(Scalar.STR, 0)), Variable("key", Scalar.STR)
    made = Variable("made", Scalar.INT)
    test_program = instance_program(
        [
            InstanceFunction(
                "f",
                Block((d, key), [AssignOp("lookup", (d, key), results=(made,)), ReturnOp(made)]),
                Scalar.INT,
            )
        ],
        cells=[Scalar.INT],
    )
    executor = Executor(HostProgram(test_program))
    words = {f"word{n}": n for n in range(100)}
    results = executor([[words] * 3, ["word0", "word99", "no"]])
    assert results[:2] == [0, 99]
    assert repr(results[2]) == "KeyError('no')"
    with pytest.raises(OtherInstance, match=r"a key of d\[0\]: expected str, found int"):
        executor([[{1: 1}], [""]])
    with pytest.raises(OtherInstance, match=r"d\[0\]\['a'\]: expected int, found float"):
        executor([[{"a": 1.0}], [""]])


def test_errors_of_instances() -> None:
    place = SourceLocation("model.py", 7)
    n, made = Variable("n", Scalar.INT), Variable("made", Scalar.INT)
    items, test = Variable("items", ListType(0)), Variable("test", Scalar.BOOL)
    body = (
        AssignOp("floordiv", (Literal(10), n), results=(made,), location=place),
        AssignOp("at", (items, made), results=(made,), location=place),
        AssignOp("lt", (made, Literal(0)), results=(test,)),
        IfOp(
            test,
            body_of((RaiseOp(ValueError, ("negative: ", made, " of ", items), location=place),)),
            Block(),
        ),
        AssignOp("append", (items, made), location=place),
        ReturnOp(made),
    )
    test_program = instance_program(
        [InstanceFunction("f", Block((n, items), list(body)), Scalar.INT)], cells=[Scalar.INT]
    )
    executor = Executor(HostProgram(test_program))
    results = executor([[0, 10, 1, 5], [[1], [0, -7], [1], [5, 6, 4]]])
    assert [repr(result) for result in results[:3]] == [
        "ZeroDivisionError('integer division or modulo by zero')",
        "ValueError('negative: -7 of [0, -7]')",
        "IndexError('list index out of range')",
    ]
    assert results[1].__notes__ == ["in instance 1, at model.py:7"]
    assert isinstance(results[3], RunError)
    assert "an object that came in with the instance is changed" in str(results[3])


def test_fields_that_some_classes_do_not_have() -> None:
    made = Variable("made", ANYTHING)
    executor = Executor(
        HostProgram(program((x,), AssignOp("get", (x,), "value", results=(made,)), ReturnOp(made)))
    )
    results = executor([[Frozen(1), Slots(2), Pair(0, 0), None]])
    assert results[:2] == [1, 2]
    assert str(results[2]) == "'Pair' object has no attribute 'value'"
    assert str(results[3]) == "'NoneType' object has no attribute 'value'"


def test_fields_that_are_assigned_later() -> None:
    made, value = Variable("made", RecordType(2)), Variable("value", ANYTHING)
    test, result = Variable("test", Scalar.BOOL), Variable("result", TupleType((ANYTHING,) * 2))
    body = (
        AssignOp("record", (), (2, ()), results=(made,)),
        AssignOp("is", (x, Literal(None)), results=(test,)),
        IfOp(test, body_of((ReturnOp(made),)), Block()),
        AssignOp("has_type", (x,), (Scalar.INT,), results=(test,)),
        IfOp(test, body_of((AssignOp("set", (made, x), "value"),)), Block()),
        AssignOp("get", (made,), "value", results=(value,)),
        AssignOp("tuple", (made, value), results=(result,)),
        ReturnOp(result),
    )
    empty, full, failed = Executor(HostProgram(program((x,), *body)))([[None, 5, "text"]])
    assert type(empty) is Slots and not hasattr(empty, "value")
    assert full == (Slots(5), 5)
    assert isinstance(failed, AttributeError)


def views() -> list[torch.Tensor]:
    base = torch.arange(24.0).view(4, 6)
    conjugated = torch.arange(8.0).view(2, 4).to(torch.complex64).conj()
    return [
        base[0, :2],
        base[1, 3:5],
        base[:2, 5],
        base[2].flip(0)[::3],
        base[0, :1].expand(2),
        conjugated.imag[0, :2],
        torch.ones(2, requires_grad=True),
        nn.Parameter(torch.full((2,), 3.0)),
        base[3, :2],
    ]


def test_tensors_of_instances() -> None:
    t, made = Variable("t", f32(2)), Variable("made", f32(2))
    number = Variable("n", Scalar.FLOAT)
    flag, count = Variable("flag", Scalar.BOOL), Variable("count", Scalar.INT)
    inputs = (f32(2), Scalar.FLOAT, Scalar.BOOL, Scalar.INT)

    def combine(tensor: Any, factor: float, is_negative: bool, offset: int) -> torch.Tensor:
        assert isinstance(is_negative, bool)
        return tensor * (-factor if is_negative else factor) + offset

    test_program = instance_program(
        [
            InstanceFunction(
                "f",
                Block(
                    (t, number, flag, count),
                    [RecordOp(0, (t, number, flag, count), results=(made,)), ReturnOp(made)],
                ),
                f32(2),
            )
        ],
        blocks=[block(combine, inputs, f32(2))],
    )
    executor = Executor(HostProgram(test_program))
    tensors = views()
    several = len(tensors)
    columns = [
        tensors,
        [0.5 * n for n in range(several)],
        [n % 2 == 0 for n in range(several)],
        list(range(several)),
    ]
    results = executor(columns)
    for result, values in zip(results, zip(*columns, strict=True), strict=True):
        torch.testing.assert_close(result, combine(*values).detach())
    assert executor.steps == 1


def test_tensors_are_read_when_they_are_copied() -> None:
    executor = rows_program()
    tensor = torch.ones(2, 3)
    flat = executor.host.flatten([[tensor]])
    tensor.fill_(2)
    assert executor.run(flat)[0].tolist() == [4.0] * 3
    assert executor.run(flat)[0].tolist() == [4.0] * 3
    with torch.no_grad():
        tensor.resize_(4, 3)
    with pytest.raises(RunError, match="got another shape"):
        executor.run(flat)


@cache
def rows_program() -> Executor:
    rows, made = Variable("rows", RowsType(f32(3))), Variable("made", f32(3))
    doubled = Variable("doubled", RowsType(f32(3)))
    body = (
        RecordOp(0, (rows,), results=(doubled,)),
        RecordOp(1, (doubled,), results=(made,)),
        ReturnOp(made),
    )
    return Executor(
        HostProgram(
            instance_program(
                [InstanceFunction("f", Block((rows,), list(body)), f32(3))],
                blocks=[
                    block(lambda x: 2 * x, (RowsType(f32(3)),), RowsType(f32(3))),
                    block(lambda x: x.sum(0) / 2, (RowsType(f32(3)),), f32(3)),
                ],
            )
        )
    )


def test_rows_of_any_length() -> None:
    executor = rows_program()
    executor.steps = 0
    tensors = [torch.rand(length, 3) for length in (2, 0, 5, 2, 1, 5000, 2)]
    tensors.append(torch.rand(3, 2).t())
    results = executor([tensors])
    for result, tensor in zip(results, tensors, strict=True):
        torch.testing.assert_close(result, tensor.sum(0))
    assert executor.steps == 2 * len({len(tensor) for tensor in tensors})


def test_rows_made_of_tensors_and_taken_apart() -> None:
    items, joined = Variable("items", ListType(0)), Variable("joined", RowsType(f32(3)))
    one, part = Variable("one", f32(3)), Variable("part", RowsType(f32(3)))
    pair = Variable("pair", TupleType((f32(3), RowsType(f32(3)), RowsType(f32(3)))))
    tripled = Variable("tripled", RowsType(f32(3)))
    body = (
        AssignOp("rows", (items,), results=(joined,)),
        AssignOp("at", (joined, Literal(-1)), results=(one,)),
        AssignOp("slice", (joined, Literal(1), Literal(None), Literal(None)), results=(part,)),
        RecordOp(0, (part,), results=(tripled,)),
        AssignOp("tuple", (one, joined, tripled), results=(pair,)),
        ReturnOp(pair),
    )
    test_program = instance_program(
        [InstanceFunction("f", Block((items,), list(body)), pair.type)],
        cells=[f32(3)],
        blocks=[block(lambda x: 3 * x, (RowsType(f32(3)),), RowsType(f32(3)))],
    )
    executor = Executor(HostProgram(test_program))
    lists = [[torch.rand(3) for _ in range(count)] for count in (3, 1, 0, 3)]
    results = executor([lists])
    assert "stack expects a non-empty TensorList" in str(results.pop(2))
    for result, tensors in zip(results, (lists[0], lists[1], lists[3]), strict=True):
        assert result[0] is tensors[-1]
        torch.testing.assert_close(result[1], torch.stack(tensors))
        torch.testing.assert_close(result[2], 3 * torch.stack(tensors)[1:])


def test_shared_tensors() -> None:
    shared, other = torch.ones(2), torch.zeros(2)
    s, o, made = (Variable(name, f32(2)) for name in ("s", "o", "made"))
    t, result = Variable("t", f32(2)), Variable("result", TupleType((f32(2),) * 4))
    body = (
        AssignOp("shared", (), shared, results=(s,)),
        AssignOp("shared", (), other, results=(o,)),
        RecordOp(0, (t, s, o), results=(made,)),
        AssignOp("tuple", (made, s, o, t), results=(result,)),
        ReturnOp(result),
    )
    executor = Executor(
        HostProgram(
            instance_program(
                [InstanceFunction("f", Block((t,), list(body)), result.type)],
                blocks=[block(lambda a, b, c: a + 2 * b + c, (f32(2),) * 3, f32(2))],
            )
        )
    )
    tensors = [torch.rand(2), torch.rand(2)]
    for (sum_, first, second, given), tensor in zip(executor([tensors]), tensors, strict=True):
        torch.testing.assert_close(sum_, tensor + 2)
        assert first is shared and second is other and given is tensor


def test_one_program_in_many_threads() -> None:
    executors = [Executor(HostProgram(tree_lstm())) for _ in range(4)]
    trees = [tree(depth, depth) for depth in range(5)]
    expected = executors[0]([trees])
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(5):
            found[number] = executors[number]([trees])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found.values():
        torch.testing.assert_close(results, expected)
    assert len(found) == 4


def test_classes_of_one_name_are_told_apart() -> None:
    """Programs with one text share native code, but not their classes."""
    first, second = (type("Point", (Pair,), {}) for _ in range(2))

    def made(python: type) -> Executor:
        info = ClassInfo(python, "namedtuple", ("first", "second"), (0, 0))
        point, result = Variable("point", RecordType(0)), Variable("result", RecordType(0))
        a, b = Variable("a", Scalar.INT), Variable("b", Scalar.INT)
        body = (
            AssignOp("get", (point,), "first", results=(a,)),
            AssignOp("item", (point,), 1, results=(b,)),
            AssignOp("record", (b, a), (0, ("first", "second")), results=(result,)),
            ReturnOp(result),
        )
        return Executor(
            HostProgram(
                instance_program(
                    [InstanceFunction("f", Block((point,), list(body)), RecordType(0))],
                    [info],
                    [Scalar.INT],
                )
            )
        )

    one, two = made(first), made(second)
    assert one.host.source == two.host.source
    for executor, python in ((one, first), (two, second)):
        [result] = executor([[python(1, 2)]])
        assert type(result) is python and result == (2, 1)
    with pytest.raises(OtherInstance):
        one([[second(1, 2)]])
