// Memory of recurrent layers: on the CPU oneDNN computes a layer of an LSTM at once.
#pragma once

#include "symbolic_rule.h"

namespace {

constexpr int64_t kPage = 4096;

// Returns the length of a row in oneDNN's memory: whole cache lines, and no multiple of 256 (get_good_ld of its
// src/cpu/rnn/rnn_utils.cpp).
int64_t row_length(int64_t length, int64_t element) {
  const int64_t filled = rounded(length, 64 / element);
  return filled % 256 == 0 ? filled + 64 / element : filled;
}

// The sizes of a layer of an LSTM: steps, samples, channels, and hidden values.
struct Lstm {
  int64_t steps, samples, channels, hidden, element;

  Lstm(const Tensor& x, const Tensor& weight)
      : steps(x.size(0)), samples(x.size(1)), channels(x.size(2)), hidden(weight.size(1)), element(x.element_size()) {}

  int64_t gates() const { return steps * samples * row_length(4 * hidden, element) * element; }
  int64_t weights() const { return (channels + hidden) * row_length(4 * hidden, element) * element; }
  int64_t outputs() const { return steps * samples * row_length(hidden, element) * element; }

  // Returns the bytes that backward needs: gates, outputs, states of all steps, and gradients of states.
  int64_t workspace() const {
    const int64_t states = 2 * (steps + 1) * samples, row = row_length(std::max(channels, hidden), element);
    const auto pages = [](int64_t bytes) { return rounded(bytes, kPage); };
    return pages(gates()) + pages(outputs()) + 2 * pages(states * row * element) +
        pages(states * row_length(std::max(channels, hidden), 4) * 4) + 2 * pages(states * hidden * 4);
  }
};

// mkldnn_rnn_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx_, Tensor cx_, bool reverse,
// int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases, bool bidirectional, bool batch_first, bool train)
Results lstm(const Call& call) {
  const auto x = call.tensor(0), weight = call.tensor(2), state = call.tensor(5), cell = call.tensor(6);
  const Lstm layer(x, weight);
  const auto bytes = x.options().dtype(at::kByte);
  flops += 2.0 * static_cast<double>(layer.steps * layer.samples * (layer.channels + layer.hidden) * 4 * layer.hidden);
  const auto y = at::empty({layer.steps, layer.samples, layer.hidden}, x.options());
  const auto last = empty_as(state.sizes(), state), last_cell = empty_as(cell.sizes(), cell);
  const bool trains = call[15].toBool();
  const auto kept = at::empty({trains ? layer.workspace() : 0}, bytes);
  if (!simulates_gpu()) allocate_temporary({layer.weights() + (is_half(x) ? 0 : layer.gates()) + 4 * kPage}, bytes);
  return {y, last, last_cell, kept};
}

// mkldnn_rnn_layer_backward(Tensor input, Tensor weight1, Tensor weight2, Tensor weight3, Tensor weight4, Tensor hx_, Tensor cx_tmp, ...)
Results lstm_backward(const Call& call) {
  const auto x = call.tensor(0), weight = call.tensor(1), weight_hidden = call.tensor(2), bias = call.tensor(3), state = call.tensor(5);
  const Lstm layer(x, weight_hidden);
  const auto floats = x.options().dtype(at::kFloat);
  flops += 4.0 * static_cast<double>(layer.steps * layer.samples * (layer.channels + layer.hidden) * 4 * layer.hidden);
  const auto gradient = [&](const Tensor& of) { return at::empty(of.sizes(), floats); };
  const auto grad_x = gradient(x), grad_weight = gradient(weight), grad_hidden = gradient(weight_hidden);
  const auto grad_bias = gradient(bias), grad_other = gradient(bias), grad_state = gradient(state), grad_cell = gradient(call.tensor(6));
  if (!simulates_gpu()) allocate_temporary({layer.weights() + layer.gates() + layer.outputs() + 5 * kPage}, x.options().dtype(at::kByte));
  return {grad_x, grad_weight, grad_hidden, grad_bias, grad_other, grad_state, grad_cell};
}

} // namespace
