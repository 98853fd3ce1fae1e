// Memory of convolutions: on the CPU by oneDNN or libtorch's loops, on a GPU by cuDNN.
#pragma once

#include "symbolic_reduce.h"
#include "symbolic_rule.h"

#include <ATen/Parallel.h>
#include <ATen/native/ConvUtils.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace {

// Returns one value per spatial dimension, from a list that may have one value for all.
std::vector<int64_t> per_dimension(at::IntArrayRef list, const Tensor& x) {
  return list.size() == 1 ? std::vector<int64_t>(x.dim() - 2, list[0]) : list.vec();
}

// Returns the number of input values per output value.
int64_t patch_size(const Tensor& weight) { return product(weight.sizes()) / weight.size(0); }

double convolution_flops(at::IntArrayRef positions, const Tensor& weight) {
  return 2.0 * static_cast<double>(product(positions)) * static_cast<double>(patch_size(weight));
}

// Returns whether oneDNN uses the kernels of processors with AVX2 and without AVX-512.
bool is_avx2() {
#if defined(__x86_64__)
  static const bool is = __builtin_cpu_supports("avx2") && !__builtin_cpu_supports("avx512bw");
  return is;
#else
  return false;
#endif
}

// Returns the number of channels in one of oneDNN's blocks: a vector register in float32.
int64_t channels_per_block() { return is_avx2() ? 8 : 16; }

// oneDNN uses blocks of channels and copies contiguous tensors to and from this layout. It uses channels-last
// images directly, and those of few channels unless the convolution is depthwise.
bool is_blocked(const Tensor& x, bool depthwise) { return !is_channels_last(x) && (depthwise || x.size(1) >= 16); }

// How a convolution connects channels and pixels.
struct Form {
  Form(const Tensor& weight, int64_t groups, std::vector<int64_t> padding, std::vector<int64_t> dilation, bool transposed = false)
      : groups(groups),
        transposed(transposed),
        depthwise(!transposed && groups > 1 && weight.size(0) == groups && weight.size(1) == 1),
        padding(std::move(padding)),
        dilation(std::move(dilation)) {}

  // Returns whether there are groups of several channels.
  bool in_groups() const { return !transposed && groups > 1 && !depthwise; }

  // Returns whether there are gaps between the pixels of a patch.
  bool dilated() const {
    return std::any_of(dilation.begin(), dilation.end(), [](int64_t step) { return step > 1; });
  }

  // Returns the length of a patch with its gaps.
  int64_t extent(const Tensor& weight, int64_t dim) const { return dilation[dim - 2] * (weight.size(dim) - 1) + 1; }

  int64_t groups;
  bool transposed;
  // Each channel is convolved separately.
  bool depthwise;
  // Per spatial dimension.
  std::vector<int64_t> padding, dilation;
};

// Allocates the block layout, in which the last block is padded. Groups of channels have no padding.
Tensor empty_in_blocks(at::IntArrayRef sizes, const Tensor& like, const Form& form) {
  std::vector<int64_t> filled(sizes.begin(), sizes.end());
  if (!form.in_groups()) filled[1] = rounded(filled[1], channels_per_block());
  return at::empty(filled, like.options());
}

// Allocates a weight for images in blocks.
Tensor empty_weight(const Tensor& weight, bool blocked, const Form& form) {
  std::vector<int64_t> filled = weight.sizes().vec();
  if (!form.in_groups()) filled[0] = rounded(filled[0], channels_per_block());
  if (blocked && form.groups == 1) filled[1] = rounded(filled[1], channels_per_block());
  return at::empty(filled, weight.options());
}

// Allocates oneDNN's result in libtorch's layout; in half precision or with a stride, copied twice.
Tensor allocate_result(at::IntArrayRef sizes, const Tensor& like, bool strided = false) {
  Tensor first;
  if (is_half(like) || strided) first = empty_as(sizes, like);
  return empty_as(sizes, like);
}

// Allocates the gathered pixels of a strided 1 x 1 convolution, one image per thread at a time.
Tensor allocate_gathered(const Tensor& x, const Tensor& weight, at::IntArrayRef positions, int64_t times) {
  if (weight.dim() != 4 || weight.size(2) != 1 || weight.size(3) != 1 || positions == x.sizes().slice(2)) return {};
  return empty_as({times * at::get_num_threads(), x.size(1), product(positions)}, x);
}

int64_t bytes_of(at::IntArrayRef sizes, const Tensor& like) { return product(sizes) * static_cast<int64_t>(like.element_size()); }

