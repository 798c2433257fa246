"""Runs the kernel of graphs/words.py as its PTX says: the few instructions that it has."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

Values = dict[str, int | bool]


def run_ptx(text: str, parameters: dict[str, int], decide: Callable[[int, bool], None]) -> int:
    """Follows one thread; gives how many instructions it took. Raises KeyError for what is not
    known here. decide: what `cudaGraphSetConditional` does."""
    body = text[text.index("{", text.index(".entry")) + 1 : text.rindex("}")]
    lines = [line.strip().rstrip(";") for line in body.splitlines()]
    lines = [line for line in lines if line not in ("", "{", "}") and not line.startswith(".")]
    labels = {line[:-1]: place for place, line in enumerate(lines) if line.endswith(":")}
    values: Values = {}
    handed: dict[str, int] = {}
    place = taken = 0

    def value(name: str) -> int:
        return int(values[name]) if name.startswith("%") else int(name)

    def address(text: str) -> int:
        found = re.fullmatch(r"\[(%\w+)(?:\+(\d+))?\]", text)
        assert found is not None, text
        return value(found[1]) + int(found[2] or 0)

    def word(at: int) -> ctypes.c_int64:
        return ctypes.c_int64.from_address(at)

    while True:
        line = lines[place]
        place += 1
        taken += 1
        if line.endswith(":"):
            continue
        guard = re.match(r"@(!?)(%\w+)\s+", line)
        if guard is not None:
            line = line[guard.end() :]
            if bool(values[guard[2]]) == (guard[1] == "!"):
                continue
        name, _, rest = line.partition(" ")
        operands = [part.strip() for part in re.split(r",(?![^(]*\))", rest)]
        kind = name.split(".")[0]
        match name.split(".")[:2]:
            case ["bra", *_]:
                place = labels[operands[0]]
            case ["ret", *_]:
                return taken
            case ["ld", "param"]:
                values[operands[0]] = parameters[operands[1].strip("[]")]
            case ["ld", "s64"]:
                values[operands[0]] = word(address(operands[1])).value
            case ["st", "param"]:
                handed[operands[0].strip("[]")] = value(operands[1])
            case ["st", "s64"]:
                word(address(operands[0])).value = value(operands[1])
            case ["add", _]:
                values[operands[0]] = value(operands[1]) + value(operands[2])
            case ["sub", _]:
                values[operands[0]] = value(operands[1]) - value(operands[2])
            case ["selp", _]:
                chosen = operands[1] if values[operands[3]] else operands[2]
                values[operands[0]] = value(chosen)
            case ["setp", how]:
                a, b = value(operands[1]), value(operands[2])
                holds = {"eq": a == b, "ne": a != b, "lt": a < b, "gt": a > b}
                values[operands[0]] = holds[how]
            case ["call", _]:
                assert operands == ["cudaGraphSetConditional", "(first, second)"]
                decide(handed["first"], bool(handed["second"]))
            case _:
                raise KeyError(f"{kind}: {line}")
