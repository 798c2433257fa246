"""How a compiled function gets one entry: its function is captured and built for the machine."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from stretto.build import build
from stretto.entry import Entry, check_dense, check_written
from stretto.errors import CaptureError, RunError, SourceLocation, StrettoError
from stretto.failures import is_assertion, stage_failures
from stretto.fallback import NotNative
from stretto.families import SizeKey, fitting
from stretto.frontends.python import Captured, Reading, Surroundings, capture
from stretto.frontends.python.tracing.admission import check_inputs
from stretto.frontends.python.tracing.history import Settling
from stretto.frontends.python.tracing.locations import definition
from stretto.keys import Key
from stretto.machines.machine import Machine, Stages
from stretto.options import Options
from stretto.placement import choose_machine, device_of, target_machine
from stretto.progress import LOG
from stretto.runtime.check import Checker


class Call(NamedTuple):
    """A call of a compiled function. tensors: those among the arguments, in the order of pytree."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: Sequence[torch.Tensor]

    @property
    def ints(self) -> list[int]:
        """The ints among the arguments, in the order of pytree."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if type(leaf) is int]


@dataclass(eq=False, slots=True)
class Compiler:
    """Makes the entries of one compiled function.

    cut: what cannot be captured is cut and runs in Python. target: a device that programs are
    compiled for and that need not be here; no call runs them then. surroundings: who makes the
    calls. windows: where slices of static length may reach beyond their dim. settling: branches of
    which a program has one arm.
    """

    function: Callable[..., Any]
    backend: str
    options: Options
    surroundings: Surroundings
    cut: bool
    target: str | None = None
    windows: frozenset[SourceLocation] = frozenset()
    settling: Settling = field(default_factory=Settling)

    @property
    def name(self) -> str:
        """What messages call the function or module."""
        kind = type(self.function).__name__
        is_module = isinstance(self.function, torch.nn.Module)
        return kind if is_module else getattr(self.function, "__qualname__", kind)

    @property
    def may_run_in_python(self) -> bool:
        """Whether a call may run the function itself. Whoever calls a segment runs its statements
        instead."""
        return self.surroundings is not Surroundings.PYTHON

    def place(self) -> SourceLocation | None:
        """Where the function is defined."""
        function: Any = self.function
        if isinstance(function, torch.jit.ScriptModule):
            return None
        if isinstance(function, torch.nn.Module):
            function = type(function).forward
        code = getattr(inspect.unwrap(function), "__code__", None)
        return None if code is None else definition(code)

    def learn(self, entry: Entry, error: RunError) -> bool:
        """Whether the run stopped where a slice reaches beyond its dim, which its capture took for
        impossible: then the function is captured again, with slices there that are cut."""
        place = error.location
        if place is None or place not in entry.captured.windows:
            return False
        LOG.info("%s is compiled again: the slice at %s reaches beyond its dim", self.name, place)
        self.windows |= {place}
        entry.is_refuted = True
        return True

    def chosen(self, tensors: Sequence[torch.Tensor]) -> Machine:
        """The machine for these inputs. With a target they lie on the host."""
        if self.target is None:
            return choose_machine(self.backend, tensors)
        check_inputs(tensors)
        return target_machine(self.target, self.options.units, self.backend)

    def machine(self, tensors: Sequence[torch.Tensor]) -> Machine:
        """The machine for these inputs, ready to compile for them."""
        machine = self.chosen(tensors)
        with stage_failures("machine"):
            machine.require_ready()
            machine.prepare(self.options)
        device_of(machine, tensors)
        return machine

    def capture(
        self, machine: Machine, call: Call, base: SizeKey | None, by_structure: bool | None
    ) -> tuple[Captured, Reading | None]:
        """The function, captured for a call, and what objects of the user hold in it. base: which
        sizes are symbols. by_structure: as `capture` has it."""
        with nullcontext() if base is None else base.family.capturing():
            captured = self._captured(machine, call, base, by_structure)
            reading = None
            if captured.objects is not None:
                reading = captured.objects.read(call.tensors, (call.args, call.kwargs))
                check_inputs(reading.tensors)
            check_dense(captured, [*call.tensors, *(() if reading is None else reading.tensors)])
        return captured, reading

    def _captured(
        self, machine: Machine, call: Call, base: SizeKey | None, by_structure: bool | None
    ) -> Captured:
        """What can run in Python instead does so where the capture raises an exception: the one of
        Python code that takes no traced values does not come again, the one of the function itself
        does."""
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
                raise CaptureError(reason, location=self.place()) from error
            if self.surroundings is Surroundings.PYTHON:  # a segment
                raise NotNative(reason) from error
            raise

    def build(
        self,
        machine: Machine,
        captured: Captured,
        reading: Reading | None,
        call: Call,
        key: Key,
        base: SizeKey | None,
        start: float,
    ) -> Entry:
        """The entry of what was captured. start: when its compile began, by perf_counter."""
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
                    entry.is_for(fits, holding=holding)
            if self.options.check and not machine.is_oracle:
                entry.checker = Checker(captured.program, self.options.max_depth)
            check_written(entry, tensors, reading)
            if entry.checks_inputs:
                entry.compiled_variant = entry.variant(tensors, reading)
            return entry

    def _measured(
        self, machine: Machine, stages: Stages, captured: Captured, call: Call, key: Key
    ) -> Stages:
        """The program once more, when the variants of its kernels have been timed."""
        from stretto.tools.tune import measure

        assert stages.executable is not None
        kept = (call.args, call.kwargs)
        measure(Entry(key, captured, stages.executable, stages, 0.0, kept), self.options)
        return build(captured.program, machine, self.options, stages.place)
