// Tensors without storage: a mode in which operations on CPU tensors compute shapes and allocate, but touch no data. What a
// step takes of memory can so be known in milliseconds, whatever the size of the model.
//
// The mode is a dispatch key below autograd and autocast and above the CPU's kernels, with a boxed fallback. Views and empty
// tensors are made by the CPU's own kernels; operations that are composed of others run as they do, and what they call comes
// back here; of the rest the shapes come from libtorch's Meta kernels, or from the rules below, which allocate what the CPU's
// kernels allocate, or, where the mode is that of a GPU, what CUDA's do.
#include "memory.h"

#include "boundary.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ConvUtils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
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

// Multiplications and additions of matrix products and convolutions on this thread since it was last read.
thread_local double flops = 0.0;

int64_t product(at::IntArrayRef sizes) {
  int64_t all = 1;
  for (const auto size : sizes) all *= size;
  return all;
}

// A rule takes its arguments from the stack's top and leaves its results there.
using Rule = void (*)(Stack*, size_t count);

const IValue& argument(Stack* stack, size_t count, size_t index) { return (*stack)[stack->size() - count + index]; }

template <typename... Results>
void finish(Stack* stack, size_t count, Results&&... results) {
  torch::jit::drop(*stack, count);
  (stack->emplace_back(std::forward<Results>(results)), ...);
}

Tensor empty_as(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }

// Memory that a kernel takes while it runs.
void pass_through(at::IntArrayRef sizes, const at::TensorOptions& options) { (void)at::empty(sizes, options); }

// Whether that GPU takes cuDNN's attention before the flash kernel.
thread_local bool cudnn_attends = false;

bool on_gpu() { return dtrain::symbolic_here() == dtrain::Symbolic::kGpu; }

bool is_channels_last(const Tensor& x) {
  return x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast) && !x.is_contiguous();
}

std::vector<int64_t> convolved(const Tensor& x, const Tensor& weight, at::IntArrayRef padding, at::IntArrayRef stride,
                               at::IntArrayRef dilation) {
  std::vector<int64_t> sizes{x.size(0), weight.size(0)};
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const auto at = [&](at::IntArrayRef list) { return list[list.size() == 1 ? 0 : dim - 2]; };
    const int64_t reach = at(dilation) * (weight.size(dim) - 1) + 1;
    sizes.push_back((x.size(dim) + 2 * at(padding) - reach) / at(stride) + 1);
  }
  return sizes;
}

Tensor empty_in(at::IntArrayRef sizes, const Tensor& like, bool channels_last) {
  const auto options = like.options();
  return channels_last ? at::empty(sizes, options.memory_format(at::MemoryFormat::ChannelsLast)) : at::empty(sizes, options);
}

int64_t rounded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

// oneDNN works on channels in blocks: what lies plainly is copied into that form, and the result out of it. Images of few
// channels, unless each is convolved by itself, and what lies channels-last are taken as they are.
bool is_blocked(const Tensor& x, bool depthwise) { return !is_channels_last(x) && (depthwise || x.size(1) >= 16); }

// That form: the last block is filled up.
Tensor in_blocks(at::IntArrayRef sizes, const Tensor& like) {
  std::vector<int64_t> filled(sizes.begin(), sizes.end());
  filled[1] = rounded(filled[1], 16);
  return at::empty(filled, like.options());
}

// Whether each channel is convolved by itself.
bool is_depthwise(const Tensor& weight, int64_t groups) { return groups > 1 && weight.size(0) == groups && weight.size(1) == 1; }

