// Convolution of images whose channels are contiguous, [H][W][C], inside one task:
//   out[p][oc] = sum over (ky, kx, ic) of x[pixel of p and (ky, kx)][ic] * w[ky][kx][ic][oc]
//
// Vector lanes are output channels, so nothing of the image is copied: a register tile is some
// pixels by some vectors of channels, and reads each pixel of the image where it lies, by a pointer
// per pixel and tap (the indirect convolution of Dukhan, 2019). Taps outside of the image read
// zeros. The geometry is an argument: one function serves all convolutions of a program.
#pragma once

#include "contract.h"

namespace stretto {

// C: input channels of a group; channels: of the whole image; ldc: output channels.
struct Pixels {
  int64_t H, W, OW;
  int KH, KW, SH, SW, PH, PW, DH, DW;
  int64_t C, channels, ldc;
};

constexpr int kPanel = 64;         // output channels per panel of packed weights
constexpr int kTilePixels = 6;     // most pixels of a register tile
constexpr int kBlockTiles = 16;    // tiles that read a piece of a panel while it is cached
constexpr int kPointers = 4096;    // pointers of the pixels of a block
constexpr int kMostTaps = 512;
constexpr int kZeros = 2048;       // most channels of a tap outside of the image
constexpr int kShortRun = 48;      // a row of taps shorter than this is one run
constexpr int kEdgeValues = 4096;  // elements copied for runs that cross an edge of the image

// Where the pixels of a block lie, for each run of elements that are contiguous: pointers
// [run][pixel], `runs` runs of `length` elements.
template <class T>
struct Runs {
  const T* const* pointers;
  int64_t pixels;
  int length;
};

template <class T, int MR, int NV, int W>
STRETTO_INLINE void pixel_step(Vector<T, W> (&c)[MR][NV], const T* const (&a)[MR], int k,
                               const T* b) {
  Vector<T, W> row[NV];
  STRETTO_UNROLL
  for (int j = 0; j < NV; j++) row[j] = load<T, W>(b + j * W);
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) {
    const T left = a[i][k];
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) c[i][j] += left * row[j];
  }
}

// The register tile: MR pixels from `pixel` on by NV vectors of channels, for the elements
// [first, first + depth) of all runs together.
template <class T, int MR, int NV>
__attribute__((noinline)) static void pixel_tile(Runs<T> runs, int64_t pixel, int first, int depth,
                                                 const T* b, T* out, int64_t ldc, int columns,
                                                 bool accumulate) {
  constexpr int W = kLanes<T>, KU = depth_unroll(MR * NV);
  Vector<T, W> c[KU][MR][NV] = {};
  int run = first / runs.length, begin = first % runs.length;
  for (int left = depth; left > 0; run++, begin = 0) {
    const int n = runs.length - begin < left ? runs.length - begin : left;
    const T* a[MR];
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) a[i] = runs.pointers[run * runs.pixels + pixel + i] + begin;
    int k = 0;
    if constexpr (KU > 1)
      for (; k + KU <= n; k += KU, b += KU * kPanel) {
        STRETTO_UNROLL
        for (int u = 0; u < KU; u++) pixel_step<T, MR, NV, W>(c[u], a, k + u, b + u * kPanel);
      }
    STRETTO_UNROLL_TWICE
    for (; k < n; k++, b += kPanel) pixel_step<T, MR, NV, W>(c[0], a, k, b);
    left -= n;
  }
  merge_sums<T, KU, MR, NV, W>(c);
  tile_store<T, MR, NV, W>(c[0], out, ldc, {0, columns}, accumulate);
}

// `rows` <= MR pixels by `columns` <= kPanel channels, with the tile of exactly that height.
template <class T, int MR, int NV>
STRETTO_INLINE void pixel_rows(int rows, Runs<T> runs, int64_t pixel, int first, int depth,
                               const T* b, T* out, int64_t ldc, int columns, bool accumulate) {
  if constexpr (MR > 0) {
    if (rows == MR)
      pixel_tile<T, MR, NV>(runs, pixel, first, depth, b, out, ldc, columns, accumulate);
    else
      pixel_rows<T, MR - 1, NV>(rows, runs, pixel, first, depth, b, out, ldc, columns, accumulate);
  }
}

template <class T, int NV>
STRETTO_INLINE void pixel_columns(int rows, Runs<T> runs, int64_t pixel, int first, int depth,
                                  const T* b, T* out, int64_t ldc, int columns, bool accumulate) {
  constexpr int width = NV * kLanes<T>;
  for (; columns > 0; columns -= width, b += width, out += width) {
    if constexpr (NV > 1)
      if (columns <= width - kLanes<T>) {
        pixel_columns<T, NV - 1>(rows, runs, pixel, first, depth, b, out, ldc, columns, accumulate);
        return;
      }
    pixel_rows<T, kTilePixels, NV>(rows, runs, pixel, first, depth, b, out, ldc,
                                   columns < width ? columns : width, accumulate);
  }
}

