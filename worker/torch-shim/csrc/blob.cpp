// Tensors over memory that libtorch has not allocated, and copies to host memory.
#include "boundary.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <memory>

using dtrain::guard;

namespace {

// Finds a function of CUDA's runtime, which libtorch_cuda.so has loaded.
template <typename Function>
Function find_runtime(const char* name) {
  return dtrain::find<Function>(name, "CUDA");
}

// Throws the error of a CUDA call, and clears it so that libtorch's next call does not report it.
void check_cuda(int code, const char* name) {
  if (code == 0) return;
  find_runtime<int (*)()>("cudaGetLastError")();
  TORCH_CHECK(false, "CUDA error: ", name, " failed with code ", code);
}

} // namespace

extern "C" {

// Creates a flat CPU tensor of `count` elements at `data`; the caller owns *out. `drop(owner)` is called
// once, on any thread: after the last tensor over the memory is gone, or before this returns an error.
int32_t dt_tensor_from_memory(void* data, int64_t count, int32_t dtype, void* owner, void (*drop)(void*), void** out,
                       DtError* error) {
  return guard(error, [&] {
    std::shared_ptr<void> kept(owner, drop);
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(at::kCPU);
    *out = new at::Tensor(at::from_blob(data, {count}, [kept](void*) mutable { kept.reset(); }, options));
  });
}

int32_t dt_tensor_pinned(const void* data, int64_t count, int32_t dtype, void** out, DtError* error) {
  return guard(error, [&] {
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(at::kCPU).pinned_memory(true);
    auto tensor = at::empty({count}, options);
    if (count > 0) std::memcpy(tensor.mutable_data_ptr(), data, tensor.nbytes());
    *out = new at::Tensor(std::move(tensor));
  });
}

int32_t dt_tensor_copy_to(const void* tensor, void* to, int64_t bytes, DtError* error) {
  return guard(error, [&] {
    const at::NoGradGuard no_grad;
    const auto from = dtrain::tensor(tensor);
    TORCH_CHECK_VALUE(static_cast<int64_t>(from.nbytes()) == bytes, "the tensor has ", from.nbytes(), " bytes, the target ", bytes);
    if (bytes == 0) return;
    auto out = at::from_blob(to, from.sizes(), at::TensorOptions().dtype(from.scalar_type()).device(at::kCPU));
    out.copy_(from, /*non_blocking=*/true);
  });
}

int32_t dt_host_register(void* data, uint64_t bytes, DtError* error) {
  return guard(error, [&] {
    constexpr unsigned kPortable = 1;
    check_cuda(find_runtime<int (*)(void*, size_t, unsigned)>("cudaHostRegister")(data, bytes, kPortable), "cudaHostRegister");
  });
}

int32_t dt_host_unregister(void* data, DtError* error) {
  return guard(error, [&] { check_cuda(find_runtime<int (*)(void*)>("cudaHostUnregister")(data), "cudaHostUnregister"); });
}

} // extern "C"
