"""C++ sources of the package: each is built once for a cache, and loaded once for a process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from stretto.errors import BuildError, StrettoWarning
from stretto.locks import ForkSafeLock
from stretto.options import Options
from stretto.runtime.compiler import compile_shared


class Support:
    """The library of one source. `prepare`: called once it has been loaded. headers: the folder of
    those that the source includes."""

    def __init__(
        self, source: Path, prepare: Callable[[ctypes.PyDLL], None], headers: Path | None = None
    ) -> None:
        self._source = source
        self._prepare = prepare
        self._headers = headers
        self._loading = ForkSafeLock()
        self._loaded: ctypes.PyDLL | None = None
        self._begun = False

    def claim(self) -> bool:
        """Whether nobody has begun to build it. Then the caller does: true once."""
        begun, self._begun = self._begun, True
        return not begun and self._loaded is None

    def try_to_build(self, options: Options) -> None:
        """An error is that of `load`, which builds it again."""
        with suppress(BuildError, OSError, StrettoWarning):
            self.built(options)

    def built(self, options: Options) -> Path:
        """The shared object, in the cache that the options name; not a profiled build, so that all
        programs of a process share one."""
        plain = Options(cache_dir=options.cache_path())
        return compile_shared(self._source.read_text(), plain, self._headers).path

    def load(self, options: Options) -> ctypes.PyDLL:
        """The library; the first call in a process builds and loads it. Raises BuildError."""
        with self._loading:
            if self._loaded is None:
                library = load_library(self.built(options))
                self._prepare(library)
                self._loaded = library
            return self._loaded


def begin(parts: Sequence[Support], options: Options) -> None:
    """Begins to build what nobody has begun, beside what the caller goes on with: one after the
    other, so that a core is left for the caller. `load` waits for them."""
    new = [part for part in parts if part.claim()]

    def build() -> None:
        for part in new:
            part.try_to_build(options)

    if new:
        threading.Thread(target=build, name="stretto builds its libraries", daemon=True).start()


def load_library(path: Path) -> ctypes.PyDLL:
    """Loads a shared object of the cache. Raises BuildError where the system refuses."""
    try:
        return ctypes.PyDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"a compiled program cannot be loaded: {error}",
            remedy=f"remove {path.parent} and try again; the folder must be on a file system "
            "that allows execution",
        ) from error


def python_functions(names: Sequence[str]) -> ctypes.Array[ctypes.c_void_p]:
    """The addresses of functions of Python's C interface."""
    found = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names)
    return (ctypes.c_void_p * len(names))(*found)
