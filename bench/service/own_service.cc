#include "bench/service/own_service.h"

#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/status.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kStart = absl::Minutes(3);  // packs a model, too
constexpr absl::Duration kPoll = absl::Milliseconds(100);
constexpr absl::Duration kCall = absl::Minutes(10);

std::string ConfigOf(const OwnServiceOptions& options) {
  return absl::StrCat("log_level: \"warn\"\norchestrator { tlm_path: \"off\" audit_off: true ",
                      options.orchestrator, " }\nmodel { idle_upgrade_s: 0 ", options.model,
                      " }\ndraft { ", options.draft, " }\nstore { ", options.store,
                      " }\nprofiler { metrics_listen: \"off\" }\n");
}

// Packed files are looked for in, and written to, `packed_dir`.
void KeepPackedFiles(const std::string& packed_dir, const std::string& state_dir) {
  namespace fs = std::filesystem;
  const fs::path state = state_dir;
  fs::create_directories(state);
  fs::permissions(state, fs::perms::owner_all);
  fs::create_directories(packed_dir);
  fs::create_directory_symlink(fs::absolute(packed_dir), state / "packed");
}

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

absl::StatusOr<std::unique_ptr<OwnService>> OwnService::Start(const OwnServiceOptions& options) {
  std::unique_ptr<OwnService> service(new OwnService());
  WITHY_ASSIGN_OR_RETURN(service->directory_, TemporaryDirectory::Create("withy-service"));
  WITHY_ASSIGN_OR_RETURN(Processes processes,
                         Processes::Create(service->directory_.path(), ConfigOf(options)));
  service->processes_ = std::make_unique<Processes>(std::move(processes));
  service->processes_->set_environment(options.environment);
  for (const auto& [process, program] : options.programs) {
    service->processes_->Use(process, program);
  }
  if (!options.packed_dir.empty()) {
    KeepPackedFiles(options.packed_dir, service->processes_->state_dir());
  }
  WITHY_RETURN_IF_ERROR(service->StartAll());
  WITHY_RETURN_IF_ERROR(service->ChangeApp());
  const absl::Status answered =
      AwaitAvailable([&] { return service->Ask(GreedyRequest("hello", 4)).status(); });
  if (answered.ok()) return service;
  return Annotate(answered,
                  absl::StrCat("model_worker says ", service->processes_->LogTail("model_worker")));
}

absl::Status OwnService::StartAll() {
  for (const std::string& name : kAllProcesses) WITHY_RETURN_IF_ERROR(processes_->Start(name));
  stub_ = v1::LlmService::NewStub(rpc::Connect("unix:" + processes_->run_dir() + "/withy.sock"));
  return absl::OkStatus();
}

absl::Status OwnService::Restart() {
  for (const std::string& name : kAllProcesses) processes_->Kill(name);
  WITHY_RETURN_IF_ERROR(StartAll());
  return AwaitServing();
}

absl::Status OwnService::AwaitServing() {
  constexpr absl::Duration kLook = absl::Milliseconds(20);
  const absl::Time end = absl::Now() + kStart;
  while (absl::Now() < end) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(5));
    context.set_wait_for_ready(true);
    v1::GetStatusResponse response;
    size_t serving = 0;
    if (stub_->GetStatus(&context, {}, &response).ok()) {
      for (const v1::ProcessState& state : response.processes()) {
        serving += state.health() == "serving" || state.process() == "draft_worker" ? 1 : 0;
      }
    }
    if (serving == kAllProcesses.size()) return absl::OkStatus();
    absl::SleepFor(kLook);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the service does not serve after ", absl::FormatDuration(kStart),
                   "; model_worker: ", processes_->LogTail("model_worker")));
}

absl::Status OwnService::ChangeApp() {
  v1::BindAppRequest request;
  request.set_app(absl::StrCat("bench", apps_++));
  v1::BindAppResponse response;
  WITHY_RETURN_IF_ERROR(AwaitAvailable([&] {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kStart);
    context.set_wait_for_ready(true);
    return rpc::FromGrpc(stub_->BindApp(&context, request, &response));
  }));
  token_ = response.token();
  return absl::OkStatus();
}

void OwnService::Prepare(grpc::ClientContext* context) const {
  context->AddMetadata("authorization", "Bearer " + token_);
  rpc::SetTimeout(context, kCall);
}

absl::StatusOr<ServedAnswer> OwnService::Ask(const v1::GenerateRequest& request) {
  return AskService(*stub_, token_, request);
}

}  // namespace withy::bench
