"""The benchmark of models written for one instance, on batches of instances.

>>> record = run(["treelstm"], batch=64)
>>> record.models[0].speedup("stretto", over="hand")

Trees come from the file that the environment variable STRETTO_TREE_SHAPES names, if it is set.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from .harness import SEED, Observer, Problem, Subject, measure, require_known
from .measure import Protocol
from .models.instances import INSTANCE_ZOO, InstanceEntry
from .models.instances.data import as_arrays, in_float64
from .models.instances.trees import SHAPES_VARIABLE
from .peers import Peer
from .peers.instances import INSTANCE_PEERS, InstanceCase
from .record import Record

BATCHES = (8, 64)
"""Instances per batch in the published benchmark."""

LONG = ("berxit",)
"""Models that are left out unless they are named: a batch takes minutes on two cores."""

DEFAULT_MODELS = tuple(name for name in INSTANCE_ZOO if name not in LONG)


def run(
    models: Sequence[str] = DEFAULT_MODELS,
    peers: Sequence[str] = tuple(INSTANCE_PEERS),
    threads: int = 2,
    *,
    batch: int = 64,
    small: bool = False,
    protocol: Protocol | None = None,
    zoo: Mapping[str, InstanceEntry] = INSTANCE_ZOO,
    systems: Mapping[str, Peer] = INSTANCE_PEERS,
    observe: Observer = lambda text, done: None,
) -> Record:
    """Measure `peers` on batches of `batch` instances. Raises ValueError for unknown names.

    A model is named as `treelstm`, in all its published sizes, or as `treelstm:256` in one; with
    `small` in the size that tests use. Every system's results are compared with what eager
    computes in float64 instance by instance: structure, numbers and tensors.
    """
    require_known("model", [name.partition(":")[0] for name in models], zoo)
    require_known("peer", peers, systems)
    subjects = [
        _subject(zoo[name.partition(":")[0]], size, batch)
        for name in models
        for size in _sizes(zoo[name.partition(":")[0]], name.partition(":")[2], small)
    ]
    measured = [systems[name] for name in peers]
    return measure(subjects, measured, threads, batch, protocol or Protocol(), observe)


@dataclass(frozen=True, slots=True)
class BatchConfig:
    """The configuration of one row of the record."""

    batch: int
    trees: str
    model: Any


def _sizes(entry: InstanceEntry, size: str, small: bool) -> tuple[str, ...]:
    if small:
        return ("small",)
    if size and size not in entry.presets:
        raise ValueError(f"model {entry.name} has no size {size!r}: {', '.join(entry.presets)}")
    return (size,) if size else entry.sizes


def _subject(entry: InstanceEntry, size: str, batch: int) -> Subject:
    config = entry.presets[size]
    named = BatchConfig(batch, _trees(config), config)

    def make(threads: int) -> Problem:
        module = entry.make(config, SEED)
        instances = entry.instances(config, batch, SEED)
        precise = copy.deepcopy(module).double()
        with torch.no_grad():
            results = [precise(one) for one in in_float64(instances)]
        del precise
        case = InstanceCase(entry.name, config, module, tuple(instances), threads, entry)
        return Problem(
            case,
            as_arrays(results),
            entry.work(config, instances, results),
            lambda count: as_arrays(results[:count]),
        )

    return Subject(f"{entry.name}:{size}", entry.summary, size, named, make)


def _trees(config: Any) -> str:
    """Return the source of the trees' shapes, if a model has trees."""
    if not any(field.name == "shapes" for field in fields(config)):
        return ""
    return "of a file" if config.shapes or os.environ.get(SHAPES_VARIABLE) else "random"
