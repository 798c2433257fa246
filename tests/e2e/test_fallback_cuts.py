"""`fallback=True` cuts a function at single statements: hard cases, against eager PyTorch."""

# pyright: reportPossiblyUnboundVariable=false, reportUnboundVariable=false
# pyright: reportConstantRedefinition=false
# what Python does with such variables is tested

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from tests.frontends.python.checks import assert_same

X = torch.linspace(-1, 1, 12).reshape(3, 4)
COUNT = 0


def early_return(x: Tensor) -> Any:
    if x.sum() > 0:
        v = x.numpy().sum()
        if v > 3:
            return x * float(v)
        x = x + 1
    return x * 2, x.sum()


def view_is_changed(x: Tensor) -> Any:
    y = x * 2
    v = y[0]
    n = float(y.numpy().max())
    v.add_(n)
    return y, v


def argument_is_changed(x: Tensor) -> Any:
    x.add_(1)
    a = x.numpy().sum()
    x.mul_(2)
    x[0] = float(a)
    return x * 2


def one_tensor_has_two_names(x: Tensor) -> Any:
    y = x
    z = x * 1
    w = z
    a = z.numpy().sum()
    w.add_(1)
    y = y + float(a)
    return y, z, w, w is z


def perhaps_the_same(x: Tensor) -> Any:
    z = x * 1
    y = z if x.sum() > 0 else z * 3
    a = float(z.numpy().sum())
    y.add_(a)
    return y, z


def list_has_two_names(x: Tensor) -> Any:
    items: list[Tensor] = []
    other = items
    for i in range(3):
        items.append(x * i)
    n = x.numpy().shape[0]
    other.append(x + n)
    items[0].add_(1)
    return torch.stack(items), len(other), items is other


def dict_has_two_names(x: Tensor) -> Any:
    d = {"a": x + 1}
    e = d
    v = x.numpy().sum()
    e["b"] = d["a"] * float(v)
    d["a"].zero_()
    return e


def lists_in_lists(x: Tensor) -> Any:
    a: list[Any] = [x * 1]
    b: list[Any] = [a[0], a]
    x.numpy()
    b[0].add_(1)
    b[1].append(x)
    return a, len(b[1])


def handlers(x: Tensor) -> Any:
    y = None
    state = "start"
    try:
        y = x * 2
        state = "doubled"
        if x.numpy().sum() > 5:
            raise ValueError("big")
        state = "small"
        y = y + 1
    except ValueError as error:
        return y, state, str(error)
    finally:
        if y is not None:
            y.add_(10)
    return y, state


def program_raises(x: Tensor) -> Any:
    y = x
    state = "start"
    before = x.numpy()
    try:
        y = x * 2
        state = "doubled"
        y.add_(1)
        z = y[int(abs(x.sum())) + 2]
        state = "indexed"
    except IndexError:
        state = state + " caught"
        z = y[0]
    return y, z, state, float(before.sum())


def exception_is_suppressed(x: Tensor) -> Any:
    state = 0
    a = x.numpy().sum()
    with contextlib.suppress(IndexError):
        y = x + 1
        state = 1
        y[int(abs(a)) + 1]
        state = 2
    return state, x * state


def raised_again(x: Tensor) -> Any:
    try:
        try:
            x.numpy()
            raise KeyError("a")
        except KeyError:
            y = x + 1
            raise
    except KeyError as error:
        return y, repr(error)


def draws_before_an_exception(x: Tensor) -> Any:
    torch.manual_seed(0)
    x.numpy()
    try:
        y = x + torch.rand(4)
        z = y[int(abs(x.sum())) + 1]
    except IndexError:
        z = torch.rand(4)
    return z, torch.rand(1)


def closure_reads(x: Tensor) -> Any:
    y = x * 2

    def scale(t: Tensor) -> Tensor:
        return torch.relu(t) * y + t

    a = float(x.numpy().sum())
    z = scale(x) + a
    return z, scale(z)


def closure_assigns(x: Tensor) -> Any:
    count = 0
    total = x * 0

    def add(t: Tensor) -> Tensor:
        nonlocal count, total
        count += 1
        total = total + t * count
        return total

    a = add(x)
    b = float(x.numpy().sum())
    add(x + b)
    return total, count, a


def closures_of_a_loop(x: Tensor) -> Any:
    functions: list[Callable[[Tensor], Tensor]] = []
    for i in range(3):
        y = x * i
        functions.append(lambda t: t + y)  # noqa: B023
    v = float(x.numpy().sum())
    return [function(x) + v for function in functions]


def while_is_cut(x: Tensor) -> Any:
    n = 0
    while x.abs().max() > 0.5:
        x = x * 0.5
        n += 1
        if float(x.numpy().max()) < 0.2:
            break
        x = x + 0.01
    else:
        x = x - 1
    return x, n


def for_is_cut(x: Tensor) -> Any:
    for i in range(4):
        x = torch.tanh(x) + i
        if x.numpy().sum() > 20:
            found = i
            break
        if i == 1:
            continue
        x = x * 2
    else:
        found = -1
    return x, found


