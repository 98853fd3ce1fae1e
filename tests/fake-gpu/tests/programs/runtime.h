// The functions that the programs here use, as CUDA's, NCCL's and NVML's public documentation declares them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned x, y, z; } dim3;
typedef void *stream_t, *event_t, *graph_t, *exec_t, *comm_t;
typedef struct { char internal[128]; } unique_id;

int cudaGetDeviceCount(int *);
int cudaSetDevice(int);
int cudaDeviceSynchronize(void);
int cudaDeviceEnablePeerAccess(int, unsigned);
int cudaGetLastError(void);
const char *cudaGetErrorName(int);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMallocAsync(void **, size_t, stream_t);
int cudaFreeAsync(void *, stream_t);
int cudaHostAlloc(void **, size_t, unsigned);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, stream_t);
int cudaMemset(void *, int, size_t);
int cudaMemsetAsync(void *, int, size_t, stream_t);
int cudaStreamCreateWithFlags(stream_t *, unsigned);
int cudaStreamSynchronize(stream_t);
int cudaStreamWaitEvent(stream_t, event_t, unsigned);
int cudaStreamBeginCapture(stream_t, int);
int cudaStreamEndCapture(stream_t, graph_t *);
int cudaEventCreate(event_t *);
int cudaEventRecord(event_t, stream_t);
int cudaEventSynchronize(event_t);
int cudaGraphInstantiateWithFlags(exec_t *, graph_t, unsigned long long);
int cudaGraphLaunch(exec_t, stream_t);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, stream_t);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
int cusparseCreate(void **);
int ncclGetUniqueId(unique_id *);
int ncclCommInitRank(comm_t *, int, unique_id, int);
int ncclCommGetAsyncError(comm_t, int *);
int ncclCommAbort(comm_t);
const char *ncclGetLastError(comm_t);
int ncclAllReduce(const void *, void *, size_t, int, int, comm_t, stream_t);
int ncclBroadcast(const void *, void *, size_t, int, int, comm_t, stream_t);
int nvmlInit_v2(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, unsigned long long[3]);
int nvmlDeviceGetMaxMigDeviceCount(void *, unsigned *);
int nvmlDeviceGetMigDeviceHandleByIndex(void *, unsigned, void **);
int nvmlDeviceGetUUID(void *, char *, unsigned);

// Ends the program if a call fails that must not.
#define OK(call) do { int code_ = (call); if (code_) { printf("%s: %d %s\n", #call, code_, cudaGetErrorName(code_)); exit(1); } } while (0)
// Prints the code of a call whose code a test reads.
#define SHOW(name, call) do { int code_ = (call); printf("%s=%d\n", name, code_); fflush(stdout); } while (0)

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, NON_BLOCKING = 1, FLOAT32 = 7, SUM = 0 };

// A kernel `add(float*, float const*)`, as a compiler registers it.
static char add_kernel;
static void add(stream_t stream, float *to, const float *from) {
  void *arguments[] = {&to, &from};
  dim3 one = {1, 1, 1};
  OK(cudaLaunchKernel(&add_kernel, one, one, arguments, 0, stream));
}
static void register_kernels(void) {
  __cudaRegisterFunction(__cudaRegisterFatBinary(0), &add_kernel, 0, "_Z3addPfPKf", -1, 0, 0, 0, 0, 0);
}
