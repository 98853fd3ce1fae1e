// Dropout and other random numbers that depend on (step, operation, sample, element), so that a step draws the same for
// every cut. Operations of the namespace `dtrain` stand for those of `aten`, with the number of the operation in the
// network and the dimension of the samples; -1 for a tensor that all samples share. Outside of a micro-batch
// (dt_samples_enter) they draw from libtorch's generator as `aten` does.
#include "boundary.h"
#include "draws.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

using dtrain::guard;

namespace dtrain::draws {

#define DT_DEVICE inline __attribute__((always_inline))
#include "draws_kernel.h"
#undef DT_DEVICE

using at::Tensor;

// The place of a tensor that all samples share.
constexpr uint32_t kShared = 0xFFFFFFFF;

// Threads get units of a block; fewer are not worth a thread.
constexpr int64_t kUnitsOfThread = 16;

// Returns the job of a tensor, whose dimension `dim` has equally many rows for each sample; the rows of a sample are neighbours.
// `places` must outlive it.
Job job_of(const Tensor& x, int64_t key, at::IntArrayRef places, int64_t number, int64_t dim) {
  Job job{static_cast<uint64_t>(key), nullptr, kShared, 1, 1, x.numel(), 0.0, 0, static_cast<uint32_t>(number), kDropout};
  if (dim < 0) return job;
  job.samples = static_cast<int64_t>(places.size());
  TORCH_CHECK(dim < x.dim() && x.size(dim) % job.samples == 0, "a random operation has values of shape ", x.sizes(), ", whose dimension ",
              dim, " is not that of the ", job.samples, " samples; build the model so that each sample has as many rows");
  job.first = places[0];
  if (places.back() - places[0] + 1 != job.samples) job.places = places.data();
  const auto length = [&](int64_t begin, int64_t end) {
    return c10::multiply_integers(x.sizes().slice(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  };
  job.outer = length(0, dim);
  job.inner = x.size(dim) / job.samples * length(dim + 1, x.dim());
  return job;
}

// Returns the number of 32 bits below which numbers are with this probability; for 1, of all but one.
uint32_t threshold_of(double probability) {
  return static_cast<uint32_t>(std::min(std::round(std::ldexp(probability, 32)), std::ldexp(1.0, 32) - 1));
}

// Loops as vectors; with DT_CLONES also as those of AVX2 and AVX-512, where the processor has them.
#ifdef __clang__
#define DT_FAST
#define DT_CLONES
#elif defined(__x86_64__)
#define DT_FAST __attribute__((optimize("O3")))
#define DT_CLONES __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define DT_FAST __attribute__((optimize("O3")))
#define DT_CLONES DT_FAST
#endif

// Writes the numbers of the first `calls` calls of a block, each of the four in its own quarter.
DT_CLONES void fill_block(uint64_t key, uint64_t first_call, uint32_t place, uint32_t operation, int64_t calls, uint32_t* numbers) {
  for (int64_t call = 0; call < calls; ++call) {
    const auto found = philox(key, first_call + static_cast<uint64_t>(call), place, operation);
    for (int quarter = 0; quarter < 4; ++quarter) numbers[quarter * kCalls + call] = found.numbers[quarter];
  }
}

template <typename T>
constexpr int precision() {
  if (std::is_same_v<T, at::Half>) return 11;
  return std::is_same_v<T, at::BFloat16> ? 8 : 24;
}

// A factor, and not a choice: what is not a number stays so, as in libtorch's dropout.
template <typename T, typename Real>
DT_FAST void scale_kept(const T* x, T* out, const uint32_t* bits, uint32_t threshold, Real scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<Real>(x[i]) * (bits[i] < threshold ? Real(0) : scale));
}

// Computes one block of one sample.
template <typename T>
void run_unit(const Job& job, const T* x, T* out, int64_t unit, int64_t blocks) {
  using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const int64_t elements = job.outer * job.inner, sample = unit / blocks, begin = unit % blocks * kElements;
  const int64_t count = std::min<int64_t>(kElements, elements - begin);
  const auto place = place_of(job, sample);
  uint32_t numbers[kElements], seconds[kElements];
  const auto fill = [&](uint32_t operation, uint32_t* to) {
    const auto first_call = static_cast<uint64_t>(unit % blocks) * kCalls;
    fill_block(job.key, first_call, place, operation, std::min<int64_t>(kCalls, count), to);
  };
  fill(job.operation, numbers);
  if (job.kind == kNormal) fill(job.operation | kSecond, seconds);
  const auto scale = static_cast<Real>(job.scale);
  for (int64_t done = 0; done < count;) {
    const int64_t element = begin + done, row = element / job.inner, column = element % job.inner;
    const int64_t length = std::min(job.inner - column, count - done);
    const int64_t at = (row * job.samples + sample) * job.inner + column;
    const uint32_t *bits = numbers + done, *second = seconds + done;
    switch (job.kind) {
      case kDropout: scale_kept(x + at, out + at, bits, job.threshold, scale, length); break;
      case kUniform:
        for (int64_t i = 0; i < length; ++i) out[at + i] = static_cast<T>(uniform_of(bits[i], precision<T>()));
        break;
      case kBernoulli:
        for (int64_t i = 0; i < length; ++i) out[at + i] = static_cast<T>(bits[i] < job.threshold ? 0.0f : 1.0f);
        break;
      case kNormal:
        for (int64_t i = 0; i < length; ++i) out[at + i] = static_cast<T>(normal_of(bits[i], second[i]));
        break;
      default:
        for (int64_t i = 0; i < length; ++i) out[at + i] = static_cast<T>(exponential_of(bits[i]));
    }
    done += length;
  }
}

// Calls `work` for every number below `units`, on libtorch's threads.
template <typename Work>
void in_parallel(int64_t units, const Work& work) {
  std::vector<int64_t> numbers(static_cast<size_t>(units));
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto all = at::from_blob(numbers.data(), {units}, at::kLong);
  auto iterator = at::TensorIteratorConfig().add_input(all).build();
  iterator.for_each(
      [&](char** data, const int64_t* strides, int64_t count) {
        for (int64_t index = 0; index < count; ++index) work(*reinterpret_cast<int64_t*>(data[0] + index * strides[0]));
      },
      kUnitsOfThread);
}

// `x` and `out` are contiguous, and may be the same.
void run_on_cpu(const Job& job, const Tensor& x, const Tensor& out) {
  const int64_t blocks = (job.outer * job.inner + kElements - 1) / kElements;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, out.scalar_type(), "draw", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    auto* to = out.mutable_data_ptr<scalar_t>();
    in_parallel(job.samples * blocks, [&](int64_t unit) { run_unit(job, from, to, unit, blocks); });
  });
}

