"""What a function prints, warns of and logs: in each call what eager PyTorch says, in its order."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import pprint
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stretto

from ..checks import assert_same

LOG = logging.getLogger("tests.effects")
QUIET = logging.getLogger("tests.effects.quiet")
QUIET.setLevel(logging.ERROR)

A, B = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([3.0, -2.0, 4.0])
VALUES = (A, B, A, torch.zeros(3), B)


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Named({self.name})"


NAMED = Named("global")
NAMES = ["a", "b"]


def straight(x: Tensor) -> Tensor:
    print("sum", x.sum(), x.sum().item(), x.shape, None, 1.5, sep="|", end=".\n")
    print()
    print(f"{x}", [int(x[0]), "a"], {"k": x}, NAMED, NAMES, x.dtype)
    return x * 2


def in_arms(x: Tensor) -> Tensor:
    if x.sum() > 100:
        print("never")
        warnings.warn("never", stacklevel=1)
        LOG.warning("never")
    elif x.sum() > 4:
        print("big", x.sum().item())
        warnings.warn(f"big {x.sum():.1f}", stacklevel=1)
        LOG.warning("big %s %.2f", x, x.sum().item())
    else:
        print("small", file=sys.stderr)
    return x + 1


def in_loops(x: Tensor) -> Tensor:
    while x.sum() < 6:
        x = x + 1
        print("while", x[0].item())
        if x[0] > 2:
            LOG.info("over %d", int(x[0]))
    for i in range(int(x[0])):
        print("for", i, x[i % 3])
        warnings.warn(f"round {i}", DeprecationWarning, stacklevel=1)
    return x


def nested(x: Tensor) -> Tensor:
    for i in range(int(x[0])):
        for j in range(i):
            print(i, j)
        print("-")
    return x


def in_tests(x: Tensor) -> Tensor:
    def asked(x: Tensor) -> bool:
        print("asked", x[0].item())
        return bool(x[0] < 3)

    while asked(x):
        x = x + 1
    return x if asked(x) and x[1] > 0 else -x


def before_and_after_changes(x: Tensor) -> Tensor:
    print(x)
    x.add_(1)
    print(x)
    x[0] = 5
    print(x[0], x)
    return x


def streams(x: Tensor) -> Tensor:
    sys.stdout.write(f"out {x[0].item()}\n")
    sys.stderr.write("err\n")
    sys.stdout.writelines(["a\n", "b\n"])
    sys.stdout.flush()
    print("to err", file=sys.stderr, flush=True)
    return x


def logs(x: Tensor) -> Tensor:
    LOG.debug("debug %s", x[0].item())
    LOG.log(logging.INFO, "info %(a)s", {"a": int(x[0])})
    LOG.error("error", extra={"value": 3})
    LOG.warning("%s", f"text {int(x[0])}", stacklevel=2)
    QUIET.info("not seen %s", x)
    QUIET.error("seen %s", x[0])
    logging.warning("root %d", int(x[0]))
    return x


def of_libraries(x: Tensor) -> Tensor:
    pprint.pprint({"a": 1})
    if x.sum() > 4:
        pprint.pprint(["b"])
    return x


def raises_after(x: Tensor) -> Tensor:
    print("before", x.sum().item())
    x = x + torch.rand(3)
    if x[0] > 2:
        LOG.error("bad %s", x[0].item())
        raise ValueError(f"bad {x[0].item():.1f}")
    print("after")
    return x


def always_raises(x: Tensor) -> Tensor:
    print("before")
    raise KeyError("always")


def caught(x: Tensor) -> Tensor:
    try:
        raise ValueError("inner")
    except ValueError as error:
        LOG.warning("caught %s", error)
        print(error)
    return x


def ignored(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("ignored", stacklevel=1)
    warnings.warn("heard", FutureWarning, stacklevel=1)
    return x


def helper(x: Tensor, depth: int) -> Tensor:
    warnings.warn(f"deep {depth}", stacklevel=2)
    return x + depth


def in_helpers(x: Tensor) -> Tensor:
    x = helper(x, 1)
    if x.sum() > 5:
        x = helper(x, 2)
    return x


@functools.lru_cache(None)
def once(text: str) -> None:
    LOG.warning(text)
    print("once", text)


@functools.lru_cache(None)
def warned_once(log: logging.Logger, text: str) -> None:
    log.warning(text)


@functools.lru_cache(None)
def constant() -> float:
    return 2.0


def cached_before_a_change(x: Tensor) -> Tensor:
    """The result is in the cache, so that no change can matter."""
    NAMES.append("c")
    x = x * constant()
    NAMES.pop()
    return x


constant()


@functools.lru_cache(None)
def length_of_the_name() -> float:
    return float(len(NAMED.name))


def cached_after_a_change_taken_back(x: Tensor) -> Tensor:
    """Nothing differs from what was before when the function with a cache runs."""
    before, NAMED.name = NAMED.name, "other"
    x = x * len(NAMED.name)
    NAMED.name = before
    return x * length_of_the_name()


def once_only(x: Tensor) -> Tensor:
    warned_once(LOG, "first")
    if x.sum() > 4:
        once("big")
    once("any")
    return x


def recursive(x: Tensor) -> Tensor:
    if x.sum() > 8:
        print("end", x.sum().item())
        return x
    print("down", x[0].item())
    return recursive(x + 1)


def kept(x: Tensor) -> Tensor:
    NAMES.append("c")
    print(len(NAMES))
    NAMES.pop()
    return x


def shown_after_a_change(x: Tensor) -> Tensor:
    NAMED.name = f"{int(x[0])}"
    print(NAMED, NAMED.name)
    return x


def to_a_buffer(x: Tensor) -> Any:
    out = io.StringIO()
    print("a", file=out)
    return x, out.getvalue()


def redirected(x: Tensor) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("hidden")
    return x, out.getvalue()


def recorded(x: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("kept", stacklevel=1)
    return x, len(found)


def shown_objects(x: Tensor) -> Tensor:
    print(Named(f"{int(x[0])}"), Named("new"), (x[0].item(), None), x > 1, range(3), str(x.shape))
    print(*[int(i) for i in x], *NAMES)
    return x


def warned_by_objects(x: Tensor) -> Tensor:
    if x.sum() > 4:
        warnings.warn(UserWarning(f"sum {x.sum():.1f}"), stacklevel=1)
    warnings.warn("plain", category=RuntimeWarning, stacklevel=1)
    warnings.warn_explicit("explicit", UserWarning, "file.py", 7)
    return x


def what_is_written(x: Tensor) -> Tensor:
    x = x * sys.stdout.write("abc")
    return x * sys.stdout.write(f"abc{int(x[0])}")


def mapped(x: Tensor) -> Tensor:
    list(map(print, ["a", "b"]))
    list(map(print, x.tolist()))
    return x


def left_early(x: Tensor) -> Tensor:
    for i in range(10):
        if x[0] > 3:
            print("break at", i)
            break
        x = x + 1
        if i % 2:
            continue
        print("even", i)
    try:
        if x.sum() > 9:
            return x
    finally:
        print("finally")
    return -x


def generated(x: Tensor) -> Any:
    def values() -> Any:
        for i in range(3):
            print("yield", i, x[i].item())
            yield x[i]

    return sum(values())


SAYING: list[Callable[[Tensor], Any]] = [
    straight, in_arms, in_loops, nested, in_tests, before_and_after_changes, streams, logs,
    of_libraries, raises_after, always_raises, caught, ignored, in_helpers, once_only,
    cached_before_a_change, cached_after_a_change_taken_back,
    recursive, warned_by_objects, what_is_written, mapped, left_early, generated, kept,
    shown_after_a_change, to_a_buffer, redirected, recorded, shown_objects,
]  # fmt: skip


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found = list[Any]()

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("stretto"):
            told = (record.name, record.levelname, record.getMessage(), record.filename)
            self.found.append([*told, record.lineno, record.funcName, vars(record).get("value")])


def said(function: Callable[[], Any]) -> list[Any]:
    """The result of a function or its error, and what it says."""
    out, err, records = io.StringIO(), io.StringIO(), Records()
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(records)
    root.setLevel(logging.DEBUG)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            try:
                result: Any = function()
            except (ValueError, KeyError) as error:
                result = [type(error).__name__, str(error)]
    finally:
        root.removeHandler(records)
        root.setLevel(level)
    told = [[str(w.message), w.category.__name__, w.filename, w.lineno] for w in warned]
    return [result, out.getvalue(), err.getvalue(), told, records.found]


def calls(function: Callable[[Tensor], Any]) -> list[Any]:
    once.cache_clear()
    warned_once.cache_clear()
    NAMED.name = "global"
    NAMES[:] = ["a", "b"]
    torch.manual_seed(3)
    return [said(lambda x=x: function(x.clone())) for x in VALUES]


@pytest.mark.parametrize("function", SAYING)
@pytest.mark.parametrize("fallback", [False, True])
def test_each_call_says_what_eager_says(function: Callable[[Tensor], Any], fallback: bool) -> None:
    expected = calls(function)
    fast = stretto.compile(function, backend="interpreter", fallback=fallback)
    try:
        found = calls(fast)
    except stretto.CaptureError as error:
        assert not fallback
        assert error.location is not None
        assert "fallback=True" in str(error)
        return
    assert_same(found, expected)


def test_a_program_of_a_machine_says_the_same() -> None:
    for function in (in_arms, in_loops):
        assert_same(calls(stretto.compile(function, backend="emulator")), calls(function))


def test_compiling_says_nothing() -> None:
    fast = stretto.compile(in_arms, backend="interpreter")
    assert said(lambda: fast._prepare((A,)))[1:] == ["", "", [], []]  # pyright: ignore


def test_a_level_that_changes() -> None:
    fast = stretto.compile(logs, backend="interpreter")
    for level in (logging.ERROR, logging.INFO, logging.ERROR):
        QUIET.setLevel(level)
        assert_same(said(lambda: fast(A)), said(lambda: logs(A)))


def test_the_first_of_equal_warnings() -> None:
    counts = list[int]()
    for function in (stretto.compile(in_arms, backend="interpreter"), in_arms):
        in_arms.__globals__.pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("default")
            for x in VALUES:
                function(x)
        counts.append(len(found))
    assert counts[0] == counts[1] == 1


def compares_literals(x: Tensor) -> Any:
    return x + 1, 1 is None  # noqa: F632


def test_a_warning_of_the_compiler_of_python_is_not_repeated() -> None:
    fast = stretto.compile(compares_literals, backend="interpreter")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            fast(A)
        assert found == []
