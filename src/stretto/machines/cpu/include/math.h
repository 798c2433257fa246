// Scalar functions with the meaning of eager PyTorch, written so that the compiler vectorises loops
// over them (`#pragma omp simd`; -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math
// -ffp-contract=fast, never -ffast-math: NaN, infinity, signed zero and denormals are kept).
//
// float: branch-free. Largest error measured over every 97th bit pattern of float32 against
// float64, in units of the last place (tests/machines/cpu/test_math.py holds these bounds):
//   exp 1.0   exp2 1.0   expm1 1.5   log 0.9   log2 1.9   log1p 1.1   tanh 1.5   sigmoid 2.3
//   erf 1.1   pow 0.6    sqrt 0.5    rsqrt 1.5
//   sin, cos 1.5
// Denormal results are not flushed. gelu and gelu_tanh follow eager's formulas, with its
// cancellation for large negative arguments. Every other function of float, and every function of
// double, is libm's, which does not vectorise.
#pragma once

#include "standard.h"

namespace stretto {

template <class To, class From>
STRETTO_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}

// a * b + c; rounded once where the machine can (a libm call would not vectorise).
template <class T> STRETTO_INLINE T fma(T a, T b, T c) {
#if defined(__FMA__) || defined(__aarch64__)
    return libm::fma(a, b, c);
#else
    return a * b + c;
#endif
}

// c[0] + c[1] x + ..., by Horner's rule.
template <class T> STRETTO_INLINE T polynomial(T, T last) { return last; }
template <class T, class... Rest>
STRETTO_INLINE T polynomial(T x, T first, T second, Rest... rest) {
    return fma(polynomial(x, second, rest...), x, first);
}

// ---- minimum, maximum, sign -------------------------------------------------------------------
// NaN wins, as in torch. `|` instead of `||` keeps them free of branches.
template <class T> STRETTO_INLINE T maximum(T a, T b) { return ((a > b) | (a != a)) ? a : b; }
template <class T> STRETTO_INLINE T minimum(T a, T b) { return ((a < b) | (a != a)) ? a : b; }
// torch.clamp: NaN stays; a lower bound above the upper gives the upper.
template <class T> STRETTO_INLINE T clamp(T x, T low, T high) {
    T raised = x < low ? low : x;
    return raised > high ? high : raised;
}
template <class T> STRETTO_INLINE T sign(T x) {  // sign(NaN) is 0, as in torch
    return T((T(0) < x) - (x < T(0)));
}
template <class T> STRETTO_INLINE T abs(T x) {
    if constexpr (!is_integer<T>)
        return libm::fabs(x);
    else
        return x < T(0) ? T(0 - uint64_t(x)) : x;
}

// Reductions for `#pragma omp simd reduction(stretto::nan_max : acc)`.
#pragma omp declare reduction(nan_max : float : omp_out = stretto::maximum(omp_out, omp_in)) \
    initializer(omp_priv = -stretto::Limits<float>::infinity())
#pragma omp declare reduction(nan_min : float : omp_out = stretto::minimum(omp_out, omp_in)) \
    initializer(omp_priv = stretto::Limits<float>::infinity())

// ---- exponentials -----------------------------------------------------------------------------
namespace detail {

constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds a float to an integer
constexpr float LN2_HIGH = 0.693145751953125f, LN2_LOW = 1.42860677e-6f;  // the first: 17 bits
constexpr float INF = __builtin_inff();

struct Split {  // x = exponent * ln 2 + rest
    int32_t exponent;
    float rest;
};

STRETTO_INLINE Split split_ln2(float x) {
    float shifted = fma(x, 1.44269504f, ROUND);
    float n = shifted - ROUND;
    float rest = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x));
    return {bits_as<int32_t>(shifted) - bits_as<int32_t>(ROUND), rest};
}

STRETTO_INLINE float power_of_two(int32_t n) {  // -126 <= n <= 127
    return bits_as<float>(int32_t(uint32_t(n + 127) << 23));
}

// exp(r) - 1 for |r| <= ln 2 / 2.
STRETTO_INLINE float expm1_core(float r) {
    float p = polynomial(r, 0.5f, 0.166666672f, 0.041666355f, 0.00833327323f, 0.00139410084f,
                         0.000199141723f);
    return fma(r * r, p, r);
}

// value * 2^n for -252 <= n <= 254, in two steps so that the result may be denormal or infinite.
STRETTO_INLINE float scale(float value, int32_t n) {
    int32_t half = n >> 1;
    return value * power_of_two(half) * power_of_two(n - half);
}

}  // namespace detail

