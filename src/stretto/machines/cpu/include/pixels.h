// Convolution of images whose channels are contiguous, [H][W][C], inside one task:
//   out[p][oc] = sum over (ky, kx, ic) of x[pixel of p and (ky, kx)][ic] * w[ky][kx][ic][oc]
//
// Vector lanes are output channels, so the image is not copied: a register tile is some pixels by
// some vectors of channels, and reads each pixel of the image in place, by a pointer per pixel and
// tap (the indirect convolution of Dukhan, 2019). Taps outside the image read zeros. The geometry is
// an argument: one function serves all convolutions of a program.
#pragma once

#include "contract.h"

namespace stretto {

// C: input channels of a group; channels: of the whole image; ldc: output channels; panel: output
// channels per panel of packed weights.
struct Pixels {
  int64_t H, W, OW;
  int KH, KW, SH, SW, PH, PW, DH, DW;
  int64_t C, channels, ldc;
  int panel;
};

constexpr int kBlockPixels = 96;   // pixels that read a piece of a panel while it is cached
constexpr int kPointers = 4096;    // pointers of the pixels of a block
constexpr int kMostTaps = 512;
constexpr int kZeros = 2048;       // most channels of a tap outside of the image
constexpr int kShortRun = 48;      // a row of taps shorter than this is one run
constexpr int kEdgeValues = 4096;  // elements copied for runs that cross an edge of the image
static_assert(kEdgeValues >= 2 * 2 * kShortRun, "a row of pixels");
constexpr int kMostVectors = kVectorRegisters == 32 ? 4 : 2;  // of a register tile

// Most pixels of a register tile of NV vectors.
constexpr int tile_pixels(int NV) {
  if (kVectorRegisters != 32) return NV == 1 ? 8 : 6;
  return NV <= 3 ? 8 : 6;
}
// The next lower tile: a tile computes its last pixel several times where it has fewer.
constexpr int lower_tile(int pixels) { return pixels > 6 ? pixels - 2 : pixels - 1; }

// The elements of the runs that cross one edge of a row of the image.
STRETTO_INLINE int edge_values(const Pixels& s) { return int((2 * s.KW - 2) * s.C); }

// The largest number of rows of the result that `pixels` pixels can span.
STRETTO_INLINE int block_rows(const Pixels& s, int pixels) {
  return int((pixels + 2 * s.OW - 2) / s.OW);
}

// Addresses of the pixels of a block, for each contiguous run of elements: pointers [run][pixel],
// `pixels` of them per run, each run of `length` elements.
template <class T>
struct Runs {
  const T* const* pointers;
  int64_t pixels;
  int length;
};

// A part of a panel: `depth` rows from the `first` on, `width` elements apart. The tile prefetches a
// line of `ahead`, which is read next, at every other row (ahead_step: 64 bytes, or none).
template <class T>
struct Panel {
  const T* rows;
  int width, first, depth;
  const char* ahead;
  int64_t ahead_step;
};

// `pixels` rows ldc apart of which `columns` elements are written.
template <class T>
struct Target {
  T* out;
  int64_t ldc;
  int pixels, columns;
  bool accumulate;
};

// The pixel of a tile at row i: the last one again if there are fewer.
STRETTO_INLINE int tile_row(int i, int pixels) { return i < pixels ? i : pixels - 1; }

// Vectors of a tile begin W apart, but the last one ends with the columns.
template <int NV, int W>
STRETTO_INLINE int tile_column(int j, int columns) {
  return j == NV - 1 && columns >= W ? columns - W : j * W;
}

template <class T, int MR, int NV, int W>
STRETTO_INLINE void pixels_load(Vector<T, W> (&c)[MR][NV], const Target<T>& to) {
  if (!to.accumulate) return;
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) {
    const T* out = to.out + tile_row(i, to.pixels) * to.ldc;
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++)
      c[i][j] = NV == 1 && to.columns < W ? load_first<T, W>(out, to.columns)
                                          : load<T, W>(out + tile_column<NV, W>(j, to.columns));
  }
}

