// The kernel of random numbers by sample for a GPU, compiled at its first use by NVRTC, which libtorch's CUDA set has: the
// build needs no CUDA, and the arithmetic is the text of the CPU's.
#pragma once

#include <c10/core/DeviceGuard.h>

#include <array>
#include <map>
#include <mutex>
#include <string>

namespace dtrain::draws {

constexpr const char* kTypes = R"(
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;
#define DT_DEVICE static __device__ __forceinline__
)";

// A block of threads computes a block of elements.
constexpr const char* kKernels = R"(
struct Half { unsigned short bits; };
struct BFloat16 { unsigned short bits; };

DT_DEVICE float read(float value) { return value; }
DT_DEVICE double read(double value) { return value; }
DT_DEVICE float read(Half value) {
  float read;
  asm("cvt.f32.f16 %0, %1;" : "=f"(read) : "h"(value.bits));
  return read;
}
DT_DEVICE float read(BFloat16 value) { return __uint_as_float((uint32_t)value.bits << 16); }

DT_DEVICE void write(float* to, float value) { *to = value; }
DT_DEVICE void write(double* to, double value) { *to = value; }
DT_DEVICE void write(Half* to, float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(value)); }
DT_DEVICE void write(BFloat16* to, float value) {
  const uint32_t bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  to->bits = is_nan ? 0x7FFF : (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

template <typename T, typename Real>
DT_DEVICE void draw(const Job& job, const T* x, T* out, int precision) {
  const int64_t elements = job.outer * job.inner;
  const int64_t blocks = (elements + kElements - 1) / kElements;
  const int64_t sample = blockIdx.x / blocks;
  const int64_t block = blockIdx.x % blocks;
  const uint64_t call = block * kCalls + threadIdx.x;
  const uint32_t place = place_of(job, sample);
  const Philox drawn = philox(job.key, call, place, job.operation);
  const Philox second = job.kind == kNormal ? philox(job.key, call, place, job.operation | kSecond) : drawn;
  for (int quarter = 0; quarter < 4; ++quarter) {
    const int64_t element = block * kElements + quarter * kCalls + threadIdx.x;
    if (element >= elements) return;
    const int64_t row = job.outer == 1 ? 0 : element / job.inner;
    const int64_t at = (row * job.samples + sample) * job.inner + (element - row * job.inner);
    const uint32_t bits = drawn.numbers[quarter];
    Real value;
    switch (job.kind) {
      case kDropout: value = (Real)read(x[at]) * (bits < job.threshold ? (Real)0 : (Real)job.scale); break;
      case kUniform: value = uniform_of(bits, precision); break;
      case kBernoulli: value = bits < job.threshold ? 0 : 1; break;
      case kNormal: value = normal_of(bits, second.numbers[quarter]); break;
      default: value = exponential_of(bits);
    }
    write(out + at, value);
  }
}

extern "C" __global__ void dtrain_draw_float(const float* x, float* out, Job job) { draw<float, float>(job, x, out, 24); }
extern "C" __global__ void dtrain_draw_double(const double* x, double* out, Job job) { draw<double, double>(job, x, out, 24); }
extern "C" __global__ void dtrain_draw_half(const Half* x, Half* out, Job job) { draw<Half, float>(job, x, out, 11); }
extern "C" __global__ void dtrain_draw_bfloat16(const BFloat16* x, BFloat16* out, Job job) { draw<BFloat16, float>(job, x, out, 8); }
)";

using Program = void*;
using Function = void*;

// Functions of NVRTC, which libtorch's libcaffe2_nvrtc.so needs and so finds.
struct Nvrtc {
  Nvrtc() : library(dlopen((library_folder() + "/libcaffe2_nvrtc.so").c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library == nullptr) throw Failure(DT_LIBRARY_MISSING, std::string("NVRTC cannot be loaded: ") + dlerror());
  }

  template <typename Signature, typename... Arguments>
  int code_of(const char* name, Arguments... arguments) const {
    auto* found = reinterpret_cast<Signature*>(dlsym(library, name));
    if (found == nullptr) throw Failure(DT_LIBRARY_MISSING, std::string("NVRTC has no ") + name);
    return found(arguments...);
  }

  template <typename Signature, typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const int code = code_of<Signature>(name, arguments...);
    TORCH_CHECK(code == 0, "NVRTC error: ", name, " failed with code ", code);
  }

  std::string log_of(Program program) const {
    size_t size = 0;
    call<int(Program, size_t*)>("nvrtcGetProgramLogSize", program, &size);
    std::string log(size, '\0');
    call<int(Program, char*)>("nvrtcGetProgramLog", program, log.data());
    return log;
  }

  void* library;
};

