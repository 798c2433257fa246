"""A database of measurements on disk, which any number of processes may share.

It is SQLite with a write-ahead log, so readers do not wait for writers. Connections live for one
operation: nothing is held across a fork, and a crash loses at most the current write. A file that
SQLite cannot read is renamed and a new one created: measurements can be repeated.
"""

from __future__ import annotations

import fcntl
import os
import platform
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from stretto.errors import BuildError, StrettoWarning
from stretto.options import Options, available_cpus
from stretto.runtime.cache import content_key
from stretto.runtime.compiler import build_flags, cpu, find_compiler, instruction_sets

# ---- The device that measurements are valid for.


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """The device of measurements. name: for display. key: equal only if processor, instruction
    sets, number of processors that this process may use, compiler and its flags are equal.
    threads: execution units."""

    name: str
    key: str
    threads: int


@cache
def _compiler() -> str:
    try:
        found = find_compiler()
    except BuildError:
        return "no compiler"
    return f"{' '.join(found.command)} {found.version}"


def this_cpu(options: Options) -> MeasuredDevice:
    """Return this host as a device, with the number of units that the options request."""
    cores, threads = len(available_cpus()), options.unit_count()
    compiler = _compiler()
    flags = " ".join(build_flags(trace=False))
    vectors = "AVX-512" if "avx512f" in instruction_sets() else platform.machine()
    name = f"{_model()}, {vectors}, {cores} processors, {threads} units"
    return MeasuredDevice(name, content_key(cpu(), str(cores), compiler, flags), threads)


def _model() -> str:
    _, _, rest = cpu().partition("'model name': '")
    return rest.partition("'")[0] or platform.processor() or platform.machine()


SCHEMA_VERSION = 1
"""Part of the file's name, so that versions of stretto sharing a folder do not touch each other's
file."""
FILE_NAME = f"measurements-{SCHEMA_VERSION}.sqlite"
BUSY_SECONDS = 10.0
"""Seconds for which an operation waits for other processes."""
MOST_KERNELS = 200_000
"""Maximum number of stored kernels; the least recently used are removed first."""
KEPT_SECONDS = 180 * 86400.0
"""Seconds after which kernels that were not used are removed."""
USED_STEP = 86400.0
"""Minimum seconds between two updates of a kernel's time of last use, so that readers seldom
write."""

_SCHEMA = """
CREATE TABLE parameters (
    device TEXT, threads INTEGER, name TEXT, value REAL NOT NULL, measured REAL NOT NULL,
    PRIMARY KEY (device, threads, name)) WITHOUT ROWID;
CREATE TABLE kernels (
    device TEXT, threads INTEGER, kernel TEXT, seconds REAL NOT NULL, samples INTEGER NOT NULL,
    measured REAL NOT NULL, used REAL NOT NULL,
    PRIMARY KEY (device, threads, kernel)) WITHOUT ROWID;
CREATE INDEX kernels_by_use ON kernels (used);
"""
_FORGET_MOST = """
DELETE FROM kernels WHERE (device, threads, kernel) IN (
    SELECT device, threads, kernel FROM kernels ORDER BY used DESC LIMIT -1 OFFSET ?)
"""

