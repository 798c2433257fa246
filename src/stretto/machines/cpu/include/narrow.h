// Products of numbers of 16 and 8 bits inside one task: C[m][n] (+)= sum over k of A[m*am + k*ak] *
// B[k][n], where A and B are bf16 or half and C is float, or A is of bytes, B of signed bytes and C of
// int32.
//
//   narrow_packed   B panels [N/NR][K/G][NR][G], zero-padded     constant weights
//   narrow_rows     B rows with contiguous n                     run-time matrices
//   narrow_dots     B[n][k], contiguous k                        q . k^T, run-time weights
//
// Every product of two such numbers is exact in float, and sums are those of float; so the error is
// that of a product of float matrices with the same values, whatever instructions compute it.
//
// Instructions. bf16: vdpbf16ps (AVX512_BF16) multiplies pairs along the depth, at twice the rate of
// float. It takes denormal numbers for 0, as do the library calls of eager PyTorch for more than one
// row; a single row, which only reads its weights, is widened to float. Without that instruction,
// and for half (F16C), both sides are widened: the left one once for all columns, the right one in
// registers, once for all rows of a tile. Bytes: vpdpbusd (AVX512_VNNI) adds four products at once;
// without it they are multiplied as int32. Both are exact, and wrap around. STRETTO_WIDEN forbids the
// instructions for narrow numbers.
//
// GFLOP/s of one Zen 4 core, weights in the second-level cache, 16 rows (float: 115): bf16 panels 230,
// rows 154, dots 221; half 112, 112, 77; bytes 453. A single row reads bf16 panels at 81 GB/s, half at
// 55, bytes at 83 (float at 97).
#pragma once

#include "contract.h"
#include "math.h"

namespace stretto {

// ---- conversions ------------------------------------------------------------------------------

template <int W>
STRETTO_INLINE Vector<float, W> widened(const bf16* p) {
  typedef Vector<uint32_t, W> Wide;
  const Wide bits = __builtin_convertvector((load<uint16_t, W>(&p->bits)), Wide) << 16;
  return bits_as<Vector<float, W>>(bits);
}

template <int W>
STRETTO_INLINE Vector<float, W> widened(const half* p) {
#if defined(__F16C__) && !defined(STRETTO_WIDEN)
  if constexpr (W * 4 == kVectorBytes && W >= 8) {
    Vector<float, W> wide;
    const Vector<uint16_t, W> narrow = load<uint16_t, W>(&p->bits);
    asm("vcvtph2ps %1, %0" : "=v"(wide) : "v"(narrow));
    return wide;
  }
#endif
  float lanes[W];
  for (int i = 0; i < W; i++) lanes[i] = to_float(p[i]);
  return load<float, W>(lanes);
}

// ---- formats ----------------------------------------------------------------------------------
//
// How numbers H are multiplied: Given ones of A with those of B. G numbers of a column are adjacent in a panel, P of them are one
// Left: a row of A is laid out as Lefts, ceil(K / P) of them, before it is multiplied.

// Both sides are widened to float.
template <class H, int group>
struct Widened {
  using Given = H;
  using Number = H;
  using Left = float;
  using Sum = float;
  static constexpr int G = group, P = 1;

  static void spread(float* to, const H* from, int64_t ak, int count) {
    constexpr int W = kLanes<float>;
    int k = 0;
    if (ak == 1)
      for (; k + W <= count; k += W) store<float, W>(to + k, widened<W>(from + k));
    for (; k < count; k++) to[k] = to_float(from[k * ak]);
  }

  // G numbers of the depth; those of B are at b, in kRows rows with stride ldb.
  static constexpr int kRows = 1;
  template <int MR, int NV, int W>
  STRETTO_INLINE void step(Vector<float, W> (&c)[MR][NV], const float* a, int64_t am, const H* b,
                           int64_t) {
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) {
      if constexpr (G == 1) {
        const Vector<float, W> row = widened<W>(b + j * W);
        STRETTO_UNROLL
        for (int i = 0; i < MR; i++) c[i][j] += a[i * am] * row;
      } else {  // pairs of bf16
        const auto pairs = load<uint32_t, W>(reinterpret_cast<const uint32_t*>(b + j * 2 * W));
        const auto even = bits_as<Vector<float, W>>(pairs << 16);
        const auto odd = bits_as<Vector<float, W>>(pairs & 0xffff0000u);
        STRETTO_UNROLL
        for (int i = 0; i < MR; i++) {
          c[i][j] += a[i * am] * even;
          c[i][j] += a[i * am + 1] * odd;
        }
      }
    }
  }

