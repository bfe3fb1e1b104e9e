#include "bench/energy_meter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

TEST(EnergyMeterTest, AddsThePackagesAndBearsACounterThatBeginsAgain) {
  std::string pattern = testing::TempDir() + "withy_energy_XXXXXX";
  const fs::path root = mkdtemp(pattern.data());
  const auto write = [&](const std::string& zone, const std::string& file, uint64_t value) {
    fs::create_directories(root / zone);
    std::ofstream(root / zone / file) << value << "\n";
  };
  for (const char* zone : {"intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"}) {
    write(zone, "energy_uj", 5'000'000);
    write(zone, "max_energy_range_uj", 10'000'000);
  }
  EnergyMeter meter(root.string());
  EXPECT_NE(meter.name().find("intel-rapl:1"), std::string::npos);
  EXPECT_EQ(meter.name().find("intel-rapl:0:0"), std::string::npos) << "part of package 0";
  write("intel-rapl:0", "energy_uj", 8'000'000);
  write("intel-rapl:1", "energy_uj", 1'000'000);
  EXPECT_DOUBLE_EQ(meter.Joules().value_or(-1), 3 + 6);
  EXPECT_DOUBLE_EQ(meter.Joules().value_or(-1), 0);
  fs::remove_all(root);
  EXPECT_FALSE(meter.Joules().has_value());
  EnergyMeter none((root / "nowhere").string());
  EXPECT_EQ(none.name(), "");
  EXPECT_FALSE(none.Joules().has_value());
}

}  // namespace
}  // namespace withy::bench
