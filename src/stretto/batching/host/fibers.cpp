// Fibers: each instance runs on its own stack until it needs a value that is not computed.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <new>

#include "primitives.h"
#include "scheduler.h"

// stretto_switch(&place, other): stores the stack pointer in `place` and continues on another stack. Only
// callee-saved registers are saved.
#if defined(__x86_64__)
asm(R"(
.text
.hidden stretto_switch
.globl stretto_switch
.type stretto_switch, @function
stretto_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size stretto_switch, .-stretto_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.hidden stretto_switch
.globl stretto_switch
.type stretto_switch, %function
stretto_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size stretto_switch, .-stretto_switch
)");
#else
#error "stretto.batch has no context switch for this processor"
#endif
extern "C" void stretto_switch(void** place, void* other);

namespace stretto {

namespace {

constexpr size_t kReserve = size_t{128} << 10;  // part of a stack for functions that do not check it
constexpr size_t kOnlyStack = size_t{1} << 30, kFiberStack = size_t{32} << 20, kLeastStack = size_t{1} << 20;
constexpr size_t kKept = size_t{16} << 10;      // memory that an unused stack keeps
constexpr size_t kMostUnused = 2048;           // unused stacks of fibers that are kept
constexpr size_t kMostOnly = 4;                // unused stacks of kOnlyStack bytes that are kept
constexpr size_t kMostFibers = 8192;           // with more, concurrent calls run sequentially

// Unused stacks of all programs of the process; guarded by the GIL, like all of this file.
struct Stacks {
  std::vector<Stack> of_fibers, only;
  size_t reserved = 0;  // bytes of address space of all stacks
  std::vector<Stack>& of_size(size_t size) { return size > kFiberStack ? only : of_fibers; }
};
Stacks* unused_stacks = nullptr;

Run* starting = nullptr;

// Address space that stacks may take. If the process has a limit, most is left for other uses.
size_t most_addresses() {
  rlimit limit;
  if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  return static_cast<size_t>(limit.rlim_cur / 4);
}

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Lowest address of an unused stack that has memory.
char* first_open(const Stack& stack) {
  const size_t page = page_size();
  return stack.top - (kKept + kReserve + page - 1) / page * page;
}

// Reserves the address space of a whole stack, which gets memory as it grows (`stack_is_low`), so that a
// stack of large size takes little of the process's memory limit.
bool take_stack(Stack& stack, size_t wanted) {
  auto& unused = unused_stacks->of_size(wanted);
  if (!unused.empty()) {
    stack = unused.back();
    unused.pop_back();
    return true;
  }
  const size_t most = most_addresses();
  for (size_t size = wanted; size >= kLeastStack; size /= 2) {
    if (size > kLeastStack && (size > most || unused_stacks->reserved > most - size)) continue;
    void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) continue;
    stack.low = static_cast<char*>(memory);
    stack.top = stack.low + size;
    stack.open = first_open(stack);
    if (mprotect(stack.open, static_cast<size_t>(stack.top - stack.open), PROT_READ | PROT_WRITE) != 0) {
      munmap(memory, size);
      return false;
    }
    madvise(memory, size, MADV_NOHUGEPAGE);
    unused_stacks->reserved += size;
    return true;
  }
  return false;
}

void give_back(Stack stack) {
  const auto size = static_cast<size_t>(stack.top - stack.low);
  auto& unused = unused_stacks->of_size(size);
  if (unused.size() >= (size > kFiberStack ? kMostOnly : kMostUnused)) {
    unused_stacks->reserved -= size;
    munmap(stack.low, size);
    return;
  }
  char* first = first_open(stack);
  if (stack.open != first) {  // it has grown
    madvise(stack.open, static_cast<size_t>(stack.top - stack.open) - kKept, MADV_DONTNEED);
    mprotect(stack.open, static_cast<size_t>(first - stack.open), PROT_NONE);
    stack.open = first;
  }
  unused.push_back(stack);
}

void suspend(Run& run) {
  Scheduler& scheduler = *run.scheduler;
  Fiber* fiber = scheduler.current;
  fiber->phase = run.phase;
  stretto_switch(&fiber->place, scheduler.place);
}

void resume(Run& run, Fiber* fiber) {
  Scheduler& scheduler = *run.scheduler;
  scheduler.current = fiber;
  run.phase = fiber->phase;
  run.stack_limit = fiber->stack.open + kReserve;
  starting = &run;
  stretto_switch(&scheduler.place, fiber->place);
  scheduler.current = nullptr;
}

// The first function of a stack. It never returns: a finished fiber gets another body.
void enter() {
  Run& run = *starting;
  for (;;) {
    Fiber* fiber = run.scheduler->current;
    fiber->body(run, fiber->frame);
    fiber->is_done = true;
    suspend(run);
  }
}

// Returns a fiber for a body; null if there is no memory for a stack.
Fiber* new_fiber(Run& run, void (*body)(Run&, void*), void* frame, size_t size) {
  Scheduler& scheduler = *run.scheduler;
  Fiber* fiber;
  if (!scheduler.unused.empty()) {
    fiber = scheduler.unused.back();
    scheduler.unused.pop_back();
  } else {
    fiber = new Fiber();
    if (!take_stack(fiber->stack, size)) {
      delete fiber;
      return nullptr;
    }
    auto* top = reinterpret_cast<void**>(fiber->stack.top);
#if defined(__x86_64__)
    top -= 2;  // align the stack as a call of `enter` would
    top[0] = reinterpret_cast<void*>(&enter);
    top[1] = nullptr;
    top -= 6;
    for (int i = 0; i < 6; ++i) top[i] = nullptr;
#else
    top -= 20;
    for (int i = 0; i < 20; ++i) top[i] = nullptr;
    top[11] = reinterpret_cast<void*>(&enter);
#endif
    fiber->place = top;
    scheduler.fibers.push_back(fiber);
  }
  fiber->body = body;
  fiber->frame = frame;
  fiber->phase = run.phase;
  fiber->is_done = false;
  return fiber;
}

// Runs `call`; returns false and fills `failure` if it failed.
template <class F> bool guarded(Failure& failure, F call) {
  try {
    call();
    return true;
  } catch (const Failure& found) {
    failure = found;
  } catch (const std::bad_alloc&) {
    failure = Failure{-1, kMemory, none()};
  }
  return false;
}

void run_instance(Run& run, int64_t number) {
  Scheduler& scheduler = *run.scheduler;
  const Value* arguments = scheduler.arguments + number * run.program->parameter_count;
  run.phase = 0;
  Value value = none();
  Failure failure{};
  const bool is_right = guarded(failure, [&] { value = run.program->invoke(run, arguments); });
  scheduler.outcomes[static_cast<size_t>(number)] = Outcome{value, failure, !is_right};
}

void run_one(Run& run, void* frame) { run_instance(run, reinterpret_cast<intptr_t>(frame)); }

void run_all(Run& run, void*) {
  Scheduler& scheduler = *run.scheduler;
  while (scheduler.begun < scheduler.instances) run_instance(run, scheduler.begun++);
}

// A fiber that waits for its children.
struct Join {
  Fiber* waiter;
  size_t pending;
};

// A body to run concurrently. `next` follows it in program order.
struct Child {
  void (*body)(void* frame, void* own);
  void *frame, *own;
  Join* join;
  Child* next;
  Failure failure;
  bool is_right;
};

void run_child(Run& run, void* frame) {
  auto& child = *static_cast<Child*>(frame);
  child.is_right = guarded(child.failure, [&] { child.body(child.frame, child.own); });
  if (--child.join->pending == 0 && child.join->waiter)
    run.scheduler->ready.push_back(child.join->waiter);
}

// Runs a child until it ends or waits: as a fiber, or on this stack if it is the last one or there is no
// memory for another stack.
void begin(Run& run, Child& child, bool here) {
  Scheduler& scheduler = *run.scheduler;
  const bool forks = !here && run.program->reads &&
                     scheduler.fibers.size() - scheduler.unused.size() < kMostFibers;
  Fiber* fiber = forks ? new_fiber(run, run_child, &child, kFiberStack) : nullptr;
  if (!fiber) {
    child.is_right = guarded(child.failure, [&] { child.body(child.frame, child.own); });
    return;
  }
  ++child.join->pending;
  scheduler.ready.push_back(scheduler.current);
  scheduler.ready.push_back(fiber);
  suspend(run);
}

// Waits until all children have ended.
void finish(Run& run, Join& join) {
  if (!join.pending) return;
  join.waiter = run.scheduler->current;
  suspend(run);
}

void wait(Run& run) {
  run.scheduler->waiting.push_back(run.scheduler->current);
  suspend(run);
}

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double size;
  if (exponent == 31) size = fraction ? NAN : INFINITY;
  else size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return bits & 0x8000 ? -size : size;
}

