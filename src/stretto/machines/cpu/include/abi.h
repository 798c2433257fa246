// The contract between a compiled program, the worker pool and Python (machines/cpu/native.py mirrors
// every struct here).
//
// A program exports   extern "C" void stretto_run(stretto::Context* ctx, int unit);
// and every unit (0 is the calling Python thread, 1.. are workers) runs it once per launch with the
// same Context. The pool sets all progress counters, `stop`, `status` and `event_count` to zero
// before a launch. A helper below that returns bool returns true to go on: on false the unit must
// return from stretto_run at once.
#pragma once

#include <time.h>
#include <unistd.h>

#include "standard.h"

#define STRETTO_COLD __attribute__((noinline, cold))
#define STRETTO_LIKELY(x) __builtin_expect(!!(x), 1)
#define STRETTO_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace stretto {

enum Status : int32_t {
    OK = 0,
    LIST_FULL = 1,       // detail: index of the list in Context::limits; grow it and run again
    ARENA_FULL = 2,      // detail: bytes needed (0: unknown); grow the arena and run again
    INTERRUPTED = 3,     // a Python signal handler raised
    LIBRARY_FAILED = 4,  // detail: number of the library call; Python holds the exception
    ASSERTION = 5,       // detail: packed_detail of the check's number and a value
    STACK_FULL = 6,      // a unit's native stack is used up (recursion without a base case)
    STUCK = 7,  // a wait took longer than wait_limit_ns; detail: unit * 2^40 + step waited for
    TOO_DEEP = 8,  // recursion deeper than Context::max_depth; detail: the depth
    NO_THREADS = 9,  // the system refused a worker thread; detail: number of existing ones
    INDEX = 10,      // a position is outside its dim; detail: as for ASSERTION
    TIMEOUT = 11,    // the run took longer than Context::deadline allows
    CROWDED = 12,    // another process occupies the core of a unit; the pool runs the program again
    NO_MEMORY = 13,      // the system refused working memory
};

struct Event {  // one task on one unit; times are CLOCK_MONOTONIC nanoseconds
    int64_t kernel;
    int64_t task;
    int64_t start;
    int64_t end;
};

// One per unit, on separate cache lines. `value` is written only by its owner.
struct alignas(128) Progress {
    Atomic<int64_t> value;
    uintptr_t stack_limit;  // lowest address the stack may reach; 0: unknown. Set by the pool.
    Atomic<int32_t> in_library;  // nonzero: the unit is in a library call and may sleep there
    Atomic<int32_t> sleepers;    // units that sleep until this one publishes more (pool.cpp)
    Atomic<int32_t> wakes;       // number of times this unit has woken sleepers
};

