"""The stage `peers`: stretto and its peers on the models with control flow, batch 1, in turns.

`turns` runs them; this module lists the systems.
"""

from __future__ import annotations

from . import turns
from .device import Bench
from .engine import Job, Settings
from .results import Keep
from .turns import Lineup
from .worker import Reporter

MODELS = ("lstm", "attention", "seq2seq", "rae", "nasrnn", "blockdrop")
DRY_MODELS = ("lstm", "rae")
JAX_MODELS = ("lstm", "seq2seq")
GROUPS: dict[str, tuple[str, ...]] = {
    "stretto": ("stretto", "stretto-graph"),
    "library": ("eager", "eager-graph", "cudnn-graph"),
    "jax": ("jax",),
}
LINEUP = Lineup("peers", GROUPS)


def jobs(settings: Settings, models: tuple[str, ...] = ()) -> list[Job]:
    """Return the jobs of the stage. models: replace those of the stage."""
    usual = DRY_MODELS if settings.dry_run else MODELS
    pairs = (
        (model, group)
        for model in models or usual
        if not settings.chosen or model in settings.chosen
        for group in GROUPS
        if group != "jax" or model in JAX_MODELS
    )
    return LINEUP.jobs(pairs, settings.dry_run, str(settings.scratch))


def run(reporter: Reporter, bench: Bench) -> None:
    """Serve the parent's questions, in a worker."""
    turns.serve(LINEUP, reporter, bench)


def drive(settings: Settings, record: Keep, end: float) -> None:
    turns.drive(LINEUP, jobs(settings), settings, record, end)
