"""Runs single tasks of a kernel's C++, for its check."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stretto.device.user_kernels import UserKernel
from stretto.extending.tasks import GUARD, Box, Guarded, Number
from stretto.ir.types import DType
from stretto.machines.cpu.pool import HEADERS
from stretto.machines.cpu.printer.expr import MEMORY_TYPES
from stretto.machines.cpu.user_source import compile_error, definition, namespace
from stretto.options import Options
from stretto.runtime.compiler import compile_shared

_NUMBER_TYPES = {"f64": "double", "i64": "int64_t", "bool": "bool"}


@dataclass(frozen=True, slots=True)
class CppTasks:
    """function: `(pointers, ranges and sizes and strides, numbers)` runs one task."""

    function: Any

    @staticmethod
    def of(kernel: UserKernel, tensors: Sequence[Tensor], wanted: Tensor) -> CppTasks:
        """Raises BuildError for C++ that does not compile."""
        return CppTasks(_compiled(kernel, tensors, wanted))

    def run(self, held: Sequence[Guarded], box: Box, numbers: Sequence[Number]) -> None:
        pointers = [item.memory[GUARD:].data_ptr() for item in held]
        sizes = [n for item in held for n in (*item.result.shape, *item.result.stride())]
        ranges = [end for interval in box for end in interval]
        self.function(
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_int64 * (len(ranges) + len(sizes)))(*ranges, *sizes),
            (ctypes.c_double * max(len(numbers), 1))(*map(float, numbers)),
        )


def _compiled(kernel: UserKernel, tensors: Sequence[Tensor], wanted: Tensor) -> Any:
    """A function `(pointers, ranges and sizes and strides, numbers)` that runs one task."""
    indices = sum(part.start is not None for part in kernel.write.parts)
    spans = [f"stretto::Range{{n[{2 * k}], n[{2 * k + 1}]}}" for k in range(indices)]
    place, views = 2 * indices, list[str]()
    regions = [*zip(kernel.reads, tensors, strict=True), (kernel.write, wanted)]
    for number, (region, tensor) in enumerate(regions):
        rank, is_result = len(region.parts), number == len(tensors)
        kind = MEMORY_TYPES[DType.from_torch(tensor.dtype)]
        kind = kind if is_result else f"const {kind}"
        dims = [f"n[{place + k}]" for k in range(rank)] or ["1"]
        steps = [f"n[{place + rank + k}]" for k in range(rank)] or ["0"]
        held = f"({kind}*)p[{number}], {{{', '.join(dims)}}}, {{{', '.join(steps)}}}"
        views.append(f"stretto::View<{kind}, {rank}>{{{held}}}")
        place += 2 * rank
    numbers = [f"({_NUMBER_TYPES[t]})v[{k}]" for k, (_, t) in enumerate(kernel.numbers)]
    *reads, result = views
    arguments = ", ".join([*spans, *reads, *numbers, result])
    source = f"""\
#include "tile.h"
{definition(kernel)}
extern "C" void task(void** p, const int64_t* n, const double* v) {{
    {namespace(kernel)}::{kernel.entry}({arguments});
}}
"""
    with compile_error(kernel):
        library = ctypes.CDLL(str(compile_shared(source, Options(), HEADERS).path))
    function = library.task
    function.restype = None
    return function
