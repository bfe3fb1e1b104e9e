#include "orchestrator/board/slo_metrics.h"

#include <map>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "telemetry/reader.h"
#include "telemetry/test_directory.h"

namespace withy::orchestrator {
namespace {

using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class SloMetricsTest : public ::testing::Test {
 protected:
  // The values of a counter by app.
  std::map<std::string, uint64_t> Values(const std::string& name) {
    std::map<std::string, uint64_t> values;
    Drain();
    for (const telemetry::SourceInfo& source : reader_->Sources()) {
      for (const telemetry::MetricSample& sample : source.metrics) {
        if (sample.name == name) values[sample.label_value] = sample.bits;
      }
    }
    return values;
  }
  std::map<std::string, int64_t> Drain() {
    std::map<std::string, int64_t> durations;
    const auto problems = reader_->Drain([&](const telemetry::SpanEvent& event) {
      durations[std::string(event.name)] = event.span.ended_ns - event.span.started_ns;
    });
    EXPECT_TRUE(problems.empty());
    return durations;
  }

  telemetry::TestDirectory directory_;
  std::unique_ptr<telemetry::Recorder> recorder_ =
      *telemetry::Recorder::Open(directory_.path(), "orchestrator");
  std::unique_ptr<telemetry::Reader> reader_ = *telemetry::Reader::Open(directory_.path());
  SloMetrics metrics_{*recorder_};
};

JudgedCall SloCall(bool met) {
  JudgedCall call{.id = 7, .first_token_ns = 5'000'000, .tokens = 2, .met = met};
  call.targets.arrived_ns = 1'000'000;
  call.targets.ttft_ms = 20;
  call.targets.tpot_ms = 3;
  return call;
}

TEST_F(SloMetricsTest, CallsAndMissesAreByApp) {
  metrics_.Judged("mail", SloCall(true));
  metrics_.Judged("mail", SloCall(false));
  metrics_.Judged("maps", SloCall(true));
  EXPECT_THAT(Values("withy_slo_app_calls_total"),
              UnorderedElementsAre(Pair("mail", 2), Pair("maps", 1)));
  EXPECT_THAT(Values("withy_slo_app_missed_total"),
              UnorderedElementsAre(Pair("mail", 1), Pair("maps", 0)));
}

TEST_F(SloMetricsTest, WhatTheSloAllowedIsASpanAndNoLimitIsNone) {
  metrics_.Judged("mail", SloCall(true));
  EXPECT_THAT(Drain(),
              UnorderedElementsAre(Pair("slo_ttft", 20'000'000), Pair("slo_tpot", 3'000'000)));
}

TEST_F(SloMetricsTest, AppsBeyondTheLimitShareALabel) {
  for (size_t i = 0; i < 2 * SloMetrics::kApps; ++i) {
    metrics_.Judged("app" + std::to_string(i), SloCall(true));
  }
  const auto values = Values("withy_slo_app_calls_total");
  EXPECT_EQ(values.size(), SloMetrics::kApps + 1);
  EXPECT_EQ(values.at("other"), SloMetrics::kApps);
}

TEST_F(SloMetricsTest, LongNamesThatBeginAlikeStayApart) {
  metrics_.Judged(std::string(60, 'a') + "1", SloCall(true));
  metrics_.Judged(std::string(60, 'a') + "2", SloCall(true));
  EXPECT_EQ(Values("withy_slo_app_calls_total").size(), 2u);
}

}  // namespace
}  // namespace withy::orchestrator
