"""The disk cache: damage, many processes, folders that cannot be written, full disks."""

import errno
import multiprocessing
import os
import threading
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


@pytest.mark.parametrize("kind", ["others may write to it", "others own it", "read-only"])
def test_unusable_folder_warns_once_and_a_private_one_is_used(tmp_path: Path, kind: str):
    folder = tmp_path / "cache"
    folder.mkdir()
    match kind:
        case "others may write to it":
            folder.chmod(0o777)
        case "others own it":
            if os.geteuid() != 0:
                pytest.skip("only root can give a folder away")
            os.chown(folder, 12345, 12345)
        case _:
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

    open_file = os.open

    def open_to_read(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            read_only()
        return open_file(path, flags, mode)

    # Permissions do not stop root, as whom tests may run.
    monkeypatch.setattr(os, "open", open_to_read)
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


# ---- what others put there ---------------------------------------------------------------------
def plant(folder: Path, key: str, content: str) -> Path:
    """An entry with a right name, as anyone can make one."""
    (folder / key[:2]).mkdir(parents=True, exist_ok=True)
    made = folder / key[:2] / "made"
    made.write_text(content)
    return made.rename(made.with_name(f"{key}-{cache._digest(made, key)}.txt"))


def test_an_entry_counts_if_it_is_ours(tmp_path: Path):
    key = content_key("x")
    planted = plant(tmp_path, key, "ours")
    assert DiskCache(tmp_path).get(key, ".txt") == planted


@pytest.mark.parametrize("kind", ["file", "folder", "whole folder"])
@pytest.mark.parametrize("fault", ["others may write", "others own"])
def test_what_others_may_have_written_is_not_used(tmp_path: Path, kind: str, fault: str):
    key = content_key("x")
    store = tmp_path / "cache"
    planted = plant(store, key, "evil")
    place = {"file": planted, "folder": planted.parent, "whole folder": store}[kind]
    if fault == "others may write":
        place.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(place, 12345, 12345)
    else:
        pytest.skip("only root can give a file away")
    assert DiskCache(store).get(key, ".txt") is None


def test_a_link_is_not_followed(tmp_path: Path):
    key = content_key("x")
    planted = plant(tmp_path / "elsewhere", key, "evil")
    store = tmp_path / "cache"
    (store / key[:2]).mkdir(parents=True)
    (store / key[:2] / planted.name).symlink_to(planted)
    assert DiskCache(store).get(key, ".txt") is None


def test_an_entry_of_another_key_is_not_used(tmp_path: Path):
    store = DiskCache(tmp_path)
    other = store.put(content_key("y"), ".txt", write("evil"))
    key = content_key("x")
    (tmp_path / key[:2]).mkdir(exist_ok=True)
    other.rename(tmp_path / key[:2] / other.name.replace(content_key("y"), key))
    assert store.get(key, ".txt") is None


def test_new_folders_are_private(tmp_path: Path):
    before = os.umask(0)
    try:
        path = DiskCache(tmp_path / "new").put(content_key("x"), ".txt", write("hello"))
    finally:
        os.umask(before)
    for part in (path, path.parent, path.parent.parent):
        assert part.stat().st_mode & 0o022 == 0


@pytest.mark.parametrize(
    "kind", ["file for the folder", "file for a subfolder", "folder for the entry"]
)
def test_something_in_the_way_is_an_error(tmp_path: Path, kind: str):
    store, key = tmp_path / "cache", content_key("x")
    if kind == "file for the folder":
        store.write_text("")
    elif kind == "file for a subfolder":
        store.mkdir()
        (store / key[:2]).write_text("")
    else:
        made = plant(tmp_path / "other", key, "hello")
        (store / key[:2] / made.name / "x").mkdir(parents=True)
    with pytest.raises(BuildError, match="cannot be stored") as caught:
        DiskCache(store).get_or_put(key, ".txt", write("hello"))
    assert "remove what is there" in str(caught.value)


# ---- forks -------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_fork_while_another_thread_makes_the_same_entry(tmp_path: Path):
    """The child neither waits for its parent's thread for ever nor keeps its lock."""
    inside, go_on = threading.Event(), threading.Event()
    key, store = content_key("x"), DiskCache(tmp_path)

    def slow(path: Path) -> None:
        inside.set()
        go_on.wait(30)
        path.write_text("hello")

    thread = threading.Thread(target=lambda: store.get_or_put(key, ".txt", slow))
    thread.start()
    inside.wait(30)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: store.get_or_put(key, ".txt", write("hello"))
    )
    child.start()
    go_on.set()
    thread.join()
    child.join(20)
    assert child.exitcode == 0
