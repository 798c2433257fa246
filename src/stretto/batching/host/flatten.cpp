// Python instances as native values. Every value is checked against the types of the program; each
// object is read once for each type under which it is met, so cyclic and deep data are no problem.
#include <cstring>
#include <new>

#include "flat.h"
#include "scheduler.h"

namespace stretto {

PythonApi python;

namespace {

// From the address of an object, and a type, to what was made of it.
class Memo {
 public:
  struct Item {
    Py object;
    int32_t type;  // -1: under whatever type it was first met
    uint32_t tensor;
    Object* made;
  };
  Memo() : items_(1024) {}

  // The place of an object; it is new where `made` and `object` are null.
  Item& at(Py object, int32_t type) {
    if (count_ * 2 >= items_.size()) grow();
    Item& item = find(object, type);
    if (!item.object) {
      item = Item{object, type, 0, nullptr};
      ++count_;
      is_new = true;
    } else {
      is_new = false;
    }
    return item;
  }
  bool is_new = false;

 private:
  Item& find(Py object, int32_t type) {
    uint64_t hash = (reinterpret_cast<uint64_t>(object) >> 4) + static_cast<uint64_t>(type + 1) * 0x9e3779b1u;
    hash *= 0x9e3779b97f4a7c15u;
    for (size_t place = hash >> 32 & (items_.size() - 1);; place = (place + 1) & (items_.size() - 1))
      if (!items_[place].object || (items_[place].object == object && items_[place].type == type))
        return items_[place];
  }
  void grow() {
    std::vector<Item> old(items_.size() * 4);
    old.swap(items_);
    for (const Item& item : old)
      if (item.object) find(item.object, item.type) = item;
  }
  std::vector<Item> items_;
  size_t count_ = 0;
};

class Flattener {
 public:
  Flattener(Flat& flat) : flat_(flat), info_(*flat.program) {}

  // Whether the columns have values of the program's types; else `failed` is the instance.
  bool run(Py columns) {
    const int32_t parameters = info_.parameter_count;
    flat_.arguments.resize(static_cast<size_t>(flat_.instances * parameters));
    for (int64_t i = 0; i < flat_.instances; ++i) {
      for (int32_t p = 0; p < parameters; ++p) {
        Py object = python.list_get(python.list_get(columns, p), i);
        if (!object) return fail(i);
        tasks_.push_back(Task{object, &flat_.arguments[static_cast<size_t>(i * parameters + p)],
                              info_.parameters[p], i});
      }
      while (!tasks_.empty()) {
        const Task task = tasks_.back();
        tasks_.pop_back();
        if (!value(task)) return fail(i);
      }
    }
    return true;
  }
  int64_t failed = -1;

 private:
  bool fail(int64_t instance) {
    python.forget_exception();
    failed = instance;
    return false;
  }

  bool value(const Task& task) {
    const TypeInfo& type = info_.types[task.type];
    Py object = task.object;
    if (object == python.none) return scalar(task, type, none());
    Py cls = python.type(object);
    python.release(cls);  // the object holds it
    if (cls == python.int_type) {
      int overflow = 0;
      const int64_t number = python.int_value(object, &overflow);
      return !overflow && scalar(task, type, box(number));
    }
    if (cls == python.float_type) return scalar(task, type, box(python.float_value(object)));
    if (cls == python.bool_type) return scalar(task, type, box(object == python.yes));
    if (cls == python.text_type) return type.scalars >> kStr & 1 && text(task);
    if (cls == python.tensor_type || cls == python.parameter_type) return tensor(task);
    for (int32_t i = 0; i < type.count; ++i) {
      const Alternative& item = type.alternatives[i];
      switch (item.kind) {
        case kRecord:
          if (cls == flat_.classes[item.a].type && has_fields(object, item.a)) return record(task, item.a);
          break;
        case kTuple:
          if (cls == python.tuple_type && (item.a < 0 || python.tuple_size(object) == item.a)) return tuple(task, item);
          break;
        case kList:
          if (cls == python.list_type) return list(task, item.b);
          break;
        case kDict:
          if (cls == python.dict_type) return dict(task, item);
          break;
        default: break;
      }
    }
    return false;
  }

  bool scalar(const Task& task, const TypeInfo& type, Value value) {
    *task.place = value;
    return type.scalars >> value.kind & 1;
  }

  int32_t keep(Py object) {
    python.retain(object);
    return own(object);
  }
  int32_t own(Py object) {
    flat_.sources.push_back(object);
    return static_cast<int32_t>(flat_.sources.size() - 1);
  }

