// The tensors of instances: their pools, and copying them there.
#include "flat.h"
#include "scheduler.h"

namespace stretto {

namespace {

constexpr size_t kAhead = 8, kLine = 64;  // prefetch distance in tensors; bytes of a cache line

bool has_dims(const PoolInfo& pool, const int64_t* sizes, int64_t rank, int32_t dtype) {
  if (pool.dtype != dtype || pool.rank != rank) return false;
  for (int64_t i = 0; i < rank; ++i)
    if (pool.shape[i] != sizes[i]) return false;
  return true;
}

// Properties of a tensor.
struct Seen {
  void* implementation;
  int64_t rank = 0, *sizes = nullptr;
  int32_t dtype = 0;
};

// Reads the properties of a tensor; false if it is not dense or not in main memory.
bool look_at(Py tensor, Seen& seen) {
  int32_t device = 0, layout = 0;
  seen.implementation = implementation_of(tensor);
  void* handle = &seen.implementation;
  return seen.implementation && !python.tensor_layout(handle, &layout) && layout == 0 &&
         !python.tensor_device(handle, &device) && device == 0 && !python.tensor_rank(handle, &seen.rank) &&
         !python.tensor_sizes(handle, &seen.sizes) && !python.tensor_dtype(handle, &seen.dtype);
}

// Returns the pool of the tensor, or of its rows; -1 if there is none. guess: a likely one.
int32_t pool_of(const ProgramInfo& info, const Seen& seen, bool as_rows, int32_t& guess) {
  const int64_t *sizes = seen.sizes + as_rows, rank = seen.rank - as_rows;
  if (guess >= 0 && has_dims(info.pools[guess], sizes, rank, seen.dtype)) return guess;
  for (int32_t i = 0; i < info.pool_count; ++i)
    if (has_dims(info.pools[i], sizes, rank, seen.dtype)) return guess = i;
  return -1;
}

// Returns the elements if they are contiguous, so that they can be copied as bytes; else null. Null also
// for a tensor without dims, which could be an element of a conjugated view with another sign than its
// memory.
const char* plain_data(Seen& seen) {
  int64_t* strides = nullptr;
  void *handle = &seen.implementation, *data = nullptr;
  if (!seen.rank || python.tensor_strides(handle, &strides)) return nullptr;
  int64_t stride = 1;
  for (int64_t i = seen.rank; i-- > 0;) {
    if (strides[i] != stride) return nullptr;
    stride *= seen.sizes[i];
  }
  return python.tensor_data(handle, &data) ? nullptr : static_cast<const char*>(data);
}

int32_t add_number(Flat& flat, int32_t pool, int32_t tensor) {
  const auto number = static_cast<int32_t>(flat.numbered.size());
  auto& row = flat.next_row[static_cast<size_t>(pool)];
  flat.numbered.push_back(TensorInfo{0, pool, static_cast<int32_t>(row++)});
  flat.tensor_of_number.push_back(tensor);
  return number;
}

void place_tensor(Flat& flat, uint32_t index, bool as_rows) {
  FlatTensor& tensor = flat.tensors[index];
  const int32_t pool = as_rows ? tensor.rows_pool : tensor.pool;
  const int64_t count = as_rows ? tensor.first_dim : 1;
  flat.copies.push_back(Copy{index, pool, flat.next_row[static_cast<size_t>(pool)], count, as_rows});
  if (!as_rows) {
    tensor.number = add_number(flat, pool, static_cast<int32_t>(index));
    return;
  }
  tensor.rows = new_rows(flat.arena, static_cast<size_t>(count));
  tensor.rows->type = static_cast<uint32_t>(pool);
  flat.sources.push_back(tensor.python);
  python.retain(tensor.python);
  tensor.rows->source = static_cast<int32_t>(flat.sources.size() - 1);
  for (int64_t i = 0; i < count; ++i)
    tensor.rows->numbers[i] = static_cast<uint32_t>(add_number(flat, pool, -1));
}

// Stores a tensor in its value: as one tensor if the type of the place allows it, else as rows.
bool settle_one(Flat& flat, const Met& met) {
  const TypeInfo& type = flat.program->types[met.type];
  const FlatTensor& tensor = flat.tensors[met.tensor];
  bool as_rows = false, is_found = false;
  for (int32_t i = 0; i < type.count; ++i) {
    const Alternative& item = type.alternatives[i];
    if (item.kind == kTensor && item.a == tensor.pool) {
      is_found = true;
      as_rows = false;
      break;
    }
    if (item.kind == kRows && item.a == tensor.rows_pool) is_found = as_rows = true;
  }
  if (!is_found) return false;
  if (as_rows ? !tensor.rows : tensor.number < 0) place_tensor(flat, met.tensor, as_rows);
  *met.place = as_rows ? box(tensor.rows) : box(Tensor{static_cast<uint32_t>(tensor.number)});
  return true;
}

void begin_numbers(Flat& flat) {
  const ProgramInfo& info = *flat.program;
  flat.next_row.assign(static_cast<size_t>(info.pool_count), 0);
  for (int32_t i = 0; i < info.shared_count; ++i) {
    const int32_t pool = info.shared[i];
    flat.numbered.push_back(TensorInfo{0, pool, static_cast<int32_t>(flat.next_row[static_cast<size_t>(pool)]++)});
    flat.tensor_of_number.push_back(-1);
  }
}

// Prefetches the memory of a tensor that is read soon.
void expect(const Flat& flat, size_t index) {
  if (index < flat.tensors.size()) __builtin_prefetch(flat.tensors[index].python);
  if (index < kAhead || index - kAhead / 2 >= flat.tensors.size() || !python.implementation_at) return;
  const auto* at = stored_at<const char*>(flat.tensors[index - kAhead / 2].python, python.implementation_at);
  for (size_t i = 0; i < 3; ++i) __builtin_prefetch(at + i * kLine);
}

}  // namespace

int64_t settle(Flat& flat) {
  int32_t last = -1, last_rows = -1;
  for (size_t i = 0; i < flat.tensors.size(); ++i) {
    expect(flat, i + kAhead);
    FlatTensor& tensor = flat.tensors[i];
    Seen seen;
    if (!look_at(tensor.python, seen)) continue;
    tensor.pool = pool_of(*flat.program, seen, false, last);
    if (!seen.rank) continue;
    tensor.first_dim = seen.sizes[0];
    tensor.rows_pool = pool_of(*flat.program, seen, true, last_rows);
  }
  begin_numbers(flat);
  int64_t failed = -1;
  for (const Met& met : flat.met)
    if ((failed < 0 || met.instance < failed) && !settle_one(flat, met)) failed = met.instance;
  flat.met.clear();
  return failed;
}

}  // namespace stretto

