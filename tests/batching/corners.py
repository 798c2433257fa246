# ruff: noqa
"""Functions for one instance, each with a corner of Python, and the data they are called with."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {}


def case(*instances: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of one parameter, with instances."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[function.__name__] = (function, list(instances))
        return function

    return register


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Point(NamedTuple):
    x: int
    y: float = 2.0


@dataclass
class Base:
    name: str
    SCALE = 3

    def scaled(self) -> int:
        return self.SCALE * len(self.name)

    @property
    def first(self) -> str:
        return self.name

    @staticmethod
    def fixed(x: int) -> int:
        return x + 1


@dataclass
class Leaf(Base):
    value: int = 0
    SCALE = 5


@dataclass
class Inner(Base):
    parts: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = len(self.parts)


@dataclass
class Cell:
    value: Any
    next: Any = None


@dataclass
class Branch:
    value: int
    kids: list[Any] = field(default_factory=list)


# ---- variables on some ways only


@case(1, -1, 0)
def assigned_before_branch(x):
    y = None
    if x > 0:
        y = x
    return y


@case(3, 0, 1)
def loop_variable_after_loop(n):
    i = -1
    total = 0
    for i in range(n):
        total += i
    return i, total


@case([1, 2], [], [5])
def item_after_loop(items):
    item = None
    for item in items:
        if item > 1:
            break
    return item


@case([1, 2], [3])
def item_after_full_loop(items):
    for item in items:
        pass
    return item


@case(3, 0)
def unassigned_read(n):
    for i in range(n):
        last = i
    return last


@case(True, False)
def assigned_on_one_way(flag):
    if flag:
        y = 1
    return y


@case(True, False)
def assigned_twice_by_flag(flag):
    if flag:
        y = 1
    z = 5
    if flag:
        z += y
    return z


# ---- lists


@case([1, 2, 3], [])
def mutated_while_iterated(items):
    found = []
    for x in items:
        found.append(x)
        if x < 3 and len(items) < 6:
            items.append(x + 1)
    return found, items


@case([1, 2, 3], [])
def removed_while_iterated(items):
    found = []
    for x in items:
        found.append(x)
        items.pop()
    return found


@case(2, 0)
def alias(n):
    a = [1]
    b = a
    for i in range(n):
        b.append(i)
    return a, b, a is b


@case(2, 0)
def alias_plus(n):
    a = [1]
    b = a
    b += [n]
    c = a + [2]
    return a, b, c


@case(2, 0)
def nested_alias(n):
    row = [0]
    grid = [row, row]
    grid[0].append(n)
    return grid, grid[0] is grid[1]


@case(2, 3)
def repeated_rows(n):
    grid = [[0] * n] * 2
    grid[0][1] = 7
    return grid


@case([3, 1, 2], [], [5])
def sliced(items):
    return items[1:], items[:-1], items[::-1], items[::2], items[5:], items[-2:1]


@case([3, 1, 2], [2])
def assigned_slice(items):
    items[1:2] = [7, 8, 9]
    return items


@case([3, 1, 2], [2, 5])
def deleted_item(items):
    del items[0]
    return items


@case([3, 1, 2], [5], [])
def list_methods(items):
    items.insert(0, 9)
    items.extend([4, 4])
    items.reverse()
    k = items.index(9)
    c = items.count(4)
    items.remove(9)
    return items, k, c, 3 in items, items.copy() is items


@case([3, 1, 2], [5], [])
def sorting(items):
    a = sorted(items)
    b = sorted(items, reverse=True)
    c = sorted(items, key=lambda x: -x)
    items.sort()
    return a, b, c, items


@case(["b", "a"], [], ["c"])
def sorting_strs(items):
    return sorted(items)


@case([2.5, 1.5], [])
def sorting_floats(items):
    return sorted(items), sorted([(x, i) for i, x in enumerate(items)])


@case([3, 1], [], [9])
def negative_index(items):
    if items:
        return items[-1]
    return items[-1]


@case([1, 2], [])
def pop_empty(items):
    items.pop()
    items.pop()
    return items.pop()


@case([1, 2, 3], [1], [])
def unpacking(items):
    a, *rest = items
    return a, rest


@case([1, 2, 3], [1], [4, 5])
def unpacking_exact(items):
    a, b = items
    return a + b


@case((1, 2), (3, 4))
def swapping(pair):
    a, b = pair
    a, b = b, a
    (a, b), c = (b, a), a
    return a, b, c


@case([[1, 2], [3]], [[]], [])
def nested_comprehension(rows):
    x = 100
    flat = [x for row in rows for x in row if x > 1]
    table = [[y * 2 for y in row] for row in rows]
    return flat, table, x


@case([1, 2, 3], [])
def generators(items):
    return (
        sum(x * x for x in items),
        any(x > 2 for x in items),
        all(x > 0 for x in items),
        max((x for x in items), default=-1),
        list(x + 1 for x in items),
        tuple(x for x in items),
    )


@case([1, 2, 3], [])
def min_of_list(items):
    return min(items), max(items)


@case([1, 2, 3], [4])
def min_with_key(items):
    return min(items, key=lambda x: abs(x - 2)), max(items, key=lambda x: -x)


@case([1.0, 2], [True], [])
def mixed_sum(items):
    return sum(items)


@case([1, 2.5], [True, 3])
def mixed_min(items):
    return min(items), max(items)


@case([1, 2, 3], [])
def enumerate_from(items):
    return [(i, x) for i, x in enumerate(items, 1)], list(zip(items, items[1:]))


@case([1, 2, 3], [], [1])
def reversed_range(items):
    n = len(items)
    return (
        [items[i] for i in range(n - 1, -1, -1)],
        [i for i in range(0, n, 2)],
        list(reversed(range(n))),
    )


@case(5, 0, -3)
def while_else(n):
    while n > 0:
        n -= 2
        if n == 1:
            break
    else:
        return "done", n
    return "broken", n


@case([1, 0, 2], [1, 2], [])
def for_else(items):
    for x in items:
        if x == 0:
            found = "zero"
            break
    else:
        found = "none"
    return found


@case([[1, 2], [3, 0, 4], [5]], [])
def nested_breaks(rows):
    seen = []
    for row in rows:
        for x in row:
            if x == 0:
                break
            if x == 2:
                continue
            seen.append(x)
        else:
            seen.append(-1)
            continue
        break
    return seen


@case([1, 2, 3])
def return_in_loop(items):
    for i, x in enumerate(items):
        for y in items:
            if x * y == 6:
                return i, y
    return None


# ---- numbers


@case(3, -3, 0)
def chained(x):
    return 0 < x <= 3, -5 < x < 0 != 1, 1 if x >= 0 else 2


@case(3, 0)
def and_or(x):
    return x and 5, x or 7, not x, (x and [1]) or [2], x > 1 and x < 5


@case([], [1])
def or_list(items):
    return items or [9], items and items[0]


@case(True, False)
def bools(flag):
    return flag + 1, flag * 2.5, -flag, flag & True, flag | False, int(flag), flag == 1, ~flag


@case(7, -7)
def divisions(x):
    return (
        x // 2,
        x % 3,
        x / 2,
        x // -2.0,
        x % -3,
        divmod(x, 4),
        abs(x),
        round(x / 2),
        x**2,
        2 ** abs(x),
    )


@case(1, 0)
def zero_division(x):
    return 5 // x


@case(1.5, 2.5, -0.5)
def floats(x):
    return (
        round(x),
        int(x),
        math.floor(x),
        math.ceil(x),
        math.sqrt(abs(x)),
        x == x,
        float(3),
        str(1),
    )


@case(1, 2**40)
def large(x):
    return x * 2**20


@case(3, 1.5)
def int_or_float(x):
    y = x
    for _ in range(2):
        y = y / 2 if y > 2 else y * 2
    return y, x + 1, x // 1


@case(4, 0)
def number_grows(n):
    total = 0
    for i in range(n):
        total = total + 0.5
    return total


@case(2, 3)
def shifts(n):
    return 1 << n, 255 >> n, n ^ 1, n & 1, n | 8


@case(3, 10**6)
def small_power(n):
    return n**0.5, n**3


# ---- strings and tags


@case("a", "b", "ab")
def strs(s):
    if s == "a":
        return s + "x"
    if s in ("b", "c"):
        return 1
    return len(s), s < "b", s != "q", "a" in s


@case(1, 2)
def formatted(n):
    return f"n={n}"


@case(1, 2)
def raises_formatted(n):
    if n == 2:
        raise ValueError(f"n is {n}, not {n - 1}")
    return n


@case(1, 2)
def asserts(n):
    assert n == 1, "must be one"
    return n


@case(1, 2)
def enums(n):
    color = Color.RED if n == 1 else Color.BLUE
    if color is Color.RED:
        return 1
    return 2


@case({"a": 1, "b": 2}, {"a": 3, "b": 4})
def fixed_dict(d):
    d["a"] += 1
    return d["a"] + d.get("b", 0) + d.get("c", 5), list(d), [v for k, v in d.items()], "a" in d


@case({1: 2.0, 3: 4.0}, {}, {5: 6.0})
def int_dict(d):
    total = 0.0
    for k in d:
        total += d[k] * k
    for k, v in d.items():
        total += v
    d[7] = total
    return d, len(d), 3 in d, d.get(1), d.get(1, 0.0), list(d.keys()), list(d.values())


@case([1, 2, 1], [])
def counts(items):
    seen = {}
    for x in items:
        seen[x] = seen.get(x, 0) + 1
    return seen


@case(["a", "b", "a"], [])
def str_counts(items):
    seen = {}
    for x in items:
        if x not in seen:
            seen[x] = []
        seen[x].append(1)
    return seen


@case([1, 2], [])
def dict_comprehension(items):
    return {x: x * 2 for x in items}


@case([3, 5], [])
def dict_pop(items):
    d = {x: i for i, x in enumerate(items)}
    d.pop(3)
    return d


@case([3, 5, 3], [])
def set_default(items):
    d = {}
    for x in items:
        d.setdefault(x, []).append(x)
    return d


@case([3, 5, 3], [])
def sets(items):
    seen = set()
    found = []
    for x in items:
        if x in seen:
            continue
        seen.add(x)
        found.append(x)
    return found, len(seen)


# ---- objects


@case(Leaf("ab", 4), Inner("c", [Leaf("d", 1)]))
def inheritance(b):
    if isinstance(b, (Leaf, int)):
        return b.scaled(), b.first, b.SCALE, Base.fixed(b.value), b.fixed(3)
    return b.scaled(), b.first, b.count


@case(1, 3)
def post_init(n):
    x = Inner("q", [n] * n)
    return x.count, x


@case(1, 3)
def default_factory(n):
    a, b = Inner("a"), Inner("b")
    a.parts.append(n)
    return a, b, a.parts is b.parts


@case(2, 5)
def linked(n):
    head = None
    for i in range(n):
        head = Cell(i, head)
    total = 0
    cell = head
    while cell is not None:
        total += cell.value
        cell = cell.next
    return head, total


@case(Cell(1, Cell(2)), Cell(3))
def recursion_on_union(c):
    def depth(x):
        return 0 if x is None else 1 + depth(x.next)

    return depth(c)


@case(Cell(1, Cell(2)), Cell(3))
def mutated_object(c):
    old = c
    c.value = c.value * 10
    if c.next is not None:
        c.next.value = c
    return old, c


@case(Point(1), Point(2, 3.0))
def named(p):
    x, y = p
    q = Point(x + 1)
    return p.x, p[1], q, q.y, p == q, len(p)


@case(Point(1), Point(2, 3.0))
def replaced(p):
    return p._replace(x=5)


@case(1, 2)
def dataclass_equality(n):
    return Cell(n) == Cell(1), Cell(n) != Cell(2), Cell(n) is Cell(n)


@case(3, 4)
def default_arguments(n):
    def f(x, y=n, *, z=2):
        return x + y * z

    return f(1), f(1, 2), f(1, z=5), f(y=1, x=n)


@case(3, 4)
def var_arguments(n):
    def f(*args, **kwargs):
        return sum(args) + len(args)

    items = (n, 1)
    return f(), f(n, 2), f(*items)


@case(3, 4)
def partial(n):
    def f(a, b, c=0):
        return a * 100 + b * 10 + c

    g = functools.partial(f, 1)
    return g(n), g(n, c=3)


@case(3, 4)
def partial_of_data(n):
    def f(a, b, c=0):
        return a * 100 + b * 10 + c

    g = functools.partial(f, n, c=n)
    return g(2)


@case(3, 4)
def lambdas(n):
    def twice(f, x):
        return f(f(x))

    return twice(lambda x: x + n, 1), [f(n) for f in (abs, lambda v: v * 2)]


@case(3, 0)
def nonlocal_counter(n):
    count = 0

    def step(k):
        nonlocal count
        count += k
        return count

    for i in range(n):
        step(i)
    return count


@case(3, 4)
def late_binding(n):
    x = 1

    def f():
        return x

    x = n
    return f()


@case(4, 5)
def mutual(n):
    def even(k):
        return True if k == 0 else odd(k - 1)

    def odd(k):
        return False if k == 0 else even(k - 1)

    return even(n), odd(n)


@case(4, 0)
def returns_list_or_none(n):
    def f(k):
        if k == 0:
            return None
        inner = f(k - 1)
        if inner is None:
            return [k]
        inner.append(k)
        return inner

    return f(n)


@case(4, 1)
def recursion_returning_tuples(n):
    def f(k):
        if k <= 1:
            return 1, [k]
        a, xs = f(k - 1)
        return a + k, xs + [k]

    return f(n)


@case(4, 1, 0)
def recursion_of_mixed_returns(n):
    def f(k):
        if k == 0:
            return 0
        if k == 1:
            return 1.5
        return f(k - 1)

    return f(n)


@case([1, [2, [3, 4]], []], [], [[[]]])
def nested_lists(items):
    def total(x):
        if isinstance(x, int):
            return x
        return sum(total(y) for y in x)

    return total(items)


@case([1, (2, 3.0), "a", None, [4]], [])
def matching(items):
    found = []
    for x in items:
        match x:
            case int(n) if n > 5:
                found.append(n)
            case int():
                found.append(0)
            case (a, b):
                found.append(b)
            case "a" | "b":
                found.append(9)
            case None:
                found.append(-1)
            case [y]:
                found.append(y)
            case _:
                found.append(-2)
    return found


@case(Leaf("ab", 4), Inner("c", [Leaf("d", 1), Leaf("e", 2)]))
def matching_classes(b):
    match b:
        case Leaf(name=n, value=4 | 5):
            return n
        case Leaf():
            return "leaf"
        case Inner(parts=[first, *rest]):
            return first, rest
        case Inner():
            return "empty"


# ---- tensors


@case(torch.ones(3), torch.tensor([1.0, -5.0, 2.0]))
def tensor_decision(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = -x
    n = 0
    while y.max() < 20:
        y = y * 2
        n += 1
    return y, n


@case([torch.ones(3), torch.zeros(3)], [], [torch.ones(3)])
def tensor_sums(items):
    total = torch.zeros(3)
    for x in items:
        total = total + x
    return total, sum(items), len(items)


@case([torch.ones(3), torch.zeros(3)], [torch.ones(3)])
def stacked(items):
    return torch.stack(items)


@case([torch.ones(3), torch.zeros(3)], [torch.ones(3)], [])
def owned_addition(items):
    total = torch.zeros(3)
    for x in items:
        total += x
    return total


@case(torch.arange(4.0))
def in_place_method(x):
    y = torch.zeros(4)
    y.add_(x)
    return y


@case(torch.arange(4.0))
def in_place_alias(x):
    y = x
    y += 1
    return x, y


@case(torch.arange(4.0))
def unpacked_tensor(x):
    a, b, c, d = x
    p, q = x.chunk(2)
    r, s = torch.split(x, [1, 3])
    return a + d, p + q, s, [v * 2 for v in x], x[1:3], x[-1], x.view(2, 2).T


@case(2, 0)
def table_lookup(i):
    table = torch.arange(12.0).view(3, 4)
    return table[i], table[i, 1], table[:, i], table[i][2]


@case([0, 2], [1], [])
def gathers(indices):
    table = torch.arange(12.0).view(3, 4)
    return [table[i] for i in indices]


@case(torch.arange(4.0))
def numbers_of_tensor(x):
    a = x.sum().item()
    b = int(x[1])
    c = float(x[2])
    d = x.argmax().item()
    return a, b, c, d, bool(x[0]), x.tolist(), x.shape[0], x.size(0), len(x), x.dim()


@case(1, 4)
def tensor_of_numbers(n):
    return (
        torch.tensor(n),
        torch.tensor([n, n + 1]),
        torch.tensor([float(n), 2.0]),
        torch.full((2,), float(n)),
    )


@case(torch.ones(2), torch.zeros(2))
def scaled_by_number(x):
    n = int(x.sum())
    return x * n + n / 2, n * x


@case((torch.ones(2), 1), (torch.zeros(2), 2))
def tuple_instance(pair):
    x, n = pair
    return x * n, pair[0], pair


@case([torch.ones(2), None], [None], [])
def optional_tensors(items):
    found = []
    for x in items:
        if x is None:
            found.append(torch.zeros(2))
        else:
            found.append(x + 1)
    return found


@case([torch.ones(2), torch.zeros(2)], [torch.ones(2)])
def best_by_score(items):
    best, score = None, float("-inf")
    for x in items:
        s = x.sum().item()
        if s > score:
            best, score = x, s
    return best, score


@case([torch.tensor([0.1, 0.9])], [torch.tensor([0.7, 0.1]), torch.tensor([0.2, 0.3])])
def argmax_actions(items):
    stack = []
    for x in items:
        action = x.argmax().item()
        if action == 0:
            stack.append(x)
        elif stack:
            stack[-1] = stack[-1] + x
        else:
            stack.append(x * 2)
    return stack


@case(torch.ones(2, 3), torch.zeros(2, 3))
def shapes(x):
    a, b = x.shape
    y = x.reshape(b, a) if a < b else x
    return y, x.new_zeros(a), torch.zeros_like(x), torch.cat([x, x], dim=1), x @ x.T


@case(torch.ones(2, 4), torch.ones(3, 4), torch.ones(1, 4))
def rows_whole(x):
    return x.mean(0), torch.softmax(x, 0).sum(0), x.sum()


@case(torch.ones(2, 4), torch.ones(3, 4), torch.ones(1, 4))
def rows_mapped(x):
    w = torch.eye(4)
    return x @ w, torch.tanh(x), x * 2 + 1


@case(torch.ones(2, 4), torch.ones(3, 4), torch.ones(1, 4))
def rows_iterated(x):
    h = torch.zeros(4)
    for row in x:
        h = torch.tanh(h + row)
    return h, len(x), x.shape[0], x[0], x[-1]


# ---- joins


@case(1, 0)
def joined_types(n):
    if n:
        v = [1, 2]
    else:
        v = None
    return v, len(v) if v is not None else -1


@case(1, 0)
def joined_tuple_and_none(n):
    v = (n, 2) if n else None
    if v is None:
        return 0
    a, b = v
    return a + b


@case(1, 0)
def joined_functions(n):
    f = abs if n else (lambda x: x + 1)
    return f(-3)


@case(1, 2, 3)
def joined_tuples(n):
    if n == 1:
        t = (1, 2)
    elif n == 2:
        t = (1, 2, 3)
    else:
        t = [4]
    return t, len(t)


@case(3, 1)
def tuple_in_loop(n):
    state = (0, None)
    for i in range(n):
        a, b = state
        state = (a + 1, i)
    return state


@case(3, 1, 0)
def tuple_grows_in_loop(n):
    t = ()
    for i in range(n):
        t = t + (i,)
    return t


@case(3, 1, 0)
def type_changes_in_loop(n):
    x = None
    for i in range(n):
        if x is None:
            x = i
        elif isinstance(x, int):
            x = [x, i]
        else:
            x.append(i)
    return x


@case([1, 2], [])
def try_except(items):
    try:
        return items[0]
    except IndexError:
        return -1


@case([3, 4, 5], [1])
def walrus(items):
    if (n := len(items)) > 2:
        return n
    return [y for x in items if (y := x * 2) > 0]


@case(3, 0)
def conditional_definition(n):
    def f(x):
        if x > 1:
            return x * n
        return -1

    return [f(i) for i in range(n)]


@case([1, 2, 3], [])
def map_filter(items):
    return list(map(lambda x: x * 2, items)), list(filter(lambda x: x > 1, items))


@case([(1, "a"), (2, "b")], [])
def unzip(pairs):
    xs = [a for a, _ in pairs]
    return xs, {b: a for a, b in pairs}


@case([1, 2, 3], [])
def iterator_next(items):
    it = iter(items)
    first = next(it, None)
    return first, list(it)


@case(4, 2)
def dynamic_unpack_call(n):
    items = [n, n + 1]

    def f(a, b):
        return a - b

    return f(*items)


@case([5, 6], [7])
def deque_like(items):
    queue = list(items)
    out = []
    while queue:
        x = queue.pop(0)
        out.append(x)
        if x > 5:
            queue.append(x - 2)
    return out


@case([1, 2, 3], [])
def comprehension_condition_else(items):
    return [x if x > 1 else None for x in items if x != 2]


@case(5, 1)
def recursion_with_list_argument(n):
    def go(k, acc):
        if k == 0:
            return
        acc.append(k)
        go(k - 1, acc)

    found = []
    go(n, found)
    return found


@case(5, 1)
def recursion_with_default(n):
    def go(k, depth=0):
        return depth if k == 0 else go(k - 1, depth + 1)

    return go(n)


@case([1, 2], [3])
def joined_aliases(items):
    a, b = [0], [1]
    c = a if len(items) > 1 else b
    c.append(5)
    return a, b, c


@case([1, 2, 3], [])
def string_join(items):
    s = ""
    for x in items:
        s += "a" if x > 1 else "b"
    return s


@case(2, 3)
def local_class_constants(n):
    pairs = {"x": 1, "y": 2}
    names = ["x", "y"]
    return sum(pairs[k] * n for k in names), [k for k in pairs]


@case(torch.tensor([[1.0, 5.0], [3.0, 2.0]]))
def named_results(x):
    found = x.max(0)
    values, positions = torch.topk(x[0], 1)
    return found.values, found.indices, x.max(dim=1).values.sum(), values, positions


@case([1, 2], [])
def extended_by_itself(items):
    items.extend(items)
    items += items
    items += (7,)
    items += range(2)
    return items


@case([1, 2], [])
def walrus_in_comprehension(items):
    y = -5
    found = [y for x in items if (y := x * 2) > 2]
    return found, y


@case(True, False)
def escaping_closure(flag):
    def make():
        k = 1

        def f(x):
            return x + k

        if flag:
            return f
        k = 2
        return f

    return make()(10)


@case([1, 2, 3], [])
def closures_in_loop(items):
    found = []
    for x in items:

        def f(y):
            return x * y

        found.append(f(10))
    if items:
        found.append(f(1))
    return found


@case(3, 0)
def module_in_loop(n):
    cell = None
    for i in range(n):
        cell = abs if i % 2 else float
    return cell is abs, cell(-3) if cell is not None else None


@case(3, 0)
def nested_results(n):
    def f(k):
        return None if k == 0 else (f(k - 1), k)

    return f(n)


@case(torch.ones(2, 4), torch.arange(12.0).view(3, 4), torch.ones(1, 4))
def rows_attended(x):
    q = torch.ones(4)
    weights = torch.softmax(x @ q, 0)
    return weights @ x, (weights.unsqueeze(-1) * x).sum(0), x[:, 0], x[1:], x[0, 1], x[:, 1:3]


@case(torch.ones(2, 4), torch.arange(12.0).view(3, 4), torch.ones(1, 4), torch.ones(0, 4))
def rows_empty(x):
    return x.sum(0), x + x, (x * 2).mean(0) if len(x) else x.sum(0)


@case(torch.ones(2, 4), torch.arange(12.0).view(3, 4), torch.ones(0, 4))
def rows_maximum(x):
    return x.max(0).values


@case([torch.ones(1, 3), torch.zeros(1, 3)], [torch.ones(1, 3)])
def concatenated(items):
    found = torch.cat(items)
    return found, found.mean(0), torch.stack([t[0] for t in items]).max(0).values


@dataclass
class Holder:
    value: Any


@case(torch.ones(2, 3), -torch.ones(4, 3), torch.zeros(0, 3), torch.ones(1, 3))
def rows_or_a_matrix(x):
    """One variable may hold a tensor of known size, or one whose first size the instance has."""
    y = torch.ones(2, 3) if float(x.sum()) > 0 else x
    box = Holder(y)
    total = torch.zeros(3)
    for row in box.value:
        total = total + row
    return y * 2, total, box.value + 1, y.shape[0], len(box.value)


@case(torch.ones(2, 3), torch.ones(2, 2), torch.ones(3), [1, 2.5], (1, 2), torch.ones(0), 3, None)
def loop_over_several_kinds(x):
    total = 0.0
    for item in x:
        total = total + (item.sum() if isinstance(item, torch.Tensor) else item)
    return total


@case(torch.ones(2, 3), torch.ones(4, 3), torch.ones(1, 3), torch.ones(0, 3))
def rows_of_several_lengths(x):
    first, rest = x[:1], x[1:]
    return x + first, x - x.mean(1, keepdim=True), torch.cat([x, x * 2], 1), x.unbind()


@case(torch.ones(2, 3), torch.ones(4, 3), torch.ones(3, 3))
def rows_that_do_not_fit(x):
    return x[1:] * x[:2]


@case(0, 2, -3, 3, -4)
def position_outside(i):
    x = torch.arange(6.0).view(3, 2)
    y = x * 2
    return y[i], y[:, 0][i], y[i, 1], y[1:, i]


# ---- special methods of the user's classes


class Ratio:
    """An object with operators of its own."""

    def __init__(self, over, under=1):
        self.over, self.under = over, under

    def __add__(self, other):
        if not isinstance(other, Ratio):
            return NotImplemented
        return Ratio(self.over * other.under + other.over * self.under, self.under * other.under)

    def __radd__(self, other):
        return Ratio(self.over + other * self.under, self.under)

    def __imul__(self, other):
        self.over *= other
        return self

    def __neg__(self):
        return Ratio(-self.over, self.under)

    def __abs__(self):
        return abs(self.over) / self.under

    def __lt__(self, other):
        return self.over * other.under < other.over * self.under

    def __eq__(self, other):
        return self.over * other.under == other.over * self.under

    def __contains__(self, number):
        return number in (self.over, self.under)

    def __hash__(self):
        return 0


@dataclass(order=True)
class Version:
    major: int
    name: str
    note: int = field(default=0, compare=False)


@dataclass
class Held:
    held: Any


@case(1, 2, -3)
def operators_of_a_class(n):
    a, b = Ratio(n, 2), Ratio(1)
    total = sum([a, b, -a])
    return (a + b).over, (3 + a).over, total.over, total.under, abs(a)


@case(1, 2)
def operators_that_change_their_object(n):
    a = b = Ratio(n)
    a *= 3
    return a is b, b.over


@case(1, 2)
def operator_that_no_class_has(n):
    return n + Cell(n) if n > 1 else 0


@case(1, 2, 3)
def comparisons_of_a_class(n):
    a, b = Ratio(n, 2), Ratio(1)
    return a < b, a > b, a == b, a != b, n in a, 5 in a, a == n


@case([3, 1, 2], [1], [])
def objects_sorted_by_their_class(items):
    return [f.over for f in sorted([Ratio(i) for i in items], reverse=True)]


@case((1, "a", 1, "b"), (2, "a", 1, "b"), (1, "a", 1, "a"))
def dataclass_in_order(p):
    a, b = Version(p[0], p[1], 1), Version(p[2], p[3], 2)
    return a < b, a >= b, a == b, a != b, sorted([a, b])[0].major


@case("x", "y")
def dataclass_with_a_later_field(s):
    a, b = Inner(s, [1]), Inner("x", [1])
    return a == b


@case(1, 2)
def own_equality_within_others(n):
    return Held(Ratio(n)) == Held(Ratio(2, 2))


@case([1, 2], [2])
def own_equality_of_items(items):
    return Ratio(2, 2) in [Ratio(i) for i in items]


@case({"a": 1}, {"a": 2})
def dicts_united(d):
    return d | {"b": 2}


@case("a", "b")
def string_repeated(s):
    return s * 2


@case([1], [])
def list_times_bool(items):
    return items * True, items * False


# ---- iterators, strings, attributes


@case([3, 1], [2], [])
def iterator_gone_through_twice(items):
    pairs = zip(items, items)
    return [a for a, _ in pairs], [b for _, b in pairs]


@case([3, 1], [2], [])
def generator_gone_through_twice(items):
    doubled = (i * 2 for i in items)
    return sum(doubled), sum(doubled)


def summed_twice(items):
    return sum(items) + sum(items)


@case([3, 1], [2], [])
def iterator_as_an_argument(items):
    return summed_twice(map(abs, items))


@case([3, 1], [2], [])
def iterator_in_a_loop(items):
    found = []
    backwards = reversed(items)
    for _ in range(2):
        found += [i for i in backwards]
    return found


@case([3, 1], [2], [])
def iterators_gone_through_once(items):
    doubled = (i * 2 for i in items)
    total = sum(doubled)
    large = filter(lambda i: i > 1, iter(items))
    first, *rest = (i for i in [total, *large])
    return total, first, rest


@case([5, 0, 1], [1, 0], [0], [])
def quantifiers_stop_early(items):
    return any(10 // i > 3 for i in items if i != 1), all(i < 9 and 10 // i < 9 for i in items)


@case("abc", "", "zé∂")
def characters_of_a_string(s):
    codes = [ord(c) for c in s]
    kinds = [{"a": 0, "b": 1}.get(c, 2) for c in s]
    return codes, kinds, s[:2], s[::-1], [c for i, c in enumerate(s) if c in "abé"]


@case("abc", "")
def character_outside(s):
    return s[1], s[-3]


@case((1, True, None, "x"), (-7, False, None, ""), (0, True, None, "it's\t\\é\x01\n"))
def strings_of_values(p):
    a, b, c, d = p
    key = f"{a!r}_{b}{c!s}:{d!r}{c!r}"
    return key, str(a) + d, len(key)


@case([1, 2], [])
def string_kept_from_a_loop(items):
    last = ""
    for i, item in enumerate(items):
        last = f"{i}/{item}"
    return last


TABLE = {"a_1": 1.5, "b_2": 2.5}


@case(("a", 1), ("b", 2), ("c", 3))
def table_by_a_made_key(p):
    key = f"{p[0]}_{p[1]}"
    return TABLE.get(key), TABLE.get(key, p[1]), key in TABLE, TABLE[key]


@case(2.675, -1.005, 0.5, 1e300, 3)
def rounded_to_digits(x):
    return round(x, 2), round(x, 0), round(x, ndigits=1)


@case((2, 3), (2, -1), (0, 0), (-3, 3), (0, -1))
def powers_of_ints(p):
    return p[0] ** p[1], 2 ** -p[1]


class Bare:
    def __init__(self, n):
        if n > 1:
            self.extra = n


@case(1, 2)
def attribute_of_some_objects(n):
    b = Bare(n)
    return hasattr(b, "extra"), getattr(b, "extra", None), hasattr(b, "never")


@case(Leaf("x", 2), Base("yy"))
def attribute_of_some_classes(node):
    return hasattr(node, "value"), getattr(node, "value", "none")


class Louder(Base):
    def scaled(this):
        return super().scaled() + 100

    @property
    def first(this):
        return super().first + "!"


@case(1, 2)
def method_of_the_base(n):
    a = Louder("x" * 3)
    b = [super(Louder, o).scaled() for o in [a]]
    return a.scaled(), a.first, b


# ---- parts of the library


@case(Branch(1, [Branch(2, [Branch(3)]), Branch(4)]), Branch(5))
def breadth_first(root):
    queue, found = collections.deque([root]), []
    while queue:
        node = queue.popleft()
        found.append(node.value)
        queue.extend(node.kids)
    return found


@case([1, 2, 3, 4, 5], [], [2])
def ends_of_a_deque(items):
    window, both = collections.deque(maxlen=2), collections.deque(items)
    for i in items:
        window.append(i)
        if i % 2 and len(both) > 1:
            both.appendleft(both.pop())
    both.rotate(2)
    return list(window), list(both), 2 in both, sum(window), both[0] if both else None


@case([], [1])
def empty_deque(items):
    return collections.deque(items).popleft()


@case([("a", 1), ("b", 2), ("a", 3)], [], [("c", 1)])
def default_dicts(pairs):
    groups, counts, more = collections.defaultdict(list), collections.Counter(), {}
    firsts = collections.defaultdict(lambda: -1)
    for name, number in pairs:
        groups[name].append(number)
        counts.update([name])
        more.setdefault(name, []).append(number)
        firsts[name] += number
    return dict(groups), counts["a"], counts.most_common(1), dict(firsts), more, "q" in groups


@case([("a", 1)], [])
def default_dict_without(pairs):
    found = collections.defaultdict(int)
    for name, number in pairs:
        found[name] = number
    del found["a"]
    return len(found)


@case([3, 1, 3, 2], [], [7])
def sets_of_numbers(items):
    seen, twice = set(), set()
    for i in items:
        if i in seen:
            twice.add(i)
        seen.add(i)
    seen.discard(2)
    some = {1, 2, 3}
    both = some & set(items)
    rests = {i % 3 for i in items}
    return len(seen), sorted(both | {9} | twice), some - both == {2}, both <= some, sum(rests)


@case("a", "zz")
def tag_in_a_set(s):
    return s in {"a", "b"}, s not in {"a", s}


@case([3, 1, 2], [])
def order_of_a_set(items):
    return [i for i in set(items)]


@case([1, 2], [])
def set_returned(items):
    return set(items)


@case([1, 2, 3], [4], [])
def iterators_of_the_library(items):
    pairs = list(itertools.product(items, [0, 1]))
    sums = list(itertools.accumulate(items)), list(itertools.accumulate(items, lambda a, b: a * b))
    steps = [b - a for a, b in itertools.pairwise(items)]
    numbered = [(i, x) for i, x in zip(itertools.count(1), itertools.chain(items, [9]))]
    total = functools.reduce(lambda a, b: a * 10 + b, items, 0)
    return pairs, sums, steps, numbered, total, list(itertools.combinations(items, 2))


@case([torch.ones(2), torch.zeros(2)], [torch.arange(2.0)])
def tensors_reduced(items):
    return functools.reduce(torch.add, items), max(items, key=lambda t: float(t.sum()))


@case([3, -4, 1], [5], [])
def extremes_by_key(items):
    first = min(items, key=lambda i: (-abs(i), i), default=None)
    return first, max(range(len(items)), key=lambda i: items[i], default=-1)


@case([], [1])
def extreme_of_nothing(items):
    return max(items, key=abs)


@case({"a": 1}, {"a": 2})
def dict_copied(d):
    e, pairs = dict(d), dict([("x", d["a"]), ("y", 2)])
    e["a"] = 5
    return d, e, pairs, ",".join([str(d["a"]), "z"])


# ---- members of enumerations, and tables of functions


class Shade(enum.Enum):
    DARK = "dark"
    LIGHT = "light"

    def opposite(self):
        return Shade.LIGHT if self is Shade.DARK else Shade.DARK

    @property
    def is_dark(self):
        return self == Shade.DARK


@dataclass
class Tagged:
    kind: Any
    number: int = 1


WEIGHTS = {Color.RED: 2.5, Color.BLUE: 3.5}


@case(Tagged(Color.RED), Tagged(Color.BLUE, 5), Tagged(None))
def enumeration_as_tag(t):
    if t.kind is None:
        return -1
    if t.kind is Color.RED:
        return t.kind.value, t.kind.name, t.kind
    return t.kind == Color.RED, t.kind != Color.BLUE, t.kind in (Color.RED, Color.BLUE), t.kind


@case(Tagged(Color.RED), Tagged(Color.BLUE, 5), Tagged(Shade.DARK))
def enumeration_matched(t):
    match t:
        case Tagged(kind=Color.RED):
            return 0
        case Tagged(kind=Color.BLUE, number=n):
            return n
        case _:
            return t.kind.is_dark, t.kind == Color.RED


@case((Color.RED, Color.RED), (Color.RED, Color.BLUE), (Color.BLUE, Shade.DARK), (None, Color.RED))
def members_compared(p):
    return p[0] is p[1], p[0] == p[1], bool(p[0]), isinstance(p[0], enum.Enum)


@case((Color.RED, 2), (Color.BLUE, 3))
def table_by_a_member(p):
    functions = {Color.RED: abs, Color.BLUE: lambda x: x * 3}
    return WEIGHTS[p[0]], functions[p[0]](-p[1]), WEIGHTS.get(p[0], 0.0)


@case(Shade.DARK, Shade.LIGHT)
def own_method_of_a_member(s):
    return 1 if s.is_dark else 2


@case([Color.RED, Color.BLUE], [])
def members_in_a_list(items):
    return Color.RED in items


@case((0, 3), (2, 3), (-1, 4), (3, 0))
def list_of_functions(p):
    several = [lambda a, i=i: a * i for i in range(3)]
    some = [abs, min, max]
    return sum([f(p[1]) for f in several]), several[p[0]](p[1]), len(some), some[1](p[1], 2)


@case(3, -4)
def functions_that_read_the_variable(n):
    several = [lambda a: a * i for i in range(3)]
    return several[0](n)


@case([2, 0, 1], [])
def function_chosen_in_a_loop(items):
    several = [abs, lambda x: x + 10, lambda x: x * 2]
    found, f = [], abs
    for i, place in enumerate(items):
        f = several[place]
        found.append(f(-i))
    return found, f(-5)


@case(("neg", 2), ("twice", 3), ("none", 4))
def table_of_functions(p):
    table = {"neg": lambda x: -x, "twice": lambda x: x + x}
    return table.get(p[0], abs)(p[1]), "neg" in table, p[0] in table, len(table)


# ---- variables that nested functions assign


@case(Branch(1, [Branch(2, [Branch(3)]), Branch(4)]), Branch(5))
def nonlocal_in_a_recursion(root):
    count, best = 0, None
    total: int = 0
    best = None
    seen = 0

    def go(node, depth):
        nonlocal seen, total
        seen += 1
        total = max(total, depth)

        def deeper():
            nonlocal total
            total += 10

        for kid in node.kids:
            go(kid, depth + 1)
        if depth > 1:
            deeper()

    go(root, 1)
    return count, best, total, seen


@case(3, 0)
def nonlocal_parameter(n):
    def twice():
        nonlocal n
        n *= 2
        return [n for _ in range(2)]

    before = n
    return twice(), before, n


@case([torch.ones(2), torch.arange(2.0)], [])
def nonlocal_tensor(items):
    h = torch.zeros(2)

    def step(x):
        nonlocal h
        h = torch.tanh(h + x)

    for x in items:
        step(x)
    return h


@case(3)
def nonlocal_in_a_loop(n):
    for last in range(n):
        pass

    def f():
        nonlocal last
        last += 1

    f()
    return last


@case({"a": 1, "b": 2}, {"c": 3})
def items_of_several_dicts(d):
    return [(str(k), v) for k, v in d.items()], sum(d.values()), len(d)


REFUSED = frozenset(
    (
        "assigned_slice",
        "nonlocal_in_a_loop",
        "in_place_method",
        "in_place_alias",
        "try_except",
        "iterator_next",
        "dynamic_unpack_call",
        "own_equality_within_others",
        "own_equality_of_items",
        "dicts_united",
        "string_repeated",
        "members_in_a_list",
        "functions_that_read_the_variable",
        "order_of_a_set",
        "set_returned",
        "iterator_gone_through_twice",
        "generator_gone_through_twice",
        "iterator_as_an_argument",
        "iterator_in_a_loop",
    )
)
"""Functions that are not understood; each is refused at its line."""
