// Tensors over memory that libtorch has not allocated.
#include "boundary.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <memory>

using dtrain::guard;

extern "C" {

// *out is a new, flat CPU tensor of `count` elements at `data` that the caller owns. `drop(owner)` is called once: when the last
// tensor over the memory is gone, or before this returns with an error. It may be called from any thread.
int32_t dt_tensor_over(void* data, int64_t count, int32_t dtype, void* owner, void (*drop)(void*), void** out,
                       DtError* error) {
  return guard(error, [&] {
    std::shared_ptr<void> kept(owner, drop);
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(at::kCPU);
    *out = new at::Tensor(at::from_blob(data, {count}, [kept](void*) mutable { kept.reset(); }, options));
  });
}

// *out is a new, flat tensor with `count` elements of `data`, in memory of the host from which a GPU copies without the host.
int32_t dt_tensor_pinned(const void* data, int64_t count, int32_t dtype, void** out, DtError* error) {
  return guard(error, [&] {
    const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(at::kCPU).pinned_memory(true);
    auto tensor = at::empty({count}, options);
    if (count > 0) std::memcpy(tensor.mutable_data_ptr(), data, tensor.nbytes());
    *out = new at::Tensor(std::move(tensor));
  });
}

} // extern "C"
