#include "profiler_agent/exporter.h"

#include <prometheus/text_serializer.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::profiler_agent {
namespace {

using telemetry::MetricKind;
using telemetry::MetricSample;
using telemetry::SourceInfo;
using telemetry::SpanKind;
using telemetry::Unit;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const std::vector<PhaseRow>& phases, const std::vector<SourceInfo>& sources,
                 const std::vector<std::string>& known = {}) {
  return prometheus::TextSerializer().Serialize(
      MakeFamilies({.phases = phases, .sources = sources, .known_processes = known}));
}

PhaseRow Phase(const std::string& process, const std::string& name, SpanKind kind, int64_t ns) {
  PhaseRow row{process, name, kind, {}};
  row.histogram.Add(ns);
  return row;
}

MetricSample Sample(MetricKind kind, const std::string& name, int64_t value,
                    Unit unit = Unit::kOne) {
  return {kind, unit, name, "Help.", "", "", static_cast<uint64_t>(value)};
}

SourceInfo Source(const std::string& process, std::vector<MetricSample> metrics) {
  SourceInfo source;
  source.process = process;
  source.start_unix_ns = 1'700'000'000'000'000'000;
  source.metrics = std::move(metrics);
  return source;
}

TEST(ExporterTest, PhasesKernelsAndCallFigures) {
  const std::string text = Text({Phase("model_worker", "prefill", SpanKind::kPhase, 3'000'000),
                                 Phase("model_worker", "ttft", SpanKind::kPhase, 50'000'000),
                                 Phase("model_worker", "tpot", SpanKind::kPhase, 5'000'000),
                                 Phase("model_worker", "read", SpanKind::kIo, 5'000),
                                 Phase("model_worker", "gemm", SpanKind::kKernel, 20'000)},
                                {});
  EXPECT_THAT(text, HasSubstr("# TYPE withy_phase_duration_seconds histogram"));
  EXPECT_THAT(
      text,
      HasSubstr("withy_phase_duration_seconds_bucket{process=\"model_worker\",phase=\"prefill\","
                "le=\"0.0025\"} 0\n"));
  EXPECT_THAT(
      text,
      HasSubstr("withy_phase_duration_seconds_bucket{process=\"model_worker\",phase=\"prefill\","
                "le=\"0.005\"} 1\n"));
  EXPECT_THAT(
      text,
      HasSubstr("withy_phase_duration_seconds_bucket{process=\"model_worker\",phase=\"prefill\","
                "le=\"+Inf\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("withy_phase_duration_seconds_sum{process=\"model_worker\","
                              "phase=\"prefill\"} 0.003"));
  EXPECT_THAT(text, HasSubstr("phase=\"read\""));
  EXPECT_THAT(text, HasSubstr("withy_ttft_seconds_count{process=\"model_worker\"} 1"));
  EXPECT_THAT(text, HasSubstr("withy_tpot_seconds_sum{process=\"model_worker\"} 0.005"));
  EXPECT_THAT(text, HasSubstr("withy_kernel_duration_seconds_count{process=\"model_worker\","
                              "kernel=\"gemm\"} 1"));
  EXPECT_THAT(text, Not(HasSubstr("phase=\"ttft\"")));
}

TEST(ExporterTest, FaultsOfTheProcessorsCounterAreCountedByProcess) {
  SourceInfo before = Source("model_worker", {}), after = before;  // of a process that restarted
  before.clock_faults = 2;
  before.untimed = 30;
  after.untimed = 4;
  const std::string text = Text({}, {before, after, Source("orchestrator", {})});
  EXPECT_THAT(text, AllOf(HasSubstr("withy_clock_faults_total{process=\"model_worker\"} 2\n"),
                          HasSubstr("withy_spans_untimed_total{process=\"model_worker\"} 34\n"),
                          HasSubstr("withy_clock_faults_total{process=\"orchestrator\"} 0\n")));
}

TEST(ExporterTest, KernelsOfOneOfSeveralPassesAreCountedAsAllOfThem) {
  PhaseRow row{"model_worker", "qkv", SpanKind::kKernel, {}};
  for (int i = 0; i < 3; ++i) row.histogram.Add(20'000, /*weight=*/8);
  const std::string text = Text({row}, {});
  const std::string labels = "{process=\"model_worker\",kernel=\"qkv\"";
  EXPECT_THAT(text, AllOf(HasSubstr("withy_kernel_duration_seconds_count" + labels + "} 24\n"),
                          HasSubstr("withy_kernel_duration_seconds_sum" + labels + "} 0.00048"),
                          HasSubstr("withy_kernel_duration_seconds_bucket" + labels +
                                    ",le=\"2.5e-05\"} 24\n")));
}

TEST(ExporterTest, QueueIsAPhaseAndAFigureAndLimitsHaveTheirOwnFamily) {
  const std::string text = Text({Phase("orchestrator", "queue", SpanKind::kPhase, 3'000'000),
                                 Phase("orchestrator", "slo_ttft", SpanKind::kPhase, 50'000'000)},
                                {});
  EXPECT_THAT(text, AllOf(HasSubstr("withy_queue_seconds_count{process=\"orchestrator\"} 1"),
                          HasSubstr("phase=\"queue\""),
                          HasSubstr("withy_slo_limit_seconds_sum{process=\"orchestrator\","
                                    "limit=\"ttft\"} 0.05"),
                          Not(HasSubstr("slo_ttft"))));
}

TEST(ExporterTest, AppsHaveTheirAttainmentAndErrorBudget) {
  const auto app = [](const char* name, int64_t value) {
    MetricSample sample = Sample(MetricKind::kCounter, name, value);
    sample.label_key = "app";
    sample.label_value = "mail";
    return sample;
  };
  const std::string text = Text(
      {}, {Source("orchestrator",
                  {app("withy_slo_app_calls_total", 200), app("withy_slo_app_missed_total", 3)}),
           Source("model_worker", {app("withy_slo_app_calls_total", 999)})});
  EXPECT_THAT(text, AllOf(HasSubstr("withy_slo_objective_ratio 0.99"),
                          HasSubstr("withy_slo_attainment_ratio{app=\"mail\"} 0.985"),
                          HasSubstr("withy_slo_error_budget_ratio{app=\"mail\"} -0.49999"),
                          HasSubstr("withy_slo_app_calls_total{process=\"orchestrator\","
                                    "app=\"mail\"} 200")));
}

TEST(ExporterTest, SizesOfCallsAreHistograms) {
  SizeRow row{"orchestrator", {}, {}};
  row.prompt_tokens.Add(100);
  row.prompt_tokens.Add(70'000);
  const std::string text =
      prometheus::TextSerializer().Serialize(MakeFamilies({.sizes = {row}, .folded_spans = 7}));
  EXPECT_THAT(text,
              AllOf(HasSubstr("withy_prompt_tokens_bucket{process=\"orchestrator\",le=\"64\"} 0"),
                    HasSubstr("withy_prompt_tokens_bucket{process=\"orchestrator\",le=\"128\"} 1"),
                    HasSubstr("withy_prompt_tokens_bucket{process=\"orchestrator\",le=\"+Inf\"} 2"),
                    HasSubstr("withy_profile_folded_spans_total 7"),
                    Not(HasSubstr("withy_answer_tokens"))));
}

TEST(ExporterTest, UpTellsTheLivingFromTheMissing) {
  const std::string text = Text({}, {Source("orchestrator", {})}, {"model_worker", "orchestrator"});
  EXPECT_THAT(text, AllOf(HasSubstr("withy_up{process=\"model_worker\"} 0"),
                          HasSubstr("withy_up{process=\"orchestrator\"} 1"),
                          HasSubstr("withy_spans_dropped_total{process=\"orchestrator\"} 0"),
                          Not(HasSubstr("withy_spans_total{process=\"model_worker\"}"))));
}

TEST(ExporterTest, RegisteredMetricsKeepTheirUnitsAndLabels) {
  MetricSample labelled = Sample(MetricKind::kCounter, "withy_calls_total", 3);
  labelled.label_key = "code";
  labelled.label_value = "OK";
  const std::string text = Text(
      {}, {Source("orchestrator",
                  {labelled, Sample(MetricKind::kGauge, "withy_arena_bytes", 1 << 20, Unit::kBytes),
                   Sample(MetricKind::kGauge, "withy_slack", -7),
                   Sample(MetricKind::kCounter, "withy_busy_seconds_total", 1'500'000'000,
                          Unit::kNanoseconds),
                   Sample(MetricKind::kGauge, "withy_load_ratio", 250'000, Unit::kMillionths),
                   Sample(MetricKind::kCounter, "withy_odd", 1)})});
  EXPECT_THAT(text, HasSubstr("withy_calls_total{process=\"orchestrator\",code=\"OK\"} 3"));
  EXPECT_THAT(text, HasSubstr("withy_arena_bytes{process=\"orchestrator\"} 1048576"));
  EXPECT_THAT(text, HasSubstr("withy_slack{process=\"orchestrator\"} -7"));
  EXPECT_THAT(text, HasSubstr("withy_busy_seconds_total{process=\"orchestrator\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("withy_load_ratio{process=\"orchestrator\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("withy_odd_total{process=\"orchestrator\"} 1"));
}

TEST(ExporterTest, ARestartedProcessIsAddedUpNotRepeated) {
  const std::string text =
      Text({}, {Source("a", {Sample(MetricKind::kCounter, "withy_x_total", 3)}),
                Source("a", {Sample(MetricKind::kCounter, "withy_x_total", 4)})});
  EXPECT_THAT(text, HasSubstr("withy_x_total{process=\"a\"} 7"));
  EXPECT_THAT(text, Not(HasSubstr("withy_x_total{process=\"a\"} 3")));
}

TEST(ExporterTest, ContradictingMetricsAreLeftOut) {
  MetricSample spoof = Sample(MetricKind::kGauge, "withy_y", 5);
  spoof.label_key = "process";
  spoof.label_value = "orchestrator";
  const std::string text =
      Text({}, {Source("a", {Sample(MetricKind::kCounter, "withy_x_total", 3),
                             Sample(MetricKind::kGauge, "withy_up", 99), spoof}),
                Source("b", {Sample(MetricKind::kGauge, "withy_x_total", 4)})});
  EXPECT_THAT(text, HasSubstr("withy_x_total{process=\"a\"} 3"));
  EXPECT_THAT(text, Not(HasSubstr("withy_x_total{process=\"b\"}")));
  EXPECT_THAT(text, Not(HasSubstr(" 99")));
  EXPECT_THAT(text, Not(HasSubstr("withy_y")));
}

TEST(MetricsServerTest, AddressesThatCannotBeAreNamed) {
  for (const char* address :
       {"9464", "localhost", ":9464", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"}) {
    const auto server = MetricsServer::Start(address, nullptr);
    EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(server.status().message()),
                AllOf(HasSubstr(address), HasSubstr("profiler.metrics_listen")));
  }
  // A name may be known later.
  EXPECT_EQ(MetricsServer::Start("no.such.host.invalid:1", nullptr).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace withy::profiler_agent