// Returns the result of a job, in the layout of `x`.
Tensor run(const Job& job, const Tensor& x, void (*on_device)(const Job&, const Tensor&, const Tensor&)) {
  auto out = at::empty_like(x);
  if (x.numel() == 0) return out;
  if (x.is_contiguous()) {
    on_device(job, x, out);
    return out;
  }
  const auto rows = x.contiguous();
  on_device(job, rows, rows);
  return out.copy_(rows);
}

// Registered operations. `key` and `places` are those of the micro-batch.

template <void (*On)(const Job&, const Tensor&, const Tensor&)>
Tensor dropout_by(const Tensor& x, double p, int64_t key, at::IntArrayRef places, int64_t number, int64_t dim) {
  auto job = job_of(x, key, places, number, dim);
  job.scale = p < 1 ? 1 / (1 - p) : 0;
  job.threshold = threshold_of(p);
  return run(job, x, On);
}

template <void (*On)(const Job&, const Tensor&, const Tensor&)>
Tensor draw(const Tensor& like, int64_t kind, double p, int64_t key, at::IntArrayRef places, int64_t number, int64_t dim) {
  auto job = job_of(like, key, places, number, dim);
  job.kind = static_cast<int32_t>(kind);
  if (kind == kBernoulli && p == 0) return at::zeros_like(like);
  job.threshold = threshold_of(1 - p);
  return run(job, like, On);
}

// The operations below are composed of these two, whose kernels alone differ by device.

Tensor call_dropout(const Tensor& x, double p, const Samples& of, int64_t number, int64_t dim) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtrain::dropout_by", "")
                             .typed<Tensor(const Tensor&, double, int64_t, at::IntArrayRef, int64_t, int64_t)>();
  return op.call(x, p, static_cast<int64_t>(of.key), of.places, number, dim);
}

// Draws in `dtype`, or the dtype of `like`; whole numbers take the values of real ones.
Tensor call_draw(const Tensor& like, Kind kind, int64_t number, int64_t dim, double p = 0, std::optional<at::ScalarType> dtype = {}) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtrain::draw", "")
                             .typed<Tensor(const Tensor&, int64_t, double, int64_t, at::IntArrayRef, int64_t, int64_t)>();
  const auto own = at::isFloatingType(like.scalar_type()) ? like.scalar_type() : at::kFloat;
  const auto wanted = dtype.value_or(own);
  const auto values = wanted == like.scalar_type() ? like.detach() : at::empty_like(like, like.options().dtype(wanted));
  const auto of = samples_here();
  return op.call(values, kind, p, static_cast<int64_t>(of->key), of->places, number, dim);
}

