// Attention inside one task, without ever storing the scores of a row: the softmax is computed over
// tiles of keys as they come (Dao et al., FlashAttention, 2022, algorithm 1).
//
// For each row the largest score so far and the sum of exp(score - largest) are stored. When a tile
// has a larger score, the sum and the row of the result are scaled down to it. A tile of keys is
// transposed ("turned") so that lanes are keys, once for all rows of a chunk; a block of rows is
// multiplied with it, and the weights that result from its scores with the values. Keys of score -inf
// have no weight, and a row of only such keys is 0.
#pragma once

#include "contract.h"
#include "math.h"

namespace stretto {

// D: the depth, C: the columns of the values, R: rows of a block, K: keys of a tile, M: rows of a
// chunk.
template <class T, int D, int C, int R, int K, int M>
struct Attention {
  alignas(64) T keys[D * K];
  alignas(64) T scores[R * K];
  T top[M], total[M];

  // Begins a chunk of rows.
  void begin(T* out, int64_t stride, int rows) {
    for (int i = 0; i < rows; i++) {
      top[i] = -Limits<T>::infinity();
      total[i] = 0;
      for (int c = 0; c < C; c++) out[i * stride + c] = 0;
    }
  }

  // Transposes a tile of keys; a partial tile is filled up with 0.
  __attribute__((noinline)) void turn(const T* source, int64_t key, int64_t depth, int width) {
    constexpr int B = 16;
    for (int first = 0; first < K; first += B)
      for (int d = 0; d < D; d++) {
        const T* from = source + first * key + d * depth;
        T* to = keys + d * K + first;
        if (first + B <= width)
          for (int k = 0; k < B; k++) to[k] = from[k * key];
        else
          for (int k = 0; k < B; k++) to[k] = first + k < width ? from[k * key] : T(0);
      }
  }

  // Multiplies a block of rows with the tile.
  __attribute__((noinline)) void multiply(const T* queries, int64_t row, int64_t depth, int rows) {
    static_assert(K % 64 == 0, "tiles of keys are whole");
    rows_shared<T, 6, 64, false>(queries, row, depth, keys, K, scores, K, rows, K, D, false);
  }

  // Sets the scores of keys after a row to -inf; `ahead` is the distance from the first key of the
  // tile to the first row.
  void hide(int64_t ahead, int rows, int width) {
    for (int i = 0; i < rows; i++)
      for (int64_t k = ahead + i + 1 > 0 ? ahead + i + 1 : 0; k < width; k++)
        scores[i * K + k] = -Limits<T>::infinity();
  }

  // Adds the tile to the results of the block; `first` is its first row in the chunk.
  __attribute__((noinline)) void update(int first, int rows, int width, T scale, const T* values,
                                        int64_t value, T* out, int64_t stride) {
    constexpr T low = -Limits<T>::infinity();
    for (int i = 0; i < rows; i++) {
      T* row = scores + i * K;
      T best = low;
#pragma omp simd reduction(max : best)
      for (int k = 0; k < width; k++) {
        const T score = row[k] * scale;
        best = best > score ? best : score;
      }
      const T before = top[first + i], now = before > best ? before : best;
      const T base = now == low ? T(0) : now;
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int k = 0; k < width; k++) {
        const T weight = exp(row[k] * scale - base);
        row[k] = weight;
        sum += weight;
      }
      top[first + i] = now;
      if (before == now || before == low) {
        total[first + i] += sum;
        continue;
      }
      const T factor = exp(before - base);
      total[first + i] = total[first + i] * factor + sum;
      T* result = out + i * stride;
#pragma omp simd
      for (int c = 0; c < C; c++) result[c] *= factor;
    }
    if constexpr (C % 64 == 0)
      rows_shared<T, 6, 64, true>(scores, K, 1, values, value, out, stride, rows, C, width, true);
    else
      contract_rows<T, 6, 64>(scores, K, 1, values, value, out, stride, rows, C, width, true);
  }

  // Ends a chunk of rows, after all keys.
  void end(T* out, int64_t stride, int rows) {
    for (int i = 0; i < rows; i++)
      if (total[i] != 0)
        for (int c = 0; c < C; c++) out[i * stride + c] /= total[i];
  }
};

}  // namespace stretto
