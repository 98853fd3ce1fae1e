// Products with weights that are never trained and have fewer bytes than float32: bfloat16, float16, or int8 with a factor for each
// row. An operation widens its weight and drops it again: backward widens it anew, and keeps nothing of the input.
#include "boundary.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>

namespace dtrain::frozen {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Maybe = std::optional<Tensor>;

// The dtype of a product of `x`: autocast's, if it is on.
at::ScalarType kind_of(const Tensor& x) {
  const auto device = x.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : x.scalar_type();
}

// `scale` has a factor for each row of `weight`. It is applied in float32: many factors are too small for float16.
Tensor widen(const Tensor& weight, const Tensor& scale, at::ScalarType kind) {
  if (!scale.defined()) return weight.to(kind);
  c10::DimVector shape(static_cast<size_t>(weight.dim()), 1);
  shape[0] = weight.size(0);
  return weight.to(at::kFloat).mul_(scale.view(shape)).to(kind);
}

// Autocast has no part in these operations: they cast by themselves.
struct Alone {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Maybe& scale, const Maybe& bias,
                        bool transposed, at::ScalarType kind) {
    context->save_for_backward({weight, scale.value_or(Tensor())});
    context->saved_data["transposed"] = transposed;
    context->saved_data["kind"] = static_cast<int64_t>(x.scalar_type());
    const Alone alone;
    const auto wide = widen(weight, scale.value_or(Tensor()), kind);
    return at::linear(x.to(kind), transposed ? wide.t() : wide, bias.has_value() ? Maybe(bias->to(kind)) : Maybe());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto& grad = grads[0];
    const Alone alone;
    const auto wide = widen(saved[0], saved[1], grad.scalar_type());
    const auto kind = static_cast<at::ScalarType>(context->saved_data["kind"].toInt());
    const bool transposed = context->saved_data["transposed"].toBool();
    return {at::matmul(grad, transposed ? wide.t() : wide).to(kind), {}, {}, {}, {}, {}};
  }
};

struct Geometry {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups;
};

struct Convolution : torch::autograd::Function<Convolution> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Maybe& scale, const Maybe& bias,
                        const Geometry& of, at::ScalarType kind) {
    context->save_for_backward({weight, scale.value_or(Tensor())});
    auto& saved = context->saved_data;
    saved["sizes"] = x.sizes().vec();
    saved["channels_last"] = x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast);
    saved["kind"] = static_cast<int64_t>(x.scalar_type());
    saved["stride"] = of.stride;
    saved["padding"] = of.padding;
    saved["dilation"] = of.dilation;
    saved["groups"] = of.groups;
    const Alone alone;
    const auto wide = widen(weight, scale.value_or(Tensor()), kind);
    const std::vector<int64_t> none(of.stride.size(), 0);
    return at::convolution(x.to(kind), wide, bias.has_value() ? Maybe(bias->to(kind)) : Maybe(), of.stride, of.padding, of.dilation,
                           false, none, of.groups);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto weights = context->get_saved_variables();
    auto& saved = context->saved_data;
    const auto& grad = grads[0];
    const Alone alone;
    const auto wide = widen(weights[0], weights[1], grad.scalar_type());
    const auto sizes = saved["sizes"].toIntVector();
    const auto format = saved["channels_last"].toBool() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    // The gradient by the input depends on its shape alone.
    const auto shape = at::empty(sizes, grad.options(), format);
    const std::vector<int64_t> none(sizes.size() - 2, 0);
    const auto found = at::convolution_backward(grad, shape, wide, {}, saved["stride"].toIntVector(), saved["padding"].toIntVector(),
                                                saved["dilation"].toIntVector(), false, none, saved["groups"].toInt(),
                                                {true, false, false});
    return {std::get<0>(found).to(static_cast<at::ScalarType>(saved["kind"].toInt())), {}, {}, {}, {}, {}};
  }
};

// A bias that is trained has its gradient from an addition.
std::pair<Maybe, Maybe> split(const Maybe& bias) {
  const bool is_trained = bias.has_value() && bias->requires_grad();
  return is_trained ? std::pair(Maybe(), bias) : std::pair(bias, Maybe());
}

Tensor linear(const Tensor& x, const Tensor& weight, const Maybe& scale, const Maybe& bias, bool transposed) {
  const auto [inside, outside] = split(bias);
  const auto y = Linear::apply(x, weight, scale, inside, transposed, kind_of(x));
  return outside.has_value() ? y + outside->to(y.scalar_type()) : y;
}

Tensor convolution(const Tensor& x, const Tensor& weight, const Maybe& scale, const Maybe& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups) {
  const auto spatial = static_cast<size_t>(weight.dim() - 2);
  // One number stands for all dimensions.
  const auto all = [&](at::IntArrayRef list) { return list.size() == 1 ? std::vector<int64_t>(spatial, list[0]) : list.vec(); };
  const auto [inside, outside] = split(bias);
  const auto y = Convolution::apply(x, weight, scale, inside, Geometry{all(stride), all(padding), all(dilation), groups}, kind_of(x));
  if (!outside.has_value()) return y;
  c10::DimVector shape(static_cast<size_t>(y.dim()), 1);
  shape[1] = y.size(1);
  return y + outside->to(y.scalar_type()).view(shape);
}

// Rows of a table in float32.
Tensor embedding(const Tensor& weight, const Maybe& scale, const Tensor& indices) {
  const auto flat = indices.reshape({-1});
  auto rows = weight.index_select(0, flat).to(at::kFloat);
  if (scale.has_value()) rows.mul_(scale->index_select(0, flat).unsqueeze(1));
  auto shape = indices.sizes().vec();
  shape.push_back(weight.size(1));
  return rows.view(shape);
}

} // namespace dtrain::frozen

TORCH_LIBRARY_FRAGMENT(dtrain, library) {
  namespace frozen = dtrain::frozen;
  library.def("frozen_linear(Tensor input, Tensor weight, Tensor? scale, Tensor? bias, bool transposed) -> Tensor",
              &frozen::linear);
  library.def(
      "frozen_convolution(Tensor input, Tensor weight, Tensor? scale, Tensor? bias, int[] stride, int[] padding, int[] dilation, "
      "int groups) -> Tensor",
      &frozen::convolution);
  library.def("frozen_embedding(Tensor weight, Tensor? scale, Tensor indices) -> Tensor", &frozen::embedding);
}

extern "C" {

int32_t dt_frozen_linear(const void* x, const void* weight, const void* scale, const void* bias, void** out, DtError* error) {
  return dtrain::guard(error, [&] {
    const auto maybe = [](const void* tensor) { return tensor == nullptr ? dtrain::frozen::Maybe() : dtrain::tensor(tensor); };
    *out = new at::Tensor(dtrain::frozen::linear(dtrain::tensor(x), dtrain::tensor(weight), maybe(scale), maybe(bias), false));
  });
}

// A two-dimensional convolution with one stride and padding for both dimensions.
int32_t dt_frozen_conv2d(const void* x, const void* weight, const void* scale, const void* bias, int64_t stride, int64_t padding,
                         void** out, DtError* error) {
  return dtrain::guard(error, [&] {
    const auto maybe = [](const void* tensor) { return tensor == nullptr ? dtrain::frozen::Maybe() : dtrain::tensor(tensor); };
    *out = new at::Tensor(dtrain::frozen::convolution(dtrain::tensor(x), dtrain::tensor(weight), maybe(scale), maybe(bias), {stride},
                                                      {padding}, {1}, 1));
  });
}

} // extern "C"