struct Context {
    void** buffers;  // every external buffer by index: inputs, outputs, constants, list storage
    char* arena;           // 64-byte aligned
    int64_t arena_bytes;
    const int64_t* limits;  // list capacities, by list index
    const int64_t* sizes;   // the values of the program's symbols, in the order of its interface
    int64_t* results;       // scalar results: list lengths, ...
    Progress* progress;     // one per unit
    int32_t units;
    int32_t deep;  // nonzero: unit 0 gets a large stack too (the workers always have one)
    Atomic<int32_t> stop;    // nonzero: every unit leaves
    Atomic<int32_t> status;  // a Status: the first error
    int64_t detail;
    // Both take the GIL themselves; nonzero: a Python exception is pending, the program must stop.
    int32_t (*library)(Context* ctx, int unit, int64_t call, void** operands);
    int32_t (*poll)(Context* ctx);  // unit 0 only: runs Python's signal handlers
    // Fibers: all units of this launch share the caller's thread. It switches from `self` to `unit`
    // here, and returns later. Null if each unit has its own thread. False: `unit` has ended.
    bool (*switch_unit)(Context* ctx, int self, int unit);
    // Threads: true if `unit`, for which `self` has waited since `start`, has a core. False: it has
    // none, and the launch should be abandoned (CROWDED). Null: not checked.
    bool (*has_core)(Context* ctx, int self, int unit, int64_t start);
    // From the program: nonzero if this call is too small to wake threads. Null: no call is.
    int32_t (*is_small)(Context* ctx);
    int64_t once;  // nonzero: it changes its inputs, so a launch must not be abandoned (CROWDED)
    // Nonzero: unit 0 runs all iterations of parallel loops in order, so that the first failing one
    // is reported.
    int64_t in_turn;
    int64_t next_poll;              // ns; unit 0 only
    int64_t deadline;               // ns; the run ends in TIMEOUT after it; 0: never
    int64_t max_depth;
    int64_t wait_limit_ns;          // a wait longer than this is an error (STUCK); 0: no limit
    Event* events;                  // units * event_capacity, unit by unit; null when not tracing
    int64_t event_capacity;
    int64_t* event_count;  // per unit; may exceed the capacity: the rest was dropped
    // Used by the pool only:
    void* callable;      // PyObject*, called for a library call with (call, address of operands)
    void* exception[3];  // the pending Python exception
    // Library calls without Python (calls.cpp); null: Python runs all of them. `run_call` returns
    // nonzero if Python must run the call; `release_call` must be called after that.
    void* calls;
    int32_t (*run_call)(void* calls, int64_t call, void** operands);
    void (*release_call)(void* calls, int64_t call);
    void (*clear_calls)(void* calls);  // drops the tensors that a run has left
    // Threads of a program with library calls. `sleep`: for a while, or until `unit` has published
    // `target`; `wake`: the threads that sleep for unit `self`. Null: no thread sleeps.
    void (*sleep)(Context* ctx, int unit, int64_t target);
    void (*wake)(Context* ctx, int self);
};

constexpr int64_t POLL_INTERVAL_NS = 50'000'000;  // a poll may wait for the GIL
constexpr int64_t LOOK_INTERVAL_NS = 100'000;  // between two checks of a unit that is waited for
constexpr int64_t SPIN_NS = 2'000'000;  // a longer wait sleeps between its checks
constexpr int64_t LIBRARY_SPIN_NS = 20'000;  // the same for a wait for a unit in a library call

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// The number of a check and the value that its message shows, which is cut to 48 bits (ir/failure.py).
inline int64_t packed_detail(int64_t number, int64_t value) {
    constexpr int64_t largest = (int64_t(1) << 47) - 1;
    if (value > largest) value = largest;
    if (value < -largest - 1) value = -largest - 1;
    return (value * 65536) | number;
}

// Stops all units. The first error wins. Returns false, so that `return fail(...)` reads well.
STRETTO_COLD inline bool fail(Context* ctx, int32_t code, int64_t detail) {
    int32_t none = OK;
    if (ctx->status.compare_exchange(none, code)) ctx->detail = detail;
    ctx->stop.store(1, __ATOMIC_RELEASE);
    return false;
}

inline bool stopped(const Context* ctx) {
    return STRETTO_UNLIKELY(ctx->stop.load(__ATOMIC_RELAXED) != 0);
}

// Called by unit 0, and by every unit that is a fiber, from time to time: runs Python's signal
// handlers if they last ran POLL_INTERVAL_NS ago, and checks the deadline.
STRETTO_COLD inline bool poll_if_due(Context* ctx) {
    int64_t now = now_ns();
    if (now < ctx->next_poll) return true;
    if (ctx->deadline != 0 && now >= ctx->deadline) return fail(ctx, TIMEOUT, 0);
    ctx->next_poll = now + POLL_INTERVAL_NS;
    if (ctx->deadline != 0 && ctx->deadline < ctx->next_poll) ctx->next_poll = ctx->deadline;
    if (ctx->poll != nullptr && ctx->poll(ctx) != 0) return fail(ctx, INTERRUPTED, 0);
    return true;
}

