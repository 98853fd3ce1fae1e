// Tensors as Rust passes them: tch's pointer to an at::Tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtrain {

inline at::Tensor tensor(const void* pointer) { return *static_cast<const at::Tensor*>(pointer); }

} // namespace dtrain
