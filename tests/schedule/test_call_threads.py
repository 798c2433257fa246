"""Shares of threads for library calls: stretches of a leaf, and which calls get a share."""

from __future__ import annotations

from dataclasses import replace

from stretto.device.call_costs import call_seconds
from stretto.device.costs import HOST_COSTS
from stretto.device.expr import Buffer
from stretto.device.operator import Kernel, LibraryCall
from stretto.device.tree import Leaf, Tree, TreeFunction
from stretto.ir.types import DType
from stretto.schedule.call_threads import has_shares, may_share, share_threads, stretches
from stretto.schedule.footprint import leaf_nodes
from stretto.schedule.scheduler import schedule

COSTS = replace(HOST_COSTS, wake_seconds=0.0)


def buffer(name: str, size: int) -> Buffer:
    return Buffer(name, DType.F32, (size, size), "local")


def call(name: str, *inputs: str, size: int = 64, target: str = "aten.mm.default") -> Kernel:
    """A product of the buffers of earlier calls."""
    first, last = buffer(inputs[0], size), buffer(inputs[-1], size)
    made = LibraryCall(name, target, (first, last), (), (buffer(name, size),), "for the test")
    return Kernel(name, (), (), COSTS.call_seconds, made)


def threads(*kernels: Kernel, units: int = 2) -> list[int]:
    tree = Tree((TreeFunction("main", (), (), (), (), (), Leaf(kernels)),), ())
    shared = share_threads(tree, units, COSTS)
    body = shared.functions[0].body
    assert isinstance(body, Leaf)
    assert has_shares(shared) == any(k.call.threads for k in body.body)
    schedule(shared, units, COSTS)
    return [kernel.call.threads for kernel in body.body]


def test_stretches_end_where_all_dependences_meet():
    diamond = (call("a", "x"), call("b", "a"), call("c", "a"), call("d", "b", "c"), call("e", "d"))
    found = [list(stretch) for stretch in stretches(leaf_nodes(diamond))]
    assert found == [[0], [1, 2], [3], [4]]


def test_small_branches_have_one_thread_each():
    assert threads(call("a", "x"), call("b", "x"), call("c", "y"), call("d", "y")) == [1, 1, 1, 1]


def test_a_chain_of_large_calls_is_left_as_it_is():
    chain = (call("a", "x", size=2048), call("b", "a", size=2048), call("c", "b", size=2048))
    assert threads(*chain) == [0, 0, 0]


def test_calls_that_may_fail_keep_their_order():
    solve = call("a", "x", target="aten.linalg_cholesky.default")
    assert not may_share(solve)
    assert may_share(call("a", "x"))
    found = threads(solve, call("b", "x"), call("c", "y"), call("d", "z"), call("e", "w"))
    assert found[0] in (0, 2)


def test_several_threads_take_less_where_there_is_work():
    large, small = call("a", "x", size=2048).call, call("a", "x", size=4).call
    assert large is not None
    assert small is not None
    assert call_seconds(large, COSTS, 2) < call_seconds(large, COSTS, 1)
    assert call_seconds(small, COSTS, 2) > call_seconds(small, COSTS, 1)
