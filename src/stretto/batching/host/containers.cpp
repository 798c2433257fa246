// Lists, tuples, rows, dicts and strs of a program, with Python's semantics.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "primitives.h"
#include "python.h"

namespace stretto {

namespace {

Dict* dict_of(Run& run, int32_t site, Value v, Value key) {
  if (v.kind != kDict) fail(run, site, kPython, v, key);
  return as_dict(v);
}

Value* items_or_fail(Run& run, int32_t site, Value v) {
  if (!is_sequence(v)) fail(run, site, kPython, v);
  return items_of(v);
}

}  // namespace

// -- equality ----------------------------------------------------------------------------------------

// Python's ==, by value. Tensors and rows equal only themselves, since == of tensors is an operator.
bool equal(Run& run, int32_t site, Value a, Value b) {
  check_stack(run);
  if (is_number(a) && is_number(b)) return order(run, site, a, b) == 0;
  if (a.kind == kStr || b.kind == kStr) return is_same(a, b);
  if (a.kind < kStr || b.kind < kStr) return is_same(a, b);
  if (a.i == b.i && a.kind == b.kind) return true;
  const auto& classes = run.program->classes;
  const bool is_tuple = (a.kind == kTuple || (a.kind == kRecord && classes[a.type].kind == kNamedTuple)) &&
                        (b.kind == kTuple || (b.kind == kRecord && classes[b.type].kind == kNamedTuple));
  if (a.kind == kDict && b.kind == kDict) {
    if (a.object->length != b.object->length) return false;
    for (uint32_t i = 0; i < as_dict(a)->used; ++i) {
      const Entry& entry = as_dict(a)->entries[i];
      if (!entry.is_live) continue;
      const Value* other = dict_find(as_dict(b), entry.key);
      if (!other || !(is_same(entry.value, *other) || equal(run, site, entry.value, *other))) return false;
    }
    return true;
  }
  if (a.kind == kTensor || b.kind == kTensor || a.kind == kRows || b.kind == kRows)
    fail(run, site, kPython, a, b);
  if (!is_tuple) {
    if (a.kind != b.kind || a.type != b.type) return false;
    if (a.kind == kRecord && !classes[a.type].by_value) return false;
  }
  if (a.object->length != b.object->length) return false;
  for (uint32_t i = 0; i < a.object->length; ++i) {
    const Value x = items_of(a)[i], y = items_of(b)[i];
    if (!(is_same(x, y) || equal(run, site, x, y))) return false;
  }
  return true;
}

// -- lists -------------------------------------------------------------------------------------------

Value make_list(Run& run, uint32_t kind, const Value* items, size_t count) {
  if (kind == kTuple) return make_tuple(run, items, count);
  List* made = new_list(run, count);
  std::copy(items, items + count, made->items);
  return box(made);
}

static Value filled(Run& run, uint32_t kind, uint32_t type, const Value* items, size_t count) {
  Tuple* made = new_tuple(run, kind, type, count);
  std::copy(items, items + count, made->items);
  return box(made);
}

Value make_tuple(Run& run, const Value* items, size_t count) {
  return filled(run, kTuple, 0, items, count);
}

Value make_record(Run& run, uint32_t type, const Value* items, size_t count) {
  return filled(run, kRecord, type, items, count);
}

int64_t length(Run& run, int32_t site, Value v) {
  if (v.kind == kStr) {
    int64_t count = 0;
    for (uint32_t i = 0; i < v.object->length; ++i) count += (as_str(v)->text[i] & 0xc0) != 0x80;
    return count;
  }
  if (v.kind < kRows || (v.kind == kRecord && run.program->classes[v.type].kind == kObject))
    fail(run, site, kPython, v);
  return v.object->length;
}

void grow_list(Run& run, List* list, size_t more) {
  size_t capacity = list->capacity < 4 ? 8 : size_t{2} * list->capacity;
  while (capacity < list->length + more) capacity *= 2;
  if (capacity > 0x7fffffff) throw std::bad_alloc();
  auto* items = static_cast<Value*>(run.take(capacity * sizeof(Value)));
  std::copy(list->items, list->items + list->length, items);
  list->items = items;
  list->capacity = static_cast<uint32_t>(capacity);
}

void put(Run& run, int32_t site, Value v, int64_t place, Value value) {
  if (v.kind != kList) fail(run, site, kPython, v, place, value);
  writable(run, site, v);
  const int64_t count = v.object->length, found = place < 0 ? place + count : place;
  if (found < 0 || found >= count) fail(run, site, kPython, v, place, value);
  as_list(v)->items[found] = value;
}

Value pop(Run& run, int32_t site, Value v, int64_t place) {
  List* list = writable_list(run, site, v, box(place));
  const int64_t count = list->length, found = place < 0 ? place + count : place;
  if (found < 0 || found >= count) fail(run, site, kPython, v, place);
  const Value item = list->items[found];
  std::copy(list->items + found + 1, list->items + count, list->items + found);
  --list->length;
  return item;
}

Value pop(Run& run, int32_t site, Value v) {
  if (v.kind != kList || !v.object->length) fail(run, site, kPython, v);
  writable(run, site, v);
  List* list = as_list(v);
  return list->items[--list->length];
}

void insert(Run& run, int32_t site, Value v, int64_t place, Value item) {
  if (v.kind != kList) fail(run, site, kPython, v, place, item);
  writable(run, site, v);
  List* list = as_list(v);
  const int64_t count = list->length;
  if (place < 0) place = place + count < 0 ? 0 : place + count;
  if (place > count) place = count;
  if (list->length == list->capacity) grow_list(run, list, 1);
  std::copy_backward(list->items + place, list->items + count, list->items + count + 1);
  list->items[place] = item;
  ++list->length;
}

void extend(Run& run, int32_t site, Value v, Value other) {
  List* list = writable_list(run, site, v, other);
  if (!is_sequence(other)) fail(run, site, kPython, v, other);
  const uint32_t count = other.object->length;
  if (list->capacity - list->length < count) grow_list(run, list, count);
  const Value* items = items_of(other);  // read after the growth: the two may be one list
  std::copy(items, items + count, list->items + list->length);
  list->length += count;
}

Value slice(Run& run, int32_t site, Value v, Value first, Value last, Value by) {
  const bool is_rows = v.kind == kRows;
  if ((!is_rows && !is_sequence(v)) || (by.kind != kNone && (!is_integer(by) || by.i == 0)))
    fail(run, site, kPython, v, first, last, by);
  for (Value bound : {first, last})
    if (bound.kind != kNone && !is_integer(bound)) fail(run, site, kPython, v, first, last, by);
  const int64_t count = v.object->length, step = by.kind == kNone ? 1 : by.i;
  if (is_rows && step < 0) fail(run, site, kPython, v, first, last, by);
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? count - 1 : count;
  const auto clamped = [&](Value bound, int64_t otherwise) {
    if (bound.kind == kNone) return otherwise;
    const int64_t place = bound.i < 0 ? (bound.i < -count ? -1 - count : bound.i) + count : bound.i;
    return place < low ? low : place > high ? high : place;
  };
  const int64_t start = clamped(first, step < 0 ? high : low), stop = clamped(last, step < 0 ? low : high);
  uint64_t taken = 0;
  if (step > 0 && start < stop) taken = static_cast<uint64_t>(stop - start - 1) / static_cast<uint64_t>(step) + 1;
  if (step < 0 && start > stop)
    taken = static_cast<uint64_t>(start - stop - 1) / (0 - static_cast<uint64_t>(step)) + 1;
  if (is_rows) {
    Rows* made = new_rows(run, taken);
    for (uint64_t i = 0; i < taken; ++i) made->numbers[i] = as_rows(v)->numbers[start + static_cast<int64_t>(i) * step];
    made->type = v.object->type;
    return box(made);
  }
  Value made = v.kind == kList ? box(new_list(run, taken)) : box(new_tuple(run, kTuple, 0, taken));
  for (uint64_t i = 0; i < taken; ++i) items_of(made)[i] = items_of(v)[start + static_cast<int64_t>(i) * step];
  return made;
}

static Value empty_like(Run& run, Value v, size_t count) {
  return v.kind == kList ? box(new_list(run, count)) : box(new_tuple(run, kTuple, 0, count));
}

Value concat(Run& run, int32_t site, Value a, Value b) {
  if (!is_sequence(a) || !is_sequence(b) || (a.kind == kList) != (b.kind == kList))
    fail(run, site, kPython, a, b);
  const size_t count = a.object->length;
  const Value made = empty_like(run, a, count + b.object->length);
  std::copy(items_of(a), items_of(a) + count, items_of(made));
  std::copy(items_of(b), items_of(b) + b.object->length, items_of(made) + count);
  return made;
}

Value repeat(Run& run, int32_t site, Value v, int64_t times) {
  const Value* items = items_or_fail(run, site, v);
  const size_t count = v.object->length;
  if (times < 0 || !count) times = 0;
  if (times > 0x7fffffff / static_cast<int64_t>(count ? count : 1)) fail(run, site, kMemory);
  const Value made = empty_like(run, v, count * static_cast<size_t>(times));
  for (int64_t i = 0; i < times; ++i)
    std::copy(items, items + count, items_of(made) + count * static_cast<size_t>(i));
  return made;
}

void reverse(Run& run, int32_t site, Value v) {
  if (v.kind != kList) fail(run, site, kPython, v);
  writable(run, site, v);
  std::reverse(as_list(v)->items, as_list(v)->items + v.object->length);
}

Value to_list(Run& run, int32_t site, Value v, uint32_t kind) {
  if (v.kind == kDict) v = keys(run, site, v);
  if (v.kind == kRows) {
    Value made = kind == kList ? box(new_list(run, v.object->length))
                               : box(new_tuple(run, kTuple, 0, v.object->length));
    for (uint32_t i = 0; i < v.object->length; ++i) items_of(made)[i] = box(Tensor{as_rows(v)->numbers[i]});
    return made;
  }
  const Value* items = items_or_fail(run, site, v);
  if (kind == kTuple && v.kind == kTuple) return v;  // tuple(x) of a tuple is x
  return make_list(run, kind, items, v.object->length);
}

bool contains(Run& run, int32_t site, Value v, Value item) {
  if (v.kind == kDict) return dict_find(as_dict(v), item) != nullptr;
  if (v.kind == kStr) {
    if (item.kind != kStr) fail(run, site, kPython, v, item);
    const char *text = as_str(v)->text, *part = as_str(item)->text;
    return std::search(text, text + v.object->length, part, part + item.object->length) !=
               text + v.object->length ||
           !item.object->length;
  }
  if (!is_sequence(v)) fail(run, site, kPython, v, item);
  for (uint32_t i = 0; i < v.object->length; ++i)
    if (is_same(items_of(v)[i], item) || equal(run, site, items_of(v)[i], item)) return true;
  return false;
}

int64_t index_of(Run& run, int32_t site, Value v, Value item) {
  if (!is_sequence(v)) fail(run, site, kPython, v, item);
  for (uint32_t i = 0; i < v.object->length; ++i)
    if (is_same(items_of(v)[i], item) || equal(run, site, items_of(v)[i], item)) return i;
  fail(run, site, kPython, v, item);
}

void clear(Run& run, int32_t site, Value v) {
  if (v.kind != kList && v.kind != kDict) fail(run, site, kPython, v);
  writable(run, site, v);
  v.object->length = 0;
  if (v.kind == kDict) as_dict(v)->used = as_dict(v)->capacity = as_dict(v)->place_count = 0;
}

Value rows(Run& run, int32_t site, Value v) {
  const Value* items = items_or_fail(run, site, v);
  const uint32_t count = v.object->length;
  if (!count) fail(run, site, kPython, v);
  Rows* made = new_rows(run, count);
  for (uint32_t i = 0; i < count; ++i) {
    if (items[i].kind != kTensor) fail(run, site, kPython, v);
    made->numbers[i] = as_tensor(items[i]).number;
    if (run.tensors[made->numbers[i]].pool != run.tensors[made->numbers[0]].pool)
      fail(run, site, kPython, v);
  }
  made->type = static_cast<uint32_t>(run.tensors[made->numbers[0]].pool);
  return box(made);
}

Value sorted_ints(Run& run, int32_t site, Value v) {
  const Value* items = items_or_fail(run, site, v);
  for (uint32_t i = 0; i < v.object->length; ++i)
    if (!is_integer(items[i])) fail(run, site, kPython, v);
  const Value made = make_list(run, kList, items, v.object->length);
  std::stable_sort(as_list(made)->items, as_list(made)->items + v.object->length,
                   [](Value a, Value b) { return a.i < b.i; });
  return made;
}

// -- dicts and strs ----------------------------------------------------------------------------------

Value make_dict(Run& run, const Value* pairs, size_t count) {
  Dict* made = new_dict(run);
  for (size_t i = 0; i < count; i += 2) dict_store(run, made, pairs[i], pairs[i + 1]);
  return box(made);
}

Value lookup(Run& run, int32_t site, Value v, Value key) {
  const Value* found = dict_find(dict_of(run, site, v, key), key);
  if (!found) fail(run, site, kPython, v, key);
  return *found;
}

Value lookup_or(Run& run, int32_t site, Value v, Value key, Value otherwise) {
  const Value* found = dict_find(dict_of(run, site, v, key), key);
  return found ? *found : otherwise;
}

void store(Run& run, int32_t site, Value v, Value key, Value value) {
  Dict* dict = dict_of(run, site, v, key);
  writable(run, site, v);
  dict_store(run, dict, key, value);
}

Value remove(Run& run, int32_t site, Value v, Value key) {
  Dict* dict = dict_of(run, site, v, key);
  Value* found = dict_find(dict, key);
  if (!found) fail(run, site, kPython, v, key);
  writable(run, site, v);
  const Value value = *found;
  reinterpret_cast<Entry*>(reinterpret_cast<char*>(found) - offsetof(Entry, value))->is_live = false;
  --dict->length;
  return value;
}

static Value listed(Run& run, Dict* dict, bool wants_keys) {
  List* made = new_list(run, dict->length);
  uint32_t count = 0;
  for (uint32_t i = 0; i < dict->used; ++i)
    if (dict->entries[i].is_live)
      made->items[count++] = wants_keys ? dict->entries[i].key : dict->entries[i].value;
  return box(made);
}

Value keys(Run& run, int32_t site, Value v) { return listed(run, dict_of(run, site, v, none()), true); }
Value values(Run& run, int32_t site, Value v) { return listed(run, dict_of(run, site, v, none()), false); }

Value join_str(Run& run, int32_t site, Value a, Value b) {
  if (a.kind != kStr || b.kind != kStr) fail(run, site, kPython, a, b);
  const size_t count = a.object->length;
  auto* joined = static_cast<char*>(run.take(count + b.object->length));
  std::memcpy(joined, as_str(a)->text, count);
  std::memcpy(joined + count, as_str(b)->text, b.object->length);
  return box(new_str(run, joined, count + b.object->length));
}

Value join_all(Run& run, int32_t site, Value v) {
  const Value* items = items_or_fail(run, site, v);
  size_t bytes = 0;
  for (uint32_t i = 0; i < v.object->length; ++i) {
    if (items[i].kind != kStr) fail(run, site, kPython, v);
    bytes += items[i].object->length;
  }
  auto* joined = static_cast<char*>(run.take(bytes));
  char* next = joined;
  for (uint32_t i = 0; i < v.object->length; ++i) {
    std::memcpy(next, as_str(items[i])->text, items[i].object->length);
    next += items[i].object->length;
  }
  return box(new_str(run, joined, bytes));
}

// Returns the number of bytes in UTF-8 of the character that begins with this byte.
static size_t character_bytes(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

Value characters(Run& run, int32_t site, Value v) {
  if (v.kind != kStr) fail(run, site, kPython, v);
  const char* text = as_str(v)->text;
  const char* end = text + v.object->length;
  List* made = new_list(run, v.object->length);
  made->length = 0;
  while (text < end) {
    const size_t bytes = character_bytes(static_cast<unsigned char>(*text));
    made->items[made->length++] = box(new_str(run, text, bytes));
    text += bytes;
  }
  return box(made);
}

// Decodes a character of two or more bytes.
static uint32_t decoded(const unsigned char* text, size_t bytes) {
  uint32_t found = text[0] & (0xff >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) found = found << 6 | (text[i] & 0x3f);
  return found;
}

int64_t code_point(Run& run, int32_t site, Value v) {
  if (v.kind != kStr || !v.object->length) fail(run, site, kPython, v);
  const auto* text = reinterpret_cast<const unsigned char*>(as_str(v)->text);
  const size_t bytes = character_bytes(text[0]);
  if (bytes != v.object->length) fail(run, site, kPython, v);
  if (bytes == 1) return text[0];
  return decoded(text, bytes);
}

Value text(Run& run, int32_t site, Value v) {
  char digits[24];
  switch (v.kind) {
    case kStr: return v;
    case kNone: return box(new_str(run, "None", 4));
    case kBool: return v.i ? box(new_str(run, "True", 4)) : box(new_str(run, "False", 5));
    case kInt: {
      const auto found = std::to_chars(digits, digits + sizeof(digits), v.i);
      return box(new_str(run, digits, static_cast<size_t>(found.ptr - digits)));
    }
    default: fail(run, site, kPython, v);
  }
}

Value repr(Run& run, int32_t site, Value v) {
  if (v.kind != kStr) return text(run, site, v);
  const char* given = as_str(v)->text;
  const size_t count = v.object->length;
  const bool has_single = std::memchr(given, '\'', count) != nullptr;
  const char quote = has_single && !std::memchr(given, '"', count) ? '"' : '\'';
  auto* shown = static_cast<char*>(run.take(4 * count + 2));
  char* next = shown;
  *next++ = quote;
  for (size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(given[i]);
    if (byte >= 0x80) {
      const size_t bytes = character_bytes(byte);
      const uint32_t character = decoded(reinterpret_cast<const unsigned char*>(given + i), bytes);
      if (python.is_printable(character)) next = std::copy_n(given + i, bytes, next);
      else if (character < 0x100) next += std::snprintf(next, 5, "\\x%02x", character);
      else if (character < 0x10000) next += std::snprintf(next, 7, "\\u%04x", character);
      else next += std::snprintf(next, 11, "\\U%08x", character);
      i += bytes - 1;
      continue;
    }
    const char* named = byte ? std::strchr("n\nr\rt\t", byte) : nullptr;
    if (byte < 0x20 && named) {
      *next++ = '\\';
      *next++ = named[-1];
    } else if (byte < 0x20 || byte == 0x7f) {
      next += std::snprintf(next, 5, "\\x%02x", byte);
    } else {
      if (byte == quote || byte == '\\') *next++ = '\\';
      *next++ = static_cast<char>(byte);
    }
  }
  *next++ = quote;
  return box(new_str(run, shown, static_cast<size_t>(next - shown)));
}

// Python rounds the exact decimal value of a float, halfway cases to even, as printing it with that many
// digits does.
double round_to(Run&, int32_t, double x, int64_t digits) {
  if (!std::isfinite(x) || digits > 330) return x;
  char shown[700];
  std::snprintf(shown, sizeof(shown), "%.*f", static_cast<int>(digits), x);
  return std::strtod(shown, nullptr);
}

}  // namespace stretto
