"""Programs in corners of the language through the whole back end, against the interpreter.

On the emulator each program runs by itself, with any number of units, fused or not, which also
looks for races; on the CPU machine those of a family are compiled as one program.
"""

from __future__ import annotations

import threading

import pytest
import torch

from stretto.errors import CodegenError, RunError
from stretto.interp.interpreter import Datum
from stretto.ir.verifier import verify
from stretto.lowering.lower_program import lower
from stretto.runtime.results import ProgramStopped, Status
from tests.backends import assert_close, built
from tests.e2e.cases import (
    dynamic,
    in_place,
    library,
    lists,
    loops,
    recursion,
    recursive_lists,
    shared_lists,
    straight,
)
from tests.e2e.cases.case import Case, expected, merged, why_stopped
from tests.sampling import sampled
from tests.support import program_of

FAMILIES = (
    straight,
    loops,
    in_place,
    lists,
    shared_lists,
    dynamic,
    recursion,
    recursive_lists,
    library,
)
CASES = [case for family in FAMILIES for case in family.CASES]


STOPS = [
    case
    for case in CASES
    if case.name
    in (
        *("select at a position", "narrow at a position", "embedding", "checked reg"),
        *("gather rec neg", "index put", "cache loop", "pop", "set", "of integers"),
        *("cache passed down", "argument at a computed position", "error"),
    )
]
"""Cases with runs that stop; to ask the interpreter takes seconds, at each collection."""
WAYS = ((1, False), (2, True), (3, True))
"""(units, fuse)."""


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_on_the_emulator(case: Case) -> None:
    program = case.program()
    runs = [(data, expected(program, data)) for data in case.inputs(program)]
    assert any(wanted is None for _, wanted in runs) == (case in STOPS)
    for units, fuse in WAYS:
        emulator = built(program, units, fuse).emulator(seed=units)
        for number, (data, wanted) in enumerate(runs):
            if wanted is None:
                with pytest.raises(RunError, match=why_stopped(case, number)):
                    emulator(data)
            else:
                assert_close(emulator(data), wanted, case.scale)


@pytest.mark.whole
@pytest.mark.parametrize("units", sampled([1, 3], [3]))
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.split(".")[-1])
def test_on_the_cpu(family: object, units: int) -> None:
    cases: tuple[Case, ...] = family.CASES  # type: ignore[attr-defined]
    programs = [case.program(number) for number, case in enumerate(cases)]
    runs = [good_runs(case) for case in cases]
    whole = merged(programs)
    verify(whole)
    executable = built(whole, units).cpu()
    for number in range(max(len(items) for items in runs)):
        chosen = [items[number % len(items)] for items in runs]
        found = iter(executable([tensor for data, _ in chosen for tensor in data]))
        for case, (_, wanted) in zip(cases, chosen, strict=True):
            assert_close([next(found) for _ in wanted], wanted, case.scale)


def good_runs(case: Case) -> list[tuple[list[torch.Tensor], tuple[Datum, ...]]]:
    """The runs that do not stop."""
    program = case.program()
    runs = [(data, expected(program, data)) for data in case.inputs(program)]
    return [(data, wanted) for data, wanted in runs if wanted is not None]


@pytest.mark.parametrize("case", STOPS, ids=repr)
def test_stops_on_the_cpu_and_goes_on_afterwards(case: Case) -> None:
    program = case.program()
    executable = built(program, 2).cpu()
    for number, data in enumerate(case.inputs(program)):
        wanted = expected(program, data)
        if wanted is None:
            with pytest.raises(RunError, match=why_stopped(case, number)):
                executable(data)
        else:
            assert_close(executable(data), wanted, case.scale)


# ---- recursion -------------------------------------------------------------------------------

DEEP = """
    func @main(%x: f64[8], %n: i64[]) -> (f64[8]) {
      %y = call @f(%x, %n) : f64[8]
      return %y
    }
    func @f(%x: f64[8], %n: i64[]) -> (f64[8]) {
      %c = aten.gt.Scalar(%n, 0) : bool[]
      %y = if %c {
        %m = aten.sub.Tensor(%n, 1) : i64[]
        %s = aten.mul.Tensor(%x, 0.75) : f64[8]
        %a = call @f(%s, %m) : f64[8]
        %b = aten.add.Tensor(%a, %x) : f64[8]
        yield %b
      } else {
        yield %x
      } : f64[8]
      return %y
    }
    """


@pytest.mark.parametrize("units", [1, 2])
def test_recursion_is_deep_but_not_endless(units: int) -> None:
    executable = built(program_of(DEEP), units).cpu()
    x = torch.rand(8, dtype=torch.float64)
    assert_close(executable([x, torch.tensor(10_000)]), [4 * x])
    with pytest.raises(ProgramStopped, match="deeper than") as caught:
        executable([x, torch.tensor(10**9)])
    assert caught.value.status is Status.TOO_DEEP
    assert_close(executable([x, torch.tensor(0)]), [x])


def test_a_tensor_of_unknown_size_in_a_recursive_function() -> None:
    text = DEEP.replace(
        "%s = aten.mul.Tensor(%x, 0.75) : f64[8]",
        """%l0 = list.new() : list<f64[8]>
        %l = for %i in (0, %n, 1) carry (%k = %l0) {
          %k2 = list.push(%k, %x) : list<f64[8]>
          yield %k2
        } : list<f64[8]>
        %all = list.stack(%l) : f64[s0, 8]
        %sums = aten.cumsum.default(%all, 0) : f64[s0, 8]
        %s = aten.select.int(%sums, 0, %m) : f64[8]""",
    )
    with pytest.raises(CodegenError, match="`f` is recursive, and makes a tensor whose size"):
        lower(program_of(text))


# ---- threads ---------------------------------------------------------------------------------

SHARED = """
    func @main(%x: f32[8, 16], %n: i64[]) -> (f32[8, 16], list<f32[8, 16]>, f32[s0, 8, 16]) {
      %w = constant "w" : f32[16, 16]
      %l0 = list.new() : list<f32[8, 16]>
      %y, %l = for %i in (0, %n, 1) carry (%a = %x, %k = %l0) {
        %m = aten.mm.default(%a, %w) : f32[8, 16]
        %t = aten.tanh.default(%m) : f32[8, 16]
        %k2 = list.push(%k, %t) : list<f32[8, 16]>
        yield %t, %k2
      } : f32[8, 16], list<f32[8, 16]>
      %s = list.stack(%l) : f32[s0, 8, 16]
      %e = aten.exp.default(%s) : f32[s0, 8, 16]
      return %y, %l, %e
    }
    """


@pytest.mark.whole
@pytest.mark.parametrize("units", [1, 2])
def test_calls_from_several_threads_do_not_disturb_each_other(units: int) -> None:
    program = program_of(SHARED)
    program.constants["w"] *= 0.2  # or else rounding grows from iteration to iteration
    executable = built(program, units).cpu()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        calls: list[tuple[list[torch.Tensor], list[Datum]]] = []
        try:
            for step in range(20):
                steps = torch.tensor(1 + (number * 7 + step * 13) % 150)
                data = [torch.randn(8, 16, generator=generator), steps]
                calls.append((data, list(executable(data))))
            for data, found in calls:  # results of earlier calls are still what they were
                assert_close(found, expected(program, data) or ())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