template <class T, int MR, int NV, int W>
STRETTO_INLINE void pixels_store(const Vector<T, W> (&c)[MR][NV], const Target<T>& to) {
  if (NV == 1 && to.columns < W) {
    T spilled[MR * W];
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) store<T, W>(spilled + i * W, c[i][0]);
    store_edge(to.out, to.ldc, spilled, W, MR < to.pixels ? MR : to.pixels, {0, to.columns}, false);
    return;
  }
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) {
    T* out = to.out + tile_row(i, to.pixels) * to.ldc;
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) store<T, W>(out + tile_column<NV, W>(j, to.columns), c[i][j]);
  }
}

template <class T, int MR, int NV, int W>
STRETTO_INLINE void pixel_step(Vector<T, W> (&c)[MR][NV], const T* const (&a)[MR], int k,
                               const T* b, int last) {
  Vector<T, W> row[NV];
  STRETTO_UNROLL
  for (int j = 0; j < NV; j++) {
    row[j] = load<T, W>(b + (j == NV - 1 ? last : j * W));
    if constexpr (MR > 1) hold<T, W>(row[j]);
  }
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) {
    const T left = a[i][k];
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) c[i][j] += left * row[j];
  }
}

// The register tile: MR pixels from `pixel` on by NV vectors of channels.
template <class T, int MR, int NV>
__attribute__((noinline)) static void pixel_tile(Runs<T> runs, int64_t pixel, Panel<T> panel,
                                                 Target<T> to) {
  constexpr int W = kLanes<T>, KU = depth_unroll(MR * NV);
  Vector<T, W> c[KU][MR][NV] = {};
  pixels_load<T, MR, NV, W>(c[0], to);
  const int last = tile_column<NV, W>(NV - 1, to.columns), width = panel.width;
  const T* b = panel.rows;
  const char* ahead = panel.ahead;
  const T* const* pointers = runs.pointers + pixel;
  int left = panel.depth, begin = panel.first;
  for (; begin >= runs.length; begin -= runs.length) pointers += runs.pixels;
  for (; left > 0; pointers += runs.pixels, begin = 0) {
    const int n = runs.length - begin < left ? runs.length - begin : left;
    const T* a[MR];
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) a[i] = pointers[tile_row(i, to.pixels)] + begin;
    constexpr int step = KU > 2 ? KU : 2;
    int k = 0;
    for (; k + step <= n; k += step, b += step * width, ahead += panel.ahead_step) {
      __builtin_prefetch(ahead, 0, 2);
      STRETTO_UNROLL
      for (int u = 0; u < step; u++)
        pixel_step<T, MR, NV, W>(c[u % KU], a, k + u, b + u * width, last);
    }
    for (; k < n; k++, b += width) pixel_step<T, MR, NV, W>(c[0], a, k, b, last);
    left -= n;
  }
  merge_sums<T, KU, MR, NV, W>(c);
  pixels_store<T, MR, NV, W>(c[0], to);
}

// The lowest tile of NV vectors with at least as many rows as there are pixels.
template <class T, int MR, int NV>
STRETTO_INLINE void pixel_rows(Runs<T> runs, int64_t pixel, const Panel<T>& panel,
                               const Target<T>& to) {
  constexpr int lower = lower_tile(MR);
  if constexpr (lower > 0)
    if (to.pixels <= lower) return pixel_rows<T, lower, NV>(runs, pixel, panel, to);
  pixel_tile<T, MR, NV>(runs, pixel, panel, to);
}

