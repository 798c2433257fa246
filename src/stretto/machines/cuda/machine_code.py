"""Instructions of a compiled program with their effects on memory, and the control flow between
them.

The second part reads PTX; tests read SASS into the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class MemoryEffect(Enum):
    """Effects of an instruction on memory, or on the order of accesses to it. Shared memory has
    two parts: Triton's own, its scratch, and the part that holds the program's constants."""

    LOOK = "a relaxed strong load of a word that other units write"
    ACQUIRE = "an acquire load of such a word"
    LOAD = "a weak load"
    STORE = "a weak store"
    UPDATE = "an atomic operation without an order"
    FAIL = "a compare-and-swap, by which one thread claims the error word for its unit"
    NON_COHERENT = "a load through the non-coherent cache (.nc, .CONSTANT, textures)"
    ASYNC_PROXY = "a copy of the async proxy (TMA), which fences of the generic proxy do not order"
    COPY = "the start of an asynchronous copy to scratch (cp.async)"
    COMMIT = "the end of a group of such copies"
    COPIED = "a wait for all groups of copies"
    FENCE = "a fence of gpu scope or wider"
    INVALIDATE = "what makes the thread read nothing older from its L1 cache"
    BARRIER = "a barrier of all threads of the unit"
    PUBLISH = "an exchange or a strong store, which others look at"
    READ = "a load of scratch"
    WRITE = "a store to scratch"
    MULTIPLY = "the start of an asynchronous product of blocks in scratch (wgmma)"
    MULTIPLIED = "a wait for all such products"
    SEND = "the start of a copy from scratch by the async proxy"
    SENT = "a wait for all such copies"
    RECEIVE = "the start of a copy to scratch by the async proxy"
    RECEIVED = "the end of a memory barrier (mbarrier) by which a thread waited for such copies"
    KEEP = "a store of a constant in shared memory"
    KEPT = "a load of such a constant"
    CALL = "a call of another function"
    RETURN = "the end of the function"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. place: its line in PTX, its address in SASS. effects: in order.

    conditional: True if a predicate decides whether it is executed. targets: the labels that it may
    jump to. falls_through: True if the next instruction may follow it.
    """

    place: str
    text: str
    effects: tuple[MemoryEffect, ...] = ()
    conditional: bool = False
    targets: tuple[str, ...] = ()
    falls_through: bool = True

    @property
    def may_do_nothing(self) -> bool:
        """True if a predicate may skip its effects. Excluded are a failure and the end of a memory
        barrier, which one thread executes for the whole unit."""
        for_all = MemoryEffect.FAIL in self.effects or MemoryEffect.RECEIVED in self.effects
        return self.conditional and not for_all


@dataclass(frozen=True, slots=True)
class MachineFunction:
    """A function. labels: the index of the instruction after each; for one at the end, the number
    of instructions."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int] = field(default_factory=dict[str, int])

    def successors(self, index: int) -> tuple[int, ...]:
        """Return the indices of the instructions that may follow one."""
        instruction = self.instructions[index]
        following = [self.labels[target] for target in instruction.targets]
        if instruction.falls_through:
            following.append(index + 1)
        return tuple(index for index in following if index < len(self.instructions))


def called_by(call: Instruction, functions: Sequence[MachineFunction]) -> list[str]:
    """Return the functions with a body that an instruction may call."""
    names = {*re.findall(r"[\w$]+", call.text)}
    return [function.name for function in functions if function.name in names]


# ---- Reading PTX, the input of ptxas (PTX ISA 8.7).
#
# Constants in shared memory are loaded and stored as `.shared::cta`, a synonym of `.shared`; Triton
# and LLVM write the latter for scratch.


_HEADER = re.compile(r"^(?:\.visible |\.weak |\.extern )*\.(?:func|entry)\b")
_NAME = re.compile(r"\.(?:func\s*(?:\([^)]*\))?|entry)\s*([\w$]+)")
_LABEL = re.compile(r"^\s*([\w$]+):(?!:)")
_STATEMENT = re.compile(r"^(@!?%?\w+\s+)?([a-z]\w*(?:[.:]+\w+)*)\s*(.*)$", re.DOTALL)
_ADDRESS = re.compile(r"\[\s*(%\w+)\s*(?:\+\s*0\s*)?\]")
_WIDE = ("gpu", "sys", "cluster")
"""Scopes of more than one thread block."""


def functions(ptx: str) -> list[MachineFunction]:
    """Return the functions of a module that have a body."""
    found: list[MachineFunction] = []
    header = ""
    body: list[tuple[int, str]] | None = None
    depth = 0  # of braces: inline assembly has nested blocks
    for number, line in enumerate(ptx.splitlines(), 1):
        line = line.partition("//")[0].rstrip()
        if body is None:
            header = line if _HEADER.match(line) else f"{header} {line}"
            if line.endswith(";"):  # it was only declared
                header = ""
            if line == "{" and (name := _NAME.search(header)):
                body, depth = [], 1
                found.append(MachineFunction(name[1], ()))
            continue
        depth += line.count("{") - line.count("}")
        if not depth:
            found[-1] = _function(found[-1].name, body)
            body, header = None, ""
        elif not line.lstrip().startswith((".loc", ".file")):
            body.append((number, line))
    return found


def _function(name: str, lines: Sequence[tuple[int, str]]) -> MachineFunction:
    """Read one function. Blocks of inline assembly may repeat labels; a jump refers to the
    nearest."""
    statements: list[tuple[int, str]] = []
    labels: dict[str, list[int]] = {}
    tables: dict[str, list[str]] = {}
    last = ""
    for number, text in _statements(lines):
        if label := _LABEL.match(text):
            last = label[1]
            labels.setdefault(last, []).append(len(statements))
        elif text.startswith(".branchtargets"):
            tables[last] = re.findall(r"[\w$]+", text.removeprefix(".branchtargets"))
        elif not text.startswith("."):
            statements.append((number, text))
    reader = _InstructionReader(_copies([text for _, text in statements]), labels, tables)
    instructions = tuple(
        reader.instruction(index, number, text) for index, (number, text) in enumerate(statements)
    )
    places = {f"{label}@{index}": index for label, at in labels.items() for index in at}
    return MachineFunction(name, instructions, places)


def _statements(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the statements and labels of a body, each with the line where it ends, with blocks
    flattened."""
    rest = ""
    for number, line in lines:
        rest = f"{rest} {line}".lstrip(" \t{}")
        while (label := _LABEL.match(rest)) or ";" in rest:
            end = label.end() if label else rest.index(";")
            yield number, " ".join(rest[:end].split())
            rest = rest[end:].lstrip("; \t{}")


