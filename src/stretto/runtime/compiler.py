"""Builds of C++ source into shared objects with the system's compiler, through the disk cache."""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stretto.errors import BuildError, StrettoWarning
from stretto.locks import ForkSafeLock
from stretto.options import Options, available_cpus
from stretto.runtime.cache import DiskCache, content_key, disk_full_error, without_names

TIMEOUT_SECONDS = 900.0
"""A compiler that takes longer is killed."""

NAMES = "// for "
"""Start of the line before a function that names the kernels it is for."""

_CANDIDATES = ("g++", "clang++", "c++")
_MOST_JOBS = 8
"""Largest number of sources that are compiled at the same time: each takes some hundred
megabytes."""
_SHOWN_LINES = 30
_INSTALL = (
    "install a C++17 compiler (`apt install g++`, `dnf install gcc-c++`, `xcode-select --install` "
    "on macOS, or `conda install -c conda-forge cxx-compiler`), or name one with the environment "
    "variable CXX"
)
_NO_SPACE = "No space left on device"


@dataclass(frozen=True, slots=True)
class CppCompiler:
    """A C++ compiler that runs. version: its whole output for `--version`."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A shared object, the seconds to build or find it, and True if it was in the cache."""

    path: Path
    from_cache: bool
    seconds: float


def build_flags(*, trace: bool) -> tuple[str, ...]:
    """Return the flags of every build. No -ffast-math: NaN and infinity must be the same as in
    eager."""
    machine = ("-march=native",)
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        machine = ("-mcpu=native",)
    elif "avx512f" in instruction_sets():
        # -march=native enables every instruction of this processor, even if the compiler is older
        # than the processor and takes it for another one. It then gets the vector width wrong, as
        # it does for all Intel processors: loops in vectors of 256 bits take 3 to 8 % longer
        # (NASRNN, RAE, Seq2seq).
        machine = (*machine, "-mprefer-vector-width=512")
    tracing = ("-DSTRETTO_TRACE",) if trace else ()
    return (
        "-std=c++17",
        "-O3",
        *machine,
        "-shared",
        "-fPIC",
        "-pthread",
        "-fopenmp-simd",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=fast",
        "-fno-semantic-interposition",
        "-w",
        *tracing,
    )


def find_compiler() -> CppCompiler:
    """Return the compiler that CXX names, else the first of g++, clang++ and c++ on the path.

    Raises BuildError if there is none, or it cannot be run.
    """
    if chosen := _named_compiler():
        return CppCompiler(tuple(chosen), _version(tuple(chosen)))
    for name in _CANDIDATES:
        if found := shutil.which(name):
            return CppCompiler((found,), _version((found,)))
    raise BuildError(f"no C++ compiler found (tried {', '.join(_CANDIDATES)})", remedy=_INSTALL)


def _named_compiler() -> tuple[str, ...]:
    """Return the command that CXX names, with its arguments; empty if CXX is not set."""
    named = os.environ.get("CXX", "")
    try:
        return tuple(shlex.split(named))
    except ValueError as error:
        raise BuildError(
            f"the environment variable CXX is not a command: {error} in {named!r}",
            remedy="quote it as for a shell, or unset it",
        ) from error


def compile_shared(
    source: str,
    options: Options,
    headers: Path | None = None,
    *,
    splits: bool = False,
    straight: bool = False,
    linked: Sequence[str] = (),
) -> SharedObject:
    """Build `source`, which may include the headers of a folder, unless the cache has it. If there
    is no compiler, a build of this source by any compiler is used.

    splits: the source can be compiled in parallel parts: with STRETTO_PARTS defined as their
    number, STRETTO_PART as one of them and STRETTO_CALLS as 0; and the code that calls these,
    with STRETTO_CALLS as 1. straight: the calling code has no loops; then it is compiled with
    -O1, since each line of it runs once in a call. linked: further sources to link; the object
    file of each is cached separately, for all programs, so `source` must identify them.

    Raises BuildError: the compiler is missing, failed, was killed or took too long, or the
    result cannot be stored.
    """
    start = time.perf_counter()
    cache = DiskCache(options.cache_path())
    flags = build_flags(trace=options.profile)
    built_with = content_key(header_text(headers), " ".join(flags), cpu())
    program_key = content_key(without_names(source, NAMES), built_with)[:24]
    try:
        compiler = find_compiler()
    except BuildError:
        found = None if _named_compiler() else cache.get(f"{program_key}*", ".so")
        if found is None:
            raise
        return SharedObject(found, True, time.perf_counter() - start)
    key = program_key + content_key(" ".join(compiler.command), compiler.version)[:16]

    def unit_of(text: str, path: Path, compiling: tuple[str, ...]) -> _ObjectFile:
        """Return one of the linked sources: the object file of the cache, or the command to build
        it."""
        kept = content_key(text, built_with, *compiler.command, compiler.version)
        found = cache.get(kept, ".o")
        if found is not None:
            return _ObjectFile(found)
        path.write_text(text)
        return _ObjectFile.made(compiling, path, path.with_suffix(".o"), key=kept)

    def build(product: Path) -> None:
        program = product.with_name("program.cpp")
        program.write_text(source)
        include = () if headers is None else (f"-I{headers}",)
        compiling = (*compiler.command, *flags, *include)
        command = (*compiling, str(program), "-o", str(product))
        parts = min(len(available_cpus()), _MOST_JOBS) if splits else 0
        made = list[_ObjectFile]()
        if linked or splits:
            made = _parts(compiling, program, parts, straight)
            for number, text in enumerate(linked):
                made.append(unit_of(text, program.with_name(f"linked{number}.cpp"), compiling))
            jobs = min(2 * len(available_cpus()), _MOST_JOBS)
            command = _side_by_side((*compiling, "-o", str(product)), made, jobs)
        _run(command, product.parent, options.cache_path())
        for unit in made:
            if unit.key:
                cache.put(unit.key, ".o", unit.copy_to)
        if not product.is_file():
            raise BuildError(
                f"the C++ compiler succeeded but wrote no file:\n{shlex.join(command)}",
                remedy=f"check that it is a C++ compiler, else {_INSTALL}",
            )

    path, from_cache = cache.get_or_put(key, ".so", build)
    return SharedObject(path, from_cache, time.perf_counter() - start)


