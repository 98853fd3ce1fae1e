// GPU graphs: libtorch's at::cuda::CUDAGraph. Nothing here links libtorch_cuda.so: its functions are found by
// name after it is loaded, and the object is constructed in storage of this file. Names and layout are those
// of the libtorch version that set-up pins.
#include "boundary.h"

#include <ATen/core/CachingHostAllocator.h>

#include <cstddef>
#include <memory>
#include <utility>

#ifdef DT_HAS_CUDA_HEADERS
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#endif

using dtrain::guard;

namespace {

// MempoolId_t in c10.
using Pool = std::pair<unsigned long long, unsigned long long>;

struct DtPool {
  uint64_t first, second;
  operator Pool() const { return {first, second}; }
};

// Of enum cudaStreamCaptureMode: GPU calls of other threads do not affect the capture.
constexpr int kThreadLocal = 1;

constexpr std::size_t kSize = 1024;
constexpr std::size_t kAlignment = alignof(std::max_align_t);

#ifdef DT_HAS_CUDA_HEADERS
static_assert(sizeof(at::cuda::CUDAGraph) <= kSize && alignof(at::cuda::CUDAGraph) <= kAlignment, "the storage is too small");
static_assert(static_cast<int>(cudaStreamCaptureModeThreadLocal) == kThreadLocal, "kThreadLocal differs from CUDA's value");
static_assert(std::is_same_v<at::cuda::MempoolId_t, Pool>, "a pool id is not two numbers");

struct Inside : at::cuda::CUDAGraph {
  static bool has_ended(const void* graph) {
    return static_cast<const at::cuda::CUDAGraph*>(graph)->*(&Inside::capture_ended_);
  }
};
#endif

struct Functions {
  void (*construct)(void* self, bool keep_graph);
  void (*destroy)(void* self);
  void (*capture_begin)(void* self, Pool pool, int mode);
  void (*capture_end)(void* self);
  void (*replay)(void* self);
  Pool (*new_pool)();
};

template <typename Pointer>
void find(Pointer& out, const char* name) {
  out = dtrain::find<Pointer>(name, "libtorch_cuda.so");
}

const Functions& functions() {
  static const Functions found = [] {
    Functions f{};
    find(f.construct, "_ZN2at4cuda9CUDAGraphC1Eb");
    find(f.destroy, "_ZN2at4cuda9CUDAGraphD1Ev");
    find(f.capture_begin, "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
    find(f.capture_end, "_ZN2at4cuda9CUDAGraph11capture_endEv");
    find(f.replay, "_ZN2at4cuda9CUDAGraph6replayEv");
    find(f.new_pool, "_ZN2at4cuda17graph_pool_handleEv");
    return f;
  }();
  return found;
}

#ifdef DT_HAS_CUDA_HEADERS
c10::cuda::CUDACachingAllocator::CUDAAllocator& device_allocator() {
  std::atomic<c10::cuda::CUDACachingAllocator::CUDAAllocator*>* allocator = nullptr;
  find(allocator, "_ZN3c104cuda20CUDACachingAllocator9allocatorE");
  return *allocator->load();
}
#else
// The allocator's functions are virtual, and only CUDA's headers have their positions.
struct UnknownAllocator {
  void endAllocateToPool(c10::DeviceIndex, Pool) {}
  void releasePool(c10::DeviceIndex, Pool) {}
};
UnknownAllocator& device_allocator() {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "the shim was compiled without CUDA's headers");
}
#endif

struct GraphHandle {
  alignas(kAlignment) unsigned char storage[kSize];

  GraphHandle() { functions().construct(storage, false); }
  ~GraphHandle() { functions().destroy(storage); }
  GraphHandle(const GraphHandle&) = delete;
  GraphHandle& operator=(const GraphHandle&) = delete;
};

} // namespace

extern "C" {

int32_t dt_graph_pool(DtPool* out, DtError* error) {
  return guard(error, [&] {
    const auto pool = functions().new_pool();
    *out = {pool.first, pool.second};
  });
}

int32_t dt_graph_new(GraphHandle** out, DtError* error) {
  return guard(error, [&] { *out = new GraphHandle; });
}

int32_t dt_graph_begin(GraphHandle* graph, DtPool pool, DtError* error) {
  return guard(error, [&] { functions().capture_begin(graph->storage, pool, kThreadLocal); });
}

int32_t dt_graph_end(GraphHandle* graph, DtError* error) {
  return guard(error, [&] { functions().capture_end(graph->storage); });
}

// Returns whether the capture's end, successful or not, came so far that dt_graph_free frees its memory.
int32_t dt_graph_has_ended(const GraphHandle* graph, bool* out, DtError* error) {
  return guard(error, [&] {
#ifdef DT_HAS_CUDA_HEADERS
    *out = Inside::has_ended(graph->storage);
#else
    (void)graph, (void)out;
    TORCH_CHECK_NOT_IMPLEMENTED(false, "the shim was compiled without CUDA's headers");
#endif
  });
}

// Stops the allocator of pinned host memory, or of the device, from serving the capture from the pool. With
// `release`, the capture gives up its use of the pool.
int32_t dt_graph_leave_pool(bool host, bool release, int32_t device, DtPool pool, DtError* error) {
  return guard(error, [&] {
    if (host && release)
      at::getHostAllocator(at::kCUDA)->release_pool(pool);
    else if (host)
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool);
    else if (release)
      device_allocator().releasePool(static_cast<c10::DeviceIndex>(device), pool);
    else
      device_allocator().endAllocateToPool(static_cast<c10::DeviceIndex>(device), pool);
  });
}

int32_t dt_graph_replay(GraphHandle* graph, DtError* error) {
  return guard(error, [&] { functions().replay(graph->storage); });
}

void dt_graph_free(GraphHandle* graph) { delete graph; }

} // extern "C"
