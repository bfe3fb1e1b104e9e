#include "bench/slo/slo_replay.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "bench/samples.h"
#include "bench/service/prompt_wire.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "wire/decision.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(5);

v1::GenerateRequest RequestFor(const corpus::Record& record, uint32_t max_tokens,
                               const policy::Slo& slo) {
  v1::GenerateRequest request;
  FillPrompt(record, request.mutable_prompt());
  request.mutable_limits()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.set_speculation(v1::SPECULATION_OFF);
  *request.mutable_slo() = wire::ToWire(slo);
  return request;
}

// One answer as its caller saw it.
struct Seen {
  absl::Status status;
  std::string text;
  uint32_t tokens = 0;
  double ttft_ms = 0;
  double tpot_ms = 0;
  double end_to_end_ms = 0;
  v1::Decision decision;
  v1::GenerateFinished finished;
};

// An app and its connection.
struct App {
  std::unique_ptr<v1::LlmService::Stub> stub;
  std::string token;
};

std::vector<App> ConnectApps(const ServiceAddress& service) {
  std::vector<App> apps;
  for (const std::string& token : service.tokens) {
    const std::shared_ptr<grpc::Channel> channel = rpc::Connect(service.address);
    // A service that is not there fails the first call, which says why.
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(10));
    apps.push_back({v1::LlmService::NewStub(channel), token});
  }
  return apps;
}

Seen Ask(const App& app, const v1::GenerateRequest& request) {
  Seen seen;
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + app.token);
  rpc::SetTimeout(&context, kTimeout);
  const int64_t start = Clock::Real().SteadyNanos();
  int64_t first = 0, last = start;
  const auto reader = app.stub->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_started()) seen.decision = response.started().decision();
    if (response.has_delta() && response.delta().tokens_size() > 0) {
      last = Clock::Real().SteadyNanos();
      if (first == 0) first = last;
      seen.tokens += static_cast<uint32_t>(response.delta().tokens_size());
    }
    if (response.has_finished()) seen.finished = std::move(*response.mutable_finished());
  }
  seen.status = rpc::FromGrpc(reader->Finish());
  if (first == 0) first = last = Clock::Real().SteadyNanos();
  seen.text = seen.finished.text();
  seen.ttft_ms = Millis(first - start);
  seen.tpot_ms = seen.tokens > 1 ? Millis(last - first) / (seen.tokens - 1) : 0;
  seen.end_to_end_ms = Millis(last - start);
  return seen;
}

ReplayOutcome ToOutcome(const Seen& seen, const corpus::Record& record) {
  ReplayOutcome out;
  out.failed = !seen.status.ok();
  out.caller.ttft_ms = seen.ttft_ms;
  out.caller.tpot_ms = seen.tpot_ms;
  out.caller.end_to_end_ms = seen.end_to_end_ms;
  out.caller.tlm_ms = seen.finished.latency().tlm_ms();
  out.caller.right = !out.failed && seen.text == record.answer;
  out.caller.prompt_percent = seen.decision.prompt_level_percent();
  out.caller.model_percent = seen.decision.model_level_percent();
  out.caller.fell = seen.finished.model_levels_percent_size() > 1;
  out.model_percents.assign(seen.finished.model_levels_percent().begin(),
                            seen.finished.model_levels_percent().end());
  out.decision = seen.decision;
  out.by_service = seen.finished.latency();
  out.tokens = seen.tokens;
  return out;
}

// Straight line (at 0, slope) through points: medians of the slopes of all pairs and of what is
// left (Theil and Sen), so that a disturbed call does not tilt it.
std::pair<double, double> FitLine(const std::vector<std::pair<double, double>>& points) {
  std::vector<double> slopes, rests;
  for (size_t i = 0; i < points.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double dx = points[i].first - points[j].first;
      if (dx != 0) slopes.push_back((points[i].second - points[j].second) / dx);
    }
  }
  const double slope = std::max(0.0, Summarize(slopes).median);
  for (const auto& [x, y] : points) rests.push_back(y - slope * x);
  return {Summarize(rests).median, slope};
}

}  // namespace

double ServiceTimes::OverheadMs() const { return Summarize(overhead_ms).median; }

