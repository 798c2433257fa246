"""Branches and loops of the program: arms and bodies are run on the heap, and their changes joined.

An arm is run, its changes are read off the heap's trail and undone. The values of a place at the
ends of the two arms are joined; those of a loop at the start and the end of its body are made one
form, by running the body again until the forms stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from stretto.frontends.python.interpreter.frames import (
    End,
    LeftByConsumer,
    PythonFrame,
    Raised,
    Thrown,
)
from stretto.frontends.python.interpreter.heap import MISSING
from stretto.frontends.python.interpreter.joins import ArmJoin, LiveNames, TracedArm
from stretto.frontends.python.interpreter.settled import is_left_out, note_divided, settled
from stretto.frontends.python.interpreter.size_conditions import (
    both_arms_context,
    refuse_size_dependent_kind,
    size_arm,
    staged,
)
from stretto.frontends.python.tracing.contents import evaluated
from stretto.frontends.python.tracing.signals import (
    Abort,
    CaptureSignal,
    NeedsPeel,
    NeedsUnroll,
    Poison,
    UnknownResult,
    fail,
)
from stretto.frontends.python.tracing.tensor import TracedTensor
from stretto.frontends.python.tracing.tracer import TracedRegion, tracer
from stretto.frontends.python.values.data import DataUnion
from stretto.frontends.python.values.data_dependent_sizes import plain
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.raises import (
    RaisingArm,
    check,
    is_of_user,
    leave,
    raises,
    shows_values,
    stop_at,
)
from stretto.frontends.python.values.scalars import (
    assuming,
    derive,
    flag_of,
    known,
    known_value,
    logical,
    negation,
    possible,
)
from stretto.ir.core import Value
from stretto.ir.data import AssignOp
from stretto.ir.ops import ConstantOp, LiteralOp, TensorOp
from stretto.ops.properties import properties, stay_reason

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter


class NotHarmless(CaptureSignal):
    """An operand that is computed on trial, to do without a branch, has one itself."""


class Regions:
    def __init__(self, interpreter: PythonInterpreter) -> None:
        self.interpreter = interpreter
        self.heap = interpreter.heap
        self.depth = 0
        self.trials = 0
        """Number of operands of `and` and `or` that are being computed on trial."""
        self.is_test_of_loop = False
        """True if a condition is the test of a loop, which must not end because a tensor is known
        in the first iterations."""
        self.rounds: list[object] = []
        """One object for each iteration of a loop of the Program that is being traced."""
        self.runs = Counter[int]()
        """How often each loop of the source has been a loop of the Program before this place."""
        self.learned: dict[tuple[int, int], dict[bool, Any]] = {}
        """The memory of each run of a loop (`run_key`), by whether a value may be one of
        several."""
        self.jumps: dict[int, set[str]] = {}
        """The jumps by which each loop of the source may end."""
        self.loops: list[tuple[PythonFrame | None, Any]] = []
        """Loops in the source that are being run, each with its frame."""

    @contextmanager
    def loop(self, frame: PythonFrame | None, node: Any = None) -> Generator[None]:
        """Note the loop of the source that is being run; None: one of a built-in function."""
        count = len(self.loops)
        if frame is None or frame.parent is not None:
            self.loops.append((None, None))
        if frame is not None:
            self.loops.append((frame, node))
        try:
            yield
        finally:
            del self.loops[count:]

    def loop_key(self) -> tuple[int, int] | None:
        """Return what identifies the loop of the source that is being run; None if it has none."""
        frame, node = self.loops[-1] if self.loops else (None, None)
        return None if frame is None else (id(node), id(frame.vars))

    def run_key(self) -> tuple[int, int]:
        """Return what identifies the run of the loop that begins, whenever the loops around it are
        traced again."""
        node = id(self.loops[-1][1] if self.loops else None)
        return node, self.runs[node]

    def has_learned(self) -> bool:
        """True if the loop that begins has been one of the Program before."""
        return bool(self.learned.get(self.run_key()))

    # -- values that are bound in some runs -----------------------------------------------------

    def is_bound(self, value: Any) -> Any:
        if value is MISSING:
            return False
        if not isinstance(value, Either) or isinstance(value, DataUnion):
            return True
        pairs = possible(value)
        missing = [flag for flag, option in pairs if option is MISSING]
        if len(missing) in (0, len(pairs)):
            return not missing
        return self.negated(self.any_of(missing))

    def bound(self, value: Any, name: str) -> Any:
        """Return a value that is surely there; the program checks it, if only the run knows."""
        kind = type(value)
        if kind is Poison:
            value.fail()
        if kind is not Either:
            return value
        found = self.is_bound(value)
        if found is True or found is False:
            return value
        check(
            found,
            "UnboundLocalError",
            f"cannot access local variable '{name}' where it is not associated with a value",
        )
        return self.present(value)

    def present(self, value: Any) -> Any:
        """Return a value that is there whenever it is used."""
        if not isinstance(value, Either) or isinstance(value, DataUnion):
            return value
        if all(option is not MISSING for option in value.stretto_options):
            return value
        pairs = [pair for pair in possible(value) if pair[1] is not MISSING]
        return pairs[0][1] if len(pairs) == 1 else Either(*zip(*pairs, strict=True))

    def narrowed(self, value: Any) -> Any:
        """Return the only option that a value may have here, or the value itself."""
        if not isinstance(value, Either):
            return value
        pairs = possible(value)
        return pairs[0][1] if len(pairs) == 1 else value

    def any_of(self, flags: Iterable[Any]) -> Any:
        return reduce(self.either_flag, flags)

    def either_flag(self, one: Any, other: Any) -> Any:
        if isinstance(one, bool):
            return one or other
        if isinstance(other, bool):
            return True if other else one
        return tracer().number(logical("or", flag_of(one), flag_of(other)))

    def negated(self, flag: Any) -> Any:
        return not flag if isinstance(flag, bool) else negation(flag_of(flag))

    def each_option(
        self, value: Either, operation: Callable[[Any], Any], *, joins_ends: bool = False
    ) -> Any:
        """Apply an operation to a value that is one of several: a branch on its flags."""
        (flag, option), *rest = possible(value)
        if option is MISSING or isinstance(option, Poison):
            self.refuse_option(option)
        if not rest:
            return operation(option)
        refuse_size_dependent_kind(flag)
        other = Either(*zip(*rest, strict=True))
        return self.branch(
            flag,
            lambda: operation(option),
            lambda: self.each_option(other, operation, joins_ends=joins_ends),
            joins_ends=joins_ends,
        )

    def flag_of_options(self, value: Either, holds: Callable[[Any], bool]) -> Any:
        """Return True, or a traced bool, if the value is an option for which `holds` is true."""
        pairs = possible(value)
        chosen = [flag for flag, option in pairs if holds(option)]
        return bool(chosen) if len(chosen) in (0, len(pairs)) else self.any_of(chosen)

    def of_each(self, value: Any, operation: Callable[[Any], Any]) -> Any:
        """Return the result of an operation on a value, or on each of its options."""
        if isinstance(value, Either):
            return self.each_option(value, operation)
        return operation(value)

    def refuse_option(self, option: Any) -> None:
        if isinstance(option, Poison):
            option.fail()
        fail(
            "an attribute or item is used that is set in one arm of a traced branch only",
            "set it in both arms",
        )

    def choose(self, flag: Any, first: Any, second: Any) -> Any:
        if isinstance(flag, bool):
            return first if flag else second
        return self.branch(flag, lambda: first, lambda: second)

    def forced(self, end: Any) -> Any:
        """Return the end of a block that has ended, in the arm that knows so."""

        if len(end.flags) == 1:
            (jump,) = end.flags
            return End(jump, None if end.value is MISSING else end.value)
        return end

    # -- conditions -----------------------------------------------------------------------------

    def condition(self, value: Any) -> Any:
        """Return the truth of a number, a tensor or a condition on sizes: a bool, or a traced
        flag."""
        value = staged(plain(value))
        if not isinstance(value, torch.Tensor):
            return bool(value)
        traced = value if isinstance(value, TracedTensor) else tracer().promote(value)
        if traced.number is not None:
            found = known_value(traced)
            if found is not None:
                return bool(found)
        if traced.numel() == 1 and not self.is_test_of_loop:
            content = evaluated(tracer().read(traced), _MOST_OPS_EVALUATED)
            if content is not None:
                return bool(content)
        flag = flag_of(traced)
        known = tracer().facts.get(flag)
        return tracer().number(flag) if known is None else known

    def is_always(self, flag: Any) -> bool:
        """True if a traced flag holds in every run."""
        found = evaluated(tracer().read(flag), _MOST_OPS_EVALUATED)
        return found is not None and bool(found)

    def is_never(self, flag: Any) -> bool:
        """True if a traced flag does not hold in any run."""
        if isinstance(flag, bool):
            return not flag
        found = evaluated(tracer().read(flag), _MOST_OPS_EVALUATED)
        return found is not None and not bool(found)

    def logical(self, is_and: bool, first: Any, rest: Callable[[], Any]) -> Any:
        """Return the truth of `first and rest()`, or of `first or rest()`. first: a bool or a
        traced flag. The second operand is computed without a branch if that is harmless."""
        if isinstance(first, bool):
            return rest() if first is is_and else first
        spliced = self.spliced(rest)
        if spliced is None:
            arms = (rest, lambda: False) if is_and else (lambda: True, rest)
            return self.branch(first, *arms)
        if isinstance(spliced, bool):
            return first if spliced is is_and else spliced
        flags = flag_of(first), flag_of(spliced)
        joint = logical("and" if is_and else "or", *flags)
        derive(joint, is_and, flags)
        return tracer().number(joint)

    def spliced(self, operand: Callable[[], Any]) -> Any:
        """Return the truth of an operand, computed without a branch, if it is cheap and can
        neither fail nor change anything; else None."""
        state, mark = tracer(), self.heap.mark()
        frames = list(self.interpreter.frames)
        self.depth += 1
        self.trials += 1
        result: Any = None
        try:
            with state.region() as region:
                try:
                    result = operand()
                except Exception as error:  # the branch raises it, if the operand is reached
                    if not raises(error):
                        raise
                is_pure = not region.before and not self.heap.changes(mark)
                if result is None or not is_pure or not _is_harmless(region):
                    return None
        except NotHarmless:
            return None
        finally:
            self.depth -= 1
            self.trials -= 1
            self.interpreter.frames[:] = frames
            self.heap.undo(mark)
        if not isinstance(result, bool):
            state.adopt(region)
        return result

    # -- branches -------------------------------------------------------------------------------

    def branch(
        self,
        condition: Any,
        then: Callable[[], Any],
        orelse: Callable[[], Any],
        *,
        joins_ends: bool = False,
        live: LiveNames | None = None,
    ) -> Any:
        """Run both arms, and return their joint result. joins_ends: it says how a block ends.
        live: the variables that may be read afterwards."""
        taken = known(condition)
        if taken is not None:
            return then() if taken else orelse()
        flag = flag_of(condition)
        taken = settled(flag)
        if taken is not None:
            return then() if taken else orelse()
        if self.trials:
            raise NotHarmless
        with both_arms_context(flag) as is_of_sizes:
            arms = list[TracedArm | RaisingArm | UnknownResult]()
            for run, other, when in ((then, orelse, True), (orelse, then, False)):
                try:
                    arms.append(self.arm(run, flag, when, joins_ends=joins_ends))
                except (Abort, NeedsPeel, NeedsUnroll) as stop:
                    if is_of_sizes or not is_left_out(flag, when, stop.abort.error):
                        raise
                    with assuming(flag, not when):
                        return _only(other, stop)
            return self.joined(flag, arms, then, orelse, joins_ends=joins_ends, live=live)

    def joined(
        self,
        flag: Value,
        arms: list[TracedArm | RaisingArm | UnknownResult],
        then: Callable[[], Any],
        orelse: Callable[[], Any],
        *,
        joins_ends: bool,
        live: LiveNames | None,
    ) -> Any:
        """Join two arms, or continue with the only one that goes on."""
        for arm, when in zip(arms, (True, False), strict=True):
            if isinstance(arm, RaisingArm):
                leave(flag, when, arm)
        match arms:
            case TracedArm() as first, TracedArm() as second:
                join = ArmJoin(self, first, second, flag, live)
                result = join.run(joins_ends=joins_ends)
                if join.is_divided:
                    note_divided()
                return result
            case (TracedArm() as only, RaisingArm()) | (RaisingArm(), TracedArm() as only):
                return self.go_on(only)
            case RaisingArm() as first, RaisingArm():
                raise first.again()
            case (UnknownResult() as unknown, _) if not isinstance(arms[1], TracedArm):
                raise unknown
            case RaisingArm(), UnknownResult() as unknown:
                raise unknown
            case _:
                return orelse() if isinstance(arms[0], UnknownResult) else then()

    def arm(
        self, run: Callable[[], Any], flag: Value, taken: bool, *, joins_ends: bool = False
    ) -> TracedArm | RaisingArm | UnknownResult:
        mark, born = self.heap.mark(), self.heap.count
        frames, place = list(self.interpreter.frames), self.place()
        generators, count = self.interpreter.generators, len(self.interpreter.generators.kept)
        self.depth += 1
        try:
            with (
                tracer().region() as region,
                assuming(flag, taken),
                size_arm(flag, taken) as decides_by_sizes,
            ):
                try:
                    result = run()
                except (Exception, LeftByConsumer) as raised:
                    error: Any = raised
                    is_of_code = isinstance(raised, Thrown | LeftByConsumer)
                    if isinstance(raised, Thrown | LeftByConsumer):
                        error = raised.error
                    if not raises(error):
                        raise
                    if decides_by_sizes and not is_of_code and not is_of_user(error):
                        # torch's errors contain the sizes of one call; they hold for no other
                        tracer().tries.refuse(type(error))
                        raise
                    if not (joins_ends and self.jumps_to_handler(error)):
                        return stop_at(region, error)
                    result = End(Raised.of(error, self.heap.table_of(error)))
                states = {storage: storage.state for storage in region.before}
                self.heap.check_order(mark, born)
                generators.check_dropped(count)
                return TracedArm(region, self.heap.changes(mark), states, result, born)
        except UnknownResult as unknown:
            return unknown
        finally:
            self.depth -= 1
            self.interpreter.frames[:] = frames
            self.return_to(place)
            self.heap.undo(mark)

    def place(self) -> Any:
        """Return the statement or expression that is executed."""
        frames = self.interpreter.frames
        return frames[-1].at[0] if frames else None

    def return_to(self, place: Any) -> None:
        if self.interpreter.frames:
            self.interpreter.frames[-1].at[0] = place

    def jumps_to_handler(self, error: Exception) -> bool:
        """True if an exception that leaves an arm is a jump: a handler of the function catches
        it, and it shows no values of the run."""
        content = ValueError(*self.heap.table_of(error).values())
        shown = shows_values(error) or shows_values(content)
        return not shown and self.interpreter.frames[-1].catches(error)

    @contextmanager
    def inside_of_statement(self) -> Generator[None]:
        """Let no exception be a jump: what is run is a part of a statement, which cannot end."""
        kept = [(frame, frame.tries) for frame in self.interpreter.frames[-1:]]
        for frame, _ in kept:
            frame.tries = []
        try:
            yield
        finally:
            for frame, tries in kept:
                frame.tries = tries

    def go_on(self, arm: TracedArm) -> Any:
        """Continue after the only arm that reaches its end, as if there were no branch."""
        state = tracer()
        state.adopt(arm.region)
        for change in arm.changes.values():
            self.heap.set(change.table, change.key, change.new)
        for storage, after in arm.states.items():
            if storage.state != after:
                state.set_state(storage, after)
        return arm.result

    # -- loops ----------------------------------------------------------------------------------

    def attempt(self, run: Callable[[], Any]) -> Any:
        """Run something that may turn out to be impossible: then everything is as before."""
        mark, frames, depth = self.heap.mark(), list(self.interpreter.frames), self.depth
        runs = self.runs.copy()
        with tracer().transaction() as rollback:
            try:
                return run()
            except BaseException:
                rollback()
                self.heap.undo(mark)
                self.interpreter.frames[:], self.depth = frames, depth
                self.runs = runs
                raise


def _only(arm: Callable[[], Any], stop: CaptureSignal) -> Any:
    """Run the only arm that can be captured. If it raises, report why the other one cannot be."""
    try:
        return arm()
    except Exception as error:
        if not raises(error):
            raise
        raise stop from None


_MOST_OPS_EVALUATED = 64
_MOST_OPS = 8
"""The largest number of operators of a condition that is computed even where eager PyTorch would
skip it."""


def _is_harmless(region: TracedRegion) -> bool:
    """True if the ops may run even where the program would skip them: none can stop the run, none
    is expensive."""
    ops = region.scope.block.ops
    return len(ops) <= _MOST_OPS and all(
        isinstance(op, LiteralOp | ConstantOp)
        or (isinstance(op, AssignOp) and tracer().data.is_harmless(op))
        or (isinstance(op, TensorOp) and properties(op.target).is_cheap and stay_reason(op) is None)
        for op in ops
    )
