// A run, from its start to the Python objects of its results.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "flat.h"
#include "scheduler.h"

namespace stretto {

namespace {

struct Batch {
  Run run;
  Scheduler scheduler;
  const Flat* flat;
  bool is_done = false;

  // Results: objects that the run created, their Python objects, and tensors to create.
  std::vector<Object*> objects;
  std::vector<Py> made;
  std::vector<int32_t> place_of;  // for each tensor number: -1, or its place among the wanted ones of its pool
  struct Wanted {
    std::vector<int64_t> singles, rows, lengths;
    int64_t first = 0;  // place of its first tensor in the list of tensors
  };
  std::vector<Wanted> wanted;  // of each pool

  ~Batch() {
    std::free(run.tensors);
    std::free(run.noted);
    std::free(run.words);
  }
};

// -- the tensors and objects in the results ------------------------------------------------------------

class Collector {
 public:
  explicit Collector(Batch& batch) : batch_(batch) {}

  void add(Value root) {
    pending_.push_back(root);
    while (!pending_.empty()) {
      const Value value = pending_.back();
      pending_.pop_back();
      visit(value);
    }
  }

 private:
  void visit(Value value) {
    if (value.kind == kTensor) return tensor(static_cast<uint32_t>(value.i));
    if (value.kind < kRows || value.object->source != -1) return;
    if (value.kind == kRows) return rows(as_rows(value));
    value.object->source = -2 - static_cast<int32_t>(batch_.objects.size());
    batch_.objects.push_back(value.object);
    if (value.kind == kDict) {
      for (uint32_t i = 0; i < as_dict(value)->used; ++i)
        if (as_dict(value)->entries[i].is_live) pending_.push_back(as_dict(value)->entries[i].value);
      return;
    }
    for (uint32_t i = 0; i < value.object->length; ++i) pending_.push_back(items_of(value)[i]);
  }

  void tensor(uint32_t number) {
    const Flat& flat = *batch_.flat;
    const auto shared = static_cast<uint32_t>(flat.program->shared_count);
    const bool has_python =
        number < shared || (number < flat.numbered.size() && flat.tensor_of_number[number] >= 0);
    if (has_python || batch_.place_of[number] >= 0) return;
    const TensorInfo& info = batch_.run.tensors[number];
    auto& singles = batch_.wanted[static_cast<size_t>(info.pool)].singles;
    batch_.place_of[number] = static_cast<int32_t>(singles.size());
    singles.push_back(info.row);
  }

  void rows(Rows* rows) {
    auto& wanted = batch_.wanted[rows->type];
    rows->source = -2 - static_cast<int32_t>(wanted.lengths.size());
    wanted.lengths.push_back(rows->length);
    for (uint32_t i = 0; i < rows->length; ++i)
      wanted.rows.push_back(batch_.run.tensors[rows->numbers[i]].row);
  }

  Batch& batch_;
  std::vector<Value> pending_;
};

// -- tensors of the results --------------------------------------------------------------------------

// Returns the Python object of a tensor, and releases the handle; null if there is no memory.
Py object_of(void* tensor) {
  Py made = nullptr;
  try {
    made = python.tensor_object(tensor);
  } catch (...) {  // exceptions of torch
    python.forget_exception();
  }
  python.tensor_release(tensor);
  return made;
}

constexpr int32_t kInt64 = 4, kFloat64 = 7;  // c10::ScalarType

// Returns a tensor over memory of the runtime; 2D with rows of `width` elements unless `width` is 0.
template <class T> Py shown(T* data, int64_t count, int64_t width, int32_t dtype) {
  static T nothing;
  const int64_t sizes[] = {width ? count / width : count, width}, strides[] = {width ? width : 1, 1};
  void* tensor = nullptr;
  if (python.tensor_of_memory(count ? data : &nothing, width ? 2 : 1, sizes, strides, 0, dtype, 0, 0, &tensor))
    return nullptr;
  return object_of(tensor);
}

// Creates tensors from rows of a pool in main memory.
class Maker {
 public:
  Maker(const PoolInfo& pool, const char* memory) : pool_(pool), memory_(memory) {
    const auto rank = static_cast<size_t>(pool.rank);
    sizes_.assign(1, 1);
    sizes_.insert(sizes_.end(), pool.shape, pool.shape + rank);
    strides_.assign(rank + 1, 1);
    for (size_t i = rank; i-- > 0;) strides_[i] = strides_[i + 1] * std::max<int64_t>(sizes_[i + 1], 1);
  }

