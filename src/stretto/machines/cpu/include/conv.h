// Convolution inside one task, as a contraction:
//   out[oc][p] (+)= sum over k of w[oc][k] * patch[k][p]
// where k runs over (input channel, ky, kx) and p over the output pixels of one image, NCHW.
//
// A task owns some output channels and NR consecutive pixels. It copies the patches of those pixels
// for a few channels at a time (a piece that stays in the first-level cache), then multiplies the
// piece with all its output channels, so each patch element is copied once and used oc times.
#pragma once

#include "contract.h"

namespace stretto {

// The geometry; all constants, so that every edge test below folds. C, H, W: one group's input.
template <int C_, int H_, int W_, int KH_, int KW_, int SH_ = 1, int SW_ = 1, int PH_ = 0,
          int PW_ = 0, int DH_ = 1, int DW_ = 1>
struct Conv {
  static constexpr int C = C_, H = H_, W = W_, KH = KH_, KW = KW_;
  static constexpr int SH = SH_, SW = SW_, PH = PH_, PW = PW_, DH = DH_, DW = DW_;
  static constexpr int OH = (H + 2 * PH - DH * (KH - 1) - 1) / SH + 1;
  static constexpr int OW = (W + 2 * PW - DW * (KW - 1) - 1) / SW + 1;
  static constexpr int pixels = OH * OW;
  static constexpr int taps = KH * KW;
  static constexpr int K = C * taps;
  // The image is its own patch matrix: nothing to copy.
  static constexpr bool pointwise = taps == 1 && SH == 1 && SW == 1 && PH == 0 && PW == 0;
  static constexpr bool fixed = true;
};

// The same for an image whose height and width are known only at the call. Functions take either
// as the object `s`: its constants are static members, and fold.
template <int C_, int KH_, int KW_, int SH_ = 1, int SW_ = 1, int PH_ = 0, int PW_ = 0, int DH_ = 1,
          int DW_ = 1>
struct SizedConv {
  static constexpr int C = C_, KH = KH_, KW = KW_;
  static constexpr int SH = SH_, SW = SW_, PH = PH_, PW = PW_, DH = DH_, DW = DW_;
  static constexpr int taps = KH * KW;
  static constexpr int K = C * taps;
  static constexpr bool pointwise = taps == 1 && SH == 1 && SW == 1 && PH == 0 && PW == 0;
  static constexpr bool fixed = false;
  int H, W, OH, OW, pixels;
  SizedConv(int64_t height, int64_t width)
      : H(int(height)),
        W(int(width)),
        OH((H + 2 * PH - DH * (KH - 1) - 1) / SH + 1),
        OW((W + 2 * PW - DW * (KW - 1) - 1) / SW + 1),
        pixels(OH * OW) {}
};

constexpr int floor_quotient(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
constexpr int clamp(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

// Output columns [first, last) whose input column for tap kx is inside the image.
template <class S>
constexpr int first_column(int kx, S s) {
  return clamp(floor_quotient(S::PW - kx * S::DW + S::SW - 1, S::SW), 0, s.OW);
}
template <class S>
constexpr int last_column(int kx, S s) {
  return clamp(floor_quotient(s.W - 1 + S::PW - kx * S::DW, S::SW) + 1, 0, s.OW);
}

// Patch elements of tap kx for `n` pixels from column ox on, all in one output row.
// `row` is the input row, or null for the padding above or below.
template <class T, class S>
STRETTO_INLINE void patch_run(const T* row, T* to, int ox, int n, int kx) {
  if (!row) return zero_run(to, n);
  const int low = clamp(first_column(kx, S{}) - ox, 0, n);
  const int high = clamp(last_column(kx, S{}) - ox, low, n);
  const T* from = row + (ox + low) * S::SW - S::PW + kx * S::DW;
  zero_run(to, low);
  if constexpr (S::SW == 1)
    copy_run(to + low, from, high - low);
  else
    for (int i = 0; i < high - low; i++) to[low + i] = from[i * S::SW];
  zero_run(to + high, n - high);
}

// All taps of one channel for `n` pixels of output row oy, `to` being the panel's first row.
template <class T, class S, int NR>
STRETTO_INLINE void patch_taps(const T* channel, T* to, int oy, int ox, int n) {
  for (int ky = 0; ky < S::KH; ky++) {
    const int iy = oy * S::SH - S::PH + ky * S::DH;
    const T* row = iy >= 0 && iy < S::H ? channel + iy * S::W : nullptr;
    STRETTO_UNROLL
    for (int kx = 0; kx < S::KW; kx++)
      patch_run<T, S>(row, to + (ky * S::KW + kx) * NR, ox, n, kx);
  }
}

// Packs the panel [channels*KH*KW][NR] of pixels p .. p+NR-1; pixels past the end become zeros.
// `x` is the first of the channels. Where rows and panels divide each other, as they do for most
// networks, a run is a whole row or a whole panel and its length a constant.
template <class T, class S, int NR>
STRETTO_INLINE void conv_panel(const T* x, T* panel, int p, int channels) {
  constexpr bool whole_rows = NR % S::OW == 0 && S::pixels % NR == 0;
  constexpr bool within_row = S::OW % NR == 0;
  for (int c = 0; c < channels; c++, x += S::H * S::W, panel += S::taps * NR) {
    if constexpr (whole_rows) {
      for (int r = 0; r < NR / S::OW; r++)
        patch_taps<T, S, NR>(x, panel + r * S::OW, p / S::OW + r, 0, S::OW);
    } else if constexpr (within_row) {
      patch_taps<T, S, NR>(x, panel, p / S::OW, p % S::OW, NR);
    } else {
      int done = 0;
      for (int oy = p / S::OW, ox = p % S::OW; done < NR && oy < S::OH; oy++, ox = 0) {
        const int n = S::OW - ox < NR - done ? S::OW - ox : NR - done;
        patch_taps<T, S, NR>(x, panel + done, oy, ox, n);
        done += n;
      }
      if (done < NR)
        for (int k = 0; k < S::taps; k++) zero_run(panel + k * NR + done, NR - done);
    }
  }
}

// The same for an image whose size is known only at the call. The start and end of a run inside the
// image are computed once for all channels.
template <class T, class S, int NR>
STRETTO_INLINE void conv_panel_sized(const T* x, T* panel, int p, int channels, S s) {
  int done = 0;
  for (int oy = p / s.OW, ox = p % s.OW; done < NR && oy < s.OH; oy++, ox = 0) {
    const int n = s.OW - ox < NR - done ? s.OW - ox : NR - done;
    int low[S::KW], high[S::KW];
    bool inside = true;
    for (int kx = 0; kx < S::KW; kx++) {
      low[kx] = clamp(first_column(kx, s) - ox, 0, n);
      high[kx] = clamp(last_column(kx, s) - ox, low[kx], n);
      inside = inside && low[kx] == 0 && high[kx] == n;
    }
    for (int c = 0; c < channels; c++) {
      T* to = panel + c * S::taps * NR + done;
      for (int ky = 0; ky < S::KH; ky++) {
        const int iy = oy * S::SH - S::PH + ky * S::DH;
        const T* row = x + (int64_t(c) * s.H + iy) * s.W + ox * S::SW - S::PW;
        for (int kx = 0; kx < S::KW; kx++, to += NR) {
          if (iy < 0 || iy >= s.H) {
            zero_run(to, n);
            continue;
          }
          const int first = inside ? 0 : low[kx], last = inside ? n : high[kx];
          const T* from = row + kx * S::DW;
          if (first > 0) zero_run(to, first);
          if constexpr (S::SW == 1)
            copy_run(to + first, from + first, last - first);
          else
            for (int i = first; i < last; i++) to[i] = from[i * S::SW];
          if (last < n) zero_run(to + last, n - last);
        }
      }
    }
    done += n;
  }
  if (done < NR)
    for (int k = 0; k < channels * S::taps; k++) zero_run(panel + k * NR + done, NR - done);
}

// Input channels per piece, and the elements of scratch (64-byte aligned) that conv_tile needs.
template <class T, class S, int NR>
constexpr int conv_channels =
    clamp(kHotBytes / int(sizeof(T)) / (NR * S::taps), 1, S::C > 0 ? S::C : 1);
template <class T, class S, int NR>
constexpr int conv_scratch = S::pointwise ? 0 : conv_channels<T, S, NR> * S::taps * NR;

// Whole slabs against a whole panel of rows of `ldb`; returns the number of output channels done.
template <class T, int MR, int NR>
STRETTO_INLINE int whole_slabs(const T* weights, int64_t slab, const T* x, int64_t ldb, T* out,
                               int64_t ldc, int oc, int K, bool accumulate) {
  constexpr int NV = NR / kLanes<T>;
  if constexpr (MR * NV >= kVectorRegisters) {
    return 0;
  } else {
    int done = 0;
    for (; done + MR <= oc; done += MR, weights += slab)
      tile<T, MR, NV, kLanes<T>>(weights, 1, MR, x, ldb, out + done * ldc, ldc, K, {0, NR}, accumulate);
    return done;
  }
}

// ---- shared instances -------------------------------------------------------------------------
//
// The products of n pixels, at most a panel, with all output channels. A network has dozens of
// geometries, and these do not depend on them: inlined, they took most of the time to compile it.

// Of packed patches.
template <class T, int MR, int NR>
STRETTO_SHARED void panel_shared(const T* weights, int64_t slab, const T* panel, T* out,
                                 int64_t ldc, int oc, int K, bool accumulate, int n) {
  const int done =
      n < NR ? 0 : whole_slabs<T, MR, NR>(weights, slab, panel, NR, out, ldc, oc, K, accumulate);
  if (done < oc)
    contract_packed_ab<T, MR, NR>(weights + done / MR * slab, slab, panel, out + done * ldc, ldc,
                                  oc - done, K, accumulate, n);
}
#define STRETTO_SHARED_PANEL(WHERE, T, MR, NR)            \
  WHERE template void stretto::panel_shared<T, MR, NR>(   \
      const T*, int64_t, const T*, T*, int64_t, int, int, bool, int);

// Of the image itself, whose rows are ldb apart.
template <class T, int MR, int NR>
STRETTO_SHARED void image_shared(const T* weights, int64_t slab, const T* x, int64_t ldb, T* out,
                                 int64_t ldc, int oc, int K, bool accumulate, int n) {
  const int done =
      n < NR ? 0 : whole_slabs<T, MR, NR>(weights, slab, x, ldb, out, ldc, oc, K, accumulate);
  if (done < oc)
    all_columns<T, MR, NR / kLanes<T>, kLanes<T>>({weights + done / MR * slab, 1, MR, slab}, x, ldb,
                                                  out + done * ldc, ldc, oc - done, 0, n, K,
                                                  accumulate);
}
#define STRETTO_SHARED_IMAGE(WHERE, T, MR, NR)            \
  WHERE template void stretto::image_shared<T, MR, NR>(   \
      const T*, int64_t, const T*, int64_t, T*, int64_t, int, int, bool, int);

// `oc` output channels of pixels p .. p+NR-1 of one image. `weights` is packed in slabs
// [oc/MR][K][MR], zero-padded; `out` is element (first channel, pixel p) with row stride ldc, and
// no pixel from `end` on is written: it belongs to another task, or to none.
template <class T, class S, int MR, int NR>
STRETTO_INLINE void conv_tile(const T* x, const T* weights, T* scratch, T* out, int64_t ldc, int oc,
                              int p, int end, bool accumulate, S s = {}) {
  const int n = end - p < NR ? end - p : NR;
  constexpr int64_t slab = int64_t(S::K) * MR;
  if constexpr (S::pointwise) {
    image_shared<T, MR, NR>(weights, slab, x + p, s.H * s.W, out, ldc, oc, S::K, accumulate, n);
  } else {
    constexpr int step = conv_channels<T, S, NR>;
    for (int c = 0; c < S::C; c += step) {
      const int channels = S::C - c < step ? S::C - c : step;
      if constexpr (S::fixed)
        conv_panel<T, S, NR>(x + int64_t(c) * S::H * S::W, scratch, p, channels);
      else
        conv_panel_sized<T, S, NR>(x + int64_t(c) * s.H * s.W, scratch, p, channels, s);
      panel_shared<T, MR, NR>(weights + int64_t(c) * S::taps * MR, slab, scratch, out, ldc, oc,
                              channels * S::taps, accumulate || c > 0, n);
    }
  }
}

// Depthwise: rows oy .. oy+rows-1 of one channel, S::C being 1; `weights` is [KH][KW]. The inner
// loop over pixels is left to the compiler's vectoriser: its body is straight-line.
template <class T, class S>
STRETTO_INLINE void conv_depthwise(const T* __restrict x, const T* __restrict weights,
                                   T* __restrict out, int oy, int rows, bool accumulate) {
  static const T zeros[S::W] = {};
  // Columns at which every tap is inside; the few others test each tap.
  constexpr int first = first_column(0, S{});
  constexpr int last = clamp(last_column(S::KW - 1, S{}), first, S::OW);
  for (int r = 0; r < rows; r++) {
    const T* tap_rows[S::KH];
    STRETTO_UNROLL
    for (int ky = 0; ky < S::KH; ky++) {
      const int iy = (oy + r) * S::SH - S::PH + ky * S::DH;
      tap_rows[ky] = iy >= 0 && iy < S::H ? x + iy * S::W : zeros;
    }
    const auto pixel = [&](int ox, bool inside) __attribute__((always_inline)) {
      T total = accumulate ? out[r * S::OW + ox] : T(0);
      STRETTO_UNROLL
      for (int ky = 0; ky < S::KH; ky++) {
        STRETTO_UNROLL
        for (int kx = 0; kx < S::KW; kx++) {
          const int ix = ox * S::SW - S::PW + kx * S::DW;
          if (inside || (ix >= 0 && ix < S::W))
            total += weights[ky * S::KW + kx] * tap_rows[ky][ix];
        }
      }
      out[r * S::OW + ox] = total;
    };
    for (int ox = 0; ox < first; ox++) pixel(ox, false);
    for (int ox = first; ox < last; ox++) pixel(ox, true);
    for (int ox = last; ox < S::OW; ox++) pixel(ox, false);
  }
}


// The same for images whose size is known at the call only. Rows outside of the image have no taps.
template <class T, class S>
STRETTO_INLINE void conv_depthwise_sized(const T* __restrict x, const T* __restrict weights,
                                         T* __restrict out, int oy, int rows, bool accumulate,
                                         S s) {
  const int first = first_column(0, s);
  const int last = clamp(last_column(S::KW - 1, s), first, s.OW);
  for (int r = 0; r < rows; r++, out += s.OW) {
    for (int ox = 0; !accumulate && ox < s.OW; ox++) out[ox] = T(0);
    for (int ky = 0; ky < S::KH; ky++) {
      const int iy = (oy + r) * S::SH - S::PH + ky * S::DH;
      if (iy < 0 || iy >= s.H) continue;
      const T* row = x + iy * s.W - S::PW;
      const T* w = weights + ky * S::KW;
      const auto pixel = [&](int ox, bool inside) __attribute__((always_inline)) {
        T total = out[ox];
        STRETTO_UNROLL
        for (int kx = 0; kx < S::KW; kx++) {
          const int ix = ox * S::SW + kx * S::DW;
          if (inside || (ix >= S::PW && ix < s.W + S::PW)) total += w[kx] * row[ix];
        }
        out[ox] = total;
      };
      for (int ox = 0; ox < first; ox++) pixel(ox, false);
      for (int ox = first; ox < last; ox++) pixel(ox, true);
      for (int ox = last; ox < s.OW; ox++) pixel(ox, false);
    }
  }
}

}  // namespace stretto
