"""Whether Triton's layouts let a thread load four neighbours of shared memory at once.

`tl.inline_asm_elementwise(pack=4)` gives an instruction four elements that are one after the other
in the registers of a thread. Which those are is up to the layout of the block, of which the
language says nothing. So the program that Triton has made is read: along the first axis of each
such block a thread must have elements by fours, and its registers must be ordered along that axis
first.
"""

from __future__ import annotations

import re

_VECTOR = re.compile(r"elementwise_inline_asm .*(?:ld|st)\.shared::cta\.v4")
_TYPE = re.compile(r"-> tensor<\d+(?:x\d+)*xi32, (#\w+)>")
_LAYOUT = re.compile(
    r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[(\d+)[^]]*\].*order = \[(\d+)[^]]*\]",
    re.MULTILINE,
)


def vectors_are_neighbours(ttgir: str) -> bool:
    """Whether it is so for all vectors of a program in Triton's GPU dialect. An instruction or a
    layout that is not known counts as one that does not agree."""
    good = {
        name
        for name, each, order in _LAYOUT.findall(ttgir)
        if int(each) % 4 == 0 and int(order) == 0
    }
    found = [line for line in ttgir.splitlines() if ".shared::cta.v4" in line]
    return all(
        _VECTOR.search(line) is not None
        and (layout := _TYPE.search(line)) is not None
        and layout[1] in good
        for line in found
    )
