"""Operations of a captured graph between launches: it changes words of device memory, and decides.

Conditional nodes of a CUDA graph run their bodies as a handle says, which only device code can set.
One small kernel does that, and all other host work between two launches: it executes a list of
`WordOperation`s, three words each, in order. It is PTX, so that nothing has to be compiled on the
user's machine; the driver itself defines `cudaGraphSetConditional`.

`follow` does the same on host memory, for emulated graphs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from stretto.device.expr import Reg
from stretto.device.plan import Action, Guard, Launch, arms, enqueued_nodes
from stretto.device.tree import If, Node, Seq, is_predicated, leaves

ENTRY = "stretto_words"
"""Name of the kernel. Its parameters, a word each: the address of the operations, their number,
the address of the control block, whose first word is nonzero if the run is stopped."""
WORD = 8
"""Bytes of a word."""


class Opcode(IntEnum):
    """Operation codes; [a] is the word at the address a. `value` is false at first."""

    COPY = 0
    """[a] = [b]"""
    STORE = 1
    """[a] = b"""
    SWAP = 2
    """[a], [b] = [b], [a]"""
    ADD = 3
    """[a] = [a] + b"""
    TEST = 4
    """value = [a] is not 0"""
    LESS = 5
    """value = [a] < [b]"""
    MORE = 6
    """value = [a] > [b]"""
    MOVE = 7
    """[a] = [b] if value"""
    DECIDE = 8
    """handle a = value, or false if the run is stopped"""
    REFUSE = 9
    """handle a = not value, or false if the run is stopped"""
    ALWAYS = 10
    """value = true"""
    ALSO = 11
    """value = value and [a] is not 0"""
    UNLESS = 12
    """value = value and [a] is 0"""
    COUNT = 13
    """[a] = [a] + 1 if value"""


@dataclass(frozen=True, slots=True)
class WordOperation:
    """One operation, of up to two operands."""

    code: Opcode
    a: int
    b: int = 0


def encoded(operations: Sequence[WordOperation]) -> list[int]:
    """Return the words that the kernel reads."""
    return [word for one in operations for word in (one.code.value, one.a, one.b)]


def follow(words: Sequence[int], control: int, decide: Callable[[int, bool], None]) -> None:
    """Execute encoded operations. control: an address. decide: sets a handle."""
    stopped = _word(control).value != 0
    value = False
    for place in range(0, len(words), 3):
        code, a, b = words[place : place + 3]
        match Opcode(code):
            case Opcode.COPY:
                _word(a).value = _word(b).value
            case Opcode.STORE:
                _word(a).value = b
            case Opcode.SWAP:
                first, second = _word(a), _word(b)
                first.value, second.value = second.value, first.value
            case Opcode.ADD:
                _word(a).value += b
            case Opcode.TEST:
                value = _word(a).value != 0
            case Opcode.LESS:
                value = _word(a).value < _word(b).value
            case Opcode.MORE:
                value = _word(a).value > _word(b).value
            case Opcode.MOVE:
                if value:
                    _word(a).value = _word(b).value
            case Opcode.DECIDE:
                decide(a, value and not stopped)
            case Opcode.REFUSE:
                decide(a, not value and not stopped)
            case Opcode.ALWAYS:
                value = True
            case Opcode.ALSO:
                value = value and _word(a).value != 0
            case Opcode.UNLESS:
                value = value and _word(a).value == 0
            case Opcode.COUNT:
                _word(a).value += value


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(address)


PTX = """\
.version 7.0
.target sm_80
.address_size 64

.extern .func cudaGraphSetConditional
(
    .param .b64 handle,
    .param .b32 value
);