Row = tuple[Any, ...]
Step = tuple[str, Sequence[tuple[object, ...]]]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of a task of a kernel: the median of `samples` tasks, in seconds."""

    seconds: float
    samples: int


@dataclass(frozen=True, slots=True)
class DatabaseSummary:
    """Contents of a database for a device. calibrated: the time of calibration in seconds of the
    epoch; None: never. others: number of kernels and parameters of other devices, compilers and
    numbers of units."""

    kernels: int
    parameters: int
    calibrated: float | None
    others: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Database:
    """The measurements in a folder. Without a file there are none; the first write creates it. If
    the folder is not writable, nothing is stored, and a warning says so."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / FILE_NAME

    # ---- parameters --------------------------------------------------------------------------
    def parameters(self, device: MeasuredDevice) -> dict[str, float]:
        """Return the fitted parameters of a device by name, for its number of threads or the
        nearest one measured; empty if it was not calibrated."""
        rows = self._read(
            "SELECT name, value FROM parameters WHERE device = ?1 AND threads = (SELECT threads "
            "FROM parameters WHERE device = ?1 ORDER BY abs(threads - ?2), threads LIMIT 1)",
            (device.key, device.threads),
        )
        return {name: value for name, value in rows if _is_positive(value)}

    def put_parameters(self, device: MeasuredDevice, values: Mapping[str, float]) -> None:
        """Store these parameters in place of all that were fitted earlier. Raise ValueError for
        one that is not a positive number."""
        _require_positive(values.values())
        now = time.time()
        mine = (device.key, device.threads)
        rows = [(*mine, name, value, now) for name, value in values.items()]
        self._write(
            ("DELETE FROM parameters WHERE device = ? AND threads = ?", [mine]),
            ("INSERT INTO parameters VALUES (?, ?, ?, ?, ?)", rows),
        )

    # ---- kernels -----------------------------------------------------------------------------
    def has_kernels(self, device: MeasuredDevice) -> bool:
        """Return True if any kernel was measured on the device."""
        mine = (device.key, device.threads)
        return bool(
            self._read("SELECT 1 FROM kernels WHERE device = ? AND threads = ? LIMIT 1", mine)
        )

    def kernels(self, device: MeasuredDevice, keys: Iterable[str]) -> dict[str, KernelTime]:
        """Return the known times of these kernels, and record that they were used."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, KernelTime] = {}
        old: list[str] = []
        before = time.time() - USED_STEP
        for first in range(0, len(wanted), 500):
            part = wanted[first : first + 500]
            rows = self._read(
                "SELECT kernel, seconds, samples, used FROM kernels WHERE device = ? AND threads = "
                f"? AND kernel IN ({', '.join('?' * len(part))})",
                (device.key, device.threads, *part),
            )
            for kernel, seconds, samples, used in rows:
                if _is_positive(seconds):
                    found[kernel] = KernelTime(seconds, samples)
                if used < before:
                    old.append(kernel)
        if old:
            note = "UPDATE kernels SET used = ? WHERE device = ? AND threads = ? AND kernel = ?"
            rows = [(time.time(), device.key, device.threads, kernel) for kernel in old]
            self._write((note, rows))
        return found

    def put_kernels(self, device: MeasuredDevice, times: Mapping[str, KernelTime]) -> None:
        """Store times of kernels in place of earlier ones, and remove kernels that were not used
        for long. Raise ValueError for a time that is not a positive number."""
        _require_positive(one.seconds for one in times.values())
        now = time.time()
        mine = (device.key, device.threads)
        rows = [(*mine, key, one.seconds, one.samples, now, now) for key, one in times.items()]
        self._write(
            ("INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?)", rows),
            ("DELETE FROM kernels WHERE used < ?", [(now - KEPT_SECONDS,)]),
            (_FORGET_MOST, [(MOST_KERNELS,)]),
        )

    def forget(self) -> None:
        """Remove all measurements."""
        if self.path.exists():
            self._write(("DELETE FROM parameters", [()]), ("DELETE FROM kernels", [()]))

    def summary(self, device: MeasuredDevice) -> DatabaseSummary:
        mine = (device.key, device.threads)
        where = "WHERE device = ? AND threads = ?"
        kernels = self._read(f"SELECT count(*) FROM kernels {where}", mine)
        known = self._read(f"SELECT count(*), max(measured) FROM parameters {where}", mine)
        both = "(SELECT count(*) FROM kernels) + (SELECT count(*) FROM parameters)"
        total = self._read(f"SELECT {both}", ())
        own, (parameters, calibrated) = kernels[0][0] if kernels else 0, (known or [(0, None)])[0]
        rest = total[0][0] - own - parameters if total else 0
        nbytes = self.path.stat().st_size if self.path.exists() else 0
        return DatabaseSummary(own, parameters, calibrated, rest, nbytes)

    # ---- the file ----------------------------------------------------------------------------
    def _read(self, query: str, values: tuple[object, ...]) -> list[Row]:
        """Return the rows of a query; none if there is no file, or if it cannot be read at the
        moment."""
        if not self.path.exists():
            return []
        try:
            return self._done(lambda connection: connection.execute(query, values).fetchall())
        except (OSError, sqlite3.Error) as error:
            self._warn(f"cannot be read ({error}): they are not used")
            return []

    def _write(self, *steps: Step) -> None:
        """Run a transaction of statements, each with its rows of values. If it fails, nothing is
        stored."""

        def transaction(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            for statement, rows in steps:
                connection.executemany(statement, rows)
            connection.execute("COMMIT")

        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._done(transaction)
        except (OSError, sqlite3.Error) as error:
            self._warn(f"cannot be written ({error}): new ones are not stored")

    def _done(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run an operation on a new connection; if the file turns out to be damaged, once more on
        a new file. Uncommitted changes are rolled back."""
        try:
            with closing(self._opened()) as connection:
                return operation(connection)
        except sqlite3.DatabaseError as error:
            if _is_obstacle(error):
                raise
            self._set_aside(error)
        with closing(self._opened()) as connection:
            return operation(connection)

    def _warn(self, what: str) -> None:
        warnings.warn(f"the measurements in {self.path} {what}", StrettoWarning, stacklevel=5)

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                self._make_tables(connection)
            elif version != SCHEMA_VERSION:
                raise sqlite3.DatabaseError(f"its version is {version}, not {SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new file. If several processes try, one does."""
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename a damaged file. If several processes find it damaged, one does."""
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._is_intact():
                return
            aside = self.path.with_suffix(f".damaged-{os.getpid()}-{time.time_ns()}")
            with suppress(FileNotFoundError):
                os.replace(self.path, aside)
            for suffix in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.path}{suffix}")
        self._warn(f"are damaged ({error}); the file is renamed to {aside.name}, a new one begins")

    def _is_intact(self) -> bool:
        try:
            with closing(self._opened()) as connection:
                return connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        except sqlite3.DatabaseError as error:
            return _is_obstacle(error)


def _is_obstacle(error: sqlite3.DatabaseError) -> bool:
    """Return True if the file may be intact although it cannot be used now: locked, no space, not
    writable."""
    return isinstance(error, sqlite3.OperationalError)


def _is_positive(value: object) -> bool:
    return isinstance(value, float | int) and isfinite(value) and value > 0


def _require_positive(values: Iterable[float]) -> None:
    for value in values:
        if not _is_positive(value):
            raise ValueError(f"a measurement must be a positive number, not {value!r}")
