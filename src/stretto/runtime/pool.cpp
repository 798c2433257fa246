// The worker threads that run the units of a launch. One pool per process, built and loaded once
// (runtime/pool.py). Python is reached through a table of function pointers, so that this file
// needs no Python headers and one build serves every interpreter.
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "abi.h"

namespace {

using stretto::Context;
using Entry = void (*)(Context*, int);

// ---- Python -----------------------------------------------------------------------------------
struct Python {  // filled by stretto_pool_configure, in this order
    void* (*save_thread)();
    void (*restore_thread)(void*);
    int (*ensure)();
    void (*release)(int);
    int (*check_signals)();
    void (*fetch_error)(void**, void**, void**);
    void (*restore_error)(void*, void*, void*);
    void* (*call)(void*, const char*, ...);
    void (*decref)(void*);
};
Python python;

// ---- large stacks -----------------------------------------------------------------------------
constexpr size_t STACK_BYTES = size_t(256) << 20;  // reserved; only pages that are touched exist
constexpr size_t SMALLEST_STACK = size_t(1) << 20;
constexpr size_t STACK_MARGIN = size_t(512) << 10;  // for one kernel's locals and the guard page

struct Stack {
    char* base = nullptr;
    size_t bytes = 0;

    // Less than STACK_BYTES where the process may not have more (ulimit -v).
    __attribute__((noinline)) static Stack map() {
        for (size_t bytes = STACK_BYTES; bytes >= SMALLEST_STACK; bytes /= 2) {
            void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p == MAP_FAILED) continue;
            mprotect(p, 1 << 16, PROT_NONE);
            return {static_cast<char*>(p), bytes};
        }
        return {};
    }
    uintptr_t limit() const { return reinterpret_cast<uintptr_t>(base) + STACK_MARGIN; }
};

// A run of unit 0 on a large stack. Python runs on the caller's stack, which it may check, so a
// callback hops back there (`request`), and the run goes on when the callback has returned.
struct DeepRun {
    Entry entry;
    Context* ctx;
    ucontext_t caller, callee;
    int32_t (*request)(void*) = nullptr;
    void* argument = nullptr;
    int32_t answer = 0;
};

struct SpareStack {  // each thread keeps one
    Stack stack;
    ~SpareStack() {
        if (stack.base) munmap(stack.base, stack.bytes);
    }
};
thread_local SpareStack spare;
thread_local DeepRun* deep_run = nullptr;

void deep_main() {
    DeepRun* run = deep_run;
    run->entry(run->ctx, 0);
    run->request = nullptr;
}

bool run_deep(Entry entry, Context* ctx) {
    Stack stack = spare.stack.base ? spare.stack : Stack::map();
    spare.stack = {};
    if (!stack.base) return stretto::fail(ctx, stretto::STACK_FULL, 0);
    ctx->progress[0].stack_limit = stack.limit();
    auto run = std::make_unique<DeepRun>();
    run->entry = entry;
    run->ctx = ctx;
    getcontext(&run->callee);
    run->callee.uc_stack.ss_sp = stack.base;
    run->callee.uc_stack.ss_size = stack.bytes;
    run->callee.uc_link = &run->caller;
    makecontext(&run->callee, deep_main, 0);
    DeepRun* outer = deep_run;
    deep_run = run.get();
    swapcontext(&run->caller, &run->callee);
    while (run->request != nullptr) {
        deep_run = outer;  // the callback may launch a program of its own
        run->answer = run->request(run->argument);
        deep_run = run.get();
        swapcontext(&run->caller, &run->callee);
    }
    deep_run = outer;
    if (spare.stack.base) munmap(spare.stack.base, spare.stack.bytes);
    spare.stack = stack;
    return true;
}

int32_t on_callers_stack(int32_t (*function)(void*), void* argument) {
    DeepRun* run = deep_run;
    if (run == nullptr) return function(argument);
    run->request = function;
    run->argument = argument;
    swapcontext(&run->callee, &run->caller);
    return run->answer;
}

// ---- calls into Python ------------------------------------------------------------------------
// With the GIL: keeps the pending Python exception for the end of the launch. The first one wins.
void keep_exception(Context* ctx) {
    void* error[3];
    python.fetch_error(&error[0], &error[1], &error[2]);
    for (int i = 0; i < 3 && ctx->exception[0] != nullptr; ++i)
        if (error[i] != nullptr) python.decref(error[i]);
    if (ctx->exception[0] == nullptr)
        for (int i = 0; i < 3; ++i) ctx->exception[i] = error[i];
}

int32_t poll_here(void* argument) {
    int state = python.ensure();
    int failed = python.check_signals();
    if (failed != 0) keep_exception(static_cast<Context*>(argument));
    python.release(state);
    return failed != 0;
}
int32_t poll(Context* ctx) { return on_callers_stack(poll_here, ctx); }

