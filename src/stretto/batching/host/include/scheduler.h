// Inside of the runtime: fibers, what waits, and the tables of a flush.
#pragma once

#include <map>
#include <vector>

#include "run.h"

namespace stretto {

struct Flat;

struct Stack {
  char* low = nullptr;   // from here its addresses are reserved
  char* open = nullptr;  // from here it has memory
  char* top = nullptr;
};

// Something that runs on a stack of its own until it waits.
struct Fiber {
  void* place = nullptr;  // its stack pointer while it does not run
  Stack stack;
  int64_t phase = 0;
  void (*body)(Run& run, void* frame) = nullptr;
  void* frame = nullptr;
  bool is_done = false;
};

// Blocks whose operands have these lengths.
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
  void* place = nullptr;  // of the thread that called, while a fiber runs
  std::vector<Fiber*> fibers, ready, waiting, unused;  // all; that can go on; that wait; that are done
  const void* const* pools = nullptr;  // the memory of each pool

  std::vector<BlockKind> kinds;
  std::vector<std::vector<uint32_t>> kind_of_length;  // of blocks with one operand that is rows
  std::map<std::pair<uint32_t, std::vector<uint32_t>>, uint32_t> kind_of;
  std::vector<int64_t> next_row;  // of each pool: its rows in use
  uint32_t flushed = 0;           // tensors before this one are computed
  std::vector<int64_t> steps, indices;
  std::vector<double> numbers;
  int64_t largest = 0, longest = 0;  // of the steps: most instances; most rows of one
  int64_t times[4] = {0, 0, 0, 0};  // ns: flatten, record, schedule, results

  ~Scheduler();
};

// The columns that all steps have, and all columns of a step (tables.py).
constexpr int32_t FIRST_COLUMNS = 5;
inline int64_t width_of(const ProgramInfo& program) { return FIRST_COLUMNS + program.max_outputs + program.max_rows; }

int64_t now();
void go_on(Run& run);  // runs all fibers until each has ended or waits
void flush(Run& run);

}  // namespace stretto
