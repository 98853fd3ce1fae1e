// CUDA's headers include this header of its compiler. It defines the words that they use, for host compilers.
#pragma once

#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __device__
#define __global__
#define __host__
#define CUDARTAPI
#define CUDARTAPI_CDECL
