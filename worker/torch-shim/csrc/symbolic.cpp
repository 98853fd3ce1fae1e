// Tensors without storage: a mode in which operations on CPU tensors compute shapes and allocate, but touch
// no data. It finds the memory of a step in milliseconds, for any model size.
//
// The mode is a dispatch key with a boxed fallback, below autograd and autocast and above the CPU's kernels.
// The CPU's kernels create views and empty tensors. Composed operations run normally, and the operations that
// they call come back here. The other shapes come from libtorch's Meta kernels, or from the rules of the
// other files, which allocate as the CPU's kernels do, or as CUDA's do if the mode simulates a GPU.
#include "memory.h"

#include "boundary.h"
#include "symbolic_autocast.h"
#include "symbolic_count.h"
#include "symbolic_layers.h"

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using dtrain::guard;
using torch::jit::Stack;

namespace {

constexpr auto kKey = DispatchKey::Fake;
const DispatchKeySet kBelow(DispatchKeySet::FULL_AFTER, kKey);

enum class Mode {
  // The real kernel runs: it makes a view, allocates without touching data, or calls other operations.
  Real,
  // The results are the arguments that it writes to.
  InPlace,
  // A rule runs: see symbolic_layers.h.
  Rule,
  // libtorch's Meta kernel infers the shapes of the results.
  Inferred,
  // The real kernel runs on undefined values: only it knows the shapes. Slow operations have a rule or Meta
  // kernel.
  Computed,
};

struct Kind {
  Mode mode;
  Rule rule = nullptr;
};

// Operations whose CPU kernel touches no data or only calls other operations.
bool runs_real_kernel(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::empty",   "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::resize_",
      "aten::set_",    "aten::_fused_sdp_choice", "aten::relu",   "aten::linear",    "aten::zeros_like",
  };
  return names.count(name) > 0;
}

// Returns whether the caller gives the tensors for the results, as in `add.out` and `median.dim_values`.
bool writes_results(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

Kind classify(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  // Rules are for functional forms only: a form with results as arguments has other arguments.
  const bool out = writes_results(schema);
  if (const auto rule = rules().find(name); rule != rules().end() && !out) return {Mode::Rule, rule->second};
  // A view in place, such as transpose_, changes only strides.
  if (const auto rule = rules_of_overloads().find(c10::toString(op.operator_name())); rule != rules_of_overloads().end())
    return {Mode::Rule, rule->second};
  if (runs_real_kernel(name) || op.hasTag(at::Tag::inplace_view)) return {Mode::Real};
  bool views = !schema.returns().empty(), writes = !schema.returns().empty();
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    views = views && alias != nullptr && !alias->isWrite();
    writes = writes && alias != nullptr && alias->isWrite();
  }
  if (views) return {Mode::Real};
  // These compute, although they seem composed.
  if (name.rfind("aten::mkldnn_", 0) == 0) return {Mode::Rule, without_rule};
  if (!op.hasKernelForDispatchKey(DispatchKey::CPU) &&
      (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
       op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) ||
       op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional)))
    return {Mode::Real};
  if (writes && !out) return {Mode::InPlace};
  if (schema.returns().empty()) return {Mode::InPlace};
  const bool known = op.hasKernelForDispatchKey(DispatchKey::Meta) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  return {known ? Mode::Inferred : Mode::Computed};
}

Kind kind_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorName, Kind> known;
  const auto& name = op.operator_name();
  if (const auto found = known.find(name); found != known.end()) return found->second;
  const auto kind = classify(op);
  known.emplace(name, kind);
  return kind;
}

// Returns an empty tensor of the same shape on another device.
Tensor move_to(const Tensor& x, c10::DeviceType to) {
  if (!x.defined() || x.device().type() == to) return x;
  auto moved = at::empty_strided(x.sizes(), x.strides(), x.options().device(to));
  // A Python number decides no dtype.
  if (x.unsafeGetTensorImpl()->is_wrapped_number()) moved.unsafeGetTensorImpl()->set_wrapped_number(true);
  // A mean has the storage of the values that it was computed from.
  const auto bytes = x.storage().nbytes();
  if (to == c10::DeviceType::CPU && bytes > moved.storage().nbytes() && x.storage_offset() == 0) {
    moved = at::empty({static_cast<int64_t>(bytes / x.element_size())}, moved.options());
    moved.unsafeGetTensorImpl()->set_sizes_and_strides(x.sizes(), x.strides());
  }
  return moved;
}

IValue move_to(const IValue& value, c10::DeviceType to) {
  if (value.isTensor()) return move_to(value.toTensor(), to);
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& x : value.toTensorVector()) list.push_back(move_to(x, to));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& x : value.toOptionalTensorVector()) list.push_back(x ? std::optional(move_to(*x, to)) : std::nullopt);
    return list;
  }
  return value.isDevice() ? IValue(c10::Device(to)) : value;
}

