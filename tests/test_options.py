"""Tests of `stretto.options`."""

import dataclasses
import os
from pathlib import Path

import pytest

from stretto.options import Options, cpu_quota, physical_cores


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("threads", 0, "Options.threads must be an int of at least 1 or None, not 0"),
        ("threads", 2.0, "Options.threads must be an int of at least 1 or None, not 2.0"),
        ("threads", True, "Options.threads must be an int of at least 1 or None, not True"),
        ("unroll", -1, "Options.unroll must be an int of at least 0, not -1"),
        ("seed", -1, "Options.seed must be an int of at least 0, not -1"),
        ("max_depth", 0, "Options.max_depth must be an int of at least 1, not 0"),
        ("max_signatures_before_warning", "8", "must be an int of at least 1, not '8'"),
        ("launches", "two", "Options.launches must be 'auto', 'one' or 'per_kernel', not 'two'"),
        ("control", "gpu", "Options.control must be 'auto', 'units' or 'host', not 'gpu'"),
        ("policy", "best", "must be 'auto', 'wavefront', 'team' or 'list', not 'best'"),
        ("policy", None, "must be 'auto', 'wavefront', 'team' or 'list', not None"),
        ("fuse", 1, "Options.fuse must be True or False, not 1"),
        ("verify", None, "Options.verify must be True or False, not None"),
        ("profile", "yes", "Options.profile must be True or False, not 'yes'"),
        ("skip", "hoist", "Options.skip must be a tuple of names, not 'hoist'"),
        ("skip", (1,), "Options.skip must be a tuple of names, not (1,)"),
        ("dump_dir", "", "Options.dump_dir must be a folder's path or None, not ''"),
        ("cache_dir", 3, "Options.cache_dir must be a folder's path or None, not 3"),
    ],
)
def test_a_wrong_value_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Options(**{field: value})
    assert message in str(caught.value)


def test_options_are_values() -> None:
    assert Options(threads=2) == dataclasses.replace(Options(), threads=2)
    assert len({Options(), Options(), Options(unroll=0)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().threads = 1


def test_threads_set_the_units() -> None:
    assert Options(threads=3).unit_count() == 3


def test_units_are_physical_cores_by_default() -> None:
    assert 1 <= Options().unit_count() <= (os.cpu_count() or 1)


def test_hyper_threads_of_a_core_count_once(tmp_path: Path) -> None:
    # Two packages of two cores, two threads per core; core numbers repeat between packages.
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{cpu // 2 % 2}\n")
        (folder / "core_id").write_text(f"{cpu % 2}\n")
    assert physical_cores(frozenset(range(8)), tmp_path) == 4
    assert physical_cores(frozenset({0, 4}), tmp_path) == 1
    assert physical_cores(frozenset({0, 1, 2}), tmp_path) == 3


def test_cpus_of_unknown_topology_count_each(tmp_path: Path) -> None:
    assert physical_cores(frozenset({0, 1}), tmp_path) == 2


def test_cache_path_takes_the_most_explicit_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("STRETTO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Options().cache_path() == tmp_path / ".cache" / "stretto"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Options().cache_path() == tmp_path / "xdg" / "stretto"
    monkeypatch.setenv("STRETTO_CACHE", "~/mine")
    assert Options().cache_path() == tmp_path / "mine"
    assert Options(cache_dir=tmp_path / "given").cache_path() == tmp_path / "given"


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({}, None),
        ({"a": "max 100000"}, None),
        ({"a/b": "250000 100000"}, 2),
        ({"a/b": "50000 100000"}, 1),
        ({"a/b": "800000 100000", "a": "300000 100000"}, 3),
        ({"a/b": "nonsense"}, None),
    ],
)
def test_cpu_quota_of_control_groups(tmp_path: Path, limits: dict[str, str], quota: int | None):
    (tmp_path / "a" / "b").mkdir(parents=True)
    membership = tmp_path / "membership"
    membership.write_text("0::/a/b\n")
    for group, text in limits.items():
        (tmp_path / group / "cpu.max").write_text(text + "\n")
    assert cpu_quota(membership, tmp_path) == quota


@pytest.mark.parametrize(("allowed", "quota"), [("-1", None), ("150000", 1), ("400000", 4)])
def test_cpu_quota_of_the_first_version_of_control_groups(
    tmp_path: Path, allowed: str, quota: int | None
):
    group = tmp_path / "cpu,cpuacct" / "job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(allowed + "\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    membership = tmp_path / "membership"
    membership.write_text("5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n")
    assert cpu_quota(membership, tmp_path) == quota


def test_no_control_groups(tmp_path: Path):
    assert cpu_quota(tmp_path / "missing", tmp_path) is None


@pytest.mark.parametrize("timeout", [0, -1.0, True, "1", float("nan"), float("inf")])
def test_wrong_timeout(timeout: object):
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        Options(timeout=timeout)  # type: ignore[arg-type]
