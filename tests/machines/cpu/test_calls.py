"""Library calls without Python: what they are given, what becomes of their results, failures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import stretto
from stretto.device.expr import Buffer
from stretto.device.operator import LibraryArgument, LibraryCall
from stretto.ir.types import DType
from stretto.machines.cpu.calls import NOT_KNOWN, NativeCalls, Unsupported, encoded, held_buffers
from stretto.machines.cpu.executable import CpuExecutable
from stretto.options import Options
from stretto.runtime.library import LibraryTable

F = torch.nn.functional
RUN = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
RELEASE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)


def buffer(name: str, *shape: int, dtype: DType = DType.F32) -> Buffer:
    return Buffer(name, dtype, shape)


def call(target: str, args: Sequence[LibraryArgument], *outs: Buffer) -> LibraryCall:
    return LibraryCall(target, target, tuple(args), (), outs, "for the test")


class Runner:
    """Runs calls by their number on memory of the test, as a program does."""

    def __init__(self, calls: Sequence[LibraryCall], held: dict[str, int]) -> None:
        self.calls = calls
        self.native = NativeCalls(calls, held, Options())
        self.state = self.native.state()
        self.memory: dict[str, Tensor] = {}
        for one in calls:
            for item in one.operands:
                assert isinstance(item, Buffer)
                shape = [dim for dim in item.shape if isinstance(dim, int)]
                # NaN shows that a call has read what nobody wrote to the program's memory.
                value = torch.nan if item.dtype.is_float else 0
                made = torch.full(shape, value, dtype=item.dtype.torch)
                self.memory.setdefault(item.name, made)

    def __call__(self, number: int) -> int:
        """0: it has run; otherwise Python must."""
        buffers = [item for item in self.calls[number].operands if isinstance(item, Buffer)]
        pointers = [self.memory[item.name].data_ptr() for item in buffers]
        array = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, None)
        assert self.state.run is not None
        return int(RUN(self.state.run)(self.state.address, number, ctypes.addressof(array)))

    def release(self, number: int) -> None:
        assert self.state.release is not None
        RELEASE(self.state.release)(self.state.address, number)


def test_a_held_result_is_not_copied_and_given_back_behind_its_last_reader():
    a, b, c, d = (buffer(name, 3, 5) for name in "abcd")
    calls = [
        call("aten.relu.default", [a], b),
        call("aten.neg.default", [b], c),
        call("aten.add.Tensor", [b, b], d),
        call("aten.abs.default", [b], c),
    ]
    run = Runner(calls, {"b": 2})
    run.memory["a"].copy_(torch.randn(3, 5))
    wanted = run.memory["a"].relu()
    assert [run(0), run(1), run(2)] == [0, 0, 0]
    assert torch.equal(run.memory["c"], -wanted)
    assert torch.equal(run.memory["d"], 2 * wanted)
    assert run.memory["b"].isnan().all()
    assert run(3) == 0  # the two readers have run: what is read now is the program's memory
    assert run.memory["c"].isnan().all()


def test_a_held_result_that_nobody_counts_stays_until_it_is_made_again():
    a, b, c = buffer("a", 4), buffer("b", 4), buffer("c", 4)
    run = Runner(
        [call("aten.relu.default", [a], b), call("aten.neg.default", [b], c)], {"b": NOT_KNOWN}
    )
    for value in (1.0, 2.0):
        run.memory["a"].fill_(value)
        assert run(0) == 0
        for _ in range(3):
            assert run(1) == 0
            assert torch.equal(run.memory["c"], torch.full((4,), -value))


def test_a_result_that_lies_in_memory_of_the_program_is_copied():
    """Which the program may write to before its readers run."""
    a, b, c = buffer("a", 4), buffer("b", 4), buffer("c", 4)
    calls = [call("aten.contiguous.default", [a], b), call("aten.neg.default", [b], c)]
    run = Runner(calls, {"b": 1})
    run.memory["a"].fill_(1.0)
    assert run(0) == 0
    run.memory["a"].fill_(7.0)
    assert run(1) == 0
    assert torch.equal(run.memory["c"], torch.full((4,), -1.0))


def test_a_result_in_another_order_is_copied():
    a, b, c = buffer("a", 2, 3), buffer("b", 3, 2), buffer("c", 3, 2)
    made = buffer("made", 2, 3)
    calls = [
        call("aten.relu.default", [a], made),
        call("aten.transpose.int", [made, 0, 1], b),
        call("aten.neg.default", [b], c),
    ]
    run = Runner(calls, {"made": 1, "b": 1})
    run.memory["a"].copy_(torch.arange(6.0).view(2, 3))
    assert [run(n) for n in range(3)] == [0, 0, 0]
    assert torch.equal(run.memory["c"], -torch.arange(6.0).view(2, 3).T)
    assert torch.equal(run.memory["b"], torch.arange(6.0).view(2, 3).T)


def test_what_torch_refuses_is_handed_over_to_python():
    a, b, c = buffer("a", 2, 3), buffer("b", 2, 3), buffer("c", 2, 2)
    calls = [call("aten.relu.default", [a], b), call("aten.mm.default", [b, b], c)]
    run = Runner(calls, {"b": 1})
    run.memory["a"].fill_(3.0)
    assert run(0) == 0
    assert run.memory["b"].isnan().all()
    assert run(1) != 0
    assert torch.equal(run.memory["b"], torch.full((2, 3), 3.0))  # where Python looks for it
    run.release(1)


def test_integers_are_added_in_python():
    a, b = buffer("a", 3, dtype=DType.I64), buffer("b", 3, dtype=DType.I64)
    run = Runner([call("aten.add.Tensor", [a, a], b)], {})
    assert run(0) != 0
    assert not run.native.without_python


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1, 5)])
def test_odd_shapes(shape: tuple[int, ...]):
    a, b, c = (buffer(name, *shape) for name in "abc")
    run = Runner([call("aten.exp.default", [a], b), call("aten.neg.default", [b], c)], {"b": 1})
    run.memory["a"].fill_(0.5)
    assert [run(0), run(1)] == [0, 0]
    assert torch.equal(run.memory["c"], -run.memory["a"].exp())


def test_what_has_no_form_in_the_interface():
    a, b = buffer("a", 4), buffer("b", 4)
    with pytest.raises(Unsupported, match="with the value 2.0"):
        encoded(call("aten.mul.Tensor", [a, 2.0], b))
    with pytest.raises(Unsupported, match="results are no tensors"):
        encoded(call("aten.relu_.default", [a], b))
    assert encoded(call("aten.relu.default", [a], b)) == (1, [1, 0])


# ---- programs ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch has two threads, so that a call may have fewer."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets of the calls that ran in Python."""
    found: list[str] = []
    inner = LibraryTable.__call__

    def counted(self: LibraryTable, number: int, address: int) -> None:
        found.append(self.calls[number][0].target)
        inner(self, number, address)

    monkeypatch.setattr(LibraryTable, "__call__", counted)
    return found


