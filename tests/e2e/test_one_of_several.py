"""Values that are one of several things of different kinds, as a tensor says."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.e2e.objects import INPUTS, State, Step, check
from tests.frontends.python.checks import assert_same


class Side(enum.Enum):
    LEFT = 0
    RIGHT = 1


class Level(enum.IntEnum):
    LOW = 2
    HIGH = 5


def masked(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x if mask is None else x.masked_fill(mask, 2.0)


M1 = nn.Linear(3, 3).eval().requires_grad_(False)
M2 = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).eval().requires_grad_(False)


def obj_pick(s: Any, x: Tensor) -> Any:
    if s.child is None:
        s.child = State(torch.zeros(3))
        s.other = State(torch.ones(3))
    o = s.child if x.sum() > 0 else s.other
    o.v = o.v + x
    return x


def obj_pick_local(s: Any, x: Tensor) -> Any:
    a = State(torch.zeros(3))
    b = State(torch.ones(3))
    o = a if x.sum() > 0 else b
    o.v = o.v + x
    return a.v, b.v


def list_pick(s: Any, x: Tensor) -> Any:
    a = [x]
    b = [x * 2]
    o = a if x.sum() > 0 else b
    o.append(x * 3)
    return a, b


def list_pick_item(s: Any, x: Tensor) -> Any:
    a = [x]
    b = [x * 2]
    o = a if x.sum() > 0 else b
    o[0] = x * 3
    return a, b


def list_pick_rev(s: Any, x: Tensor) -> Any:
    a = [x]
    b = [x * 2]
    o = a if x.sum() > 0 else b
    a[0] = x * 3
    return o


def list_pick_len(s: Any, x: Tensor) -> Any:
    a = [x]
    b = [x * 2, x]
    o = a if x.sum() > 0 else b
    o.append(x * 3)
    return len(a), len(b)


def list_pick_held(s: Any, x: Tensor) -> Any:
    s.items = [x]
    b = [x * 2]
    o = s.items if x.sum() > 0 else b
    o.append(x * 3)
    return x


def swap_loop(s: Any, x: Tensor) -> Any:
    a = State(torch.zeros(3))
    b = State(torch.ones(3))
    c = a
    while x.sum() < 5:
        a, b = b, a
        a.v = a.v + x
        x = x + 1
    return c.v


def swap_loop_held(s: Any, x: Tensor) -> Any:
    if s.child is None:
        s.child = State(torch.zeros(3))
        s.other = State(torch.ones(3))
    a = s.child
    b = s.other
    while x.sum() < 5:
        a, b = b, a
        a.v = a.v + x
        x = x + 1
    return x


def dict_in(s: Any, x: Tensor) -> Any:
    d = {}
    if x.sum() > 0:
        d["a"] = x
    return ("a" in d), x


def none_ret(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        return None
    return x


def shape_ret(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        return x[:2]
    return x


def best_so_far(s: Any, x: Tensor) -> Any:
    best = None
    while x.sum() < 5:
        if x[0] > 0.3:
            best = x * 2
        x = x + 1
    return x if best is None else best


def is_same(s: Any, x: Tensor) -> Any:
    y = x * 2
    z = x if x.sum() > 0 else y
    if z is x:
        return z + 1
    return z + 2


def list_rebind(s: Any, x: Tensor) -> Any:
    items = [x]
    other = items
    if x.sum() > 0:
        items = [x * 2]
    items.append(x)
    return torch.stack(other).sum(0)


def list_rebind2(s: Any, x: Tensor) -> Any:
    items = [x, x]
    other = items
    if x.sum() > 0:
        items = [x * 2]
    items.append(x)
    return torch.stack(other).sum(0)


def str_key(s: Any, x: Tensor) -> Any:
    k = "a" if x.sum() > 0 else "b"
    return {"a": x, "b": x * 2}[k]


def mod_pick(s: Any, x: Tensor) -> Any:
    f = torch.relu if x.sum() > 0 else torch.tanh
    return f(x)


def opt_arg(s: Any, x: Tensor) -> Any:
    m = None
    if x.sum() > 0:
        m = x > 0
    return masked(x, m)


def items_either(s: Any, x: Tensor) -> Any:
    items = [None, x]
    if x.sum() > 0:
        items[0] = x * 2
    items[1] = x * 3
    return items


def items_either_held(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.pair[0] = None
    else:
        s.pair[0] = x * 3
    s.pair[1] = x * 3
    return x


def opt_loop(s: Any, x: Tensor) -> Any:
    prev = None
    for _ in range(8):
        if prev is not None:
            x = x + prev * 0.1
        prev = torch.tanh(x)
    return x, prev


def opt_while(s: Any, x: Tensor) -> Any:
    prev = None
    n = 0
    while x.sum() < 5:
        if prev is not None and x[0] > 0:
            x = x + prev * 0.1
        prev = torch.tanh(x)
        x = x + 0.5
        n += 1
    return prev, n


def held_state_while(s: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        if s.other is None:
            s.other = torch.zeros(3)
        s.other = s.other + x
        x = x + 0.5
    return x


def held_tuple_state(s: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        if s.other is None:
            s.other = (torch.zeros(3), torch.ones(3))
        h, c = s.other
        c = c * 0.5 + x
        s.other = (torch.tanh(h + c), c)
        x = x + 0.5
    return x


def held_list_state(s: Any, x: Tensor) -> Any:
    for _ in range(8):
        h, c = s.pair
        c = c * 0.5 + x
        s.pair = [torch.tanh(h + c), c]
    return s.pair[0]


def functions(s: Any, x: Tensor) -> Any:
    f = torch.sin if x[0] > 0 else (lambda t: t.cos() * 2)
    return f(x) + f(x)


def modules(s: Any, x: Tensor) -> Any:
    m = M1 if x[0] > 0 else M2
    return m(x)


def opt_ret(s: Any, x: Tensor) -> Any:
    for i in range(8):
        if x[0] > i:
            return None
        x = x * 1.1
    return x


def ret_mixed(s: Any, x: Tensor) -> Any:
    while x.sum() < 5:
        if x[0] > 3:
            return x, "big"
        x = x + 1
    return None


def ret_dict(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        return {"a": x, "n": 1}
    return {"b": x * 2}


def best_obj(s: Any, x: Tensor) -> Any:
    best = None
    while x.sum() < 5:
        x = x + 1
        cand = State(x * 2)
        if best is None or (cand.v.sum() > best.v.sum()):
            best = cand
    return best.v if best is not None else x


def attr_del(s: Any, x: Tensor) -> Any:
    if x.sum() > 0:
        s.tmp = x
    if hasattr(s, "tmp"):
        x = x + s.tmp
    return x, getattr(s, "tmp", None)


def int_or_none(s: Any, x: Tensor) -> Any:
    n = None
    while x.sum() < 5:
        x = x + 1
        n = 1 if n is None else n + 1
    return n


def in_a_call(s: Any, x: Tensor) -> Any:
    y = None
    if x.sum() > 0:
        y = x * 2
    return torch.stack([x, x if y is None else y]), isinstance(y, torch.Tensor)


def changed_behind_a_loop(s: Any, x: Tensor) -> Any:
    if s.child is None:
        s.child, s.other = State(torch.zeros(3)), State(torch.ones(3))
    o = s.child
    if x.sum() > 0:
        while x.sum() < 2:
            o = State(x)
            x = x + 0.5
    if x.sum() < 2:
        s.child, s.other = s.other, s.child
    o.v = s.h
    return x


def kept_behind_a_loop(s: Any, x: Tensor) -> Any:
    o = s.pair
    while x.sum() < 2:
        o = [x * 3, x * 2]
        x = x + 0.5
    s.other = o
    s.pair[0] = x * 3
    return x


def list_that_grew(s: Any, x: Tensor) -> Any:
    items = []
    if x.sum() > 0:
        items = s.pair
        items.append(x)
    else:
        s.pair.append(x * 0.5)
    return len(items), torch.stack(s.pair).sum(0)


def scaled(x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
    return x * scale if mask is None else (x * scale).masked_fill(mask, 2.0)


def passed_on(x: Tensor, **options: Any) -> Tensor:
    return scaled(x, **options)


def entry_as_keyword(s: Any, x: Tensor) -> Any:
    """An entry that is not there is the default of the parameter."""
    options: dict[str, Any] = {"scale": 3.0}
    if x.sum() > 0:
        options["mask"] = x > 1
    return passed_on(x, **options)


def entry_that_is_none(s: Any, x: Tensor) -> Any:
    mask = x > 1 if x[0] > 0 else None
    options: dict[str, Any] = {}
    if mask is not None:
        options["mask"] = mask
    if x.sum() > 0:
        options["scale"] = 3.0
    y = passed_on(x, **options)
    return y if mask is None else y + mask


def single_entries(s: Any, x: Tensor) -> Any:
    """Methods that look at one entry of a dict in which another may be missing."""
    d: dict[str, Any] = {"b": x * 3}
    if x.sum() > 0:
        d["a"] = x
    got, other = d.get("a", x * 2), d.get("b")
    missing = d.get("c", 1)
    y = d.setdefault("a", x - 1)
    popped = d.pop("a", x)
    return got, other, missing, y, popped, list(d), "a" in d


def number_of_one_arm(s: Any, x: Tensor) -> Any:
    """A number of Python that one arm sets stays one, so a list may be indexed by it."""
    d: dict[str, Any] = {}
    o = State()
    if x.sum() > 0:
        d["n"] = 1
        o.n = 2  # type: ignore[attr-defined]
    n = d["n"] if "n" in d else getattr(o, "n", 1)
    return [x, x * 2][n] if n == 1 else x - 1, x[:n]


def attends(s: Any, x: Tensor) -> Any:
    """A mask or a flag of Python for torch, as the run says."""
    q = torch.stack([x, x * 2, x - 1])[None, None]
    mask = (q[..., 0] > 0)[..., None, :] if x.sum() > 0 else None
    is_causal = q.shape[2] > 1 and mask is None
    return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=is_causal)


def sorts(s: Any, x: Tensor) -> Any:
    return torch.sort(x, descending=bool(x.sum() > 0)).values


def member_of_enum(s: Any, x: Tensor) -> Any:
    side = Side.LEFT if x[0] > 0 else Side.RIGHT
    if side is Side.RIGHT:
        x = x * 2
    elif side == Side.LEFT:
        x = x - 1
    return x, {Side.LEFT: 1, Side.RIGHT: 2}[side]


def member_in_a_loop(s: Any, x: Tensor) -> Any:
    side = Side.LEFT
    while x.sum() < 5:
        x = x + (1 if side is Side.LEFT else 2)
        side = Side.RIGHT if x[0] > 1 else Side.LEFT
    return x, side is Side.RIGHT


def member_with_a_number(s: Any, x: Tensor) -> Any:
    level = Level.HIGH if x[0] > 0 else Level.LOW
    return x * level, level + 1, level is Level.HIGH, level > 3


STEPS = [
    entry_as_keyword,
    entry_that_is_none,
    number_of_one_arm,
    single_entries,
    attends,
    sorts,
    member_of_enum,
    member_in_a_loop,
    member_with_a_number,
    changed_behind_a_loop,
    kept_behind_a_loop,
    obj_pick,
    obj_pick_local,
    list_pick,
    list_pick_item,
    list_pick_rev,
    list_pick_len,
    swap_loop,
    swap_loop_held,
    dict_in,
    none_ret,
    shape_ret,
    best_so_far,
    is_same,
    list_rebind,
    list_rebind2,
    str_key,
    mod_pick,
    opt_arg,
    items_either,
    items_either_held,
    opt_loop,
    opt_while,
    held_state_while,
    held_tuple_state,
    held_list_state,
    functions,
    modules,
    opt_ret,
    ret_mixed,
    ret_dict,
    best_obj,
    attr_del,
    int_or_none,
    in_a_call,
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_one_of_several(step: Step) -> None:
    check(step)


def used_where_it_is_none(s: Any, x: Tensor) -> Any:
    y = x * 2 if x.sum() > 0 else None
    return y + 1


def attribute_of_none(s: Any, x: Tensor) -> Any:
    y = x * 2 if x.sum() > 0 else None
    return y.sum()


@pytest.mark.parametrize("backend", ["interpreter", "cpu"])
@pytest.mark.parametrize("step", [used_where_it_is_none, attribute_of_none])
def test_errors_of_one_of_them(step: Step, backend: str) -> None:
    """What eager raises for one of the things is raised where a run comes to it."""
    fast = stretto.compile(step, backend=backend)
    good, bad = torch.ones(3), -torch.ones(3)
    for _ in range(2):
        assert torch.equal(fast(None, good), step(None, good))
        with pytest.raises((TypeError, AttributeError)) as expected:
            step(None, bad)
        with pytest.raises(type(expected.value)) as caught:
            fast(None, bad)
        assert str(expected.value) in str(caught.value)


def twins(s: Any, x: Tensor) -> Any:
    a = [x]
    b = a
    while x.sum() < 5:
        a = [x * 2]
        b = a
        x = x + 1
    a[0] = x
    return b


def entries(s: Any, x: Tensor) -> Any:
    d = {}
    if x.sum() > 0:
        d["a"] = x
    return sum(d.values())


def same_behind_a_loop(s: Any, x: Tensor) -> Any:
    y, z = x * 2, None
    while x.sum() < 5:
        z = y
        x = x + 1
    return x + 1 if z is y else x


def shrinks(x: Tensor, n: Tensor) -> Tensor:
    if n <= 0:
        return x
    y = x[:1] if x.sum() > 0 else x
    return shrinks(y * 2, n - 1)


def in_recursion(s: Any, x: Tensor) -> Any:
    return shrinks(x, torch.tensor(2))


REFUSED = [
    (in_recursion, "recursive, and makes a tensor whose size is known only at run time"),
    (same_behind_a_loop, "whether two variables are the same tensor depends on a traced branch"),
    (twins, "an object is changed that two variables may share after a branch or loop"),
]


@pytest.mark.parametrize(("step", "reason"), REFUSED)
def test_refused(step: Step, reason: str) -> None:
    with pytest.raises(stretto.CaptureError, match=reason) as caught:
        stretto.compile(step)(State(), -torch.ones(3))
    assert caught.value.location is not None and caught.value.remedy


def test_an_entry_that_one_arm_adds() -> None:
    """Another program for each way: what a sum of a dict's values is depends on its entries."""
    fast = stretto.compile(entries, backend="interpreter")
    for x in (torch.ones(3), -torch.ones(3), torch.zeros(3), 2 * torch.ones(3)):
        assert_same(fast(State(), x), entries(State(), x))


