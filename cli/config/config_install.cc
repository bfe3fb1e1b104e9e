#include "cli/config/config_install.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/config.h"
#include "base/files.h"
#include "base/listen_address.h"
#include "base/status.h"
#include "engine/gguf/split.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kDropIn[] = "50-configuration.conf";
constexpr const char* kUnits[] = {"withy-orchestrator", "withy-model-worker", "withy-draft-worker",
                                  "withy-context-store", "withy-profiler-agent"};

struct NamedPath {
  std::string path;
  bool directory = false;  // which is written; else a file that is read
};

// Everything outside of what each unit has anyway.
std::vector<NamedPath> PathsOf(const v1::Config& config) {
  std::vector<NamedPath> named = {
      {config.store().master_key_path()}, {config.tls().certificate_file()},
      {config.tls().key_file()},          {config.tls().client_ca_file()},
      {config.state_dir(), true},         {config.run_dir(), true}};
  for (const std::string& model : {config.model().path(), config.draft().path()}) {
    for (const std::string& part : engine::GgufPartPaths(model)) named.push_back({part});
  }
  if (config.orchestrator().tlm_path() != "off")
    named.push_back({config.orchestrator().tlm_path()});
  for (const std::string& file : config.store().public_system_prompt_files()) {
    named.push_back({file});
  }
  for (const std::string& address :
       {config.orchestrator().listen(), config.model().listen(), config.draft().listen(),
        config.store().listen(), config.profiler().listen()}) {
    if (!address.starts_with(kUnixPrefix)) continue;
    named.push_back({fs::path(address.substr(kUnixPrefix.size())).parent_path().string(), true});
  }
  std::erase_if(named, [](const NamedPath& at) {
    for (const char* own : {"/usr/share/withy/", "/var/lib/withy/", "/run/withy/"}) {
      if ((at.path + "/").starts_with(own)) return true;
    }
    return !at.path.starts_with('/');
  });
  return named;
}

bool IsBelow(const std::string& path, std::initializer_list<const char*> directories) {
  for (const char* directory : directories) {
    if ((path + "/").starts_with(absl::StrCat(directory, "/"))) return true;
  }
  return false;
}

// As a word of a unit's list of paths.
std::string Word(const std::string& path) {
  const std::string text = absl::StrReplaceAll(path, {{"\\", "\\\\"}, {"\"", "\\\""}, {"%", "%%"}});
  return text.find_first_of(" \t'\"\\") == std::string::npos ? text
                                                             : absl::StrCat("\"", text, "\"");
}

std::string Line(std::string_view key, const std::set<std::string>& words) {
  return words.empty() ? "" : absl::StrCat(ToAbsl(key), "=", absl::StrJoin(words, " "), "\n");
}

bool ListensBeyondThisMachine(const v1::Config& config) {
  for (const std::string& address :
       {config.orchestrator().listen(), config.orchestrator().http_listen(),
        config.profiler().metrics_listen()}) {
    const bool tcp = address.find(':') != std::string::npos && !address.starts_with(kUnixPrefix);
    if (tcp && !IsLoopback(address) && !address.starts_with("0.0.0.0:") &&
        !address.starts_with("[::]:")) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string UnitDropIn(const v1::Config& config) {
  std::set<std::string> mounts, writes, reads, binds;
  bool home = false, tmp = false;
  for (const NamedPath& at : PathsOf(config)) {
    mounts.insert(Word(at.path));
    // A file and not its directory, which the user withy may be unable to enter.
    const std::string optional = Word("-" + at.path);
    if (IsBelow(at.path, {"/home", "/root", "/run/user"})) {
      home = true;
      (at.directory ? binds : reads).insert(optional);
    } else if (IsBelow(at.path, {"/tmp", "/var/tmp"})) {
      tmp = true;
    } else if (at.directory && IsBelow(at.path, {"/usr", "/boot", "/efi", "/etc"})) {
      writes.insert(optional);
    }
  }
  const bool network = ListensBeyondThisMachine(config);
  if (mounts.empty() && !network) return "";
  return absl::StrCat(
      "# Made by `withyctl config install` from the configuration; the next one replaces it.\n"
      "[Unit]\n",
      Line("RequiresMountsFor", mounts),
      network ? "Wants=network-online.target\nAfter=network-online.target\n" : "", "[Service]\n",
      Line("ReadWritePaths", writes), home ? "ProtectHome=tmpfs\n" : "",
      Line("BindReadOnlyPaths", reads), Line("BindPaths", binds), tmp ? "PrivateTmp=no\n" : "");
}

std::vector<std::string> MissingFiles(const v1::Config& config) {
  std::vector<std::string> missing;
  std::error_code ignored;
  for (const NamedPath& at : PathsOf(config)) {
    if (at.directory || fs::exists(at.path, ignored)) continue;
    missing.push_back(absl::StrCat(at.path, " is not there now: its process waits for it"));
  }
  return missing;
}

absl::Status InstallConfig(const std::string& text, const v1::Config& config,
                           const std::string& root) {
  const auto write = [](const std::string& path, const std::string& content) -> absl::Status {
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    if (error)
      return absl::ErrnoToStatus(error.value(), absl::StrCat("make a directory for ", path));
    WITHY_RETURN_IF_ERROR(WriteAtomically(path, content));
    if (chmod(path.c_str(), 0644) != 0) return ErrnoError("chmod " + path);
    return absl::OkStatus();
  };
  const std::string drop_in = UnitDropIn(config);
  // The configuration is last: what it needs is there before it.
  for (const char* unit : kUnits) {
    const std::string path =
        absl::StrCat(root, "/etc/systemd/system/", unit, ".service.d/", kDropIn);
    if (drop_in.empty()) {
      std::error_code ignored;
      fs::remove(path, ignored);
    } else {
      WITHY_RETURN_IF_ERROR(write(path, drop_in));
    }
  }
  return write(root + std::string(kDefaultConfigPath), text);
}

}  // namespace withy::cli
