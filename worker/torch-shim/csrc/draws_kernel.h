// The arithmetic of random numbers by sample, for the CPU and, as text, for a GPU's compiler (NVRTC). It includes nothing.
//
// Four numbers of 32 bits come from one call of Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3"). The key is that of the step; the counter is a number of the call, the sample's place in the step, and the
// number of the operation in the network. The elements of a sample, in row-major order, form blocks of 1024: element
// e has the number e / 256 % 4 of call e / 1024 * 256 + e % 256, so neighbours need the same number of neighbouring calls.
#pragma once

// Defines code, and its text.
#define DT_SHARED(...) \
  __VA_ARGS__          \
  constexpr const char* kSharedSource = #__VA_ARGS__;

DT_SHARED(
struct Philox { uint32_t numbers[4]; };

// What one operation draws. The shape of its tensor is outer x samples x inner; a sample has outer x inner elements.
struct Job {
  uint64_t key;
  // The places of the samples; without them, the places from `first` on.
  const int64_t* places;
  int64_t first;
  int64_t samples;
  int64_t outer;
  int64_t inner;
  // Dropout: the factor of kept elements.
  double scale;
  // Numbers below it: dropout drops the element, a Bernoulli draw is 0.
  uint32_t threshold;
  uint32_t operation;
  int32_t kind;
};

enum Kind { kDropout = 0, kUniform = 1, kBernoulli = 2, kNormal = 3, kExponential = 4 };
enum Block { kCalls = 256, kElements = 1024 };

// The operation of the second numbers of normal draws.
enum Stream { kSecond = 1 << 30 };

DT_DEVICE uint32_t place_of(const Job& job, int64_t sample) {
  return (uint32_t)(job.places != 0 ? job.places[sample] : job.first + sample);
}

DT_DEVICE Philox philox(uint64_t key, uint64_t call, uint32_t place, uint32_t operation) {
  uint32_t a = (uint32_t)call;
  uint32_t b = (uint32_t)(call >> 32);
  uint32_t c = place;
  uint32_t d = operation;
  uint32_t low = (uint32_t)key;
  uint32_t high = (uint32_t)(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = (uint64_t)0xD2511F53u * a;
    const uint64_t second = (uint64_t)0xCD9E8D57u * c;
    a = (uint32_t)(second >> 32) ^ b ^ low;
    b = (uint32_t)second;
    c = (uint32_t)(first >> 32) ^ d ^ high;
    d = (uint32_t)first;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return Philox{{a, b, c, d}};
}

// A number of [0, 1) with the `precision` bits of a significand, so that it does not round to 1.
DT_DEVICE float uniform_of(uint32_t bits, int precision) {
  return (float)(bits >> (32 - precision)) * (1.0f / (float)(1u << precision));
}

// Above 0, whatever is drawn.
DT_DEVICE float exponential_of(uint32_t bits) { return -logf(((float)(bits >> 9) + 0.5f) * (1.0f / 8388608.0f)); }

// Box and Muller 1958.
DT_DEVICE float normal_of(uint32_t bits, uint32_t second) {
  const float radius = sqrtf(-2.0f * logf(((float)(bits >> 8) + 1.0f) * (1.0f / 16777216.0f)));
  return radius * cosf(6.2831853f * uniform_of(second, 24));
}
)

#undef DT_SHARED
