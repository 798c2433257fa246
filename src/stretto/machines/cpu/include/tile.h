// Types and functions for the kernels of users.
#pragma once

#include "math.h"

namespace stretto {

// The values of an index that a task computes: begin .. end - 1.
struct Range {
    int64_t begin;
    int64_t end;
};

// A tensor of R dims. Positions count from its first element, whatever part of it a task computes.
template <class T, int R>
struct View {
    T* data;
    int64_t size[R ? R : 1];    // of each dim
    int64_t stride[R ? R : 1];  // from an element to the next one along a dim, in elements

    template <class... Index>
    __attribute__((always_inline)) T& operator()(Index... index) const {
        static_assert(sizeof...(Index) == R, "a view takes one index per dim");
        int64_t offset = 0;
        int dim = 0;
        ((offset += int64_t(index) * stride[dim++]), ...);
        return data[offset];
    }
};

// An element in the type that is computed with: float for the 16-bit types.
template <class T>
STRETTO_INLINE T number(T value) { return value; }
STRETTO_INLINE float number(half value) { return to_float(value); }
STRETTO_INLINE float number(bf16 value) { return to_float(value); }

// A number as an element of type T, rounded to nearest.
template <class T> struct Element {
    template <class From> STRETTO_INLINE T of(From value) { return T(value); }
};
template <> struct Element<half> {
    STRETTO_INLINE half of(float value) { return to_half(value); }
};
template <> struct Element<bf16> {
    STRETTO_INLINE bf16 of(float value) { return to_bf16(value); }
};
template <class T, class From>
STRETTO_INLINE T element(From value) { return Element<T>::of(value); }

}  // namespace stretto