struct LibraryCall {
    Context* ctx;
    int64_t call;
    void** operands;
};
int32_t library_here(void* argument) {
    auto* call = static_cast<LibraryCall*>(argument);
    int state = python.ensure();
    void* result =
        python.call(call->ctx->callable, "LL", static_cast<long long>(call->call),
                    static_cast<long long>(reinterpret_cast<intptr_t>(call->operands)));
    if (result == nullptr)
        keep_exception(call->ctx);
    else
        python.decref(result);
    python.release(state);
    return result == nullptr;
}
int32_t library(Context* ctx, int unit, int64_t call, void** operands) {
    LibraryCall request{ctx, call, operands};
    return unit == 0 ? on_callers_stack(library_here, &request) : library_here(&request);
}

// ---- the pool ---------------------------------------------------------------------------------
constexpr int64_t IDLE_SPIN_NS = 100'000;  // a worker sleeps when no launch came for so long
constexpr int64_t WAIT_SPIN_NS = 5'000;  // a wait yields the core after so long
constexpr int64_t CROWDED_SPIN_NS = 1'000;  // the same where units share cores
constexpr auto LOCK_INTERVAL = std::chrono::milliseconds(20);

thread_local int launches = 0;  // of this thread, that have not returned
thread_local int on_main_thread = -1;
int cores = 1;

int available_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
    return int(sysconf(_SC_NPROCESSORS_ONLN));
}

int current_core() {
#if defined(__linux__)
    return sched_getcpu();
#else
    return -1;
#endif
}

// A worker that was woken on the caller's core would share it until the system balances its load,
// which takes longer than most programs: it moves to the `unit`-th core after that one.
void leave_core(int taken, int unit) {
#if defined(__linux__)
    cpu_set_t allowed, chosen;
    if (taken < 0 || sched_getcpu() != taken) return;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    int core = taken;
    for (int left = unit; left > 0;) {
        core = (core + 1) % CPU_SETSIZE;
        if (core != taken && CPU_ISSET(core, &allowed)) --left;
    }
    CPU_ZERO(&chosen);
    CPU_SET(core, &chosen);
    if (sched_setaffinity(0, sizeof(chosen), &chosen) == 0)
        sched_setaffinity(0, sizeof(allowed), &allowed);
#endif
}

struct Pool;

struct alignas(128) Worker {
    std::atomic<uint64_t> ticket{0};  // grows by one per job
    std::atomic<bool> asleep{false};
    std::mutex mutex;
    std::condition_variable wake;
    Pool* pool = nullptr;
    int unit = 0;
    size_t stack_bytes = 0;
    pthread_t thread{};

    void notify() {  // sequentially consistent, as is `next`: one of the two sees the other
        ticket.fetch_add(1);
        if (!asleep.load()) return;
        std::lock_guard<std::mutex> lock(mutex);
        wake.notify_one();
    }

    void next(uint64_t seen, int64_t spin_ns) {  // returns when the ticket is not `seen`
        for (int64_t start = stretto::now_ns(); stretto::now_ns() - start < spin_ns;)
            for (int i = 0; i < 32; ++i) {
                if (ticket.load(std::memory_order_acquire) != seen) return;
                stretto::cpu_pause();
            }
        std::unique_lock<std::mutex> lock(mutex);
        asleep.store(true);
        while (ticket.load() == seen) wake.wait(lock);
        asleep.store(false);
    }
};

struct Pool {
    std::timed_mutex busy;
    std::vector<std::unique_ptr<Worker>> workers;  // worker i runs unit i + 1
    Entry entry = nullptr;
    Context* ctx = nullptr;
    bool closing = false;
    int callers_core = -1;
    alignas(128) std::atomic<int> running{0};

    bool grow(int count);
    void run(Entry job, Context* job_ctx);
    ~Pool();
};

void run_unit_0(Entry entry, Context* ctx) {
    if (ctx->deep != 0)
        run_deep(entry, ctx);
    else
        entry(ctx, 0);
}

void* worker_main(void* argument) {
    auto* worker = static_cast<Worker*>(argument);
    Pool* pool = worker->pool;
    auto top = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    uintptr_t limit = top - worker->stack_bytes + 2 * STACK_MARGIN;
    launches = 1;  // what a library call launches here must not wait for this very pool
    for (uint64_t seen = 0;; ++seen) {
        worker->next(seen, worker->unit < cores ? IDLE_SPIN_NS : CROWDED_SPIN_NS);
        if (pool->closing) return nullptr;
        pool->ctx->progress[worker->unit].stack_limit = limit;
        if (pool->ctx->units <= cores) leave_core(pool->callers_core, worker->unit);
        pool->entry(pool->ctx, worker->unit);
        pool->running.fetch_sub(1, std::memory_order_acq_rel);
    }
}

