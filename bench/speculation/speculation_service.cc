#include "bench/speculation/speculation_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "bench/service/service_client.h"
#include "rpc/channel.h"
#include "rpc/status.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kCall = absl::Minutes(5);

std::string ModelConfig(const std::string& path, const SpeculationServiceOptions& options) {
  std::string config = absl::StrCat("threads: ", options.threads, " idle_upgrade_s: 0");
  if (!path.empty()) absl::StrAppend(&config, " path: \"", path, "\"");
  return config;
}

std::string ConfigOf(const SpeculationServiceOptions& options) {
  std::string target = ModelConfig(options.model, options);
  if (options.tree_rows > 0) absl::StrAppend(&target, " tree_rows: ", options.tree_rows);
  if (options.weight_budget_bytes > 0) {
    absl::StrAppend(&target, " weight_budget_bytes: ", options.weight_budget_bytes);
  }
  if (!options.windows) absl::StrAppend(&target, " speculation_windows_off: true");
  if (options.always) absl::StrAppend(&target, " speculate_always: true");
  return absl::StrCat(
      "log_level: \"warn\"\norchestrator { tlm_path: \"off\" audit_off: true probe_off: true }\n",
      "model { ", target, " }\ndraft { ", ModelConfig(options.draft, options), " }\n",
      "profiler { metrics_listen: \"off\" }\n");
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpeculationService>> SpeculationService::Start(
    const SpeculationServiceOptions& options) {
  std::unique_ptr<SpeculationService> service(new SpeculationService());
  WITHY_ASSIGN_OR_RETURN(service->directory_, TemporaryDirectory::Create("withy-speculation"));
  WITHY_ASSIGN_OR_RETURN(Processes processes,
                         Processes::Create(service->directory_.path(), ConfigOf(options)));
  service->processes_ = std::make_unique<Processes>(std::move(processes));
  if (!options.packed_dir.empty()) {
    namespace fs = std::filesystem;
    const fs::path state = service->processes_->state_dir();
    fs::create_directories(state);
    fs::permissions(state, fs::perms::owner_all);
    fs::create_directories(options.packed_dir);
    fs::create_directory_symlink(fs::absolute(options.packed_dir), state / "packed");
  }
  for (const std::string& name : kAllProcesses) {
    WITHY_RETURN_IF_ERROR(service->processes_->Start(name));
  }
  service->stub_ = v1::LlmService::NewStub(
      rpc::Connect("unix:" + service->processes_->run_dir() + "/withy.sock"));
  WITHY_RETURN_IF_ERROR(service->ChangeApp());
  v1::GenerateRequest hello;
  hello.mutable_prompt()->set_text("hello");
  hello.mutable_limits()->set_max_tokens(4);
  WITHY_RETURN_IF_ERROR(
      AwaitAnswer(*service->processes_, [&] { return service->Ask(hello).status(); }));
  return service;
}

absl::Status SpeculationService::ChangeApp() {
  WITHY_ASSIGN_OR_RETURN(token_, BindNewApp(*stub_, absl::StrCat("bench", apps_++)));
  return absl::OkStatus();
}

absl::StatusOr<SpeculationAnswer> SpeculationService::Ask(const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token_);
  rpc::SetTimeout(&context, kCall);
  const auto reader = stub_->Generate(&context, request);
  SpeculationAnswer answer;
  int64_t first_ns = 0, last_ns = 0;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.delta().tokens_size() > 0) {
      last_ns = Clock::Real().SteadyNanos();
      if (first_ns == 0) first_ns = last_ns;
    }
    for (const v1::Token& token : response.delta().tokens()) answer.tokens.push_back(token.id());
    if (response.has_finished()) {
      answer.text = response.finished().text();
      answer.report = response.finished().speculation();
    }
  }
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish()));
  answer.decode_ms = Millis(last_ns - first_ns);
  return answer;
}

}  // namespace withy::bench