  // A piece of two dot products, numbers from contiguous memory: in vectors that hold them in any
  // order, the same for both.
  static constexpr int kChunk = group * kLanes<float>;
  struct Chunk {
    Vector<float, kLanes<float>> part[group];
  };
  STRETTO_INLINE Chunk chunk(const H* p) {
    constexpr int W = kLanes<float>;
    if constexpr (G == 1) {
      return {{widened<W>(p)}};
    } else {
      const auto pairs = load<uint32_t, W>(reinterpret_cast<const uint32_t*>(p));
      return {{bits_as<Vector<float, W>>(pairs << 16),
               bits_as<Vector<float, W>>(pairs & 0xffff0000u)}};
    }
  }
  template <class V>
  STRETTO_INLINE V dot(V c, const Chunk& a, const Chunk& b) {
    STRETTO_UNROLL
    for (int i = 0; i < G; i++) c += a.part[i] * b.part[i];
    return c;
  }
};

#if defined(__AVX512BF16__) && !defined(STRETTO_WIDEN)
// Pairs are multiplied and added by one instruction.
struct Paired {
  using Given = bf16;
  using Number = bf16;
  using Left = uint32_t;
  using Sum = float;
  static constexpr int G = 2, P = 2;

  static void spread(uint32_t* pairs, const bf16* from, int64_t ak, int count) {
    char* to = reinterpret_cast<char*>(pairs);
    if (count % 2) pairs[count / 2] = 0;
    if (ak == 1)
      __builtin_memcpy(to, from, count * sizeof(bf16));
    else
      for (int k = 0; k < count; k++) __builtin_memcpy(to + 2 * k, from + k * ak, sizeof(bf16));
  }

  static constexpr int kRows = 1;
  template <int MR, int NV, int W>
  STRETTO_INLINE void step(Vector<float, W> (&c)[MR][NV], const uint32_t* a, int64_t am,
                           const bf16* b, int64_t) {
    Vector<uint32_t, W> row[NV];
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++)
      row[j] = load<uint32_t, W>(reinterpret_cast<const uint32_t*>(b + j * 2 * W));
    multiply<MR, NV, W>(c, a, am, row);
  }

  template <int MR, int NV, int W>
  STRETTO_INLINE void multiply(Vector<float, W> (&c)[MR][NV], const uint32_t* a, int64_t am,
                               const Vector<uint32_t, W> (&row)[NV]) {
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) {
      const Vector<uint32_t, W> left = a[i * am] - Vector<uint32_t, W>{};
      STRETTO_UNROLL
      for (int j = 0; j < NV; j++) c[i][j] = dot(c[i][j], left, row[j]);
    }
  }

  static constexpr int kChunk = 2 * kLanes<float>;
  using Chunk = Vector<uint32_t, kLanes<float>>;
  STRETTO_INLINE Chunk chunk(const bf16* p) {
    return load<uint32_t, kLanes<float>>(reinterpret_cast<const uint32_t*>(p));
  }
  template <class V, class U>
  STRETTO_INLINE V dot(V c, U a, U b) {  // by value: an operand by reference would be in memory
    asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
  }
};

// The same with pairs made of two rows of B.
struct PairedRows : Paired {
  static constexpr int kRows = 2;
  template <int MR, int NV, int W>
  STRETTO_INLINE void step(Vector<float, W> (&c)[MR][NV], const uint32_t* a, int64_t am,
                           const bf16* b, int64_t ldb) {
    typedef Vector<uint32_t, W> Wide;
    Wide row[NV];
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) {
      const auto even = load<uint16_t, W>(&b[j * W].bits);
      const auto odd = load<uint16_t, W>(&b[ldb + j * W].bits);
      row[j] = __builtin_convertvector(even, Wide) | __builtin_convertvector(odd, Wide) << 16;
    }
    multiply<MR, NV, W>(c, a, am, row);
  }
};
#else
using Paired = Widened<bf16, 2>;
using PairedRows = Widened<bf16, 1>;
#endif