// Allocates cuDNN's workspace as far as it is documented: tensor cores compute channels-last, so the
// workspace has transposed copies of all three tensors if they are contiguous, and the sums of a weight's
// gradient in float32. Faster algorithms that take more may be chosen.
void cudnn_workspace(at::IntArrayRef x, at::IntArrayRef y, const Tensor& weight, bool last, bool adds_up) {
  const int64_t transposed = last ? 0 : bytes_of(x, weight) + bytes_of(y, weight) + bytes_of(weight.sizes(), weight);
  const int64_t sums = adds_up && is_half(weight) ? 4 * product(weight.sizes()) : 0;
  allocate_temporary({transposed + sums}, weight.options().dtype(at::kByte));
}

// A convolution by cuDNN, which first copies a tensor of the other layout.
Tensor cudnn_convolution(const Tensor& x, const Tensor& weight, at::IntArrayRef sizes) {
  const bool last = x.dim() == 4 && (is_channels_last(x) || is_channels_last(weight));
  Tensor own_x, own_weight;
  if (last && !is_channels_last(x)) own_x = empty_in(x.sizes(), x, true);
  if (last && !is_channels_last(weight)) own_weight = empty_in(weight.sizes(), weight, true);
  auto y = empty_in(sizes, x, last);
  cudnn_workspace(x.sizes(), sizes, weight, last, false);
  return y;
}

// Returns the width of the widest kernel that oneDNN's fastest convolutions take.
int64_t widest_kernel() { return is_avx2() ? 13 : 14; }

// Returns whether oneDNN computes a depthwise convolution by matrix products: its own kernels take no padding wider than the
// pixels that they compute at once, but for channels-last images and patches without gaps.
bool is_forward_by_products(at::IntArrayRef y, const Form& form, bool last) {
  const int64_t at_once = std::min<int64_t>(is_avx2() ? 4 : 6, y.back());
  return form.depthwise && form.padding.back() > at_once && (!last || form.dilated());
}

// Allocates a value for each weight of a channel and each of `positions`, at most `most` values, per thread.
Tensor empty_patches(at::IntArrayRef positions, const Tensor& weight, int64_t most = std::numeric_limits<int64_t>::max()) {
  const auto values = std::min(patch_size(weight) * product(positions), most);
  return at::empty({at::get_num_threads() * values}, weight.options());
}

// Allocates the patches of a forward convolution. Of images that are not channels-last, oneDNN gathers what a core's cache holds.
Tensor empty_forward_patches(at::IntArrayRef positions, const Tensor& weight, bool last) {
  constexpr int64_t kCache = 512 << 10;
  return last ? empty_patches(positions, weight) : empty_patches(positions, weight, kCache / static_cast<int64_t>(weight.element_size()));
}

// mkldnn_convolution(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding, SymInt[] stride, SymInt[]
// dilation, SymInt groups)
Results mkldnn_convolution(const Call& call) {
  const auto x = call.tensor(0), weight = call.tensor(1);
  const auto sizes = at::native::conv_output_size(x.sizes(), weight.sizes(), per_dimension(call.sizes(3), x),
                                                  per_dimension(call.sizes(4), x), per_dimension(call.sizes(5), x));
  flops += convolution_flops(sizes, weight);
  if (simulates_gpu()) return {cudnn_convolution(x, weight, sizes)};
  const bool last = x.dim() == 4 && (is_channels_last(x) || is_channels_last(weight));
  const Form form(weight, call[6].toInt(), per_dimension(call.sizes(3), x), per_dimension(call.sizes(5), x));
  const bool products = is_forward_by_products(sizes, form, last);
  Tensor blocked_x, blocked_weight, own, y;
  if (last && !is_channels_last(x)) blocked_x = empty_as(x.sizes(), x);
  if (!last && !products && is_blocked(x, form.depthwise)) blocked_x = empty_in_blocks(x.sizes(), x, form);
  if (last || !products) blocked_weight = empty_weight(weight, blocked_x.defined(), form);
  const auto positions = at::IntArrayRef(sizes).slice(2);
  Tensor scratch = products ? empty_forward_patches(positions, weight, last) : allocate_gathered(x, weight, positions, 1);
  if (last) {
    y = empty_in(sizes, x, true);
  } else {
    own = products ? empty_as(sizes, x) : empty_in_blocks(sizes, x, form);
    blocked_x = blocked_weight = scratch = Tensor();
    y = form.depthwise ? empty_as(sizes, x) : allocate_result(sizes, x);
  }
  return {y};
}

