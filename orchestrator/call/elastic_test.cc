// Decisions with a real TLM, small and of random weights, before the scripted processes: what it
// says is arbitrary but always the same, so that a test can ask it, too.
#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/board.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "engine/encoder/testing.h"
#include "engine/encoder/tlm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/board/tlm_reader.h"
#include "orchestrator/testing.h"
#include "policy/constants.h"
#include "wire/calibration.h"

namespace withy::orchestrator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// 40 words, 200 bytes: 200 tokens of the fake worker, 20 s of prefill with the full model, as it
// says, beside which the TLM's real time is short on any machine.
std::string Words(int count = 40) {
  const std::vector<std::string> words = {"cats ", "mats ", "sats ", "thes "};
  std::string text;
  for (int i = 0; i < count; ++i) text += words[static_cast<size_t>(i * i) % words.size()];
  return text;
}

std::string Kept(const v1::RunRequest& run, int message = 0) {
  const std::string& text = run.prompt().has_messages()
                                ? run.prompt().messages().messages(message).content()
                                : run.prompt().text();
  if (run.kept().empty() || run.kept(message).spans().empty()) return text;
  std::string kept;
  for (const v1::ByteSpan& span : run.kept(message).spans()) {
    kept += text.substr(span.begin(), span.end() - span.begin());
  }
  return kept;
}

// Levels of the TLM: 50 and 100 % of the prompt; 20, 60 and 100 % of the model.
class ElasticTest : public testing::Test {
 protected:
  ElasticTest() : temp_("elastic"), path_(temp_ / "tlm.gguf") {
    MakeTlm(path_);
    StartBoard(path_);
  }

  static void MakeTlm(const std::string& path) {
    engine::TlmShape shape = engine::SmallShape();
    shape.pair_accuracy = {0.4f, 0.7f, 0.7f, 0.3f, 0.6f, 0.95f};
    const absl::Status status =
        engine::WriteTlm(engine::SmallTlm(3, shape), engine::GgmlType::kQ8_0, path);
    EXPECT_TRUE(status.ok()) << status;
  }

  void StartBoard(const std::string& tlm_path, bool audits = false) {
    v1::Config config;
    config.mutable_orchestrator()->set_audit_off(!audits);
    config.mutable_orchestrator()->set_probe_off(true);
    config.mutable_orchestrator()->set_tlm_path(tlm_path);
    config.mutable_orchestrator()->set_tlm_threads(1);
    board_ = std::make_unique<Board>(config);
    board_->worker.SetLevels({20, 60, 100});
    board_->worker.SetPrefillCost(100'000);
  }

  v1::RunRequest LastRun() const { return board_->worker.runs().back(); }

  engine::TempFolder temp_;
  std::string path_;
  std::unique_ptr<Board> board_;
};

TEST_F(ElasticTest, TheTlmIsNotAskedWhereTheFullModelIsInTime) {
  v1::GenerateRequest request = Ask(Words());
  for (const double ms : {0.0, 1e5}) {
    request.mutable_slo()->set_ttft_ms(ms);
    const Outcome outcome = board_->Generate(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.started.decision().reason(), v1::DECISION_REASON_FULL_MEETS_SLO);
    EXPECT_EQ(outcome.finished.latency().tlm_ms(), 0);
    EXPECT_TRUE(LastRun().kept().empty());
  }
}

// At 40 % of the full model's TTFT: 50 + 60 and 100 + 20 are the best pairs in time, 50 + 20 is in
// time, too, and the others are not.
TEST_F(ElasticTest, TheLikeliestInTimeIsTaken) {
  v1::GenerateRequest request = Ask(Words());
  request.mutable_slo()->set_ttft_ratio(0.4);
  const Outcome outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  const v1::Decision& decision = outcome.started.decision();
  const v1::RunRequest run = LastRun();

  const auto tlm = engine::Tlm::Open(path_, {});
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  const auto reading = (*tlm)->Read(request.prompt().text(), {.ttft_ratio = 0.4});
  ASSERT_TRUE(reading.ok()) << reading.status();
  const auto& prompts = reading->prompt_level.logits;
  const auto& models = reading->model_level.logits;
  EXPECT_EQ(decision.reason(), v1::DECISION_REASON_TLM) << decision.explanation();
  // In time are 50 % of the prompt at 20 and 60 % of the model, and the whole prompt at 20 %.
  const bool more = models[1] > models[0];
  const bool whole = prompts[1] + models[0] > prompts[0] + models[more ? 1 : 0];
  EXPECT_EQ(decision.prompt_level_percent(), whole ? 100u : 50u);
  EXPECT_EQ(decision.model_level_percent(), more && !whole ? 60u : 20u);
  EXPECT_TRUE(decision.predicted_to_meet_slo());
  EXPECT_EQ(decision.predicted_prompt_tokens(), Kept(run).size()) << "counted, not estimated";
  EXPECT_EQ(run.prompt().text(), request.prompt().text()) << "the record gets all of it";
  EXPECT_EQ(run.pruned_words(), decision.prompt_level_percent() == 50 ? 20u : 0u);
  EXPECT_EQ(outcome.finished.usage().pruned_words(), run.pruned_words());
  const v1::LatencyReport& latency = outcome.finished.latency();
  EXPECT_GT(latency.tlm_ms(), 0);
  EXPECT_GE(latency.queue_ms(), 0);
  EXPECT_GE(latency.measured().ttft_ms(), latency.tlm_ms());
  EXPECT_GT(decision.predicted().ttft_ms(),
            decision.predicted_prompt_tokens() * decision.model_level_percent() + 1)
      << "the TLM's time is in the prediction";
}

TEST_F(ElasticTest, APromptLevelThatTheCallerFixesIsKept) {
  v1::GenerateRequest request = Ask(Words());
  request.set_prompt_level_percent(25);
  const Outcome outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().reason(), v1::DECISION_REASON_FIXED_BY_CALLER);
  EXPECT_EQ(outcome.started.decision().prompt_level_percent(), 25u);
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 100u);
  EXPECT_EQ(outcome.finished.usage().pruned_words(), 30u);
  EXPECT_EQ(outcome.started.decision().predicted_prompt_tokens(), Kept(LastRun()).size());
}