#if defined(__AVX512VNNI__) && !defined(STRETTO_WIDEN)
// Four bytes are multiplied and added by one instruction.
struct Fours {
  using Given = uint8_t;
  using Number = int8_t;
  using Left = uint32_t;
  using Sum = int32_t;
  static constexpr int G = 4, P = 4, kRows = 1;

  static void spread(uint32_t* fours, const uint8_t* from, int64_t ak, int count) {
    char* to = reinterpret_cast<char*>(fours);
    if (count % 4) fours[count / 4] = 0;
    if (ak == 1)
      __builtin_memcpy(to, from, count);
    else
      for (int k = 0; k < count; k++) __builtin_memcpy(to + k, from + k * ak, 1);
  }

  template <int MR, int NV, int W>
  STRETTO_INLINE void step(Vector<int32_t, W> (&c)[MR][NV], const uint32_t* a, int64_t am,
                           const int8_t* b, int64_t) {
    Vector<uint32_t, W> row[NV];
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++)
      row[j] = load<uint32_t, W>(reinterpret_cast<const uint32_t*>(b + j * 4 * W));
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) {
      const Vector<uint32_t, W> left = a[i * am] - Vector<uint32_t, W>{};
      STRETTO_UNROLL
      for (int j = 0; j < NV; j++) {
        Vector<int32_t, W> sum = c[i][j];
        asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(left), "v"(row[j]));
        c[i][j] = sum;
      }
    }
  }
};
#else
struct Fours {
  using Given = uint8_t;
  using Number = int8_t;
  using Left = int32_t;
  using Sum = int32_t;
  static constexpr int G = 4, P = 1, kRows = 1;

  static void spread(int32_t* to, const uint8_t* from, int64_t ak, int count) {
    for (int k = 0; k < count; k++) to[k] = from[k * ak];
  }

  template <int MR, int NV, int W>
  STRETTO_INLINE void step(Vector<int32_t, W> (&c)[MR][NV], const int32_t* a, int64_t am,
                           const int8_t* b, int64_t) {
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) {
      const auto fours = load<uint32_t, W>(reinterpret_cast<const uint32_t*>(b + j * 4 * W));
      STRETTO_UNROLL
      for (int u = 0; u < 4; u++) {
        const auto one = bits_as<Vector<int32_t, W>>(fours << (24 - 8 * u)) >> 24;
        STRETTO_UNROLL
        for (int i = 0; i < MR; i++) c[i][j] += a[i * am + u] * one;
      }
    }
  }
};
#endif

// The formats of one row of A and of several: with panels and dot products, and with rows of B.
template <class H>
struct Formats {
  using Single = Widened<H, 1>;
  using Several = Widened<H, 1>;
  using SeveralRows = Widened<H, 1>;
};
template <>
struct Formats<int8_t> {
  using Single = Fours;
  using Several = Fours;
};
template <>
struct Formats<bf16> {
  using Single = Widened<bf16, 2>;
  using Several = Paired;
  using SeveralRows = PairedRows;
};

template <class H>
using GivenWith = typename Formats<H>::Several::Given;
template <class H>
using SumOf = typename Formats<H>::Several::Sum;

// ---- tiles ------------------------------------------------------------------------------------

// MR rows by NV vectors, for `steps` groups of the depth; A has been laid out as Lefts.
template <class F, int MR, int NV, int W>
STRETTO_INLINE void narrow_tile(const typename F::Left* A, int64_t am, const typename F::Number* B,
                                int64_t ldb, typename F::Sum* C, int64_t ldc, int steps, Columns columns,
                                bool accumulate) {
  constexpr int KU = MR * NV < 8 ? 2 : 1, lefts = F::G / F::P;
  constexpr int ahead = 4096 / int(sizeof(typename F::Number));
  Vector<typename F::Sum, W> c[KU][MR][NV] = {};
  int k = 0;
  for (; k + KU <= steps; k += KU) {
    STRETTO_UNROLL
    for (int u = 0; u < KU; u++) {
      const typename F::Number* b = B + (k + u) * F::kRows * ldb;
      if constexpr (MR <= 2) {  // a few rows wait for memory, so prefetch
        STRETTO_UNROLL
        for (int j = 0; j < NV * W * F::G * int(sizeof(typename F::Number)); j += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(b + ahead) + j, 0, 2);
      }
      F::template step<MR, NV, W>(c[u], A + (k + u) * lefts, am, b, ldb);
    }
  }
  merge_sums<typename F::Sum, KU, MR, NV, W>(c);
  for (; k < steps; k++)
    F::template step<MR, NV, W>(c[0], A + k * lefts, am, B + k * F::kRows * ldb, ldb);
  tile_store<typename F::Sum, MR, NV, W>(c[0], C, ldc, columns, accumulate);
}

