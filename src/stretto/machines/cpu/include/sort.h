// Sorting and selecting inside one task: the positions of the smallest keys, equal keys in the order
// of their positions.
//
// A key is an unsigned number made of an element by `sort_key`, so that one routine serves all
// types, both directions and NaN, which counts as the largest number. An entry is a key with its
// position in the low half. All sorts here are stable.
//
//   few                     the rank of a key is the number of smaller ones, counted in vectors
//   many                    radix sort of entries, a byte at a time; bytes that are all equal
//                           (of small integers, or of floats that were f16) are left out
//   the first of many more  keys below the worst of those found so far are collected, and
//                           sorted whenever there is no more room for them
#pragma once

#include "vectors.h"

namespace stretto {

template <class Key>
constexpr int64_t kCounted = 1024 / sizeof(Key);  // the most keys that are sorted by counting
constexpr int64_t kSelected = 8;    // a part this many times smaller than the whole is selected
constexpr int64_t kCollected = 64;  // entries collected between two sorts, at least
constexpr int64_t kScanned = 64;    // keys examined together

// ---- keys -----------------------------------------------------------------------------------

template <class Bits>
STRETTO_INLINE Bits float_key(Bits bits) {
  constexpr Bits sign = Bits(1) << (8 * sizeof(Bits) - 1);
  return bits & sign ? Bits(~bits) : Bits(bits | sign);
}

STRETTO_INLINE uint32_t rising_key(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits = x == 0.0f ? 0u : bits;  // the two zeros are equal
  return x != x ? ~uint32_t(0) : float_key(bits);
}

STRETTO_INLINE uint64_t rising_key(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits = x == 0.0 ? 0u : bits;
  return x != x ? ~uint64_t(0) : float_key(bits);
}

STRETTO_INLINE uint64_t rising_key(int64_t x) { return uint64_t(x) ^ (uint64_t(1) << 63); }
STRETTO_INLINE uint32_t rising_key(int32_t x) { return uint32_t(x) ^ (uint32_t(1) << 31); }
STRETTO_INLINE uint32_t rising_key(int16_t x) { return rising_key(int32_t(x)); }
STRETTO_INLINE uint32_t rising_key(int8_t x) { return rising_key(int32_t(x)); }
STRETTO_INLINE uint32_t rising_key(uint8_t x) { return x; }
STRETTO_INLINE uint32_t rising_key(bool x) { return x; }

template <bool descending, class T>
STRETTO_INLINE auto sort_key(T x) {
  auto key = rising_key(x);
  return descending ? decltype(key)(~key) : key;
}

// ---- entries --------------------------------------------------------------------------------

template <class Key>
struct EntryOf {
  using type = uint64_t;
};
template <>
struct EntryOf<uint64_t> {
  using type = unsigned __int128;
};
template <class Key>
using Entry = typename EntryOf<Key>::type;

template <class Key>
STRETTO_INLINE Entry<Key> entry(Key key, int64_t position) {
  return Entry<Key>(key) << (8 * sizeof(Key)) | Key(position);
}

// Sorts entries by their keys. Returns the array that contains the result.
template <class Key>
Entry<Key>* radix_sort(Entry<Key>* from, Entry<Key>* to, int64_t n) {
  constexpr int bytes = sizeof(Key), shift = 8 * bytes;
  uint32_t counts[bytes][256];
  __builtin_memset(counts, 0, sizeof counts);
  for (int64_t i = 0; i < n; ++i) {
    const Key key = Key(from[i] >> shift);
    for (int b = 0; b < bytes; ++b) ++counts[b][uint8_t(key >> (8 * b))];
  }
  for (int b = 0; b < bytes; ++b) {
    uint32_t* count = counts[b];
    if (count[uint8_t(from[0] >> (shift + 8 * b))] == n) continue;
    uint32_t start = 0;
    for (int d = 0; d < 256; ++d) {
      const uint32_t here = count[d];
      count[d] = start;
      start += here;
    }
    for (int64_t i = 0; i < n; ++i) to[count[uint8_t(from[i] >> (shift + 8 * b))]++] = from[i];
    Entry<Key>* swapped = from;
    from = to;
    to = swapped;
  }
  return from;
}

// Calls put(rank, position) for each of n <= kCounted keys. Reads up to a vector past the keys.
template <class Key, class Put>
STRETTO_INLINE void count_ranks(const Key* keys, int64_t n, Put put) {
  constexpr int W = 64 / sizeof(Key);
  typedef Key Lanes __attribute__((vector_size(64), aligned(sizeof(Key)), may_alias));
  Key ranks[kCounted<Key> + W];
  uint16_t used[kCounted<Key>];  // number of keys of this rank, which are equal, put so far
  __builtin_memset(used, 0, size_t(n) * sizeof used[0]);
  for (int64_t i = 0; i < n; i += W) {
    const Lanes here = *reinterpret_cast<const Lanes*>(keys + i);
    Lanes smaller = {};
    for (int64_t j = 0; j < n; ++j) smaller -= Lanes(keys[j] < here);
    *reinterpret_cast<Lanes*>(ranks + i) = smaller;
  }
  for (int64_t i = 0; i < n; ++i) put(int64_t(ranks[i]) + used[ranks[i]]++, i);
}

// ---- sorting --------------------------------------------------------------------------------

// Finds the positions of the first `keep` of `n` keys, which the caller puts into `keys`.
template <class Key>
struct Sorter {
  Key* keys;
  int64_t* order;

