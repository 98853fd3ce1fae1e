// Memory of tensors: a host allocator that counts bytes and fails beyond a budget, as a GPU does, and the
// memory stats of the accelerator's caching allocator.
#include "memory.h"

#include "boundary.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>

using dtrain::guard;

namespace {

// Stored before every block, to identify it when it is freed. Its size is libtorch's alignment.
struct alignas(64) Header {
  int64_t bytes;
  bool symbolic;
  bool mapped;
};
static_assert(sizeof(Header) == 64, "blocks stay aligned behind it");

// Larger symbolic blocks are only address space, because nobody writes to them. Smaller blocks are real: they
// hold scalars and shapes that are read back.
constexpr size_t kSmall = 64 << 10;

// kMinBlockSize of c10/cuda/CUDACachingAllocator.cpp.
constexpr size_t kGpuBlock = 512;

// Large pages for blocks from this size: fewer page faults at the first touch, and fewer TLB misses later.
constexpr size_t kLarge = 8 << 20;

void advise_large_pages(void* memory, size_t bytes) {
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  // Large pages are optional.
  (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

std::atomic<int64_t> budget{0};
// The number of allocations until one fails on purpose; 0: never.
std::atomic<int64_t> allocations_until_failure{0};

std::string format_bytes(int64_t bytes) {
  char text[32];
  if (bytes < (int64_t{1} << 30))
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  else
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

// Counts `bytes` as allocated, or throws as a GPU's allocator does.
void count(int64_t bytes) {
  auto& stats = dtrain::memory_stats(false);
  int64_t left = allocations_until_failure.load();
  while (left > 0 && !allocations_until_failure.compare_exchange_weak(left, left - 1)) {
  }
  const int64_t limit = budget.load();
  const int64_t before = stats.allocated.load();
  TORCH_CHECK_WITH(OutOfMemoryError, left != 1, "CPU out of memory. Tried to allocate ", format_bytes(bytes),
                   " (a test made it fail). ", format_bytes(before), " are allocated.");
  TORCH_CHECK_WITH(OutOfMemoryError, limit == 0 || before + bytes <= limit, "CPU out of memory. Tried to allocate ",
                   format_bytes(bytes), ". The budget is ", format_bytes(limit), ", of which ",
                   format_bytes(std::max<int64_t>(limit - before, 0)), " are free and ", format_bytes(before), " are allocated.");
  stats.add(bytes);
}

void release(void* data) {
  if (data == nullptr) return;
  auto* header = static_cast<Header*>(data) - 1;
  dtrain::memory_stats(header->symbolic).allocated.fetch_sub(header->bytes);
  if (header->mapped)
    ::munmap(header, static_cast<size_t>(header->bytes) + sizeof(Header));
  else
    c10::free_cpu(header);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes == 0 ? nullptr : block(bytes);
    // For raw allocations libtorch requires that the data is its own context.
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void* block(size_t bytes) {
    const bool symbolic = dtrain::symbolic_here() != dtrain::Symbolic::kNone;
    // As in the caching allocator of GPUs, which rounds blocks to this size with expandable segments.
    if (dtrain::symbolic_here() == dtrain::Symbolic::kGpu) bytes = (bytes + kGpuBlock - 1) / kGpuBlock * kGpuBlock;
    const bool mapped = symbolic && bytes > kSmall;
    const size_t whole = bytes + sizeof(Header);
    if (!symbolic) count(static_cast<int64_t>(bytes));
    void* memory = nullptr;
    if (mapped) {
      memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      TORCH_CHECK(memory != MAP_FAILED, "no address space for a tensor of ", bytes,
                  " bytes without storage; raise `ulimit -v`");
    } else {
      try {
        memory = c10::alloc_cpu(whole);
      } catch (...) {
        if (!symbolic) dtrain::memory_stats(false).allocated.fetch_sub(static_cast<int64_t>(bytes));
        throw;
      }
      if (symbolic) std::memset(memory, 0, whole);
      if (whole >= kLarge) advise_large_pages(memory, whole);
    }
    auto* header = new (memory) Header{static_cast<int64_t>(bytes), symbolic, mapped};
    if (symbolic) dtrain::memory_stats(true).add(header->bytes);
    return header + 1;
  }
};

} // namespace

namespace dtrain {

MemoryStats& memory_stats(bool symbolic) {
  static MemoryStats real, symbolic_tensors;
  return symbolic ? symbolic_tensors : real;
}

Symbolic& symbolic_here() {
  thread_local Symbolic kind = Symbolic::kNone;
  return kind;
}

} // namespace dtrain

extern "C" {

int32_t dt_memory_enable_stats(DtError* error) {
  return guard(error, [] {
    static std::once_flag once;
    std::call_once(once, [] {
      static CountingAllocator allocator;
      c10::SetAllocator(c10::DeviceType::CPU, &allocator, /*priority=*/100);
    });
  });
}

struct DtUsage {
  int64_t allocated, reserved, peak;
};

// `device` -1 is the host, -2 the symbolic tensors.
int32_t dt_memory_usage(int32_t device, DtUsage* out, DtError* error) {
  return guard(error, [&] {
    if (device < 0) {
      const auto& stats = dtrain::memory_stats(device == -2);
      const int64_t now = stats.allocated.load();
      *out = {now, now, std::max(stats.peak.load(), now)};
      return;
    }
    const auto stats = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto all = static_cast<size_t>(at::CachingAllocator::StatType::AGGREGATE);
    *out = {stats.allocated_bytes[all].current, stats.reserved_bytes[all].current, stats.allocated_bytes[all].peak};
  });
}

int32_t dt_memory_reset_peak(int32_t device, DtError* error) {
  return guard(error, [&] {
    if (device < 0) {
      auto& stats = dtrain::memory_stats(device == -2);
      stats.peak.store(stats.allocated.load());
      return;
    }
    at::accelerator::resetPeakStats(static_cast<c10::DeviceIndex>(device));
  });
}

int32_t dt_memory_empty_cache(int32_t device, DtError* error) {
  return guard(error, [&] {
    if (device < 0)
      ::malloc_trim(0);
    else
      at::accelerator::emptyCache();
  });
}

int32_t dt_memory_info(int32_t device, uint64_t free_and_total[2], DtError* error) {
  return guard(error, [&] {
    const auto info = at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    free_and_total[0] = info.first;
    free_and_total[1] = info.second;
  });
}

int32_t dt_memory_configure(DtText settings, DtError* error) {
  return guard(error, [&] { c10::CachingAllocator::setAllocatorSettings(settings.string()); });
}

void dt_memory_set_budget(int64_t bytes) { budget.store(bytes); }

int32_t dt_memory_count(int64_t bytes, DtError* error) {
  return guard(error, [&] {
    if (bytes >= 0)
      count(bytes);
    else
      dtrain::memory_stats(false).add(bytes);
  });
}

void dt_memory_fail_allocation(int64_t allocation) { allocations_until_failure.store(allocation); }

int64_t dt_memory_allocations_until_failure(void) { return allocations_until_failure.load(); }

} // extern "C"
