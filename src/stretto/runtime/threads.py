"""Torch's threads, for a call that is to have some of them only.

Torch computes on OpenMP's threads, whose number is one of the thread that calls (and MKL's as
well): so a share holds for the calling thread, and nobody else sees it. `torch.set_num_threads`
would also change what threads begin with that call torch for the first time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec

import torch

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class _Settings:
    """The functions of OpenMP and MKL, each for the calling thread; the second gives back what was
    set before."""

    openmp: Callable[[int], object]
    mkl: Callable[[int], int] | None
    end_threads: Callable[[int], int] | None


@cache
def _settings() -> _Settings | None:
    """None where torch does not compute on OpenMP's threads, or hides its functions."""
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    folder = Path(torch.__file__).with_name("lib")
    for path in sorted(folder.glob("libtorch_cpu.*")):
        try:
            library = ctypes.PyDLL(str(path))
            end_threads = getattr(library, "omp_pause_resource_all", None)
            return _Settings(library.omp_set_num_threads, _mkl(library), end_threads)
        except (OSError, AttributeError):
            continue
    return None


def _mkl(library: ctypes.PyDLL) -> Callable[[int], int] | None:
    name = "MKL_Set_Num_Threads_Local"
    return getattr(library, name) if torch.backends.mkl.is_available() else None


def can_share() -> bool:
    """Whether calls can have a share of the threads."""
    return _settings() is not None


def thread_functions() -> tuple[Any, Any, Any]:
    """The C functions that set the number of threads for the calling thread, OpenMP's and MKL's,
    which gives back what was set before; and the one that ends the threads that OpenMP keeps for
    the calling thread. None for what there is not."""
    settings = _settings()
    return (
        (None, None, None)
        if settings is None
        else (settings.openmp, settings.mkl, settings.end_threads)
    )


def with_threads(
    threads: int, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Calls a function with at most so many threads of torch for this thread."""
    settings = _settings()
    before = torch.get_num_threads()  # which also sets what a thread begins with
    if settings is None or before <= threads:
        function(*args, **kwargs)
        return
    settings.openmp(threads)
    mkl = settings.mkl(threads) if settings.mkl is not None else 0
    try:
        function(*args, **kwargs)
    finally:
        settings.openmp(before)
        if settings.mkl is not None:
            settings.mkl(mkl)
