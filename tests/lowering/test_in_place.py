"""Carried tensors that arms of branches update: in one buffer where that is right, and right."""

from __future__ import annotations

import random

import pytest

from stretto.device.tree import For
from tests.backends import check
from tests.lowering.programs import lowered, nodes, operators

POOL, PART, ROW = "f32[5, 2]", "f32[1, 2]", "f32[2]"


def loop(body: str) -> str:
    return f"""
        func @main(%x: {POOL}, %y: {POOL}, %s: {PART}, %h: {ROW}) -> ({POOL}, {POOL}, {ROW}) {{
          %p, %q, %r = for %i in (0, 5, 1) carry (%a = %x, %b = %y, %g = %h) {{
            %m = aten.remainder.Scalar(%i, 2) : i64[]
            %c = aten.eq.Scalar(%m, 0) : bool[]
            {body}
          }} : {POOL}, {POOL}, {ROW}
          return %p, %q, %r
        }}
        """


def branch(then: str, orelse: str, results: str = "%a1", types: str = POOL) -> str:
    return f"{results} = if %c {{\n{then}\n}} else {{\n{orelse}\n}} : {types}"


def update(result: str, base: str, source: str = "%s", at: str = "%i") -> str:
    return f"{result} = stretto.narrow_scatter({base}, {source}, 0, {at}) : {POOL}"


IN_PLACE = [
    branch(f"{update('%t', '%a')}\nyield %t", "yield %a") + "\nyield %a1, %b, %g",
    branch(f"{update('%t', '%a')}\nyield %t", f"{update('%u', '%a', at='0')}\nyield %u")
    + f"\n{update('%a2', '%a1')}\nyield %a2, %b, %g",
    branch(
        branch(f"{update('%t', '%a')}\nyield %t", f"{update('%u', '%a', at='0')}\nyield %u", "%n")
        + f"\n{update('%n1', '%n', at='1')}\nyield %n1",
        "yield %a",
    )
    + "\nyield %a1, %b, %g",
    branch(
        f"{update('%t', '%a')}\n{update('%u', '%b')}\nyield %t, %u",
        f"{update('%v', '%b', at='0')}\nyield %a, %v",
        "%a1, %b1",
        f"{POOL}, {POOL}",
    )
    + "\nyield %a1, %b1, %g",
    # What is read before is kept before.
    f"%old = aten.select.int(%a, 0, %i) : {ROW}\n"
    + branch(f"{update('%t', '%a')}\nyield %t", "yield %a")
    + f"\n%g1 = aten.add.Tensor(%old, %g) : {ROW}\nyield %a1, %b, %g1",
]


def inner(body: str, results: str = "%a1", inits: str = "%w = %a", types: str = POOL) -> str:
    return f"{results} = for %j in (0, 3, 1) carry ({inits}) {{\n{body}\n}} : {types}"


NESTED = [
    inner(f"{update('%t', '%w', at='%j')}\nyield %t") + "\nyield %a1, %b, %g",
    # In an arm, and followed by a further update.
    branch(inner(f"{update('%t', '%w', at='%j')}\nyield %t", "%n") + "\nyield %n", "yield %a")
    + f"\n{update('%a2', '%a1')}\nyield %a2, %b, %g",
    # A branch in a loop in a loop, and what was there before.
    f"%old = aten.select.int(%a, 0, %i) : {ROW}\n"
    + inner(branch(f"{update('%t', '%w', at='%j')}\nyield %t", "yield %w", "%n") + "\nyield %n")
    + f"\n{update('%a2', '%a1', at='4')}"
    + f"\n%g1 = aten.add.Tensor(%old, %g) : {ROW}\nyield %a2, %b, %g1",
    inner(
        f"{update('%t', '%w', at='%j')}\n{update('%u', '%z', at='%i')}\nyield %t, %u",
        "%a1, %b1",
        "%w = %a, %z = %b",
        f"{POOL}, {POOL}",
    )
    + "\nyield %a1, %b1, %g",
]

COPIED = [
    # The inner loop changes what is wanted as it was, or carries one pool twice.
    inner(f"{update('%t', '%w', at='%j')}\nyield %t")
    + f"\n%e = aten.add.Tensor(%a, %a1) : {POOL}\nyield %a1, %e, %g",
    inner(
        f"{update('%t', '%w', at='%j')}\nyield %t, %z",
        "%a1, %b1",
        "%w = %a, %z = %a",
        f"{POOL}, {POOL}",
    )
    + "\nyield %a1, %b1, %g",
    # The other arm's result, the old tensor, or both pools are wanted, too.
    branch(f"{update('%t', '%a')}\nyield %t", "yield %b") + "\nyield %a1, %b, %g",
    branch(f"{update('%t', '%a')}\nyield %t", "yield %a")
    + f"\n%e = aten.add.Tensor(%a, %a1) : {POOL}\nyield %a1, %e, %g",
    branch(f"{update('%t', '%a')}\n%e = aten.add.Tensor(%a, %t) : {POOL}\nyield %e", "yield %a")
    + "\nyield %a1, %b, %g",
    branch(f"{update('%t', '%a')}\nyield %t, %a", "yield %a, %b", "%a1, %b1", f"{POOL}, {POOL}")
    + "\nyield %a1, %b1, %g",
    branch(f"{update('%t', '%a')}\nyield %t, %t", "yield %a, %b", "%a1, %b1", f"{POOL}, {POOL}")
    + "\nyield %a1, %b1, %g",
]


