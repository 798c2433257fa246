"""A compiled function is a drop-in for the original: state, results, arguments, processes."""

from __future__ import annotations

import functools
import os
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import BuildError
from stretto.options import Debug, Options
from tests.e2e.machines import check, check_call, native
from tests.frontends.python.checks import assert_same

A, B = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, 0.5])


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def emulated(function: Callable[..., Any], **options: Any) -> Any:
    return stretto.compile(
        function, backend="emulator", options=Options.of({"threads": 2, **options})
    )


# ---- state -----------------------------------------------------------------------------------


def test_changed_inputs_are_written_back() -> None:
    def f(x: Tensor, cache: Tensor) -> Tensor:
        x.add_(1)
        cache[1] = x
        return x * cache

    for backend in ("cpu", "emulator", "interpreter"):
        check(f, (A, torch.zeros(2, 3)), (B, torch.ones(2, 3)), backend=backend)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        if x.sum() > 0:
            self.mean.copy_(0.9 * self.mean + 0.1 * x)
        return x - self.mean / self.steps


@pytest.mark.parametrize("backend", ["cpu", "emulator"])
def test_changed_buffers_are_written_back(backend: str) -> None:
    model, expected = Counter(), Counter()
    fast = stretto.compile(model, backend=backend)
    for x in (A, B, A):
        assert_same(fast(x), expected(x))
        assert_same(dict(model.named_buffers()), dict(expected.named_buffers()))
    assert len(fast.signatures) == 1


def test_a_replaced_buffer_is_the_one_that_is_written() -> None:
    model = Counter()
    fast = emulated(model)
    fast(A)
    first, model.steps = model.steps, torch.zeros(())
    fast(A)
    assert (first, model.steps) == (1, 1)


def model_of_two() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))


def changed_in_place(model: Any) -> None:
    model[0].weight.mul_(-2)


