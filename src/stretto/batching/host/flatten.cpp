// Converts Python instances to native values. Every value is checked against the types of the program;
// each object is read once per type under which it is found, so data may be cyclic and deep.
//
// Objects are spread over memory, and cache misses dominate the time. So values wait in a queue, several
// instances at a time, and their memory is prefetched when they are queued.
#include <algorithm>
#include <cstring>
#include <new>

#include "flat.h"
#include "memo.h"
#include "scheduler.h"

namespace stretto {

PythonApi python;

namespace {

constexpr int64_t kTogether = 16;  // instances whose values are in the queue
constexpr size_t kAhead = 8;       // distance in the queue at which pointers of objects are prefetched

// Values still to be read, in the order in which they were found.
class Queue {
 public:
  Queue() : items_(1024) {}
  bool is_empty() const { return first_ == last_; }
  void push(const Task& task) {
    if (last_ - first_ == items_.size()) grow();
    items_[last_++ & (items_.size() - 1)] = task;
  }
  Task pop() { return items_[first_++ & (items_.size() - 1)]; }
  // The object of a later value, or null.
  Py ahead(size_t count) const {
    return count < last_ - first_ ? items_[(first_ + count) & (items_.size() - 1)].object : nullptr;
  }
  void clear() { first_ = last_ = 0; }

 private:
  void grow() {
    std::vector<Task> grown(items_.size() * 2);
    for (size_t i = 0; i < items_.size(); ++i) grown[i] = items_[(first_ + i) & (items_.size() - 1)];
    last_ = items_.size();
    first_ = 0;
    items_.swap(grown);
  }
  std::vector<Task> items_;
  size_t first_ = 0, last_ = 0;
};

// Largest number of frozen objects to keep, and that if none of them is found again.
constexpr size_t kMostKept = size_t{1} << 18, kMostIdle = size_t{1} << 16;

size_t expected_objects = 0;  // number of objects in the last batch of this program

class Flattener {
 public:
  Flattener(Flat& flat) : flat_(flat), info_(*flat.program), memo_(expected_objects) {
    for (int32_t i = 0; i < info_.class_count; ++i) {
      const PythonClass& cls = flat.classes[i];
      const bool is_same =
          cls.version && stored_at<uint32_t>(cls.type, python.version_at) == cls.version;
      is_direct_.push_back(is_same);
      if (!is_same && info_.classes[i].kind == kObject) asks_ = true;
      any_frozen_ = any_frozen_ || info_.classes[i].is_frozen;
      hides_.push_back(!cls.absent_count ? kNever : is_same && !shares_absent(cls) ? kOwnDict : kPerhaps);
    }
  }

  // Returns true if the columns have values of the program's types; else sets `failed` to the first
  // instance that has others.
  bool run(Py columns) {
    const int32_t parameters = info_.parameter_count;
    flat_.arguments.resize(static_cast<size_t>(flat_.instances * parameters));
    for (int64_t first = 0; first < flat_.instances && failed < 0; first += kTogether) {
      for (int64_t i = first; i < std::min(first + kTogether, flat_.instances); ++i)
        for (int32_t p = 0; p < parameters; ++p) {
          Py object = python.list_get(python.list_get(columns, p), i);
          Value* place = &flat_.arguments[static_cast<size_t>(i * parameters + p)];
          if (!object || !add(object, place, info_.parameters[p], i, false)) fail(i);
        }
      while (!queue_.is_empty()) {
        look_ahead();
        const Task task = queue_.pop();
        if ((failed < 0 || task.instance < failed) && !value(task)) fail(task.instance);
      }
    }
    expected_objects = memo_.count();
    return failed < 0;
  }
  int64_t failed = -1;

 private:
  void fail(int64_t instance) {
    python.forget_exception();
    if (failed < 0 || instance < failed) failed = instance;
  }

  // Reads a value now if that needs no memory access, else queues it. False: it has another type.
  bool add(Py object, Value* place, int32_t type, int64_t instance, bool is_kept) {
    const Task task{object, place, type, is_kept, instance};
    if (object == python.none) return scalar(task, info_.types[type], none());
    __builtin_prefetch(object, 1);
    (any_frozen_ ? flat_.kept->memo : memo_).expect(object, Memo::kAnyType);
    if (asks_) keep(object);  // user code may run before it is read
    queue_.push(task);
    return true;
  }

