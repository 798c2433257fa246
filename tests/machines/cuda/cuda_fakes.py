"""A GPU for tests: a libcuda made of fake_cuda.cpp, memory of the CPU, kernels interpreted."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stretto.machines.cuda.driver import Driver
from stretto.machines.cuda.executable import CudaExecutable
from stretto.machines.cuda.graphs.graph_builder import GraphCaptureError
from stretto.machines.cuda.graphs.store import Pool
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.launch import Argument, Invocation, LoadedKernel, load_kernel
from stretto.machines.cuda.launcher import GpuLauncher
from stretto.machines.cuda.printer.source import ERROR, HOST, TritonSource
from stretto.options import Options
from tests.machines.cuda.cuda_programs import Case

OPTIONS = Options(max_depth=50)
SIDE_STREAM = 0x99
_LAUNCHED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_ulonglong,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_ulonglong,
    ctypes.c_int,
    ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)),
)


_CALLED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


@dataclass(frozen=True)
class Compiled:
    """As triton_compile.CompiledTriton, of no machine."""

    binary: bytes = b"cubin"
    entry: str = "stretto_run"
    shared_bytes: int = 0
    warps: int = 4
    scratch_parameters: int = 2
    scratch_bytes: int = 0


class FakeCuda:
    """The library and what it wrote down. folder: where it is compiled to, unless it is there."""

    def __init__(self, folder: Path) -> None:
        triton = find_spec("triton")
        if triton is None or triton.origin is None or shutil.which("g++") is None:
            pytest.skip("needs g++, and cuda.h, which comes with triton")
        include = Path(triton.origin).parent / "backends" / "nvidia" / "include"
        self.path = folder / "libcuda.so.1"
        source = Path(__file__).with_name("fake_cuda.cpp")
        if not self.path.is_file():
            command = ["g++", "-shared", "-fPIC", "-I", include, "-o", self.path, source]
            subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(self.path))
        self.library.fake_log.restype = ctypes.c_char_p
        self.library.fake_callback_graph.restype = ctypes.c_void_p
        self._keep: list[object] = []

    def driver(self) -> Driver:
        return Driver(self.library)

    def log(self, *names: str) -> list[str]:
        """The calls since `clear`, of these functions only where some are named."""
        lines = self.library.fake_log().decode().splitlines()
        return [line for line in lines if not names or line.split()[0] in names]

    def clear(self) -> None:
        self.library.fake_clear()

    def forget(self) -> None:
        """Lets go of the functions that it was given; nothing may be launched any more."""
        self._keep.clear()

    def fail(self, function: str, code: int) -> None:
        """From now on the function gives this code, 0 for success."""
        self.library.fake_result(function.encode(), code)

    def capture(self, stream: int, number: int) -> None:
        self.library.fake_capture(ctypes.c_ulonglong(stream), ctypes.c_ulonglong(number))

    def on_call(self, function: object) -> None:
        """`function(number)` runs a library call that was captured."""
        self._keep.append(_CALLED(function))
        self.library.fake_called_back(self._keep[-1])

    def on_launch(self, function: object) -> None:
        """`function(kernel, blocks, threads, shared, stream, cooperative, parameters)` runs a
        launch."""
        self._keep.append(_LAUNCHED(function))
        self.library.fake_launched(self._keep[-1])


class _Used(TorchDispatchMode):
    """Adds the operators that run inside to those that a thread has used, each with the shapes and
    alignments of its tensors: with these cuBLAS and cuDNN choose algorithms."""

    def __init__(self, used: set[Hashable]) -> None:
        super().__init__()
        self.used = used

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.see((func, *(_traits(one) for one in args)))
        return func(*args, **(kwargs or {}))

    def see(self, operator: Hashable) -> None:
        self.used.add(operator)


class _Captured(_Used):
    """A library call that is captured: it must not be the first of its kind, and nothing runs."""

    is_first = True

    class Ended(BaseException):
        """Leaves the call."""

    def see(self, operator: Hashable) -> None:
        self.is_first = operator not in self.used
        raise self.Ended


def _traits(argument: object) -> Hashable:
    if isinstance(argument, Tensor):
        return tuple(argument.shape), argument.dtype, argument.data_ptr() % 64
    if isinstance(argument, list | tuple):
        return tuple(map(_traits, argument))  # pyright: ignore[reportUnknownArgumentType]
    return str(argument)


class FakeMemory:
    """What a GPU's memory and streams are made by; `made` finds memory by its address."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.made: dict[int, Tensor] = {}
        self.limit = limit
        self.allocated: list[tuple[int, int]] = []
        self._local = threading.local()
        self.calls: list[Callable[[], None]] = []
        self.lanes: list[Hashable] = []
        self.refused: str | None = None
        self.lacking = 0
        self.pool_bytes = 0
        self.library: Any = None

    def know(self, *tensors: Tensor) -> None:
        self.made |= {tensor.data_ptr(): tensor for tensor in tensors}

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        made = torch.empty(shape, dtype=dtype)
        if made.nbytes > self.limit // 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made.view(-1).view(torch.uint8).fill_(0xAB)
        self.allocated.append((self.stream(), made.nbytes))
        self.know(made)
        return made

    def pinned(self, words: int) -> Tensor:
        made = torch.zeros(words, dtype=torch.int64)
        self.know(made)
        return made

    def stream(self) -> int:
        return getattr(self._local, "stream", 0)

    @contextmanager
    def on(self, stream: int) -> Generator[None]:
        before, self._local.stream = self.stream(), stream
        try:
            yield
        finally:
            self._local.stream = before

    @property
    def used(self) -> set[Hashable]:
        """The operators that this thread has used on the side stream, as libraries see them."""
        if not hasattr(self._local, "used"):
            self._local.used = set[Hashable]()
        return self._local.used

    @contextmanager
    def on_side_stream(self) -> Generator[None]:
        with self.on(SIDE_STREAM), _Used(self.used):
            yield

    def words(self, words: Sequence[int]) -> Tensor:
        made = torch.tensor(words, dtype=torch.int64)
        self.know(made)
        return made

    def new_pool(self) -> object:
        return object()

    def captured(self, run: Callable[[], None], pool: Pool) -> tuple[int, object]:
        """A graph that calls `run`. Fails where the operator was not used before, as cuBLAS does,
        and where `refused` is why no capture succeeds. The first capture of a pool adds
        `pool_bytes` to it. No memory is left for the next `lacking` captures."""
        if self.lacking:
            self.lacking -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        capture = _Captured(self.used)
        with suppress(capture.Ended), capture:
            run()
        if capture.is_first:
            raise GraphCaptureError(
                "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate"
            )
        if self.refused is not None:
            raise GraphCaptureError(self.refused)
        self.calls.append(run)
        self.lanes.append(pool.handle)
        pool.nbytes = max(pool.nbytes, self.pool_bytes)
        graph = self.library.fake_callback_graph(len(self.calls) - 1)
        return graph, (run, pool)

    def total(self) -> int:
        return self.limit


