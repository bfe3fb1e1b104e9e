// The whole worker over the wire: real tiny model, real sockets and arena, a scripted store.
#include <gmock/gmock.h>
#include <grpcpp/impl/codegen/client_callback.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/board.h"
#include "base/config.h"
#include "engine/gguf/writer.h"
#include "engine/kv/block.h"
#include "engine/model/testing.h"
#include "model_worker/service_testing.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "wire/calibration.h"
#include "withy/v1/model_worker.grpc.pb.h"

namespace withy::model_worker {
namespace {

using testing::HasSubstr;

TEST_F(ServiceTest, WaitsForTheStoreAndAnswers) {
  StartWorker();
  WaitUntilServing(false);
  const Answer away = Run(Asking("ctx", "hello"));
  EXPECT_EQ(away.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(away.retry_hint);

  StartStore();
  WaitUntilServing(true);
  EXPECT_GT(store_->attached().kv_costs().recompute_chunk_ms(), 0);
  v1::RunRequest request = Asking("ctx", "hello");
  request.set_request_id("r");
  request.set_request_digest("d");
  request.mutable_decision()->set_explanation("because");
  request.mutable_sampling()->set_seed(5);
  const Answer first = Run(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(first.finished.text(), first.text);
  EXPECT_EQ(first.finished.seed(), 5u);
  EXPECT_EQ(first.finished.usage().completion_tokens(), 8u);
  EXPECT_EQ(std::accumulate(first.deltas.begin(), first.deltas.end(), 0), 8);
  EXPECT_EQ(first.deltas.front(), 1) << "the first token waits for none";
  EXPECT_EQ(first.accepted.prefill_tokens(), first.finished.usage().prompt_tokens());
  EXPECT_GT(first.finished.latency().measured().ttft_ms(), 0);

  const v1::LeaseCommit commit = store_->WaitForCommit(0);
  ASSERT_EQ(commit.appended_size(), 2);
  EXPECT_EQ(commit.appended(0).text(), "hello");
  EXPECT_EQ(commit.appended(1).text(), first.text);
  EXPECT_EQ(commit.request_id(), "r");
  EXPECT_EQ(commit.result().finished().text(), first.text);
  EXPECT_EQ(commit.result().decision().explanation(), "because");
  EXPECT_EQ(commit.result().tokens_size(), 8);
  ASSERT_GT(commit.chunks_size(), 0);
  EXPECT_EQ(commit.chunks(0).identity().size(), 32u);

  engine::KvBlockHeader header;
  std::memcpy(&header, store_->Block(0, 1), sizeof(header));
  EXPECT_EQ(header.epoch, store_->epoch());
  EXPECT_EQ(header.layer, 1u);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(header.identity), 32),
            commit.chunks(0).identity());

  const Answer second = Run(Asking("ctx", "and now?"));
  ASSERT_TRUE(second.status.ok());
  EXPECT_EQ(second.accepted.reused_tokens() + 1, commit.context_tokens());
}

// The defaults, what was used, and that it can be asked for again.
TEST_F(ServiceTest, ACallThatSaysNothingIsDrawnByTheDefaultsWhichItIsTold) {
  config_.mutable_model()->mutable_sampling()->set_temperature(0.9f);
  config_.mutable_model()->set_max_tokens(6);
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  v1::RunRequest request = Asking("", "hello", 0);
  request.clear_sampling();
  const Answer first = Run(request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  const v1::Sampling used = first.finished.sampling();
  EXPECT_FLOAT_EQ(used.temperature(), 0.9f);
  EXPECT_FLOAT_EQ(used.top_p(), 0.95f);
  EXPECT_FLOAT_EQ(used.repetition_penalty(), 1.1f);
  EXPECT_EQ(used.seed(), first.finished.seed());
  EXPECT_LE(first.finished.usage().completion_tokens(), 6u);
  if (first.finished.usage().completion_tokens() == 6) {
    EXPECT_EQ(first.finished.reason(), v1::FINISH_REASON_MAX_TOKENS);
    EXPECT_THAT(first.finished.explanation(), HasSubstr("cut after 6 tokens"));
  }
  *request.mutable_sampling() = used;
  const Answer again = Run(request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.text, first.text);

  grpc::ClientContext context;
  v1::GetWorkerInfoResponse info;
  ASSERT_TRUE(stub_->GetWorkerInfo(&context, {}, &info).ok());
  EXPECT_FLOAT_EQ(info.model().default_sampling().temperature(), 0.9f);
  EXPECT_EQ(info.model().default_max_tokens(), 6u);
}

TEST_F(ServiceTest, TokensHaveTheirTextWhereLogprobsAreAskedFor) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  v1::RunRequest request = Asking("", "hello", 6);
  for (const bool asked : {true, false}) {
    request.mutable_limits()->clear_logprobs();
    if (asked) request.mutable_limits()->set_logprobs(2);
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60));
    const auto reader = stub_->Run(&context, request);
    v1::RunResponse response;
    std::string text, tokens;
    while (reader->Read(&response)) {
      text += response.delta().text();
      for (const v1::Token& token : response.delta().tokens()) {
        tokens += token.text();
        for (const v1::TokenAlternative& other : token.alternatives()) {
          if (other.id() == token.id()) {
            EXPECT_EQ(other.text(), token.text());
          }
        }
      }
    }
    EXPECT_TRUE(reader->Finish().ok());
    EXPECT_EQ(tokens.empty(), !asked);
    if (asked) {
      EXPECT_NE(tokens.find(text.substr(0, 1)), std::string::npos) << tokens;
    }
  }
}

