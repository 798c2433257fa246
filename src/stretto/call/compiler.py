"""Make one entry of a compiled function: capture the function and build its program for the
machine."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from stretto.call.entry import Entry, check_dense, check_written
from stretto.call.signatures import Key, SizeKey, fitting
from stretto.device.costs import CostModel
from stretto.dumps import Dumper
from stretto.errors import BuildError, CaptureError, RunError, SourceLocation, StrettoError
from stretto.failures import is_assertion, stage_failures
from stretto.frontends.python import (
    ArgumentLeaf,
    Caller,
    Captured,
    Fetched,
    IntLeaf,
    Reading,
    RunInPython,
    capture,
)
from stretto.frontends.python.tracing.admission import check_inputs
from stretto.frontends.python.tracing.history import SettledBranches
from stretto.frontends.python.tracing.locations import definition
from stretto.ir.core import Program
from stretto.lowering.targets import NO_UPDATES, InputUpdates
from stretto.machines.machine import HOST, BuildStage, FewerUnitsError, Form, Machine, Stages
from stretto.machines.registry import default_machine, find_machine, known_machines
from stretto.machines.stages import CAPTURED, SELECT
from stretto.options import Options
from stretto.passes.manager import Target
from stretto.passes.pipeline import passes_by_name, pipeline
from stretto.progress import LOG
from stretto.runtime.interpreter_check import Checker

# ---- The backend of a call, and the one device of its tensors.


AUTO = "auto"
"""The backend name that chooses a machine by the devices of the inputs."""


def require_backend(backend: str) -> None:
    """Raise ValueError if no machine has this name."""
    if backend != AUTO and backend not in known_machines():
        known = ", ".join((AUTO, *known_machines()))
        raise ValueError(f"backend must be one of {known}, not {backend!r}")


def target_machine(target: str, units: int | None = None, backend: str = AUTO) -> Machine:
    """Return the machine that compiles for a device that need not be here. Raises ValueError for a
    target that no machine (or not this backend) has, and BuildError if its compiler is missing."""
    machines = known_machines()
    for machine in machines.values() if backend == AUTO else (machines[backend],):
        if target in machine.targets:
            return machine.for_target(target, units)
    known = [name for machine in machines.values() for name in machine.targets]
    raise ValueError(f"unknown target {target!r}; known are {', '.join(known)}")


def choose_machine(backend: str, tensors: Sequence[torch.Tensor]) -> Machine:
    """Return the machine for these inputs; with "auto", one for an accelerator if any input is on
    it. Raises for tensors that it cannot take."""
    check_inputs(tensors)
    if backend != AUTO:
        require_backend(backend)  # it may have been unregistered meanwhile
        return find_machine(backend)
    served = {m.device_type for m in known_machines().values() if m.is_default}
    found = {tensor.device.type for tensor in tensors} & served - {HOST.type}
    return default_machine(min(found, default=HOST.type))


def device_of(
    machine: Machine, tensors: Sequence[torch.Tensor], captured: Captured | None = None
) -> torch.device:
    """Return the one device of the inputs and of all other tensors of a captured program; the
    machine's own if there are none. Raises BuildError if they are on several devices, or on one
    that the machine does not run on."""
    found = {f"input {number}": tensor.device for number, tensor in enumerate(tensors)}
    if captured is not None:
        found |= {
            f"the tensor '{b.name}'": b.device if isinstance(b, Fetched) else b.tensor.device
            for b in captured.inputs
            if not isinstance(b, ArgumentLeaf | IntLeaf)
        }
        # A zero-dim constant on the host works with tensors on any device, as in eager PyTorch: it
        # is moved.
        constants = captured.program.constants.items()
        found |= {
            f"the tensor '{name}'": tensor.device
            for name, tensor in constants
            if tensor.dim() or tensor.device != HOST
        }
    _require_type(machine, found)
    devices = dict.fromkeys(found.values())
    if len(devices) > 1:
        names = ", ".join(f"{what} on {device}" for what, device in found.items())
        raise BuildError(
            f"tensors on several devices: {names}", remedy="move all of them to one device"
        )
    return next(iter(devices)) if devices else machine.device()


def _require_type(machine: Machine, found: dict[str, torch.device]) -> None:
    """Raise BuildError for a tensor on a device type that the machine does not take."""
    kind = machine.device_type
    wrong = {what: device for what, device in found.items() if device.type != kind}
    if not wrong:
        return
    what, device = next(iter(wrong.items()))
    if kind != HOST.type and len(wrong) < len(found):
        target = next(device for device in found.values() if device.type == kind)
        raise BuildError(
            f"{what} is on {device}, others are on {target}",
            remedy=f"move all inputs and the module to one device: .to('{target}')",
        )
    remedy = f"move the inputs and the module with .{kind}()"
    others = known_machines().values()
    if machine.is_default and any(m.is_default and m.device_type == device.type for m in others):
        remedy += f', or compile with backend="{AUTO}"'
    message = f"{what} is on {device}: backend {machine.name!r} runs on {kind}"
    raise BuildError(message, remedy=remedy)


# ---- From a Program to an executable: the stages of a machine, in order.


def build(
    program: Program,
    machine: Machine,
    options: Options,
    place: torch.device = HOST,
    updates: InputUpdates = NO_UPDATES,
) -> Stages:
    """Take a Program through all stages of a machine: passes, lowering, selection of kernels,
    scheduling, verification, then the machine's own planning, printing, compiling and loading.

    place: the device of the tensors. updates: results that share the memory of inputs. The program
    changes these inputs in place, without copies, and returns the input tensors themselves. A run
    that stops may have written to them already, so use this only for memory that the caller of the
    program owns. Raises the error class of the stage that fails.
    """
    stages = begin(program, machine, options, place)
    stages.updates = updates
    _dump(stages, CAPTURED)
    run_stages(stages, machine.stages)
    return stages


def begin(program: Program, machine: Machine, options: Options, place: torch.device) -> Stages:
    """Start a build of which no stage has run yet. Costs come from measurements on the device, if
    there are any. Raises ValueError if `Debug.skip` names an unknown pass."""
    machine = machine.tuned(options, place)
    units = machine.units(options, place)
    passes = pipeline(Target(_with_recursion(machine.costs, options.debug.recursion), units))
    known = passes_by_name(passes)
    for name in options.debug.skip:
        if name not in known:
            names = ", ".join(known)
            raise ValueError(f"Debug.skip: no pass is called {name!r}; known are {names}")
    dumper = Dumper(options.debug.dump_dir)
    return Stages(program, machine, options, place, dumper, program, passes, units)


def _with_recursion(costs: CostModel, how: str) -> CostModel:
    """Return the costs with `level_bytes` set so that passes compute recursions as
    `Debug.recursion` requests."""
    least = {"auto": costs.level_bytes, "levels": 0.0, "calls": inf}[how]
    return replace(costs, level_bytes=least)


def run_stages(stages: Stages, steps: Sequence[BuildStage]) -> None:
    """Run stages in order and dump each result. If the machine turns out to hold fewer units than
    the program was made for, repeat from kernel selection on with that many."""
    try:
        _run(stages, steps)
    except FewerUnitsError as fewer:
        if SELECT not in steps:
            raise
        stages.units = fewer.units
        _run(stages, steps[steps.index(SELECT) :])


def _run(stages: Stages, steps: Sequence[BuildStage]) -> None:
    """Run stages in order, with their times, and name the stage in errors."""
    for step in steps:
        with stages.timed(step.name), stage_failures(step.name):
            step.run(stages)
        if step.form is not None:
            _dump(stages, step.form)


def _dump(stages: Stages, form: Form) -> None:
    if stages.dumper.folder is not None:
        for text in form.texts(stages):
            stages.dumper.text(form.file, text)


class CallArguments(NamedTuple):
    """A call of a compiled function. tensors: all tensors among the arguments, in pytree order."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: Sequence[torch.Tensor]

    @property
    def ints(self) -> list[int]:
        """The ints among the arguments, in pytree order."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if type(leaf) is int]


@dataclass(eq=False, slots=True)
class EntryCompiler:
    """Makes the entries of one compiled function.

    cut: statements that cannot be captured are cut out and run in Python. target: a device
    to compile for that need not be here; its programs are never run in this process.
    surroundings: who calls the function. windows: places of slices of static length that
    may reach beyond their dim. settling: branches of which a program has only one arm.
    """

    function: Callable[..., Any]
    backend: str
    options: Options
    surroundings: Caller
    cut: bool
    target: str | None = None
    windows: frozenset[SourceLocation] = frozenset()
    settling: SettledBranches = field(default_factory=SettledBranches)

    @property
    def name(self) -> str:
        """The name of the function or module in messages."""
        kind = type(self.function).__name__
        is_module = isinstance(self.function, torch.nn.Module)
        return kind if is_module else getattr(self.function, "__qualname__", kind)

    @property
    def may_run_in_python(self) -> bool:
        """True if a call may run the function itself. A segment may not: its caller runs its
        statements instead."""
        return self.surroundings is not Caller.PYTHON

    def definition_location(self) -> SourceLocation | None:
        """Return the place where the function is defined; None if it has no Python source."""
        function: Any = self.function
        if isinstance(function, torch.jit.ScriptModule):
            return None
        if isinstance(function, torch.nn.Module):
            function = type(function).forward
        code = getattr(inspect.unwrap(function), "__code__", None)
        return None if code is None else definition(code)

    def refute_window(self, entry: Entry, error: RunError) -> bool:
        """If the run stopped at a slice that reaches beyond its dim, which the capture had ruled
        out, refute the entry and return True: the next capture clamps slices there."""
        place = error.location
        if place is None or place not in entry.captured.windows:
            return False
        LOG.info("%s is compiled again: the slice at %s reaches beyond its dim", self.name, place)
        self.windows |= {place}
        entry.is_refuted = True
        return True

    def machine_for(self, tensors: Sequence[torch.Tensor]) -> Machine:
        """Return the machine for these inputs. With a target the inputs must be on the host."""
        if self.target is None:
            return choose_machine(self.backend, tensors)
        check_inputs(tensors)
        return target_machine(self.target, self.options.units, self.backend)

    def machine(self, tensors: Sequence[torch.Tensor]) -> Machine:
        """Return the machine for these inputs, ready to compile for them."""
        machine = self.machine_for(tensors)
        with stage_failures("machine"):
            machine.require_ready()
            machine.prepare(self.options)
        device_of(machine, tensors)
        return machine

    def capture(
        self, machine: Machine, call: CallArguments, base: SizeKey | None, by_structure: bool | None
    ) -> tuple[Captured, Reading | None]:
        """Capture the function for a call; also return what the user's objects hold in it.

        base: the sizes that are symbols; None if all sizes are numbers. by_structure: as for
        `capture`.
        """
        with nullcontext() if base is None else base.family.capturing():
            captured = self._captured(machine, call, base, by_structure)
            reading = None
            if captured.objects is not None:
                reading = captured.objects.read(call.tensors, (call.args, call.kwargs))
                check_inputs(reading.tensors)
            check_dense(captured, [*call.tensors, *(() if reading is None else reading.tensors)])
        return captured, reading

    def _captured(
        self, machine: Machine, call: CallArguments, base: SizeKey | None, by_structure: bool | None
    ) -> Captured:
        """Capture the function. An exception during the capture becomes CaptureError or NotNative
        if the code can run in Python instead: there, Python code that rejects traced values
        does not fail, and the function's own exceptions are raised again."""
        try:
            return capture(
                self.function,
                call.args,
                call.kwargs,
                self.options,
                by_structure=by_structure,
                sizes=None if base is None else base.plan,
                cuts=self.windows,
                settling=self.settling if machine.stops_at_once else None,
                surroundings=self.surroundings,
                state=None if base is None else base.family.state,
            )
        except StrettoError:
            raise
        except Exception as error:
            if is_assertion(error):
                with stage_failures("capture"):
                    raise
            reason = f"{type(error).__name__} was raised while it was captured: {error}"
            if self.cut:
                raise CaptureError(reason, location=self.definition_location()) from error
            if self.surroundings is Caller.PYTHON:  # a segment
                raise RunInPython(reason) from error
            raise

    def build(
        self,
        machine: Machine,
        captured: Captured,
        reading: Reading | None,
        call: CallArguments,
        key: Key,
        base: SizeKey | None,
        start: float,
    ) -> Entry:
        """Build the entry of a captured function. start: begin of its compile, by perf_counter."""
        device = device_of(machine, call.tensors, captured)
        traced = time.perf_counter() - start
        stages = build(captured.program, machine, self.options, device)
        assert stages.executable is not None
        is_sized = captured.sizes is not None and captured.sizes.symbols
        if self.options.tune == "measure" and machine.is_native and not is_sized:
            stages = self._measured(machine, stages, captured, call, key)
            assert stages.executable is not None
        stages.seconds = {"capture": traced, **stages.seconds}
        if self.options.debug.remarks:
            from stretto.tools.explain import remarks_text

            print(remarks_text(stages), end="", file=sys.stderr)
        seconds = time.perf_counter() - start
        kept = (call.args, call.kwargs)
        with stage_failures("entry"):
            entry = Entry(key, captured, stages.executable, stages, seconds, kept)
            tensors = call.tensors
            if base is not None and captured.sizes is not None:
                base.family.settle(base, captured.sizes, tensors)
                ints = call.ints
                entry.int_count = len(ints)
                tensors = entry.with_ints(tensors, ints)
                if captured.sizes.symbols:
                    holding = base.family.state is not None
                    fits = fitting(captured.sizes, ints, holding=holding)
                    entry.set_size_check(fits, holding=holding)
            if self.options.check and not machine.is_oracle:
                entry.checker = Checker(captured.program, self.options.max_depth)
            check_written(entry, tensors, reading)
            if entry.checks_inputs:
                entry.compiled_variant = entry.variant(tensors, reading)
            return entry

    def _measured(
        self, machine: Machine, stages: Stages, captured: Captured, call: CallArguments, key: Key
    ) -> Stages:
        """Time the variants of the program's kernels, then build it again with the results."""
        from stretto.tools.tune import measure

        assert stages.executable is not None
        kept = (call.args, call.kwargs)
        measure(Entry(key, captured, stages.executable, stages, 0.0, kept), self.options)
        return build(captured.program, machine, self.options, stages.place)