TEST_F(ElasticTest, FixedPartsAndMessagesAreRespected) {
  v1::GenerateRequest request;
  const std::vector<std::string> texts = {"the rule", Words(20), "what sat on a mat"};
  for (const std::string& text : texts) {
    v1::Message& message = *request.mutable_prompt()->mutable_messages()->add_messages();
    message.set_role(text == texts[0] ? "system" : "user");
    message.set_content(text);
  }
  v1::ByteSpan& fixed =
      *request.mutable_prompt()->mutable_messages()->mutable_messages(2)->add_fixed();
  fixed.set_begin(5);
  fixed.set_end(17);  // "sat on a mat"
  request.set_prompt_level_percent(30);
  const Outcome outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  const v1::RunRequest run = LastRun();
  ASSERT_EQ(run.kept_size(), 3);
  EXPECT_THAT(Kept(run, 2), HasSubstr("sat on a mat"));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Kept(run, i).empty()) << i;
  EXPECT_LT(Kept(run, 1).size(), texts[1].size());
  // 27 words, of which 9 stay.
  EXPECT_EQ(outcome.finished.usage().pruned_words(), 18u);
}

TEST_F(ElasticTest, WorkedExamplesGoFirst) {
  v1::GenerateRequest request;
  const std::vector<std::string> roles = {"system", "user", "assistant", "user"};
  const std::vector<std::string> texts = {"the rule", Words(20), Words(8), "what sat on a mat"};
  for (size_t i = 0; i < roles.size(); ++i) {
    v1::Message& message = *request.mutable_prompt()->mutable_messages()->add_messages();
    message.set_role(roles[i]);
    message.set_content(texts[i]);
  }
  request.set_prompt_level_percent(30);
  const Outcome outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  const v1::RunRequest run = LastRun();
  ASSERT_EQ(run.kept_size(), 4);
  EXPECT_EQ(Kept(run, 0), texts[0]);
  EXPECT_EQ(Kept(run, 1), "");
  EXPECT_EQ(Kept(run, 2), "");
  EXPECT_EQ(Kept(run, 3), texts[3]);
  EXPECT_EQ(outcome.finished.usage().pruned_words(), 28u);
  EXPECT_EQ(outcome.started.decision().predicted_prompt_tokens(),
            texts[0].size() + texts[3].size());
}

