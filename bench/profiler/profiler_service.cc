#include "bench/profiler/profiler_service.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "bench/service/prompt_wire.h"
#include "bench/service/service_client.h"
#include "offline/corpus/generator.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kCall = absl::Minutes(2);

std::string ConfigOf(const std::string& model, int threads) {
  std::string target = absl::StrCat("threads: ", threads, " idle_upgrade_s: 0");
  if (!model.empty()) absl::StrAppend(&target, " path: \"", model, "\"");
  return absl::StrCat("log_level: \"warn\"\norchestrator { tlm_path: \"off\" audit_off: true }\n",
                      "model { ", target, " }\ndraft { threads: ", threads, " }\n",
                      "profiler { metrics_listen: \"off\" }\n");
}

const corpus::Generator& Prompts() {
  static const corpus::Generator generator(corpus::HeldOutSpec());
  return generator;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProfiledService>> ProfiledService::Start(const std::string& model,
                                                                        int threads) {
  std::unique_ptr<ProfiledService> service(new ProfiledService());
  service->threads_ = threads;
  WITHY_ASSIGN_OR_RETURN(service->directory_, TemporaryDirectory::Create("withy-profiler"));
  WITHY_ASSIGN_OR_RETURN(Processes processes,
                         Processes::Create(service->directory_.path(), ConfigOf(model, threads)));
  service->processes_ = std::make_unique<Processes>(std::move(processes));
  for (const std::string& name : kAllProcesses) {
    WITHY_RETURN_IF_ERROR(service->processes_->Start(name));
  }
  service->stub_ = v1::LlmService::NewStub(
      rpc::Connect("unix:" + service->processes_->run_dir() + "/withy.sock"));
  WITHY_ASSIGN_OR_RETURN(service->token_, BindNewApp(*service->stub_, "bench"));
  WITHY_RETURN_IF_ERROR(
      AwaitAnswer(*service->processes_, [&] { return service->Ask(0, {}).status(); }));
  return service;
}

absl::StatusOr<ProfiledService::Answer> ProfiledService::Ask(uint64_t prompt, const v1::Slo& slo,
                                                             uint32_t level_percent) {
  v1::GenerateRequest request;
  FillPrompt(Prompts().At(prompt), request.mutable_prompt());
  request.mutable_limits()->set_max_tokens(32);
  request.mutable_sampling()->set_temperature(0);
  *request.mutable_slo() = slo;
  request.set_model_level_percent(level_percent);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token_);
  rpc::SetTimeout(&context, kCall);
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  Answer answer;
  while (reader->Read(&response)) {
    if (response.has_started()) {
      const v1::Decision& decision = response.started().decision();
      answer.level_percent = decision.model_level_percent();
      answer.predicted_ttft_ms = decision.predicted().ttft_ms();
      answer.predicted_tpot_ms = decision.predicted().tpot_ms();
    }
    if (!response.has_finished()) continue;
    const v1::LatencyReport& report = response.finished().latency();
    answer.ttft_ms = report.measured().ttft_ms();
    answer.tpot_ms = report.measured().tpot_ms();
    answer.in_time = report.slo_met();
  }
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish()));
  return answer;
}

// User and system time of profiler_agent so far.
absl::StatusOr<double> ProfiledService::AgentCpuSeconds() const {
  const std::string path = absl::StrCat("/proc/", processes_->pid("profiler_agent"), "/stat");
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return absl::UnavailableError("cannot read " + path);
  // Behind the name in parentheses: state is field 3, user and system time are 14 and 15.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  double ticks = 0;
  for (int number = 3; number <= 15 && fields >> field; ++number) {
    if (number >= 14) ticks += std::stod(field);
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

absl::StatusOr<AgentFigures> ProfiledService::MeasureAgent(absl::Duration each) {
  AgentFigures figures;
  const double seconds = absl::ToDoubleSeconds(each);
  absl::SleepFor(absl::Seconds(1));
  WITHY_ASSIGN_OR_RETURN(double before, AgentCpuSeconds());
  absl::SleepFor(each);
  WITHY_ASSIGN_OR_RETURN(double after, AgentCpuSeconds());
  figures.core_idle = (after - before) / seconds;

  std::atomic<bool> stop{false};
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> callers;
  before = after;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      while (!stop) Ask(next++, {}).IgnoreError();
    });
  }
  absl::SleepFor(each);
  const absl::StatusOr<double> loaded = AgentCpuSeconds();
  stop = true;
  for (std::thread& caller : callers) caller.join();
  WITHY_RETURN_IF_ERROR(loaded.status());
  figures.core_load = (*loaded - before) / seconds;
  figures.calls = next;

  const auto profiler =
      v1::Profiler::NewStub(rpc::Connect("unix:" + processes_->run_dir() + "/profiler_agent.sock"));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kCall);
  v1::GetProfilerInfoResponse info;
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(profiler->GetProfilerInfo(&context, {}, &info)));
  figures.spans = info.spans();
  figures.dropped = info.dropped_spans();
  return figures;
}

absl::StatusOr<uint32_t> ProfiledService::LowestLevel() {
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token_);
  rpc::SetTimeout(&context, kCall);
  v1::ListModelsResponse models;
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(stub_->ListModels(&context, {}, &models)));
  uint32_t lowest = 100;
  for (const v1::ModelDescription& model : models.models()) {
    if (model.role() != "target") continue;
    for (const uint32_t percent : model.levels_percent()) lowest = std::min(lowest, percent);
  }
  return lowest;
}

}  // namespace withy::bench