  // The object made of task.object, stored in task.place; `make` makes it where it is new. Whether
  // its parts are to be visited: it is new, or was not met under this type.
  template <class Make> bool visit(const Task& task, Object*& made, Make make) {
    Memo::Item& item = memo_.at(task.object, -1);
    bool visits = memo_.is_new;
    if (visits) {
      item.made = make();
      item.made->source = keep(task.object);
      item.tensor = static_cast<uint32_t>(task.type);
      made = item.made;
    } else {
      made = item.made;
      if (item.tensor != static_cast<uint32_t>(task.type)) {
        memo_.at(task.object, task.type);
        visits = memo_.is_new;
      }
    }
    *task.place = box(made);
    return visits;
  }

  bool text(const Task& task) {
    Object* made;
    bool is_right = true;
    visit(task, made, [&]() -> Object* {
      intptr_t bytes = 0;
      const char* text = python.text_of(task.object, &bytes);
      is_right = text != nullptr;
      return new_str(flat_.arena, is_right ? text : "", static_cast<size_t>(bytes));
    });
    return is_right;
  }

  bool has_fields(Py object, int32_t number) {
    const ClassInfo& info = info_.classes[number];
    if (info.kind != kFixedDict) return true;
    if (python.dict_size(object) != info.field_count) return false;
    // The order of the keys counts: a loop through the dict follows it.
    intptr_t place = 0;
    Py key, item;
    for (int32_t i = 0; i < info.field_count && python.dict_next(object, &place, &key, &item); ++i)
      if (!same_text(key, flat_.classes[number].fields[i])) return false;
    return true;
  }

  static bool same_text(Py key, Py name) {
    if (key == name) return true;
    Py cls = python.type(key);
    python.release(cls);  // the object holds it
    if (cls != python.text_type) return false;
    intptr_t key_bytes = 0, name_bytes = 0;
    const char* one = python.text_of(key, &key_bytes);
    const char* other = python.text_of(name, &name_bytes);
    return one && other && key_bytes == name_bytes && !std::memcmp(one, other, static_cast<size_t>(key_bytes));
  }

  bool record(const Task& task, int32_t number) {
    const ClassInfo& info = info_.classes[number];
    Object* object;
    if (!visit(task, object, [&] {
          return new_tuple(flat_.arena, kRecord, static_cast<uint32_t>(number), static_cast<size_t>(info.field_count));
        }))
      return object->type == static_cast<uint32_t>(number);
    auto* made = static_cast<Tuple*>(object);
    if (made->type != static_cast<uint32_t>(number)) return false;
    for (int32_t i = info.field_count; i-- > 0;) {
      Py field;
      if (info.kind == kNamedTuple) {
        field = python.tuple_get(task.object, i);
      } else if (info.kind == kFixedDict) {
        field = python.dict_get(task.object, flat_.classes[number].fields[i]);
      } else {
        field = python.get_attribute(task.object, flat_.classes[number].fields[i]);
        // A value that is made by the access alone (a property) must live until it is read.
        if (field) own(field);
      }
      if (!field) return false;
      tasks_.push_back(Task{field, &made->items[i], info.cells[i], task.instance});
    }
    return true;
  }

  bool tuple(const Task& task, const Alternative& type) {
    const intptr_t count = python.tuple_size(task.object);
    Object* object;
    if (!visit(task, object, [&] { return new_tuple(flat_.arena, kTuple, 0, static_cast<size_t>(count)); })) return true;
    auto* made = static_cast<Tuple*>(object);
    for (intptr_t i = count; i-- > 0;)
      tasks_.push_back(Task{python.tuple_get(task.object, i), &made->items[i],
                            type.a < 0 ? type.b : type.items[i], task.instance});
    return true;
  }

  bool list(const Task& task, int32_t item) {
    const intptr_t count = python.list_size(task.object);
    Object* object;
    if (!visit(task, object, [&] { return new_list(flat_.arena, static_cast<size_t>(count)); })) return true;
    auto* made = static_cast<List*>(object);
    if (made->length != count) return false;  // it was changed meanwhile
    for (intptr_t i = count; i-- > 0;)
      tasks_.push_back(Task{python.list_get(task.object, i), &made->items[i], item, task.instance});
    return true;
  }

