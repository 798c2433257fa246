"""The disk cache: damage, many processes, folders that cannot be written, full disks."""

import errno
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.errors import BuildError, StrettoWarning
from stretto.runtime import cache
from stretto.runtime.cache import DiskCache, content_key


def write(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


def refuse(path: Path) -> None:
    raise AssertionError("made again")


def test_key_depends_on_every_part_and_on_where_one_ends():
    keys = {content_key("ab", "c"), content_key("a", "bc"), content_key("abc"), content_key(b"x")}
    assert len(keys) == 4
    assert content_key("ab", b"c") == content_key(b"ab", "c")


def test_second_time_the_entry_is_found(tmp_path: Path):
    store = DiskCache(tmp_path / "new" / "folder")
    key = content_key("x")
    assert store.get(key, ".txt") is None
    path, found = store.get_or_put(key, ".txt", write("hello"))
    assert not found and path.read_text() == "hello"
    assert store.get_or_put(key, ".txt", refuse) == (path, True)
    assert store.get(key, ".bin") is None


def test_nothing_but_entries_stays_behind(tmp_path: Path):
    store = DiskCache(tmp_path)
    path, _ = store.get_or_put(content_key("x"), ".txt", write("hello"))
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]

    def fail(target: Path) -> None:
        target.write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.get_or_put(content_key("y"), ".txt", fail)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize("damage", [b"", b"hellO", b"hello and more"])
def test_damaged_entry_is_made_again(tmp_path: Path, damage: bytes):
    store = DiskCache(tmp_path)
    key = content_key("x")
    store.put(key, ".txt", write("hello")).write_bytes(damage)
    path, found = store.get_or_put(key, ".txt", write("hello"))
    assert not found and path.read_text() == "hello"
    assert store.get(key, ".txt") == path


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path):
    old, new = tmp_path / "building-old", tmp_path / "building-new"
    for folder in (old, new):
        folder.mkdir()
    day_before = time.time() - 25 * 3600
    os.utime(old, (day_before, day_before))
    DiskCache(tmp_path).put(content_key("x"), ".txt", write("hello"))
    assert not old.exists() and new.exists()


def _make_slowly(folder: Path, log: Path) -> None:
    def produce(path: Path) -> None:
        with log.open("a") as file:
            file.write("made\n")
        time.sleep(0.2)
        path.write_text("hello")

    path, _ = DiskCache(folder).get_or_put(content_key("x"), ".txt", produce)
    assert path.read_text() == "hello"


def test_concurrent_processes_make_an_entry_once(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    log = tmp_path / "log"
    arguments = (tmp_path / "cache", log)
    processes = [context.Process(target=_make_slowly, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert log.read_text() == "made\n"


@pytest.mark.parametrize("kind", ["file in the way", "read-only file system"])
def test_unwritable_folder_warns_once_and_uses_a_private_one(tmp_path: Path, kind: str):
    if kind == "file in the way":
        (tmp_path / "file").write_text("")
        folder = tmp_path / "file" / "cache"
    else:
        folder = Path("/proc/stretto-cache")  # not even root can make it
        if not Path("/proc").is_dir():
            pytest.skip("no /proc")
        cache._private_folders.pop(folder, None)
    store = DiskCache(folder)
    key = content_key("x")
    with pytest.warns(StrettoWarning, match=r"cannot be written.*STRETTO_CACHE"):
        path, found = store.get_or_put(key, ".txt", write("hello"))
    assert not found and path.read_text() == "hello"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get_or_put(key, ".txt", refuse) == (path, True)
        store.get_or_put(content_key("y"), ".txt", write("hello"))


def test_entries_of_a_read_only_folder_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DiskCache(tmp_path)
    key = content_key("x")
    path = store.put(key, ".txt", write("hello"))

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    # Permissions do not stop root, as whom tests may run.
    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "mkdir", read_only)
    assert store.get_or_put(key, ".txt", refuse) == (path, True)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(BuildError, match="no space left") as caught:
        DiskCache(tmp_path).get_or_put(content_key("x"), ".txt", write("hello"))
    assert str(tmp_path) in str(caught.value)
    assert "cache_dir=" in str(caught.value)
    monkeypatch.undo()
    DiskCache(tmp_path).get_or_put(content_key("x"), ".txt", write("hello"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_while_the_entry_is_written(tmp_path: Path):
    with pytest.raises(BuildError, match="no space left"):
        DiskCache(tmp_path).put(
            content_key("x"), ".txt", lambda _: Path("/dev/full").write_text("x") and None
        )


def test_other_errors_pass_through(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        DiskCache(tmp_path).put(content_key("x"), ".txt", lambda _: None)
