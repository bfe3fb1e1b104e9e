// Energy and heat of a board whose /sys was recorded, before the scripted processes.
#include "orchestrator/board/board_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "orchestrator/testing.h"
#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

class BoardWatchTest : public testing::Test {
 protected:
  BoardWatchTest() : root_(testing::TempDir() + "withy_board_watch_" + std::to_string(getpid())) {
    fs::remove_all(root_);
  }
  ~BoardWatchTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const fs::path file(root_ + "/sys/" + path);
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  // A board that always draws ten watts.
  void HasMeter() const {
    Write("class/hwmon/hwmon0/name", "ina3221");
    Write("class/hwmon/hwmon0/in1_label", "VDD_IN");
    Write("class/hwmon/hwmon0/in1_input", "5000");
    Write("class/hwmon/hwmon0/curr1_input", "2000");
  }
  void HasTemperature(const std::string& milli_celsius) const {
    Write("class/thermal/thermal_zone0/type", "cpu-thermal");
    Write("class/thermal/thermal_zone0/temp", milli_celsius);
    Write("class/thermal/thermal_zone0/trip_point_0_type", "passive");
    Write("class/thermal/thermal_zone0/trip_point_0_temp", "99000");
  }
  // NVIDIA's library with two GPUs (base/sensors/nvml_stub.c): the first has 40 degrees and draws
  // 120 watts.
  void HasGpus() const {
    fs::create_directories(root_);
    fs::copy_file(WITHY_NVML_STUB, root_ + "/libnvidia-ml.so.1");
  }
  std::unique_ptr<Board> Start(bool heat_limit_off = false, const std::string& device = "") const {
    v1::Config config;
    for (v1::ModelConfig* model : {config.mutable_model(), config.mutable_draft()}) {
      model->set_device(device);
    }
    config.mutable_orchestrator()->set_board_root(root_);
    config.mutable_orchestrator()->set_probe_off(true);
    config.mutable_orchestrator()->set_audit_off(true);
    config.mutable_orchestrator()->set_heat_limit_off(heat_limit_off);
    return std::make_unique<Board>(config);
  }

  const std::string root_;
};

v1::GenerateRequest Within(double energy_mj) {
  v1::GenerateRequest request = Ask("hello");
  request.mutable_slo()->set_energy_mj(energy_mj);
  return request;
}

TEST_F(BoardWatchTest, WithoutAMeterThereIsNoBudget) {
  const auto board = Start();
  const Outcome refused = board->Generate(Within(5));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("no energy meter"));
  const Outcome plain = board->Generate(Ask("hello"));
  ASSERT_TRUE(plain.status.ok()) << plain.status.error_message();
  EXPECT_EQ(plain.finished.latency().measured().energy_mj(), 0);
}

TEST_F(BoardWatchTest, ACallIsToldItsEnergyAndJudgedByIt) {
  HasMeter();
  const auto board = Start();
  const Outcome met = board->Generate(Within(1e7));
  ASSERT_TRUE(met.status.ok()) << met.status.error_message();
  const v1::LatencyReport& report = met.finished.latency();
  EXPECT_GT(report.measured().energy_mj(), 0);
  // No more than the board draws from its arrival to its end.
  EXPECT_LE(report.measured().energy_mj(), 10.5 * (report.measured().end_to_end_ms() + 1000));
  EXPECT_TRUE(report.slo_met());
  EXPECT_THAT(met.started.decision().explanation(), HasSubstr("10 W"));

  const Outcome missed = board->Generate(Within(1e-3));
  ASSERT_TRUE(missed.status.ok()) << missed.status.error_message();
  EXPECT_FALSE(missed.finished.latency().slo_met());
  EXPECT_FALSE(missed.started.decision().predicted_to_meet_slo());

  v1::GenerateRequest strict = Within(1e-3);
  strict.mutable_slo()->set_strict(true);
  const Outcome refused = board->Generate(strict);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("10 W"));
}

