"""Builds C++ source into a shared object with the system's compiler, through the disk cache."""

import os
import platform
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stretto.errors import BuildError
from stretto.options import Options
from stretto.runtime.cache import DiskCache, content_key, disk_full_error

HEADERS = Path(__file__).parent.parent / "codegen" / "cpp"
"""The folder of the headers that a printed program includes."""

TIMEOUT_SECONDS = 900.0
"""A compiler that takes longer is killed."""

_CANDIDATES = ("g++", "clang++", "c++")
_SHOWN_LINES = 30
_INSTALL = (
    "install a C++17 compiler (`apt install g++`, `dnf install gcc-c++`, `xcode-select --install` "
    "on macOS, or `conda install -c conda-forge cxx-compiler`), or name one with the environment "
    "variable CXX"
)
_NO_SPACE = "No space left on device"


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that answers. `version` is all it says about itself."""

    command: tuple[str, ...]
    version: str

    def flags(self, *, trace: bool) -> tuple[str, ...]:
        """Flags of every build. No -ffast-math: NaN and infinity must come out as in eager."""
        machine = "-march=native"
        if platform.system() == "Darwin" and platform.machine() == "arm64":
            machine = "-mcpu=native"
        tracing = ("-DSTRETTO_TRACE",) if trace else ()
        return (
            "-std=c++17",
            "-O3",
            machine,
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


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A built shared object, how long it took to get, and whether the cache had it."""

    path: Path
    from_cache: bool
    seconds: float


def find_compiler() -> Compiler:
    """The compiler that CXX names, else the first of g++, clang++ and c++ on the path.

    Raises BuildError where there is none, or the one that CXX names does not answer.
    """
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return Compiler(tuple(chosen), _version(tuple(chosen)))
    for name in _CANDIDATES:
        if found := shutil.which(name):
            return Compiler((found,), _version((found,)))
    raise BuildError(f"no C++ compiler found (tried {', '.join(_CANDIDATES)})", remedy=_INSTALL)


def compile_shared(source: str, options: Options) -> SharedObject:
    """Builds `source`, which may include the headers of `HEADERS`, unless the cache has it.

    Raises BuildError: the compiler is missing, failed, was killed or took too long, or the result
    cannot be stored.
    """
    start = time.perf_counter()
    compiler = find_compiler()
    flags = compiler.flags(trace=options.profile)
    key = content_key(
        source, header_text(), " ".join(compiler.command), compiler.version, " ".join(flags), cpu()
    )

    def build(product: Path) -> None:
        program = product.with_name("program.cpp")
        program.write_text(source)
        command = (*compiler.command, *flags, f"-I{HEADERS}", str(program), "-o", str(product))
        _run(command, product.parent, options.cache_path())

    path, from_cache = DiskCache(options.cache_path()).get_or_put(key, ".so", build)
    return SharedObject(path, from_cache, time.perf_counter() - start)


def header_text() -> str:
    """All headers with their names: what a build depends on beside its source."""
    return "".join(f"{path.name}\n{path.read_text()}" for path in sorted(HEADERS.glob("*.h")))


@cache
def cpu() -> str:
    """Model and instruction sets of this machine, which -march=native builds for."""
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


def _run(command: tuple[str, ...], scratch: Path, cache_folder: Path) -> None:
    """Runs the compiler with its temporary files in `scratch`; raises BuildError if it fails."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
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
    try:
        output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except BaseException as error:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise BuildError(
            f"the C++ compiler took more than {TIMEOUT_SECONDS:.0f} s and was killed:\n"
            + shlex.join(command),
            remedy="compile a smaller program (Options(unroll=0)), or try another compiler (CXX)",
        ) from error
    if process.returncode != 0:
        if _NO_SPACE in output:
            raise disk_full_error(cache_folder)
        raise _failure(command, process.returncode, output)


def _failure(command: tuple[str, ...], code: int, output: str) -> BuildError:
    """What a compiler that ended with `code` has to say."""
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
        else f"check that this compiler works and knows C++17, else {_INSTALL}",
    )