def _copies(statements: Sequence[str]) -> dict[str, list[str]]:
    """Return, for each register, the source of each statement that defines it as a copy; "" for a
    statement that is not a copy."""
    found: dict[str, list[str]] = {}
    for text in statements:
        match = _STATEMENT.match(text)
        if match is None or match[2].partition(".")[0] in ("st", "red", "bra", "bar"):
            continue
        target, *sources = re.findall(r"%\w+|[\w$]+_param_\d+", match[3]) or [""]
        is_copy = re.match(r"mov|cvta|ld\.param", match[2]) and len(sources) == 1
        found.setdefault(target, []).append(sources[0] if is_copy else "")
    return found


@dataclass(frozen=True, slots=True)
class _InstructionReader:
    """copies: by register, as `_copies`. labels: the indices of instructions after each. tables:
    jump targets by the label of their table."""

    copies: dict[str, list[str]]
    labels: dict[str, list[int]]
    tables: dict[str, list[str]]

    def instruction(self, index: int, line: int, text: str) -> Instruction:
        match = _STATEMENT.match(text)
        if match is None:
            raise ValueError(f"line {line}: {text!r} is not a statement of PTX")
        predicate, name, operands = match[1], match[2], match[3]
        parts = tuple(name.split("."))
        targets = self._targets(index, parts[0], operands)
        leaves = parts[0] in ("bra", "brx", "ret", "exit", "trap") and not predicate
        effects = self._effects(parts, operands)
        return Instruction(f"line {line}", text, effects, bool(predicate), targets, not leaves)

    def _targets(self, index: int, base: str, operands: str) -> tuple[str, ...]:
        names: Sequence[str] = ()
        if base == "bra":
            names = (operands,)
        elif base == "brx":
            names = self.tables[operands.split()[-1]]
        return tuple(
            f"{name}@{min(self.labels[name], key=lambda at: abs(at - index))}" for name in names
        )

    def _effects(self, parts: tuple[str, ...], operands: str) -> tuple[MemoryEffect, ...]:
        if parts[1:2] == ("shared::cta",) and parts[0] in ("ld", "st"):
            return (MemoryEffect.KEPT,) if parts[0] == "ld" else (MemoryEffect.KEEP,)
        if parts[0] in ("ld", "st", "atom", "red") and not _is_global(parts):
            return _scratch(parts)
        match parts[0]:
            case "ld":
                effects = _load(parts)
                return (
                    ()
                    if effects == (MemoryEffect.LOOK,) and self._is_error_word(operands)
                    else effects
                )
            case "st":
                return _store(parts)
            case "atom":
                return _atomic(parts)
            case "red":
                return (*_released(parts), MemoryEffect.UPDATE)
            case "ldu" | "tex" | "tld4" | "suld":
                return (MemoryEffect.NON_COHERENT,)
            case "cp":
                return _copy(parts, operands)
            case "ldmatrix" | "stmatrix":
                return (MemoryEffect.READ,) if parts[0] == "ldmatrix" else (MemoryEffect.WRITE,)
            case "wgmma":
                return _product(parts, operands)
            case "mbarrier":
                ended = (MemoryEffect.RECEIVED,) if "inval" in parts else ()
                return (*ended, MemoryEffect.READ, MemoryEffect.WRITE)
            case "fence" | "membar":
                return _fence(parts)
            case "bar" | "barrier":
                return _barrier(parts, operands)
            case "call":
                return (MemoryEffect.CALL,)
            case "ret" | "exit":
                return (MemoryEffect.RETURN,)
            case _:
                return ()

    def _is_error_word(self, operands: str) -> bool:
        """Return True if the address is the first argument itself: word 0 of the control block,
        from which nothing is acquired."""
        address = _ADDRESS.search(operands)
        pending = [address[1]] if address else []
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name.endswith("_param_0") or name in seen:
                continue
            seen.add(name)
            sources = self.copies.get(name, [""])
            if "" in sources:
                return False
            pending += sources
        return address is not None