class FakeGpu(GpuLauncher):
    """A machine of all that; launches are interpreted, and have ended when they return."""

    def __init__(
        self, cuda: FakeCuda, sources: Sequence[TritonSource], *, limit: int = 1 << 30
    ) -> None:
        driver = cuda.driver()
        kernels: list[LoadedKernel] = []
        for source in sources:
            made = load_kernel(driver, 0, Compiled(), source.blocks, joint=source.joint)
            count = len(source.parameters) + made.scratch_parameters
            cuda.library.fake_parameters(ctypes.c_ulonglong(made.function), count)
            kernels.append(made)
        self.fake = FakeMemory(limit)
        self.fake.library = cuda.library
        super().__init__(torch.device("cpu"), driver, self.fake, kernels)
        self.sources = {k.function: s for k, s in zip(kernels, sources, strict=True)}
        self.interpreted = {
            k.function: InterpretedKernel(s) for k, s in zip(kernels, sources, strict=True)
        }
        self.replays: list[tuple[int, list[Tensor | int]]] = []
        self.error: BaseException | None = None
        cuda.on_launch(self._launched)
        cuda.on_call(self._called)

    def bind(self, number: int, arguments: Sequence[Argument]) -> Invocation:
        """Also takes down which memory the arguments are, then and later."""
        invocation: Any = super().bind(number, arguments)
        self.fake.know(*(x for x in arguments if isinstance(x, Tensor)))
        put = invocation.set

        def set(place: int, argument: Argument) -> None:
            if isinstance(argument, Tensor):
                self.fake.know(argument)
            put(place, argument)

        invocation.set = set
        return invocation

    def _launched(
        self,
        kernel: int,
        blocks: int,
        threads: int,
        shared: int,
        stream: int,
        cooperative: int,
        words: object,
    ) -> int:
        source = self.sources[kernel]
        assert blocks == source.blocks and bool(cooperative) == source.joint
        arguments: list[Tensor | int] = []
        for number, parameter in enumerate(source.parameters):
            word = words[number].contents.value  # pyright: ignore
            if parameter.is_pointer:
                arguments.append(self.fake.made[word])
            else:
                arguments.append(ctypes.c_int64(word).value)
        assert words[len(arguments)].contents.value == 0  # pyright: ignore
        if self.driver.capture(stream):
            self.replays.append((kernel, arguments))
            return 0
        return self._guarded(lambda: self.execute((kernel, arguments)))

    def _called(self, number: int) -> int:
        return self._guarded(lambda: self.fake.calls[number]())

    def _guarded(self, run: Callable[[], None]) -> int:
        """ctypes drops what a callback raises, so the test raises it: see `failed`."""
        try:
            run()
        except BaseException as error:
            self.error = error
            return 999
        return 0

    def execute(self, launch: tuple[int, list[Tensor | int]]) -> None:
        """A launch, or a replay of one that was captured. As `fail` of a program does, tells the
        host of an error."""
        kernel, arguments = launch
        kinds = [parameter.kind for parameter in self.sources[kernel].parameters]
        control = arguments[kinds.index("control")]
        assert isinstance(control, Tensor)
        host = int(control[HOST])
        control[HOST] = 0
        reached = list(self.fake.made.values())
        self.interpreted[kernel].launch(arguments, reached)
        control[HOST] = host
        if control[ERROR]:
            ctypes.c_int64.from_address(host).value = int(control[ERROR])


def on_gpu(cuda: FakeCuda, case: Case, limit: int = 1 << 30) -> tuple[CudaExecutable, FakeGpu]:
    """A program on that GPU; nothing is written down so far."""
    machine = FakeGpu(cuda, [case.source], limit=limit)
    machine.fake.know(*case.interface.constants.values())
    executable = CudaExecutable(case.program, [case.source], case.interface, OPTIONS, machine)
    cuda.clear()
    return executable, machine


def require_order(cuda: FakeCuda) -> None:
    """Every launch so far comes after the one before: on its stream, or by an event recorded
    behind that one which its stream waits for."""
    last: str | None = None
    recorded: str | None = None
    for line in cuda.log("cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernelEx"):
        name, first = line.split()[:2]
        if name == "cuEventRecord":
            recorded = first
        elif name == "cuStreamWaitEvent" and recorded == last:
            last = first
        elif name == "cuLaunchKernelEx":
            stream = line.split("stream=")[1].split()[0]
            assert last in (None, stream), "a launch beside another one"
            assert "cooperative=1" in line
            last = stream
