// The head of a language model and its loss in one node, one chunk of rows at a time (Hsu et al. 2024, arXiv
// 2410.10989). The gradients are computed with the loss, so a chunk's logits are freed immediately.
#include "boundary.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>

extern "C" {
// `Head` of src/ffi/options.rs.
struct DtHead {
  int64_t ignored;  // the target to ignore
  int64_t rows;     // rows of a chunk
  int64_t multiple; // the vocabulary is padded to a multiple of this in products
};
}

namespace {

using at::Tensor;

constexpr auto kSum = at::Reduction::Sum;

struct HeadLoss {
  Tensor sum, hidden, weight; // the loss, and its gradients if they are needed
};

struct HeadProduct {
  Tensor weight; // V x W, padded with rows of zeros, in the dtype of the products
  int64_t vocabulary;

  // `shadow`, if defined, has the values of the table in `kind`.
  HeadProduct(const Tensor& table, const Tensor& shadow, at::ScalarType kind, int64_t multiple) : vocabulary(table.size(0)) {
    const auto padded = (vocabulary + multiple - 1) / multiple * multiple;
    const auto& values = shadow.defined() ? shadow : table;
    if (padded == vocabulary) {
      weight = values.to(kind);
      return;
    }
    weight = at::empty({padded, table.size(1)}, table.options().dtype(kind));
    weight.narrow(0, 0, vocabulary).copy_(values);
    weight.narrow(0, vocabulary, padded - vocabulary).zero_();
  }

  int64_t padding() const { return weight.size(0) - vocabulary; }

  // Returns the logarithms of the probabilities, in float32 for half-precision logits, as in autocast. Padding
  // has probability 0.
  Tensor log_probabilities(const Tensor& x) const {
    auto logits = at::mm(x, weight.t());
    if (padding() > 0) logits.narrow(1, vocabulary, padding()).fill_(-std::numeric_limits<double>::infinity());
    const bool is_half = logits.scalar_type() == at::kHalf || logits.scalar_type() == at::kBFloat16;
    return at::log_softmax(is_half ? logits.to(at::kFloat) : logits, 1);
  }

  // Throws for a target within the padding on the CPU, where libtorch throws for larger ones.
  void check(const Tensor& targets) const {
    if (padding() == 0 || targets.is_cuda() || targets.numel() == 0) return;
    const auto largest = targets.max().item<int64_t>();
    TORCH_CHECK_INDEX(largest < vocabulary, "Target ", largest, " is out of bounds.");
  }
};

// `hidden` is R x W, `table` V x W, `targets` R. `seed` is the gradient of the loss, a scalar.
HeadLoss compute_in_chunks(const Tensor& hidden, const Tensor& table, const Tensor& shadow, const Tensor& targets,
                           at::ScalarType kind, const DtHead& head, bool needs_hidden_grad, bool needs_table_grad,
                           const Tensor& seed) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const HeadProduct product(table, shadow, kind, head.multiple);
  product.check(targets);
  HeadLoss out;
  if (needs_hidden_grad) out.hidden = at::empty_like(hidden);
  for (int64_t begin = 0; begin < hidden.size(0); begin += head.rows) {
    const auto length = std::min(head.rows, hidden.size(0) - begin);
    const auto x = hidden.narrow(0, begin, length).to(kind), target = targets.narrow(0, begin, length);
    auto log_p = product.log_probabilities(x);
    const auto [sum, count] = at::nll_loss_forward(log_p, target, {}, kSum, head.ignored);
    out.sum = out.sum.defined() ? out.sum.add_(sum) : sum;
    if (!needs_hidden_grad && !needs_table_grad) continue;
    auto gradient = at::nll_loss_backward(seed.defined() ? seed : at::ones_like(sum), log_p, target, {}, kSum, head.ignored, count);
    // In place: every kernel reads an element before it writes it.
    at::_log_softmax_backward_data_out(gradient, gradient, log_p, 1, log_p.scalar_type());
    log_p = Tensor();
    gradient = gradient.to(kind);
    if (needs_hidden_grad) out.hidden.narrow(0, begin, length).copy_(at::mm(gradient, product.weight));
    if (!needs_table_grad) continue;
    // Sum the chunks in the parameter's dtype: sums of sums in half precision would lose digits.
    if (!out.weight.defined())
      out.weight = at::mm(gradient.t(), x).to(table.scalar_type());
    else if (kind == table.scalar_type())
      out.weight.addmm_(gradient.t(), x);
    else
      out.weight.add_(at::mm(gradient.t(), x));
  }
  if (out.weight.defined()) out.weight = out.weight.narrow(0, 0, product.vocabulary);
  return out;
}

struct Head : torch::autograd::Function<Head> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& hidden, const Tensor& table,
                        const std::optional<Tensor>& shadow, const Tensor& targets, DtHead head, bool is_recording) {
    const auto device = hidden.device().type();
    const auto kind = at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : table.scalar_type();
    const bool needs_hidden_grad = is_recording && hidden.requires_grad(), needs_table_grad = is_recording && table.requires_grad();
    // Float16 needs the loss scale in every product, known only in backward: recompute the chunks there.
    const bool recomputes = kind == at::kHalf && (needs_hidden_grad || needs_table_grad);
    // Without recording, the table may have changed since the shadow was made.
    const auto values = is_recording && shadow.has_value() && shadow->scalar_type() == kind ? *shadow : Tensor();
    auto loss = compute_in_chunks(hidden, table, values, targets, kind, head, needs_hidden_grad && !recomputes,
                                  needs_table_grad && !recomputes, {});
    if (recomputes)
      context->save_for_backward({hidden, table, targets});
    else
      context->save_for_backward({loss.hidden, loss.weight});
    context->saved_data["head"] = std::vector<int64_t>{head.ignored, head.rows, head.multiple};
    return loss.sum;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "the loss of a head can be differentiated only once");
    const auto saved = context->get_saved_variables();
    if (saved.size() == 2) {
      const auto scaled = [&](Tensor gradient) { return gradient.defined() ? gradient.mul_(grads[0]) : gradient; };
      return {scaled(saved[0]), scaled(saved[1]), {}, {}, {}, {}};
    }
    const auto head = context->saved_data["head"].toIntVector();
    const auto loss = compute_in_chunks(saved[0], saved[1], {}, saved[2], at::kHalf, {head[0], head[1], head[2]},
                                        saved[0].requires_grad(), saved[1].requires_grad(), grads[0]);
    return {loss.hidden, loss.weight, {}, {}, {}, {}};
  }
};

} // namespace

extern "C" {

// Computes the sum over the rows of `hidden` (R x W) of the cross-entropy of `hidden` times `table` (V x W)
// transposed against `targets` (R). `shadow` is null, or has `table`'s values in autocast's dtype.
int32_t dt_head_loss(const void* hidden, const void* table, const void* shadow, const void* targets, DtHead head, void** out,
                     DtError* error) {
  return dtrain::guard(error, [&] {
    TORCH_CHECK_VALUE(head.rows > 0 && head.multiple > 0, "rows and multiple must be at least 1");
    const auto values = shadow == nullptr ? std::optional<Tensor>() : dtrain::tensor(shadow);
    *out = new Tensor(Head::apply(dtrain::tensor(hidden), dtrain::tensor(table), values, dtrain::tensor(targets), head,
                                  at::GradMode::is_enabled()));
  });
}

} // extern "C"
