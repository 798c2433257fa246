"""Systems that run a model, written for one instance, on a batch of instances."""

from __future__ import annotations

import importlib
import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from ..models.instances import InstanceEntry, as_it_is
from ..models.instances.data import as_arrays, leaves
from .base import Case, Peer, Prepared, Skipped


@dataclass(frozen=True, slots=True)
class InstanceCase(Case):
    """A model for one instance; `inputs` are the instances of the batch."""

    entry: InstanceEntry


def _many(function: Callable[[list[Any]], Any], case: Case, note: str = "") -> Prepared:
    """Call a system with the list of instances, gradients off."""
    instances = list(case.inputs)

    def call() -> Any:
        with torch.no_grad():
            return function(instances)

    return Prepared(call, as_arrays, note)


def _each(function: Callable[[Any], Any], case: Case) -> Prepared:
    """Call a system with one instance after the other."""
    return _many(lambda instances: [function(one) for one in instances], case)


class EagerInstances(Peer):
    """The model as it is, instance by instance."""

    name: ClassVar[str] = "eager"

    def prepare(self, case: Case) -> Prepared:
        return _each(case.module, case)


class HandBatched(Peer):
    """A batched version written by hand, level by level, in plain PyTorch."""

    name: ClassVar[str] = "hand"

    def prepare(self, case: Case) -> Prepared:
        return self._prepared(case, as_it_is)

    def _prepared(self, case: Case, wrap: Callable[..., Any]) -> Prepared:
        assert isinstance(case, InstanceCase)
        if case.entry.batched is None:
            raise Skipped("nothing is written by hand for a batch of this model")
        with torch.no_grad():
            many = case.entry.batched(case.module, wrap)
        return _many(many, case)


class HandCompiled(HandBatched):
    """The hand-written batched version with its functions of tensors compiled by torch.compile for
    any number of rows."""

    name: ClassVar[str] = "hand_compile"

    def __init__(self) -> None:
        self._held = ExitStack()

    def prepare(self, case: Case) -> Prepared:
        from torch._inductor.utils import fresh_cache  # takes seconds: imported only when needed

        torch._dynamo.reset()
        torch._logging.set_logs(dynamo=logging.ERROR, inductor=logging.ERROR)
        self._held.enter_context(fresh_cache())
        return self._prepared(case, partial(torch.compile, dynamic=True))

    def release(self) -> None:
        self._held.close()
        torch._dynamo.reset()


class _Stretto(Peer):
    """stretto, its programs built into an empty cache folder for each model."""

    function: ClassVar[str]

    def __init__(self) -> None:
        self._held = ExitStack()

    def made(self, case: Case) -> Callable[[Any], Any]:
        try:
            stretto = importlib.import_module("stretto")
            function, options = getattr(stretto, self.function), stretto.Options
        except (ImportError, AttributeError) as error:
            raise Skipped(f"stretto.{self.function} is not there: {error}") from error
        folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="stretto-bench-"))
        chosen = options(threads=case.threads, cache_dir=folder)
        return function(case.module, backend="cpu", options=chosen)

    def release(self) -> None:
        self._held.close()


class StrettoInstances(_Stretto):
    """`stretto.compile`, instance by instance: a program per structure.

    The number of measured instances is the number that are compiled within `limit_s`
    seconds, at least one. Skipped if instances have no tensors: the numbers in them are
    constants of their programs, so the results are computed while the programs are
    compiled, and calls only return them.
    """

    name: ClassVar[str] = "stretto_each"
    function: ClassVar[str] = "compile"
    limit_s: ClassVar[float] = 15.0

    def prepare(self, case: Case) -> Prepared:
        if not any(isinstance(leaf, torch.Tensor) for _, leaf in leaves(list(case.inputs))):
            raise Skipped("instances without tensors are constants of their programs")
        compiled = self.made(case)
        begin, count = time.perf_counter(), 0
        with torch.no_grad():
            for instance in case.inputs:
                compiled(instance)
                count += 1
                if time.perf_counter() - begin > self.limit_s:
                    break
        seconds = time.perf_counter() - begin
        prepared = _each(compiled, replace(case, inputs=case.inputs[:count]))
        if count == len(case.inputs):
            return prepared
        note = (
            f"the first {count} of {len(case.inputs)} instances, compiled in {seconds:.1f} s; "
            "times are scaled to all"
        )
        return replace(prepared, note=note, instances=count)


class StrettoBatch(_Stretto):
    """`stretto.batch`: one call for the batch."""

    name: ClassVar[str] = "stretto"
    function: ClassVar[str] = "batch"

    def prepare(self, case: Case) -> Prepared:
        return _many(self.made(case), case)


INSTANCE_PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        EagerInstances(),
        StrettoInstances(),
        HandBatched(),
        HandCompiled(),
        StrettoBatch(),
    )
}
