"""`Options(check=True)`: the first call of a signature is compared with the interpreter.

The interpreter runs the captured Program, op by op through torch, on the same inputs. This
checks everything after capture: passes, kernels, the schedule, the printed code. Neither
run has effects; these are executed once, afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from stretto.deadline import TIMED_OUT
from stretto.errors import RaisesInPython, RunError, VerifyError
from stretto.interp.interpreter import STACK_ENDED, Datum
from stretto.interp.interpreter import run as interpret
from stretto.ir.core import Program
from stretto.ops.effects import States, restore, states_drawn_from
from stretto.runtime.results import Result

SECONDS = 30.0
"""Time limit of the interpreter; a Program that takes longer is not checked."""

RELATIVE: dict[torch.dtype, float] = {
    torch.float64: 1e-8,
    torch.float32: 1e-3,
    torch.float16: 3e-2,
    torch.bfloat16: 1e-1,
}
"""Allowed error from reordering a sum, relative to the largest element, per dtype."""

REMEDY = (
    "please report this, with what Debug(dump_dir=...) writes; until it is fixed, compile with "
    'backend="interpreter", which gave the other result'
)


@dataclass(frozen=True, slots=True)
class Checker:
    """Compares results of one signature with those of its Program."""

    program: Program
    max_depth: int

    def states(self) -> States:
        """Return the states of the generators from which the program draws."""
        return states_drawn_from(self.program)

    def check(
        self, inputs: Sequence[torch.Tensor], results: Sequence[Result], before: States = ()
    ) -> None:
        """Raise VerifyError if the results differ from the interpreter's.

        before: the states of the generators before the run; the interpreter draws the same numbers
        from them. Numbers that differ by more than rounding count only if float64 agrees with the
        interpreter: in an ill-conditioned program neither result is better. A Program that runs out
        of time or stack, or raises in Python, is not checked.
        """
        after = tuple([(generator, generator.get_state()) for generator, _ in before])
        try:
            restore(before)
            wanted = self.interpret(inputs, None)
            restore(before)
            difference = next(differences(results, wanted), None)
            if difference is None:
                return
            exact = self.interpret(inputs, torch.float64)
            decided = next(differences(wanted, exact, wide=True), None) is None
        except Exception as stop:  # a RunError, or an exception of the user's own check
            is_error = isinstance(stop, RunError)
            reason = stop.message if is_error else f"{type(stop).__name__}: {stop}"
            if reason in (TIMED_OUT, STACK_ENDED) or isinstance(stop, RaisesInPython):
                return
            raise VerifyError(
                f"the compiled program ran, but the interpreter stopped: {reason}",
                location=stop.location if is_error else None,
                remedy=REMEDY,
            ) from stop
        finally:
            restore(after)
        if decided:
            raise VerifyError(
                f"the compiled program gives another result than the interpreter: {difference}",
                remedy=REMEDY,
            )

    def interpret(
        self, inputs: Sequence[torch.Tensor], dtype: torch.dtype | None
    ) -> tuple[Datum, ...]:
        return interpret(
            self.program, inputs, dtype=dtype, max_depth=self.max_depth, timeout=SECONDS
        )


def differences(
    found: Sequence[Datum], wanted: Sequence[Datum], *, wide: bool = False
) -> Iterator[str]:
    """Yield a description of each difference between `found` and `wanted`. wide: the dtypes may
    differ."""
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        yield from (f"result {number}{what}" for what in _difference(one, other, wide))


def _difference(found: Datum, wanted: Datum, wide: bool) -> Iterator[str]:
    if isinstance(found, list) or isinstance(wanted, list):
        if not (isinstance(found, list) and isinstance(wanted, list)):
            yield " is a list in one of them"
        elif len(found) != len(wanted):
            yield f" has {len(found)} items instead of {len(wanted)}"
        else:
            for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
                yield from (f"[{place}]{what}" for what in _difference(one, other, wide))
        return
    if found.shape != wanted.shape:
        yield f" has shape {list(found.shape)} instead of {list(wanted.shape)}"
    elif found.dtype != wanted.dtype and not wide:
        yield f" has {found.dtype} instead of {wanted.dtype}"
    elif found.numel():
        same = _close(found, wanted)
        if not bool(same.all()):
            flat = int((~same).flatten().to(torch.uint8).argmax())
            one, other = found.flatten()[flat].item(), wanted.flatten()[flat].item()
            count = int((~same).sum())
            yield f": {count} of {found.numel()} elements, {one!r} instead of {other!r}"


def _close(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Compare element by element, within RELATIVE of the largest finite element; integers must be
    equal."""
    if not found.is_floating_point():
        return found == wanted
    one, other = found.to(torch.float64), wanted.to(torch.float64)
    finite = one.isfinite() & other.isfinite()
    largest = torch.where(finite, other, 0.0).abs().max()
    tolerance = RELATIVE.get(found.dtype, 1e-3) * largest + torch.finfo(found.dtype).tiny
    equal = (one == other) | (one.isnan() & other.isnan())
    return equal | (finite & ((one - other).abs() <= tolerance))
