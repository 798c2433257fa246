// The worker threads that run the units of a launch. One pool per process, built and loaded once
// (machines/cpu/pool.py). Python is reached through a table of function pointers, so that this file
// needs no Python headers and one build serves every interpreter. Locks are pthread's: this file is
// built once per cache, and reading <mutex> and <condition_variable> takes longer than compiling it.
#include <pthread.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
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
constexpr size_t STACK_BYTES = size_t(256) << 20;  // reserved; pages are allocated when touched
constexpr size_t SMALLEST_STACK = size_t(2) << 20;
constexpr size_t STACK_MARGIN = size_t(1) << 20;  // for one kernel's locals and the guard page

struct Stack {
    char* base = nullptr;
    size_t bytes = 0;

    // Less than STACK_BYTES if the process may not have more (ulimit -v).
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

struct SpareStacks {  // each thread retains the stacks that it has used
    std::vector<Stack> stacks;
    Stack take() {
        if (stacks.empty()) return Stack::map();
        Stack stack = stacks.back();
        stacks.pop_back();
        return stack;
    }
    ~SpareStacks() {
        for (const Stack& stack : stacks) munmap(stack.base, stack.bytes);
    }
};
thread_local SpareStacks spare;

// ---- fibers -----------------------------------------------------------------------------------
// Units that run on the calling thread, each with its own large stack: unit 0 of a program that
// recurses deeply, or all units if there are not enough free cores. A fiber that waits switches to
// the one that it waits for. Python runs on the caller's stack, because it may check the stack, so a
// callback switches back there (`request`), and the fiber continues when it has returned.
struct Fiber {
    ucontext_t context;
    Stack stack;
    bool ended = false;
};

struct FiberRun {
    Entry entry;
    Context* ctx;
    std::vector<Fiber> fibers;  // by unit
    int current = 0;
    ucontext_t caller;
    int32_t (*request)(void*) = nullptr;
    void* argument = nullptr;
    int32_t answer = 0;
};
thread_local FiberRun* fiber_run = nullptr;

void fiber_main() {
    FiberRun* run = fiber_run;
    run->entry(run->ctx, run->current);
    run->fibers[run->current].ended = true;
}

bool prepare(FiberRun& run) {
    for (size_t unit = 0; unit < run.fibers.size(); ++unit) {
        Fiber& fiber = run.fibers[unit];
        fiber.stack = spare.take();
        if (!fiber.stack.base) return false;
        run.ctx->progress[unit].stack_limit = fiber.stack.limit();
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.base;
        fiber.context.uc_stack.ss_size = fiber.stack.bytes;
        fiber.context.uc_link = &run.caller;
        makecontext(&fiber.context, fiber_main, 0);
    }
    return true;
}

// Runs the units 0 .. count-1 to their end.
void run_fibers(Entry entry, Context* ctx, int count) {
    FiberRun run{entry, ctx, std::vector<Fiber>(count)};
    FiberRun* outer = fiber_run;
    bool ready = prepare(run);
    if (!ready) stretto::fail(ctx, stretto::STACK_FULL, 0);
    for (int unit = 0; ready && unit < count;) {
        if (run.fibers[unit].ended) {
            ++unit;
            continue;
        }
        if (run.request == nullptr) run.current = unit;
        fiber_run = &run;
        swapcontext(&run.caller, &run.fibers[run.current].context);
        fiber_run = outer;  // a callback may launch another program
        if (run.request == nullptr) continue;
        run.answer = run.request(run.argument);
    }
    for (Fiber& fiber : run.fibers)
        if (fiber.stack.base) spare.stacks.push_back(fiber.stack);
}

bool switch_unit(Context*, int self, int unit) {
    FiberRun* run = fiber_run;
    if (run->fibers[unit].ended) return false;
    run->current = unit;
    swapcontext(&run->fibers[self].context, &run->fibers[unit].context);
    return true;
}

int32_t on_callers_stack(int32_t (*function)(void*), void* argument) {
    FiberRun* run = fiber_run;
    if (run == nullptr) return function(argument);
    run->request = function;
    run->argument = argument;
    swapcontext(&run->fibers[run->current].context, &run->caller);
    run->request = nullptr;
    return run->answer;
}

// ---- calls into Python ------------------------------------------------------------------------
// With the GIL: saves the pending Python exception until the end of the launch. The first one wins.
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
int32_t library(Context* ctx, int, int64_t call, void** operands) {
    if (ctx->calls != nullptr && ctx->run_call(ctx->calls, call, operands) == 0) return 0;
    LibraryCall request{ctx, call, operands};
    int32_t failed = on_callers_stack(library_here, &request);
    if (ctx->calls != nullptr) ctx->release_call(ctx->calls, call);
    return failed;
}

// ---- the pool ---------------------------------------------------------------------------------
constexpr int64_t IDLE_SPIN_NS = 100'000;  // a worker sleeps after this time without a launch
constexpr int64_t EXPECTED_NS = 1'000'000;  // the same after an announcement of a launch
constexpr int END_SPINS = 1 << 14;  // checks for the workers' end before the caller sleeps between them

thread_local int launches = 0;  // launches of this thread that have not returned
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

// Moves a worker that was woken on the caller's core to the `unit`-th core after that one. Otherwise
// it would share the core until the system balances its load, which takes longer than most programs.
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

// Makes a sleeping thread wake up on any core except `core`, until `allow_all`: if both cores have
// been busy, for example with threads of another library, Linux does not search for an idle one, and
// wakes a worker on the caller's core, where it gets no time while the caller computes.
struct Placed {
#if defined(__linux__)
    cpu_set_t allowed;
    bool restricted = false;