bool is_half(const Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

// A result in the form that libtorch knows, from one that oneDNN has made in its own; in half precision, and where pixels
// were passed over, by another copy.
Tensor copied_out(at::IntArrayRef sizes, const Tensor& like, bool strided = false) {
  Tensor first;
  if (is_half(like) || strided) first = empty_as(sizes, like);
  return empty_as(sizes, like);
}

// A convolution of single pixels that passes over some of them first gathers those it takes, an image at a time.
Tensor gathered(const Tensor& x, const Tensor& weight, at::IntArrayRef places, int64_t times) {
  if (weight.dim() != 4 || weight.size(2) != 1 || weight.size(3) != 1 || places == x.sizes().slice(2)) return {};
  return empty_as({times * at::get_num_threads(), x.size(1), product(places)}, x);
}

int64_t bytes_of(at::IntArrayRef sizes, const Tensor& like) { return product(sizes) * static_cast<int64_t>(like.element_size()); }

// What cuDNN takes while it convolves, as far as its documentation tells: its tensor cores compute channels-last, so that plain
// tensors are turned within the workspace, all three of them; and a weight's gradient is added up in float32 beside it. Algorithms
// that take more are chosen where they are faster.
void cudnn_workspace(at::IntArrayRef x, at::IntArrayRef y, const Tensor& weight, bool last, bool adds_up) {
  const int64_t turned = last ? 0 : bytes_of(x, weight) + bytes_of(y, weight) + bytes_of(weight.sizes(), weight);
  const int64_t sums = adds_up && is_half(weight) ? 4 * product(weight.sizes()) : 0;
  pass_through({turned + sums}, weight.options().dtype(at::kByte));
}

// A convolution by cuDNN: a tensor in the other layout is copied first.
Tensor cudnn_convolution(const Tensor& x, const Tensor& weight, at::IntArrayRef sizes) {
  const bool last = x.dim() == 4 && (is_channels_last(x) || is_channels_last(weight));
  Tensor own_x, own_weight;
  if (last && !is_channels_last(x)) own_x = empty_in(x.sizes(), x, true);
  if (last && !is_channels_last(weight)) own_weight = empty_in(weight.sizes(), weight, true);
  auto y = empty_in(sizes, x, last);
  cudnn_workspace(x.sizes(), sizes, weight, last, false);
  return y;
}

// mkldnn_convolution(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding, SymInt[] stride, SymInt[] dilation, SymInt groups)
void mkldnn_convolution(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  const auto weight = argument(stack, count, 1).toTensor();
  const auto sizes =
      convolved(x, weight, argument(stack, count, 3).toDimVector(), argument(stack, count, 4).toDimVector(),
                argument(stack, count, 5).toDimVector());
  flops += 2.0 * static_cast<double>(product(sizes)) * static_cast<double>(product(weight.sizes()) / weight.size(0));
  if (on_gpu()) {
    auto convolved = cudnn_convolution(x, weight, sizes);
    finish(stack, count, std::move(convolved));
    return;
  }
  const bool last = x.dim() == 4 && (is_channels_last(x) || is_channels_last(weight));
  const bool depthwise = is_depthwise(weight, argument(stack, count, 6).toInt());
  Tensor blocked_x, own, y;
  if (last && !is_channels_last(x)) blocked_x = empty_as(x.sizes(), x);
  if (!last && is_blocked(x, depthwise)) blocked_x = in_blocks(x.sizes(), x);
  Tensor blocked_weight = empty_as(weight.sizes(), weight);
  Tensor scratch = gathered(x, weight, at::IntArrayRef(sizes).slice(2), 1);
  if (last) {
    y = empty_in(sizes, x, true);
  } else {
    own = in_blocks(sizes, x);
    blocked_x = blocked_weight = scratch = Tensor();
    y = depthwise ? empty_as(sizes, x) : copied_out(sizes, x);
  }
  finish(stack, count, std::move(y));
}

// mkldnn_convolution_transpose(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding, SymInt[] output_padding, SymInt[] stride,
// SymInt[] dilation, SymInt groups)
void mkldnn_transposed(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  const auto weight = argument(stack, count, 1).toTensor();
  std::vector<int64_t> sizes{x.size(0), weight.size(1) * argument(stack, count, 7).toInt()};
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const auto at = [&](size_t index) {
      const auto list = argument(stack, count, index).toDimVector();
      return list[list.size() == 1 ? 0 : dim - 2];
    };
    sizes.push_back((x.size(dim) - 1) * at(5) - 2 * at(3) + at(6) * (weight.size(dim) - 1) + at(4) + 1);
  }
  flops += 2.0 * static_cast<double>(product(x.sizes())) * static_cast<double>(product(weight.sizes()) / weight.size(0));
  if (on_gpu()) {
    auto convolved = cudnn_convolution(x, weight, sizes);
    finish(stack, count, std::move(convolved));
    return;
  }
  const bool last = is_channels_last(x) || is_channels_last(weight);
  Tensor own;
  {
    const Tensor blocked_x = empty_as(x.sizes(), x), blocked_weight = empty_as(weight.sizes(), weight);
    own = empty_in(sizes, x, last);
  }
  Tensor first;
  if (!last) first = empty_as(sizes, x);
  auto y = last ? own : empty_as(sizes, x);
  finish(stack, count, std::move(y));
}

