"""Functions in the Python that stretto compiles, by topic; the tests run all of them.

Each is written as a user would write it. `CASES` gives the arguments of its calls: the first call
compiles, the others run the same program down other paths.
"""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[Any, ...]

A, B, C = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, 0.5]), torch.full((3,), 0.25)
ROWS = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
SQUARE = torch.randn(3, 3, generator=torch.Generator().manual_seed(2))


def number(value: int) -> Tensor:
    return torch.tensor(value)


CASES: dict[str, dict[Callable[..., Any], tuple[Case, ...]]] = {}


def cases(topic: str, *found: Case) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters the function below; every function has three calls."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        three = (*found, found[-1], found[-1])[:3]
        CASES.setdefault(topic, {})[function] = three
        return function

    return enter


# ---- branches --------------------------------------------------------------------------------


@cases("branches", (A,), (B,), (B * 4,))
def if_elif_else(x: Tensor) -> tuple[Tensor, int]:
    k = 0
    if x.sum() > 5:
        y, k = x * 2, 1
    elif x.sum() > -4:
        y = x - 1
    elif x[0] < -3:
        y, k = -x, 3
    else:
        y = x
    return y, k


@cases("branches", (A, B), (B, A), (C, A))
def early_returns(x: Tensor, y: Tensor) -> Tensor:
    if x.sum() > 5:
        return x * 2
    y = y @ SQUARE
    if x[0] < 0:
        return y
    for row in ROWS:
        y = torch.tanh(y + row)
        if y.max() > 0.9:
            return y * 10
    return y


@cases("branches", (A, 2), (B, 2), (A * 0, 2))
def boolean_operators(x: Tensor, n: int) -> Tensor:
    if x.sum() > 0 and x[0] < 5 and n == 2:
        x = x + 1
    if not x.any() or x[1] > 1:
        x = x * 2
    if not (x.sum() > 100 or n > 3):
        x = x - 0.5
    return x


@cases("branches", (A,), (B,), (A * 9,))
def chained_comparisons(x: Tensor) -> tuple[Tensor, bool]:
    inside = bool(0 < x.sum() <= 20 != x[0])
    return (x + 1 if -1 < x[0] < x[1] < 50 else x - 1), inside


@cases("branches", (A,), (B,), (C,))
def conditional_expressions(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.relu() if x.mean() > 0 else x.abs() if x[2] > 0 else -x
    return y, torch.stack([row * 2 if row > 0 else row for row in x.unbind()])


@cases("branches", (A, True, "add"), (B, True, "add"), (C, True, "add"))
def conditions_on_python_values(x: Tensor, flag: bool, mode: str) -> Tensor:
    if flag and x.shape[0] == 3 and mode in ("add", "sub"):
        x = {"add": x + 1, "sub": x - 1}[mode]
    if isinstance(x, Tensor) and x.dim() == 1 and x.dtype is torch.float32:
        return x * len(x)
    raise ValueError(mode)


@cases("branches", (A, number(1)), (B, number(0)), (A, number(7)))
def operand_that_may_fail(x: Tensor, i: Tensor) -> Tensor:
    if i < 3 and x[i] > 0:
        return x * 2
    return x


@cases("branches", (A, number(1)), (A, number(2)), (A, number(8)))
def membership(x: Tensor, k: Tensor) -> Tensor:
    if k.item() in (1, 5, 7):
        return x + k
    return x - k if k not in [2, 3] else x


@cases("branches", (A, number(1)), (A, number(2)), (A * 0, number(0)), (A, number(8)))
def membership_in_a_tensor(x: Tensor, k: Tensor) -> tuple[Tensor, bool]:
    found = k in x[:2]
    if 2 in x[[-1, 0]]:
        return x + k, found
    return x - k if k.item() not in x else x, found


@cases("branches", (A,), (B,), (C,))
def nested_branches(x: Tensor) -> tuple[Tensor, Tensor]:
    best = x
    if x[0] > 0:
        if x[1] > 1:
            best = x * 3
            if x[2] > 2:
                best = best + SQUARE[0]
        else:
            x = x * x
    return best, x


@cases("branches", (A,), (B,), (C,))
def torch_cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))


