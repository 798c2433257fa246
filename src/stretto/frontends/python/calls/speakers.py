"""Who prints, warns or logs while a function is captured, and at which line."""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from types import FrameType
from typing import Any

from stretto.frontends.python.tracing.locations import is_user_file, shown_function

_STRETTO = __file__.rpartition("frontends")[0]
_LOGGING = logging.__file__
_CAPTURE = f"{_STRETTO}frontends/python/entry.py"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the code that is captured, or `level` frames outside of the captured function."""

    file: str = ""
    line: int = 0
    function: str = ""
    namespace: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)
    level: int = 0

    def now(self) -> Place:
        """The place at a run: that outside of the function is the caller's."""
        if not self.level:
            return self
        frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        left = self.level
        while frame is not None:
            left -= not frame.f_code.co_filename.startswith(_STRETTO)
            if not left:
                return _place_of(frame)
            frame = frame.f_back
        return Place("sys", 1, "", {})


def _place_of(frame: FrameType) -> Place:
    code = frame.f_code
    return Place(
        code.co_filename,
        frame.f_lineno,
        shown_function(code.co_qualname).rpartition(".")[2],
        frame.f_globals,
    )


def place_at(level: int) -> Place:
    """The place of the user's frame of that level, the innermost being 1. The parts of a function
    that regions are made of are one frame."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    around: tuple[str, str] | None = None
    left = max(level, 1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _CAPTURE and code.co_name == "_call":
            return Place(level=left)
        if not code.co_filename.startswith((_STRETTO, _LOGGING)):
            name = (code.co_filename, shown_function(code.co_qualname))
            is_part = code.co_name.startswith("__stretto")
            left -= name != around
            if not left:
                return _place_of(frame)
            around = name if is_part else None
        frame = frame.f_back
    return Place(level=left)


class _Speaker(Enum):
    """Whose code a file is."""

    IMPORT = auto()
    TRACER = auto()
    USER = auto()
    LOGGING = auto()
    LIBRARY = auto()


@cache
def _speaker(file: str) -> _Speaker:
    if file.startswith("<frozen importlib"):
        return _Speaker.IMPORT
    if file.startswith(_STRETTO):
        return _Speaker.TRACER
    if is_user_file(file):
        return _Speaker.USER
    return _Speaker.LOGGING if file in (_LOGGING, warnings.__file__) else _Speaker.LIBRARY


def is_by_user() -> bool | None:
    """Whether the user's code says something, or a function of a library that it calls. None: the
    tracer does, or what it uses, as eager PyTorch would not."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    by_library = False
    while frame is not None:
        match _speaker(frame.f_code.co_filename):
            case _Speaker.USER:
                return True
            case _Speaker.IMPORT:
                return None
            case _Speaker.TRACER if by_library:
                return False if frame.f_code.co_name == "_native" else None
            case _Speaker.LIBRARY:
                by_library = True
            case _:
                pass
        frame = frame.f_back
    return None
