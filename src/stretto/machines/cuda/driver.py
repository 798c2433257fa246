"""The part of the CUDA driver API that launches need, through ctypes on libcuda.so.1.

Nothing else has to be installed: no CUDA toolkit, no cuda-python. Memory, streams and devices are
torch's; contexts are the primary ones, which torch uses too. Names of functions, constants and the
layout of structures are those of cuda.h; tests compile against that header.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from stretto.errors import BuildError, RunError
from stretto.locks import single

LIBRARY = "libcuda.so.1"

Launch = Callable[[int], None]
"""`launch(stream)` enqueues a kernel that was prepared with its arguments."""

# CUresult
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3
DEINITIALIZED = 4
DEVICE_UNAVAILABLE = 46
NO_DEVICE = 100
INVALID_IMAGE = 200
INVALID_CONTEXT = 201
NO_BINARY_FOR_GPU = 209
INVALID_PTX = 218
UNSUPPORTED_PTX_VERSION = 222
INVALID_SOURCE = 300
INVALID_HANDLE = 400
OUT_OF_RESOURCES = 701
CONTEXT_IS_DESTROYED = 709
COOPERATIVE_LAUNCH_TOO_LARGE = 720
DRIVER_MISMATCH = 803
CAPTURE_ERRORS = range(900, 910)
GONE = (NOT_INITIALIZED, DEINITIALIZED, INVALID_CONTEXT, INVALID_HANDLE, CONTEXT_IS_DESTROYED)
"""Errors of a kernel that is no longer loaded."""

# CUdevice_attribute, CUcomputemode
MULTIPROCESSORS = 16
COMPUTE_MODE = 20
SHARED_MEMORY_PER_MULTIPROCESSOR = 81
COOPERATIVE_LAUNCH = 95
MODE_PROHIBITED = 2
MODE_EXCLUSIVE_PROCESS = 3

# CUfunction_attribute, CUstreamCaptureStatus, CUstreamCaptureMode, CUevent_flags,
# CUlaunchAttributeID
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
CAPTURE_ACTIVE = 1
CAPTURE_RELAXED = 2
EVENT_DISABLE_TIMING = 2
ATTRIBUTE_COOPERATIVE = 2

PER_THREAD_STREAM = 2
"""CU_STREAM_PER_THREAD: one handle that means a different stream in each thread."""

_FUNCTIONS = (
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuCtxSynchronize",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernelEx",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventRecord",
)
_FREE_MEMORY = "free memory of the GPU: other processes may use it (`nvidia-smi`)"
BUSY_REMEDY = (
    "end the process that holds the GPU (`nvidia-smi` lists it), or let several share it: "
    "`nvidia-smi --compute-mode=DEFAULT`, as administrator"
)
_GONE_REMEDY = (
    "what was loaded on the GPU is no longer where it was: the device was reset, its context "
    "destroyed, or the process forked after it had used the GPU; compile again, in a process that "
    "was started, not forked"
)
_TOO_OLD = "update the NVIDIA driver (`nvidia-smi` shows its version)"


class CudaError(Exception):
    """A failed call of the driver. Users never see it: they get a BuildError or RunError."""

    def __init__(self, call: str, code: int, name: str, text: str) -> None:
        super().__init__(f"{call}: {name} ({text})")
        self.code = code


def pointers_to(words: ctypes.Array[ctypes.c_uint64]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of words, as the driver takes a kernel's arguments."""
    start, step = ctypes.addressof(words), ctypes.sizeof(ctypes.c_uint64)
    return (ctypes.c_void_p * len(words))(*(start + step * n for n in range(len(words))))


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute; `value` is a union of 64 bytes; launches set only the first int."""

    _fields_ = [
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_int * 16),
    ]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """Calls of the driver, each with its result checked. Handles are ints, as in torch."""

    def __init__(self, library: Any) -> None:
        for name in _FUNCTIONS:
            getattr(library, name)
        self._library = library
        # v3 has one more parameter, which v2 ignores.
        before = getattr(library, "cuStreamGetCaptureInfo_v2", None)
        self._capture_info = before or library.cuStreamGetCaptureInfo_v3
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of libcuda; raises CudaError unless it succeeds."""
        if code := getattr(self._library, name)(*arguments):
            raise self.error(name, code)

    def error(self, name: str, code: int) -> CudaError:
        texts: list[str] = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            found = ctypes.c_char_p()
            getattr(self._library, function)(code, ctypes.byref(found))
            texts.append((found.value or b"unknown").decode())
        return CudaError(name, code, *texts)

    def _int(self, name: str, *arguments: object) -> int:
        """Return the int that a function writes through its first parameter."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def _handle(self, name: str, *arguments: object) -> int:
        found = ctypes.c_void_p()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value or 0

    def version(self) -> tuple[int, int]:
        """Return the latest CUDA version that the driver supports."""
        number = self._int("cuDriverGetVersion")
        return number // 1000, number % 1000 // 10

    # ---- devices ----------------------------------------------------------------------------
    def attribute(self, device: int, number: int) -> int:
        """Return an attribute of a device. Needs no context, so it works on a GPU that other
        processes hold."""
        return self._int("cuDeviceGetAttribute", number, self._int("cuDeviceGet", device))

    # ---- contexts ----------------------------------------------------------------------------
    def context(self, device: int) -> int:
        """Return the primary context of a device, retained for the rest of the process."""
        return self._handle("cuDevicePrimaryCtxRetain", self._int("cuDeviceGet", device))

    def active(self, context: int) -> AbstractContextManager[object]:
        """Make this context current inside a `with`; afterwards restore the thread's context."""
        current = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(current))
        return _NOTHING if current.value == context else _Pushed(self, context)

    # ---- kernels -----------------------------------------------------------------------------
    def load(self, image: bytes, entry: str) -> int:
        """Load the kernel of that name from a cubin. It stays loaded, since a graph may still
        refer to it."""
        module = self._handle("cuModuleLoadData", ctypes.c_char_p(image))
        return self._handle("cuModuleGetFunction", ctypes.c_void_p(module), entry.encode())

    def allow_shared(self, function: int, nbytes: int) -> None:
        kernel = ctypes.c_void_p(function)
        self.call("cuFuncSetAttribute", kernel, MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)

    def resident_blocks(self, function: int, threads: int, shared: int) -> int:
        """Return the number of blocks of a kernel that one multiprocessor holds at once."""
        return self._int(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.c_void_p(function),
            threads,
            ctypes.c_size_t(shared),
        )

    def launch(
        self,
        function: int,
        blocks: int,
        threads: int,
        shared: int,
        arguments: ctypes.Array[ctypes.c_uint64],
        *,
        cooperative: bool,
    ) -> Launch:
        """Prepare a launch: each call of the result is one call of the driver. `arguments`: a word
        for each parameter, read at every launch."""
        cooperation = LaunchAttribute(id=ATTRIBUTE_COOPERATIVE)
        cooperation.value[0] = 1
        config = LaunchConfig(
            grid=(blocks, 1, 1),
            block=(threads, 1, 1),
            shared=shared,
            attributes=ctypes.pointer(cooperation),
            attribute_count=1 if cooperative else 0,
        )
        pointers = pointers_to(arguments)
        launch = self._library.cuLaunchKernelEx
        reference, kernel = ctypes.byref(config), ctypes.c_void_p(function)
        keep = arguments

        def enqueue(stream: int) -> None:
            config.stream = stream
            if code := launch(reference, kernel, pointers, None):
                raise self.error(f"cuLaunchKernelEx with {len(keep)} arguments", code)

        return enqueue

    # ---- streams and events ------------------------------------------------------------------
    def capture(self, stream: int) -> int:
        """Return the id of the capture that records a stream; 0 if none does."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        to = ctypes.byref(status), ctypes.byref(number)
        code = self._capture_info(ctypes.c_void_p(stream), *to, None, None, None, None)
        if code in CAPTURE_ERRORS:  # the default stream while another one is captured
            return 0
        if code:
            raise self.error("cuStreamGetCaptureInfo", code)
        return number.value if status.value == CAPTURE_ACTIVE else 0

    def relaxed(self) -> AbstractContextManager[object]:
        """Allow this thread to allocate and wait inside a `with` while another stream is being
        captured."""
        return _Relaxed(self)

    def event(self) -> int:
        return self._handle("cuEventCreate", EVENT_DISABLE_TIMING)

    def record(self, event: int, stream: int) -> None:
        self.call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))

    def wait(self, stream: int, event: int) -> None:
        """Let later work on the stream wait for the event."""
        self.call("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), 0)

    def synchronize(self, stream: int | None) -> None:
        """Wait for a stream, or for everything in the context if it is None."""
        if stream is None:
            self.call("cuCtxSynchronize")
        else:
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))


_NOTHING = nullcontext()


class _Pushed:
    """Makes a context current inside a `with`."""

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver = driver
        self._context = context

    def __enter__(self) -> None:
        self._driver.call("cuCtxPushCurrent_v2", ctypes.c_void_p(self._context))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class _Relaxed:
    """Exchanges the capture mode of this thread inside a `with`."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._mode = ctypes.c_int(CAPTURE_RELAXED)

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exchange()

    def _exchange(self) -> None:
        self._driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(self._mode))


