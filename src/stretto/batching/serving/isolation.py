"""A request that fails does so alone."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.batching.serving.calls import Call, Failure, Outcome, Run
from stretto.errors import RunError
from stretto.text import counted


def outcomes_of(run: Run, calls: Sequence[Call]) -> Sequence[Outcome]:
    """An outcome per call; never raises.

    Where the whole run raises, both halves run again by themselves, and so on. What fails in the
    end is a run of one call, and each other call has been in a run that succeeded. For one bad call
    among `n` that is about `2 log2(n)` more runs.
    """
    try:
        outcomes = run(calls)
        if len(outcomes) == len(calls):
            return outcomes
    except BaseException as error:  # the function of the user may raise SystemExit, too
        if len(calls) == 1:
            return [Failure(error)]
    else:
        wrong = f"{counted(len(outcomes), 'outcome')} for {counted(len(calls), 'call')}"
        return [Failure(RunError(f"the batcher gave {wrong}")) for _ in calls]
    # Not inside `except`: errors of the halves would name this one as their context.
    middle = len(calls) // 2
    return [*outcomes_of(run, calls[:middle]), *outcomes_of(run, calls[middle:])]
