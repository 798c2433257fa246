"""`print`: it shows texts of the interpreter, on the stream that the program sees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stretto.frontends.python.calls import output_journal, special
from stretto.frontends.python.interpreter import native_code
from stretto.frontends.python.values.either import Either
from stretto.frontends.python.values.texts import is_text

if TYPE_CHECKING:
    from stretto.frontends.python.interpreter.execution import PythonInterpreter

_SHOWN = (str, torch.Tensor, torch.SymInt, torch.SymFloat)
"""Classes of values that the journal shows itself."""


def output_rules(interpreter: PythonInterpreter) -> dict[Any, Callable[..., Any]]:
    attributes = interpreter.attributes

    def shown(value: Any) -> Any:
        if isinstance(value, _SHOWN) or is_text(value) or value is None:
            return value
        return interpreter.strings.text(value, str)

    def print_(*args: Any, file: Any = None, **kwargs: Any) -> Any:
        stream = attributes.getattr(sys, "stdout") if file is None else file
        found = next((item for item in (stream, *args) if isinstance(item, Either)), None)
        if found is not None:
            return interpreter.regions.each_option(
                found,
                lambda option: print_(
                    *[option if item is found else item for item in args],
                    file=option if stream is found else stream,
                    **kwargs,
                ),
            )
        texts = list(map(shown, args))
        if native_code.is_of_user(type(stream)) or interpreter.heap.is_own(stream):
            return to_object(stream, texts, **kwargs)
        special.check_harmless(print, (), {"file": stream})
        if output_journal.stream_name(stream) is None:
            interpreter.calls.natives.note_change(stream, "print")
        return output_journal.printed(*texts, file=stream, **kwargs)

    def to_object(
        stream: Any, items: list[Any], sep: Any = None, end: Any = None, flush: bool = False
    ) -> None:
        """Print to an object of the user, as Python does: item by item."""
        write = attributes.getattr(stream, "write")
        for number, item in enumerate(items):
            if number:
                interpreter.calls.call(write, (" " if sep is None else sep,), {})
            interpreter.calls.call(write, (interpreter.strings.text(item, str),), {})
        interpreter.calls.call(write, ("\n" if end is None else end,), {})
        if flush:
            interpreter.calls.call(attributes.getattr(stream, "flush"), (), {})

    return {print: print_}
