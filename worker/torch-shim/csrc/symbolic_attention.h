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

// A kernel that computes attention on the simulated GPU.
enum class AttentionKernel { kCudnn, kFlash, kEfficient };

// Returns the kernel of libtorch 2.11 (select_sdp_backend of sdp_utils.cpp): cuDNN's if the GPU prefers it, the flash kernel
// without a mask in half precision, else the memory-efficient kernel.
AttentionKernel attention_kernel(const Tensor& q, const Tensor& k, const Tensor& v, bool has_mask, bool mask_needs_grad) {
  const auto fits = [](int64_t width) { return width % 8 == 0 && width <= simulated_gpu.cudnn_attention_width; };
  const bool wide = simulated_gpu.cudnn_attention_width > 0 && q.size(3) == 192 && v.size(3) == 128;
  if (is_half(q) && k.size(2) != 1 && !mask_needs_grad && ((fits(q.size(3)) && fits(v.size(3))) || wide)) return AttentionKernel::kCudnn;
  const bool flash = is_half(q) && simulated_gpu.has_bf16_attention && !has_mask && q.size(3) <= 256;
  return flash ? AttentionKernel::kFlash : AttentionKernel::kEfficient;
}

// Returns the sums per query that forward keeps.
Tensor empty_attention_sums(const Tensor& q, AttentionKernel kernel) {
  const auto queries = kernel == AttentionKernel::kEfficient ? rounded(q.size(2), 32) : q.size(2);
  return at::empty({q.size(0), q.size(1), queries}, q.options().dtype(at::kFloat));
}

// Returns the float32 values of the workspace of the memory-efficient kernel's backward, for each head of each sample: tiles of
// the queries' gradient, and with wide heads in half precision of the keys' and the values' (Params::workspace_size of
// mem_eff_attention/kernel_backward.h; the tiles are those of the first of its kernels that fits).
int64_t efficient_attention_workspace(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto count = [](int64_t all, int64_t of) { return (all + of - 1) / of; };
  const int64_t width = std::max(q.size(3), v.size(3));
  const bool half = is_half(q), ampere = simulated_gpu.has_bf16_attention;
  const int64_t rows = width <= 64 || !(half || ampere) ? 64 : 128;
  const int64_t columns = half && ampere && width > 64 && width <= 128 ? 128 : 64;
  const auto tiles = count(q.size(2), rows) * count(q.size(3), columns);
  const auto of_queries = tiles * (4 + rows * columns);
  if (!half || width <= 128) return of_queries;
  const auto heads = q.size(0) * q.size(1);
  auto splits = count(k.size(2), columns);
  if (heads < 256) {
    splits = std::max<int64_t>(1, std::min(splits, 200 / heads));
  } else if (k.size(2) <= 2 * columns) {
    splits = 1;
  }
  return of_queries + splits * columns * (rounded(q.size(3), rows) + rounded(v.size(3), rows));
}

// Allocates the scratch memory of attention in backward: a sum per query and, in half precision, the queries'
// gradient in float32. Flash attention (Dao 2023, arXiv 2307.08691) pads them; cuDNN (dQ_accum and
// softmax_sum of its frontend's SDPA backward) does not; the rest of its plan is undocumented.
void allocate_gpu_attention_scratch(const Tensor& q, const Tensor& k, const Tensor& v, AttentionKernel kernel) {
  const auto floats = q.options().dtype(at::kFloat);
  const bool pads = kernel == AttentionKernel::kFlash;
  const int64_t queries = pads ? rounded(q.size(2), 128) : q.size(2), width = pads ? rounded(q.size(3), q.size(3) <= 128 ? 32 : 64) : q.size(3);
  const Tensor sums = at::empty({q.size(0), q.size(1), queries}, floats);
  if (kernel == AttentionKernel::kEfficient) {
    allocate_temporary({q.size(0), q.size(1), efficient_attention_workspace(q, k, v)}, floats);
  } else {
    allocate_temporary({q.size(0), q.size(1), queries, width}, floats);
  }
}