// A wait among fibers: switches to the unit that is waited for.
STRETTO_COLD inline bool wait_as_fiber(Context* ctx, int self, int unit, int64_t target) {
    const Atomic<int64_t>& value = ctx->progress[unit].value;
    while (value.load(__ATOMIC_ACQUIRE) < target) {
        if (stopped(ctx) || !poll_if_due(ctx)) return false;
        if (!ctx->switch_unit(ctx, self, unit) && value.load(__ATOMIC_ACQUIRE) < target)
            return stopped(ctx) ? false : fail(ctx, STUCK, (int64_t(unit) << 40) + target);
    }
    return true;
}

STRETTO_COLD inline bool wait_slow(Context* ctx, int self, int unit, int64_t target) {
    if (ctx->switch_unit != nullptr) return wait_as_fiber(ctx, self, unit, target);
    const Atomic<int64_t>& value = ctx->progress[unit].value;
    int64_t start = 0, look = 0;
    for (;;) {
        for (int i = 0; i < 64; ++i) {
            if (value.load(__ATOMIC_ACQUIRE) >= target) return true;
            cpu_pause();
        }
        if (stopped(ctx)) return false;
        int64_t now = now_ns();
        if (start == 0) start = now, look = now + LOOK_INTERVAL_NS;
        // The threads of the library need this core; without it, the system gives them a time slice
        // only after milliseconds.
        int32_t call = ctx->progress[unit].in_library.load(__ATOMIC_RELAXED);
        if (call != 0 && now - start > LIBRARY_SPIN_NS && ctx->sleep != nullptr)
            ctx->sleep(ctx, unit, target);
        if (now < look) continue;
        look = now + LOOK_INTERVAL_NS;
        if (ctx->has_core != nullptr && !ctx->has_core(ctx, self, unit, start))
            return fail(ctx, CROWDED, unit);
        if (ctx->wait_limit_ns > 0 && now - start > ctx->wait_limit_ns)
            return fail(ctx, STUCK, (int64_t(unit) << 40) + target);
        if (self == 0 && !poll_if_due(ctx)) return false;
        if (now - start > SPIN_NS) usleep(LOOK_INTERVAL_NS / 2000);
    }
}

// Unit `self` waits until unit `unit` has reached step `target`. False: stopped.
inline bool wait(Context* ctx, int self, int unit, int64_t target) {
    const Atomic<int64_t>& value = ctx->progress[unit].value;
    if (STRETTO_LIKELY(value.load(__ATOMIC_ACQUIRE) >= target)) return true;
    return wait_slow(ctx, self, unit, target);
}

// Unit `self` has finished all its work up to step `value`. Values must never fall.
inline void signal(Context* ctx, int self, int64_t value) {
    ctx->progress[self].value.store(value, __ATOMIC_RELEASE);
    if (STRETTO_UNLIKELY(ctx->wake != nullptr)) ctx->wake(ctx, self);
}

// Switches from a fiber that has worked for long to another one, since an error there may be what
// ends the work here. The choice changes with time, so that each of them gets a turn.
STRETTO_COLD inline bool take_turns(Context* ctx, int self) {
    int64_t due = ctx->next_poll;
    if (!poll_if_due(ctx)) return false;
    if (ctx->next_poll == due) return true;
    int first = int((due / POLL_INTERVAL_NS) % ctx->units);
    for (int i = 0; i < ctx->units; ++i) {
        int unit = (first + i) % ctx->units;
        if (unit != self && ctx->switch_unit(ctx, self, unit)) break;
    }
    return !stopped(ctx);
}

// Checks for Ctrl-C and the deadline during work that takes longer than reading the clock.
// False: stopped.
inline bool go_on(Context* ctx, int self) {
    if (stopped(ctx)) return false;
    if (ctx->switch_unit != nullptr) return take_turns(ctx, self);
    return self == 0 ? poll_if_due(ctx) : true;
}

// At the end of each loop body, and at the entry of each recursive function. `counter` is a local
// of stretto_run that starts at 0. Checks for Ctrl-C: unit 0 reads the clock every 32nd time.
// False: stopped.
inline bool back_edge(Context* ctx, int self, uint32_t& counter) {
    if (stopped(ctx)) return false;
    if (STRETTO_UNLIKELY((++counter & 31u) == 0)) return go_on(ctx, self);
    return true;
}

