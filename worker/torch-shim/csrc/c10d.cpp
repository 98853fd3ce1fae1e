// c10d: TCPStore, the key-value store of the rendezvous, and the asynchronous Gloo process group.
#include "boundary.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>

using dtrain::guard;

namespace {

using Milliseconds = std::chrono::milliseconds;

using StoreHandle = c10::intrusive_ptr<c10d::Store>;
using GlooHandle = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkHandle = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp reduce_op(int32_t op) {
  // In the order of `Reduction` in dtrain-shared-memory.
  constexpr c10d::ReduceOp::RedOpType kOps[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
  return kOps[op];
}

} // namespace

extern "C" {

// `listener` is a bound socket that the server takes, or -1 to listen on all addresses.
int32_t dt_tcp_store_new(DtText host, uint16_t port, bool is_server, int32_t listener, uint64_t timeout_ms, StoreHandle** out,
                         DtError* error) {
  return guard(error, [&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    if (listener >= 0) options.masterListenFd = listener;
    // The trainer waits for peers itself: a store that waits would hide which rank is missing.
    options.waitWorkers = false;
    options.timeout = Milliseconds(timeout_ms);
    *out = new StoreHandle{c10::make_intrusive<c10d::TCPStore>(host.string(), options)};
  });
}

int32_t dt_store_prefix(StoreHandle* store, DtText prefix, StoreHandle** out, DtError* error) {
  return guard(error, [&] { *out = new StoreHandle{c10::make_intrusive<c10d::PrefixStore>(prefix.string(), *store)}; });
}

int32_t dt_store_set(StoreHandle* store, DtText key, DtText value, DtError* error) {
  return guard(error, [&] {
    (*store)->set(key.string(), std::vector<uint8_t>(value.data, value.data + value.size));
  });
}

int32_t dt_store_get(StoreHandle* store, DtText key, DtBytes* out, DtError* error) {
  return guard(error, [&] {
    const auto value = (*store)->get(key.string());
    if (!out->set(value.data(), value.size())) throw std::bad_alloc();
  });
}

int32_t dt_store_add(StoreHandle* store, DtText key, int64_t amount, int64_t* out, DtError* error) {
  return guard(error, [&] { *out = (*store)->add(key.string(), amount); });
}

int32_t dt_store_delete(StoreHandle* store, DtText key, DtError* error) {
  return guard(error, [&] { (*store)->deleteKey(key.string()); });
}

// The destructor of a server joins its thread; the store handles the exceptions of that thread.
void dt_store_free(StoreHandle* store) { delete store; }

// `name` is an interface or a host. If it is empty, Gloo resolves this machine's host name.
int32_t dt_gloo_new(StoreHandle* store, int32_t rank, int32_t size, uint64_t timeout_ms, bool by_interface, DtText name,
                    GlooHandle** out, DtError* error) {
  return guard(error, [&] {
    using Group = c10d::ProcessGroupGloo;
    auto options = Group::Options::create(Milliseconds(timeout_ms));
    options->devices.push_back(by_interface         ? Group::createDeviceForInterface(name.string())
                                   : name.size > 0 ? Group::createDeviceForHostname(name.string())
                                                   : Group::createDefaultDevice());
    *out = new GlooHandle{c10::make_intrusive<Group>(*store, rank, size, options)};
  });
}

// `operation` is an `Operation` of src/gloo.rs; `value` is its reduction or root.
int32_t dt_gloo_start(GlooHandle* group, int32_t operation, int32_t value, DtTensors outputs, DtTensors inputs, uint64_t timeout_ms,
                      WorkHandle** out, DtError* error) {
  return guard(error, [&] {
    auto to = outputs.list(), from = inputs.list();
    const auto with_timeout = [&](auto options) {
      options.timeout = Milliseconds(timeout_ms);
      return options;
    };
    const auto start = [&]() -> c10::intrusive_ptr<c10d::Work> {
      switch (operation) {
        case 0: {
          auto options = with_timeout(c10d::AllreduceOptions());
          options.reduceOp = reduce_op(value);
          return (*group)->allreduce(to, options);
        }
        case 1: {
          auto options = with_timeout(c10d::BroadcastOptions());
          options.rootRank = value;
          options.rootTensor = 0;
          return (*group)->broadcast(to, options);
        }
        case 2: {
          std::vector<std::vector<at::Tensor>> lists{to};
          return (*group)->allgather(lists, from, with_timeout(c10d::AllgatherOptions()));
        }
        case 3: {
          auto options = with_timeout(c10d::ReduceScatterOptions());
          options.reduceOp = reduce_op(value);
          return (*group)->_reduce_scatter_base(to[0], from[0], options);
        }
        case 5: return (*group)->send(to, value, 0);
        case 6: return (*group)->recv(to, value, 0);
        default: return (*group)->barrier(with_timeout(c10d::BarrierOptions()));
      }
    };
    *out = new WorkHandle{start()};
  });
}

// Joins the group's threads: call it only when no operation is in flight.
void dt_gloo_free(GlooHandle* group) { delete group; }

int32_t dt_work_wait(WorkHandle* work, DtError* error) {
  return guard(error, [&] { (*work)->wait(); });
}

void dt_work_free(WorkHandle* work) { delete work; }

} // extern "C"
