// Python objects, through functions of the CPython API whose addresses Python gives: no headers of
// Python are needed, and one build serves every interpreter. All is called with the GIL held.
#pragma once

#include <cstdint>

namespace stretto {

using Py = void*;

// In the order of python.py.
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
  int (*set_attribute)(Py object, Py name, Py value);  // as object.__setattr__
  Py (*call)(Py function, Py argument);
  Py (*type)(Py object);  // a new reference
  void (*retain)(Py object);
  void (*release)(Py object);
  void (*forget_exception)();
  void* (*capsule_pointer)(Py capsule, const char* name);
  // Objects.
  Py none, yes, no;
  Py bool_type, int_type, float_type, text_type, list_type, tuple_type, dict_type;
  Py tensor_type, parameter_type;
  // Functions of libtorch's stable C interface; each returns 0 unless it failed.
  int32_t (*tensor_data)(void* tensor, void** data);
  int32_t (*tensor_rank)(void* tensor, int64_t* rank);
  int32_t (*tensor_sizes)(void* tensor, int64_t** sizes);
  int32_t (*tensor_strides)(void* tensor, int64_t** strides);
  int32_t (*tensor_dtype)(void* tensor, int32_t* dtype);
  int32_t (*tensor_device)(void* tensor, int32_t* device);
  int32_t (*tensor_layout)(void* tensor, int32_t* layout);
  int32_t (*tensor_release)(void* tensor);
};

extern PythonApi python;

// What Python says about a class of the program.
struct PythonClass {
  Py type;
  Py create;         // cls.__new__, or cls._make of a named tuple
  const Py* fields;  // names
};

}  // namespace stretto
