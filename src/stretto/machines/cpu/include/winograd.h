// Convolution with taps of 3 x 3 and steps of 1 inside one task, of images whose channels are
// contiguous: tiles of 2 x 2 pixels by the minimal filtering algorithm F(2x2, 3x3) (Lavin and Gray,
// "Fast Algorithms for Convolutional Neural Networks", 2016, section 4.1).
//
//   out = A' [ (G w G') * (B' x B) ] A    for each tile, summed over input channels where * is
//
// A tile takes 16 multiplications per pair of channels instead of 36. B and A are of 0, 1 and -1,
// so the sums that they make lose at most two bits. The weights are transformed when the program is
// loaded. A block of tiles is transformed at once, and multiplied with a panel of each of the 16
// positions while its pixels are in the second-level cache.
//
// A NaN, or an infinity, of the image or of the weights would spread to all pixels of a tile. So tiles
// of which a result is not finite are computed again from the weights as they are.
#pragma once

#include "pixels.h"

namespace stretto {

constexpr int kPositions = 16;          // of a transformed tile
constexpr int kBlockTiles = 48;         // most tiles of a block
constexpr int kTileBytes = 384 << 10;   // of a block of transformed tiles
constexpr int kSumBytes = 256;          // of the channels whose sums are transformed back at once
constexpr int kApart = 16;              // elements that keep rows out of one set of a cache

// panels: [16][.../s.panel][C][s.panel], `apart` elements for each position. plain: [channels of the
// result][C][3][3].
template <class T>
struct Filters {
  const T* panels;
  int64_t apart;
  const T* plain;
};

// Where the rows of a block of transformed tiles lie: `row` elements per tile, `position` per
// position of a tile.
struct TileRows {
  int64_t row, position;
};

// B' d B of a tile of 4 x 4 pixels, W channels of each.
template <class T, int W>
STRETTO_INLINE void transform_tile(const T* const (&pixels)[kPositions], int c, T* to,
                                   int64_t apart) {
  Vector<T, W> t[4][4];
  STRETTO_UNROLL
  for (int x = 0; x < 4; x++) {
    Vector<T, W> d[4];
    STRETTO_UNROLL
    for (int y = 0; y < 4; y++) d[y] = load<T, W>(pixels[4 * y + x] + c);
    t[0][x] = d[0] - d[2], t[1][x] = d[1] + d[2], t[2][x] = d[2] - d[1], t[3][x] = d[1] - d[3];
  }
  STRETTO_UNROLL
  for (int y = 0; y < 4; y++) {
    const Vector<T, W> v[4] = {t[y][0] - t[y][2], t[y][1] + t[y][2], t[y][2] - t[y][1],
                               t[y][1] - t[y][3]};
    STRETTO_UNROLL
    for (int x = 0; x < 4; x++, to += apart) store<T, W>(to, v[x]);
  }
}

// A' m A of W sums of a tile: 2 x 2 pixels, of which `height` by `width` are written. Returns zeros,
// with a NaN for each channel with a result that is not finite.
template <class T, int W>
STRETTO_INLINE Vector<T, W> transform_sums(const T* from, int64_t apart, T* out, int64_t row,
                                           int64_t pixel, int height, int width) {
  Vector<T, W> s[2][4];
  STRETTO_UNROLL
  for (int x = 0; x < 4; x++) {
    Vector<T, W> m[4];
    STRETTO_UNROLL
    for (int y = 0; y < 4; y++) m[y] = load<T, W>(from + (4 * y + x) * apart);
    s[0][x] = m[0] + m[1] + m[2], s[1][x] = m[1] - m[2] - m[3];
  }
  Vector<T, W> finite = {};
  STRETTO_UNROLL
  for (int y = 0; y < 2; y++, out += row) {
    if (y >= height) break;
    const Vector<T, W> left = s[y][0] + s[y][1] + s[y][2], right = s[y][1] - s[y][2] - s[y][3];
    store<T, W>(out, left);
    if (width > 1) store<T, W>(out + pixel, right);
    finite += left * T(0) + right * T(0);
  }
  return finite;
}

// The tiles of a task: rows top .. bottom - 1 of an image, `across` tiles in a row of them.
struct Tiling {
  int64_t top, bottom, across;
};

// Where the pixels of a tile of 4 x 4 lie, of which (y, x) is the first.
template <class T>
STRETTO_INLINE void find_tile(const Pixels& s, const T* x, int64_t y, int64_t left, const T* zeros,
                              const T* (&pixels)[kPositions]) {
  for (int n = 0; n < kPositions; n++) {
    const int64_t row = y + n / 4, at = left + n % 4;
    const bool inside = row >= 0 && row < s.H && at >= 0 && at < s.W;
    pixels[n] = inside ? x + (row * s.W + at) * s.channels : zeros;
  }
}

// Transforms the tiles t .. t + count - 1.
template <class T>
static void transform_tiles(const Pixels& s, Tiling tiling, const T* x, int64_t t, int count,
                            const T* zeros, T* to, TileRows rows) {
  constexpr int W = kLanes<T>;
  for (int i = 0; i < count; i++, t++, to += rows.row) {
    const T* pixels[kPositions];
    find_tile<T>(s, x, tiling.top + t / tiling.across * 2 - s.PH, t % tiling.across * 2 - s.PW,
                 zeros, pixels);
    for (int c = 0; c < int(s.C); c += W) transform_tile<T, W>(pixels, c, to + c, rows.position);
  }
}

// Writes `columns` channels of the tiles t .. t + count - 1, and clears the flags of those with a
// result that is not finite.
template <class T>
static void transform_back(const Pixels& s, Tiling tiling, const T* sums, TileRows rows, int64_t t,
                           int count, T* out, int columns, bool* are_finite) {
  constexpr int W = kLanes<T>;
  for (int i = 0; i < count; i++, t++, sums += rows.row) {
    const int64_t y = tiling.top + t / tiling.across * 2, x = t % tiling.across * 2;
    T* to = out + (y * s.OW + x) * s.ldc;
    const int height = y + 1 < tiling.bottom ? 2 : 1, width = x + 1 < s.OW ? 2 : 1;
    Vector<T, W> finite = {};
    for (int c = 0; c < columns; c += W)
      finite += transform_sums<T, W>(sums + c, rows.position, to + c, s.OW * s.ldc, s.ldc, height,
                                     width);
    for (int lane = 0; lane < W; lane++) are_finite[i] &= finite[lane] == 0;
  }
}

// The channels first .. first + channels - 1 of tile t, by the weights as they are.
template <class T>
__attribute__((noinline)) static void plain_tile(const Pixels& s, Tiling tiling, const T* x,
                                                 int64_t t, const T* zeros, const T* weights,
                                                 int channels, T* out) {
  const int64_t top = tiling.top + t / tiling.across * 2, left = t % tiling.across * 2;
  const T* pixels[kPositions];
  find_tile<T>(s, x, top - s.PH, left - s.PW, zeros, pixels);
  for (int n = 0; n < 4; n++) {
    const int64_t y = top + n / 2, at = left + n % 2;
    if (y >= tiling.bottom || at >= s.OW) continue;
    for (int o = 0; o < channels; o++) {
      const T* w = weights + o * s.C * 9;
      T sum = 0;
      for (int tap = 0; tap < 9; tap++) {
        const T* from = pixels[(n / 2 + tap / 3) * 4 + n % 2 + tap % 3];
        for (int c = 0; c < int(s.C); c++) sum += from[c] * w[c * 9 + tap];
      }
      out[(y * s.OW + at) * s.ldc + o] = sum;
    }
  }
}

// How many of some columns come first: they are parted evenly, into whole vectors, `most` at a time.
template <class T>
STRETTO_INLINE int first_columns(int columns, int most) {
  constexpr int W = kLanes<T>;
  const int parts = (columns + most - 1) / most;
  return (columns / W + parts - 1) / parts * W;
}

// The sums of `columns` channels of a block for all positions. `weights` are those of position 0,
// those of others lie `apart` elements further on each.
template <class T>
static void multiply_tiles(const Pixels& s, const T* const* pointers, int count, const T* weights,
                           int64_t apart, T* sums, TileRows rows, int columns) {
  const int C = int(s.C), piece = kHotBytes / (columns * int(sizeof(T)));
  for (int n = 0; n < kPositions; n++, pointers += count, sums += rows.position) {
    const T* panel = weights + n * apart;
    for (int k = 0; k < C; k += piece) {
      const int depth = C - k < piece ? C - k : piece;
      const T* at = panel + int64_t(k) * s.panel;
      const T* next = k + depth < C ? at + int64_t(depth) * s.panel : panel + apart;
      pixel_panel<T>({pointers, count, C}, {at, s.panel, k, depth, (const char*)next, 64},
                     {sums, rows.row, count, columns, k > 0});
    }
  }
}

// As conv_pixels, for whole rows of pixels. C, `channel`, `channels` and the panel are multiples of
// 16.
template <class T>
STRETTO_SHARED void winograd_pixels(Pixels s, const T* x, Filters<T> filters, T* out, int64_t first,
                                    int64_t last, int64_t channel, int channels) {
  constexpr int sum_columns = kSumBytes / int(sizeof(T)), held = kTileBytes / int(sizeof(T));
  alignas(64) static const T zeros[kZeros] = {};
  // Not on the stack, which a thread of the caller may have little of.
  alignas(64) static thread_local T tiles[held];
  alignas(64) static thread_local T sums[kPositions * (kBlockTiles * sum_columns + kApart)];
  const T* pointers[kPositions * kBlockTiles];
  bool are_finite[kBlockTiles];
  const Tiling tiling = {first / s.OW, last / s.OW, (s.OW + 1) / 2};
  const int64_t all = (tiling.bottom - tiling.top + 1) / 2 * tiling.across, row = s.C + kApart;
  const int fitting = int((held - kPositions * kApart) / (kPositions * row));
  const int most = fitting < kBlockTiles ? fitting : kBlockTiles;
  const int64_t blocks = (all + most - 1) / most;
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t t = all * block / blocks;
    const int count = int(all * (block + 1) / blocks - t);
    const TileRows rows = {row, count * row + kApart};
    const TileRows summed = {sum_columns, count * sum_columns + kApart};
    transform_tiles<T>(s, tiling, x, t, count, zeros, tiles, rows);
    for (int i = 0; i < count; i++) are_finite[i] = true;
    for (int n = 0; n < kPositions; n++)
      for (int i = 0; i < count; i++) pointers[n * count + i] = tiles + n * rows.position + i * row;
    for (int c = 0, columns; c < channels; c += columns) {
      const int skipped = int((channel + c) % s.panel);
      columns = channels - c < s.panel - skipped ? channels - c : s.panel - skipped;
      columns = first_columns<T>(columns, sum_columns);
      const T* panel = filters.panels + (channel + c - skipped) * s.C + skipped;
      multiply_tiles<T>(s, pointers, count, panel, filters.apart, sums, summed, columns);
      transform_back<T>(s, tiling, sums, summed, t, count, out + c, columns, are_finite);
    }
    for (int i = 0; i < count; i++)
      if (!are_finite[i])
        plain_tile<T>(s, tiling, x, t + i, zeros, filters.plain + channel * s.C * 9, channels, out);
  }
}
#define STRETTO_SHARED_WINOGRAD(WHERE, T)                                                       \
  WHERE template void stretto::winograd_pixels<T>(stretto::Pixels, const T*,                    \
                                                  stretto::Filters<T>, T*, int64_t, int64_t,    \
                                                  int64_t, int);

}  // namespace stretto
