"""Results of segments of functions: the variables that they set, and the jumps that end them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stretto.frontends.python.interpreter.frames import End, Perhaps, PythonFrame
from stretto.frontends.python.interpreter.heap import CELL, MISSING, Ref
from stretto.frontends.python.source.definitions import SegmentSource
from stretto.frontends.python.tracing.locations import MARK
from stretto.frontends.python.values.either import Either

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


def segment_result(
    interpreter: PythonInterpreter, frame: PythonFrame, segment: SegmentSource, end: Any
) -> Ref:
    """Return a dict of the variables that have a value.

    `<has x>` tells whether x has a value, if the run decides that; `<return>`, `<break>` and
    `<continue>` whether the segment ends so; `<value>` is what it returns.
    """
    MARK.statement, MARK.blamed = len(segment.tree.body) - segment.head, frozenset()
    found: dict[str, Any] = {}
    for name in segment.results:
        value = frame.vars.get(name, MISSING)
        if name in frame.cells:
            value = interpreter.heap.field(frame.cells[name], CELL)
        has_value = interpreter.regions.is_bound(value)
        if has_value is False:
            continue
        if has_value is not True:
            found[f"<has {name}>"] = has_value
            value = _without_missing(value)
        found[name] = value
    match end:
        case End(jump=jump, value=value):
            found |= {f"<{jump}>": True, "<value>": value}
        case Perhaps(flags=flags, value=value):
            found |= {f"<{jump}>": flag for jump, flag in flags.items()}
            found["<value>"] = None if value is MISSING else value
        case _:
            pass
    return interpreter.heap.new(dict, found)


def _without_missing(value: Either) -> Any:
    """Return the value in the runs in which there is one; in others it is not used."""
    pairs = zip(value.stretto_flags, value.stretto_options, strict=True)
    held = [(flag, option) for flag, option in pairs if option is not MISSING]
    if len(held) == 1:
        return held[0][1]
    flags, options = zip(*held, strict=True)
    return Either((*flags, True), (*options, None))
