// c10d's Gloo process group. Every operation is asynchronous and returns a work handle.
#include "boundary.h"
#include "handles.h"
#include "tensors.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>

using dtrain::guard;
using dtrain::StoreHandle;
using dtrain::tensor;

namespace {

struct GlooHandle {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

struct WorkHandle {
  c10::intrusive_ptr<c10d::Work> work;
};

c10d::ReduceOp reduce_op(int32_t op) {
  switch (op) {
    case 0: return c10d::ReduceOp(c10d::ReduceOp::SUM);
    case 1: return c10d::ReduceOp(c10d::ReduceOp::MIN);
    case 2: return c10d::ReduceOp(c10d::ReduceOp::MAX);
    default: TORCH_CHECK_VALUE(false, "unknown reduce operation ", op);
  }
}

WorkHandle* hold(c10::intrusive_ptr<c10d::Work> work) { return new WorkHandle{std::move(work)}; }

} // namespace

extern "C" {

// `hostname` or `interface` may be null; both null lets Gloo resolve this machine's name.
int32_t dt_gloo_new(StoreHandle* store, int32_t rank, int32_t size, uint64_t timeout_ms, const char* hostname,
                    const char* interface, GlooHandle** out, DtError* error) {
  return guard(error, [&] {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(timeout_ms));
    if (interface != nullptr)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    else if (hostname != nullptr)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(hostname));
    else
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    *out = new GlooHandle{c10::make_intrusive<c10d::ProcessGroupGloo>(store->store, rank, size, options)};
  });
}

int32_t dt_gloo_all_reduce(GlooHandle* group, const void* in_out, int32_t op, uint64_t timeout_ms, WorkHandle** out,
                           DtError* error) {
  return guard(error, [&] {
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(op);
    options.timeout = std::chrono::milliseconds(timeout_ms);
    std::vector<at::Tensor> tensors{tensor(in_out)};
    *out = hold(group->group->allreduce(tensors, options));
  });
}

int32_t dt_gloo_broadcast(GlooHandle* group, const void* in_out, int32_t root, uint64_t timeout_ms, WorkHandle** out,
                          DtError* error) {
  return guard(error, [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.rootTensor = 0;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    std::vector<at::Tensor> tensors{tensor(in_out)};
    *out = hold(group->group->broadcast(tensors, options));
  });
}

// `outputs` points to `size` tensor pointers of the input's shape, one per rank.
int32_t dt_gloo_all_gather(GlooHandle* group, const void* const* outputs, size_t size, const void* input,
                           uint64_t timeout_ms, WorkHandle** out, DtError* error) {
  return guard(error, [&] {
    c10d::AllgatherOptions options;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    std::vector<at::Tensor> gathered;
    for (size_t i = 0; i < size; ++i) gathered.push_back(tensor(outputs[i]));
    std::vector<std::vector<at::Tensor>> output_lists{gathered};
    std::vector<at::Tensor> inputs{tensor(input)};
    *out = hold(group->group->allgather(output_lists, inputs, options));
  });
}

int32_t dt_gloo_reduce_scatter(GlooHandle* group, const void* output, const void* input, int32_t op,
                               uint64_t timeout_ms, WorkHandle** out, DtError* error) {
  return guard(error, [&] {
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(op);
    options.timeout = std::chrono::milliseconds(timeout_ms);
    at::Tensor to = tensor(output);
    at::Tensor from = tensor(input);
    *out = hold(group->group->_reduce_scatter_base(to, from, options));
  });
}

int32_t dt_gloo_barrier(GlooHandle* group, uint64_t timeout_ms, WorkHandle** out, DtError* error) {
  return guard(error, [&] {
    c10d::BarrierOptions options;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    *out = hold(group->group->barrier(options));
  });
}

// timeout_ms 0 waits as long as the operation's own time-out allows.
int32_t dt_work_wait(WorkHandle* work, uint64_t timeout_ms, DtError* error) {
  return guard(error, [&] { work->work->wait(std::chrono::milliseconds(timeout_ms)); });
}

int32_t dt_work_is_completed(WorkHandle* work, bool* out, DtError* error) {
  return guard(error, [&] { *out = work->work->isCompleted(); });
}

void dt_work_free(WorkHandle* work) { delete work; }

// Joins the group's threads: call only when no operation is in flight.
int32_t dt_gloo_free(GlooHandle* group, DtError* error) {
  return guard(error, [&] { delete group; });
}

} // extern "C"