// Pointers to the pixels p .. p + count - 1 for all taps, or, where runs are rows of taps, for all
// rows; what crosses an edge of the image is copied to `edges`.
template <class T>
STRETTO_INLINE void find_runs(const Pixels& s, const T* x, bool rows, int64_t p, int count,
                              const T* zeros, const T** pointers, T* edges) {
  const int length = int(s.KW * s.C);
  int64_t oy = p / s.OW, ox = p % s.OW;
  for (int i = 0; i < count; i++) {
    const T** to = pointers + i;
    const int64_t left = ox * s.SW - s.PW;
    for (int ky = 0; ky < s.KH; ky++) {
      const int64_t iy = oy * s.SH - s.PH + ky * s.DH;
      const bool inside = iy >= 0 && iy < s.H;
      const T* row = x + iy * s.W * s.channels;
      if (!rows) {
        for (int kx = 0; kx < s.KW; kx++, to += count) {
          const int64_t ix = left + kx * s.DW;
          *to = inside && ix >= 0 && ix < s.W ? row + ix * s.channels : zeros;
        }
        continue;
      }
      if (!inside) {
        *to = zeros;
      } else if (left >= 0 && left + s.KW <= s.W) {
        *to = row + left * s.C;
      } else {
        for (int k = 0; k < length; k++) {
          const int64_t at = left * s.C + k;
          edges[k] = at >= 0 && at < s.W * s.C ? row[at] : T(0);
        }
        *to = edges;
        edges += length;
      }
      to += count;
    }
    if (++ox == s.OW) ox = 0, oy++;
  }
}

// The pixels first .. last - 1 of one image, `channels` output channels from `channel` on, which is
// a multiple of the lanes. `weights` are panels [.../kPanel][KH * KW * C][kPanel], zero-padded; `out`
// is (pixel 0, channel).
template <class T>
__attribute__((noinline)) static void conv_pixels(Pixels s, const T* x, const T* weights, T* out,
                                                  int64_t first, int64_t last, int64_t channel,
                                                  int channels) {
  constexpr int NV = kVectorRegisters == 32 ? 4 : 2, piece = kHotBytes / (kPanel * int(sizeof(T)));
  alignas(64) static const T zeros[kZeros] = {};
  const T* pointers[kPointers];
  T edges[kEdgeValues];
  const bool rows = s.C == s.channels && s.DW == 1 && s.KW * s.C <= kShortRun &&
                    s.KH * s.KW * s.C * kTilePixels <= kEdgeValues;
  const int runs = rows ? s.KH : s.KH * s.KW;
  const int length = int(rows ? s.KW * s.C : s.C), K = runs * length;
  int most = kPointers / runs;
  if (rows && most * K > kEdgeValues) most = kEdgeValues / K;
  if (most > kBlockTiles * kTilePixels) most = kBlockTiles * kTilePixels;
  // Blocks, and tiles in them, are of nearly equal heights.
  const int64_t blocks = (last - first + most - 1) / most;
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t p = first + (last - first) * block / blocks;
    const int count = int(first + (last - first) * (block + 1) / blocks - p);
    const int tiles = (count + kTilePixels - 1) / kTilePixels;
    find_runs<T>(s, x, rows, p, count, zeros, pointers, edges);
    int skipped = int(channel % kPanel);
    const T* panel = weights + (channel - skipped) * K + skipped;
    for (int c = 0, columns; c < channels; c += columns, panel += K * kPanel - skipped, skipped = 0) {
      columns = channels - c < kPanel - skipped ? channels - c : kPanel - skipped;
      for (int k = 0; k < K; k += piece)
        for (int t = 0; t < tiles; t++) {
          const int begin = count * t / tiles, end = count * (t + 1) / tiles;
          pixel_columns<T, NV>(end - begin, {pointers, count, length}, begin, k,
                               K - k < piece ? K - k : piece, panel + int64_t(k) * kPanel,
                               out + (p + begin) * s.ldc + c, s.ldc, columns, k > 0);
        }
    }
  }
}

// Depthwise: every channel has taps of its own. `weights` are [KH * KW][s.channels] from the first
// channel on. Channels go by vectors; the last one overlaps what is done, narrower only where there
// are fewer channels than lanes.
template <class T, int W, int NV>
STRETTO_INLINE void depthwise_channels(const T* const* from, const T* const* taps, int count,
                                       T* out, int c) {
  Vector<T, W> sum[NV] = {};
  for (int n = 0; n < count; n++) {
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++)
      sum[j] += load<T, W>(from[n] + c + j * W) * load<T, W>(taps[n] + c + j * W);
  }
  STRETTO_UNROLL
  for (int j = 0; j < NV; j++) store<T, W>(out + c + j * W, sum[j]);
}

template <class T, int W = kLanes<T>>
STRETTO_INLINE void depthwise_pixel(const T* const* from, const T* const* taps, int count, T* out,
                                    int channels) {
  if (channels >= W) {
    int c = 0;
    for (; c + 4 * W <= channels; c += 4 * W)
      depthwise_channels<T, W, 4>(from, taps, count, out, c);
    for (; c + W <= channels; c += W) depthwise_channels<T, W, 1>(from, taps, count, out, c);
    if (c < channels) depthwise_channels<T, W, 1>(from, taps, count, out, channels - W);
  } else if constexpr (W > 1) {
    depthwise_pixel<T, W / 2>(from, taps, count, out, channels);
  }
}

template <class T>
__attribute__((noinline)) static void depthwise_pixels(Pixels s, const T* x, const T* weights,
                                                       T* out, int64_t first, int64_t last,
                                                       int channels) {
  const T *from[kMostTaps], *taps[kMostTaps];
  int64_t oy = first / s.OW, ox = first % s.OW;
  for (int64_t p = first; p < last; p++) {
    int count = 0;
    for (int ky = 0; ky < s.KH; ky++) {
      const int64_t iy = oy * s.SH - s.PH + ky * s.DH;
      if (iy < 0 || iy >= s.H) continue;
      for (int kx = 0; kx < s.KW; kx++) {
        const int64_t ix = ox * s.SW - s.PW + kx * s.DW;
        if (ix < 0 || ix >= s.W) continue;
        from[count] = x + (iy * s.W + ix) * s.channels;
        taps[count++] = weights + (ky * s.KW + kx) * s.channels;
      }
    }
    depthwise_pixel<T>(from, taps, count, out + p * s.ldc, channels);
    if (++ox == s.OW) ox = 0, oy++;
  }
}

}  // namespace stretto