template <class T> T stored(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Returns the number in a tensor, as a Value of the kind of its dtype.
Value read(Run& run, Tensor tensor) {
  if (run.tensors[tensor.number].level > 0) wait(run);
  const TensorInfo& info = run.tensors[tensor.number];
  const PoolInfo& pool = run.program->pools[info.pool];
  const auto* at = static_cast<const char*>(run.scheduler->pools[info.pool]) +
                   int64_t{info.row} * pool.itemsize;
  switch (pool.dtype) {
    case 0: return box(int64_t{stored<uint8_t>(at)});
    case 1: return box(int64_t{stored<int8_t>(at)});
    case 2: return box(int64_t{stored<int16_t>(at)});
    case 3: return box(int64_t{stored<int32_t>(at)});
    case 4: return box(stored<int64_t>(at));
    case 5: return box(half(stored<uint16_t>(at)));
    case 6: return box(static_cast<double>(stored<float>(at)));
    case 7: return box(stored<double>(at));
    case 11: return box(stored<uint8_t>(at) != 0);
    default: {
      const uint32_t bits = uint32_t{stored<uint16_t>(at)} << 16;
      return box(static_cast<double>(stored<float>(reinterpret_cast<const char*>(&bits))));
    }
  }
}

}  // namespace

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1000000000} + time.tv_nsec;
}

