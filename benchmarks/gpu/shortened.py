"""Models whose loops over steps torch.compile unrolls, shortened so that it comes to an end.

Each is a model of its own, which stretto and eager run too: what torch.compile takes for a few
steps is compared with what they take for as many, and is never scaled to all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..models import ZOO
from ..models.entry import ZooEntry
from ..models.groups import GROUPS


@dataclass(frozen=True, slots=True)
class Shortened:
    """A model of the zoo with fewer steps."""

    model: str
    steps: int


SHORTENED = {"lstm-short": Shortened("lstm", 4), "nasrnn-short": Shortened("nasrnn", 10)}
DRY_STEPS = 2


def entry_of(model: str) -> ZooEntry:
    """A model of the zoo or of one of its groups. Raises KeyError for an unknown name."""
    if model in SHORTENED:
        return ZOO[SHORTENED[model].model]
    for models in (ZOO, *GROUPS.values()):
        if model in models:
            return models[model]
    raise KeyError(f"there is no model {model!r}")


def config_of(model: str, dry_run: bool) -> Any:
    """The configuration of a model, shortened or not."""
    config: Any = entry_of(model).presets["small" if dry_run else "full"]
    if model not in SHORTENED:
        return config
    return replace(config, length=DRY_STEPS if dry_run else SHORTENED[model].steps)


def summary_of(model: str) -> str:
    if model not in SHORTENED:
        return entry_of(model).summary
    return f"{entry_of(model).summary}, of which {SHORTENED[model].steps} are run"


def short_form(model: str) -> str | None:
    """The shortened model on which torch.compile is tried instead."""
    return next((name for name, short in SHORTENED.items() if short.model == model), None)


def why_instead(model: str, dry_run: bool) -> str:
    """Why torch.compile is not tried on a model that has a short form."""
    name = short_form(model)
    assert name is not None
    steps, all_steps = config_of(name, dry_run).length, config_of(model, dry_run).length
    return f"it unrolls the {all_steps} steps, so it is tried on {name}, with {steps} steps"