// All pixels of a block by the columns of NV vectors, in tiles of nearly equal heights.
template <class T, int NV>
STRETTO_INLINE void pixel_columns(Runs<T> runs, Panel<T> panel, Target<T> to) {
  constexpr int most = tile_pixels(NV);
  const int count = int(runs.pixels), tiles = (count + most - 1) / most;
  const char* const end = panel.ahead + int64_t(panel.depth) * panel.width * int64_t(sizeof(T));
  T* const out = to.out;
  for (int t = 0; t < tiles; t++) {
    const int begin = count * t / tiles;
    to.pixels = count * (t + 1) / tiles - begin;
    to.out = out + begin * to.ldc;
    pixel_rows<T, most, NV>(runs, begin, panel, to);
    panel.ahead += panel.depth / 2 * panel.ahead_step;
    if (panel.ahead >= end) panel.ahead_step = 0;
  }
}

// All pixels of a block by `columns` columns of a panel, in nearly equal numbers of vectors.
template <class T, int NV = kMostVectors>
STRETTO_INLINE void pixel_vectors(int vectors, Runs<T> runs, const Panel<T>& panel,
                                  const Target<T>& to) {
  if constexpr (NV > 1)
    if (vectors < NV) return pixel_vectors<T, NV - 1>(vectors, runs, panel, to);
  pixel_columns<T, NV>(runs, panel, to);
}

template <class T>
STRETTO_INLINE void pixel_panel(Runs<T> runs, Panel<T> panel, Target<T> to) {
  constexpr int W = kLanes<T>;
  int vectors = (to.columns + W - 1) / W, chunks = (vectors + kMostVectors - 1) / kMostVectors;
  for (int left = to.columns; chunks > 0; chunks--) {
    const int now = (vectors + chunks - 1) / chunks;
    to.columns = now * W < left ? now * W : left;
    pixel_vectors<T>(now, runs, panel, to);
    left -= to.columns, vectors -= now, panel.rows += to.columns, to.out += to.columns;
    panel.ahead_step = 0;
  }
}

// Those of `count` pixels `step` apart, from column `left` on, that are inside a row of the image.
struct Inside {
  int from, till;
};
STRETTO_INLINE Inside pixels_inside(int64_t left, int64_t step, int64_t width, int count) {
  int64_t from = left < 0 ? -left : 0, till = left < width ? width - left : 0;
  if (step > 1) from = (from + step - 1) / step, till = (till + step - 1) / step;
  if (till > count) till = count;
  return {int(from < till ? from : till), int(till)};
}

// Some rows of taps: top .. bottom - 1.
struct TapRows {
  int top, bottom;
};

// Pointers to the pixels p .. p + count - 1 for the taps of some rows.
template <class T>
static void find_taps(const Pixels& s, const T* x, int64_t p, int count, TapRows taps,
                      const T* zeros, const T** pointers) {
  const int64_t apart = s.SW * s.channels, row = s.W * s.channels;
  int64_t oy = p / s.OW, ox = p % s.OW;
  for (int done = 0; done < count;) {
    const int n = s.OW - ox < count - done ? int(s.OW - ox) : count - done;
    for (int kx = 0; kx < s.KW; kx++) {
      const int64_t left = ox * s.SW - s.PW + kx * s.DW;
      const Inside inside = pixels_inside(left, s.SW, s.W, n);
      const T** to = pointers + kx * count + done;
      for (int ky = taps.top; ky < taps.bottom; ky++, to += s.KW * count) {
        const int64_t iy = oy * s.SH - s.PH + ky * s.DH;
        const bool outside = iy < 0 || iy >= s.H;
        const T* at = x + iy * row + left * s.channels;
        const int from = outside ? n : inside.from, till = outside ? n : inside.till;
        for (int i = 0; i < from; i++) to[i] = zeros;
        for (int i = from; i < till; i++) to[i] = at + i * apart;
        for (int i = till; i < n; i++) to[i] = zeros;
      }
    }
    done += n, ox = 0, oy++;
  }
}

// The elements of a row of an image from column `from` on, with zeros outside it. They contain every
// run that begins at one of the next KW - 1 columns.
template <class T>
static void copy_edge(const Pixels& s, const T* row, int64_t from, T* to) {
  const int64_t first = from * s.C, end = s.W * s.C;
  for (int64_t k = first; k < first + edge_values(s); k++) *to++ = k >= 0 && k < end ? row[k] : T(0);
}

