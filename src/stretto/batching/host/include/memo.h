// Hash table from the address of a Python object, and a type, to its native value.
#pragma once

#include <vector>

#include "python.h"
#include "values.h"

namespace stretto {

class Memo {
 public:
  struct Item {
    Py object;
    int32_t type;  // or one of the constants below
    uint32_t tensor;
    Object* made;
  };
  static constexpr int32_t kAnyType = -1, kTensorItself = -2;

  explicit Memo(size_t expected) {
    size_t size = 1024;
    while (size < 2 * expected) size *= 2;
    items_.resize(size);
  }

  // The item of an object, created if need be; sets `is_new`.
  Item& at(Py object, int32_t type) {
    if (count_ * 2 >= items_.size()) grow();
    Item& item = find(object, type);
    is_new = !item.object;
    if (is_new) {
      item = Item{object, type, 0, nullptr};
      ++count_;
    }
    return item;
  }
  void expect(Py object, int32_t type) { __builtin_prefetch(&items_[place_of(object, type)], 1); }
  size_t count() const { return count_; }
  bool is_new = false;

 private:
  size_t place_of(Py object, int32_t type) const {
    uint64_t hash = (reinterpret_cast<uint64_t>(object) >> 4) + static_cast<uint64_t>(type + 2) * 0x9e3779b1u;
    hash *= 0x9e3779b97f4a7c15u;
    return hash >> 32 & (items_.size() - 1);
  }
  Item& find(Py object, int32_t type) {
    for (size_t place = place_of(object, type);; place = (place + 1) & (items_.size() - 1))
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

}  // namespace stretto
