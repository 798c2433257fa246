# ruff: noqa: C416, UP031, UP032
"""Texts of traced values: each function gives what Python gives, or is refused with a remedy."""

from __future__ import annotations

import json
import re
import string
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stretto

from ..checks import assert_same

VALUES = (
    torch.tensor([1.0, 2.0, 0.5]),
    torch.tensor([12.0, -2.0, 0.25]),
    torch.tensor([0.0, 0.0, -0.0]),
    torch.tensor([1.0, 2.0, 0.5]),
)


def n(x: torch.Tensor) -> int:
    return int(x[0])


def v(x: torch.Tensor) -> float:
    return float(x[2])


def b(x: torch.Tensor) -> bool:
    return bool(x[0] > 0.5)


OPTIONS = {"1": 2.0, "12": 3.0, "k1": 4.0, "True": 5.0, "0.50": 6.0}

RIGHT: list[Callable[[torch.Tensor], Any]] = [
    # what a text is compared with
    lambda x: x * OPTIONS.get(str(n(x)), 7.0),
    lambda x: x * {"layer1": 2.0}.get(f"layer{n(x)}", 5.0),
    lambda x: x * (2 if "k" + str(n(x)) == "k1" else 3),
    lambda x: x * (2 if "k%d" % n(x) == "k1" else 3),
    lambda x: x * (2 if f"k{n(x)}" in ("k1", "k2") else 3),
    lambda x: x * (2 if "k%d" % n(x) in {"k12": 1} else 3),
    lambda x: x * (2 if "k%d" % n(x) not in {"k0", "k12"} else 3),
    lambda x: x * (f"{v(x):.1f}" == "0.5"),
    lambda x: x * (f"{v(x):.1f}" == "0.2"),
    lambda x: x * (f"{v(x):.0%}" == "50%"),
    lambda x: x * (f"{v(x):.2e}" == "2.50e-01"),
    lambda x: x * (str(v(x)) == "0.5"),
    lambda x: x * (str(v(x)) == "0.0"),
    lambda x: x * (str(v(x)) == "-0.0"),
    lambda x: x * (f"{v(x):.1f}" == "-0.0"),
    lambda x: x * (f"{v(x):g}" == "0.25"),
    lambda x: x * (repr(v(x)) != "0.5"),
    lambda x: x * (f"{n(x):03d}" == "012"),
    lambda x: x * (f"{n(x):>3}" == " 12"),
    lambda x: x * (f"{n(x)}_{n(x)}" == "1_1"),
    lambda x: x * (f"{n(x)}{int(x[1])}" == "12"),
    lambda x: x * (f"{n(x)}{int(x[1])}" == "12-2"),
    lambda x: x * (f"{n(x)!r}" == "1"),
    lambda x: x * (f"{n(x)}" == 1),
    lambda x: x * (f"{n(x)}" == f"{int(x[0])}"),
    lambda x: x * (f"{n(x)}" == f"{int(x[1])}"),
    lambda x: x * (f"{n(x)}" == "1"),
    lambda x: x * f"layer{n(x)}".startswith("layer"),
    lambda x: x * f"layer{n(x)}".startswith("block"),
    lambda x: x * f"layer{n(x)}.weight".endswith("weight"),
    lambda x: x * f"layer{n(x)}".endswith("r"),
    lambda x: x * ("layer" in f"layer{n(x)}"),
    lambda x: x if f"{n(x)}" else -x,
    lambda x: x if not f"{n(x)}" else -x,
    lambda x: x * isinstance(f"{n(x)}", str),
    lambda x: x * (type(str(n(x))) is str),
    lambda x: x * (str(n(x)) is None),
    lambda x: x * (f"{x.sum()}" == "3.5"),
    # texts of bools are one of two
    lambda x: x * (str(b(x)) == "True"),
    lambda x: x * {"True": 2.0, "False": 3.0}[str(b(x))],
    lambda x: x * len(str(b(x))),
    lambda x: x * f"{b(x)}".startswith("T"),
    lambda x: x * f"is {b(x)}".upper().count("E"),
    lambda x: x * str(b(x)).isalpha(),
    lambda x: x * OPTIONS.get(f"{b(x)}", 1.0),
    # results
    lambda x: (x, f"{x.sum().item():.2f}"),
    lambda x: str(n(x)),
    lambda x: repr(v(x)),
    lambda x: f"{n(x)!r:>5}|{v(x):+.3f}|{b(x)}",
    lambda x: "%05.2f and %s and %r and %5d%%" % (v(x), n(x), b(x), n(x)),
    lambda x: "%(a)d-%(b)s" % {"a": n(x), "b": v(x)},
    lambda x: "%s" % str(n(x)),
    lambda x: "%6s|" % f"<{n(x)}>",
    lambda x: "k{}".format(n(x)),
    lambda x: "{0:>6}|{a:.1f}|{0}".format(n(x), a=v(x)),
    lambda x: x * ("k{}".format(n(x)) in ("k1", "k2")),
    lambda x: "{:>{}}|".format(n(x), 6),
    lambda x: format(v(x), ".3f"),
    lambda x: str(x),
    lambda x: repr(x),
    lambda x: f"{x}",
    lambda x: f"{x[0]} {x[0]!s} {x.sum():.2f}",
    lambda x: str(x.shape) + str(x.sum()),
    lambda x: "k" + str(n(x)) + ".",
    lambda x: ", ".join([str(n(x)), "a", f"{v(x)}"]),
    lambda x: ", ".join(str(int(x[i])) for i in range(3)),
    lambda x: "-".join([f"{i}:{int(x[i])}" for i in range(3)]),
    lambda x: str([n(x), v(x), b(x), "a"]),
    lambda x: str({"a": n(x), "b": [x]}),
    lambda x: repr((n(x), None)),
    lambda x: json.dumps({"v": n(x), "w": [v(x), b(x)]}),
    lambda x: json.dumps([n(x)], indent=1),
    lambda x: str(n(x)).zfill(4),
    lambda x: f"a{n(x)}".upper().replace("A", "b").center(9, "*"),
    lambda x: f"a{n(x)}"[1:],
    lambda x: str(n(x)) * 2,
    lambda x: hex(n(x)) + bin(n(x)) + oct(n(x)),
    lambda x: ascii(n(x)),
    lambda x: {"text": f"{n(x)}", "list": [f"{v(x)}"]},
    lambda x: f"{n(x)}" if x.sum() > 2 else "small",
    lambda x: f"{n(x)}" if x.sum() > 2 else f"{int(x[1])}",
    lambda x: f"big {n(x)}" if x.sum() > 2 else f"small {int(x[1])}",
    lambda x: (f"{n(x)}" if x.sum() > 2 else "12") == "12",
    lambda x: {"1": x, "small": -x}.get(f"{n(x)}" if x.sum() > 2 else "small", x * 2),
    lambda x: f"{'a' if b(x) else 'b'}{n(x)}",
    lambda x: f"{(n(x) if b(x) else v(x))}",
    # of sizes and of constants
    lambda x: x * len(f"{x.shape[0]}"),
    lambda x: x * int(f"{x.shape[0]}"),
    lambda x: x * {"3": 2.0}[f"{x.shape[0]}"],
    # `is`
    lambda x: x * (b(x) is True),
    lambda x: x * (b(x) is False),
    lambda x: x * (b(x) is not True),
    lambda x: x * (b(x) is None),
    lambda x: x * ((x > 0)[0].item() is True),
    lambda x: x * (n(x) is None),
    lambda x: x * (n(x) is True),
    lambda x: x * (v(x) is not None),
    lambda x: 1 if (True is b(x)) else 2,
]

