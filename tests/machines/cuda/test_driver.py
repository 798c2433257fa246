"""The driver API through ctypes, on a libcuda made with the types of the real header."""

from __future__ import annotations

import ctypes
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from stretto.errors import BuildError, RunError
from stretto.machines.cuda import driver as cuda_driver
from stretto.machines.cuda.driver import CudaError, load_driver
from stretto.machines.cuda.graphs.driver_graph import kernel_node
from stretto.machines.cuda.launch import LaunchOrder, load_kernel, order_of, require_resident
from tests.machines.cuda.cuda_fakes import Compiled, FakeCuda

NAMES = {
    "OUT_OF_MEMORY": "CUDA_ERROR_OUT_OF_MEMORY",
    "NOT_INITIALIZED": "CUDA_ERROR_NOT_INITIALIZED",
    "DEINITIALIZED": "CUDA_ERROR_DEINITIALIZED",
    "DEVICE_UNAVAILABLE": "CUDA_ERROR_DEVICE_UNAVAILABLE",
    "INVALID_CONTEXT": "CUDA_ERROR_INVALID_CONTEXT",
    "CONTEXT_IS_DESTROYED": "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "COMPUTE_MODE": "CU_DEVICE_ATTRIBUTE_COMPUTE_MODE",
    "COOPERATIVE_LAUNCH": "CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH",
    "MODE_PROHIBITED": "CU_COMPUTEMODE_PROHIBITED",
    "MODE_EXCLUSIVE_PROCESS": "CU_COMPUTEMODE_EXCLUSIVE_PROCESS",
    "NO_DEVICE": "CUDA_ERROR_NO_DEVICE",
    "INVALID_IMAGE": "CUDA_ERROR_INVALID_IMAGE",
    "NO_BINARY_FOR_GPU": "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "INVALID_PTX": "CUDA_ERROR_INVALID_PTX",
    "UNSUPPORTED_PTX_VERSION": "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    "INVALID_SOURCE": "CUDA_ERROR_INVALID_SOURCE",
    "INVALID_HANDLE": "CUDA_ERROR_INVALID_HANDLE",
    "OUT_OF_RESOURCES": "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "COOPERATIVE_LAUNCH_TOO_LARGE": "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
    "DRIVER_MISMATCH": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    "MAX_DYNAMIC_SHARED_SIZE_BYTES": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "CAPTURE_ACTIVE": "CU_STREAM_CAPTURE_STATUS_ACTIVE",
    "CAPTURE_RELAXED": "CU_STREAM_CAPTURE_MODE_RELAXED",
    "EVENT_DISABLE_TIMING": "CU_EVENT_DISABLE_TIMING",
    "MULTIPROCESSORS": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "SHARED_MEMORY_PER_MULTIPROCESSOR": (
        "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"
    ),
    "ATTRIBUTE_COOPERATIVE": "CU_LAUNCH_ATTRIBUTE_COOPERATIVE",
}


def test_numbers_are_those_of_the_header() -> None:
    triton = find_spec("triton")
    if triton is None or triton.origin is None:
        pytest.skip("cuda.h comes with triton")
    header = Path(triton.origin).parent / "backends" / "nvidia" / "include" / "cuda.h"
    text = header.read_text()
    for mine, name in NAMES.items():
        found = re.search(rf"\b{name}\s*=\s*(0x[0-9a-f]+|\d+)", text)
        assert found is not None and int(found[1], 0) == getattr(cuda_driver, mine), name
    stream = re.search(r"#define CU_STREAM_PER_THREAD \(\(CUstream\)(0x\d+)\)", text)
    assert stream is not None and int(stream[1], 0) == cuda_driver.PER_THREAD_STREAM
    codes = re.findall(r"CUDA_ERROR_(?:STREAM_CAPTURE_\w+|CAPTURED_EVENT)\s*=\s*(\d+)", text)
    assert {int(code) for code in codes} <= set(cuda_driver.CAPTURE_ERRORS)


def test_a_launch_as_the_driver_sees_it(cuda: FakeCuda) -> None:
    seen: list[list[int]] = []

    def launched(kernel, blocks, threads, shared, stream, cooperative, words) -> int:
        seen.append([words[n].contents.value for n in range(4)])
        return 0

    cuda.on_launch(launched)
    driver = cuda.driver()
    kernel = load_kernel(driver, 0, Compiled(shared_bytes=70_000, warps=8), 132)
    tensor = torch.empty(4)
    invocation = kernel.bind([tensor, -1])
    cuda.clear()
    invocation.launch(0x7F1234567890)
    invocation.set(1, 1 << 40)
    invocation.launch(2)
    assert cuda.log() == [
        "cuLaunchKernelEx line blocks=132 threads=256 shared=70000 stream=7f1234567890 "
        "cooperative=1",
        "cuLaunchKernelEx line blocks=132 threads=256 shared=70000 stream=2 cooperative=1",
    ]
    assert seen == [[tensor.data_ptr(), (1 << 64) - 1, 0, 0], [tensor.data_ptr(), 1 << 40, 0, 0]]