@dataclass(frozen=True, slots=True)
class _ObjectFile:
    """An object file, and the command that builds it; empty if it exists already. key: its key in
    the cache; empty if it is not cached."""

    target: Path
    command: tuple[str, ...] = ()
    key: str = ""

    def copy_to(self, path: Path) -> None:
        shutil.copyfile(self.target, path)

    @staticmethod
    def made(
        compiling: tuple[str, ...], source: Path, target: Path, *defines: str, key: str = ""
    ) -> _ObjectFile:
        words = [word for word in compiling if word != "-shared"]
        command = (*words, *defines, "-c", str(source), "-o", str(target))
        return _ObjectFile(target, command, key)


def _parts(
    compiling: tuple[str, ...], program: Path, count: int, straight: bool
) -> list[_ObjectFile]:
    """Return the calling code of a program, which takes longest, and its parts; the whole program
    if `count` is 0."""
    if not count:
        return [_ObjectFile.made(compiling, program, program.with_name("whole.o"))]

    def unit(number: int, calls: int, command: tuple[str, ...]) -> _ObjectFile:
        words = f"-DSTRETTO_PARTS={count}", f"-DSTRETTO_PART={number}", f"-DSTRETTO_CALLS={calls}"
        return _ObjectFile.made(command, program, program.with_name(f"part{number}.o"), *words)

    little = tuple("-O1" if word == "-O3" else word for word in compiling)
    calling = unit(count, 1, little if straight else compiling)
    return [calling, *(unit(number, 0, compiling) for number in range(count))]


def _side_by_side(linking: tuple[str, ...], units: list[_ObjectFile], jobs: int) -> tuple[str, ...]:
    """Return a command that builds the object files, `jobs` at a time, and then links them."""
    commands = [shlex.join(unit.command) for unit in units if unit.command]
    lines = ["code=0"]
    for job in range(min(jobs, len(commands))):
        lines.append(f'({" && ".join(commands[job::jobs])}) & running="$running $!"')
    lines.append('for one in $running; do wait "$one" || code=$?; done')
    objects = (str(unit.target) for unit in units)
    lines.append(f'[ "$code" = 0 ] || exit "$code"; {shlex.join((*linking, *objects))}')
    return ("/bin/sh", "-c", "\n".join(lines))


def header_text(folder: Path | None) -> str:
    """Return the text of all headers, with their names, on which a build also depends."""
    found = [] if folder is None else sorted(folder.glob("*.h"))
    return "".join(f"{path.name}\n{path.read_text()}" for path in found)


def instruction_sets() -> frozenset[str]:
    """Return the instruction sets of this machine, by their Linux names; empty if the system does
    not list them."""
    return frozenset(cpu().replace("'", " ").split())


@cache
def cpu() -> str:
    """Return model and instruction sets of this machine, which -march=native builds for. It is part
    of the key of every build: a cache that several machines share has programs for each of them."""
    wanted = ("model name", "flags", "Features", "CPU part")
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                facts.setdefault(name.strip(), value.strip())
    except OSError:
        facts["processor"] = platform.processor()
    return f"{platform.system()} {platform.machine()} {facts}"


@cache
def _version(command: tuple[str, ...]) -> str:
    try:
        result = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(
            f"the C++ compiler `{shlex.join(command)}` cannot be run: {error}", remedy=_INSTALL
        ) from error
    if result.returncode != 0:
        raise _failure((*command, "--version"), result.returncode, result.stderr)
    return result.stdout.strip()


