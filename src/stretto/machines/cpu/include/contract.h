// Contractions inside one task: C[m][n] (+)= sum over k of A[m*am + k*ak] * B[k][n].
//
// Sizes and strides should be constants at the call: everything inlines, and tails that cannot
// occur vanish. `accumulate` adds to C, otherwise C is overwritten (K = 0 clears it). No alignment
// is required, but panels that start on 64 bytes are faster.
//
//   contract_packed       B one panel [K][NR]                  constant weights
//   contract_packed_many  B panels [N/NR][K][NR], zero-padded  constant weights, several panels
//   contract_packed_ab    A slabs [M/MR][K][MR], zero-padded, and B one panel    convolution
//   contract_rows         B rows with contiguous n             run-time matrices
//   contract_dots         B[n][k], contiguous k                q . k^T, matvec, run-time weights
//
// Which MR x NR, V being the lanes of a vector (16 registers: AVX2, SSE; 32: AVX-512, NEON):
//
//                              32 registers   16 registers
//   packed, any M; rows        6 x 4V         6 x 2V   a block is never higher than M; where it
//                                                      is small, several k are summed side by side
//   M always 8                 8 x 3V         6 x 2V   5 % over 6 x 4V
//   convolution                6 x 4V         6 x 2V   12 x 2V is as good, for few pixels
//   dots (MB x NB)             2 x 8          2 x 8    also at M = 1
//
// For rows, NR <= N: remainders are slower. Wider and lower is worse: 4 x 6V.
// Measured on one Zen 5 core, float, g++ 12, peak 255 to 262 GFLOP/s: 236 to 259 for M = 4 to 64,
// K = 256, N = 1024. M = 1 reads its weights at 220 to 250 GB/s where half the second-level cache
// holds them, 160 at 1 MB, 105 at 2 MB, 80 at 21 MB (bare reading: 250, 149, 113, 72 to 108).
// AVX2: 85 to 120 of 128. The tile for NEON follows from its registers; it is not measured.
#pragma once

#include "vectors.h"

namespace stretto {

// Position of element (m, k) of the left side. Rows come in blocks of MR, so that slabs packed as
// [M/MR][K][MR] and plain strided matrices are read by the same code.
template <class T>
struct LeftSide {
  const T* data;
  int64_t row, depth;  // strides inside a block of MR rows
  int64_t block;       // from one block of MR rows to the next
};

// The columns [from, to) of a register tile that are written; the others are not this tile's.
struct Columns {
  int from, to;
};

// Number of k steps summed side by side so that a small tile still has kChains sums in flight.
constexpr int depth_unroll(int tile) {
  int unroll = 1;
  const int most = kVectorRegisters - 4 < 8 * tile ? kVectorRegisters - 4 : 8 * tile;
  while (unroll * tile < kChains && 2 * unroll * tile <= most) unroll *= 2;
  return unroll;
}

template <class T, int KU, int MR, int NV, int W>
STRETTO_INLINE void merge_sums(Vector<T, W> (&c)[KU][MR][NV]) {
  STRETTO_UNROLL
  for (int u = 1; u < KU; u++) {
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) {
      STRETTO_UNROLL
      for (int j = 0; j < NV; j++) c[0][i][j] += c[u][i][j];
    }
  }
}

// Prefetches of a tile into the second-level cache while it computes: nothing, or the weights that
// are needed next, a line at each step of k, `step` bytes apart.
struct Nothing {
  void at(int) const {}
  Nothing behind(int) const { return {}; }
};

struct Ahead {
  const char* data;
  int64_t step;
  void at(int k) const { __builtin_prefetch(data + k * step, 0, 2); }
  Ahead behind(int steps) const { return {data + steps * step, step}; }
};

// One step of k: NV loads of B serve MR broadcasts of A. A slab of A (rows side by side: am is 1)
// is a trickle of MR elements a step, too slow for the hardware to prefetch, so the step prefetches
// later elements: 108 -> 175 GFLOP/s where 9 MB of convolution weights come from the third-level
// cache. The same for B gained nothing: the hardware prefetches its panels.
template <class T, int MR, int NV, int W>
STRETTO_INLINE void tile_step(Vector<T, W> (&c)[MR][NV], const T* a, int64_t am, const T* b) {
  if (am == 1) __builtin_prefetch(a + 64 * MR);
  Vector<T, W> row[NV];
  STRETTO_UNROLL
  for (int j = 0; j < NV; j++) {
    row[j] = load<T, W>(b + j * W);
    if constexpr (MR > 1) hold<T, W>(row[j]);
  }
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) {
    const T left = a[i * am];
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) c[i][j] += left * row[j];
  }
}

