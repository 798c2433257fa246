// The primitives of an InstanceProgram, with Python's semantics. Where Python raises, they `fail` with
// the arguments, from which Python code creates the exception (primitives.py).
#pragma once

#include <cmath>

#include "run.h"

namespace stretto {

#define STRETTO_PURE static inline

// -- arithmetic ------------------------------------------------------------------------------------

#define STRETTO_ADDITIVE(NAME, BUILTIN, SIGN)                                     \
  STRETTO_PURE int64_t NAME(Run& run, int32_t site, int64_t a, int64_t b) {       \
    int64_t result;                                                               \
    if (__builtin_expect(BUILTIN(a, b, &result), 0)) fail(run, site, kOverflow);  \
    return result;                                                                \
  }                                                                               \
  STRETTO_PURE double NAME(Run&, int32_t, double a, double b) { return a SIGN b; }
STRETTO_ADDITIVE(add, __builtin_add_overflow, +)
STRETTO_ADDITIVE(sub, __builtin_sub_overflow, -)
#undef STRETTO_ADDITIVE

STRETTO_PURE int64_t mul(Run& run, int32_t site, int64_t a, int64_t b) {
  int64_t result;
  if (__builtin_expect(__builtin_mul_overflow(a, b, &result), 0)) fail(run, site, kOverflow);
  return result;
}
// The product is rounded, as in Python: the compiler must not fuse it with an addition.
STRETTO_PURE double mul(Run&, int32_t, double a, double b) {
  double result = a * b;
#if defined(__x86_64__)
  asm("" : "+x"(result));
#elif defined(__aarch64__)
  asm("" : "+w"(result));
#else
  asm("" : "+m"(result));
#endif
  return result;
}

double divide_large(int64_t a, int64_t b);
STRETTO_PURE double truediv(Run& run, int32_t site, int64_t a, int64_t b) {
  if (b == 0) fail(run, site, kPython, a, b);
  const int64_t exact = int64_t{1} << 53;
  if (a >= -exact && a <= exact && b >= -exact && b <= exact)
    return static_cast<double>(a) / static_cast<double>(b);
  return divide_large(a, b);
}
STRETTO_PURE double truediv(Run& run, int32_t site, double a, double b) {
  if (b == 0) fail(run, site, kPython, a, b);
  return a / b;
}
STRETTO_PURE int64_t floordiv(Run& run, int32_t site, int64_t a, int64_t b) {
  if (b == 0) fail(run, site, kPython, a, b);
  if (b == -1) return sub(run, site, int64_t{0}, a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
STRETTO_PURE int64_t mod(Run& run, int32_t site, int64_t a, int64_t b) {
  if (b == 0) fail(run, site, kPython, a, b);
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
double floordiv(Run& run, int32_t site, double a, double b);
double mod(Run& run, int32_t site, double a, double b);
Value pow(Run& run, int32_t site, int64_t a, int64_t b);
double pow(Run& run, int32_t site, double a, double b);

STRETTO_PURE int64_t bit_and(Run&, int32_t, int64_t a, int64_t b) { return a & b; }
STRETTO_PURE int64_t bit_or(Run&, int32_t, int64_t a, int64_t b) { return a | b; }
STRETTO_PURE int64_t bit_xor(Run&, int32_t, int64_t a, int64_t b) { return a ^ b; }
int64_t lshift(Run& run, int32_t site, int64_t a, int64_t b);
STRETTO_PURE int64_t rshift(Run& run, int32_t site, int64_t a, int64_t b) {
  if (b < 0) fail(run, site, kPython, a, b);
  return a >> (b > 63 ? 63 : b);
}

STRETTO_PURE int64_t neg(Run& run, int32_t site, int64_t a) { return sub(run, site, int64_t{0}, a); }
STRETTO_PURE double neg(Run&, int32_t, double a) { return -a; }
STRETTO_PURE int64_t abs(Run& run, int32_t site, int64_t a) { return a < 0 ? neg(run, site, a) : a; }
STRETTO_PURE double abs(Run&, int32_t, double a) { return std::fabs(a); }
int64_t integral(Run& run, int32_t site, double given, double rounded);
STRETTO_PURE int64_t to_int(Run&, int32_t, int64_t a) { return a; }
STRETTO_PURE int64_t to_int(Run& run, int32_t site, double a) {
  return integral(run, site, a, std::trunc(a));
}
STRETTO_PURE int64_t round(Run&, int32_t, int64_t a) { return a; }
STRETTO_PURE int64_t round(Run& run, int32_t site, double a) {
  return integral(run, site, a, std::nearbyint(a));
}

// Returns the result of a function of `math` for x; fails where Python would raise.
STRETTO_PURE double math(Run& run, int32_t site, double result, double x) {
  if (std::isnan(result) ? !std::isnan(x) : std::isinf(result) && !std::isinf(x))
    fail(run, site, kPython, x);
  return result;
}
STRETTO_PURE double math(Run& run, int32_t site, double result, double x, double y) {
  if (std::isnan(result) ? !std::isnan(x) && !std::isnan(y)
                         : std::isinf(result) && !std::isinf(x) && !std::isinf(y))
    fail(run, site, kPython, x, y);
  return result;
}

// -- comparisons -----------------------------------------------------------------------------------

int order(int64_t a, double b);  // sign of a - b, exact; 2: not comparable (NaN)
template <class T> STRETTO_PURE int order(T a, T b) { return a < b ? -1 : a == b ? 0 : a > b ? 1 : 2; }
STRETTO_PURE int order(double a, int64_t b) { const int o = order(b, a); return o == 2 ? 2 : -o; }
int order(Run& run, int32_t site, Value a, Value b);  // two numbers or two strs
template <class A, class B> STRETTO_PURE int order(Run&, int32_t, A a, B b) { return order(a, b); }
#define STRETTO_COMPARISON(NAME, TEST)                                                             \
  template <class A, class B> STRETTO_PURE bool NAME(Run& run, int32_t site, A a, B b) {           \
    const int o = order(run, site, a, b);                                                          \
    return TEST;                                                                                   \
  }
STRETTO_COMPARISON(lt, o == -1)
STRETTO_COMPARISON(le, o == -1 || o == 0)
STRETTO_COMPARISON(gt, o == 1)
STRETTO_COMPARISON(ge, o == 1 || o == 0)
#undef STRETTO_COMPARISON

bool equal(Run& run, int32_t site, Value a, Value b);
bool is_same(Value a, Value b);
bool truth(Run& run, Value v);

// -- values whose kind is known only at run time -----------------------------------------------------

template <class F> STRETTO_PURE Value dispatch(Run& run, int32_t site, Value a, Value b, F f) {
  if (is_integer(a) && is_integer(b)) return box(f(a.i, b.i));
  if (is_number(a) && is_number(b)) return box(f(as_float(a), as_float(b)));
  fail(run, site, kPython, a, b);
}
template <class F> STRETTO_PURE Value dispatch(Run& run, int32_t site, Value a, F f) {
  if (is_integer(a)) return box(f(a.i));
  if (a.kind == kFloat) return box(f(a.f));
  fail(run, site, kPython, a);
}
STRETTO_PURE int64_t integer(Run& run, int32_t site, Value a) {
  if (!is_integer(a)) fail(run, site, kPython, a);
  return a.i;
}

STRETTO_PURE double number(Run& run, int32_t site, Value a) {
  if (!is_number(a)) fail(run, site, kPython, a);
  return as_float(a);
}
// &, | and ^ of two bools are bools.
template <class F> STRETTO_PURE Value dispatch_bits(Run& run, int32_t site, Value a, Value b, F f) {
  if (!is_integer(a) || !is_integer(b)) fail(run, site, kPython, a, b);
  const int64_t result = f(a.i, b.i);
  return a.kind == kBool && b.kind == kBool ? box(result != 0) : box(result);
}

// -- tuples, lists, rows -----------------------------------------------------------------------------

Value make_list(Run& run, uint32_t kind, const Value* items, size_t count);  // list or tuple
Value make_tuple(Run& run, const Value* items, size_t count);
Value make_record(Run& run, uint32_t type, const Value* items, size_t count);
template <class... Items> STRETTO_PURE Value record_of(Run& run, uint32_t type, Items... items) {
  Tuple* made = new_tuple(run, kRecord, type, sizeof...(Items));
  Value* at = made->items;
  ((*at++ = box(items)), ...);
  return box(made);
}
template <class... Items> STRETTO_PURE Value tuple_of(Run& run, Items... items) {
  Tuple* made = new_tuple(run, kTuple, 0, sizeof...(Items));
  Value* at = made->items;
  ((*at++ = box(items)), ...);
  return box(made);
}
template <class... Items> STRETTO_PURE Value list_of(Run& run, Items... items) {
  List* made = new_list(run, sizeof...(Items));
  Value* at = made->items;
  ((*at++ = box(items)), ...);
  return box(made);
}
STRETTO_PURE Value field(Value record, size_t place) { return as_tuple(record)->items[place]; }
// Fails for a field that is not assigned.
inline Value field_of(Run& run, int32_t site, Value record, size_t place) {
  const Value found = field(record, place);
  if (__builtin_expect(found.kind == kUnset, 0)) fail(run, site, kPython, record);
  return found;
}
int64_t length(Run& run, int32_t site, Value v);
STRETTO_PURE Value at(Run& run, int32_t site, Value v, int64_t place) {
  if (v.kind == kRows) {
    const int64_t count = v.object->length, found = place < 0 ? place + count : place;
    if (found < 0 || found >= count) fail(run, site, kPython, v, place);
    return box(Tensor{as_rows(v)->numbers[found]});
  }
  if (!is_sequence(v)) fail(run, site, kPython, v, place);
  const int64_t count = v.object->length, found = place < 0 ? place + count : place;
  if (found < 0 || found >= count) fail(run, site, kPython, v, place);
  return items_of(v)[found];
}
void put(Run& run, int32_t site, Value list, int64_t place, Value value);
void grow_list(Run& run, List* list, size_t more);
// Fails if the object came in with an instance: instances must not be changed.
STRETTO_PURE void writable(Run& run, int32_t site, Value v) {
  if (v.object->source >= 0) fail(run, site, kInput, v);
}
STRETTO_PURE List* writable_list(Run& run, int32_t site, Value v, Value other) {
  if (v.kind != kList) fail(run, site, kPython, v, other);
  writable(run, site, v);
  return as_list(v);
}
STRETTO_PURE void append(Run& run, int32_t site, Value v, Value item) {
  List* list = writable_list(run, site, v, item);
  if (list->length == list->capacity) grow_list(run, list, 1);
  list->items[list->length++] = item;
}
Value pop(Run& run, int32_t site, Value v, int64_t place);
Value pop(Run& run, int32_t site, Value v);
void insert(Run& run, int32_t site, Value v, int64_t place, Value item);
void extend(Run& run, int32_t site, Value v, Value other);
Value slice(Run& run, int32_t site, Value v, Value start, Value stop, Value step);
Value concat(Run& run, int32_t site, Value a, Value b);
Value repeat(Run& run, int32_t site, Value a, int64_t count);
void reverse(Run& run, int32_t site, Value v);
Value to_list(Run& run, int32_t site, Value v, uint32_t kind);
bool contains(Run& run, int32_t site, Value v, Value item);
int64_t index_of(Run& run, int32_t site, Value v, Value item);
void clear(Run& run, int32_t site, Value v);
Value rows(Run& run, int32_t site, Value v);
Value sorted_ints(Run& run, int32_t site, Value v);

// -- dicts and strs ----------------------------------------------------------------------------------

Value make_dict(Run& run, const Value* pairs, size_t count);
template <class... Items> STRETTO_PURE Value dict_of(Run& run, Items... items) {
  const Value all[sizeof...(Items) + 1] = {box(items)...};
  return make_dict(run, all, sizeof...(Items));
}
Value lookup(Run& run, int32_t site, Value v, Value key);
Value lookup_or(Run& run, int32_t site, Value v, Value key, Value otherwise);
void store(Run& run, int32_t site, Value v, Value key, Value value);
Value remove(Run& run, int32_t site, Value v, Value key);
Value keys(Run& run, int32_t site, Value v);
Value values(Run& run, int32_t site, Value v);
Value join_str(Run& run, int32_t site, Value a, Value b);
Value join_all(Run& run, int32_t site, Value v);
Value characters(Run& run, int32_t site, Value v);
int64_t code_point(Run& run, int32_t site, Value v);
Value repr(Run& run, int32_t site, Value v);
Value text(Run& run, int32_t site, Value v);
double round_to(Run& run, int32_t site, double x, int64_t digits);

}  // namespace stretto
