// Instances as native values.
#pragma once

#include <memory>
#include <vector>

#include "memo.h"
#include "python.h"
#include "run.h"

namespace stretto {

// A tensor of an instance.
struct FlatTensor {
  Py python;
  int32_t pool;        // of the tensor or its rows; -1: its type is not in the program
  int32_t rows_pool;   // -1: it cannot be rows
  int64_t first_dim;
  int32_t number;      // of the tensor as one; -1: it is not used as one
  Rows* rows;          // as rows, or null
};
// The destination of a tensor: rows of a pool after the permanent ones.
struct Copy {
  uint32_t tensor;
  int32_t pool;
  int64_t row, rows;
  bool as_rows;
};
// A value that is a tensor. Its type is checked when all values have been read.
struct Met {
  Value* place;
  int32_t type;
  uint32_t tensor;
  int64_t instance;
};
struct Task {
  Py object;  // borrowed
  Value* place;
  int32_t type;
  bool is_kept;  // part of an object in Kept
  int64_t instance;
};

// Frozen objects and their native values, which are read once for all batches. A Flat that uses some of
// them shares ownership of the whole.
struct Kept {
  Arena arena;
  Memo memo{0};
  std::vector<Py> sources;  // owned
  size_t since_hit = 0;     // objects added since one was found again
  ~Kept() {
    for (Py object : sources) python.release(object);
  }
};
constexpr int32_t kKeptSources = 1 << 30;  // first number of the sources in Kept

struct Flat {
  const ProgramInfo* program;
  const PythonClass* classes;
  Arena arena;
  std::vector<Py> sources;  // owned
  std::vector<FlatTensor> tensors;
  std::vector<Copy> copies;
  std::vector<Met> met;
  std::vector<Value> arguments;  // [instances, parameters]
  std::vector<int64_t> next_row; // of each pool
  std::vector<TensorInfo> numbered;  // shared tensors, then those of instances
  std::vector<int32_t> tensor_of_number;  // for tensors of instances, index in `tensors`; -1: a row
  int64_t instances = 0, time = 0;
  std::shared_ptr<Kept> kept;
  ~Flat();
  // The Python object that an object was read from.
  Py source(const Object* object) const {
    const int32_t number = object->source;
    return number < kKeptSources ? sources[static_cast<size_t>(number)]
                                 : kept->sources[static_cast<size_t>(number - kKeptSources)];
  }
};

// Finds the pools of the tensors, and stores the tensors in their values. Returns -1, or the first
// instance with a tensor of a type that the program does not cover.
int64_t settle(Flat& flat);

}  // namespace stretto