// mkldnn_convolution_transpose(Tensor self, Tensor weight, Tensor? bias, SymInt[] padding, SymInt[]
// output_padding, SymInt[] stride, SymInt[] dilation, SymInt groups)
Results mkldnn_transposed(const Call& call) {
  const auto x = call.tensor(0), weight = call.tensor(1);
  const auto sizes = at::native::conv_input_size(x.sizes(), weight.sizes(), per_dimension(call.sizes(3), x),
                                                 per_dimension(call.sizes(4), x), per_dimension(call.sizes(5), x),
                                                 per_dimension(call.sizes(6), x), call[7].toInt());
  flops += convolution_flops(x.sizes(), weight);
  if (simulates_gpu()) return {cudnn_convolution(x, weight, sizes)};
  const bool last = is_channels_last(x) || is_channels_last(weight);
  Tensor own;
  {
    const Tensor blocked_x = empty_as(x.sizes(), x), blocked_weight = empty_as(weight.sizes(), weight);
    own = empty_in(sizes, x, last);
  }
  Tensor first;
  if (!last) first = empty_as(sizes, x);
  auto y = last ? own : empty_as(sizes, x);
  return {y};
}

// _slow_conv2d_forward(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, SymInt[2] stride,
// SymInt[2] padding)
Results slow_convolution(const Call& call) {
  const auto x = call.tensor(0), weight = call.tensor(1);
  const auto sizes = at::native::conv_output_size(x.sizes(), weight.sizes(), per_dimension(call.sizes(5), x),
                                                  per_dimension(call.sizes(4), x));
  flops += convolution_flops(sizes, weight);
  if (simulates_gpu()) return {cudnn_convolution(x, weight, sizes)};
  const bool last = is_channels_last(x) || is_channels_last(weight);
  auto y = empty_in(sizes, x, last);
  if (weight.size(2) != 1 || weight.size(3) != 1)
    allocate_temporary({x.size(0), patch_size(weight), sizes[2] * sizes[3]}, x.options());
  return {y};
}

// The additional memory of oneDNN while it sums a weight's gradient.
constexpr int64_t kAdding = 64 << 10;

// For channels-last depthwise kernels that are dilated, beyond 3x3 or larger than the image, oneDNN sums weight gradients with a kernel for groups of
// channels of one block, all but one of which are zeros. In half precision it uses both precisions, and transposes
// the tensors per thread. The numbers are measured, because this is not documented.
void allocate_depthwise_sums(const Tensor& x, const Tensor& weight) {
  const auto block = channels_per_block();
  const auto filled = product(weight.sizes()) * (block * block + 1);
  const auto sums = at::empty({filled}, weight.options().dtype(at::kFloat));
  if (!is_half(weight)) return;
  const auto own = at::empty({filled}, weight.options());
  allocate_temporary({9 * product(x.sizes())}, x.options());
}

// Returns whether the kernel is larger than the image.
bool exceeds_image(const Tensor& x, const Tensor& weight, const Form& form) {
  for (int64_t dim = 2; dim < x.dim(); dim++)
    if (form.extent(weight, dim) > x.size(dim)) return true;
  return false;
}

// Returns whether oneDNN sums a weight's gradient by matrix products. The conditions are measured: oneDNN's own kernels do
// not take these shapes.
bool is_by_products(const Tensor& x, const Tensor& weight, bool last, const Form& form) {
  if (is_half(weight) && !form.depthwise) return false;
  const bool exceeds = exceeds_image(x, weight, form);
  if (exceeds && (is_avx2() || form.dilated())) return true;
  if (form.transposed) return false;
  if (weight.size(-1) > widest_kernel()) return true;
  if (form.depthwise && is_avx2() && form.dilated()) return true;
  if (form.depthwise) return !last && (weight.size(2) > 3 || exceeds || form.dilated());
  const auto in_eights = [](int64_t channels) { return channels % 8 == 0; };
  return form.groups > 1 && (exceeds || !in_eights(weight.size(1)) || !in_eights(weight.size(0) / form.groups));
}

// Allocates the patches at `positions`, and the sums of such products in float32. The number of sums is measured.
void allocate_products(const Tensor& positions, const Tensor& weight) {
  constexpr int64_t kMore = 64;
  const auto patches = empty_patches(positions.sizes().slice(2), weight);
  allocate_temporary({at::get_num_threads() * 4 * product(weight.sizes()) + kMore}, weight.options().dtype(at::kFloat));
}

