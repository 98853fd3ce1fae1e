// Tensors over memory that libtorch has not allocated.
#include "boundary.h"

#include <ATen/ops/from_blob.h>

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

} // extern "C"