// Keeps nothing but numbers: the gradient has the same factors, drawn again.
struct DropoutBySample : torch::autograd::Function<DropoutBySample> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, double p, const Samples& of, int64_t number, int64_t dim) {
    context->saved_data["p"] = p;
    context->saved_data["key"] = static_cast<int64_t>(of.key);
    context->saved_data["places"] = of.places;
    context->saved_data["number"] = number;
    context->saved_data["dim"] = dim;
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_dropout(x, p, of, number, dim);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& grads) {
    auto& saved = context->saved_data;
    const Samples of{static_cast<uint64_t>(saved["key"].toInt()), saved["places"].toIntVector()};
    return {call_dropout(grads[0], saved["p"].toDouble(), of, saved["number"].toInt(), saved["dim"].toInt()), {}, {}, {}, {}};
  }
};

Tensor dropout_with_gradient(const Tensor& x, double p, int64_t key, at::IntArrayRef places, int64_t number, int64_t dim) {
  return DropoutBySample::apply(x, p, Samples{static_cast<uint64_t>(key), places.vec()}, number, dim);
}

bool is_by_sample() { return samples_here() != nullptr; }

void check_probability(double p) { TORCH_CHECK_VALUE(p >= 0 && p <= 1, "a probability is ", p, ", and not between 0 and 1"); }

using Generator = std::optional<at::Generator>;

Tensor dropout(const Tensor& x, double p, bool train, int64_t number, int64_t dim) {
  check_probability(p);
  if (!is_by_sample()) return at::dropout(x, p, train);
  return train && p > 0 ? call_dropout(x, p, *samples_here(), number, dim) : x;
}

Tensor& dropout_in_place(Tensor& x, double p, bool train, int64_t number, int64_t dim) {
  if (!is_by_sample()) return at::dropout_(x, p, train);
  return train && p > 0 ? x.copy_(dropout(x, p, train, number, dim)) : x;
}

// Drops whole channels: `dim` is that of the samples, 0 or 1.
Tensor feature_dropout(const Tensor& x, double p, bool train, int64_t number, int64_t dim) {
  if (!is_by_sample()) return at::feature_dropout(x, p, train);
  if (!train || p == 0) return x;
  TORCH_CHECK_VALUE(x.dim() >= 2, "a dropout of channels needs values of at least 2 dimensions, and got ", x.sizes());
  std::vector<int64_t> channels(static_cast<size_t>(x.dim()), 1);
  std::copy_n(x.sizes().begin(), 2, channels.begin());
  return x * dropout(at::ones(channels, x.options()), p, train, number, dim);
}

Tensor& feature_dropout_in_place(Tensor& x, double p, bool train, int64_t number, int64_t dim) {
  if (!is_by_sample()) return at::feature_dropout_(x, p, train);
  return x.copy_(feature_dropout(x, p, train, number, dim));
}

Tensor& bernoulli_in_place(Tensor& self, double p, const Generator& generator, int64_t number, int64_t dim) {
  check_probability(p);
  return is_by_sample() ? self.copy_(call_draw(self, kBernoulli, number, dim, p)) : self.bernoulli_(p, generator);
}

Tensor bernoulli_p(const Tensor& self, double p, const Generator& generator, int64_t number, int64_t dim) {
  check_probability(p);
  return is_by_sample() ? call_draw(self, kBernoulli, number, dim, p).to(self.scalar_type()) : at::bernoulli(self, p, generator);
}

// Each element has its own probability.
Tensor bernoulli(const Tensor& self, const Generator& generator, int64_t number, int64_t dim) {
  if (!is_by_sample()) return at::bernoulli(self, generator);
  return call_draw(self, kUniform, number, dim, 0, at::kFloat).lt(self).to(self.scalar_type());
}

Tensor& uniform_in_place(Tensor& self, double from, double to, const Generator& generator, int64_t number, int64_t dim) {
  if (!is_by_sample()) return self.uniform_(from, to, generator);
  return self.copy_(call_draw(self, kUniform, number, dim).mul_(to - from).add_(from));
}

Tensor uniform(const Tensor& self, double from, double to, const Generator& generator, int64_t number, int64_t dim) {
  auto drawn = at::empty_like(self);
  return uniform_in_place(drawn, from, to, generator, number, dim);
}

