#include "orchestrator/call/prompt_counter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/encoder/testing.h"
#include "engine/session/testing.h"
#include "orchestrator/testing.h"
#include "wire/wire.h"

namespace withy::orchestrator {
namespace {

using ::testing::HasSubstr;

// A file with the tokenizer of engine::ChatFixture: a token a byte, but for "ll".
class PromptCounterTest : public testing::Test {
 protected:
  PromptCounterTest() : temp_("prompt_counter"), path_(temp_ / "model.gguf") {
    const absl::Status written = chat_.vocab.writer().Write(path_);
    EXPECT_TRUE(written.ok()) << written;
    config_.mutable_model()->set_path(path_);
    config_.mutable_model()->set_chat_template("chatml");
    config_.mutable_orchestrator()->set_audit_off(true);  // calls are counted
  }

  uint32_t Expected(const v1::TokenizeRequest& request) const {
    const auto prompt = engine::PromptFromWire(request.prompt(), request.kept()).value();
    return static_cast<uint32_t>(chat_.encoder->EncodePrompt(prompt, 1 << 20)->ids.size());
  }

  engine::ChatFixture chat_;
  engine::TempFolder temp_;
  std::string path_;
  v1::Config config_;
};

TEST_F(PromptCounterTest, CountsAsTheWorkerWould) {
  const auto counter = PromptCounter::Open(config_);
  ASSERT_NE(counter, nullptr);
  v1::GetWorkerInfoResponse worker;
  EXPECT_FALSE(counter->Fits(worker));
  worker.set_encoder_fingerprint(chat_.encoder->Fingerprint());
  EXPECT_TRUE(counter->Fits(worker));

  v1::TokenizeRequest raw;
  raw.mutable_prompt()->set_text("all well");
  EXPECT_EQ(counter->Count(raw)->prompt_tokens(), 6u);
  raw.add_kept()->add_spans()->set_end(3);
  EXPECT_EQ(counter->Count(raw)->prompt_tokens(), 2u);

  v1::TokenizeRequest messages;
  for (const char* role : {"user", "assistant", "user"}) {
    v1::Message& message = *messages.mutable_prompt()->mutable_messages()->add_messages();
    message.set_role(role);
    message.set_content("all well");
  }
  const auto counted = counter->Count(messages);
  ASSERT_TRUE(counted.ok()) << counted.status();
  EXPECT_EQ(counted->context_tokens(), 0u) << "earlier turns of the prompt are the prompt's";
  EXPECT_EQ(counted->prompt_tokens(), Expected(messages));

  EXPECT_EQ(counter->Count({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PromptCounterTest, TokensStandForTheirTextOrAreRefused) {
  const auto counter = PromptCounter::Open(config_);
  ASSERT_NE(counter, nullptr);
  const std::vector<int32_t> ids = chat_.tokenizer->Encode("all well");
  ASSERT_EQ(ids.size(), 6u);
  const auto text = counter->TextOf(ids);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "all well");
  // "ll" is one token.
  const std::vector<int32_t> other = {'l', 'l'};
  EXPECT_THAT(std::string(counter->TextOf(other).status().message()), HasSubstr("send the text"));
  const std::vector<int32_t> none = {1 << 30};
  EXPECT_THAT(std::string(counter->TextOf(none).status().message()), HasSubstr("1073741824"));
}

TEST_F(PromptCounterTest, ACallThatIsOverIsNotCounted) {
  const auto counter = PromptCounter::Open(config_);
  ASSERT_NE(counter, nullptr);
  v1::TokenizeRequest raw;
  raw.mutable_prompt()->set_text(std::string(4 * engine::CancelPoll::kStride, 'a'));
  const engine::CancelCheck over = [] { return true; };
  EXPECT_EQ(counter->Count(raw, &over).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(counter->Count(raw).ok());
}

TEST_F(PromptCounterTest, AnotherTemplateDoesNotFit) {
  config_.mutable_model()->set_chat_template("plain");
  const auto counter = PromptCounter::Open(config_);
  ASSERT_NE(counter, nullptr);
  v1::GetWorkerInfoResponse worker;
  worker.set_encoder_fingerprint(chat_.encoder->Fingerprint());
  EXPECT_FALSE(counter->Fits(worker));
}

TEST_F(PromptCounterTest, WithoutTheFileTheWorkerCounts) {
  config_.mutable_model()->set_path(temp_ / "none.gguf");
  EXPECT_EQ(PromptCounter::Open(config_), nullptr);
  std::ofstream(temp_ / "none.gguf") << "this is no model";
  EXPECT_EQ(PromptCounter::Open(config_), nullptr);
}

TEST_F(PromptCounterTest, AStatelessCallDoesNotAskTheWorker) {
  Board board(config_);
  board.worker.SetEncoder(chat_.encoder->Fingerprint());
  const Outcome outcome = board.Generate(Ask("all well"));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().predicted_prompt_tokens(), 6u);
  EXPECT_EQ(board.worker.tokenized(), 0);

  v1::GenerateRequest in_context = Ask("all well");
  in_context.set_context_id("ctx_of_app_1");
  ASSERT_TRUE(board.Generate(in_context).status.ok());
  EXPECT_EQ(board.worker.tokenized(), 1);

  board.worker.SetEncoder(1);
  ASSERT_TRUE(board.Generate(Ask("all well")).status.ok());
  EXPECT_EQ(board.worker.tokenized(), 2);
}

// The call was decided for the worker of before, which is found out when it is to run.
TEST_F(PromptCounterTest, AWorkerThatWasRestartedIsDecidedForAnew) {
  Board board(config_);
  board.worker.SetEncoder(chat_.encoder->Fingerprint());
  v1::GenerateRequest request = Ask("all well");
  request.mutable_slo()->set_tpot_ratio(0.5);
  EXPECT_EQ(board.Generate(request).started.decision().model_level_percent(), 100u);
  board.worker.SetLevels({40, 100});
  const Outcome outcome = board.Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 40u);
  EXPECT_EQ(outcome.text, "abc");
  ASSERT_EQ(board.worker.runs().size(), 2u);
  EXPECT_EQ(board.worker.runs()[1].model_level_percent(), 40u);
}

}  // namespace
}  // namespace withy::orchestrator
