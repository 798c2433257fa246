"""Settings of one compilation. Nothing else is configurable, and nothing is global."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

TUNING = ("off", "cached", "measure")
"""Values of `Options.tune`."""
KERNELS = ("fastest", "efficient", "holistic")
"""Values of `Debug.kernels`."""
POLICIES = ("auto", "wavefront", "team", "list")
"""Values of `Debug.policy`."""

LAUNCHES = ("auto", "one", "per_kernel")
"""Values of `Debug.launches`."""
ENQUEUE = ("auto", "stream", "graph")
"""Values of `Options.enqueue`."""
BRANCHES = ("auto", "conditional", "predicated", "unlikely")
"""Values of `Debug.branches`."""
CONTROL = ("auto", "units", "host")
"""Values of `Debug.control`."""
RECURSION = ("auto", "levels", "calls")
"""Values of `Debug.recursion`."""


@dataclass(frozen=True, slots=True)
class Debug:
    """Settings for inspecting or measuring the compiler: they override choices that costs
    decide, and show or check intermediate results.

    dump_dir: folder that gets each stage's text (Program, DeviceProgram, C++ or Triton);
        None writes none.
    remarks: print to standard error what stages decline to do, and why, when a signature is
        compiled.
    verify: check the Program after each pass, and its form after each stage. What is about
        to run is always checked.
    fuse: merge operators into larger kernels.
    skip: names of passes over Programs that do not run, to measure their effect.
    unroll: a loop over a range of at most this many trips is unrolled while it is traced; 0
        unrolls no loop that can stay one.
    kernels: which variant each kernel gets: "fastest", the fastest by itself; "efficient",
        the one of least total work; "holistic", what makes whole stretches of the program
        fastest in simulation, which takes longer to compile.
    policy: what distributes the tasks over the units: "wavefront", "team" or "list"
        (docs/how-to/policies.md); "auto" takes the one with the smallest estimate among those that
        suit the machine.
    launches: on a GPU, "one" launch for the program, one launch "per_kernel" for everything
        outside of control flow, or "auto", several if that takes less time in simulation.
        Library calls are between launches in any case. The CPU machine always has one
        launch, and refuses "per_kernel".
    control: on a GPU, who executes loops and branches of the function: the "units", each in
        its registers, the "host" between launches, or "auto", the faster one in simulation,
        which is the units if `launches` is "one". The CPU machine refuses "host".
    recursion: how to compute a recursion whose calls are independent of each other, such as
        one over a tree: one call after the other ("calls"), or all calls of one height
        together after a walk that finds them ("levels"); "auto" takes levels if a call reads
        so many weights that it pays by the costs of the machine. Other recursions are
        computed call by call in any case.
    branches: on a GPU, how branches are executed that the units do not execute themselves:
        "conditional", one arm is started when the condition is known; "predicated", both
        arms are enqueued, and the launches of the arm that is not taken return at once;
        "unlikely", the graph leaves out the arm that is taken less often, which the host
        executes; each as far as a branch allows it (docs/explanation/graphs.md). "auto" chooses
        for each branch of a graph, by simulation, by how often each arm was taken so far, and by
        what can be captured; without a graph it is "conditional". With "predicated" and "auto"
        a graph may take branches outside of loops from the units, if `control` is "auto". The
        CPU machine ignores it.
    seed: seed of the interleaving in which the emulator runs units.
    max_signatures_before_warning: number of compiled signatures of one function after which
        a warning names the dimension that varies.
    """

    dump_dir: str | os.PathLike[str] | None = None
    remarks: bool = False
    verify: bool = True
    fuse: bool = True
    skip: tuple[str, ...] = ()
    unroll: int = 4
    kernels: str = "fastest"
    policy: str = "auto"
    launches: str = "auto"
    control: str = "auto"
    recursion: str = "auto"
    branches: str = "auto"
    seed: int = 0
    max_signatures_before_warning: int = 8

    def __post_init__(self) -> None:
        for name in ("fuse", "verify", "remarks"):
            _require_bool(f"Debug.{name}", getattr(self, name))
        for name, least in (("unroll", 0), ("seed", 0), ("max_signatures_before_warning", 1)):
            _require_int(f"Debug.{name}", getattr(self, name), minimum=least)
        for name, known in (
            ("kernels", KERNELS),
            ("policy", POLICIES),
            ("launches", LAUNCHES),
            ("control", CONTROL),
            ("recursion", RECURSION),
            ("branches", BRANCHES),
        ):
            _require_one_of(f"Debug.{name}", getattr(self, name), known)
        _require_names("Debug.skip", self.skip)
        _require_folder("Debug.dump_dir", self.dump_dir)


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of `stretto.compile`; every field has a default that suits most programs.

    threads: execution units of the CPU machine; None is one per physical core this process
        may run on, given its affinity and the quota of its control group.
    units: execution units of the GPU machine, resident thread blocks; None is one per
        multiprocessor, and 5 if a GPU is emulated.
    cache_dir: folder of compiled programs; None is `$STRETTO_CACHE`, else `stretto` in the
        user's cache folder.
    library: names of operators that torch computes, in library calls, although stretto has
        kernels for them: `("aten.convolution",)`, or patterns, as `("*",)` for all. It shows
        what these kernels gain, and which of them a slow or wrong result comes from. Views
        and numbers without dims are not affected. "auto", on a GPU, leaves those products,
        convolutions and attentions to torch for which the plan is then faster in simulation
        (docs/explanation/cuda.md); the CPU machine then uses its own kernels. It takes longer to
        compile.
    winograd: on the CPU machine, convolutions with steps of 1 along a dim may be computed by
        minimal filtering (Winograd's algorithm) on tiles of at most this many pixels along a
        side, 4 or 2; 0 forbids it. Tiles of 2 lose as many digits as another order of the
        sum, tiles of 4 two or three bits more.
    enqueue: on a GPU, how a program of several launches and library calls is enqueued: one
        after the other on the caller's "stream", with the host between them where it
        decides; as a captured CUDA "graph", in which independent launches run concurrently,
        and which decides by itself (docs/explanation/graphs.md); or "auto", the faster one in
        simulation. The CPU machine ignores it.
    max_depth: recursion deeper than this ends in `RunError`. A call that is computed in a
        copy of a small recursive function (`passes/unroll_recursion.py`) is not counted
        separately.
    timeout: seconds after which a run on the backends "cpu", "emulator" and "interpreter"
        ends in `RunError`; None is no limit. The clock is checked between tasks and in
        loops, so a run may take longer by one task.
    check: compare the first call of each signature with the interpreter, and raise
        `VerifyError` if they differ; slow. The default is False, or True if `$STRETTO_CHECK`
        is "1".
    tune: source of the costs: "cached", measurements on this device, if `stretto calibrate`
        or `stretto tune` have made any; "off", the numbers in stretto's source. "measure"
        also times the kernels of each signature in all their variants when it is compiled,
        which takes several times as long, and runs the program.
    profile: record when each task ran, for `timeline()`; costs a little time per task.
    debug: settings for developers of stretto and for diagnosing models (`Debug`).
    """

    threads: int | None = None
    units: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    library: tuple[str, ...] | Literal["auto"] = ()
    winograd: int = 4
    enqueue: str = "stream"
    max_depth: int = 100_000
    timeout: float | None = None
    check: bool = field(default_factory=lambda: os.environ.get("STRETTO_CHECK") == "1")
    tune: str = "cached"
    profile: bool = False
    debug: Debug = field(default_factory=Debug)

    def __post_init__(self) -> None:
        if self.threads is not None:
            _require_int("Options.threads", self.threads, minimum=1, otherwise="or None")
        if self.units is not None:
            _require_int("Options.units", self.units, minimum=1, otherwise="or None")
        if type(self.winograd) is not int or self.winograd not in (0, 2, 4):
            raise ValueError(f"Options.winograd must be 0, 2 or 4, not {self.winograd!r}")
        _require_int("Options.max_depth", self.max_depth, minimum=1)
        if self.timeout is not None:
            _require_seconds("Options.timeout", self.timeout)
        _require_one_of("Options.enqueue", self.enqueue, ENQUEUE)
        for name in ("check", "profile"):
            _require_bool(f"Options.{name}", getattr(self, name))
        _require_one_of("Options.tune", self.tune, TUNING)
        if self.library != "auto":
            _require_names("Options.library", self.library, " or 'auto'")
        _require_folder("Options.cache_dir", self.cache_dir)
        if not isinstance(self.debug, Debug):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"Options.debug must be a stretto.Debug, not {self.debug!r}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Options:
        """Make options from names, including those of `Debug`. Raises TypeError for an unknown
        name."""
        names = {item.name for item in fields(Debug)}
        plain = {name: value for name, value in settings.items() if name not in names}
        inner = {name: value for name, value in settings.items() if name in names}
        return cls(**plain, debug=Debug(**inner))

    def settings(self) -> dict[str, Any]:
        """Return all settings by name, those of `Debug` included: the inverse of `of`."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        debug = plain.pop("debug")
        return plain | {item.name: getattr(debug, item.name) for item in fields(debug)}

    def unit_count(self) -> int:
        """Return the number of execution units of the CPU machine: `threads`, else the physical
        cores available."""
        if self.threads is not None:
            return self.threads
        return min(physical_cores(available_cpus()), cpu_quota() or sys.maxsize)

    def cache_path(self) -> Path:
        """Return the folder of compiled programs; it need not exist yet."""
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser().absolute()
        if chosen := os.environ.get("STRETTO_CACHE"):
            return Path(chosen).expanduser().absolute()
        user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(user_cache).expanduser().absolute() / "stretto"


@cache
def physical_cores(cpus: frozenset[int], topology: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the number of physical cores of the logical `cpus`, as the `topology` folder
    describes them.

    Units spin while they wait, so two on the hyper-threads of one core would slow each
    other. A CPU of unknown topology counts as one core.
    """
    cores: set[tuple[str, ...]] = set()
    for cpu in cpus:
        folder = topology / f"cpu{cpu}" / "topology"
        try:
            package = (folder / "physical_package_id").read_text().strip()
            cores.add((package, (folder / "core_id").read_text().strip()))
        except OSError:
            cores.add((f"cpu{cpu}",))
    return max(1, len(cores))


