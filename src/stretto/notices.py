"""What the user of a compiled function is warned of: `StrettoWarning`s, each once."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection
from pathlib import Path

from stretto.eager import RunsEager
from stretto.entry import Entry
from stretto.errors import StrettoWarning
from stretto.keys import Key, varying
from stretto.options import Options
from stretto.text import counted

_PACKAGE = str(Path(__file__).parent)


class Notices:
    """The warnings of one compiled function. The second and later ones of a kind are left out."""

    def __init__(self, options: Options) -> None:
        self._limit = options.debug.max_signatures_before_warning
        self._eager: dict[str, int] = {}
        """How many calls ran eager, by reason."""
        self._warned_signatures = False

    def eager(self, call: RunsEager) -> None:
        """A call runs eager."""
        count = self._eager.get(call.reason, 0)
        self._eager[call.reason] = count + 1
        if not count:
            warn(f"{call.reason}: running eager. {call.remedy}".rstrip())

    @property
    def eager_calls(self) -> list[str]:
        """Lines that say how many calls ran eager, and why."""
        return [
            f"{counted(count, 'call')} ran eager: {reason}" for reason, count in self._eager.items()
        ]

    def compiled(self, keys: Collection[Key]) -> None:
        """There are entries for these keys now."""
        if len(keys) > self._limit and not self._warned_signatures:
            self._warned_signatures = True
            warn(
                f"{len(keys)} signatures compiled: {varying(list(keys))}. Each new one is compiled "
                "from the start; pad or bucket what varies, or raise "
                "Options(debug=Debug(max_signatures_before_warning=...))."
            )

    def compiled_again(self, entry: Entry, changed: str) -> None:
        """An entry took the place of a stale one."""
        if entry.builds == self._limit + 1:
            warn(
                f"compiled {entry.builds} times for the same shapes, because what it was compiled "
                f"with changes between calls: {changed}. Pass it as an argument, as a tensor."
            )


def warn(text: str) -> None:
    """A StrettoWarning at the line that called the compiled function."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, StrettoWarning, stacklevel=level)
