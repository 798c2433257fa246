"""Inputs, machines and programs that go wrong: a clear error, and the next call works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stretto
from stretto.errors import BuildError, CaptureError, RunError, StrettoWarning
from stretto.options import Debug, Options
from tests.e2e.machines import check, check_call
from tests.frontends.python.checks import assert_same

A, B = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, 0.5])
MACHINES = ["cpu", "emulator"]


def on(backend: str, function: Callable[..., Any], **options: Any) -> Any:
    options.setdefault("threads", 2)
    return stretto.compile(function, backend=backend, options=Options.of(options))


def double_positive(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x


# ---- what cannot be compiled -----------------------------------------------------------------


def test_unsupported_dtype() -> None:
    fast = on("cpu", double_positive)
    with pytest.raises(
        CaptureError, match="dtype torch.complex64, which is not supported"
    ) as caught:
        fast(A.to(torch.complex64))
    assert "remedy: cast it" in str(caught.value)
    assert_same(fast(A), A * 2)


def test_unsupported_device() -> None:
    fast = on("auto", double_positive)
    with pytest.raises(CaptureError, match="an input is on the meta device") as caught:
        fast(A.to("meta"))
    assert "remedy: make it on the CPU" in str(caught.value)
    assert_same(fast(A), A * 2)


def test_parameters_on_another_device() -> None:
    weight = torch.ones(3, device="meta")
    for backend in MACHINES:
        with pytest.raises(CaptureError, match="meta device,? (so it )?has no data"):
            on(backend, lambda x: (x + 1, weight * 2))(A)
        with pytest.raises(CaptureError, match="meta device,? (so it )?has no data"):
            on(backend, lambda x: (x + 1, torch.ones(3, device="meta")))(A)
        with pytest.raises(CaptureError, match="'weight' is on the meta device") as caught:
            on(backend, nn.Linear(3, 2, device="meta").requires_grad_(False))(A)
        assert caught.value.location is not None
        assert caught.value.location.file == __file__


def test_unsupported_layout() -> None:
    with pytest.raises(CaptureError, match="layout torch.sparse_coo") as caught:
        on("cpu", double_positive)(torch.eye(3).to_sparse())
    assert "to_dense" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"backend": "gpu"}, ValueError, "backend must be one of auto, cpu, cuda, cuda-emu"),
        ({"backend": None}, ValueError, "backend must be one of"),
        ({"options": {"threads": 2}}, TypeError, "options must be stretto.Options"),
        ({"example_inputs": A}, TypeError, "example_inputs must be a tuple"),
        ({"function": torch.nn.ReLU}, TypeError, r"takes a module, not its class: .*ReLU\(\)"),
        ({"function": 3}, TypeError, "takes a function or an nn.Module, not int"),
        ({"function": "relu"}, TypeError, "takes a function or an nn.Module, not str"),
    ],
)
def test_wrong_arguments_of_compile(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        stretto.compile(**{"function": double_positive, **arguments})


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="threads must be an int of at least 1"):
        Options(threads=0)
    with pytest.raises(TypeError, match="colour"):
        Options(colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize("backend", MACHINES)
def test_checks_of_values_are_made(backend: str) -> None:
    def f(x: Tensor) -> Tensor:
        assert x.sum() > 0, "not positive"
        return torch.linalg.cholesky(x)

    fast = on(backend, f)
    assert_same(fast(torch.eye(3) * 4), torch.eye(3) * 2)
    with pytest.raises(AssertionError, match="not positive"):
        fast(-torch.eye(3))
    assert_same(fast(torch.eye(3) * 9), torch.eye(3) * 3)


def test_text_of_a_value_that_is_not_known_yet() -> None:
    with pytest.raises(CaptureError, match="the text itself is needed here") as caught:
        on("cpu", lambda x: {f"{x.sum().item():.1f}": x})(A)
    assert "compare the value in place of the text" in str(caught.value)


def test_wrong_arguments_of_the_function() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        on("cpu", double_positive)()
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        on("cpu", double_positive)(A, y=A)


# ---- the C++ compiler ------------------------------------------------------------------------


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`fake_compiler(script)`: CXX is a shell script that knows --version and runs `script`."""

    def make(script: str) -> Path:
        path = tmp_path / "fake-cxx"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake 1.0 && exit 0\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fast = on("cpu", double_positive, cache_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "/nonexistent/g++ -m64")
        with pytest.raises(BuildError, match="`/nonexistent/g\\+\\+ -m64` cannot be run") as caught:
            fast(A)
    assert "apt install g++" in str(caught.value)
    assert_same(fast(A), A * 2)