// Returns whether oneDNN computes the gradient of a channels-last input by matrix products: patches with gaps reach too far
// beyond the image. The number is measured.
bool is_gradient_by_products(const Tensor& weight, const Form& form) {
  constexpr int64_t kFurthest = 7;
  return is_avx2() && form.extent(weight, weight.dim() - 1) - 1 - form.padding.back() > kFurthest;
}

// The gradients of input and weight.
struct Gradients {
  Tensor x, weight;
};

// Allocates as cuDNN does for the wanted gradients, in the layout of the input.
Gradients cudnn_gradients(const Tensor& grad, const Tensor& x, const Tensor& weight, bool last, bool for_x, bool for_weight) {
  Gradients out;
  Tensor own_x;
  if (last && !is_channels_last(x)) own_x = empty_in(x.sizes(), x, true);
  if (for_x) {
    out.x = empty_in(x.sizes(), x, last);
    cudnn_workspace(x.sizes(), grad.sizes(), weight, last, false);
  }
  if (for_weight) {
    out.weight = empty_in(weight.sizes(), weight, last);
    cudnn_workspace(x.sizes(), grad.sizes(), weight, last, true);
  }
  return out;
}

// Allocates as libtorch's loops over patches of the input do.
Gradients slow_gradients(const Tensor& grad, const Tensor& x, const Tensor& weight, bool last, bool for_x, bool for_weight) {
  Gradients out;
  if (for_x) out.x = empty_in(x.sizes(), x, last);
  if (for_weight) out.weight = empty_in(weight.sizes(), weight, is_channels_last(weight));
  const int64_t positions = product(grad.sizes()) / grad.size(0) / grad.size(1);
  if (weight.size(2) != 1 || weight.size(3) != 1) allocate_temporary({x.size(0), patch_size(weight), positions}, x.options());
  return out;
}

// Allocates the weight's gradient of a transposed convolution to few channels, for which oneDNN uses blocks of 8 channels, or none.
Gradients few_channels(const Tensor& grad, const Tensor& x, const Tensor& weight, Gradients out) {
  constexpr int64_t kBlock = 8;
  const auto fill = [](const Tensor& of, int64_t dim) {
    auto sizes = of.sizes().vec();
    sizes[dim] = rounded(sizes[dim], kBlock);
    return sizes;
  };
  const Tensor blocked_x = empty_as(fill(x, 1), x);
  Tensor blocked_grad;
  if (grad.size(1) >= kBlock) blocked_grad = empty_as(fill(grad, 1), grad);
  out.weight = empty_as(weight.sizes(), weight);
  return out;
}

// Allocates as oneDNN does, which also needs input and weight in one layout.
Gradients onednn_gradients(const Tensor& grad, const Tensor& x, const Tensor& weight, bool last, const Form& form, bool for_x,
                           bool for_weight) {
  Gradients out;
  Tensor copied_x, copied_weight;
  if (last && !x.is_contiguous(at::MemoryFormat::ChannelsLast)) copied_x = empty_in(x.sizes(), x, true);
  if (last && !weight.is_contiguous(at::MemoryFormat::ChannelsLast)) copied_weight = empty_in(weight.sizes(), weight, true);
  if (for_x) {
    // oneDNN's own kernels for this gradient do not take gaps between weights: it copies no blocks, or, channels-last, fills blocks of a
    // kernel for groups of several channels with zeros.
    const bool gaps = form.depthwise && form.dilated();
    Tensor blocked_grad, blocked_weight, own;
    if (!gaps) blocked_weight = empty_weight(weight, !last, form);
    if (gaps && last && is_gradient_by_products(weight, form)) {
      blocked_weight = empty_patches(grad.sizes().slice(2), weight);
    } else if (gaps && last) {
      blocked_weight = at::empty({product(weight.sizes()) * channels_per_block() * channels_per_block()}, weight.options());
    }
    // The gradient of few channels of a transposed convolution is used as it is.
    const bool few = form.transposed && !is_blocked(grad, false);
    if (!last && !gaps && !few) blocked_grad = empty_in_blocks(grad.sizes(), grad, form);
    own = last ? empty_in(x.sizes(), x, true) : gaps ? empty_as(x.sizes(), x) : empty_in_blocks(x.sizes(), x, form);
    Tensor scratch = allocate_gathered(x, weight, grad.sizes().slice(2), 2);
    blocked_grad = blocked_weight = scratch = Tensor();
    const bool one_copy = form.depthwise || (form.in_groups() && (weight.size(1) <= 8 || !is_avx2()));
    const bool strided = !one_copy && !few && x.sizes().slice(2) != grad.sizes().slice(2);
    out.x = last ? own : form.depthwise ? empty_as(x.sizes(), x) : allocate_result(x.sizes(), x, strided);
  }
  if (for_weight) {
    Tensor own;
    if (is_by_products(x, weight, last, form)) {
      own = empty_as(weight.sizes(), weight);
      allocate_products(form.transposed ? x : grad, weight);
    } else {
      Tensor blocked_grad, blocked_x;
      const bool few = form.transposed && !last && grad.size(1) < channels_per_block();
      if (few) return few_channels(grad, x, weight, std::move(out));
      if (!last) blocked_grad = empty_in_blocks(grad.sizes(), grad, form);
      if (!last && is_blocked(x, form.depthwise)) blocked_x = empty_in_blocks(x.sizes(), x, form);
      const bool in_sums = last && form.depthwise && (weight.size(2) > 3 || exceeds_image(x, weight, form) || form.dilated());
      own = in_sums ? empty_as(weight.sizes(), weight) : empty_weight(weight, blocked_x.defined(), form);
      if (in_sums) {
        allocate_depthwise_sums(x, weight);
      } else if (is_half(weight)) {
        // It is summed in float32.
        allocate_temporary({own.numel() + (form.depthwise ? 0 : kAdding)}, weight.options().dtype(at::kFloat));
      }
    }
    Tensor plain;
    if (last) plain = empty_as(weight.sizes(), weight);
    out.weight = empty_in(weight.sizes(), weight, last);
  }
  return out;
}

// convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[]
// stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups,
// bool[3] output_mask)
Results convolution_backward(const Call& call) {
  // libtorch computes sequences as images of one row.
  const bool sequences = call.tensor(1).dim() == 3;
  const auto as_images = [&](size_t index) { return sequences ? call.tensor(index).unsqueeze(2) : call.tensor(index); };
  const auto grad = as_images(0), x = as_images(1), weight = as_images(2);
  const bool transposed = call[7].toBool();
  const auto groups = call[9].toInt();
  const auto wanted = call[10].toBoolList();
  const auto symbols = [&](size_t index) {
    std::vector<c10::SymInt> list;
    for (const auto size : per_dimension(call.sizes(index), x)) list.emplace_back(size);
    return list;
  };
  flops += convolution_flops((transposed ? x : grad).sizes(), weight) * (int{wanted[0]} + int{wanted[1]});
  const bool last = x.dim() == 4 && (is_channels_last(x) || is_channels_last(weight));
  Tensor copied_grad;
  // The kernels need the gradient in the layout of the input.
  if (last ? !grad.is_contiguous(at::MemoryFormat::ChannelsLast) : !grad.is_contiguous())
    copied_grad = empty_in(grad.sizes(), grad, last);
  Gradients out;
  if (simulates_gpu()) {
    out = cudnn_gradients(grad, x, weight, last, wanted[0], wanted[1]);
  } else {
    using at::native::ConvBackend;
    const auto backend = at::native::select_conv_backend(x, weight, std::nullopt, symbols(4), symbols(5), symbols(6), transposed,
                                                         symbols(8), groups, std::nullopt);
    const bool slow = backend == ConvBackend::Slow2d || backend == ConvBackend::SlowTranspose2d;
    const Form form(weight, groups, per_dimension(call.sizes(5), x), per_dimension(call.sizes(6), x), transposed);
    out = slow ? slow_gradients(grad, x, weight, last, wanted[0], wanted[1])
               : onednn_gradients(grad, x, weight, last, form, wanted[0], wanted[1]);
  }
  Tensor grad_bias;
  if (wanted[2]) {
    grad_bias = empty_as({transposed ? weight.size(1) * groups : weight.size(0)}, x);
    std::vector<int64_t> summed(static_cast<size_t>(grad.dim()) - 1, 0);
    for (size_t dim = 1; dim < summed.size(); ++dim) summed[dim] = static_cast<int64_t>(dim) + 1;
    allocate_reduction(grad, grad_bias, summed);
  }
  const auto as_given = [&](const Tensor& result) { return sequences && result.defined() ? result.squeeze(2) : result; };
  return {as_given(out.x), as_given(out.weight), grad_bias};
}

} // namespace
