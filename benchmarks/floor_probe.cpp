// Measures what the physical floor is made of: peak float32 operations per second, and the
// bandwidth of reads from working sets that fit the L2 caches, the L3 cache, or only memory.
// Arguments: threads, then bytes per thread of each working set. Prints one number per line:
// operations per second, then bytes per second of each working set.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float Vector __attribute__((vector_size(kWidth * 4)));

constexpr int kChains = 12;  // more than latency x units of any current core
volatile float sink;
volatile float source = 0.5f;

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

float total(const Vector* values, int count) {
    float sum = 0;
    for (int i = 0; i < count; ++i)
        for (int lane = 0; lane < kWidth; ++lane) sum += values[i][lane];
    return sum;
}

double multiply_add(long repeat) {
    Vector chain[kChains], scale, offset;
    for (int lane = 0; lane < kWidth; ++lane) scale[lane] = source, offset[lane] = source;
    for (auto& value : chain) value = offset;
    for (long r = 0; r < repeat; ++r)
        for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * scale + offset;
    sink = total(chain, kChains);
    return 2.0 * repeat * kChains * kWidth;
}

double read(const Vector* data, long vectors, long repeat) {
    Vector sum[8] = {};
    for (long r = 0; r < repeat; ++r) {
        for (long i = 0; i + 8 <= vectors; i += 8)
            for (int j = 0; j < 8; ++j) sum[j] += data[i + j];
        asm volatile("" ::: "memory");
    }
    sink = total(sum, 8);
    return double(repeat) * (vectors / 8 * 8) * sizeof(Vector);
}

// Amount of work per second over all threads, which start together; the best of several tries.
double rate(int threads, const std::function<double(int)>& work) {
    double best = 0;
    for (int attempt = 0; attempt < 7; ++attempt) {
        std::atomic<int> waiting{threads};
        std::vector<double> amount(threads), start(threads), end(threads);
        std::vector<std::thread> pool;
        for (int t = 0; t < threads; ++t)
            pool.emplace_back([&, t] {
                waiting.fetch_sub(1);
                while (waiting.load() > 0) {
                }
                start[t] = now();
                amount[t] = work(t);
                end[t] = now();
            });
        for (auto& thread : pool) thread.join();
        double sum = 0;
        for (double value : amount) sum += value;
        double seconds = *std::max_element(end.begin(), end.end()) -
                         *std::min_element(start.begin(), start.end());
        best = std::max(best, sum / seconds);
    }
    return best;
}

// Memory in pages of 2 MiB where the system has them: a core reads a third more from those.
Vector* allocate(long bytes) {
    constexpr long page = 2 << 20;
    long rounded = (bytes + page - 1) / page * page;
    void* memory = std::aligned_alloc(page, rounded);
#ifdef MADV_HUGEPAGE
    madvise(memory, rounded, MADV_HUGEPAGE);
#endif
    return static_cast<Vector*>(memory);
}

int main(int count, char** arguments) {
    int threads = count > 1 ? std::atoi(arguments[1]) : 1;
    std::printf("%.6g\n", rate(threads, [](int) { return multiply_add(4'000'000); }));
    for (int i = 2; i < count; ++i) {
        long bytes = std::atol(arguments[i]);
        long vectors = bytes / long(sizeof(Vector));
        std::vector<Vector*> data(threads);
        for (auto& pointer : data) {
            pointer = allocate(bytes);
            for (long j = 0; j < vectors; ++j) pointer[j] = Vector{} + 1.0f;
        }
        long repeat = std::max(2L, (1L << 28) / bytes);
        std::printf("%.6g\n", rate(threads, [&](int t) { return read(data[t], vectors, repeat); }));
        for (auto* pointer : data) std::free(pointer);
    }
}