double product_flops(const std::string& name, const Stack& arguments) {
  const auto of = [&](size_t index) { return arguments[index].toTensor(); };
  const auto product_of = [](const Tensor& a, const Tensor& b) {
    return 2.0 * static_cast<double>(product(a.sizes())) * static_cast<double>(b.size(-1));
  };
  if (name == "aten::mm" || name == "aten::bmm") return product_of(of(0), of(1));
  if (name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm") return product_of(of(1), of(2));
  return 0.0;
}

// Returns the index of the argument that a written result aliases.
size_t written_argument(const c10::FunctionSchema& schema, const c10::AliasInfo& result) {
  const auto& arguments = schema.arguments();
  const auto found = std::find_if(arguments.begin(), arguments.end(), [&](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && *argument.alias_info() == result;
  });
  TORCH_CHECK(found != arguments.end(), schema.name(), " returns a tensor that is not an argument");
  return static_cast<size_t>(found - arguments.begin());
}

// Allocates the copies that a kernel makes of its arguments.
Copies copied_arguments(const std::string& name, const Stack& arguments, const IValue& result) {
  if (is_reduction(name)) return converted_input(name, arguments, result);
  return computes_in_joint_dtype(name) ? promoted_arguments(arguments, result) : elementwise_losses(name, arguments, result);
}

// Returns whether a GPU computes by gpu_reduce_kernel.
bool is_split_reduction(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::amax", "aten::amin", "aten::linalg_vector_norm", "aten::norm"};
  return is_reduction(name) || names.count(name) > 0;
}

// Allocates the scratch memory of a reduction on a GPU. Its dimensions are a list of integers, one integer, or all.
void allocate_reduction(const Stack& arguments, const IValue& result) {
  if (!arguments[0].isTensor() || !result.isTensor()) return;
  const auto list = std::find_if(arguments.begin(), arguments.end(), [](const IValue& value) { return value.isIntList(); });
  c10::DimVector dims;
  if (list != arguments.end())
    dims = c10::DimVector(list->toDimVector());
  else if (arguments.size() > 1 && arguments[1].isInt())
    dims = {arguments[1].toInt()};
  allocate_reduction(arguments[0].toTensor(), result.toTensor(), dims);
}

// Returns the bit of forward's thread or of backward's.
uint32_t current_thread() { return torch::autograd::get_current_graph_task_id() < 0 ? 1 : 2; }

// Records a product for which libtorch prefers cuBLASLt: a vector is added to each row (addmm_out_cuda_impl).
void record_lt(const Stack& arguments) {
  const auto bias = arguments[0].toTensor(), weight = arguments[2].toTensor();
  if (bias.dim() != 1 || bias.size(0) != weight.size(1) || weight.size(0) <= 1 || weight.size(1) <= 1) return;
  lt_threads |= current_thread();
}

// Counts the FLOPs of a product, and the thread that uses cuBLAS.
void count_product(const std::string& name, const Stack& arguments) {
  static const std::unordered_set<std::string> others{"aten::mv", "aten::addmv", "aten::addmv_", "aten::dot", "aten::vdot", "aten::addbmm",
                                                      "aten::addbmm_"};
  const double product = product_flops(name, arguments);
  flops += product;
  if (product > 0 || others.count(name) > 0) blas_threads |= current_thread();
}

void infer_shapes(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  count_product(schema.name(), arguments);
  Stack meta;
  for (const auto& value : arguments) meta.push_back(move_to(value, c10::DeviceType::Meta));
  op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &meta);
  const auto copies = copied_arguments(schema.name(), arguments, meta[0]);
  if (schema.name() == "aten::addmm") record_lt(arguments);
  torch::jit::drop(*stack, count);
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    const auto* alias = schema.returns()[index].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      stack->push_back(move_to(meta[index], c10::DeviceType::CPU));
      if (is_split_reduction(schema.name())) allocate_reduction(arguments, stack->back());
      continue;
    }
    // Resize an `out` argument to the shape of the result.
    auto out = arguments[written_argument(schema, *alias)].toTensor();
    const auto& shape = meta[index].toTensor();
    if (out.sizes() != shape.sizes()) out.resize_(shape.sizes());
    stack->push_back(out);
  }
}

void write_in_place(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  count_product(schema.name(), arguments);
  const auto functional = schema.name().substr(0, schema.name().size() - 1);
  if (computes_in_joint_dtype(functional)) (void)promoted_arguments(arguments, arguments[0]);
  torch::jit::drop(*stack, count);
  for (const auto& result : schema.returns()) stack->push_back(arguments[written_argument(schema, *result.alias_info())]);
}

void apply_rule(Rule rule, const Call& call) {
  auto results = rule(call);
  torch::jit::drop(*call.stack, call.count);
  for (auto& result : results) call.stack->push_back(std::move(result));
}

// The most bytes of arguments that are computed with, because a kernel touches them: twice this memory, and a second.
constexpr size_t kComputed = size_t{2} << 30;

void compute(const c10::OperatorHandle& op, DispatchKeySet keys, const Call& call) {
  size_t bytes = 0;
  for (size_t index = 0; index < call.count; ++index)
    if (call[index].isTensor() && call[index].toTensor().defined()) bytes += call[index].toTensor().nbytes();
  TORCH_CHECK_NOT_IMPLEMENTED(bytes <= kComputed, "no rule for tensors beyond 2 GiB");
  op.redispatchBoxed(keys & kBelow, call.stack);
}