// A tile at the edge of C, spilled to memory: one loop for all tile shapes, so out of line.
template <class T>
__attribute__((noinline)) static void store_edge(T* C, int64_t ldc, const T* tile, int width,
                                                 int rows, Columns columns, bool accumulate) {
  for (int i = 0; i < rows; i++, C += ldc, tile += width)
    for (int j = columns.from; j < columns.to; j++) C[j] = accumulate ? C[j] + tile[j] : tile[j];
}

template <class T, int MR, int NV, int W>
STRETTO_INLINE void tile_store(const Vector<T, W> (&c)[MR][NV], T* C, int64_t ldc, Columns columns,
                               bool accumulate) {
  const bool edge = columns.from > 0 || columns.to < NV * W;
  T spilled[MR * NV * W];
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) {
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) {
      T* out = C + i * ldc + j * W;
      if (edge)
        store<T, W>(spilled + (i * NV + j) * W, c[i][j]);
      else
        store<T, W>(out, accumulate ? c[i][j] + load<T, W>(out) : c[i][j]);
    }
  }
  if (edge) store_edge(C, ldc, spilled, NV * W, MR, columns, accumulate);
}

// The register tile: MR rows by NV vectors of W lanes, for all k.
template <class T, int MR, int NV, int W, class Next = Nothing>
STRETTO_INLINE void tile(const T* A, int64_t am, int64_t ak, const T* B, int64_t ldb, T* C,
                         int64_t ldc, int K, Columns columns, bool accumulate, Next next = {}) {
  constexpr int KU = depth_unroll(MR * NV);
  Vector<T, W> c[KU][MR][NV] = {};
  int k = 0;
  if (KU > 1 && K >= KU) {
    for (; k + KU <= K; k += KU) {
      STRETTO_UNROLL
      for (int u = 0; u < KU; u++) {
        next.at(k + u);
        tile_step<T, MR, NV, W>(c[u], A + (k + u) * ak, am, B + (k + u) * ldb);
      }
    }
    merge_sums<T, KU, MR, NV, W>(c);
  }
  STRETTO_UNROLL_TWICE  // 5 %, and 30 % at MR = 4: g++ then keeps B's row in registers
  for (; k < K; k++) {
    next.at(k);
    tile_step<T, MR, NV, W>(c[0], A + k * ak, am, B + k * ldb);
  }
  tile_store<T, MR, NV, W>(c[0], C, ldc, columns, accumulate);
}

// The last M <= MR rows (here MR is one less than a block), by the tile of exactly that height.
template <class T, int MR, int NV, int W>
STRETTO_INLINE void last_rows(LeftSide<T> A, const T* B, int64_t ldb, T* C, int64_t ldc, int M,
                              int K, Columns columns, bool accumulate) {
  if constexpr (MR > 0) {
    if (M == MR)
      tile<T, MR, NV, W>(A.data, A.row, A.depth, B, ldb, C, ldc, K, columns, accumulate);
    else
      last_rows<T, MR - 1, NV, W>(A, B, ldb, C, ldc, M, K, columns, accumulate);
  }
}

// All M rows against NV vectors of columns. The remaining rows get a tile of exactly that height, or,
// if the columns are a remainder themselves, are done one by one, which keeps the code small. Tiles
// are chosen for float and 32 registers: those that do not fit another machine or type are halved.
//
// even: one or two remaining rows are joined with the block before them, so that 8 rows are 4 and 4,
// because a tile of one or two rows waits for B. On one Zen 4 core, with weights of 1024 x 2048, 7 rows
// take 5 % less, 8 rows 7 %, 13 and 14 rows 3 %. Only where M is known at run time: where it is a
// constant, the code of all heights would remain.
template <class T, int MR, int NV, int W, bool exact = true, bool even = false,
          class Next = Nothing>
