"""Branches and loops on traced values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.map import map as torch_map

import stretto
from stretto.errors import CaptureError
from stretto.options import Debug, Options
from tests.frontends.python.checks import check, structure

A, B = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, 0.5])


def test_straight_line() -> None:
    check(lambda x: (x * 2 + 1).relu().sum(), (A,), (B,))


def test_if_on_a_tensor() -> None:
    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x * 2
        else:
            y = x - 1
        return y

    assert structure(check(f, (A,), (B,))) == {"if": 1}


def test_elif_chain() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        k = 0
        if x.sum() > 5:
            y, k = x * 2, 1
        elif x.sum() > 0:
            y = x - 1
        elif x[0] < -3:
            y, k = -x, 3
        else:
            y = x
        return y, k

    assert structure(check(f, (A,), (B,), (A / 3,), (B * 4,))) == {"if": 3}


def test_early_return() -> None:
    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        x = x + 1
        if x[0] > 3:
            return x
        return -x

    assert structure(check(f, (A,), (B,), (B - 5,))) == {"if": 2}


def test_python_condition_runs_natively() -> None:
    def f(x: Tensor, flag: bool) -> Tensor:
        if flag and x.shape[0] == 3:
            return x * 2
        return x

    assert structure(check(f, (A, True))) == {}
    assert structure(check(f, (A, False))) == {}


def test_numbers_differ_between_arms() -> None:
    def f(x: Tensor) -> tuple[int, float, bool, Tensor]:
        a, b, c = 1, 2.5, False
        if x.sum() > 0:
            a, b, c = 2, 0.5, True
        return a, b, c, x * a + b

    check(f, (A,), (B,))


def test_containers_are_joined() -> None:
    def f(x: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
        state, table = [x, x + 1], {"h": x}
        if x.sum() > 0:
            state[1] = x * 3
            table["h"] = table["h"] * 2
        else:
            state = [x - 1, x - 2]
        return state, table

    check(f, (A,), (B,))


def test_list_that_grows_in_one_arm() -> None:
    def f(x: Tensor) -> tuple[list[Tensor], int]:
        out = [x]
        if x.sum() > 0:
            out.append(x * 2)
        out.append(x * 3)
        return out, len(out)

    check(f, (A,), (B,))


def test_while_on_a_tensor() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        n = 0
        while x.sum() < 100:
            x = x * 2 + 1
            n += 1
        return x, n

    captured = check(f, (A,), (A * 100,), (A * 0,))
    assert structure(captured) == {"while": 1}


def test_while_whose_flag_becomes_traced() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        done, n = False, 0
        while not done and n < 10:
            x = x * 2
            n += 1
            done = x.sum() > 20
        return x, n

    captured = check(f, (A,), (A * 100,), (A * 0,))
    assert structure(captured) == {"while": 1}


def test_while_true_with_break_and_return() -> None:
    def f(x: Tensor) -> Tensor:
        n = 0
        while True:
            x = x + 1
            n += 1
            if x.sum() > 20:
                break
            if n > 5:
                return -x
        return x

    check(f, (A,), (A * 3,), (A * -9,))


def test_while_true_with_return_only() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        while True:
            y = x + 1
            if y.sum() > 20:
                return x, y
            x = y * 2

    check(f, (A,), (A * 9,))


def test_continue() -> None:
    def f(x: Tensor) -> Tensor:
        total = torch.zeros(())
        for i in range(6):
            if x[i] < 0:
                continue
            total = total + x[i]
        return total

    captured = check(f, (torch.randn(6),), (torch.randn(6),))
    assert structure(captured) == {"for": 1, "if": 1}


def test_break_keeps_the_loop() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        total, last = torch.zeros(()), -1
        for i in range(6):
            total = total + x[i]
            last = i
            if total > 1:
                break
        return total, last

    captured = check(f, (torch.ones(6),), (-torch.ones(6),), (torch.ones(6) / 4,))
    assert structure(captured)["while"] == 1


def test_return_inside_nested_loops() -> None:
    def f(x: Tensor) -> Tensor:
        for i in range(4):
            for j in range(5):
                if x[i, j] > 1.5:
                    return x[i] * j
        return x[0]

    cases = [(torch.randn(4, 5),) for _ in range(4)]
    check(f, *cases, (torch.zeros(4, 5),))


def test_loop_else() -> None:
    def f(x: Tensor) -> Tensor:
        for i in range(5):
            if x[i] > 1:
                y = x * i
                break
        else:
            y = x
        return y

    check(f, (torch.zeros(5),))
    check(f, (torch.tensor([0.0, 0, 2, 0, 3]),), (torch.zeros(5),))


def test_for_range_is_kept() -> None:
    def f(x: Tensor) -> Tensor:
        for i in range(10):
            x = x * 0.5 + i
        return x

    assert structure(check(f, (A,))) == {"for": 1}


def test_range_with_start_and_negative_step() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        y = x[0]
        for i in range(9, 1, -2):
            y = y * 0.5 + x[i]
        return y, i

    assert structure(check(f, (torch.randn(10, 2),))) == {"for": 1}


def test_short_loops_are_unrolled() -> None:
    def f(x: Tensor) -> Tensor:
        for i in range(3):
            x = x + i
        return x

    assert structure(check(f, (A,), options=Options(debug=Debug(unroll=4)))) == {}


def test_loop_that_needs_its_index_is_unrolled() -> None:
    weights = [torch.randn(3) for _ in range(5)]

    def f(x: Tensor) -> Tensor:
        for i in range(5):
            for j in range(6):
                x = x + weights[i] * j
        return x

    captured = check(f, (A,))
    assert structure(captured) == {"for": 5}
    assert any("loop unrolled" in note for note in captured.notes)


def test_range_over_a_tensor_bound() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        for i in range(n):
            x = x + i
        return x

    captured = check(f, (A, torch.tensor(3)), (A, torch.tensor(0)), (A, torch.tensor(-2)))
    assert structure(captured) == {"for": 1}


def test_range_over_two_traced_bounds_and_a_step() -> None:
    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        for i in range(int(a), b.item(), 2):
            x = x * 0.5 + i
        return x

    cases = [(A, torch.tensor(a), torch.tensor(b)) for a, b in [(1, 6), (0, 7), (5, 2)]]
    assert structure(check(f, *cases)) == {"for": 1}


def test_for_over_a_tensor() -> None:
    def f(xs: Tensor) -> Tensor:
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(h + x)
        return h

    assert structure(check(f, (torch.randn(7, 3),))) == {"for": 1}


def test_enumerate_zip_and_reversed() -> None:
    def f(xs: Tensor, ys: Tensor) -> Tensor:
        h = torch.zeros(3)
        for i, x in enumerate(xs):
            h = torch.tanh(h + x * i)
        for x, y in zip(xs, ys, strict=True):
            h = h * x + y
        for i in reversed(range(7)):
            h = h - xs[i] * i
        return h

    assert structure(check(f, (torch.randn(7, 3), torch.randn(7, 3)))) == {"for": 3}


def test_loops_over_as_many_rows_as_data_say() -> None:
    def f(x: Tensor, keep: Tensor, count: Tensor) -> Any:
        h, kept, first = torch.zeros(3), x[keep], x[: count[0]]
        for i, row in enumerate(kept):
            h = torch.tanh(h + row * i)
        for row, other in zip(reversed(first), kept):  # noqa: B905
            h = h * row + other
        for row in reversed(kept):
            row += 1  # of a copy
        return h, kept, [row.sum() for row in reversed(first)], list(reversed(kept))

    keep, count = torch.tensor([True, False, True, True]), torch.tensor([3])
    others = [(torch.randn(4, 3), ~keep, count - 2), (torch.randn(4, 3), keep & ~keep, count * 0)]
    check(f, (torch.randn(4, 3), keep, count), *others)


def test_a_reversed_tensor_is_a_tensor() -> None:
    def f(x: Tensor, keep: Tensor) -> Any:
        back, rows = reversed(x), reversed(x[keep])
        total = torch.zeros(3)
        for _ in range(2):
            for row in back:
                total = total * 0.5 + row
        return total, back, len(rows), rows + 1, next(iter(back))  # type: ignore[operator]

    check(f, (torch.randn(4, 3), torch.tensor([True, False, True, True])))
    with pytest.raises(TypeError, match="'Tensor' object is not an iterator"):
        stretto.compile(lambda x: next(reversed(x)), backend="interpreter")(torch.randn(4, 3))


def test_loop_over_a_list_of_tensors() -> None:
    def f(xs: list[Tensor]) -> Tensor:
        h = torch.zeros(3)
        for x in xs:
            h = h + x
        return h

    assert structure(check(f, ([A, B, A],))) == {}


def test_traced_break_in_a_native_loop() -> None:
    def f(xs: list[Tensor]) -> tuple[Tensor, int]:
        h, n = torch.zeros(3), 0
        for x in xs:
            h = h + x
            n += 1
            if h.sum() > 7:
                break
        return h, n

    check(f, ([A, B, A],), ([B, B, B],), ([B, A, A],))


def test_first_round_changes_the_structure() -> None:
    def f(xs: Tensor) -> Tensor:
        h = None
        for i in range(6):
            h = xs[i] if h is None else torch.tanh(h + xs[i])
        return h

    assert structure(check(f, (torch.randn(6, 3),))) == {"for": 1}


def test_accumulator_starts_as_a_number() -> None:
    def f(xs: Tensor) -> Tensor:
        total = 0
        for x in xs:
            total = total + x.sum()
        return total

    check(f, (torch.randn(6, 3),))


def test_dtype_is_promoted_around_a_loop() -> None:
    def f(xs: Tensor) -> Tensor:
        total = torch.zeros(3, dtype=torch.int64)
        for x in xs:
            total = total + x
        return total

    check(f, (torch.randn(6, 3),))


def test_state_in_lists_tuples_and_dataclasses() -> None:
    def f(xs: Tensor) -> tuple[Tensor, ...]:
        pair = (torch.zeros(3), torch.ones(3))
        table = {"n": 0, "s": torch.zeros(())}
        stack = [torch.zeros(3), torch.zeros(3)]
        for x in xs:
            pair = (pair[1] + x, pair[0])
            table["n"] += 1
            table["s"] = table["s"] + x.sum()
            stack = [stack[1], stack[0] + x]
        return *pair, table["s"] * table["n"], *stack

    assert structure(check(f, (torch.randn(7, 3),))) == {"for": 1}


def test_lists_that_grow() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, int, Tensor]:
        out: list[Tensor] = []
        h = x[0]
        for i in range(8):
            h = torch.tanh(h + x[i])
            out.append(h)
        return torch.stack(out), out[-1], len(out), torch.cat(out, dim=-1)

    assert structure(check(f, (torch.randn(8, 3),))) == {"for": 1}


def test_list_of_tensor_dependent_length() -> None:
    def f(x: Tensor) -> list[Tensor]:
        out = []
        while x.sum() < 50:
            x = x * 2
            out.append(x)
        return out

    captured = check(f, (A,), (A * 100,), (A * 3,))
    assert structure(captured) == {"while": 1}


def test_stack_of_tensor_dependent_length() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, int]:
        out = [x]
        while x.sum() < 50:
            x = x * 2
            out.append(x)
        rows = torch.stack(out)
        return torch.tanh(rows @ w).sum(0), rows.mean(), len(out)

    check(f, (A, torch.randn(3, 4)), (A * 100, torch.randn(3, 4)))


def test_list_pop_and_index() -> None:
    def f(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        stack = [x]
        total = torch.zeros(3)
        n = 0
        while n < 6 and x.sum() < 100:
            if len(stack) > 1 and total.sum() > x.sum():
                total = total - stack.pop()
            else:
                stack.append(stack[-1] + 1)
                total = total + stack[0] + stack[len(stack) - 1]
            n += 1
        return total, stack

    check(f, (A,), (B,), (A * 60,))


def test_boolean_operators() -> None:
    def f(x: Tensor, n: int) -> Tensor:
        if x.sum() > 0 and x[0] < 5 and n == 2:
            x = x + 1
        if not x.any() or x[1] > 1:
            x = x * 2
        if 0 < x.sum() < 20 != x[0]:
            x = x - 7
        return x if x.max() > 0 else -x

    check(f, (A, 2), (B, 2), (A * 0, 2), (A * 9, 2))


def test_operand_that_may_fail_is_guarded() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        if i < 3 and x[i] > 0:
            return x * 2
        return x

    check(f, (A, torch.tensor(1)), (B, torch.tensor(0)), (A, torch.tensor(7)))


def test_membership() -> None:
    def f(x: Tensor, k: Tensor) -> Tensor:
        if k.item() in (1, 5, 7):
            return x + k
        return x - k if k not in [2, 3] else x

    check(f, *[(A, torch.tensor(k)) for k in (1, 2, 5, 8)])


def test_numbers_that_depend_on_no_input_are_known() -> None:
    def f(x: Tensor) -> tuple[Tensor, str, Tensor]:
        parts = torch.div(x.numel(), 3, rounding_mode="trunc")
        position = torch.arange(5).flip(0)[1]
        rates = torch.linspace(0, 1, 5)
        chunks = x.view(parts, 3).sum(1)
        return chunks, "abcde"[position], x.new_zeros(int(rates[2] * 4), 2)

    assert structure(check(f, (A,), (B,))) == {}


def test_numbers_of_inputs_are_not_known() -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        return x if "abc"[int(n * torch.arange(3)[2])] == "c" else -x

    with pytest.raises(CaptureError, match="a Python int is needed here"):
        stretto.compile(f, (A, torch.tensor(1)), backend="interpreter")


def test_libraries_are_told_of_the_capture() -> None:
    def f(x: Tensor, mask: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and bool(mask.all()):
            return x[:0]
        return torch.where(mask, x, 0.0)

    mask = torch.tensor([True, True, True])
    fast = stretto.compile(f, backend="interpreter")
    assert torch.equal(fast(A, mask), A)
    assert not torch.compiler.is_compiling()


def test_libraries_that_raise_when_compiled_are_told_that_they_are_not() -> None:
    def f(x: Tensor, mask: Tensor | None = None) -> Tensor:
        if x.sum() < -100:
            raise ValueError("too small")
        if mask is None and not torch.compiler.is_compiling():
            mask = torch.ones(3)
        return x * mask[None]  # pyright: ignore[reportOptionalSubscript]

    fast = stretto.compile(f, backend="interpreter")
    for x in (A, A * 2, A):
        assert torch.equal(fast(x), f(x))
    with pytest.raises(ValueError, match="too small"):
        fast(A - 1000)
    with pytest.raises(TypeError):
        stretto.compile(lambda x: torch.compiler.is_compiling() + None)(A)


def test_numbers_from_tensors() -> None:
    def f(x: Tensor) -> tuple[float, int, bool, Tensor, int]:
        s = x.sum().item()
        n = int(x[0])
        return s * 2 + 1, n // 2 + n % 3, bool(x[1] > 0), x * s, max(n, 2)

    check(f, (A,), (B,), (A * 5,))


def test_fstrings_asserts_and_print(capsys: object) -> None:
    def f(x: Tensor, name: str) -> dict[str, Tensor]:
        assert x.shape[0] == 3, f"{name} has shape {x.shape}"
        assert isinstance(name, str)
        return {f"{name}_{x.shape[0]}": x + 1}

    check(f, (A, "left"))


def test_walrus() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        while (s := x.sum()) < 30:
            x = x * 2
        return x, s

    check(f, (A,), (A * 30,))


def test_everything_nested() -> None:
    def f(x: Tensor, n: Tensor) -> tuple[Tensor, list[Tensor]]:
        out = []
        for i in range(n):
            if x.sum() > 0:
                while x.max() > 1:
                    x = x / 2
                    for j in range(3):
                        x = x + 0.01 * j
                        if x[0] > 0.3:
                            break
                out.append(x)
            else:
                x = -x * (i + 1)
        return x, out

    cases = [(torch.randn(3) * 3, torch.tensor(k)) for k in (0, 1, 4, 7)]
    check(f, *cases)


def test_map_over_rows() -> None:
    def body(row: list[Tensor], y: Tensor) -> dict[str, Tensor]:
        one, other = row
        return {"sum": one + y, "product": one * other if one.sum() > 0 else other}

    def f(x: Tensor, z: Tensor, y: Tensor) -> dict[str, Tensor]:
        return torch_map(body, [x, z], y)

    args = torch.tensor([[1.0, 2.0], [-3.0, 1.0]]), torch.ones(2, 2) * 3, torch.ones(2)
    found = stretto.compile(f, backend="emulator")(*args)
    rows = [body([one, other], args[2]) for one, other in zip(*args[:2], strict=True)]
    for key in ("sum", "product"):
        assert torch.equal(found[key], torch.stack([row[key] for row in rows]))
    with pytest.raises(RuntimeError, match="must be consistent"):
        stretto.compile(f, backend="emulator")(torch.ones(3, 2), torch.ones(2, 2), torch.ones(2))


def test_torch_cond_and_while_loop() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))
        _, z = torch.while_loop(
            lambda n, v: n < 5, lambda n, v: (n + 1, v * 1.5), (torch.tensor(0), y)
        )
        return z

    assert structure(check(f, (A,), (B,))) == {"if": 1, "while": 1}


def test_undefined_in_one_arm() -> None:
    def unused(x: Tensor) -> Tensor:
        if x.sum() > 0:
            y = x * 2
            x = y + 1
        return x

    check(unused, (A,), (B,))


def test_break_in_the_first_round_whatever_the_tensors_are() -> None:
    def f(x: Tensor, n: int) -> Tensor:
        for i in range(5):
            x = x * 2 + i
            if n % 2 == 0:
                break
        return x

    check(f, (A, 0))
    check(f, (A, 1))


def test_torch_while_loops_learn_apart() -> None:
    """What one loop carries says nothing of another loop, though both are entered alike."""

    def f(x: Tensor, start: Tensor) -> tuple[int, Tensor]:
        torch.while_loop(
            lambda i, n, _: i < 3, lambda i, n, y: (i + 1, n + 1, y + n), (start, 0, x)
        )
        _, m, z = torch.while_loop(
            lambda i, n, _: i < 3,
            lambda i, n, y: (i + 1, n, y + y.sum(n, keepdim=True)),
            (start, 0, x),
        )
        return m, z

    wanted = A
    for _ in range(3):
        wanted = wanted + wanted.sum(0, keepdim=True)
    m, z = stretto.compile(f, backend="interpreter")(A, torch.tensor(0))
    assert m == 0
    torch.testing.assert_close(z, wanted)


def test_a_condition_that_no_input_decides_is_no_branch() -> None:
    """As in `generate` of transformers, where a mask of ones is replaced by None."""

    def f(x: Tensor) -> Tensor:
        end = torch.tensor(3)
        differs = ~torch.isin(end.unsqueeze(0), end).any()
        padded = (x == end).any() * differs
        mask = x.ne(end).long() * padded + torch.ones(x.shape, dtype=torch.long) * ~padded
        kept = None if (mask == 1).all() else mask
        if kept is not None:
            x = x * kept
        return x + 1

    ids = torch.tensor([[1, 2, 3]])
    assert structure(check(f, (ids,), (ids + 1,))) == {}


def test_infinity_times_zero_decides_a_condition_in_the_run() -> None:
    def f(x: Tensor) -> Tensor:
        if (x * torch.zeros(())).isnan().any():
            return x + 1
        return x - 1

    check(f, (A,), (A / 0,))


def test_a_module_by_its_call_method() -> None:
    class Doubles(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x * 2
            return x - 1

    model = Doubles()

    def f(x: Tensor) -> Tensor:
        run = model.__call__
        return run(x)

    assert structure(check(f, (A,), (-A,))) == {"if": 1}