// _slow_conv2d_forward(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, SymInt[2] stride, SymInt[2] padding)
void slow_convolution(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  const auto weight = argument(stack, count, 1).toTensor();
  const auto stride = argument(stack, count, 4).toDimVector(), padding = argument(stack, count, 5).toDimVector();
  const auto sizes = convolved(x, weight, padding, stride, at::IntArrayRef{1});
  const int64_t patch = product(weight.sizes()) / weight.size(0);
  flops += 2.0 * static_cast<double>(product(sizes)) * static_cast<double>(patch);
  if (on_gpu()) {
    auto convolved = cudnn_convolution(x, weight, sizes);
    finish(stack, count, std::move(convolved));
    return;
  }
  const bool last = is_channels_last(x) || is_channels_last(weight);
  auto y = empty_in(sizes, x, last);
  if (weight.size(2) != 1 || weight.size(3) != 1) pass_through({x.size(0), patch, sizes[2] * sizes[3]}, x.options());
  finish(stack, count, std::move(y));
}

// What oneDNN takes beside that while it adds up a weight's gradient.
constexpr int64_t kAdding = 64 << 10;

// Channels-last and beyond 3x3, oneDNN adds up the gradients of depthwise weights by a kernel for groups of 16 channels, of which all but
// one are zeros; in half precision in both precisions, with the tensors turned for each thread. Measured, as nothing tells it.
void filled_depthwise(const Tensor& x, const Tensor& weight) {
  const auto filled = product(weight.sizes()) * 16 * 16;
  const auto sums = at::empty({filled}, weight.options().dtype(at::kFloat));
  if (!is_half(weight)) return;
  const auto own = at::empty({filled}, weight.options());
  pass_through({10 * product(x.sizes())}, x.options());
}

// convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding,
// SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask)
void convolution_backward(Stack* stack, size_t count) {
  const auto grad = argument(stack, count, 0).toTensor();
  const auto x = argument(stack, count, 1).toTensor();
  const auto weight = argument(stack, count, 2).toTensor();
  const bool transposed = argument(stack, count, 7).toBool();
  const auto symbols = [&](size_t index) {
    std::vector<c10::SymInt> list;
    for (const auto size : argument(stack, count, index).toDimVector()) list.emplace_back(size);
    return list;
  };
  const auto wanted = argument(stack, count, 10).toBoolList();
  const auto& inner = transposed ? x : grad;
  const double work =
      2.0 * static_cast<double>(product(inner.sizes())) * static_cast<double>(product(weight.sizes()) / weight.size(0));
  const bool last = x.dim() == 4 && (is_channels_last(x) || is_channels_last(weight));
  Tensor held;
  // The kernels want the gradient in the layout of the input.
  if (last ? !grad.is_contiguous(at::MemoryFormat::ChannelsLast) : !grad.is_contiguous()) held = empty_in(grad.sizes(), grad, last);
  Tensor grad_x, grad_weight, grad_bias;
  if (on_gpu()) {
    Tensor own_x;
    if (last && !is_channels_last(x)) own_x = empty_in(x.sizes(), x, true);
    if (wanted[0]) {
      grad_x = empty_in(x.sizes(), x, last);
      cudnn_workspace(x.sizes(), grad.sizes(), weight, last, false);
      flops += work;
    }
    if (wanted[1]) {
      grad_weight = empty_in(weight.sizes(), weight, last);
      cudnn_workspace(x.sizes(), grad.sizes(), weight, last, true);
      flops += work;
    }
    if (wanted[2])
      grad_bias = empty_as({transposed ? weight.size(1) * argument(stack, count, 9).toInt() : weight.size(0)}, x);
    finish(stack, count, grad_x, grad_weight, grad_bias);
    return;
  }
  const auto backend = at::native::select_conv_backend(
      x, weight, std::nullopt, symbols(4), symbols(5), symbols(6), transposed, symbols(8),
      argument(stack, count, 9).toInt(), std::nullopt);
  if (backend == at::native::ConvBackend::Slow2d || backend == at::native::ConvBackend::SlowTranspose2d) {
    if (wanted[0]) grad_x = empty_in(x.sizes(), x, last);
    if (wanted[1]) grad_weight = empty_in(weight.sizes(), weight, is_channels_last(weight));
    const int64_t patch = product(weight.sizes()) / weight.size(0), places = product(grad.sizes()) / grad.size(0) / grad.size(1);
    if (weight.size(2) != 1 || weight.size(3) != 1) pass_through({x.size(0), patch, places}, x.options());
  } else {
    const bool depthwise = !transposed && is_depthwise(weight, argument(stack, count, 9).toInt());
    // They want input and weight in one layout, too.
    Tensor held_x, held_weight;
    if (last && !x.is_contiguous(at::MemoryFormat::ChannelsLast)) held_x = empty_in(x.sizes(), x, true);
    if (last && !weight.is_contiguous(at::MemoryFormat::ChannelsLast)) held_weight = empty_in(weight.sizes(), weight, true);
    if (wanted[0]) {
      Tensor blocked_grad, blocked_weight = empty_as(weight.sizes(), weight), own;
      if (!last) blocked_grad = in_blocks(grad.sizes(), grad);
      own = last ? empty_in(x.sizes(), x, true) : in_blocks(x.sizes(), x);
      Tensor scratch = gathered(x, weight, grad.sizes().slice(2), 2);
      blocked_grad = blocked_weight = scratch = Tensor();
      const bool strided = !depthwise && x.sizes().slice(2) != grad.sizes().slice(2);
      grad_x = last ? own : depthwise ? empty_as(x.sizes(), x) : copied_out(x.sizes(), x, strided);
    }
    if (wanted[1]) {
      Tensor own;
      {
        Tensor blocked_grad, blocked_x;
        if (!last) blocked_grad = in_blocks(grad.sizes(), grad);
        if (!last && is_blocked(x, depthwise)) blocked_x = in_blocks(x.sizes(), x);
        own = empty_as(weight.sizes(), weight);
        if (last && depthwise && weight.size(2) > 3) {
          filled_depthwise(x, weight);
        } else if (is_half(weight)) {
          // It is added up in full precision.
          pass_through({product(weight.sizes()) + kAdding}, weight.options().dtype(at::kFloat));
        }
      }
      Tensor plain;
      if (last) plain = empty_as(weight.sizes(), weight);
      grad_weight = empty_in(weight.sizes(), weight, last);
    }
  }
  if (wanted[0]) flops += work;
  if (wanted[1]) flops += work;
  if (wanted[2])
    grad_bias = empty_as({transposed ? weight.size(1) * argument(stack, count, 9).toInt() : weight.size(0)}, x);
  finish(stack, count, grad_x, grad_weight, grad_bias);
}

