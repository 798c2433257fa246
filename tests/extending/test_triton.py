"""Programs with kernels of users in Triton: emulated against eager and the CPU, and compiled."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto
from checks.mutation import mutate
from stretto import Options
from stretto.call.compiler import build
from stretto.device.expr import Apply
from stretto.device.operator import Operator
from stretto.device.program import DeviceProgram
from stretto.device.text import parse_program, print_program
from stretto.device.verifier import verify
from stretto.device.verifier.form import check_user_stage
from stretto.errors import VerifyError
from stretto.frontends.python import capture
from stretto.machines.cuda.device import emulated_cuda_executable
from stretto.machines.cuda.machine import CUDA, EmulatedCudaMachine, gpu_program
from stretto.machines.cuda.printer.triton_module import print_plan
from stretto.machines.cuda.templates.user import CudaUserKernel, block_sizes
from stretto.machines.machine import Stages
from stretto.machines.registry import registered
from stretto.schedule.plan import make_plan
from tests.extending import operators
from tests.extending.operators import fast_gelu, rotary, smooth
from tests.extending.test_programs import (
    CASES,
    alone,
    attention,
    between,
    library_calls,
    sizes,
    table,
)
from tests.sampling import sampled

pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("greenlet", reason="greenlet is not installed")

from tests.extending import triton_functions, triton_names

MACHINE = EmulatedCudaMachine("cuda-emulated")


@pytest.fixture(autouse=True)
def _kernels() -> Generator[None]:
    triton_functions.register_triton()
    spread = replace(MACHINE, name="spread-cuda", costs=MACHINE.costs.spread())
    with registered(spread):
        yield
    operators.register()


def user_stages(stages: Stages) -> list[CudaUserKernel]:
    assert stages.device is not None
    templates = [stage.template for kernel in stages.device.kernels for stage in kernel.stages]
    return [template for template in templates if isinstance(template, CudaUserKernel)]


@pytest.mark.parametrize(
    ("name", "units"),
    sampled([(n, u) for n in CASES for u in (1, 2, 3)], [(n, 3) for n in CASES]),
)
@torch.no_grad()
def test_programs_emulated(name: str, units: int) -> None:
    """Nested control flow, views, empty tensors, numbers, lists, changes in place, recursion."""
    program, calls = CASES[name]
    compiled = stretto.compile(program, backend="spread-cuda", options=Options(units=units))
    for arguments in calls:
        torch.testing.assert_close(compiled(*arguments), program(*arguments), rtol=1e-4, atol=1e-5)
    for signature in compiled.signatures:
        assert user_stages(signature.stages) or name == "alone"
        assert name == "alone" or not library_calls(compiled)


@pytest.mark.parametrize("units", [1, 3])
@torch.no_grad()
def test_symbolic_sizes(units: int) -> None:
    """One program for all sizes, of which no tile divides most."""
    options = Options(units=units)
    compiled = stretto.compile(sizes, backend="spread-cuda", dynamic=True, options=options)
    w = torch.randn(8, 5)
    for batch, rows in ((3, 10), (4, 37), (5, 2), (70, 3)):
        given = (torch.randn(batch, rows, 8), *table(rows, 4), w)
        for found, wanted in zip(compiled(*given), sizes(*given), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(compiled.signatures) == 1
    assert not library_calls(compiled)


@pytest.mark.whole
@torch.no_grad()
def test_one_declaration_for_both_machines() -> None:
    """What the C++ and the Triton of one kernel compute, beside float64."""
    stretto.kernel(
        fast_gelu,
        "x[..., i] -> [..., i]",
        cpp=operators.FAST_GELU,
        triton=triton_functions.fast_gelu_tile,
        operations=12,
    )
    stretto.kernel(
        rotary,
        "x[..., s, :], cos[s, :], sin[s, :] -> [..., s, :]",
        cpp=operators.ROTARY,
        triton=triton_functions.rotary_tile,
        operations=4,
    )
    cases: list[tuple[Any, tuple[Tensor, ...]]] = [
        (between, (torch.randn(33, 19), torch.randn(19, 70))),
        (attention, (torch.randn(2, 11, 24), *table(11, 6))),
    ]
    for program, given in cases:
        wanted = program(*(tensor.double() for tensor in given))
        for backend in ("cpu", "cuda-emulated"):
            compiled = stretto.compile(program, backend=backend)
            torch.testing.assert_close(compiled(*given).double(), wanted, rtol=2e-5, atol=2e-5)
            assert not library_calls(compiled)


@torch.no_grad()
def test_fused_and_of_halves() -> None:
    """A rotary embedding of halves, in one kernel with what stands before and behind it."""
    stretto.kernel(
        rotary,
        "x[..., s, :], cos[s, :], sin[s, :] -> [..., s, :]",
        triton=triton_functions.rotary_tile,
        dtypes=(torch.float16, torch.bfloat16),
    )

    def program(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotary(x * 2, cos, sin) + x

    for dtype in (torch.float16, torch.bfloat16):
        given = [tensor.to(dtype) for tensor in (torch.randn(3, 11, 16), *table(11, 8))]
        compiled = stretto.compile(program, backend="cuda-emulated", options=Options(units=2))
        wanted = program(*(tensor.double() for tensor in given))
        torch.testing.assert_close(compiled(*given).double(), wanted, rtol=4e-2, atol=4e-2)
        stages = compiled.signatures[0].stages
        assert stages.device is not None and len(stages.device.kernels) == 1
        assert len(user_stages(stages)) == 1


def beside_a_library_call(x: Tensor, w: Tensor) -> Tensor:
    """Several launches, each with a kernel of the user."""
    for _ in range(3):
        x = fast_gelu(x) @ w
        if x.sum() > 0:
            x = torch.linalg.solve(w + 9 * torch.eye(x.size(1)), fast_gelu(x).t()).t()
        x = smooth(torch.cat((x, x[:, :2]), 1), 0.25)
    return x


@torch.no_grad()
def test_several_launches() -> None:
    given = torch.randn(6, 7), torch.randn(7, 7) / 3
    compiled = stretto.compile(beside_a_library_call, backend="spread-cuda")
    torch.testing.assert_close(
        compiled(*given), beside_a_library_call(*given), rtol=1e-4, atol=1e-5
    )
    stages = compiled.signatures[0].stages
    assert len(gpu_program(stages).sources) > 1 and user_stages(stages)


def nested(x: Tensor, w: Tensor, n: Tensor) -> Tensor:
    for step in range(int(n)):
        if x.sum() > 0:
            for _ in range(3):
                x = fast_gelu(x @ w) / (step + 1)
        else:
            x = smooth(x.repeat(1, 2), 0.1)[:, : x.size(1)]
    return x


COMPILED: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "between": (between, (torch.randn(33, 19), torch.randn(19, 70))),
    "attention": (attention, (torch.randn(2, 11, 24), *table(11, 6))),
    "nested": (nested, (torch.randn(8, 16), torch.randn(16, 16) / 5, torch.tensor(3))),
    "recursion": (CASES["recursion"][0], CASES["recursion"][1][1]),
}


@torch.no_grad()
def compiled_for(name: str, target: str, folder: Path) -> Stages:
    program, given = COMPILED[name]
    options = Options(cache_dir=folder)
    captured = capture(program, given, {}, options)
    return build(captured.program, CUDA.for_target(target, 132), options)


@pytest.mark.whole
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str, target: str, tmp_path: Path) -> None:
    stages = compiled_for(name, target, tmp_path)
    assert user_stages(stages)
    (kernel,) = gpu_program(stages).compiled
    assert kernel.binary.startswith(b"\x7fELF")
    assert kernel.resources.spill_bytes == 0 and kernel.resources.units_per_sm >= 1


def test_compiled_for_amd(tmp_path: Path) -> None:
    assert gpu_program(compiled_for("nested", "gfx942", tmp_path)).compiled


@torch.no_grad()
def test_nested_emulated() -> None:
    program, (x, w, _) = COMPILED["nested"]
    compiled = stretto.compile(program, backend="spread-cuda", options=Options(units=3))
    for n in (0, 1, 4):
        given = x, w, torch.tensor(n)
        torch.testing.assert_close(compiled(*given), program(*given), rtol=1e-4, atol=1e-5)


def test_blocks() -> None:
    kernel = stretto.kernel(
        "stretto_test::pairs",
        "x[i, :], y[j, :] -> [i, j]",
        triton=triton_functions.pairs_tile,
        multiples={"j": 16},
    )
    assert block_sizes(kernel, (5, 3), 2048) == (8, 16)
    assert block_sizes(kernel, (500, 300), 2048) == (32, 64)
    assert block_sizes(kernel, (None, 300), 64) == (4, 16)
    assert block_sizes(kernel, (1, 1), 4) == (1, 16)


@pytest.mark.parametrize("units", [1, 3])
@torch.no_grad()
def test_products_of_blocks(units: int) -> None:
    """Two indices, and a block that tensor cores want."""
    pairs = torch.ops.stretto_test.pairs
    kernel = stretto.kernel(
        "stretto_test::pairs",
        "x[i, :], y[j, :] -> [i, j]",
        triton=triton_functions.pairs_tile,
        multiples={"i": 16, "j": 16},
    )
    x, y = torch.randn(37, 21), torch.randn(50, 21)
    stretto.kernel.check(kernel, [x[:9], y[:17]])
    compiled = stretto.compile(pairs, backend="spread-cuda", options=Options(units=units))
    torch.testing.assert_close(compiled(x, y), x @ y.t(), rtol=1e-4, atol=1e-4)
    assert not library_calls(compiled)


@torch.no_grad()
def test_names(tmp_path: Path) -> None:
    """Constants, helpers of other modules and of the same name, closures, tuples, static loops."""
    x = torch.randn(37)
    for shift in (0.5, 0.25):
        made = triton_names.made(shift)
        stretto.kernel(fast_gelu, "x[..., i] -> [..., i]", triton=made)
        v = x + shift + 38 / 37
        compiled = stretto.compile(alone, backend="cuda-emulated", options=Options(units=2))
        torch.testing.assert_close(compiled(x), (v * v.sigmoid()).exp())
    options = Options(cache_dir=tmp_path)
    program = capture(alone, (x,), {}, options).program
    for target in ("sm_80", "sm_90"):
        stages = build(program, CUDA.for_target(target, 132), options)
        assert gpu_program(stages).compiled[0].binary


# ---- what is verified ----------------------------------------------------------------------------
MUTATED: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "between": (between, (torch.randn(9, 7), torch.randn(7, 20))),
    "attention": (attention, (torch.randn(2, 5, 8), *table(5, 2))),
    "in_place": (CASES["in_place"][0], (torch.randn(5, 8),)),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", MUTATED)
@torch.no_grad()
def test_mutants(name: str) -> None:
    """A changed schedule is rejected, or computes the same."""
    program, given = MUTATED[name]
    options = Options(units=3)
    compiled = stretto.compile(program, backend="spread-cuda", options=options)
    wanted = compiled(*given)
    (entry,) = compiled.signatures
    device, interface = entry.stages.runnable()
    source = entry.stages.source
    assert source is not None
    rejected = 0
    for seed in range(40):
        mutant = mutate(device, source, random.Random(seed))
        try:
            verify(mutant.program, mutant.source)
        except VerifyError:
            rejected += 1
            continue
        if mutant.source == source:
            plan = make_plan(mutant.program)
            texts = print_plan(plan)
            entry.executable = emulated_cuda_executable(plan, texts, interface, options)
            torch.testing.assert_close(compiled(*given), wanted, msg=f"{seed}: {mutant.change}")
    assert rejected > 20


@torch.no_grad()
def rotary_program() -> DeviceProgram:
    compiled = stretto.compile(
        lambda x, cos, sin: rotary(x, cos, sin), backend="cuda-emulated", options=Options(units=1)
    )
    compiled(torch.randn(2, 5, 8), *table(5, 4))
    device = compiled.signatures[0].stages.device
    assert device is not None
    return device


def test_text() -> None:
    """A program with such a kernel is read back as it is."""
    program = rotary_program()
    text = print_program(program)
    assert "stage user" in text
    assert parse_program(text, MACHINE.templates) == program


def changed(operator: Operator, message: str) -> Operator:
    assert isinstance(operator.value, Apply)
    match message:
        case "write what it reads":
            load, *_ = operator.reads()
            return replace(operator, out=replace(operator.out, buffer=load.access.buffer))
        case "other arguments than it takes":
            return replace(operator, value=replace(operator.value, args=operator.value.args[:-1]))
        case _:
            return operator


@pytest.mark.parametrize(
    "message",
    ["a part of a dim that", "write what it reads", "other arguments than it takes"],
)
def test_broken_rules(message: str) -> None:
    (kernel,) = rotary_program().kernels
    (stage,) = kernel.stages
    check_user_stage(kernel, stage)
    box = stage.box
    if message.startswith("a part"):
        *others, last = box
        assert isinstance(last.extent, int)
        box = (*others, replace(last, extent=last.extent - 1))
    broken = replace(stage, box=box, operator=changed(stage.operator, message))
    with pytest.raises(VerifyError, match=message):
        check_user_stage(kernel, broken)


@pytest.mark.whole
@torch.no_grad()
def test_sizes_that_a_call_decides_compiled(tmp_path: Path) -> None:
    """Positions of 64 bits, strides that are scalars, tiles that no size divides."""
    compiled = stretto.compile(sizes, backend="cuda-emulated", dynamic=True)
    compiled(torch.randn(3, 10, 8), *table(10, 4), torch.randn(8, 5))
    program = compiled.signatures[0].captured.program
    for target in ("sm_80", "sm_90"):
        stages = build(program, CUDA.for_target(target, 132), Options(cache_dir=tmp_path))
        made = gpu_program(stages)
        assert all(kernel.resources.spill_bytes == 0 for kernel in made.compiled)
        assert "tl.int64), 32)" in made.sources[0].text
