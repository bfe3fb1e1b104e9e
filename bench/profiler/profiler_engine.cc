#include "bench/profiler/profiler_engine.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "bench/profiler/raw_clock.h"
#include "engine/sampling/sampler.h"

namespace withy::bench {
namespace {

using telemetry::Phase;

constexpr int32_t kTokens = 2048;  // of the context

}  // namespace

absl::StatusOr<std::unique_ptr<ProfiledEngine>> ProfiledEngine::Open(const std::string& model,
                                                                     const std::string& directory,
                                                                     const std::string& cache_dir,
                                                                     int threads) {
  std::unique_ptr<ProfiledEngine> profiled(new ProfiledEngine());
  WITHY_ASSIGN_OR_RETURN(
      profiled->recorder_,
      telemetry::Recorder::Open(directory + "/rings", "bench", {.ring_capacity = 65536}));
  WITHY_ASSIGN_OR_RETURN(profiled->reader_, telemetry::Reader::Open(directory + "/rings"));
  profiled->kernels_ = std::make_unique<engine::KernelSpans>(*profiled->recorder_);
  engine::ModelOptions options;
  options.threads = threads;
  options.cache_dir = cache_dir;
  options.kernel_observer = profiled->kernels_.get();
  WITHY_ASSIGN_OR_RETURN(profiled->model_, engine::Model::Open(model, options));
  profiled->model_->PinThreads();
  const engine::ModelInfo& info = profiled->model_->info();
  profiled->kernels_->set_layers(info.layers);
  profiled->kv_ = std::make_unique<engine::ScratchKv>(info, std::min(kTokens, info.context_length));
  profiled->logits_.resize(static_cast<size_t>(info.vocab_size));
  return profiled;
}

void ProfiledEngine::Drain() {
  reader_->Drain([](const telemetry::SpanEvent&) {});
}

// One pass as a worker computes it, with the spans that it records.
absl::Status ProfiledEngine::Pass(const std::vector<engine::Row>& rows, Phase phase,
                                  bool profiled) {
  const engine::ContextView view = kv_->View();
  const engine::Batch batch{.rows = rows, .contexts = {&view, 1}, .tag = {1, ++passes_}};
  if (!profiled) return model_->Forward(batch, logits_.data());
  telemetry::ScopedSpan span(*recorder_, phase, 1, passes_);
  span.set_value(rows.size());
  WITHY_RETURN_IF_ERROR(model_->Forward(batch, logits_.data()));
  span.End();
  telemetry::SpanChain chain(*recorder_, 1);
  chain.End(Phase::kSampling, passes_, 1);
  chain.End(Phase::kStream, passes_, 1);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ProfiledEngine::Prefill(int32_t rows, bool profiled) {
  kernels_->Watch(profiled);
  std::vector<engine::Row> batch;
  for (int32_t i = 0; i < rows; ++i) {
    batch.push_back({.token = static_cast<int32_t>(++tokens_ * 7 % 1000),
                     .position = i,
                     .slot = i,
                     .want_logits = i + 1 == rows});
  }
  const int64_t started = RawNanos();
  WITHY_RETURN_IF_ERROR(Pass(batch, Phase::kPrefill, profiled));
  const int64_t took = RawNanos() - started;
  Drain();
  return took;
}

absl::StatusOr<int64_t> ProfiledEngine::Decode(int32_t steps, int32_t depth, bool profiled) {
  kernels_->Watch(profiled);
  std::vector<engine::Row> row(1);
  const int64_t started = RawNanos();
  for (int32_t i = 0; i < steps; ++i) {
    row[0] = {.token = static_cast<int32_t>(++tokens_ * 7 % 1000),
              .position = depth + i,
              .slot = depth + i,
              .want_logits = true};
    WITHY_RETURN_IF_ERROR(Pass(row, Phase::kDecode, profiled));
  }
  const int64_t took = RawNanos() - started;
  Drain();
  return took;
}

absl::StatusOr<MeanBound> ProfiledEngine::PrefillOverhead(int32_t rows, int pairs) {
  std::vector<double> shares;
  for (int pair = 0; pair < pairs; ++pair) {
    int64_t took[2];
    for (const int turn : {0, 1}) {
      const int on = (turn + pair) % 2;
      WITHY_ASSIGN_OR_RETURN(took[on], Prefill(rows, on == 1));
    }
    if (pair > 0) shares.push_back(static_cast<double>(took[1]) / static_cast<double>(took[0]) - 1);
  }
  return TrimmedMean(std::move(shares));
}

absl::StatusOr<MeanBound> ProfiledEngine::DecodeOverhead(int32_t steps, int32_t depth, int pairs) {
  std::vector<double> shares;
  for (int pair = 0; pair < pairs; ++pair) {
    int64_t took[2];
    for (const int turn : {0, 1}) {
      const int on = (turn + pair) % 2;
      WITHY_ASSIGN_OR_RETURN(took[on], Decode(steps, depth, on == 1));
    }
    if (pair > 0) shares.push_back(static_cast<double>(took[1]) / static_cast<double>(took[0]) - 1);
  }
  return TrimmedMean(std::move(shares));
}

absl::StatusOr<ProfiledEngine::PhaseAccuracy> ProfiledEngine::PassAccuracy(Phase phase,
                                                                           int32_t rows,
                                                                           int count) {
  kernels_->Watch(false);
  std::vector<engine::Row> batch;
  for (int32_t i = 0; i < rows; ++i) {
    batch.push_back(
        {.token = (i * 7 + 3) % 1000, .position = i, .slot = i, .want_logits = i + 1 == rows});
  }
  const engine::ContextView view = kv_->View();
  int64_t total = 0, spans = 0, seen = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t started = RawNanos();
    {
      const telemetry::ScopedSpan span(*recorder_, phase, 1, static_cast<uint32_t>(i));
      WITHY_RETURN_IF_ERROR(
          model_->Forward({.rows = batch, .contexts = {&view, 1}}, logits_.data()));
    }
    total += RawNanos() - started;
    reader_->Drain([&](const telemetry::SpanEvent& event) {
      spans += event.span.ended_ns - event.span.started_ns;
      ++seen;
    });
  }
  if (seen == 0) return absl::InternalError("no span of a phase arrived");
  return PhaseAccuracy{.name = std::string(telemetry::PhaseName(phase)),
                       .truth_us = static_cast<double>(total) / 1e3 / count,
                       .measured_us = static_cast<double>(spans) / 1e3 / static_cast<double>(seen)};
}

// The parts of sampling, timed by the spans' clock and by steady_clock in turn.
std::vector<ProfiledEngine::PhaseAccuracy> ProfiledEngine::SamplingAccuracy(int count) {
  engine::SamplingParams params{.temperature = 0.8f, .repetition_penalty = 1.1f};
  auto sampler = engine::Sampler::Create(params);
  const std::vector<int32_t> history = {1, 2, 3};
  std::vector<double> copies[2], softmaxes[2], picks[2];
  for (int i = 0; i < 2 * count; ++i) {
    const auto clock = static_cast<size_t>(i % 2);
    engine::PickTimes times{.clock = clock == 0 ? recorder_->clock() : TickClock()};
    const ClockPair before = ReadClockPair();
    const int64_t started = times.clock.Now();
    if (!sampler->Pick(logits_, static_cast<uint64_t>(i), history, &times).ok()) continue;
    const int64_t ended = times.clock.Now();
    const ClockPair after = ReadClockPair();
    const double ns_per_tick = clock == 1 || !times.clock.is_counter()
                                   ? 1
                                   : static_cast<double>(after.steady_ns - before.steady_ns) /
                                         static_cast<double>(after.ticks - before.ticks);
    const auto us = [&](int64_t from, int64_t to) {
      return static_cast<double>(to - from) * ns_per_tick / 1e3;
    };
    copies[clock].push_back(us(times.copy_started, times.copy_ended));
    softmaxes[clock].push_back(us(times.softmax_started, times.softmax_ended));
    picks[clock].push_back(us(started, ended));
  }
  const auto accuracy = [](Phase phase, const std::vector<double>(&samples)[2]) {
    return PhaseAccuracy{.name = std::string(telemetry::PhaseName(phase)),
                         .truth_us = TrimmedMean(samples[1]).mean,
                         .measured_us = TrimmedMean(samples[0]).mean};
  };
  return {accuracy(Phase::kCopyProbs, copies), accuracy(Phase::kSoftmax, softmaxes),
          accuracy(Phase::kSampling, picks)};
}

absl::StatusOr<std::vector<ProfiledEngine::PhaseAccuracy>> ProfiledEngine::Phases(int count) {
  std::vector<PhaseAccuracy> phases;
  const struct {
    Phase phase;
    int32_t rows;
    int share;  // of count: long passes are exact after a few
  } passes[] = {{Phase::kPrefill, 128, 20}, {Phase::kDecode, 1, 2}, {Phase::kVerify, 8, 4}};
  for (const auto& [phase, rows, share] : passes) {
    WITHY_ASSIGN_OR_RETURN(PhaseAccuracy accuracy,
                           PassAccuracy(phase, rows, std::max(count / share, 10)));
    phases.push_back(std::move(accuracy));
  }
  for (PhaseAccuracy& accuracy : SamplingAccuracy(count)) phases.push_back(std::move(accuracy));
  return phases;
}

}  // namespace withy::bench