  // `small`: memory for all if it suffices.
  Sorter(int64_t n_, int64_t keep_, char* small, int64_t small_bytes) : n(n_), keep(keep_) {
    room = (4 * keep > kCollected ? 4 * keep : kCollected) + kScanned;
    selects = keep * kSelected <= n && 2 * room <= n;
    if (!selects) room = n <= kCounted<Key> ? 0 : n;
    constexpr int64_t vector = 64;
    const int64_t bytes = 2 * room * int64_t(sizeof(Entry<Key>)) + keep * int64_t(sizeof(*order)) +
                          n * int64_t(sizeof(Key)) + vector;
    heap = bytes > small_bytes ? static_cast<char*>(__builtin_malloc(size_t(bytes))) : nullptr;
    entries = reinterpret_cast<Entry<Key>*>(heap ? heap : small);
    order = reinterpret_cast<int64_t*>(entries + 2 * room);
    keys = reinterpret_cast<Key*>(order + keep);
    failed = bytes > small_bytes && !heap;
  }
  ~Sorter() { __builtin_free(heap); }
  Sorter(const Sorter&) = delete;
  Sorter& operator=(const Sorter&) = delete;

  void sort() {
    if (selects) {
      select();
    } else if (n <= kCounted<Key>) {
      count_ranks(keys, n, [this](int64_t rank, int64_t position) {
        if (rank < keep) order[rank] = position;
      });
    } else {
      Key least = ~Key(0), most = 0;
      if (sizeof(Key) == 8) {  // integers that are close together fit into short entries
        _Pragma("omp simd reduction(min : least) reduction(max : most)")
        for (int64_t i = 0; i < n; ++i) {
          least = keys[i] < least ? keys[i] : least;
          most = keys[i] > most ? keys[i] : most;
        }
      }
      if (sizeof(Key) == 8 && most - least <= UINT32_MAX)
        sort_all<uint32_t>(least);
      else
        sort_all<Key>(0);
    }
  }

  bool failed;  // there was no memory

 private:
  int64_t n, keep, room;
  bool selects;
  char* heap;
  Entry<Key>* entries;  // two arrays of `room`

  template <class Part>
  void finish(const Entry<Part>* sorted) {
    for (int64_t rank = 0; rank < keep; ++rank) order[rank] = int64_t(Part(sorted[rank]));
  }

  // Sorts by the difference of the keys from `least`, which fits into a `Part`.
  template <class Part>
  void sort_all(Key least) {
    auto* all = reinterpret_cast<Entry<Part>*>(entries);
    for (int64_t i = 0; i < n; ++i) all[i] = entry(Part(keys[i] - least), i);
    finish<Part>(radix_sort<Part>(all, all + n, n));
  }

  // The collected entries are sorted ones, followed by others in the order of their positions.
  void select() {
    const int64_t limit = room - kScanned;
    Entry<Key>*here = entries, *there = entries + room;
    int64_t count = 0, i = 0;
    for (; i < limit; ++i) here[count++] = entry(keys[i], i);
    Key worst = shrink(here, there, count);
    while (i < n) {
      const int64_t end = n - i < kScanned ? n : i + kScanned;
      Key any = 0;
      _Pragma("omp simd reduction(| : any)")
      for (int64_t j = i; j < end; ++j) any |= Key(keys[j] < worst);
      if (any) {
        for (int64_t j = i; j < end; ++j) {
          here[count] = entry(keys[j], j);
          count += keys[j] < worst;
        }
        if (count > limit) worst = shrink(here, there, count);
      }
      i = end;
    }
    shrink(here, there, count);
    finish<Key>(here);
  }

  // Sorts the collected entries and drops all but `keep`. Returns the key of the last one.
  Key shrink(Entry<Key>*& here, Entry<Key>*& there, int64_t& count) {
    constexpr int shift = 8 * sizeof(Key);
    Entry<Key>* sorted = there;
    if (count <= kCounted<Key>) {
      Key found[kCounted<Key> + 64 / sizeof(Key)];
      for (int64_t i = 0; i < count; ++i) found[i] = Key(here[i] >> shift);
      count_ranks(found, count, [&](int64_t rank, int64_t place) { there[rank] = here[place]; });
    } else {
      sorted = radix_sort<Key>(here, there, count);
    }
    if (sorted != here) {
      there = here;
      here = sorted;
    }
    count = keep;
    return keep == 0 ? Key(0) : Key(here[keep - 1] >> shift);
  }
};

}  // namespace stretto
