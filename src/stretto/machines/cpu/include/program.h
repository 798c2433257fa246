// Small functions that printed programs use beside math.h: typed forms of scalar functions whose meaning depends
// on the argument's type, positions, and checks.
#pragma once

#include "abi.h"
#include "math.h"

// A program of many kernels can be compiled in parts, in parallel, which are then linked: the kernels are dealt to
// STRETTO_PARTS of them, and the code that calls them is one more, for which STRETTO_CALLS is 1.
#ifndef STRETTO_PARTS
#define STRETTO_PARTS 1
#define STRETTO_PART 0
#define STRETTO_CALLS 1
#endif
#define STRETTO_IN_PART(number) ((number) % STRETTO_PARTS == STRETTO_PART)
#define STRETTO_KERNEL __attribute__((noinline, visibility("hidden")))

namespace stretto {

// Positions: floor semantics for any sign; the divisor is positive.
STRETTO_INLINE int64_t index_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -1 - (-1 - a) / b; }
STRETTO_INLINE int64_t index_mod(int64_t a, int64_t b) { return a - index_div(a, b) * b; }

STRETTO_INLINE int64_t index_max(int64_t a, int64_t b) { return a > b ? a : b; }

// A number of bytes, computed from the sizes of a call. A number beyond 64 bits becomes NO_SUCH_SIZE, and stays so.
struct Bytes {
    static constexpr int64_t NO_SUCH_SIZE = INT64_MAX;
    int64_t value;
    bool fits;
    Bytes(int64_t value_, bool fits_ = true) : value(value_), fits(fits_) {}
    friend Bytes operator+(Bytes a, Bytes b) {
        int64_t sum = 0;
        bool over = __builtin_add_overflow(a.value, b.value, &sum);
        return {sum, a.fits && b.fits && !over};
    }
    friend Bytes operator*(Bytes a, Bytes b) {
        int64_t product = 0;
        bool over = __builtin_mul_overflow(a.value, b.value, &product);
        return {product, a.fits && b.fits && !over};
    }
};
inline Bytes index_div(Bytes a, Bytes b) { return {index_div(a.value, b.value), a.fits && b.fits}; }
inline Bytes index_mod(Bytes a, Bytes b) { return {index_mod(a.value, b.value), a.fits && b.fits}; }
inline Bytes index_max(Bytes a, Bytes b) { return {index_max(a.value, b.value), a.fits && b.fits}; }
inline int32_t is_below(Bytes number, int64_t limit) { return number.fits && number.value < limit; }
inline bool arena_left(Context* ctx, Bytes end) {
    return arena_left(ctx, end.fits ? end.value : Bytes::NO_SUCH_SIZE);
}

// A position read from memory. Out of range, it stops the run with the failure of check `number`; the position 0
// then keeps this task inside the buffer.
STRETTO_INLINE int64_t checked(Context* ctx, int64_t index, int64_t size, int64_t number) {
    if (STRETTO_LIKELY(index >= 0 && index < size)) return index;
    fail(ctx, INDEX, packed_detail(number, index));
    return 0;
}

STRETTO_INLINE bool is_nan(float x) { return x != x; }
STRETTO_INLINE bool is_nan(double x) { return x != x; }
template <class T>
STRETTO_INLINE bool is_nan(T) { return false; }
STRETTO_INLINE bool is_inf(float x) { return abs(x) == Limits<float>::infinity(); }
STRETTO_INLINE bool is_inf(double x) { return abs(x) == Limits<double>::infinity(); }
template <class T>
STRETTO_INLINE bool is_inf(T) { return false; }

template <class T>
STRETTO_INLINE T reciprocal(T x) { return T(1) / x; }
STRETTO_INLINE bool maximum(bool a, bool b) { return a | b; }
STRETTO_INLINE bool minimum(bool a, bool b) { return a & b; }
template <class T>
STRETTO_INLINE T fmax_any(T a, T b) { return b != b || a > b ? a : b; }
template <class T>
STRETTO_INLINE T fmin_any(T a, T b) { return b != b || a < b ? a : b; }

STRETTO_INLINE float fmod_any(float a, float b) { return libm::fmod(a, b); }
STRETTO_INLINE double fmod_any(double a, double b) { return libm::fmod(a, b); }
template <class T>
STRETTO_INLINE T fmod_any(T a, T b) { return trunc_mod(a, b); }
STRETTO_INLINE float trunc_quotient(float a, float b) { return libm::trunc(a / b); }
STRETTO_INLINE double trunc_quotient(double a, double b) { return libm::trunc(a / b); }
template <class T>
STRETTO_INLINE T trunc_quotient(T a, T b) { return trunc_div(a, b); }

// Float to integer as torch converts on this machine, where C++ leaves it undefined: on x86 a value that does not fit
// gives the smallest number of the type `Between`: int64 for uint8 (c10/util/TypeCast.h), else at least int32.
template <class Between, class From>
STRETTO_INLINE Between truncated(From x) {
#if defined(__x86_64__)
    constexpr From low = From(Limits<Between>::least());
    return x >= low && x < -low ? Between(x) : Limits<Between>::least();
#else
    return Between(x);
#endif
}
template <class To, class From>
STRETTO_INLINE To to_integer(From x) {
    if constexpr (sizeof(To) == 8 || is_unsigned<To>)
        return To(truncated<int64_t>(x));
    else
        return To(truncated<int32_t>(x));
}

// Shifts by less than 0 or by the width give 0, or the sign for a right shift, as in torch.
template <class T>
STRETTO_INLINE T shift_left(T a, T b) {
    constexpr int width = 8 * sizeof(T);
    return b < 0 || b >= width ? T(0) : T(uint64_t(a) << uint64_t(b));
}
template <class T>
STRETTO_INLINE T shift_right(T a, T b) {
    constexpr int most = 8 * sizeof(T) - is_signed<T>;
    return T(a >> (b < 0 || b >= most ? most : b));
}

STRETTO_INLINE float power(float a, float b) { return pow(a, b); }
STRETTO_INLINE double power(double a, double b) { return libm::pow(a, b); }
template <class T>
STRETTO_INLINE T power(T base, T exponent) {
    if (exponent < 0) return base == 1 ? T(1) : (base == T(-1) ? (exponent & 1 ? T(-1) : T(1)) : T(0));
    T result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = T(uint64_t(result) * uint64_t(base));
        base = T(uint64_t(base) * uint64_t(base));
    }
    return result;
}

}  // namespace stretto
