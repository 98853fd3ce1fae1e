// Shapes and memory of operations that move, gather or reduce values, and for which libtorch's Meta kernels are missing.
#pragma once

#include "symbolic_rule.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/group_norm_native.h>
#include <ATen/ops/native_dropout.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace {

// repeat(Tensor self, SymInt[] repeats)
Results repeat(const Call& call) {
  const auto x = call.tensor(0);
  auto sizes = call.sizes(1);
  const auto added = static_cast<int64_t>(sizes.size()) - x.dim();
  TORCH_CHECK(added >= 0, "repeat has fewer numbers than the tensor has dimensions");
  for (int64_t dim = 0; dim < x.dim(); ++dim) sizes[dim + added] *= x.size(dim);
  return {empty_as(sizes, x)};
}

// roll(Tensor self, SymInt[1] shifts, int[1] dims=[]), one dimension after the other
Results roll(const Call& call) {
  const auto x = call.tensor(0);
  Tensor first;
  if (call.sizes(1).size() > 1) first = empty_as(x.sizes(), x);
  return {empty_as(x.sizes(), x)};
}

// Returns the shape of a reduction over `dims`; over all dimensions if `dims` is empty.
std::vector<int64_t> reduced(const Tensor& x, at::OptionalIntArrayRef dims, bool keep) {
  std::vector<int64_t> sizes;
  const auto over = dims.has_value() ? dims->vec() : std::vector<int64_t>{};
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    const auto is_this = [&](int64_t of) { return at::maybe_wrap_dim(of, x.dim()) == dim; };
    const bool is_over = over.empty() || std::any_of(over.begin(), over.end(), is_this);
    if (!is_over) sizes.push_back(x.size(dim));
    if (is_over && keep) sizes.push_back(1);
  }
  return sizes;
}

// var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False), std.correction
Results variance(const Call& call) {
  const auto x = call.tensor(0);
  const auto dims = call[1].isNone() ? c10::DimVector{} : call.sizes(1);
  return {at::empty(reduced(x, at::IntArrayRef(dims), call[3].toBool()), x.options().dtype(c10::toRealValueType(x.scalar_type())))};
}

// var_mean.correction, std_mean.correction: arguments as above
Results variance_and_mean(const Call& call) {
  const auto x = call.tensor(0);
  auto first = variance(call);
  const auto sizes = first[0].toTensor().sizes().vec();
  return {first[0], at::empty(sizes, x.options())};
}

// On a GPU, group_norm copies images that are channels-last.
Tensor group_norm_of_device(const Tensor& x, int64_t groups, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                            double epsilon, bool cudnn) {
  return at::native::group_norm(simulates_gpu() ? x.contiguous() : x, groups, weight, bias, epsilon, cudnn);
}

// On a GPU, dropout in training keeps a mask of bytes, and not of the values' dtype.
Tensor dropout_of_device(const Tensor& x, double p, bool train) {
  const bool is_fused = simulates_gpu() && train && p > 0 && p < 1 && x.numel() > 0;
  return is_fused ? std::get<0>(at::native_dropout(x, p, train)) : at::native::dropout(x, p, train);
}

// native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps)
Results group_norm(const Call& call) {
  const auto x = call.tensor(0);
  const auto options = call.options(1, x);
  const std::vector<int64_t> sizes{call[3].toInt(), call[6].toInt()};
  return {empty_in(x.sizes(), x, is_channels_last(x)), at::empty(sizes, options), at::empty(sizes, options)};
}

// native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW,
// int group, bool[3] output_mask)
Results group_norm_backward(const Call& call) {
  const auto x = call.tensor(1);
  const auto wanted = call[9].toBoolList();
  Tensor copy, grad_x, grad_weight, grad_bias;
  if (call.tensor(0).strides() != x.strides()) copy = at::empty_like(x);
  if (wanted[0]) grad_x = empty_in(x.sizes(), x, is_channels_last(x));
  if (wanted[1]) grad_weight = at::empty({x.size(1)}, call.options(4, x));
  if (wanted[2]) grad_bias = at::empty({x.size(1)}, call.options(4, x));
  allocate_temporary({2, call[5].toInt(), x.size(1)}, x.options().dtype(at::kFloat));
  return {grad_x, grad_weight, grad_bias};
}

// grid_sampler_2d(Tensor input, Tensor grid, ...), grid_sampler_3d
Results grid_sample(const Call& call) {
  const auto x = call.tensor(0), grid = call.tensor(1);
  std::vector<int64_t> sizes{x.size(0), x.size(1)};
  for (int64_t dim = 1; dim + 1 < grid.dim(); ++dim) sizes.push_back(grid.size(dim));
  return {empty_as(sizes, x)};
}

// reflection_pad2d(Tensor self, SymInt[4] padding)
Results pad_images(const Call& call) {
  const auto x = call.tensor(0);
  const auto padding = call.sizes(1);
  auto sizes = x.sizes().vec();
  const auto last = sizes.size() - 1;
  sizes[last] += padding[0] + padding[1];
  sizes[last - 1] += padding[2] + padding[3];
  return {empty_in(sizes, x, is_channels_last(x))};
}

// multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None)
Results draws(const Call& call) {
  const auto x = call.tensor(0);
  auto sizes = x.sizes().vec();
  sizes.back() = call[1].toInt();
  // Without replacement it draws an order of all.
  Tensor order;
  if (!call[2].toBool()) order = at::empty_like(x);
  return {at::empty(sizes, x.options().dtype(at::kLong))};
}

// _ctc_loss(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, ...): the lengths may be values of tensors, which
// are not known. Then targets are as long as they can be.
Results ctc_loss(const Call& call) {
  const auto x = call.tensor(0), targets = call.tensor(1);
  const auto lengths = call[3].toDimVector();
  const int64_t stated = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const int64_t longest = stated > 0 ? stated : targets.size(-1);
  return {empty_as({x.size(1)}, x), empty_as({x.size(1), x.size(0), 2 * longest + 1}, x)};
}

// _ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, Tensor
// neg_log_likelihood, Tensor log_alpha, ...)
Results ctc_loss_backward(const Call& call) {
  const auto log_beta = at::empty_like(call.tensor(6));
  return {at::empty_like(call.tensor(1))};
}

// nonzero(Tensor self). Backward of a product looks for zeros, of which there are hardly any.
Results nonzero(const Call& call) {
  const auto x = call.tensor(0);
  if (torch::autograd::get_current_graph_task_id() < 0) C10_THROW_ERROR(NotImplementedError, "the shape of its result depends on values");
  return {at::empty({0, x.dim()}, x.options().dtype(at::kLong))};
}

// The shape of its result depends on values.
Results of_unknown_shape(const Call&) {
  C10_THROW_ERROR(NotImplementedError, "the shape of its result depends on values");
}

Results without_rule(const Call&) { C10_THROW_ERROR(NotImplementedError, "it has no rule"); }

} // namespace