Tensor accumulated(const Tensor& x) {
  return at::empty({x.size(1)}, x.options().dtype(is_half(x) ? at::kFloat : x.scalar_type()));
}

// native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, ...)
void batch_norm(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  const bool training = argument(stack, count, 5).toBool();
  auto y = at::empty_like(x, x.suggest_memory_format());
  if (!training) {
    auto none = [&] { return at::empty({0}, x.options()); };
    finish(stack, count, std::move(y), none(), none());
    return;
  }
  auto mean = accumulated(x), deviation = accumulated(x);
  finish(stack, count, std::move(y), std::move(mean), std::move(deviation));
}

// native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, ..., bool train, float eps, bool[3] output_mask)
void batch_norm_backward(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 1).toTensor();
  const auto weight = argument(stack, count, 2).toOptional<Tensor>();
  const auto wanted = argument(stack, count, 9).toBoolList();
  const auto parameter = [&] {
    return at::empty({x.size(1)}, weight.has_value() && weight->defined() ? weight->options() : x.options());
  };
  Tensor grad_x, grad_weight, grad_bias;
  // The CPU's kernel for one layout makes the result twice, and that for two in half precision a third time.
  const bool alike = is_channels_last(x) == is_channels_last(argument(stack, count, 0).toTensor());
  const int64_t more = on_gpu() ? 0 : alike ? 1 : is_half(x) && is_channels_last(x) ? 2 : 0;
  if (more > 0 && wanted[0]) pass_through({1 + more, x.numel()}, x.options());
  if (wanted[0]) grad_x = at::empty_like(x, x.suggest_memory_format());
  if (wanted[1]) grad_weight = parameter();
  if (wanted[2]) grad_bias = parameter();
  finish(stack, count, grad_x, grad_weight, grad_bias);
}