@cases("branches", (A,), (B,), (A * 5,))
def numbers_out_of_tensors(x: Tensor) -> tuple[float, int, bool, Tensor, int]:
    s, n = x.sum().item(), int(x[0])
    return s * 2 + 1, n // 2 + n % 3, bool(x[1] > 0), x * s, max(n, 2)


@cases("branches", (A,), (B,), (A * 2.5,))
def built_in_functions_on_numbers(x: Tensor) -> tuple[Any, ...]:
    s, n = x.sum().item(), int(x[1])
    whole = divmod(n, 3), round(s), round(x[2].item()), abs(n), math.floor(s), -(n**2)
    return *whole, round(s, 1), math.sqrt(abs(s)), min(n, 2, 7), sum([n, 1]), float(n), n / 4


# ---- loops -----------------------------------------------------------------------------------


@cases("loops", (A,), (A * 100,), (A * 0,))
def while_on_a_tensor(x: Tensor) -> tuple[Tensor, int]:
    n = 0
    while x.sum() < 100:
        x = x * 2 + 1
        n += 1
    return x, n


@cases("loops", (A,), (A * 100,), (A * 0,))
def while_with_a_flag(x: Tensor) -> tuple[Tensor, int]:
    done, n = False, 0
    while not done and n < 10:
        x = x * 2
        n += 1
        done = x.sum() > 20
    return x, n


@cases("loops", (A,), (A * 3,), (A * -9,))
def while_true(x: Tensor) -> Tensor:
    n = 0
    while True:
        x = x + 1
        n += 1
        if x.sum() > 20:
            break
        if n > 5:
            return -x
    return x


@cases("loops", (A,), (A * 30,), (B,))
def while_with_an_assignment_in_its_condition(x: Tensor) -> tuple[Tensor, Tensor]:
    n = 0
    while (s := x.sum()) < 30 and n < 9:
        x = x * 2
        n += 1
    return x, s


@cases("loops", (ROWS,), (-ROWS,), (ROWS * 0.1,))
def range_with_continue_and_break(xs: Tensor) -> tuple[Tensor, int]:
    total, last = torch.zeros(3), -1
    for i in range(7):
        if xs[i, 0] < 0:
            continue
        total = total + xs[i] * i
        last = i
        if total.abs().max() > 3:
            break
    return total, last


@cases("loops", (ROWS,), (-ROWS,), (ROWS * 2,))
def range_forwards_and_backwards(xs: Tensor) -> Tensor:
    h = torch.zeros(3)
    for i in range(len(xs)):
        h = torch.tanh(xs[i] + h @ SQUARE)
    for i in range(6, 0, -2):
        h = h * 0.5 + xs[i] * i
    for i in reversed(range(7)):
        h = h + xs[i, 0] * i
    return h


@cases("loops", (A, number(3)), (A, number(0)), (A, number(11)))
def range_over_a_tensor(x: Tensor, n: Tensor) -> Tensor:
    for i in range(n):
        x = x * 0.5 + i
    for i in range(int(n) - 5, n.item() + 5, 3):
        x = x + i
    return x


@cases("loops", (ROWS, ROWS + 1), (-ROWS, ROWS), (ROWS * 2, ROWS * 3))
def over_tensors(xs: Tensor, ys: Tensor) -> Tensor:
    h = torch.zeros(3)
    for x in xs:
        h = torch.tanh(h + x)
    for i, x in enumerate(xs):
        h = torch.tanh(h + x * i)
    for x, y in zip(xs, ys, strict=True):
        h = h * x + y
    return h


@cases("loops", ([A, B, C],), ([B, B, B],), ([C, A, A],))
def over_python_containers(xs: list[Tensor]) -> tuple[Tensor, int]:
    h, n = torch.zeros(3), 0
    for x in xs:
        h = h + x
        n += 1
        if h.sum() > 5:
            break
    for name, part in {"a": xs[0], "b": xs[1]}.items():
        h = h + part * len(name)
    for k in (1, 2.5, True):
        h = h * k
    return h, n


