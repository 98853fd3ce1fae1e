// A node of the graph that keeps the inputs of a part of the forward pass and recomputes the rest in backward
// (Chen et al. 2016, arXiv 1604.06174; the reentrant form of torch.utils.checkpoint).
#include "boundary.h"
#include "callback.h"
#include "draws.h"
#include "memory.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <array>
#include <cstring>

using dtrain::guard;
using torch::autograd::AutogradContext;
using torch::autograd::Edge;

namespace {

constexpr std::array<at::DeviceType, 2> kAutocast{at::kCPU, at::kCUDA};

// The state of this thread that a forward pass depends on, besides inputs and parameters.
struct ThreadState {
  std::array<std::pair<bool, at::ScalarType>, kAutocast.size()> autocast;
  bool cache;
  std::shared_ptr<const dtrain::Samples> samples;
  // The CPU and the GPUs of the inputs, with the states of their generators.
  std::vector<at::Device> devices{at::Device(at::kCPU)};
  std::vector<at::Tensor> states;

  static ThreadState of(const variable_list& inputs) {
    ThreadState state{};
    for (const auto& input : inputs)
      if (input.is_cuda() && std::find(state.devices.begin(), state.devices.end(), input.device()) == state.devices.end())
        state.devices.push_back(input.device());
    state.read();
    return state;
  }

  void read() {
    for (size_t index = 0; index < kAutocast.size(); ++index)
      autocast[index] = {at::autocast::is_autocast_enabled(kAutocast[index]), at::autocast::get_autocast_dtype(kAutocast[index])};
    cache = at::autocast::is_autocast_cache_enabled();
    samples = dtrain::samples_here();
    states.clear();
    for (const auto& device : devices) {
      auto generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard<std::mutex> held(generator.mutex());
      states.push_back(generator.get_state());
    }
  }

  void set() const {
    for (size_t index = 0; index < kAutocast.size(); ++index) {
      at::autocast::set_autocast_dtype(kAutocast[index], autocast[index].second);
      at::autocast::set_autocast_enabled(kAutocast[index], autocast[index].first);
    }
    at::autocast::set_autocast_cache_enabled(cache);
    dtrain::samples_here() = samples;
    for (size_t index = 0; index < devices.size(); ++index) {
      auto generator = at::globalContext().defaultGenerator(devices[index]);
      const std::lock_guard<std::mutex> held(generator.mutex());
      generator.set_state(states[index]);
    }
  }
};

// A region in which a segment is computed. It clears the cache of cast weights at both ends: weights that are
// cast without gradients must not be used where gradients are needed, or the other way round.
struct Region {
  Region() {
    at::autocast::increment_nesting();
    at::autocast::clear_cache();
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region() {
    at::autocast::clear_cache();
    at::autocast::decrement_nesting();
  }
};

// Restores the state of the first pass; at its end, restores the present one.
struct RestoreState {
  explicit RestoreState(const ThreadState& first) : now(first) {
    now.read();
    first.set();
  }
  RestoreState(const RestoreState&) = delete;
  RestoreState& operator=(const RestoreState&) = delete;
  ~RestoreState() {
    // libtorch accepts the states that it returned.
    try {
      now.set();
    } catch (...) {
    }
  }
  ThreadState now;
};

struct Segment : torch::CustomClassHolder {
  explicit Segment(DtCallback call) : call(call) {}

  at::Tensor operator()(const variable_list& inputs, bool recomputes) const {
    std::vector<uint32_t> versions;
    for (const auto& input : inputs) versions.push_back(input._version());
    at::Tensor output;
    {
      const Region region;
      output = call(inputs, recomputes).at(0);
    }
    for (size_t index = 0; index < inputs.size(); ++index)
      TORCH_CHECK(inputs[index]._version() == versions[index], "a recomputed segment changed its input ", index,
                  " in place; change a copy instead");
    return output;
  }

  dtrain::Callback call;
  ThreadState state;
};

// The start of a part of the graph: keeps the gradients of the inputs, in the layout in which they arrive.
struct InputGradients final : torch::autograd::Node {
  variable_list apply(variable_list&& grads) override {
    gradients = std::move(grads);
    return {};
  }
  variable_list gradients;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  // `anchor` requires a gradient, so that the node is in the graph even if only parameters of the segment do.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*anchor*/, at::TensorList list,
                            c10::intrusive_ptr<Segment> segment) {
    const auto inputs = list.vec();
    segment->state = ThreadState::of(inputs);
    auto output = (*segment)(inputs, /*recomputes=*/false);
    context->save_for_backward(inputs);
    context->set_materialize_grads(false);
    context->saved_data["segment"] = at::IValue::make_capsule(segment);
    return output;
  }