TEST_F(ServiceTest, AModelWhoseNameIsNoUtf8IsServed) {
  NameModelInLatin1();
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  grpc::ClientContext context;
  v1::GetWorkerInfoResponse info;
  const grpc::Status status = stub_->GetWorkerInfo(&context, {}, &info);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(info.model().name(), "mod\xEF\xBF\xBDle");
  EXPECT_TRUE(Run(Asking("", "hello")).status.ok());
}

// Whatever ends a stream: its caller may be gone.
TEST_F(ServiceTest, ACallWhoseStreamEndsIsKeptAsFarAsItWentAndIsNoResult) {
  ServeSlowModel();
  v1::RunRequest request = Asking("ctx", "hello", 400);
  request.set_request_id("r");
  request.set_request_digest("d");
  const Answer answer = Run(request, /*cancel_after=*/3);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::CANCELLED);
  const v1::LeaseCommit commit = store_->WaitForCommit(0);
  ASSERT_EQ(commit.appended_size(), 2);
  EXPECT_TRUE(commit.appended(1).cancelled());
  EXPECT_TRUE(commit.appended(1).text().starts_with(answer.text));
  EXPECT_TRUE(commit.broken_off());
  EXPECT_EQ(commit.request_id(), "r");
  EXPECT_EQ(commit.request_digest(), "d");
  EXPECT_FALSE(commit.has_result());
}

TEST_F(ServiceTest, WhatItsCallerCancelsIsAResult) {
  ServeSlowModel();
  v1::RunRequest request = Asking("ctx", "hello", 400);
  request.set_call_id(77);
  request.set_request_id("r");
  const auto cancel = [&](uint64_t call_id) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60));
    v1::CancelRunRequest wish;
    wish.set_call_id(call_id);
    v1::CancelRunResponse response;
    return stub_->Cancel(&context, wish, &response).error_code();
  };
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(60));
  const auto reader = stub_->Run(&context, request);
  v1::RunResponse response, last;
  while (reader->Read(&response) && !response.has_delta()) {
  }
  EXPECT_EQ(cancel(78), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(cancel(77), grpc::StatusCode::OK);
  while (reader->Read(&response)) last = response;
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_CANCELLED);
  const v1::LeaseCommit commit = store_->WaitForCommit(0);
  EXPECT_FALSE(commit.broken_off());
  EXPECT_TRUE(commit.result().cancelled_by_caller());
  EXPECT_EQ(commit.result().finished().text(), last.finished().text());
  EXPECT_EQ(cancel(77), grpc::StatusCode::NOT_FOUND) << "it is over";
}

