// Blocks of a matrix, transposed through vector registers.
#pragma once

#include "vectors.h"

namespace stretto {

#if __has_builtin(__builtin_shufflevector)
// Alternating lanes of a and b: those of the lower halves or of the upper halves.
template <class T, int W, int Half, int... i>
STRETTO_INLINE Vector<T, W> woven(const Vector<T, W>& a, const Vector<T, W>& b, Indices<i...>) {
  return __builtin_shufflevector(a, b, (i / 2 + Half * (W / 2) + (i % 2) * W)...);
}

// to[c * to_row + r] = from[r * from_row + c] for r, c < W: log2(W) times, vector n and vector
// n + W / 2 are woven into vectors 2 n and 2 n + 1, which turns the bits of (r, c) one place on.
template <class T, int W>
STRETTO_INLINE void transpose_square(T* to, int64_t to_row, const T* from, int64_t from_row) {
  using Lanes = typename IndicesUpTo<W>::type;
  Vector<T, W> v[W];
  STRETTO_UNROLL
  for (int r = 0; r < W; r++) v[r] = load<T, W>(from + r * from_row);
  STRETTO_UNROLL
  for (int step = 1; step < W; step *= 2) {
    Vector<T, W> next[W];
    STRETTO_UNROLL
    for (int n = 0; n < W / 2; n++) {
      next[2 * n] = woven<T, W, 0>(v[n], v[n + W / 2], Lanes());
      next[2 * n + 1] = woven<T, W, 1>(v[n], v[n + W / 2], Lanes());
    }
    STRETTO_UNROLL
    for (int n = 0; n < W; n++) v[n] = next[n];
  }
  STRETTO_UNROLL
  for (int c = 0; c < W; c++) store<T, W>(to + c * to_row, v[c]);
}

// The same for at least W rows and columns: the last squares overlap those before.
template <class T, int W>
STRETTO_INLINE void transpose_squares(T* to, int64_t to_row, const T* from, int64_t from_row,
                                      int rows, int columns) {
  for (int r = 0; r < rows; r += W) {
    const int row = r + W <= rows ? r : rows - W;
    for (int c = 0; c < columns; c += W) {
      const int column = c + W <= columns ? c : columns - W;
      transpose_square<T, W>(to + column * to_row + row, to_row, from + row * from_row + column,
                             from_row);
    }
  }
}

// Transposes by the widest squares that the rows and columns allow.
template <class T, int W = kLanes<T>>
static void transpose_by(T* to, int64_t to_row, const T* from, int64_t from_row, int rows,
                         int columns) {
  if (rows >= W && columns >= W) {
    transpose_squares<T, W>(to, to_row, from, from_row, rows, columns);
  } else if constexpr (W > 4) {
    transpose_by<T, W / 2>(to, to_row, from, from_row, rows, columns);
  } else {
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < columns; c++) to[c * to_row + r] = from[r * from_row + c];
  }
}
#endif

// to[c * to_row + r] = from[r * from_row + c] for r < rows, c < columns.
template <class T>
static void transpose(T* to, int64_t to_row, const T* from, int64_t from_row, int rows,
                      int columns) {
#if __has_builtin(__builtin_shufflevector)
  if constexpr (sizeof(T) >= 4)
    return transpose_by<T>(to, to_row, from, from_row, rows, columns);
#endif
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < columns; c++) to[c * to_row + r] = from[r * from_row + c];
}

}  // namespace stretto