def test_failing_compiler(fake_compiler: Callable[[str], Path], tmp_path: Path) -> None:
    path = fake_compiler("echo 'error: out of ideas' >&2; exit 3")
    with pytest.raises(BuildError, match="failed with exit code 3") as caught:
        on("cpu", double_positive, cache_dir=tmp_path / "cache")(A)
    message = str(caught.value)
    assert f"{path} -std=c++17 -O" in message
    assert "error: out of ideas" in message
    assert "apt install g++" in message


def test_killed_compiler(
    fake_compiler: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = on("cpu", double_positive, cache_dir=tmp_path / "cache")
    fake_compiler("kill -9 $$")
    with pytest.raises(BuildError, match="was killed by SIGKILL") as caught:
        fast(A)
    assert "out of memory" in str(caught.value)
    monkeypatch.delenv("CXX")
    assert_same(fast(A), A * 2)


def test_full_disk(fake_compiler: Callable[[str], Path], tmp_path: Path) -> None:
    fake_compiler("echo 'fatal error: cannot write: No space left on device'; exit 1")
    with pytest.raises(BuildError, match="no space left") as caught:
        on("cpu", double_positive, cache_dir=tmp_path / "cache")(A)
    assert str(tmp_path / "cache") in str(caught.value)


SCRIPT = """
import sys, time
import torch, stretto
from stretto import Options

def f(x, n):
    i = 0
    while i < n:
        x = torch.tanh(x + 1e-3)
        i += 1
    return x, i

torch.set_num_threads(1)
fast = stretto.compile(f, options=Options(threads=2))
small = torch.tensor(3)
"""


def start(body: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A Python process that runs SCRIPT and then `body`."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    file = folder / f"script-{len(list(folder.iterdir()))}.py"
    file.write_text(SCRIPT + body)
    return subprocess.Popen(
        [sys.executable, file],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"hangs: {process.communicate()[0]}") from None
    return output


@pytest.mark.whole
def test_process_killed_while_it_compiles(
    fake_compiler: Callable[[str], Path], tmp_path: Path
) -> None:
    """The next process finds a cache that it can use."""
    slow = fake_compiler(f"echo > {tmp_path}/started; sleep 600 & echo $! > {tmp_path}/pid; wait")
    cache = str(tmp_path)
    process = start("fast(torch.ones(3), small)\n", tmp_path, CXX=str(slow), STRETTO_CACHE=cache)
    while not (tmp_path / "pid").exists() and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    finish(process)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    body = "print(fast(torch.ones(3), small)[1])\n"
    again = start(body, tmp_path, CXX="", STRETTO_CACHE=cache)
    assert finish(again) == "3\n"


LONG_RECURSION = """
def walk(x, n):
    return x if n <= 0 else walk(walk(x + 1, n - 1), n - 1)

def f(x, n):
    return walk(x, n), n.item()

fast = stretto.compile(f, options=Options(threads=1))
"""


@pytest.mark.whole
@pytest.mark.parametrize("program", ["", LONG_RECURSION], ids=["loop", "recursion"])
def test_ctrl_c_in_a_long_run(program: str, tmp_path: Path) -> None:
    body = f"""{program}
fast(torch.ones(3), small)
print("ready", flush=True)
try:
    fast(torch.ones(3), torch.tensor(10**4 if {bool(program)} else 10**15))
except KeyboardInterrupt:
    print("interrupted", fast(torch.ones(3), small)[1])
"""
    process = start(body, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert finish(process) == "interrupted 3\n"
    assert process.returncode == 0


# ---- runs that end early ---------------------------------------------------------------------


def endless(x: Tensor, n: Tensor) -> Tensor:
    return x if n < 0 else endless(x * 0.5, n + 1) + 1


def test_recursion_without_end_on_the_cpu() -> None:
    fast = on("cpu", endless)
    for _ in range(2):
        with pytest.raises(RunError, match="recursion is deeper than 100000 calls") as caught:
            fast(A, torch.tensor(0))
        assert "check that the recursion reaches its base case" in str(caught.value)
        assert_same(fast(A, torch.tensor(-1)), A)


@pytest.mark.whole
def test_recursion_without_end_on_the_emulator() -> None:
    fast = on("emulator", endless, max_depth=500)
    for _ in range(2):
        with pytest.raises(RunError, match="recursion is deeper than 500 calls") as caught:
            fast(A, torch.tensor(0))
        assert "check that the recursion reaches its base case" in str(caught.value)
        assert_same(fast(A, torch.tensor(-1)), A)


@pytest.mark.whole
def test_recursion_without_end_that_needs_much_memory(tmp_path: Path) -> None:
    """It ends before the memory that the process may have does, and gives back what it took."""
    body = """
import resource

def walk(x, n):
    y = x.t() @ x
    return y if n < 0 else walk(y * 0.5, n + 1) @ x + y

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

fast = stretto.compile(walk, options=Options(threads=1))
x = torch.zeros(64, 64)
fast(x, torch.tensor(-1))
before = resident()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30),) * 2)
try:
    fast(x, torch.tensor(0))
except stretto.RunError as error:
    print(str(error).splitlines()[0], resident() - before < 1 << 26)
print(tuple(fast(x, torch.tensor(-1)).shape))
"""
    output = finish(start(body, tmp_path))
    stopped = ".*, in walk: the intermediate values of the program need more than [0-9]+ MiB True"
    assert re.fullmatch(f"{stopped}\n\\(64, 64\\)\n", output), output


@pytest.mark.whole
def test_deep_recursion_that_ends() -> None:
    def walk(x: Tensor, n: Tensor) -> Tensor:
        return x if n <= 0 else walk(x * 0.5, n - 1) + 1

    fast = on("cpu", walk)
    assert_same(fast(A, torch.tensor(90_000)), torch.full((3,), 90_000.0))


@pytest.mark.parametrize("backend", MACHINES)
@pytest.mark.parametrize("unroll", [0, 4])
def test_index_out_of_range(backend: str, unroll: int) -> None:
    def pick(x: Tensor, i: Tensor) -> Tensor:
        return x[i] + 1

    def gather(x: Tensor, i: Tensor) -> Tensor:
        return x.gather(0, i.view(1)) + 1

    def select(x: Tensor, i: Tensor) -> Tensor:
        return torch.index_select(x, 0, i.view(1)) + 1

    def embed(x: Tensor, i: Tensor) -> Tensor:
        return nn.functional.embedding(i.view(1), x.view(3, 1)) + 1

    def put(x: Tensor, i: Tensor) -> Tensor:
        x = x.clone()
        x[i] = 5
        return x

    def looped(x: Tensor, i: Tensor) -> Tensor:
        total = torch.zeros(())
        for k in range(5):
            total = total + x[i + k - k]
        return total

    for function in (pick, gather, select, embed, put, looped):
        fast = on(backend, function, unroll=unroll)
        for index in (0, 2):
            check_call(fast, function, (A, torch.tensor(index)))
        for index in (3, 1000, -4):
            with pytest.raises((IndexError, RuntimeError)) as eager:
                function(A, torch.tensor(index))
            with pytest.raises(RunError, match="out of (range|bounds)|exceeds") as caught:
                fast(A, torch.tensor(index))
            assert isinstance(caught.value, type(eager.value))
        check_call(fast, function, (A, torch.tensor(1)))


@pytest.mark.whole
@pytest.mark.parametrize("backend", MACHINES)
def test_operator_of_torch_that_fails_inside(backend: str) -> None:
    """A library call in a branch: what torch says, and the user's line."""
    table = torch.eye(4)

    def f(bags: Tensor) -> Tensor:
        total = torch.zeros(1, 4)
        if bags.sum() > 3:
            total = nn.functional.embedding_bag(bags, table)
        return total

    fast = on(backend, f)
    check_call(fast, f, (torch.tensor([[1, 3]]),))
    for _ in range(2):
        with pytest.raises(RunError, match="Index 1 of input takes value 9") as caught:
            fast(torch.tensor([[1, 9]]))
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert caught.value.location is not None
        assert caught.value.location.line == f.__code__.co_firstlineno + 3
        check_call(fast, f, (torch.tensor([[2, 2]]),))
        check_call(fast, f, (torch.tensor([[1, 1]]),))
    assert "_embedding_bag" in fast.explain()


@pytest.mark.whole
@pytest.mark.parametrize("backend", MACHINES)
def test_list_that_grows_to_thousands(backend: str) -> None:
    def steps(x: Tensor, n: Tensor) -> tuple[list[Tensor], Tensor]:
        out = []
        for i in range(n):
            x = x * 0.9 + i
            out.append(x)
        return out, x

    count = 5000 if backend == "cpu" else 1100
    fast = on(backend, steps)
    for n in (0, 70, count, 3):
        check_call(fast, steps, (A, torch.tensor(n)))


# ---- unusual tensors -------------------------------------------------------------------------


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    z = x @ y.t() if x.sum() > 0 else y @ x.t()
    return z, x + y, x.sum(0), (x * y).mean(-1), torch.cat([x, y]), x.t()


@pytest.mark.parametrize("backend", MACHINES)
def test_inputs_that_are_not_contiguous(backend: str) -> None:
    base = torch.arange(48.0).view(4, 12) / 10 - 1
    views = [base[:, ::4], base[:, 3:6], base.view(4, 3, 4).transpose(1, 2)[:, 0], base.t()[:3].t()]
    assert not any(view.is_contiguous() for view in views)
    fast = on(backend, mixed)
    for x in views:
        for y in (*views, x):
            assert_same(fast(x, y), mixed(x, y))
    assert len(fast.signatures) == 1


@pytest.mark.parametrize("backend", ["cpu", "emulator"])
@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 1, 1)])
def test_one_element_with_stride_0_is_contiguous(backend: str, shape: tuple[int, ...]) -> None:
    """As an input, as a constant, and of every size of element."""
    constant = torch.ones(1).expand(1).select(0, 0).expand(shape)[:1]
    fast = stretto.compile(lambda x, y: (x + constant, y * 2), backend=backend)
    x = torch.full((), 2.0).expand(shape)[:1]
    y = torch.tensor(3).expand(1)
    assert 0 in x.stride()
    one, other = fast(x, y)
    assert torch.equal(one, x + constant) and torch.equal(other, y * 2)