// native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)
void layer_norm(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  const auto over = argument(stack, count, 1).toDimVector().size();
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  for (size_t dim = sizes.size() - over; dim < sizes.size(); ++dim) sizes[dim] = 1;
  const auto weight = argument(stack, count, 2).toOptional<Tensor>();
  // Statistics have the parameters' type where they differ from the input's.
  const auto kind = weight.has_value() && weight->defined() ? weight->scalar_type() : x.scalar_type();
  Tensor in_order;
  if (!x.is_contiguous()) in_order = empty_as(x.sizes(), x);
  auto y = at::empty_like(x, at::MemoryFormat::Contiguous);
  auto mean = at::empty(sizes, x.options().dtype(kind)), deviation = at::empty(sizes, x.options().dtype(kind));
  finish(stack, count, std::move(y), std::move(mean), std::move(deviation));
}

// native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight,
// Tensor? bias, bool[3] output_mask)
void layer_norm_backward(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 1).toTensor();
  const auto shape = argument(stack, count, 2).toDimVector();
  const auto weight = argument(stack, count, 5).toOptional<Tensor>();
  const auto wanted = argument(stack, count, 7).toBoolList();
  const auto options = weight.has_value() && weight->defined() ? weight->options() : x.options();
  Tensor x_in_order, grad_in_order, grad_x, grad_weight, grad_bias;
  if (!x.is_contiguous()) x_in_order = empty_as(x.sizes(), x);
  if (!argument(stack, count, 0).toTensor().is_contiguous()) grad_in_order = empty_as(x.sizes(), x);
  if (wanted[0]) grad_x = at::empty_like(x, at::MemoryFormat::Contiguous);
  if (wanted[1]) grad_weight = at::empty(shape, options);
  if (wanted[2]) grad_bias = at::empty(shape, options);
  // A GPU adds the parameters' gradients up in this many parts (kPartSize of aten/src/ATen/native/cuda/layer_norm_kernel.cu).
  const int64_t parts = on_gpu() ? 16 : at::get_num_threads();
  pass_through({2, parts, product(shape)}, x.options().dtype(at::kFloat));
  finish(stack, count, grad_x, grad_weight, grad_bias);
}

// Whether cuDNN computes attention on that GPU (can_use_cudnn_attention of ATen/native/transformers/cuda/sdp_utils.cpp in libtorch
// 2.11), with a mask or without; otherwise it is the flash kernel, or the memory-efficient one in full precision and with a mask.
bool attends_by_cudnn(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto fits = [](int64_t width) { return width % 8 == 0 && width <= 128; };
  const bool wide = q.size(3) == 192 && v.size(3) == 128;
  return cudnn_attends && is_half(q) && k.size(2) != 1 && ((fits(q.size(3)) && fits(v.size(3))) || wide);
}

// What they take in backward beside their results: a sum for each query, and the queries' gradient in float32, which flash attention
// (Dao 2023, arXiv 2307.08691) rounds up and cuDNN (dQ_accum and softmax_sum of its frontend's SDPA backward) does not; what cuDNN's
// plan takes beyond that is not documented. In full precision it is the sums alone.
void gpu_attention_scratch(const Tensor& q, bool by_cudnn) {
  const int64_t queries = by_cudnn ? q.size(2) : rounded(q.size(2), 128), width = by_cudnn ? q.size(3) : rounded(q.size(3), 32);
  const auto floats = q.options().dtype(at::kFloat);
  const Tensor sums = at::empty({q.size(0), q.size(1), queries}, floats);
  if (is_half(q)) pass_through({q.size(0), q.size(1), queries, width}, floats);
}

// What the CPU's flash attention takes for each thread: a block of scores, their sums and a block of the result; in half
// precision the scores once more, and where the processor multiplies by tiles keys and values in their order.
void attention_scratch(const Tensor& q, const Tensor& k, const Tensor& v, bool backward) {
  if (on_gpu()) {
    if (backward) gpu_attention_scratch(q, attends_by_cudnn(q, k, v));
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
    pass_through(k.sizes(), k.options());
  }
}

Tensor heads_last(const Tensor& x) {
  return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
}

double attention_work(const Tensor& q, const Tensor& k, bool causal) {
  return 4.0 * static_cast<double>(product(q.sizes())) * static_cast<double>(k.size(2)) * (causal ? 0.5 : 1.0);
}

// _scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, ...)
void attention(Stack* stack, size_t count) {
  const auto q = argument(stack, count, 0).toTensor(), k = argument(stack, count, 1).toTensor();
  const auto v = argument(stack, count, 2).toTensor();
  flops += attention_work(q, k, argument(stack, count, 4).toBool());
  auto y = heads_last(q);
  auto sums = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  attention_scratch(q, k, v, false);
  finish(stack, count, std::move(y), std::move(sums));
}