@single
def load_driver(library: str = LIBRARY) -> Driver:
    """Load the driver of this machine. Raises BuildError if there is none that works."""
    try:
        return Driver(ctypes.CDLL(library))
    except OSError as error:
        raise BuildError(
            f"CUDA: the NVIDIA driver is not there: {error}",
            remedy="install it; in a container, start that with the GPUs: "
            "`docker run --gpus all ...`",
        ) from error
    except AttributeError as error:
        raise BuildError(f"the NVIDIA driver is too old: {error}", remedy=_TOO_OLD) from error
    except CudaError as error:
        raise BuildError(
            f"the NVIDIA driver does not start: {error}", remedy=_start_remedy(error.code)
        ) from error


def _start_remedy(code: int) -> str:
    if code == NO_DEVICE:
        return "check that `nvidia-smi` lists a GPU and that CUDA_VISIBLE_DEVICES does not hide it"
    if code == DRIVER_MISMATCH:
        return "reboot, so that the driver's kernel module and library are of one version"
    return "check that `nvidia-smi` works"


def build_error(error: CudaError, what: str) -> BuildError:
    """Return the error for a kernel that cannot be loaded."""
    match error.code:
        case code if code == NO_BINARY_FOR_GPU:
            remedy = (
                "the program was compiled for another kind of GPU: remove it from the cache "
                "(`stretto cache --clear`) and compile it on this machine"
            )
        case code if code in (UNSUPPORTED_PTX_VERSION, INVALID_PTX, INVALID_IMAGE, INVALID_SOURCE):
            remedy = f"{_TOO_OLD}: it does not read what Triton's assembler writes"
        case code if code == OUT_OF_MEMORY:
            remedy = _FREE_MEMORY
        case code if code == DEVICE_UNAVAILABLE:
            remedy = BUSY_REMEDY
        case code if code in GONE:
            remedy = _GONE_REMEDY
        case _:
            remedy = "run `stretto doctor`"
    return BuildError(f"{what}: {error}", remedy=remedy)


def run_error(error: CudaError, what: str) -> RunError:
    """Return the error for a launch or a wait that failed."""
    match error.code:
        case code if code in (COOPERATIVE_LAUNCH_TOO_LARGE, OUT_OF_RESOURCES):
            remedy = (
                "the GPU holds fewer thread blocks than when the program was compiled, as under a "
                "limit of MPS: compile it again"
            )
        case code if code in CAPTURE_ERRORS:
            remedy = (
                "run the function once before it is captured, and wait for the GPU and for errors "
                "outside of captures, those of other threads too"
            )
        case code if code == OUT_OF_MEMORY:
            remedy = _FREE_MEMORY
        case code if code in GONE:
            remedy = _GONE_REMEDY
        case _:
            remedy = (
                "the GPU reports this for work that was put on it before, by stretto or others: "
                "run with CUDA_LAUNCH_BLOCKING=1 to see by which; the process must be restarted"
            )
    return RunError(f"{what}: {error}", remedy=remedy)