// The last M <= MR rows, by the tile of exactly that height.
template <class F, int MR, int NV, int W>
STRETTO_INLINE void narrow_last(const typename F::Left* A, int64_t am, const typename F::Number* B,
                                int64_t ldb, typename F::Sum* C, int64_t ldc, int M, int steps,
                                Columns columns, bool accumulate) {
  if constexpr (MR > 0) {
    if (M == MR)
      narrow_tile<F, MR, NV, W>(A, am, B, ldb, C, ldc, steps, columns, accumulate);
    else
      narrow_last<F, MR - 1, NV, W>(A, am, B, ldb, C, ldc, M, steps, columns, accumulate);
  }
}

// All M rows against NV vectors of columns, of which those before `to` are written. Tiles are chosen
// for 32 registers: with fewer, they are done in halves.
template <class F, int MR, int NV, int W>
STRETTO_INLINE void narrow_block(const typename F::Left* A, int64_t am, const typename F::Number* B,
                                 int64_t ldb, typename F::Sum* C, int64_t ldc, int M, int steps, int to,
                                 bool accumulate) {
  if constexpr (MR * NV >= kVectorRegisters && NV > 1) {
    constexpr int half = NV / 2, width = half * W;
    narrow_block<F, MR, half, W>(A, am, B, ldb, C, ldc, M, steps, to < width ? to : width,
                                 accumulate);
    if (to > width)
      narrow_block<F, MR, NV - half, W>(A, am, B + width * F::G, ldb, C + width, ldc, M, steps,
                                        to - width, accumulate);
  } else {
    int m = 0;
    for (; m + MR <= M; m += MR)
      narrow_tile<F, MR, NV, W>(A + m * am, am, B, ldb, C + m * ldc, ldc, steps, {0, to},
                                accumulate);
    narrow_last<F, MR - 1, NV, W>(A + m * am, am, B, ldb, C + m * ldc, ldc, M - m, steps, {0, to},
                                  accumulate);
  }
}

// Number of rows of A that are laid out at a time, and their depth: one tile of rows reads every panel
// as a whole; more rows stay in the first-level cache with a piece of a panel.
template <class F, int MR>
struct Spread {
  static constexpr int kSingle = 2048, kRows = 8 * MR, kPiece = kSingle * MR / kRows;
  alignas(64) typename F::Left data[MR * kSingle / F::P];

  static int piece(int M) { return M <= MR ? kSingle : kPiece; }
};

// Common part of the two kinds of matrices: calls `multiply` for pieces of rows and depth, with the
// rows laid out, their stride, their place in C, their number, and the part of K.
template <class F, int MR, class Multiply>
STRETTO_INLINE void narrow_pieces(const typename F::Given* A, int64_t am, int64_t ak, int M, int K,
                                  Multiply multiply) {
  Spread<F, MR> left;
  const int piece = left.piece(M), rows = M <= MR ? MR : left.kRows;
  for (int m = 0; m < M; m += rows) {
    const int height = M - m < rows ? M - m : rows;
    int k = 0;
    do {  // at least once: K = 0 must still clear C
      const int depth = K - k < piece ? K - k : piece, pitch = piece / F::P;
      for (int i = 0; i < height; i++)
        F::spread(left.data + i * pitch, A + (m + i) * am + k * ak, ak, depth);
      multiply(left.data, pitch, m, height, k, depth);
      k += piece;
    } while (k < K);
  }
}

template <class F, int MR, int NR>
STRETTO_INLINE void narrow_panels(const typename F::Given* A, int64_t am, int64_t ak,
                                  const typename F::Number* panels, typename F::Sum* C,
                                  int64_t ldc, int M, int K, int N, bool accumulate) {
  constexpr int W = kLanes<float>, G = F::G;
  const int groups = (K + G - 1) / G;
  narrow_pieces<F, MR>(
      A, am, ak, M, K,
      [&](typename F::Left* left, int pitch, int m, int rows, int k, int depth) {
        if (G > F::P)
          for (int k = depth; k % G; k++)  // the last group is not whole
            for (int i = 0; i < rows; i++) left[i * pitch + k] = 0;
        for (int n = 0; n < N; n += NR) {
          const auto* panel = panels + (int64_t(n / NR) * groups + k / G) * NR * G;
          narrow_block<F, MR, NR / W, W>(left, pitch, panel, NR * G, C + m * ldc + n, ldc, rows,
                                         (depth + G - 1) / G, N - n < NR ? N - n : NR,
                                         accumulate || k > 0);
        }
      });
}

