// Detects changes of bytes of this process's memory since the last look.
//
// Linux (6.7 and later) records which pages are written: a range is registered with userfaultfd in
// asynchronous write-protect mode, and the ioctl PAGEMAP_SCAN returns the pages that were written
// and protects them again. A page that was written, or that cannot be tracked, is compared by a
// hash; small memory is compared with a copy. All functions are called with the GIL held, so that
// no two run at the same time.

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <unistd.h>

#ifdef __linux__
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#endif

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kSmall = 1 << 15;  // up to this, comparing bytes is faster than a system call
constexpr uint64_t kNear = 1 << 18;   // up to this, scanning a gap is faster than a system call
constexpr uint64_t kLarge = 1 << 20;  // from this on, a separate scan of a region is faster

// ---- hash ---------------------------------------------------------------------------------------

// Each step is one-to-one in the word that it adds, and moves every bit: a changed word always
// changes the result, and equal changes of several words do not cancel out.
uint64_t step(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
  return (sum << 29) | (sum >> 35);
}

uint64_t hash(const uint8_t* bytes, uint64_t count) {
  uint64_t lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = 0xD6E8FEB86659FD93u * (i + 1);
  uint64_t place = 0;
  for (; place + 128 <= count; place += 128) {
    uint64_t words[16];
    std::memcpy(words, bytes + place, 128);
#pragma omp simd
    for (int i = 0; i < 16; ++i) lanes[i] = step(lanes[i], words[i]);
  }
  uint64_t last[16] = {};
  std::memcpy(last, bytes + place, count - place);
  uint64_t sum = count;
  for (int i = 0; i < 16; ++i) sum = step(step(sum, lanes[i]), last[i]);
  return sum;
}

uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

// ---- regions ------------------------------------------------------------------------------------

struct Region {
  const uint8_t* begin;
  uint64_t bytes;
  uint64_t first = 0, last = 0;  // addresses of the pages that are wholly inside and tracked
  std::vector<uint8_t> copy;     // the bytes before and after the tracked pages, or all bytes
  std::vector<uint64_t> hashes;  // of the tracked pages; if there are none, of all from `begin` on
  std::vector<std::pair<uint64_t, uint64_t>> written;  // pages written, but not yet compared
  bool unsure = false;           // some tracked pages were written, or are no longer tracked
  int64_t generation = 0;        // increases when the content has changed

  bool tracked() const { return first < last; }
  uint64_t start() const { return reinterpret_cast<uint64_t>(begin); }
  uint64_t end() const { return start() + bytes; }

  void remember() {
    copy.clear();
    hashes.clear();
    if (tracked()) {
      copy.assign(begin, begin + (first - start()));
      copy.insert(copy.end(), begin + (last - start()), begin + bytes);
      hashes.resize((last - first) / kPage);
    } else if (bytes <= kSmall) {
      copy.assign(begin, begin + bytes);
    } else {
      hashes.resize((bytes + kPage - 1) / kPage);
    }
    differs(0, hashes.size());
  }

  // Updates the hashes of these pages; true if one has changed.
  bool differs(uint64_t from, uint64_t to) {
    const uint8_t* pages = tracked() ? begin + (first - start()) : begin;
    bool changed = false;
    for (uint64_t page = from; page < to; ++page) {
      const uint8_t* place = pages + page * kPage;
      uint64_t left = begin + bytes - place;
      uint64_t now = hash(place, left < kPage ? left : kPage);
      changed |= now != hashes[page];
      hashes[page] = now;
    }
    return changed;
  }

  // Updates the copy; true if its bytes have changed.
  bool copy_differs() {
    uint64_t before = tracked() ? first - start() : copy.size(), behind = copy.size() - before;
    const uint8_t* tail = begin + bytes - behind;
    if (std::memcmp(begin, copy.data(), before) == 0 &&
        std::memcmp(tail, copy.data() + before, behind) == 0)
      return false;
    std::memcpy(copy.data(), begin, before);
    std::memcpy(copy.data() + before, tail, behind);
    return true;
  }

  void compare_all() {
    bool changed = differs(0, hashes.size());
    changed |= copy_differs();
    generation += changed;
  }
};

