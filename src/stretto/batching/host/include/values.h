// Values of an InstanceProgram while a batch runs: tagged words, and objects in memory that is
// allocated by bumping a pointer and freed when the run ends. No object has a destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stretto {

// The scalar kinds come first, in the order of SCALARS in descriptor.py.
enum Kind : uint32_t {
  kNone, kBool, kInt, kFloat, kStr, kTensor, kUnset, kRows, kTuple, kList, kRecord, kDict
};

// source: for an object of an instance, its number among the Python objects of the Flat, or
// kKeptSources plus its number among those of Kept. For an object that the run created: -1, or, once
// its Python object has been created for the results, -2 minus the number of that.
struct Object {
  uint32_t kind;
  uint32_t type;  // the class number of a record
  int32_t source;
  uint32_t length;  // items of a tuple or list, fields, bytes of a str, rows; entries of a dict
};

struct Value {
  uint32_t kind;
  uint32_t type;  // that of the object
  union {
    int64_t i;  // a bool, an int, or the number of a tensor
    double f;
    Object* object;
  };
};

// The number of a tensor of the run. A separate type, so that it is not mistaken for an int.
struct Tensor {
  uint32_t number;
};

struct Tuple : Object {  // also records, whose items are the fields
  Value items[1];
};
struct List : Object {
  uint32_t capacity;
  Value* items;
};
struct Str : Object {
  char text[1];  // UTF-8, without a terminating zero
};
struct Rows : Object {
  uint32_t numbers[1];
};
struct Entry {
  Value key, value;
  bool is_live;
};
struct Dict : Object {  // length: live entries
  uint32_t used, capacity;
  Entry* entries;   // in insertion order
  int32_t* places;  // open addressing: number of an entry, or -1
  uint32_t place_count;
};

inline Value none() { Value v; v.kind = kNone; v.type = 0; v.i = 0; return v; }
inline Value unset() { Value v{}; v.kind = kUnset; return v; }
inline Value box(bool x) { Value v; v.kind = kBool; v.type = 0; v.i = x; return v; }
inline Value box(int64_t x) { Value v; v.kind = kInt; v.type = 0; v.i = x; return v; }
inline Value box(double x) { Value v; v.kind = kFloat; v.type = 0; v.f = x; return v; }
inline Value box(Tensor x) { Value v; v.kind = kTensor; v.type = 0; v.i = x.number; return v; }
inline Value box(Value x) { return x; }
inline Value box(const Object* x) {
  Value v; v.kind = x->kind; v.type = x->type; v.object = const_cast<Object*>(x); return v;
}

inline bool is_integer(Value v) { return v.kind == kInt || v.kind == kBool; }
inline bool is_number(Value v) { return is_integer(v) || v.kind == kFloat; }
inline double as_float(Value v) { return v.kind == kFloat ? v.f : static_cast<double>(v.i); }
inline Tensor as_tensor(Value v) { return Tensor{static_cast<uint32_t>(v.i)}; }

inline Tuple* as_tuple(Value v) { return static_cast<Tuple*>(v.object); }
inline List* as_list(Value v) { return static_cast<List*>(v.object); }
inline Str* as_str(Value v) { return static_cast<Str*>(v.object); }
inline Rows* as_rows(Value v) { return static_cast<Rows*>(v.object); }
inline Dict* as_dict(Value v) { return static_cast<Dict*>(v.object); }

inline bool is_sequence(Value v) { return v.kind == kList || v.kind == kTuple || v.kind == kRecord; }
inline Value* items_of(Value v) { return v.kind == kList ? as_list(v)->items : as_tuple(v)->items; }

// Memory in chunks. Allocations are aligned to 16 bytes and not cleared.
struct Arena {
  char* next = nullptr;
  char* end = nullptr;
  char* chunks = nullptr;  // each begins with the address of the previous one

  Arena() = default;
  Arena(const Arena&) = delete;
  ~Arena();
  void* more(size_t bytes);
  inline void* take(size_t bytes) {
    bytes = (bytes + 15) & ~size_t{15};
    if (static_cast<size_t>(end - next) < bytes) return more(bytes);
    char* at = next;
    next += bytes;
    return at;
  }
};

inline Tuple* new_tuple(Arena& arena, uint32_t kind, uint32_t type, size_t count) {
  auto* made = static_cast<Tuple*>(arena.take(sizeof(Object) + count * sizeof(Value)));
  made->kind = kind;
  made->type = type;
  made->source = -1;
  made->length = static_cast<uint32_t>(count);
  return made;
}

List* new_list(Arena& arena, size_t count);
Rows* new_rows(Arena& arena, size_t count);
Str* new_str(Arena& arena, const char* text, size_t bytes);
Dict* new_dict(Arena& arena);
Value* dict_find(const Dict* dict, Value key);  // the value, or null
void dict_store(Arena& arena, Dict* dict, Value key, Value value);

}  // namespace stretto