.visible .entry stretto_words(
    .param .u64 operations,
    .param .u64 count,
    .param .u64 control
)
{
    .reg .pred %here, %value, %going;
    .reg .b32 %choice;
    .reg .b64 %at, %left, %code, %a, %b, %x, %y;

    ld.param.u64 %x, [control];
    ld.s64 %x, [%x];
    setp.eq.s64 %going, %x, 0;
    ld.param.u64 %at, [operations];
    ld.param.u64 %left, [count];
    setp.ne.s64 %value, %left, %left;
next:
    setp.eq.s64 %here, %left, 0;
    @%here bra done;
    sub.s64 %left, %left, 1;
    ld.s64 %code, [%at];
    ld.s64 %a, [%at+8];
    ld.s64 %b, [%at+16];
    add.s64 %at, %at, 24;
    setp.eq.s64 %here, %code, 0;
    @%here bra copy;
    setp.eq.s64 %here, %code, 1;
    @%here bra store;
    setp.eq.s64 %here, %code, 2;
    @%here bra swap;
    setp.eq.s64 %here, %code, 3;
    @%here bra add;
    setp.eq.s64 %here, %code, 4;
    @%here bra test;
    setp.eq.s64 %here, %code, 5;
    @%here bra less;
    setp.eq.s64 %here, %code, 6;
    @%here bra more;
    setp.eq.s64 %here, %code, 7;
    @%here bra move;
    setp.eq.s64 %here, %code, 8;
    @%here bra decide;
    setp.eq.s64 %here, %code, 9;
    @%here bra refuse;
    setp.eq.s64 %here, %code, 10;
    @%here bra always;
    setp.eq.s64 %here, %code, 11;
    @%here bra also;
    setp.eq.s64 %here, %code, 12;
    @%here bra unless;
    @!%value bra next;
    ld.s64 %x, [%a];
    add.s64 %x, %x, 1;
    st.s64 [%a], %x;
    bra next;
always:
    setp.eq.s64 %value, %left, %left;
    bra next;
unless:
    @!%value bra next;
    ld.s64 %x, [%a];
    setp.eq.s64 %value, %x, 0;
    bra next;
also:
    @!%value bra next;
    bra test;
copy:
    ld.s64 %x, [%b];
    st.s64 [%a], %x;
    bra next;
store:
    st.s64 [%a], %b;
    bra next;
swap:
    ld.s64 %x, [%a];
    ld.s64 %y, [%b];
    st.s64 [%a], %y;
    st.s64 [%b], %x;
    bra next;
add:
    ld.s64 %x, [%a];
    add.s64 %x, %x, %b;
    st.s64 [%a], %x;
    bra next;
test:
    ld.s64 %x, [%a];
    setp.ne.s64 %value, %x, 0;
    bra next;
less:
    ld.s64 %x, [%a];
    ld.s64 %y, [%b];
    setp.lt.s64 %value, %x, %y;
    bra next;
more:
    ld.s64 %x, [%a];
    ld.s64 %y, [%b];
    setp.gt.s64 %value, %x, %y;
    bra next;
move:
    @!%value bra next;
    bra copy;
decide:
    selp.u32 %choice, 1, 0, %value;
    bra set;
refuse:
    selp.u32 %choice, 0, 1, %value;
set:
    selp.u32 %choice, %choice, 0, %going;
    {
        .param .b64 first;
        .param .b32 second;
        st.param.b64 [first], %a;
        st.param.b32 [second], %choice;
        call.uni cudaGraphSetConditional, (first, second);
    }
    bra next;
done:
    ret;
}
"""


# ---- Counts of how often each branch of a graph took its first arm, in words of the device.
#
# The operations that decide a conditional node also count. For predicated branches a separate node
# counts, concurrently with the launches: only the graph's end waits for it. The host reads the
# words only on request.


Words = Callable[[Reg], int]
"""Returns the address of a register's word."""


@dataclass(frozen=True, slots=True)
class BranchCount:
    """first: how often the first arm was taken; total: how often the branch was reached."""

    first: int
    total: int


@dataclass(frozen=True, slots=True)
class CountCells:
    """Addresses of the two words of a branch."""

    first: int
    total: int


def counted(condition: CountCells) -> list[WordOperation]:
    """Return the operations that count a branch, after the operation that has tested its
    condition."""
    return [
        WordOperation(Opcode.COUNT, condition.first),
        WordOperation(Opcode.ADD, condition.total, 1),
    ]


@dataclass(frozen=True, slots=True)
class PredicatedBranch:
    """A predicated branch of a stretch. guards: of the branches around it. number: of the first
    node of the stretch that is in one of its arms."""

    branch: If[Action]
    guards: tuple[Guard, ...]
    number: int

    @property
    def registers(self) -> set[str]:
        """Registers that its count depends on."""
        found = {guard.register.name for guard in self.guards}
        return found | {self.branch.condition.name}

    def operations(self, cells: CountCells, word: Words) -> list[WordOperation]:
        found = [WordOperation(Opcode.ALWAYS, 0)]
        for guard in self.guards:
            code = Opcode.UNLESS if guard.negated else Opcode.ALSO
            found.append(WordOperation(code, word(guard.register)))
        found.append(WordOperation(Opcode.COUNT, cells.total))
        found.append(WordOperation(Opcode.ALSO, word(self.branch.condition)))
        found.append(WordOperation(Opcode.COUNT, cells.first))
        return found


def predicated_branches(sequence: Seq[Action]) -> list[PredicatedBranch]:
    """Return the predicated branches of a sequence's stretch."""
    return list(_predicated(sequence.children, (), 0))


def _predicated(
    nodes: Sequence[Node[Action]], guards: tuple[Guard, ...], number: int
) -> Iterator[PredicatedBranch]:
    for node in nodes:
        if isinstance(node, Seq):
            yield from _predicated(node.children, guards, number)
        elif is_predicated(node):
            yield PredicatedBranch(node, guards, number)
            inner = number
            for guard, arm in arms(node):
                yield from _predicated((arm,), (*guards, guard), inner)
                inner += len(enqueued_nodes(arm))
        number += len(enqueued_nodes(node))


def writes(node: Node[Action], registers: set[str]) -> bool:
    """Return True if a launch of a node writes one of these registers."""
    launches = (body for body in leaves(node) if isinstance(body, Launch))
    results = (reg.name for launch in launches for reg in launch.program.tree.main.results)
    return not registers.isdisjoint(results)
