"""Where control is decided, as `explain()` says it."""

from __future__ import annotations

import torch
from torch import Tensor

import stretto
from stretto.options import Options
from stretto.tools.control_rows import UNITS, Decided, decided
from tests.e2e.machines import spread


def down(x: Tensor, n: Tensor) -> Tensor:
    if n <= 0:
        return x
    return down(x * 0.5, n - 1) + 1


def control(x: Tensor, flag: Tensor, n: Tensor) -> Tensor:
    for _ in range(6):
        x = torch.tanh(x @ x)
    for _ in range(x.shape[0]):
        x = x + torch.sin(x @ x)
    if flag:
        x = x @ x.t()
    while x.abs().sum() > 1:
        x = x * 0.5
    k = 0
    while k * k < 20:
        x, k = torch.cos(x @ x), k + n
    return down(x, n)


def rows(units: int, hosted: dict[str, str]) -> dict[str, Decided]:
    with torch.no_grad(), spread():
        options = Options(units=units, threads=units)
        compiled = stretto.compile(control, backend="emulator", options=options, dynamic=True)
        compiled(torch.randn(5, 5), torch.tensor(True), torch.tensor(3))
    (entry,) = compiled.signatures
    assert entry.stages.device is not None
    found = decided(entry.stages.device, 2e-7, hosted)
    assert "control: where each loop, branch and call is decided" in compiled.explain()
    return {row.what: row for row in found}


def test_each_control_node_says_where_it_is_decided_and_why() -> None:
    found = rows(3, {"call down": "a library call inside"})
    why = {what: (row.who, row.why) for what, row in found.items()}
    loops = [row for row in why.values() if row[0] == "when it was compiled"]
    assert loops == [("when it was compiled", "it has 6 trips")]
    reasons = [reason for who, reason in why.values() if who == UNITS]
    assert sum("it depends on sizes of the call" in one for one in reasons) == 1
    assert sum(", which is there before the run" in one for one in reasons) == 2
    wait = ", which the program computes; a unit waits 200 ns for another"
    assert sum(wait in one for one in reasons) == 1
    assert "it depends on numbers in registers alone" in reasons
    hosted = [who for what, (who, _) in why.items() if what.endswith("call down")]
    assert hosted and set(hosted) == {"on the host, between launches"}


def test_one_unit_waits_for_nobody_and_recursion_takes_all_units_down() -> None:
    found = rows(1, {})
    assert not any("waits" in row.why for row in found.values())
    calls = [row.why for what, row in found.items() if "call down" in what]
    assert any("all units go down together" in why for why in calls)
