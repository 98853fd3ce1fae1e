// Programs with a planted bug: `planted NAME bug`. `planted NAME right` is the same program without it.
#include "runtime.h"

static int bug;
enum { SIZE = 1 << 20 };

static stream_t new_stream(void) {
  stream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
  return stream;
}
static void *new_memory(void) {
  void *memory;
  OK(cudaMalloc(&memory, SIZE));
  return memory;
}
static void order(stream_t first, stream_t second) {
  event_t event;
  OK(cudaEventCreate(&event));
  OK(cudaEventRecord(event, first));
  OK(cudaStreamWaitEvent(second, event, 0));
}

static void missing_wait(void) {
  stream_t copies = new_stream(), kernels = new_stream();
  float *input = new_memory(), *output = new_memory();
  void *pinned;
  OK(cudaHostAlloc(&pinned, SIZE, 0));
  OK(cudaMemcpyAsync(input, pinned, SIZE, HOST_TO_DEVICE, copies));
  if (!bug) order(copies, kernels);
  add(kernels, output, input);
  OK(cudaDeviceSynchronize());
}
static void freed_on_another_stream(void) {
  stream_t kernels = new_stream(), frees = new_stream();
  float *memory, *other = new_memory();
  OK(cudaMallocAsync((void **)&memory, SIZE, kernels));
  add(kernels, memory, other);
  if (!bug) order(kernels, frees);
  OK(cudaFreeAsync(memory, frees));
}
static void changed_too_early(void) {
  stream_t stream = new_stream();
  float *device = new_memory();
  char *pinned;
  OK(cudaHostAlloc((void **)&pinned, SIZE, 0));
  add(stream, device, device);  // the copy waits for it
  OK(cudaMemcpyAsync(device, pinned, SIZE, HOST_TO_DEVICE, stream));
  if (!bug) OK(cudaStreamSynchronize(stream));
  pinned[5] = 1;
  OK(cudaDeviceSynchronize());
}
static void read_too_early(void) {
  stream_t stream = new_stream();
  unsigned char *device = new_memory(), *pinned;
  OK(cudaHostAlloc((void **)&pinned, SIZE, 0));
  OK(cudaMemset(device, 7, SIZE));
  add(stream, (float *)device, (float *)device);
  OK(cudaMemcpyAsync(pinned, device, SIZE, DEVICE_TO_HOST, stream));
  if (!bug) OK(cudaStreamSynchronize(stream));
  printf("read=%d\n", pinned[0]);
  OK(cudaDeviceSynchronize());
}
static void host_wait_in_a_capture(void) {
  stream_t stream = new_stream();
  float *memory = new_memory();
  graph_t graph;
  OK(cudaStreamBeginCapture(stream, 0));
  add(stream, memory, memory);
  if (bug) SHOW("wait", cudaStreamSynchronize(stream));
  SHOW("end", cudaStreamEndCapture(stream, &graph));
}
static void context_on_gpu_0(void) {
  int rank = atoi(getenv("RANK"));
  void *memory;
  if (bug) OK(cudaFree(0));  // before the device is chosen
  OK(cudaSetDevice(rank));
  OK(cudaMalloc(&memory, SIZE));
}
static void leak(void) {
  stream_t stream = new_stream();
  for (int step = 0; step < 6; ++step) {
    void *memory = new_memory();
    OK(cudaMemsetAsync(memory, 0, SIZE, stream));
    OK(cudaStreamSynchronize(stream));
    if (!bug) OK(cudaFree(memory));
  }
}
static void wrong_device(void) {
  float *here, *there;
  OK(cudaSetDevice(1));
  OK(cudaMalloc((void **)&there, SIZE));
  if (!bug) {
    here = there;
  } else {
    OK(cudaSetDevice(0));
    OK(cudaMalloc((void **)&here, SIZE));
  }
  add(new_stream(), here, there);
  SHOW("after", cudaDeviceSynchronize());
}
static void unrecorded_event(void) {
  stream_t first = new_stream(), second = new_stream();
  event_t event;
  OK(cudaEventCreate(&event));
  if (bug) OK(cudaStreamWaitEvent(second, event, 0));
  OK(cudaEventRecord(event, first));
  if (!bug) OK(cudaStreamWaitEvent(second, event, 0));
}
static void stale_pointer(void) {
  stream_t stream = new_stream();
  float *memory = new_memory(), *other = new_memory();
  graph_t graph;
  exec_t exec;
  OK(cudaStreamBeginCapture(stream, 0));
  add(stream, memory, other);
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, stream));
  if (bug) OK(cudaFree(memory));
  OK(cudaGraphLaunch(exec, stream));
  SHOW("after", cudaDeviceSynchronize());
}
static void on_the_cpu(void) {
  int count;
  OK(cudaGetDeviceCount(&count));
  if (!bug) {
    add(new_stream(), new_memory(), new_memory());
    OK(cudaDeviceSynchronize());
  }
}
// The second process has the other order.
static void order_of_collectives(void) {
  int rank = atoi(getenv("RANK")), error = 0;
  unique_id id;
  comm_t comm;
  memset(&id, 0, sizeof id);
  strcpy(id.internal, getenv("ID"));
  OK(cudaSetDevice(rank));
  OK(ncclCommInitRank(&comm, 2, id, rank));
  stream_t stream = new_stream();
  float *memory = new_memory(), value = rank + 1.f, sum = 0;
  OK(cudaMemcpy(memory, &value, sizeof value, HOST_TO_DEVICE));
  for (int i = 0; i < 2; ++i) {
    if (i == (bug && rank == 1)) OK(ncclAllReduce(memory, memory, 1, FLOAT32, SUM, comm, stream));
    else OK(ncclBroadcast(memory, memory, 1, FLOAT32, 0, comm, stream));
  }
  if (!bug && !getenv("FAKE_GPU_NCCL_DEAD")) goto done;
  for (int i = 0; i < 6000 && !error; ++i) {
    OK(ncclCommGetAsyncError(comm, &error));
    usleep(500);
  }
  printf("error=%d %s\n", error, error ? ncclGetLastError(comm) : "");
  if (error) OK(ncclCommAbort(comm));
done:
  OK(cudaMemcpyAsync(&sum, memory, sizeof sum, DEVICE_TO_HOST, stream));
  OK(cudaStreamSynchronize(stream));
  printf("sum=%g\n", sum);
}

int main(int count, char **words) {
  static const struct { const char *name; void (*run)(void); } all[] = {
      {"missing-wait", missing_wait}, {"freed-on-another-stream", freed_on_another_stream},
      {"changed-too-early", changed_too_early}, {"read-too-early", read_too_early},
      {"host-wait-in-a-capture", host_wait_in_a_capture}, {"context-on-gpu-0", context_on_gpu_0},
      {"leak", leak}, {"wrong-device", wrong_device}, {"unrecorded-event", unrecorded_event},
      {"stale-pointer", stale_pointer}, {"on-the-cpu", on_the_cpu}, {"order-of-collectives", order_of_collectives}};
  if (count != 3) return 2;
  bug = strcmp(words[2], "bug") == 0;
  register_kernels();
  for (unsigned i = 0; i < sizeof all / sizeof *all; ++i)
    if (strcmp(all[i].name, words[1]) == 0) { all[i].run(); return 0; }
  return 2;
}