std::vector<Region*> regions;

// ---- pages that Linux tracks --------------------------------------------------------------------

#if defined(__linux__) && defined(__NR_userfaultfd)

struct Api { uint64_t api, features, ioctls; };
struct Range { uint64_t start, bytes; };
struct Register { Range range; uint64_t mode, ioctls; };
struct Protect { Range range; uint64_t mode; };
struct Found { uint64_t start, end, categories; };
struct Scan {
  uint64_t size, flags, start, end, walk_end, found, room, most_pages;
  uint64_t inverted, mask, any, wanted;
};

constexpr uint64_t kApi = 0xAA, kWrittenAsync = 1u << 15, kProtectMode = 2, kWritten = 2;
constexpr uint64_t kTracked = 1, kProtectFound = 1, kMustBeTracked = 2;
constexpr unsigned kUserModeOnly = 1;
const auto kSetApi = _IOWR(0xAA, 0x3F, Api);
const auto kRegister = _IOWR(0xAA, 0x00, Register);
const auto kUnregister = _IOR(0xAA, 0x01, Range);
const auto kWriteProtect = _IOWR(0xAA, 0x06, Protect);
const auto kScan = _IOWR('f', 16, Scan);

struct System {
  pid_t process = 0;
  int faults = -1, pages = -1;

  // A forked child has no registrations, and its open pagemap is that of the parent.
  bool renewed() {
    if (process == getpid()) return false;
    if (faults >= 0) close(faults);
    if (pages >= 0) close(pages);
    process = getpid();
    pages = -1;
    faults = int(syscall(__NR_userfaultfd, O_CLOEXEC | kUserModeOnly));
    Api api{kApi, kWrittenAsync, 0};
    bool usable = faults >= 0 && sysconf(_SC_PAGESIZE) == long(kPage) &&
                  ioctl(faults, kSetApi, &api) == 0;
    if (usable) pages = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    return true;
  }

  bool usable() const { return pages >= 0; }

  bool track(uint64_t first, uint64_t last) {
    if (!usable()) return false;
    Register range{{first, last - first}, kProtectMode, 0};
    if (ioctl(faults, kRegister, &range) != 0) return false;
    Protect protect{{first, last - first}, 1};
    if (ioctl(faults, kWriteProtect, &protect) == 0) return true;
    forget(first, last);
    return false;
  }

  void forget(uint64_t first, uint64_t last) {
    Range range{first, last - first};
    ioctl(faults, kUnregister, &range);
  }

  // Marks the regions, which are sorted by address, that must be scanned separately. Nothing is
  // protected here, so the pages between them may be anything.
  void mark_unsure(Region* const* first, Region* const* last) {
    uint64_t place = (*first)->first, end = place;
    for (auto region = first; region != last; ++region) end = later(end, (*region)->last);
    Found found[32];
    while (place < end) {
      Scan scan{};
      scan.size = sizeof scan;
      scan.start = place;
      scan.end = end;
      scan.found = reinterpret_cast<uint64_t>(found);
      scan.room = 32;
      scan.inverted = kTracked;
      scan.any = kTracked | kWritten;
      scan.wanted = kWritten;
      int count = ioctl(pages, kScan, &scan);
      if (count < 0) {
        found[0] = {place, end, 0};
        scan.walk_end = end;
        count = 1;
      }
      for (auto region = first; region != last; ++region)
        for (int i = 0; i < count; ++i)
          (*region)->unsure |= found[i].start < (*region)->last && (*region)->first < found[i].end;
      place = scan.walk_end;
    }
  }

  // Adds the written pages to all regions that have them. False: they are no longer tracked.
  bool scan(uint64_t first, uint64_t last) {
    Found found[32];
    while (first < last) {
      Scan scan{};
      scan.size = sizeof scan;
      scan.flags = kProtectFound | kMustBeTracked;
      scan.start = first;
      scan.end = last;
      scan.found = reinterpret_cast<uint64_t>(found);
      scan.room = 32;
      scan.mask = scan.wanted = kWritten;
      int count = ioctl(pages, kScan, &scan);
      if (count < 0) return false;
      for (int i = 0; i < count; ++i)
        for (Region* region : regions)
          if (found[i].start < region->last && region->first < found[i].end)
            region->written.emplace_back(found[i].start, found[i].end);
      first = scan.walk_end;
    }
    return true;
  }
} linux_;

