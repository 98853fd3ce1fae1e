// What the opaque pointers on the Rust side point to.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dtrain {

struct StoreHandle {
  c10::intrusive_ptr<c10d::Store> store;
  uint16_t port;
};

} // namespace dtrain
