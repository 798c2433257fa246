"""Disassemble cubins and parse the result, SASS of compute capability 8.0 to 12.0.

The instructions are not documented. The assumption is that ptxas translates each operation
of PTX as observed: fence.acq_rel.gpu to `MEMBAR.ALL.GPU; ERRBAR; CGAERRBAR; CCTL.IVALL`,
ld.acquire.gpu to `LDG.E.STRONG.GPU; CCTL.IVALL`, a release exchange to `MEMBAR.ALL.GPU;
ERRBAR; CGAERRBAR; ATOMG.E.EXCH.STRONG.GPU`, ld.volatile to `LDG.E.STRONG.SYS`. Constants in
shared memory are addressed by a negative offset, from its end; all other data there from
its beginning.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stretto.errors import BuildError
from stretto.machines.cuda.machine_code import Instruction, MachineFunction, MemoryEffect

_TYPE = re.compile(r"^\s*\.type\s+(\S+?),@function")
_LABEL = re.compile(r"^(\S+):\s*$")
_INSTRUCTION = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\w*(?:\.\w+)*)(.*?);?\s*$"
)
_SCHEDULING = re.compile(r"\s+[&?]\w")
"""Start of the scheduling information of compute capability 12.0."""
_TARGET = re.compile(r"\.L\w+")
_EXCLUSIVE_OR = re.compile(r"^R\d+, R\d+, R\d+, RZ, 0x3c,")
_ADDRESS = re.compile(r"(?<!desc)\[(U?R\d+)(?:\.64)?\]")
_FROM_END = re.compile(r"\[[^]]*\+-0x[0-9a-f]+\]")
_COPIES = ("MOV", "UMOV", "IMAD", "LDC", "ULDC", "R2UR")
_ELSEWHERE = frozenset(
    ("LDC", "LDCU", "LDL", "LDS", "LDSM", "LDTM", "STL", "STS", "STSM", "STTM", "ATOMS", "REDUX")
)
"""Loads, stores and reductions that do not access global memory."""


def disassemble(cubin: bytes, nvdisasm: str) -> str:
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        try:
            result = subprocess.run(
                [nvdisasm, "-c", str(file)], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            raise BuildError(
                f"{nvdisasm} cannot read the machine code: {detail.strip()}",
                remedy="install Triton anew; its CUDA tools are part of it",
            ) from error
    return result.stdout


def functions(text: str) -> list[MachineFunction]:
    """Parse the functions in nvdisasm's output."""
    names = {match[1] for line in text.splitlines() if (match := _TYPE.match(line))}
    found: list[MachineFunction] = []
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}

    def end() -> None:
        if found:
            found[-1] = _refined(MachineFunction(found[-1].name, tuple(instructions), dict(labels)))
        instructions.clear()
        labels.clear()

    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            instructions.append(_instruction(int(match[1], 16), match[2], match[3], match[4]))
        elif (label := _LABEL.match(line)) and label[1] in names:
            end()
            found.append(MachineFunction(label[1], ()))
        elif label:
            labels[label[1]] = len(instructions)
    end()
    return found


def _instruction(place: int, predicate: str | None, name: str, rest: str) -> Instruction:
    """Parse an instruction. Raises ValueError for a jump whose targets are unknown."""
    operands = _SCHEDULING.split(rest)[0].strip()
    parts = tuple(name.split("."))
    text = " ".join(f"{f'@{predicate} ' if predicate else ''}{name} {operands}".split())
    jumps = parts[0] in ("BRA", "BRX", "JMP", "JMX")
    targets = tuple(_TARGET.findall(operands)) if jumps else ()
    if jumps and not targets:
        raise ValueError(f"{place:#x}: nothing is known of where {text!r} goes")
    # A jump may have a second condition among its operands: BRA !P0, `(.L_x_0)
    always = parts[0] in ("EXIT", "RET", "BRX", "JMX", "KILL") or (
        jumps and operands.startswith("`")
    )
    conditional = predicate is not None and predicate != "PT"
    return Instruction(
        f"{place:#x}",
        text,
        _effects(parts, operands),
        conditional,
        targets,
        falls_through=conditional or not always,
    )


def _effects(parts: tuple[str, ...], operands: str) -> tuple[MemoryEffect, ...]:
    wide = "GPU" in parts or "SYS" in parts
    match parts[0]:
        case "LDG" | "LD":
            if "CONSTANT" in parts:
                return (MemoryEffect.NON_COHERENT,)
            return (MemoryEffect.LOOK,) if wide else (MemoryEffect.LOAD,)
        case "STG" | "ST":
            return (MemoryEffect.PUBLISH,) if wide else (MemoryEffect.STORE,)
        case "ATOMG" | "ATOM":
            kind = {"EXCH": MemoryEffect.PUBLISH, "CAS": MemoryEffect.FAIL}
            return (next((kind[part] for part in parts if part in kind), MemoryEffect.UPDATE),)
        case "TEX" | "TLD" | "TLD4" | "SULD":
            return (MemoryEffect.NON_COHERENT,)
        case "LDS" | "STS" if _FROM_END.search(operands):
            return (MemoryEffect.KEPT,) if parts[0] == "LDS" else (MemoryEffect.KEEP,)
        case "LDGSTS":
            return (MemoryEffect.COPY,)
        case "LDGDEPBAR":
            return (MemoryEffect.COMMIT,)
        case "DEPBAR":
            return (MemoryEffect.COPIED,) if re.fullmatch(r"SB0, 0x0", operands) else ()
        case "MEMBAR":
            return (MemoryEffect.FENCE,) if wide else ()
        case "CCTL":
            return (MemoryEffect.INVALIDATE,) if "IVALL" in parts else ()
        case "BAR":
            everyone = re.fullmatch(r"0x0(, !?U?P\w+)?", operands)
            return (MemoryEffect.BARRIER,) if everyone and {"SYNC", "RED"} & {*parts} else ()
        case "CALL":
            return () if "$__internal" in operands else (MemoryEffect.CALL,)
        case "RET" | "EXIT":
            return (MemoryEffect.RETURN,)
        case name:
            return _others(name)