  // as_rows: return a tensor [count, ...] of these rows; else one of the only row. Null: no memory.
  Py make(const int64_t* rows, int64_t count, bool as_rows) const {
    std::vector<int64_t> sizes;
    const int64_t* shape = sizes_.data() + 1;
    if (as_rows) {
      sizes = sizes_;
      sizes[0] = count;
      shape = sizes.data();
    }
    void *tensor = nullptr, *data = nullptr;
    const int64_t* strides = strides_.data() + !as_rows;
    if (python.tensor_new(pool_.rank + as_rows, shape, strides, pool_.dtype, 0, 0, &tensor)) return nullptr;
    python.tensor_data(tensor, &data);
    const auto bytes = static_cast<size_t>(pool_.itemsize);
    for (int64_t i = 0; i < count && bytes; ++i)
      std::memcpy(static_cast<char*>(data) + static_cast<size_t>(i) * bytes, memory_ + rows[i] * pool_.itemsize, bytes);
    return object_of(tensor);
  }

 private:
  const PoolInfo& pool_;
  const char* memory_;
  std::vector<int64_t> sizes_, strides_;
};

// -- Python objects of the results ---------------------------------------------------------------------

// Mutable objects are created empty when they are first found, so that cycles work; a tuple is created
// after all of its items.
class Builder {
 public:
  Builder(Batch& batch, Py shared, Py tensors) : batch_(batch), shared_(shared), tensors_(tensors) {}

  // Returns a new reference, or null with a Python exception set.
  Py build(Value root) {
    want(root);
    while (!steps_.empty()) {
      const Step step = steps_.back();
      steps_.pop_back();
      if (!(step.is_second ? finish(step.object) : begin(step.object))) return nullptr;
    }
    return reference(root);
  }

 private:
  struct Step {
    Object* object;
    bool is_second;
  };

  static bool is_made_here(Value value) {
    return value.kind > kRows && value.object->source < 0;
  }
  Py& made(const Object* object) { return batch_.made[static_cast<size_t>(-2 - object->source)]; }
  void want(Value value) {
    if (is_made_here(value) && !made(value.object)) steps_.push_back(Step{value.object, false});
  }
  const PythonClass& python_class(const Object* object) { return batch_.flat->classes[object->type]; }
  bool is_tuple(const Object* object) {
    return object->kind == kTuple ||
           (object->kind == kRecord && batch_.run.program->classes[object->type].kind == kNamedTuple);
  }

  bool begin(Object* object) {
    if (made(object)) return true;
    if (!is_tuple(object)) {
      Py& place = made(object);
      if (object->kind == kList) place = python.list_new(object->length);
      else if (object->kind == kDict || batch_.run.program->classes[object->type].kind == kFixedDict)
        place = python.dict_new();
      else place = python.call(python_class(object).create, python_class(object).type);
      if (!place) return false;
    }
    steps_.push_back(Step{object, true});
    if (object->kind == kDict) {
      auto* dict = static_cast<Dict*>(object);
      for (uint32_t i = 0; i < dict->used; ++i)
        if (dict->entries[i].is_live) want(dict->entries[i].value);
      return true;
    }
    for (uint32_t i = 0; i < object->length; ++i) want(items_of(box(object))[i]);
    return true;
  }

  bool finish(Object* object) {
    if (is_tuple(object)) return made(object) || make_tuple(object);
    if (object->kind == kDict) return fill_dict(static_cast<Dict*>(object));
    const Value* items = items_of(box(object));
    for (uint32_t i = 0; i < object->length; ++i) {
      if (items[i].kind == kUnset) continue;
      Py item = reference(items[i]);
      if (!item) return false;
      if (object->kind == kList) {
        python.list_set(made(object), i, item);
        continue;
      }
      const bool is_dict = batch_.run.program->classes[object->type].kind == kFixedDict;
      Py name = python_class(object).fields[i];
      const int code = is_dict ? python.dict_set(made(object), name, item)
                               : python.set_attribute(made(object), name, item);
      python.release(item);
      if (code) return false;
    }
    return true;
  }

  bool make_tuple(Object* object) {
    Py tuple = python.tuple_new(object->length);
    if (!tuple) return false;
    for (uint32_t i = 0; i < object->length; ++i) {
      Py item = reference(items_of(box(object))[i]);
      if (!item) return false;
      python.tuple_set(tuple, i, item);
    }
    if (object->kind == kRecord) {
      Py named = python.call(python_class(object).create, tuple);
      python.release(tuple);
      tuple = named;
    }
    return (made(object) = tuple) != nullptr;
  }