  bool dict(const Task& task, const Alternative& type) {
    Object* object;
    if (!visit(task, object, [&] { return new_dict(flat_.arena); })) return true;
    auto* made = static_cast<Dict*>(object);
    const TypeInfo keys{static_cast<uint32_t>(type.a), 0, nullptr};
    intptr_t place = 0;
    Py key, item;
    while (python.dict_next(task.object, &place, &key, &item)) {
      Value native;
      if (!dict_key(keys, key, native)) return false;
      dict_store(flat_.arena, made, native, none());
      keys_.push_back(native);
      items_.push_back(item);
    }
    for (size_t i = keys_.size(); i-- > 0;)  // places are fixed once all keys are in
      tasks_.push_back(Task{items_[i], dict_find(made, keys_[i]), type.b, task.instance});
    keys_.clear();
    items_.clear();
    return true;
  }

  bool dict_key(const TypeInfo& type, Py key, Value& native) {
    Py cls = python.type(key);
    python.release(cls);
    if (cls == python.text_type) {
      intptr_t bytes = 0;
      const char* text = python.text_of(key, &bytes);
      if (!text) return false;
      Str* made = new_str(flat_.arena, text, static_cast<size_t>(bytes));
      made->source = keep(key);
      native = box(made);
    } else if (cls == python.int_type) {
      int overflow = 0;
      native = box(static_cast<int64_t>(python.int_value(key, &overflow)));
      if (overflow) return false;
    } else if (cls == python.float_type) {
      native = box(python.float_value(key));
    } else if (cls == python.bool_type) {
      native = box(key == python.yes);
    } else if (key == python.none) {
      native = none();
    } else {
      return false;
    }
    return type.scalars >> native.kind & 1;
  }

  bool tensor(const Task& task) {
    Memo::Item& item = memo_.at(task.object, -2);
    if (memo_.is_new) {
      item.tensor = static_cast<uint32_t>(flat_.tensors.size());
      keep(task.object);
      flat_.tensors.push_back(FlatTensor{task.object, nullptr, -1, -1, 0, -1, nullptr});
    }
    flat_.met.push_back(Met{task.place, task.type, item.tensor, task.instance});
    return true;
  }

