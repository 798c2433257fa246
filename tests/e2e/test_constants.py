"""Constants that are views, slices or members of stacks, in every use, on every machine.

Kernels read constants packed, in place, or folded; which member of a stack they read may only be
known at run time. A form is made outside of the compiled function, so that the constant itself is a
view, and inside of it, so that the compiler sees the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.e2e.machines import check
from tests.sampling import sampled

ROWS, COLUMNS, MEMBERS = 40, 24, 5
OTHERS = [("interpreter", 1), ("cpu", 1), ("cuda-emulated", 2)]
"""A sample of the cases runs here; all of them on the emulator, which reads the panels as the
native kernels do, and as native code with two units."""

Form = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def everywhere(
    names: Collection[str], sample: tuple[str, ...], native_only_in_whole: Collection[str] = ()
) -> Any:
    """Parameters: each name on the emulator and as native code, the `sample` also on `OTHERS`."""
    cases = [(name, *machine) for name in names for machine in (("emulator", 2), ("cpu", 2))]
    cases += [(name, *machine) for name in sample for machine in OTHERS]
    left_out = {(name, "cpu", 2) for name in native_only_in_whole}
    parameters = sampled(cases, [case for case in cases if case not in left_out])
    return pytest.mark.parametrize(("name", "backend", "units"), parameters)


# ---- forms of one matrix ---------------------------------------------------------------------

FORMS: dict[str, tuple[tuple[int, ...], Form]] = {
    "rows after an offset": ((ROWS + 13, COLUMNS), lambda w: w[13:]),
    "columns after an offset": ((ROWS, COLUMNS + 9), lambda w: w[:, 9:]),
    "every second row": ((2 * ROWS + 1, COLUMNS), lambda w: w[1::2]),
    "every second column": ((ROWS, 2 * COLUMNS), lambda w: w[:, ::2]),
    "member of a stack": ((3, ROWS, COLUMNS), lambda w: w[1]),
    "last member of a stack": ((3, ROWS, COLUMNS), lambda w: w[-1]),
    "member of a middle dim": ((ROWS, 3, COLUMNS), lambda w: w[:, 2]),
    "chunk": ((3 * ROWS, COLUMNS), lambda w: w.chunk(3)[1]),
    "split of columns": ((ROWS, 2 * COLUMNS), lambda w: w.split(COLUMNS, 1)[1]),
    "part of a flat vector": ((ROWS * COLUMNS + 7,), lambda w: w[7:].view(ROWS, COLUMNS)),
    "transposed": ((COLUMNS, ROWS), lambda w: w.t()),
    "transposed after an offset": ((COLUMNS + 3, ROWS + 2), lambda w: w[3:, 2:].t()),
    "expanded": ((1, COLUMNS), lambda w: w.expand(ROWS, COLUMNS)),
    "expanded columns": ((ROWS, 1), lambda w: w.expand(ROWS, COLUMNS)),
    "overlapping": ((ROWS + COLUMNS,), lambda w: w.unfold(0, COLUMNS, 1)[:ROWS]),
    "flipped": ((ROWS, COLUMNS), lambda w: w.flip(0, 1)),
    "diagonal": ((ROWS, COLUMNS, COLUMNS), lambda w: w.diagonal(0, 1, 2)),
}


def uses(m: Tensor, x: Tensor, image: Tensor, ids: Tensor) -> list[Tensor]:
    """A matrix [ROWS, COLUMNS] in products, convolutions, an embedding, and element by element."""
    taps = m.unflatten(1, (COLUMNS // 4, 4))
    return [
        F.linear(x, m),
        x[0] @ m.t(),
        x[:, :16] @ m[:, 8:].t(),
        torch.bmm(x.expand(2, -1, -1), m.t().unflatten(1, (2, -1)).transpose(0, 1)),
        F.conv1d(image[:, : COLUMNS // 4], taps, padding=2),
        F.conv1d(image[:, : COLUMNS // 2], taps, groups=2),
        F.conv2d(image[:, : COLUMNS // 4].unflatten(2, (4, -1)), taps.unflatten(2, (2, 2))),
        F.conv1d(image[:, :ROWS], m[:, 2:5].unsqueeze(1), groups=ROWS),
        F.embedding(ids, m),
        m * 2 + x[0],
        m.sum(0),
    ]


def inputs() -> tuple[Tensor, ...]:
    return torch.randn(3, COLUMNS), torch.randn(2, ROWS, 12), torch.randint(ROWS, (7,))


@pytest.mark.whole
@everywhere(FORMS, ("rows after an offset", "diagonal"), list(FORMS)[1::2])
def test_a_constant_that_is_a_view(name: str, backend: str, units: int) -> None:
    """The constant is a view; and of another one, a view is made in the compiled function."""
    shape, view = FORMS[name]
    outside, inside = view(torch.randn(shape)), torch.randn(shape)

    def f(*arguments: Tensor) -> list[Tensor]:
        return uses(outside, *arguments) + uses(view(inside), *arguments)

    check(f, inputs(), inputs(), backend=backend, units=units)


@everywhere(["zero size"], ("zero size",))
def test_constants_without_elements(name: str, backend: str, units: int) -> None:
    rows, depth = torch.randn(0, COLUMNS), torch.randn(ROWS, 0)

    def f(x: Tensor) -> list[Tensor]:
        return [F.linear(x, rows), x[:, :0] @ depth.t(), rows.sum(0) + x, F.linear(x, rows[0:])]

    check(f, (torch.randn(3, COLUMNS),), backend=backend, units=units)


def test_the_emulator_reads_the_panels() -> None:
    """What it computes comes from what the native kernel reads, not from the constant itself."""
    stack = STACK.clone()  # packed weights are shared, and these will be spoilt

    def f(x: Tensor) -> Tensor:
        for k in range(MEMBERS):
            x = torch.tanh(x @ stack[k])
        return x

    x = torch.randn(3, SIZE)
    compiled = check(f, (x,), backend="emulator")
    (entry,) = compiled.signatures
    (panels,) = entry.executable.copies
    panels.tensor[2] = 0
    assert not torch.allclose(compiled(x), f(x))


# ---- members of a stack ----------------------------------------------------------------------


def member_uses(m: Tensor, x: Tensor) -> Tensor:
    """A square matrix in a product, a convolution and a row of it, all of which depend on `m`."""
    y = torch.tanh(F.linear(x, m) + m[3])
    y = y + F.conv1d(y.view(1, 6, -1), m[:6, :18].unflatten(1, (6, 3)), padding=1).view(3, -1)
    return torch.tanh(y @ m)


SIZE = 24
STACK = torch.randn(MEMBERS, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) / 4


def by_loop(x: Tensor) -> Tensor:
    for k in range(MEMBERS):
        x = member_uses(STACK[k], x)
    return x


def backwards(x: Tensor) -> Tensor:
    for k in range(MEMBERS):
        x = member_uses(STACK[-k - 1], x)
    return x


def by_iteration(x: Tensor) -> Tensor:
    for member in STACK:
        x = member_uses(member, x)
    return x


def by_tensor(x: Tensor, chosen: Tensor) -> Tensor:
    return member_uses(STACK[chosen], x)


def by_order(x: Tensor, chosen: Tensor) -> Tensor:
    order = torch.stack([chosen, chosen * 0, 4 - chosen])
    for k in range(3):
        x = member_uses(STACK[order[k]], x)
    return x


def while_positive(x: Tensor, left: Tensor) -> Tensor:
    while left > 0:
        x = member_uses(STACK[left], x)
        left = left - 1
    return x


def by_recursion(x: Tensor, left: Tensor) -> Tensor:
    return x if left < 0 else by_recursion(member_uses(STACK[left], x), left - 1)


def by_branch(x: Tensor, chosen: Tensor) -> Tensor:
    member = STACK[1] if chosen > 2 else STACK[4]
    return member_uses(member, x)


LAST = STACK.permute(1, 2, 0)
ROWWISE = STACK.view(-1, SIZE)
GRID = torch.randn(2, MEMBERS, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2)) / 4


KERNELS = torch.randn(2, MEMBERS, 3, 7, 6, 3, 3, generator=torch.Generator().manual_seed(3)) / 4


def of_the_last_dim(x: Tensor) -> Tensor:
    for k in range(MEMBERS):
        x = member_uses(LAST[:, :, k], x)
    return x


def by_slice(x: Tensor) -> Tensor:
    for k in range(MEMBERS):
        x = member_uses(ROWWISE[k * SIZE : (k + 1) * SIZE], x)
    return x


def by_overlapping_slice(x: Tensor) -> Tensor:
    for k in range(MEMBERS):
        x = member_uses(ROWWISE[k * 5 : k * 5 + SIZE], x)
    return x


def by_two(x: Tensor, chosen: Tensor) -> Tensor:
    for k in range(MEMBERS):
        x = member_uses(GRID[1, k, chosen % 3], x)
    return x


def nested(x: Tensor) -> Tensor:
    for i in range(2):
        for j in range(MEMBERS):
            x = member_uses(GRID[i, j, i], x)
    return x


def every_second(x: Tensor) -> Tensor:
    for k in range(2):
        x = member_uses(STACK[1::2][k], x) + member_uses(STACK[2 * k + 1], x)
    return x


def batched(x: Tensor) -> Tensor:
    y = x.expand(3, -1, -1)
    for k in range(MEMBERS):
        y = torch.tanh(torch.bmm(y, GRID[1, k]) + torch.bmm(y, STACK[1:4]))
        y = torch.tanh(y @ GRID[0, k, 2].t())
    return y


def batch_of_a_window(x: Tensor) -> Tensor:
    y = x.expand(3, -1, -1)
    for k in range(3):
        y = torch.tanh(torch.bmm(y, STACK[k : k + 3]))
    return y


def tied(x: Tensor, ids: Tensor) -> Tensor:
    """One storage as an embedding, as a product and its transpose, and through another view."""
    for k in range(MEMBERS):
        x = torch.tanh(F.linear(x, STACK[k]) @ STACK[k] + F.embedding(ids + k, ROWWISE))
    return x @ ROWWISE.t()


def convolutions(x: Tensor) -> Tensor:
    image = x.view(1, 6, 3, 4)
    for k in range(MEMBERS):
        member = KERNELS[1, k, k % 3]
        image = torch.tanh(F.conv2d(image, member[:6], padding=1))
        image = torch.tanh(F.conv2d(image, member[1:7, :2], padding=1, groups=3))
        image = torch.tanh(F.conv2d(image, member[:6, :1], padding=1, groups=6))
        image = torch.tanh(F.conv2d(image, member[:6, 1:2].transpose(2, 3), padding=1, groups=6))
    return image


STACKED: dict[str, tuple[Callable[..., Tensor], str]] = {
    function.__name__: (function, kinds)
    for function, kinds in [
        (by_loop, "x"),
        (backwards, "x"),
        (by_iteration, "x"),
        (by_tensor, "xn"),
        (by_order, "xn"),
        (while_positive, "xn"),
        (by_recursion, "xn"),
        (by_branch, "xn"),
        (of_the_last_dim, "x"),
        (by_slice, "x"),
        (by_overlapping_slice, "x"),
        (by_two, "xn"),
        (nested, "x"),
        (every_second, "x"),
        (batched, "x"),
        (batch_of_a_window, "x"),
        (tied, "xi"),
        (convolutions, "x"),
    ]
}


@pytest.mark.whole
@everywhere(
    STACKED,
    ("by_loop", "convolutions"),
    native_only_in_whole=[
        name for name in STACKED if name not in ("by_loop", "by_recursion", "by_two", "nested")
    ],
)
def test_a_member_of_a_stack_of_constants(name: str, backend: str, units: int) -> None:
    function, kinds = STACKED[name]
    cases = [
        [
            {"x": torch.randn(3, SIZE), "n": torch.tensor(n), "i": torch.tensor([n, 7, 2])}[kind]
            for kind in kinds
        ]
        for n in (3, 1)
    ]
    check(function, *map(tuple, cases), backend=backend, units=units)


@pytest.mark.whole
def test_members_are_packed_once_for_all_iterations() -> None:
    """A stack has one packed form; its members are addressed where the loop runs."""
    compiled = check(by_loop, (torch.randn(3, SIZE),), backend="cpu")
    (entry,) = compiled.signatures
    shapes = [packing.buffer.shape for packing in entry.stages.scheduled.interface.packings]
    assert len(shapes) == 3 and all(shape[0] == MEMBERS for shape in shapes)
    compiled = check(by_overlapping_slice, (torch.randn(3, SIZE),), backend="cpu")
    (entry,) = compiled.signatures
    assert not entry.stages.scheduled.interface.packings


# ---- modules that keep their weights in views ------------------------------------------------


class Attention(nn.Module):
    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True, **sizes)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.inner(q, k, v, need_weights=False)[0]


def flattened(module: nn.Module) -> nn.Module:
    """All parameters become views of one vector, as distributed wrappers make them."""
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    nn.utils.vector_to_parameters(flat, module.parameters())
    return module


def sequences(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape) for shape in shapes)


S5, S7 = (2, 5, 16), (2, 7, 16)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "attention to others": (Attention, (S5, S7, S7)),
    "attention to others of other sizes": (
        lambda: Attention(kdim=8, vdim=24),
        (S5, (2, 7, 8), (2, 7, 24)),
    ),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), (S5, S7)),
    "transformer": (lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True), (S5, S7)),
    "flattened layers": (
        lambda: flattened(nn.Sequential(nn.Linear(16, 70), nn.Tanh(), nn.Linear(70, 16))),
        (S5,),
    ),
    "flattened LSTM": (lambda: flattened(nn.LSTM(16, 16, batch_first=True)), (S5,)),
}


@pytest.mark.whole
@everywhere(
    MODULES,
    ("flattened LSTM",),
    native_only_in_whole=("attention to others", "transformer", "flattened layers"),
)
def test_a_module_whose_weights_are_views(name: str, backend: str, units: int) -> None:
    make, shapes = MODULES[name]
    module = make().eval()
    check(module, sequences(*shapes), backend=backend, units=units)
