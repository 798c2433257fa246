"""What became of one case, and how errors are sorted into reasons."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stretto.errors import BuildError, CaptureError, CodegenError, ScheduleError, StrettoError

Verdict = Literal["equal", "refused", "wrong", "internal error", "hang", "skipped"]

FAILURES: tuple[Verdict, ...] = ("wrong", "internal error", "hang")
"""Verdicts that must not occur."""

ORDER: tuple[Verdict, ...] = ("hang", "internal error", "wrong", "refused", "skipped", "equal")
"""The worst first: what a case counts as that ended differently on several backends."""

REFUSALS = (CaptureError, CodegenError, ScheduleError, BuildError)
"""Errors that say that something is not supported. Others of stretto's are defects, but RunError,
which stands for an exception of eager's."""

PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on one case. `reason` sorts cases, `detail` is for reading one of them."""

    name: str
    verdict: Verdict
    backend: str = ""
    reason: str = ""
    detail: str = ""
    seconds: float = 0.0
    source: str = ""


def worst(outcomes: list[Outcome]) -> Outcome:
    """The outcome that a case counts as."""
    return min(outcomes, key=lambda outcome: ORDER.index(outcome.verdict))


def outcome_of_error(name: str, backend: str, error: BaseException) -> Outcome:
    """An exception of the compiler: a refusal where it is one of stretto's that says so."""
    detail = "".join(traceback.format_exception(error))[-6000:]
    if isinstance(error, REFUSALS):
        return Outcome(name, "refused", backend, refusal_reason(error), detail)
    message = normalised(str(error).partition("\n")[0])
    reason = f"{type(error).__name__} in {_place(error)}: {message}"
    return Outcome(name, "internal error", backend, reason, detail)


def refusal_reason(error: StrettoError) -> str:
    """The reason without names, numbers and places, so that equal reasons can be counted."""
    return normalised(error.message.partition("\n")[0])


def normalised(message: str) -> str:
    """The message with quoted text, numbers, shapes and paths replaced by signs."""
    text = re.sub(r"\S*/\S+:\d+(, in \S+)?", "PLACE", message)
    text = re.sub(r"'[^']*'|`[^`]*`|\"[^\"]*\"", "'...'", text)
    text = re.sub(r"\b[0-9a-f]{8,}\b", "HASH", text)
    text = re.sub(r"\b(aten|prims|torch|torchvision)\.[\w.]+", "OPERATOR", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
    return re.sub(r"[\[(]N?(, ?N)*,?[\])]", "SHAPE", text)[:160]


def _place(error: BaseException) -> str:
    """The innermost function of stretto that the exception went through."""
    found = "outside stretto"
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE) and not path.is_relative_to(PACKAGE / "tools"):
            found = f"{path.relative_to(PACKAGE)}, {frame.name}"
    return found
