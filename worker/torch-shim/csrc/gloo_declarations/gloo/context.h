// The one method of gloo::Context that ProcessGroupGloo.hpp calls inline (setTimeout) is never called by the shim, so its
// symbol is never needed; the group holds contexts behind shared pointers, so their layout does not matter here.
#pragma once
#include <chrono>
namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};
} // namespace gloo
