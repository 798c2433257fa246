// Python's arithmetic and comparisons that take more than an instruction.
#include <cstdlib>

#include "primitives.h"

namespace stretto {

namespace {
using Wide = unsigned __int128;
}

// Returns a / b, rounded once. The quotient of a, shifted to the top of 128 bits, has more bits than a
// double; its lowest bit is set if the division has a remainder.
double divide_large(int64_t a, int64_t b) {
  if (a == 0) return b < 0 ? -0.0 : 0.0;
  const uint64_t x = a < 0 ? 0 - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
  const uint64_t y = b < 0 ? 0 - static_cast<uint64_t>(b) : static_cast<uint64_t>(b);
  const int shift = 64 + __builtin_clzll(x);
  const Wide top = static_cast<Wide>(x) << shift;
  const Wide quotient = top / y | (top % y != 0);
  const double size = std::ldexp(static_cast<double>(quotient), -shift);
  return (a < 0) != (b < 0) ? -size : size;
}

double mod(Run& run, int32_t site, double a, double b) {
  if (b == 0) fail(run, site, kPython, a, b);
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double floordiv(Run& run, int32_t site, double a, double b) {
  if (b == 0) fail(run, site, kPython, a, b);
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1.0;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

Value pow(Run& run, int32_t site, int64_t a, int64_t b) {
  if (b < 0) {
    if (a == 0) fail(run, site, kPython, a, b);
    return box(pow(run, site, static_cast<double>(a), static_cast<double>(b)));
  }
  int64_t result = 1, base = a;
  for (int64_t left = b; left; left >>= 1) {
    if (left & 1) result = mul(run, site, result, base);
    if (left > 1) base = mul(run, site, base, base);  // it is a factor: a higher bit is set
  }
  return box(result);
}

double pow(Run& run, int32_t site, double a, double b) {
  const double result = std::pow(a, b);
  if (std::isfinite(a) && std::isfinite(b)) {
    if (a == 0 && b < 0) fail(run, site, kPython, a, b);
    if (a < 0 && b != std::floor(b)) fail(run, site, kComplex);
    if (!std::isfinite(result)) fail(run, site, kPython, a, b);
  }
  return result;
}

int64_t lshift(Run& run, int32_t site, int64_t a, int64_t b) {
  if (b < 0) fail(run, site, kPython, a, b);
  if (a == 0) return 0;
  if (b > 63) fail(run, site, kOverflow);
  const int64_t result = static_cast<int64_t>(static_cast<uint64_t>(a) << b);
  if (result >> b != a) fail(run, site, kOverflow);
  return result;
}

int64_t integral(Run& run, int32_t site, double given, double rounded) {
  if (std::isnan(given) || std::isinf(given)) fail(run, site, kPython, given);
  if (!(rounded >= -0x1p63 && rounded < 0x1p63)) fail(run, site, kOverflow);
  return static_cast<int64_t>(rounded);
}

int order(int64_t a, double b) {
  if (std::isnan(b)) return 2;
  if (b >= 0x1p63) return -1;
  if (b < -0x1p63) return 1;
  const double whole = std::trunc(b);
  const int64_t other = static_cast<int64_t>(whole);
  if (a != other) return a < other ? -1 : 1;
  return b > whole ? -1 : b < whole ? 1 : 0;
}

int order(Run& run, int32_t site, Value a, Value b) {
  if (a.kind == kStr && b.kind == kStr) {  // UTF-8 preserves the order of code points
    const uint32_t x = a.object->length, y = b.object->length;
    const int found = std::memcmp(as_str(a)->text, as_str(b)->text, x < y ? x : y);
    return found ? (found < 0 ? -1 : 1) : x < y ? -1 : x > y;
  }
  if (!is_number(a) || !is_number(b)) fail(run, site, kPython, a, b);
  if (is_integer(a)) return is_integer(b) ? order(a.i, b.i) : order(a.i, b.f);
  return is_integer(b) ? order(a.f, b.i) : order(a.f, b.f);
}

bool is_same(Value a, Value b) {
  if (a.kind != b.kind) return false;
  if (a.kind == kNone) return true;
  if (a.kind == kFloat) return (std::isnan(a.f) && std::isnan(b.f)) || a.i == b.i;
  if (a.kind == kStr)
    return a.object->length == b.object->length &&
           std::memcmp(as_str(a)->text, as_str(b)->text, a.object->length) == 0;
  return a.i == b.i;
}

bool truth(Run& run, Value v) {
  switch (v.kind) {
    case kNone: return false;
    case kFloat: return v.f != 0;
    case kBool: case kInt: return v.i != 0;
    case kStr: case kTuple: case kList: case kDict: return v.object->length != 0;
    case kRecord: return run.program->classes[v.type].kind == kObject || v.object->length != 0;
    default: return true;
  }
}

}  // namespace stretto
