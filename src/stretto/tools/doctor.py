"""`stretto doctor`: checks what this machine has and what will work, with remedies for the rest."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from pathlib import Path

import torch

import stretto
from stretto.errors import BuildError, StrettoError
from stretto.machines.machine import Diagnosis
from stretto.machines.registry import known_machines
from stretto.options import Options
from stretto.text import bytes_text, counted
from stretto.tuning import Database, this_cpu

# ---- The folder of compiled programs: its size, and how to empty it.


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The folder of compiled programs. Entries are in subfolders of two characters; see
    `runtime/cache.py`."""

    path: Path

    @property
    def files(self) -> list[Path]:
        return sorted(file for file in self.path.glob("[0-9a-f][0-9a-f]/*") if file.is_file())

    @property
    def entries(self) -> int:
        return len(self.files)

    @property
    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def clear(self) -> int:
        """Remove every entry and return their number. Running programs retain what they have
        loaded.

        Raises BuildError if the folder cannot be changed.
        """
        removed = self.entries
        try:
            for folder in {file.parent for file in self.files}:
                shutil.rmtree(folder)
        except OSError as error:
            raise BuildError(
                f"the cache cannot be cleared: {error}", remedy=f"remove {self.path} yourself"
            ) from error
        return removed


TORCH_FROM, TORCH_BEFORE = (2, 11), (2, 14)
"""The supported versions of torch (the second one excluded), as in pyproject.toml."""

PEERS = ("onnxruntime", "onnx", "onnxscript", "jax")


def checks(options: Options) -> Iterator[Diagnosis]:
    """Yield all checks one by one, so that each can be shown when it is done."""
    yield check_python()
    yield check_torch(torch.__version__)
    yield check_stretto()
    yield check_cache(CacheFolder(options.cache_path()))
    yield check_measurements(options)
    for machine in known_machines().values():
        yield from machine.diagnoses(options)
    yield check_backends()
    yield check_peers()
    yield check_run(options)


def check_python() -> Diagnosis:
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Diagnosis("python", "warn", found, "stretto is tested on Linux; others may work")
    return Diagnosis("python", "ok", found)


def check_torch(version: str) -> Diagnosis:
    """Check that this version of torch is supported."""
    low, high = (".".join(map(str, bound)) for bound in (TORCH_FROM, TORCH_BEFORE))
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if TORCH_FROM <= numbers < TORCH_BEFORE:
        return Diagnosis("torch", "ok", version)
    remedy = f"pip install 'torch>={low},<{high}'"
    return Diagnosis("torch", "warn", f"{version}, made for {low} up to below {high}", remedy)


def check_stretto() -> Diagnosis:
    return Diagnosis("stretto", "ok", f"{stretto.__version__} in {Path(stretto.__file__).parent}")


def check_cache(folder: CacheFolder) -> Diagnosis:
    detail = f"{folder.path}, {folder.entries} programs, {bytes_text(folder.nbytes)}"
    problem = _write_problem(folder.path)
    if problem is None:
        return Diagnosis("cache", "ok", detail)
    remedy = "set STRETTO_CACHE or Options(cache_dir=...) to a folder that can be written"
    return Diagnosis(
        "cache", "warn", f"{detail}: {problem}; programs are kept for one process", remedy
    )


def check_measurements(options: Options) -> Diagnosis:
    """Check whether the cost model was fitted to this device, and count the stored measurements."""
    database, device = Database(options.cache_path()), this_cpu(options)
    held = database.summary(device)
    detail = f"{database.path}, {bytes_text(held.nbytes)}; {device.name}: "
    detail += f"{counted(held.kernels, 'kernel')}, {counted(held.parameters, 'parameter')}"
    if held.others:
        detail += f"; {held.others} entries of other devices, compilers or numbers of units"
    if held.calibrated is None:
        remedy = "programs run; `stretto calibrate` fits the cost model to this device"
        return Diagnosis("measurements", "warn", f"{detail}; never calibrated", remedy)
    when = datetime.fromtimestamp(held.calibrated).strftime("%Y-%m-%d %H:%M")
    return Diagnosis("measurements", "ok", f"{detail}; calibrated {when}")


def _write_problem(folder: Path) -> str | None:
    """Return why no file can be created in the folder, or None. Creates the folder if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def check_backends() -> Diagnosis:
    """List the available machines by name."""
    shown = (f"{name}: {machine.summary}" for name, machine in known_machines().items())
    return Diagnosis("backends", "ok", "; ".join(shown))


def check_peers() -> Diagnosis:
    """Check which systems that `stretto bench` compares with are installed; all are optional."""
    found: list[str] = []
    missing: list[str] = []
    for name in PEERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    detail = ", ".join(found) or "none"
    if not missing:
        return Diagnosis("peers", "ok", detail)
    remedy = f"for `stretto bench` only: pip install {' '.join(missing)}"
    return Diagnosis("peers", "warn", f"{detail}; not installed: {', '.join(missing)}", remedy)


def check_run(options: Options) -> Diagnosis:
    """Compile a small loop and compare it with eager."""

    def small(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.tanh(x @ x) + 0.5
        return x

    return run_check(small, torch.linspace(-1.0, 1.0, 64).view(8, 8), options)


def run_check(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, options: Options
) -> Diagnosis:
    """Check that the function has the same result compiled for this host as in eager mode."""
    try:
        with torch.no_grad():
            fast = stretto.compile(function, options=options)
            found, wanted = fast(x), function(x)
    except StrettoError as error:
        return Diagnosis("compile and run", "fail", error.message, error.remedy or "see above")
    error = float((found - wanted).abs().max())
    if error > 1e-4:
        detail = f"differs from eager by {error:.1e}"
        return Diagnosis(
            "compile and run", "fail", detail, "please report this with `stretto doctor`"
        )
    return Diagnosis("compile and run", "ok", f"a loop of 8 trips, within {error:.1e} of eager")