def _is_global(parts: tuple[str, ...]) -> bool:
    """Return True for the global and the generic address space."""
    return not any(part.split("::")[0] in ("shared", "local", "param", "const") for part in parts)


def _scratch(parts: tuple[str, ...]) -> tuple[MemoryEffect, ...]:
    if not any(part.split("::")[0] == "shared" for part in parts):
        return ()
    kinds = {"ld": (MemoryEffect.READ,), "st": (MemoryEffect.WRITE,)}
    return kinds.get(parts[0], (MemoryEffect.READ, MemoryEffect.WRITE))


def _product(parts: tuple[str, ...], operands: str) -> tuple[MemoryEffect, ...]:
    if parts[1] == "mma_async":
        return (MemoryEffect.MULTIPLY,)
    return (
        (MemoryEffect.MULTIPLIED,) if parts[1] == "wait_group" and operands.strip() == "0" else ()
    )


def _is_wide(parts: tuple[str, ...]) -> bool:
    return any(part in _WIDE for part in parts)


def _released(parts: tuple[str, ...]) -> tuple[MemoryEffect, ...]:
    return (MemoryEffect.FENCE,) if {"release", "acq_rel"} & {*parts} and "cta" not in parts else ()


def _load(parts: tuple[str, ...]) -> tuple[MemoryEffect, ...]:
    if "nc" in parts:
        return (MemoryEffect.NON_COHERENT,)
    if "acquire" in parts and _is_wide(parts):
        return (MemoryEffect.ACQUIRE,)
    is_strong = {"volatile", "mmio"} & {*parts} or ("relaxed" in parts and _is_wide(parts))
    return (MemoryEffect.LOOK,) if is_strong else (MemoryEffect.LOAD,)


def _store(parts: tuple[str, ...]) -> tuple[MemoryEffect, ...]:
    if "async" in parts:
        return (MemoryEffect.ASYNC_PROXY,)
    is_strong = {"volatile", "mmio"} & {*parts} or _is_wide(parts)
    return (*_released(parts), MemoryEffect.PUBLISH) if is_strong else (MemoryEffect.STORE,)


def _atomic(parts: tuple[str, ...]) -> tuple[MemoryEffect, ...]:
    kind = {"exch": MemoryEffect.PUBLISH, "cas": MemoryEffect.FAIL}
    done = next((kind[part] for part in parts if part in kind), MemoryEffect.UPDATE)
    acquires = {"acquire", "acq_rel"} & {*parts} and "cta" not in parts
    return (*_released(parts), done, *((MemoryEffect.ACQUIRE,) if acquires else ()))


def _copy(parts: tuple[str, ...], operands: str) -> tuple[MemoryEffect, ...]:
    if "bulk" in parts:
        return (MemoryEffect.ASYNC_PROXY, *_bulk(parts, operands))
    match parts[2:3]:
        case ("commit_group",):
            return (MemoryEffect.COMMIT,)
        case ("wait_group",):
            return (MemoryEffect.COPIED,) if operands.strip() == "0" else ()
        case ("wait_all",):
            return (MemoryEffect.COMMIT, MemoryEffect.COPIED)
        case ("ca",) | ("cg",):
            return (MemoryEffect.COPY,)
        case ("mbarrier",):
            return (MemoryEffect.READ, MemoryEffect.WRITE)
        case _:
            return ()


def _bulk(parts: tuple[str, ...], operands: str) -> tuple[MemoryEffect, ...]:
    if "wait_group" in parts:
        return (MemoryEffect.SENT,) if operands.strip() == "0" else ()
    spaces = [part.split("::")[0] for part in parts]
    if "shared" not in spaces:
        return ()
    target = next(space for space in spaces if space in ("shared", "global"))
    return (MemoryEffect.RECEIVE,) if target == "shared" else (MemoryEffect.SEND,)


def _fence(parts: tuple[str, ...]) -> tuple[MemoryEffect, ...]:
    if "proxy" in parts or not (_is_wide(parts) or "gl" in parts):
        return ()
    both = parts[0] == "membar" or {"acq_rel", "sc"} & {*parts}
    return (MemoryEffect.FENCE, MemoryEffect.INVALIDATE) if both else ()


def _barrier(parts: tuple[str, ...], operands: str) -> tuple[MemoryEffect, ...]:
    """Return BARRIER for barrier 0 without a thread count, which is one of all threads."""
    wanted = {"sync": 0, "red": 1}
    place = next((wanted[part] for part in parts if part in wanted), None)
    if place is None or "warp" in parts:
        return ()
    given = [operand.strip() for operand in operands.split(",")]
    everyone = given[place] == "0" and len(given) == (1 if place == 0 else 3)
    return (MemoryEffect.BARRIER,) if everyone else ()