bool start_thread(Worker* worker) {
    for (size_t bytes = STACK_BYTES; bytes >= 4 * STACK_MARGIN; bytes /= 2) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, bytes);
        worker->stack_bytes = bytes;
        int error = pthread_create(&worker->thread, &attributes, worker_main, worker);
        pthread_attr_destroy(&attributes);
        if (error == 0) return true;
    }
    return false;
}

bool Pool::grow(int count) {
    while (int(workers.size()) < count) {
        auto worker = std::make_unique<Worker>();
        worker->pool = this;
        worker->unit = int(workers.size()) + 1;
        workers.push_back(std::move(worker));
        if (start_thread(workers.back().get())) continue;
        workers.pop_back();
        return false;
    }
    return true;
}

void Pool::run(Entry job, Context* job_ctx) {
    if (!grow(job_ctx->units - 1)) {
        stretto::fail(job_ctx, stretto::NO_THREADS, int64_t(workers.size()));
        return;
    }
    entry = job;
    ctx = job_ctx;
    callers_core = current_core();
    running.store(ctx->units - 1, std::memory_order_relaxed);
    for (int i = 0; i < ctx->units - 1; ++i) workers[i]->notify();
    run_unit_0(job, ctx);
    for (int64_t start = 0; running.load(std::memory_order_acquire) != 0;) {
        for (int i = 0; i < 64 && running.load(std::memory_order_relaxed) != 0; ++i)
            stretto::cpu_pause();
        int64_t now = stretto::now_ns();
        if (start == 0) start = now;
        if (now - start < ctx->spin_ns) continue;
        stretto::poll_if_due(ctx);
        sched_yield();
    }
}

Pool::~Pool() {
    closing = true;
    for (auto& worker : workers) worker->notify();
    for (auto& worker : workers) pthread_join(worker->thread, nullptr);
}

// Never freed: its threads may be asleep in it when the process ends.
Pool* shared_pool = nullptr;

void after_fork_in_child() {  // the workers and the state of every lock stayed in the parent
    shared_pool = new Pool;
    on_main_thread = 1;
    launches = 0;
}

bool is_main_thread() {  // the only one on which Python runs signal handlers
#if defined(__linux__)
    if (on_main_thread < 0) on_main_thread = gettid() == getpid();
    return on_main_thread == 1;
#else
    return true;
#endif
}

void reset(Context* ctx) {
    ctx->stop.store(0, std::memory_order_relaxed);
    ctx->status.store(stretto::OK, std::memory_order_relaxed);
    ctx->detail = 0;
    ctx->library = library;
    ctx->poll = is_main_thread() ? poll : nullptr;
    ctx->next_poll = stretto::now_ns() + stretto::POLL_INTERVAL_NS;
    ctx->spin_ns = ctx->units <= cores ? WAIT_SPIN_NS : CROWDED_SPIN_NS;
    for (int unit = 0; unit < ctx->units; ++unit) {
        ctx->progress[unit].value.store(0, std::memory_order_relaxed);
        ctx->progress[unit].stack_limit = 0;
        if (ctx->event_count != nullptr) ctx->event_count[unit] = 0;
    }
}

void run_units(Entry entry, Context* ctx) {
    if (launches > 1) {  // inside a library call of another launch, which holds the pool
        Pool().run(entry, ctx);
        return;
    }
    while (!shared_pool->busy.try_lock_for(LOCK_INTERVAL))
        if (!stretto::poll_if_due(ctx)) return;
    shared_pool->run(entry, ctx);
    shared_pool->busy.unlock();
}

}  // namespace

// `functions`: the members of Python, in order.
extern "C" void stretto_pool_configure(void** functions) {
    __builtin_memcpy(&python, functions, sizeof(python));
    cores = available_cores();
    if (shared_pool != nullptr) return;
    shared_pool = new Pool;
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

// Runs entry(ctx, unit) for every unit and returns the status when all have returned. The caller
// holds the GIL, which is released meanwhile. An exception of a callback is pending on return.
extern "C" int32_t stretto_pool_launch(Entry entry, Context* ctx) {
    void* state = python.save_thread();
    ++launches;
    reset(ctx);
    if (ctx->units == 1)
        run_unit_0(entry, ctx);
    else
        run_units(entry, ctx);
    --launches;
    python.restore_thread(state);
    if (ctx->exception[0] != nullptr) {
        python.restore_error(ctx->exception[0], ctx->exception[1], ctx->exception[2]);
        for (void*& part : ctx->exception) part = nullptr;
    }
    return ctx->status.load(std::memory_order_relaxed);
}

// For the test that Python mirrors abi.h: sizes of Context, Progress and Event, then offsets.
extern "C" void stretto_pool_layout(int64_t* out) {
    using namespace stretto;
    *out++ = sizeof(Context);
    *out++ = sizeof(Progress);
    *out++ = sizeof(Event);
    *out++ = offsetof(Context, stop);
    *out++ = offsetof(Context, library);
    *out++ = offsetof(Context, events);
    *out++ = offsetof(Context, exception);
}
