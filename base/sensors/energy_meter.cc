#include "base/sensors/energy_meter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/sensors/sysfs.h"

namespace withy {
namespace {

namespace fs = std::filesystem;

using sysfs::Entries;
using sysfs::ReadNumber;
using sysfs::ReadWord;

// Counters of microjoules that wrap.
class Powercap final : public EnergyMeter {
 public:
  struct Zone {
    fs::path file;
    double range_uj = 0;  // at which the counter begins again; 0: not known
    double last_uj = 0;
  };
  explicit Powercap(std::vector<Zone> zones) : zones_(std::move(zones)) {}

  double Joules(int64_t /*now_ns*/) override {
    for (Zone& zone : zones_) {
      const std::optional<double> now = ReadNumber(zone.file);
      if (!now.has_value()) continue;
      const double grown = *now - zone.last_uj;
      joules_ += std::max(0.0, grown >= 0 ? grown : grown + zone.range_uj) / 1e6;
      zone.last_uj = *now;
    }
    return joules_;
  }
  const char* name() const override { return "powercap"; }

 private:
  std::vector<Zone> zones_;
  double joules_ = 0;
};

std::unique_ptr<EnergyMeter> FindPowercap(const fs::path& sys) {
  std::vector<Powercap::Zone> board, packages;
  for (const fs::path& zone : Entries(sys / "class/powercap")) {
    const std::string name = ReadWord(zone / "name");
    const std::optional<double> now = ReadNumber(zone / "energy_uj");
    if (!now.has_value()) continue;  // without root most systems let nobody read it
    const Powercap::Zone found{.file = zone / "energy_uj",
                               .range_uj = ReadNumber(zone / "max_energy_range_uj").value_or(0),
                               .last_uj = *now};
    if (name == "psys") board.push_back(found);
    if (name.starts_with("package")) packages.push_back(found);
  }
  if (!board.empty()) return std::make_unique<Powercap>(std::move(board));
  if (!packages.empty()) return std::make_unique<Powercap>(std::move(packages));
  return nullptr;
}

// Energy of readings of power, by the trapezoid rule.
class PowerIntegral {
 public:
  double Add(double watts, int64_t now_ns) {
    if (last_ns_ != 0 && now_ns > last_ns_) {
      joules_ += (watts + last_watts_) / 2 * static_cast<double>(now_ns - last_ns_) / 1e9;
    }
    last_ns_ = now_ns;
    last_watts_ = watts;
    return joules_;
  }

 private:
  int64_t last_ns_ = 0;
  double last_watts_ = 0;
  double joules_ = 0;
};

// Power is the sum of products of readings; each product is of one or two files. Some drivers give
// a current that flows out a negative sign.
class PowerMeter final : public EnergyMeter {
 public:
  struct Rail {
    fs::path first;
    fs::path second = {};  // empty: `first` alone is the power
    double watts = 0;      // of a product of 1
  };
  PowerMeter(const char* name, std::vector<Rail> rails, fs::path only_while_discharging = {})
      : name_(name), rails_(std::move(rails)), status_(std::move(only_while_discharging)) {}

  double Joules(int64_t now_ns) override { return integral_.Add(Watts(), now_ns); }
  const char* name() const override { return name_; }
  bool readable() const {
    return std::any_of(rails_.begin(), rails_.end(),
                       [](const Rail& rail) { return PowerOf(rail).has_value(); });
  }

 private:
  static std::optional<double> PowerOf(const Rail& rail) {
    const std::optional<double> first = ReadNumber(rail.first);
    if (rail.second.empty()) return first.has_value() ? *first * rail.watts : first;
    const std::optional<double> second = ReadNumber(rail.second);
    if (!first.has_value() || !second.has_value()) return std::nullopt;
    return *first * *second * rail.watts;
  }
  double Watts() const {
    if (!status_.empty() && ReadWord(status_) != "Discharging") return 0;
    double watts = 0;
    for (const Rail& rail : rails_) watts += std::abs(PowerOf(rail).value_or(0));
    return watts;
  }

