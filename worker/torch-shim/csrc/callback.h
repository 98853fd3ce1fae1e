// Rust closures that libtorch calls and drops.
#pragma once

#include "boundary.h"

#include <torch/csrc/autograd/variable.h>

#include <string>

using torch::autograd::variable_list;

extern "C" {
// `call` appends its results to `outputs` by dt_output_push and returns DT_OK, or sets the message by
// dt_reason_set and returns the error's kind. `release` is called once.
struct DtCallback {
  void* context;
  int32_t (*call)(void* context, DtTensors inputs, bool recomputes, variable_list* outputs, std::string* reason);
  void (*release)(void* context);
};
}

namespace dtrain {

[[noreturn]] inline void throw_error(int32_t kind, const std::string& reason) {
  switch (kind) {
    case DT_OUT_OF_MEMORY:
      // If only the text of an error is left, these words identify it.
      C10_THROW_ERROR(OutOfMemoryError, mentions(reason, "out of memory") ? reason : "out of memory: " + reason);
    case DT_TIMEOUT:
    case DT_NETWORK: C10_THROW_ERROR(DistNetworkError, reason);
    case DT_NOT_IMPLEMENTED: C10_THROW_ERROR(NotImplementedError, reason);
    default: C10_THROW_ERROR(Error, reason);
  }
}

struct Callback {
  explicit Callback(DtCallback callback) : callback(callback) {}
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() { callback.release(callback.context); }

  variable_list operator()(const variable_list& inputs, bool recomputes) const {
    std::vector<const void*> pointers;
    for (const auto& input : inputs) pointers.push_back(&input);
    variable_list outputs;
    std::string reason;
    const int32_t kind = callback.call(callback.context, {pointers.data(), pointers.size()}, recomputes, &outputs, &reason);
    if (kind != DT_OK) throw_error(kind, reason);
    return outputs;
  }

  DtCallback callback;
};

} // namespace dtrain
