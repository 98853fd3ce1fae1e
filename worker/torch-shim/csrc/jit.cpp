// Modules that torch.jit.script made and save() wrote: loading, their tensors, and calling them.
#include "boundary.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <array>
#include <utility>
#include <vector>

using dtrain::guard;

namespace {

torch::jit::Module& module(void* handle) { return *static_cast<torch::jit::Module*>(handle); }

// The interpreter rethrows whatever failed inside a module as a plain runtime error; only its words tell memory apart.
template <typename Body>
void naming_memory(Body&& body) {
  try {
    body();
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& e) {
    const std::string text = e.what();
    if (dtrain::mentions(text, "out of memory") || dtrain::mentions(text, "allocate memory") ||
        dtrain::mentions(text, "not enough memory"))
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    throw;
  }
}

// Operations that draw random numbers, by the beginnings of their names.
constexpr std::array kRandom = {"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::native_dropout",
                                "aten::feature_alpha_dropout", "aten::bernoulli", "aten::rand", "aten::normal", "aten::rrelu",
                                "aten::multinomial", "aten::poisson", "aten::uniform", "aten::exponential"};

bool draws(const torch::jit::Block* block) {
  for (const torch::jit::Node* node : block->nodes()) {
    const std::string name = node->kind().toQualString();
    for (const char* random : kRandom)
      if (name.rfind(random, 0) == 0) return true;
    for (const torch::jit::Block* inner : node->blocks())
      if (draws(inner)) return true;
  }
  return false;
}

} // namespace

extern "C" {

// Tensors are moved to `device` (-1 is the CPU) wherever they were when the module was saved.
int32_t dt_module_load(const char* path, int32_t device, void** out, DtError* error) {
  return guard(error, [&] {
    const c10::Device to = device < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
    *out = new torch::jit::Module(torch::jit::load(path, to));
  });
}

// Calls `each` with the name, an owned at::Tensor* and the identity of every parameter, or of every buffer. A tensor that the
// module holds under two names comes twice with one identity.
int32_t dt_module_tensors(void* handle, bool parameters, void* context,
                          void (*each)(void* context, const char* name, void* tensor, uint64_t identity), DtError* error) {
  return guard(error, [&] {
    const auto give = [&](const std::string& name, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      each(context, name.c_str(), new at::Tensor(tensor), reinterpret_cast<uint64_t>(tensor.unsafeGetTensorImpl()));
    };
    if (parameters)
      for (const auto& item : module(handle).named_parameters()) give(item.name, item.value);
    else
      for (const auto& item : module(handle).named_buffers()) give(item.name, item.value);
  });
}

int32_t dt_module_train(void* handle, bool on, DtError* error) {
  return guard(error, [&] { module(handle).train(on); });
}

// Calls forward. Graphs run as they are written: the optimising executor changes a module's arithmetic after its first calls,
// so that a run that was resumed would not end where one ends that was not.
int32_t dt_module_forward(void* handle, const void* const* inputs, size_t count, void** out, DtError* error) {
  return guard(error, [&] {
    std::vector<c10::IValue> stack;
    stack.reserve(count);
    for (size_t index = 0; index < count; ++index) stack.emplace_back(*static_cast<const at::Tensor*>(inputs[index]));
    naming_memory([&] {
      const torch::jit::GraphOptimizerEnabledGuard as_written(false);
      const c10::IValue result = module(handle).forward(std::move(stack));
      TORCH_CHECK_TYPE(result.isTensor(), "forward returned ", result.type()->annotation_str(), ", not a Tensor");
      *out = new at::Tensor(result.toTensor());
    });
  });
}

// Whether forward, with all that it calls, draws random numbers.
int32_t dt_module_draws(void* handle, bool* out, DtError* error) {
  return guard(error, [&] {
    const auto graph = module(handle).get_method("forward").graph()->copy();
    torch::jit::Inline(*graph);
    *out = draws(graph->block());
  });
}

void dt_module_free(void* handle) { delete static_cast<torch::jit::Module*>(handle); }

} // extern "C"