// Names the operation, unless a part of it has been named.
[[noreturn]] void throw_unpredicted(const c10::OperatorHandle& op, const c10::NotImplementedError& error) {
  constexpr const char* kBegin = "no prediction of ";
  const std::string reason = error.what_without_backtrace();
  if (reason.rfind(kBegin, 0) == 0) throw error;
  const bool known = reason.find("Meta") == std::string::npos;
  C10_THROW_ERROR(NotImplementedError, kBegin + op.schema().name().substr(op.schema().name().find("::") + 2) +
                                           (known ? ": " + reason : std::string(": libtorch cannot infer the shape of its result")));
}

void dispatch(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (counted != nullptr) {
    // Operations that a kernel calls are part of it and not counted.
    const bool composed = count(op) == Counts::Nothing;
    std::optional<c10::impl::ExcludeDispatchKeyGuard> alone;
    if (!composed) alone.emplace(kKey);
    op.redispatchBoxed(keys & kBelow, stack);
    return;
  }
  const auto kind = kind_of(op);
  if (kind.mode == Mode::Real) {
    op.redispatchBoxed(keys & kBelow, stack);
    return;
  }
  if (kind.mode == Mode::InPlace) {
    write_in_place(op, stack);
    return;
  }
  // Allocations of rules and of inference are real operations.
  c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  const Call call{stack, op.schema().arguments().size()};
  try {
    switch (kind.mode) {
      case Mode::Rule: apply_rule(kind.rule, call); break;
      case Mode::Computed: compute(op, keys, call); break;
      default: infer_shapes(op, stack);
    }
  } catch (const c10::NotImplementedError& error) {
    throw_unpredicted(op, error);
  }
}

void register_fallback() {
  static std::once_flag once;
  std::call_once(once, [] {
    static torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch>());
    static torch::Library own(torch::Library::IMPL, "aten", DispatchKey::AutogradCPU, __FILE__, __LINE__);
    own.impl("_scaled_dot_product_attention_math", &attention_by_products);
    own.impl("scaled_dot_product_attention", &attention_of_device);
    own.impl("group_norm", &group_norm_of_device);
    own.impl("dropout", &dropout_of_device);
    dtrain::register_autocast_of_gpus();
  });
}

struct SymbolicRegion {
  c10::impl::IncludeDispatchKeyGuard include{kKey};
  dtrain::Symbolic before;
  DtGpu gpu_before;
  explicit SymbolicRegion(const DtGpu* gpu) : before(dtrain::symbolic_here()), gpu_before(simulated_gpu) {
    dtrain::symbolic_here() = gpu != nullptr ? dtrain::Symbolic::kGpu : dtrain::Symbolic::kCpu;
    simulated_gpu = gpu != nullptr ? *gpu : DtGpu{};
  }
  ~SymbolicRegion() {
    dtrain::symbolic_here() = before;
    simulated_gpu = gpu_before;
  }
};

} // namespace

extern "C" {

// Enters a symbolic mode. Leave it by dt_symbolic_leave on the same thread, the last entered first.
// Without a GPU, tensors stand for those of the CPU.
int32_t dt_symbolic_enter(const DtGpu* gpu, void** out, DtError* error) {
  return guard(error, [&] {
    register_fallback();
    *out = new SymbolicRegion(gpu);
  });
}

void dt_symbolic_leave(void* mode) { delete static_cast<SymbolicRegion*>(mode); }

// Counts this thread's operations until dt_count_leave on it. Not allowed in a symbolic mode.
int32_t dt_count_enter(DtOperations* into, void** out, DtError* error) {
  return guard(error, [&] {
    TORCH_CHECK(counted == nullptr && dtrain::symbolic_here() == dtrain::Symbolic::kNone,
                "this thread already counts operations or has symbolic tensors");
    register_fallback();
    *out = new c10::impl::IncludeDispatchKeyGuard(kKey);
    counted = into;
  });
}

void dt_count_leave(void* mode) {
  counted = nullptr;
  delete static_cast<c10::impl::IncludeDispatchKeyGuard*>(mode);
}

// Returns whether this thread's tensors are symbolic and stand for those of a GPU.
bool dt_symbolic_gpu(void) { return dtrain::symbolic_here() == dtrain::Symbolic::kGpu; }

// Returns whether this thread's tensors are symbolic.
bool dt_symbolic_here(void) { return dtrain::symbolic_here() != dtrain::Symbolic::kNone; }

// Returns the floating-point operations on this thread since the last call.
double dt_symbolic_flops(void) { return std::exchange(flops, 0.0); }

// Writes the numbers of threads of a step that used cuBLAS and cuBLASLt since the last call.
void dt_symbolic_library_threads(uint32_t* blas, uint32_t* lt) {
  const auto count = [](uint32_t threads) { return (threads & 1) + (threads >> 1); };
  *blas = count(std::exchange(blas_threads, 0));
  *lt = count(std::exchange(lt_threads, 0));
}

} // extern "C"
