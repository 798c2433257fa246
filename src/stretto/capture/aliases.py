"""Aliases that the Program cannot follow: then a write in place is refused, never wrong.

A tensor that leaves a branch, a loop or a recursive call, or goes into a list of the Program, gets
a storage of its own, although in eager PyTorch it may share memory with another tensor. Such pairs
of storages are *linked*. A write to one of them is an error if the other can still be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from stretto.capture.signals import fail
from stretto.capture.state import Snapshot, TracedList, children
from stretto.capture.tensor import Hooks, Storage, TracedTensor
from stretto.capture.tracer import tracer


def storages_of(value: Any) -> list[Storage]:
    """Storages of the tensors and lists directly inside a leaf."""
    if isinstance(value, TracedTensor | TracedList):
        return [value.memory]
    if isinstance(value, torch.Tensor):
        return [tracer().promote(value).memory]
    if isinstance(value, Storage):
        return [value]
    if isinstance(value, list | tuple):
        return [storage for item in value for storage in storages_of(item)]
    return []


def link(made: Any, sources: Iterable[Any]) -> None:
    """`made` may share memory with `sources`, and with whatever they may share memory with."""
    links = tracer().links
    for target in storages_of(made):
        for source in storages_of(list(sources)):
            for other in (source, *links.get(source, ())):
                if other is not target:
                    links.setdefault(target, set()).add(other)
                    links.setdefault(other, set()).add(target)


def link_all(made: Sequence[Any], sources: Sequence[Sequence[Any]]) -> None:
    """Link each of `made` to its sources, and those that have a source in common."""
    users = dict[Storage, list[Any]]()
    for one, its in zip(made, sources, strict=True):
        if isinstance(one, TracedTensor) and one.number is not None:
            continue
        link(one, its)
        for source in storages_of(list(its)):
            for other in users.setdefault(source, []):
                if other is not one:
                    link(one, [other])
            users[source].append(one)


def _partners(storage: Storage) -> set[Storage]:
    """Where a write to `storage` might have to be seen. A list's growth leaves its items alone."""
    partners = tracer().links.get(storage, set())
    if storage.fake is None:
        return {partner for partner in partners if partner.fake is None}
    return partners


def check_write(storage: Storage) -> None:
    """Fail if a write to `storage` should be seen through another one."""
    partners = _partners(storage)
    if partners and (partners & _visible()):
        fail(
            "a tensor is changed in place that may share memory with another one, depending on "
            "a traced branch, loop, call or list",
            "call clone() before, or use the out-of-place operator",
        )


def check_carried(carried: Iterable[Storage], others: Iterable[Any]) -> None:
    """Fail if a storage that a loop body writes is also carried under another name."""
    written = set(carried)
    linked = {partner for item in written for partner in _partners(item)}
    if any(storage in written or storage in linked for storage in storages_of(list(others))):
        fail(
            "a tensor that a loop changes in place is also kept under another name, or in a list",
            "keep a clone() of it",
        )


def _visible() -> set[Storage]:
    """Storages that the user's code, or the caller of the function, can still see."""
    state = tracer()
    found = {traced.memory for traced in state.inputs.values()}
    found |= {constant.memory for constant in state.constants.values()}
    snapshot = Snapshot.take()
    pending: list[Any] = list(snapshot.cells.values())
    pending += [item for _, values in snapshot.boxes.values() for item in values.values()]
    while pending:
        value = pending.pop()
        found.update(storages_of(value) if not isinstance(value, list) else ())
        if isinstance(value, tuple):
            pending.extend(children(value))
    return found


Hooks.check_write = check_write