  bool fill_dict(Dict* dict) {
    for (uint32_t i = 0; i < dict->used; ++i) {
      if (!dict->entries[i].is_live) continue;
      Py key = reference(dict->entries[i].key), item = reference(dict->entries[i].value);
      const int code = key && item ? python.dict_set(made(dict), key, item) : -1;
      if (key) python.release(key);
      if (item) python.release(item);
      if (code) return false;
    }
    return true;
  }

  static Py retained(Py object) {
    python.retain(object);
    return object;
  }

  Py tensor(uint32_t number) {
    const Flat& flat = *batch_.flat;
    const auto shared = static_cast<uint32_t>(flat.program->shared_count);
    if (number < shared) return retained(python.list_get(shared_, number));
    if (number < flat.numbered.size() && flat.tensor_of_number[number] >= 0)
      return retained(flat.tensors[static_cast<size_t>(flat.tensor_of_number[number])].python);
    const auto& wanted = batch_.wanted[static_cast<size_t>(batch_.run.tensors[number].pool)];
    return retained(python.list_get(tensors_, wanted.first + batch_.place_of[number]));
  }

  Py reference(Value value) {
    switch (value.kind) {
      case kNone: return retained(python.none);
      case kBool: return retained(value.i ? python.yes : python.no);
      case kInt: return python.int_new(value.i);
      case kFloat: return python.float_new(value.f);
      case kTensor: return tensor(static_cast<uint32_t>(value.i));
      default: break;
    }
    const Object* object = value.object;
    if (object->source >= 0) return retained(batch_.flat->source(object));
    if (value.kind == kStr) return python.text_new(as_str(value)->text, object->length);
    if (value.kind == kRows) {
      const auto& wanted = batch_.wanted[object->type];
      const int64_t place = wanted.first + static_cast<int64_t>(wanted.singles.size()) - 2 - object->source;
      return retained(python.list_get(tensors_, place));
    }
    return retained(made(object));
  }

  Batch& batch_;
  Py shared_, tensors_;
  std::vector<Step> steps_;
};

}  // namespace
}  // namespace stretto

using namespace stretto;

