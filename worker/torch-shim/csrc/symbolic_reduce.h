// Scratch memory of a GPU's kernels that split long sums.
#pragma once

#include "symbolic_rule.h"

#include <ATen/TensorIterator.h>
#include <ATen/native/ReduceOpsUtils.h>

#include <algorithm>

namespace {

int64_t divided_up(int64_t size, int64_t by) { return (size + by - 1) / by; }

// Returns the largest power of two up to `size`, and at most `most`, which is one.
int64_t power_of_two(int64_t size, int64_t most) {
  int64_t power = 1;
  while (power < most && 2 * power <= size) power *= 2;
  return power;
}

// Returns how many outputs a thread computes at once: as many as divide their number, the strides and the address.
int64_t vector_width(at::TensorIteratorBase& iter) {
  const auto bytes = static_cast<int64_t>(iter.element_size(1));
  int64_t width = 4;
  const auto divide = [&](int64_t number) {
    while (number % width != 0) width /= 2;
  };
  divide(static_cast<int64_t>(reinterpret_cast<uintptr_t>(iter.data_ptr(1))) / bytes);
  const auto output = iter.num_reduce_dims();
  divide(iter.shape()[output]);
  for (int dim = 0; dim < iter.ndim(); ++dim)
    if (dim != output) divide(iter.strides(1)[dim] / bytes);
  return width;
}

// Allocates the partial results in global memory of one kernel (setReduceConfig of ATen/native/cuda/Reduce.cuh in libtorch 2.11): if
// each thread has 256 values or more, several blocks of threads share an output.
void allocate_partial_results(at::TensorIteratorBase& iter, int64_t result_bytes, const at::TensorOptions& options) {
  constexpr int64_t kThreads = 512, kWarp = 32, kFewest = 16, kMost = 256;
  const int64_t outputs = iter.num_output_elements(), inputs = iter.numel() / outputs;
  const auto strides = iter.strides(1);
  const int reduced = iter.num_reduce_dims();
  const bool along_input = iter.ndim() == 0 || reduced == iter.ndim() || strides[0] < strides[reduced];
  const bool adjacent = iter.ndim() == 0 || strides[along_input ? 0 : reduced] == static_cast<int64_t>(iter.element_size(1));
  int64_t across = along_input ? inputs : outputs, vector = 1;
  if (adjacent && along_input && inputs >= 128 && reduced == 1) across /= 4;
  if (adjacent && !along_input) {
    vector = vector_width(iter);
    across /= vector;
  }
  const int64_t threads = kThreads / vector;
  const int64_t most_width = power_of_two(across, threads), most_height = power_of_two(along_input ? outputs : inputs, threads);
  const int64_t height = std::min(most_height, threads / std::min(most_width, kWarp));
  const int64_t width = std::min(most_width, threads / height);
  // The values and the outputs that the threads of a block share.
  int64_t values = along_input ? width : 1, results = along_input ? 1 : width;
  const bool shares_values = divided_up(inputs, values) >= std::min(height * 16, kMost);
  (shares_values ? values : results) *= height;
  const int64_t per_thread = divided_up(inputs, values), grid = divided_up(outputs / vector, results);
  const int64_t blocks = simulated_gpu.multiprocessors * (simulated_gpu.threads_per_multiprocessor / (width * height));
  if (!shares_values || per_thread < kMost || grid > blocks) return;
  const int64_t parts =
      std::max(std::min(divided_up(blocks, grid), divided_up(per_thread, kFewest)), divided_up(per_thread, kMost));
  if (parts <= 1) return;
  const auto bytes = options.dtype(at::kByte);
  const Tensor partial = at::empty({result_bytes * outputs * parts * (along_input ? 1 : width * vector)}, bytes);
  allocate_temporary({grid * static_cast<int64_t>(sizeof(int32_t))}, bytes);
}

// Allocates what a GPU takes to reduce `x` over `dims`, or over all if `dims` is empty, to `y`.
void allocate_reduction(const Tensor& x, const Tensor& y, at::OptionalIntArrayRef dims) {
  if (!simulates_gpu() || x.dim() == 0 || x.numel() == 0) return;
  const auto mask = at::native::make_dim_mask(dims, x.dim());
  auto view = at::native::review_reduce_result(y, static_cast<int>(x.dim()), mask, y.dim() == x.dim());
  auto iter = at::TensorIterator::reduce_op(view, x);
  // Half precision is summed in float32.
  const auto bytes = std::max<int64_t>(4, static_cast<int64_t>(x.element_size()));
  if (iter.can_use_32bit_indexing()) return allocate_partial_results(iter, bytes, x.options());
  for (auto& part : iter.with_32bit_indexing()) allocate_partial_results(part, bytes, x.options());
}

// Allocates the parts in which a GPU sums the gradients of a layer norm's parameters: for many more rows than columns
// (LaunchGammaBetaBackwardCUDAKernel of ATen/native/cuda/layer_norm_kernel.cu).
void allocate_layer_norm_sums(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  constexpr int64_t kWarp = 32, kRows = 32, kMostBlocks = 32 << 10;
  if (rows <= 64 << 10 || columns / kWarp >= simulated_gpu.multiprocessors / 2) return;
  const auto parts = std::min(kMostBlocks / divided_up(columns, kWarp), divided_up(rows, kRows));
  allocate_temporary({2, parts, columns}, options);
}

// Allocates what a GPU takes to add the gradients of equal words: it sorts them (embedding_dense_backward_cuda and
// embedding_backward_cuda_kernel of ATen/native/cuda). The sort's own scratch is a copy of keys and values.
void allocate_word_sums(const Tensor& words, const Tensor& grad, int64_t vocabulary) {
  constexpr int64_t kUnsorted = 3072, kRows = 10, kWarp = 32;
  const int64_t count = words.numel();
  if (!simulates_gpu() || count <= kUnsorted) return;
  const auto indices = words.options().dtype(at::kLong);
  const Tensor sorted = at::empty({count}, indices), order = at::empty({count}, indices);
  {
    const Tensor range = at::empty({count}, indices);
    allocate_temporary({2 * count}, indices);
  }
  const int64_t segments = std::min(count, vocabulary), parts = count / kRows + segments;
  const Tensor offsets = at::empty({count}, indices), of_segments = at::empty({2, segments}, indices);
  const Tensor of_parts = at::empty({parts}, indices);
  allocate_temporary({parts, rounded(grad.size(-1), kWarp)}, grad.options().dtype(at::kFloat));
}

} // namespace