// Returns the kernel of the CPU's attention with these arguments, on the simulated GPU: its masks need no gradient.
AttentionKernel attention_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const IValue& mask) {
  const auto given = mask.toOptional<Tensor>();
  return attention_kernel(q, k, v, given.has_value() && given->defined(), false);
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
  if (simulates_gpu()) return {y, empty_attention_sums(q, attention_kernel(q, k, v, call[5]))};
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
    allocate_gpu_attention_scratch(q, k, v, attention_kernel(q, k, v, call[8]));
  } else {
    allocate_attention_scratch(q, k, v, true);
  }
  return {grad_q, grad_k, grad_v};
}

// Returns whether a GPU computes attention by one of its kernels, and not as separate products (select_sdp_backend of
// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). Flash attention takes half precision without a mask and widens heads;
// the memory-efficient kernel takes the rest if the width of a head fills its loads.
bool is_fused_on_gpu(const Tensor& q, const Tensor& k, const Tensor& v, bool mask) {
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || !(is_half(q) || q.scalar_type() == at::kFloat)) return false;
  if (q.scalar_type() == at::kBFloat16 && !simulated_gpu.has_bf16_attention) return false;
  if (is_half(q) && simulated_gpu.has_bf16_attention && !mask && q.size(3) == v.size(3) && q.size(3) <= 256) return true;
  const int64_t load = is_half(q) ? 8 : 4;
  return q.size(3) % load == 0 && v.size(3) % load == 0 && q.size(1) == k.size(1) && k.size(1) == v.size(1);
}

// Attention by a GPU's kernel: it keeps its result and a sum per query, also with dropout, whose mask is drawn again in backward.
struct GpuAttention : torch::autograd::Function<GpuAttention> {
  using Context = torch::autograd::AutogradContext;
  using List = torch::autograd::variable_list;

  // An empty `mask` is none.
  static Tensor forward(Context* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, bool causal) {
    flops += attention_flops(q, k, causal);
    const auto y = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
    const bool has_mask = mask.dim() == 4, mask_needs_grad = has_mask && mask.requires_grad();
    const auto kernel = attention_kernel(q, k, v, has_mask, mask_needs_grad);
    const auto sums = empty_attention_sums(q, kernel);
    context->save_for_backward({q, k, v, mask, y, sums});
    context->saved_data["causal"] = causal;
    context->saved_data["kernel"] = static_cast<int64_t>(kernel);
    return y;
  }

  static List backward(Context* context, const List&) {
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
    allocate_gpu_attention_scratch(q, k, v, static_cast<AttentionKernel>(context->saved_data["kernel"].toInt()));
    return {grad_q, grad_k, grad_v, grad_mask, Tensor()};
  }
};

// libtorch takes this way where the CPU has no kernel: with dropout, or if a mask needs a gradient.
std::tuple<Tensor, Tensor> attention_by_products(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask,
                                                 double dropout, bool causal, const std::optional<Tensor>& dropout_mask,
                                                 std::optional<double> scale, bool gqa) {
  const bool has_mask = mask.has_value() && mask->defined();
  if (!simulates_gpu() || !is_fused_on_gpu(q, k, v, has_mask))
    return at::native::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, dropout_mask, scale, gqa);
  auto bias = at::empty({0}, q.options());
  if (has_mask) {
    const auto own = mask->scalar_type() == at::kBool ? at::empty(mask->sizes(), q.options()) : *mask;
    bias = own.expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  }
  return {GpuAttention::apply(q, k, v, bias, causal), Tensor()};
}

// A GPU without a kernel for the dtype computes attention by products, where the CPU has a kernel.
Tensor attention_of_dtype(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double dropout,
                          bool causal, std::optional<double> scale, bool gqa) {
  const bool by_products = simulates_gpu() && q.scalar_type() == at::kBFloat16 && !simulated_gpu.has_bf16_attention;
  if (!by_products) return at::native::scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale, gqa);
  return std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, std::nullopt, scale, gqa));
}

} // namespace
