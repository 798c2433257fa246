"""Runs single tasks of a kernel's Triton, for its check: the text is interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from stretto.device.user_kernels import UserKernel
from stretto.extending.tasks import Box, Guarded, Number
from stretto.ir.types import DType
from stretto.machines.cuda.interpreter import InterpretedKernel
from stretto.machines.cuda.printer.program import HEADER, library_text
from stretto.machines.cuda.printer.scalar import POINTER_TYPES
from stretto.machines.cuda.printer.source import ENTRY, PROGRESS, Parameter, TritonSource
from stretto.machines.cuda.stencil import power
from stretto.machines.cuda.templates.user import block_sizes, number_text
from stretto.machines.cuda.user_source import definitions


@dataclass(slots=True)
class TritonTasks:
    """programs: a module that runs one task, by its text."""

    kernel: UserKernel
    programs: dict[str, InterpretedKernel] = field(default_factory=dict[str, InterpretedKernel])

    def run(self, held: Sequence[Guarded], box: Box, numbers: Sequence[Number]) -> None:
        """Raises RunError for an access outside of a tensor, and whatever else Triton refuses."""
        source = self._source(held, box, numbers)
        if source.text not in self.programs:
            self.programs[source.text] = InterpretedKernel(source)
        control = torch.zeros(PROGRESS + 1, dtype=torch.int64)
        tensors = [item.result.reshape(-1) for item in held]
        ends = [end for interval in box for end in interval]
        self.programs[source.text].launch([control, *tensors, *ends])

    def _source(self, held: Sequence[Guarded], box: Box, numbers: Sequence[Number]) -> TritonSource:
        kernel, code = self.kernel, self.kernel.triton
        assert code is not None
        names = [*(read.tensor for read in kernel.reads), kernel.write.tensor]
        parameters = [Parameter("control", "*i64", "control")]
        arguments: list[str] = []
        lanes = max(power(last - first) for first, last in box) if box else 1
        tiles = [last - first for first, last in box]
        for number, block in enumerate(block_sizes(kernel, tiles, lanes ** max(len(box), 1))):
            arguments.append(f"stretto_Range(begin{number}, end{number}, {block})")
        views: list[str] = []
        for number, (name, item) in enumerate(zip(names, held, strict=True)):
            kind = POINTER_TYPES[DType.from_torch(item.result.dtype)]
            parameters.append(Parameter(f"p{number}_{name}", kind, "buffer", number))
            shape, steps = tuple(item.result.shape), item.result.stride()
            views.append(f"stretto_View(p{number}_{name}, {shape}, {steps})")
        for number in range(len(box)):
            parameters += [Parameter(f"{n}{number}", "i32", "size") for n in ("begin", "end")]
        *reads, result = views
        call = ", ".join([*arguments, *reads, *map(number_text, numbers), result])
        head = f"def {ENTRY}({', '.join(parameter.name for parameter in parameters)}):"
        entry = f"@triton.jit\n{head}\n    {code.entry}({call})\n"
        text = "\n\n".join([HEADER, library_text(), *definitions([kernel]), entry])
        return TritonSource(text, tuple(parameters), (), 1, 4, user_kernels=(kernel,))
