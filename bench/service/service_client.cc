#include "bench/service/service_client.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/status.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kStart = absl::Minutes(3);  // packs a model, too
constexpr absl::Duration kPoll = absl::Milliseconds(100);

// Asks until the answer is something else than UNAVAILABLE.
absl::Status AwaitAvailable(const std::function<absl::Status()>& ask) {
  const absl::Time end = absl::Now() + kStart;
  while (true) {
    absl::Status status = ask();
    if (!absl::IsUnavailable(status) || absl::Now() > end) return status;
    absl::SleepFor(kPoll);
  }
}

}  // namespace

absl::StatusOr<std::string> BindNewApp(v1::LlmService::Stub& stub, const std::string& app) {
  v1::BindAppRequest request;
  request.set_app(app);
  v1::BindAppResponse response;
  WITHY_RETURN_IF_ERROR(AwaitAvailable([&] {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kStart);
    context.set_wait_for_ready(true);
    return rpc::FromGrpc(stub.BindApp(&context, request, &response));
  }));
  return response.token();
}

absl::Status AwaitAnswer(const Processes& processes, const std::function<absl::Status()>& ask) {
  const absl::Status status = AwaitAvailable(ask);
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat("model_worker says ", processes.LogTail("model_worker")));
}

}  // namespace withy::bench
