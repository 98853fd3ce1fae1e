// Calls from backward to Rust: a hook on a gradient, and a node that passes values and gradients.
#include "boundary.h"
#include "callback.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

using dtrain::Callback;
using dtrain::guard;
using dtrain::tensor;

namespace {

struct Hook final : torch::autograd::PostAccumulateGradHook {
  explicit Hook(DtCallback call) : call(call) {}
  void operator()(const torch::autograd::Variable&) override { call({}, false); }
  Callback call;
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

// Replaces a leaf in products by a copy in another dtype; the gradient goes to the leaf in its dtype.
struct SubstituteShadow : torch::autograd::Function<SubstituteShadow> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& leaf, const at::Tensor& shadow) {
    context->saved_data["type"] = static_cast<int64_t>(leaf.scalar_type());
    return shadow.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    return {grads[0].to(static_cast<at::ScalarType>(context->saved_data["type"].toInt())), at::Tensor()};
  }
};

} // namespace

extern "C" {

// Takes ownership of `callback`, also on failure. A parameter has one hook; a new one replaces it.
int32_t dt_gradient_hook_set(const void* parameter, DtCallback callback, DtError* error) {
  return guard(error, [&] {
    auto hook = std::make_unique<Hook>(callback);
    const at::Tensor leaf = tensor(parameter);
    TORCH_CHECK_VALUE(leaf.is_leaf() && leaf.requires_grad(), "a gradient hook needs a leaf that requires a gradient");
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
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