TEST_F(BoardWatchTest, ABudgetTakesALowerLevelThanNone) {
  HasMeter();
  const auto board = Start();
  board->worker.SetLevels({20, 60, 100});
  const auto plan = [&](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    Authorise(&context);
    v1::PlanResponse response;
    const grpc::Status status = board->stub().Plan(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.decision();
  };
  const v1::Decision free = plan(Ask("hello"));
  EXPECT_EQ(free.model_level_percent(), 100u);
  const v1::Decision held = plan(Within(0.7 * 10 * free.predicted().end_to_end_ms()));
  EXPECT_LT(held.model_level_percent(), 100u) << held.explanation();
}

TEST_F(BoardWatchTest, AHotBoardStepsTheModelDown) {
  HasTemperature("97000");
  const auto board = Start();
  board->worker.SetLevels({20, 60, 100});
  const Outcome outcome = board->Generate(Ask("hello"));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 60u);
  EXPECT_THAT(outcome.started.decision().explanation(),
              HasSubstr("cpu-thermal at 97.0 C slows down at 99.0 C"));
  v1::GenerateRequest fixed = Ask("hello");
  fixed.set_model_level_percent(100);
  EXPECT_EQ(board->Generate(fixed).started.decision().model_level_percent(), 100u)
      << "the caller's choice";
}

// What GPUs draw is what a call is charged with where the board has no meter of its own.
TEST_F(BoardWatchTest, GpusAreAMeter) {
  HasGpus();
  const auto board = Start();
  const Outcome outcome = board->Generate(Within(1e7));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_GT(outcome.finished.latency().measured().energy_mj(), 0);
  EXPECT_THAT(outcome.started.decision().explanation(), HasSubstr("120 W"));
}

TEST_F(BoardWatchTest, GpusHaveGauges) {
  HasGpus();
  const auto recorder = *telemetry::Recorder::Open(root_ + "/rings", "orchestrator");
  const BoardWatch watch(root_, /*limits_heat=*/true, /*gpus=*/true, Clock::Real(), *recorder);
  const auto gauge = [&](std::string_view name, std::string_view gpu) {
    return recorder
        ->gauge({.name = name, .label_key = gpu.empty() ? "" : "gpu", .label_value = gpu})
        .value();
  };
  EXPECT_EQ(gauge("withy_gpu_temperature_celsius", "0"), 40'000'000);
  EXPECT_EQ(gauge("withy_gpu_power_watts", "0"), 120'000'000);
  EXPECT_EQ(gauge("withy_gpu_clock_hertz", "0"), 1'980'000'000);
  EXPECT_EQ(gauge("withy_gpu_busy_ratio", "0"), 750'000);
  EXPECT_EQ(gauge("withy_gpu_memory_used_bytes", "0"), int64_t{10} << 30);
  EXPECT_EQ(gauge("withy_gpu_power_watts", "1"), 0) << "it is lost";
  EXPECT_EQ(gauge("withy_board_temperature_celsius", ""), 40'000'000);
}

// What no sensor measures is absent, and not 0.
TEST_F(BoardWatchTest, NoSensorIsNoMetric) {
  fs::create_directories(root_ + "/sys");
  const auto recorder = *telemetry::Recorder::Open(root_ + "/rings", "orchestrator");
  const BoardWatch watch(root_, /*limits_heat=*/true, /*gpus=*/false, Clock::Real(), *recorder);
  const auto reader = *telemetry::Reader::Open(root_ + "/rings");
  reader->Drain([](auto&&...) {});
  std::vector<std::string> names;
  for (const telemetry::SourceInfo& source : reader->Sources()) {
    for (const telemetry::MetricSample& metric : source.metrics) names.push_back(metric.name);
  }
  EXPECT_THAT(names, Contains("withy_thermal_steps"));
  EXPECT_THAT(names, Contains("withy_board_power_metered"));
  for (const char* absent : {"withy_board_power_watts", "withy_board_energy", "celsius"}) {
    EXPECT_THAT(names, Not(Contains(HasSubstr(absent))));
  }
}

// The library keeps a card awake: it is left alone where no model may be on a GPU.
TEST_F(BoardWatchTest, GpusAreLeftAloneWhereTheCpuComputes) {
  HasGpus();
  const auto board = Start(/*heat_limit_off=*/false, "cpu");
  EXPECT_EQ(board->Generate(Within(5)).status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(BoardWatchTest, TheHeatLimitCanBeOff) {
  HasTemperature("97000");
  const auto board = Start(/*heat_limit_off=*/true);
  board->worker.SetLevels({20, 60, 100});
  const Outcome outcome = board->Generate(Ask("hello"));
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 100u);
  EXPECT_THAT(outcome.started.decision().explanation(), Not(HasSubstr("hot")));
}

}  // namespace
}  // namespace withy::orchestrator