@pytest.mark.parametrize("backend", MACHINES)
def test_inputs_that_are_expanded(backend: str) -> None:
    x, y = torch.ones(1, 1).expand(4, 3), A.expand(4, 3)
    assert_same(on(backend, mixed)(x, y), mixed(x, y))


def test_inputs_that_alias_and_are_only_read() -> None:
    base = torch.arange(24.0).view(8, 3) / 10 - 1
    fast = on("cpu", mixed)
    assert_same(fast(base[:4], base[2:6]), mixed(base[:4], base[2:6]))
    assert_same(fast(base[:4], base[:4]), mixed(base[:4], base[:4]))
    assert_same(fast(base[:4], base[4:]), mixed(base[:4], base[4:]))


def test_inputs_that_alias_and_are_changed() -> None:
    """Right, or an error that says so; never wrong."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    def tensors(kind: str) -> tuple[Tensor, Tensor]:
        base = torch.arange(8.0)
        return {
            "apart": (base[:3], torch.ones(3)),
            "same": (base[:3],) * 2,
            "overlap": (base[:3], base[1:4]),
            "beside": (base[:3], base[3:6]),
        }[kind]

    for order in (("apart", "same", "overlap", "beside"), ("overlap", "same", "apart", "beside")):
        fast = on("emulator", f)
        for kind in order:
            found, wanted = tensors(kind), tensors(kind)
            result = f(*wanted)
            try:
                assert_same(fast(*found), result)
            except CaptureError as error:
                assert kind != "apart"
                assert "shares memory with another input" in str(error)
            else:
                assert_same(found, wanted)


def test_changed_input_that_a_constant_aliases() -> None:
    weight = torch.ones(3)

    def f(x: Tensor) -> Tensor:
        x.add_(1)
        return x * weight

    fast = on("emulator", f)
    assert_same(fast(A.clone()), A + 1)
    assert_same(fast(weight), torch.full((3,), 4.0))
    assert_same(weight, torch.full((3,), 2.0))
    with pytest.raises(CaptureError, match="shares memory with another input"):
        fast(weight.view(3))
    assert_same(fast(A.clone()), (A + 1) * 2)


def test_changed_input_whose_view_depends_on_its_strides() -> None:
    def f(x: Tensor) -> Tensor:
        flat = x.reshape(-1)
        flat.mul_(2)
        return flat

    fast = on("emulator", f)
    for x in (torch.ones(3, 3), torch.eye(3)[:, :2], torch.ones(3, 2), torch.ones(3, 3).t()):
        found = torch.empty_strided(x.shape, x.stride()).copy_(x)
        wanted = torch.empty_strided(x.shape, x.stride()).copy_(x)
        assert_same(fast(found), f(wanted))
        assert_same(found, wanted)


@pytest.mark.parametrize("backend", MACHINES)
def test_inputs_of_no_elements(backend: str) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        total = torch.zeros(())
        for row in x:
            total = total + row.sum()
        z = x * 2 if x.sum() > 0 else x + 1
        return z, total, x.sum(0), x @ y.t(), torch.cat([x, y]), x.t(), (x > 0).any(), y.mean(1)

    for rows, columns in ((0, 3), (2, 0), (0, 0)):
        check(f, (torch.ones(rows, columns), torch.ones(4, columns)), backend=backend)


@pytest.mark.whole
@pytest.mark.parametrize("backend", MACHINES)
def test_nan_and_infinity_are_those_of_eager(backend: str) -> None:
    inf, nan = float("inf"), float("nan")

    def f(x: Tensor) -> dict[str, Tensor]:
        y = x.view(3, 3)
        return {
            "arithmetic": torch.stack([x + 1, x - x, x * 0, x / x, -x, x**2, x // 2, x % 3]),
            "functions": torch.stack([x.exp(), x.tanh(), x.sigmoid(), x.log(), x.sqrt(), x.erf()]),
            "clamps": torch.stack([x.relu(), x.clamp(-1, 1), x.abs(), x.round(), x.sign()]),
            "pairs": torch.stack([torch.maximum(x, -x), torch.minimum(x, x.flip(0))]),
            "tests": torch.stack([x > 0, x == x, x != x, x.isnan(), x.isinf(), x.isfinite()]),
            "sums": torch.stack([y.sum(1), y.mean(0), y.prod(1), y.amax(1), y.amin(0)]),
            "places": torch.stack([y.argmax(1), y.argmin(0)]),
            "softmax": y.softmax(1),
            "matrix": y @ y,
            "where": torch.where(x > 0, x, -x),
            "nan": x.nan_to_num(7.0, 8.0, 9.0),
            "branch": x * 2 if x.max() > 0 else x * 3,
        }

    cases = [
        [nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 1e38, -1e38],
        [1.0, 2, 3, 4, 5, 6, 7, 8, 9],
        [inf, 1, 2, -inf, 3, 4, 0, 0, 1e-40],
        [nan] * 9,
    ]
    check(f, *[(torch.tensor(values),) for values in cases], backend=backend)


# ---- signatures ------------------------------------------------------------------------------


def test_new_shapes_compile_new_signatures_and_a_warning_names_what_varies() -> None:
    fast = stretto.compile(mixed, backend="emulator", options=Options(threads=2), dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in range(1, 9):
            x = torch.ones(rows, 3)
            assert_same(fast(x, x + 1), mixed(x, x + 1))
        fast(torch.ones(3, 3), torch.ones(3, 3))
    assert len(fast.signatures) == 8
    with pytest.warns(StrettoWarning, match="9 signatures compiled: .*") as caught:
        fast(torch.ones(9, 3), torch.ones(9, 3))
    (warning,) = caught
    assert "dimension 0 of tensor 0 varies (1, 2, 3, 4, 5, 6, ...)" in str(warning.message)
    assert "dimension 0 of tensor 1 varies" in str(warning.message)
    assert "dimension 1" not in str(warning.message)
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(torch.ones(10, 3), torch.ones(10, 3))


def test_warning_about_values_and_modules() -> None:
    model = nn.Identity()
    options = Options(threads=2, debug=Debug(max_signatures_before_warning=1))
    fast = stretto.compile(model, backend="emulator", options=options, dynamic=False)
    fast(A)
    with pytest.warns(StrettoWarning, match="dimension 0 of tensor 0 varies \\(3, 4\\)"):
        fast(torch.ones(4))
    scaled = on("emulator", lambda x, k: x * k, max_signatures_before_warning=1)
    scaled(A, 1)
    with pytest.warns(StrettoWarning, match="a value that is not a tensor varies"):
        scaled(A, 2)


SCALE = 0


def test_a_warning_names_what_changes_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = on("emulator", lambda x: x * SCALE, max_signatures_before_warning=2)
    for scale in range(2):
        monkeypatch.setitem(globals(), "SCALE", scale)
        assert_same(fast(A), A * scale)
    monkeypatch.setitem(globals(), "SCALE", 5)
    with pytest.warns(StrettoWarning, match="compiled 3 times for the same shapes.*: SCALE of"):
        assert_same(fast(A), A * 5)


def test_a_change_of_dtype_compiles_a_new_signature() -> None:
    fast = on("emulator", double_positive)
    for dtype in (torch.float32, torch.float64, torch.int32, torch.bfloat16):
        assert_same(fast(A.to(dtype)), A.to(dtype) * 2)
    assert len(fast.signatures) == 4


# ---- exceptions and gradients of the user ----------------------------------------------------


class Custom(ValueError):
    pass


def test_exceptions_of_the_function_are_unchanged() -> None:
    problem = Custom("no")

    def inner(x: Tensor) -> Tensor:
        if x.shape[0] > 3:
            raise problem
        return x

    def outer(x: Tensor) -> Tensor:
        for _ in range(2):
            x = inner(x) + 1
        return x

    fast = on("cpu", outer)
    with pytest.raises(Custom) as caught:
        fast(torch.ones(4))
    assert caught.value is problem
    assert caught.value.__cause__ is None
    shown = traceback.extract_tb(caught.value.__traceback__)
    lines = [(frame.filename, frame.lineno, frame.line) for frame in shown]
    assert (__file__, inner.__code__.co_firstlineno + 2, "raise problem") in lines
    assert any(line == "x = inner(x) + 1" for _, _, line in lines)
    assert_same(fast(A), A + 2)


def test_errors_of_torch_are_those_of_eager() -> None:
    def f(x: Tensor) -> Tensor:
        return x.view(2, -1) @ x.view(2, -1)

    x = torch.ones(6)
    with pytest.raises(RuntimeError) as wanted:
        f(x)
    with pytest.raises(RuntimeError) as found:
        on("cpu", f)(x)
    assert type(found.value) is type(wanted.value)
    assert "shapes cannot be multiplied (2x3 and 2x3)" in str(found.value)
    assert any("x.view(2, -1) @" in str(entry.statement) for entry in found.traceback)


@pytest.mark.gradients
def test_inputs_that_require_grad_run_eager_and_warn_once() -> None:
    fast = on("cpu", double_positive)
    x = A.clone().requires_grad_()
    with pytest.warns(StrettoWarning, match="torch.no_grad\\(\\)") as caught:
        y = fast(x)
    assert caught[0].filename == __file__
    y.sum().backward()
    assert_same(x.grad, torch.full((3,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(x)
        assert fast.signatures == ()
        with torch.no_grad():
            assert_same(fast(x), A * 2)
    assert len(fast.signatures) == 1


@pytest.mark.gradients
def test_modules_whose_parameters_require_grad_run_eager_and_warn_once() -> None:
    model = nn.Linear(3, 1)
    fast = on("cpu", model)
    with pytest.warns(StrettoWarning, match="torch.no_grad\\(\\)"):
        fast(A).backward()
    assert_same(model.weight.grad, A[None])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fast(A).requires_grad
        model.eval()
        assert fast(A).requires_grad
        assert "3 calls ran eager: a tensor that it reads requires grad" in fast.explain()
        model.requires_grad_(False)
        assert_same(fast(A), model(A))
