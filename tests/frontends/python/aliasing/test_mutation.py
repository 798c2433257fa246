"""In-place operators, views and aliases; inputs and buffers that are changed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stretto.frontends.python import External, InputLeaf, capture
from stretto.options import Debug, Options
from tests.frontends.python.checks import assert_same, check, refused, run_captured, structure


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape)


def test_in_place_on_a_fresh_tensor() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1).mul_(x)
        y += x
        y[0] = 5
        y[:, 1] -= 2
        torch.relu_(y)
        return y

    check(f, (rand(3, 4),))


def test_views_see_writes_to_the_base_and_back() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        base = x.clone()
        row, column, part = base[1], base[:, 2], base[0:2, 1:3]
        turned, flat = base.t(), base.view(-1)
        row.mul_(2)
        base.add_(1)
        turned[3] = 7
        flat[5] = -1
        part.t().zero_()
        column += row[1:]
        return base, row, column, part, turned, flat

    check(f, (rand(3, 4),))


def test_more_views() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        a = x.clone()
        a.unsqueeze(0).squeeze(0).permute(1, 0)[2].fill_(3)
        a.diagonal().copy_(torch.arange(3.0))
        first, second = a.chunk(2, dim=1)
        first.sub_(second)
        for row in a.unbind(0):
            row.clamp_(-1, 1)
        a.movedim(0, 1).flatten().view(2, 6)
        b = a.expand(2, 3, 4) + a.narrow(0, 1, 1)
        left, right = b.split([1, 3], dim=2)
        right *= left
        return a, b

    check(f, (rand(3, 4),))


def test_reshape_copies_when_it_must() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        alias, copied = y.reshape(-1), y.t().reshape(-1)
        alias.add_(1)
        copied.mul_(3)
        return y, copied

    check(f, (rand(3, 4),))


def test_write_in_a_branch_is_seen_by_aliases() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.clone()
        row = y[1]
        if x.sum() > 0:
            y[1, 2] = 9
        else:
            row.zero_()
        return y, row

    check(f, (torch.ones(3, 4),), (-torch.ones(3, 4),))


def test_writes_in_loops_at_traced_positions() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        out = torch.zeros(8, 3)
        for i in range(6):
            out[i + 1] = x[i] * i
            out[i : i + 2, 0] += 1
        out[n] = -1
        out[n - 1, n - 1] = 4
        return out

    captured = check(f, *[(rand(8, 3), torch.tensor(k)) for k in (1, 3)])
    assert structure(captured) == {"for": 1}


def test_inputs_are_written_back() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y[0] = x[1]
        return x * y

    captured = check(f, (rand(3, 4), rand(3, 4)))
    assert [mutation.input for mutation in captured.mutations] == [0, 1]


def test_input_written_in_a_traced_loop() -> None:
    def f(cache: Tensor, x: Tensor) -> Tensor:
        step = 0
        while x.sum() < 50 and step < 4:
            cache[step] = x
            x = x * 2
            step += 1
        return x

    check(f, (rand(5, 3), torch.ones(3)), (rand(5, 3), torch.ones(3) * 40))


def test_returned_inputs_keep_their_identity() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return x, y

    captured = check(f, (rand(3), rand(3)))
    x, y = rand(3), rand(3)
    first, second = run_captured(captured, (x, y), {})
    assert first is x
    assert second is y
    assert captured.output.children == (InputLeaf(0), InputLeaf(1))  # type: ignore[union-attr]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        if x.sum() > 0:
            self.mean.copy_(0.9 * self.mean + 0.1 * x)
        return x - self.mean / self.steps


def test_buffers_are_written_back() -> None:
    model = Counter()
    expected = copy.deepcopy(model)
    captured = capture(model, (torch.ones(3),), {}, Options())
    assert [type(binding) for binding in captured.inputs[1:]] == [External, External]
    for scale in (1.0, -1.0, 2.0):
        x = torch.ones(3) * scale
        assert_same(run_captured(captured, (x,), {}), expected(x))
        assert_same(model.steps, expected.steps)
        assert_same(model.mean, expected.mean)


def test_batch_norm_in_training_updates_its_buffers() -> None:
    model = nn.BatchNorm1d(3)
    expected = copy.deepcopy(model)
    x = rand(8, 3)
    captured = capture(model, (x,), {}, Options())
    with torch.no_grad():
        assert_same(run_captured(captured, (x,), {}), expected(x))
    assert_same(dict(model.named_buffers()), dict(expected.named_buffers()))


def test_in_place_on_a_value_from_a_branch() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        if x.sum() > 0:
            y = y + 1
        y.relu_()
        return y

    check(f, (rand(3),), (-rand(3).abs(),))


def test_out_arguments_and_masks() -> None:
    def f(x: Tensor) -> Tensor:
        out = torch.empty(3, 4)
        torch.add(x, 1, out=out)
        out[x > 0] = 0.5
        out.masked_fill_(x < -1, 2)
        out.index_fill_(0, torch.tensor([1]), 3)
        out.scatter_(1, torch.tensor([[0], [1], [2]]), 8.0)
        out[torch.tensor([0, 2])] += 1
        return out

    check(f, (rand(3, 4),))


def test_lists_of_buffers() -> None:
    def f(x: Tensor) -> list[Tensor]:
        rows = [torch.zeros(3) for _ in range(2)]
        for i in range(5):
            rows[0][1] += x[i]
            rows[1].add_(rows[0])
        return rows

    assert structure(check(f, (rand(5),))) == {"for": 1}


def test_aliasing_inputs_that_are_written() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    base = rand(4, 3)
    error = str(refused(f, base[:3], base[1:]))
    assert "shares memory with another input" in error
    assert "clone()" in error
    check(lambda x, y: x + y, (base, base[1:2]))


def alias_of_a_branch(x: Tensor) -> Tensor:
    y = x + 1
    z = y
    if x.sum() > 0:
        z = y * 2
    z.add_(1)
    return y + z


def alias_of_an_input(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        y = x * 2
    y.add_(1)
    return y


def two_views_from_a_branch(x: Tensor) -> Tensor:
    a = b = x
    if x.sum() > 0:
        a = x * 2
        b = a[1:]
    else:
        a = x * 3
        b = a[:-1]
    b.zero_()
    return a


def carried_under_two_names(x: Tensor) -> Tensor:
    total = torch.zeros(3)
    before = torch.zeros(3)
    for i in range(5):
        x = x + before * i
        before = total
        total += x
    return x


def collected_and_written(x: Tensor) -> list[Tensor]:
    total, out = torch.zeros(3), []
    for i in range(5):
        total += x * i
        out.append(total)
    return out


def item_of_a_list(x: Tensor) -> list[Tensor]:
    out = []
    while x.sum() < 50:
        x = x * 2
        out.append(x)
    out[-1].zero_()
    return out


def initial_state_from_the_caller(x: Tensor) -> Tensor:
    h = x
    for i in range(5):
        h.mul_(2)
        h = torch.tanh(h + i)
    return h


def result_of_a_recursion(x: Tensor) -> Tensor:
    def last(y: Tensor, n: int) -> Tensor:
        return y if y.sum() > n else last(y * 2, n)

    last(x, 4).add_(1)
    return x


def item_at_a_traced_position(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x * 1, x * 2
    chosen = [first, second][x.sum().long() % 2]
    chosen.add_(1)
    return first, chosen


def read_while_it_may_have_changed(x: Tensor) -> Tensor:
    """The operands of `+` are no variables when the write happens."""

    def add(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    y = x * 2
    return add(x if x.sum() > 0 else y, x.add_(1))


@pytest.mark.parametrize(
    "fn",
    [
        item_of_a_list,
        result_of_a_recursion,
        read_while_it_may_have_changed,
    ],
)
def test_aliases_that_cannot_be_followed_are_refused(fn: Callable[[Tensor], object]) -> None:
    error = refused(fn, torch.ones(3))
    assert "in place" in error.message
    assert "clone()" in (error.remedy or "")


def view_of_one_of_two(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x * 2, x * 3
    c = a[1:] if x.sum() > 0 else b[:-1]
    c.add_(1)
    a.mul_(2)
    b[1] = 7
    return a, b, c


def nested_choices(x: Tensor) -> tuple[Tensor, ...]:
    a, b = x * 1, x * 2
    c = a
    if x.sum() > 0:
        if x[0] > 0.5:
            c = b
        else:
            c = a + b
    d = c if x[1] > 0 else b
    d.add_(1)
    c.mul_(2)
    b.sub_(1)
    return a, b, c, d, x


def written_in_a_later_branch(x: Tensor) -> tuple[Tensor, ...]:
    a = x * 1
    b = a if x.sum() > 0 else x
    if x[0] > 0.5:
        b[0] = 5
    else:
        a.add_(1)
    return a, b, x


def made_in_an_arm_and_shared(x: Tensor) -> tuple[Tensor, ...]:
    a, b, c = x, x, x
    if x.sum() > 0:
        a = x * 2
        b = a[1:]
        if x[0] > 0.5:
            c = a
        b.add_(1)
    else:
        b = a[:-1]
    b.mul_(3)
    a.sub_(1)
    c.add_(1)
    return a, b, c, x


def made_in_an_arm_and_gone(x: Tensor) -> tuple[Tensor, ...]:
    v, w = x * 2, x
    if x.sum() > 0:
        v = x * 3
        if x[0] > 0.5:
            v.mul_(2)
            v = v + 1
        else:
            w = v
        v.add_(3)
    v.sub_(w[1] * 1)
    w.mul_(2)
    return v, w, x


def replaced_in_an_arm(x: Tensor) -> tuple[Tensor, ...]:
    v = x * 2
    if x.sum() > 0:
        v = x * 3
        if x[0] > 0.5:
            v = v + 1
        v.add_(3)
    v.sub_(1)
    return v, x


def written_in_a_later_loop(x: Tensor) -> tuple[Tensor, ...]:
    a = x * 1
    b = a if x.sum() > 0 else x
    for i in range(5):
        b.mul_(0.5)
        a[0] = i
    return a, b


def a_constant_and_an_input(x: Tensor) -> tuple[Tensor, ...]:
    weight = torch.arange(3.0)
    a = weight if x.sum() > 0 else x
    a.add_(1)
    return a, weight


def written_after_a_loop_that_left_it(x: Tensor) -> tuple[Tensor, ...]:
    h = x
    for i in range(5):
        h = torch.tanh(h + i)
    h.add_(1)
    return h, x


@pytest.mark.parametrize(
    "fn",
    [
        alias_of_a_branch,
        alias_of_an_input,
        two_views_from_a_branch,
        collected_and_written,
        carried_under_two_names,
        item_at_a_traced_position,
        view_of_one_of_two,
        nested_choices,
        written_in_a_later_branch,
        made_in_an_arm_and_shared,
        made_in_an_arm_and_gone,
        replaced_in_an_arm,
        written_in_a_later_loop,
        a_constant_and_an_input,
        written_after_a_loop_that_left_it,
    ],
)
def test_aliases_are_followed(fn: Callable[[Tensor], object]) -> None:
    cases = [(1.0, 1.0, 1.0), (0.1, 1.0, 0.0), (-1.0, 0.5, 0.0), (0.7, -2.0, 0.0), (0.2, -0.1, 1.0)]
    check(fn, *[(torch.tensor(case),) for case in cases])


class _Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.h
        if x.sum() > 0:
            h = h + x
        h.mul_(2).add_(1)
        return h


def test_a_buffer_that_is_aliased_in_one_arm_only() -> None:
    model = _Conditional()
    expected = copy.deepcopy(model)
    captured = capture(model, (torch.ones(3),), {}, Options())
    for scale in (1.0, -1.0, -2.0, 2.0):
        x = torch.ones(3) * scale
        assert_same(run_captured(captured, (x,), {}), expected(x))
        assert_same(model.h, expected.h)


@pytest.mark.parametrize("unroll", [0, 8])
def test_reversed_rows_are_those_of_a_copy(unroll: int) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(3)
        for row in reversed(x):
            row.add_(1)
            x.mul_(2)
            total = total + row
        return total, x

    check(f, (rand(3, 3),), options=Options(debug=Debug(unroll=unroll)))


def test_in_place_on_carried_state() -> None:
    def f(x: Tensor) -> Tensor:
        h = torch.zeros(3)
        for row in x:
            h += row
            h = torch.tanh(h)
            h.mul_(0.5)
        return h

    check(f, (rand(6, 3),))


def test_in_place_activation_behind_a_skipped_block() -> None:
    def block(x: Tensor) -> Tensor:
        return torch.relu_(x * 2 + 1)

    def f(x: Tensor) -> Tensor:
        x = x * 1
        for i in range(2):
            if x.sum() > i:
                x = x + block(x)
            x = torch.relu_(x)
        return x

    check(f, (rand(3),), (-rand(3).abs(),), options=Options(debug=Debug(unroll=4)))


def test_a_view_that_is_first_read_in_the_head_of_a_loop() -> None:
    def f(x: Tensor) -> Tensor:
        v = x[0]
        while v.abs().max() > 0.5:
            v = v * 0.5
        return v

    def within(x: Tensor) -> Tensor:
        memory, h = x * 2, x.unsqueeze(0)[0]
        n = 0
        while n < 5:
            h = torch.tanh(h + memory[0])
            token = h.sum().round()
            n += 1
            if token == 3:
                break
        return h

    check(f, (rand(2, 3) * 4,), (rand(2, 3) * 0.01,))
    check(within, (rand(2, 3) * 4,), (rand(2, 3) * 0.01,))
