"""The process of one job: runs the rows of a part's job and reports each to its parent.

Only `engine` starts it. Messages are lines of JSON on the standard output; all other output is
redirected away from there.
"""

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from ..peers.base import Skipped
from ..record import Status
from .device import Bench, plain_math
from .engine import BROKEN, Message
from .results import Row, WrongValue
from .saved import Saved


class Reporter:
    """Runs rows. Any exception of a row is recorded, and the next row follows."""

    def __init__(self, told: dict[str, Any], channel: TextIO, bench: Bench) -> None:
        self.job: str = told["job"]
        self.scratch = Path(told["scratch"])
        self.saved = Saved(Path(told["saved"]))
        self.programs = self.saved.code
        self.chosen = tuple(told["chosen"])
        self.skip: set[str] = set(told["skip"])
        self.channel = channel
        self.bench = bench

    def send(self, kind: str, **content: Any) -> None:
        self.channel.write(json.dumps({"kind": kind, **content}) + "\n")
        self.channel.flush()

    def row(self, name: str, limit_s: float, run: Callable[[], dict[str, Any]]) -> Row | None:
        """Run a row; `run` returns its values. None if an earlier process has run it."""
        if name in self.skip:
            return None
        self.start(name, limit_s)
        begin = time.perf_counter()
        status: Status = "ok"
        reason, values = "", {}
        try:
            values = run()
        except Skipped as error:
            status, reason = "skipped", str(error)
        except WrongValue as error:
            status, reason = "wrong", str(error)
        except Exception as error:
            status, reason = "failed", one_line(error)
            values = {"traceback": traceback.format_exc()[-3000:]}
        return self.finish(Row(name, status, reason, time.perf_counter() - begin, values))

    def start(self, name: str, limit_s: float) -> None:
        self.send("start", row=name, limit=limit_s)

    def finish(self, row: Row) -> Row:
        """Send a row. If it has left the GPU unusable, end the process."""
        fields = {name: getattr(row, name) for name in ("name", "status", "reason", "seconds")}
        fields["values"] = row.values
        broken = row.status == "failed" and self.bench.is_broken()
        if broken:
            fields["reason"] += " [the GPU context was lost]"
        self.send("row", row=fields)
        if broken:
            os._exit(BROKEN)
        return row

    def listen(self) -> Message | None:
        """Return the next message of the parent; None if the parent is gone."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None


def one_line(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    return " ".join(text.split())[:500]


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # all other output is written to the log
    bench = Bench(told["dry_run"], Path(told["scratch"]))
    plain_math()
    reporter = Reporter(told, channel, bench)
    part = importlib.import_module(f".{told['part']}", __package__)
    part.run(reporter, bench)
    reporter.send("end")
    # A normal exit would wait for a hanging GPU or for threads of a compiler.
    os._exit(0)


if __name__ == "__main__":
    main()