// What is left without examples is worth as much as all of it, and nothing has to be read for it.
// Where the examples are less than half of a prompt, what is left of it is worth what such a share
// is; half of a prompt without any is worth too little to read it.
TEST_F(ElasticTest, ExamplesAreLeftOutWithoutReading) {
  engine::TlmShape shape = engine::SmallShape();
  shape.pair_accuracy = {0.1f, 0.1f, 0.1f, 0.3f, 0.6f, 0.95f};
  shape.pair_accuracy_examples = {0.4f, 0.9f, 0.9f, 0.3f, 0.6f, 0.95f};
  const std::string path = temp_ / "kinds.gguf";
  ASSERT_TRUE(engine::WriteTlm(engine::SmallTlm(3, shape), engine::GgmlType::kQ8_0, path).ok());
  StartBoard(path);
  struct Case {
    std::vector<int> words;  // of the messages: an example's question and answer, and the question
    uint32_t prompt_percent, level_percent, pruned_words;
  };
  for (const Case& c :
       {Case{{24, 24, 8}, 15, 100, 48}, Case{{8, 8, 24}, 60, 60, 16}, Case{{24}, 100, 20, 0}}) {
    v1::GenerateRequest request;
    request.mutable_slo()->set_ttft_ratio(0.4);
    for (size_t i = 0; i < c.words.size(); ++i) {
      v1::Message& message = *request.mutable_prompt()->mutable_messages()->add_messages();
      message.set_role(i % 2 == 0 ? "user" : "assistant");
      message.set_content(Words(c.words[i]));
    }
    const Outcome outcome = board_->Generate(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    const v1::Decision& decision = outcome.started.decision();
    EXPECT_EQ(decision.reason(), v1::DECISION_REASON_LATENCY_MODEL) << decision.explanation();
    EXPECT_EQ(outcome.finished.latency().tlm_ms(), 0);
    EXPECT_EQ(outcome.finished.usage().pruned_words(), c.pruned_words);
    EXPECT_EQ(decision.prompt_level_percent(), c.prompt_percent);
    EXPECT_EQ(decision.model_level_percent(), c.level_percent);
    if (c.pruned_words == 0) continue;
    EXPECT_EQ(Kept(LastRun(), 0), "");
    EXPECT_EQ(Kept(LastRun(), 2), request.prompt().messages().messages(2).content());
    EXPECT_EQ(decision.predicted_prompt_tokens(),
              request.prompt().messages().messages(2).content().size());
    EXPECT_THAT(decision.explanation(), HasSubstr("Only earlier exchanges are left out."));
  }
}

// A level of which the TLM's file promises most, and which never says what the full model says.
TEST_F(ElasticTest, WhatALowLevelSaysIsHeldAgainstTheFullModel) {
  engine::TlmShape shape = engine::SmallShape();
  shape.pair_accuracy = {0.1f, 0.1f, 0.1f, 0.97f, 0.9f, 0.98f};
  const std::string path = temp_ / "promising.gguf";
  ASSERT_TRUE(engine::WriteTlm(engine::SmallTlm(3, shape), engine::GgmlType::kQ8_0, path).ok());
  StartBoard(path, /*audits=*/true);
  v1::GenerateRequest request = Ask("low differs");
  request.mutable_slo()->set_ttft_ratio(0.7);
  const Outcome before = board_->Generate(request);
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();
  EXPECT_EQ(before.started.decision().model_level_percent(), 20u);
  ASSERT_TRUE(board_->worker.AwaitRuns(4)) << "the full model, 60 and 20 %, once it is quiet";
  std::vector<uint32_t> levels;
  for (const v1::RunRequest& run : board_->worker.runs()) {
    levels.push_back(run.model_level_percent());
    EXPECT_EQ(run.prompt().text(), "low differs");
  }
  EXPECT_THAT(levels, testing::ElementsAre(20u, 100u, 60u, 20u));
  const v1::RunRequest audit = LastRun();
  EXPECT_TRUE(audit.sampling().has_temperature());
  EXPECT_EQ(audit.sampling().temperature(), 0.0f) << "drawn answers would differ by chance";
  EXPECT_EQ(audit.limits().max_tokens(), policy::kLongestAuditTokens + policy::kMoreAuditTokens);
  EXPECT_EQ(audit.deadline_steady_ns(), 0);
  // What the last of them said is known a moment after it was asked. Planning disturbs no audit.
  v1::PlanResponse plan;
  do {
    grpc::ClientContext context;
    Authorise(&context);
    ASSERT_TRUE(board_->stub().Plan(&context, request, &plan).ok());
  } while (plan.decision().model_level_percent() == 20);
  EXPECT_EQ(plan.decision().model_level_percent(), 60u);
}

TEST_F(ElasticTest, AnAuditGivesWayToACall) {
  StartBoard(path_, /*audits=*/true);
  v1::GenerateRequest request = Ask("hold later");
  request.mutable_slo()->set_ttft_ratio(0.7);
  ASSERT_TRUE(board_->Generate(request).status.ok());
  ASSERT_TRUE(board_->worker.AwaitRuns(2)) << "the audit, which would hold for ever";
  EXPECT_TRUE(board_->Generate(Ask("another")).status.ok());
  EXPECT_TRUE(board_->worker.AwaitCancelled(1));
}

TEST_F(ElasticTest, APromptThatCannotBeShortenedStaysWholeAndSaysWhy) {
  v1::GenerateRequest request = Ask(" \n ");
  request.set_prompt_level_percent(50);
  Outcome outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().prompt_level_percent(), 100u);
  EXPECT_THAT(outcome.started.decision().explanation(),
              HasSubstr("The prompt stays whole: it has no words."));
  EXPECT_TRUE(LastRun().kept().empty());
  request = Ask(Words());
  v1::ByteSpan& fixed = *request.mutable_prompt()->add_fixed();
  fixed.set_end(200);
  request.mutable_slo()->set_ttft_ratio(0.5);
  outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().prompt_level_percent(), 100u);
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 20u);
  EXPECT_THAT(outcome.started.decision().explanation(), HasSubstr("the caller fixed all of it"));
}

