"""Constants that a unit holds in shared memory over a loop.

Triton holds no value in shared memory from one iteration of a loop to the next. So a program
requests more of it than Triton needs and addresses the rest itself: Triton's part is at the
beginning of a unit's dynamic shared memory, the constants are at its end, and their places are
counted back from there. Before the loop all threads store what they have loaded; a barrier follows,
and from then on that memory is only read. Embedded like scalar_functions.py.
"""

import triton
import triton.language as tl

PORTABLE = tl.constexpr(False)  # of prelude.py

# ---- constants in shared memory ---------------------------------------------------------------
#
# The emulator replaces the first three by its own functions.


@triton.jit
def stretto_shared_end():
    """Return the address of the end of the unit's shared memory. The compiler takes it for a new
    value each time, so computations from it stay in the loop's iteration, and after the
    barriers that precede this call."""
    tl.static_assert(not PORTABLE, "there is no PTX")
    return tl.inline_asm_elementwise(
        """{
            .reg .u32 %start, %size;
            mov.u32 %start, global_smem;
            mov.u32 %size, %dynamic_smem_size;
            add.u32 $0, %start, %size;
        }""",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


VECTORS = tl.constexpr(True)  # cleared if Triton gives no thread four neighbouring elements


@triton.jit
def stretto_to_shared(places, values, VECTOR: tl.constexpr):
    """Store values of 32 or 64 bits. VECTOR: `pack` passes an instruction four elements of a
    thread, so these must be neighbours in memory; compile.py checks Triton's layouts for it."""
    tl.static_assert(not PORTABLE, "there is no PTX")
    if VECTOR:
        tl.inline_asm_elementwise(
            """st.shared::cta.v4.b32 [$4], {$8, $9, $10, $11};
            mov.u32 $0, 0; mov.u32 $1, 0; mov.u32 $2, 0; mov.u32 $3, 0;""",
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r",
            [places, values.to(tl.int32, bitcast=True)],
            dtype=tl.int32,
            is_pure=False,
            pack=4,
        )
    elif values.dtype.primitive_bitwidth == 64:
        tl.inline_asm_elementwise(
            "st.shared::cta.b64 [$1], $2; mov.u32 $0, 0;",
            "=r,r,l",
            [places, values.to(tl.int64, bitcast=True)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        tl.inline_asm_elementwise(
            "st.shared::cta.b32 [$1], $2; mov.u32 $0, 0;",
            "=r,r,r",
            [places, values.to(tl.int32, bitcast=True)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


# Loads are declared pure, since Triton computes impure assembly once for each layout that it
# considers. They stay after the barrier and in the loop because their addresses do
# (`stretto_shared_end`).
@triton.jit
def stretto_from_shared(places, KIND: tl.constexpr, VECTOR: tl.constexpr):
    """Load what `stretto_to_shared` has stored, as values of the type KIND."""
    tl.static_assert(not PORTABLE, "there is no PTX")
    if VECTOR:
        found = tl.inline_asm_elementwise(
            "ld.shared::cta.v4.b32 {$0, $1, $2, $3}, [$4];",
            "=r,=r,=r,=r,r,r,r,r",
            [places],
            dtype=tl.int32,
            is_pure=True,
            pack=4,
        )
    elif KIND.primitive_bitwidth == 64:
        found = tl.inline_asm_elementwise(
            "ld.shared::cta.b64 $0, [$1];", "=l,r", [places], dtype=tl.int64, is_pure=True, pack=1
        )
    else:
        found = tl.inline_asm_elementwise(
            "ld.shared::cta.b32 $0, [$1];", "=r,r", [places], dtype=tl.int32, is_pure=True, pack=1
        )
    return found.to(KIND, bitcast=True)


# A block begins `BYTES` before the end. A, B and C are its sizes, 0 for an axis that it does not
# have. Of a block with two axes, elements along the last axis are neighbours; of one with three,
# elements along the first.
@triton.jit
def stretto_numbered(A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """Return the number of each element of a block."""
    if C > 0:
        rows = tl.arange(0, C)[None, None, :] * B + tl.arange(0, B)[None, :, None]
        return tl.arange(0, A)[:, None, None] + rows * A
    elif B > 0:
        return tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    else:
        return tl.arange(0, A)


@triton.jit
def stretto_keep(
    end, BYTES: tl.constexpr, values, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr
):
    """Store a block. If the lanes along its first axis are alike, A is 1 and one lane is stored."""
    SIZE: tl.constexpr = values.dtype.primitive_bitwidth // 8
    if A > 0:
        places = end - BYTES + stretto_numbered(A, B, C) * SIZE
        stretto_to_shared(places, values, VECTORS and SIZE == 4 and C > 0 and A % 128 == 0)
    else:
        stretto_to_shared(end - BYTES, values, False)


@triton.jit
def stretto_kept(
    end,
    BYTES: tl.constexpr,
    KIND: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
):
    """Load a block that `stretto_keep` has stored."""
    SIZE: tl.constexpr = KIND.primitive_bitwidth // 8
    if A > 0:
        places = end - BYTES + stretto_numbered(A, B, C) * SIZE
        return stretto_from_shared(places, KIND, VECTORS and SIZE == 4 and C > 0 and A % 128 == 0)
    else:
        return stretto_from_shared(end - BYTES, KIND, False)