def test_a_list_that_is_chosen_where_it_grows() -> None:
    fast = stretto.compile(list_that_grew, backend="interpreter")
    mine, other = State(), State()
    for x in (torch.ones(3), -torch.ones(3)):
        assert_same(fast(mine, x), list_that_grew(other, x))
        assert_same(mine.pair, other.pair)


@pytest.mark.parametrize("step", [best_obj, obj_pick, opt_while])
def test_on_the_cpu(step: Step) -> None:
    check(step, backend="cpu")


def test_a_list_that_is_kept_or_not() -> None:
    """Items of a list that grows in a branch are copies."""
    fast = stretto.compile(list_pick_held, backend="interpreter")
    mine, other = State(), State()
    for x in (torch.ones(3), -torch.ones(3)):
        fast(mine, x)
        list_pick_held(other, x)
        assert_same(mine.items, other.items)


class Small:
    def __init__(self, v: Any) -> None:
        self.v = v


def objects_made_in_a_loop(s: Any, x: Tensor) -> Any:
    """An object from before the loop, and those that it makes, are told apart."""
    o = s.child
    while x.sum() < 3:
        o.v = s.other.v + x
        if x.sum() > 0:
            o = Small(x)
        else:
            s.other = Small(x)
        x = x + 0.5
    return x