TEST_F(ServiceTest, ARetryOfACallThatIsBeingCommittedIsToldToComeBack) {
  ServeSlowModel();
  store_->Hold({.commits = true});
  v1::RunRequest request = Asking("ctx", "hello", 400);
  request.set_request_id("r");
  Run(request, /*cancel_after=*/3);
  ASSERT_TRUE(serving::Eventually([&] { return store_->leases().committing == 1; }));
  const Answer during = Run(request);
  EXPECT_EQ(during.status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(during.retry_hint);
  store_->Hold({});
  EXPECT_EQ(store_->WaitForCommit(0).request_id(), "r");
  // What broke off is no answer: the retry gets one as soon as the worker has heard of the commit.
  request.mutable_limits()->set_max_tokens(4);
  ASSERT_TRUE(serving::Eventually([&] {
    const grpc::Status status = Run(request).status;
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::ABORTED)
        << status.error_message();
    return status.ok();
  }));
  EXPECT_EQ(Run(request).status.error_code(), grpc::StatusCode::ABORTED) << "the store has it";
}

TEST_F(ServiceTest, ACallCancelledWhileItsLeaseOpensGivesItsBlocksBack) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  store_->Hold({.openings = true});
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(60));
  const auto reader = stub_->Run(&context, Asking("ctx", "hello"));
  ASSERT_TRUE(serving::Eventually([&] { return store_->leases().opening == 1; }));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(serving::Eventually([&] {
    v1::GetWorkerInfoResponse info;
    grpc::ClientContext client;
    rpc::SetTimeout(&client, absl::Seconds(60));
    EXPECT_TRUE(stub_->GetWorkerInfo(&client, {}, &info).ok());
    return info.load().running_calls() + info.load().queued_calls() == 0;
  })) << "the worker has let go of it";
  store_->Hold({});
  ASSERT_TRUE(
      serving::Eventually([&] { return store_->leases().aborted + store_->leases().broken > 0; }));
  EXPECT_EQ(store_->leases().aborted, 1)
      << "a broken lease's slots are lost to a worker that lives";
  EXPECT_EQ(store_->leases().limited, 0) << "a deadline would break one, too";
}

TEST_F(ServiceTest, RestartedStoreIsAttachedAnewAndTheContextGoesOn) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  const Answer before = Run(Asking("", "hello"));
  ASSERT_TRUE(before.status.ok());
  store_.reset();
  WaitUntilServing(false);
  StartStore(/*first_epoch=*/20);
  WaitUntilServing(true);
  const Answer after = Run(Asking("", "hello"));
  ASSERT_TRUE(after.status.ok()) << after.status.error_message();
  EXPECT_EQ(after.text, before.text) << "the same stateless call gives the same text";
}