// _scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out,
// Tensor logsumexp, float dropout_p, bool is_causal, ...)
void attention_backward(Stack* stack, size_t count) {
  const auto q = argument(stack, count, 1).toTensor(), k = argument(stack, count, 2).toTensor();
  const auto v = argument(stack, count, 3).toTensor();
  flops += 2.5 * attention_work(q, k, argument(stack, count, 7).toBool());
  const auto grad = empty_as(q.sizes(), q);
  auto grad_q = heads_last(q), grad_k = heads_last(k), grad_v = heads_last(v);
  attention_scratch(q, k, v, true);
  finish(stack, count, std::move(grad_q), std::move(grad_k), std::move(grad_v));
}

// copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) and others that change their first argument alone.
void in_place(Stack* stack, size_t count) {
  auto self = argument(stack, count, 0).toTensor();
  finish(stack, count, std::move(self));
}

// A scalar that nobody has computed.
void scalar(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  finish(stack, count, at::isFloatingType(x.scalar_type()) ? c10::Scalar(0.0) : c10::Scalar(int64_t{0}));
}

// _adaptive_avg_pool2d(Tensor self, SymInt[2] output_size)
void average_pool(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end() - 2);
  for (const auto size : argument(stack, count, 1).toDimVector()) sizes.push_back(size);
  finish(stack, count, empty_in(sizes, x, is_channels_last(x)));
}

// index_select(Tensor self, int dim, Tensor index)
void index_select(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor(), index = argument(stack, count, 2).toTensor();
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes[at::maybe_wrap_dim(argument(stack, count, 1).toInt(), x.dim())] = index.numel();
  finish(stack, count, empty_as(sizes, x));
}

// upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, ...)
void upsample(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  const auto size = argument(stack, count, 1).toDimVector();
  const std::vector<int64_t> sizes{x.size(0), x.size(1), size[0], size[1]};
  auto y = empty_in(sizes, x, is_channels_last(x));
  if (!on_gpu() && !is_channels_last(x)) {
    // The CPU computes it channels-last.
    const auto turned = empty_as(x.sizes(), x);
    pass_through(sizes, x.options());
  }
  finish(stack, count, std::move(y));
}

// The result is like the second argument: gradients with respect to it.
void like_second(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 1).toTensor();
  finish(stack, count, at::empty_like(x));
}

// _log_softmax(Tensor self, int dim, bool half_to_float): a GPU's autocast has it computed in float32, of a copy.
void log_softmax(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  const bool in_float = on_gpu() && is_half(x);
  Tensor copy;
  if (in_float) copy = at::empty_like(x, x.options().dtype(at::kFloat));
  auto y = at::empty_like(x, x.options().dtype(in_float ? at::kFloat : x.scalar_type()));
  finish(stack, count, std::move(y));
}

// _log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype)
void log_softmax_backward(Stack* stack, size_t count) {
  const auto output = argument(stack, count, 1).toTensor();
  const auto kind = argument(stack, count, 3).toScalarType();
  Tensor in_float;
  if (kind != output.scalar_type()) in_float = at::empty_like(output);
  auto y = at::empty_like(output, output.options().dtype(kind));
  finish(stack, count, std::move(y));
}

// nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index)
void pixel_loss(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor(), target = argument(stack, count, 1).toTensor();
  const bool each = argument(stack, count, 3).toInt() == 0;
  auto y = at::empty(each ? target.sizes() : at::IntArrayRef{}, x.options());
  auto weight = at::empty({}, x.options());
  finish(stack, count, std::move(y), std::move(weight));
}

// embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq)
void embedding_backward(Stack* stack, size_t count) {
  const auto grad = argument(stack, count, 0).toTensor();
  finish(stack, count, empty_as({argument(stack, count, 2).toInt(), grad.size(-1)}, grad));
}

// native_dropout(Tensor input, float p, bool? train)
void dropout(Stack* stack, size_t count) {
  const auto x = argument(stack, count, 0).toTensor();
  auto y = at::empty_like(x);
  auto mask = at::empty_like(x, x.options().dtype(at::kBool));
  finish(stack, count, std::move(y), std::move(mask));
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

enum class Way {
  // By the kernel that would run: it makes a view or allocates without touching data, or calls other operations.
  Real,
  // The arguments it writes to are its results.
  InPlace,
  // By a rule of this file.
  Rule,
  // The shapes of the results by libtorch's Meta kernel.
  Inferred,
  // For real, on whatever values there are: of this operation nobody knows more than its kernel. What takes time has a rule or
  // a Meta kernel.
  Computed,
};

struct Kind {
  Way way;
  Rule rule = nullptr;
};

// What has a kernel of its own on the CPU that touches no data, or that calls other operations and nothing else.
bool runs_as_it_is(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::empty",   "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::resize_",
      "aten::set_",    "aten::_fused_sdp_choice", "aten::relu",   "aten::linear",    "aten::zeros_like",
  };
  return names.count(name) > 0;
}