Scheduler::~Scheduler() {
  for (Fiber* fiber : fibers) {
    give_back(fiber->stack);
    delete fiber;
  }
}

// Doubles the memory of a stack. Its lowest page stays inaccessible as a guard.
void stack_is_low(Run& run, char* address) {
  Stack& stack = run.scheduler->current->stack;
  char* lowest = stack.low + page_size();
  while (address < run.stack_limit) {
    const auto has = static_cast<size_t>(stack.top - stack.open);
    char* open = std::max(stack.top - std::min(2 * has, static_cast<size_t>(stack.top - lowest)), lowest);
    const auto more = static_cast<size_t>(stack.open - open);
    if (!more || mprotect(open, more, PROT_READ | PROT_WRITE) != 0) fail(run, -1, kRecursion);
    stack.open = open;
    run.stack_limit = open + kReserve;
  }
}

void fail_with(Run& run, int32_t site, int32_t code, const Value* arguments, size_t count) {
  throw Failure{site, code, make_tuple(run, arguments, count)};
}

double read_float(Run& run, Tensor tensor) { return as_float(read(run, tensor)); }

bool read_bool(Run& run, Tensor tensor) {
  const Value value = read(run, tensor);
  return value.kind == kFloat ? value.f != 0 : value.i != 0;
}

int64_t read_int(Run& run, int32_t site, Tensor tensor) {
  const Value value = read(run, tensor);
  return value.kind == kFloat ? to_int(run, site, value.f) : value.i;
}

// All bodies but the last are fibers; each runs at once, until it ends or waits. None begins after one
// that has failed. The failure of the first body that failed is reported.
void fork(Run& run, const Body* bodies, void* const* frames, size_t count) {
  const int64_t phase = run.phase;
  Join join{nullptr, 0};
  auto* children = static_cast<Child*>(run.take(count * sizeof(Child)));
  const auto body = [](void* frame, void* entry) { reinterpret_cast<Body>(entry)(frame); };
  for (size_t i = 0; i < count; ++i) {
    children[i] = Child{body,    frames[i], reinterpret_cast<void*>(bodies[i]),
                        &join,   nullptr,   Failure(),
                        true};
    if (i) children[i - 1].next = &children[i];
    run.phase = phase;
    begin(run, children[i], i + 1 == count);
    if (!children[i].is_right) break;
  }
  finish(run, join);
  for (const Child* child = children; child; child = child->next)
    if (!child->is_right) throw child->failure;
}

// An iteration begins when the head of the next one has run, so that the last one runs on this stack. The
// tails of iterations before a failed one run, too. The failure of the first iteration is reported.
void fork_iterations(Run& run, const LoopParts& parts, void* frame) {
  const int64_t phase = run.phase;
  Join join{nullptr, 0};
  Child *first = nullptr, *last = nullptr;
  Child end{[](void*, void*) {}, nullptr, nullptr, &join, nullptr, Failure(), true};
  for (bool goes_on = true; goes_on;) {
    Child* child = nullptr;
    goes_on = false;
    end.is_right = guarded(end.failure, [&] {
      void* own = run.take(parts.size);
      child = static_cast<Child*>(run.take(sizeof(Child)));
      *child = Child{parts.body, frame, own, &join, nullptr, Failure(), true};
      goes_on = parts.head(frame, own);
    });
    if (last) {
      run.phase = phase;
      begin(run, *last, !goes_on);
      goes_on = goes_on && last->is_right;
    }
    if (!goes_on) break;
    (last ? last->next : first) = child;
    last = child;
  }
  finish(run, join);
  for (Child* child = first; child; child = child->next) {
    if (!child->is_right) throw child->failure;
    parts.tail(frame, child->own);
  }
  if (!end.is_right) throw end.failure;
}

void go_on(Run& run) {
  Scheduler& scheduler = *run.scheduler;
  while (!scheduler.waiting.empty()) {  // the first instance continues first
    scheduler.ready.push_back(scheduler.waiting.back());
    scheduler.waiting.pop_back();
  }
  for (;;) {
    Fiber* fiber;
    if (!scheduler.ready.empty()) {
      fiber = scheduler.ready.back();
      scheduler.ready.pop_back();
    } else if (scheduler.begun < scheduler.instances) {
      run.phase = 0;
      const bool reads = run.program->reads;
      auto* frame = reinterpret_cast<void*>(static_cast<intptr_t>(scheduler.begun));
      fiber = new_fiber(run, reads ? run_one : run_all, frame, reads ? kFiberStack : kOnlyStack);
      if (!fiber) {
        if (!scheduler.waiting.empty()) return;  // wait until others end and free their stacks
        throw std::bad_alloc();
      }
      if (reads) ++scheduler.begun;
    } else {
      return;
    }
    resume(run, fiber);
    if (fiber->is_done) scheduler.unused.push_back(fiber);
  }
}

}  // namespace stretto

// Sets the unused stacks, shared by all programs; `shared` is the result of the first call, or null.
extern "C" void* stretto_host_share_stacks(void* shared) {
  using namespace stretto;
  unused_stacks = shared ? static_cast<Stacks*>(shared) : new Stacks();
  return unused_stacks;
}