TEST_F(ElasticTest, AStrictSloThatNothingMeetsNamesWhatComesClosest) {
  v1::GenerateRequest request = Ask(Words());
  request.mutable_slo()->set_tpot_ms(1);
  request.mutable_slo()->set_ttft_ms(500);
  request.mutable_slo()->set_strict(true);
  const Outcome refused = board_->Generate(request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.status.error_message(),
              HasSubstr("with 50 % of the prompt's words and the model at 20 %"));
  request.mutable_slo()->set_strict(false);
  // Before any answer tells that this board's tokens take less than predicted.
  request.mutable_slo()->set_ttft_ms(50'000);
  EXPECT_EQ(board_->Generate(request).started.decision().prompt_level_percent(), 100u)
      << "a shorter prompt does nothing for the TPOT, which alone is missed";
  request.mutable_slo()->set_ttft_ms(500);
  const Outcome told = board_->Generate(request);
  ASSERT_TRUE(told.status.ok()) << told.status.error_message();
  EXPECT_EQ(told.started.decision().reason(), v1::DECISION_REASON_BEST_EFFORT);
  EXPECT_EQ(told.started.decision().prompt_level_percent(), 50u);
}

TEST_F(ElasticTest, ALevelThatTheCallerFixesLeavesTheTlmOut) {
  v1::GenerateRequest request = Ask(Words());
  request.mutable_slo()->set_ttft_ratio(0.1);
  request.set_model_level_percent(60);
  const Outcome outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 60u);
  EXPECT_EQ(outcome.started.decision().prompt_level_percent(), 100u);
  EXPECT_EQ(outcome.finished.latency().tlm_ms(), 0);
}

TEST_F(ElasticTest, ATlmThatDoesNotFitIsLeftOutAndSaidSo) {
  board_->worker.SetLevels({20, 100});
  v1::GenerateRequest request = Ask(Words());
  request.mutable_slo()->set_ttft_ratio(0.5);
  const Outcome outcome = board_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 20u);
  EXPECT_THAT(outcome.started.decision().explanation(),
              HasSubstr("The latency model alone decided: the TLM knows levels that the model "
                        "lacks (60)."));
  EXPECT_EQ(outcome.finished.latency().tlm_ms(), 0);
}

TEST_F(ElasticTest, WhatTheModelWarnsOfIsToldWithEveryAnswer) {
  EXPECT_THAT(board_->Generate(Ask("a")).started.decision().explanation(),
              Not(HasSubstr("Warning")));
  board_->worker.SetWarning("the file has no chat template");
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = board_->Generate(Ask("a"));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_THAT(outcome.started.decision().explanation(),
                HasSubstr("Warning: the file has no chat template."));
  }
}

