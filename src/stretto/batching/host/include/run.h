// The run of a batch: declarations with which the printed functions of a program are compiled.
#pragma once

#include "values.h"

namespace stretto {

// -- The description of a printed program ----------------------------------------------------------

struct BlockInput {
  int32_t kind;  // 0: a tensor, 1: rows, 2: an int or bool, 3: a float
};
struct BlockOutput {
  int32_t pool;
  int32_t length_of;  // for rows: the number of an input of the same length; else -1
};
struct BlockInfo {
  int32_t input_count, output_count, rows_count, floats;
  const BlockInput* inputs;
  const BlockOutput* outputs;
};
// One of the types that a value may have. The meaning of a and b depends on the kind: a is the pool
// (tensor, rows) or the class (record); a is the length, and `items` has the types (tuple of known
// length); a is -1 and b the type of items (tuple of any length); b is the type of items (list); a is
// the mask of the scalar kind of keys and b the type of values (dict).
struct Alternative {
  uint32_t kind;
  int32_t a, b;
  const int32_t* items;
};
struct TypeInfo {
  uint32_t scalars;  // a bit for each Kind up to kStr
  int32_t count;
  const Alternative* alternatives;
};
enum ClassKind : int32_t { kObject, kNamedTuple, kFixedDict };
struct ClassInfo {
  int32_t kind, field_count, by_value, is_frozen;  // by_value: == compares fields; frozen: descriptor.py
  const int32_t* cells;  // types of the fields; negative: not read
  const bool* may_lack;  // for each field, true if an object may lack it
};
struct PoolInfo {
  int32_t dtype, itemsize, rank;  // dtype: c10::ScalarType
  const int64_t* shape;
};
struct Run;
struct ProgramInfo {
  int32_t parameter_count, type_count, class_count, pool_count, block_count, shared_count;
  int32_t max_outputs, max_rows, reads, frozen_tuples;
  const int32_t* parameters;  // types
  const TypeInfo* types;
  const ClassInfo* classes;
  const PoolInfo* pools;
  const BlockInfo* blocks;
  const int32_t* shared;     // the pool of each shared tensor
  const int32_t* permanent;  // number of shared tensors in each pool
  Value (*invoke)(Run& run, const Value* arguments);
};

// -- Errors of an instance -------------------------------------------------------------------------

// kPython: the exception is that of the site's primitive in Python for these arguments. The other codes
// name the exception.
enum Code : int32_t { kPython, kOverflow, kRecursion, kInput, kComplex, kMemory, kUnread };
struct Failure {
  int32_t site, code;
  Value arguments;  // a tuple
};

// -- The run ---------------------------------------------------------------------------------------

struct TensorInfo {
  int64_t level;  // phase << 32 | depth of its block; 0: computed, or needs no block
  int32_t pool, row;
};
struct Noted {  // a recorded block
  int64_t level;
  uint32_t kind, first;  // first: the number of its first result
  uint64_t words;        // position of its operands in Run::words
};
struct Scheduler;

struct Run : Arena {
  const ProgramInfo* program;
  int64_t phase = 0;  // number << 32, of the running fiber; so is stack_limit
  char* stack_limit = nullptr;
  TensorInfo* tensors = nullptr;
  uint32_t tensor_count = 0, tensor_capacity = 0;
  Noted* noted = nullptr;
  uint32_t noted_count = 0, noted_capacity = 0;
  int64_t* words = nullptr;
  uint64_t word_count = 0, word_capacity = 0;
  Scheduler* scheduler = nullptr;

  void grow_tensors(uint64_t count);
  void grow_noted(uint64_t words);

  inline void reserve(uint64_t operands, uint64_t results) {
    if (tensor_capacity - tensor_count < results) grow_tensors(results);
    if (noted_count == noted_capacity || word_capacity - word_count < operands) grow_noted(operands);
  }
  inline int64_t level_of(Tensor x) const { return tensors[x.number].level; }
  inline int64_t level_of(const Rows* x) const {
    int64_t level = 0;
    for (uint32_t i = 0; i < x->length; ++i)
      if (tensors[x->numbers[i]].level > level) level = tensors[x->numbers[i]].level;
    return level;
  }
  inline int64_t* note(uint32_t kind, int64_t level, uint64_t operands) {
    noted[noted_count++] = Noted{level, kind, tensor_count, word_count};
    int64_t* at = words + word_count;
    word_count += operands;
    return at;
  }
  inline Tensor result(int32_t pool, int64_t level) {
    tensors[tensor_count] = TensorInfo{level, pool, -1};
    return Tensor{tensor_count++};
  }
  Value rows_result(int32_t pool, int64_t level, uint32_t length);
};

inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t word(Tensor x) { return x.number; }
inline int64_t word(const Rows* x) { return reinterpret_cast<int64_t>(x); }
inline int64_t word(int64_t x) { return x; }
inline int64_t word(double x) { int64_t w; std::memcpy(&w, &x, 8); return w; }

// The kind of a record: a block whose operands are rows of these lengths.
uint32_t kind_of_lengths(Run& run, uint32_t block, const uint32_t* lengths);

[[noreturn]] void fail_with(Run& run, int32_t site, int32_t code, const Value* arguments, size_t count);
template <class... Values>
[[noreturn]] inline void fail(Run& run, int32_t site, int32_t code, Values... values) {
  Value all[sizeof...(Values) + 1] = {box(values)...};
  fail_with(run, site, code, all, sizeof...(Values));
}

// Ends an instance whose calls are nested too deeply, without touching other stacks. The limit moves
// down as the stack gets memory, until the end of the stack.
void stack_is_low(Run& run, char* address);
inline void check_stack(Run& run) {
  auto* address = static_cast<char*>(__builtin_frame_address(0));
  if (__builtin_expect(address < run.stack_limit, 0)) stack_is_low(run, address);
}

// The number in a tensor; the fiber waits until it is computed.
double read_float(Run& run, Tensor tensor);
int64_t read_int(Run& run, int32_t site, Tensor tensor);
bool read_bool(Run& run, Tensor tensor);

using Body = void (*)(void* frame);
void fork(Run& run, const Body* bodies, void* const* frames, size_t count);
template <class... Bodies>
inline void fork_all(Run& run, Bodies... several) {
  const Body entries[] = {[](void* frame) { (*static_cast<Bodies*>(frame))(); }...};
  void* frames[] = {&several...};
  fork(run, entries, frames, sizeof...(Bodies));
}

// A loop whose bodies run concurrently. `own` is memory of one iteration, of `size` bytes; head returns
// true if there is another iteration. The tails run in order when all bodies have ended. Of several
// failures, that of the first iteration is reported.
struct LoopParts {
  size_t size;
  bool (*head)(void* frame, void* own);
  void (*body)(void* frame, void* own);
  void (*tail)(void* frame, void* own);
};
void fork_iterations(Run& run, const LoopParts& parts, void* frame);
template <class Own, class Head, class Body_, class Tail>
inline void fork_loop(Run& run, Head head, Body_ body, Tail tail) {
  struct Frame {
    Head& head;
    Body_& body;
    Tail& tail;
  } frame{head, body, tail};
  const LoopParts parts{
      sizeof(Own),
      [](void* f, void* own) {
        return static_cast<Frame*>(f)->head(*static_cast<Own*>(own) = Own());
      },
      [](void* f, void* own) { static_cast<Frame*>(f)->body(*static_cast<Own*>(own)); },
      [](void* f, void* own) { static_cast<Frame*>(f)->tail(*static_cast<Own*>(own)); }};
  fork_iterations(run, parts, &frame);
}

}  // namespace stretto
