// ProcessGroupGloo.hpp calls setTimeout inline, but the shim never does, so the symbol is not needed. The
// group holds contexts behind shared pointers, so their layout does not matter.
#pragma once
#include <chrono>
namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
