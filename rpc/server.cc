#include "rpc/server.h"

#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <mutex>

#include "base/status.h"

namespace withy::rpc {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kUnixPrefix = "unix:";

// Makes `path` ours: its directory exists, nobody else serves on it, a socket left by a dead
// process is gone.
absl::StatusOr<UniqueFd> ClaimSocket(const std::string& path, const std::string& name) {
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path ", path, " has ", path.size(), " bytes; the limit is ",
                     sizeof(sockaddr_un{}.sun_path) - 1, ": choose a shorter run_dir"));
  }
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(
        "cannot create ", fs::path(path).parent_path().string(), ": ", error.message()));
  }
  const std::string lock_path = path + ".lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoError("open " + lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("another ", name, " already serves on ", path,
                     "; stop it, or give this one another address (listen)"));
  }
  unlink(path.c_str());
  return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<grpc::Service*>& services) {
  static std::once_flag once;
  std::call_once(once, [] {
    // Held for the life of the process: the last release of the library may wait 10 s for a poller
    // of its own.
    grpc_init();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  std::unique_ptr<Server> self(new Server);
  self->answers_ = options.answers;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(64 << 20);
  std::vector<int> ports(options.listen.size(), 0);
  for (size_t i = 0; i < options.listen.size(); ++i) {
    const std::string& address = options.listen[i];
    if (address.starts_with(kUnixPrefix)) {
      WITHY_ASSIGN_OR_RETURN(UniqueFd lock,
                             ClaimSocket(address.substr(kUnixPrefix.size()), options.name));
      self->locks_.push_back(std::move(lock));
    }
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &ports[i]);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  self->server_ = builder.BuildAndStart();
  if (self->server_ == nullptr) {
    std::string where;
    for (const std::string& address : options.listen)
      absl::StrAppend(&where, where.empty() ? "" : ", ", address);
    return absl::AlreadyExistsError(
        absl::StrCat(options.name, " cannot listen on ", where,
                     ": the address is taken or not one of this machine; stop "
                     "the other process or change `listen`"));
  }
  for (size_t i = 0; i < options.listen.size(); ++i) {
    const std::string& address = options.listen[i];
    if (address.starts_with(kUnixPrefix)) {
      chmod(address.substr(kUnixPrefix.size()).c_str(), options.socket_mode);
      self->addresses_.push_back(address);
    } else {
      self->addresses_.push_back(
          absl::StrCat(address.substr(0, address.rfind(':')), ":", ports[i]));
    }
  }
  self->SetServing(false);
  return self;
}

Server::~Server() {
  if (server_ != nullptr) Shutdown(absl::ZeroDuration());
}

void Server::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

void Server::Shutdown(absl::Duration grace) {
  if (answers_ != nullptr) answers_->AwaitNone(grace);
  server_->GetHealthCheckService()->Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
  server_->Wait();
}

}  // namespace withy::rpc
