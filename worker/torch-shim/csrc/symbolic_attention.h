// Memory of scaled dot-product attention.
#pragma once

#include "symbolic_rule.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_attention_math_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

namespace {

// How the simulated GPU computes attention.
enum class AttentionKernel { kProducts, kCudnn, kFlash, kEfficient };

// The arguments of attention that its kernel depends on.
struct AttentionCase {
  bool has_mask = false, mask_needs_grad = false, causal = false;
  int64_t mask_stride = 1, mask_dims = 0;
};

AttentionCase case_of(const std::optional<Tensor>& mask, bool causal) {
  const bool has_mask = mask.has_value() && mask->defined();
  return {has_mask, has_mask && mask->requires_grad(), causal, has_mask ? mask->stride(-1) : 1, has_mask ? mask->dim() : 0};
}

// Returns whether a block of threads has 163 KiB of shared memory or more: compute capabilities 8.0, 9 and 10.
bool has_large_blocks() { return simulated_gpu.threads_per_multiprocessor >= 2048; }

// Returns the kernel of libtorch 2.11 (select_sdp_backend of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): cuDNN's if the GPU
// prefers it, flash attention in half precision without a mask, the memory-efficient kernel if the width of a head fills its loads, else
// products of all queries and keys.
AttentionKernel attention_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCase& of) {
  const auto width = q.size(-1);
  const bool half = is_half(q), ampere = simulated_gpu.has_bf16_attention;
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || !(half || q.scalar_type() == at::kFloat)) return AttentionKernel::kProducts;
  if (q.scalar_type() == at::kBFloat16 && !ampere) return AttentionKernel::kProducts;
  if (q.stride(3) != 1 || k.stride(3) != 1 || v.stride(3) != 1 || of.mask_stride != 1) return AttentionKernel::kProducts;
  const auto fits = [](int64_t width) { return width % 8 == 0 && width <= simulated_gpu.cudnn_attention_width; };
  const bool cudnn_masks = !of.mask_needs_grad && of.mask_dims != 3;
  const bool wide = simulated_gpu.cudnn_attention_width > 0 && width == 192 && v.size(3) == 128;
  if (half && k.size(2) != 1 && cudnn_masks && ((fits(width) && fits(v.size(3))) || wide)) return AttentionKernel::kCudnn;
  const bool is_narrow = width <= (has_large_blocks() ? 256 : 192) || (width > 224 && width <= 256);
  const bool is_square = !of.causal || q.size(2) == k.size(2);
  if (half && ampere && !of.has_mask && width == v.size(3) && is_narrow && is_square) return AttentionKernel::kFlash;
  const int64_t load = half ? 8 : ampere ? 4 : 1;
  const bool efficient = width % load == 0 && v.size(3) % load == 0 && q.size(1) == k.size(1) && k.size(1) == v.size(1);
  return efficient ? AttentionKernel::kEfficient : AttentionKernel::kProducts;
}

// Returns the sums per query that forward keeps.
Tensor empty_attention_sums(const Tensor& q, AttentionKernel kernel) {
  const auto queries = kernel == AttentionKernel::kEfficient ? rounded(q.size(2), 32) : q.size(2);
  return at::empty({q.size(0), q.size(1), queries}, q.options().dtype(at::kFloat));
}

// Returns the float32 values of the workspace of the memory-efficient kernel's backward, for each head of each sample: tiles of
// the queries' gradient, and of the keys' and the values' if they do not fit into registers (Params::workspace_size of
// mem_eff_attention/kernel_backward.h; the tiles are those of the first of its kernels that fits into shared memory).
int64_t efficient_attention_workspace(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto count = [](int64_t all, int64_t of) { return (all + of - 1) / of; };
  const int64_t width = std::max(q.size(3), v.size(3));
  const bool half = is_half(q), ampere = simulated_gpu.has_bf16_attention, large = has_large_blocks();
  int64_t rows = 64, columns = 64;
  bool in_registers = !half || width <= 128;
  if (width > 64 && !half) {
    rows = large ? 128 : 64;
  } else if (width > 128 || (width > 64 && !ampere) || (width > 64 && width <= 96 && !large)) {
    rows = 128;
  } else if (width > 64 && large) {
    rows = columns = 128;
  } else if (width > 64) {
    in_registers = false;
  }
  const auto of_queries = count(q.size(2), rows) * count(q.size(3), columns) * (4 + rows * columns);
  if (in_registers) return of_queries;
  const auto splits = std::max<int64_t>(1, std::min(count(k.size(2), columns), 200 / std::max<int64_t>(1, q.size(0) * q.size(1))));
  return of_queries + splits * columns * (rounded(q.size(3), rows) + rounded(v.size(3), rows));
}

