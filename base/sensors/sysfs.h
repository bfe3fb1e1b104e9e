// Reads the small files of /sys. Neighbours: energy_meter.h, gpu_sensors.h.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace withy::sysfs {

// None: there is no such file, or no number in it.
inline std::optional<double> ReadNumber(const std::filesystem::path& path) {
  double value = 0;
  if (std::ifstream(path) >> value) return value;
  return std::nullopt;
}

inline std::string ReadWord(const std::filesystem::path& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

// In the order of their names, which is that of their numbers as far as it matters.
inline std::vector<std::filesystem::path> Entries(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> entries;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    entries.push_back(entry.path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

}  // namespace withy::sysfs
