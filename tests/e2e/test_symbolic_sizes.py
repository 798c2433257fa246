"""Programs with symbolic sizes: lowered once, run on the emulator for many sizes."""

from __future__ import annotations

import gc
import random
import sys
from dataclasses import replace

import pytest
import torch

from stretto.call.compiler import build
from stretto.device.program import DeviceProgram
from stretto.device.text import parse_program, print_program
from stretto.device.verifier import verify
from stretto.errors import RunError, ScheduleError, VerifyError
from stretto.interp.interpreter import run
from stretto.ir.core import Program
from stretto.ir.sizes import Size, Symbol
from stretto.ir.symbols import rename_symbols
from stretto.ir.verifier import verify as verify_program
from stretto.machines.cpu.templates import TEMPLATES
from stretto.machines.emulator.machine import MACHINES
from stretto.options import Options
from tests.backends import Built, assert_close, built, built_cuda
from tests.support import program_of
from tests.symbolic import EXAMPLES, Example

BY_NAME = {example.name: example for example in EXAMPLES}


def check(example: Example, made: Built) -> None:
    for number, binding in enumerate(example.bindings()):
        inputs = example.inputs(binding)
        found = made.emulator(seed=number)(inputs)
        assert_close(found, example.expected(inputs))


def check_printed(example: Example, units: int) -> None:
    """With the sizes given, and read from the inputs."""
    machine = built(example.program(), units).cpu()
    for binding in example.bindings():
        inputs = example.inputs(binding)
        expected = example.expected(inputs)
        assert_close(machine(inputs), expected)
        sizes = [binding[symbol] for symbol in machine.sizes.symbols]
        assert list(machine.sizes.read(inputs)) == sizes
        assert_close(machine(inputs, sizes), expected)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@pytest.mark.parametrize("units", [1, 3])
def test_one_program_runs_for_every_size(example: Example, units: int) -> None:
    check(example, built(example.program(), units))


@pytest.mark.whole
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_one_printed_program_runs_for_every_size(example: Example) -> None:
    check_printed(example, units=2)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["matmul", "call"])
@pytest.mark.parametrize("units", [1, 3])
def test_it_does_on_any_number_of_units(name: str, units: int) -> None:
    check_printed(BY_NAME[name], units)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_kernels_of_a_gpu_take_every_size(example: Example) -> None:
    check(example, built_cuda(example.program(), 3))


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_one_triton_program_runs_for_every_size(example: Example) -> None:
    """Interpreted; programs with a library call are several launches."""
    machine = built_cuda(example.program(), 3).cuda()
    for binding in example.bindings():
        inputs = example.inputs(binding)
        assert_close(machine(inputs), example.expected(inputs))


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_passes_take_symbolic_sizes(example: Example) -> None:
    stages = build(example.program(), MACHINES[0], Options(threads=2))
    for binding in example.bindings():
        inputs = example.inputs(binding)
        assert stages.executable is not None
        assert_close(stages.executable(inputs), example.expected(inputs))


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_text_is_read_back_and_verified(example: Example) -> None:
    device = built(example.program(), 2, fuse=False).device
    text = print_program(device)
    again = parse_program(text, TEMPLATES)
    assert again == device and print_program(again) == text
    verify(again)


# ---- memory ----------------------------------------------------------------------------------

SUMMED = """
    func @main[1 <= m, 1 <= n](%x: f32[n, 2], %w: f32[2, m]) -> (f32[n], f32[]) {
      %a = aten.mm.default(%x, %w) : f32[n, m]
      %b = aten.sum.dim_IntList(%a, (1,)) : f32[n]
      %c = aten.amax.default(%a, (0, 1)) : f32[]
      return %b, %c
    }
    """


@pytest.mark.whole
def test_memory_grows_for_the_largest_call_and_stays() -> None:
    machine = built(program_of(SUMMED), 2).cpu()
    seen: list[int] = []
    for rows in (3, 300, 2, 4000, 5):
        x, w = torch.randn(rows, 2), torch.randn(2, 33)
        assert_close(machine([x, w]), [(x @ w).sum(1), (x @ w).amax()])
        seen.append(machine.native.arena_bytes)
    assert seen == sorted(seen) and seen[1] == seen[2] and seen[3] == seen[4]
    assert 4000 * 33 * 4 <= seen[-1] <= 3 * 4000 * 33 * 4


