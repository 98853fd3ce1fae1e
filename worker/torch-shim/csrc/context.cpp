// Process-wide state of libtorch: CUDA by dlopen, kernel settings, generators, autocast, logs.
#include "boundary.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Logging.h>
#include <torch/version.h>

#include <c10/util/env.h>
#include <dlfcn.h>

#include <mutex>
#include <string>

using dtrain::device;
using dtrain::guard;

namespace {

struct DtAutocast {
  bool enabled;
  int32_t dtype;
};

void set_autocast(int32_t index, DtAutocast to) {
  at::autocast::set_autocast_dtype(device(index).type(), static_cast<at::ScalarType>(to.dtype));
  at::autocast::set_autocast_enabled(device(index).type(), to.enabled);
}

// Returns the folder of this process's libtorch_cpu.so.
std::string library_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&at::autocast::clear_cache), &info) == 0 || info.dli_fname == nullptr)
    throw dtrain::Failure(DT_LIBRARY_MISSING, "the path of the loaded libtorch_cpu.so is unknown");
  const std::string path(info.dli_fname);
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string(".") : path.substr(0, slash);
}

// Calls a function of the loaded driver.
template <typename Function, typename... Arguments>
void call_driver(const char* name, Arguments... arguments) {
  const int code = dtrain::find<Function*>(name, "the driver", DT_DRIVER_MISSING)(arguments...);
  TORCH_CHECK(code == 0, "CUDA driver error: ", name, " failed with code ", code);
}

int driver_device(int32_t index) {
  int device = 0;
  call_driver<int(unsigned)>("cuInit", 0u);
  call_driver<int(int*, int)>("cuDeviceGet", &device, index);
  return device;
}

} // namespace

extern "C" {

DtText dt_libtorch_version() { return {TORCH_VERSION, sizeof(TORCH_VERSION) - 1}; }

void dt_set_log_level(int32_t level) {
  FLAGS_caffe2_log_level = level;
  // The profiler has a level of its own. On a machine without a GPU it reports that as an error.
  if (level >= 3) ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
}

int32_t dt_library_folder(DtBytes* out, DtError* error) {
  return guard(error, [&] {
    const auto folder = library_folder();
    if (!out->set(folder.data(), folder.size())) throw std::bad_alloc();
  });
}

// Loads the driver, then libtorch_cuda.so from the folder of libtorch_cpu.so, which registers its kernels.
int32_t dt_cuda_load(DtError* error) {
  return guard(error, [&] {
    static std::mutex lock;
    static bool loaded = false;
    const std::lock_guard<std::mutex> held(lock);
    if (loaded) return;
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == nullptr)
      throw dtrain::Failure(DT_DRIVER_MISSING, dlerror());
    const auto path = library_folder() + "/libtorch_cuda.so";
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr)
      throw dtrain::Failure(DT_LIBRARY_MISSING, std::string("libtorch's CUDA libraries cannot be loaded: ") + dlerror());
    loaded = true;
  });
}

// If CUDA fails, libtorch's count is 0 without a reason; initialising CUDA throws the reason and creates no
// context. Do not use the hooks before libtorch_cuda.so is loaded: the first ones found are kept.
int32_t dt_cuda_device_count(uint64_t* out, DtError* error) {
  return guard(error, [&] {
    if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) return;
    try {
      at::globalContext().lazyInitDevice(at::kCUDA);
    } catch (const c10::Error& e) {
      const std::string text = e.what_without_backtrace();
      if (dtrain::mentions(text, "No CUDA GPUs are available")) return;
      if (dtrain::mentions(text, "Found no NVIDIA driver")) throw dtrain::Failure(DT_DRIVER_MISSING, text);
      if (dtrain::mentions(text, "driver on your system is too old")) throw dtrain::Failure(DT_DRIVER_TOO_OLD, text);
      throw;
    }
    *out = static_cast<uint64_t>(at::detail::getCUDAHooks().deviceCount());
  });
}

int32_t dt_cuda_total_memory(int32_t index, uint64_t* out, DtError* error) {
  return guard(error, [&] {
    size_t bytes = 0;
    call_driver<int(size_t*, int)>("cuDeviceTotalMem_v2", &bytes, driver_device(index));
    *out = bytes;
  });
}

// Returns whether libtorch 2.11 for CUDA 13 prefers cuDNN's attention kernel in half precision: on compute
// capabilities 9 and 10 with a cuDNN after 9.15.0, unless TORCH_CUDNN_SDPA_DEPRIORITIZED is 1
// (check_prefer_cudnn_attention of ATen/native/transformers/cuda/sdp_utils.cpp).
int32_t dt_cuda_prefers_cudnn_attention(int32_t index, bool* out, DtError* error) {
  constexpr int kMajor = 75; // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  return guard(error, [&] {
    int major = 0;
    call_driver<int(int*, int, int)>("cuDeviceGetAttribute", &major, kMajor, driver_device(index));
    const bool deprioritized = c10::utils::check_env("TORCH_CUDNN_SDPA_DEPRIORITIZED") == true;
    *out = (major == 9 || major == 10) && !deprioritized && at::detail::getCUDAHooks().versionRuntimeCuDNN() > 91500;
  });
}