def _others(name: str) -> tuple[MemoryEffect, ...]:
    """Assume the worst effect of an unknown instruction, by the beginning of its name."""
    if name in _ELSEWHERE:
        return ()
    kinds = {
        "UTMA": MemoryEffect.ASYNC_PROXY,
        "UBLK": MemoryEffect.ASYNC_PROXY,
        "LD": MemoryEffect.LOAD,
        "ST": MemoryEffect.STORE,
        "ATOM": MemoryEffect.UPDATE,
        "RED": MemoryEffect.UPDATE,
    }
    return tuple(effect for begin, effect in kinds.items() if name.startswith(begin))


def _refined(function: MachineFunction) -> MachineFunction:
    """Correct effects that depend on several instructions. A read of the error word acquires
    nothing. A branch by which the other threads skip a compare-and-swap is also the failure of
    the unit."""
    instructions = list(function.instructions)
    for index, one in enumerate(function.instructions):
        if MemoryEffect.LOOK in one.effects and _is_error_word(function, index):
            instructions[index] = replace(one, effects=())
        elif MemoryEffect.FAIL in one.effects and (branch := _skips(function, index)) is not None:
            instructions[branch] = replace(instructions[branch], effects=(MemoryEffect.FAIL,))
    return replace(function, instructions=tuple(instructions))


def _skips(function: MachineFunction, index: int) -> int | None:
    """Return the last branch before an instruction that jumps past it; None if there is none."""
    for before in range(index - 1, -1, -1):
        one = function.instructions[before]
        if before + 1 in function.labels.values() or (one.targets and not one.falls_through):
            return None
        if one.targets:
            return before if function.labels[one.targets[0]] > index else None
    return None


def _is_error_word(function: MachineFunction, index: int) -> bool:
    """Return True if the address is that of the control block itself: a copy of an argument,
    without an offset. A counter's address has an offset, and depends on the thread."""
    address = _ADDRESS.search(function.instructions[index].text)
    return address is not None and _is_copied(function, index, address[1], ())


def _definitions(
    function: MachineFunction, index: int, defines: Callable[[Instruction], bool]
) -> list[int] | None:
    """Return the instructions satisfying `defines` that may be the last such on some path to
    `index`; None if some path has none."""
    before: dict[int, list[int]] = {}
    for one in range(len(function.instructions)):
        for other in function.successors(one):
            before.setdefault(other, []).append(one)
    found: list[int] = []
    seen: set[int] = set()
    pending = [index]
    while pending:
        current = pending.pop()
        if current == 0:
            return None
        for previous in before.get(current, ()):
            if previous in seen:
                continue
            seen.add(previous)
            instruction = function.instructions[previous]
            if defines(instruction):
                found.append(previous)
            if not defines(instruction) or instruction.conditional:
                pending.append(previous)
    return found


def _is_copied(function: MachineFunction, index: int, register: str, seen: Sequence[int]) -> bool:
    found = _definitions(function, index, lambda one: register in _defined(one.text))
    for at in found or ():
        if at in seen:
            continue
        sources = _copied_from(function.instructions[at].text)
        if sources is None:
            return False
        if not all(_is_copied(function, at, source, (*seen, at)) for source in sources):
            return False
    return True


def _copied_from(text: str) -> list[str] | None:
    """Return the registers that an instruction copies; None if it does anything else."""
    name, operands = _parted(text)
    sources = re.findall(r"\bU?R\d+\b", operands)[1:]
    if name == "LOP3.LUT" and _EXCLUSIVE_OR.search(operands):
        return sources  # three exclusive ors exchange two registers
    is_number = "0x" in operands.partition("c[")[0]
    if name.split(".")[0] not in _COPIES or "HI" in name or is_number or len(sources) > 1:
        return None
    return sources


def _defined(text: str) -> list[str]:
    """Return the registers that an instruction may define."""
    name, operands = _parted(text)
    match = re.match(r"(?:P\w+, )*(U?R)(\d+)\b", operands)
    if match is None or name.startswith(("ST", "BRA", "RED")):
        return []
    parts = name.split(".")
    width = 4 if "128" in parts else 2 if {"64", "WIDE"} & {*parts} or parts[0] == "CS2R" else 1
    return [f"{match[1]}{int(match[2]) + more}" for more in range(width)]


def _parted(text: str) -> tuple[str, str]:
    """Split an instruction into its name and its operands."""
    name, _, operands = re.sub(r"^@\S+ ", "", text).partition(" ")
    return name, operands
