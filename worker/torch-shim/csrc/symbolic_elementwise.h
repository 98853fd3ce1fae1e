// Shapes and memory of element-wise operations, reductions and copies that libtorch's Meta kernels lack or get wrong.
#pragma once

#include "symbolic_rule.h"

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/TypeProperties.h>

#include <algorithm>

namespace {

// A result like an argument.
template <size_t Index>
Results like(const Call& call) {
  return {at::empty_like(call.tensor(Index))};
}

// isnan(Tensor self), logical_not
Results flags(const Call& call) {
  const auto x = call.tensor(0);
  return {at::empty_like(x, x.options().dtype(at::kBool))};
}

Tensor on_meta(const Tensor& x) { return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta)); }

// Allocates the result of an element-wise operation on two tensors.
Tensor empty_joined(const Tensor& a, const Tensor& b, at::ScalarType kind) {
  const auto joined = at::add(on_meta(a), on_meta(b));
  return at::empty_strided(joined.sizes(), joined.strides(), a.options().dtype(kind).device(at::kCPU));
}

// where.self(Tensor condition, Tensor self, Tensor other)
Results where(const Call& call) {
  const auto condition = call.tensor(0), a = call.tensor(1), b = call.tensor(2);
  const auto kind = at::result_type(a, b);
  // Each device converts arguments of another dtype.
  Tensor own_a, own_b;
  if (a.scalar_type() != kind) own_a = at::empty_like(a, a.options().dtype(kind));
  if (b.scalar_type() != kind) own_b = at::empty_like(b, b.options().dtype(kind));
  const auto both = at::add(on_meta(a), on_meta(b));
  const auto joined = at::add(on_meta(condition), both);
  // The condition may be the widest.
  return {at::empty_strided(joined.sizes(), joined.strides(), a.options().dtype(kind))};
}

// where.self_out(Tensor condition, Tensor self, Tensor other, *, Tensor(a!) out)
Results where_into(const Call& call) {
  const auto out = call.tensor(3);
  const auto sizes = at::infer_size(at::infer_size(call.tensor(1).sizes(), call.tensor(2).sizes()), call.tensor(0).sizes());
  if (out.sizes() != at::IntArrayRef(sizes)) out.resize_(sizes);
  return {out};
}

// _prelu_kernel(Tensor self, Tensor weight), whose weight broadcasts
Results prelu(const Call& call) { return {empty_joined(call.tensor(0), call.tensor(1), call.tensor(0).scalar_type())}; }

// _prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight): one gradient per element for both
Results prelu_backward(const Call& call) {
  const auto x = call.tensor(1);
  return {at::empty_like(x), at::empty_like(x)};
}

// log_sigmoid_forward(Tensor self): the buffer is for the CPU's backward.
Results log_sigmoid(const Call& call) {
  const auto x = call.tensor(0);
  return {at::empty_like(x), simulates_gpu() ? at::empty({0}, x.options()) : at::empty_like(x)};
}

// abs(Tensor self): the magnitude of a complex number is real.
Results magnitude(const Call& call) {
  const auto x = call.tensor(0);
  return {at::empty_like(x, x.options().dtype(c10::toRealValueType(x.scalar_type())))};
}

// Returns the bytes of `x` in another dtype.
Tensor allocate_as(const Tensor& x, at::ScalarType kind) {
  return at::empty({x.numel()}, x.options().dtype(kind).device(at::kCPU));
}

// Copies that a kernel makes of its arguments.
using Copies = std::vector<Tensor>;

// Allocates the copies of arguments of another dtype than the joint one, which the CPU makes
// (promote_inputs_to_common_dtype of at::TensorIterator). A GPU converts while it loads.
Copies promoted_arguments(const Stack& arguments, const IValue& result) {
  Copies copies;
  if (simulates_gpu()) return copies;
  std::vector<Tensor> tensors;
  at::native::ResultTypeState state{};
  for (const auto& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      tensors.push_back(value.toTensor());
      state = at::native::update_result_type_state(tensors.back(), state);
    } else if (value.isScalar() && !value.isBool()) {
      state = at::native::update_result_type_state(value.toScalar(), state);
    }
  }
  if (tensors.empty()) return copies;
  auto kind = at::native::result_type(state);
  if (!at::isFloatingType(kind) && !at::isComplexType(kind) && result.isTensor() && at::isFloatingType(result.toTensor().scalar_type()))
    kind = result.toTensor().scalar_type();
  for (const auto& x : tensors)
    if (x.scalar_type() != kind && x.dim() > 0) copies.push_back(allocate_as(x, kind));
  return copies;
}

// Allocates the converted input of a reduction whose result has another dtype. A GPU reads half precision as it is; the CPU computes means in
// float32.
Copies converted_input(const std::string& name, const Stack& arguments, const IValue& result) {
  Copies copies;
  if (!result.isTensor() || !arguments[0].isTensor()) return copies;
  const auto x = arguments[0].toTensor();
  const auto kind = result.toTensor().scalar_type();
  if (name == "aten::mean" && !simulates_gpu() && at::isReducedFloatingType(kind))
    return {allocate_as(x, at::kFloat), allocate_as(result.toTensor(), at::kFloat)};
  const bool loads = simulates_gpu() && (kind == at::kBool || (is_half(x) && kind == at::kFloat));
  if (x.scalar_type() != kind && !loads) copies.push_back(allocate_as(x, kind));
  return copies;
}

// Allocates the losses of all elements, before they are reduced (mse_loss_out, smooth_l1_loss_out).
Copies elementwise_losses(const std::string& name, const Stack& arguments, const IValue& result) {
  static const std::unordered_set<std::string> names{"aten::mse_loss", "aten::smooth_l1_loss"};
  if (names.count(name) == 0 || arguments[2].toInt() == 0) return {};
  return {allocate_as(arguments[0].toTensor(), result.toTensor().scalar_type())};
}

bool is_reduction(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::sum", "aten::nansum", "aten::prod", "aten::mean", "aten::all", "aten::any"};
  return names.count(name) > 0;
}

// Returns whether an operation computes in the joint dtype of its arguments. A mask or index does not take part.
bool computes_in_joint_dtype(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::add",     "aten::sub",        "aten::mul",         "aten::div",        "aten::rsub",        "aten::pow",
      "aten::maximum", "aten::minimum",    "aten::fmod",        "aten::remainder",  "aten::atan2",       "aten::eq",
      "aten::ne",      "aten::lt",         "aten::le",          "aten::gt",         "aten::ge",          "aten::hypot",
      "aten::xlogy",   "aten::logaddexp",  "aten::logaddexp2",  "aten::addcmul",    "aten::addcdiv",     "aten::copysign",
      "aten::fmax",    "aten::fmin",       "aten::bitwise_and", "aten::bitwise_or", "aten::bitwise_xor", "aten::clamp",
      "aten::sqrt",    "aten::exp",        "aten::log",         "aten::sin",        "aten::cos",         "aten::sigmoid",
      "aten::tanh",    "aten::reciprocal", "aten::rsqrt",
  };
  return names.count(name) > 0;
}

} // namespace
