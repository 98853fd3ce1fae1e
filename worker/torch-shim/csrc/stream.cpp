// Streams and events of an accelerator through c10's device table, without CUDA's headers and libraries.
#include "boundary.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

using dtrain::guard;

namespace {

struct DtStream {
  int64_t id;
  int32_t device;
};

c10::impl::VirtualGuardImpl devices() { return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA); }

c10::Device gpu(int32_t index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

c10::Stream stream(DtStream s) { return c10::Stream(c10::Stream::UNSAFE, gpu(s.device), s.id); }

DtStream to_dt_stream(const c10::Stream& s) { return {s.id(), s.device_index()}; }

using EventHandle = c10::Event;

} // namespace

extern "C" {

int32_t dt_stream_current(int32_t device, DtStream* out, DtError* error) {
  return guard(error, [&] { *out = to_dt_stream(devices().getStream(gpu(device))); });
}

// Returns a stream of libtorch's pool of 32 per priority. It is never destroyed.
int32_t dt_stream_from_pool(int32_t device, bool high_priority, DtStream* out, DtError* error) {
  return guard(error, [&] { *out = to_dt_stream(devices().getStreamFromGlobalPool(gpu(device), high_priority)); });
}

int32_t dt_stream_exchange(DtStream s, DtStream* before, DtError* error) {
  return guard(error, [&] { *before = to_dt_stream(devices().exchangeStream(stream(s))); });
}

int32_t dt_stream_native(DtStream s, void** out, DtError* error) {
  return guard(error, [&] { *out = devices().getStreamNativeHandle(stream(s)); });
}

int32_t dt_stream_synchronize(DtStream s, DtError* error) {
  return guard(error, [&] {
    const c10::DeviceGuard on(gpu(s.device));
    devices().synchronizeStream(stream(s));
  });
}

int32_t dt_stream_record_tensor(DtStream s, const void* tensor, DtError* error) {
  return guard(error, [&] {
    devices().recordDataPtrOnStream(dtrain::tensor(tensor).storage().data_ptr(), stream(s));
  });
}

int32_t dt_event_new(bool timed, EventHandle** out, DtError* error) {
  return guard(error, [&] {
    *out = new EventHandle(c10::DeviceType::CUDA, timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  });
}

int32_t dt_event_elapsed(const EventHandle* from, const EventHandle* to, double* out, DtError* error) {
  return guard(error, [&] { *out = from->elapsedTime(*to); });
}

int32_t dt_event_record(EventHandle* event, DtStream s, DtError* error) {
  return guard(error, [&] {
    const c10::DeviceGuard on(gpu(s.device));
    event->record(stream(s));
  });
}

int32_t dt_event_block(const EventHandle* event, DtStream s, DtError* error) {
  return guard(error, [&] {
    const c10::DeviceGuard on(gpu(s.device));
    event->block(stream(s));
  });
}

int32_t dt_event_query(const EventHandle* event, bool* out, DtError* error) {
  return guard(error, [&] { *out = event->query(); });
}

int32_t dt_event_synchronize(const EventHandle* event, DtError* error) {
  return guard(error, [&] { event->synchronize(); });
}

void dt_event_free(EventHandle* event) { delete event; }

} // extern "C"
