"""Waits and signals of printed programs; embedded into every printed module.

A unit is one program instance of the grid, a resident thread block. The control block (*i64): word
0 the error (runtime/results.py), word 1 its detail, word 2 the address of a word of host memory
that gets the error too, or 0; from word 16 on one progress counter per unit, which only its own
unit writes and which only grows.

Why a unit that has waited sees what the others wrote (PTX ISA, "Memory Consistency Model"):

1. Any thread of the producer writes. The barrier in `signal` orders that before the block's one
   publishing thread continues (bar.sync synchronizes the threads of a block). It publishes with a
   release exchange at gpu scope. Causality order is transitive, so everything that happened before
   the barrier, in any thread, comes before the release.
2. In `wait` each thread polls some of the counters, by loads that acquire at gpu scope. A counter
   may be beyond the target: then a later release of the same thread was read, and the earlier ones
   precede that one in program order.
3. A thread acquires only from the units whose counters it read itself. The barrier after the polls
   orders the reads of every thread of the block before anything that any thread does next.

The same chain keeps a write after a wait from being seen by a read before the signal that was
waited for: all reads of the signalling block come before its release.

A block's branch conditions must have one value in all its threads, else their barriers no longer
match. Threads that each load a word that other units write may see different values. So the barrier
after the polls also tells every thread whether any of them was stopped; and values loaded
elsewhere, or on machines without PTX, pass through a reduction over LANES lanes, more than one warp
holds: all threads get its result from one word of shared memory (in a block of one warp: from a
reduction of the whole warp).
"""

import triton
import triton.language as tl


@triton.jit
def pause(control, first, count, target):
    # The emulator replaces this by a switch to another unit.
    return


PORTABLE = tl.constexpr(False)  # set on machines without PTX
STUCK = tl.constexpr(7)  # of runtime/results.py


@triton.jit
def fence(control):
    tl.atomic_add(control, 0, sem="acq_rel", scope="gpu")


# Each thread loads the error; a reduction tells all of them whether any has seen it set. $0 is 0 if
# none has; $1 is the address of the control block.
FAILED = tl.constexpr("""{
    .reg .pred %stop;
    .reg .s64 %seen;
    ld.relaxed.gpu.global.s64 %seen, [$1];
    setp.ne.s64 %stop, %seen, 0;
    bar.warp.sync 0xffffffff;
    bar.red.or.pred %stop, 0, %stop;
    selp.u32 $0, 1, 0, %stop;
}""")


