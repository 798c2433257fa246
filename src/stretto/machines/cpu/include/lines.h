// Convolution inside one task, of images whose channels are contiguous, with steps of 1 along one of
// their dims and any taps and steps along the other: lines of S pixels, S = 2 or 4, by the minimal
// filtering algorithm F(S, 3) of one dim (winograd.h has that of two, and what it costs in digits).
//
// The taps along the line are split into groups of three, the last one filled up with zeros. Each
// group takes S + 2 multiplications for S pixels instead of 3 S, and all groups, and all taps across
// the line, are summed before they are transformed back:
//
//   out = A' sum over (taps across, groups, channels) of (G w) * (B' x)
//
// A block is some neighbouring lines. The part of the image that it reads is transformed once: a tap
// across the line is then a product that begins some lines further on. With steps of P across the
// line, the lines of the image are grouped by their number modulo P, so that the lines that a tap
// reads are contiguous.
//
// As in winograd.h, lines with a result that is not finite are computed again from the weights.
#pragma once

#include "winograd.h"

namespace stretto {

constexpr int kBlockLines = 256;                // most lines of a block
constexpr int kLineBytes = 2560 << 10;          // bytes of the transformed lines of a block
constexpr int kPositionBytes = 384 << 10;       // bytes for one position, if that is enough
constexpr int kLineSums = 64 * kBlockLines + kApart;  // sums of one position

// A dim of an image and of its result: `size` pixels with stride `apart`, and results first .. last - 1
// with stride `made`.
struct Axis {
  int taps, step, padding;
  int64_t size, apart, made, first, last;
};

// The lines of a task: along `line` there are tiles, with `groups` of taps.
struct Lines {
  Axis line, across;
  int groups;
};

STRETTO_INLINE Lines lines_of(const Pixels& s, int64_t first, int64_t last, bool down) {
  const Axis rows = {s.KH, s.SH, s.PH, s.H, s.W * s.channels, s.OW * s.ldc, first / s.OW, last / s.OW};
  const Axis columns = {s.KW, s.SW, s.PW, s.W, s.channels, s.ldc, 0, s.OW};
  const Axis line = down ? rows : columns;
  return {line, down ? columns : rows, (line.taps + 2) / 3};
}

// A block: tiles `tile` .. tile + tiles - 1 of the lines `from` .. from + lines - 1.
struct LineBlock {
  int64_t from, tile;
  int lines, tiles;
};

// Lines of the image that a block reads whose number is `phase` modulo the step.
STRETTO_INLINE int phase_lines(const Axis& across, int lines, int phase) {
  return phase < across.taps ? lines + (across.taps - 1 - phase) / across.step : 0;
}
STRETTO_INLINE int block_lines(const Axis& across, int lines) {
  int sum = 0;
  for (int phase = 0; phase < across.step; phase++) sum += phase_lines(across, lines, phase);
  return sum;
}

// The pixels of a tile for one group of taps, of which `left` is the first; `row` is their line.
template <class T, int S>
STRETTO_INLINE void find_line(const Axis& line, const T* row, int64_t left, const T* zeros,
                              const T* (&pixels)[kWidth<S>]) {
  STRETTO_UNROLL
  for (int j = 0; j < kWidth<S>; j++) {
    const int64_t at = left + j;
    pixels[j] = at >= 0 && at < line.size ? row + at * line.apart : zeros;
  }
}

// Transforms the part of the image that a block reads: [position][phase, line of it][tile][group][C].
template <class T, int S>
static void transform_lines(const Pixels& s, const Lines& lines, const LineBlock& block, const T* x,
                            const T* zeros, T* to, TileRows rows) {
  constexpr int N = kWidth<S>, W = kLanes<T>;
  const int C = int(s.C);
  const int64_t top = block.from * lines.across.step - lines.across.padding;
  for (int phase = 0; phase < lines.across.step; phase++) {
    const int count = phase_lines(lines.across, block.lines, phase);
    for (int n = 0; n < count; n++) {
      const int64_t number = top + phase + int64_t(n) * lines.across.step;
      const bool inside = number >= 0 && number < lines.across.size;
      const T* row = x + number * lines.across.apart;
      for (int t = 0; t < block.tiles; t++, to += rows.row) {
        const int64_t left = lines.line.first + (block.tile + t) * S - lines.line.padding;
        for (int g = 0; g < lines.groups; g++) {
          const T* pixels[N];
          if (inside) find_line<T, S>(lines.line, row, left + 3 * g, zeros, pixels);
          T* at = to + g * C;
          for (int c = 0; c < C; c += W) {
            Vector<T, W> d[N], v[N];
            STRETTO_UNROLL
            for (int j = 0; j < N; j++) d[j] = inside ? load<T, W>(pixels[j] + c) : Vector<T, W>{};
            filter_inputs<T>(d, v);
            STRETTO_UNROLL
            for (int j = 0; j < N; j++) store<T, W>(at + c + j * rows.position, v[j]);
          }
        }
      }
    }
  }
}

// The sums of `columns` channels of a block for all positions. `weights` are those of position 0, a
// row of them for each tap across, group and channel; the next position is `apart` elements further.
template <class T, int S>
static void multiply_lines(const Pixels& s, const Lines& lines, const LineBlock& block,
                           const T* tiles, TileRows rows, const T* weights, int64_t apart, T* sums,
                           TileRows summed, int columns) {
  const int C = lines.groups * int(s.C), piece = kHotBytes / (columns * int(sizeof(T)));
  const int count = block.lines * block.tiles;
  for (int n = 0; n < kWidth<S>; n++) {
    int64_t begin[kMostTaps];
    int64_t before = 0;
    for (int phase = 0; phase < lines.across.step; phase++) {
      for (int i = phase; i < lines.across.taps; i += lines.across.step)
        begin[i] = (before + i / lines.across.step) * block.tiles * rows.row;
      before += phase_lines(lines.across, block.lines, phase);
    }
    const T* panel = weights;
    for (int i = 0; i < lines.across.taps; i++)
      for (int k = 0; k < C; k += piece) {
        const int depth = C - k < piece ? C - k : piece;
        const T* next = panel + int64_t(depth) * s.panel;
        multiply_columns<T>(tiles + begin[i] + k, rows.row, panel, s.panel, sums, summed.row, count,
                            depth, i > 0 || k > 0, {reinterpret_cast<const char*>(next), 64},
                            columns);
        panel = next;
      }
    tiles += rows.position, sums += summed.position, weights += apart;
  }
}

// Writes `columns` channels of a block, and clears the flags of tiles with a result that is not
// finite.
template <class T, int S>
static void lines_back(const Lines& lines, const LineBlock& block, const T* sums, TileRows rows,
                       T* out, int columns, bool* are_finite) {
  constexpr int N = kWidth<S>, W = kLanes<T>;
  for (int y = 0; y < block.lines; y++)
    for (int t = 0; t < block.tiles; t++, sums += rows.row, are_finite++) {
      const int64_t at = lines.line.first + (block.tile + t) * S;
      T* to = out + (block.from + y) * lines.across.made + at * lines.line.made;
      const int width = at + S < lines.line.last ? S : int(lines.line.last - at);
      Vector<T, W> finite = {};
      for (int c = 0; c < columns; c += W) {
        Vector<T, W> m[N], v[S];
        STRETTO_UNROLL
        for (int j = 0; j < N; j++) m[j] = load<T, W>(sums + c + j * rows.position);
        filter_sums<T>(m, v);
        STRETTO_UNROLL
        for (int j = 0; j < S; j++) {
          if (j < width) store<T, W>(to + c + j * lines.line.made, v[j]);
          finite += v[j] * T(0);
        }
      }
      for (int lane = 0; lane < W; lane++) *are_finite &= finite[lane] == 0;
    }
}

// A result, by the weights as they are: number `y` across the lines, `at` along one.
template <class T>
__attribute__((noinline)) static void plain_result(const Pixels& s, const Lines& lines, bool down,
                                                   const T* x, int64_t y, int64_t at,
                                                   const T* zeros, const T* weights, int channels,
                                                   T* out) {
  const int taps = s.KH * s.KW;
  for (int o = 0; o < channels; o++, weights += s.C * taps) {
    T sum = 0;
    for (int i = 0; i < lines.across.taps; i++)
      for (int j = 0; j < lines.line.taps; j++) {
        const int64_t number = y * lines.across.step - lines.across.padding + i;
        const int64_t place = at - lines.line.padding + j;
        const bool inside = number >= 0 && number < lines.across.size && place >= 0 &&
                            place < lines.line.size;
        const T* from =
            inside ? x + number * lines.across.apart + place * lines.line.apart : zeros;
        const T* w = weights + (down ? j * s.KW + i : i * s.KW + j);
        for (int c = 0; c < int(s.C); c++) sum += from[c] * w[c * taps];
      }
    out[o] = sum;
  }
}

// As conv_pixels, for whole rows of pixels; the lines go down the image, or along its rows. C,
// `channel`, `channels` and the panel are multiples of 16.
template <class T, int S, bool down>
STRETTO_SHARED void winograd_lines(Pixels s, const T* x, Filters<T> filters, T* out, int64_t first,
                                   int64_t last, int64_t channel, int channels) {
  constexpr int N = kWidth<S>, held = kLineBytes / int(sizeof(T));
  constexpr int position = kPositionBytes / int(sizeof(T)), sum_columns = kSumBytes / int(sizeof(T));
  alignas(64) static const T zeros[kZeros] = {};
  // Not on the stack, because a thread of the caller may have a small one.
  alignas(64) static thread_local T tiles[held];
  alignas(64) static thread_local T sums[N * kLineSums];
  bool are_finite[kBlockLines];
  const Lines lines = lines_of(s, first, last, down);
  const int64_t made = lines.across.last - lines.across.first;
  const int64_t tiles_of_line = (lines.line.last - lines.line.first + S - 1) / S;
  if (made <= 0 || tiles_of_line <= 0) return;
  const int row = lines.groups * int(s.C) + kApart;
  const int depth = lines.across.taps * lines.groups * int(s.C);
  // First the largest part of a line that fits, then as many lines as fit.
  const int least = block_lines(lines.across, 1);
  const int64_t fitting = (held / N - kApart) / (int64_t(least) * row);
  const int64_t most = fitting < kBlockLines ? fitting : kBlockLines;
  const int64_t parts = (tiles_of_line + most - 1) / most;
  const int part = int((tiles_of_line + parts - 1) / parts);
  int together = 1;
  while (together < made && (together + 1) * part <= kBlockLines) {
    const int64_t values = int64_t(block_lines(lines.across, together + 1)) * part * row + kApart;
    if (values * N > held || values > position) break;
    together++;
  }
  const int64_t blocks = (made + together - 1) / together;
  for (int64_t piece = 0; piece < blocks * parts; piece++) {
    const int64_t b = piece / parts, p = piece % parts;
    const int64_t from = made * b / blocks, tile = tiles_of_line * p / parts;
    const LineBlock block = {lines.across.first + from, tile, int(made * (b + 1) / blocks - from),
                             int(tiles_of_line * (p + 1) / parts - tile)};
    const int count = block.lines * block.tiles;
    const int64_t read = int64_t(block_lines(lines.across, block.lines)) * block.tiles;
    const TileRows rows = {row, read * row + kApart};
    const TileRows summed = {sum_columns, count * sum_columns + kApart};
    transform_lines<T, S>(s, lines, block, x, zeros, tiles, rows);
    for (int i = 0; i < count; i++) are_finite[i] = true;
    for (int c = 0, columns; c < channels; c += columns) {
      const int skipped = int((channel + c) % s.panel);
      columns = channels - c < s.panel - skipped ? channels - c : s.panel - skipped;
      columns = first_columns<T>(columns, sum_columns);
      const T* panel = filters.panels + (channel + c - skipped) * depth + skipped;
      multiply_lines<T, S>(s, lines, block, tiles, rows, panel, filters.apart, sums, summed, columns);
      lines_back<T, S>(lines, block, sums, summed, out + c, columns, are_finite);
    }
    for (int i = 0; i < count; i++) {
      if (are_finite[i]) continue;
      const int64_t y = block.from + i / block.tiles;
      for (int j = 0; j < S; j++) {
        const int64_t at = lines.line.first + (tile + i % block.tiles) * S + j;
        if (at >= lines.line.last) break;
        plain_result(s, lines, down, x, y, at, zeros,
                     filters.plain + channel * s.C * s.KH * s.KW, channels,
                     out + y * lines.across.made + at * lines.line.made);
      }
    }
  }
}
#define STRETTO_SHARED_LINES(WHERE, T, S, DOWN)                                                       \
  WHERE template void stretto::winograd_lines<T, S, DOWN>(stretto::Pixels, const T*,                  \
                                                          stretto::Filters<T>, T*, int64_t, int64_t, \
                                                          int64_t, int);

}  // namespace stretto
