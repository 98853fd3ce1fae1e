// The boundary between C++ and Rust: every entry point runs its body inside `guard`, which turns whatever is thrown into a
// DtError. No exception crosses into Rust.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

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

// Filled on failure. `message` is malloc'ed, UTF-8 as far as libtorch's messages are, and freed by dt_string_free.
struct DtError {
  int32_t kind;
  char* message;
};
}

namespace dtrain {

// A failure whose kind is known where it is thrown.
struct Failure : std::runtime_error {
  Failure(DtErrorKind kind, const std::string& message) : std::runtime_error(message), kind(kind) {}
  DtErrorKind kind;
};

inline bool mentions(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

// c10d and Gloo throw several classes for a time-out, some of them plain runtime errors: their words are the only common mark.
inline bool is_timeout(const std::string& text) {
  return mentions(text, "timed out") || mentions(text, "Timed out") || mentions(text, "timeout") ||
      mentions(text, "Timeout");
}

inline bool is_network(const std::string& text) {
  return mentions(text, "Connection closed by peer") || mentions(text, "Connection reset") ||
      mentions(text, "Broken pipe") || mentions(text, "onnection refused") || mentions(text, "Connect timeout") ||
      mentions(text, "Failed to recv") || mentions(text, "Socket closed") || mentions(text, "unexpected pos");
}

// Allocators of the host report exhaustion as a plain c10::Error, and CUDA's libraries by the names of their statuses.
inline bool is_out_of_memory(const std::string& text) {
  return mentions(text, "out of memory") || mentions(text, "allocate memory") || mentions(text, "not enough memory") ||
      mentions(text, "CUBLAS_STATUS_ALLOC_FAILED") || mentions(text, "CUDNN_STATUS_ALLOC_FAILED") ||
      mentions(text, "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED") ||
      mentions(text, "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED");
}

inline bool is_device(const std::string& text) {
  return mentions(text, "CUDA error") || mentions(text, "CUDA driver error") || mentions(text, "CUBLAS_STATUS") ||
      mentions(text, "CUDNN_STATUS");
}

inline int32_t fail(DtError* error, DtErrorKind kind, const char* message) {
  if (error != nullptr) {
    error->kind = kind;
    error->message = ::strdup(message == nullptr ? "" : message);
  }
  return kind;
}

// What a GPU says of itself comes first: a kernel that ran too long "timed out", and no peer is to blame.
inline DtErrorKind kind_of(const std::string& text, DtErrorKind otherwise) {
  if (is_out_of_memory(text)) return DT_OUT_OF_MEMORY;
  if (is_device(text)) return DT_DEVICE;
  if (is_timeout(text)) return DT_TIMEOUT;
  if (is_network(text)) return DT_NETWORK;
  return otherwise;
}

template <typename Body>
int32_t guard(DtError* error, Body&& body) noexcept {
  try {
    body();
    return DT_OK;
  } catch (const c10::OutOfMemoryError& e) {
    return fail(error, DT_OUT_OF_MEMORY, e.what_without_backtrace());
  } catch (const std::bad_alloc& e) {
    return fail(error, DT_OUT_OF_MEMORY, e.what());
  } catch (const c10::DistNetworkError& e) {
    return fail(error, kind_of(e.msg(), DT_NETWORK), e.what_without_backtrace());
  } catch (const c10::DistStoreError& e) {
    return fail(error, kind_of(e.msg(), DT_STORE), e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    return fail(error, DT_NOT_IMPLEMENTED, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    return fail(error, DT_INVALID_ARGUMENT, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    return fail(error, DT_INVALID_ARGUMENT, e.what_without_backtrace());
  } catch (const c10::IndexError& e) {
    return fail(error, DT_INVALID_ARGUMENT, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    const auto text = std::string(e.what_without_backtrace());
    return fail(error, kind_of(text, DT_OTHER), text.c_str());
  } catch (const Failure& e) {
    return fail(error, e.kind, e.what());
  } catch (const std::exception& e) {
    return fail(error, kind_of(e.what(), DT_OTHER), e.what());
  } catch (...) {
    return fail(error, DT_OTHER, "an exception of unknown type");
  }
}

} // namespace dtrain
