// Modules saved by torch.jit.script: loading, their tensors, and calls.
#include "boundary.h"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

using dtrain::guard;

namespace {

using ModuleHandle = torch::jit::Module;

// Prefixes of the operations that draw random numbers.
constexpr std::array kRandom = {"aten::dropout", "aten::feature_dropout", "aten::alpha_dropout", "aten::native_dropout",
                                "aten::feature_alpha_dropout", "aten::bernoulli", "aten::rand", "aten::normal", "aten::rrelu",
                                "aten::multinomial", "aten::poisson", "aten::uniform", "aten::exponential"};

bool draws_random_numbers(const torch::jit::Block* block) {
  for (const torch::jit::Node* node : block->nodes()) {
    const std::string name = node->kind().toQualString();
    for (const char* random : kRandom)
      if (name.rfind(random, 0) == 0) return true;
    for (const torch::jit::Block* inner : node->blocks())
      if (draws_random_numbers(inner)) return true;
  }
  return false;
}

// An operation, in place or not, that differs between training and evaluation. `flag` is the argument with
// its mode. If `size` is 0 or `statistics` is not a tensor, the modes do not differ.
struct ModeDependent {
  const char* name;
  const char* flag;
  const char* size;
  const char* statistics;
};

constexpr std::array kModeDependent = {
    ModeDependent{"aten::batch_norm", "training", nullptr, "running_mean"},
    ModeDependent{"aten::native_batch_norm", "training", nullptr, "running_mean"},
    ModeDependent{"aten::cudnn_batch_norm", "training", nullptr, "running_mean"},
    ModeDependent{"aten::miopen_batch_norm", "training", nullptr, "running_mean"},
    ModeDependent{"aten::instance_norm", "use_input_stats", nullptr, "running_mean"},
    ModeDependent{"aten::dropout", "train", "p", nullptr},
    ModeDependent{"aten::native_dropout", "train", "p", nullptr},
    ModeDependent{"aten::feature_dropout", "train", "p", nullptr},
    ModeDependent{"aten::alpha_dropout", "train", "p", nullptr},
    ModeDependent{"aten::feature_alpha_dropout", "train", "p", nullptr},
    ModeDependent{"aten::rrelu", "training", nullptr, nullptr},
    ModeDependent{"aten::lstm", "train", "dropout", nullptr},
    ModeDependent{"aten::gru", "train", "dropout", nullptr},
    ModeDependent{"aten::rnn_tanh", "train", "dropout", nullptr},
    ModeDependent{"aten::rnn_relu", "train", "dropout", nullptr},
    ModeDependent{"aten::scaled_dot_product_attention", "dropout_p", "dropout_p", nullptr},
};

// Operations that attention modules use only in evaluation without gradients. A script has them in a branch.
constexpr std::array kEvaluationOnly = {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"};

using Graphs = std::set<const torch::jit::Graph*>;
using EachFixed = void (*)(void* context, DtText operation, bool training);

// Returns the argument of a node with that name, if it is a constant.
std::optional<c10::IValue> constant(const torch::jit::Node* node, const char* name) {
  const c10::FunctionSchema* schema = node->maybeSchema();
  if (name == nullptr || schema == nullptr) return std::nullopt;
  const std::optional<int> at = schema->argumentIndexWithName(name);
  return at ? torch::jit::toIValue(node->input(*at)) : std::nullopt;
}

// Returns whether the node comes from a script, as far as the file shows: the source of a traced node is a
// stack, such as "net.py(12): forward".
bool is_scripted(const torch::jit::Node* node) {
  const auto range = node->sourceRange().findSourceRangeThatGenerated();
  if (!range || !range->source() || !range->source()->filename()) return false;
  return range->source()->text_str().str().rfind(*range->source()->filename() + "(", 0) != 0;
}

// Reports an operation whose mode is a constant of a trace. In a script the author chose it.
void report_fixed(const torch::jit::Node* node, void* context, EachFixed each) {
  const std::string name = node->kind().toQualString();
  const std::string plain = name.back() == '_' ? name.substr(0, name.size() - 1) : name;
  const auto report = [&](bool training) {
    constexpr size_t kPrefix = sizeof("aten::") - 1;
    each(context, {name.data() + kPrefix, name.size() - kPrefix}, training);
  };
  const torch::jit::Node* around = node->owningBlock()->owningNode();
  const bool is_in_branch = around != nullptr && around->kind() == c10::prim::If;
  for (const char* evaluating : kEvaluationOnly)
    if (name == evaluating && !is_in_branch) report(false);
  for (const ModeDependent& operation : kModeDependent) {
    if (plain != operation.name) continue;
    const auto mode = constant(node, operation.flag);
    const auto size = constant(node, operation.size);
    const auto statistics = constant(node, operation.statistics);
    const bool has_no_effect = (size && size->isDouble() && size->toDouble() == 0.0) || (statistics && statistics->isNone());
    if (mode && !has_no_effect && !is_scripted(node)) report(mode->isBool() ? mode->toBool() : mode->isDouble());
  }
}

// Reports the fixed operations of a method and of the methods that it calls. Functions are skipped: constants
// in the functions of a script are the author's choice, and a trace contains no function calls.
void report_all_fixed(const torch::jit::Block* block, Graphs& seen, void* context, EachFixed each) {
  for (const torch::jit::Node* node : block->nodes()) {
    report_fixed(node, context, each);
    for (const torch::jit::Block* inner : node->blocks()) report_all_fixed(inner, seen, context, each);
    if (node->kind() != c10::prim::CallMethod) continue;
    const auto type = node->input(0)->type()->cast<c10::ClassType>();
    torch::jit::Function* method = type ? type->findMethod(node->s(c10::attr::name)) : nullptr;
    torch::jit::GraphFunction* function = method ? torch::jit::tryToGraphFunction(*method) : nullptr;
    if (function == nullptr) continue;
    const auto graph = function->graph();
    if (seen.insert(graph.get()).second) report_all_fixed(graph->block(), seen, context, each);
  }
}

} // namespace

extern "C" {

// Tensors are moved to `device` (-1 is the CPU) from the device on which they were saved.
int32_t dt_module_load(DtText path, int32_t device, ModuleHandle** out, DtError* error) {
  return guard(error, [&] {
    *out = new ModuleHandle(torch::jit::load(path.string(), dtrain::device(device)));
  });
}

// Calls `each` with the name, an owned at::Tensor* and the identity of every parameter, or of every buffer. A
// tensor with two names is passed twice with the same identity.
int32_t dt_module_tensors(ModuleHandle* module, bool parameters, void* context,
                          void (*each)(void* context, DtText name, void* tensor, uint64_t identity), DtError* error) {
  return guard(error, [&] {
    const auto pass = [&](const std::string& name, const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      each(context, {name.data(), name.size()}, new at::Tensor(tensor), reinterpret_cast<uint64_t>(tensor.unsafeGetTensorImpl()));
    };
    if (parameters)
      for (const auto& item : module->named_parameters()) pass(item.name, item.value);
    else
      for (const auto& item : module->named_buffers()) pass(item.name, item.value);
  });
}

int32_t dt_module_train(ModuleHandle* module, bool on, DtError* error) {
  return guard(error, [&] { module->train(on); });
}

// Calls forward. Graphs run without optimisation: the optimising executor changes a module's arithmetic after
// its first calls, so a resumed run would give other results.
int32_t dt_module_forward(ModuleHandle* module, DtTensors inputs, void** out, DtError* error) {
  return guard(error, [&] {
    const auto tensors = inputs.list();
    const torch::jit::GraphOptimizerEnabledGuard as_written(false);
    const c10::IValue result = module->forward(std::vector<c10::IValue>(tensors.begin(), tensors.end()));
    TORCH_CHECK_TYPE(result.isTensor(), "forward returned ", result.type()->annotation_str(), ", not a Tensor");
    *out = new at::Tensor(result.toTensor());
  });
}

// Returns whether forward, including its calls, draws random numbers.
int32_t dt_module_draws(ModuleHandle* module, bool* out, DtError* error) {
  return guard(error, [&] {
    const auto graph = module->get_method("forward").graph()->copy();
    torch::jit::Inline(*graph);
    *out = draws_random_numbers(graph->block());
  });
}

// Calls `each` with the name and the mode of every operation of forward that differs between training and
// evaluation and whose mode is fixed in the graph. Repeated operations are passed repeatedly.
int32_t dt_module_fixed(ModuleHandle* module, void* context, EachFixed each, DtError* error) {
  return guard(error, [&] {
    Graphs seen;
    report_all_fixed(module->get_method("forward").graph()->block(), seen, context, each);
  });
}

void dt_module_free(ModuleHandle* module) { delete module; }

} // extern "C"
