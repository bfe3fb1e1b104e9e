#include "cli/config/doctor_checks.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/config/config_install.h"
#include "cli/output.h"
#include "engine/gguf/split.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLittleRoom = uint64_t{256} << 20;
constexpr uintmax_t kKeyBytes = 32;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool Mentions(const std::string& path, const std::string& file) {
  return !path.empty() && file.starts_with(fs::path(path).stem().string());
}

void LookAtRoom(const std::string& directory, std::vector<Finding>* findings) {
  struct statvfs room {};
  if (statvfs(directory.c_str(), &room) != 0) return;
  const uint64_t free = uint64_t{room.f_bavail} * room.f_frsize;
  if (free < kLittleRoom) {
    findings->push_back({true,
                         absl::StrCat("the disk of ", directory, " has ", Bytes(free), " free"),
                         "free some space there, or set state_dir to a larger disk"});
  }
  if (room.f_files > 0 && room.f_favail < 100) {
    findings->push_back({true,
                         absl::StrCat("the disk of ", directory, " has ",
                                      static_cast<uint64_t>(room.f_favail), " inodes free"),
                         "remove some files there"});
  }
}

void LookAtRecords(const v1::Config& config, std::vector<Finding>* findings) {
  const std::string records = config.state_dir() + "/records";
  if (!Exists(records)) return;  // not started yet
  std::error_code error;
  const std::string current = records + "/CURRENT";
  if (fs::file_size(current, error) == 0 || error) {
    findings->push_back(
        {true,
         absl::StrCat(current,
                      " is missing or empty: the database of conversations cannot be "
                      "opened"),
         "stop the service and run `withyctl store repair`, or move the directory away and run "
         "`withyctl store restore BACKUP`"});
  }
  const std::string key = config.store().master_key_path().empty()
                              ? config.state_dir() + "/master.key"
                              : config.store().master_key_path();
  const uintmax_t bytes = fs::file_size(key, error);
  if (error) {
    findings->push_back({false, absl::StrCat("there is no master key at ", key),
                         "nothing, if a systemd credential has it; else put your copy there"});
  } else if (bytes != kKeyBytes) {
    findings->push_back({true, absl::StrCat(key, " has ", bytes, " bytes instead of 32"),
                         "put your copy of the key there"});
  }
}

void LookAtPacked(const v1::Config& config, std::vector<Finding>* findings) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(config.state_dir() + "/packed", error)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".withy") continue;
    if (Mentions(config.model().path(), name) || Mentions(config.draft().path(), name)) continue;
    findings->push_back({false,
                         absl::StrCat(entry.path().string(), " (", Bytes(entry.file_size(error)),
                                      ") is of a model that the configuration does not name"),
                         "remove it, if the model is not to be served again"});
  }
}

}  // namespace

std::vector<Finding> LookAtConfig(const CheckedConfig& checked) {
  std::vector<Finding> findings;
  for (const absl::Status& problem : checked.problems) {
    findings.push_back({true, std::string(problem.message()),
                        "mend the line, then `withyctl config install FILE`"});
  }
  for (const std::string& missing : MissingFiles(checked.config)) {
    findings.push_back({true, missing, "put it there, or name another"});
  }
  for (const std::string& model : {checked.config.model().path(), checked.config.draft().path()}) {
    for (const std::string& path : engine::GgufPartPaths(model)) {
      if (!Exists(path) || access(path.c_str(), R_OK) == 0) continue;
      findings.push_back({true, absl::StrCat(path, " cannot be read by this user"),
                          absl::StrCat("chmod a+r ", path)});
    }
  }
  return findings;
}

std::vector<Finding> LookAtState(const v1::Config& config) {
  std::vector<Finding> findings;
  const std::string& state = config.state_dir();
  if (!Exists(state)) {
    return {{true, absl::StrCat("state_dir ", state, " is not there"),
             "start the service, which makes it, or mount its disk"}};
  }
  if (access(state.c_str(), R_OK | X_OK) != 0) {
    return {{false, absl::StrCat("state_dir ", state, " cannot be looked into by this user"),
             "run this as root, or as the user withy"}};
  }
  LookAtRoom(state, &findings);
  LookAtRecords(config, &findings);
  LookAtPacked(config, &findings);
  return findings;
}

std::vector<Finding> LookAtUnit(std::string_view unit, std::string_view shown) {
  std::map<std::string, std::string> values;
  for (const absl::string_view line : absl::StrSplit(ToAbsl(shown), '\n')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
    values[pair.first] = pair.second;
  }
  const std::string name(unit);
  if (values["LoadState"] != "loaded") return {};
  std::vector<Finding> findings;
  const std::string& status = values["StatusText"];
  const std::string says = status.empty() ? "" : absl::StrCat(": ", status);
  if (values["ActiveState"] == "failed") {
    const bool wrong = values["ExecMainStatus"] == "2";
    findings.push_back({true, absl::StrCat(name, " has failed", says),
                        wrong ? absl::StrCat("its configuration or model is refused: `withyctl "
                                             "config check`; then systemctl restart ",
                                             name)
                              : absl::StrCat("journalctl -u ", name)});
  } else if (values["ActiveState"] != "active") {
    findings.push_back({true, absl::StrCat(name, " is ", values["ActiveState"], says),
                        values["ActiveState"] == "inactive"
                            ? "systemctl start withy.target"
                            : "it goes on by itself when the cause has passed"});
  } else if (absl::StrContains(status, "NOT_SERVING") || absl::StrContains(status, "waits")) {
    findings.push_back({true, absl::StrCat(name, says), "the next lines may say what is missing"});
  }
  return findings;
}

}  // namespace withy::cli
