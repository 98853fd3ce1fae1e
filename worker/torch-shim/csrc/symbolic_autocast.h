// What autocast computes in float32 on a GPU, and not on a CPU. Symbolic tensors are the CPU's: without this, a step in mixed precision would
// seem to keep half of what such an operation keeps, and its result would have another dtype.
#pragma once

#include "memory.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

namespace dtrain {

// The lists of libtorch's header.
inline std::vector<std::pair<std::string, std::string>> operations_in_float() {
#define DT_ONE(name) {"aten::" #name, ""},
#define DT_TWO(name, overload) {"aten::" #name, #overload},
#define DT_PICK(first, second, macro, ...) macro
#define DT_NAME(...) DT_PICK(__VA_ARGS__, DT_TWO, DT_ONE, )(__VA_ARGS__)
  return {AT_FORALL_FP32(DT_NAME) AT_FORALL_FP32_SET_OPT_DTYPE(DT_NAME)};
#undef DT_NAME
#undef DT_PICK
#undef DT_TWO
#undef DT_ONE
}

// Calls the operation as a GPU's autocast does if the tensors stand for a GPU's: with float32 tensors, or, if it takes a dtype for its
// result, with that of float32.
inline void compute_in_float(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::AutocastCPU);
  if (symbolic_here() != Symbolic::kGpu) return op.redispatchBoxed(below, stack);
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastCPU);
  const auto& arguments = op.schema().arguments();
  const auto first = stack->size() - arguments.size();
  const auto dtype = op.schema().argumentIndexWithName("dtype");
  for (size_t index = 0; index < arguments.size(); ++index) {
    auto& value = (*stack)[first + index];
    if (dtype.has_value()) {
      if (static_cast<int>(index) == *dtype && value.isNone() && at::isReducedFloatingType((*stack)[first].toTensor().scalar_type()))
        value = at::kFloat;
    } else if (value.isTensor() && value.toTensor().defined()) {
      value = at::autocast::cached_cast(at::kFloat, value.toTensor(), c10::DeviceType::CPU);
    }
  }
  op.redispatchBoxed(below, stack);
}

// Registers them where the CPU's autocast leaves the dtype as it is. Called once.
inline void register_autocast_of_gpus() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU, __FILE__, __LINE__);
  for (const auto& [name, overload] : operations_in_float()) {
    // Rules of symbolic_layers.h have these, whose kernels convert by themselves.
    if (name == "aten::softmax" || name == "aten::log_softmax") continue;
    const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) continue;
    const auto full = overload.empty() ? name : name + "." + overload;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&compute_in_float>());
  }
}

} // namespace dtrain
