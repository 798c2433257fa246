"""The part `models`: stretto and its peers on the models with control flow, batch 1, in turns.

`turns` runs them; here is what is run.
"""

from __future__ import annotations

from collections.abc import Callable

from . import floors, precompile, turns
from .device import Bench
from .engine import Job, Settings, run_jobs
from .results import Row, read_part
from .shortened import SHORTENED, short_form, why_instead
from .systems import GROUPS, UNROLLING
from .turns import Lineup
from .worker import Reporter

MODELS = (
    "skipnet",
    "blockdrop",
    "lstm",
    "nasrnn",
    "attention",
    "seq2seq",
    "rae",
    *SHORTENED,
)
"""What takes longest comes first: the time that it leaves goes to the others."""
DRY_MODELS = ("rae", "nasrnn-short")
DRY_GROUPS = ("stretto", "library", "compile")
SHORT_GROUPS = ("stretto", "library", *UNROLLING)
SHARES = {"skipnet": 4.0, "blockdrop": 1.5}
"""Of the part's time, relative to other models: they are by far the longest to compile."""
BEFOREHAND = ("skipnet",)
"""Models that take longer to compile than a worker has to make ready."""
LINEUP = Lineup("models", GROUPS, SHARES)


def jobs(dry_run: bool, chosen: tuple[str, ...], scratch: str = "") -> list[Job]:
    """Model by model, and of each stretto and the libraries first."""
    pairs = (
        (model, group) for model in models(dry_run, chosen) for group in groups(model, dry_run)
    )
    return LINEUP.jobs(pairs, dry_run, scratch)


def models(dry_run: bool, chosen: tuple[str, ...]) -> list[str]:
    """What is chosen, and the short forms of it."""
    return [
        name
        for name in (DRY_MODELS if dry_run else MODELS)
        if not chosen or name in chosen or (name in SHORTENED and SHORTENED[name].model in chosen)
    ]


def groups(model: str, dry_run: bool) -> list[str]:
    """Groups that unroll loops have the short form of a model that has one."""
    found = DRY_GROUPS if dry_run else SHORT_GROUPS if model in SHORTENED else tuple(GROUPS)
    unrolled = short_form(model) is not None
    return [group for group in found if not (unrolled and group in UNROLLING)]


def not_tried(dry_run: bool, chosen: tuple[str, ...]) -> list[Row]:
    """Rows of systems that would unroll a model; each says where they are tried."""
    return [
        Row(f"{model} {system}", "skipped", why_instead(model, dry_run))
        for model in models(dry_run, chosen)
        if short_form(model) is not None
        for group in UNROLLING
        for system in GROUPS[group]
    ]


def run(reporter: Reporter, bench: Bench) -> None:
    """In a worker."""
    model, _, told = reporter.job.partition(" ")
    if model == precompile.JOB:
        precompile.run(reporter, told)
    else:
        turns.serve(LINEUP, reporter, bench)


def drive(settings: Settings, record: Callable[[Row], None], end: float) -> None:
    """The whole part, until the time `end`."""
    for row in not_tried(settings.dry_run, settings.chosen):
        record(row)
    compile_beforehand(settings, record, end)
    todo = jobs(settings.dry_run, settings.chosen, str(settings.scratch))
    turns.drive(LINEUP, todo, settings, record, end)
    ceilings = read_part(settings.out, "ceilings")
    for model in models(settings.dry_run, settings.chosen):
        record(floors.row(model, settings.dry_run, ceilings))


def compile_beforehand(settings: Settings, keep: Callable[[Row], None], end: float) -> None:
    """Puts into the cache what takes long, unless this run has done so before. Without a context
    on the GPU, which is not needed for it."""
    if settings.gpu is None:
        return
    wanted = [
        precompile.job(model, settings.gpu)
        for model in models(settings.dry_run, settings.chosen)
        if model in BEFOREHAND and model not in settings.compiled
    ]
    run_jobs(wanted, settings, keep, end, settings.workers)