@pytest.mark.whole
def test_many_calls_of_many_sizes_leave_nothing_behind() -> None:
    machine = built(program_of(SUMMED), 2).cpu()
    draw = random.Random(0)

    def calls(count: int) -> int:
        for _ in range(count):
            rows, columns = draw.randint(1, 60), draw.randint(1, 60)
            machine([torch.ones(rows, 2), torch.ones(2, columns)])
        gc.collect()
        return sys.getallocatedblocks()

    before = calls(50)
    assert calls(300) - before < 100
    assert machine.native.arena_bytes <= 2 * 60 * 60 * 4 + 4096


def test_memory_that_cannot_be_had_is_refused_before_it_is_tried() -> None:
    machine = built(program_of(SUMMED), 2).cpu()
    small = [torch.randn(3, 2), torch.randn(2, 3)]
    machine(small)
    before, launches = machine.native.arena_bytes, machine.native.launches
    for count, rows, reason in (
        (400_000, 400_000, r"with m = 400000, n = 400000, the intermediate values of the program "
        r"need 596\.0 GiB; a call may have"),
        (1 << 62, 3, "the intermediate values of the program need more than"),
        (3, 1 << 50, r"the results of the program need 4194304\.0 GiB; a call may have"),
    ):  # fmt: skip
        with pytest.raises(RunError, match=reason):
            machine(small, [count, rows])
    assert machine.native.arena_bytes == before and machine.native.launches <= launches + 2
    assert_close(machine(small), [(small[0] @ small[1]).sum(1), (small[0] @ small[1]).amax()])


def static(program: Program, binding: dict[Symbol, int]) -> Program:
    """The program for these sizes only. It must not have calls, nor read rows that may not be."""
    rename_symbols(program.main.body, {Size.of(symbol): n for symbol, n in binding.items()})
    verify_program(program)
    return program


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"call", "range"}))
def test_it_is_the_program_for_these_sizes(name: str) -> None:
    example = BY_NAME[name]
    made = built(example.program(), 2)
    for binding in example.bindings()[::3]:
        inputs = example.inputs(binding)
        fixed = static(example.program(), binding)
        assert_close(run(fixed, inputs), run(example.program(), inputs))
        assert_close(built(fixed, 2).emulator()(inputs), made.emulator()(inputs))


def test_sizes_that_do_not_fit_are_refused() -> None:
    machine = built(BY_NAME["elementwise"].program()).emulator()
    native = built(BY_NAME["elementwise"].program(), 2).cpu()
    for shapes, reason in (
        (((65, 4), (4,), (65, 1)), "size 65, which is not in the range 0 <= n <= 64"),
        (((3, 4), (4,), (2, 1)), "the size n is 3 in one dim and 2 in another"),
        (((3, 5), (4,), (3, 1)), r"in0 should have dims \[3, 4\], not \[3, 5\]"),
    ):
        for one in (machine, native):
            with pytest.raises(RunError, match=reason):
                one([torch.ones(shape) for shape in shapes])


LIST_TO_FUNCTION = """
    func @main(%x: f32[3], %t: i64[]) -> (f32[s, 3]) {
      %one = literal 1 : i64[]
      %l0 = list.new(%x) : list<f32[3]>
      %l = for %i in (0, %t, 1) carry (%k = %l0) {
        %l2 = list.push(%k, %x) : list<f32[3]>
        yield %l2
      } : list<f32[3]>
      %s = list.stack(%l) : f32[s, 3]
      %r = call @halve(%s, %t) : f32[s, 3]
      return %r
    }
    func @halve(%x: f32[m, 3], %t: i64[]) -> (f32[m, 3]) {
      %c = aten.gt.Scalar(%t, 0) : bool[]
      %r = if %c {
        %y = aten.mul.Scalar(%x, 0.5) : f32[m, 3]
        %s = aten.sub.Scalar(%t, 1) : i64[]
        %z = call @halve(%y, %s) : f32[m, 3]
        yield %z
      } else {
        yield %x
      } : f32[m, 3]
      return %r
    }
    """


def test_the_length_of_a_list_is_a_size_of_the_function_that_takes_it() -> None:
    program = program_of(LIST_TO_FUNCTION)
    made = built(program, 2)
    native = made.cpu()
    for trips in (0, 1, 4):
        inputs = [torch.randn(3), torch.tensor(trips)]
        assert_close(made.emulator(seed=trips)(inputs), run(program, inputs))
        assert_close(native(inputs), run(program, inputs))


