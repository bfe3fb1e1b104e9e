#include "rpc/stand_in.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "rpc/error_reason.h"
#include "rpc/status.h"

namespace withy::rpc {
namespace {

constexpr int64_t kRetryMs = 2000;

// Owns itself until gRPC is done with it.
class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const absl::Status& status) { Finish(ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

class StandIn::Service final : public grpc::CallbackGenericService {
 public:
  explicit Service(std::string reason) : reason_(std::move(reason)) {}
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const absl::Status status = WithReason(
        WithRetryAfter(absl::UnavailableError(reason()), kRetryMs), "PROCESS_CANNOT_START");
    AddRetryHint(status, context);
    context->AddTrailingMetadata(kStandInKey, "1");
    return new Refusal(status);
  }

  void SetReason(std::string reason) {
    const absl::MutexLock lock(&mutex_);
    reason_ = std::move(reason);
  }

 private:
  std::string reason() const {
    const absl::MutexLock lock(&mutex_);
    return reason_;
  }

  mutable absl::Mutex mutex_;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
};

StandIn::StandIn(std::string reason) : service_(std::make_unique<Service>(std::move(reason))) {}
StandIn::~StandIn() { server_.reset(); }
void StandIn::SetReason(std::string reason) { service_->SetReason(std::move(reason)); }

absl::StatusOr<std::unique_ptr<StandIn>> StandIn::Start(ServerOptions options, std::string reason) {
  std::unique_ptr<StandIn> stand_in(new StandIn(std::move(reason)));
  options.all_else = stand_in->service_.get();
  WITHY_ASSIGN_OR_RETURN(stand_in->server_, Server::Start(options, {}));
  return stand_in;
}

}  // namespace withy::rpc