Tensor& normal_in_place(Tensor& self, double mean, double deviation, const Generator& generator, int64_t number, int64_t dim) {
  if (!is_by_sample()) return self.normal_(mean, deviation, generator);
  return self.copy_(call_draw(self, kNormal, number, dim).mul_(deviation).add_(mean));
}

Tensor normal(const Tensor& self, double mean, double deviation, const Generator& generator, int64_t number, int64_t dim) {
  auto drawn = at::empty_like(self);
  return normal_in_place(drawn, mean, deviation, generator, number, dim);
}

// In float32, and never 0 in the dtype of `self`: what follows is often a logarithm.
Tensor& exponential_in_place(Tensor& self, double rate, const Generator& generator, int64_t number, int64_t dim) {
  if (!is_by_sample()) return self.exponential_(rate, generator);
  const double least = self.scalar_type() == at::kHalf ? std::ldexp(1.0, -14) : std::ldexp(1.0, -126);
  return self.copy_(call_draw(self, kExponential, number, dim, 0, at::kFloat).div_(rate).clamp_min_(least));
}

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Pinned = std::optional<bool>;

Tensor rand(at::IntArrayRef size, Dtype dtype, Layout layout, Device device, Pinned pinned, int64_t number, int64_t dim) {
  auto drawn = at::empty(size, dtype, layout, device, pinned, std::nullopt);
  return uniform_in_place(drawn, 0, 1, std::nullopt, number, dim);
}

Tensor randn(at::IntArrayRef size, Dtype dtype, Layout layout, Device device, Pinned pinned, int64_t number, int64_t dim) {
  auto drawn = at::empty(size, dtype, layout, device, pinned, std::nullopt);
  return normal_in_place(drawn, 0, 1, std::nullopt, number, dim);
}

// An order that all samples share. Of equal numbers, the first comes first.
Tensor randperm(int64_t n, Dtype dtype, Layout layout, Device device, Pinned pinned, int64_t number, int64_t dim) {
  if (!is_by_sample()) return at::randperm(n, dtype.value_or(at::kLong), layout, device, pinned);
  const auto drawn = rand({n}, at::kFloat, layout, device, pinned, number, dim);
  return at::argsort(drawn, /*stable=*/true, 0, false).to(dtype.value_or(at::kLong));
}

using Format = std::optional<at::MemoryFormat>;

Tensor rand_like(const Tensor& self, Dtype dtype, Layout layout, Device device, Pinned pinned, Format format, int64_t number, int64_t dim) {
  auto drawn = at::empty_like(self, dtype, layout, device, pinned, format);
  return uniform_in_place(drawn, 0, 1, std::nullopt, number, dim);
}

Tensor randn_like(const Tensor& self, Dtype dtype, Layout layout, Device device, Pinned pinned, Format format, int64_t number, int64_t dim) {
  auto drawn = at::empty_like(self, dtype, layout, device, pinned, format);
  return normal_in_place(drawn, 0, 1, std::nullopt, number, dim);
}

} // namespace dtrain::draws

#include "draws_gpu.h"

// The arguments are those of `aten`'s operations of the same name, and two more.
#define DT_OF_SAMPLE "int number, int dim)"
#define DT_GENERATOR "*, Generator? generator=None, " DT_OF_SAMPLE
#define DT_OPTIONS "*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, "