Kind classify(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  // Functional forms only: `.out` has other arguments.
  const bool out = schema.overload_name().find("out") != std::string::npos;
  if (const auto rule = rules().find(name); rule != rules().end() && !out) return {Way::Rule, rule->second};
  if (runs_as_it_is(name)) return {Way::Real};
  bool views = !schema.returns().empty(), writes = !schema.returns().empty();
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    views = views && alias != nullptr && !alias->isWrite();
    writes = writes && alias != nullptr && alias->isWrite();
  }
  if (views) return {Way::Real};
  // These compute, although they look composed.
  TORCH_CHECK_NOT_IMPLEMENTED(name.rfind("aten::mkldnn_", 0) != 0, name, " has no rule for symbolic tensors");
  if (!op.hasKernelForDispatchKey(DispatchKey::CPU) &&
      (op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
       op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)))
    return {Way::Real};
  if (writes && !out) return {Way::InPlace};
  if (schema.returns().empty()) return {Way::InPlace};
  const bool known = op.hasKernelForDispatchKey(DispatchKey::Meta) ||
      op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutogradNonFunctional);
  return {known ? Way::Inferred : Way::Computed};
}

Kind kind_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorName, Kind> known;
  const auto& name = op.operator_name();
  if (const auto found = known.find(name); found != known.end()) return found->second;
  const auto kind = classify(op);
  known.emplace(name, kind);
  return kind;
}

Tensor to_meta(const Tensor& x) {
  if (!x.defined() || x.is_meta()) return x;
  return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta));
}

IValue to_meta(const IValue& value) {
  if (value.isTensor()) return to_meta(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& x : value.toTensorVector()) list.push_back(to_meta(x));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& x : value.toOptionalTensorVector()) list.push_back(x ? std::optional(to_meta(*x)) : std::nullopt);
    return list;
  }
  if (value.isDevice()) return c10::Device(c10::DeviceType::Meta);
  return value;
}

Tensor from_meta(const Tensor& x) {
  if (!x.defined()) return x;
  return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kCPU));
}

IValue from_meta(const IValue& value) {
  if (value.isTensor()) return from_meta(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& x : value.toTensorVector()) list.push_back(from_meta(x));
    return list;
  }
  return value;
}

