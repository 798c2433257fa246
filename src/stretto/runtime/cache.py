"""Disk cache shared by processes: each entry is found by the hash of everything it was built from.

An entry is one file, `<folder>/<xx>/<key>-<digest><suffix>`. The digest of key and content is part
of its name, so one rename publishes both, two processes that build the same entry cannot corrupt
each other's, and an entry that was damaged or renamed is detected, removed and built again.

Entries are executed, so no other user may have written them: folders and files count only if they
belong to this user or to root, and others cannot write to them.
"""

import atexit
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import BuildError, StrettoWarning

Producer = Callable[[Path], None]
"""Writes the entry to the given path; that path's folder is private to it and temporary."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_BUILD_PREFIX = "building-"
_STALE_AFTER_SECONDS = 24 * 3600

# The temporary folder that replaces a folder which cannot be written, until the process ends.
_private_folders: dict[Path, Path] = {}


def content_key(*parts: str | bytes) -> str:
    """Return a hash of `parts` as a name: equal only if all parts are equal."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()[:40]


def without_names(source: str, mark: str) -> str:
    """Return a source without the lines that begin with `mark`. They name kernels after the user's
    modules and lines, which do not affect the binary."""
    lines = source.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(mark))


@dataclass(frozen=True, slots=True)
class DiskCache:
    """A folder of entries that any number of threads and processes may share.

    If the folder cannot be written, it is still read, and a private temporary folder takes new
    entries; a `StrettoWarning` reports this once.
    """

    folder: Path

    def get(self, key: str, suffix: str) -> Path | None:
        """Return the intact entry of this key, or None. A damaged one is removed.

        A key may end in "*": then any entry is returned whose key begins with the text before it.
        """
        for folder in (self.folder, _private_folders.get(self.folder)):
            if folder is None or not (_is_private(folder) and _is_private(folder / key[:2])):
                continue
            for path in (folder / key[:2]).glob(f"{key}-*{suffix}"):
                if _is_intact(path, suffix):
                    return path
                with suppress(OSError):
                    path.unlink()
        return None

    def put(self, key: str, suffix: str, producer: Producer) -> Path:
        """Build the entry, even if there is one. Raises BuildError if the disk is full, and any
        error of `producer`."""
        with self._disk_full_explained(), self._build_folder() as (folder, build):
            product = build / f"entry{suffix}"
            producer(product)
            path = folder / key[:2] / f"{key}-{_digest(product, key)}{suffix}"
            os.chmod(product, 0o700)
            with _obstacle_explained(path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                os.replace(product, path)
        return path

    def get_or_put(self, key: str, suffix: str, producer: Producer) -> tuple[Path, bool]:
        """Return the entry, and True if it was in the cache. If several processes need the same
        missing entry, one builds it and the others wait."""
        if path := self.get(key, suffix):
            return path, True
        with self._only_maker(key):
            if path := self.get(key, suffix):
                return path, True
            return self.put(key, suffix, producer), False

    @contextmanager
    def _build_folder(self) -> Generator[tuple[Path, Path], None, None]:
        """Yield the folder to store the entry in, and a new one to build it in, on the same file
        system."""
        folder = _private_folders.get(self.folder, self.folder)
        try:
            with _obstacle_explained(folder):
                build = _new_build_folder(folder)
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise
            folder = self._private_folder(error.strerror or str(error))
            build = _new_build_folder(folder)
        try:
            yield folder, build
        finally:
            shutil.rmtree(build, ignore_errors=True)

    def _private_folder(self, reason: str) -> Path:
        if (folder := _private_folders.get(self.folder)) and folder.is_dir():
            return folder
        folder = Path(tempfile.mkdtemp(prefix="stretto-"))
        _private_folders[self.folder] = folder
        atexit.register(_remove_if_owner, folder, os.getpid())
        warnings.warn(
            f"the cache folder {self.folder} cannot be written or trusted ({reason}): what is "
            "compiled now is lost when this process ends. Set STRETTO_CACHE or "
            "Options(cache_dir=...) to a folder that is yours alone.",
            StrettoWarning,
            stacklevel=2,
        )
        return folder

    @contextmanager
    def _disk_full_explained(self) -> Generator[None, None, None]:
        try:
            yield
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            raise disk_full_error(self.folder) from error

    @contextmanager
    def _only_maker(self, key: str) -> Generator[None, None, None]:
        """Exclude other builders of this key. It only saves work, so failures are ignored."""
        lock = self.folder / f"{key}.lock"
        with ExitStack() as cleanup:
            with suppress(OSError):
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
                _held.add(descriptor)
                cleanup.callback(_release, descriptor)
                cleanup.callback(lock.unlink, missing_ok=True)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield


# Descriptors of locked files. A forked child closes its copies, which would otherwise hold the
# locks as long as it lives.
_held: set[int] = set()


def _release(descriptor: int) -> None:
    if descriptor in _held:
        _held.discard(descriptor)
        os.close(descriptor)


def _release_all() -> None:
    for descriptor in list(_held):
        _release(descriptor)


os.register_at_fork(after_in_child=_release_all)


def disk_full_error(folder: Path) -> BuildError:
    """Return the error for a disk without space for an entry in `folder`."""
    return BuildError(
        f"no space left on the disk to store a compiled program in {folder}",
        remedy="free some space, or name a folder on another disk with Options(cache_dir=...) or "
        "the environment variable STRETTO_CACHE",
    )


@contextmanager
def _obstacle_explained(path: Path) -> Generator[None, None, None]:
    """Raise BuildError if something else is at `path`, since only the user can remove that."""
    try:
        yield
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise BuildError(
            f"a compiled program cannot be stored as {path}: {error.strerror}",
            remedy="remove what is there, or name another folder with Options(cache_dir=...) or "
            "the environment variable STRETTO_CACHE",
        ) from error


def _new_build_folder(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(errno.EPERM, "another user owns it or may write to it", str(folder))
    build = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX, dir=folder))
    _remove_stale(folder)
    return build


def _is_private(path: Path) -> bool:
    """True if `path` belongs to this user or to root, and no other user may write to it."""
    try:
        facts = path.stat()
    except OSError:
        return False
    return _is_own(facts)


def _is_own(facts: os.stat_result) -> bool:
    others = stat.S_IWGRP | stat.S_IWOTH
    return facts.st_uid in (0, os.geteuid()) and not facts.st_mode & others


def _remove_stale(folder: Path) -> None:
    """Remove the build folders of processes that were killed."""
    for path in folder.glob(f"{_BUILD_PREFIX}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_AFTER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _remove_if_owner(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)


def _digest(path: Path, key: str) -> str:
    return _digest_of(path.read_bytes(), key)


def _digest_of(content: bytes, key: str) -> str:
    return content_key(key, content)[:32]


def _is_intact(path: Path, suffix: str) -> bool:
    """True if the entry is a file of this user whose name has the digest of its content."""
    key = path.name.rpartition("-")[0]
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or not _is_own(facts):
                return False
            return path.name == f"{key}-{_digest_of(file.read(), key)}{suffix}"
    except OSError:
        return False