# Runs a command in the background. When the parent dies, the pipe that replaces standard input
# ends; then the folder and all processes of the group are removed.
_SUPERVISOR = """
folder=$1; shift
exec 3<&0 </dev/null
"$@" & child=$!
(read line <&3; rm -rf "$folder"; kill -KILL 0) >/dev/null 2>&1 & watcher=$!
wait $child; code=$?
kill -KILL $watcher
exit $code
"""
_SIGNALLED = 128
"""Exit code of a shell whose command was ended by a signal, minus the number of the signal."""


def _run(command: tuple[str, ...], scratch: Path, cache_folder: Path) -> None:
    """Run the compiler with its temporary files in `scratch`; raise BuildError if it fails. It
    ends with this process, even if that is killed."""
    read_end, write_end = os.pipe()
    with ExitStack() as cleanup:
        cleanup.callback(os.close, write_end)
        try:
            process = subprocess.Popen(
                ("/bin/sh", "-c", _SUPERVISOR, "sh", str(scratch), *command),
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "TMPDIR": str(scratch), "LC_ALL": "C"},
                start_new_session=True,  # so that a kill reaches the compiler's own children
            )
        except OSError as error:
            raise BuildError(
                f"the C++ compiler cannot be run: {error}\n{shlex.join(command)}", remedy=_INSTALL
            ) from error
        finally:
            os.close(read_end)
        output = _output(process, command)
    code = process.returncode
    if code != 0:
        if _NO_SPACE in output:
            raise disk_full_error(cache_folder)
        raise _failure(command, _SIGNALLED - code if code > _SIGNALLED else code, output)


def _output(process: subprocess.Popen[str], command: tuple[str, ...]) -> str:
    """Return the compiler's output after it has ended; kill it on a timeout or an interrupt."""
    try:
        return process.communicate(timeout=TIMEOUT_SECONDS)[0]
    except BaseException as error:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise BuildError(
            f"the C++ compiler took more than {TIMEOUT_SECONDS:.0f} s and was killed:\n"
            + shlex.join(command),
            remedy="compile a smaller program (Debug(unroll=0)), or try another compiler (CXX)",
        ) from error


def _failure(command: tuple[str, ...], code: int, output: str) -> BuildError:
    """Return the error for a compiler that ended with `code`."""
    if code < 0:
        reason = f"was killed by {signal.Signals(-code).name}"
    else:
        reason = f"failed with exit code {code}"
    killed = code < 0 or "Killed signal" in output
    lines = output.strip().splitlines()
    if len(lines) > _SHOWN_LINES:
        lines = [*lines[:_SHOWN_LINES], f"... {len(lines) - _SHOWN_LINES} more lines"]
    return BuildError(
        "\n".join((f"the C++ compiler {reason}:", shlex.join(command), *lines)),
        remedy="it probably ran out of memory: free some, or close other programs, and try again"
        if killed
        else f"check that this compiler works and supports C++17, else {_INSTALL}",
    )


# ---- C++ sources of the package: each is built once per cache, and loaded once per process.


class NativeLibrary:
    """The library of one source. prepare: called once after it has been loaded. headers: the
    folder of the headers that the source includes."""

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
        """Return True to the first caller only, which then builds the library; False if it is
        loaded already."""
        begun, self._begun = self._begun, True
        return not begun and self._loaded is None

    def try_to_build(self, options: Options) -> None:
        """Build the library and ignore errors: `load` builds it again and raises them."""
        with suppress(BuildError, OSError, StrettoWarning):
            self.built(options)

    def built(self, options: Options) -> Path:
        """Return the shared object, from the cache that the options name; never a profiled build,
        so that all programs of a process share one."""
        plain = Options(cache_dir=options.cache_path())
        return compile_shared(self._source.read_text(), plain, self._headers).path

    def load(self, options: Options) -> ctypes.PyDLL:
        """Return the library; the first call in a process loads it. Raises BuildError."""
        with self._loading:
            if self._loaded is None:
                library = load_library(self.built(options))
                self._prepare(library)
                self._loaded = library
            return self._loaded


def build_in_background(parts: Sequence[NativeLibrary], options: Options) -> None:
    """Start to build the libraries that are not being built yet, in the background, one after the
    other, so that a core is left for the caller. `load` waits for them."""
    new = [part for part in parts if part.claim()]

    def build() -> None:
        for part in new:
            part.try_to_build(options)

    if new:
        threading.Thread(target=build, name="stretto builds its libraries", daemon=True).start()


def load_library(path: Path) -> ctypes.PyDLL:
    """Load a shared object of the cache. Raises BuildError if the system refuses."""
    try:
        return ctypes.PyDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"a compiled program cannot be loaded: {error}",
            remedy=f"remove {path.parent} and try again; the folder must be on a file system "
            "that allows execution",
        ) from error


def python_functions(names: Sequence[str]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of functions of Python's C interface."""
    found = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names)
    return (ctypes.c_void_p * len(names))(*found)
