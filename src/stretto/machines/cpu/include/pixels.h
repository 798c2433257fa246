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

// The most rows of the result that so many pixels lie in.
STRETTO_INLINE int block_rows(const Pixels& s, int pixels) {
  return int((pixels + 2 * s.OW - 2) / s.OW);
}

// Where the pixels of a block lie, for each run of elements that are contiguous: pointers
// [run][pixel], `pixels` of them per run, each run of `length` elements.
template <class T>
struct Runs {
  const T* const* pointers;
  int64_t pixels;
  int length;
};

// A part of a panel: `depth` rows from the `first` on, `width` elements apart. The tile asks for a
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

// Which of the pixels of a tile comes at row i: the last one again where there are fewer.
STRETTO_INLINE int tile_row(int i, int pixels) { return i < pixels ? i : pixels - 1; }

// Vectors of a tile begin W apart, but the last one where the columns end.
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

// The lowest tile of NV vectors that has as many rows as there are pixels.
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

// Which of `count` pixels `step` apart, from column `left` on, are inside of a row of the image.
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

// The elements from column `from` of a row of an image on, zeros where there are none. A run that
// begins at any of the KW - 1 columns from there on lies in it.
template <class T>
static void copy_edge(const Pixels& s, const T* row, int64_t from, T* to) {
  const int64_t first = from * s.C, end = s.W * s.C;
  for (int64_t k = first; k < first + edge_values(s); k++) *to++ = k >= 0 && k < end ? row[k] : T(0);
}

// Pointers to the pixels p .. p + count - 1 for some rows of taps, a run each. Runs that cross an
// edge of the image lie in copies of what is there, of which `edges` has two for each row of pixels
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

// How the pointers of a block are found: at most `pixels` of a block, and `taps` rows of taps at
// once. as_rows: a row of taps is one run.
struct Blocking {
  bool as_rows;
  int pixels, taps;
};

static inline Blocking blocking_of(const Pixels& s) {
  // Not where an image is narrower than the taps: a run would cross both edges.
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

// The rows of taps of which one at least of the pixels p .. p + count - 1 has any inside of the image;
// one row where there is none.
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

// ---- depthwise -----------------------------------------------------------------------------

// Every channel has taps of its own: MR pixels by NV vectors of channels. The last vector overlaps
// what is done.
template <class T, int MR, int NV, int W>
__attribute__((noinline)) static void depthwise_tile(const T* const* pointers, int64_t apart,
                                                     const T* taps, int64_t ldw, int count, int c,
                                                     T* out, int64_t ldc) {
  Vector<T, W> sum[MR][NV] = {};
  for (int n = 0; n < count; n++, pointers += apart, taps += ldw) {
    Vector<T, W> tap[NV];
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) tap[j] = load<T, W>(taps + j * W);
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) {
      const T* from = pointers[i] + c;
      STRETTO_UNROLL
      for (int j = 0; j < NV; j++) sum[i][j] += load<T, W>(from + j * W) * tap[j];
    }
  }
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) {
    STRETTO_UNROLL
    for (int j = 0; j < NV; j++) store<T, W>(out + i * ldc + j * W, sum[i][j]);
  }
}

// All pixels of a block by NV vectors of channels from c on; the last tile overlaps the one before.
template <class T, int NV, int W, int MR = kVectorRegisters != 32 ? 4 : NV == 4 ? 6 : 8>
STRETTO_INLINE void depthwise_columns(Runs<T> runs, const T* weights, int64_t ldw, int count, int c,
                                      T* out, int64_t ldc) {
  const int pixels = int(runs.pixels);
  if constexpr (MR > 1)
    if (pixels < MR)
      return depthwise_columns<T, NV, W, MR / 2>(runs, weights, ldw, count, c, out, ldc);
  for (int next = 0; next < pixels; next += MR) {
    const int p = next < pixels - MR ? next : pixels - MR;
    depthwise_tile<T, MR, NV, W>(runs.pointers + p, pixels, weights + c, ldw, count, c,
                                 out + p * ldc + c, ldc);
  }
}

template <class T, int W = kLanes<T>>
STRETTO_INLINE void depthwise_block(Runs<T> runs, const T* weights, int64_t ldw, int count, T* out,
                                    int64_t ldc, int channels) {
  if (channels >= W) {
    int c = 0;
    if constexpr (kVectorRegisters == 32)
      for (; c + 4 * W <= channels; c += 4 * W)
        depthwise_columns<T, 4, W>(runs, weights, ldw, count, c, out, ldc);
    for (; c + 2 * W <= channels; c += 2 * W)
      depthwise_columns<T, 2, W>(runs, weights, ldw, count, c, out, ldc);
    for (; c + W <= channels; c += W)
      depthwise_columns<T, 1, W>(runs, weights, ldw, count, c, out, ldc);
    if (c < channels)
      depthwise_columns<T, 1, W>(runs, weights, ldw, count, channels - W, out, ldc);
  } else if constexpr (W > 1) {
    depthwise_block<T, W / 2>(runs, weights, ldw, count, out, ldc, channels);
  }
}

