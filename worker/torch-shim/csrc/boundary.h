// The boundary between C++ and Rust: every entry point runs its body inside `guard`, which converts each
// exception to a DtError. No exception reaches Rust.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

extern "C" {
// Keep in step with `ErrorKind` in src/error.rs.
enum DtErrorKind : int32_t {
  DT_OK = 0,
  DT_OUT_OF_MEMORY = 1,
  DT_TIMEOUT = 2,
  DT_NETWORK = 3,
  DT_STORE = 4,
  DT_INVALID_ARGUMENT = 5,
  DT_NOT_IMPLEMENTED = 6,
  DT_LIBRARY_MISSING = 7,
  DT_OTHER = 8,
  DT_DEVICE = 9,
  DT_DRIVER_MISSING = 10,
  DT_DRIVER_TOO_OLD = 11,
};

// The types below match those of src/ffi.rs and src/ffi/types.rs.

// Borrowed bytes that live during a call.
struct DtText {
  const char* data;
  size_t size;
  std::string string() const { return {data, size}; }
};

// Bytes for Rust, allocated with malloc.
struct DtBytes {
  char* data;
  size_t size;
  bool set(const void* from, size_t count) {
    data = static_cast<char*>(std::malloc(count + 1));
    if (data == nullptr) return false;
    if (count > 0) std::memcpy(data, from, count);
    size = count;
    return true;
  }
};

// Filled on failure.
struct DtError {
  int32_t kind;
  DtBytes message;
};

// Pointers to at::Tensors that belong to tch.
struct DtTensors {
  const void* const* data;
  size_t count;
  std::vector<at::Tensor> list() const {
    std::vector<at::Tensor> tensors;
    tensors.reserve(count);
    for (size_t index = 0; index < count; ++index) tensors.push_back(*static_cast<const at::Tensor*>(data[index]));
    return tensors;
  }
};
}

namespace dtrain {

// Returns the device of a number; -1 is the CPU.
inline at::Device device(int32_t index) {
  return index < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

inline at::Tensor tensor(const void* pointer) { return *static_cast<const at::Tensor*>(pointer); }

// A failure whose kind is known when it is thrown.
struct Failure : std::runtime_error {
  Failure(DtErrorKind kind, const std::string& message) : std::runtime_error(message), kind(kind) {}
  DtErrorKind kind;
};

// Finds a symbol by name in `library`, which dlopen has loaded.
template <typename Pointer>
Pointer find(const char* name, const char* library, DtErrorKind missing = DT_LIBRARY_MISSING) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) throw Failure(missing, std::string(library) + " is not loaded, or has no " + name);
  return reinterpret_cast<Pointer>(found);
}

inline bool mentions(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

inline int32_t fail(DtError* error, DtErrorKind kind, const char* message) {
  error->kind = kind;
  error->message.set(message, std::strlen(message));
  return kind;
}

template <typename... Types>
bool is_one_of(const c10::Error& e) {
  return (... || (dynamic_cast<const Types*>(&e) != nullptr));
}

inline DtErrorKind kind_of(const c10::Error& e) {
  if (is_one_of<c10::OutOfMemoryError>(e)) return DT_OUT_OF_MEMORY;
  if (is_one_of<c10::DistNetworkError>(e)) return DT_NETWORK;
  if (is_one_of<c10::DistStoreError>(e)) return DT_STORE;
  if (is_one_of<c10::NotImplementedError>(e)) return DT_NOT_IMPLEMENTED;
  if (is_one_of<c10::ValueError, c10::TypeError, c10::IndexError>(e)) return DT_INVALID_ARGUMENT;
  return DT_OTHER;
}

// For DT_NETWORK, DT_STORE and DT_OTHER, src/error.rs refines the kind by the message.
template <typename Body>
int32_t guard(DtError* error, Body&& body) noexcept {
  try {
    body();
    return DT_OK;
  } catch (const c10::Error& e) {
    return fail(error, kind_of(e), e.what_without_backtrace());
  } catch (const std::bad_alloc& e) {
    return fail(error, DT_OUT_OF_MEMORY, e.what());
  } catch (const Failure& e) {
    return fail(error, e.kind, e.what());
  } catch (const std::exception& e) {
    return fail(error, DT_OTHER, e.what());
  } catch (...) {
    return fail(error, DT_OTHER, "an exception of unknown type");
  }
}

} // namespace dtrain