TEST_F(ServiceTest, BadRequestsAreNamedAndOthersGoOn) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  v1::RunRequest request = Asking("ctx", "hello");
  request.mutable_sampling()->set_top_p(7);
  EXPECT_EQ(Run(request).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  request = Asking("ctx", "hello");
  request.mutable_prompt()->mutable_messages()->mutable_messages(0)->set_role("wizard");
  const Answer wizard = Run(request);
  EXPECT_EQ(wizard.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(wizard.status.error_message(), HasSubstr("wizard"));
  const Answer longer = Run(Asking("ctx", std::string(20000, '?')));
  EXPECT_EQ(longer.status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_THAT(longer.status.error_message(), HasSubstr("window"));
  EXPECT_TRUE(Run(Asking("ctx", "hello")).status.ok());
}

TEST_F(ServiceTest, CountsTokensAsACallSeesThem) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  const auto count = [&](const std::string& context, v1::TokenizeResponse* response) {
    v1::TokenizeRequest request;
    *request.mutable_prompt() = Asking("", "and now?").prompt();
    request.set_app_id("app");
    request.set_context_id(context);
    grpc::ClientContext client;
    rpc::SetTimeout(&client, absl::Seconds(60));
    return stub_->Tokenize(&client, request, response);
  };
  ASSERT_TRUE(Run(Asking("ctx", "hello")).status.ok());
  v1::TokenizeResponse counted;
  ASSERT_TRUE(count("ctx", &counted).ok());
  const Answer answer = Run(Asking("ctx", "and now?"));
  EXPECT_EQ(counted.prompt_tokens(), answer.finished.usage().prompt_tokens());
  EXPECT_EQ(counted.context_tokens(), answer.finished.usage().context_tokens());
  EXPECT_EQ(count("nobody's", &counted).error_code(), grpc::StatusCode::NOT_FOUND);

  v1::GetWorkerInfoResponse info;
  grpc::ClientContext client;
  rpc::SetTimeout(&client, absl::Seconds(60));
  ASSERT_TRUE(stub_->GetWorkerInfo(&client, {}, &info).ok());
  EXPECT_EQ(info.model().role(), "target");
  EXPECT_THAT(info.model().levels_percent(), testing::ElementsAre(100));
  EXPECT_GT(info.cost().prefill_us_per_token(), 0);
  EXPECT_EQ(info.load().queue_limit(), 64u);
}

TEST_F(ServiceTest, ALevelThatFallsInMidAnswerIsTold) {
  engine::SynthShape shape = engine::TinyShape();
  shape.levels = {20, 60};
  config_.mutable_model()->set_path(
      engine::WriteTiny(folder_, shape, engine::GgmlType::kQ8_0, "elastic.gguf"));
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  v1::RunRequest request = Asking("ctx", "hello", 30);
  request.mutable_targets()->set_tpot_ms(1e-6);
  const Answer fallen = Run(request);
  ASSERT_TRUE(fallen.status.ok()) << fallen.status.error_message();
  EXPECT_THAT(fallen.new_levels, testing::ElementsAre(20));
  EXPECT_THAT(fallen.finished.model_levels_percent(), testing::ElementsAre(100, 20));
  EXPECT_THAT(
      fallen.finished.explanation(),
      testing::StartsWith(
          "To keep the SLO the model's level fell in mid-answer, from 100 % to 20 %. The answer"));
  request = Asking("ctx", "hello", 30);
  request.mutable_targets()->set_ttft_ms(0.001);
  const Answer late = Run(request);
  EXPECT_THAT(late.finished.model_levels_percent(), testing::ElementsAre(20));
  EXPECT_THAT(late.finished.explanation(),
              testing::StartsWith("To keep the SLO the model's level fell before the first token, "
                                  "from 100 % to 20 %. The answer"));
  request.set_level_fixed(true);
  const Answer fixed = Run(request);
  EXPECT_THAT(fixed.finished.model_levels_percent(), testing::ElementsAre(100));
  EXPECT_THAT(fixed.finished.explanation(), testing::StartsWith("The answer was cut"));
  const Answer steady = Run(Asking("ctx", "hello", 30));
  EXPECT_THAT(steady.new_levels, testing::IsEmpty());
  EXPECT_THAT(steady.finished.model_levels_percent(), testing::ElementsAre(100));
  EXPECT_THAT(steady.finished.explanation(), testing::StartsWith("The answer was cut"));
}

TEST_F(ServiceTest, AShortenedPromptIsCountedAsItIsAnswered) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  v1::RunRequest request = Asking("", "keep drop keep");
  v1::KeptSpans& kept = *request.add_kept();
  for (const auto& [begin, end] : {std::pair(0, 4), std::pair(9, 14)}) {
    v1::ByteSpan& span = *kept.add_spans();
    span.set_begin(static_cast<uint32_t>(begin));
    span.set_end(static_cast<uint32_t>(end));
  }
  request.set_pruned_words(1);
  const Answer answer = Run(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.finished.usage().pruned_words(), 1u);
  v1::TokenizeRequest count;
  *count.mutable_prompt() = request.prompt();
  *count.mutable_kept() = request.kept();
  grpc::ClientContext client;
  rpc::SetTimeout(&client, absl::Seconds(60));
  v1::TokenizeResponse counted;
  ASSERT_TRUE(stub_->Tokenize(&client, count, &counted).ok());
  EXPECT_EQ(counted.prompt_tokens(), answer.finished.usage().prompt_tokens());
  EXPECT_EQ(Run(Asking("", "keep keep")).text, answer.text);
}