STRETTO_INLINE float exp(float x) {
    // 0 is not computed as a denormal number, which takes a hundred cycles: the mask of a softmax is
    // -inf, so this case is frequent.
    const bool is_zero = x < -104.0f;
    detail::Split s = detail::split_ln2(is_zero ? 0.0f : x > 89.0f ? 89.0f : x);
    const float power = detail::scale(1.0f + detail::expm1_core(s.rest), s.exponent);
    return is_zero ? 0.0f : power;
}

STRETTO_INLINE float exp2(float x) {
    float clamped = clamp(x, -151.0f, 129.0f);
    float shifted = clamped + detail::ROUND;
    float rest = (clamped - (shifted - detail::ROUND)) * 0.693147182f;
    int32_t n = bits_as<int32_t>(shifted) - bits_as<int32_t>(detail::ROUND);
    return detail::scale(1.0f + detail::expm1_core(rest), n);
}

STRETTO_INLINE float expm1(float x) {
    detail::Split s = detail::split_ln2(clamp(x, -104.0f, 89.0f));
    // 2 * (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2): halved, because 2^128 is no float.
    float half = detail::power_of_two(s.exponent < -125 ? -126 : s.exponent - 1);
    float r = 2.0f * fma(detail::expm1_core(s.rest), half, half - 0.5f);
    return x == 0.0f ? x : r;
}

// 1 / (1 + e^-x), with both sides of the division times 2^-24: so e^-x needs only one power of two,
// from the denormal results (x near -104) to those that are 1 (from x = 18 on).
STRETTO_INLINE float sigmoid(float x) {
    float t = -x;
    t = t > 104.0f ? 104.0f : t;
    t = t < -70.0f ? -70.0f : t;
    const float shifted = fma(t, 1.44269504f, detail::ROUND);
    const float n = shifted - detail::ROUND;  // -101 <= n <= 150
    const float rest = fma(n, -detail::LN2_LOW, fma(n, -detail::LN2_HIGH, t));
    // The low bits of `shifted` are those of n, and the ones above them leave the word.
    const uint32_t exponent = uint32_t(bits_as<int32_t>(shifted)) << 23;
    const float power = bits_as<float>(int32_t(exponent + (uint32_t(127 - 24) << 23)));
    return 0x1p-24f / fma(1.0f + detail::expm1_core(rest), power, 0x1p-24f);
}

STRETTO_INLINE float tanh(float x) {
    float t = abs(x), square = x * x;
    float small = fma(polynomial(square, -0.333333135f, 0.133324713f, -0.0538392477f,
                                 0.0210142788f, -0.00618863897f),
                      square * t, t);
    detail::Split s = detail::split_ln2(clamp(-2.0f * t, -20.0f, 0.0f));
    float power = detail::power_of_two(s.exponent);
    float p = fma(detail::expm1_core(s.rest), power, power);
    float large = 1.0f - 2.0f * p / (1.0f + p);
    return __builtin_copysignf(t < 0.5625f ? small : large, x);
}

// ---- logarithms -------------------------------------------------------------------------------
namespace detail {

struct Mantissa {  // x = 2^exponent * (1 + fraction), fraction in [-1/3, 1/3)
    float exponent;
    float fraction;
    int32_t exponent_bits;
};

STRETTO_INLINE Mantissa split_log(float x) {  // x > 0, finite
    bool denormal = x < 1.17549435e-38f;
    int32_t bits = bits_as<int32_t>(denormal ? x * 8388608.0f : x);
    int32_t exponent_bits = (bits - 0x3f2aaaab) & int32_t(0xff800000);
    float exponent = float(exponent_bits >> 23) - (denormal ? 23.0f : 0.0f);
    return {exponent, bits_as<float>(bits - exponent_bits) - 1.0f, exponent_bits};
}

// log(1 + f) - f for f in [-1/3, 1/3].
STRETTO_INLINE float log_core(float f) {
    float q = polynomial(f, 0.333333373f, -0.249998197f, 0.199993059f, -0.166796163f, 0.143128365f,
                         -0.121952854f, 0.106613874f, -0.128471151f, 0.123579293f);
    float square = f * f;
    return fma(square * f, q, -0.5f * square);
}

// `value` if x is a positive number; else the logarithm of this special case.
STRETTO_INLINE float log_special(float x, float value) {
    float result = x == 0.0f ? -INF : value;
    result = x < 0.0f ? bits_as<float>(0x7fc00000) : result;
    return (x == INF) | (x != x) ? x : result;
}

}  // namespace detail