policy::Latency ServiceTimes::Idle(const PromptFacts& prompt, uint32_t answer_tokens) const {
  constexpr size_t kNearest = 15;
  const double overhead = OverheadMs();
  std::vector<std::pair<double, double>> nearest = ttft_ms;
  std::sort(nearest.begin(), nearest.end(), [&](const auto& a, const auto& b) {
    return std::abs(a.first - prompt.tokens) < std::abs(b.first - prompt.tokens);
  });
  nearest.resize(std::min(nearest.size(), kNearest));
  std::vector<double> token_ms;
  for (const auto& [tokens, ms] : nearest) token_ms.push_back((ms - overhead) / tokens);
  const auto [ramp_ms, step_ms] = FitLine(decode_ms);
  const double steps = std::max(answer_tokens, 2u) - 1.0;
  policy::Latency idle;
  idle.ttft_ms = overhead + prompt.tokens * Summarize(token_ms).median;
  idle.tpot_ms = step_ms + ramp_ms / steps;
  idle.end_to_end_ms = idle.ttft_ms + steps * idle.tpot_ms;
  return idle;
}

absl::StatusOr<ServiceTimes> MeasureService(const ServiceAddress& service, const PromptSet& prompts,
                                            size_t count) {
  const std::vector<App> apps = ConnectApps(service);
  ServiceTimes times;
  const size_t step = std::max<size_t>(1, prompts.prompts.size() / count);
  // The first call warms everything up.
  for (size_t i = 0, asked = 0; i < prompts.prompts.size(); i += step, ++asked) {
    const Seen seen = Ask(apps[service.AppOf(prompts, i)],
                          RequestFor(prompts.prompts[i].record, prompts.max_tokens, {}));
    WITHY_RETURN_IF_ERROR(seen.status);
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(seen.end_to_end_ms));
    if (asked == 0) continue;
    times.ttft_ms.emplace_back(prompts.facts[i].tokens, seen.ttft_ms);
    times.overhead_ms.push_back(seen.ttft_ms - seen.finished.latency().prefill_ms());
    if (seen.tokens > 1)
      times.decode_ms.emplace_back(seen.tokens - 1, seen.end_to_end_ms - seen.ttft_ms);
  }
  return times;
}

policy::Latency IdleBetween(const ServiceTimes& before, const ServiceTimes& after,
                            const PromptFacts& prompt, uint32_t answer_tokens) {
  const policy::Latency a = before.Idle(prompt, answer_tokens);
  const policy::Latency b = after.Idle(prompt, answer_tokens);
  return {.ttft_ms = (a.ttft_ms + b.ttft_ms) / 2,
          .tpot_ms = (a.tpot_ms + b.tpot_ms) / 2,
          .end_to_end_ms = (a.end_to_end_ms + b.end_to_end_ms) / 2};
}

void Judge(const SloCall& call, const policy::Latency& full, ReplayOutcome* outcome) {
  SloOutcome& caller = outcome->caller;
  caller.met = !outcome->failed &&
               MeetsSlo(call.slo, full, {caller.ttft_ms, caller.tpot_ms, caller.end_to_end_ms});
}

std::vector<ReplayOutcome> Replay(const ServiceAddress& service, const PromptSet& prompts,
                                  std::span<const SloCall> calls,
                                  const std::function<void(size_t, size_t)>& progress) {
  constexpr auto kStartsIn = std::chrono::milliseconds(500);
  constexpr auto kProgressEach = std::chrono::milliseconds(200);
  const std::vector<App> apps = ConnectApps(service);
  std::vector<ReplayOutcome> outcomes(calls.size());
  std::vector<std::thread> threads;
  std::atomic<size_t> done = 0;
  std::mutex told_mutex;
  bool told = false;
  const auto start = std::chrono::steady_clock::now() + kStartsIn;
  for (size_t i = 0; i < calls.size(); ++i) {
    const corpus::Record& record = prompts.prompts[calls[i].prompt].record;
    threads.emplace_back([&, i, request = RequestFor(record, calls[i].max_tokens, calls[i].slo)] {
      std::this_thread::sleep_until(
          start + std::chrono::nanoseconds(static_cast<int64_t>(calls[i].arrival_ms * 1e6)));
      const Seen seen = Ask(apps[service.AppOf(prompts, calls[i].prompt)], request);
      outcomes[i] = ToOutcome(seen, prompts.prompts[calls[i].prompt].record);
      ++done;
      if (seen.status.ok()) return;
      const std::lock_guard<std::mutex> lock(told_mutex);
      if (!told) std::fprintf(stderr, "a call failed: %s\n", seen.status.ToString().c_str());
      told = true;
    });
  }
  while (progress && done < calls.size()) {
    progress(done, calls.size());
    std::this_thread::sleep_for(kProgressEach);
  }
  for (std::thread& thread : threads) thread.join();
  if (progress) progress(done, calls.size());
  return outcomes;
}

}  // namespace withy::bench
