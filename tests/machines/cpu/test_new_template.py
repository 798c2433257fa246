"""A template in one file: the example of the recipe "To add a template" in CONTRIBUTING.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import stretto
from stretto.device.expr import Load
from stretto.kernels.contraction import stride
from stretto.machines.cpu import templates
from stretto.machines.cpu.printer.nest import CppNestPrinter
from stretto.machines.cpu.template import (
    CpuTemplate,
    CpuTemplateFamily,
    TemplateCandidate,
    TemplateRequest,
)
from stretto.machines.statements import Do
from stretto.machines.terms import call
from stretto.options import Options


@dataclass(frozen=True, slots=True)
class Copy(CpuTemplate):
    """Elements that lie side by side, `block` of them at least."""

    name: ClassVar[str] = "copy"
    header: ClassVar[str] = "contract.h"
    block: int

    def write(self, nest: CppNestPrinter) -> None:
        value, (first, last) = nest.operator.value, nest.bounds(nest.stage.box[0])
        assert isinstance(value, Load)
        source = nest.pointer(value.access, {0: first})
        target = nest.pointer(nest.operator.out, {0: first})
        size = (last - first) * value.dtype.itemsize
        nest.out.add(Do(call("__builtin_memcpy", target, source, size)))


def _candidate(request: TemplateRequest) -> TemplateCandidate | None:
    operator, costs = request.operator, request.costs
    if not isinstance(operator.value, Load) or len(operator.dims) != 1 or operator.reduce:
        return None
    accesses = (operator.value.access, operator.out)
    if {access.buffer.dtype for access in accesses} != {operator.value.dtype}:
        return None
    if any(not access.offset.is_affine or stride(access, 0) != 1 for access in accesses):
        return None
    seconds = costs.points(operator.dims) * costs.element_seconds
    return TemplateCandidate(Copy(costs.vector), (costs.vector,), seconds)


FAMILY = CpuTemplateFamily((Copy,), _candidate, rank=0)


def test_a_template_is_chosen_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "FAMILIES", [FAMILY, *templates.FAMILIES])
    run = stretto.compile(
        lambda x: torch.cat((x, x + 1)), backend="cpu", options=Options(threads=2)
    )
    x = torch.arange(40.0)
    assert torch.equal(run(x), torch.cat((x, x + 1)))
    assert "copy 16" in run.explain()


def test_every_file_of_the_folder_is_found() -> None:
    names = {"attention", "packed", "rows", "dots", "sort", "loops", "user"}
    names |= {"narrow_rows", "narrow_packed", "narrow_dots"}
    names |= {"conv", "depthwise", "pixels", "depthwise_pixels", "group_pixels", "winograd"}
    names |= {"winograd_lines"}
    assert set(templates.TEMPLATES) == names
    assert [family.rank for family in templates.FAMILIES] == [-2, -1, 0, 0, 1, 1, 1, 1, 9]