@pytest.mark.parametrize("body", IN_PLACE)
def test_arms_update_a_carried_tensor_in_its_buffer(body: str) -> None:
    result = lowered(loop(body))
    (node,) = nodes(result, For)
    assert all(buffer.shape == (2,) for buffer, _ in node.rotate)
    made = [name for name in operators(result) if name not in ("init", "p", "q", "r")]
    assert set(made) <= {"update", "old", "g1"}  # no copies of a pool
    check(loop(body))


@pytest.mark.parametrize("body", NESTED)
def test_loops_in_a_loop_update_a_carried_tensor_in_its_buffer(body: str) -> None:
    result = lowered(loop(body))
    assert all(buffer.shape == (2,) for node in nodes(result, For) for buffer, _ in node.rotate)
    made = [name for name in operators(result) if name not in ("init", "p", "q", "r")]
    assert set(made) <= {"update", "old", "g1"}
    check(loop(body))


@pytest.mark.parametrize("body", COPIED)
def test_a_tensor_that_is_needed_once_more_is_not_updated_in_place(body: str) -> None:
    found = nodes(lowered(loop(body)), For)
    assert any(buffer.shape == (5, 2) for node in found for buffer, _ in node.rotate)
    check(loop(body))


class Writer:
    """Writes random bodies: reads and updates of two pools, in branches of any depth."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.lines: list[str] = []

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def emit(self, text: str, type_: str) -> str:
        name = self.name()
        self.lines.append(f"{name} = {text} : {type_}")
        return name

    def row(self, pools: list[str], rows: list[str]) -> str:
        rng = self.rng
        if rng.random() < 0.5:
            at = rng.choice(("%i", "0", "-1"))
            return self.emit(f"aten.select.int({rng.choice(pools)}, 0, {at})", ROW)
        first, second = rng.choice(rows), rng.choice(rows)
        function = rng.choice(("add", "mul"))
        return self.emit(f"aten.{function}.Tensor({first}, {second})", ROW)

    def body(self, pools: list[str], rows: list[str], depth: int) -> tuple[list[str], list[str]]:
        """The pools and rows at the end; older pools may be read and updated, too."""
        rng = self.rng
        known, now, rows = list(pools), list(pools), list(rows)
        for _ in range(rng.randint(1, 4)):
            kind = rng.random()
            place = rng.randrange(2)
            if kind < 0.4:
                rows.append(self.row(known if rng.random() < 0.3 else now, rows))
            elif kind < 0.8 or not depth:
                base = rng.choice(known) if rng.random() < 0.1 else now[place]
                row = rng.choice(rows)
                part = self.emit(f"aten.view.default({row}, (1, 2))", PART)
                at = rng.choice(("%i", "0", "2"))
                now[place] = self.emit(f"stretto.narrow_scatter({base}, {part}, 0, {at})", POOL)
                known.append(now[place])
            else:
                within = self.branch if rng.random() < 0.6 else self.inner
                now, row = within(now, rows, depth - 1)
                known, rows = [*known, *now], [*rows, row]
        return now, rows

    def branch(self, pools: list[str], rows: list[str], depth: int) -> tuple[list[str], str]:
        outer, arms = self.lines, list[str]()
        for _ in range(2):
            self.lines = []
            ends, made = self.body(pools, rows, depth)
            self.lines.append(f"yield {', '.join([*ends, made[-1]])}")
            arms.append("\n".join(self.lines))
        self.lines = outer
        results = [self.name() for _ in range(3)]
        types = f"{POOL}, {POOL}, {ROW}"
        text = f"{{\n{arms[0]}\n}} else {{\n{arms[1]}\n}} : {types}"
        self.lines.append(f"{', '.join(results)} = if %c {text}")
        return results[:2], results[2]

    def inner(self, pools: list[str], rows: list[str], depth: int) -> tuple[list[str], str]:
        """A loop that carries both pools and a row."""
        outer, self.lines = self.lines, []
        inits = [*pools, rows[-1]]
        params, results = ([self.name() for _ in range(3)] for _ in range(2))
        ends, made = self.body(params[:2], [*rows, params[2]], depth)
        self.lines.append(f"yield {', '.join([*ends, made[-1]])}")
        text = "\n".join(self.lines)
        carry = ", ".join(f"{a} = {b}" for a, b in zip(params, inits, strict=True))
        self.lines = outer
        self.lines.append(
            f"{', '.join(results)} = for {self.name()} in (0, 2, 1) carry ({carry}) "
            f"{{\n{text}\n}} : {POOL}, {POOL}, {ROW}"
        )
        return results[:2], results[2]

    def text(self) -> str:
        pools, rows = self.body(["%a", "%b"], ["%g"], 2)
        self.lines.append(f"yield {', '.join([*pools, rows[-1]])}")
        return loop("\n".join(self.lines))


@pytest.mark.parametrize("seed", range(12))
def test_random_updates_in_branches_and_loops(seed: int) -> None:
    check(Writer(seed).text(), units=(1, 3), fuse=(True,), native=())