EITHER: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x * f"{n(x)}".startswith("1"),
    lambda x: x * len(f"{v(x):.1f}"),
    lambda x: x * len(json.dumps({"v": n(x)})),
    lambda x: x * (re.match("1", str(n(x))) is not None),
    lambda x: x * bool(re.sub("1", "", str(n(x)))),
    lambda x: x * (str(n(x)).zfill(3) == "001"),
    lambda x: x * str(n(x)).isdigit(),
    lambda x: x * ord(chr(n(x) + 65)),
    lambda x: x * hash(n(x)),
    lambda x: x * hash(str(n(x))),
    lambda x: x * (repr(x) == "tensor([1., 1., 1.])"),
    lambda x: {f"{x.sum().item()}": x},
    lambda x: {f"{n(x)}"},
    lambda x: x * int(str(n(x))),
    lambda x: x * float(f"{v(x):.1f}"),
    lambda x: x * eval(str(n(x))),
    lambda x: x * len("ab" * n(x)),
    lambda x: "ab" * n(x),
    lambda x: str(n(x)) * n(x),
    lambda x: string.Template("$a").substitute(a=n(x)),
    lambda x: textwrap.fill(f"{n(x)} b", 3),
    lambda x: "{a}".format_map({"a": n(x)}),
    lambda x: str(n(x)).split(","),
    lambda x: str(n(x)).encode(),
    lambda x: [c for c in str(n(x))],
    lambda x: x * (str(n(x)) < "2"),
    lambda x: x * (str(n(x))[0] == "1"),
    lambda x: sorted([str(n(x)), "0"]),
    lambda x: max(str(n(x)), "0"),
    lambda x: x * ("1" in str(n(x))),
    lambda x: x * (str(n(x)) in "012"),
    lambda x: x * "12".count(str(n(x))),
    lambda x: x * "12".find(str(n(x))),
    lambda x: "a1b".replace(str(n(x)), "c"),
    lambda x: x * ["1", "12"].index(str(n(x))),
    lambda x: x * getattr(torch, f"float{n(x)}", torch.float32).itemsize,
    lambda x: x * OPTIONS[str(n(x))],
    lambda x: x * (n(x) is 1),  # noqa: F632
    lambda x: x * (v(x) is v(x)),
    lambda x: x * (f"{n(x):x}" == "c"),
    lambda x: x * (f"{n(x):,}" == "12"),
    lambda x: x * (f"{n(x):.1f}" == "12.0"),
    lambda x: x * ("%c" % n(x) == "a"),
    lambda x: "%x" % n(x),
    lambda x: "%d" % v(x),
    lambda x: b"%d" % n(x),
    lambda x: f"{n(x):{n(x)}}",
    lambda x: int(f"{n(x)}", 16),
    lambda x: x * f"{n(x)}".__len__(),
    lambda x: x * (f"{n(x)}".__eq__("1")),
    lambda x: x * str(n(x)).__contains__("1"),
    lambda x: str(object=n(x)),
    lambda x: "".join(map(str, [n(x), n(x)])),
    lambda x: "".join(str(i) for i in x.tolist()),
    lambda x: str(x.tolist()),
    lambda x: f"{x.tolist()}",
    lambda x: dict.fromkeys([str(n(x))], 1),
    lambda x: {str(n(x)): 1}.get("1"),
    lambda x: print and f"{n(x)}".format(1),
    lambda x: f"{n(x)}".join(["a", "b"]),
    lambda x: f"{n(x)} %d" % 3,
    lambda x: "".join([f"{n(x)}" for _ in range(n(x) % 3)]),
    lambda x: str(x[: n(x) % 3]),
    lambda x: f"{x[:2].sum() if b(x) else None}",
    lambda x: x * len({f"{n(x)}", "1"}),
    lambda x: str(Exception(n(x))),
    lambda x: str(range(n(x))),
    lambda x: str(slice(n(x))),
    lambda x: str({n(x)}),
]