// Pointers to the pixels p .. p + count - 1 for some rows of taps, a run each. Runs that cross an
// edge of the image are in copies of its elements; `edges` has two of them for each row of pixels
// and of taps.
template <class T>
static void find_rows(const Pixels& s, const T* x, int64_t p, int count, TapRows taps,
                      const T* zeros, const T** pointers, T* edges) {
  const int64_t apart = s.SW * s.C, inner = s.W - s.KW;
  int64_t oy = p / s.OW, ox = p % s.OW;
  for (int i = 0; i < count;) {
    const int n = s.OW - ox < count - i ? int(s.OW - ox) : count - i;
    const T** to = pointers + i;
    for (int ky = taps.top; ky < taps.bottom; ky++, to += count) {
      const int64_t iy = oy * s.SH - s.PH + ky * s.DH, left = ox * s.SW - s.PW;
      if (iy < 0 || iy >= s.H) {
        for (int j = 0; j < n; j++) to[j] = zeros;
        continue;
      }
      const T* row = x + iy * s.W * s.C;
      const T *before = nullptr, *behind = nullptr;
      for (int j = 0; j < n; j++) {
        const int64_t at = left + j * s.SW;
        if (at >= 0 && at <= inner) {
          to[j] = row + at * s.C;
        } else if (at <= -s.KW || at >= s.W) {
          to[j] = zeros;
        } else if (at < 0) {
          if (!before) copy_edge<T>(s, row, 1 - s.KW, edges), before = edges, edges += edge_values(s);
          to[j] = before + (at - 1 + s.KW) * s.C;
        } else {
          if (!behind) copy_edge<T>(s, row, inner + 1, edges), behind = edges, edges += edge_values(s);
          to[j] = behind + (at - inner - 1) * s.C;
        }
      }
    }
    i += n, ox = 0, oy++;
  }
}

// Limits for the pointers of a block: at most `pixels` pixels, and `taps` rows of taps at once.
// as_rows: a row of taps is one run.
struct Blocking {
  bool as_rows;
  int pixels, taps;
};

static inline Blocking blocking_of(const Pixels& s) {
  // Not if an image is narrower than the taps: a run would cross both edges.
  const bool as_rows = s.C == s.channels && s.DW == 1 && s.KW * s.C <= kShortRun && s.KW > 1 &&
                       s.W >= s.KW;
  const int each = as_rows ? 1 : s.KW;  // pointers of a pixel for a row of taps
  int pixels = kPointers / each < kBlockPixels ? kPointers / each : kBlockPixels;
  int taps = kPointers / (each * pixels);
  if (as_rows) {
    const int held = kEdgeValues / (2 * edge_values(s));  // rows of pixels times rows of taps
    while (block_rows(s, pixels) > held) pixels--;
    const int fitting = held / block_rows(s, pixels);
    taps = taps < fitting ? taps : fitting;
  }
  const int parts = (s.KH + taps - 1) / taps;
  return {as_rows, pixels, (s.KH + parts - 1) / parts};
}

// The rows of taps that are inside the image for at least one of the pixels p .. p + count - 1; one
// row if there is none.
static inline TapRows taps_inside(const Pixels& s, int64_t p, int count) {
  const int64_t above = s.PH - (p + count - 1) / s.OW * s.SH;  // rows of the image, of the last pixel
  const int64_t till = s.H + s.PH - p / s.OW * s.SH;
  const int64_t top = above > 0 ? (above + s.DH - 1) / s.DH : 0;
  const int64_t bottom = till > 0 ? (till + s.DH - 1) / s.DH : 0;
  const int begin = top < s.KH ? int(top) : s.KH - 1;
  const int end = bottom < s.KH ? int(bottom) : s.KH;
  return {begin, end > begin ? end : begin + 1};
}