using namespace stretto;

extern "C" {

// Copies the shared tensors to their rows; otherwise like stretto_host_copy.
int64_t stretto_host_copy_shared(const ProgramInfo* info, Py shared, void* const* pools, int64_t* left) {
  int64_t count = 0;
  std::vector<int64_t> next(static_cast<size_t>(info->pool_count), 0);
  for (int32_t i = 0; i < info->shared_count; ++i) {
    const int32_t number = info->shared[i];
    const PoolInfo& pool = info->pools[number];
    const int64_t row = next[static_cast<size_t>(number)]++;
    Seen seen;
    const bool is_right =
        look_at(python.list_get(shared, i), seen) && has_dims(pool, seen.sizes, seen.rank, seen.dtype);
    const char* data = is_right ? plain_data(seen) : nullptr;
    if (!data) left[count++] = i;
    else std::memcpy(static_cast<char*>(pools[number]) + row * pool.itemsize, data, static_cast<size_t>(pool.itemsize));
  }
  return count;
}

int64_t stretto_host_copy_count(const Flat* flat) { return static_cast<int64_t>(flat->copies.size()); }

// Copies the tensors of the instances to the pools. Those that are not contiguous are left to Python:
// their numbers are written to `left`, and their count is returned. -2: a tensor has changed since it was
// flattened.
int64_t stretto_host_copy(const Flat* flat, void* const* pools, int64_t* left) {
  int64_t count = 0;
  std::vector<const char*> sources(flat->copies.size(), nullptr);
  for (size_t i = 0; i < flat->copies.size(); ++i) {
    const Copy& copy = flat->copies[i];
    const bool as_rows = copy.as_rows;
    Seen seen;
    if (!look_at(flat->tensors[copy.tensor].python, seen) || seen.rank < as_rows ||
        !has_dims(flat->program->pools[copy.pool], seen.sizes + as_rows, seen.rank - as_rows, seen.dtype) ||
        (as_rows && seen.sizes[0] != copy.rows))
      return -2;
    sources[i] = plain_data(seen);
    if (!sources[i]) left[count++] = static_cast<int64_t>(i);
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (i + 2 < sources.size() && sources[i + 2])
      for (size_t k = 0; k < 4; ++k) __builtin_prefetch(sources[i + 2] + k * kLine);
    if (!sources[i]) continue;
    const Copy& copy = flat->copies[i];
    const PoolInfo& pool = flat->program->pools[copy.pool];
    std::memcpy(static_cast<char*>(pools[copy.pool]) + copy.row * pool.itemsize, sources[i],
                static_cast<size_t>(copy.rows * pool.itemsize));
  }
  return count;
}

// Writes pool, first row and number of rows of a copy to `out`; returns its tensor.
Py stretto_host_copy_at(const Flat* flat, int64_t number, int64_t* out) {
  const Copy& copy = flat->copies[static_cast<size_t>(number)];
  out[0] = copy.pool;
  out[1] = copy.row;
  out[2] = copy.rows;
  Py tensor = flat->tensors[copy.tensor].python;
  python.retain(tensor);
  return tensor;
}
}