def test_objects_made_in_a_loop() -> None:
    fast = stretto.compile(objects_made_in_a_loop, backend="interpreter")
    mine, other = State(), State()
    for s in (mine, other):
        s.child, s.other = Small(torch.zeros(3)), Small(torch.ones(3))
    for given in INPUTS:
        x = torch.tensor(given)
        assert_same(fast(mine, x), objects_made_in_a_loop(other, x))
        assert_same([mine.child.v, mine.other.v], [other.child.v, other.other.v])


def changed_and_replaced(s: Any, x: Tensor) -> Any:
    o, q = Small(x), Small({"a": x * 3})
    while x.sum() < 9:
        o.v = o.v + x
        q.v["a"] = q.v["a"] - o.v
        if x.sum() > 4:
            q = Small({"a": x})
        o = Small(o.v * 2)
        x = x.abs() + 1
    return o.v, q.v


def test_objects_that_are_changed_and_then_replaced() -> None:
    fast = stretto.compile(changed_and_replaced, backend="interpreter")
    for given in INPUTS:
        x = torch.tensor(given)
        assert_same(fast(State(), x), changed_and_replaced(State(), x))


def one_of_nested_arms(s: Any, x: Tensor) -> Any:
    """What an object of an inner arm may be, it may be behind the outer one."""
    o, k = Small(x), Small(x * 2)
    if x.sum() > 2:
        k = Small(o.v) if x.sum() > 10 else o
    k.v = o.v * 0.5 + x
    return o.v, k.v