// A calibration of the worker's own model, with times that no probe would find.
TEST_F(ServiceTest, ACalibrationIsUsedWhereItHoldsAndRefusedWhereNot) {
  StartStore();
  const auto info = [&] {
    StartWorker();
    v1::GetWorkerInfoResponse response;
    grpc::ClientContext client;
    rpc::SetTimeout(&client, absl::Seconds(60));
    client.set_wait_for_ready(true);
    EXPECT_TRUE(stub_->GetWorkerInfo(&client, {}, &response).ok());
    worker_.reset();
    return response;
  };
  const v1::GetWorkerInfoResponse probed = info();
  EXPECT_EQ(probed.cost().source(), v1::COST_SOURCE_PROBE);
  EXPECT_THAT(probed.status().detail(), HasSubstr("; not calibrated"));

  v1::Calibration record;
  record.set_format(engine::kCalibrationFormat);
  record.set_complete(true);
  for (const auto kind : {v1::CALIBRATION_KIND_PREFILL, v1::CALIBRATION_KIND_DECODE}) {
    v1::CalibrationPoint& point = *record.add_points();
    point.set_kind(kind);
    point.set_level_percent(100);
    point.set_rows(kind == v1::CALIBRATION_KIND_PREFILL ? 64 : 1);
    point.add_sample_us(64e6);
  }
  const std::string path =
      engine::CalibrationPath(config_.model().path(), engine::PackedDir(config_.state_dir()));
  engine::ModelOptions options;
  options.threads = 2;
  options.cache_dir = engine::PackedDir(config_.state_dir());
  {
    const auto model = engine::Model::Open(config_.model().path(), options);
    ASSERT_TRUE(model.ok()) << model.status();
    *record.mutable_key() = engine::MakeCalibrationKey((*model)->info().id, (*model)->target(),
                                                       (*model)->threads(), ReadBoard());
  }
  ASSERT_TRUE(engine::WriteCalibration(record, path).ok());
  const v1::GetWorkerInfoResponse calibrated = info();
  EXPECT_EQ(calibrated.cost().source(), v1::COST_SOURCE_CALIBRATION);
  EXPECT_EQ(calibrated.cost().prefill_us_per_token(), 1e6);
  EXPECT_EQ(calibrated.cost().levels(0).decode_us(), 64e6);
  EXPECT_THAT(calibrated.status().detail(), HasSubstr("; calibrated"));

  // Another model now lies at the path that it was made of.
  engine::SynthShape other = engine::TinyShape();
  other.d_ff += 256;
  engine::WriteTiny(folder_, other, engine::GgmlType::kQ8_0);
  const v1::GetWorkerInfoResponse stale = info();
  EXPECT_EQ(stale.cost().source(), v1::COST_SOURCE_PROBE);
  EXPECT_LT(stale.cost().prefill_us_per_token(), 1e6);
  for (const v1::PrefillTime& time : stale.cost().levels(0).prefill()) {
    EXPECT_LT(time.us(), 1e6 * time.tokens()) << "measured at the start, not the record's";
  }
  EXPECT_THAT(stale.status().detail(), HasSubstr("; calibration refused"));
}

// Weights that do not fit are read from the disk for every step: the answers are the same.
TEST_F(ServiceTest, AWeightBudgetChangesNoAnswer) {
  config_.mutable_model()->set_path(
      engine::WriteTiny(folder_, SlowShape(), engine::GgmlType::kQ8_0, "slow.gguf"));
  config_.mutable_model()->set_weight_budget_bytes(1 << 20);
  const absl::Status refused = StartModelWorker(config_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("weight_budget_bytes is 1048576"));
  StartStore();
  std::vector<std::string> answers;
  for (const uint64_t budget : {uint64_t{0}, uint64_t{12} << 20, uint64_t{30} << 20}) {
    config_.mutable_model()->set_weight_budget_bytes(budget);
    StartWorker();
    WaitUntilServing(true);
    const Answer answer = Run(Asking("", "hello there, how are you?"));
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    answers.push_back(answer.text);
    worker_.reset();
  }
  EXPECT_FALSE(answers[0].empty());
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

TEST_F(ServiceTest, MissingModelAndUnknownTemplateNameTheRemedy) {
  config_.mutable_model()->set_path(folder_ / "nowhere.gguf");
  const absl::Status missing = StartModelWorker(config_).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("nowhere.gguf"));
  config_.mutable_model()->set_path(folder_ / "model.gguf");
  config_.mutable_model()->set_chat_template("nonsense");
  const absl::Status unknown = StartModelWorker(config_).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("chatml"));
}

}  // namespace
}  // namespace withy::model_worker