GROWING = """
    func @main[0 <= n](%x: f32[n, 3], %t: i64[]) -> (f32[3]) {
      %r = call @grow(%x, %t) : f32[3]
      return %r
    }
    func @grow[0 <= m](%x: f32[m, 3], %t: i64[]) -> (f32[3]) {
      %c = aten.gt.Scalar(%t, 0) : bool[]
      %r = if %c {
        %y = aten.tanh.default(%x) : f32[m, 3]
        %d = aten.cat.default((%y, %x, %y)) : f32[3*m, 3]
        %s = aten.sub.Scalar(%t, 1) : i64[]
        %z = call @grow(%d, %s) : f32[3]
        %e = aten.cumsum.default(%y, 0) : f32[m, 3]
        %f = aten.sum.dim_IntList(%e, (0,)) : f32[3]
        %a = aten.add.Tensor(%z, %f) : f32[3]
        yield %a
      } else {
        %b = aten.sum.dim_IntList(%x, (0,)) : f32[3]
        yield %b
      } : f32[3]
      return %r
    }
    """


def test_frames_of_a_recursion_have_sizes_of_their_own() -> None:
    """Every activation is three times as large as its caller's, which goes on after the call."""
    program = program_of(GROWING)
    one, gpu = built(program, 2), built_cuda(program, 3)
    machines = one.emulator(), one.cpu(), gpu.emulator(), gpu.cuda()
    for rows, depth in ((0, 2), (1, 0), (1, 3), (5, 2), (2, 4)):
        inputs = [torch.randn(rows, 3), torch.tensor(depth)]
        expected = run(program, inputs)
        for machine in machines:
            assert_close(machine(inputs), expected)


# ---- what the verifier refuses ---------------------------------------------------------------


def edited(name: str, old: str, new: str, units: int = 1) -> DeviceProgram:
    text = print_program(built(BY_NAME[name].program(), units, fuse=False).device)
    assert old in text, text
    return parse_program(text.replace(old, new), TEMPLATES)


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("cat", "[#n + i0, i1] =", "[#n + i0 + 1, i1] =", "not proved to access main.b"),
        ("cat", "[#n + i0, i1] =", "[#m + i0, i1] =", "not proved to access main.b"),
        ("cat", "buffer main.b.1 f32[(#m + #n), 3]", "buffer main.b.1 f32[#n, 3]", "not proved"),
        ("slices", "in0[i0, i1 + 1]", "in0[i0, i1 + 2]", "not proved to access in0 in range"),
        ("slices", "size #n from 2", "size #n from 1", "may be negative"),
        ("matmul", "slot 0 size 4*(#m * #n)", "slot 0 size 4*#n", "may have less than"),
        ("matmul", "slots (-64*(-4*(#m * #n) // 64))", "slots (64*#n)", "beyond its slot"),
        ("loop", "slot 0 + -64*(-16*#n // 64) size", "slot 0 size", "main.h.2 overlap"),
        ("loop", "slot 0 + -64*(-16*#n // 64) size", "slot 0 + 16*#n size", "not aligned"),
        ("loop", "slot 0 + -64*(-16*#n // 64) size", "slot 1 size", "which share memory"),
        ("loop", "slot 0 + -64*(-16*#n // 64) size", "slot 7 size", "lies in slot 7 of 2"),
        ("elementwise", "(#n, 4) of", "(#q, 4) of", "no size q is declared"),
        ("call", "$size.halve.m = <2*#n>", "$size.halve.m = <3*#n>", "beyond the end of"),
        ("call", "$size.halve.m = <2*#n>", "$size.halve.m = <#n + -1>", "may be out of 0 <="),
        ("call", "$size.halve.m = <#halve.m>", "$size.halve.x = <#halve.m>", "does not give"),
    ],
)
def test_mutants_are_refused(name: str, old: str, new: str, reason: str) -> None:
    with pytest.raises((VerifyError, ScheduleError)) as error:
        verify(edited(name, old, new))
    assert reason in str(error.value)


def test_a_missing_wait_is_refused() -> None:
    device = edited("transposed", "signal", "signal", units=3)
    text = print_program(device)
    waits = [line for line in text.splitlines() if line.strip().startswith("wait")]
    assert waits
    for wait in set(waits):
        mutant = parse_program(text.replace(wait + "\n", "", 1), TEMPLATES)
        with pytest.raises(VerifyError):
            verify(mutant)


def test_a_part_that_is_not_written_is_refused() -> None:
    """All runs of a kernel write the whole buffer; one of two does not."""
    device = built(BY_NAME["reshape"].program(), 2, fuse=False).device
    kernel = device.kernels[0]
    verify(device)
    operator = kernel.stages[0].operator
    half = replace(operator, dims=(2, *operator.dims[1:]))
    stages = (replace(kernel.stages[0], operator=half), *kernel.stages[1:])
    with pytest.raises(VerifyError):
        verify(replace(device, kernels=(replace(kernel, stages=stages), *device.kernels[1:])))
