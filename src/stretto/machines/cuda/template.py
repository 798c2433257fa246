"""What a template of the GPU is: what selection asks of it, and how it is printed.

Each file of `templates/` has a `FAMILY`: a dataclass that derives from `CudaTemplate`, and a
function that says when it applies, which block it takes and what it costs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from stretto.device.operator import Stage, Template
from stretto.machines.cuda.printer.stage_nest import GridBound, NestPrinter
from stretto.machines.cuda.stencil import Stencil
from stretto.machines.parameters import Naming
from stretto.machines.statements import Builder

Parts = tuple[Builder, Naming, Stage, tuple[GridBound, ...], list[int]]
"""What a NestPrinter is made of."""


@dataclass(frozen=True, slots=True)
class CudaTemplate(Template):
    """has_epilogue: pointwise stages behind it can be computed on its blocks."""

    has_epilogue: ClassVar[bool] = False

    @abstractmethod
    def printer(self, parts: Parts) -> NestPrinter:
        """What prints a stage of this template."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A template for a box. seconds: of the box; beside: what it adds to those of another one like
    it that is under way."""

    template: CudaTemplate
    seconds: float
    beside: float


@dataclass(frozen=True, slots=True)
class Family:
    """The template of a file. choice: for a box of these sizes, if it applies. rank: of several
    that apply, the lowest is taken."""

    template: type[CudaTemplate]
    choice: Callable[[Stencil, tuple[int, ...]], Choice | None]
    rank: int = 1