// Allocates the scratch memory of attention in backward: a sum per query and, in half precision, the queries'
// gradient in float32. Flash attention (Dao 2023, arXiv 2307.08691) pads them; cuDNN (dQ_accum and
// softmax_sum of its frontend's SDPA backward) does not; the rest of its plan is undocumented.
void allocate_gpu_attention_scratch(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, AttentionKernel kernel) {
  const auto floats = q.options().dtype(at::kFloat);
  const bool flash = kernel == AttentionKernel::kFlash;
  Tensor copy, of_keys, of_values;
  // libtorch's kernels want the heads last.
  if (kernel != AttentionKernel::kCudnn && !grad.transpose(1, 2).is_contiguous()) copy = empty_as(grad.sizes(), q);
  if (flash && k.size(1) != q.size(1)) {
    // Gradients for each head of the queries, which are summed over the heads that share keys.
    of_keys = at::empty({k.size(0), k.size(2), q.size(1), k.size(3)}, k.options());
    of_values = at::empty({v.size(0), v.size(2), q.size(1), v.size(3)}, v.options());
  }
  const int64_t queries = flash ? rounded(q.size(2), 128) : q.size(2);
  const int64_t width = flash ? rounded(q.size(3), q.size(3) <= 128 ? 32 : 64) : q.size(3);
  const Tensor sums = at::empty({q.size(0), q.size(1), queries}, floats);
  if (kernel == AttentionKernel::kEfficient) {
    allocate_temporary({q.size(0), q.size(1), efficient_attention_workspace(q, k, v)}, floats);
  } else {
    allocate_temporary({q.size(0), q.size(1), queries, width}, floats);
  }
}

