"""Waits and signals of printed programs; embedded into every printed module.

A unit is one program of the grid, a resident thread block. The control block (*i64): word 0 the
error (runtime/status.py), word 1 its detail, word 2 the address of a word of host memory that gets
the error too, or 0; from word 16 one progress counter for every unit,
which only its own unit writes and which only grows.

Why a unit that has waited sees what the others wrote (PTX ISA, "Memory Consistency Model"):

1. Any thread of the producer writes. The barrier in `signal` puts that before what the block's one
   publishing thread does next (bar.sync synchronizes the threads of a block). It publishes with a
   release exchange at gpu scope. Causality order is transitive, so all that happened before the
   barrier, in any thread, comes before the release.
2. In `wait` each thread reads some of the counters (volatile, which is relaxed at system scope: a
   strong read) and then executes fence.acq_rel.gpu: together an acquire pattern. A counter may be
   further than was waited for: then a later release of the same thread was read, and the earlier
   ones come before that one in program order.
3. A thread acquires only from the units whose counters it read itself. The barrier after the fence
   puts the reads of every thread of the block before what any thread does next.

The same chain keeps a write after a wait from being seen by a read before the signal that was
waited for: all reads of the signalling block come before its release.

What a block branches on must be one value in all its threads, else their barriers no longer match.
Threads that each load a word that others write may see different values, so what is polled here
goes through a reduction over LANES lanes, more than one warp holds: its result comes to all threads
from one word of shared memory (in a block of one warp: from a reduction of the whole warp).
"""

import triton
import triton.language as tl


@triton.jit
def pause(control, first, count, target):
    # The emulator puts a switch to another unit in its place.
    return


PORTABLE = tl.constexpr(False)  # set where the machine does not speak PTX
STUCK = tl.constexpr(7)  # of runtime/status.py


@triton.jit
def fence(control):
    if PORTABLE:
        tl.atomic_add(control, 0, sem="acq_rel", scope="gpu")
    else:
        tl.inline_asm_elementwise(
            "fence.acq_rel.gpu; mov.b32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def stopped(control):
    """Whether a unit has failed, in this launch or before."""
    LANES: tl.constexpr = 128 if PORTABLE else 64
    error = tl.load(control + tl.arange(0, LANES) * 0, volatile=True)
    return tl.max((error != 0).to(tl.int32), axis=0) != 0


@triton.jit
def fail(control, code, detail):
    """Stops all units at their next wait. The first failure is kept."""
    before = tl.atomic_cas(control, tl.cast(0, tl.int64), tl.cast(code, tl.int64), sem="relaxed")
    if before == 0:
        tl.store(control + 1, tl.cast(detail, tl.int64))
        host = tl.load(control + 2)
        if host != 0:
            tl.store(host.to(tl.pointer_type(tl.int64)), tl.cast(code, tl.int64))


@triton.jit
def signal(control, unit, value):
    """Everything that this unit has done up to here counts as `value` of its progress."""
    tl.debug_barrier()
    tl.atomic_xchg(control + 16 + unit, value, sem="release", scope="gpu")


@triton.jit
def wait(control, unit, first, count, target, polls, ok, BLOCK: tl.constexpr):
    """Until the units first ... first + count - 1 have come to `target`; gives the new `ok`.

    unit: does not wait for itself. ok: false where this unit has been stopped; then it does not
    wait any more. After `polls` looks it gives up and stops everyone. BLOCK: a power of two, at
    least `count`.
    """
    NARROW: tl.constexpr = 128 if PORTABLE else 64
    LANES: tl.constexpr = BLOCK if BLOCK > NARROW else NARROW
    # As tensors: numbers in the text would make another function of each number.
    first = tl.cast(first, tl.int32)
    count = tl.cast(count, tl.int32)
    return poll(control, unit, first, count, tl.cast(target, tl.int64), polls, ok, LANES)


# Not inlined: a program of a hundred waits compiles ten times as fast and is a quarter as large.
@triton.jit(noinline=True)
def poll(control, unit, first, count, target, polls, ok, LANES: tl.constexpr):
    lanes = tl.arange(0, LANES)
    counters = control + 16 + first + lanes
    left = tl.cast(polls, tl.int64)
    state = (ok != 0).to(tl.int32)  # 0: there, 1: not yet, 2: stopped
    while state == 1:
        awaited = (lanes < count) & (first + lanes != unit)
        seen = tl.load(counters, mask=awaited, other=target, volatile=True)
        error = tl.load(control + lanes * 0, volatile=True)
        state = tl.max(tl.where(error != 0, 2, (seen < target).to(tl.int32)), axis=0)
        left -= 1
        if state == 1:
            if left <= 0:
                fail(control, STUCK, (first.to(tl.int64) << 40) + target)
                state = tl.cast(2, tl.int32)
            else:
                pause(control, first, count, target)
    fence(control)
    tl.debug_barrier()
    return ok & (state == 0)