def _outcome(function: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        return function(x)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        return type(error).__mro__[-4:], str(error)


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_like_python(number: int) -> None:
    function = RIGHT[number]
    fast = stretto.compile(function, backend="interpreter")
    for x in VALUES:
        assert_same(fast(x.clone()), function(x.clone()))


@pytest.mark.parametrize("number", range(len(EITHER)))
def test_like_python_or_refused(number: int) -> None:
    function = EITHER[number]
    fast = stretto.compile(function, backend="interpreter")
    for x in VALUES:
        try:
            found = _outcome(fast, x.clone())
        except stretto.CaptureError as error:
            assert error.location is not None
            assert error.remedy
            return
        assert_same(found, _outcome(function, x.clone()))


class Reported(Exception):
    def __init__(self, value: float, x: torch.Tensor) -> None:
        super().__init__(f"value {value:.2f}")
        self.value, self.x = value, x


def raised(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 3:
        raise ValueError(f"sum is {x.sum().item():.1f}")
    return x * 2


def asserted(x: torch.Tensor) -> torch.Tensor:
    assert x.sum() < 3, f"bad sum {x.sum()}"
    return x * 2


def raised_of_its_own(x: torch.Tensor) -> torch.Tensor:
    x = x + torch.rand(3)
    for i in range(4):
        if x[0] > 2:
            raise Reported(x[0].item(), x + i)
        x = x + 1
    return x


def raised_for_a_key(x: torch.Tensor) -> torch.Tensor:
    return x * {"k0": 2, "k12": 3}[f"k{n(x)}"]


def always_raised(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    raise ValueError("sum", x.sum(), f"{x[0]}")


RAISING = [raised, asserted, raised_of_its_own, raised_for_a_key, always_raised]


@pytest.mark.parametrize("function", RAISING)
@pytest.mark.parametrize("backend", ["interpreter", "emulator"])
def test_exceptions_show_values(function: Callable[..., Any], backend: str) -> None:
    fast = stretto.compile(function, backend=backend)
    for x in VALUES:
        outcomes = []
        for each in (function, fast):
            torch.manual_seed(1)
            given = x.clone()
            try:
                found: Any = each(given)
            except (ValueError, AssertionError, KeyError, Reported) as error:
                first = str(error).splitlines()[0]  # pytest adds lines to that of an assert
                held = {key: item for key, item in vars(error).items() if key != "__notes__"}
                found = [type(error).__name__, first, held]
            outcomes.append([found, given, torch.rand(2)])
        assert_same(outcomes[1], outcomes[0])


HELD: dict[str, Any] = {}


class Named:
    def __init__(self) -> None:
        self.name = "start"

    def __str__(self) -> str:
        return f"<{self.name}>"


NAMED = Named()


def in_a_loop(x: torch.Tensor) -> Any:
    name = "none"
    for i in range(n(x) % 4):
        name = f"round {i}"
        if name == "round 2":
            x = x + 1
    return x


def carried(x: torch.Tensor) -> Any:
    name = f"{n(x)} at first"
    while x.sum() < 20:
        x = x + 1
        if x[0] > 4:
            name = f"{n(x)} at first"
    return x, name


def grown(x: torch.Tensor) -> Any:
    name = ""
    for i in range(3):
        name = name + f"{int(x[i])},"
    return name


def grown_in_a_loop(x: torch.Tensor) -> Any:
    name = ""
    for _ in range(n(x) % 4):
        name += f"{n(x)},"
    return name


def kept_in_objects(x: torch.Tensor) -> Any:
    if x.sum() > 3:
        HELD["text"] = f"big {x.sum():.1f}"
    else:
        HELD["text"] = "small"
    NAMED.name = f"{n(x)}"
    return x + 1, str(NAMED), f"{NAMED!s:>6}"


def read_again(x: torch.Tensor) -> Any:
    before = HELD.get("name", "none")
    HELD["name"] = f"{n(x)}"
    return x * 2 if before == "none" else x


def before_a_change(x: torch.Tensor) -> Any:
    before = str(x)
    x.add_(1)
    return before, str(x)


def recursive(x: torch.Tensor) -> Any:
    if x.sum() > 20:
        return f"{x.sum():.1f}", x
    return recursive(x + 1)


def handled(x: torch.Tensor) -> Any:
    try:
        raise ValueError(f"{n(x)} bad")
    except ValueError as error:
        return x, str(error)


def matched(x: torch.Tensor) -> Any:
    match f"k{n(x)}":
        case "k1":
            return x + 1
        case "k12":
            return x + 2
        case str():
            return x + 3


def matched_flag(x: torch.Tensor) -> Any:
    match b(x):
        case True:
            return x + 1
        case _:
            return x + 2


def chosen(x: torch.Tensor) -> Any:
    kind = "a" if b(x) else "b"
    return x, f"{kind}-{n(x)}", {"a-1": x, "b-0": -x}.get(f"{kind}-{n(x)}", x * 3)


STATEFUL = [
    in_a_loop, carried, grown, grown_in_a_loop, kept_in_objects, read_again, before_a_change,
    recursive, handled, matched, matched_flag, chosen,
]  # fmt: skip


@pytest.mark.parametrize("function", STATEFUL)
def test_texts_in_arms_loops_and_objects(function: Callable[..., Any]) -> None:
    outcomes = list[Any]()
    for compiled in (False, True):
        HELD.clear()
        NAMED.name = "start"
        each = stretto.compile(function, backend="interpreter") if compiled else function
        found = list[Any]()
        try:
            for x in VALUES:
                found.append([each(x.clone()), dict(HELD), NAMED.name])
        except stretto.CaptureError as error:
            assert error.location is not None
            assert error.remedy
            found = outcomes[0]
        outcomes.append(found)
    assert_same(outcomes[1], outcomes[0])


class Stopped(Exception):
    """An exception of the user's."""


@pytest.mark.parametrize("show", [str, repr, "{}".format, lambda e: e.args[0]])
def test_a_message_that_is_one_of_several(show: Callable[[Any], str]) -> None:
    def function(x: torch.Tensor) -> Any:
        error = Stopped("large" if x.sum() > 3 else "small")
        return x, show(error)

    fast = stretto.compile(function, backend="interpreter", fallback=True)
    for x in (torch.ones(3) * 2, torch.zeros(3), torch.ones(3) * 2):
        assert_same(fast(x), function(x))
