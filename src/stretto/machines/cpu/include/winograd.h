// Convolution with taps of 3 x 3 and steps of 1 inside one task, of images whose channels are
// contiguous: tiles of S x S pixels, S = 2 or 4, by the minimal filtering algorithm F(SxS, 3x3) (Lavin
// and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016, section 4).
//
//   out = A' [ (G w G') * (B' x B) ] A    for each tile, summed over input channels where * is
//
// A tile takes (S + 2)^2 multiplications per pair of channels instead of 9 S^2: 16 instead of 36, or
// 36 instead of 144. For S = 2, B and A contain 0, 1 and -1, so their sums lose at most two bits. For
// S = 4 they contain powers of +-5/8 and +-3/2, which lose about four bits (the points 1 and 2 lose
// one bit more). The weights are transformed when the program is loaded. A block of tiles is
// transformed at once, and multiplied with a panel of each position while its pixels are in the
// second-level cache.
//
// A NaN or an infinity in the image or the weights would spread to all pixels of a tile. So tiles with
// a result that is not finite are computed again from the untransformed weights.
#pragma once

#include "pixels.h"

namespace stretto {

constexpr int kBlockTiles = 48;         // most tiles of a block
constexpr int kTileBytes = 640 << 10;   // bytes of a block of transformed tiles
constexpr int kMostTileBytes = 2 * kTileBytes;  // if the weights, which each block reads, are large
constexpr int kLargeWeights = 2 * kTileBytes;
constexpr int kSumBytes = 256;          // bytes of the channels whose sums are transformed back at once
constexpr int kApart = 16;              // elements that keep rows out of one set of a cache

template <int S>
constexpr int kWidth = S + 2;  // of a transformed tile
template <int S>
constexpr int kPositions = kWidth<S> * kWidth<S>;

// panels: [(S + 2)^2][.../s.panel][C][s.panel], `apart` elements for each position. plain: [channels
// of the result][C][3][3].
template <class T>
struct Filters {
  const T* panels;
  int64_t apart;
  const T* plain;
};

// Strides of the rows of a block of transformed tiles: `row` elements per tile, `position` per
// position of a tile.
struct TileRows {
  int64_t row, position;
};

// The points of S = 4 besides 0 and infinity: +-a and +-b.
template <class T>
struct Points {
  static constexpr T a = T(0.625), b = T(1.5);
};

// B' d.
template <class T, class V>
STRETTO_INLINE void filter_inputs(const V (&d)[4], V (&t)[4]) {
  t[0] = d[0] - d[2], t[1] = d[1] + d[2], t[2] = d[2] - d[1], t[3] = d[1] - d[3];
}
template <class T, class V>
STRETTO_INLINE void filter_inputs(const V (&d)[6], V (&t)[6]) {
  constexpr T a = Points<T>::a, b = Points<T>::b;
  const V ae = d[4] - b * b * d[2], ao = a * d[3] - a * b * b * d[1];
  const V be = d[4] - a * a * d[2], bo = b * d[3] - a * a * b * d[1];
  t[0] = a * a * b * b * d[0] - (a * a + b * b) * d[2] + d[4];
  t[1] = ae + ao, t[2] = ae - ao, t[3] = be + bo, t[4] = be - bo;
  t[5] = a * a * b * b * d[1] - (a * a + b * b) * d[3] + d[5];
}

// A' m.
template <class T, class V>
STRETTO_INLINE void filter_sums(const V (&m)[4], V (&s)[2]) {
  s[0] = m[0] + m[1] + m[2], s[1] = m[1] - m[2] - m[3];
}
template <class T, class V>
STRETTO_INLINE void filter_sums(const V (&m)[6], V (&s)[4]) {
  constexpr T a = Points<T>::a, b = Points<T>::b;
  const V ae = m[1] + m[2], ao = m[1] - m[2], be = m[3] + m[4], bo = m[3] - m[4];
  s[0] = m[0] + ae + be;
  s[1] = a * ao + b * bo;
  s[2] = a * a * ae + b * b * be;
  s[3] = a * a * a * ao + b * b * b * bo + m[5];
}

// B' d B of a tile of pixels, W channels of each.
template <class T, int S, int W>
STRETTO_INLINE void transform_tile(const T* const (&pixels)[kPositions<S>], int c, T* to,
                                   int64_t apart) {
  constexpr int N = kWidth<S>;
  Vector<T, W> t[N][N];
  STRETTO_UNROLL
  for (int x = 0; x < N; x++) {
    Vector<T, W> d[N], v[N];
    STRETTO_UNROLL
    for (int y = 0; y < N; y++) d[y] = load<T, W>(pixels[N * y + x] + c);
    filter_inputs<T>(d, v);
    STRETTO_UNROLL
    for (int y = 0; y < N; y++) t[y][x] = v[y];
  }
  STRETTO_UNROLL
  for (int y = 0; y < N; y++) {
    Vector<T, W> v[N];
    filter_inputs<T>(t[y], v);
    STRETTO_UNROLL
    for (int x = 0; x < N; x++, to += apart) store<T, W>(to, v[x]);
  }
}

// A' m A of W sums of a tile: S x S pixels, of which `height` by `width` are written. Returns zeros,
// with a NaN for each channel with a result that is not finite.
template <class T, int S, int W>
STRETTO_INLINE Vector<T, W> transform_sums(const T* from, int64_t apart, T* out, int64_t row,
                                           int64_t pixel, int height, int width) {
  constexpr int N = kWidth<S>;
  Vector<T, W> s[S][N];
  STRETTO_UNROLL
  for (int x = 0; x < N; x++) {
    Vector<T, W> m[N], v[S];
    STRETTO_UNROLL
    for (int y = 0; y < N; y++) m[y] = load<T, W>(from + (N * y + x) * apart);
    filter_sums<T>(m, v);
    STRETTO_UNROLL
    for (int y = 0; y < S; y++) s[y][x] = v[y];
  }
  Vector<T, W> finite = {};
  STRETTO_UNROLL
  for (int y = 0; y < S; y++, out += row) {
    if (y >= height) break;
    Vector<T, W> v[S];
    filter_sums<T>(s[y], v);
    STRETTO_UNROLL
    for (int x = 0; x < S; x++) {
      if (x < width) store<T, W>(out + x * pixel, v[x]);
      finite += v[x] * T(0);
    }
  }
  return finite;
}

// The tiles of a task: rows top .. bottom - 1 of an image, `across` tiles in a row of them.
struct Tiling {
  int64_t top, bottom, across;
};

// Addresses of the pixels of a tile, of which (y, left) is the first.
template <class T, int S>
STRETTO_INLINE void find_tile(const Pixels& s, const T* x, int64_t y, int64_t left, const T* zeros,
                              const T* (&pixels)[kPositions<S>]) {
  constexpr int N = kWidth<S>;
  const int64_t row = s.W * s.channels;
  const T* at = x + y * row + left * s.channels;
  if (y >= 0 && y + N <= s.H && left >= 0 && left + N <= s.W) {
    for (int i = 0; i < N; i++, at += row)
      for (int j = 0; j < N; j++) pixels[N * i + j] = at + j * s.channels;
    return;
  }
  for (int i = 0; i < N; i++, at += row) {
    const bool inside = y + i >= 0 && y + i < s.H;
    for (int j = 0; j < N; j++)
      pixels[N * i + j] =
          inside && left + j >= 0 && left + j < s.W ? at + j * s.channels : zeros;
  }
}

// Transforms the tiles t .. t + count - 1.
template <class T, int S>
static void transform_tiles(const Pixels& s, Tiling tiling, const T* x, int64_t t, int count,
                            const T* zeros, T* to, TileRows rows) {
  constexpr int W = kLanes<T>;
  for (int i = 0; i < count; i++, t++, to += rows.row) {
    const T* pixels[kPositions<S>];
    find_tile<T, S>(s, x, tiling.top + t / tiling.across * S - s.PH, t % tiling.across * S - s.PW,
                    zeros, pixels);
    for (int c = 0; c < int(s.C); c += W) transform_tile<T, S, W>(pixels, c, to + c, rows.position);
  }
}

// Writes `columns` channels of the tiles t .. t + count - 1, and clears the flags of those with a
// result that is not finite.
template <class T, int S>
static void transform_back(const Pixels& s, Tiling tiling, const T* sums, TileRows rows, int64_t t,
                           int count, T* out, int columns, bool* are_finite) {
  constexpr int W = kLanes<T>;
  for (int i = 0; i < count; i++, t++, sums += rows.row) {
    const int64_t y = tiling.top + t / tiling.across * S, x = t % tiling.across * S;
    T* to = out + (y * s.OW + x) * s.ldc;
    const int height = y + S < tiling.bottom ? S : int(tiling.bottom - y);
    const int width = x + S < s.OW ? S : int(s.OW - x);
    Vector<T, W> finite = {};
    for (int c = 0; c < columns; c += W)
      finite += transform_sums<T, S, W>(sums + c, rows.position, to + c, s.OW * s.ldc, s.ldc,
                                        height, width);
    for (int lane = 0; lane < W; lane++) are_finite[i] &= finite[lane] == 0;
  }
}

// The channels first .. first + channels - 1 of tile t, by the weights as they are.
template <class T, int S>
__attribute__((noinline)) static void plain_tile(const Pixels& s, Tiling tiling, const T* x,
                                                 int64_t t, const T* zeros, const T* weights,
                                                 int channels, T* out) {
  const int64_t top = tiling.top + t / tiling.across * S, left = t % tiling.across * S;
  const T* pixels[kPositions<S>];
  find_tile<T, S>(s, x, top - s.PH, left - s.PW, zeros, pixels);
  for (int n = 0; n < S * S; n++) {
    const int64_t y = top + n / S, at = left + n % S;
    if (y >= tiling.bottom || at >= s.OW) continue;
    for (int o = 0; o < channels; o++) {
      const T* w = weights + o * s.C * 9;
      T sum = 0;
      for (int tap = 0; tap < 9; tap++) {
        const T* from = pixels[(n / S + tap / 3) * kWidth<S> + n % S + tap % 3];
        for (int c = 0; c < int(s.C); c++) sum += from[c] * w[c * 9 + tap];
      }
      out[(y * s.OW + at) * s.ldc + o] = sum;
    }
  }
}

// Number of columns in the first part: they are split evenly, into whole vectors, `most` at a time.
template <class T>
STRETTO_INLINE int first_columns(int columns, int most) {
  constexpr int W = kLanes<T>;
  const int parts = (columns + most - 1) / most;
  return (columns / W + parts - 1) / parts * W;
}

// Rows of a register tile of NV vectors. With 16 registers, 8 rows of 2 vectors would be done in halves.
constexpr int filtered_rows(int NV) {
  if (kVectorRegisters != 32) return NV == 1 ? 12 : 6;
  return NV == 1 ? 12 : NV <= 3 ? 8 : 6;
}

// `count` rows of transformed tiles by NV vectors of channels.
template <class T, int NV>
static void multiply_rows(const T* tiles, int64_t row, const T* panel, int width, T* sums,
                          int64_t apart, int count, int depth, bool accumulate, Ahead ahead) {
  constexpr int W = kLanes<T>, height = filtered_rows(NV);
  all_rows<T, height, NV, W, true, true>({tiles, row, 1, height * row}, panel, width, sums, apart,
                                         count, depth, {0, NV * W}, accumulate, ahead);
}

// The same by `columns` channels.
template <class T>
static void multiply_columns(const T* tiles, int64_t row, const T* panel, int width, T* sums,
                             int64_t apart, int count, int depth, bool accumulate, Ahead ahead,
                             int columns) {
  constexpr int W = kLanes<T>;
  constexpr decltype(&multiply_rows<T, 1>) products[] = {
      multiply_rows<T, 1>, multiply_rows<T, 2>, multiply_rows<T, 3>, multiply_rows<T, 4>};
  int vectors = columns / W;
  for (int chunks = (vectors + kMostVectors - 1) / kMostVectors; chunks > 0; chunks--) {
    const int now = (vectors + chunks - 1) / chunks;
    products[now - 1](tiles, row, panel, width, sums, apart, count, depth, accumulate, ahead);
    panel += now * W, sums += now * W, vectors -= now;
  }
}

// The sums of `columns` channels of a block for all positions. `weights` are those of position 0; the
// next position is `apart` elements further.
template <class T, int S>
static void multiply_tiles(const Pixels& s, const T* tiles, TileRows rows, int count,
                           const T* weights, int64_t apart, T* sums, TileRows summed, int columns) {
  const int C = int(s.C), piece = kHotBytes / (columns * int(sizeof(T)));
  for (int n = 0; n < kPositions<S>; n++) {
    for (int k = 0; k < C; k += piece) {
      const int depth = C - k < piece ? C - k : piece;
      const T* panel = weights + int64_t(k) * s.panel;
      const T* next = k + depth < C ? panel + int64_t(depth) * s.panel : weights + apart;
      multiply_columns<T>(tiles + k, rows.row, panel, s.panel, sums, summed.row, count, depth, k > 0,
                          {reinterpret_cast<const char*>(next), 64}, columns);
    }
    tiles += rows.position, sums += summed.position, weights += apart;
  }
}

// As conv_pixels, for whole rows of pixels. C, `channel`, `channels` and the panel are multiples of
// 16.
template <class T, int S>
STRETTO_SHARED void winograd_pixels(Pixels s, const T* x, Filters<T> filters, T* out, int64_t first,
                                    int64_t last, int64_t channel, int channels) {
  constexpr int sum_columns = kSumBytes / int(sizeof(T)), held = kMostTileBytes / int(sizeof(T));
  constexpr int N = kPositions<S>;
  alignas(64) static const T zeros[kZeros] = {};
  // Not on the stack, because a thread of the caller may have a small one.
  alignas(64) static thread_local T tiles[held];
  alignas(64) static thread_local T sums[N * (kBlockTiles * sum_columns + kApart)];
  bool are_finite[kBlockTiles];
  const Tiling tiling = {first / s.OW, last / s.OW, (s.OW + S - 1) / S};
  const int64_t all = (tiling.bottom - tiling.top + S - 1) / S * tiling.across, row = s.C + kApart;
  const bool large = N * s.C * channels * int64_t(sizeof(T)) > kLargeWeights;
  const int64_t holding = large ? held : kTileBytes / int(sizeof(T));
  const int fitting = int((holding - N * kApart) / (N * row));
  const int most = fitting < kBlockTiles ? fitting : kBlockTiles;
  const int64_t blocks = (all + most - 1) / most;
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t t = all * block / blocks;
    const int count = int(all * (block + 1) / blocks - t);
    const TileRows rows = {row, count * row + kApart};
    const TileRows summed = {sum_columns, count * sum_columns + kApart};
    transform_tiles<T, S>(s, tiling, x, t, count, zeros, tiles, rows);
    for (int i = 0; i < count; i++) are_finite[i] = true;
    for (int c = 0, columns; c < channels; c += columns) {
      const int skipped = int((channel + c) % s.panel);
      columns = channels - c < s.panel - skipped ? channels - c : s.panel - skipped;
      columns = first_columns<T>(columns, sum_columns);
      const T* panel = filters.panels + (channel + c - skipped) * s.C + skipped;
      multiply_tiles<T, S>(s, tiles, rows, count, panel, filters.apart, sums, summed, columns);
      transform_back<T, S>(s, tiling, sums, summed, t, count, out + c, columns, are_finite);
    }
    for (int i = 0; i < count; i++)
      if (!are_finite[i])
        plain_tile<T, S>(s, tiling, x, t + i, zeros, filters.plain + channel * s.C * 9, channels,
                         out);
  }
}
#define STRETTO_SHARED_WINOGRAD(WHERE, T, S)                                                    \
  WHERE template void stretto::winograd_pixels<T, S>(stretto::Pixels, const T*,                 \
                                                     stretto::Filters<T>, T*, int64_t, int64_t, \
                                                     int64_t, int);

}  // namespace stretto