STRETTO_INLINE float log(float x) {
    detail::Mantissa m = detail::split_log(x);
    float low = fma(m.exponent, detail::LN2_LOW, detail::log_core(m.fraction));
    return detail::log_special(x, fma(m.exponent, detail::LN2_HIGH, low + m.fraction));
}

STRETTO_INLINE float log2(float x) {
    detail::Mantissa m = detail::split_log(x);
    float rest = detail::log_core(m.fraction);
    // log2 e = 1.4426950216 + 1.9259629e-8; exact for powers of two.
    float low = fma(m.fraction, 1.92596299e-8f, rest * 1.44269502f);
    return detail::log_special(x, m.exponent + fma(m.fraction, 1.44269502f, low));
}

STRETTO_INLINE float log1p(float x) {
    float u = 1.0f + x;
    float lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);  // what rounding 1 + x dropped
    detail::Mantissa m = detail::split_log(u);
    float shrink = bits_as<float>(0x3f800000 - m.exponent_bits);
    float correction = m.exponent < 64.0f ? lost * shrink : 0.0f;
    float rest = detail::log_core(m.fraction + correction) + correction;
    float low = fma(m.exponent, detail::LN2_LOW, rest);
    float value = fma(m.exponent, detail::LN2_HIGH, low + m.fraction);
    return x == 0.0f ? x : detail::log_special(u, value);
}

// ---- erf, gelu --------------------------------------------------------------------------------
STRETTO_INLINE float erf(float x) {
    float t = abs(x), s = x * x;
    float small = fma(polynomial(s, 0.128379166f, -0.376126349f, 0.112837017f, -0.0268597025f,
                                 0.00520171644f, -0.000814980827f, 8.39780478e-05f),
                      t, t);
    float clamped = t > 4.0f ? 4.0f : t;  // erf(4) is 1 in float
    float g = polynomial(clamped, -0.128690779f, -0.634975791f, -0.106529251f, 0.0240088012f,
                         -0.00374996406f, 0.000342837448f, -1.09531275e-05f, -4.0637417e-07f);
    detail::Split split = detail::split_ln2(fma(clamped, g, -clamped));
    float power = detail::power_of_two(split.exponent);
    float large = 1.0f - fma(detail::expm1_core(split.rest), power, power);
    return __builtin_copysignf(t > 0.921875f ? large : small, x);
}

STRETTO_INLINE float gelu(float x) { return x * 0.5f * (1.0f + erf(x * 0.707106781f)); }
STRETTO_INLINE float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanh(0.797884561f * (x + 0.044715f * (x * x * x))));
}

// ---- pow, sin, cos: computed in double, which float's exponents and angles fit into ------------
namespace detail {

STRETTO_INLINE double log2_double(double x) {  // of a positive float, finite
    int64_t bits = bits_as<int64_t>(x);
    int64_t exponent_bits = (bits - 0x3fe6a09e667f3bcd) & int64_t(0xfff0000000000000);
    double m = bits_as<double>(bits - exponent_bits);  // in [sqrt 1/2, sqrt 2)
    // The exponent as a double, without a conversion of int64 (few machines have one in vectors).
    double exponent = bits_as<double>((exponent_bits >> 52) + 0x4338000000000000) - 0x1.8p52;
    double s = (m - 1.0) / (m + 1.0);
    return exponent + s * polynomial(s * s, 2.885390081790203, 0.961796673199881,
                                     0.5770836115982797, 0.4116711339648358, 0.3407593625516771);
}

STRETTO_INLINE double exp2_double(double x) {  // |x| < 1000
    double shifted = x + 0x1.8p52;
    double r = x - (shifted - 0x1.8p52);
    double p = polynomial(r, 0.9999999999616818, 0.6931471807284446, 0.2402265119815789,
                          0.055504103534569235, 0.00961802725364381, 0.0013333922556294352,
                          0.00015469291148894633, 1.5201923227886917e-05);
    return bits_as<double>(bits_as<int64_t>(p) + (bits_as<int64_t>(shifted) << 52));
}

struct Angle {
    float rest;  // x - quadrant * pi / 2
    int32_t quadrant;
};

// x * c - 4 n for the n that makes it small, divided by 4.
STRETTO_INLINE double turn(double quarter, double c) {
    double product = quarter * c;  // exact: 24 bits times 29
    return product - __builtin_rint(product);
}

// 2 / pi in pieces of 29 bits: multiples of 4 of each product are left out, so that what remains is
// exact however large x is (Payne and Hanek, "Radian reduction for trigonometric functions", 1983).
STRETTO_INLINE Angle split_angle(float x) {
    double quarter = 0.25 * double(x);
    double t0 = turn(quarter, 0x1.45f306dp-1), t1 = turn(quarter, 0x1.9391054p-30);
    double t2 = turn(quarter, 0x1.4fe13abp-59), t3 = turn(quarter, 0x1.d1f534dp-88);
    double t4 = turn(quarter, 0x1.b81b6c5p-117), t5 = quarter * 0x1.5993c4p-148;
    double sum = ((((t5 + t4) + t3) + t2) + t1) + t0;
    double shifted = fma(4.0, sum, 0x1.8p52);
    double rest = fma(4.0, t0, -(shifted - 0x1.8p52));
    rest = fma(4.0, t1, rest);
    rest = fma(4.0, t2, rest);
    rest = fma(4.0, t3, rest);
    rest = fma(4.0, t4, rest) + 4.0 * fma(quarter, 0x1.c820ff2p-175, t5);
    return {float(rest * 0x1.921fb54442d18p+0), int32_t(bits_as<int64_t>(shifted))};
}

STRETTO_INLINE float sin_or_cos(float r, int32_t quadrant) {
    float s = r * r;
    float sine = fma(
        polynomial(s, -0.166666672f, 0.00833332911f, -0.000198393347f, 2.71830413e-06f), s * r, r);
    float cosine = fma(polynomial(s, -0.5f, 0.0416666679f, -0.00138888834f, 2.47995195e-05f,
                                  -2.72101687e-07f),
                       s, 1.0f);
    float value = (quadrant & 1) ? cosine : sine;
    return (quadrant & 2) ? -value : value;
}

}  // namespace detail

