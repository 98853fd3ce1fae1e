// Calls from backward to Rust: a hook on a gradient, and a node that passes values and gradients.
#include "boundary.h"
#include "callback.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>

using dtrain::Callback;
using dtrain::guard;
using dtrain::tensor;
using torch::autograd::variable_list;

namespace {

struct Hook final : torch::autograd::PostAccumulateGradHook {
  Hook(DtCallback call, at::Tensor place) : call(call), place(std::move(place)) {}
  void operator()(const torch::autograd::Variable&) override { call({}, false); }
  // Returns `place` with the values of `grad`, or nothing if the leaf has a gradient, or if the place is taken.
  at::Tensor put(const at::Tensor& leaf, const at::Tensor& grad) {
    if (leaf.grad().defined() || is_taken.exchange(true)) return {};
    return place.detach().copy_(grad);
  }
  Callback call;
  const at::Tensor place;
  std::atomic<bool> is_taken = true;
};

struct TensorCall : torch::CustomClassHolder {
  explicit TensorCall(DtCallback call) : call(call) {}
  at::Tensor operator()(const at::Tensor& x) const {
    at::Tensor out = x.detach().clone(at::MemoryFormat::Contiguous);
    call({out}, false);
    return out;
  }
  Callback call;
};

// A self-adjoint linear map, such as a sum over ranks: forward and backward make the same call.
struct SelfAdjoint : torch::autograd::Function<SelfAdjoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            c10::intrusive_ptr<TensorCall> call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return (*call)(x);
  }
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list grads) {
    auto call = context->saved_data["call"].toCapsule();
    return {(*static_cast<TensorCall*>(call.get()))(grads[0]), at::Tensor()};
  }
};

// Replaces a leaf in products by a copy in another dtype; the gradient goes to the leaf in its dtype. The leaf's first
// gradient of a step is cast into its place: AccumulateGrad takes over a tensor that nobody else holds, and a copy would
// be another kernel. Kernels of the sum of several gradients read the place before the hook runs.
struct SubstituteShadow : torch::autograd::Function<SubstituteShadow> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& leaf, const at::Tensor& shadow) {
    context->saved_data["leaf"] = leaf;
    return shadow.detach();
  }
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list grads) {
    const auto leaf = context->saved_data["leaf"].toTensor();
    auto* const hook = dynamic_cast<Hook*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
    at::Tensor grad = hook == nullptr ? at::Tensor() : hook->put(leaf, grads[0]);
    return {grad.defined() ? grad : grads[0].to(leaf.scalar_type()), at::Tensor()};
  }
};

} // namespace

extern "C" {

// Takes ownership of `callback`, also on failure. A parameter has one hook; a new one replaces it.
// `place` is memory for the first gradient of a step.
int32_t dt_gradient_hook_set(const void* parameter, const void* place, DtCallback callback, DtError* error) {
  return guard(error, [&] {
    auto hook = std::make_unique<Hook>(callback, tensor(place).detach());
    const at::Tensor leaf = tensor(parameter);
    TORCH_CHECK_VALUE(leaf.is_leaf() && leaf.requires_grad(), "a gradient hook needs a leaf that requires a gradient");
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
  });
}

// Drops the gradient of `parameter`. Until the next call, its first gradient may be written into the hook's place: not with
// recomputed segments, whose passes run while the outer pass still holds what it has put there.
int32_t dt_gradient_begin(const void* parameter, bool may_place, DtError* error) {
  return guard(error, [&] {
    const at::Tensor leaf = tensor(parameter);
    leaf.mutable_grad().reset();
    if (auto* const hook = dynamic_cast<Hook*>(torch::autograd::impl::post_acc_grad_hooks(leaf).get())) hook->is_taken = !may_place;
  });
}

int32_t dt_gradient_hook_clear(const void* parameter, DtError* error) {
  return guard(error, [&] { torch::autograd::impl::set_post_acc_grad_hooks(tensor(parameter), nullptr); });
}

void dt_reason_set(std::string* reason, DtText text) { *reason = text.string(); }

void dt_output_push(variable_list* outputs, const void* output) { outputs->push_back(tensor(output)); }

// Returns the leaf itself if autocast would not cast it to the dtype of `shadow`, or if nothing is recorded.
int32_t dt_substitute_shadow(const void* leaf, const void* shadow, void** out, DtError* error) {
  return guard(error, [&] {
    const auto parameter = tensor(leaf), copy = tensor(shadow);
    const auto device = parameter.device().type();
    const bool casts = at::GradMode::is_enabled() && at::autocast::is_autocast_enabled(device) &&
                       at::autocast::get_autocast_dtype(device) == copy.scalar_type();
    *out = new at::Tensor(casts ? SubstituteShadow::apply(parameter, copy) : parameter);
  });
}

int32_t dt_self_adjoint(const void* x, DtCallback callback, void** out, DtError* error) {
  return guard(error, [&] {
    auto call = c10::make_intrusive<TensorCall>(callback);
    *out = new at::Tensor(SelfAdjoint::apply(tensor(x), std::move(call)));
  });
}

} // extern "C"
