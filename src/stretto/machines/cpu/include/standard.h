// The parts of the C++ standard library that programs need, from builtins that g++ and clang++ share.
//
// The library's own headers take longer to read than most programs take to compile (g++ 12: 110 ms for <cmath>, 30 ms
// for <atomic>, 20 ms for <utility>, of 190 ms for a small program), so no header here includes one of them.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Constants (sizes, strides) reach the loops only through inlining, so it is not left to chance.
#define STRETTO_INLINE static inline __attribute__((always_inline))

// Long code that gains nothing from constants is out of line. An instance of such a template is compiled separately,
// once for all programs of a cache, and linked to those that declare it (with `extern`).
#if defined(__clang__)
#define STRETTO_SHARED __attribute__((noinline, visibility("hidden")))
#else
#define STRETTO_SHARED __attribute__((noinline, noclone, visibility("hidden")))
#endif

namespace stretto {

// As std::atomic; orders are the compiler's __ATOMIC_RELAXED, __ATOMIC_ACQUIRE, ...
template <class T>
struct Atomic {
    T load(int order) const { return __atomic_load_n(&value, order); }
    void store(T next, int order) { __atomic_store_n(&value, next, order); }
    void add(T more) { __atomic_add_fetch(&value, more, __ATOMIC_SEQ_CST); }
    // `expected` becomes what was there if that is something else. Sequentially consistent.
    bool compare_exchange(T& expected, T next) {
        return __atomic_compare_exchange_n(&value, &expected, next, false, __ATOMIC_SEQ_CST,
                                           __ATOMIC_SEQ_CST);
    }

   private:
    T value;
};

template <class T> constexpr bool is_unsigned = T(-1) > T(0);
template <class T> constexpr bool is_signed = !is_unsigned<T>;
template <class T> constexpr bool is_integer = T(0.5) == T(0);
template <> constexpr bool is_integer<bool> = true;  // bool(0.5) is true

// As std::numeric_limits.
template <class T>
struct Limits {
    static constexpr T most() {
        return T(~uint64_t(0) >> (64 - 8 * sizeof(T) + is_signed<T>));
    }
    static constexpr T least() { return is_signed<T> ? T(-most() - 1) : T(0); }
};
template <>
struct Limits<bool> {
    static constexpr bool most() { return true; }
    static constexpr bool least() { return false; }
};
template <>
struct Limits<float> {
    static constexpr float infinity() { return __builtin_inff(); }
    static constexpr float nan() { return __builtin_nanf(""); }
};
template <>
struct Limits<double> {
    static constexpr double infinity() { return __builtin_inf(); }
    static constexpr double nan() { return __builtin_nan(""); }
};

// IndicesUpTo<n>::type is Indices<0, 1, ..., n - 1>.
template <int... i>
struct Indices {};
template <int n, int... i>
struct IndicesUpTo : IndicesUpTo<n - 1, n - 1, i...> {};
template <int... i>
struct IndicesUpTo<0, i...> {
    using type = Indices<i...>;
};

template <class T>
inline void swap(T& a, T& b) {
    T kept = a;
    a = b;
    b = kept;
}

// libm, by type.
namespace libm {
#define STRETTO_LIBM(name)                                           \
    inline float name(float x) { return __builtin_##name##f(x); } \
    inline double name(double x) { return __builtin_##name(x); }
#define STRETTO_LIBM_OF_TWO(name)                                                \
    inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
    inline double name(double x, double y) { return __builtin_##name(x, y); }
STRETTO_LIBM(exp) STRETTO_LIBM(exp2) STRETTO_LIBM(expm1)
STRETTO_LIBM(log) STRETTO_LIBM(log2) STRETTO_LIBM(log1p) STRETTO_LIBM(log10)
STRETTO_LIBM(sin) STRETTO_LIBM(cos) STRETTO_LIBM(tan)
STRETTO_LIBM(asin) STRETTO_LIBM(acos) STRETTO_LIBM(atan)
STRETTO_LIBM(sinh) STRETTO_LIBM(cosh) STRETTO_LIBM(tanh)
STRETTO_LIBM(asinh) STRETTO_LIBM(acosh) STRETTO_LIBM(atanh)
STRETTO_LIBM(erf) STRETTO_LIBM(erfc)
STRETTO_LIBM(sqrt) STRETTO_LIBM(fabs)
STRETTO_LIBM(floor) STRETTO_LIBM(ceil) STRETTO_LIBM(trunc) STRETTO_LIBM(rint)
STRETTO_LIBM_OF_TWO(pow) STRETTO_LIBM_OF_TWO(atan2) STRETTO_LIBM_OF_TWO(fmod)
STRETTO_LIBM_OF_TWO(copysign)
#undef STRETTO_LIBM
#undef STRETTO_LIBM_OF_TWO
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
}  // namespace libm

}  // namespace stretto
