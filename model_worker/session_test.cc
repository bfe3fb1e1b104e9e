#include "model_worker/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_worker/testing.h"

namespace withy::model_worker {
namespace {

using engine::FinishReason;
using engine::Segment;

constexpr int32_t kWindow = 256;

// Plays store and engine for one session after the other.
class SessionTest : public testing::Test {
 protected:
  SessionTest()
      : model_(chat_.tokenizer->vocab_size()),
        namer_(ModelIdentity("m", {2, 1, 16}), "", engine::KvFormat::kQ8),
        env_{.model = model_.info(), .encoder = *chat_.encoder, .namer = namer_, .window = kWindow},
        arena_(std::make_shared<FakeArena>(1, 256, model_.info().kv.block_bytes)) {}

  CallRequest Ask(const std::string& text, int32_t max_tokens = 10) {
    CallRequest request;
    request.context_id = "c";
    request.answer.prompt = {engine::UserSays(text)};
    request.answer.max_tokens = max_tokens;
    return request;
  }

  std::unique_ptr<Session> Create(const CallRequest& request) {
    auto session = Session::Create(env_, request,
                                   {.segments = record_, .resident = resident_, .arena = arena_});
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  // Runs to the end in steps of `rows`, then keeps what is committed.
  CallOutcome Finish(Session& session, int32_t rows, int32_t stop_after = 1 << 20) {
    std::vector<std::vector<uint32_t>> claimed;
    for (const ResidentChunk& chunk : resident_) claimed.push_back(chunk.where.blocks);
    if (session.faulty_chunk()) claimed.resize(static_cast<size_t>(*session.faulty_chunk()));
    std::vector<float> logits(static_cast<size_t>(model_.info().vocab_size));
    int32_t tokens = 0;
    while (!session.finished()) {
      if (const auto range = session.NextClaim(rows)) {
        std::vector<ChunkBlocks> blocks;
        claimed.resize(static_cast<size_t>(range->first));
        for (int32_t i = 0; i < range->count; ++i) {
          blocks.push_back({range->first + i, {next_block_, next_block_ + 1}});
          next_block_ += 2;
          claimed.push_back(blocks.back().blocks);
        }
        EXPECT_TRUE(session.AddBlocks(blocks).ok());
      }
      std::vector<engine::Row> batch;
      const int32_t count = std::min(rows, session.ready_rows());
      const bool wants = session.AppendRows(count, 0, &batch);
      computed_rows_ += count;
      const engine::ContextView view = session.View();
      const absl::Status status =
          model_.Forward({.rows = batch, .contexts = {&view, 1}}, logits.data(), nullptr);
      EXPECT_TRUE(status.ok()) << status;
      session.Advance(count);
      if (!wants) continue;
      EXPECT_TRUE(session.TakeLogits(logits).ok());
      if (++tokens == stop_after && !session.finished()) session.Finish(FinishReason::kCancelled);
    }
    const LeaseCommit commit = session.MakeCommit(/*unix_s=*/5);
    record_.insert(record_.end(), commit.appended.begin(), commit.appended.end());
    resident_.clear();
    for (size_t i = 0; i < commit.chunks.size(); ++i) {
      resident_.push_back({{static_cast<int32_t>(i), claimed[i]}, commit.chunks[i]});
    }
    last_commit_ = commit;
    return session.Outcome();
  }

  engine::ChatFixture chat_;
  engine::FakeModel model_;
  ChunkNamer namer_;
  SessionEnv env_;
  std::shared_ptr<FakeArena> arena_;
  uint32_t next_block_ = 0;
  std::vector<Segment> record_;
  std::vector<ResidentChunk> resident_;
  LeaseCommit last_commit_;
  int32_t computed_rows_ = 0;
};

TEST_F(SessionTest, SecondCallComputesOnlyWhatIsNew) {
  auto first = Create(Ask("tell me something"));
  EXPECT_EQ(first->usage().reused_tokens, 0);
  Finish(*first, 7);
  const int32_t kv_tokens = computed_rows_;
  auto second = Create(Ask("and more"));
  EXPECT_FALSE(second->faulty_chunk().has_value());
  EXPECT_EQ(second->usage().reused_tokens, kv_tokens);
  EXPECT_EQ(second->usage().context_tokens, kv_tokens + 1) << "the last token was only sampled";
  const std::string reused = Finish(*second, 5).text;

  // The same without any KV.
  record_.resize(2);
  resident_.clear();
  auto again = Create(Ask("and more"));
  EXPECT_EQ(again->usage().reused_tokens, 0);
  EXPECT_EQ(Finish(*again, 64).text, reused);
}

// Attention must not ask for what a lower level left out of the context.
TEST_F(SessionTest, RowsSayTheLowestLevelOfWhatTheySee) {
  model_.set_levels({20, 60, 100});
  auto first = Create(Ask("tell me something"));
  first->LowerLevel(60);
  Finish(*first, 7);
  auto second = Create(Ask("and more"));
  std::vector<int32_t> levels;
  model_.on_forward = [&](const engine::Batch& batch) {
    for (const engine::Row& row : batch.rows) {
      EXPECT_EQ(row.level, 2);
      levels.push_back(row.context_level);
    }
  };
  Finish(*second, 7);
  EXPECT_THAT(levels, testing::SizeIs(testing::Gt(0)));
  EXPECT_THAT(levels, testing::Each(1));
}

TEST_F(SessionTest, RecordHoldsPromptAndAnswer) {
  Finish(*Create(Ask("hi", 4)), 64);
  ASSERT_EQ(record_.size(), 2u);
  EXPECT_EQ(record_[0].role, "user");
  EXPECT_EQ(record_[0].text, "hi");
  EXPECT_EQ(record_[1].role, "assistant");
  EXPECT_EQ(record_[1].text.size(), 4u);
  EXPECT_EQ(record_[1].unix_s, 5);
  EXPECT_FALSE(record_[1].cancelled);
  EXPECT_TRUE(record_[1].token_ids.empty()) << "its text encodes to what was generated";
}

TEST_F(SessionTest, CancelledAnswerIsKeptAsFarAsItWentAndUsable) {
  const CallOutcome outcome = Finish(*Create(Ask("hi", 40)), 64, /*stop_after=*/5);
  EXPECT_EQ(outcome.reason, FinishReason::kCancelled);
  EXPECT_EQ(record_[1].text.size(), 5u);
  EXPECT_TRUE(record_[1].cancelled);
  auto next = Create(Ask("go on"));
  EXPECT_FALSE(next->faulty_chunk().has_value());
  EXPECT_EQ(next->usage().reused_tokens, computed_rows_);
}

TEST_F(SessionTest, StopStringLeavesOnlyKvOfTheTextThatStayed) {
  CallRequest request = Ask("hi", 40);
  const std::string all = Finish(*Create(request), 64).text;
  record_.clear();
  resident_.clear();
  request.answer.stop = {all.substr(17, 3)};
  const CallOutcome outcome = Finish(*Create(request), 64);
  EXPECT_EQ(outcome.reason, FinishReason::kStopString);
  EXPECT_EQ(record_[1].text, all.substr(0, all.find(request.answer.stop[0])));
  int32_t kept = 0;
  for (const ChunkName& chunk : last_commit_.chunks) kept += chunk.tokens;
  EXPECT_EQ(kept, last_commit_.context_tokens);
  EXPECT_FALSE(Create(Ask("go on"))->faulty_chunk().has_value());
}

TEST_F(SessionTest, WrongContentIsAFaultAndIsRecomputed) {
  Finish(*Create(Ask("a prompt over several chunks of sixteen tokens each")), 64);
  const std::string text = record_[1].text;
  ASSERT_GE(resident_.size(), 4u);

  // Another attachment: bytes are checked. One block of chunk 2 is damaged.
  arena_->set_epoch(2);
  std::byte* block = arena_->Block(resident_[2].where.blocks[1]);
  block[sizeof(engine::KvBlockHeader)] ^= std::byte{1};
  auto damaged = Create(Ask("next"));
  EXPECT_EQ(damaged->faulty_chunk(), 2);
  EXPECT_EQ(damaged->usage().reused_tokens, 32);
  Finish(*damaged, 64);

  // A foreign identity in the list.
  resident_[1].name.identity[0] ^= 1;
  EXPECT_EQ(Create(Ask("next"))->faulty_chunk(), 1);
}

TEST_F(SessionTest, AnotherModelReusesNothing) {
  Finish(*Create(Ask("a prompt over several chunks of sixteen tokens each")), 64);
  const ChunkNamer other(ModelIdentity("other", {2, 1, 16}), "", engine::KvFormat::kQ8);
  const SessionEnv env{
      .model = model_.info(), .encoder = *chat_.encoder, .namer = other, .window = kWindow};
  auto session = Session::Create(env, Ask("next"),
                                 {.segments = record_, .resident = resident_, .arena = arena_});
  ASSERT_TRUE(session.ok());
  EXPECT_EQ((*session)->faulty_chunk(), 0);
  EXPECT_EQ((*session)->usage().reused_tokens, 0);
}

TEST_F(SessionTest, WhatWasClaimedWithTheOpeningIsUsedFirst) {
  const CallRequest request = Ask("hi");
  const auto open = [&](std::vector<ChunkBlocks> claimed) {
    return Session::Create(env_, request,
                           {.segments = {}, .resident = {}, .claimed = claimed, .arena = arena_});
  };
  const auto plain = open({});
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ((*plain)->ready_rows(), 0);
  const int32_t needed = (*plain)->NextClaim(64)->count;
  std::vector<ChunkBlocks> claimed;
  for (int32_t i = 0; i < needed; ++i) {
    const auto block = static_cast<uint32_t>(2 * i);
    claimed.push_back({i, {block, block + 1}});
  }
  const auto begun = open(claimed);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ((*begun)->ready_rows(), (*begun)->pending_rows());
  EXPECT_FALSE((*begun)->NextClaim(64).has_value());
  claimed.back().chunk = 7;
  EXPECT_EQ(open(claimed).status().code(), absl::StatusCode::kInternal);
}

TEST_F(SessionTest, FullWindowEndsTheAnswer) {
  const CallOutcome outcome = Finish(*Create(Ask("hi", kWindow)), 64);
  EXPECT_EQ(outcome.reason, FinishReason::kContextFull);
  EXPECT_EQ(outcome.usage.prompt_tokens + static_cast<int32_t>(outcome.tokens.size()), kWindow);
}

// Other tokens stand where older messages were left out: what was there is no fault.
TEST_F(SessionTest, AConversationBeyondItsWindowGoesOnAndReusesWhatItCan) {
  arena_ = std::make_shared<FakeArena>(1, 4096, model_.info().kv.block_bytes);
  int32_t moves = 0, dropped = 0;
  for (int turn = 0; turn < 30; ++turn) {
    SCOPED_TRACE(turn);
    auto session = Create(Ask("question number " + std::to_string(turn), 12));
    ASSERT_NE(session, nullptr);
    EXPECT_FALSE(session->faulty_chunk().has_value());
    const CallUsage usage = session->usage();
    Finish(*session, 16);
    EXPECT_GE(last_commit_.dropped_segments, dropped);
    const bool moved = last_commit_.dropped_segments > dropped;
    moves += moved ? 1 : 0;
    dropped = last_commit_.dropped_segments;
    EXPECT_LE(last_commit_.context_tokens, kWindow);
    if (moved) {
      EXPECT_LE(usage.reused_tokens, engine::kChunkTokens) << "all but the opening has moved";
    } else if (turn > 0) {
      EXPECT_GE(usage.reused_tokens + 1, usage.context_tokens);
    }
  }
  EXPECT_GE(moves, 2);
  EXPECT_LE(moves, 10);
}

TEST_F(SessionTest, BlocksThatWereNotAskedForAreRefused) {
  auto session = Create(Ask("hi"));
  ASSERT_TRUE(session->NextClaim(16).has_value());
  EXPECT_FALSE(session->NextClaim(16).has_value()) << "one claim at a time";
  const std::vector<ChunkBlocks> wrong = {{.chunk = 7, .blocks = {0, 1}}};
  EXPECT_EQ(session->AddBlocks(wrong).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(session->NextClaim(16).has_value());
  const std::vector<ChunkBlocks> outside = {{.chunk = 0, .blocks = {0, 1000}}};
  EXPECT_EQ(session->AddBlocks(outside).code(), absl::StatusCode::kInternal);
}

TEST(ChunkNamerTest, IdentityDependsOnEverything) {
  const engine::KvGeometry geometry{2, 1, 16};
  const ChunkNamer namer(ModelIdentity("m", geometry), "", engine::KvFormat::kQ8);
  const std::vector<int32_t> tokens = {1, 2, 3};
  const Identity base = namer.Name({}, tokens, 100);
  EXPECT_EQ(namer.Name({}, tokens, 100), base);
  EXPECT_NE(namer.Name(base, tokens, 100), base);
  EXPECT_NE(namer.Name({}, tokens, 90), base);
  EXPECT_NE(namer.Name({}, std::vector<int32_t>{1, 2, 4}, 100), base);
  EXPECT_NE(namer.Name({}, std::vector<int32_t>{1, 2}, 100), base);
  const ChunkNamer lora(ModelIdentity("m", geometry), "l", engine::KvFormat::kQ8);
  EXPECT_NE(lora.Name({}, tokens, 100), base);
  const ChunkNamer format(ModelIdentity("m", geometry), "", engine::KvFormat::kQ4);
  EXPECT_NE(format.Name({}, tokens, 100), base);
  const ChunkNamer model(ModelIdentity("n", geometry), "", engine::KvFormat::kQ8);
  EXPECT_NE(model.Name({}, tokens, 100), base);
}

}  // namespace
}  // namespace withy::model_worker