STRETTO_INLINE float sin(float x) {
    detail::Angle angle = detail::split_angle(x);
    return x == 0.0f ? x : detail::sin_or_cos(angle.rest, angle.quadrant);
}
STRETTO_INLINE float cos(float x) {
    detail::Angle angle = detail::split_angle(x);
    return detail::sin_or_cos(angle.rest, angle.quadrant + 1);
}

STRETTO_INLINE float pow(float x, float y) {
    float size = abs(x);
    float base = (size == 0.0f) | (size == detail::INF) | (x != x) ? 1.0f : size;
    double exponent = double(y) * detail::log2_double(double(base));
    float value = float(detail::exp2_double(clamp(exponent, -200.0, 200.0)));
    float whole = __builtin_truncf(y);
    float half = y * 0.5f;
    bool is_whole = whole == y;
    bool is_odd = is_whole & (__builtin_truncf(half) != half);
    value = size == 0.0f ? (y < 0.0f ? detail::INF : 0.0f) : value;
    value = size == detail::INF ? (y < 0.0f ? 0.0f : detail::INF) : value;
    value = is_odd ? __builtin_copysignf(value, x) : value;
    float nan = bits_as<float>(0x7fc00000);
    value = (x < 0.0f) & (size != detail::INF) & !is_whole ? nan : value;
    value = (x != x) | (y != y) ? nan : value;
    bool one = (x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (abs(y) == detail::INF));
    return one ? 1.0f : value;
}

// ---- the rest ---------------------------------------------------------------------------------
template <class T> STRETTO_INLINE T sqrt(T x) { return libm::sqrt(x); }
template <class T> STRETTO_INLINE T rsqrt(T x) { return T(1) / libm::sqrt(x); }
template <class T> STRETTO_INLINE T round(T x) {  // half to even, as torch
    return libm::rint(x);
}
template <class T> STRETTO_INLINE T fmod(T a, T b) { return libm::fmod(a, b); }
template <class T> STRETTO_INLINE T atan2(T y, T x) { return libm::atan2(y, x); }
STRETTO_INLINE float copysign(float x, float sign) { return __builtin_copysignf(x, sign); }
STRETTO_INLINE double copysign(double x, double sign) { return __builtin_copysign(x, sign); }
STRETTO_INLINE double sigmoid(double x) { return 1.0 / (1.0 + libm::exp(-x)); }
STRETTO_INLINE double gelu(double x) { return x * 0.5 * (1.0 + libm::erf(x * 0.70710678118654752440)); }
STRETTO_INLINE double gelu_tanh(double x) {
    double inner = 1.41421356237309504880 * 1.12837916709551257390 * 0.5 * (x + 0.044715 * (x * x * x));
    return 0.5 * x * (1.0 + libm::tanh(inner));
}
STRETTO_INLINE double pow(double x, double y) { return libm::pow(x, y); }

