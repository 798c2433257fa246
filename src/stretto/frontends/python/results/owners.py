"""The modules whose parameters and buffers a Program has as constants."""

# pyright: reportPrivateUsage=false
# module parameters are private tables

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from stretto.frontends.python.results.captured import ConstantSource
from stretto.frontends.python.tracing.frames import read_cell
from stretto.frontends.python.tracing.tracer import Owner, Tracer


def source_of(tracer: Tracer, key: str | None, tensor: torch.Tensor) -> ConstantSource:
    """Where a constant comes from: its module's table, if there is one."""
    owner = tracer.owners.get(id(tensor))
    table, name = (owner.table, owner.name) if owner else (None, None)
    version = None if tensor.is_inference() else tensor._version
    return ConstantSource(key, tensor, version, tensor.data_ptr(), table, name)


def owners_of(roots: Iterable[Any]) -> dict[int, Owner]:
    """Parameters and buffers of every module that is reachable from the function's closure."""
    owners = dict[int, Owner]()
    for prefix, module in _modules(roots):
        for path, part in module.named_modules():
            for table in (part._parameters, part._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        parts = [item for item in (prefix, path, name) if item]
                        owners.setdefault(id(tensor), Owner(table, name, ".".join(parts)))
    return owners


def paths_of(roots: Iterable[Any]) -> dict[int, str]:
    """The path of every module that is reachable from the function's closure, by its id. The
    first one counts, which for the module that is compiled is empty."""
    paths = dict[int, str]()
    for prefix, module in _modules(roots):
        for path, part in module.named_modules():
            paths.setdefault(id(part), ".".join(item for item in (prefix, path) if item))
    return paths


def _modules(roots: Iterable[Any]) -> list[tuple[str, nn.Module]]:
    found = list[tuple[str, nn.Module]]()
    pending = [("", root) for root in roots]
    seen = set[int]()
    while pending:
        name, value = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        match value:
            case nn.Module():
                found.append((name, value))
            case MethodType():
                pending += [(name, value.__self__), (name, value.__func__)]
            case FunctionType():
                code, table = value.__code__, value.__globals__
                cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
                pending += [(free, read_cell(cell)) for free, cell in cells]
                used = ((n, table.get(n)) for n in code.co_names)
                pending += [item for item in used if isinstance(item[1], nn.Module | FunctionType)]
            case _:
                continue
    return found
