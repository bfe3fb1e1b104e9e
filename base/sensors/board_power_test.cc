// Meters and thermal zones of recorded trees: a personal computer with RAPL, a Jetson Orin, a
// Jetson of JetPack 4, a telephone; and GPUs by a stand-in for NVML.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/sensors/energy_meter.h"
#include "base/sensors/gpu_sensors.h"
#include "base/sensors/nvml.h"
#include "base/sensors/thermal_zones.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

namespace fs = std::filesystem;

class BoardPowerTest : public testing::Test {
 protected:
  BoardPowerTest() : root_(testing::TempDir() + "withy_board_power_" + std::to_string(getpid())) {
    fs::remove_all(root_);
  }
  ~BoardPowerTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const fs::path file(root_ + "/sys/" + path);
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  // NVIDIA's library with two GPUs, of which the second is lost (nvml_stub.c).
  std::shared_ptr<Nvml> HasNvml() const {
    fs::create_directories(root_);
    fs::copy_file(WITHY_NVML_STUB, root_ + "/libnvidia-ml.so.1", fs::copy_options::skip_existing);
    return Nvml::Open(root_);
  }

  const std::string root_;
};

// Sets a variable of the environment while it lives. For tests that have no other thread.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* const name_;
};

TEST_F(BoardPowerTest, NoMeter) {
  Write("class/powercap/intel-rapl/enabled", "1");
  EXPECT_EQ(EnergyMeter::Find(root_), nullptr);
  EXPECT_TRUE(ThermalZones::Find(root_).empty());
}

TEST_F(BoardPowerTest, RaplCountsPackagesAndWraps) {
  for (const char* zone : {"intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"}) {
    const std::string dir = std::string("class/powercap/") + zone;
    Write(dir + "/name", std::string(zone).ends_with(":0:0") ? "core" : "package-0");
    Write(dir + "/energy_uj", "9000000");
    Write(dir + "/max_energy_range_uj", "10000000");
  }
  const auto meter = EnergyMeter::Find(root_);
  ASSERT_NE(meter, nullptr);
  EXPECT_STREQ(meter->name(), "powercap");
  EXPECT_DOUBLE_EQ(meter->Joules(1), 0);
  Write("class/powercap/intel-rapl:0/energy_uj", "9500000");
  Write("class/powercap/intel-rapl:0:0/energy_uj", "9900000");  // part of the package
  EXPECT_DOUBLE_EQ(meter->Joules(2), 0.5);
  Write("class/powercap/intel-rapl:1/energy_uj", "2000000");  // has wrapped
  EXPECT_DOUBLE_EQ(meter->Joules(3), 3.5);
  Write("class/powercap/intel-rapl:1/energy_uj", "");
  EXPECT_DOUBLE_EQ(meter->Joules(4), 3.5) << "cannot be read";
}

TEST_F(BoardPowerTest, ThePlatformGoesBeforePackages) {
  Write("class/powercap/intel-rapl:0/name", "package-0");
  Write("class/powercap/intel-rapl:0/energy_uj", "1000000");
  Write("class/powercap/intel-rapl:1/name", "psys");
  Write("class/powercap/intel-rapl:1/energy_uj", "5000000");
  const auto meter = EnergyMeter::Find(root_);
  ASSERT_NE(meter, nullptr);
  Write("class/powercap/intel-rapl:0/energy_uj", "2000000");
  Write("class/powercap/intel-rapl:1/energy_uj", "7000000");
  EXPECT_DOUBLE_EQ(meter->Joules(1), 2);
}

