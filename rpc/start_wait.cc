#include "rpc/start_wait.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/listen_address.h"
#include "base/strings.h"
#include "base/tcp_listener.h"
#include "rpc/open_tls.h"

namespace withy::rpc {
namespace {

// Apps of other users in the socket's group may connect to the orchestrator.
constexpr unsigned kAppSocketMode = 0660;
constexpr absl::Duration kLook = absl::Milliseconds(200);

// Free blocks and inodes.
std::string RoomIn(const std::string& directory) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) return absl::StrCat("error ", errno, ";");
  return absl::StrCat(info.f_bavail, " ", info.f_favail, ";");
}

std::string FileAt(const std::string& path) {
  struct stat info {};
  if (path.empty()) return "";
  if (stat(path.c_str(), &info) != 0) return absl::StrCat("error ", errno, ";");
  return absl::StrCat(info.st_dev, " ", info.st_ino, " ", info.st_size, " ", info.st_mode, " ",
                      info.st_mtim.tv_sec, ";");
}

std::vector<std::string> TcpAddressesOf(std::string_view name, const v1::Config& config) {
  std::vector<std::string> addresses = ServerOf(name, config).listen;
  if (name == "orchestrator") addresses.push_back(config.orchestrator().http_listen());
  if (name == "profiler_agent") addresses.push_back(config.profiler().metrics_listen());
  std::erase_if(addresses, [](const std::string& address) {
    return address.empty() || address.starts_with(kUnixPrefix) || address.ends_with(":0");
  });
  return addresses;
}

// Files that the configuration names, and `addresses`.
std::string OthersOf(const v1::Config& config, const std::vector<std::string>& addresses) {
  std::string signs;
  for (const std::string& path :
       {config.model().path(), config.draft().path(), config.store().master_key_path(),
        config.state_dir(), config.tls().certificate_file(), config.tls().key_file(),
        config.tls().client_ca_file()}) {
    signs += FileAt(path);
  }
  for (const std::string& address : addresses) {
    absl::StrAppend(&signs, ListenTcp(address, "", "").status().raw_code(), ";");
  }
  return signs;
}

std::string RoomOf(const v1::Config& config) {
  return RoomIn(config.state_dir()) + RoomIn(config.run_dir());
}

// On all addresses, or at least on those of this machine's own processes.
absl::StatusOr<std::unique_ptr<StandIn>> StartStandIn(std::string_view name,
                                                      const v1::Config& config,
                                                      const std::string& reason) {
  ServerOptions options = ServerOf(name, config);
  const absl::StatusOr<TcpTls> tls = OpenTls(config);
  if (tls.ok()) {
    options.tls = *tls;
  } else {
    std::erase_if(options.listen,
                  [&](const std::string& address) { return !address.starts_with(kUnixPrefix); });
  }
  auto stand_in = StandIn::Start(options, reason);
  if (stand_in.ok()) return stand_in;
  std::erase_if(options.listen,
                [](const std::string& address) { return !address.starts_with(kUnixPrefix); });
  return options.listen.empty() ? std::move(stand_in) : StandIn::Start(options, reason);
}

}  // namespace

ServerOptions ServerOf(std::string_view name, const v1::Config& config) {
  ServerOptions options;
  options.name = name;
  if (name == "orchestrator") {
    options.listen = AppAddresses(config);
    options.socket_mode = kAppSocketMode;
  } else if (name == "model_worker") {
    options.listen = {config.model().listen()};
  } else if (name == "draft_worker") {
    options.listen = {config.draft().listen()};
  } else if (name == "context_store") {
    options.listen = {config.store().listen()};
  } else if (name == "profiler_agent") {
    options.listen = {config.profiler().listen()};
  }
  return options;
}

StartReport::StartReport(std::string_view name, const v1::Config& config)
    : name_(name), config_(config) {}
StartReport::~StartReport() = default;

void StartReport::Tell(const std::string& what) {
  sd_notifyf(0, "STATUS=%s", what.c_str());
  if (std::exchange(told_, true)) {
    if (stand_in_ != nullptr) stand_in_->SetReason(what);
    return;
  }
  auto stand_in = StartStandIn(name_, config_, what);
  if (stand_in.ok()) stand_in_ = *std::move(stand_in);
}

void WaitForChange(std::string_view name, const v1::Config& config, const std::string& reason,
                   absl::Duration least, absl::Duration pause, bool for_room) {
  std::vector<std::string> addresses = TcpAddressesOf(name, config);
  std::erase_if(addresses,
                [](const std::string& address) { return ListenTcp(address, "", "").ok(); });
  const std::string others = OthersOf(config, addresses);
  const auto stand_in = StartStandIn(name, config, reason);
  if (!stand_in.ok()) spdlog::warn("{}", stand_in.status().ToString());
  const std::string room = for_room ? RoomOf(config) : "";
  const absl::Time began = absl::Now();
  while (true) {
    const absl::Duration passed = absl::Now() - began;
    if (passed >= pause) return;
    const bool room_changed = for_room && RoomOf(config) != room;
    if (passed >= least && (room_changed || OthersOf(config, addresses) != others)) return;
    absl::SleepFor(std::min(kLook, pause - passed));
  }
}

}  // namespace withy::rpc
