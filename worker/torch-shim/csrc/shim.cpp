// The shim as one translation unit: libtorch's headers, which take most of the time, are read once. graph.cpp stays apart: it may
// include CUDA's headers, and where their inline functions are seen the compiler calls them, and with them what nothing here links.
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