  // Prefetches what the objects of later values point to: first the values or the dict, then the
  // values of the dict.
  void look_ahead() {
    if (!recent_) return;
    for (size_t ahead : {kAhead, kAhead / 2}) {
      Py object = queue_.ahead(ahead);
      if (!object || stored_at<Py>(object, python.class_at) != recent_->type) continue;
      const auto values = stored_at<intptr_t>(object, recent_->values_at);
      if (is_address(values, *recent_)) __builtin_prefetch(reinterpret_cast<Py>(values));
      if (!recent_->dict_at || is_address(values, *recent_)) continue;
      Py dict = stored_at<Py>(object, recent_->dict_at);
      if (ahead == kAhead) __builtin_prefetch(static_cast<char*>(dict) + kDictKeys);
      else if (dict) __builtin_prefetch(stored_at<Py>(dict, kDictValues));
    }
  }

  bool value(const Task& task) {
    const TypeInfo& type = info_.types[task.type];
    Py object = task.object;
    if (object == python.none) return scalar(task, type, none());
    Py cls = class_of(object);
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

  void keep(Py object) {
    python.retain(object);
    own(object);
  }
  void own(Py object) { flat_.sources.push_back(object); }

  // Stores the native object of task.object in task.place; `make` creates it in an arena if it is new.
  // Returns true if its parts are to be visited: it is new, or was not yet found under this type.
  template <class Make> bool visit(const Task& task, Object*& made, bool is_kept, Make make) {
    Kept& kept = *flat_.kept;
    Memo& memo = is_kept ? kept.memo : memo_;
    Memo::Item& item = memo.at(task.object, Memo::kAnyType);
    bool visits = memo.is_new;
    if (visits) {
      auto& sources = is_kept ? kept.sources : flat_.sources;
      item.made = make(is_kept ? kept.arena : flat_.arena);
      item.made->source = static_cast<int32_t>(sources.size()) + (is_kept ? kKeptSources : 0);
      python.retain(task.object);
      sources.push_back(task.object);
      item.tensor = static_cast<uint32_t>(task.type);
      made = item.made;
      kept.since_hit += is_kept;
    } else {
      made = item.made;
      if (is_kept && !task.is_kept) kept.since_hit = 0;
      if (item.tensor != static_cast<uint32_t>(task.type)) {
        memo.at(task.object, task.type);
        visits = memo.is_new;
      }
    }
    *task.place = box(made);
    return visits;
  }

  bool text(const Task& task) {
    Object* made;
    bool is_right = true;
    visit(task, made, task.is_kept, [&](Arena& arena) -> Object* {
      intptr_t bytes = 0;
      const char* text = python.text_of(task.object, &bytes);
      is_right = text != nullptr;
      return new_str(arena, is_right ? text : "", static_cast<size_t>(bytes));
    });
    return is_right;
  }

  bool has_fields(Py object, int32_t number) {
    const ClassInfo& info = info_.classes[number];
    if (info.kind != kFixedDict) return true;
    if (python.dict_size(object) != info.field_count) return false;
    // The order of the keys matters: a loop over the dict follows it.
    intptr_t place = 0;
    Py key, item;
    for (int32_t i = 0; i < info.field_count && python.dict_next(object, &place, &key, &item); ++i)
      if (!same_text(key, flat_.classes[number].fields[i])) return false;
    return true;
  }

  static bool same_text(Py key, Py name) {
    if (key == name) return true;
    if (class_of(key) != python.text_type) return false;
    intptr_t key_bytes = 0, name_bytes = 0;
    const char* one = python.text_of(key, &key_bytes);
    const char* other = python.text_of(name, &name_bytes);
    return one && other && key_bytes == name_bytes && !std::memcmp(one, other, static_cast<size_t>(key_bytes));
  }

  bool record(const Task& task, int32_t number) {
    const ClassInfo& info = info_.classes[number];
    Object* object;
    if (!visit(task, object, info.is_frozen, [&](Arena& arena) {
          return new_tuple(arena, kRecord, static_cast<uint32_t>(number), static_cast<size_t>(info.field_count));
        }))
      return object->type == static_cast<uint32_t>(number);
    auto* made = static_cast<Tuple*>(object);
    if (made->type != static_cast<uint32_t>(number)) return false;
    const PythonClass& cls = flat_.classes[number];
    const bool is_direct = is_direct_[static_cast<size_t>(number)];
    Py values = is_direct ? values_of(task.object, cls) : nullptr;
    const Hides hides = hides_[static_cast<size_t>(number)];
    if (hides != kNever && (hides == kPerhaps || !values) && stores_absent(task.object, cls)) return false;
    for (int32_t i = 0; i < info.field_count; ++i) {
      Py field = nullptr;
      if (info.cells[i] < 0) {  // the program does not read it
        made->items[i] = none();
        continue;
      }
      if (info.kind == kNamedTuple) {
        field = python.tuple_get(task.object, i);
      } else if (info.kind == kFixedDict) {
        field = python.dict_get(task.object, cls.fields[i]);
      } else {
        const FieldAt& at = cls.places[i];
        if (is_direct && at.place == kInObject) field = stored_at<Py>(task.object, at.offset);
        if (values && at.place == kInValues) field = stored_at<Py>(values, at.offset);
        if (!field) field = asked(task.object, cls.fields[i]);
        if (!field && info.may_lack[i]) {
          python.forget_exception();
          made->items[i] = unset();
          continue;
        }
      }
      if (!field || !add(field, &made->items[i], info.cells[i], task.instance, info.is_frozen)) return false;
    }
    return true;
  }

  // True if a name that no object may store is among the shared keys.
  static bool shares_absent(const PythonClass& cls) {
    if (!cls.keys) return true;
    const intptr_t first = kKeysHead + (intptr_t{1} << stored_at<uint8_t>(cls.keys, kKeysTable));
    const auto count = stored_at<intptr_t>(cls.keys, kKeysCount);
    for (intptr_t i = 0; i < count; ++i)
      for (intptr_t n = 0; n < cls.absent_count; ++n)
        if (same_text(stored_at<Py>(cls.keys, first + i * kKeysItem), cls.absent[n])) return true;
    return false;
  }

  // True if an object hides an entry of its class that the program looked up.
  static bool stores_absent(Py object, const PythonClass& cls) {
    Py dict = python.get_attribute(object, python.dict_name);
    if (!dict) return true;
    bool found = false;
    for (intptr_t n = 0; n < cls.absent_count && !found; ++n) found = python.dict_get(dict, cls.absent[n]) != nullptr;
    python.release(dict);
    return found;
  }

  // Returns a field read through Python, or null. The Flat owns it, since the access may have created
  // it (a property).
  Py asked(Py object, Py name) {
    Py field = python.get_attribute(object, name);
    if (field) own(field);
    return field;
  }

  static bool is_address(intptr_t stored, const PythonClass& cls) {
    return stored && (stored & 1) == (cls.values_tag & 1);
  }

  // The address of an object's values; null if fields must be read through Python.
  Py values_of(Py object, const PythonClass& cls) {
    if (!cls.values_at) return nullptr;
    if (cls.valid_at)
      return stored_at<char>(object, cls.valid_at) == 1 ? static_cast<char*>(object) + cls.values_at : nullptr;
    recent_ = &cls;
    const auto address = stored_at<intptr_t>(object, cls.values_at);
    if (is_address(address, cls)) return reinterpret_cast<Py>(address - cls.values_tag);
    Py dict = cls.dict_at ? stored_at<Py>(object, cls.dict_at) : nullptr;
    return dict && stored_at<void*>(dict, kDictKeys) == cls.keys ? stored_at<Py>(dict, kDictValues) : nullptr;
  }

  bool tuple(const Task& task, const Alternative& type) {
    const intptr_t count = python.tuple_size(task.object);
    const bool is_kept = info_.frozen_tuples;
    Object* object;
    if (!visit(task, object, is_kept,
               [&](Arena& arena) { return new_tuple(arena, kTuple, 0, static_cast<size_t>(count)); }))
      return true;
    auto* made = static_cast<Tuple*>(object);
    for (intptr_t i = 0; i < count; ++i)
      if (!add(python.tuple_get(task.object, i), &made->items[i], type.a < 0 ? type.b : type.items[i], task.instance,
               is_kept))
        return false;
    return true;
  }

  bool list(const Task& task, int32_t item) {
    const intptr_t count = python.list_size(task.object);
    Object* object;
    if (!visit(task, object, false, [&](Arena& arena) { return new_list(arena, static_cast<size_t>(count)); }))
      return true;
    auto* made = static_cast<List*>(object);
    if (made->length != count) return false;  // it was changed in the meantime
    for (intptr_t i = 0; i < count; ++i)
      if (!add(python.list_get(task.object, i), &made->items[i], item, task.instance, false)) return false;
    return true;
  }

  bool dict(const Task& task, const Alternative& type) {
    Object* object;
    if (!visit(task, object, false, [](Arena& arena) { return new_dict(arena); })) return true;
    auto* made = static_cast<Dict*>(object);
    const TypeInfo keys{static_cast<uint32_t>(type.a), 0, nullptr};
    intptr_t place = 0;
    Py key, item;
    while (python.dict_next(task.object, &place, &key, &item)) {
      Value native;
      if (!dict_key(keys, key, native)) {
        keys_.clear();
        items_.clear();
        return false;
      }
      dict_store(flat_.arena, made, native, none());
      keys_.push_back(native);
      items_.push_back(item);
    }
    bool is_right = true;
    for (size_t i = 0; i < keys_.size() && is_right; ++i)  // places are fixed once all keys are inserted
      is_right = add(items_[i], dict_find(made, keys_[i]), type.b, task.instance, false);
    keys_.clear();
    items_.clear();
    return is_right;
  }

  bool dict_key(const TypeInfo& type, Py key, Value& native) {
    Py cls = class_of(key);
    if (cls == python.text_type) {
      intptr_t bytes = 0;
      const char* text = python.text_of(key, &bytes);
      if (!text) return false;
      Str* made = new_str(flat_.arena, text, static_cast<size_t>(bytes));
      made->source = static_cast<int32_t>(flat_.sources.size());
      keep(key);
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
    Memo::Item& item = memo_.at(task.object, Memo::kTensorItself);
    if (memo_.is_new) {
      item.tensor = static_cast<uint32_t>(flat_.tensors.size());
      keep(task.object);
      flat_.tensors.push_back(FlatTensor{task.object, -1, -1, 0, -1, nullptr});
    }
    flat_.met.push_back(Met{task.place, task.type, item.tensor, task.instance});
    return true;
  }

  Flat& flat_;
  const ProgramInfo& info_;
  Queue queue_;
  std::vector<char> is_direct_;           // for each class, true if its places are valid
  // For each class, which objects may hide entries that the program looked up in it. Objects with
  // inline values cannot, unless such a name is among the shared keys.
  enum Hides : char { kNever, kOwnDict, kPerhaps };
  std::vector<Hides> hides_;
  bool any_frozen_ = info_.frozen_tuples;
  bool asks_ = false;                     // true if fields are read through Python
  const PythonClass* recent_ = nullptr;   // a class whose objects point to their values
  std::vector<Value> keys_;
  std::vector<Py> items_;
  Memo memo_;
};

}  // namespace

Flat::~Flat() {
  for (size_t i = 0; i < sources.size(); ++i) {
    if (i + 16 < sources.size()) __builtin_prefetch(sources[i + 16], 1);
    python.release(sources[i]);
  }
}

}  // namespace stretto

using namespace stretto;

extern "C" {

void stretto_host_configure(const PythonApi* api) { python = *api; }

// The Kept of a program's instances; each batch takes it while it reads.
std::shared_ptr<Kept>* stretto_host_kept_new() { return new std::shared_ptr<Kept>(); }
int64_t stretto_host_kept_count(const std::shared_ptr<Kept>* kept) {
  return *kept ? static_cast<int64_t>((*kept)->sources.size()) : 0;
}
void stretto_host_kept_delete(std::shared_ptr<Kept>* kept) { delete kept; }

// columns: a list of lists. Returns the instances as values, and in `rows` the rows that each pool needs.
// If an instance has another type, returns null, and its number in `failed` (-1: no memory).
Flat* stretto_host_flatten(const ProgramInfo* info, const PythonClass* classes, std::shared_ptr<Kept>* kept,
                           Py columns, int64_t instances, int64_t* rows, int64_t* failed) {
  const int64_t start = now();
  *failed = -1;
  auto* flat = new Flat();
  flat->program = info;
  flat->classes = classes;
  flat->instances = instances;
  const bool is_full = *kept && ((*kept)->memo.count() > kMostKept || (*kept)->since_hit > kMostIdle);
  if (!*kept || is_full) *kept = std::make_shared<Kept>();
  flat->kept = std::move(*kept);  // no other batch may add to it meanwhile
  try {
    Flattener flattener(*flat);
    *failed = flattener.run(columns) ? settle(*flat) : flattener.failed;
    if (*failed < 0) {
      std::copy(flat->next_row.begin(), flat->next_row.end(), rows);
      flat->time = now() - start;
      *kept = flat->kept;
      return flat;
    }
  } catch (const std::bad_alloc&) {
  }
  delete flat;  // with its Kept, some objects of which are unfinished
  return nullptr;
}

void stretto_host_flat_delete(Flat* flat) { delete flat; }
}
