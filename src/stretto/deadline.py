"""The deadline of a run: `Options(timeout=...)` for every machine that checks the clock."""

import math
import time
from dataclasses import dataclass

from stretto.errors import RunError

TIMED_OUT = "the run took longer than Options(timeout=...) allows"
TIMED_OUT_REMEDY = "check that its loops end, or allow more time"


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time at which a run has to end, in seconds of the monotonic clock; infinity for no
    limit."""

    at: float = math.inf

    @classmethod
    def after(cls, timeout: float | None) -> "Deadline":
        """Return the deadline of a run that begins now and may take `timeout` seconds; None is no
        limit."""
        return cls() if timeout is None else cls(time.monotonic() + timeout)

    @property
    def nanoseconds(self) -> int:
        """The deadline as printed programs read it; 0 is no deadline."""
        return 0 if self.at == math.inf else int(self.at * 1e9)

    def check(self) -> None:
        """Raise RunError after the deadline."""
        if self.at != math.inf and time.monotonic() > self.at:
            raise RunError(TIMED_OUT, remedy=TIMED_OUT_REMEDY)