@triton.jit
def stopped(control):
    """Return True if a unit has failed, in this launch or earlier."""
    if PORTABLE:
        error = tl.load(control + tl.arange(0, 128) * 0, volatile=True)
        return tl.max((error != 0).to(tl.int32), axis=0) != 0
    else:
        failed = tl.inline_asm_elementwise(
            FAILED, "=r,l", [control.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
        )
        return failed != 0


@triton.jit
def fail(control, code, detail):
    """Stop all units at their next wait. Only the first failure is recorded."""
    before = tl.atomic_cas(control, tl.cast(0, tl.int64), tl.cast(code, tl.int64), sem="relaxed")
    if before == 0:
        tl.store(control + 1, tl.cast(detail, tl.int64))
        host = tl.load(control + 2)
        if host != 0:
            tl.store(host.to(tl.pointer_type(tl.int64)), tl.cast(code, tl.int64))
    # All threads must have read the result of the exchange, which is in shared memory, before that
    # memory is reused.
    tl.debug_barrier()


@triton.jit
def signal(control, unit, value):
    """Publish `value` as the progress of this unit: everything that it has done so far."""
    tl.debug_barrier()
    tl.atomic_xchg(control + 16 + unit, value, sem="release", scope="gpu")


@triton.jit
def signal_by(control, unit, value, first, last):
    """As `signal`, but only for the units first ... last."""
    signal_within(control, unit, value, tl.cast(first, tl.int32), tl.cast(last, tl.int32))


# Not inlined: a caller without this branch compiles faster and is smaller.
@triton.jit(noinline=True)
def signal_within(control, unit, value, first, last):
    if (unit >= first) & (unit <= last):
        signal(control, unit, value)


@triton.jit
def wait(control, unit, first, count, target, polls, ok, BLOCK: tl.constexpr):
    """Wait until the units first ... first + count - 1 have reached `target`; return the new `ok`.

    unit: does not wait for itself. ok: False if this unit has been stopped; then it does not wait.
    After `polls` polls it gives up and stops all units. BLOCK: a power of two, at least `count`.
    """
    NARROW: tl.constexpr = 128 if PORTABLE else 64
    LANES: tl.constexpr = BLOCK if BLOCK > NARROW else NARROW
    # As tensors: with constants, Triton would specialise the function for each value.
    first = tl.cast(first, tl.int32)
    count = tl.cast(count, tl.int32)
    return poll(control, unit, first, count, tl.cast(target, tl.int64), polls, ok, LANES)


@triton.jit
def wait_for_each(control, unit, tables, start, base, polls, ok, BLOCK: tl.constexpr):
    """Wait for several groups of units in order, as a table says for each unit; return the new
    `ok`.

    start: position in `tables` of the starts of the rows of each unit; they end where those of
    the next unit start. A row is the first unit to wait for, the number of units, and their
    step relative to `base`. Other parameters as in `wait`.
    """
    NARROW: tl.constexpr = 128 if PORTABLE else 64
    LANES: tl.constexpr = BLOCK if BLOCK > NARROW else NARROW
    return poll_each(control, unit, tables, start, base, polls, ok, LANES)


# Not inlined, as `signal_within`.
@triton.jit(noinline=True)
def poll_each(control, unit, tables, start, base, polls, ok, LANES: tl.constexpr):
    rows = tables + start + unit
    for row in range(tl.load(rows), tl.load(rows + 1), 3):
        first = tl.load(tables + row)
        count = tl.load(tables + row + 1)
        target = base + tl.load(tables + row + 2)
        ok = poll(control, unit, first, count, target, polls, ok, LANES)
    return ok


@triton.jit
def wait_by(control, unit, row, base, polls, ok, BLOCK: tl.constexpr):
    """Wait for the units in `row`, a word that was read from a table earlier: from its lowest bit
    on 10 bits for the first unit to wait for, 10 for the number of units (0 is no wait), then
    the step relative to `base`. Other parameters as in `wait`."""
    NARROW: tl.constexpr = 128 if PORTABLE else 64
    LANES: tl.constexpr = BLOCK if BLOCK > NARROW else NARROW
    return poll_row(control, unit, row, base, polls, ok, LANES)


# Not inlined, as `signal_within`.
@triton.jit(noinline=True)
def poll_row(control, unit, row, base, polls, ok, LANES: tl.constexpr):
    count = (row >> 10) & 1023
    if count > 0:
        ok = poll(control, unit, row & 1023, count, base + (row >> 20), polls, ok, LANES)
    return ok


# The wait of each thread of a block. It polls each of its counters in turn until that has reached
# the target, and at every 32nd poll reads the error too. Then a barrier with a reduction tells all
# threads whether one of them was stopped. $0 is 0 if none was; $1 the address of the control block,
# $2 the unit, $3 and $4 the first unit to wait for and their number, $5 the target, $6 the polls
# after which a thread gives up, $7 is 0 if the unit has been stopped.
LOOKS = tl.constexpr("""{
    .reg .pred %p, %stop;
    .reg .u32 %at, %step, %other;
    .reg .u64 %address, %host, %detail;
    .reg .s64 %seen, %left, %some;
    setp.eq.u32 %stop, $7, 0;
    mov.u32 %at, %tid.x;
    mov.u32 %step, %ntid.x;
    @%stop bra meet;
next:
    setp.ge.u32 %p, %at, $4;
    @%p bra meet;
    add.u32 %other, $3, %at;
    add.u32 %at, %at, %step;
    setp.eq.u32 %p, %other, $2;
    @%p bra next;
    mul.wide.u32 %address, %other, 8;
    add.u64 %address, %address, $1;
    mov.s64 %left, $6;
look:
    ld.acquire.gpu.global.s64 %seen, [%address + 128];
    setp.ge.s64 %p, %seen, $5;
    @%p bra next;
    sub.s64 %left, %left, 1;
    and.b64 %some, %left, 31;
    setp.ne.s64 %p, %some, 0;
    @%p bra look;
    ld.relaxed.gpu.global.s64 %seen, [$1];
    setp.ne.s64 %stop, %seen, 0;
    @%stop bra meet;
    setp.gt.s64 %p, %left, 0;
    @%p bra look;
    setp.eq.u32 %stop, 0, 0;
    atom.relaxed.gpu.global.cas.b64 %seen, [$1], 0, 7;
    setp.ne.s64 %p, %seen, 0;
    @%p bra meet;
    cvt.u64.u32 %detail, $3;
    shl.b64 %detail, %detail, 40;
    add.s64 %detail, %detail, $5;
    st.global.u64 [$1 + 8], %detail;
    ld.global.u64 %host, [$1 + 16];
    setp.eq.u64 %p, %host, 0;
    @%p bra meet;
    st.global.u64 [%host], 7;
meet:
    bar.warp.sync 0xffffffff;
    bar.red.or.pred %stop, 0, %stop;
    selp.u32 $0, 1, 0, %stop;
}""")


# Not inlined: a program of a hundred waits compiles ten times as fast and is a quarter as large.
@triton.jit(noinline=True)
def poll(control, unit, first, count, target, polls, ok, LANES: tl.constexpr):
    if PORTABLE:
        return looked(control, unit, first, count, target, polls, ok, LANES)
    else:
        stopped = tl.inline_asm_elementwise(
            LOOKS,
            "=r,l,r,r,r,l,l,r",
            [
                control.to(tl.int64),
                unit,
                first,
                count,
                target,
                tl.cast(polls, tl.int64),
                (ok != 0).to(tl.int32),
            ],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        return ok & (stopped == 0)


@triton.jit
def looked(control, unit, first, count, target, polls, ok, LANES: tl.constexpr):
    """As the PTX in LOOKS, but portable: all lanes poll until all have seen their target."""
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