// The pixels first .. last - 1 of one image, `channels` output channels from `channel` on, which is
// a multiple of the lanes. `weights` are panels [.../s.panel][KH * KW * C][s.panel], zero-padded;
// `out` is (pixel 0, channel).
template <class T>
STRETTO_SHARED void conv_pixels(Pixels s, const T* x, const T* weights, T* out, int64_t first,
                                int64_t last, int64_t channel, int channels) {
  alignas(64) static const T zeros[kZeros] = {};
  const T* pointers[kPointers];
  T edges[kEdgeValues];
  const Blocking by = blocking_of(s);
  const int length = int(by.as_rows ? s.KW * s.C : s.C), row = int(s.KW * s.C), K = s.KH * row;
  const int piece = kHotBytes / (s.panel * int(sizeof(T)));
  const int64_t blocks = (last - first + by.pixels - 1) / by.pixels;
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t p = first + (last - first) * block / blocks;
    const int count = int(first + (last - first) * (block + 1) / blocks - p);
    const TapRows inside = taps_inside(s, p, count);
    for (TapRows taps = inside; taps.top < inside.bottom; taps.top = taps.bottom) {
      taps.bottom = taps.top + by.taps < inside.bottom ? taps.top + by.taps : inside.bottom;
      if (by.as_rows) find_rows<T>(s, x, p, count, taps, zeros, pointers, edges);
      else find_taps<T>(s, x, p, count, taps, zeros, pointers);
      const int begin = taps.top * row, end = taps.bottom * row;
      int skipped = int(channel % s.panel);
      const T* panel = weights + (channel - skipped) * K + skipped;
      for (int c = 0, columns; c < channels; c += columns, panel += K * s.panel - skipped, skipped = 0) {
        columns = channels - c < s.panel - skipped ? channels - c : s.panel - skipped;
        for (int k = begin; k < end; k += piece) {
          const T* at = panel + int64_t(k) * s.panel;
          const int depth = end - k < piece ? end - k : piece;
          const char* ahead = (const char*)(at + int64_t(depth) * s.panel);
          pixel_panel<T>({pointers, count, length}, {at, s.panel, k - begin, depth, ahead, 64},
                         {out + p * s.ldc + c, s.ldc, count, columns, k > inside.top * row});
        }
      }
    }
  }
}
#define STRETTO_SHARED_PIXELS(WHERE, T)                                                    \
  WHERE template void stretto::conv_pixels<T>(stretto::Pixels, const T*, const T*, T*,     \
                                              int64_t, int64_t, int64_t, int);

// ---- groups of few channels ----------------------------------------------------------------

// Groups of C input and C output channels, of which a vector of W lanes holds one or several;
// C = 1 is a depthwise convolution. Lanes are output channels, and those of the input are contiguous
// in the image, so that a pixel is one load for the lanes of all groups. A register tile is some
// pixels of a row of the result by one vector. If the taps of a row are adjacent, it reads each pixel
// of the image once for all of them: 8 pixels and 3 taps make 10 loads for 24 multiplications.

// Some rows of the result, `count` pixels of each. The pixel of the image that tap (ky, kx) of pixel
// i of row r reads is at[r * next + ky * row + kx * tap + i * step]. inside: the rows of taps that
// are inside of the image for some pixel of row r.
template <class T>
struct GroupBlock {
  const T* const* at;
  int next, row, tap, step, count, rows;
  TapRows inside[kBlockPixels];
};

// `count` adjacent vectors of channels: taps [ky][width][e][panel] of the first, which begins at lane
// `lane` of its panel, a panel having `all` rows; `channel` in the image; `out` for the first pixel,
// ldc apart.
template <class T>
struct GroupVectors {
  const T* taps;
  int width, all, panel, lane, count;
  int64_t channel;
  T* out;
  int64_t ldc;
};

// Each group of C lanes becomes C times its lane `e`.
template <class T, int W, int C, int e, int... i>
STRETTO_INLINE Vector<T, W> spread_lane(const Vector<T, W>& v, Indices<i...>) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(v, v, (i / C * C + e)...);
#else  // g++ before 12
  const T lanes[W] = {v[i / C * C + e]...};
  return load<T, W>(lanes);
