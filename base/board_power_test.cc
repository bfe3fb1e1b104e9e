// Meters and thermal zones of recorded trees: a personal computer with RAPL, a Jetson Orin, a
// Jetson of JetPack 4, a telephone.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "base/energy_meter.h"
#include "base/thermal_zones.h"
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

  const std::string root_;
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

}  // namespace
}  // namespace withy
