#include "base/board.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>
#include <vector>

namespace withy {
namespace {

namespace fs = std::filesystem;

// The first line, without the NUL that ends a device-tree text.
std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  line.erase(std::find(line.begin(), line.end(), '\0'), line.end());
  return line;
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Name of one core's processor, from its "key : value" lines.
std::string NameOf(const std::map<std::string, std::string>& core) {
  const auto value = [&](const char* key) {
    const auto found = core.find(key);
    return found == core.end() ? std::string() : found->second;
  };
  if (const std::string name = value("model name"); !name.empty()) {
    const std::string family = value("cpu family");
    return family.empty() ? name : name + " (family " + family + ", model " + value("model") + ")";
  }
  const std::string part = value("CPU part");
  return part.empty() ? "" : "implementer " + value("CPU implementer") + " part " + part;
}

void ReadProcessor(const std::string& root, BoardInfo* board) {
  std::vector<std::string> names;  // distinct, in order: a board may have two kinds of cores
  std::map<std::string, std::string> core;
  const auto finish = [&] {
    const std::string name = NameOf(core);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
    core.clear();
  };
  std::ifstream in(root + "/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = Trimmed(line.substr(0, colon));
    if (key == "processor") {
      finish();
      ++board->cores;
    }
    core[key] = Trimmed(line.substr(colon + 1));
  }
  finish();
  board->cores = std::max(board->cores, 1u);
  if (const std::string model = FirstLine(root + "/proc/device-tree/model"); !model.empty())
    names.insert(names.begin(), model);
  for (const std::string& name : names) {
    if (!board->processor.empty()) board->processor += ", ";
    board->processor += name;
  }
  if (board->processor.empty()) board->processor = "unknown processor";
}

void ReadPowerMode(const std::string& root, BoardInfo* board) {
  const std::string cpus = root + "/sys/devices/system/cpu";
  board->governor = FirstLine(cpus + "/cpu0/cpufreq/scaling_governor");
  std::error_code ignored;
  for (const auto& policy : fs::directory_iterator(cpus + "/cpufreq", ignored)) {
    uint64_t khz = 0;
    if (std::ifstream(policy.path() / "scaling_max_freq") >> khz)
      board->max_khz = std::max(board->max_khz, khz);
  }
}

}  // namespace

BoardInfo ReadBoard(const std::string& root) {
  BoardInfo board;
  ReadProcessor(root, &board);
  ReadPowerMode(root, &board);
  double load = 0;
  if (std::ifstream(root + "/proc/loadavg") >> load) board.load_average = load;
  return board;
}

}  // namespace withy
