// Python objects, accessed by functions of the CPython API at addresses passed from Python: no Python
// headers are needed, and one build serves every interpreter. All functions need the GIL.
#pragma once

#include <cstdint>
#include <cstring>

namespace stretto {

using Py = void*;

// In the order of native.py.
struct PythonApi {
  Py (*get_attribute)(Py object, Py name);
  Py (*dict_get)(Py dict, Py key);  // borrowed, or null
  int (*dict_next)(Py dict, intptr_t* place, Py* key, Py* value);
  intptr_t (*dict_size)(Py dict);
  Py (*dict_new)();
  int (*dict_set)(Py dict, Py key, Py value);
  intptr_t (*list_size)(Py list);
  Py (*list_get)(Py list, intptr_t place);  // borrowed
  Py (*list_new)(intptr_t size);
  int (*list_set)(Py list, intptr_t place, Py item);  // takes the reference
  intptr_t (*tuple_size)(Py tuple);
  Py (*tuple_get)(Py tuple, intptr_t place);  // borrowed
  Py (*tuple_new)(intptr_t size);
  int (*tuple_set)(Py tuple, intptr_t place, Py item);  // takes the reference
  long long (*int_value)(Py object, int* overflow);
  Py (*int_new)(long long value);
  double (*float_value)(Py object);
  Py (*float_new)(double value);
  const char* (*text_of)(Py text, intptr_t* bytes);
  Py (*text_new)(const char* text, intptr_t bytes);
  int (*set_attribute)(Py object, Py name, Py value);  // like object.__setattr__
  Py (*call)(Py function, Py argument);
  Py (*type)(Py object);  // a new reference
  void (*retain)(Py object);
  void (*release)(Py object);
  void (*forget_exception)();
  void* (*pointer_value)(Py object);
  int (*is_printable)(uint32_t character);  // like str.isprintable; only reads a table
  // Objects.
  Py none, yes, no;
  Py bool_type, int_type, float_type, text_type, list_type, tuple_type, dict_type;
  Py tensor_type, parameter_type;
  Py implementation_name, dict_name;
  // Functions of libtorch's stable C interface; each returns 0 unless it failed. A tensor is the
  // address of the pointer to its implementation.
  int32_t (*tensor_data)(void* tensor, void** data);
  int32_t (*tensor_rank)(void* tensor, int64_t* rank);
  int32_t (*tensor_sizes)(void* tensor, int64_t** sizes);
  int32_t (*tensor_strides)(void* tensor, int64_t** strides);
  int32_t (*tensor_dtype)(void* tensor, int32_t* dtype);
  int32_t (*tensor_device)(void* tensor, int32_t* device);
  int32_t (*tensor_layout)(void* tensor, int32_t* layout);
  int32_t (*tensor_new)(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device,
                        int32_t device_index, void** tensor);
  int32_t (*tensor_of_memory)(void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int64_t offset,
                              int32_t dtype, int32_t device, int32_t device_index, void** tensor);
  int32_t (*tensor_release)(void* tensor);
  // Returns the Python object of a tensor, whose handle may be undefined afterwards; null if torch does not
  // export it.
  Py (*tensor_object)(void* tensor);
  // Offsets in bytes of parts of objects (places.py); 0: not known, so the CPython API is called.
  intptr_t class_at, version_at;  // the latter of a class
  intptr_t implementation_at, borrows_at;  // of a tensor; borrows_at: a byte that must be 0
};

extern PythonApi python;

// The place of a field in an object, found with a trial object (places.py).
enum FieldPlace : int32_t { kAsk, kInObject, kInValues };
struct FieldAt {
  int32_t place, offset;
};

// A class of the program.
struct PythonClass {
  Py type;
  Py create;         // cls.__new__, or cls._make of a named tuple
  const Py* fields;  // names
  const FieldAt* places;
  // The address of an object's values is the word at offset `values_at` less `values_tag`; or, if
  // `valid_at` is not 0, the values are at offset `values_at` while the byte at `valid_at` is 1.
  intptr_t values_at, values_tag, valid_at;
  // An object whose `__dict__` has been read has the dict at `dict_at` (0: not known). Its values are in
  // the dict while that has these keys, which all objects with values share (0: not known).
  intptr_t dict_at;
  void* keys;
  // The places are valid while the class has this version; 0: never.
  uint32_t version;
  // Names that the program looked up in the class; an object that stores one hides the class's entry.
  const Py* absent;
  intptr_t absent_count;
};

constexpr intptr_t kDictKeys = 32, kDictValues = 40;  // offsets in a dict
// Offsets in shared keys: the log2 of the bytes of the hash table, and the number of keys. The keys follow
// the table, each with a place for a value.
constexpr intptr_t kKeysTable = 9, kKeysCount = 24, kKeysHead = 32, kKeysItem = 16;

template <class T> inline T stored_at(Py object, intptr_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof value);
  return value;
}

inline Py class_of(Py object) {  // borrowed
  if (python.class_at) return stored_at<Py>(object, python.class_at);
  Py cls = python.type(object);
  python.release(cls);
  return cls;
}

// The implementation of a tensor, which lives as long as the object; null if it has none.
inline void* implementation_of(Py object) {
  if (python.implementation_at && !(python.borrows_at && stored_at<char>(object, python.borrows_at)))
    return stored_at<void*>(object, python.implementation_at);
  Py number = python.get_attribute(object, python.implementation_name);
  void* found = number ? python.pointer_value(number) : nullptr;
  if (number) python.release(number);
  else python.forget_exception();
  return found;
}

}  // namespace stretto