STRETTO_INLINE void all_rows(LeftSide<T> A, const T* B, int64_t ldb, T* C, int64_t ldc, int M,
                             int K, Columns columns, bool accumulate, Next next = {}) {
  if constexpr (MR * NV >= kVectorRegisters && NV > 1) {
    constexpr int half = NV / 2 * W;
    if (columns.from < half)
      all_rows<T, MR, NV / 2, W, exact, even>(
          A, B, ldb, C, ldc, M, K, {columns.from, columns.to < half ? columns.to : half},
          accumulate, next);
    if (columns.to > half)
      all_rows<T, MR, NV - NV / 2, W, exact, even>(
          A, B + half, ldb, C + half, ldc, M, K,
          {columns.from > half ? columns.from - half : 0, columns.to - half}, accumulate);
    return;
  } else {
    static_assert(MR * NV < kVectorRegisters, "the register tile would spill");
    int m = 0;
    constexpr bool halves = exact && even && MR >= 4;  // half of MR + 2 rows is less than a block
    const int whole = halves && M > MR && M % MR != 0 && M % MR <= 2 ? M - MR - M % MR : M;
    for (; m + MR <= whole; m += MR, A.data += A.block, next = next.behind(K))
      tile<T, MR, NV, W>(A.data, A.row, A.depth, B, ldb, C + m * ldc, ldc, K, columns, accumulate,
                         next);
    if constexpr (halves)
      for (int height; m < M; m += height, A.data += height * A.row) {
        height = M - m > MR ? (M - m + 1) / 2 : M - m;
        last_rows<T, MR - 1, NV, W>(A, B, ldb, C + m * ldc, ldc, height, K, columns, accumulate);
      }
    else if constexpr (exact)
      last_rows<T, MR - 1, NV, W>(A, B, ldb, C + m * ldc, ldc, M - m, K, columns, accumulate);
    else
      for (; m < M; m++, A.data += A.row)
        tile<T, 1, NV, W>(A.data, A.row, A.depth, B, ldb, C + m * ldc, ldc, K, columns, accumulate);
  }
}

// All M rows against one packed panel. With more than one block of rows the panel is read again
// for each, in pieces that stay in the first-level cache.
template <class T, int MR, int NR>
STRETTO_INLINE void panel_rows(LeftSide<T> A, const T* panel, T* C, int64_t ldc, int M, int K,
                               int n, bool accumulate) {
  constexpr int W = kLanes<T>;
  static_assert(NR % W == 0, "a panel holds whole vectors");
  constexpr int piece = kHotBytes / (NR * int(sizeof(T)));
  const int step = M > MR ? piece : K;
  int k = 0;
  do {  // at least once: K = 0 must still clear C
    const int depth = K - k < step ? K - k : step;
    const LeftSide<T> left = {A.data + k * A.depth, A.row, A.depth, A.block};
    all_rows<T, MR, NR / W, W>(left, panel + int64_t(k) * NR, NR, C, ldc, M, depth, {0, n},
                               accumulate || k > 0);
    k += step;
  } while (k < K);
}

// One packed panel [K][NR]; only the first n columns of C are written.
template <class T, int MR, int NR>
STRETTO_INLINE void contract_packed(const T* A, int64_t am, int64_t ak, const T* panel, T* C,
                                    int64_t ldc, int M, int K, bool accumulate, int n = NR) {
  panel_rows<T, MR, NR>({A, am, ak, MR * am}, panel, C, ldc, M, K, n, accumulate);
}

// N columns from consecutive packed panels [N/NR][K][NR], the last one padded.
template <class T, int MR, int NR>
STRETTO_INLINE void contract_packed_many(const T* A, int64_t am, int64_t ak, const T* panels, T* C,
                                         int64_t ldc, int M, int K, int N, bool accumulate) {
  int n = 0;
  for (; n + NR <= N; n += NR)
    contract_packed<T, MR, NR>(A, am, ak, panels + int64_t(n) * K, C + n, ldc, M, K, accumulate);
  if (n < N)
    contract_packed<T, MR, NR>(A, am, ak, panels + int64_t(n) * K, C + n, ldc, M, K, accumulate,
                               N - n);
}

// The same, from the last panel to the first where `back`.
template <class T, int MR, int NR>
STRETTO_INLINE void contract_packed_turn(const T* A, int64_t am, int64_t ak, const T* panels, T* C,
                                         int64_t ldc, int M, int K, int N, bool accumulate,
                                         bool back) {
  const int count = (N + NR - 1) / NR;
  for (int turn = 0; turn < count; turn++) {
    const int n = (back ? count - 1 - turn : turn) * NR;
    contract_packed<T, MR, NR>(A, am, ak, panels + int64_t(n) * K, C + n, ldc, M, K, accumulate,
                               N - n < NR ? N - n : NR);
  }
}

// True if this run of a task of a kernel reads its constants backwards: every other one does. If they
// are larger than a cache, the last ones are then read first, while they are still in the cache.
#define STRETTO_BACK(task)                                                                  \
  [&]() __attribute__((always_inline)) {                                                    \
    static thread_local uint8_t turns[8];                                                   \
    return (turns[(task) % 8] ^= 1) == 0;                                                   \
  }()

