"""Functions that return their argument, a view of it or a copy: a change of one is seen by the
other as in eager PyTorch, and `is` tells the same, or the function is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stretto.frontends.python import capture
from stretto.frontends.python.tracing.symbolic_sizes import SizePlan, SizeRange, SizeSource
from stretto.options import Options
from tests.frontends.python.checks import assert_same, defined, refused, run_captured
from tests.sampling import every

NAMES: dict[str, Any] = {"torch": torch, "F": F, "nn": nn, "copy": copy, "Tensor": Tensor}
DROPOUT = nn.Dropout(0.5).eval()


def cases(text: str) -> list[str]:
    return [part.strip() for line in text.split("\n") for part in line.split(";") if part.strip()]


# One expression of `x`, a float tensor of two rows of three, each.
FLOATS = cases("""
    torch.as_tensor(x); torch.as_tensor(x, dtype=x.dtype); torch.as_tensor(x, device=x.device)
    torch.as_tensor(data=x); torch.as_tensor(x, dtype=float); torch.as_tensor(x.t())
    torch.asarray(x); torch.asarray(x, copy=None); torch.asarray(x, copy=False); torch.tensor(x)
    torch.asarray(x, copy=True); torch.asarray(x, dtype=torch.float64); torch.asarray(obj=x)
    torch.asarray(x, dtype=torch.float32, device="cpu"); torch.asarray(x.t(), copy=True)
    x.new_tensor(x); x.to(x.dtype); x.to(x); x.to("cpu"); x.to(torch.float64); x.to()
    x.to(x.dtype, copy=True); x.to(memory_format=torch.contiguous_format); x.cpu()
    x.t().to(x.dtype, memory_format=torch.contiguous_format); x.float(); x.double(); x.long()
    x.type(x.dtype); x.type("torch.FloatTensor"); x.type_as(x); x.type_as(x.double())
    x.t().float(memory_format=torch.contiguous_format); x.contiguous(); x.t().contiguous()
    x.t().t().contiguous(); x[:, 1:].contiguous(); x[:1].t().contiguous()
    x.reshape(x.shape); x.reshape(-1); x.t().reshape(-1); x[:, 1:].reshape(-1); x.reshape_as(x)
    x.view(6); x.view_as(x); x.view(x.dtype); x.flatten(); x.flatten(0, 0); x.t().flatten()
    x[0].flatten(); x[0, 0].flatten(); x.ravel(); x[:, 1].ravel(); x.unflatten(1, (3, 1))
    x.expand_as(x); x.expand(-1, -1); x.broadcast_to((2, 3)); torch.broadcast_tensors(x, x)[0]
    torch.atleast_1d(x); torch.atleast_2d(x); torch.atleast_3d(x); torch.atleast_2d(x[0])
    torch.meshgrid(x[0], indexing="ij")[0]
    x.detach(); x.data; x.requires_grad_(False); x.clone(); copy.deepcopy(x); x.real; +x
    x.positive(); x.conj(); x.conj_physical(); x.resolve_conj(); x.resolve_neg(); x.nan_to_num()
    x.squeeze(); x.squeeze(0); x[:1].squeeze(0); x.unsqueeze(0); x.unbind()[0]; x.chunk(1)[0]
    x.chunk(2, 1)[0]; x.split(1)[0]; x.split(10)[0]; x.split([1, 1])[1]; x.tensor_split(2)[0]
    x.hsplit(3)[0]; x.vsplit(2)[0]; torch.unsafe_chunk(x, 1)[0]; torch.unsafe_split(x, 1)[0]
    torch.unsafe_split_with_sizes(x, [1, 1])[1]; x.movedim(0, 0); x.movedim(0, 1); x.swapaxes(0, 1)
    x.transpose(0, 0); x.permute(0, 1); x.T; x.mT; x.adjoint(); x[0].t(); x.diagonal()
    torch.diag(x); x[0].diag(); x.rot90(0); x.rot90(2); x.flip(()); x.flip(0); x.roll(0, 0)
    x.narrow(0, 0, 2); x.narrow_copy(0, 0, 2); x.select(0, 0)
    x.as_strided((6,), (1,)); x.repeat(1, 1); x.tile(()); x.repeat_interleave(1, 0); x.sum(())
    x.unfold(1, 2, 1); x.view(torch.int32).view(torch.float32); torch.ops.aten._neg_view(x)
    x.sum_to_size(2, 3); x.masked_select(x > -1); x.round(); x.floor(); x.clip(-9, 9); x.relu()
    x[:]; x[...]; x[None]; x[()]; x[0]; x[0:9]; x[..., 0]; x[True]; x[[0, 1]]; x[x > -1]
    x[torch.tensor(0)]; x[torch.tensor([0, 1])]; F.dropout(x, 0.5, False); F.dropout(x, 0.0)
    F.dropout(x, 0.5, False, inplace=True); torch.dropout(x, 0.5, False); DROPOUT(x)
    F.alpha_dropout(x, 0.5, False); torch.native_dropout(x, 0.5, False)[0]; F.pad(x, (0, 0))
    F.pad(x, ()); F.pad(x, (0, 0), mode="circular"); F.relu(x, inplace=True); nn.Identity()(x)
    nn.Flatten()(x); nn.Sequential()(x); F.interpolate(x[None, None], scale_factor=1)
    F.channel_shuffle(x.reshape(1, 1, 2, 3), 1); F.pixel_shuffle(x.reshape(1, 1, 2, 3), 1)
    torch.where(x > -1, x, x); torch.cat([x]); torch.hstack([x]); torch.einsum("ij->ij", x)
    torch.einsum("ij->ji", x); torch.matrix_power(x[:, :2], 1); torch.tril(x, 5)
    torch.block_diag(x); torch.cartesian_prod(x[0]); x.to_dense(); x ** 1
    torch.slice_scatter(x, x); torch.view_copy(x, (6,)); torch.select_copy(x, 0, 0)
    torch.ops.aten.lift(x); torch.ops.aten.lift_fresh(x); torch.ops.aten.alias(x)
    torch.ops.aten._to_copy(x); torch.ops.aten.slice(x, 0, 0, 2); list(x)[0]; sum([x]); x.zero_()
