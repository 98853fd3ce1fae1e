// Memory stats of tensors on the host.
#pragma once

#include <atomic>
#include <cstdint>

namespace dtrain {

// Allocated bytes: now, and the peak since the last reset.
struct MemoryStats {
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};

  void add(int64_t bytes) {
    const int64_t now = allocated.fetch_add(bytes) + bytes;
    int64_t highest = peak.load();
    while (now > highest && !peak.compare_exchange_weak(highest, now)) {
    }
  }
};

// The stats of real tensors, or of symbolic tensors, which have no storage.
MemoryStats& memory_stats(bool symbolic);

// The device that this thread's symbolic tensors simulate; kNone if its tensors are real.
enum class Symbolic { kNone, kCpu, kGpu };

Symbolic& symbolic_here();

} // namespace dtrain