@cases("loops", (torch.zeros(5),), (torch.tensor([0.0, 0, 2, 0, 3]),), (torch.ones(5) * -1,))
def loop_else(x: Tensor) -> Tensor:
    y = x
    for i in range(5):
        if x[i] > 1:
            y = x * i
            break
    else:
        y = x - 1
    return y


@cases("loops", (SQUARE,), (SQUARE * 3,), (SQUARE * 0,))
def return_from_nested_loops(x: Tensor) -> Tensor:
    for i in range(3):
        for j in range(3):
            if x[i, j] > 1.5:
                return x[i] * j
    return x[0]


@cases("loops", (A,), (B,), (C,))
def torch_while_loop(x: Tensor) -> Tensor:
    _, z = torch.while_loop(lambda n, v: n < 5, lambda n, v: (n + 1, v * 1.5), (torch.tensor(0), x))
    return z


@cases("loops", (ROWS,), (-ROWS,), (ROWS * 0,))
def accumulators(xs: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    total, best, h = 0, torch.tensor(-1e9), None
    for i in range(7):
        total = total + xs[i].sum()
        best = xs[i].max() if xs[i].max() > best else best
        h = xs[i] if h is None else torch.tanh(h + xs[i])
    return total, best, h


# ---- lists -----------------------------------------------------------------------------------


@cases("lists", (ROWS,), (-ROWS,), (ROWS * 3,))
def list_of_static_length(xs: Tensor) -> tuple[Tensor, Tensor, int, Tensor]:
    out: list[Tensor] = []
    h = xs[0]
    for i in range(7):
        h = torch.tanh(h + xs[i])
        out.append(h)
    return torch.stack(out), out[-1], len(out), torch.cat(out, dim=-1)


@cases("lists", (A,), (A * 100,), (A * 3,))
def list_of_dynamic_length(x: Tensor) -> list[Tensor]:
    out = []
    while x.sum() < 50:
        x = x * 2
        out.append(x)
    return out


@cases("lists", (A,), (A * 100,), (A * 3,))
def stack_of_dynamic_length(x: Tensor) -> tuple[Tensor, Tensor, int]:
    out = [x]
    while x.sum() < 50:
        x = x * 2
        out.append(x)
    rows = torch.stack(out)
    return torch.tanh(rows @ SQUARE).sum(0), rows.mean(), len(out)


@cases("lists", (A,), (B,), (A * 60,))
def pop_and_index(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    stack = [x]
    total = torch.zeros(3)
    n = 0
    while n < 6 and x.sum() < 100:
        if len(stack) > 1 and total.sum() > x.sum():
            total = total - stack.pop()
        else:
            stack.append(stack[-1] + 1)
            total = total + stack[0] + stack[len(stack) - 1]
        n += 1
    return total, stack


@cases("lists", (A,), (B,), (C,))
def list_that_grows_in_one_arm(x: Tensor) -> tuple[list[Tensor], int]:
    out = [x]
    if x.sum() > 1:
        out.append(x * 2)
    out.append(x * 3)
    return out, len(out)


@cases("lists", (A,), (A * 40,), (B,))
def list_of_numbers(x: Tensor) -> tuple[list[int], list[float]]:
    counts, sums = [], []
    n = 0
    while n < 5 and x.sum() < 100:
        counts.append(n)
        sums.append(x.sum().item())
        x = x * 3
        n += 1
    return counts, sums


@cases("lists", (A, number(2)), (B, number(0)), (A, number(5)))
def two_lists_of_different_length(x: Tensor, n: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    evens, odds = [], []
    for i in range(n):
        x = x + 1
        if i % 2 == 0:
            evens.append(x)
        else:
            odds.append(x * 10)
    return evens, odds


# ---- state: containers, classes, functions ---------------------------------------------------


Point = namedtuple("Point", ["x", "y"])


@dataclass
class State:
    value: Tensor
    steps: int = 0
    extra: dict[str, Tensor] | None = None


@cases("state", (ROWS,), (-ROWS,), (ROWS * 2,))
def containers_around_a_loop(xs: Tensor) -> tuple[Tensor, ...]:
    pair = (torch.zeros(3), torch.ones(3))
    table = {"n": 0, "s": torch.zeros(())}
    stack = [torch.zeros(3), torch.zeros(3)]
    for x in xs:
        pair = (pair[1] + x, pair[0])
        table["n"] += 1
        table["s"] = table["s"] + x.sum()
        stack = [stack[1], stack[0] + x]
    return *pair, table["s"] * table["n"], *stack


@cases("state", (ROWS,), (-ROWS,), (ROWS * 2,))
def dataclass_in_a_loop(xs: Tensor) -> State:
    state = State(torch.zeros(3))
    for i in range(7):
        state.value = state.value + xs[i]
        if state.value.sum() > 1:
            state.value = -state.value
            state.steps += 1
    return state


@cases("state", (A,), (B,), (C,))
def results_of_all_kinds(x: Tensor) -> object:
    y = x * 2
    return {
        "list": [y, (y, x)],
        "none": None,
        "named": Point(y, 3),
        "data": State(y, 1, {"a": x + 1}),
        "text": f"{x.shape[0]} rows",
        "ordered": OrderedDict(a=x + 2),
        "mean": x.mean().item(),
    }


@cases("state", (A, {"w": B, "parts": [A, C]}), (B, {"w": A, "parts": [C, C]}))
def structured_arguments(x: Tensor, batch: dict[str, Any]) -> Tensor:
    total = x * batch["w"]
    for part in batch["parts"]:
        total = total + part
    return total


class Residual(nn.Module):
    def __init__(self, size: int, scale: float) -> None:
        super().__init__()
        self.map = nn.Linear(size, size)
        self.scale = scale

    def forward(self, x: Tensor, *, gate: bool = True) -> Tensor:
        y = torch.relu(self.map(x))
        if gate and y.mean() > 0.3:
            y = y * self.scale
        return x + y


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Residual(3, 0.5 + n) for n in range(3)])
        self.cells = nn.ModuleDict({"rnn": nn.LSTMCell(3, 3)})
        self.head = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Dropout(0.5))
        self.register_buffer("offset", torch.ones(3))

    def forward(self, xs: Tensor) -> Tensor:
        h = c = torch.zeros(1, 3)
        for i, x in enumerate(xs):
            if i < 5:
                h, c = self.cells["rnn"](x[None] + self.offset, (h, c))
        for i, block in enumerate(self.blocks):
            h = block(h, gate=i != 1)
        return self.head(h)