    void keep_off(pthread_t thread, int core) {
        if (restricted || core < 0) return;
        if (pthread_getaffinity_np(thread, sizeof(allowed), &allowed) != 0) return;
        cpu_set_t others = allowed;
        CPU_CLR(core, &others);
        if (CPU_COUNT(&others) == 0 || CPU_EQUAL(&others, &allowed)) return;
        restricted = pthread_setaffinity_np(thread, sizeof(others), &others) == 0;
    }
    void allow_all() {  // by the thread itself
        if (restricted) sched_setaffinity(0, sizeof(allowed), &allowed);
        restricted = false;
    }
#else
    void keep_off(pthread_t, int) {}
    void allow_all() {}
#endif
};

// ---- crowded cores ----------------------------------------------------------------------------
// If another process occupies the core of a unit, all other units wait for it, a time slice of the
// system at every wait. So a unit that waits for long checks if the other one gets processor time. If
// not, the launch is abandoned (programs are pure, so nothing is lost) and its units run as fibers of
// the calling thread, as do those of the launches during a pause after it. Then the workers are woken
// during a launch on fibers (a probe): if they get nearly all the time of their cores, the next launch
// runs on threads. Each failure of either kind lengthens the pause. Starting again costs a whole run,
// so a launch may lose as much time as it takes before it is abandoned: a core is often taken only for
// some milliseconds, for example by OpenMP threads, which spin after an operator of PyTorch.
constexpr int64_t LOST_NS = 300'000;  // a unit may be without a core for this long,
constexpr int64_t LOST_SHARE = 5;     // or for this fraction (1 / 5) of the launch so far,
constexpr int64_t FIRST_USUAL_NS = 20'000'000;  // or for as long as a launch takes; at first: this
constexpr int64_t FIRST_PAUSE_NS = 1'000'000;
constexpr int64_t LONGEST_PAUSE_NS = 2'000'000'000;  // after abandoned launches
constexpr int64_t LONGEST_PROBE_PAUSE_NS = 50'000'000;  // after probes, which cost no launch
constexpr int64_t PROBE_NS = 500'000;         // workers stay awake for this long,
constexpr int64_t SHORTEST_PROBE_NS = 100'000;  // this is enough for a decision,
constexpr int64_t WAKE_NS = 50'000;           // without the time until they are awake
constexpr int64_t PROBE_SHARE = 8;            // they may lose this fraction (1 / 8)

struct Crowd {  // changed only by the thread that holds the pool
    std::atomic<int64_t> until{0};  // end of the pause; 0: cores are free, as far as is known
    int64_t probed = 0;             // start of the current probe, or 0
    int64_t pause = 0;
    int64_t calm = 0;  // ns of launches on threads since then; when they reach the pause, it is halved

