"""The database of measurements: several processes, damaged files, what ages out."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest

import stretto
from stretto import tuning as databases
from stretto.errors import StrettoWarning
from stretto.tuning import Database, KernelTime, MeasuredDevice, this_cpu

DEVICE = MeasuredDevice("a processor", "key", 2)
OTHER = MeasuredDevice("another processor", "other key", 2)


def test_there_is_nothing_before_anything_was_measured(tmp_path: Path) -> None:
    database = Database(tmp_path / "not" / "there")
    assert database.parameters(DEVICE) == {}
    assert database.kernels(DEVICE, ["a", "b"]) == {}
    database.forget()
    summary = database.summary(DEVICE)
    assert (summary.kernels, summary.parameters, summary.calibrated) == (0, 0, None)
    assert not database.path.parent.exists()


def test_parameters_replace_those_of_before(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.put_parameters(DEVICE, {"flops": 1e11, "wait_seconds": 2e-7})
    database.put_parameters(DEVICE, {"flops": 2e11})
    database.put_parameters(OTHER, {"flops": 3e11})
    assert Database(tmp_path).parameters(DEVICE) == {"flops": 2e11}
    summary = database.summary(DEVICE)
    assert (summary.parameters, summary.others) == (1, 1)
    assert summary.calibrated is not None
    assert summary.nbytes > 0


def test_parameters_of_the_nearest_number_of_units_serve(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.put_parameters(MeasuredDevice("", "key", 2), {"flops": 2.0})
    database.put_parameters(MeasuredDevice("", "key", 8), {"flops": 8.0})
    found = [database.parameters(MeasuredDevice("", "key", n))["flops"] for n in (1, 2, 4, 8, 99)]
    assert found == [2.0, 2.0, 2.0, 8.0, 8.0]
    assert database.parameters(OTHER) == {}


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_measurement_is_refused(tmp_path: Path, value: float) -> None:
    database = Database(tmp_path)
    with pytest.raises(ValueError, match="positive number"):
        database.put_parameters(DEVICE, {"flops": value})
    with pytest.raises(ValueError, match="positive number"):
        database.put_kernels(DEVICE, {"kernel": KernelTime(value, 3)})
    assert not database.path.exists()


def test_kernels_belong_to_device_and_units(tmp_path: Path) -> None:
    database = Database(tmp_path)
    times = {f"kernel {n}": KernelTime(1e-6 * (n + 1), n + 1) for n in range(1200)}
    database.put_kernels(DEVICE, times)
    database.put_kernels(DEVICE, {"kernel 7": KernelTime(5.0, 1)})
    assert database.kernels(DEVICE, [*times, "unknown"]) == {
        **times,
        "kernel 7": KernelTime(5.0, 1),
    }
    assert database.kernels(MeasuredDevice("", "key", 1), times) == {}
    assert database.kernels(OTHER, times) == {}
    database.forget()
    assert database.kernels(DEVICE, times) == {}


def _set_used(database: Database, kernel: str, used: float) -> None:
    with closing(sqlite3.connect(database.path)) as connection, connection:
        connection.execute("UPDATE kernels SET used = ? WHERE kernel = ?", (used, kernel))


def test_kernels_age_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path)
    time = KernelTime(1.0, 1)
    database.put_kernels(DEVICE, {"old": time, "asked for": time})
    for kernel in ("old", "asked for"):
        _set_used(database, kernel, 1.0)
    assert database.kernels(DEVICE, ["asked for"])
    database.put_kernels(DEVICE, {"new": time})
    assert set(database.kernels(DEVICE, ["old", "asked for", "new"])) == {"asked for", "new"}
    monkeypatch.setattr(databases, "MOST_KERNELS", 2)
    _set_used(database, "asked for", 1e9)
    database.put_kernels(OTHER, {"newest": time})
    _set_used(database, "new", 2e9)
    found = Database(tmp_path)
    assert set(found.kernels(DEVICE, ["asked for", "new"])) == {"new"}
    assert set(found.kernels(OTHER, ["newest"])) == {"newest"}


def test_what_a_hand_has_spoilt_is_not_used(tmp_path: Path) -> None:
    database = Database(tmp_path)
    database.put_parameters(DEVICE, {"flops": 1.0, "bandwidth": 2.0, "wait_seconds": 3.0})
    with closing(sqlite3.connect(database.path)) as connection, connection:
        for name, value in (("flops", -1.0), ("bandwidth", "fast")):
            connection.execute("UPDATE parameters SET value = ? WHERE name = ?", (value, name))
    assert database.parameters(DEVICE) == {"wait_seconds": 3.0}


@pytest.mark.parametrize("damage", ["begin", "middle", "cut", "version"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    database = Database(tmp_path)
    times = {f"kernel {n}": KernelTime(1.0, 1) for n in range(2000)}
    database.put_kernels(DEVICE, times)
    with closing(sqlite3.connect(database.path)) as connection, connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if damage == "version":
            connection.execute("PRAGMA user_version = 99")
    content = bytearray(database.path.read_bytes())
    if damage == "begin":
        content[:100] = b"x" * 100
    elif damage == "middle":
        content[8192:-4096] = b"\xff" * (len(content) - 12288)
    elif damage == "cut":
        del content[len(content) // 2 :]
    database.path.write_bytes(content)
    with pytest.warns(StrettoWarning, match="damaged"):
        assert len(database.kernels(DEVICE, times)) < len(times)
    assert list(tmp_path.glob("*.damaged-*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        database.put_kernels(DEVICE, times)
        assert database.kernels(DEVICE, times) == times


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    database = Database(tmp_path / "file")
    with pytest.warns(StrettoWarning, match="cannot be written"):
        database.put_parameters(DEVICE, {"flops": 1.0})
    assert database.parameters(DEVICE) == {}


WRITER = """
import sys
from pathlib import Path
from stretto.tuning import Database, KernelTime
from stretto.tuning import MeasuredDevice
device, me = MeasuredDevice("", "key", 2), sys.argv[2]
database = Database(Path(sys.argv[1]))
for n in range(60):
    database.put_kernels(device, {f"{me} {n}": KernelTime(1.0, 1), "shared": KernelTime(2.0, 1)})
    assert f"{me} {n}" in database.kernels(device, [f"{me} {n}"])
"""


def test_several_processes_share_it(tmp_path: Path) -> None:
    """From the first moment on, when there is no file yet."""
    command = [sys.executable, "-W", "error", "-c", WRITER, str(tmp_path)]
    running = [
        subprocess.Popen([*command, str(n)], stderr=subprocess.PIPE, text=True) for n in range(3)
    ]
    for process in running:
        errors = process.communicate(timeout=100)[1]
        assert process.returncode == 0, errors
    wanted = [f"{me} {n}" for me in range(3) for n in range(60)]
    assert len(Database(tmp_path).kernels(DEVICE, [*wanted, "shared"])) == 181


def test_the_device_knows_its_compiler_and_units() -> None:
    one, two = (this_cpu(stretto.Options(threads=n)) for n in (1, 2))
    assert one.key == two.key
    assert (one.threads, two.threads) == (1, 2)
    assert "2 units" in two.name
