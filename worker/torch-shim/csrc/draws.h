// Random numbers of a micro-batch whose elements depend on their sample, and not on the micro-batch: see draws.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace dtrain {

// The samples of a micro-batch by their places in a step, whose random numbers `key` decides.
struct Samples {
  uint64_t key;
  std::vector<int64_t> places;
};

// The samples of this thread's operations; without any, random numbers come from libtorch's generator.
inline std::shared_ptr<const Samples>& samples_here() {
  thread_local std::shared_ptr<const Samples> samples;
  return samples;
}

} // namespace dtrain