""")
INTEGERS = cases("""
    torch.as_tensor(x); torch.asarray(x); x.round(); x.floor(); x.ceil()
    x.trunc(); x.abs(); x.nan_to_num(); x.long(); x.int(); x.conj(); x.real; +x; x.conj_physical()
    x.type(torch.LongTensor); x << 0; x // 1; x.clamp(0, 9); x.sum(())
""")
FLAGS = cases("""
    torch.as_tensor(x); torch.asarray(x); x.bool(); x.to(torch.bool); x.any(()); x & x; x.conj()
    x.nan_to_num(); x.ravel(); x.view(torch.uint8).view(torch.bool)
""")

REFUSED = frozenset(
    cases("""
    x.unfold(1, 2, 1); x.view(torch.int32).view(torch.float32); torch.ops.aten._neg_view(x)
    x.view(torch.uint8).view(torch.bool)
    """)
)
"""Views that no in-place change is followed through."""

PROGRAM = """
def result_changes(x: Tensor):
    y = {call}
    is_same = y is x
    y.{change}
    return is_same, y.clone(), x.clone()

def argument_changes(x: Tensor):
    y = {call}
    x.{change}
    return y.clone(), x.clone()

def constant_changes(x: Tensor):
    x = CONSTANT
    y = {call}
    is_same = y is x
    y.{change}
    return is_same, y.clone(), x.clone()
"""

FLOAT = torch.arange(6.0).reshape(2, 3).clone()
GIVEN = {
    "float": (FLOAT, FLOATS, "add_(1)"),
    "int": (FLOAT.long(), INTEGERS, "add_(1)"),
    "bool": (FLOAT > 2, FLAGS, "logical_not_()"),
}
CASES = [(kind, call) for kind, (_, calls, _) in GIVEN.items() for call in calls]
ROWS = SizePlan.of({SizeSource(0, 0): SizeRange()})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "call"), every(5, CASES))
def test_changes_are_seen_as_in_eager(kind: str, call: str, tmp_path: Path) -> None:
    given, _, change = GIVEN[kind]
    for name in ("result_changes", "argument_changes", "constant_changes"):
        constant = given.clone()
        space = {**NAMES, "CONSTANT": constant, "DROPOUT": DROPOUT}
        program = defined(PROGRAM.format(call=call, change=change), space, tmp_path)[name]
        if call in REFUSED:
            refused(program, given.clone(), options=Options())
            continue
        captured = capture(program, (given.clone(),), {}, Options())
        wanted, found = given.clone(), given.clone()
        expected = program(wanted)
        constant.copy_(given)
        assert_same(run_captured(captured, (found,), {}), expected)
        assert_same(found, wanted)


SIZED = cases("""
    torch.as_tensor(x); torch.asarray(x); torch.asarray(x, copy=True); x.to(x.dtype)
    x.contiguous(); x.t().contiguous(); x.reshape(-1); x.flatten(); x.ravel(); x.expand_as(x)
    x.squeeze(); x.unbind(1)[0]; x.chunk(1)[0]; x.split(1, 1)[0]; x.movedim(0, 1); x.diagonal()
    torch.unsafe_chunk(x, 1, 1)[0]; F.dropout(x, 0.5, False); F.pad(x, (0, 0)); x[:]; x[1:]
    x.flip(()); x.roll(0, 0); x.nan_to_num(); x.repeat(1, 1); x.sum_to_size(x.shape)