    bool known() const { return until.load(std::memory_order_relaxed) != 0; }
    bool now() const { return known() && stretto::now_ns() < until.load(std::memory_order_relaxed); }
    void met(int64_t longest) {
        int64_t next = pause == 0 ? FIRST_PAUSE_NS : 2 * pause;
        if (pause < longest) pause = next < longest ? next : longest;
        calm = probed = 0;
        until.store(stretto::now_ns() + pause, std::memory_order_relaxed);
    }
    void ended() {
        probed = 0;
        until.store(0, std::memory_order_relaxed);
    }
    void not_met(int64_t took) {
        if (pause == 0 || (calm += took) < pause) return;
        calm = 0;
        pause /= 2;
        if (pause < FIRST_PAUSE_NS) pause = 0;
    }
};

struct Pool;

struct Lock {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    void take() { pthread_mutex_lock(&mutex); }
    bool try_to_take() { return pthread_mutex_trylock(&mutex) == 0; }
    void release() { pthread_mutex_unlock(&mutex); }
};

struct alignas(128) Worker {
    std::atomic<uint64_t> ticket{0};   // grows by one per job
    std::atomic<int64_t> expected{0};  // it stays awake until then for an announced job
    std::atomic<int> callers_core{-1};  // core of the thread that announced it
    std::atomic<bool> asleep{false};
    Lock lock;
    Placed placed;  // changed under the lock
    pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
    Pool* pool = nullptr;
    int unit = 0;
    size_t stack_bytes = 0;
    pthread_t thread{};
    clockid_t clock{};  // processor time of the thread
    int64_t used = 0;   // value of that clock at the start of the last probe

    void notify(int core) {  // sequentially consistent, as is `next`: one of the two sees the other
        ticket.fetch_add(1);
        wake_up(core);
    }

    void expect(int64_t until, int core) {
        callers_core.store(core, std::memory_order_relaxed);
        expected.store(until);
        wake_up(core);
    }

    void wake_up(int core) {
        if (!asleep.load()) return;
        lock.take();
        placed.keep_off(thread, core);
        pthread_cond_signal(&wake);
        lock.release();
    }

    void next(uint64_t seen) {  // returns when the ticket is not `seen`
        for (int64_t end = stretto::now_ns() + IDLE_SPIN_NS;; end = expected.load()) {
            do
                for (int i = 0; i < 32; ++i) {
                    if (ticket.load(std::memory_order_acquire) != seen) return;
                    stretto::cpu_pause();
                }
            while (stretto::now_ns() < end);
            if (sleep(seen)) return;
            leave_core(callers_core.load(std::memory_order_relaxed), unit);
        }
    }

    bool sleep(uint64_t seen) {  // until there is a job (returns true), or one is announced
        lock.take();
        asleep.store(true);
        while (ticket.load() == seen && stretto::now_ns() >= expected.load())
            pthread_cond_wait(&wake, &lock.mutex);
        asleep.store(false);
        placed.allow_all();
        lock.release();
        return ticket.load(std::memory_order_acquire) != seen;
    }
};

// Usual time of a program's launches on threads. Two programs that share a place overwrite each other:
// a launch is then abandoned no sooner than the first one of a program.
struct Usual {
    struct Place {
        Entry entry;
        int64_t ns;
    };
    Place places[1024] = {};

    int64_t& of(Entry entry) {
        uint64_t mixed = uint64_t(reinterpret_cast<uintptr_t>(entry)) * 0x9E3779B97F4A7C15u;
        Place& place = places[mixed >> 54];
        if (place.entry != entry) place = {entry, FIRST_USUAL_NS};
        return place.ns;
    }
};

struct Pool {
    Lock busy;
    std::vector<Worker*> workers;  // worker i runs unit i + 1
    Entry entry = nullptr;
    Context* ctx = nullptr;
    int callers_core = -1;
    int64_t start = 0;
    int64_t tolerated = 0;  // ns that a unit may lose in this launch
    Usual usual;            // ns that launches on threads took, on average
    clockid_t callers_clock{};
    Crowd crowd;
    alignas(128) std::atomic<int> running{0};