IMAGE = torch.randn(2, 3, 9, 7)
WEIGHT, BIAS = torch.randn(5, 3, 3, 3), torch.randn(5)
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "convolution": lambda x: F.conv2d(x, WEIGHT, BIAS, stride=2, padding=1),
    "convolution_without_bias": lambda x: F.conv2d(x, WEIGHT),
    "max_pool": lambda x: F.max_pool2d(x, 3, 1, 1),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "cat": lambda x: torch.cat([x, x.relu(), x], dim=1),
    "mean": lambda x: x.mean((2, 3)),
    "sum_keepdim": lambda x: x.sum(1, keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (7,)),
    "linear": lambda x: F.linear(x, torch.ones(4, 7), torch.ones(4)),
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "embedding": lambda x: F.embedding(torch.tensor([[1, 0]]), WEIGHT.view(5, 27)) + x[0, 0, 0, 0],
    "index": lambda x: x[:, torch.tensor([2, 0])] + x[:, :2],
    "double": lambda x: (x.double() + x.double()).float(),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_as_library_calls(name: str, threads: int, cache: Path, two_threads: None):
    function = OPERATORS[name]
    options = Options(library=("*",), threads=threads, cache_dir=cache)
    compiled = stretto.compile(lambda x: function(x).neg(), options=options)
    for x in (IMAGE, IMAGE * 2):
        torch.testing.assert_close(compiled(x), -function(x), rtol=1e-4, atol=1e-5)


