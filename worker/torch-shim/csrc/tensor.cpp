// Gradients as views, fused optimizer kernels, unscaling of gradients, products with factors, and operations on
// many tensors.
#include "boundary.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/addmm.h>

using dtrain::guard;
using dtrain::tensor;

namespace {
// Converts null to nullopt.
std::optional<at::Tensor> to_optional(const void* pointer) {
  return pointer == nullptr ? std::nullopt : std::optional(tensor(pointer));
}
} // namespace

extern "C" {

int32_t dt_tensor_set_grad(const void* target, const void* source, DtError* error) {
  return guard(error, [&] {
    const at::Tensor parameter = tensor(target);
    if (source == nullptr) {
      parameter.mutable_grad().reset();
      return;
    }
    const at::Tensor grad = tensor(source);
    TORCH_CHECK_VALUE(grad.sizes() == parameter.sizes(), "a gradient of shape ", grad.sizes(),
                      " for a parameter of shape ", parameter.sizes());
    TORCH_CHECK_VALUE(grad.scalar_type() == parameter.scalar_type() && grad.device() == parameter.device(),
                      "a gradient must have its parameter's dtype and device");
    parameter.mutable_grad() = grad;
  });
}

int32_t dt_is_same_memory(const void* a, const void* b, bool* out, DtError* error) {
  return guard(error, [&] {
    const at::Tensor first = tensor(a), second = tensor(b);
    *out = first.has_storage() && second.has_storage() && first.is_alias_of(second) &&
           first.storage_offset() == second.storage_offset();
  });
}

struct DtAdam {
  double lr, betas[2], weight_decay, eps;
  bool decoupled;
};

int32_t dt_fused_adam(const void* parameter, const void* grad, const void* exp_avg, const void* exp_avg_sq,
                      const void* step, const void* grad_scale, const void* found_inf, DtAdam options, DtError* error) {
  return guard(error, [&] {
    std::vector<at::Tensor> parameters{tensor(parameter)}, grads{tensor(grad)}, first{tensor(exp_avg)},
        second{tensor(exp_avg_sq)}, steps{tensor(step)};
    const auto update = [&](auto&& kernel) {
      kernel(parameters, grads, first, second, at::TensorList{}, steps, options.lr, options.betas[0], options.betas[1],
             options.weight_decay, options.eps, /*amsgrad=*/false, /*maximize=*/false, to_optional(grad_scale),
             to_optional(found_inf));
    };
    if (options.decoupled)
      update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
    else
      update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  });
}

struct DtSgd {
  double lr, momentum, weight_decay;
  bool nesterov, first_step;
};

int32_t dt_fused_sgd(const void* parameter, const void* grad, const void* momentum_buffer, const void* grad_scale,
                     const void* found_inf, DtSgd options, DtError* error) {
  return guard(error, [&] {
    std::vector<at::Tensor> parameters{tensor(parameter)}, grads{tensor(grad)}, buffers;
    if (momentum_buffer != nullptr) buffers.push_back(tensor(momentum_buffer));
    at::_fused_sgd_(parameters, grads, buffers, options.weight_decay, options.momentum, options.lr,
                    /*dampening=*/0.0, options.nesterov, /*maximize=*/false, options.first_step, to_optional(grad_scale),
                    to_optional(found_inf));
  });
}

int32_t dt_unscale(DtTensors grads, const void* found_inf, const void* inv_scale, DtError* error) {
  return guard(error, [&] {
    at::Tensor found = tensor(found_inf);
    at::_amp_foreach_non_finite_check_and_unscale_(grads.list(), found, tensor(inv_scale));
  });
}

int32_t dt_copy_all(DtTensors targets, DtTensors sources, DtError* error) {
  return guard(error, [&] {
    const at::NoGradGuard no_grad;
    at::_foreach_copy_(targets.list(), sources.list());
  });
}

int32_t dt_add_to_all(DtTensors targets, int64_t number, DtError* error) {
  return guard(error, [&] {
    const at::NoGradGuard no_grad;
    at::_foreach_add_(targets.list(), number);
  });
}

int32_t dt_addmm(const void* input, const void* first, const void* second, double beta, double alpha, void** out,
                 DtError* error) {
  return guard(error, [&] {
    const at::NoGradGuard no_grad;
    *out = new at::Tensor(at::addmm(tensor(input), tensor(first), tensor(second), beta, alpha));
  });
}

} // extern "C"