    bool grow(int count);
    bool has_cores(int units);
    void run(Entry job, Context* job_ctx);
    clockid_t clock(int unit) const { return unit == 0 ? callers_clock : workers[unit - 1]->clock; }
};

// Never freed: its threads may be asleep in it when the process ends.
Pool* shared_pool = nullptr;

clockid_t clock_of(pthread_t thread) {
    clockid_t clock = CLOCK_MONOTONIC;  // without a thread clock, every unit seems to have a core
#if defined(__linux__)
    pthread_getcpuclockid(thread, &clock);
#endif
    return clock;
}

int64_t read_clock(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

struct Watched {  // observations by this thread of the unit that it waits for
    int64_t launch = 0, wait = 0;  // start times
    int64_t at = 0, used = 0;
    int64_t lost = 0;  // in this launch
};
thread_local Watched watched;

bool has_core(Context* ctx, int, int unit, int64_t wait) {
    if (ctx->progress[unit].in_library.load(__ATOMIC_RELAXED) != 0) {
        watched.wait = 0;  // it may sleep there
        return true;
    }
    int64_t now = stretto::now_ns(), used = read_clock(shared_pool->clock(unit));
    if (watched.launch != shared_pool->start) watched = {shared_pool->start};
    if (watched.wait == wait) {
        int64_t passed = now - watched.at, lost = passed - (used - watched.used);
        if (lost > passed / 2) watched.lost += lost;
    }
    watched.wait = wait;
    watched.at = now;
    watched.used = used;
    int64_t share = (now - watched.launch) / LOST_SHARE, tolerated = shared_pool->tolerated;
    return watched.lost <= (share > tolerated ? share : tolerated);
}

// ---- sleeping during library calls -----------------------------------------------------------------
// The library's threads need the cores of the waiting units. A unit publishes, then checks for
// sleepers; a thread registers as a sleeper, then checks for the step. So one of them sees the other.
constexpr int64_t SLEEP_NS = 1'000'000;  // the longest, so that a stop is seen

void sleep_until(Context* ctx, int unit, int64_t target) {
    stretto::Progress& progress = ctx->progress[unit];
#if defined(__linux__)
    progress.sleepers.add(1);
    int32_t wakes = progress.wakes.load(__ATOMIC_SEQ_CST);
    timespec most{0, SLEEP_NS};
    if (progress.value.load(__ATOMIC_SEQ_CST) < target && !stretto::stopped(ctx))
        syscall(SYS_futex, &progress.wakes, FUTEX_WAIT_PRIVATE, wakes, &most, nullptr, 0);
    progress.sleepers.add(-1);
#else
    usleep(10);
#endif
}

void wake_sleepers(Context* ctx, int self) {
#if defined(__linux__)
    stretto::Progress& progress = ctx->progress[self];
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (progress.sleepers.load(__ATOMIC_SEQ_CST) == 0) return;
    progress.wakes.add(1);
    syscall(SYS_futex, &progress.wakes, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

void run_unit_0(Entry entry, Context* ctx) {
    if (ctx->deep != 0)
        run_fibers(entry, ctx, 1);
    else
        entry(ctx, 0);
}

void run_all_as_fibers(Entry entry, Context* ctx) {
    ctx->sleep = nullptr;
    ctx->wake = nullptr;
    ctx->switch_unit = switch_unit;
    run_fibers(entry, ctx, ctx->units);
    ctx->switch_unit = nullptr;
}

void* worker_main(void* argument) {
    auto* worker = static_cast<Worker*>(argument);
    Pool* pool = worker->pool;
    auto top = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
    uintptr_t limit = top - worker->stack_bytes + 2 * STACK_MARGIN;
    launches = 1;  // a launch inside a library call on this thread must not wait for this pool
    for (uint64_t seen = 0;; ++seen) {
        worker->next(seen);
        pool->ctx->progress[worker->unit].stack_limit = limit;
        leave_core(pool->callers_core, worker->unit);
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
        if (error != 0) continue;
        worker->clock = clock_of(worker->thread);
        return true;
    }
    return false;
}

bool Pool::grow(int count) {
    while (int(workers.size()) < count) {
        auto* worker = new Worker;
        worker->pool = this;
        worker->unit = int(workers.size()) + 1;
        workers.push_back(worker);
        if (start_thread(worker)) continue;
        workers.pop_back();
        delete worker;
        return false;
    }
    return true;
}

// True if each worker has a free core, as far as is known. If they had none, they are woken for a
// while during launches on fibers, and the processor time that they got is measured.
bool Pool::has_cores(int units) {
    if (!crowd.known()) return true;
    if (crowd.now()) return false;
    int there = units - 1 < int(workers.size()) ? units - 1 : int(workers.size());
    int64_t now = stretto::now_ns();
    if (crowd.probed == 0) {
        crowd.probed = now;
        int core = current_core();
        for (int i = 0; i < there; ++i) {
            workers[i]->used = read_clock(workers[i]->clock);
            workers[i]->expect(now + PROBE_NS, core);
        }
        return false;
    }
    int64_t passed = now - crowd.probed;
    if (passed < SHORTEST_PROBE_NS) return false;
    if (passed > PROBE_NS) passed = PROBE_NS;
    for (int i = 0; i < there; ++i) {
        int64_t used = read_clock(workers[i]->clock) - workers[i]->used;
        if (used >= passed - passed / PROBE_SHARE - WAKE_NS) continue;
        crowd.met(LONGEST_PROBE_PAUSE_NS);
        return false;
    }
    crowd.ended();
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
    callers_clock = clock_of(pthread_self());
    int64_t& took = usual.of(job);
    tolerated = took > LOST_NS ? took : LOST_NS;
    start = stretto::now_ns();
    ctx->has_core = ctx->once ? nullptr : has_core;
    running.store(ctx->units - 1, std::memory_order_relaxed);
    for (int i = 0; i < ctx->units - 1; ++i) workers[i]->notify(callers_core);
    run_unit_0(job, ctx);
    for (int spins = 0; running.load(std::memory_order_acquire) != 0; ++spins) {
        stretto::cpu_pause();
        if (spins % 64 != 63) continue;
        if (!stretto::stopped(ctx)) stretto::poll_if_due(ctx);
        if (spins > END_SPINS || stretto::stopped(ctx)) usleep(stretto::LOOK_INTERVAL_NS / 2000);
    }
    ctx->has_core = nullptr;
    if (ctx->status.load(__ATOMIC_RELAXED) == stretto::CROWDED) {
        crowd.met(LONGEST_PAUSE_NS);
        return;
    }
    int64_t now_taken = stretto::now_ns() - start;
    took += (now_taken - took) / 4;
    crowd.not_met(now_taken);
}

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
    ctx->stop.store(0, __ATOMIC_RELAXED);
    ctx->status.store(stretto::OK, __ATOMIC_RELAXED);
    ctx->detail = 0;
    if (ctx->calls != nullptr) ctx->clear_calls(ctx->calls);
    for (int unit = 0; unit < ctx->units; ++unit) {
        ctx->progress[unit].value.store(0, __ATOMIC_RELAXED);
        ctx->progress[unit].stack_limit = 0;
        ctx->progress[unit].in_library.store(0, __ATOMIC_RELAXED);
        if (ctx->event_count != nullptr) ctx->event_count[unit] = 0;
    }
}

void begin(Context* ctx) {
    reset(ctx);
    ctx->library = library;
    ctx->poll = is_main_thread() ? poll : nullptr;
    ctx->switch_unit = nullptr;
    bool sleeps = ctx->callable != nullptr && ctx->units > 1;
    ctx->sleep = sleeps ? sleep_until : nullptr;
    ctx->wake = sleeps ? wake_sleepers : nullptr;
    ctx->has_core = nullptr;
    ctx->next_poll = stretto::now_ns() + stretto::POLL_INTERVAL_NS;
    if (ctx->deadline != 0 && ctx->deadline < ctx->next_poll) ctx->next_poll = ctx->deadline;
}

// Uses threads if there is enough work and every unit gets a core: not inside a library call of
// another launch, nor during a launch of another thread, nor among busy processes.
void run_units(Entry entry, Context* ctx) {
    Pool* pool = shared_pool;
    bool small = ctx->is_small != nullptr && ctx->is_small(ctx) != 0;
    bool room = !small && ctx->units <= cores && launches == 1 && !pool->crowd.now();
    if (room && pool->busy.try_to_take()) {
        bool threads = pool->has_cores(ctx->units);
        if (threads) pool->run(entry, ctx);
        pool->busy.release();
        if (threads && ctx->status.load(__ATOMIC_RELAXED) != stretto::CROWDED) return;
        if (threads) reset(ctx);
    }
    run_all_as_fibers(entry, ctx);
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
    begin(ctx);
    if (ctx->units == 1)
        run_unit_0(entry, ctx);
    else
        run_units(entry, ctx);
    --launches;
    if (ctx->calls != nullptr) ctx->clear_calls(ctx->calls);
    python.restore_thread(state);
    if (ctx->exception[0] != nullptr) {
        python.restore_error(ctx->exception[0], ctx->exception[1], ctx->exception[2]);
        for (void*& part : ctx->exception) part = nullptr;
    }
    return ctx->status.load(__ATOMIC_RELAXED);
}

// Announces a launch with this number of units: sleeping workers wake up.
extern "C" void stretto_pool_expect(int32_t units) {
    Pool* pool = shared_pool;
    if (units > cores || launches != 0 || pool->crowd.known() || !pool->busy.try_to_take()) return;
    int64_t until = stretto::now_ns() + EXPECTED_NS;
    int core = current_core();
    for (int i = 0; i < units - 1 && i < int(pool->workers.size()); ++i)
        pool->workers[i]->expect(until, core);
    pool->busy.release();
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
    *out++ = offsetof(Context, wake);
}
