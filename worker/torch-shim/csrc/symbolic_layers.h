// Memory of operations for which libtorch's Meta kernels are missing or differ.
#pragma once

#include "symbolic_attention.h"
#include "symbolic_convolution.h"
#include "symbolic_elementwise.h"
#include "symbolic_recurrent.h"
#include "symbolic_reduce.h"
#include "symbolic_rule.h"
#include "symbolic_shape.h"

#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>

namespace {

Tensor empty_statistic(const Tensor& x) {
  return at::empty({x.size(1)}, x.options().dtype(is_half(x) ? at::kFloat : x.scalar_type()));
}

// native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var,
// bool training, ...)
Results batch_norm(const Call& call) {
  const auto x = call.tensor(0);
  const bool training = call[5].toBool();
  const auto statistic = [&] { return training ? empty_statistic(x) : at::empty({0}, x.options()); };
  return {at::empty_like(x, x.suggest_memory_format()), statistic(), statistic()};
}

// native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, ..., bool train, float eps,
// bool[3] output_mask)
Results batch_norm_backward(const Call& call) {
  const auto x = call.tensor(1);
  const auto wanted = call[9].toBoolList();
  const auto parameter = [&] { return at::empty({x.size(1)}, call.options(2, x)); };
  Tensor grad_x, grad_weight, grad_bias;
  // With equal layouts the CPU's kernel allocates the result twice; with two in half precision thrice.
  const bool alike = is_channels_last(x) == is_channels_last(call.tensor(0));
  const int64_t more = simulates_gpu() ? 0 : alike ? 1 : is_half(x) && is_channels_last(x) ? 2 : 0;
  if (more > 0 && wanted[0]) allocate_temporary({1 + more, x.numel()}, x.options());
  if (wanted[0]) grad_x = at::empty_like(x, x.suggest_memory_format());
  if (wanted[1]) grad_weight = parameter();
  if (wanted[2]) grad_bias = parameter();
  return {grad_x, grad_weight, grad_bias};
}

// native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)
Results layer_norm(const Call& call) {
  const auto x = call.tensor(0);
  const auto over = call.sizes(1).size();
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  for (size_t dim = sizes.size() - over; dim < sizes.size(); ++dim) sizes[dim] = 1;
  // Statistics have the parameters' dtype if it differs from the input's.
  const auto options = call.options(2, x);
  Tensor in_order;
  if (!x.is_contiguous()) in_order = empty_as(x.sizes(), x);
  return {at::empty_like(x, at::MemoryFormat::Contiguous), at::empty(sizes, options), at::empty(sizes, options)};
}

// native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor
// rstd, Tensor? weight, Tensor? bias, bool[3] output_mask)
Results layer_norm_backward(const Call& call) {
  const auto x = call.tensor(1);
  const auto shape = call.sizes(2);
  const auto wanted = call[7].toBoolList();
  const auto options = call.options(5, x);
  Tensor x_in_order, grad_in_order, grad_x, grad_weight, grad_bias;
  if (!x.is_contiguous()) x_in_order = empty_as(x.sizes(), x);
  if (!call.tensor(0).is_contiguous()) grad_in_order = empty_as(x.sizes(), x);
  if (wanted[0]) grad_x = at::empty_like(x, at::MemoryFormat::Contiguous);
  if (wanted[1]) grad_weight = at::empty(shape, options);
  if (wanted[2]) grad_bias = at::empty(shape, options);
  if (simulates_gpu())
    allocate_layer_norm_sums(x.numel() / product(shape), product(shape), options);
  else
    allocate_temporary({2, at::get_num_threads(), product(shape)}, x.options().dtype(at::kFloat));
  return {grad_x, grad_weight, grad_bias};
}

// copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) and other in-place operations
Results in_place(const Call& call) { return {call[0]}; }

// A scalar, whose value is not computed.
Results scalar(const Call& call) {
  const bool real = at::isFloatingType(call.tensor(0).scalar_type());
  return {real ? c10::Scalar(0.0) : c10::Scalar(int64_t{0})};
}

// _adaptive_avg_pool2d(Tensor self, SymInt[2] output_size)
Results average_pool(const Call& call) {
  const auto x = call.tensor(0);
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end() - 2);
  for (const auto size : call.sizes(1)) sizes.push_back(size);
  return {empty_in(sizes, x, is_channels_last(x))};
}

// index_select(Tensor self, int dim, Tensor index)
Results index_select(const Call& call) {
  const auto x = call.tensor(0), index = call.tensor(2);
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes[at::maybe_wrap_dim(call[1].toInt(), x.dim())] = index.numel();
  return {empty_as(sizes, x)};
}

// upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, ...), upsample_nearest2d
Results upsample(const Call& call) {
  const auto x = call.tensor(0);
  const auto size = call.sizes(1);
  const std::vector<int64_t> sizes{x.size(0), x.size(1), size[0], size[1]};
  auto y = empty_in(sizes, x, is_channels_last(x));
  if (!simulates_gpu() && !x.is_contiguous(at::MemoryFormat::ChannelsLast)) {
    // The CPU computes in channels-last.
    const auto transposed = empty_as(x.sizes(), x);
    allocate_temporary(sizes, x.options());
  }
  return {y};
}

// Gradients with the shape of the second argument.
Results like_second(const Call& call) { return {at::empty_like(call.tensor(1))}; }

