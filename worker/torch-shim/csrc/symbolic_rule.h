// Building blocks of the rules for symbolic tensors: see symbolic.cpp.
#pragma once

#include "memory.h"

#include <ATen/Functions.h>
#include <ATen/core/stack.h>
#include <c10/util/accumulate.h>

#include <unordered_map>
#include <unordered_set>

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace {

// Floating-point operations of products, convolutions and attention on this thread since the last read.
thread_local double flops = 0.0;

int64_t product(at::IntArrayRef sizes) { return c10::multiply_integers(sizes); }

// The arguments of an operation, at the top of the stack.
struct Call {
  Stack* stack;
  size_t count;

  const IValue& operator[](size_t index) const { return (*stack)[stack->size() - count + index]; }
  Tensor tensor(size_t index) const { return (*this)[index].toTensor(); }
  c10::DimVector sizes(size_t index) const { return (*this)[index].toDimVector(); }
  // Returns the options of an optional tensor, or those of `otherwise`.
  at::TensorOptions options(size_t index, const Tensor& otherwise) const {
    const auto given = (*this)[index].toOptional<Tensor>();
    return given.has_value() && given->defined() ? given->options() : otherwise.options();
  }
};

using Results = std::vector<IValue>;
using Rule = Results (*)(const Call&);

Tensor empty_as(at::IntArrayRef sizes, const Tensor& like) { return at::empty(sizes, like.options()); }

// Allocates and frees a kernel's temporary memory.
void allocate_temporary(at::IntArrayRef sizes, const at::TensorOptions& options) { (void)at::empty(sizes, options); }

// A simulated GPU: `SimulatedGpu` of src/symbolic.rs.
struct DtGpu {
  // The widest heads for which it prefers cuDNN's attention; 0: none.
  int32_t cudnn_attention_width;
  int32_t multiprocessors;
  int32_t threads_per_multiprocessor;
  // Whether its attention kernels take bfloat16, and flash attention runs on it: since compute capability 8.0.
  bool has_bf16_attention;
};

thread_local DtGpu simulated_gpu{};

// The threads of a step that used cuBLAS since the last read, and those whose products with a bias used cuBLASLt: 1 for forward,
// 2 for backward.
thread_local uint32_t blas_threads = 0, lt_threads = 0;

bool simulates_gpu() { return dtrain::symbolic_here() == dtrain::Symbolic::kGpu; }

bool is_channels_last(const Tensor& x) {
  return x.dim() == 4 && x.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

Tensor empty_in(at::IntArrayRef sizes, const Tensor& like, bool channels_last) {
  const auto options = like.options();
  return channels_last ? at::empty(sizes, options.memory_format(at::MemoryFormat::ChannelsLast)) : at::empty(sizes, options);
}

int64_t rounded(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

bool is_half(const Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

} // namespace