def test_loading_a_kernel(cuda: FakeCuda) -> None:
    driver = cuda.driver()
    cuda.clear()
    cuda.library.fake_resident(2)
    kernel = load_kernel(driver, 1, Compiled(b"machine code", "entry", 50_000, 8), 8)
    assert kernel.resident == 2
    assert cuda.log() == [
        "cuDeviceGet 1",
        "cuDeviceGetAttribute 95 of 1",
        "cuDeviceGet 1",
        "cuDeviceGetAttribute 16 of 1",
        "cuDeviceGet 1",
        "cuDevicePrimaryCtxRetain 1",
        "cuCtxPushCurrent_v2 7000000001",
        "cuThreadExchangeStreamCaptureMode 2",
        "cuModuleLoadData machine code mode=2",
        "cuModuleGetFunction entry",
        "cuFuncSetAttribute shared=50000",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor threads=256 shared=50000",
        "cuThreadExchangeStreamCaptureMode 0",
        "cuCtxPopCurrent_v2",
    ]


@pytest.mark.parametrize(
    ("blocks", "joint", "own", "shared"),
    [
        (132, True, 70_000, 116_736),
        (132, True, 0, 116_736),
        (132, True, 180_000, 180_000),
        (264, True, 70_000, 70_000),  # two on each multiprocessor
        (8, True, 70_000, 70_000),
        (132, False, 70_000, 70_000),  # it may run beside other launches
    ],
)
def test_one_block_on_each_multiprocessor(
    cuda: FakeCuda, blocks: int, joint: bool, own: int, shared: int
) -> None:
    """Two blocks of a joint launch, with the KiB that the system keeps, do not fit on one."""
    cuda.library.fake_attribute(cuda_driver.MULTIPROCESSORS, 132)
    cuda.library.fake_attribute(cuda_driver.SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10)
    driver = cuda.driver()
    kernel = load_kernel(driver, 0, Compiled(shared_bytes=own), blocks, joint=joint)
    one_alone = joint and blocks == 132
    assert one_alone == (2 * (kernel.shared + 1024) > 228 << 10)
    assert cuda.log("cuFuncSetAttribute") == [f"cuFuncSetAttribute shared={shared}"]
    (asked,) = cuda.log("cuOccupancyMaxActiveBlocksPerMultiprocessor")
    assert asked.endswith(f"threads=128 shared={shared}")
    kernel.bind([]).launch(1)
    assert f"shared={shared} " in cuda.log("cuLaunchKernelEx")[0]
    node, _ = kernel_node(kernel, (ctypes.c_uint64 * 2)())
    assert node.shared == shared


def test_too_many_units(cuda: FakeCuda) -> None:
    kernel = load_kernel(cuda.driver(), 0, Compiled(), 9)
    require_resident(kernel, 9)
    with pytest.raises(BuildError, match="has 9 execution units, but the GPU holds only 8 of"):
        require_resident(kernel, 8)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (209, "compiled for another kind of GPU"),
        (222, "update the NVIDIA driver"),
        (218, "update the NVIDIA driver"),
        (200, "update the NVIDIA driver"),
        (2, "free memory of the GPU"),
        (3, "started, not forked"),
        (999, "stretto doctor"),
    ],
)
def test_a_kernel_that_cannot_be_loaded(cuda: FakeCuda, code: int, remedy: str) -> None:
    cuda.fail("cuModuleLoadData", code)
    with pytest.raises(BuildError, match="the kernel cannot be loaded on cuda:0: cuModule") as e:
        load_kernel(cuda.driver(), 0, Compiled(), 1)
    assert remedy in (e.value.remedy or "")
    assert cuda.log("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")[-1] == "cuCtxPopCurrent_v2"


def test_a_gpu_that_another_process_holds(cuda: FakeCuda) -> None:
    cuda.fail("cuDevicePrimaryCtxRetain", 46)
    with pytest.raises(BuildError, match="the kernel cannot be loaded on cuda:0") as caught:
        load_kernel(cuda.driver(), 0, Compiled(), 1)
    assert "--compute-mode=DEFAULT" in (caught.value.remedy or "")


def test_a_gpu_that_starts_no_grid_as_a_whole(cuda: FakeCuda) -> None:
    cuda.library.fake_attribute(cuda_driver.COOPERATIVE_LAUNCH, 0)
    with pytest.raises(BuildError, match="cuda:0 has no cooperative launches") as caught:
        load_kernel(cuda.driver(), 0, Compiled(), 1)
    assert "use a whole GPU" in (caught.value.remedy or "")