  const char* const name_;
  const std::vector<Rail> rails_;
  const fs::path status_;
  PowerIntegral integral_;
};

std::unique_ptr<EnergyMeter> IfReadable(std::unique_ptr<PowerMeter> meter) {
  if (!meter->readable()) return nullptr;
  return meter;
}

// One rail measures what comes in, where its label says so; the others are behind it.
struct LabelledRail {
  std::string label;
  PowerMeter::Rail rail;
};
std::unique_ptr<EnergyMeter> OfRails(const std::vector<LabelledRail>& rails) {
  std::vector<PowerMeter::Rail> input, all;
  for (const LabelledRail& rail : rails) {
    const bool is_input =
        rail.label == "VDD_IN" || rail.label == "POM_5V_IN" || rail.label == "VDD_TOTAL";
    if (is_input) input.push_back(rail.rail);
    all.push_back(rail.rail);
  }
  if (all.empty()) return nullptr;
  return IfReadable(
      std::make_unique<PowerMeter>("ina3221", input.empty() ? std::move(all) : std::move(input)));
}

std::unique_ptr<EnergyMeter> FindIna3221(const fs::path& sys) {
  constexpr int kChannels = 3;
  constexpr double kWattsOfMilliVoltMilliAmpere = 1e-6;
  std::vector<LabelledRail> rails;
  for (const fs::path& chip : Entries(sys / "class/hwmon")) {
    if (ReadWord(chip / "name") != "ina3221") continue;
    for (int channel = 1; channel <= kChannels; ++channel) {
      const std::string number = std::to_string(channel);
      const fs::path current = chip / ("curr" + number + "_input");
      if (!ReadNumber(current).has_value()) continue;
      rails.push_back({ReadWord(chip / ("in" + number + "_label")),
                       {.first = chip / ("in" + number + "_input"),
                        .second = current,
                        .watts = kWattsOfMilliVoltMilliAmpere}});
    }
  }
  return OfRails(rails);
}

// The driver of JetPack 4 gives milliwatts.
std::unique_ptr<EnergyMeter> FindIna3221x(const fs::path& sys) {
  constexpr int kChannels = 3;
  std::vector<LabelledRail> rails;
  for (const fs::path& chip : Entries(sys / "bus/i2c/drivers/ina3221x")) {
    for (const fs::path& device : Entries(chip)) {
      if (!device.filename().string().starts_with("iio:device")) continue;
      for (int channel = 0; channel < kChannels; ++channel) {
        const std::string number = std::to_string(channel);
        const fs::path power = device / ("in_power" + number + "_input");
        if (!ReadNumber(power).has_value()) continue;
        rails.push_back(
            {ReadWord(device / ("rail_name_" + number)), {.first = power, .watts = 1e-3}});
      }
    }
  }
  return OfRails(rails);
}

std::unique_ptr<EnergyMeter> FindBattery(const fs::path& sys) {
  for (const fs::path& supply : Entries(sys / "class/power_supply")) {
    if (ReadWord(supply / "type") != "Battery") continue;
    if (ReadWord(supply / "scope") == "Device") continue;  // of a mouse, not of the board
    PowerMeter::Rail rail{.first = supply / "power_now", .watts = 1e-6};
    if (!ReadNumber(rail.first).has_value()) {
      rail = {.first = supply / "current_now", .second = supply / "voltage_now", .watts = 1e-12};
    }
    auto meter =
        IfReadable(std::make_unique<PowerMeter>("battery", std::vector{rail}, supply / "status"));
    if (meter != nullptr) return meter;
  }
  return nullptr;
}

// GPUs that count their energy, and the power of those that do not.
class GpuMeter final : public EnergyMeter {
 public:
  explicit GpuMeter(std::shared_ptr<const Nvml> nvml) : nvml_(std::move(nvml)) {
    for (uint32_t gpu = 0; gpu < nvml_->count(); ++gpu) last_joules_.push_back(nvml_->Joules(gpu));
  }

  double Joules(int64_t now_ns) override {
    double watts = 0;
    for (uint32_t gpu = 0; gpu < nvml_->count(); ++gpu) {
      std::optional<double>& last = last_joules_[gpu];
      if (!last.has_value()) {
        watts += nvml_->Watts(gpu).value_or(0);
      } else if (const std::optional<double> now = nvml_->Joules(gpu); now.has_value()) {
        counted_ += std::max(0.0, *now - *last);
        last = now;
      }
    }
    return counted_ + integral_.Add(watts, now_ns);
  }
  const char* name() const override { return "NVML"; }
  bool readable() const {
    for (uint32_t gpu = 0; gpu < nvml_->count(); ++gpu) {
      if (last_joules_[gpu].has_value() || nvml_->Watts(gpu).has_value()) return true;
    }
    return false;
  }

 private:
  const std::shared_ptr<const Nvml> nvml_;          // the gauges have it, too
  std::vector<std::optional<double>> last_joules_;  // by GPU; none: it does not count
  double counted_ = 0;
  PowerIntegral integral_;
};

}  // namespace

std::unique_ptr<EnergyMeter> EnergyMeter::Find(const std::string& root,
                                               std::shared_ptr<const Nvml> nvml) {
  const fs::path sys(root + "/sys");
  for (const auto& find : {FindPowercap, FindIna3221, FindIna3221x, FindBattery}) {
    if (std::unique_ptr<EnergyMeter> meter = find(sys); meter != nullptr) return meter;
  }
  if (nvml == nullptr) return nullptr;
  auto meter = std::make_unique<GpuMeter>(std::move(nvml));
  if (!meter->readable()) return nullptr;
  return meter;
}

}  // namespace withy