#else

struct System {
  bool renewed() { return false; }
  bool usable() const { return false; }
  bool track(uint64_t, uint64_t) { return false; }
  void forget(uint64_t, uint64_t) {}
  void mark_unsure(Region* const*, Region* const*) {}
  bool scan(uint64_t, uint64_t) { return false; }
} linux_;

#endif

void stop_tracking(Region& region) {
  region.first = region.last = 0;
  region.written.clear();
  region.remember();
  ++region.generation;
}

// Tracks a region again and compares all of it, since it may have been written meanwhile.
void track_again(Region& region) {
  if (linux_.track(region.first, region.last)) {
    region.written.clear();
    region.compare_all();
  } else {
    stop_tracking(region);
  }
}

void look_at_tracked(Region& region) {
  if (region.unsure && !linux_.scan(region.first, region.last)) return track_again(region);
  bool changed = region.copy_differs();
  for (auto [from, to] : region.written) {
    if (from < region.first) from = region.first;
    if (to > region.last) to = region.last;
    changed |= region.differs((from - region.first) / kPage, (to - region.first) / kPage);
  }
  region.written.clear();
  region.generation += changed;
}

// Compares regions, which are sorted by address. One system call serves regions that are near each
// other.
void look(Region* const* watched, int64_t count) {
  std::vector<Region*> tracked;
  for (int64_t i = 0; i < count; ++i) {
    if (watched[i]->tracked()) tracked.push_back(watched[i]);
    else watched[i]->compare_all();
  }
  Region* const* end = tracked.data() + tracked.size();
  for (Region* const* first = tracked.data(); first != end;) {
    uint64_t reach = (*first)->last;
    Region* const* last = first;
    for (; last != end && (*last)->first <= reach + kNear && (*last)->bytes < kLarge; ++last) {
      reach = later(reach, (*last)->last);
      (*last)->unsure = false;
    }
    if (first == last) (*last++)->unsure = true;
    else linux_.mark_unsure(first, last);
    first = last;
  }
  for (Region* region : tracked) look_at_tracked(*region);
}

void renew() {
  if (!linux_.renewed()) return;
  for (Region* region : regions)
    if (region->tracked()) track_again(*region);
}

}  // namespace

extern "C" {

// True if this system records which pages are written.
int stretto_watch_tracks() {
  renew();
  return linux_.usable();
}

// Starts to watch bytes. `may_track`: no other process can write to this memory.
void* stretto_watch_open(const uint8_t* begin, int64_t bytes, int may_track) {
  renew();
  auto* region = new Region{begin, uint64_t(bytes)};
  uint64_t start = reinterpret_cast<uint64_t>(begin);
  uint64_t first = (start + kPage - 1) / kPage * kPage, last = (start + bytes) / kPage * kPage;
  if (may_track && region->bytes > kSmall && linux_.track(first, last)) {
    region->first = first;
    region->last = last;
  }
  region->remember();
  regions.push_back(region);
  return region;
}

void stretto_watch_close(Region* region) {
  renew();
  for (auto place = regions.begin(); place != regions.end(); ++place)
    if (*place == region) {
      regions.erase(place);
      break;
    }
  if (region->tracked()) {
    bool shared = false;
    for (Region* other : regions)
      shared |= other->first < region->last && region->first < other->last;
    if (!shared) linux_.forget(region->first, region->last);
  }
  delete region;
}

// Compares regions, which are sorted by address; their generations increase if bytes have changed.
// Returns the number of regions whose generation differs from the known one.
int64_t stretto_watch_look(Region** watched, const int64_t* known, int64_t count) {
  renew();
  int64_t changed = 0;
  look(watched, count);
  for (int64_t i = 0; i < count; ++i) changed += watched[i]->generation != known[i];
  return changed;
}

int64_t stretto_watch_generation(const Region* region) { return region->generation; }

int stretto_watch_is_tracked(const Region* region) { return region->tracked(); }
}
