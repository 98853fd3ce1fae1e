// Memory of operations for which libtorch's Meta kernels are missing or differ.
#pragma once

#include "symbolic_convolution.h"
#include "symbolic_rule.h"

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
  // A GPU sums the parameters' gradients in this many parts (kPartSize of
  // aten/src/ATen/native/cuda/layer_norm_kernel.cu).
  const int64_t parts = simulates_gpu() ? 16 : at::get_num_threads();
  allocate_temporary({2, parts, product(shape)}, x.options().dtype(at::kFloat));
  return {grad_x, grad_weight, grad_bias};
}

// Returns whether cuDNN computes attention on the simulated GPU (can_use_cudnn_attention of sdp_utils.cpp in
// libtorch 2.11). If not, the flash kernel does, or in float32 or with a mask the memory-efficient kernel.
bool uses_cudnn_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto fits = [](int64_t width) { return width % 8 == 0 && width <= 128; };
  const bool wide = q.size(3) == 192 && v.size(3) == 128;
  return prefers_cudnn_attention && is_half(q) && k.size(2) != 1 && ((fits(q.size(3)) && fits(v.size(3))) || wide);
}

// Allocates the scratch memory of attention in backward: a sum per query and, in half precision, the queries'
// gradient in float32. Flash attention (Dao 2023, arXiv 2307.08691) pads them; cuDNN (dQ_accum and
// softmax_sum of its frontend's SDPA backward) does not; the rest of its plan is undocumented.
void allocate_gpu_attention_scratch(const Tensor& q, bool by_cudnn) {
  const int64_t queries = by_cudnn ? q.size(2) : rounded(q.size(2), 128), width = by_cudnn ? q.size(3) : rounded(q.size(3), 32);
  const auto floats = q.options().dtype(at::kFloat);
  const Tensor sums = at::empty({q.size(0), q.size(1), queries}, floats);
  if (is_half(q)) allocate_temporary({q.size(0), q.size(1), queries, width}, floats);
}

// Allocates the scratch memory of the CPU's flash attention per thread: a block of scores, their sums and a
// block of the result; in half precision also the scores in that dtype; with AMX also packed keys and values.
void allocate_attention_scratch(const Tensor& q, const Tensor& k, const Tensor& v, bool backward) {
  if (simulates_gpu()) {
    if (backward) allocate_gpu_attention_scratch(q, uses_cudnn_attention(q, k, v));
    return;
  }
  const int64_t threads = at::get_num_threads(), queries = q.size(2), keys = k.size(2), width = q.size(3);
  const int64_t rows = std::min<int64_t>(queries >= 768 ? 256 : queries >= 192 ? 64 : 32, queries);
  const int64_t columns = std::min<int64_t>(512, keys);
  const auto floats = q.options().dtype(at::kFloat);
  const Tensor own = backward ? at::empty({threads, 2, rows, columns}, floats)
                              : at::empty({threads, rows * (columns + 2 + width)}, floats);
  if (!is_half(q)) return;
  const Tensor reduced = at::empty({threads, backward ? 2 : 1, rows, columns}, q.options());
  if (!backward && __builtin_cpu_supports("amx-tile")) {
    const Tensor packed_keys = empty_as(k.sizes(), k);
    allocate_temporary(k.sizes(), k.options());
  }
}

Tensor empty_heads_last(const Tensor& x) {
  return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
}

double attention_flops(const Tensor& q, const Tensor& k, bool causal) {
  return 4.0 * static_cast<double>(product(q.sizes())) * static_cast<double>(k.size(2)) * (causal ? 0.5 : 1.0);
}

// _scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p, bool
// is_causal, ...)
Results attention(const Call& call) {
  const auto q = call.tensor(0), k = call.tensor(1), v = call.tensor(2);
  flops += attention_flops(q, k, call[4].toBool());
  // On the CPU the result has the queries' layout.
  auto y = simulates_gpu() ? empty_heads_last(q) : at::empty_like(q);
  auto sums = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  allocate_attention_scratch(q, k, v, false);
  return {y, sums};
}

// _scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor
// value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, ...)
Results attention_backward(const Call& call) {
  const auto q = call.tensor(1), k = call.tensor(2), v = call.tensor(3);
  flops += 2.5 * attention_flops(q, k, call[7].toBool());
  const auto grad = empty_as(q.sizes(), q);
  auto grad_q = empty_heads_last(q), grad_k = empty_heads_last(k), grad_v = empty_heads_last(v);
  allocate_attention_scratch(q, k, v, true);
  return {grad_q, grad_k, grad_v};
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

// upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, ...)
Results upsample(const Call& call) {
  const auto x = call.tensor(0);
  const auto size = call.sizes(1);
  const std::vector<int64_t> sizes{x.size(0), x.size(1), size[0], size[1]};
  auto y = empty_in(sizes, x, is_channels_last(x));
  if (!simulates_gpu() && !is_channels_last(x)) {
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
  return {empty_as({call[2].toInt(), grad.size(-1)}, grad)};
}

// native_dropout(Tensor input, float p, bool? train)
Results dropout(const Call& call) {
  const auto x = call.tensor(0);
  return {at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))};
}

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> all{
      {"aten::mkldnn_convolution", mkldnn_convolution},
      {"aten::mkldnn_convolution_transpose", mkldnn_transposed},
      {"aten::upsample_bilinear2d", upsample},
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
      {"aten::index_select", index_select},
  };
  return all;
}

} // namespace