def stepped_by_an_optimizer(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.enable_grad():
        model(A).sum().backward()
    optimizer.step()


def loaded(model: Any) -> None:
    model.load_state_dict({key: value + 1 for key, value in model.state_dict().items()})


def replaced_parameter(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.ones(3, 3))


def replaced_data(model: Any) -> None:
    model[0].weight.data = torch.ones(3, 3)


def replaced_module(model: Any) -> None:
    model[2] = nn.Linear(3, 4)


def appended_module(model: Any) -> None:
    model.append(nn.Linear(2, 1))


CHANGES = [
    changed_in_place,
    stepped_by_an_optimizer,
    loaded,
    replaced_parameter,
    replaced_data,
    replaced_module,
    appended_module,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_module_is_compiled_again(change: Callable[[nn.Module], None]) -> None:
    model = model_of_two()
    fast = emulated(model)
    before = fast(A)
    assert_same(before, model(A))
    change(model)
    after = fast(A)
    assert before.shape != after.shape or not torch.allclose(before, after)
    assert_same(after, model(A))


def test_a_changed_module_of_a_closure_is_compiled_again() -> None:
    model, scale = model_of_two(), torch.ones(3)
    fast = emulated(lambda x: model(x * scale))
    for change in (changed_in_place, replaced_module, lambda _: scale.mul_(3)):
        change(model)
        assert_same(fast(A), model(A * scale))


class Moded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.inner = nn.Sequential(nn.Dropout(0.0), nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return y * 2 if self.inner[1].training else y


def test_train_and_eval() -> None:
    model, expected, x = Moded(), Moded(), torch.randn(4, 3)
    fast = emulated(model)
    for mode in (True, False, True):
        model.train(mode)
        expected.train(mode)
        assert_same(fast(x), expected(x))
        assert_same(dict(model.named_buffers()), dict(expected.named_buffers()))
    assert len(fast.signatures) == 2
    for part in (model, expected):
        part.inner[1].eval()
    assert_same(fast(x), expected(x))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.layers = [torch.ones(3)]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.layers[0]


def test_a_changed_attribute_is_compiled_again() -> None:
    model = Scaled()
    fast = emulated(model)
    assert_same(fast(A), A * 2 + 1)
    model.scale = 3.0
    assert_same(fast(A), A * 3 + 1)


OFFSET: float | Tensor = 1.0


def test_a_changed_global_or_closure_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = 2

    def f(x: Tensor) -> Tensor:
        return x * factor + OFFSET

    fast = emulated(f)
    assert_same(fast(A), A * 2 + 1)
    monkeypatch.setitem(globals(), "OFFSET", 5.0)
    assert_same(fast(A), A * 2 + 5)
    monkeypatch.setitem(globals(), "OFFSET", torch.ones(3))
    assert_same(fast(A), A * 2 + 1)
    monkeypatch.setitem(globals(), "OFFSET", torch.zeros(3))
    assert_same(fast(A), A * 2)
    factor = 3
    assert_same(fast(A), A * 3)


# ---- results ---------------------------------------------------------------------------------

Point = namedtuple("Point", ["x", "y"])


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Result:
    value: Tensor
    name: str
    extra: dict[str, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Tensor
    steps: int


def structured(x: Tensor) -> dict[str, Any]:
    y = x * 2
    return {
        "tuple": (y, [x + 1, ()]),
        "none": None,
        "named": Point(y, 3),
        "typed": Pair(y, x - 1),
        "data": Result(y, "n", {"a": x + 1}),
        "frozen": Frozen(y, 2),
        "ordered": OrderedDict(b=x + 2, a=x),
        "numbers": (True, 4, 2.5, "text", x.sum().item(), int(x[0]), bool(x[1] > 0)),
        "bools": x > 0,
        "integers": x.argsort(),
    }


@pytest.mark.parametrize("backend", ["cpu", "emulator", "interpreter"])
def test_structures_of_results(backend: str) -> None:
    check(structured, (A,), (B,), backend=backend)


def test_a_tensor_that_is_returned_twice_is_one() -> None:
    def f(x: Tensor) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        y = x + 1
        return y, [y, x * 2], {"y": y}

    first, (second, _), table = emulated(f)(A)
    assert first is second is table["y"]


def test_views_of_one_result_are_right_each() -> None:
    check(lambda x: (x * 2, (x * 2)[1:], (x * 2).view(3, 1), (x * 2).t()), (A,), (B,))


def test_an_input_that_is_returned_is_itself() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y.mul_(2)
        return x, y, x + y

    x, y = A.clone(), B.clone()
    first, second, _ = emulated(f)(x, y)
    assert first is x
    assert second is y
    assert_same(y, B * 2)


def test_a_parameter_that_is_returned_is_itself() -> None:
    model = nn.Linear(3, 3)
    assert emulated(lambda x: (model(x), model.weight))(A)[1] is model.weight


@pytest.mark.parametrize("backend", ["cpu", "emulator"])
def test_results_are_fresh_memory_in_each_call(backend: str) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        out = []
        while x.sum() < 20:
            x = x + 1
            out.append(x)
        return x * 1, torch.zeros(3), out, torch.stack(out)

    fast = stretto.compile(f, backend=backend, options=Options(threads=1))
    first, second = fast(A), fast(A)
    assert_same(first, f(A))
    for part in torch.utils._pytree.tree_leaves(first):
        part.fill_(-7)
    assert_same(second, f(A))
    assert_same(fast(A), f(A))


def test_a_function_without_tensors_or_results() -> None:
    assert emulated(lambda: (torch.ones(2) * 3).sum().item())() == 6
    assert emulated(lambda x: None)(A) is None
    assert emulated(lambda x: 7)(A) == 7
    assert_same(emulated(lambda x: torch.arange(3))(A), torch.arange(3))


# ---- arguments -------------------------------------------------------------------------------


def scaled(x: Tensor, y: Tensor | None = None, *rest: Tensor, k: float = 2, **named: Any) -> Tensor:
    """Scales."""
    x = x * k if y is None else x * k + y
    for other in (*rest, *named.get("parts", ())):
        x = x + other
    return x if named.get("flag", True) else -x


def test_arguments_of_all_kinds() -> None:
    fast = emulated(scaled)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((A,), {}),
        ((A, None), {}),
        ((A, B), {}),
        ((A,), {"y": B}),
        ((A, B, A, A), {"k": 0.5}),
        ((), {"x": A, "k": 3}),
        ((A,), {"parts": [A, B], "flag": False}),
        ((A,), {"parts": (B,), "flag": False}),
    ]
    for args, kwargs in calls:
        assert_same(fast(*args, **kwargs), scaled(*args, **kwargs))
    assert fast.__name__ == "scaled"
    assert fast.__doc__ == "Scales."


def test_python_numbers_specialise() -> None:
    fast = emulated(scaled)
    for k in (1, True, 1.0, 2, 0.0, -0.0, float("inf")):
        assert_same(fast(A, k=k), scaled(A, k=k))
        fast(B, k=k)
    assert len(fast.signatures) == 7


@dataclass
class Batch:
    x: Tensor
    scale: float


def test_arguments_that_are_objects() -> None:
    fast = emulated(lambda batch: batch.x * batch.scale)
    assert_same(fast(Batch(A, 2.0)), A * 2)
    assert_same(fast(Batch(B, 3.0)), B * 3)
    batch = Batch(A, 1.0)
    assert_same(fast(batch), A)
    batch.x, batch.scale = B, 0.5
    assert_same(fast(batch), B * 0.5)


def test_tensor_subclasses_and_parameters() -> None:
    check(lambda x, w: x @ w, (A, nn.Parameter(torch.eye(3))))


def test_decorator() -> None:
    @stretto.compile
    def plain(x: Tensor) -> Tensor:
        return x + 1

    @stretto.compile(backend="emulator", options=Options(threads=1))
    def optioned(x: Tensor, k: int = 3) -> Tensor:
        return x * k

    assert_same(plain(A), A + 1)
    assert_same(optioned(A), A * 3)
    assert plain.__name__ == "plain"


def test_decorated_methods() -> None:
    class Model(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), scale))

        @stretto.compile(backend="emulator")
        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    class Plain:
        scale = 2.0

        @stretto.compile(backend="emulator")
        def run(self, x: Tensor) -> Tensor:
            return x * self.scale

        @staticmethod
        @stretto.compile(backend="emulator")
        def fixed(x: Tensor) -> Tensor:
            return x - 1

    first, second = Model(2.0), Model(3.0)
    assert_same(first(A), A * 2)
    assert_same(second(A), A * 3)
    first.weight.fill_(5)
    assert_same(first(A), A * 5)
    assert_same(second(A), A * 3)
    assert_same(Plain().run(A), A * 2)
    assert_same(Plain.fixed(A), A - 1)


def test_bound_methods_and_partials() -> None:
    model = model_of_two()
    assert_same(emulated(model.forward)(A), model(A))
    assert_same(emulated(functools.partial(scaled, k=5))(A, B), A * 5 + B)


def test_the_wrapper_shows_the_original() -> None:
    model = Scaled()
    fast = emulated(model)
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert fast.layers is model.layers
    assert fast.eval() is fast
    assert not model.training
    fast.scale = 4.0
    assert model.scale == 4.0
    assert_same(fast.train()(A), model(A))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        fast.nothing_like_this  # noqa: B018


def test_ahead_of_time() -> None:
    fast = stretto.compile(scaled, (A, B), backend="cpu")
    (entry,) = fast.signatures
    assert native(fast).native.launches == 0
    assert_same(fast(B, A), scaled(B, A))
    assert fast.signatures == (entry,)
    with pytest.raises(TypeError, match="tuple of positional arguments"):
        stretto.compile(scaled, A)  # type: ignore[arg-type]


def test_compiled_functions_inside_compiled_functions() -> None:
    @stretto.compile(backend="emulator")
    def inner(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    check(lambda x: inner(x) + inner(-x), (A,), (B,))


# ---- threads and processes -------------------------------------------------------------------


def countdown(x: Tensor, n: Tensor) -> tuple[Tensor, list[Tensor]]:
    out = []
    while n > 0:
        x = torch.tanh(x + n)
        out.append(x)
        n = n - 1
    return x, out


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Runs `work(0)`, ... each on a thread of its own; raises what one of them raised."""
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            with torch.no_grad():
                work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_called_from_many_threads_at_once() -> None:
    fast = stretto.compile(countdown, backend="cpu", options=Options(threads=2))

    def work(number: int) -> None:
        for round in range(20):
            n = torch.tensor((number * 31 + round * 17) % 200)
            x = torch.full((3,), float(number))
            assert_same(fast(x, n), countdown(x, n))

    in_threads(work, 4)
    assert len(fast.signatures) == 1


def test_compiled_on_many_threads_at_once() -> None:
    def work(number: int) -> None:
        def f(x: Tensor) -> Tensor:
            while x.sum() < 10 * number:
                x = x + number
            return x

        check_call(emulated(f), f, (A,))

    in_threads(work, 4)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_after_fork() -> None:
    fast = stretto.compile(countdown, backend="cpu", options=Options(threads=2))
    wanted = countdown(A, torch.tensor(50))
    assert_same(fast(A, torch.tensor(50)), wanted)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert_same(fast(A, torch.tensor(50)), wanted)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert_same(fast(A, torch.tensor(50)), wanted)


# ---- what users look at ----------------------------------------------------------------------


def test_dump_dir_gets_every_stage(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "dump"
    stretto.compile(countdown, (A, torch.tensor(2)), options=Options(debug=Debug(dump_dir=folder)))
    names = sorted(path.name for path in folder.iterdir())
    assert names[0] == "00-captured.txt"
    assert [name[3:] for name in names[-5:-1]] == [
        f"{form}.txt" for form in ("optimised", "operators", "kernels", "scheduled")
    ]
    assert names[-1].endswith("-program.cpp")
    assert [int(name[:2]) for name in names] == list(range(len(names)))
    assert "while" in (folder / names[0]).read_text()
    assert "stretto_run" in (folder / names[-1]).read_text()


def test_dumps_of_several_signatures_are_kept(tmp_path: Path) -> None:
    fast = emulated(scaled, dump_dir=tmp_path)
    fast(A)
    first = {path.name: path.read_text() for path in tmp_path.iterdir()}
    fast(torch.ones(4))
    emulated(scaled, dump_dir=tmp_path)(A)
    assert all((tmp_path / name).read_text() == text for name, text in first.items())
    ordinals = sorted(int(path.name.split("-")[0]) for path in tmp_path.iterdir())
    assert ordinals == list(range(3 * len(first)))


def test_dumps_follow_no_links(tmp_path: Path) -> None:
    folder, precious, absent = tmp_path / "dump", tmp_path / "precious", tmp_path / "absent"
    precious.write_text("precious")
    folder.mkdir()
    (folder / "01-inline.txt").symlink_to(precious)
    (folder / "00-captured.txt").symlink_to(absent)
    emulated(scaled, dump_dir=folder)(A)
    assert precious.read_text() == "precious"
    assert not absent.exists()
    assert (folder / "02-captured.txt").read_text()


def test_dump_dir_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="cannot write dumps"):
        emulated(scaled, dump_dir=tmp_path / "file" / "dump")(A)
    (tmp_path / "00-captured.txt").mkdir()
    emulated(scaled, dump_dir=tmp_path)(A)
    assert (tmp_path / "01-captured.txt").read_text()
