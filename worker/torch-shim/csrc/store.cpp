// c10d's TCPStore: the key-value store by which ranks find each other.
#include "boundary.h"
#include "handles.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>

using dtrain::guard;
using dtrain::StoreHandle;

extern "C" {

int32_t dt_tcp_store_new(const char* host, uint16_t port, bool is_server, uint64_t timeout_ms, StoreHandle** out,
                         DtError* error) {
  return guard(error, [&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    // The trainer waits for its peers where it needs them; a store that waits for a number of clients would hide who is missing.
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
    const uint16_t bound = store->getPort();
    *out = new StoreHandle{store, bound};
  });
}

int32_t dt_store_prefix(StoreHandle* store, const char* prefix, StoreHandle** out, DtError* error) {
  return guard(error, [&] {
    *out = new StoreHandle{c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), store->store), store->port};
  });
}

uint16_t dt_store_port(const StoreHandle* store) { return store->port; }

int32_t dt_store_set_timeout(StoreHandle* store, uint64_t timeout_ms, DtError* error) {
  return guard(error, [&] { store->store->setTimeout(std::chrono::milliseconds(timeout_ms)); });
}

int32_t dt_store_set(StoreHandle* store, const char* key, const uint8_t* value, size_t length, DtError* error) {
  return guard(error, [&] { store->store->set(key, std::vector<uint8_t>(value, value + length)); });
}

// Waits for the key up to the store's time-out. *out is malloc'ed and freed by dt_bytes_free.
int32_t dt_store_get(StoreHandle* store, const char* key, uint8_t** out, size_t* length, DtError* error) {
  return guard(error, [&] {
    const auto value = store->store->get(key);
    auto* bytes = static_cast<uint8_t*>(std::malloc(value.size() + 1));
    if (bytes == nullptr) throw std::bad_alloc();
    if (!value.empty()) std::memcpy(bytes, value.data(), value.size());
    *out = bytes;
    *length = value.size();
  });
}

int32_t dt_store_add(StoreHandle* store, const char* key, int64_t amount, int64_t* out, DtError* error) {
  return guard(error, [&] { *out = store->store->add(key, amount); });
}

int32_t dt_store_wait(StoreHandle* store, const char* key, uint64_t timeout_ms, DtError* error) {
  return guard(error, [&] { store->store->wait({std::string(key)}, std::chrono::milliseconds(timeout_ms)); });
}

int32_t dt_store_delete(StoreHandle* store, const char* key, bool* out, DtError* error) {
  return guard(error, [&] { *out = store->store->deleteKey(key); });
}

// A server's destructor joins its thread, which cannot throw past the store's own handling.
void dt_store_free(StoreHandle* store) { delete store; }

void dt_string_free(char* text) { std::free(text); }

void dt_bytes_free(uint8_t* bytes) { std::free(bytes); }

} // extern "C"