// Depthwise: every channel has taps of its own. `weights` are [KH * KW][s.channels] from the first
// channel on.
template <class T>
STRETTO_SHARED void depthwise_pixels(Pixels s, const T* x, const T* weights, T* out, int64_t first,
                                     int64_t last, int channels) {
  alignas(64) static const T zeros[kZeros] = {};
  const T* pointers[kPointers];
  const int taps = s.KH * s.KW;
  const int most = kPointers / taps < kBlockPixels ? kPointers / taps : kBlockPixels;
  for (int c = 0; c < channels; c += kZeros)
    for (int64_t p = first; p < last; p += most) {
      const int count = last - p < most ? int(last - p) : most;
      find_taps<T>(s, x + c, p, count, {0, s.KH}, zeros, pointers);
      depthwise_block<T>({pointers, count, 0}, weights + c, s.channels, taps, out + p * s.ldc + c,
                         s.ldc, channels - c < kZeros ? channels - c : kZeros);
    }
}
#define STRETTO_SHARED_DEPTHWISE(WHERE, T)                                                    \
  WHERE template void stretto::depthwise_pixels<T>(stretto::Pixels, const T*, const T*, T*,   \
                                                   int64_t, int64_t, int);

// ---- groups of few channels ----------------------------------------------------------------

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

template <class T, int MR, int C, int W, int e = 0>
STRETTO_INLINE void group_step(Vector<T, W> (&c)[MR], const Vector<T, W> (&x)[MR], const T* b,
                               int panel) {
  const Vector<T, W> row = load<T, W>(b + e * panel);
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++)
    c[i] += spread_lane<T, W, C, e>(x[i], typename IndicesUpTo<W>::type()) * row;
  if constexpr (e + 1 < C) group_step<T, MR, C, W, e + 1>(c, x, b, panel);
}

// MR pixels by a vector of output channels from `channel` on, which are those of W / C groups of C
// channels each.
template <class T, int MR, int C>
__attribute__((noinline)) static void group_tile(Runs<T> runs, int64_t pixel, const T* b, int panel,
                                                 int taps, int64_t channel, T* out, int64_t ldc) {
  constexpr int W = C < kLanes<T> ? kLanes<T> : C;
  Vector<T, W> c[MR] = {};
  const T* const* pointers = runs.pointers + pixel;
  for (int n = 0; n < taps; n++, pointers += runs.pixels, b += C * panel) {
    Vector<T, W> x[MR];
    STRETTO_UNROLL
    for (int i = 0; i < MR; i++) x[i] = load<T, W>(pointers[i] + channel);
    group_step<T, MR, C, W>(c, x, b, panel);
  }
  STRETTO_UNROLL
  for (int i = 0; i < MR; i++) store<T, W>(out + (pixel + i) * ldc, c[i]);
}

// All pixels of a block; the last tile overlaps the one before.
template <class T, int C, int MR = 8>
STRETTO_INLINE void group_columns(Runs<T> runs, const T* b, int panel, int taps, int64_t channel,
                                  T* out, int64_t ldc) {
  const int pixels = int(runs.pixels);
  if constexpr (MR > 1)
    if (pixels < MR)
      return group_columns<T, C, MR / 2>(runs, b, panel, taps, channel, out, ldc);
  for (int next = 0; next < pixels; next += MR)
    group_tile<T, MR, C>(runs, next < pixels - MR ? next : pixels - MR, b, panel, taps, channel,
                         out, ldc);
}

// As conv_pixels where groups have C input and C output channels, of which vectors hold several.
// `channel` and `channels` are multiples of the panel, which is one of the lanes and of C.
template <class T, int C>
STRETTO_SHARED void group_pixels(Pixels s, const T* x, const T* weights, T* out, int64_t first,
                                 int64_t last, int64_t channel, int channels) {
  alignas(64) static const T zeros[kZeros] = {};
  constexpr int W = C < kLanes<T> ? kLanes<T> : C;
  const T* pointers[kPointers];
  const int taps = s.KH * s.KW;
  const int block = kPointers / taps < kBlockPixels ? kPointers / taps : kBlockPixels;
  for (int64_t p = first; p < last; p += block) {
    const int count = last - p < block ? int(last - p) : block;
    find_taps<T>(s, x, p, count, {0, s.KH}, zeros, pointers);
    for (int c = 0; c < channels; c += W) {
      const int64_t at = channel + c, inside = at % s.panel;
      const T* b = weights + (at - inside) * taps * C + inside;
      group_columns<T, C>({pointers, count, 0}, b, s.panel, taps, at, out + p * s.ldc + c, s.ldc);
    }
  }
}
#define STRETTO_SHARED_GROUPS(WHERE, T, C)                                                  \
  WHERE template void stretto::group_pixels<T, C>(stretto::Pixels, const T*, const T*, T*,  \
                                                  int64_t, int64_t, int64_t, int);

}  // namespace stretto
