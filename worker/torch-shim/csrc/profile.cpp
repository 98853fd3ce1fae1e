// libtorch's profiler (Kineto): operations of the threads that the caller's work reaches, and GPU work through
// CUPTI if libtorch has it. Times are nanoseconds since 1970.
#include "boundary.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>
#include <string>

using dtrain::guard;
namespace profiler = torch::autograd::profiler;
namespace impl = torch::profiler::impl;

namespace {

// Keep in step with `HEADER` in src/profile.rs. The name's bytes follow.
struct EventHeader {
  int64_t start_ns, duration_ns;
  // The kernel's number of the thread, or the GPU's stream.
  int64_t thread;
  // The GPU, or -1 for the host.
  int64_t device;
  // Of a forward operation that autograd recorded, and of its backward function; -1 for others.
  int64_t sequence;
  int64_t is_backward;
  int64_t name_bytes;
};

} // namespace

extern "C" {

int32_t dt_profile_begin(bool with_gpu, DtError* error) {
  return guard(error, [&] {
    std::set<impl::ActivityType> activities{impl::ActivityType::CPU};
    if (with_gpu) activities.insert(impl::ActivityType::CUDA);
    const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  });
}

// Call it on the thread of dt_profile_begin.
int32_t dt_profile_end(DtBytes* events, DtError* error) {
  return guard(error, [&] {
    const auto result = profiler::disableProfiler();
    std::string all;
    for (const auto& event : result->events()) {
      if (event.isHiddenEvent() || event.isPythonFunction()) continue;
      const auto name = event.name();
      const bool on_host = event.deviceType() == c10::DeviceType::CPU;
      const EventHeader header{static_cast<int64_t>(event.startNs()),
                          static_cast<int64_t>(event.durationNs()),
                          event.deviceResourceId(),
                          on_host ? -1 : event.deviceIndex(),
                          event.sequenceNr(),
                          event.fwdThreadId() != 0,
                          static_cast<int64_t>(name.size())};
      all.append(reinterpret_cast<const char*>(&header), sizeof header);
      all.append(name);
    }
    if (!events->set(all.data(), all.size())) throw std::bad_alloc();
  });
}

} // extern "C"
