// Internals of the runtime: fibers, their scheduling, and the tables of a flush.
#pragma once

#include <map>
#include <vector>

#include "run.h"

namespace stretto {

struct Flat;

struct Stack {
  char* low = nullptr;   // lowest reserved address
  char* open = nullptr;  // lowest address with memory
  char* top = nullptr;
};

// A body that runs on its own stack until it waits.
struct Fiber {
  void* place = nullptr;  // its stack pointer while suspended
  Stack stack;
  int64_t phase = 0;
  void (*body)(Run& run, void* frame) = nullptr;
  void* frame = nullptr;
  bool is_done = false;
};

// A block with the lengths of its operands that are rows.
struct BlockKind {
  uint32_t block;
  std::vector<uint32_t> lengths;
};

struct Outcome {
  Value value;
  Failure failure;
  bool has_failed;
};

struct Scheduler {
  const Value* arguments;  // [instances, parameters]
  int64_t instances = 0, begun = 0;
  std::vector<Outcome> outcomes;

  Fiber* current = nullptr;
  void* place = nullptr;  // stack pointer of the calling thread while a fiber runs
  std::vector<Fiber*> fibers, ready, waiting, unused;  // unused: their bodies have ended
  const void* const* pools = nullptr;  // the memory of each pool

  std::vector<BlockKind> kinds;
  std::vector<std::vector<uint32_t>> kind_of_length;  // cache for blocks with one operand that is rows
  std::map<std::pair<uint32_t, std::vector<uint32_t>>, uint32_t> kind_of;
  std::vector<int64_t> next_row;  // of each pool: number of rows in use
  uint32_t flushed = 0;           // tensors with smaller numbers are computed
  std::vector<int64_t> steps, indices;
  std::vector<double> numbers;
  int64_t largest = 0, longest = 0;  // of the steps: largest n, and largest length of rows
  int64_t times[4] = {0, 0, 0, 0};  // ns: flatten, record, schedule, results

  ~Scheduler();
};

// Number of leading columns of a step, and of all its columns (tables.py).
constexpr int32_t FIRST_COLUMNS = 5;
inline int64_t width_of(const ProgramInfo& program) { return FIRST_COLUMNS + program.max_outputs + program.max_rows; }

int64_t now();
void go_on(Run& run);  // runs all fibers until each has ended or waits
void flush(Run& run);

}  // namespace stretto