torch.manual_seed(0)
NETWORK = Network().eval()


@cases("state", (ROWS,), (-ROWS,), (ROWS * 3,))
def modules(xs: Tensor) -> Tensor:
    return NETWORK(xs)


@cases("state", (A,), (B,), (C,))
def closures(x: Tensor) -> tuple[Tensor, int]:
    calls, factor = 0, 2.0

    def scaled(v: Tensor, *, by: float = 1.5, **extra: float) -> Tensor:
        nonlocal calls
        calls += 1
        if v.sum() > 0:
            return v * by * factor
        return v + sum(extra.values())

    y = scaled(x) + scaled(x, by=0.5) + scaled(-x, other=0.25)
    factor = 3.0
    pick = lambda v, k=1: v[k] if v[0] > 0 else v[2]  # noqa: E731
    return scaled(y) + pick(x) + pick(-x, k=0), calls


@cases("state", (A, "left"), (B, "left"), (C, "left"))
def strings_and_asserts(x: Tensor, name: str) -> dict[str, Tensor]:
    assert x.shape[0] == 3, f"{name} has shape {x.shape}"
    assert x.sum() < 100
    return {f"{name}_{x.shape[0]}": x + 1, name.upper(): x * 2}


@cases("state", (ROWS.clone(), A), (ROWS.clone(), A * 40), (ROWS.clone(), B))
def in_place_writes(cache: Tensor, x: Tensor) -> Tensor:
    step = 0
    while x.sum() < 50 and step < 4:
        cache[step] = x
        cache[step + 1 : step + 3, 0] += 1
        x = x * 2
        step += 1
    y = cache.clone()
    y.t()[1].mul_(3)
    return y


# ---- recursion -------------------------------------------------------------------------------

LEFT, RIGHT = torch.tensor([1, 3, 5, 0, 0, 0, 0]), torch.tensor([2, 4, 6, 0, 0, 0, 0])
LEAF = torch.arange(7) > 2