def test_a_kernel_that_needs_scratch_memory(cuda: FakeCuda) -> None:
    with pytest.raises(BuildError, match="scratch memory"):
        load_kernel(cuda.driver(), 0, Compiled(scratch_bytes=128), 1)


def test_errors_of_launches_say_what_to_do() -> None:
    for code, remedy in (
        (901, "once before it is captured"),
        (2, "free memory"),
        (400, "no longer where it was"),
        (700, "restart"),
    ):
        error = cuda_driver.run_error(CudaError("cuX", code, "CUDA_ERROR", "why"), "it stopped")
        assert isinstance(error, RunError)
        assert error.message == "it stopped: cuX: CUDA_ERROR (why)"
        assert remedy in (error.remedy or "")


# ---- the library -----------------------------------------------------------------------------
@pytest.fixture
def fresh() -> None:
    load_driver.cache_clear()


def test_no_library(fresh: None) -> None:
    with pytest.raises(
        BuildError, match="CUDA: the NVIDIA driver is not there: .*libnone"
    ) as caught:
        load_driver("libnone.so.1")
    assert "docker run --gpus all" in (caught.value.remedy or "")


def test_a_library_without_what_is_needed(fresh: None) -> None:
    with pytest.raises(BuildError, match="the NVIDIA driver is too old: .*cuInit") as caught:
        load_driver("libc.so.6")
    assert "update the NVIDIA driver" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(100, "CUDA_VISIBLE_DEVICES"), (803, "reboot"), (999, "check that `nvidia-smi` works")],
)
def test_a_driver_that_does_not_start(cuda: FakeCuda, fresh: None, code: int, remedy: str) -> None:
    cuda.fail("cuInit", code)
    with pytest.raises(BuildError, match="the NVIDIA driver does not start: cuInit: ") as caught:
        load_driver(str(cuda.path))
    assert remedy in (caught.value.remedy or "")


def test_the_version(cuda: FakeCuda, fresh: None) -> None:
    assert load_driver(str(cuda.path)).version() == (12, 8)


def test_captures(cuda: FakeCuda) -> None:
    driver = cuda.driver()
    assert driver.capture(5) == 0
    cuda.capture(5, 1 << 40)
    assert driver.capture(5) == 1 << 40
    cuda.fail("cuStreamGetCaptureInfo_v2", 906)  # the default stream beside a captured one
    assert driver.capture(5) == 0
    cuda.fail("cuStreamGetCaptureInfo_v2", 700)
    with pytest.raises(CudaError):
        driver.capture(5)


# ---- the order of launches -------------------------------------------------------------------
class Recorded:
    joint = True

    def __init__(self) -> None:
        self.streams: list[int] = []

    def set(self, place: int, argument: object) -> None:
        raise NotImplementedError

    def launch(self, stream: int) -> None:
        self.streams.append(stream)


def test_there_is_one_order_for_a_device(cuda: FakeCuda) -> None:
    driver = cuda.driver()
    assert order_of(0, driver) is order_of(0, driver)
    assert order_of(0, driver) is not order_of(1, driver)


def test_a_stream_that_is_gone(cuda: FakeCuda) -> None:
    order, launches = LaunchOrder(cuda.driver()), Recorded()
    order.launch(launches, 1, 0)
    cuda.fail("cuEventRecord", 400)
    cuda.clear()
    order.launch(launches, 3, 0)
    assert cuda.log() == ["cuEventCreate 2", "cuEventRecord 1", "cuCtxSynchronize"]
    cuda.fail("cuEventRecord", 700)
    with pytest.raises(CudaError):
        order.launch(launches, 1, 0)
    assert launches.streams == [1, 3]


def test_a_launch_that_fails_does_not_count(cuda: FakeCuda) -> None:
    cuda.fail("cuLaunchKernelEx", 701)
    driver = cuda.driver()
    order = LaunchOrder(driver)
    words = (ctypes.c_uint64 * 1)()

    class Failing(Recorded):
        launch = staticmethod(driver.launch(1, 1, 32, 0, words, cooperative=True))  # pyright: ignore

    with pytest.raises(CudaError):
        order.launch(Failing(), 1, 0)
    cuda.clear()
    order.launch(Recorded(), 3, 0)
    assert not cuda.log("cuEventRecord")


def test_the_per_thread_stream_is_refused(cuda: FakeCuda) -> None:
    launches = Recorded()
    with pytest.raises(RunError, match="cannot run on the per-thread default stream") as caught:
        LaunchOrder(cuda.driver()).launch(launches, cuda_driver.PER_THREAD_STREAM, 0)
    assert "torch.cuda.Stream()" in (caught.value.remedy or "")
    assert not launches.streams