// ---- functions that programs call -------------------------------------------------------------

template <class H, int MR, int NR>
STRETTO_SHARED void narrow_packed(const GivenWith<H>* A, int64_t am, int64_t ak, const H* panels,
                                  SumOf<H>* C, int64_t ldc, int M, int K, int N, bool accumulate) {
  if (M == 1)
    narrow_panels<typename Formats<H>::Single, 1, NR>(A, am, ak, panels, C, ldc, M, K, N,
                                                      accumulate);
  else
    narrow_panels<typename Formats<H>::Several, MR, NR>(A, am, ak, panels, C, ldc, M, K, N,
                                                        accumulate);
}
#define STRETTO_NARROW_PACKED(WHERE, H, MR, NR)                              \
  WHERE template void stretto::narrow_packed<H, MR, NR>(                     \
      const stretto::GivenWith<H>*, int64_t, int64_t, const H*, stretto::SumOf<H>*, int64_t, int, \
      int, int, bool);

// A block of columns [K][width] of B, copied to where it is padded with zeros.
template <class F, int MR, int NR>
STRETTO_INLINE void narrow_copied(const typename F::Left* left, int pitch,
                                  const typename F::Number* B, int64_t ldb, typename F::Sum* C, int64_t ldc,
                                  int M, int K, int width, bool accumulate) {
  using H = typename F::Number;
  constexpr int W = kLanes<float>, kept = 128;
  alignas(64) H columns[kept * NR] = {};
  int k = 0;
  do {
    const int depth = K - k < kept ? K - k : kept, whole = (depth + F::G - 1) / F::G * F::G;
    for (int d = 0; d < whole; d++)
      if (d < depth)
        __builtin_memcpy(columns + d * NR, B + (k + d) * ldb, width * sizeof(H));
      else
        __builtin_memset(columns + d * NR, 0, width * sizeof(H));
    narrow_block<F, MR, NR / W, W>(left + k / F::P, pitch, columns, NR, C, ldc, M, whole / F::G,
                                   width, accumulate || k > 0);
    k += kept;
  } while (k < K);
}

template <class F, int MR, int NR>
STRETTO_INLINE void narrow_matrix(const typename F::Number* A, int64_t am, int64_t ak,
                                  const typename F::Number* B, int64_t ldb, typename F::Sum* C, int64_t ldc,
                                  int M, int K, int N, bool accumulate) {
  constexpr int W = kLanes<float>, G = F::G;
  narrow_pieces<F, MR>(
      A, am, ak, M, K,
      [&](const typename F::Left* left, int pitch, int m, int rows, int k, int depth) {
        const bool add = accumulate || k > 0;
        const int steps = depth / G, done = steps * G;
        B += k * ldb, C += m * ldc;
        for (int n = 0; n < N; n += NR) {
          if (N - n < NR) {
            narrow_copied<F, MR, NR>(left, pitch, B + n, ldb, C + n, ldc, rows, depth, N - n, add);
            break;
          }
          narrow_block<F, MR, NR / W, W>(left, pitch, B + n, ldb, C + n, ldc, rows, steps, NR, add);
          if (done < depth)  // a row of B without another one
            narrow_copied<F, MR, NR>(left + done / F::P, pitch, B + done * ldb + n, ldb, C + n, ldc,
                                     rows, depth - done, NR, true);
        }
        B -= k * ldb, C -= m * ldc;
      });
}