#endif
}

// Input channel `e` of the group of each lane; a scalar where all lanes have the same.
template <class T, int W, int C, int e>
STRETTO_INLINE auto group_lanes(const T* pixel) {
  if constexpr (C == 1) return load<T, W>(pixel);
  else if constexpr (C == W) return pixel[e];
  else return spread_lane<T, W, C, e>(load<T, W>(pixel), typename IndicesUpTo<W>::type());
}

// KW taps of a row: pixel i and tap k read x[i * S + k]. S is 0 if the step is known only at run time;
// then KW is 1.
template <class T, int W, int C, int MR, int KW, int S, int e = 0>
STRETTO_INLINE void group_step(Vector<T, W> (&c)[MR], const T* const* x, int64_t step,
                               int64_t channel, const T* b, int64_t panel) {
  static_assert(S > 0 || KW == 1);
  constexpr int apart = S > 0 ? S : 1;
  Vector<T, W> tap[KW];
  STRETTO_UNROLL
  for (int k = 0; k < KW; k++) {
    tap[k] = load<T, W>(b + (k * C + e) * panel);
    if constexpr (MR > 1) hold<T, W>(tap[k]);
  }
  STRETTO_UNROLL
  for (int n = 0; n < (MR - 1) * apart + KW; n++) {
    const auto from = group_lanes<T, W, C, e>(x[S == 0 ? n * step : n] + channel);
    STRETTO_UNROLL
    for (int k = 0; k < KW; k++)
      if (const int i = (n - k) / apart; n >= k && (n - k) % apart == 0 && i < MR)
        c[i] += from * tap[k];
  }
  if constexpr (e + 1 < C) {
    if constexpr (C != W) asm volatile("" ::: "memory");  // pixels kept for the next e would spill
    group_step<T, W, C, MR, KW, S, e + 1>(c, x, step, channel, b, panel);
  }
}

// One tile: the taps of the rows top .. bottom - 1. `x`: pointers of the first pixel, the rows
// block.row apart.
template <class T, int W, int C, int MR, int KW, int S>
STRETTO_INLINE void group_tile(const GroupBlock<T>& block, TapRows rows, const T* const* x,
                               int64_t channel, const T* taps, int64_t width, int64_t panel, T* out,
                               int64_t ldc) {
  Vector<T, W> c[MR] = {};
  taps += rows.top * width * C * panel, x += rows.top * block.row;
  for (int ky = rows.top; ky < rows.bottom; ky++, x += block.row, taps += width * C * panel) {
    if constexpr (KW > 1) {
      group_step<T, W, C, MR, KW, S>(c, x, S, channel, taps, panel);
    } else {
      const T* const* from = x;
      for (int64_t kx = 0; kx < width; kx++, from += block.tap)
        group_step<T, W, C, MR, 1, S>(c, from, block.step, channel, taps + kx * C * panel, panel);
    }
  }
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) store<T, W>(out + i * ldc, c[i]);
}

// The tiles of MR pixels of all rows of a block, for all vectors while their pixels are in the
// first-level cache; the last tile of a row overlaps the one before.
template <class T, int W, int C, int MR, int KW, int S>
__attribute__((noinline)) static void group_tiles(const GroupBlock<T>& block,
                                                  const GroupVectors<T>& v) {
  const int64_t panel = v.panel, width = KW > 1 ? KW : v.width;
  const T* const* pointers = block.at;
  T* out = v.out;
  for (int r = 0; r < block.rows; r++, pointers += block.next, out += block.count * v.ldc)
    for (int next = 0; next < block.count; next += MR) {
      const int p = next < block.count - MR ? next : block.count - MR;
      const T* taps = v.taps;
      int lane = v.lane;
      for (int n = 0; n < v.count; n++) {
        group_tile<T, W, C, MR, KW, S>(block, block.inside[r], pointers + p * block.step,
                                       v.channel + n * W, taps, width, panel,
                                       out + p * v.ldc + n * W, v.ldc);
        taps += W, lane += W;
        if (lane == v.panel) taps += (v.all - 1) * panel, lane = 0;
      }
    }
}

