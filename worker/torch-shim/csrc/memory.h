// The books of tensor memory on the host.
#pragma once

#include <atomic>
#include <cstdint>

namespace dtrain {

// What is allocated now and was at most since the last reset, in bytes.
struct Ledger {
  std::atomic<int64_t> allocated{0};
  std::atomic<int64_t> peak{0};

  void add(int64_t bytes) {
    const int64_t now = allocated.fetch_add(bytes) + bytes;
    int64_t highest = peak.load();
    while (now > highest && !peak.compare_exchange_weak(highest, now)) {
    }
  }
};

// Real memory, or that of symbolic tensors, which have none.
Ledger& ledger(bool symbolic);

// Of which device's kernels this thread's symbolic tensors tell; none where its tensors are real.
enum class Symbolic { kNone, kCpu, kGpu };

Symbolic& symbolic_here();

} // namespace dtrain
