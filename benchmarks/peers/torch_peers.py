"""Peers that take the module as it is: eager PyTorch, torch.compile, and stretto itself."""

import importlib
import logging
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import torch

from .base import Case, Peer, Prepared, Skipped, without_gradients


class EagerPeer(Peer):
    name: ClassVar[str] = "eager"

    def prepare(self, case: Case) -> Prepared:
        return without_gradients(case.module, case.inputs)


def kept_cache_folder() -> str | None:
    """Return the folder that the user chose for torch.compile's cache, if any. torch sets the
    variable to its default folder when it first needs one, so that folder does not count as
    chosen."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return None if folder in (None, "", default_cache_dir()) else folder


def drop_waiting_compilations() -> None:
    """End inductor's compiler threads, which continue after a preparation that is cut off and
    would disturb the systems timed next. It starts new ones when it needs them."""
    loaded = sys.modules.get("torch._inductor.async_compile")
    if loaded is not None and loaded.AsyncCompile.pool.cache_info().currsize:
        loaded.AsyncCompile.pool().shutdown(wait=True, cancel_futures=True)
        loaded.AsyncCompile.pool.cache_clear()


class CompilePeer(Peer):
    """torch.compile in its default mode; it unrolls loops and breaks the graph at decisions.

    A model may set how it is compiled (`by_torch_compile`). Each model gets an empty
    cache folder, so that compile times are those of a first run. If the environment
    variable TORCHINDUCTOR_CACHE_DIR names a folder, that one is used and kept: a later
    process then finds its kernels and the choices of max-autotune there. The record's
    note says so.
    """

    name: ClassVar[str] = "compile"
    mode: ClassVar[str] = "default"

    def __init__(self) -> None:
        self._held = ExitStack()

    def prepare(self, case: Case) -> Prepared:
        # The import takes seconds, so it is done only for this peer.
        from torch._inductor.utils import clear_caches, fresh_cache

        torch._dynamo.reset()
        # Graph breaks are to be expected here, and would be reported one by one.
        torch._logging.set_logs(dynamo=logging.ERROR, inductor=logging.ERROR)
        folder = kept_cache_folder()
        if folder is None:
            self._held.enter_context(fresh_cache())
        else:
            clear_caches()  # those in memory
        own = getattr(case.module, "by_torch_compile", None)
        compiled = torch.compile(case.module, mode=self.mode) if own is None else own(self.mode)
        note = "" if folder is None else f"compiled with the kept cache folder {folder}"
        return replace(without_gradients(compiled, case.inputs), note=note)

    def release(self) -> None:
        drop_waiting_compilations()
        self._held.close()
        torch._dynamo.reset()


class AutotunePeer(CompilePeer):
    """torch.compile, choosing among more kernels by measuring them: minutes for a large model."""

    name: ClassVar[str] = "autotune"
    mode: ClassVar[str] = "max-autotune"


class StrettoPeer(Peer):
    """stretto's native program, built into an empty cache folder for each model."""

    name: ClassVar[str] = "stretto"

    def __init__(self) -> None:
        self._held = ExitStack()

    def prepare(self, case: Case) -> Prepared:
        try:
            stretto = importlib.import_module("stretto")
            compile_, options = stretto.compile, stretto.Options
        except (ImportError, AttributeError) as error:
            raise Skipped(f"stretto cannot be imported: {error}") from error
        folder = self._held.enter_context(tempfile.TemporaryDirectory(prefix="stretto-bench-"))
        chosen = options(threads=case.threads, cache_dir=folder)
        self.begin(chosen)
        fast = compile_(case.module, backend="cpu", options=chosen)

        def predicted() -> float:
            from stretto.errors import StrettoError
            from stretto.tools.simulate import predicted_seconds

            try:
                return predicted_seconds(fast, chosen)
            except StrettoError as error:
                raise Skipped(str(error)) from error

        return replace(without_gradients(fast, case.inputs), predicted=predicted)

    def begin(self, options: Any) -> None:
        """Fill the cache folder before the model is compiled with these options."""

    def release(self) -> None:
        self._held.close()


class CalibratedPeer(StrettoPeer):
    """stretto's native program, planned with what `stretto calibrate` measured on this machine."""

    name: ClassVar[str] = "stretto_calibrated"

    def begin(self, options: Any) -> None:
        from stretto.options import Options
        from stretto.tuning import Database, this_cpu

        device = this_cpu(options)
        found = Database(Options().cache_path()).parameters(device)
        if not found:
            raise Skipped("this machine is not calibrated: run `stretto calibrate`")
        Database(options.cache_path()).put_parameters(device, found)
