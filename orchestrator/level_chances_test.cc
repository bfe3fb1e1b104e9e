// Decisions for an elastic model without a TLM, before the scripted processes: by what audits find.
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/testing.h"
#include "policy/constants.h"

namespace withy::orchestrator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Within two minutes.
bool ComesTrue(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + absl::Minutes(2);
  while (!condition()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Levels 20, 60 and 100 %, of which the file says that they lose next to nothing.
class LevelChancesTest : public testing::Test {
 protected:
  LevelChancesTest() { StartBoard(); }

  void StartBoard(bool audits = true) {
    board_ = nullptr;
    v1::Config config;
    config.mutable_orchestrator()->set_audit_off(!audits);
    config.mutable_orchestrator()->set_probe_off(true);
    board_ = std::make_unique<Board>(config);
    board_->worker.SetLevels({20, 60, 100}, "m1", {0.02f, 0.01f, 0});
    board_->worker.SetPrefillCost(100'000);
    std::filesystem::create_directories(board_->config().state_dir());
  }

  // At 65 % of the full model's TTFT, 60 % is in time, 20 % more surely so.
  static v1::GenerateRequest Urgent(const std::string& text) {
    v1::GenerateRequest request = Ask(text);
    request.mutable_slo()->set_ttft_ratio(0.65);
    return request;
  }
  // Disturbs no audit.
  uint32_t PlannedLevel(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    Authorise(&context);
    v1::PlanResponse plan;
    const grpc::Status status = board_->stub().Plan(&context, request, &plan);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return plan.decision().model_level_percent();
  }
  std::vector<v1::LevelPairChance> Pairs() {
    grpc::ClientContext context;
    Authorise(&context);
    v1::GetStatusResponse status;
    EXPECT_TRUE(board_->stub().GetStatus(&context, {}, &status).ok());
    return {status.level_pairs().begin(), status.level_pairs().end()};
  }
  std::string RecordPath() const { return board_->config().state_dir() + "/audits"; }
  std::string Record() const { return ReadRegularFile(RecordPath(), 1 << 20).value_or(""); }
  void WriteRecord(const std::string& record) { std::ofstream(RecordPath()) << record; }

  std::unique_ptr<Board> board_;
};

TEST_F(LevelChancesTest, WhatALevelAgreesWithIsMeasuredByTokensAndKept) {
  const v1::GenerateRequest request = Urgent("low differs");
  EXPECT_TRUE(Pairs().empty()) << "no call has come";
  const Outcome before = board_->Generate(request);
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();
  EXPECT_EQ(before.started.decision().model_level_percent(), 20u)
      << before.started.decision().explanation();
  ASSERT_TRUE(board_->worker.scorer.AwaitScored(2));
  std::vector<uint32_t> levels;
  for (const v1::ScoreRequest& score : board_->worker.scorer.scored()) {
    EXPECT_EQ(score.prompt().text(), "low differs");
    EXPECT_EQ(score.text(), "abc") << "the full model's answer";
    levels.push_back(score.setting().model_level_percent());
  }
  EXPECT_THAT(levels, ElementsAre(60u, 20u));
  ASSERT_EQ(board_->worker.runs().size(), 2u) << "the call, and the full model's answer";
  EXPECT_EQ(board_->worker.runs().back().model_level_percent(), 100u);
  EXPECT_EQ(board_->worker.runs().back().sampling().temperature(), 0.0f);
  // What was found is known and written a moment after it was asked.
  EXPECT_TRUE(ComesTrue([&] { return PlannedLevel(request) == 60; }));
  EXPECT_TRUE(ComesTrue([&] { return !Record().empty(); }));
  EXPECT_THAT(Record(), HasSubstr("m1 20,60,100 tokens\n"));
  EXPECT_THAT(Record(), HasSubstr("\nboard 100 20 1.000 0.333\n"));
  EXPECT_THAT(Record(), HasSubstr("\napp app_1 100 60 1.000 1.000\n"));
  const std::vector<v1::LevelPairChance> pairs = Pairs();
  ASSERT_EQ(pairs.size(), 2u);
  EXPECT_EQ(pairs[0].prompt_level_percent(), 100u);
  EXPECT_EQ(pairs[0].model_level_percent(), 20u);
  EXPECT_NEAR(pairs[0].chance(), (4 * 0.98 + 1.0 / 3) / 5, 0.001);
  EXPECT_GT(pairs[0].spread(), 0.1);
  EXPECT_EQ(pairs[0].audits(), 1);
  EXPECT_GT(pairs[1].chance(), pairs[0].chance());
}

TEST_F(LevelChancesTest, WhatWasFoundBeforeARestartHolds) {
  const std::string found = " 20,60,100 tokens\nboard 100 20 100.000 10.000\nend\n";
  WriteRecord("withy-audits 1\nm1" + found);
  EXPECT_EQ(PlannedLevel(Urgent("a prompt")), 60u);
  EXPECT_EQ(Pairs()[0].audits(), 100);
  // Of another model, and damaged: as if there were none.
  for (const std::string& record :
       {"withy-audits 1\nm2" + found, std::string("withy-audits 1\nm1")}) {
    StartBoard();
    WriteRecord(record);
    EXPECT_EQ(PlannedLevel(Urgent("a prompt")), 20u) << record;
    EXPECT_EQ(Pairs()[0].audits(), 0);
  }
}

TEST_F(LevelChancesTest, AnotherModelBeginsAnew) {
  ASSERT_TRUE(board_->Generate(Urgent("low differs")).status.ok());
  ASSERT_TRUE(board_->worker.scorer.AwaitScored(2));
  ASSERT_TRUE(ComesTrue([&] { return !Record().empty(); }));
  board_->worker.SetLevels({20, 60, 100}, "m2", {0.02f, 0.01f, 0});
  ASSERT_TRUE(board_->Generate(Ask("another")).status.ok()) << "which notices that";
  EXPECT_EQ(Pairs()[0].audits(), 0);
  EXPECT_THAT(Record(), HasSubstr("m1 ")) << "until something is found of this one";
}

TEST_F(LevelChancesTest, WithoutAuditsTheLargestLevelInTimeIsTaken) {
  StartBoard(/*audits=*/false);
  EXPECT_EQ(PlannedLevel(Urgent("a prompt")), 60u);
  EXPECT_TRUE(Pairs().empty());
}

TEST_F(LevelChancesTest, ACallersTextWaitsForAnAuditsText) {
  ASSERT_TRUE(board_->Generate(Urgent("hold score")).status.ok());
  ASSERT_TRUE(board_->worker.scorer.AwaitScoring()) << "the audit, until it is released";
  v1::ScoreRequest request;
  request.set_text("a caller's text");
  grpc::ClientContext context;
  Authorise(&context);
  const auto reader = board_->stub().Score(&context, request);
  board_->worker.Release();
  v1::ScoreResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.result().tokens(), request.text().size());
  ASSERT_TRUE(board_->worker.scorer.AwaitScored(3)) << "both levels, and the caller's text";
  EXPECT_EQ(board_->worker.scorer.most_at_once(), 1);
}

}  // namespace
}  // namespace withy::orchestrator