TORCH_LIBRARY(dtrain, library) {
  namespace draws = dtrain::draws;
  library.def("dropout_by(Tensor input, float p, int key, int[] places, int number, int dim) -> Tensor");
  library.def("draw(Tensor like, int kind, float p, int key, int[] places, int number, int dim) -> Tensor");
  library.def("dropout(Tensor input, float p, bool train, *, " DT_OF_SAMPLE " -> Tensor", &draws::dropout);
  library.def("dropout_(Tensor(a!) self, float p, bool train, *, " DT_OF_SAMPLE " -> Tensor(a!)", &draws::dropout_in_place);
  library.def("feature_dropout(Tensor input, float p, bool train, *, " DT_OF_SAMPLE " -> Tensor", &draws::feature_dropout);
  library.def("feature_dropout_(Tensor(a!) self, float p, bool train, *, " DT_OF_SAMPLE " -> Tensor(a!)", &draws::feature_dropout_in_place);
  library.def("bernoulli(Tensor self, " DT_GENERATOR " -> Tensor", &draws::bernoulli);
  library.def("bernoulli.p(Tensor self, float p, " DT_GENERATOR " -> Tensor", &draws::bernoulli_p);
  library.def("bernoulli_.float(Tensor(a!) self, float p=0.5, " DT_GENERATOR " -> Tensor(a!)", &draws::bernoulli_in_place);
  library.def("uniform(Tensor self, float from=0, float to=1, " DT_GENERATOR " -> Tensor", &draws::uniform);
  library.def("uniform_(Tensor(a!) self, float from=0, float to=1, " DT_GENERATOR " -> Tensor(a!)", &draws::uniform_in_place);
  library.def("normal_functional(Tensor self, float mean=0, float std=1, " DT_GENERATOR " -> Tensor", &draws::normal);
  library.def("normal_(Tensor(a!) self, float mean=0, float std=1, " DT_GENERATOR " -> Tensor(a!)", &draws::normal_in_place);
  library.def("exponential_(Tensor(a!) self, float lambd=1, " DT_GENERATOR " -> Tensor(a!)", &draws::exponential_in_place);
  library.def("rand(int[] size, " DT_OPTIONS DT_OF_SAMPLE " -> Tensor", &draws::rand);
  library.def("randn(int[] size, " DT_OPTIONS DT_OF_SAMPLE " -> Tensor", &draws::randn);
  library.def("randperm(int n, " DT_OPTIONS DT_OF_SAMPLE " -> Tensor", &draws::randperm);
  library.def("rand_like(Tensor self, " DT_OPTIONS "MemoryFormat? memory_format=None, " DT_OF_SAMPLE " -> Tensor", &draws::rand_like);
  library.def("randn_like(Tensor self, " DT_OPTIONS "MemoryFormat? memory_format=None, " DT_OF_SAMPLE " -> Tensor", &draws::randn_like);
}

TORCH_LIBRARY_IMPL(dtrain, CPU, library) {
  library.impl("dropout_by", &dtrain::draws::dropout_by<dtrain::draws::run_on_cpu>);
  library.impl("draw", &dtrain::draws::draw<dtrain::draws::run_on_cpu>);
}

TORCH_LIBRARY_IMPL(dtrain, CUDA, library) {
  library.impl("dropout_by", &dtrain::draws::dropout_by<dtrain::draws::run_on_gpu>);
  library.impl("draw", &dtrain::draws::draw<dtrain::draws::run_on_gpu>);
}

TORCH_LIBRARY_IMPL(dtrain, Autograd, library) { library.impl("dropout_by", &dtrain::draws::dropout_with_gradient); }

extern "C" {

struct DtSamples {
  std::shared_ptr<const dtrain::Samples> before;
};

// Sets the samples of this thread's random numbers until dt_samples_leave, the last entered first; none without places.
int32_t dt_samples_enter(uint64_t key, const int64_t* places, size_t count, DtSamples** before, DtError* error) {
  return guard(error, [&] {
    std::shared_ptr<const dtrain::Samples> now;
    if (count > 0) now = std::make_shared<const dtrain::Samples>(dtrain::Samples{key, {places, places + count}});
    *before = new DtSamples{std::exchange(dtrain::samples_here(), std::move(now))};
  });
}

void dt_samples_leave(DtSamples* before) {
  dtrain::samples_here() = std::move(before->before);
  delete before;
}

// Sets the samples to those at `rows` of the present ones, if there are any.
int32_t dt_samples_select(const int64_t* rows, size_t count, DtSamples** before, DtError* error) {
  return guard(error, [&] {
    auto now = dtrain::samples_here();
    if (now != nullptr) {
      dtrain::Samples selected{now->key, {}};
      for (size_t index = 0; index < count; ++index) selected.places.push_back(now->places.at(static_cast<size_t>(rows[index])));
      now = count > 0 ? std::make_shared<const dtrain::Samples>(std::move(selected)) : nullptr;
    }
    *before = new DtSamples{std::exchange(dtrain::samples_here(), std::move(now))};
  });
}

int32_t dt_dropout(const void* x, double p, int64_t number, int64_t dim, void** out, DtError* error) {
  return guard(error, [&] { *out = new at::Tensor(dtrain::draws::dropout(dtrain::tensor(x), p, true, number, dim)); });
}

// One call of the generator, for the tests of its known answers.
void dt_philox(uint64_t key, uint64_t call, uint32_t place, uint32_t operation, uint32_t numbers[4]) {
  const auto found = dtrain::draws::philox(key, call, place, operation);
  std::copy_n(found.numbers, 4, numbers);
}

} // extern "C"