TEST_F(BoardPowerTest, OrinMeasuresItsInput) {
  const std::string chip = "class/hwmon/hwmon3/";
  Write(chip + "name", "ina3221");
  const char* labels[] = {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"};
  for (int channel = 1; channel <= 3; ++channel) {
    const std::string number = std::to_string(channel);
    Write(chip + "in" + number + "_label", labels[channel - 1]);
    Write(chip + "in" + number + "_input", "5000");    // mV
    Write(chip + "curr" + number + "_input", "2000");  // mA
  }
  const auto meter = EnergyMeter::Find(root_);
  ASSERT_NE(meter, nullptr);
  EXPECT_STREQ(meter->name(), "ina3221");
  EXPECT_DOUBLE_EQ(meter->Joules(1 * kNanosPerSecond), 0);
  EXPECT_DOUBLE_EQ(meter->Joules(2 * kNanosPerSecond), 10);
  Write(chip + "curr1_input", "4000");
  EXPECT_DOUBLE_EQ(meter->Joules(3 * kNanosPerSecond), 25) << "trapezoid";
}

TEST_F(BoardPowerTest, JetPack4GivesMilliwatts) {
  const std::string device = "bus/i2c/drivers/ina3221x/1-0040/iio:device0/";
  Write(device + "rail_name_0", "GPU");
  Write(device + "in_power0_input", "1500");
  Write(device + "rail_name_1", "CPU");
  Write(device + "in_power1_input", "500");
  const auto meter = EnergyMeter::Find(root_);
  ASSERT_NE(meter, nullptr);
  meter->Joules(1 * kNanosPerSecond);
  EXPECT_DOUBLE_EQ(meter->Joules(3 * kNanosPerSecond), 4) << "no rail is the input: all count";
}

TEST_F(BoardPowerTest, ABatteryCountsWhileItDischarges) {
  const std::string battery = "class/power_supply/battery/";
  Write("class/power_supply/ac/type", "Mains");
  const std::string mouse = "class/power_supply/a_mouse/";  // comes first
  Write(mouse + "type", "Battery");
  Write(mouse + "scope", "Device");
  Write(mouse + "status", "Discharging");
  Write(mouse + "power_now", "3000000");
  Write(battery + "type", "Battery");
  Write(battery + "status", "Discharging");
  Write(battery + "current_now", "-500000");  // uA; the sign is the driver's matter
  Write(battery + "voltage_now", "4000000");  // uV
  const auto meter = EnergyMeter::Find(root_);
  ASSERT_NE(meter, nullptr);
  EXPECT_STREQ(meter->name(), "battery");
  meter->Joules(1 * kNanosPerSecond);
  EXPECT_DOUBLE_EQ(meter->Joules(2 * kNanosPerSecond), 2);
  Write(battery + "status", "Charging");
  const double turned = meter->Joules(3 * kNanosPerSecond);
  EXPECT_DOUBLE_EQ(meter->Joules(4 * kNanosPerSecond), turned);
}

TEST_F(BoardPowerTest, TemperaturesAndTripPoints) {
  const std::string cpu = "class/thermal/thermal_zone0/";
  Write(cpu + "type", "cpu-thermal");
  Write(cpu + "temp", "61500");
  Write(cpu + "trip_point_0_type", "active");
  Write(cpu + "trip_point_0_temp", "50000");
  Write(cpu + "trip_point_1_type", "critical");
  Write(cpu + "trip_point_1_temp", "104500");
  Write(cpu + "trip_point_2_type", "passive");
  Write(cpu + "trip_point_2_temp", "99000");
  Write("class/thermal/thermal_zone1/type", "off");
  Write("class/thermal/thermal_zone1/temp", "-256000");
  Write("class/thermal/cooling_device0/type", "fan");
  const ThermalZones zones = ThermalZones::Find(root_);
  const auto readings = zones.Read();
  ASSERT_EQ(readings.size(), 1u);
  EXPECT_EQ(readings[0].zone, "cpu-thermal");
  EXPECT_DOUBLE_EQ(readings[0].celsius, 61.5);
  EXPECT_DOUBLE_EQ(readings[0].throttles_at, 99);
}

TEST_F(BoardPowerTest, NvmlTellsOfEachGpu) {
  EXPECT_EQ(Nvml::Open(root_), nullptr) << "there is no library";
  const auto nvml = HasNvml();
  ASSERT_NE(nvml, nullptr);
  const GpuSensors sensors = GpuSensors::Find(root_, nvml);
  EXPECT_STREQ(sensors.name(), "NVML");
  const std::vector<GpuReading> gpus = sensors.Read();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].gpu, "0");
  EXPECT_EQ(gpus[0].celsius, 40);
  EXPECT_EQ(gpus[0].throttles_at, 90);
  EXPECT_EQ(gpus[0].watts, 120);
  EXPECT_EQ(gpus[0].clock_hz, 1.98e9);
  EXPECT_EQ(gpus[0].busy, 0.75);
  EXPECT_EQ(gpus[0].memory_used_bytes, 10.0 * (1 << 30));
  EXPECT_EQ(gpus[1].gpu, "1");
  for (const auto& value : {gpus[1].celsius, gpus[1].throttles_at, gpus[1].watts, gpus[1].clock_hz,
                            gpus[1].busy, gpus[1].memory_used_bytes}) {
    EXPECT_EQ(value, std::nullopt) << "it is lost";
  }
}