@cases("recursion", (ROWS, number(0)), (ROWS, number(1)), (ROWS, number(4)))
def tree(values: Tensor, root: Tensor) -> Tensor:
    def visit(node: Tensor) -> Tensor:
        if LEAF[node]:
            return values[node]
        a, b = visit(LEFT[node]), visit(RIGHT[node])
        return torch.tanh(SQUARE @ a + b)

    return visit(root)


def even(x: Tensor, n: Tensor) -> Tensor:
    return x if n == 0 else odd(x + 1, n - 1)


def odd(x: Tensor, n: Tensor) -> Tensor:
    if n == 0:
        return -x
    return even(x * 2, n - 1)


@cases("recursion", (A, number(3)), (A, number(0)), (B, number(6)))
def mutual(x: Tensor, n: Tensor) -> Tensor:
    return even(x, n)


def factorial(n: int) -> int:
    return 1 if n <= 1 else n * factorial(n - 1)


@cases("recursion", (number(6),), (number(0),), (number(10),))
def on_a_number(n: Tensor) -> int:
    return factorial(n.item())


def several(x: Tensor, n: Tensor) -> tuple[Tensor, dict[str, Tensor], int]:
    if n == 0:
        return x, {"s": x.sum()}, 0
    y, table, depth = several(x * 0.5, n - 1)
    return y + x, {"s": table["s"] + 1}, depth + 1


cases("recursion", (A, number(3)), (A, number(0)), (B, number(20)))(several)


def loops_inside(x: Tensor, n: Tensor) -> Tensor:
    if n <= 0:
        return x
    total = torch.zeros(3)
    for i in range(4):
        if x[0] > i * 0.1:
            total = total + loops_inside(x * 0.5 - 0.1, n - 2)
    while total.sum() > 1:
        total = total / 2
    return total + loops_inside(x - 1, n - 1)


cases("recursion", (C, number(3)), (C, number(0)), (B, number(4)))(loops_inside)


@cases("recursion", (A, number(2)), (B, number(3)), (A, number(0)))
def in_a_loop_in_a_branch(x: Tensor, n: Tensor) -> Tensor:
    def down(v: Tensor, k: Tensor) -> Tensor:
        return v if k < 1 else down(v * 0.9, k - 1) + 1

    if x.sum() > 0:
        for i in range(4):
            x = down(x, n) - i
    return x


@cases("recursion", (ROWS.clone(), number(3)), (ROWS.clone(), number(0)), (ROWS.clone(), number(6)))
def writing_in_place(x: Tensor, n: Tensor) -> Tensor:
    out = torch.zeros(8)

    def walk(k: Tensor) -> None:
        if k > 0:
            out[k] = x[k].sum() * 2
            walk(k - 1)

    walk(n)
    return out


@cases("recursion", (A, 5), (B, 5), (C, 5))
def on_python_values(x: Tensor, n: int) -> Tensor:
    return x if n == 0 else on_python_values(x, n - 1) * x + n


# ---- lists in recursion ----------------------------------------------------------------------

DEPTHS = (A, number(3)), (A, number(0)), (B, number(4))