extern "C" {

Batch* stretto_host_start(const Flat* flat) {
  auto* batch = new Batch();
  const ProgramInfo& info = *flat->program;
  Run& run = batch->run;
  Scheduler& scheduler = batch->scheduler;
  batch->flat = flat;
  run.program = &info;
  run.scheduler = &scheduler;
  run.grow_tensors(flat->numbered.size() + 64 * static_cast<uint64_t>(flat->instances));
  for (const TensorInfo& tensor : flat->numbered) run.tensors[run.tensor_count++] = tensor;
  scheduler.flushed = run.tensor_count;
  scheduler.next_row = flat->next_row;
  scheduler.arguments = flat->arguments.data();
  scheduler.instances = flat->instances;
  scheduler.outcomes.resize(static_cast<size_t>(flat->instances));
  scheduler.times[0] = flat->time;
  for (int32_t i = 0; i < info.block_count; ++i) scheduler.kinds.push_back(BlockKind{static_cast<uint32_t>(i), {}});
  scheduler.kind_of_length.resize(static_cast<size_t>(info.block_count));
  return batch;
}

struct TableView {
  const int64_t* steps;
  int64_t step_words;
  const int64_t* indices;
  int64_t index_count;
  const double* numbers;
  int64_t number_count;
  const int64_t* rows;  // number of rows in use of each pool
  int64_t largest, longest;
};

// pools: the memory of each pool. Runs all instances until each has ended or waits, and writes the
// tables of the recorded blocks. Returns 1 if there are steps to run: `view` and the list `tensors` have
// the tables (the list only if python.tensor_object is known); 0 if all have ended; -1: no memory.
int32_t stretto_host_advance(Batch* batch, const void* const* pools, TableView* view, Py tensors) {
  Scheduler& scheduler = batch->scheduler;
  scheduler.pools = pools;
  try {
    for (;;) {
      const int64_t start = now();
      go_on(batch->run);
      const int64_t recorded = now();
      const bool has_steps = batch->run.noted_count != 0;
      if (has_steps) flush(batch->run);
      scheduler.times[1] += recorded - start;
      scheduler.times[2] += now() - recorded;
      if (has_steps) break;
      if (scheduler.waiting.empty()) return 0;
    }
  } catch (const std::bad_alloc&) {
    return -1;
  }
  auto& steps = scheduler.steps;
  auto& indices = scheduler.indices;
  auto& numbers = scheduler.numbers;
  const auto count = [](const auto& items) { return static_cast<int64_t>(items.size()); };
  *view = TableView{steps.data(),   count(steps),   indices.data(),           count(indices),
                    numbers.data(), count(numbers), scheduler.next_row.data(), scheduler.largest,
                    scheduler.longest};
  if (!python.tensor_object) return 1;
  const ProgramInfo& info = *batch->run.program;
  Py made[] = {shown(steps.data(), count(steps), width_of(info), kInt64),
               shown(indices.data(), count(indices), 0, kInt64), shown(numbers.data(), count(numbers), 0, kFloat64)};
  for (intptr_t i = 0; i < 3; ++i) {
    if (!made[i]) return -1;
    python.list_set(tensors, i, made[i]);
  }
  return 1;
}

// Finds the tensors that the results need. counts: for each pool the number of single tensors and of
// rows. stretto_host_wanted then returns the row numbers and lengths of a pool.
void stretto_host_collect(Batch* batch, int64_t* counts) {
  const int64_t start = now();
  const auto pools = static_cast<size_t>(batch->run.program->pool_count);
  batch->wanted.resize(pools);
  batch->place_of.assign(batch->run.tensor_count, -1);
  Collector collector(*batch);
  for (const Outcome& outcome : batch->scheduler.outcomes)
    collector.add(outcome.has_failed ? outcome.failure.arguments : outcome.value);
  int64_t first = 0;
  for (size_t i = 0; i < pools; ++i) {
    auto& wanted = batch->wanted[i];
    wanted.first = first;
    counts[2 * i] = static_cast<int64_t>(wanted.singles.size());
    counts[2 * i + 1] = static_cast<int64_t>(wanted.lengths.size());
    first += counts[2 * i] + counts[2 * i + 1];
  }
  batch->scheduler.times[3] += now() - start;
}

void stretto_host_wanted(const Batch* batch, int64_t pool, TableView* view) {
  const auto& wanted = batch->wanted[static_cast<size_t>(pool)];
  *view = TableView{wanted.singles.data(), static_cast<int64_t>(wanted.singles.size()), wanted.rows.data(),
                    static_cast<int64_t>(wanted.rows.size()), nullptr, 0, wanted.lengths.data(), 0, 0};
}

// Stores the wanted tensors of a pool at their places in the list: copies of its rows, each with its own
// memory. -1: no memory.
int32_t stretto_host_take(const Batch* batch, int64_t pool, const void* memory, Py list) {
  const auto& wanted = batch->wanted[static_cast<size_t>(pool)];
  const Maker maker(batch->run.program->pools[pool], static_cast<const char*>(memory));
  int64_t place = wanted.first;
  for (const int64_t& row : wanted.singles) {
    Py made = maker.make(&row, 1, false);
    if (!made) return -1;
    python.list_set(list, place++, made);
  }
  const int64_t* rows = wanted.rows.data();
  for (int64_t length : wanted.lengths) {
    Py made = maker.make(rows, length, true);
    if (!made) return -1;
    python.list_set(list, place++, made);
    rows += length;
  }
  return 0;
}

// shared: the shared tensors; tensors: the wanted ones, pool by pool, single ones first. Stores the
// results in a list. If an instance failed, its entry in `failures` (site, code) is set, and its result
// is the tuple of arguments. Returns -1 with a Python exception set.
int32_t stretto_host_results(Batch* batch, Py shared, Py tensors, Py list, int32_t* failures) {
  const int64_t start = now();
  batch->made.assign(batch->objects.size(), nullptr);
  Builder builder(*batch, shared, tensors);
  int32_t code = 0;
  const auto& outcomes = batch->scheduler.outcomes;
  for (size_t i = 0; i < outcomes.size() && !code; ++i) {
    const Outcome& outcome = outcomes[i];
    Py result = builder.build(outcome.has_failed ? outcome.failure.arguments : outcome.value);
    if (!result) code = -1;
    else python.list_set(list, static_cast<intptr_t>(i), result);
    failures[2 * i] = outcome.has_failed ? outcome.failure.site : 0;
    failures[2 * i + 1] = outcome.has_failed ? outcome.failure.code : -1;
  }
  for (Py object : batch->made)
    if (object) python.release(object);
  batch->made.clear();
  batch->scheduler.times[3] += now() - start;
  return code;
}

void stretto_host_times(const Batch* batch, int64_t* out) {
  for (int i = 0; i < 4; ++i) out[i] = batch->scheduler.times[i];
}

void stretto_host_delete(Batch* batch) { delete batch; }
}