// Returns the number of multiprocessors, of the threads that run at once on each, and the major compute capability.
int32_t dt_cuda_properties(int32_t index, int32_t out[3], DtError* error) {
  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, _MAX_THREADS_PER_MULTIPROCESSOR and _COMPUTE_CAPABILITY_MAJOR
  constexpr int kAttributes[] = {16, 39, 75};
  return guard(error, [&] {
    const int device = driver_device(index);
    for (const int attribute : kAttributes)
      call_driver<int(int*, int, int)>("cuDeviceGetAttribute", out++, attribute, device);
  });
}

// Returns the bytes of cuBLAS's workspace on the current device, for every thread and stream that multiplies.
// cublasLt has its own.
int32_t dt_cuda_blas_workspace(uint64_t* out, DtError* error) {
  return guard(error, [&] {
    *out = dtrain::find<size_t (*)()>("_ZN2at4cuda22getChosenWorkspaceSizeEv", "libtorch_cuda.so")();
  });
}

int32_t dt_cuda_set_device(int32_t index, DtError* error) {
  return guard(error, [&] { c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device(index)); });
}

// The settings below are integers of the process, which can be set and read without CUDA.
int32_t dt_cuda_set_tf32(bool on, DtError* error) {
  return guard(error, [&] {
    at::globalContext().setAllowTF32CuBLAS(on);
    at::globalContext().setAllowTF32CuDNN(on);
  });
}

int32_t dt_cuda_tf32(bool products_and_convolutions[2], DtError* error) {
  return guard(error, [&] {
    products_and_convolutions[0] = at::globalContext().allowTF32CuBLAS();
    products_and_convolutions[1] = at::globalContext().allowTF32CuDNN();
  });
}

int32_t dt_cuda_cudnn_benchmark(bool* out, DtError* error) {
  return guard(error, [&] { *out = at::globalContext().benchmarkCuDNN(); });
}

int32_t dt_rng_get_state(int32_t index, void** out, DtError* error) {
  return guard(error, [&] {
    auto generator = at::globalContext().defaultGenerator(device(index));
    const std::lock_guard<std::mutex> held(generator.mutex());
    *out = new at::Tensor(generator.get_state());
  });
}

int32_t dt_rng_set_state(int32_t index, const void* state, DtError* error) {
  return guard(error, [&] {
    auto generator = at::globalContext().defaultGenerator(device(index));
    const std::lock_guard<std::mutex> held(generator.mutex());
    generator.set_state(dtrain::tensor(state));
  });
}

int32_t dt_rng_seed(uint64_t seed, DtError* error) {
  return guard(error, [&] { at::manual_seed(seed); });
}

// Leaving the outermost autocast region clears the cache of cast weights. A negative `dtype` turns autocast off.
int32_t dt_autocast_enter(int32_t index, int32_t dtype, DtAutocast* before, DtError* error) {
  return guard(error, [&] {
    const auto type = device(index).type();
    *before = {at::autocast::is_autocast_enabled(type), static_cast<int32_t>(at::autocast::get_autocast_dtype(type))};
    set_autocast(index, dtype < 0 ? DtAutocast{false, before->dtype} : DtAutocast{true, dtype});
    at::autocast::increment_nesting();
  });
}

int32_t dt_autocast_leave(int32_t index, const DtAutocast* before, DtError* error) {
  return guard(error, [&] {
    set_autocast(index, *before);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  });
}

void dt_grad_mode_set(bool enabled) { c10::GradMode::set_enabled(enabled); }

bool dt_grad_mode() { return c10::GradMode::is_enabled(); }

// Throws an exception for the tests of the boundary.
int32_t dt_throw(int32_t exception, DtError* error) {
  return guard(error, [&] {
    switch (exception) {
      case 0: TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2.35 GiB.");
      case 1: throw std::bad_alloc();
      case 2: TORCH_CHECK_WITH(DistNetworkError, false, "The client socket has timed out after 1s");
      case 3: TORCH_CHECK_WITH(DistNetworkError, false, "The client socket has failed to connect");
      case 4: TORCH_CHECK_WITH(DistStoreError, false, "bad key");
      case 5: TORCH_CHECK_VALUE(false, "a wrong value");
      case 6: TORCH_CHECK_NOT_IMPLEMENTED(false, "no kernel");
      case 7: throw dtrain::Failure(DT_LIBRARY_MISSING, "no such library");
      case 8: throw std::runtime_error("Connection closed by peer [127.0.0.1]:1");
      case 9: throw 42;
      case 11: throw dtrain::Failure(DT_DRIVER_MISSING, "no such driver");
      case 12: throw dtrain::Failure(DT_DRIVER_TOO_OLD, "an old driver");
      default: TORCH_CHECK(false, "a plain error");
    }
  });
}

} // extern "C"
