// Sorts the recorded blocks into steps: the tables that the level program runs.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "scheduler.h"

namespace stretto {

namespace {

template <class T> void grow(T*& items, uint64_t used, uint64_t capacity) {
  auto* grown = static_cast<T*>(std::realloc(items, capacity * sizeof(T)));
  (void)used;
  if (!grown) throw std::bad_alloc();
  items = grown;
}

// A stable counting sort of `from` into `to` by a key below `buckets`.
template <class Key>
void sort_by(const std::vector<uint32_t>& from, std::vector<uint32_t>& to, size_t buckets, Key key) {
  std::vector<uint32_t> first(buckets + 1, 0);
  for (uint32_t item : from) ++first[key(item) + 1];
  for (size_t i = 1; i <= buckets; ++i) first[i] += first[i - 1];
  for (uint32_t item : from) to[first[key(item)]++] = item;
}

// Returns the records sorted by (phase, depth, kind), otherwise in the order of recording.
std::vector<uint32_t> sorted(const Run& run) {
  const Noted* noted = run.noted;
  const uint32_t count = run.noted_count;
  std::vector<uint32_t> order(count), other(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  uint32_t depth = 0, phase = 0;
  for (uint32_t i = 0; i < count; ++i) {
    depth = std::max(depth, static_cast<uint32_t>(noted[i].level));
    phase = std::max(phase, static_cast<uint32_t>(noted[i].level >> 32));
  }
  const size_t kinds = run.scheduler->kinds.size();
  sort_by(order, other, kinds, [&](uint32_t i) { return noted[i].kind; });
  sort_by(other, order, size_t{depth} + 1, [&](uint32_t i) { return static_cast<uint32_t>(noted[i].level); });
  if (!phase) return order;
  sort_by(order, other, size_t{phase} + 1, [&](uint32_t i) { return static_cast<uint32_t>(noted[i].level >> 32); });
  return other;
}

uint32_t length_of(const BlockKind& kind, const BlockInfo& block, int32_t input) {
  uint32_t place = 0;
  for (int32_t i = 0; i < input; ++i) place += block.inputs[i].kind == 1;
  return kind.lengths[place];
}

// Assigns rows to the results of a step, and appends its row to `steps`.
void place_results(Run& run, const uint32_t* records, int64_t count, const BlockKind& kind) {
  Scheduler& scheduler = *run.scheduler;
  const BlockInfo& block = run.program->blocks[kind.block];
  const size_t at = scheduler.steps.size();
  const int32_t outputs = run.program->max_outputs;
  scheduler.steps.resize(at + static_cast<size_t>(width_of(*run.program)), 0);
  int64_t* step = scheduler.steps.data() + at;
  step[0] = kind.block;
  step[1] = count;
  step[2] = static_cast<int64_t>(scheduler.indices.size());
  step[3] = static_cast<int64_t>(scheduler.numbers.size());
  uint32_t before = 0;  // results of a record before this output
  for (int32_t k = 0; k < block.output_count; ++k) {
    const BlockOutput& output = block.outputs[k];
    const uint32_t length = output.length_of < 0 ? 1 : length_of(kind, block, output.length_of);
    int64_t row = step[FIRST_COLUMNS + k] = scheduler.next_row[static_cast<size_t>(output.pool)];
    scheduler.next_row[static_cast<size_t>(output.pool)] += count * length;
    for (int64_t n = 0; n < count; ++n)
      for (uint32_t i = 0; i < length; ++i)
        run.tensors[run.noted[records[n]].first + before + i].row = static_cast<int32_t>(row++);
    before += length;
  }
  for (size_t i = 0; i < kind.lengths.size(); ++i) step[FIRST_COLUMNS + outputs + static_cast<int32_t>(i)] = kind.lengths[i];
}

// Writes the end of a level into its steps, which begin at `first`.
int64_t end_level(Run& run, int64_t first) {
  auto& steps = run.scheduler->steps;
  const int64_t width = width_of(*run.program), end = static_cast<int64_t>(steps.size()) / width;
  for (int64_t step = first; step < end; ++step) steps[static_cast<size_t>(step * width + 4)] = end;
  return end;
}

void write_operands(Run& run, const uint32_t* records, int64_t count, const BlockKind& kind) {
  Scheduler& scheduler = *run.scheduler;
  const BlockInfo& block = run.program->blocks[kind.block];
  const TensorInfo* tensors = run.tensors;
  for (int32_t k = 0; k < block.input_count; ++k) {
    const auto word_of = [&](int64_t n) { return run.words[run.noted[records[n]].words + static_cast<uint64_t>(k)]; };
    if (block.inputs[k].kind == 3) {
      for (int64_t n = 0; n < count; ++n) {
        const int64_t word = word_of(n);
        double number;
        std::memcpy(&number, &word, 8);
        scheduler.numbers.push_back(number);
      }
      continue;
    }
    auto& indices = scheduler.indices;
    const size_t begin = indices.size();
    if (block.inputs[k].kind == 1) {
      for (int64_t n = 0; n < count; ++n) {
        const auto* rows = reinterpret_cast<const Rows*>(word_of(n));
        for (uint32_t i = 0; i < rows->length; ++i) indices.push_back(tensors[rows->numbers[i]].row);
      }
      continue;
    }
    indices.resize(begin + static_cast<size_t>(count));
    int64_t* at = indices.data() + begin;
    if (block.inputs[k].kind == 0)
      for (int64_t n = 0; n < count; ++n) at[n] = tensors[word_of(n)].row;
    else
      for (int64_t n = 0; n < count; ++n) at[n] = word_of(n);
  }
}

}  // namespace

void Run::grow_tensors(uint64_t count) {
  const uint64_t wanted = uint64_t{tensor_count} + count;
  if (wanted > 0x7fffffff) throw std::bad_alloc();
  const uint64_t capacity = std::max(wanted, std::min<uint64_t>(2 * uint64_t{tensor_capacity} + 1024, 0x7fffffff));
  grow(tensors, tensor_count, capacity);
  tensor_capacity = static_cast<uint32_t>(capacity);
}

void Run::grow_noted(uint64_t operands) {
  if (noted_count == noted_capacity) {
    if (noted_capacity > 0x3fffffff) throw std::bad_alloc();
    const uint32_t capacity = 2 * noted_capacity + 1024;
    grow(noted, noted_count, capacity);
    noted_capacity = capacity;
  }
  if (word_capacity - word_count < operands) {
    const uint64_t capacity = 2 * word_capacity + 4096 + operands;
    grow(words, word_count, capacity);
    word_capacity = capacity;
  }
}

Value Run::rows_result(int32_t pool, int64_t level, uint32_t length) {
  Rows* made = new_rows(*this, length);
  made->type = static_cast<uint32_t>(pool);
  for (uint32_t i = 0; i < length; ++i) made->numbers[i] = result(pool, level).number;
  return box(made);
}

uint32_t kind_of_lengths(Run& run, uint32_t block, const uint32_t* lengths) {
  Scheduler& scheduler = *run.scheduler;
  const auto count = static_cast<size_t>(run.program->blocks[block].rows_count);
  auto& known = scheduler.kind_of_length[block];
  const bool is_direct = count == 1 && lengths[0] < 4096;
  if (is_direct && lengths[0] < known.size() && known[lengths[0]]) return known[lengths[0]];
  std::vector<uint32_t> key(lengths, lengths + count);
  const auto added = scheduler.kind_of.emplace(std::make_pair(block, key), static_cast<uint32_t>(scheduler.kinds.size()));
  if (added.second) scheduler.kinds.push_back(BlockKind{block, key});
  if (is_direct) {
    if (known.size() <= lengths[0]) known.resize(lengths[0] + size_t{1}, 0);
    known[lengths[0]] = added.first->second;
  }
  return added.first->second;
}

void flush(Run& run) {
  Scheduler& scheduler = *run.scheduler;
  scheduler.steps.clear();
  scheduler.indices.clear();
  scheduler.numbers.clear();
  scheduler.largest = scheduler.longest = 0;
  const std::vector<uint32_t> order = sorted(run);
  int64_t level = 0;  // its first step
  std::vector<int64_t> last(static_cast<size_t>(run.program->block_count), -1);  // level of each block
  for (uint32_t first = 0, end; first < run.noted_count; first = end) {
    const Noted& noted = run.noted[order[first]];
    const BlockKind& kind = scheduler.kinds[noted.kind];
    // A level has each block once, since steps of one block would share memory of intermediate values.
    if (first && (run.noted[order[first - 1]].level != noted.level || last[kind.block] == level))
      level = end_level(run, level);
    last[kind.block] = level;
    end = first + 1;
    while (end < run.noted_count && run.noted[order[end]].kind == noted.kind &&
           run.noted[order[end]].level == noted.level)
      ++end;
    scheduler.largest = std::max<int64_t>(scheduler.largest, end - first);
    for (uint32_t length : kind.lengths) scheduler.longest = std::max<int64_t>(scheduler.longest, length);
    place_results(run, &order[first], end - first, kind);
    write_operands(run, &order[first], end - first, kind);
  }
  end_level(run, level);
  for (int64_t rows : scheduler.next_row)
    if (rows > 0x7fffffff) throw std::bad_alloc();
  for (uint32_t i = scheduler.flushed; i < run.tensor_count; ++i) run.tensors[i].level = 0;
  scheduler.flushed = run.tensor_count;
  run.noted_count = 0;
  run.word_count = 0;
}

}  // namespace stretto