def return_from_two_loops(x: Tensor) -> Any:
    for i in range(3):
        for j in range(3):
            x = x + i * j
            if x.numpy()[0, 0] > 2:
                return x, i, j
        x = x * 2
    return x


def variable_may_lack_a_value(x: Tensor) -> Any:
    if x.sum() > 0:
        y = x * 2
    x.numpy()
    z = x + 1
    try:
        return y + z
    except UnboundLocalError:
        return z


def variable_is_deleted(x: Tensor) -> Any:
    y = x * 2
    z = y + 1
    del y
    n = x.numpy().sum()
    try:
        return y
    except NameError:
        return z + float(n)


def modes(x: Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        a = y.numpy().sum()
        z = y + float(a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        w = z @ z.t()
        b = w.float().numpy().shape[0]
        v = torch.relu(w) + b
    return z, v.dtype, v.shape


def matched(x: Tensor) -> Any:
    kind: tuple[Any, ...] = ("a", 2) if x.numpy().sum() > 0 else ("b",)
    match kind:
        case ("a", n):
            y = x * n
            y.numpy()
            y = y + 1
        case ("b",):
            y = x - 1
        case _:
            y = x
    return y


def iterator_stays(x: Tensor) -> Any:
    it = iter([x, x * 2, x * 3])
    a = next(it) + 1
    b = x.numpy().sum()
    c = next(it) * float(b)
    return a, c, list(it)


def values_of_a_generator(x: Tensor) -> Any:
    def values(t: Tensor) -> Iterator[Tensor]:
        for i in range(3):
            yield t * i

    s = x * 0
    for value in values(x):
        s = s + value
        s.numpy()
    return s


def layouts(x: Tensor) -> Any:
    y = (x * 2).t()
    y.numpy()
    z = y.contiguous()
    z.add_(1)
    return y, z, y.stride(), z.stride()


def perhaps_a_copy(x: Tensor) -> Any:
    x.numpy()
    y = x.contiguous()
    y.add_(1)
    return x, y


def rows(x: Tensor) -> Any:
    doubled = [row * 2 for row in x]
    doubled[0].add_(1)
    x.numpy()
    views = list(x)
    views[0].add_(5)
    return doubled, x


def chunks(x: Tensor) -> Any:
    q, k = (x * 2).chunk(2, 1)
    q.numpy()
    q.add_(1)
    return q, k, q @ k.t()


def globals_change(x: Tensor) -> Any:
    global COUNT
    COUNT += 1
    y = x * COUNT
    y.numpy()
    if y.sum() < 1e9:
        COUNT += 1
    return y + COUNT


def returns_nothing(x: Tensor) -> None:
    x.numpy()
    x.add_(1)


def calls_itself(x: Tensor, n: int = 3) -> Tensor:
    if n == 0:
        return x
    v = float(x.numpy().max())
    return calls_itself(torch.tanh(x) + v, n - 1) * 2


def star_arguments(x: Tensor, *rest: Any, scale: float = 2.0, **more: Any) -> Any:
    y = x * scale
    a = y.numpy().sum()
    return y + float(a) + len(rest) + len(more)


PROGRAMS = (
    early_return, view_is_changed, argument_is_changed, one_tensor_has_two_names, perhaps_the_same,
    list_has_two_names, dict_has_two_names, lists_in_lists, handlers, program_raises,
    exception_is_suppressed, raised_again, draws_before_an_exception, closure_reads,
    closure_assigns, closures_of_a_loop, while_is_cut, for_is_cut, return_from_two_loops,
    variable_may_lack_a_value, variable_is_deleted, modes, matched, iterator_stays,
    values_of_a_generator, layouts, perhaps_a_copy, rows, chunks, globals_change, returns_nothing,
    calls_itself, star_arguments,
)  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_cut_functions_do_what_eager_does(function: Callable[..., Any]) -> None:
    global COUNT
    fast = stretto.compile(function, backend="interpreter", fallback=True)
    for x in (X, X + 1, X.t().contiguous().t(), X * 3 - 0.1):
        found = list[Any]()
        for run in (function, fast):
            COUNT = 0
            given = x.clone()
            found.append((run(given), given, COUNT))
        assert_same(found[1], found[0])
    assert "in Python: 4 calls" in fast.explain()


class Model(nn.Module):
    """`super()`, private names, buffers, a statement in the middle that needs NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.__scale = 2.0
        self.register_buffer("seen", torch.zeros(()))
        self.largest: list[float] = []

    def extra_repr(self) -> str:
        return super().extra_repr()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x)) * self.__scale
        self.largest.append(float(h.numpy().max()))
        self.seen += 1
        name = super().extra_repr()
        y = self.second(h) + self.seen + len(name)
        return y.softmax(-1)


def models() -> tuple[Model, Model]:
    torch.manual_seed(0)
    one, other = Model(), Model()
    other.load_state_dict(one.state_dict())
    return one.eval().requires_grad_(False), other.eval().requires_grad_(False)


def test_the_statements_around_a_cut_are_native() -> None:
    one, other = models()
    fast = stretto.compile(one, backend="emulator", fallback=True)
    for x in (X, X + 1, torch.ones(5, 4), torch.ones(7, 4)):
        assert_same(fast(x), other(x))
    assert one.largest == pytest.approx(other.largest)
    assert one.seen == 4
    text = fast.explain()
    assert "1 statement in Python, 4 runs" in text
    assert "self.largest.append(float(h.numpy().max()))" in text
    line = Model.forward.__code__.co_firstlineno + 1
    assert f"forward, line {line} to {line}: 2 signatures compiled" in text
    assert f"forward, line {line + 2} to {line + 5}: 2 signatures compiled" in text


def test_the_statement_that_makes_a_view_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known which one that is: no segment is halved until it is found."""

    def viewed(x: Tensor) -> Tensor:
        a = x + 1
        b = a * 2
        c = b.t()
        d = b.exp()
        e = d.sum(0)
        f = e * 3
        g = float(x.numpy().max())
        return (b + 1) * f + c.sum() + d + g

    captures = list[str]()
    capture = stretto.call.compiler.capture

    def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
        captures.append(function.__name__)
        return capture(function, *args, **kwargs)

    monkeypatch.setattr("stretto.call.compiler.capture", counted)
    fast = stretto.compile(viewed, backend="interpreter", fallback=True)
    for x in (X, X + 1, X):
        assert_same(fast(x), viewed(x))
    line = viewed.__code__.co_firstlineno
    text = fast.explain()
    assert "c = b.t()" in text and "2 statements in Python" in text
    assert f"viewed, line {line + 1} to {line + 2}" in text
    assert f"viewed, line {line + 4} to {line + 6}" in text
    assert len(captures) == 7, captures


def test_what_is_printed_is_printed_in_each_call() -> None:
    def shown(x: Tensor) -> Tensor:
        y = torch.relu(x)
        for i in range(2):
            print(f"{i}: {y.sum():.3f}")
            y = y * 2
        return y

    fast = stretto.compile(shown, backend="interpreter", fallback=True)
    texts = list[str]()
    for run in (shown, fast, fast):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert_same(run(X), shown(X) if run is not shown else run(X))
        texts.append(out.getvalue())
    assert texts[0] == texts[1] == texts[2]
    assert "in Python" not in fast.explain()


def test_a_segment_whose_arguments_always_differ_runs_in_python() -> None:
    def scaled(x: Tensor, n: int) -> Tensor:
        factor = 1.0
        for _ in range(n):
            x.numpy()
            x = x * factor
            factor = factor * 0.99
        return x

    fast = stretto.compile(scaled, backend="interpreter", fallback=True)
    assert_same(fast(X, 40), scaled(X, 40))
    assert "as its arguments always differ" in fast.explain()


@pytest.mark.gradients
def test_gradients_run_eager() -> None:
    def cut(x: Tensor) -> Tensor:
        y = x * 2
        y.detach().numpy()
        return y * 3

    fast = stretto.compile(cut, backend="interpreter", fallback=True)
    with torch.no_grad():
        fast(X)
    x = X.clone().requires_grad_()
    with pytest.warns(stretto.StrettoWarning, match="requires grad"):
        assert fast(x).requires_grad


def test_a_new_container_with_two_names_is_one() -> None:
    def twice(x: Tensor) -> Any:
        items = [x + 1]
        return items, items

    one, other = stretto.compile(twice, backend="interpreter")(X)
    assert one is other


def test_files_of_tensors_are_refused() -> None:
    with pytest.raises(stretto.CaptureError, match="'save' acts on the world outside"):
        stretto.compile(lambda x: torch.save(x, io.BytesIO()), backend="interpreter")(X)


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, TypeError])
def test_what_raises_while_it_is_captured_runs_in_python(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(x: Tensor) -> Tensor:
        y = x * 2
        return y * 3

    def fail(*_: Any, **__: Any) -> None:
        raise kind("not now")

    monkeypatch.setattr("stretto.call.compiler.capture", fail)
    fast = stretto.compile(asks, backend="interpreter", fallback=True)
    assert_same(fast(X), asks(X))
    assert f"{kind.__name__} was raised while it was captured: not now" in fast.explain()
    with pytest.raises(kind, match="not now"):
        stretto.compile(asks, backend="interpreter")(X)


@pytest.mark.parametrize("fallback", [True, False])
@pytest.mark.parametrize("kind", [RuntimeError, AssertionError, KeyError])
def test_a_stage_that_fails_is_not_hidden(
    kind: type[Exception], fallback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise kind("a defect")

    def cut(x: Tensor) -> Tensor:
        y = x * 2
        y.numpy()
        return y * 3

    monkeypatch.setattr("stretto.call.compiler.build", fail)
    for function in (cut, torch.tanh) if fallback else (torch.tanh,):
        with pytest.raises(kind, match="a defect"):
            stretto.compile(function, backend="interpreter", fallback=fallback)(X)
