// NVIDIA's management library, loaded where it is: what a GPU draws, how hot it is, how fast it
// runs. Neighbours: gpu_sensors.h and energy_meter.h read it. Not needed to compute on a GPU, and
// absent on most Jetsons.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace withy {

// Thread-safe. A value that the driver does not tell is none.
class Nvml {
 public:
  // `root` "": the library that the loader finds; else ROOT/libnvidia-ml.so.1. Null: there is none,
  // or it finds no GPU that this process may open.
  static std::shared_ptr<Nvml> Open(const std::string& root = "");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  uint32_t count() const { return count_; }
  std::optional<double> Celsius(uint32_t gpu) const;
  // Temperature from which on the GPU slows itself down.
  std::optional<double> ThrottlesAt(uint32_t gpu) const;
  std::optional<double> Watts(uint32_t gpu) const;
  // Since the driver was loaded; from Volta on.
  std::optional<double> Joules(uint32_t gpu) const;
  std::optional<double> ClockHz(uint32_t gpu) const;
  // Share of the last moments in which a kernel ran, 0 .. 1.
  std::optional<double> Busy(uint32_t gpu) const;
  std::optional<double> MemoryUsedBytes(uint32_t gpu) const;

 private:
  struct Functions;

  Nvml();
  bool Load(const std::string& root);
  void* Device(uint32_t gpu) const;

  void* library_ = nullptr;
  bool initialised_ = false;
  uint32_t count_ = 0;
  std::unique_ptr<Functions> functions_;
};

}  // namespace withy
