#include "bench/profiler/profiler_service.h"

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
#include "offline/corpus/generator.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kCall = absl::Minutes(2);

const corpus::Generator& Prompts() {
  static const corpus::Generator generator(corpus::HeldOutSpec());
  return generator;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProfiledService>> ProfiledService::Start(const std::string& model,
                                                                        int threads) {
  std::unique_ptr<ProfiledService> service(new ProfiledService());
  service->threads_ = threads;
  const std::string shared = absl::StrCat("threads: ", threads);
  std::string target = shared;
  if (!model.empty()) absl::StrAppend(&target, " path: \"", model, "\"");
  WITHY_ASSIGN_OR_RETURN(service->service_, OwnService::Start({.model = target, .draft = shared}));
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
  WITHY_ASSIGN_OR_RETURN(const ServedAnswer served, service_->Ask(request));
  const v1::LatencyReport& report = served.finished.latency();
  return Answer{.ttft_ms = report.measured().ttft_ms(),
                .tpot_ms = report.measured().tpot_ms(),
                .level_percent = served.decision.model_level_percent(),
                .predicted_ttft_ms = served.decision.predicted().ttft_ms(),
                .predicted_tpot_ms = served.decision.predicted().tpot_ms(),
                .in_time = report.slo_met()};
}

// User and system time of profiler_agent so far.
absl::StatusOr<double> ProfiledService::AgentCpuSeconds() const {
  const std::string path =
      absl::StrCat("/proc/", service_->processes().pid("profiler_agent"), "/stat");
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

  const auto profiler = v1::Profiler::NewStub(
      rpc::Connect("unix:" + service_->processes().run_dir() + "/profiler_agent.sock"));
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
  service_->Prepare(&context);
  v1::ListModelsResponse models;
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(service_->stub().ListModels(&context, {}, &models)));
  uint32_t lowest = 100;
  for (const v1::ModelDescription& model : models.models()) {
    if (model.role() != "target") continue;
    for (const uint32_t percent : model.levels_percent()) lowest = std::min(lowest, percent);
  }
  return lowest;
}

}  // namespace withy::bench
