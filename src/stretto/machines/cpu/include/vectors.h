// Vectors of the target machine, by the vector extensions that g++ and clang++ share.
//
// No intrinsics: the same source gives zmm, ymm, xmm or NEON code, and <immintrin.h>, which costs
// more to compile than most kernels, stays out. Loads and stores go through memcpy, which makes
// them legal at any alignment and compiles to one unaligned move (no slower on aligned addresses).
#pragma once

#include "standard.h"

// A register array such as c[MR][NV] lives in registers only if the loops over it are unrolled.
#if defined(__clang__)
#define STRETTO_UNROLL _Pragma("clang loop unroll(full)")
#define STRETTO_UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define STRETTO_UNROLL _Pragma("GCC unroll 64")
#define STRETTO_UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

namespace stretto {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kVectorRegisters = 32;
#else
constexpr int kVectorRegisters = 16;
#endif

// Two FMA ports times a latency of four cycles is 8 sums in flight on current x86 and ARM cores;
// 12 leaves slack where registers allow.
constexpr int kChains = kVectorRegisters == 32 ? 12 : 8;

// Bytes that a task may keep in the first-level cache (32 or 48 KiB) beside its streams.
constexpr int kHotBytes = 32 << 10;

// Bytes that a task may keep in the second-level cache (1 or 2 MiB).
constexpr int kKeptBytes = 1 << 20;

template <class T>
constexpr int kLanes = kVectorBytes / int(sizeof(T));

template <class T, int W>
struct VectorOf {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <class T>
struct VectorOf<T, 1> {
  using type = T;  // lets the narrowest tail use the same code
};
template <class T, int W>
using Vector = typename VectorOf<T, W>::type;

template <class T, int W>
STRETTO_INLINE Vector<T, W> load(const T* p) {
  Vector<T, W> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Keeps a vector that is multiplied several times in a register. Otherwise g++ reads it from memory
// again in each multiplication. Without AVX-512 a broadcast takes a load, too, and a core makes only
// two loads with two multiplications per cycle: a tile of pixels reached 60 of 104 GFLOP/s that way,
// and 88 with its vectors in registers (Zen 3). Code for AVX-512 is unchanged.
template <class T, int W>
STRETTO_INLINE void hold([[maybe_unused]] Vector<T, W>& v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (sizeof v == kVectorBytes) asm("" : "+x"(v));
#endif
}

// The first `count` < W elements, then zeros; reads nothing past p[count - 1].
template <class T, int W>
STRETTO_INLINE Vector<T, W> load_first(const T* p, int count) {
  T lanes[W] = {};
  for (int i = 0; i < count; i++) lanes[i] = p[i];
  return load<T, W>(lanes);
}

template <class T, int W>
STRETTO_INLINE void store(T* p, const Vector<T, W>& v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// Each group of G lanes of a, then of b, shrunk to G/2 lanes by adding its halves.
template <class T, int W, int G, int... i>
STRETTO_INLINE Vector<T, W> add_halves(const Vector<T, W>& a, const Vector<T, W>& b,
                                       Indices<i...>) {
  constexpr int H = G / 2;
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(a, b, (i / H * G + i % H)...) +
         __builtin_shufflevector(a, b, (i / H * G + i % H + H)...);
#else  // g++ before 12
  T from[2 * W];
  store<T, W>(from, a);
  store<T, W>(from + W, b);
  const T added[W] = {(from[i / H * G + i % H] + from[i / H * G + i % H + H])...};
  return load<T, W>(added);
#endif
}

// Lane j < N of the result is the sum of all lanes of v[j]. Summing N vectors together takes about
// three operations each instead of 2 log2(W). N: a power of two up to W.
template <class T, int W, int N, int G = W>
STRETTO_INLINE Vector<T, W> sums(const Vector<T, W>* v) {
  static_assert(N >= 1 && N <= G && (N & (N - 1)) == 0, "a power of two up to the lanes");
  if constexpr (G == 1) {
    return v[0];
  } else {
    constexpr int M = N > 1 ? N / 2 : 1;
    Vector<T, W> half[M];
    STRETTO_UNROLL
    for (int j = 0; j < M; j++)
      half[j] = add_halves<T, W, G>(v[N > 1 ? 2 * j : 0], v[N > 1 ? 2 * j + 1 : 0],
                                    typename IndicesUpTo<W>::type());
    return sums<T, W, M, G / 2>(half);
  }
}

// Copies n elements with whole vectors; the last one overlaps what is already written, and a run
// shorter than a vector is copied with narrower ones. Folds to a few moves where n is constant.
template <class T, int W = kLanes<T>>
STRETTO_INLINE void copy_run(T* to, const T* from, int n) {
  if (n >= W) {
    int i = 0;
    for (; i + W <= n; i += W) store<T, W>(to + i, load<T, W>(from + i));
    if (i < n) store<T, W>(to + n - W, load<T, W>(from + n - W));
  } else if constexpr (W > 1) {
    copy_run<T, W / 2>(to, from, n);
  }
}

template <class T, int W = kLanes<T>>
STRETTO_INLINE void zero_run(T* to, int n) {
  if (n >= W) {
    const Vector<T, W> zero = {};
    int i = 0;
    for (; i + W <= n; i += W) store<T, W>(to + i, zero);
    if (i < n) store<T, W>(to + n - W, zero);
  } else if constexpr (W > 1) {
    zero_run<T, W / 2>(to, n);
  }
}

}  // namespace stretto
