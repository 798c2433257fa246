// Objects of a run: lists, dicts, rows and strs in an arena.
#include "values.h"

#include <cmath>
#include <cstdlib>
#include <new>

namespace stretto {

namespace {

constexpr size_t kChunk = size_t{1} << 20;
constexpr uint32_t kScanned = 8;  // a dict with up to this many entries is searched linearly

bool same_key(Value a, Value b) {
  if (is_number(a) && is_number(b)) {
    if (is_integer(a) && is_integer(b)) return a.i == b.i;
    if (a.kind == kFloat && b.kind == kFloat) return a.f == b.f;
    const double f = a.kind == kFloat ? a.f : b.f;
    const int64_t i = a.kind == kFloat ? b.i : a.i;
    return f >= -0x1p63 && f < 0x1p63 && f == std::trunc(f) && static_cast<int64_t>(f) == i;
  }
  if (a.kind != b.kind) return false;
  if (a.kind == kStr)
    return a.object->length == b.object->length &&
           std::memcmp(as_str(a)->text, as_str(b)->text, a.object->length) == 0;
  return a.i == b.i;  // None, and objects compared by identity
}

uint64_t mixed(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

// Equal numbers have equal hashes, whatever their types.
uint64_t hash_of(Value key) {
  if (key.kind == kFloat) {
    if (key.f >= -0x1p63 && key.f < 0x1p63 && key.f == std::trunc(key.f))
      return mixed(static_cast<uint64_t>(static_cast<int64_t>(key.f)));
    uint64_t bits;
    std::memcpy(&bits, &key.f, 8);
    return mixed(bits);
  }
  if (key.kind != kStr) return mixed(static_cast<uint64_t>(key.i));
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint32_t i = 0; i < key.object->length; ++i)
    hash = (hash ^ static_cast<unsigned char>(as_str(key)->text[i])) * 0x100000001b3u;
  return mixed(hash);
}

void index_entry(Dict* dict, uint32_t number) {
  uint32_t place = static_cast<uint32_t>(hash_of(dict->entries[number].key)) & (dict->place_count - 1);
  while (dict->places[place] >= 0) place = (place + 1) & (dict->place_count - 1);
  dict->places[place] = static_cast<int32_t>(number);
}

// Makes room for another entry, and drops removed entries.
void grow(Arena& arena, Dict* dict) {
  const uint32_t capacity = dict->length < 4 ? 8 : dict->length * 2;
  auto* entries = static_cast<Entry*>(arena.take(capacity * sizeof(Entry)));
  uint32_t used = 0;
  for (uint32_t i = 0; i < dict->used; ++i)
    if (dict->entries[i].is_live) entries[used++] = dict->entries[i];
  dict->entries = entries;
  dict->used = used;
  dict->capacity = capacity;
  dict->place_count = 0;
  if (capacity <= kScanned) return;
  dict->place_count = 16;
  while (dict->place_count < 2 * capacity) dict->place_count *= 2;
  dict->places = static_cast<int32_t*>(arena.take(dict->place_count * sizeof(int32_t)));
  std::memset(dict->places, 0xff, dict->place_count * sizeof(int32_t));
  for (uint32_t i = 0; i < used; ++i) index_entry(dict, i);
}

template <class T> T* placed(Arena& arena, size_t bytes, uint32_t kind, size_t length) {
  if (length > 0x7fffffff) throw std::bad_alloc();
  auto* made = static_cast<T*>(arena.take(bytes));
  made->kind = kind;
  made->type = 0;
  made->source = -1;
  made->length = static_cast<uint32_t>(length);
  return made;
}

}  // namespace

Arena::~Arena() {
  while (chunks) {
    char* before = *reinterpret_cast<char**>(chunks);
    std::free(chunks);
    chunks = before;
  }
}

void* Arena::more(size_t bytes) {
  const size_t size = bytes + 16 > kChunk ? bytes + 16 : kChunk;
  auto* chunk = static_cast<char*>(std::malloc(size));
  if (!chunk) throw std::bad_alloc();
  *reinterpret_cast<char**>(chunk) = chunks;
  chunks = chunk;
  if (size > kChunk) return chunk + 16;  // the rest of the last chunk stays in use
  next = chunk + 16 + bytes;
  end = chunk + size;
  return chunk + 16;
}

List* new_list(Arena& arena, size_t count) {
  auto* made = placed<List>(arena, sizeof(List), kList, count);
  made->capacity = made->length;
  made->items = static_cast<Value*>(arena.take(count * sizeof(Value)));
  return made;
}

Rows* new_rows(Arena& arena, size_t count) {
  return placed<Rows>(arena, sizeof(Object) + count * sizeof(uint32_t), kRows, count);
}

Str* new_str(Arena& arena, const char* text, size_t bytes) {
  auto* made = placed<Str>(arena, sizeof(Object) + bytes, kStr, bytes);
  std::memcpy(made->text, text, bytes);
  return made;
}

Dict* new_dict(Arena& arena) {
  auto* made = placed<Dict>(arena, sizeof(Dict), kDict, 0);
  made->used = made->capacity = made->place_count = 0;
  made->entries = nullptr;
  made->places = nullptr;
  return made;
}

Value* dict_find(const Dict* dict, Value key) {
  if (!dict->place_count) {
    for (uint32_t i = 0; i < dict->used; ++i)
      if (dict->entries[i].is_live && same_key(dict->entries[i].key, key))
        return &dict->entries[i].value;
    return nullptr;
  }
  uint32_t place = static_cast<uint32_t>(hash_of(key)) & (dict->place_count - 1);
  for (; dict->places[place] >= 0; place = (place + 1) & (dict->place_count - 1)) {
    Entry& entry = dict->entries[dict->places[place]];
    if (entry.is_live && same_key(entry.key, key)) return &entry.value;
  }
  return nullptr;
}

void dict_store(Arena& arena, Dict* dict, Value key, Value value) {
  if (Value* found = dict_find(dict, key)) {
    *found = value;
    return;
  }
  if (dict->used == dict->capacity) grow(arena, dict);
  dict->entries[dict->used] = Entry{key, value, true};
  if (dict->place_count) index_entry(dict, dict->used);
  ++dict->used;
  ++dict->length;
}

}  // namespace stretto
