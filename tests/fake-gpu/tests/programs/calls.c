// Single calls that tests read the results of: `calls NAME`.
#include "runtime.h"

static unsigned long long used(void *device) {
  unsigned long long memory[3];
  int code = nvmlDeviceGetMemoryInfo(device, memory);
  return code ? code : memory[2] >> 20;
}
static void *gpu(unsigned index) {
  void *device;
  OK(nvmlInit_v2());
  OK(nvmlDeviceGetHandleByIndex_v2(index, &device));
  return device;
}

int main(int count, char **words) {
  const char *name = count > 1 ? words[1] : "";
  void *memory;
  stream_t stream = 0;
  if (!strcmp(name, "unsupported")) {
    SHOW("first", cusparseCreate(&memory));
    SHOW("second", cusparseCreate(&memory));
  } else if (!strcmp(name, "hold")) {  // takes memory until it is killed
    OK(cudaMalloc(&memory, (size_t)1 << 30));
    printf("held\n");
    fflush(stdout);
    for (;;) pause();
  } else if (!strcmp(name, "memory")) {
    size_t free, total;
    printf("nvml=%llu\n", used(gpu(0)));
    OK(cudaMemGetInfo(&free, &total));
    printf("free=%zu\n", free >> 20);
    SHOW("malloc", cudaMalloc(&memory, (size_t)3 << 30));
  } else if (!strcmp(name, "fault")) {
    register_kernels();
    OK(cudaStreamCreateWithFlags(&stream, NON_BLOCKING));
    SHOW("first", cudaMalloc(&memory, 1 << 20));
    SHOW("second", cudaMalloc(&memory, 1 << 20));
    for (int i = 0; i < 3; ++i) add(stream, 0, 0);
    SHOW("wait", cudaStreamSynchronize(stream));
    SHOW("last", cudaGetLastError());
    if (!cudaGetLastError()) return 0;
    OK(nvmlInit_v2());
    void *device;
    SHOW("nvml", nvmlDeviceGetHandleByIndex_v2(0, &device));
  } else if (!strcmp(name, "hollow")) {
    char *pinned, *device, byte = 1;
    size_t size = (size_t)6 << 30;
    OK(cudaHostAlloc((void **)&pinned, size, 0));
    OK(cudaMalloc((void **)&device, size));
    OK(cudaMemset(device, 3, size));
    OK(cudaMemcpyAsync(device, pinned, size, HOST_TO_DEVICE, 0));
    OK(cudaMemcpyAsync(pinned, device, size, DEVICE_TO_HOST, 0));
    OK(cudaMemset(device, 9, 16));
    OK(cudaMemcpy(&byte, device, 1, DEVICE_TO_HOST));
    SHOW("outside", cudaMemcpyAsync(device + 16, pinned, size, HOST_TO_DEVICE, 0));
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    while (fgets(line, sizeof line, status)) if (!strncmp(line, "VmHWM", 5)) printf("%s", line);
    printf("byte=%d\n", byte);
  } else if (!strcmp(name, "mig")) {
    char uuid[96];
    unsigned instances;
    int devices;
    OK(nvmlDeviceGetMaxMigDeviceCount(gpu(0), &instances));
    for (unsigned i = 0; i < instances; ++i) {
      void *instance;
      OK(nvmlDeviceGetMigDeviceHandleByIndex(gpu(0), i, &instance));
      OK(nvmlDeviceGetUUID(instance, uuid, sizeof uuid));
      printf("instance=%s\n", uuid);
    }
    OK(cudaGetDeviceCount(&devices));
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    printf("devices=%d total=%zu\n", devices, total >> 20);
  } else {
    return 2;
  }
  return 0;
}