double product_work(const std::string& name, const Stack& arguments) {
  const auto of = [&](size_t index) { return arguments[index].toTensor(); };
  const auto work = [](const Tensor& a, const Tensor& b) {
    return 2.0 * static_cast<double>(product(a.sizes())) * static_cast<double>(b.size(-1));
  };
  if (name == "aten::mm" || name == "aten::bmm") return work(of(0), of(1));
  if (name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm") return work(of(1), of(2));
  return 0.0;
}

void infer(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  flops += product_work(schema.name(), arguments);
  Stack meta;
  for (const auto& value : arguments) meta.push_back(to_meta(value));
  op.redispatchBoxed(DispatchKeySet(DispatchKey::Meta), &meta);
  torch::jit::drop(*stack, count);
  for (size_t index = 0; index < schema.returns().size(); ++index) {
    const auto* alias = schema.returns()[index].alias_info();
    if (alias == nullptr || !alias->isWrite()) {
      stack->push_back(from_meta(meta[index]));
      continue;
    }
    // An `out` argument takes the shape of the result.
    for (size_t from = 0; from < count; ++from) {
      const auto* given = schema.arguments()[from].alias_info();
      if (given != nullptr && *given == *alias) {
        auto out = arguments[from].toTensor();
        const auto& shape = meta[index].toTensor();
        if (out.sizes() != shape.sizes()) out.resize_(shape.sizes());
        stack->push_back(out);
        break;
      }
    }
  }
}

void write_in_place(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  flops += product_work(schema.name(), Stack(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()));
  std::vector<IValue> results;
  for (const auto& result : schema.returns()) {
    for (size_t from = 0; from < count; ++from) {
      const auto* given = schema.arguments()[from].alias_info();
      if (given != nullptr && *given == *result.alias_info()) {
        results.push_back(argument(stack, count, from));
        break;
      }
    }
  }
  torch::jit::drop(*stack, count);
  for (auto& result : results) stack->push_back(std::move(result));
}

// What a thread that counts has called: keep in step with `DtOperations` in src/ffi.rs.
struct DtOperations {
  uint64_t kernels;
  uint64_t reads;
};

thread_local DtOperations* counted = nullptr;

enum class Counts { Nothing, Kernel, Read };

// A kernel is an operation that computes: not a view, nor memory, nor what is composed of others, which come here themselves.
Counts classify_for_count(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  if (name == "aten::_local_scalar_dense" || name == "aten::equal") return Counts::Read;
  const auto begins = [&](const char* word) { return name.rfind(word, 0) == 0; };
  if (begins("aten::empty") || begins("aten::new_empty") || begins("aten::resize") || begins("aten::set_"))
    return Counts::Nothing;
  if (schema.returns().empty()) return Counts::Kernel;
  const bool views = std::all_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
  if (views || !op.hasKernelForDispatchKey(DispatchKey::CPU)) return Counts::Nothing;
  return Counts::Kernel;
}

Counts count(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorName, Counts> known;
  const auto [found, is_new] = known.try_emplace(op.operator_name(), Counts::Nothing);
  if (is_new) found->second = classify_for_count(op);
  counted->kernels += found->second == Counts::Kernel;
  counted->reads += found->second == Counts::Read;
  return found->second;
}

void symbolic(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  if (counted != nullptr) {
    // What a kernel calls in its turn is its own.
    const bool composed = count(op) == Counts::Nothing;
    std::optional<c10::impl::ExcludeDispatchKeyGuard> alone;
    if (!composed) alone.emplace(kKey);
    op.redispatchBoxed(keys & kBelow, stack);
    return;
  }
  const auto kind = kind_of(op);
  if (kind.way == Way::Real) {
    op.redispatchBoxed(keys & kBelow, stack);
    return;
  }
  if (kind.way == Way::InPlace) {
    write_in_place(op, stack);
    return;
  }
  // What rules and inference allocate is meant as it is.
  c10::impl::ExcludeDispatchKeyGuard plain(kKey);
  if (kind.way == Way::Rule)
    kind.rule(stack, op.schema().arguments().size());
  else if (kind.way == Way::Computed)
    op.redispatchBoxed(keys & kBelow, stack);
  else
    infer(op, stack);
}

void prepare() {
  static std::once_flag once;
  std::call_once(once, [] {
    static torch::Library library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&symbolic>());
  });
}

struct Mode {
  c10::impl::IncludeDispatchKeyGuard include{kKey};
  dtrain::Symbolic before;
  bool attended;
  Mode(bool gpu, bool cudnn_attention) : before(dtrain::symbolic_here()), attended(cudnn_attends) {
    dtrain::symbolic_here() = gpu ? dtrain::Symbolic::kGpu : dtrain::Symbolic::kCpu;
    cudnn_attends = cudnn_attention;
  }
  ~Mode() {
    dtrain::symbolic_here() = before;
    cudnn_attends = attended;
  }
};

} // namespace

extern "C" {

// To be left by dt_symbolic_leave on the same thread, the last entered first.
int32_t dt_symbolic_enter(bool gpu, bool cudnn_attention, void** out, DtError* error) {
  return guard(error, [&] {
    prepare();
    *out = new Mode(gpu, cudnn_attention);
  });
}

void dt_symbolic_leave(void* mode) { delete static_cast<Mode*>(mode); }

// Counts the operations of this thread, to be ended by dt_count_leave on it; not within a mode of symbolic tensors.
int32_t dt_count_enter(DtOperations* into, void** out, DtError* error) {
  return guard(error, [&] {
    TORCH_CHECK(counted == nullptr && dtrain::symbolic_here() == dtrain::Symbolic::kNone, "this thread's mode is another");
    prepare();
    *out = new c10::impl::IncludeDispatchKeyGuard(kKey);
    counted = into;
  });
}

void dt_count_leave(void* mode) {
  counted = nullptr;
  delete static_cast<c10::impl::IncludeDispatchKeyGuard*>(mode);
}

// Floating-point operations on this thread since the last call.
double dt_symbolic_flops(void) { return std::exchange(flops, 0.0); }

} // extern "C"