#define STRETTO_DOUBLE(name) \
    STRETTO_INLINE double name(double x) { return libm::name(x); }
#define STRETTO_BOTH(name) \
    STRETTO_DOUBLE(name)   \
    STRETTO_INLINE float name(float x) { return libm::name(x); }
STRETTO_DOUBLE(exp) STRETTO_DOUBLE(exp2) STRETTO_DOUBLE(expm1) STRETTO_DOUBLE(log)
STRETTO_DOUBLE(log2) STRETTO_DOUBLE(log1p) STRETTO_DOUBLE(tanh) STRETTO_DOUBLE(erf)
STRETTO_DOUBLE(sin) STRETTO_DOUBLE(cos)
STRETTO_BOTH(log10) STRETTO_BOTH(erfc) STRETTO_BOTH(tan) STRETTO_BOTH(asin) STRETTO_BOTH(acos)
STRETTO_BOTH(atan) STRETTO_BOTH(sinh) STRETTO_BOTH(cosh) STRETTO_BOTH(asinh) STRETTO_BOTH(acosh)
STRETTO_BOTH(atanh) STRETTO_BOTH(floor) STRETTO_BOTH(ceil) STRETTO_BOTH(trunc)
#undef STRETTO_BOTH
#undef STRETTO_DOUBLE

// ---- division with Python's signs -------------------------------------------------------------
// Integers: a divisor of 0 gives 0 (eager raises: the caller must check), instead of a signal that
// would end the process; the quotient of the smallest number and -1 wraps around.
template <class T> STRETTO_INLINE T trunc_div(T a, T b) {
    if (b == 0) return 0;
    return T(b + 1) == 0 && T(-1) < T(0) ? T(0 - uint64_t(a)) : T(a / b);
}
template <class T> STRETTO_INLINE T trunc_mod(T a, T b) {
    return b == 0 || (T(b + 1) == 0 && T(-1) < T(0)) ? T(0) : T(a % b);
}
template <class T> STRETTO_INLINE T remainder(T a, T b) {
    T rest;
    if constexpr (!is_integer<T>)
        rest = libm::fmod(a, b);
    else
        rest = trunc_mod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? T(rest + b) : rest;
}
template <class T> STRETTO_INLINE T floor_div(T a, T b) {
    if constexpr (!is_integer<T>) {  // eager's way, c10/util/generic_math.h
        if (b == 0) return a / b;
        T rest = libm::fmod(a, b);
        T quotient = (a - rest) / b - T(rest != 0 && (b < 0) != (rest < 0));
        if (quotient == 0) return libm::copysign(T(0), a / b);
        T down = libm::floor(quotient);
        return quotient - down > T(0.5) ? down + 1 : down;
    } else {
        T rest = trunc_mod(a, b);
        return T(trunc_div(a, b) - T(rest != 0 && (rest < 0) != (b < 0)));
    }
}

// ---- 16-bit floats: stored, never computed with ------------------------------------------------
// Conversion from float rounds to nearest even; NaN stays NaN, and values too large become infinite.
struct bf16 {
    uint16_t bits;
};
struct half {
    uint16_t bits;
};

STRETTO_INLINE float to_float(bf16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }
STRETTO_INLINE float to_float(half x) {
    uint32_t size = uint32_t(x.bits & 0x7fff) << 13, sign = uint32_t(x.bits & 0x8000) << 16;
    uint32_t exponent = size & 0x0f800000;
    uint32_t normal = size + (exponent == 0x0f800000 ? 224u << 23 : 112u << 23);
    float denormal = bits_as<float>(size + (113u << 23)) - bits_as<float>(113u << 23);
    return bits_as<float>((exponent == 0 ? bits_as<uint32_t>(denormal) : normal) | sign);
}

STRETTO_INLINE bf16 to_bf16(float x) {
    uint32_t bits = bits_as<uint32_t>(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return {uint16_t(x != x ? (bits >> 16) | 0x40 : rounded)};
}
STRETTO_INLINE half to_half(float x) {
    uint32_t bits = bits_as<uint32_t>(x), size = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
    uint32_t normal = (size - (112u << 23) + 0xfff + ((size >> 13) & 1)) >> 13;
    uint32_t denormal = bits_as<uint32_t>(bits_as<float>(size) + 0.5f) - bits_as<uint32_t>(0.5f);
    uint32_t finite = size < (113u << 23) ? denormal : normal;
    uint32_t huge = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    return {uint16_t((size >= (143u << 23) ? huge : finite) | sign)};
}

}  // namespace stretto