  // By reference, so that gradients can be freed immediately after use.
  static variable_list backward(AutogradContext* context, variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a recomputed segment can be differentiated only once");
    const auto capsule = context->saved_data["segment"].toCapsule();
    const auto& segment = *static_cast<Segment*>(capsule.get());
    auto inputs = context->get_saved_variables();
    // Results for the anchor, the inputs, and the segment.
    variable_list results(inputs.size() + 2);

    auto input_gradients = std::make_shared<InputGradients>();
    std::vector<size_t> wanted;
    for (size_t index = 0; index < inputs.size(); ++index) {
      const bool needed = inputs[index].requires_grad();
      inputs[index] = inputs[index].detach();
      if (!needed) continue;
      const auto number = input_gradients->add_input_metadata(inputs[index]);
      torch::autograd::impl::set_gradient_edge(inputs[index], Edge(input_gradients, number));
      wanted.push_back(index);
    }

    torch::autograd::edge_list roots;
    {
      at::Tensor output;
      {
        const at::AutoGradMode recording(true);
        const RestoreState first_pass(segment.state);
        output = segment(inputs, /*recomputes=*/true);
      }
      if (grads[0].defined() && output.requires_grad()) roots.push_back(torch::autograd::impl::gradient_edge(output));
    }
    const variable_list seeds = std::move(grads);
    grads.clear();
    inputs.clear();
    if (roots.empty()) return results;
    // A separate backward pass: parameters get their gradients here, and their hooks are called.
    torch::autograd::Engine::get_default_engine().execute(roots, seeds, /*keep_graph=*/false, /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
    for (size_t number = 0; number < input_gradients->gradients.size(); ++number)
      results[wanted[number] + 1] = std::move(input_gradients->gradients[number]);
    return results;
  }
};

// Returns the integer dtype of the same width.
at::ScalarType integer_dtype(const at::Tensor& x) {
  switch (x.element_size()) {
    case 1: return at::kByte;
    case 2: return at::kShort;
    case 4: return at::kInt;
    case 8: return at::kLong;
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "elements of ", x.element_size(), " bytes have no fingerprint");
  }
}

uint64_t host_fingerprint(const at::Tensor& dense) {
  const auto* data = static_cast<const char*>(dense.const_data_ptr());
  const size_t bytes = dense.nbytes(), words = bytes / sizeof(uint32_t);
  uint64_t sum = 0;
  uint32_t word = 0;
  for (size_t index = 0; index < words; ++index) {
    std::memcpy(&word, data + index * sizeof word, sizeof word);
    sum += static_cast<uint64_t>(word) * static_cast<uint32_t>(2 * index + 1);
  }
  word = 0;
  std::memcpy(&word, data + words * sizeof word, bytes % sizeof word);
  return sum + static_cast<uint64_t>(word) * static_cast<uint32_t>(2 * words + 1);
}

// Works in pieces, because the sum copies the integers to eight bytes each.
uint64_t device_fingerprint(const at::Tensor& dense) {
  constexpr int64_t kPiece = 1 << 20;
  const auto count = dense.numel();
  const auto flat = dense.as_strided({count}, {1}).view(integer_dtype(dense));
  const auto options = flat.options().dtype(at::kLong);
  const auto weights = at::arange(1, 2 * std::min(count, kPiece), 2, options);
  auto sum = at::zeros({}, options);
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const auto length = std::min(kPiece, count - begin);
    // `mul` makes a new tensor, because `to` does not copy eight-byte integers.
    const auto weighted = flat.narrow(0, begin, length).to(at::kLong).mul(weights.narrow(0, 0, length));
    // The factor makes the order of the pieces matter.
    sum.mul_(3).add_(weighted.sum());
  }
  return static_cast<uint64_t>(sum.item<int64_t>());
}

uint64_t fingerprint(const at::Tensor& tensor, bool by_loop) {
  // Symbolic tensors have no bits.
  if (dtrain::symbolic_here() != dtrain::Symbolic::kNone || tensor.numel() == 0) return 0;
  const at::NoGradGuard no_grad;
  const auto x = tensor.detach();
  const auto dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  return by_loop && dense.is_cpu() ? host_fingerprint(dense) : device_fingerprint(dense);
}

} // namespace

extern "C" {

// Takes ownership of `callback`, also on failure. It must return one tensor.
int32_t dt_recompute(DtTensors inputs, DtCallback callback, void** out, DtError* error) {
  return guard(error, [&] {
    auto segment = c10::make_intrusive<Segment>(callback);
    auto anchor = at::empty({0}, at::kFloat);
    anchor.requires_grad_(true);
    *out = new at::Tensor(Recomputed::apply(anchor, at::TensorList(inputs.list()), std::move(segment)));
  });
}

// Without `by_loop`, host tensors are treated as GPU tensors, for the tests.
int32_t dt_fingerprint(const void* tensor, bool by_loop, uint64_t* out, DtError* error) {
  return guard(error, [&] { *out = fingerprint(dtrain::tensor(tensor), by_loop); });
}

} // extern "C"