def one_of_iterations(s: Any, x: Tensor) -> Any:
    o, k = Small(x), Small(x * 2)
    while x.sum() < 12:
        k.v = o.v * 0.5 + x
        k = Small(x) if x.sum() > 4 else o
        x = x.abs() + 1
    return o.v, k.v


def compared(s: Any, x: Tensor) -> Any:
    o = q = k = Small(x)
    if x.sum() > 2:
        o = Small(x)
    if x.sum() > 4:
        k = o
    return o is q, o == k, k in [q], k != q


@pytest.mark.parametrize("step", [one_of_nested_arms, one_of_iterations, compared])
def test_an_object_that_may_be_another_one(step: Step) -> None:
    fast = stretto.compile(step, backend="interpreter")
    for given in (*INPUTS, [1.0, 2.0, 3.0], [3.0, 4.0, 5.0], [-1.0, 2.0, -3.0]):
        x = torch.tensor(given)
        assert_same(fast(State(), x), step(State(), x))


def two_shapes(x: Tensor) -> Tensor:
    v = x if x.norm() < 2 else torch.zeros(3, 4)
    w = v + 1
    both = torch.maximum(v, torch.sum(w, 0)) if v.dim() == 1 else w
    return torch.where(v > 0, v, w).sum() + torch.lerp(v, w, w * 0.5).mean() + both.sum()


@pytest.mark.parametrize("factor", [0.5, 5.0])
def test_an_operator_of_several_that_are_one_of_several(factor: float) -> None:
    x = torch.tensor([1.0, -1.0, 0.5]) * factor
    fast = stretto.compile(two_shapes, backend="interpreter")
    torch.testing.assert_close(fast(x), two_shapes(x))
