"""Frozen objects are read once; whatever can change is read in each batch."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from stretto.batching.host.descriptor import Frozen
from stretto.batching.host.host_program import HostProgram, OtherInstance
from stretto.batching.instance_program import ClassInfo, InstanceProgram, instance_program
from stretto.ir.core import Block, Variable
from stretto.ir.data import AssignOp, InstanceFunction, InvokeOp, ReturnOp, body_of
from stretto.ir.ops import IfOp
from stretto.ir.types import (
    DataType,
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


@dataclass(frozen=True)
class Leaf:
    word: Any


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Inner:
    left: Any
    right: Any


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Open:
    value: Any


@dataclass(frozen=True)
class Holder:
    value: Any


class Child(Leaf):
    """Frozen as far as its base goes: attributes of its own can be set."""


VECTOR = TensorType(DType.F32, (2,))


def either(*types: DataType) -> UnionType:
    return UnionType(frozenset(types))


def tree_program(*more: DataType) -> InstanceProgram:
    """f(x) = x, for trees of Inner, Leaf, Pair and tuples; `more`: what a Leaf may hold, too."""
    tree = either(
        RecordType(0), RecordType(1), RecordType(2), ListType(1, True), Scalar.NONE, Scalar.INT
    )
    word = either(Scalar.INT, Scalar.STR, *more)
    x = Variable("x", tree)
    infos = [
        ClassInfo(Leaf, "object", ("word",), (0,)),
        ClassInfo(Inner, "object", ("left", "right"), (1, 1)),
        ClassInfo(Pair, "namedtuple", ("first", "second"), (1, 1)),
    ]
    tested = frozenset(("word", "left", "right"))  # so that all is read
    return instance_program(
        [InstanceFunction("f", Block((x,), [ReturnOp(x)]), tree)],
        infos,
        [word, tree],
        tested=tested,
    )


def test_what_counts_as_frozen() -> None:
    def frozen(*cells: DataType, classes: Any) -> tuple[set[int], bool]:
        x = Variable("x", RecordType(0))
        function = InstanceFunction("f", Block((x,), [ReturnOp(x)]), x.type)
        found = Frozen(instance_program([function], list(classes), list(cells)))
        return found.classes, found.tuples

    leaf, holder = (
        ClassInfo(Leaf, "object", ("word",), (0,)),
        (ClassInfo(Holder, "object", ("value",), (0,))),
    )
    child = ClassInfo(Child, "object", ("word",), (0,))
    pair = ClassInfo(Pair, "namedtuple", ("first", "second"), (0, 0))
    fields = ClassInfo(dict, "dict", ("x",), (0,))
    assert frozen(Scalar.INT, classes=[leaf]) == ({0}, True)
    assert frozen(either(Scalar.INT, RecordType(0)), classes=[leaf]) == ({0}, True)
    assert frozen(either(RecordType(1), RecordType(0)), classes=[leaf, pair]) == ({0, 1}, True)
    assert frozen(TupleType((Scalar.STR, Scalar.NONE)), classes=[leaf]) == ({0}, True)
    for cell in (ListType(0), VECTOR, RowsType(VECTOR)):
        assert frozen(either(Scalar.INT, cell), classes=[leaf, holder]) == (set(), True)
        assert frozen(TupleType((Scalar.INT, cell)), classes=[leaf]) == (set(), False)
    assert frozen(Scalar.INT, classes=[child, leaf, fields]) == ({1}, True)
    opened = ClassInfo(Open, "object", ("value",), (0,))
    assert frozen(Scalar.INT, RecordType(1), classes=[leaf, opened]) == ({0}, True)
    holder = ClassInfo(Holder, "object", ("value",), (1,))
    assert frozen(Scalar.INT, RecordType(1), classes=[holder, opened]) == (set(), True)


def test_frozen_objects_are_read_once() -> None:
    executor = Executor(HostProgram(tree_program()))
    shared = Leaf("shared")
    trees = [Inner(shared, Inner(Leaf(n), Pair(shared, (Leaf("x"), None, 5)))) for n in range(40)]
    known = 1 + 40 * 6 + 2  # with the texts "shared" and "x"
    for _ in range(3):
        for result, tree in zip(executor([trees]), trees, strict=True):
            assert result is tree
        assert executor.host.frozen_count == known
    other = Inner(trees[3].right, shared)
    assert executor([[other, *trees]])[0] is other
    assert executor.host.frozen_count == known + 1
    assert executor([[]]) == [] and executor([[None, 5]]) == [None, 5]


def test_what_is_shared_by_old_and_new_instances_is_one_object() -> None:
    a, b = Variable("a", RecordType(0)), Variable("b", RecordType(0))
    inner, same = Variable("inner", RecordType(0)), Variable("same", Scalar.BOOL)
    body = (
        AssignOp("get", (a,), "word", results=(inner,)),
        AssignOp("is", (inner, b), results=(same,)),
        ReturnOp(same),
    )
    cell = either(RecordType(0), Scalar.INT)
    info = ClassInfo(Leaf, "object", ("word",), (0,))
    executor = Executor(
        HostProgram(
            instance_program(
                [InstanceFunction("f", Block((a, b), list(body)), Scalar.BOOL)], [info], [cell]
            )
        )
    )
    leaf = Leaf(1)
    outer = Leaf(leaf)
    assert executor([[outer], [Leaf(1)]]) == [False]
    assert executor([[outer, outer, Leaf(leaf)], [leaf, Leaf(1), leaf]]) == [True, False, True]


def counted() -> Executor:
    """f(x) = len(x.value)"""
    x, items = Variable("x", RecordType(0)), Variable("items", ListType(0))
    count = Variable("count", Scalar.INT)
    body = (
        AssignOp("get", (x,), "value", results=(items,)),
        AssignOp("len", (items,), results=(count,)),
        ReturnOp(count),
    )
    info = ClassInfo(Holder, "object", ("value",), (1,))
    return Executor(
        HostProgram(
            instance_program(
                [InstanceFunction("f", Block((x,), list(body)), Scalar.INT)],
                [info],
                [Scalar.INT, ListType(0)],
            )
        )
    )


def test_a_frozen_dataclass_with_a_list_is_read_again() -> None:
    executor = counted()
    holder = Holder([1, 2])
    assert executor([[holder]]) == [2]
    holder.value.append(3)
    assert executor([[holder]]) == [3]
    assert executor.host.frozen_count == 0


def test_a_tensor_in_a_frozen_dataclass_is_read_again() -> None:
    executor = Executor(HostProgram(tree_program(VECTOR)))
    tensor = torch.ones(2)
    for _ in range(2):
        leaf = Leaf(tensor)
        result, pair = executor([[leaf, Pair(leaf, None)]])
        assert result is leaf and pair.first.word is tensor
    assert executor.host.frozen_count == 0


def test_an_instance_of_another_kind_leaves_nothing_half_read() -> None:
    executor = Executor(HostProgram(tree_program()))
    good, bad = Inner(Leaf(1), Leaf(2)), Leaf(2.5)
    for _ in range(3):
        with pytest.raises(OtherInstance) as raised:
            executor([[good, Inner(good, bad), good]])
        assert raised.value.instance == 1
        assert executor([[good, Inner(good, good)]]) == [good, Inner(good, good)]


def summed() -> HostProgram:
    """f(x) = x.word, or f(x.left) + f(x.right)"""
    node = either(RecordType(0), RecordType(1))
    x, test = Variable("x", node), Variable("test", Scalar.BOOL)
    left, right = Variable("left", node), Variable("right", node)
    one, two = Variable("one", Scalar.INT), Variable("two", Scalar.INT)
    body = (
        AssignOp("has_type", (x,), (RecordType(0),), results=(test,)),
        IfOp(
            test, body_of((AssignOp("get", (x,), "word", results=(one,)), ReturnOp(one))), Block()
        ),
        AssignOp("get", (x,), "left", results=(left,)),
        AssignOp("get", (x,), "right", results=(right,)),
        InvokeOp("f", (left,), results=(one,)),
        InvokeOp("f", (right,), results=(two,)),
        AssignOp("add", (one, two), results=(one,)),
        ReturnOp(one),
    )
    infos = [
        ClassInfo(Leaf, "object", ("word",), (0,)),
        ClassInfo(Inner, "object", ("left", "right"), (1, 1)),
    ]
    function = InstanceFunction("f", Block((x,), list(body)), Scalar.INT)
    return HostProgram(instance_program([function], infos, [Scalar.INT, node]))


def test_objects_that_are_not_met_again_are_dropped() -> None:
    executor = Executor(summed())
    first = Inner(Leaf(1), Leaf(2))
    gone = weakref.ref(first)
    flat = executor.host.flatten([[first]])
    del first
    most = 0
    for n in range(13):
        trees = [Inner(Leaf(k), Leaf(n)) for k in range(4000)]
        assert executor([trees]) == [k + n for k in range(4000)]
        most = max(most, executor.host.frozen_count)
    assert 60_000 < most < 90_000 and executor.host.frozen_count < 60_000
    assert gone() is not None and executor.run(flat) == [3]  # it holds what it was made of
    del flat
    assert gone() is None


def test_a_batcher_that_ends_keeps_nothing() -> None:
    executor = Executor(summed())
    tree = Inner(Leaf(1), Leaf(2))
    gone = weakref.ref(tree)
    assert executor([[tree, tree]]) == [3, 3]
    del tree
    assert gone() is not None
    del executor
    gc.collect()
    assert gone() is None