TEST_F(ElasticTest, AFileThatIsNoTlmIsLeftOut) {
  const std::string bad = temp_ / "bad.gguf";
  std::ofstream(bad) << "this is no model";
  for (const std::string& path : {bad, temp_ / "none.gguf"}) {
    StartBoard(path);
    v1::GenerateRequest request = Ask(Words());
    request.mutable_slo()->set_ttft_ratio(0.5);
    const Outcome outcome = board_->Generate(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_THAT(outcome.started.decision().explanation(), HasSubstr("no TLM is loaded"));
  }
}

TEST_F(ElasticTest, ModelsAreListedWithTheTlm) {
  grpc::ClientContext context;
  Authorise(&context);
  v1::ListModelsResponse models;
  ASSERT_TRUE(board_->stub().ListModels(&context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_EQ(models.models(1).role(), "tlm");
  EXPECT_EQ(models.models(1).levels_percent_size(), 3);
  EXPECT_GT(models.models(1).parameters(), 0u);
}

TEST_F(ElasticTest, ACalibrationSaysHowFastTheTlmIs) {
  v1::Config config;
  config.mutable_orchestrator()->set_tlm_path(path_);
  config.mutable_orchestrator()->set_tlm_threads(1);
  config.set_state_dir(temp_ / "state");
  ASSERT_TRUE(FillDefaults(&config).ok());
  const auto open = [&] { return TlmReader::Open(config, Clock::Real()); };
  EXPECT_FALSE(open()->calibrated());

  const std::string record_path =
      engine::CalibrationPath(path_, engine::PackedDir(config.state_dir()));
  v1::Calibration record;
  record.set_format(engine::kCalibrationFormat);
  record.set_complete(true);
  *record.mutable_key() = *engine::MakeTlmKey(path_, "", 1, ReadBoard());
  v1::CalibrationPoint& point = *record.add_points();
  point.set_kind(v1::CALIBRATION_KIND_READ);
  point.set_text_bytes(1000);
  point.add_sample_us(77e9);
  ASSERT_TRUE(engine::WriteCalibration(record, record_path).ok());
  const auto calibrated = open();
  EXPECT_TRUE(calibrated->calibrated());
  EXPECT_DOUBLE_EQ(calibrated->us_per_byte(), 77e6);

  config.mutable_orchestrator()->set_tlm_threads(2);
  const auto stale = open();
  EXPECT_FALSE(stale->calibrated()) << "it was made with one thread";
  EXPECT_LT(stale->us_per_byte(), 77e6);
}

TEST_F(ElasticTest, ATlmOfAnotherModelDecidesOnlyWhereItIsNamed) {
  engine::TlmShape shape = engine::SmallShape();
  shape.model_id = "own";
  const std::string path = temp_ / "withy-pocket-tlm-own.gguf";
  ASSERT_TRUE(engine::WriteTlm(engine::SmallTlm(3, shape), engine::GgmlType::kQ8_0, path).ok());
  v1::Config config;
  config.mutable_orchestrator()->set_tlm_threads(1);
  config.mutable_model()->set_path(temp_ / "model.gguf");
  const std::unique_ptr<TlmReader> found = TlmReader::Open(config, Clock::Real());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->WhyUnfit({20, 60, 100}, "own"), "");
  EXPECT_EQ(found->WhyUnfit({20, 60, 100}, ""), "") << "a worker that does not say";
  EXPECT_THAT(found->WhyUnfit({20, 60, 100}, "other"), HasSubstr("trained for another model"));
  config.mutable_orchestrator()->set_tlm_path(path);
  const std::unique_ptr<TlmReader> named = TlmReader::Open(config, Clock::Real());
  ASSERT_NE(named, nullptr);
  EXPECT_EQ(named->WhyUnfit({20, 60, 100}, "other"), "");
  EXPECT_THAT(named->WhyUnfit({20, 100}, "own"), HasSubstr("levels that the model lacks"));
}

class OtherModelTest : public ElasticTest {
 protected:
  // In a folder of that name, with a TLM beside it.
  std::string MakeModel(const std::string& name, bool with_tlm = true) {
    const std::string folder = temp_ / name;
    std::filesystem::create_directories(folder);
    if (with_tlm) MakeTlm(absl::StrCat(folder, "/withy-pocket-tlm-", name, ".gguf"));
    return folder + "/model.gguf";
  }
  void StartBoardWith(const std::string& model, const std::string& tlm_path = "") {
    v1::Config config;
    config.mutable_model()->set_path(model);
    config.mutable_orchestrator()->set_audit_off(true);
    config.mutable_orchestrator()->set_probe_off(true);
    config.mutable_orchestrator()->set_tlm_path(tlm_path);
    config.mutable_orchestrator()->set_tlm_threads(1);
    board_ = std::make_unique<Board>(config);
    board_->worker.SetLevels({20, 60, 100});
    board_->worker.SetPrefillCost(100'000);
    board_->worker.SetModelPath(model);
  }
  v1::Decision Decide() {
    v1::GenerateRequest request = Ask(Words());
    request.mutable_slo()->set_ttft_ratio(0.4);
    const Outcome outcome = board_->Generate(request);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    return outcome.started.decision();
  }
  // By what `withyctl models list` shows.
  std::string ListedTlm() {
    grpc::ClientContext context;
    Authorise(&context);
    v1::ListModelsResponse models;
    EXPECT_TRUE(board_->stub().ListModels(&context, {}, &models).ok());
    return models.models_size() < 2 ? "none" : models.models(1).name();
  }
  std::string StatusDetail() {
    grpc::ClientContext context;
    v1::GetStatusResponse status;
    EXPECT_TRUE(board_->stub().GetStatus(&context, {}, &status).ok());
    return status.processes(0).status().detail();
  }
};

TEST_F(OtherModelTest, BringsTheTlmBesideIt) {
  const std::string first = MakeModel("first"), second = MakeModel("second");
  const std::string bare = MakeModel("bare", /*with_tlm=*/false);
  StartBoardWith(first);
  EXPECT_EQ(Decide().reason(), v1::DECISION_REASON_TLM);
  EXPECT_EQ(ListedTlm(), "withy-pocket-tlm-first");

  board_->worker.SetModelPath(second);
  EXPECT_EQ(Decide().reason(), v1::DECISION_REASON_TLM);
  EXPECT_EQ(ListedTlm(), "withy-pocket-tlm-second");

  board_->worker.SetModelPath(bare);
  const v1::Decision without = Decide();
  EXPECT_NE(without.reason(), v1::DECISION_REASON_TLM);
  EXPECT_THAT(without.explanation(), HasSubstr("no TLM is loaded"));
  EXPECT_EQ(ListedTlm(), "none");
  EXPECT_EQ(StatusDetail(), "no TLM");

  board_->worker.SetModelPath(first);
  EXPECT_THAT(StatusDetail(), HasSubstr("TLM withy-pocket-tlm-first")) << "without a call";
  EXPECT_EQ(Decide().reason(), v1::DECISION_REASON_TLM);
}

TEST_F(OtherModelTest, LeavesTheTlmThatTheConfigurationNames) {
  const std::string first = MakeModel("first"), second = MakeModel("second");
  StartBoardWith(first, path_);
  board_->worker.SetModelPath(second);
  EXPECT_EQ(Decide().reason(), v1::DECISION_REASON_TLM);
  EXPECT_EQ(ListedTlm(), "tlm");
  StartBoardWith(first, "off");
  board_->worker.SetModelPath(second);
  EXPECT_NE(Decide().reason(), v1::DECISION_REASON_TLM);
}

TEST_F(ElasticTest, TheDefaultIsBesideTheModel) {
  EXPECT_EQ(DefaultTlmPath(temp_ / "model.gguf"), "");
  EXPECT_EQ(DefaultTlmPath("/nowhere/model.gguf"), "");
  for (const char* name : {"withy-pocket-tlm-f16.gguf", "withy-pocket-tlm-q8_0.gguf",
                           "withy-pocket-tlm-q8_0.json", "withy-pocket-z.gguf"}) {
    std::ofstream(temp_ / name) << "x";
  }
  EXPECT_EQ(DefaultTlmPath(temp_ / "model.gguf"), temp_ / "withy-pocket-tlm-q8_0.gguf");
}

}  // namespace
}  // namespace withy::orchestrator
