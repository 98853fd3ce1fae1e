// Calls out of backward: a hook on a parameter's accumulated gradient, and a node that hands values and gradients to Rust.
#include "boundary.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

using dtrain::guard;

extern "C" {
// `call` returns 0, or anything else to make backward fail. `release` is called once, when libtorch drops the hook.
struct DtCallback {
  void* context;
  int32_t (*call)(void* context);
  void (*release)(void* context);
};

// `call` changes `in_out` in place and returns 0, or says why not by dt_reason_set and returns anything else.
struct DtTensorCallback {
  void* context;
  int32_t (*call)(void* context, void* in_out, void* reason);
  void (*release)(void* context);
};
}

namespace {

struct Hook final : torch::autograd::PostAccumulateGradHook {
  explicit Hook(DtCallback callback) : callback(callback) {}
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;
  ~Hook() override { callback.release(callback.context); }
  void operator()(const torch::autograd::Variable&) override {
    TORCH_CHECK(callback.call(callback.context) == 0, "a gradient hook failed");
  }
  DtCallback callback;
};

struct TensorCall : torch::CustomClassHolder {
  explicit TensorCall(DtTensorCallback callback) : callback(callback) {}
  TensorCall(const TensorCall&) = delete;
  TensorCall& operator=(const TensorCall&) = delete;
  ~TensorCall() override { callback.release(callback.context); }
  at::Tensor operator()(const at::Tensor& x) const {
    at::Tensor out = x.detach().clone(at::MemoryFormat::Contiguous);
    std::string reason;
    TORCH_CHECK(callback.call(callback.context, &out, &reason) == 0, reason);
    return out;
  }
  DtTensorCallback callback;
};

// A linear map that is its own adjoint, such as a sum over ranks: forward and backward make the same call.
struct SelfAdjoint : torch::autograd::Function<SelfAdjoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            c10::intrusive_ptr<TensorCall> call) {
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return (*call)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto call = context->saved_data["call"].toCapsule();
    return {(*static_cast<TensorCall*>(call.get()))(grads[0]), at::Tensor()};
  }
};

} // namespace

extern "C" {

// Takes `callback` over, also where it fails. A parameter has one hook; a new one replaces it.
int32_t dt_gradient_hook_set(const void* parameter, DtCallback callback, DtError* error) {
  return guard(error, [&] {
    auto hook = std::make_unique<Hook>(callback);
    const at::Tensor leaf = *static_cast<const at::Tensor*>(parameter);
    TORCH_CHECK_VALUE(leaf.is_leaf() && leaf.requires_grad(), "a gradient hook needs a leaf that requires a gradient");
    torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::move(hook));
  });
}

int32_t dt_gradient_hook_clear(const void* parameter, DtError* error) {
  return guard(error, [&] {
    torch::autograd::impl::set_post_acc_grad_hooks(*static_cast<const at::Tensor*>(parameter), nullptr);
  });
}

void dt_reason_set(void* reason, const char* text, size_t length) {
  static_cast<std::string*>(reason)->assign(text, length);
}

int32_t dt_self_adjoint(const void* x, DtTensorCallback callback, void** out, DtError* error) {
  return guard(error, [&] {
    auto call = c10::make_intrusive<TensorCall>(callback);
    *out = new at::Tensor(SelfAdjoint::apply(*static_cast<const at::Tensor*>(x), std::move(call)));
  });
}

} // extern "C"
