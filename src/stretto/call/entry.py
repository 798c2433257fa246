"""An entry of a compiled function's table: one signature, its program, and how a call runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from stretto.call.eager import requires_grad
from stretto.call.signatures import CallForm, Fits, Key
from stretto.errors import CaptureError, OtherProgram, RaisesInPython
from stretto.frontends.python import (
    ArgumentLeaf,
    Captured,
    CaptureWatch,
    External,
    Fetched,
    IntLeaf,
    Mutation,
    Reading,
    ResultLeaf,
    build_output,
)
from stretto.frontends.python.tracing.admission import overlaps
from stretto.frontends.python.tracing.fakes import dims_by_stride
from stretto.ir.core import Op
from stretto.ir.failure import eager_class
from stretto.ir.ops import CheckOp, TensorOp
from stretto.machines.machine import Executable, Stages
from stretto.ops.effects import States, states_drawn_from
from stretto.ops.properties import relations_of_sizes
from stretto.options import Options
from stretto.runtime.call_sizes import InputSizes, Values
from stretto.runtime.constants import ConstantFreshness
from stretto.runtime.interpreter_check import Checker
from stretto.runtime.probes import native_check


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the form that programs take: contiguous, without a negative bit."""
    return tensor.contiguous().resolve_neg()


@dataclass(slots=True)
class Entry:
    """One compiled signature.

    builds: number of compiles, one more each time that it was stale. plain: the program's
    inputs are the tensors of a call, in order. varies: the key of a call does not decide
    alone which program is right; `variant`, or what the user's objects hold, does too.
    keep: the arguments that it was compiled with.
    """

    key: Key
    captured: Captured
    executable: Executable
    stages: Stages
    seconds: float
    example_arguments: object
    takes_call_tensors: bool = field(init=False)
    single: bool = field(init=False)
    takes_ints: bool = field(init=False)
    int_count: int = 0
    fits_sizes: Fits | None = None
    """Returns True if a program for many sizes is right for the sizes of a call; None for fixed
    sizes."""
    takes_held_sizes: bool = False
    """True if `fits_sizes` also compares sizes of tensors that objects hold."""
    needs_more_than_key: bool = field(init=False)
    checks_inputs: bool = field(init=False)
    read_sizes: Callable[[Sequence[torch.Tensor]], Values] | None = None
    """Reads the values of the symbols from the inputs of a call that is known to fit."""
    calls: int = 0
    builds: int = 1
    runs_in_python: int = 0
    """Number of calls that ended in Python because the run came to an exception that shows
    values."""
    may_end_in_python: bool = field(init=False)
    is_refuted: bool = False
    """True once a call has shown that an assumption of the capture is wrong."""
    checker: Checker | None = None
    """Compares the first call with the interpreter; None afterwards, or without `Options.check`."""
    compiled_variant: Key = ()
    constant_memory: dict[int, list[torch.Tensor]] = field(init=False)
    outside: tuple[torch.Tensor, ...] = field(init=False)
    """The tensors that the program uses and that are no inputs of calls."""
    watch: CaptureWatch = field(init=False)
    weights: ConstantFreshness = field(init=False)

    def __post_init__(self) -> None:
        bindings = self.captured.inputs
        self.takes_ints = any(isinstance(b, IntLeaf) for b in bindings)
        self.takes_call_tensors = not self.captured.mutations and all(
            isinstance(b, ArgumentLeaf) and b.index == n for n, b in enumerate(bindings)
        )
        self.checks_inputs = self.captured.writes or bool(self.captured.identical)
        self.needs_more_than_key = self.checks_inputs or self.captured.objects is not None
        folded = _folded(self.captured, self.stages)
        native = self.stages.machine.is_native
        check = native_check(Options()) if native else None
        self.watch = CaptureWatch.of(self.captured, check)
        self.watch.guards.native = check
        self.weights = ConstantFreshness(folded, self.executable.copies, native=native)
        externals = (b.tensor for b in bindings if isinstance(b, External))
        self.outside = (*(source.tensor for source in self.captured.constants), *externals)
        self.constant_memory = {}
        for source in self.captured.constants:
            address = source.tensor.untyped_storage().data_ptr()
            self.constant_memory.setdefault(address, []).append(source.tensor)
        differs = self.captured.journal is not None or self.captured.replaces
        self.may_end_in_python = differs or any(map(ends_in_python, self.captured.program.walk()))
        output = self.captured.output
        self.single = output == ResultLeaf(0)

    def is_current(self) -> bool:
        """Return True if the program is still right. Copies of weights that have changed are
        made again.

        The watch, which compares addresses, is checked before the weights: the memory at an
        old address may be gone.
        """
        return not self.is_refuted and self.watch.is_current() and self.weights.is_current()

    def differentiated(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return a tensor for which eager PyTorch may build a graph of gradients in a call with
        these inputs; None if there is none.

        Such a tensor requires grad, and the function reads it with grad mode on, or may do so
        in a grad mode that the program was not captured in.
        """
        found, mode = self.captured.differentiable, torch.is_grad_enabled()
        known = next(filter(requires_grad, found.tensors), None)
        if known is not None or (mode is found.mode and not (mode or found.inputs)):
            return known
        others = inputs if found.mode or not mode else chain(self.outside, inputs)
        return next(filter(requires_grad, others), None)

    def __call__(self, tensors: Sequence[torch.Tensor], reading: Reading | None = None) -> Any:
        """Run the program on a call's tensors. Raises RaisesInPython if the call has to start
        again in Python."""
        self.calls += 1
        captured = self.captured
        bound = (
            list(tensors[: len(captured.inputs)])
            if self.takes_call_tensors
            else self.bind(tensors, reading)
        )
        inputs = [t if t.is_contiguous() and not t.is_neg() else _plain(t) for t in bound]
        drawn = () if self.checker is None else self.checker.states()
        read = self.read_sizes
        try:
            results = (
                self.executable(inputs) if read is None else self.executable(inputs, read(inputs))
            )
            if self.may_end_in_python:
                self.executable.synchronize()
        except Exception as error:
            if not self._ends_in_python(error):
                raise
            raise RaisesInPython("the run comes to an exception that Python raises") from error
        if self.checker is not None:
            self.checker.check(inputs, results, drawn)
            self.checker = None
        if captured.journal is not None:
            captured.journal.act_out(results, bound, reading)
        for mutation in captured.mutations:
            self.write_back(bound, results, mutation)
        if captured.objects is not None and reading is not None:
            return captured.objects.finish(captured.output, results, bound, reading)
        if self.single:
            return results[0]
        return build_output(captured.output, results, bound, (), {})

    def states_before(self) -> States:
        """Return the generators' states before a run after which the call may start again in
        Python."""
        return states_drawn_from(self.captured.program) if self.may_end_in_python else ()

    def _ends_in_python(self, error: Exception) -> bool:
        """Return True if a call has to start again in Python after its run raised `error`: the
        function prints or logs, or has handlers that raise another exception."""
        says = self.captured.journal is not None
        if not (says or self.captured.replaces) or isinstance(error, OtherProgram):
            return False
        return getattr(error, "location", None) not in self.captured.windows

    def bind(
        self, tensors: Sequence[torch.Tensor], reading: Reading | None = None
    ) -> list[torch.Tensor]:
        """Return the tensors that the program takes, from those of a call and those that objects
        hold."""
        fetched = [] if reading is None else reading.inputs
        bound = list[torch.Tensor]()
        for binding in self.captured.inputs:
            match binding:
                case ArgumentLeaf(index):
                    bound.append(tensors[index])
                case Fetched(index):
                    bound.append(fetched[index])
                case IntLeaf(index):
                    bound.append(tensors[index - self.int_count])
                case _:
                    bound.append(binding.tensor)
        return bound

    def set_size_check(self, fits: Fits, *, holding: bool = False) -> None:
        """Make the entry one for all calls whose sizes fit; the run then need not compare them
        again.

        holding: `fits` also compares the sizes of tensors that objects hold.
        """
        self.fits_sizes, self.takes_held_sizes = fits, holding
        if self.stages.scheduled is not None:
            _, interface = self.stages.runnable()
            self.read_sizes = InputSizes(interface.symbols, interface.inputs).read

    def with_ints(
        self, tensors: Sequence[torch.Tensor], ints: Sequence[int]
    ) -> Sequence[torch.Tensor]:
        """Return the tensors of a call, followed by one empty tensor per int, with that many rows:
        programs read ints as sizes."""
        if not self.takes_ints:
            return tensors
        place = self.stages.place
        rows = (torch.empty((max(n, 0), 0), dtype=torch.uint8, device=place) for n in ints)
        return [*tensors, *rows]

    def read(
        self, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Reading | None:
        """Return what the user's objects hold now in the places that the program changes; None
        without objects."""
        held = self.captured.objects
        return None if held is None else held.read(tensors, (args, kwargs))

    def example_reading(self) -> Reading:
        """Return zeros in place of the tensors that objects held when the entry was compiled."""
        bindings = zip(self.captured.inputs, self.captured.program.main.params, strict=True)
        found = [
            (b.index, torch.zeros(p.tensor.shape, dtype=p.tensor.dtype.torch, device=b.device))  # type: ignore[arg-type]
            for b, p in bindings
            if isinstance(b, Fetched)
        ]
        return Reading(tensors=[tensor for _, tensor in sorted(found, key=lambda item: item[0])])

    def fits(self, reading: Reading | None, form: CallForm | None) -> bool:
        """Return True if the entry is right for what objects hold. form: the call, needed if sizes
        may be symbols."""
        held = self.captured.objects
        if held is None or reading is None:
            return True
        if reading.key != held.key:
            return False
        if self.takes_held_sizes and self.fits_sizes is not None and form is not None:
            return self.fits_sizes(form.shapes, form.ints, reading.shapes)
        return reading.shapes == held.shapes

    def variant(self, tensors: Sequence[torch.Tensor], reading: Reading | None = None) -> Key:
        """Return everything else that the choice of a program depends on.

        It has the inputs that are not the tensors they were at the compile and, if the program
        changes tensors, which inputs share memory with each other or with constants, and the
        strides of inputs that are not contiguous.
        """
        bound = self.bind(tensors, reading)
        other = tuple([n for n, tensor in self.captured.identical if bound[n] is not tensor])
        if not self.captured.writes:
            return other
        if self.fits_sizes is None:
            strides = tuple([None if t.is_contiguous() else t.stride() for t in bound])
        else:
            strides = tuple([None if t.is_contiguous() else dims_by_stride(t) for t in bound])
        addresses = [t.untyped_storage().data_ptr() for t in bound]
        if len(set(addresses)) == len(addresses) and self.constant_memory.keys().isdisjoint(
            addresses
        ):
            return (*other, *strides) if other or any(strides) else ()
        groups: dict[int, list[int]] = {}
        for number, address in enumerate(addresses):
            groups.setdefault(address, []).append(number)
        written = {mutation.input for mutation in self.captured.mutations}
        shared: list[Key] = []
        for address, group in groups.items():
            constants = self.constant_memory.get(address, ())
            if address and len(group) + len(constants) > 1 and not written.isdisjoint(group):
                same = (any(bound[n] is constant for constant in constants) for n in group)
                shared.append((*group, *same))
        return (*other, *shared, *strides) if other or shared or any(strides) else ()

    def write_back(self, bound: list[torch.Tensor], results: list[Any], mutation: Mutation) -> None:
        """Copy a result to the input that it changes."""
        with torch.no_grad():
            bound[mutation.input].copy_(results[mutation.result])


def ends_in_python(op: Op) -> bool:
    """Return True if a failed check of the op may make the call start again in Python."""
    if isinstance(op, TensorOp):
        return bool(relations_of_sizes(op))
    return isinstance(op, CheckOp) and issubclass(eager_class(op.failure.error), RaisesInPython)


def _folded(captured: Captured, stages: Stages) -> list[torch.Tensor]:
    """Return the constants on the CPU whose content was computed into the program itself."""
    sources = stages.program.folded.sources
    return [
        source.tensor
        for source in captured.constants
        if source.tensor.is_cpu
        and (source.key is None or source.tensor.untyped_storage().data_ptr() in sources)
    ]


def check_dense(captured: Captured, tensors: Sequence[torch.Tensor]) -> None:
    """Raise CaptureError for an input with gaps in its memory if a program for many sizes changes
    inputs: the strides of such a tensor do not follow from its sizes."""
    if captured.sizes is None or not (captured.sizes.symbols and captured.writes):
        return
    for tensor in tensors:
        step = 1
        for dim in dims_by_stride(tensor):
            if tensor.shape[dim] != 1 and tensor.numel() and tensor.stride(dim) != step:
                raise CaptureError(
                    "a tensor with gaps between its elements is an input of a function that "
                    "changes tensors in place, and its size is a symbol",
                    remedy="pass a clone() of it, or compile with dynamic=False",
                )
            step *= tensor.shape[dim]


def check_written(entry: Entry, tensors: Sequence[torch.Tensor], reading: Reading | None) -> None:
    """Raise CaptureError if a tensor that is changed has several elements at one address."""
    bound = entry.bind(tensors, reading)
    if any(overlaps(bound[mutation.input]) for mutation in entry.captured.mutations):
        raise CaptureError(
            "a tensor is changed in place that has several elements at one address",
            remedy="pass a clone() of it",
        )