// The same by tiles of at most MR pixels, as few tiles as possible, and each as low as possible.
template <class T, int W, int C, int KW, int S, int MR = 8>
STRETTO_INLINE void group_rows(const GroupBlock<T>& block, const GroupVectors<T>& v) {
  constexpr int lower = MR == 8 ? 7 : MR == 7 ? 4 : 1;
  if constexpr (MR > 1)
    if (block.count < MR || block.count <= (block.count + MR - 1) / MR * lower)
      return group_rows<T, W, C, KW, S, lower>(block, v);
  group_tiles<T, W, C, MR, KW, S>(block, v);
}

// The same for pixels S apart, with all taps of a row at once if there are three, or up to seven in a
// depthwise convolution.
template <class T, int W, int C, int S>
STRETTO_INLINE void group_widths(const GroupBlock<T>& block, const GroupVectors<T>& v) {
  const int width = block.tap == 1 ? v.width : 1;
  if (width == 3) return group_rows<T, W, C, 3, S>(block, v);
  if constexpr (C == 1) {
    if (width == 5) return group_rows<T, W, C, 5, S>(block, v);
    if (width == 7) return group_rows<T, W, C, 7, S>(block, v);
  }
  group_rows<T, W, C, 1, S>(block, v);
}

template <class T, int W, int C>
STRETTO_INLINE void group_vectors(const GroupBlock<T>& block, const GroupVectors<T>& v) {
  if constexpr (W >= kLanes<T>) {  // there are few narrower vectors
    if (block.step == 1) return group_widths<T, W, C, 1>(block, v);
    if (block.step == 2) return group_widths<T, W, C, 2>(block, v);
  }
  group_rows<T, W, C, 1, 0>(block, v);
}

// Pointers to `columns` pixels from column `left` on of `rows` rows from row `top` on.
template <class T>
static void find_pixels(const Pixels& s, const T* x, int64_t top, int64_t left, int rows,
                        int columns, const T* zeros, const T** pointers) {
  const Inside inside = pixels_inside(left, 1, s.W, columns);
  for (int64_t y = top; y < top + rows; y++, pointers += columns) {
    const bool outside = y < 0 || y >= s.H;
    const T* at = x + (y * s.W + left) * s.channels;
    const int from = outside ? columns : inside.from, till = outside ? columns : inside.till;
    for (int i = 0; i < from; i++) pointers[i] = zeros;
    for (int i = from; i < till; i++) pointers[i] = at + i * s.channels;
    for (int i = till; i < columns; i++) pointers[i] = zeros;
  }
}

// Calls body(block, p) for blocks of the pixels first .. last - 1, p being the first one of a block.
template <class T, class Body>
STRETTO_INLINE void group_blocks(const Pixels& s, const T* x, int64_t first, int64_t last,
                                 const T* zeros, const Body& body) {
  const T* pointers[kPointers];
  GroupBlock<T> block;
  const int64_t height = (s.KH - 1) * int64_t(s.DH) + 1, width = (s.KW - 1) * int64_t(s.DW) + 1;
  // Pointers to all pixels that a row of the result reads, or to those of each tap if they are too
  // many.
  const bool shared = height * (width + 7 * s.SW) <= kPointers;
  const int64_t most = shared ? (kPointers / height - width) / s.SW + 1 : kPointers / (s.KH * s.KW);
  for (int64_t p = first; p < last; p += block.rows * block.count) {
    const int64_t oy = p / s.OW, ox = p % s.OW;
    int64_t count = s.OW - ox < last - p ? s.OW - ox : last - p;
    if (count > most) count = most;
    const int columns = shared ? int((count - 1) * s.SW + width) : 0;
    int rows = 1;
    if (shared && count == s.OW)
      while ((rows + 1) * count <= kBlockPixels && (rows + 1) * count <= last - p &&
             (rows * s.SH + height) * columns <= kPointers)
        rows++;
    block.at = pointers, block.count = int(count), block.rows = rows;
    for (int r = 0; r < rows; r++) block.inside[r] = taps_inside(s, p + r * s.OW, int(count));
    if (shared) {
      find_pixels<T>(s, x, oy * s.SH - s.PH, ox * s.SW - s.PW, int((rows - 1) * s.SH + height),
                     columns, zeros, pointers);
      block.next = s.SH * columns, block.row = s.DH * columns, block.tap = s.DW, block.step = s.SW;
    } else {
      find_taps<T>(s, x, p, int(count), {0, s.KH}, zeros, pointers);
      block.next = 0, block.row = s.KW * int(count), block.tap = int(count), block.step = 1;
    }
    body(block, p);
  }
}