  Flat& flat_;
  const ProgramInfo& info_;
  std::vector<Task> tasks_;
  std::vector<Value> keys_;
  std::vector<Py> items_;
  Memo memo_;
};

// -- tensors -----------------------------------------------------------------------------------------

bool has_dims(const PoolInfo& pool, const int64_t* sizes, int64_t rank, int32_t dtype) {
  if (pool.dtype != dtype || pool.rank != rank) return false;
  for (int64_t i = 0; i < rank; ++i)
    if (pool.shape[i] != sizes[i]) return false;
  return true;
}

// Finds the pools of a tensor, by what libtorch says of it. Only dense tensors in main memory have some.
void look_at(const ProgramInfo& info, FlatTensor& tensor, int32_t& last, int32_t& last_rows) {
  int64_t rank = 0, *sizes = nullptr;
  int32_t dtype = 0, device = 0, layout = 0;
  if (python.tensor_layout(tensor.handle, &layout) || layout != 0) return;
  if (python.tensor_device(tensor.handle, &device) || device != 0) return;
  if (python.tensor_rank(tensor.handle, &rank) || python.tensor_sizes(tensor.handle, &sizes) ||
      python.tensor_dtype(tensor.handle, &dtype))
    return;
  const auto found = [&](int32_t guess, const int64_t* dims, int64_t count) {
    if (guess >= 0 && has_dims(info.pools[guess], dims, count, dtype)) return guess;
    for (int32_t i = 0; i < info.pool_count; ++i)
      if (has_dims(info.pools[i], dims, count, dtype)) return i;
    return -1;
  };
  tensor.pool = found(last, sizes, rank);
  if (tensor.pool >= 0) last = tensor.pool;
  if (rank > 0) {
    tensor.first_dim = sizes[0];
    tensor.rows_pool = found(last_rows, sizes + 1, rank - 1);
    if (tensor.rows_pool >= 0) last_rows = tensor.rows_pool;
  }
}

// Whether the bytes can be copied as they lie. Not of a tensor without dims: it could be an element
// of a conjugated view, whose sign is not that of its memory.
bool is_plain(const FlatTensor& tensor) {
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  if (python.tensor_rank(tensor.handle, &rank) || python.tensor_sizes(tensor.handle, &sizes) ||
      python.tensor_strides(tensor.handle, &strides))
    return false;
  int64_t stride = 1;
  for (int64_t i = rank; i-- > 0;) {
    if (strides[i] != stride) return false;
    stride *= sizes[i];
  }
  return rank > 0;
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
  flat.copies.push_back(Copy{index, pool, flat.next_row[static_cast<size_t>(pool)], count, is_plain(tensor)});
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

// Stores what a tensor is under the type of its place: one tensor if the type has such, else rows.
bool settle(Flat& flat, const Met& met) {
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

}  // namespace

Flat::~Flat() {
  for (FlatTensor& tensor : tensors)
    if (tensor.handle) python.tensor_release(tensor.handle);
  for (Py object : sources) python.release(object);
}

}  // namespace stretto

using namespace stretto;

extern "C" {

void stretto_host_configure(const PythonApi* api) { python = *api; }

// columns: a list of lists. Gives the instances as values; their tensors are still to be settled.
// Where one is of another type: null, and its number in `failed` (-1: no memory).
Flat* stretto_host_flatten(const ProgramInfo* info, const PythonClass* classes, Py columns, int64_t instances,
                           int64_t* failed) {
  const int64_t start = now();
  *failed = -1;
  auto* flat = new Flat();
  flat->program = info;
  flat->classes = classes;
  flat->instances = instances;
  try {
    Flattener flattener(*flat);
    if (flattener.run(columns)) {
      flat->time = now() - start;
      return flat;
    }
    *failed = flattener.failed;
  } catch (const std::bad_alloc&) {
  }
  delete flat;
  return nullptr;
}

int64_t stretto_host_tensor_count(const Flat* flat) { return static_cast<int64_t>(flat->tensors.size()); }

// Appends the tensors of the instances to a list: each once.
void stretto_host_list_tensors(const Flat* flat, Py list) {
  for (size_t i = 0; i < flat->tensors.size(); ++i) {
    python.retain(flat->tensors[i].python);
    python.list_set(list, static_cast<intptr_t>(i), flat->tensors[i].python);
  }
}

// handles: a list of capsules, of the tensors in their order; the Flat owns what they point to. -1,
// or the instance with a tensor of another type.
int64_t stretto_host_settle(Flat* flat, Py handles) {
  const int64_t start = now();
  int32_t last = -1, last_rows = -1;
  for (size_t i = 0; i < flat->tensors.size(); ++i)
    flat->tensors[i].handle = python.capsule_pointer(python.list_get(handles, static_cast<intptr_t>(i)), nullptr);
  for (FlatTensor& tensor : flat->tensors) look_at(*flat->program, tensor, last, last_rows);
  begin_numbers(*flat);
  for (const Met& met : flat->met)
    if (!settle(*flat, met)) return met.instance;
  flat->met.clear();
  flat->time += now() - start;
  return -1;
}

// Copies the tensors of the instances to the pools. Those that do not lie as bytes are left to
// Python: their numbers are written to `left`, and how many they are is returned. -2: a tensor was
// changed since; its number is the first of `left`.
int64_t stretto_host_copy(Flat* flat, void* const* pools, int64_t* left) {
  int64_t count = 0;
  for (size_t i = 0; i < flat->copies.size(); ++i) {
    const Copy& copy = flat->copies[i];
    const FlatTensor& tensor = flat->tensors[copy.tensor];
    FlatTensor seen = tensor;
    seen.pool = seen.rows_pool = -1;
    int32_t last = tensor.pool, last_rows = tensor.rows_pool;
    look_at(*flat->program, seen, last, last_rows);
    void* data = nullptr;
    if (seen.pool != tensor.pool || seen.rows_pool != tensor.rows_pool || seen.first_dim != tensor.first_dim) {
      left[0] = static_cast<int64_t>(i);
      return -2;
    }
    if (!copy.is_plain || !is_plain(tensor) || python.tensor_data(tensor.handle, &data)) {
      left[count++] = static_cast<int64_t>(i);
      continue;
    }
    const PoolInfo& pool = flat->program->pools[copy.pool];
    std::memcpy(static_cast<char*>(pools[copy.pool]) + copy.row * pool.itemsize, data,
                static_cast<size_t>(copy.rows * pool.itemsize));
  }
  return count;
}

int64_t stretto_host_copy_count(const Flat* flat) { return static_cast<int64_t>(flat->copies.size()); }

// tensor, pool, first row, rows of a copy.
void stretto_host_copy_at(const Flat* flat, int64_t number, int64_t* out) {
  const Copy& copy = flat->copies[static_cast<size_t>(number)];
  out[0] = copy.tensor;
  out[1] = copy.pool;
  out[2] = copy.row;
  out[3] = copy.rows;
}

void stretto_host_flat_rows(const Flat* flat, int64_t* rows) {
  for (size_t i = 0; i < flat->next_row.size(); ++i) rows[i] = flat->next_row[i];
}

int64_t stretto_host_flat_time(const Flat* flat) { return flat->time; }
void stretto_host_flat_delete(Flat* flat) { delete flat; }
}
