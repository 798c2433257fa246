// Checks that Python's containers still hold the same objects, for the guards of a call
// (`stretto.frontends.python.guards.guards`), without a step of Python's interpreter for each check.
// All functions are called with the GIL held. Nothing here runs Python code: the keys are strings, and
// only the stored content of dicts, lists and sets is read.

#include <cstdint>

namespace {

using Object = void*;

// The functions of Python, in the order of probes.py.
struct Python {
  Object (*dict_get)(Object dict, Object key);  // borrowed, or null
  int (*dict_next)(Object dict, intptr_t* place, Object* key, Object* value);
  intptr_t (*dict_size)(Object dict);
  Object (*list_get)(Object list, intptr_t place);  // borrowed, or null with an exception
  intptr_t (*list_size)(Object list);
  intptr_t (*set_size)(Object set);
  Object (*type)(Object object);
  void (*release)(Object object);
  void (*forget_exception)();
} python;

// The values of probes.Kind.
enum Kind : int64_t { kEntry, kDictSize, kListSize, kSetSize, kItem, kFirstPair, kPair, kType, kVersion, kWord };

struct Probe {
  int64_t kind;
  Object subject, key, expected;
  int64_t place;  // of an entry: its place in the dict, or one of these
};
constexpr int64_t kNotLookedFor = -1, kNowhere = -2;

int64_t number(Object object) { return reinterpret_cast<int64_t>(object); }

// A dict stores its entries in the order of insertion, so the entry of a key mostly stays
// in its place: to look there needs no hash.
bool lies_there(const Probe& probe) {
  if (probe.place < 0) return false;
  intptr_t place = probe.place;
  Object key = nullptr, value = nullptr;
  return python.dict_next(probe.subject, &place, &key, &value) && key == probe.key && value == probe.expected;
}

int64_t place_of(Object dict, Object wanted) {
  intptr_t place = 0, before = 0;
  for (Object key = nullptr, value = nullptr; python.dict_next(dict, &place, &key, &value); before = place)
    if (key == wanted) return before;
  return kNowhere;
}

bool entry_holds(Probe& probe) {
  if (lies_there(probe)) return true;
  if (python.dict_get(probe.subject, probe.key) != probe.expected) return false;
  if (probe.expected != nullptr && probe.place != kNowhere) probe.place = place_of(probe.subject, probe.key);
  return true;
}

bool holds(Probe& probe, intptr_t& place) {
  switch (probe.kind) {
    case kEntry: return entry_holds(probe);
    case kDictSize: return python.dict_size(probe.subject) == number(probe.expected);
    case kListSize: return python.list_size(probe.subject) == number(probe.expected);
    case kSetSize: return python.set_size(probe.subject) == number(probe.expected);
    case kItem: return python.list_get(probe.subject, number(probe.key)) == probe.expected;
    case kFirstPair: place = 0; [[fallthrough]];
    case kPair: {
      Object key = nullptr, value = nullptr;
      return python.dict_next(probe.subject, &place, &key, &value) && key == probe.key &&
             value == probe.expected;
    }
    case kVersion:  // of a class: `key` is the offset of the version in it
      return *reinterpret_cast<const uint32_t*>(static_cast<const char*>(probe.subject) + number(probe.key)) ==
             static_cast<uint32_t>(number(probe.expected));
    case kWord:
      return *reinterpret_cast<const int64_t*>(static_cast<const char*>(probe.subject) + number(probe.key)) ==
             number(probe.expected);
    default: {
      Object type = python.type(probe.subject);
      python.release(type);
      return type == probe.expected;
    }
  }
}

}  // namespace

extern "C" {

void stretto_probes_configure(const Python* functions) { python = *functions; }

int stretto_probes_hold(Probe* probes, int64_t count) {
  intptr_t place = 0;  // in the dict whose pairs are compared
  for (int64_t i = 0; i < count; ++i)
    if (!holds(probes[i], place)) {
      python.forget_exception();
      return 0;
    }
  return 1;
}
}
