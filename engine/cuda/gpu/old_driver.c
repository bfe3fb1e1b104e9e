/* A stand-in for libcuda.so.1 of a driver that supports no more than CUDA 11.4: what the runtime asks
   before it gives up. For open_gpu_test.cc. */
int cuDriverGetVersion(int* version);
int cuInit(unsigned flags);

int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}

int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}
