/* A stand-in for libnvidia-ml.so.1 with two GPUs, for board_power_test.cc: the second is lost. What
   the first draws and how hot it is stands in the environment. */
#include <stdlib.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned* count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device);
int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* celsius);
int nvmlDeviceGetTemperatureThreshold(void* device, unsigned kind, unsigned* celsius);
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts);
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules);
int nvmlDeviceGetClockInfo(void* device, unsigned kind, unsigned* megahertz);
int nvmlDeviceGetUtilizationRates(void* device, unsigned* utilization);
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory);

/* Of the environment. */
static int Setting(const char* name, int otherwise) {
  const char* const text = getenv(name);
  return text == 0 ? otherwise : atoi(text);
}

static int first;
enum { kSuccess = 0, kNotSupported = 3, kLost = 15 };

int nvmlInit_v2(void) { return Setting("WITHY_NVML_INIT", kSuccess); }
int nvmlShutdown(void) { return kSuccess; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &first;
  return index == 0 ? kSuccess : kLost;
}
int nvmlDeviceGetTemperature(void* device, unsigned sensor, unsigned* celsius) {
  (void)device;
  *celsius = (unsigned)Setting("WITHY_NVML_CELSIUS", 40);
  return sensor == 0 ? kSuccess : kNotSupported;
}
int nvmlDeviceGetTemperatureThreshold(void* device, unsigned kind, unsigned* celsius) {
  (void)device;
  *celsius = 90;
  return kind == 1 ? kSuccess : kNotSupported;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = (unsigned)Setting("WITHY_NVML_MILLIWATTS", 120000);
  return kSuccess;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  const int told = Setting("WITHY_NVML_MILLIJOULES", -1);
  (void)device;
  *millijoules = (unsigned long long)told;
  return told < 0 ? kNotSupported : kSuccess;
}
int nvmlDeviceGetClockInfo(void* device, unsigned kind, unsigned* megahertz) {
  (void)device;
  *megahertz = 1980;
  return kind == 1 ? kSuccess : kNotSupported;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* utilization) {
  (void)device;
  utilization[0] = 75;
  utilization[1] = 20;
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  (void)device;
  memory[0] = 80ull << 30;
  memory[1] = 70ull << 30;
  memory[2] = 10ull << 30;
  return kSuccess;
}