// _log_softmax(Tensor self, int dim, bool half_to_float): a GPU's autocast computes it in float32, on a copy.
Results log_softmax(const Call& call) {
  const auto x = call.tensor(0);
  const bool in_float = simulates_gpu() && is_half(x);
  Tensor copy;
  if (in_float) copy = at::empty_like(x, x.options().dtype(at::kFloat));
  return {at::empty_like(x, x.options().dtype(in_float ? at::kFloat : x.scalar_type()))};
}

// _log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype)
Results log_softmax_backward(const Call& call) {
  const auto output = call.tensor(1);
  const auto kind = call[3].toScalarType();
  Tensor in_float;
  if (kind != output.scalar_type()) in_float = at::empty_like(output);
  return {at::empty_like(output, output.options().dtype(kind))};
}

// nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index)
Results pixel_loss(const Call& call) {
  const auto x = call.tensor(0), target = call.tensor(1);
  const bool each = call[3].toInt() == 0;
  return {empty_as(each ? target.sizes() : at::IntArrayRef{}, x), empty_as({}, x)};
}

// embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool
// scale_grad_by_freq)
Results embedding_backward(const Call& call) {
  const auto grad = call.tensor(0);
  const auto out = empty_as({call[2].toInt(), grad.size(-1)}, grad);
  allocate_word_sums(call.tensor(1), grad, out.size(0));
  return {out};
}

// native_dropout(Tensor input, float p, bool? train)
Results dropout(const Call& call) {
  const auto x = call.tensor(0);
  return {at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))};
}

// dtrain::dropout_by(Tensor input, ...), dtrain::draw(Tensor like, ...): draws.cpp computes with contiguous rows.
Results drawn_by_sample(const Call& call) {
  const auto x = call.tensor(0);
  const auto out = at::empty_like(x);
  if (!x.is_contiguous()) allocate_temporary(x.sizes(), x.options());
  return {out};
}

// Rules of operations with an overload of other arguments, by their whole names.
const std::unordered_map<std::string, Rule>& rules_of_overloads() {
  static const std::unordered_map<std::string, Rule> all{
      {"aten::where.self_out", where_into},
      {"aten::var.correction", variance},
      {"aten::std.correction", variance},
      {"aten::var_mean.correction", variance_and_mean},
      {"aten::std_mean.correction", variance_and_mean},
      {"aten::repeat_interleave.Tensor", of_unknown_shape},
  };
  return all;
}

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> all{
      {"aten::mkldnn_convolution", mkldnn_convolution},
      {"aten::mkldnn_convolution_transpose", mkldnn_transposed},
      {"aten::upsample_bilinear2d", upsample},
      {"aten::upsample_nearest2d", upsample},
      {"aten::_slow_conv2d_forward", slow_convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::_native_batch_norm_legit", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
      {"aten::_log_softmax", log_softmax},
      {"aten::_log_softmax_backward_data", log_softmax_backward},
      {"aten::copy_", in_place},
      {"aten::_local_scalar_dense", scalar},
      {"aten::_adaptive_avg_pool2d", average_pool},
      {"aten::_adaptive_avg_pool2d_backward", like_second},
      {"aten::nll_loss2d_forward", pixel_loss},
      {"aten::nll_loss2d_backward", like_second},
      {"aten::embedding_dense_backward", embedding_backward},
      {"aten::native_dropout", dropout},
      {"dtrain::dropout_by", drawn_by_sample},
      {"dtrain::draw", drawn_by_sample},
      {"aten::index_select", index_select},
      {"aten::repeat", repeat},
      {"aten::where", where},
      {"aten::_prelu_kernel", prelu},
      {"aten::_prelu_kernel_backward", prelu_backward},
      {"aten::log_sigmoid_forward", log_sigmoid},
      {"aten::log_sigmoid_backward", like<1>},
      {"aten::hardtanh", like<0>},
      {"aten::hardtanh_backward", like<1>},
      {"aten::hardswish", like<0>},
      {"aten::hardswish_backward", like<1>},
      {"aten::mish_backward", like<1>},
      {"aten::glu_backward", like<1>},
      {"aten::mse_loss_backward", like<1>},
      {"aten::native_dropout_backward", like<0>},
      {"aten::isnan", flags},
      {"aten::roll", roll},
      {"aten::flip", like<0>},
      {"aten::abs", magnitude},
      {"aten::nan_to_num", like<0>},
      {"aten::logical_not", flags},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm_backward},
      {"aten::grid_sampler_2d", grid_sample},
      {"aten::grid_sampler_3d", grid_sample},
      {"aten::reflection_pad2d", pad_images},
      {"aten::reflection_pad2d_backward", like<1>},
      {"aten::replication_pad2d_backward", like<1>},
      {"aten::replication_pad3d_backward", like<1>},
      {"aten::multinomial", draws},
      {"aten::_ctc_loss", ctc_loss},
      {"aten::_ctc_loss_backward", ctc_loss_backward},
      {"aten::nonzero", nonzero},
      {"aten::masked_select", of_unknown_shape},
      {"aten::bincount", of_unknown_shape},
      {"aten::_unique", of_unknown_shape},
      {"aten::_unique2", of_unknown_shape},
      {"aten::unique_dim", of_unknown_shape},
      {"aten::unique_consecutive", of_unknown_shape},
      {"aten::mkldnn_rnn_layer", lstm},
      {"aten::mkldnn_rnn_layer_backward", lstm_backward},
  };
  return all;
}

} // namespace