def test_calls_without_python(cache: Path, in_python: list[str]):
    def function(x: Tensor) -> Tensor:
        y = F.max_pool2d(F.conv2d(x, WEIGHT, BIAS).relu(), 2)
        return torch.cat([y, y + y], dim=1).mean((2, 3))

    compiled = stretto.compile(function, options=Options(library=("*",), cache_dir=cache))
    torch.testing.assert_close(compiled(IMAGE), function(IMAGE), rtol=1e-4, atol=1e-5)
    assert in_python == []
    doubled = stretto.compile(lambda x: x * 2.0, options=Options(library=("*",), cache_dir=cache))
    assert torch.equal(doubled(IMAGE), IMAGE * 2.0)
    assert in_python == ["aten.mul.Tensor"]


def steps(x: Tensor, count: Tensor) -> Tensor:
    state = torch.tanh(x @ x)
    kept = torch.relu(x)
    while count > 0:
        if state.sum() > 0:
            for _ in range(2):
                state = torch.tanh(state @ kept) - 0.1
        else:
            state = torch.sigmoid(state) * kept
        count = count - 1
    return state @ kept


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_that_loops_and_branches_read(threads: int, cache: Path, two_threads: None):
    options = Options(library=("*",), threads=threads, cache_dir=cache)
    compiled = stretto.compile(steps, options=options)
    for trips in (0, 1, 5):
        for sign in (1.0, -1.0):
            x, count = sign * torch.randn(17, 17) / 4, torch.tensor(trips)
            torch.testing.assert_close(compiled(x, count), steps(x, count), rtol=1e-3, atol=1e-4)


@pytest.mark.gradients
def test_gradients_are_left_as_they_are(cache: Path):
    def function(x: Tensor) -> Tensor:
        return torch.relu(x @ x) @ x

    compiled = stretto.compile(function, options=Options(library=("*",), cache_dir=cache))
    with torch.no_grad():
        compiled(torch.randn(8, 8))
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert not compiled(torch.randn(8, 8)).requires_grad


def executable(
    function: Callable[..., object], *inputs: Tensor, **options: object
) -> CpuExecutable:
    found: list[CpuExecutable] = []
    inner = CpuExecutable.__init__

    def kept(self: CpuExecutable, *args: object, **kwargs: object) -> None:
        inner(self, *args, **kwargs)  # type: ignore[arg-type]
        found.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuExecutable, "__init__", kept)
        stretto.compile(function, options=Options(library=("*",), **options))(*inputs)  # type: ignore[arg-type]
    return found[-1]


def test_which_buffers_are_held(cache: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[dict[str, int]] = []

    def kept(program: object) -> dict[str, int]:
        made.append(held_buffers(program))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr("stretto.machines.cpu.calls.held_buffers", kept)

    def chain(x: Tensor) -> Tensor:
        y = torch.relu(x @ x)
        return torch.tanh(y) @ y

    executable(chain, torch.randn(8, 8), cache_dir=cache)
    assert sorted(made[-1].values()) == [1, 1, 2]

    def sliced(x: Tensor) -> Tensor:  # a native kernel reads the product
        return torch.relu((x @ x)[:, 1:4])

    executable(sliced, torch.randn(8, 8), cache_dir=cache)
    assert made[-1] == {}
    executable(steps, torch.randn(8, 8) / 4, torch.tensor(2), cache_dir=cache)
    assert NOT_KNOWN in made[-1].values()