// Both sides packed: A in slabs [M/MR][K][MR], of which this call uses K steps (`slab` elements
// from one slab to the next, so a piece of a longer K can be given), B one panel [K][NR].
template <class T, int MR, int NR>
STRETTO_INLINE void contract_packed_ab(const T* A, int64_t slab, const T* panel, T* C, int64_t ldc,
                                       int M, int K, bool accumulate, int n = NR) {
  panel_rows<T, MR, NR>({A, 1, MR, slab}, panel, C, ldc, M, K, n, accumulate);
}

// Columns n .. N of unpacked B, widest tile first. The last, incomplete vector overlaps columns
// already done instead of reading past the row; it writes only the missing columns. So narrower
// vectors are used only if all of B is narrower than one.
template <class T, int MR, int NV, int W, bool first = true>
STRETTO_INLINE void all_columns(LeftSide<T> A, const T* B, int64_t ldb, T* C, int64_t ldc, int M,
                                int n, int N, int K, bool accumulate) {
  constexpr int width = NV * W;
  if constexpr (NV > 1) {
    for (; n + width <= N; n += width)
      all_rows<T, MR, NV, W, first>(A, B + n, ldb, C + n, ldc, M, K, {0, width}, accumulate);
    if (n < N) all_columns<T, MR, NV / 2, W, false>(A, B, ldb, C, ldc, M, n, N, K, accumulate);
  } else if (W <= N) {
    for (int at = n; n < N; n += W, at = n) {
      if (n + W > N) at = N - W;
      all_rows<T, MR, 1, W, first>(A, B + at, ldb, C + at, ldc, M, K, {n - at, W}, accumulate);
    }
  } else if constexpr (W > 1) {
    all_columns<T, MR, 1, W / 2, false>(A, B, ldb, C, ldc, M, n, N, K, accumulate);
  }
}

// B unpacked: contiguous n, row stride ldb.
template <class T, int MR, int NR>
STRETTO_INLINE void contract_rows(const T* A, int64_t am, int64_t ak, const T* B, int64_t ldb,
                                  T* C, int64_t ldc, int M, int N, int K, bool accumulate) {
  constexpr int W = kLanes<T>;
  all_columns<T, MR, NR / W, W>({A, am, ak, MR * am}, B, ldb, C, ldc, M, 0, N, K, accumulate);
}

// MB rows of A against NB rows of B (a power of two), both contiguous in k.
template <class T, int MB, int NB>
STRETTO_INLINE void dots_tile(const T* A, int64_t am, const T* B, int64_t bn, T* C, int64_t ldc,
                              int K, bool accumulate) {
  constexpr int W = kLanes<T>;
  constexpr int KU = MB * NB < 8 ? 2 : 1;  // a dot product is short: more sums cost more to merge
  Vector<T, W> c[KU][MB][NB] = {};
  const auto step = [&](Vector<T, W>(&total)[MB][NB], int k, auto load_at) {
    Vector<T, W> right[NB];
    STRETTO_UNROLL
    for (int j = 0; j < NB; j++) right[j] = load_at(B + j * bn + k);
    STRETTO_UNROLL
    for (int i = 0; i < MB; i++) {
      const Vector<T, W> left = load_at(A + i * am + k);
      STRETTO_UNROLL
      for (int j = 0; j < NB; j++) total[i][j] += left * right[j];
    }
  };
  const auto whole = [](const T* p) __attribute__((always_inline)) { return load<T, W>(p); };
  int k = 0;
  if (KU > 1 && K >= KU * W) {
    for (; k + KU * W <= K; k += KU * W) {
      STRETTO_UNROLL
      for (int u = 0; u < KU; u++) step(c[u], k + u * W, whole);
    }
    merge_sums<T, KU, MB, NB, W>(c);
  }
  for (; k + W <= K; k += W) step(c[0], k, whole);
  if (k < K) step(c[0], k, [&](const T* p) { return load_first<T, W>(p, K - k); });
  constexpr int G = NB < W ? NB : W;  // totals that fit one vector
  STRETTO_UNROLL
  for (int i = 0; i < MB; i++) {
    STRETTO_UNROLL
    for (int j = 0; j < NB; j += G) {
      const Vector<T, W> all = sums<T, W, G>(&c[0][i][j]);
      Vector<T, G> totals;
      __builtin_memcpy(&totals, &all, sizeof totals);
      T* out = C + i * ldc + j;
      store<T, G>(out, accumulate ? totals + load<T, G>(out) : totals);
    }
  }
}

