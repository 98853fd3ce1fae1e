// The shim as one translation unit, so that libtorch's headers, which take most of the compile time, are read
// once. graph.cpp is separate because it may include CUDA's headers: their inline functions would call
// symbols that are not linked.
#include "blob.cpp"
#include "c10d.cpp"
#include "context.cpp"
#include "cross_entropy.cpp"
#include "hooks.cpp"
#include "jit.cpp"
#include "memory.cpp"
#include "recompute.cpp"
#include "stream.cpp"
#include "symbolic.cpp"
#include "tensor.cpp"
