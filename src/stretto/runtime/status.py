"""How a run can end: the numbers that printed programs use and the runtime reads.

The C++ side is enum Status of abi.h.
"""

from enum import IntEnum


class Status(IntEnum):
    """`detail` of a stop says more: which list, how many bytes, ..."""

    OK = 0
    LIST_FULL = 1
    ARENA_FULL = 2
    INTERRUPTED = 3
    LIBRARY_FAILED = 4
    ASSERTION = 5
    STACK_FULL = 6
    STUCK = 7
    TOO_DEEP = 8
    NO_THREADS = 9
    INDEX = 10
    TIMEOUT = 11
    CROWDED = 12
    NO_MEMORY = 13


DECIDED_BY_ORDER = frozenset({Status.ASSERTION, Status.INDEX, Status.TOO_DEEP, Status.STACK_FULL})
"""Of iterations that run on units of their own, another one may stop the run so than the first one
that would in eager."""
