// Counts of the operations that a thread calls: the same mode, with real tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <unordered_map>

namespace {

// The counts of this thread: `Operations` of src/ffi/options.rs.
struct DtOperations {
  uint64_t kernels;
  uint64_t reads;
};

thread_local DtOperations* counted = nullptr;

enum class Counts { Nothing, Kernel, Read };

// Kernels are operations that compute. Views, allocations and composed operations are not kernels; the parts
// of the latter are counted themselves.
Counts classify_for_count(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  if (name == "aten::_local_scalar_dense" || name == "aten::equal") return Counts::Read;
  const auto begins = [&](const char* word) { return name.rfind(word, 0) == 0; };
  if (begins("aten::empty") || begins("aten::new_empty") || begins("aten::resize") || begins("aten::set_"))
    return Counts::Nothing;
  if (schema.returns().empty()) return Counts::Kernel;
  const bool views = std::all_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
  if (views || !op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return Counts::Nothing;
  return Counts::Kernel;
}

Counts count(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorName, Counts> known;
  const auto [found, is_new] = known.try_emplace(op.operator_name(), Counts::Nothing);
  if (is_new) found->second = classify_for_count(op);
  counted->kernels += found->second == Counts::Kernel;
  counted->reads += found->second == Counts::Read;
  return found->second;
}

} // namespace