// B transposed: C[m][n] (+)= dot(A[m*am ...], B[n*bn ...]), contiguous k on both sides.
template <class T, int MB, int NB>
STRETTO_INLINE void contract_dots(const T* A, int64_t am, const T* B, int64_t bn, T* C,
                                  int64_t ldc, int M, int N, int K, bool accumulate) {
  int n = 0;
  for (; n + NB <= N; n += NB) {
    int m = 0;
    for (; m + MB <= M; m += MB)
      dots_tile<T, MB, NB>(A + m * am, am, B + n * bn, bn, C + m * ldc + n, ldc, K, accumulate);
    for (; m < M; m++)
      dots_tile<T, 1, NB>(A + m * am, am, B + n * bn, bn, C + m * ldc + n, ldc, K, accumulate);
  }
  for (; n < N; n++)
    for (int m = 0; m < M; m++)
      dots_tile<T, 1, 1>(A + m * am, am, B + n * bn, bn, C + m * ldc + n, ldc, K, accumulate);
}

// ---- shared instances -------------------------------------------------------------------------
//
// Products so large that the cost of a call is negligible. With sizes that are known only at the
// call, inlining gives no constants, and g++ takes a second for the tiles of all heights.

// As contract_packed_many. unit: ak is 1.
//
// Whole blocks of rows prefetch the next piece of a panel. The weights of a large model come from
// memory, where the hardware prefetches no further than a page: 128 x 768 x 192 has 113 GFLOP/s
// without prefetches, and 138 with them, as many as from the second-level cache. If the rows do not
// fit this cache, a piece of their depth is multiplied with all panels before the next one: 128 x
// 3072 x 384 on two cores: 232 -> 250.
template <class T, int MR, int NR, bool unit>
STRETTO_SHARED void packed_shared(const T* A, int64_t am, int64_t ak, const T* panels, T* C,
                                  int64_t ldc, int M, int K, int N, bool accumulate) {
  constexpr int W = kLanes<T>, bytes = NR * int(sizeof(T)), piece = kHotBytes / bytes;
  constexpr int near = 32;  // steps from a single block to what it prefetches
  const bool single = M <= MR;
  const int step = single || K < piece ? K : piece, blocks = single ? 1 : M / MR;
  const int pieces = step > 0 ? (K + step - 1) / step : 1, columns = (N + NR - 1) / NR;
  const bool deep = !single && M <= 256 && int64_t(M) * K * int64_t(sizeof(T)) > kKeptBytes;
  const int outer = deep ? pieces : columns, inner = deep ? columns : pieces;
  const auto at = [&](int i, int j) {
    return panels + (int64_t(deep ? j : i) * K + int64_t(deep ? i : j) * step) * NR;
  };
  for (int i = 0; i < outer; i++) {
    for (int j = 0; j < inner; j++) {
      const int k = (deep ? i : j) * step, n = (deep ? j : i) * NR;
      const int depth = K - k < step ? K - k : step, width = N - n < NR ? N - n : NR;
      const T* wanted = single ? at(i, j) + near * NR : j + 1 < inner ? at(i, j + 1) : at(i + 1, 0);
      const LeftSide<T> left = {A + k * (unit ? 1 : ak), am, unit ? 1 : ak, MR * am};
      all_rows<T, MR, NR / W, W, true, true>(
          left, at(i, j), NR, C + n, ldc, M, depth, {0, width}, accumulate || k > 0,
          Ahead{reinterpret_cast<const char*>(wanted), bytes / blocks});
    }
  }
}
#define STRETTO_SHARED_PACKED(WHERE, T, MR, NR, unit)                                      \
  WHERE template void stretto::packed_shared<T, MR, NR, unit>(                             \
      const T*, int64_t, int64_t, const T*, T*, int64_t, int, int, int, bool);

// As contract_rows; N is a multiple of NR.
template <class T, int MR, int NR, bool unit>
STRETTO_SHARED void rows_shared(const T* A, int64_t am, int64_t ak, const T* B, int64_t ldb, T* C,
                                int64_t ldc, int M, int N, int K, bool accumulate) {
  constexpr int W = kLanes<T>;
  for (int n = 0; n < N; n += NR)
    all_rows<T, MR, NR / W, W, true, true>({A, am, unit ? 1 : ak, MR * am}, B + n, ldb, C + n, ldc, M,
                                           K, {0, NR}, accumulate);
}
#define STRETTO_SHARED_ROWS(WHERE, T, MR, NR, unit)                                        \
  WHERE template void stretto::rows_shared<T, MR, NR, unit>(                               \
      const T*, int64_t, int64_t, const T*, int64_t, T*, int64_t, int, int, int, bool);

}  // namespace stretto
