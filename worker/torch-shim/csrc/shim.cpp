// The shim as one translation unit: libtorch's headers, the longest to compile, are read once. graph.cpp is
// separate: inline functions of CUDA's headers, which it may include, would call symbols that are not linked; and
// program.cpp, which compiles beside this file.
#include "blob.cpp"
#include "c10d.cpp"
#include "context.cpp"
#include "cross_entropy.cpp"
#include "draws.cpp"
#include "frozen.cpp"
#include "hooks.cpp"
#include "memory.cpp"
#include "profile.cpp"
#include "recompute.cpp"
#include "stream.cpp"
#include "symbolic.cpp"
#include "tensor.cpp"
#include "terminate.cpp"