@cache
def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the whole processors that the control groups of this process may use at a time;
    None is no limit.

    membership: the file that names the groups. root: where they are mounted, of either
    version. The limit is the tightest of a group and of all groups around it.
    """
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        return None
    quotas = list[int]()
    for _, controllers, group in lines:
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / controllers  # version 2 has one tree for all controllers
        inner = mounted / group.strip("/")
        around = (folder for folder in inner.parents if folder.is_relative_to(mounted))
        quotas += [quota for folder in (inner, *around) if (quota := _quota(folder))]
    return min(quotas, default=None)


def _quota(group: Path) -> int | None:
    """Return the whole processors that one control group may use, at least 1; None is no limit."""
    try:
        if (group / "cpu.max").exists():
            allowed, period = (group / "cpu.max").read_text().split()
        else:
            allowed = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        quota, length = int(allowed), int(period)
    except (OSError, ValueError):  # no such file; "max" is no limit
        return None
    return max(1, quota // length) if quota > 0 and length > 0 else None


def available_cpus() -> frozenset[int]:
    """Return the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _require_int(name: str, value: object, *, minimum: int, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        wanted = f"an int of at least {minimum} {otherwise}".strip()
        raise ValueError(f"{name} must be {wanted}, not {value!r}")


def _require_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ValueError(f"{name} must be a number of seconds or None, not {value!r}")


def _require_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, not {value!r}")


def _require_names(name: str, value: object, otherwise: str = "") -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):  # pyright: ignore[reportUnknownVariableType]
        raise ValueError(f"{name} must be a tuple of names{otherwise}, not {value!r}")


def _require_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        wanted = ", ".join(map(repr, known[:-1]))
        raise ValueError(f"{name} must be {wanted} or {known[-1]!r}, not {value!r}")


def _require_folder(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str | os.PathLike) or not str(value)):
        raise ValueError(f"{name} must be a folder's path or None, not {value!r}")