// Returns the machine code of the kernels.
std::string compile(int major, int minor) {
  const Nvrtc nvrtc;
  const auto source = std::string(kTypes) + kSharedSource + kKernels;
  const auto capability = std::to_string(major) + std::to_string(minor);
  const auto architecture = "--gpu-architecture=sm_" + capability;
  const std::array<const char*, 1> options{architecture.c_str()};
  Program program = nullptr;
  nvrtc.call<int(Program*, const char*, const char*, int, const char* const*, const char* const*)>(
      "nvrtcCreateProgram", &program, source.c_str(), "dtrain_draw.cu", 0, nullptr, nullptr);
  const int code = nvrtc.code_of<int(Program, int, const char* const*)>("nvrtcCompileProgram", program, 1, options.data());
  TORCH_CHECK(code == 0, "NVRTC cannot compile the kernels of dropout for compute capability ", major, ".", minor, " (code ", code,
              "): a newer libtorch may know this GPU. ", nvrtc.log_of(program));
  size_t size = 0;
  nvrtc.call<int(Program, size_t*)>("nvrtcGetCUBINSize", program, &size);
  std::string machine_code(size, '\0');
  nvrtc.call<int(Program, char*)>("nvrtcGetCUBIN", program, machine_code.data());
  nvrtc.call<int(Program*)>("nvrtcDestroyProgram", &program);
  return machine_code;
}

// Calls the driver, whose code for a lack of memory is that of an allocation.
template <typename Signature, typename... Arguments>
void call_for_kernel(const char* name, Arguments... arguments) {
  constexpr int kOutOfMemory = 2;
  const int code = find<Signature*>(name, "the driver", DT_DRIVER_MISSING)(arguments...);
  TORCH_CHECK_WITH(OutOfMemoryError, code != kOutOfMemory, "CUDA out of memory: ", name, " for the kernels of dropout");
  TORCH_CHECK(code == 0, "CUDA driver error: ", name, " failed with code ", code);
}

// Gives this thread the device's context, which libtorch uses, if it has no context.
void ensure_context(at::DeviceIndex index) {
  void* context = nullptr;
  call_driver<int(void**)>("cuCtxGetCurrent", &context);
  if (context != nullptr) return;
  call_driver<int(void**, int)>("cuDevicePrimaryCtxRetain", &context, driver_device(index));
  call_driver<int(void*)>("cuCtxSetCurrent", context);
}

// The kernels of a GPU, which stay loaded.
struct Kernels {
  std::map<at::ScalarType, Function> functions;

  explicit Kernels(at::DeviceIndex index) {
    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    int major = 0, minor = 0;
    call_driver<int(int*, int, int)>("cuDeviceGetAttribute", &major, 75, driver_device(index));
    call_driver<int(int*, int, int)>("cuDeviceGetAttribute", &minor, 76, driver_device(index));
    const auto code = compile(major, minor);
    void* module = nullptr;
    call_for_kernel<int(void**, const void*)>("cuModuleLoadData", &module, static_cast<const void*>(code.data()));
    const std::array<std::pair<at::ScalarType, const char*>, 4> names{{{at::kFloat, "dtrain_draw_float"},
                                                                       {at::kDouble, "dtrain_draw_double"},
                                                                       {at::kHalf, "dtrain_draw_half"},
                                                                       {at::kBFloat16, "dtrain_draw_bfloat16"}}};
    for (const auto& [type, name] : names)
      call_driver<int(Function*, void*, const char*)>("cuModuleGetFunction", &functions[type], module, name);
  }
};

const Kernels& kernels_of(at::DeviceIndex index) {
  static std::mutex lock;
  static std::map<at::DeviceIndex, Kernels> all;
  const std::lock_guard<std::mutex> held(lock);
  return all.try_emplace(index, index).first->second;
}

// `x` and `out` are contiguous, and may be the same.
void run_on_gpu(const Job& job, const Tensor& x, const Tensor& out) {
  const auto device = out.device();
  const c10::DeviceGuard on(device);
  ensure_context(device.index());
  const auto& functions = kernels_of(device.index()).functions;
  const auto function = functions.find(out.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(function != functions.end(), "no random numbers by sample in ", out.scalar_type());
  const int64_t units = job.samples * ((job.outer * job.inner + kElements - 1) / kElements);
  const void* from = x.const_data_ptr();
  void* to = out.mutable_data_ptr();
  Job copy = job;
  // The stream's later kernels alone reuse its memory.
  Tensor places;
  if (job.places != nullptr) {
    places = at::tensor(at::IntArrayRef(job.places, static_cast<size_t>(job.samples)), at::kLong).to(device);
    copy.places = places.const_data_ptr<int64_t>();
  }
  std::array<void*, 3> parameters{&from, &to, &copy};
  const c10::impl::VirtualGuardImpl devices(c10::DeviceType::CUDA);
  void* stream = devices.getStreamNativeHandle(devices.getStream(device));
  using Launch = int(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  call_for_kernel<Launch>("cuLaunchKernel", function->second, static_cast<unsigned>(units), 1u, 1u, static_cast<unsigned>(kCalls), 1u, 1u,
                          0u, stream, parameters.data(), static_cast<void**>(nullptr));
}

} // namespace dtrain::draws