template <class T, int W = kLanes<T>>
STRETTO_INLINE void depthwise_vectors(const GroupBlock<T>& block, GroupVectors<T> v, int channels) {
  if (channels >= W) {
    v.count = channels / W;
    group_vectors<T, W, 1>(block, v);
    if (const int rest = channels - W; channels % W) {  // a vector that overlaps the one before
      v.taps += rest, v.channel += rest, v.out += rest, v.count = 1;
      group_vectors<T, W, 1>(block, v);
    }
  } else if constexpr (W > 1) {
    depthwise_vectors<T, W / 2>(block, v, channels);
  }
}

// Depthwise: every channel has its own taps. `weights` are [KH * KW][s.panel] from the first channel
// on.
template <class T>
STRETTO_SHARED void depthwise_pixels(Pixels s, const T* x, const T* weights, T* out, int64_t first,
                                     int64_t last, int channels) {
  alignas(64) static const T zeros[kZeros] = {};
  for (int c = 0; c < channels; c += kZeros)
    group_blocks<T>(s, x + c, first, last, zeros, [&](const GroupBlock<T>& block, int64_t p) {
      depthwise_vectors<T>(
          block, {weights + c, s.KW, s.KH * s.KW, s.panel, 0, 0, 0, out + p * s.ldc + c, s.ldc},
          channels - c < kZeros ? channels - c : kZeros);
    });
}
#define STRETTO_SHARED_DEPTHWISE(WHERE, T)                                                    \
  WHERE template void stretto::depthwise_pixels<T>(stretto::Pixels, const T*, const T*, T*,   \
                                                   int64_t, int64_t, int);

// As conv_pixels, for groups of C input and C output channels, of which vectors hold several.
// `channel` and `channels` are multiples of the panel, which is a multiple of the lanes and of C.
template <class T, int C>
STRETTO_SHARED void group_pixels(Pixels s, const T* x, const T* weights, T* out, int64_t first,
                                 int64_t last, int64_t channel, int channels) {
  alignas(64) static const T zeros[kZeros] = {};
  constexpr int W = C < kLanes<T> ? kLanes<T> : C;
  for (int begin = 0; begin < channels; begin += kZeros) {
    const int end = channels - begin < kZeros ? channels : begin + kZeros;
    const int64_t first_lane = channel + begin;
    const int rows = s.KH * s.KW * C, lane = int(first_lane % s.panel);
    group_blocks<T>(s, x + channel + begin, first, last, zeros,
                    [&](const GroupBlock<T>& block, int64_t p) {
                      const GroupVectors<T> v = {weights + (first_lane - lane) * rows + lane,
                                                 s.KW, rows, s.panel, lane, (end - begin) / W, 0,
                                                 out + p * s.ldc + begin, s.ldc};
                      group_vectors<T, W, C>(block, v);
                    });
  }
}
#define STRETTO_SHARED_GROUPS(WHERE, T, C)                                                  \
  WHERE template void stretto::group_pixels<T, C>(stretto::Pixels, const T*, const T*, T*,  \
                                                  int64_t, int64_t, int64_t, int);

}  // namespace stretto