// B unpacked: contiguous n, row stride ldb.
template <class H, int MR, int NR>
STRETTO_SHARED void narrow_rows(const H* A, int64_t am, int64_t ak, const H* B, int64_t ldb,
                                float* C, int64_t ldc, int M, int K, int N, bool accumulate) {
  if (M == 1)
    narrow_matrix<Widened<H, 1>, 1, NR>(A, am, ak, B, ldb, C, ldc, M, K, N, accumulate);
  else
    narrow_matrix<typename Formats<H>::SeveralRows, MR, NR>(A, am, ak, B, ldb, C, ldc, M, K, N,
                                                            accumulate);
}
#define STRETTO_NARROW_ROWS(WHERE, H, MR, NR)                                \
  WHERE template void stretto::narrow_rows<H, MR, NR>(                       \
      const H*, int64_t, int64_t, const H*, int64_t, float*, int64_t, int, int, int, bool);

// MB rows of A against NB rows of B (powers of two), both contiguous in k.
template <class F, int MB, int NB>
STRETTO_INLINE void narrow_dots_tile(const typename F::Number* A, int64_t am,
                                     const typename F::Number* B, int64_t bn, float* C, int64_t ldc,
                                     int K, bool accumulate) {
  using H = typename F::Number;
  constexpr int W = kLanes<float>, G = NB < W ? NB : W;
  Vector<float, W> c[MB][NB] = {};
  const auto step = [&](int k, auto chunk) {
    typename F::Chunk right[NB];
    STRETTO_UNROLL
    for (int j = 0; j < NB; j++) right[j] = chunk(B + j * bn + k);
    STRETTO_UNROLL
    for (int i = 0; i < MB; i++) {
      const auto left = chunk(A + i * am + k);
      STRETTO_UNROLL
      for (int j = 0; j < NB; j++) c[i][j] = F::dot(c[i][j], left, right[j]);
    }
  };
  int k = 0;
  for (; k + F::kChunk <= K; k += F::kChunk)
    step(k, [](const H* p) __attribute__((always_inline)) { return F::chunk(p); });
  if (k < K)
    step(k, [&](const H* p) {
      H numbers[F::kChunk] = {};
      for (int i = 0; i < K - k; i++) numbers[i] = p[i];
      return F::chunk(numbers);
    });
  STRETTO_UNROLL
  for (int i = 0; i < MB; i++) {
    STRETTO_UNROLL
    for (int j = 0; j < NB; j += G) {
      const Vector<float, W> all = sums<float, W, G>(&c[i][j]);
      Vector<float, G> totals;
      __builtin_memcpy(&totals, &all, sizeof totals);
      float* out = C + i * ldc + j;
      store<float, G>(out, accumulate ? totals + load<float, G>(out) : totals);
    }
  }
}

template <class F, int MB, int NB>
STRETTO_INLINE void narrow_dots_all(const typename F::Number* A, int64_t am,
                                    const typename F::Number* B, int64_t bn, float* C, int64_t ldc,
                                    int M, int K, int N, bool accumulate) {
  int n = 0;
  for (; n + NB <= N; n += NB) {
    int m = 0;
    for (; m + MB <= M; m += MB)
      narrow_dots_tile<F, MB, NB>(A + m * am, am, B + n * bn, bn, C + m * ldc + n, ldc, K,
                                  accumulate);
    for (; m < M; m++)
      narrow_dots_tile<F, 1, NB>(A + m * am, am, B + n * bn, bn, C + m * ldc + n, ldc, K,
                                 accumulate);
  }
  for (; n < N; n++)
    for (int m = 0; m < M; m++)
      narrow_dots_tile<F, 1, 1>(A + m * am, am, B + n * bn, bn, C + m * ldc + n, ldc, K, accumulate);
}

// B transposed: C[m][n] (+)= dot(A[m*am ...], B[n*bn ...]), contiguous k on both sides.
template <class H, int MB, int NB>
STRETTO_SHARED void narrow_dots(const H* A, int64_t am, const H* B, int64_t bn, float* C,
                                int64_t ldc, int M, int K, int N, bool accumulate) {
  if (M == 1)
    narrow_dots_all<typename Formats<H>::Single, 1, NB>(A, am, B, bn, C, ldc, M, K, N, accumulate);
  else
    narrow_dots_all<typename Formats<H>::Several, MB, NB>(A, am, B, bn, C, ldc, M, K, N,
                                                          accumulate);
}
#define STRETTO_NARROW_DOTS(WHERE, H, MB, NB)                                \
  WHERE template void stretto::narrow_dots<H, MB, NB>(                       \
      const H*, int64_t, const H*, int64_t, float*, int64_t, int, int, int, bool);

}  // namespace stretto