@cases("lists in recursion", *DEPTHS)
def appended_before_and_after(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    def visit(x: Tensor, n: Tensor, out: list[Tensor]) -> None:
        out.append(torch.tanh(x))
        if n > 0:
            visit(x * 0.5, n - 1, out)
            out.append(x + 1)
            visit(x * 0.25, n - 2, out)

    out = [x]
    visit(x, n, out)
    return torch.stack(out), len(out)


@cases("lists in recursion", *DEPTHS)
def recursion_in_loops_in_recursion_on_a_list(x: Tensor, n: Tensor) -> list[Tensor]:
    out: list[Tensor] = []

    def visit(x: Tensor, n: Tensor) -> None:
        for i in range(n):
            out.append(x + i)
            visit(x * 0.5, n - 2 - i)

    for i in range(n):
        visit(x * i, n - i)
        if len(out) > 3:
            out.append(out[0] + out[-1])
    return out


@cases("lists in recursion", *DEPTHS)
def read_and_returned(x: Tensor, n: Tensor) -> tuple[list[Tensor], Tensor]:
    def visit(x: Tensor, n: Tensor, out: list[Tensor]) -> Tensor:
        if n <= 0:
            return x
        last, first, k = out[-1], out[0], len(out)
        out.append(last * 0.5 + first + k)
        visit(x * 0.5, n - 1, out)
        out.append(out[-1] + last)
        return visit(last * 0.1, n - 2, out) + last + out[-1]

    out = [x]
    found = visit(x, n, out)
    return out, found


@cases("lists in recursion", *DEPTHS)
def a_path_back_and_forth(x: Tensor, n: Tensor) -> Tensor:
    def visit(x: Tensor, n: Tensor, path: list[Tensor]) -> Tensor:
        if n <= 0:
            return torch.stack(path).sum(0)
        path.append(x)
        found = visit(x * 0.5, n - 1, path)
        path.pop()
        path.append(x.sin())
        found = found + visit(x * 0.25, n - 2, path)
        path.pop()
        return found

    return visit(x, n, [x])


@cases("lists in recursion", *DEPTHS)
def a_list_between_two_functions(x: Tensor, n: Tensor) -> Tensor:
    def one(x: Tensor, n: Tensor, out: list[Tensor]) -> None:
        out.append(x[None])
        if n > 0:
            other(x * 0.5, n - 1, out)

    def other(x: Tensor, n: Tensor, out: list[Tensor]) -> None:
        out.append(-x[None])
        if n > 0:
            one(x * 0.5, n - 1, out)
            one(x * 0.25, n - 2, out)

    out: list[Tensor] = []
    one(x, n, out)
    return torch.cat(out)


@cases("lists in recursion", ([C], A, number(3)), ([C], A, number(0)), ([C], B, number(4)))
def a_list_of_the_caller(out: list[Tensor], x: Tensor, n: Tensor) -> int:
    def visit(x: Tensor, n: Tensor, out: list[Tensor]) -> None:
        if n > 0:
            out.append(x)
            visit(x * 0.5, n - 1, out)
            visit(x * 0.25, n - 1, out)

    visit(x, n, out)
    return len(out)


# ---- everything nested -----------------------------------------------------------------------


@cases("nested", (A * 3, number(4)), (B, number(0)), (C, number(7)))
def loops_in_branches_in_loops(x: Tensor, n: Tensor) -> tuple[Tensor, list[Tensor]]:
    out = []
    for i in range(n):
        if x.sum() > 0:
            while x.max() > 1:
                x = x / 2
                for j in range(3):
                    x = x + 0.01 * j
                    if x[0] > 0.3:
                        break
            out.append(x)
        else:
            x = -x * (i + 1)
    return x, out


@cases("nested", (ROWS, number(2)), (-ROWS, number(3)), (ROWS * 2, number(0)))
def recursion_in_loops_in_recursion(xs: Tensor, n: Tensor) -> Tensor:
    def inner(x: Tensor, k: Tensor) -> Tensor:
        if k <= 0:
            return x * 0.5
        while x.abs().max() > 2:
            x = x * 0.7
        return inner(torch.tanh(x @ SQUARE), k - 1) + x

    def outer(i: Tensor, depth: Tensor) -> Tensor:
        if depth <= 0:
            return inner(xs[i], depth + 2)
        total = torch.zeros(3)
        for j in range(3):
            if xs[j].sum() > 0:
                total = total + outer((i + j) % 7, depth - 1)
            else:
                total = total - inner(xs[j], depth)
        return total

    return outer(torch.tensor(0), n)


@cases("nested", (A,), (B,), (A * 10,))
def torch_operators_among_python(x: Tensor) -> Tensor:
    def halve(v: Tensor) -> Tensor:
        return torch.cond(v.sum() > 3, lambda u: u * 0.5, lambda u: u + 1, (v,))

    for _ in range(3):
        _, x = torch.while_loop(
            lambda k, v: k < 4, lambda k, v: (k + 1, v * 1.2), (torch.tensor(0), x)
        )
        x = halve(x)
        if x.sum() < 0:
            break
    return x