// Allocates the scratch memory of the CPU's flash attention per thread: a block of scores, their sums and a
// block of the result; in half precision also the scores in that dtype; with AMX also packed keys and values.
void allocate_attention_scratch(const Tensor& q, const Tensor& k, const Tensor& v, bool backward) {
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
// is_causal, Tensor? attn_mask, ...)
Results attention(const Call& call) {
  const auto q = call.tensor(0), k = call.tensor(1), v = call.tensor(2);
  flops += attention_flops(q, k, call[4].toBool());
  // On the CPU the result has the queries' layout.
  auto y = simulates_gpu() ? empty_heads_last(q) : at::empty_like(q);
  if (simulates_gpu()) return {y, empty_attention_sums(q, attention_kernel(q, k, v, case_of(call[5].toOptional<Tensor>(), call[4].toBool())))};
  auto sums = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  allocate_attention_scratch(q, k, v, false);
  return {y, sums};
}

// _scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor
// value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, Tensor? attn_mask, ...)
Results attention_backward(const Call& call) {
  const auto q = call.tensor(1), k = call.tensor(2), v = call.tensor(3);
  flops += 2.5 * attention_flops(q, k, call[7].toBool());
  // The CPU copies the result's gradient.
  const auto grad = simulates_gpu() ? Tensor() : empty_as(q.sizes(), q);
  auto grad_q = empty_heads_last(q), grad_k = empty_heads_last(k), grad_v = empty_heads_last(v);
  if (simulates_gpu()) {
    const auto kernel = attention_kernel(q, k, v, case_of(call[8].toOptional<Tensor>(), call[7].toBool()));
    allocate_gpu_attention_scratch(call.tensor(0), q, k, v, kernel);
  } else {
    allocate_attention_scratch(q, k, v, true);
  }
  return {grad_q, grad_k, grad_v};
}

// Attention by a GPU's kernel: it keeps its result and a sum per query, also with dropout, whose mask is drawn again in backward.
struct GpuAttention : torch::autograd::Function<GpuAttention> {
  using Context = torch::autograd::AutogradContext;
  using List = torch::autograd::variable_list;

  // An empty `mask` is none; `kernel` is an AttentionKernel.
  static Tensor forward(Context* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, bool causal,
                        int64_t kernel) {
    flops += attention_flops(q, k, causal);
    const auto y = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
    const auto sums = empty_attention_sums(q, static_cast<AttentionKernel>(kernel));
    context->save_for_backward({q, k, v, mask, y, sums});
    context->saved_data["causal"] = causal;
    context->saved_data["kernel"] = kernel;
    return y;
  }

  static List backward(Context* context, const List& grads) {
    const auto saved = context->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &mask = saved[3];
    flops += 2.5 * attention_flops(q, k, context->saved_data["causal"].toBool());
    auto grad_q = empty_heads_last(q), grad_k = empty_heads_last(k), grad_v = empty_heads_last(v);
    Tensor grad_mask;
    if (mask.dim() == 4 && context->needs_input_grad(3)) {
      // The kernel writes rows of multiples of 16 columns.
      const auto columns = mask.size(3);
      grad_mask = at::empty({mask.size(0), mask.size(1), mask.size(2), rounded(columns, 16)}, mask.options()).slice(3, 0, columns);
    }
    allocate_gpu_attention_scratch(grads[0], q, k, v, static_cast<AttentionKernel>(context->saved_data["kernel"].toInt()));
    return {grad_q, grad_k, grad_v, grad_mask, Tensor(), Tensor()};
  }
};

// libtorch takes this way where the CPU has no kernel: with dropout, for grouped queries, or if a mask needs a gradient.
std::tuple<Tensor, Tensor> attention_by_products(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask,
                                                 double dropout, bool causal, const std::optional<Tensor>& dropout_mask,
                                                 std::optional<double> scale, bool gqa) {
  const auto kernel = simulates_gpu() ? attention_kernel(q, k, v, case_of(mask, causal)) : AttentionKernel::kProducts;
  if (kernel == AttentionKernel::kProducts)
    return at::native::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, dropout_mask, scale, gqa);
  auto bias = at::empty({0}, q.options());
  if (mask.has_value() && mask->defined()) {
    const auto own = mask->scalar_type() == at::kBool ? at::empty(mask->sizes(), q.options()) : *mask;
    bias = own.expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  }
  return {GpuAttention::apply(q, k, v, bias, causal, static_cast<int64_t>(kernel)), Tensor()};
}

// Returns a tensor whose last dimension is a part of one that is a multiple of `of`; a copy if it is not.
Tensor padded(const Tensor& x, int64_t of) {
  const auto width = x.size(-1), wide = rounded(width, of);
  return wide == width ? x : at::constant_pad_nd(x, {0, wide - width});
}

// A GPU without a kernel for the arguments computes attention by products, where the CPU has a kernel. Flash attention pads heads, and
// the memory-efficient kernel masks, to multiples of 8, and keeps the copies.
Tensor attention_of_device(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout,
                           bool causal, std::optional<double> scale, bool gqa) {
  const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask) {
    return at::native::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, gqa);
  };
  if (!simulates_gpu()) return attend(q, k, v, mask);
  const auto kernel = attention_kernel(q, k, v, case_of(mask, causal));
  if (kernel == AttentionKernel::kProducts)
    return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, std::nullopt, scale, gqa));
  if (kernel == AttentionKernel::kFlash && q.size(3) % 8 != 0)
    return GpuAttention::apply(padded(q, 8), padded(k, 8), padded(v, 8), at::empty({0}, q.options()), causal,
                               static_cast<int64_t>(kernel))
        .slice(3, 0, q.size(3));
  if (kernel == AttentionKernel::kEfficient && mask.has_value() && mask->defined() && mask->size(-1) % 8 != 0 && !mask->requires_grad()) {
    auto own = mask->scalar_type() == at::kBool ? at::empty(mask->sizes(), q.options()) : *mask;
    return attend(q, k, v, padded(own, 8).slice(-1, 0, mask->size(-1)));
  }
  return attend(q, k, v, mask);
}

} // namespace
