#include "bench/profiler_service.h"

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
#include "bench/engine_bench.h"
#include "bench/profiler_figures.h"
#include "bench/prompt_wire.h"
#include "bench/service_client.h"
#include "offline/corpus/generator.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kCall = absl::Minutes(2);
constexpr size_t kWindow = 10;  // calls by which attainment is judged

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

absl::StatusOr<ProfiledService::Answer> ProfiledService::Ask(uint64_t prompt, const v1::Slo& slo) {
  v1::GenerateRequest request;
  FillPrompt(Prompts().At(prompt), request.mutable_prompt());
  request.mutable_limits()->set_max_tokens(32);
  request.mutable_sampling()->set_temperature(0);
  *request.mutable_slo() = slo;
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token_);
  rpc::SetTimeout(&context, kCall);
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  Answer answer;
  while (reader->Read(&response)) {
    if (!response.has_finished()) continue;
    const v1::LatencyReport& report = response.finished().latency();
    answer = {report.measured().ttft_ms(), report.measured().tpot_ms(), report.slo_met()};
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

// An SLO that the full model meets on the free board with some room.
absl::StatusOr<v1::Slo> ProfiledService::FindSlo() {
  std::vector<double> ttft, tpot;
  for (uint64_t prompt = 0; prompt < 40; ++prompt) {
    WITHY_ASSIGN_OR_RETURN(const Answer answer, Ask(prompt, {}));
    ttft.push_back(answer.ttft_ms);
    if (answer.tpot_ms > 0) tpot.push_back(answer.tpot_ms);
  }
  v1::Slo slo;
  slo.set_ttft_ms(1.3 * Quantile(ttft, 0.9));
  slo.set_tpot_ms(1.3 * Quantile(tpot, 0.9));
  return slo;
}

absl::StatusOr<RecoveryFigures> ProfiledService::MeasureRecovery(int before) {
  WITHY_ASSIGN_OR_RETURN(const v1::Slo slo, FindSlo());
  RecoveryFigures figures;
  std::vector<std::unique_ptr<BusyNeighbour>> neighbours;
  for (int i = 0; i < 2 * before; ++i) {
    while (i >= before && static_cast<int>(neighbours.size()) < threads_) {
      WITHY_ASSIGN_OR_RETURN(auto neighbour, BusyNeighbour::Start());
      neighbours.push_back(std::move(neighbour));
    }
    WITHY_ASSIGN_OR_RETURN(const Answer answer, Ask(static_cast<uint64_t>(100 + i), slo));
    figures.in_time.push_back(answer.in_time);
  }
  const auto change = static_cast<size_t>(before);
  const auto share = [&](size_t from, size_t to) {
    const auto begin = figures.in_time.begin();
    const auto met =
        std::count(begin + static_cast<int64_t>(from), begin + static_cast<int64_t>(to), true);
    return to > from ? static_cast<double>(met) / static_cast<double>(to - from) : 0;
  };
  figures.attainment_before = share(0, change);
  figures.recovery_calls =
      RecoveryCalls(figures.in_time, change, kWindow, 0.9 * figures.attainment_before);
  figures.attainment_after = share(change + figures.recovery_calls, figures.in_time.size());
  return figures;
}

}  // namespace withy::bench