// This unit's iterations of a parallel loop: from `first` on, `step` apart.
inline int64_t parallel_step(const Context* ctx, int64_t step) {
    return ctx->in_turn != 0 ? step : step * ctx->units;
}
inline int64_t parallel_first(const Context* ctx, int self, int64_t start, int64_t stop, int64_t step) {
    if (ctx->in_turn != 0) return self == 0 ? start : stop;
    return start + self * step;
}

// At the entry of each recursive function that uses the native stack. False: stopped (STACK_FULL).
inline bool stack_left(Context* ctx, int self) {
    uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    if (STRETTO_LIKELY(here > ctx->progress[self].stack_limit)) return true;
    return fail(ctx, STACK_FULL, 0);
}

// At the entry of each recursive function that is `depth` calls deep. False: stopped (TOO_DEEP or
// STACK_FULL).
inline bool depth_left(Context* ctx, int self, int64_t depth) {
    if (STRETTO_UNLIKELY(depth > ctx->max_depth)) return fail(ctx, TOO_DEEP, depth);
    return stack_left(ctx, self);
}

// Room for one more frame: `end` is the frame pointer's offset in the arena after the call.
// False: stopped (ARENA_FULL).
inline bool arena_left(Context* ctx, int64_t end) {
    if (STRETTO_LIKELY(end <= ctx->arena_bytes)) return true;
    return fail(ctx, ARENA_FULL, end);
}

// Runs library call number `call` in Python on this unit's thread.
// False: stopped (LIBRARY_FAILED).
STRETTO_COLD inline bool call_library(Context* ctx, int self, int64_t call, void** operands) {
    if (stopped(ctx)) return false;
    ctx->progress[self].in_library.store(1, __ATOMIC_RELAXED);
    bool done = ctx->library != nullptr && ctx->library(ctx, self, call, operands) == 0;
    ctx->progress[self].in_library.store(0, __ATOMIC_RELAXED);
    return done ? true : fail(ctx, LIBRARY_FAILED, call);
}

// Records one trace event. Programs built with -DSTRETTO_TRACE call it; it does nothing without a
// buffer.
inline void record(Context* ctx, int self, int64_t kernel, int64_t task, int64_t start,
                   int64_t end) {
    if (ctx->events == nullptr) return;
    int64_t index = ctx->event_count[self]++;
    if (index < ctx->event_capacity)
        ctx->events[int64_t(self) * ctx->event_capacity + index] = Event{kernel, task, start, end};
}

// STRETTO_TASK(ctx, self, kernel, task) { body }: a body that is timed when tracing and costs
// nothing when not. The body may return (it is still recorded) but must not `break` or `continue`.
// STRETTO_DECIDED(ctx, self, node, way): records that control node number `node` took arm `way`, as
// an event with a negative kernel.
#ifdef STRETTO_TRACE
struct TaskTimer {
    Context* ctx;
    int self;
    int64_t kernel, task, start;
    bool open = true;
    TaskTimer(Context* ctx_, int self_, int64_t kernel_, int64_t task_)
        : ctx(ctx_), self(self_), kernel(kernel_), task(task_), start(now_ns()) {}
    ~TaskTimer() { record(ctx, self, kernel, task, start, now_ns()); }
};
inline void record_decision(Context* ctx, int self, int64_t node, int64_t way) {
    int64_t now = now_ns();
    record(ctx, self, -1 - node, way, now, now);
}
#define STRETTO_DECIDED(ctx, self, node, way) ::stretto::record_decision((ctx), (self), (node), (way));
#define STRETTO_TASK(ctx, self, kernel, task) \
    for (::stretto::TaskTimer timer_((ctx), (self), (kernel), (task)); timer_.open; \
         timer_.open = false)
#else
#define STRETTO_TASK(ctx, self, kernel, task)
#define STRETTO_DECIDED(ctx, self, node, way)
#endif

static_assert(sizeof(Progress) == 128, "native.py mirrors this");
static_assert(sizeof(void*) == 8, "stretto needs a 64-bit machine");

}  // namespace stretto