// As in a unit whose devices are hidden.
TEST_F(BoardPowerTest, NvmlThatMayNotOpenTheGpuIsNone) {
  const Environment no_permission("WITHY_NVML_INIT", "4");
  EXPECT_EQ(HasNvml(), nullptr);
}

TEST_F(BoardPowerTest, GpusAreTheMeterWhereThereIsNoOther) {
  const auto nvml = HasNvml();
  ASSERT_NE(nvml, nullptr);
  const auto meter = EnergyMeter::Find(root_, nvml);
  ASSERT_NE(meter, nullptr);
  EXPECT_STREQ(meter->name(), "NVML");
  EXPECT_DOUBLE_EQ(meter->Joules(1 * kNanosPerSecond), 0);
  const Environment more("WITHY_NVML_MILLIWATTS", "240000");
  EXPECT_DOUBLE_EQ(meter->Joules(2 * kNanosPerSecond), 180) << "trapezoid";
  Write("class/hwmon/hwmon0/name", "ina3221");
  Write("class/hwmon/hwmon0/in1_label", "VDD_IN");
  Write("class/hwmon/hwmon0/in1_input", "5000");
  Write("class/hwmon/hwmon0/curr1_input", "2000");
  EXPECT_STREQ(EnergyMeter::Find(root_, nvml)->name(), "ina3221") << "the board's goes first";
}

TEST_F(BoardPowerTest, GpusThatCountTheirEnergyAreBelieved) {
  const auto nvml = HasNvml();
  ASSERT_NE(nvml, nullptr);
  const Environment before("WITHY_NVML_MILLIJOULES", "5000");
  const auto meter = EnergyMeter::Find(root_, nvml);
  ASSERT_NE(meter, nullptr);
  EXPECT_DOUBLE_EQ(meter->Joules(1 * kNanosPerSecond), 0);
  const Environment later("WITHY_NVML_MILLIJOULES", "7500");
  EXPECT_DOUBLE_EQ(meter->Joules(2 * kNanosPerSecond), 2.5);
  const Environment reset("WITHY_NVML_MILLIJOULES", "100");
  EXPECT_DOUBLE_EQ(meter->Joules(3 * kNanosPerSecond), 2.5) << "never falls";
}

TEST_F(BoardPowerTest, ATegraTellsOfItsGpuInSys) {
  EXPECT_TRUE(GpuSensors::Find(root_, nullptr).Read().empty());
  Write("class/devfreq/15340000.vic/cur_freq", "115200000");
  EXPECT_STREQ(GpuSensors::Find(root_, nullptr).name(), "") << "not every device is a GPU";
  Write("class/devfreq/17000000.ga10b/cur_freq", "930750000");
  Write("class/devfreq/17000000.ga10b/device/load", "640");
  Write("class/thermal/thermal_zone0/type", "CPU-therm");
  Write("class/thermal/thermal_zone0/temp", "55000");
  Write("class/thermal/thermal_zone1/type", "GPU-therm");
  Write("class/thermal/thermal_zone1/temp", "51500");
  const GpuSensors sensors = GpuSensors::Find(root_, nullptr);
  EXPECT_STREQ(sensors.name(), "devfreq");
  const std::vector<GpuReading> gpus = sensors.Read();
  ASSERT_EQ(gpus.size(), 1u);
  EXPECT_EQ(gpus[0].clock_hz, 930'750'000);
  EXPECT_EQ(gpus[0].busy, 0.64);
  EXPECT_EQ(gpus[0].celsius, 51.5);
  EXPECT_EQ(gpus[0].watts, std::nullopt);
}

}  // namespace
}  // namespace withy