""")


@pytest.mark.parametrize("call", SIZED)
def test_changes_are_seen_for_sizes_of_the_call(call: str, tmp_path: Path) -> None:
    for name in ("result_changes", "argument_changes"):
        program = defined(PROGRAM.format(call=call, change="add_(1)"), NAMES, tmp_path)[name]
        captured = capture(program, (FLOAT.clone(),), {}, Options(), sizes=ROWS)
        wanted, found = FLOAT.clone(), FLOAT.clone()
        expected = program(wanted)
        assert_same(run_captured(captured, (found,), {}), expected)
        assert_same(found, wanted)


WEIGHTS = torch.arange(3.0)
NUMBERS = np.arange(3.0)


def array_of_a_tensor(x: Tensor) -> Any:
    numbers = WEIGHTS.numpy()
    WEIGHTS.add_(1)
    return x + float(numbers.sum())


def array_of_a_view(x: Tensor) -> Any:
    numbers = np.asarray(WEIGHTS[1:])
    WEIGHTS.add_(1)
    return x + float(numbers.sum())


def array_of_a_new_tensor(x: Tensor) -> Any:
    made = torch.zeros(3)
    numbers = made.numpy()
    made.add_(1)
    return x, numbers


def changed_array(x: Tensor) -> Any:
    numbers = WEIGHTS.numpy()
    numbers[0] = 5
    return x + WEIGHTS


def tensor_of_an_array_of_a_tensor(x: Tensor) -> Any:
    again = torch.from_numpy(WEIGHTS.numpy()[1:])
    again.add_(1)
    return x + WEIGHTS


def tensor_of_an_array(x: Tensor) -> Any:
    made = torch.from_numpy(NUMBERS)
    made.add_(1)
    return x + made


def array_of_which_is_a_tensor(x: Tensor) -> Any:
    numbers = np.zeros(3)
    made = torch.as_tensor(numbers)
    before = made * 1
    numbers[0] = 7
    return x + before


def two_tensors_of_an_array(x: Tensor) -> Any:
    numbers = np.zeros(3)
    one, other = torch.asarray(numbers), torch.from_dlpack(numbers)
    one.add_(1)
    return x + other


def tensor_of_a_buffer(x: Tensor) -> Any:
    buffer = bytearray(3)
    made = torch.frombuffer(buffer, dtype=torch.uint8)
    made.add_(1)
    return x + buffer[0]


def tensors_of_an_array_that_is_gone(x: Tensor) -> Any:
    numbers = np.zeros(3)
    one, other = torch.asarray(numbers), torch.from_dlpack(numbers)
    del numbers
    one.add_(1)
    return x + other


def held_by_an_iterator(x: Tensor) -> Any:
    numbers = reversed(WEIGHTS.numpy())
    WEIGHTS.add_(1)
    return x + float(next(numbers))


def held_by_a_method(x: Tensor) -> Any:
    total = WEIGHTS.numpy().sum
    WEIGHTS.add_(1)
    return x + float(total())


def held_by_a_part(x: Tensor) -> Any:
    held = [WEIGHTS.numpy()[1:]]
    WEIGHTS.add_(1)
    return x + float(held[0].sum())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "program",
    [
        array_of_a_tensor, array_of_a_view, array_of_a_new_tensor, changed_array,
        tensor_of_an_array_of_a_tensor, tensor_of_an_array, array_of_which_is_a_tensor,
        two_tensors_of_an_array, tensor_of_a_buffer, tensors_of_an_array_that_is_gone,
        held_by_an_iterator, held_by_a_method, held_by_a_part,
    ],
)  # fmt: skip
def test_memory_shared_with_arrays_is_not_changed(program: Any) -> None:
    error = refused(program, torch.zeros(3), options=Options())
    assert "memory" in str(error) or "may change" in str(error)


def read_before(x: Tensor) -> Any:
    total = float(WEIGHTS.numpy().sum())
    WEIGHTS.add_(1)
    return x + total


def array_of_a_clone(x: Tensor) -> Any:
    numbers = WEIGHTS.clone().numpy()
    WEIGHTS.add_(1)
    return x + float(numbers.sum())


def only_read(x: Tensor) -> Any:
    return x + torch.from_numpy(WEIGHTS.numpy()) * 2 + torch.as_tensor(NUMBERS)


def copied_array(x: Tensor) -> Any:
    single, double = (torch.as_tensor(NUMBERS, dtype=kind) for kind in (x.dtype, torch.float64))
    single.add_(1)
    same = torch.asarray(NUMBERS, copy=True)
    same.add_(1)
    return x + single + same, double


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", [read_before, array_of_a_clone, only_read, copied_array])
def test_arrays_that_share_nothing_that_changes(program: Any) -> None:
    WEIGHTS.copy_(torch.arange(3.0))
    captured = capture(program, (torch.zeros(3),), {}, Options())
    expected = program(torch.zeros(3))
    WEIGHTS.copy_(torch.arange(3.0))
    assert_same(run_captured(captured, (torch.zeros(3),), {}), expected)
