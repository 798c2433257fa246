"""Which exceptions of a trace are those of the user's program."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.frontends.python.calls import builtins
from stretto.frontends.python.tracing import frames
from stretto.frontends.python.values import raises


def raised_in(file: str, error: Exception, text: str = "raise error") -> Exception:
    """`error` as it is where code of this file has raised it."""
    code = compile(f"def f(error): {text}", file, "exec")
    names: dict[str, object] = {}
    exec(code, names)
    with pytest.raises(type(error)) as caught:
        names["f"](error)  # type: ignore[operator]
    return caught.value


def test_the_files_that_act_for_the_user_exist() -> None:
    assert all(Path(file).is_file() for file in raises._FOR_THE_USER)


def test_what_acts_for_the_user_raises_what_eager_raises() -> None:
    assert raises.raises(raised_in(str(builtins.__file__), TypeError("as Python says")))


def test_a_bug_of_the_capture_is_no_exception_of_the_program() -> None:
    file = str(frames.__file__)
    assert not raises.raises(raised_in(file, TypeError(), "None + 1"))
    assert not raises.raises(raised_in(file, AttributeError(), "error.nothing"))
    assert not raises.raises(raised_in(file, AssertionError()))


def test_what_the_capture_raises_by_itself_is_what_eager_raises() -> None:
    file = str(frames.__file__)
    assert raises.raises(raised_in(file, TypeError("'int' object does not support ...")))
    assert raises.raises(raised_in(file, KeyError("k")))


def test_an_index_of_the_capture_itself_is_no_exception_of_the_program() -> None:
    """An IndexError may be that of an operator: then the capture raises it."""
    file = str(frames.__file__)
    assert raises.raises(raised_in(file, IndexError("as an operator says")))
    for text in ("error.args[3]", "first, *_ = ()", "[][0] = 1"):
        kind = ValueError if "first" in text else IndexError
        assert not raises.raises(raised_in(file, kind(), text))
