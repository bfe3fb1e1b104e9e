#include "serving/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <span>

#include "engine/chat/testing.h"
#include "engine/model/testing.h"
#include "serving/call/testing.h"

namespace withy::serving {
namespace {

using engine::FinishReason;
using engine::Segment;

using DraftFn = std::function<std::vector<policy::DraftedToken>(std::span<const int32_t> tokens)>;

// Plays store and engine for one session after the other.
class SessionRig {
 protected:
  SessionRig(engine::Model& served, const engine::ChatFixture& chat, int32_t window = kWindow)
      : served_(served),
        namer_(ModelIdentity("m", {2, 1, 16}), "", engine::KvFormat::kQ8),
        env_{.model = served.info(), .encoder = *chat.encoder, .namer = namer_, .window = window},
        arena_(MakeArena(128)) {}

  CallRequest Ask(const std::string& text, int32_t max_tokens = 10) {
    CallRequest request;
    request.context_id = "c";
    request.answer.prompt = {engine::UserSays(text)};
    request.answer.max_tokens = max_tokens;
    return request;
  }

  std::shared_ptr<FakeArena> MakeArena(size_t chunks) const {
    return std::make_shared<FakeArena>(1, chunks * geometry().ChunkBytes(engine::KvFormat::kQ8));
  }
  engine::KvGeometry geometry() const { return GeometryOf(served_.info().kv); }

  std::unique_ptr<Session> Create(const CallRequest& request) {
    auto session = Session::Create(env_, request,
                                   {.segments = record_, .resident = resident_, .arena = arena_});
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  // Runs to the end in steps of `rows`, then keeps what is committed.
  CallOutcome Finish(Session& session, int32_t rows, int32_t stop_after = 1 << 20,
                     const DraftFn& draft = nullptr) {
    std::vector<engine::KvSlot> claimed;
    for (const ResidentChunk& chunk : resident_) claimed.push_back(chunk.where.slot);
    if (session.kv().faulty_chunk())
      claimed.resize(static_cast<size_t>(*session.kv().faulty_chunk()));
    int32_t tokens = 0;
    for (steps_ = 0; !session.answer().finished(); ++steps_) {
      if (draft != nullptr && session.decoding()) {
        EXPECT_EQ(session.draft().Set(draft(session.tokens())), absl::OkStatus());
      }
      Claim(session, rows, &claimed);
      const std::vector<engine::AnswerDelta> deltas = Step(session, rows);
      tokens += static_cast<int32_t>(deltas.size());
      if (tokens == stop_after && !session.answer().finished())
        session.Finish(FinishReason::kCancelled);
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

  // Grants what the session wants to claim.
  void Claim(Session& session, int32_t rows, std::vector<engine::KvSlot>* claimed) {
    const auto range = session.rows().NextClaim(rows);
    if (!range.has_value()) return;
    std::vector<ChunkSlot> chunks;
    claimed->resize(static_cast<size_t>(range->first));
    for (int32_t i = 0; i < range->count; ++i) {
      claimed->push_back(NthSlot(geometry(), next_slot_++));
      chunks.push_back({.chunk = range->first + i, .slot = claimed->back()});
    }
    EXPECT_TRUE(session.kv().AddChunks(chunks).ok());
  }

  std::vector<engine::AnswerDelta> Step(Session& session, int32_t rows) {
    std::vector<engine::Row> batch;
    const int32_t count = std::min(rows, session.rows().ready());
    const int32_t wants = session.rows().Append(count, 0, &batch);
    computed_rows_ += count;
    const engine::ContextView view = session.rows().View();
    std::vector<float> logits(static_cast<size_t>(wants) *
                              static_cast<size_t>(served_.info().vocab_size));
    const absl::Status status =
        served_.Forward({.rows = batch, .contexts = {&view, 1}}, logits.data(), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    session.rows().Advance(count);
    if (wants == 0) return {};
    const auto deltas = session.TakeLogits(logits);
    EXPECT_TRUE(deltas.ok()) << deltas.status();
    return *deltas;
  }

  engine::Model& served_;
  ChunkNamer namer_;
  SessionEnv env_;
  std::shared_ptr<FakeArena> arena_;
  uint32_t next_slot_ = 0;
  std::vector<Segment> record_;
  std::vector<ResidentChunk> resident_;
  LeaseCommit last_commit_;
  int32_t computed_rows_ = 0;
  int32_t steps_ = 0;  // of the last answer
};

struct FakeParts {
  engine::ChatFixture chat_;
  engine::FakeModel model_{chat_.tokenizer->vocab_size()};
};

class SessionTest : public testing::Test, protected FakeParts, protected SessionRig {
 protected:
  SessionTest() : SessionRig(model_, chat_) {}
};

// Calls a tool, and says what came out of it.
struct CallingParts {
  static constexpr char kCall[] =
      "Wait.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": \"it\"}}\n</tool_call>";

  int32_t Next(const std::vector<int32_t>& history) const {
    const std::string text = chat_.Text(history);
    const size_t begin = text.rfind("assistant\n") + 10;
    const std::string script = text.find("<tool_response>") == std::string::npos ? kCall : "A cat.";
    const size_t said = text.size() - begin;
    return said < script.size() ? script[said] : chat_.end;
  }

  engine::ChatFixture chat_{engine::ChatOfFile(engine::kToolTemplate)};
  engine::FakeModel model_{chat_.tokenizer->vocab_size(), 1024,
                           [this](const std::vector<int32_t>& history) { return Next(history); }};
};

class ToolSessionTest : public testing::Test, protected CallingParts, protected SessionRig {
 protected:
  ToolSessionTest() : SessionRig(model_, chat_, 1024) {}
};

TEST_F(ToolSessionTest, ACallIsReportedRecordedAndAnsweredOnItsKv) {
  constexpr char kTools[] = R"([{"type": "function", "function": {"name": "look"}}])";
  CallRequest request = Ask("Look!", 100);
  request.call_id = 7;
  request.answer.prompt[0].tools_json = kTools;
  const CallOutcome first = Finish(*Create(request), 64);
  EXPECT_EQ(first.reason, FinishReason::kEndOfTurn);
  EXPECT_EQ(first.text, kCall);
  ASSERT_EQ(first.tool_calls.size(), 1u);
  EXPECT_EQ(first.tool_calls[0].name, "look");
  EXPECT_EQ(first.tool_calls[0].arguments_json, R"({"at": "it"})");
  ASSERT_EQ(record_.size(), 2u);
  EXPECT_EQ(record_[0].tools_json, kTools);
  EXPECT_EQ(record_[1].text, "Wait.");
  EXPECT_EQ(record_[1].tool_calls, first.tool_calls);
  EXPECT_EQ(record_[1].token_ids.size(), sizeof(kCall) - 1);

  const int32_t kv_tokens = computed_rows_;
  request = Ask("a cat", 100);
  request.answer.prompt[0].role = "tool";
  request.answer.prompt[0].tool_call_id = first.tool_calls[0].id;
  request.answer.prompt[0].tools_json = kTools;
  auto session = Create(request);
  EXPECT_EQ(session->usage().reused_tokens, kv_tokens);
  const CallOutcome second = Finish(*session, 64);
  EXPECT_EQ(second.text, "A cat.");
  EXPECT_TRUE(second.tool_calls.empty());
  EXPECT_EQ(record_[2].tools_json, "") << "the tools are as before";

  // Without tools the same text is no call.
  record_.clear();
  resident_.clear();
  EXPECT_TRUE(Finish(*Create(Ask("Look!", 100)), 64).tool_calls.empty());
}

// Where tools change, what follows them is computed again, and the answer is that of a fresh
// context.
TEST_F(ToolSessionTest, OtherToolsLeaveNoStaleKv) {
  CallRequest request = Ask("Look!", 100);
  request.answer.prompt[0].tools_json = R"([{"type": "function", "function": {"name": "look"}}])";
  Finish(*Create(request), 64);
  const int32_t kv_tokens = computed_rows_;
  request = Ask("Again", 100);
  request.answer.prompt[0].tools_json = R"([{"type": "function", "function": {"name": "jump"}}])";
  auto session = Create(request);
  EXPECT_LT(session->usage().reused_tokens, kv_tokens / 2);
  EXPECT_GT(session->usage().context_tokens, session->usage().reused_tokens);
  Finish(*session, 64);
  EXPECT_NE(record_[2].tools_json, "");
}

// Thinks before it answers.
struct ThinkingParts {
  static constexpr char kSaid[] = "<think>\nHm.\n</think>\n\nYes.";

  int32_t Next(const std::vector<int32_t>& history) const {
    const std::string text = chat_.Text(history);
    const size_t said = text.size() - (text.rfind("assistant\n") + 10);
    return said < sizeof(kSaid) - 1 ? kSaid[said] : chat_.end;
  }

  engine::ChatFixture chat_;
  engine::FakeModel model_{chat_.tokenizer->vocab_size(), 1024,
                           [this](const std::vector<int32_t>& history) { return Next(history); }};
};

class ThinkingSessionTest : public testing::Test, protected ThinkingParts, protected SessionRig {
 protected:
  ThinkingSessionTest() : SessionRig(model_, chat_, 1024) {}
};

// The record is what a client repeats that is told thoughts apart, and the next call stands on the
// KV of what both have in common.
TEST_F(ThinkingSessionTest, ARecordMayLackTheThought) {
  for (const bool without : {false, true}) {
    record_.clear();
    resident_.clear();
    CallRequest request = Ask(std::string(100, 'q'), 100);
    request.record_without_thought = without;
    EXPECT_EQ(Finish(*Create(request), 64).text, kSaid) << "the result is whole";
    ASSERT_EQ(record_.size(), 2u);
    EXPECT_EQ(record_[1].text, without ? "Yes." : kSaid);
    EXPECT_TRUE(record_[1].token_ids.empty() || !without);
    const auto next = Create(Ask("And?", 100));
    EXPECT_FALSE(next->kv().faulty_chunk());
    EXPECT_GE(next->usage().reused_tokens, 100 / engine::kChunkTokens * engine::kChunkTokens);
  }
}

// A vocabulary whose answers come on channels.
struct ChannelFixture : engine::ChatFixture {
  ChannelFixture() {
    for (const char* text :
         {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"}) {
      vocab.Add(text, engine::TokenKind::kControl);
    }
    tokenizer = vocab.Make("gpt2", "gpt-2").value();
    encoder.emplace(*tokenizer, chat);
  }
};

struct ChannelParts {
  int32_t Next(const std::vector<int32_t>& history) const {
    const std::vector<int32_t> said = chat_.Ids(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
        "<|message|>Yes.<|return|>");
    const auto turn = std::find(history.rbegin(), history.rend(), chat_.start);
    const auto behind = static_cast<size_t>(turn - history.rbegin());
    return said[behind - std::string("assistant\n").size()];
  }

  ChannelFixture chat_;
  engine::FakeModel model_{chat_.tokenizer->vocab_size(), 1024,
                           [this](const std::vector<int32_t>& history) { return Next(history); }};
};

class ChannelSessionTest : public testing::Test, protected ChannelParts, protected SessionRig {
 protected:
  ChannelSessionTest() : SessionRig(model_, chat_, 1024) {}
};

// Of an answer on channels the record keeps what the next prompt shows, and no tokens.
TEST_F(ChannelSessionTest, TheRecordHasTheAnswersMessageAlone) {
  EXPECT_EQ(Finish(*Create(Ask(std::string(100, 'q'), 100)), 64).text, "<think>Hm.</think>Yes.");
  ASSERT_EQ(record_.size(), 2u);
  EXPECT_EQ(record_[1].text, "Yes.");
  EXPECT_TRUE(record_[1].token_ids.empty());
  const auto next = Create(Ask("And?", 100));
  EXPECT_FALSE(next->kv().faulty_chunk());
  EXPECT_GE(next->usage().reused_tokens, 100 / engine::kChunkTokens * engine::kChunkTokens);
}

TEST_F(SessionTest, SecondCallComputesOnlyWhatIsNew) {
  auto first = Create(Ask("tell me something"));
  EXPECT_EQ(first->usage().reused_tokens, 0);
  Finish(*first, 7);
  const int32_t kv_tokens = computed_rows_;
  auto second = Create(Ask("and more"));
  EXPECT_FALSE(second->kv().faulty_chunk().has_value());
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
  EXPECT_FALSE(next->kv().faulty_chunk().has_value());
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
  EXPECT_FALSE(Create(Ask("go on"))->kv().faulty_chunk().has_value());
}

TEST_F(SessionTest, WrongContentIsAFaultAndIsRecomputed) {
  Finish(*Create(Ask("a prompt over several chunks of sixteen tokens each")), 64);
  const std::string text = record_[1].text;
  ASSERT_GE(resident_.size(), 4u);

  // Another attachment: bytes are checked. One block of chunk 2 is damaged.
  arena_->set_epoch(2);
  std::byte* block = arena_->At(resident_[2].where.slot.Block(geometry(), 1));
  block[sizeof(engine::KvBlockHeader)] ^= std::byte{1};
  auto damaged = Create(Ask("next"));
  EXPECT_EQ(damaged->kv().faulty_chunk(), 2);
  EXPECT_EQ(damaged->usage().reused_tokens, 32);
  Finish(*damaged, 64);

  // A foreign identity in the list.
  resident_[1].name.identity[0] ^= 1;
  EXPECT_EQ(Create(Ask("next"))->kv().faulty_chunk(), 1);
}

TEST_F(SessionTest, AnotherModelReusesNothing) {
  Finish(*Create(Ask("a prompt over several chunks of sixteen tokens each")), 64);
  const ChunkNamer other(ModelIdentity("other", {2, 1, 16}), "", engine::KvFormat::kQ8);
  const SessionEnv env{
      .model = model_.info(), .encoder = *chat_.encoder, .namer = other, .window = kWindow};
  auto session = Session::Create(env, Ask("next"),
                                 {.segments = record_, .resident = resident_, .arena = arena_});
  ASSERT_TRUE(session.ok());
  EXPECT_EQ((*session)->kv().faulty_chunk(), 0);
  EXPECT_EQ((*session)->usage().reused_tokens, 0);
}

TEST_F(SessionTest, WhatWasClaimedWithTheOpeningIsUsedFirst) {
  const CallRequest request = Ask("hi");
  const auto open = [&](std::vector<ChunkSlot> claimed) {
    return Session::Create(env_, request,
                           {.segments = {}, .resident = {}, .claimed = claimed, .arena = arena_});
  };
  const auto plain = open({});
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ((*plain)->rows().ready(), 0);
  const int32_t needed = (*plain)->rows().NextClaim(64)->count;
  std::vector<ChunkSlot> claimed;
  for (int32_t i = 0; i < needed; ++i) {
    claimed.push_back({i, NthSlot(geometry(), static_cast<uint32_t>(i))});
  }
  const auto begun = open(claimed);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ((*begun)->rows().ready(), (*begun)->rows().pending());
  EXPECT_FALSE((*begun)->rows().NextClaim(64).has_value());
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
  arena_ = MakeArena(2048);
  int32_t moves = 0, dropped = 0;
  for (int turn = 0; turn < 30; ++turn) {
    SCOPED_TRACE(turn);
    auto session = Create(Ask("question number " + std::to_string(turn), 12));
    ASSERT_NE(session, nullptr);
    EXPECT_FALSE(session->kv().faulty_chunk().has_value());
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
  ASSERT_TRUE(session->rows().NextClaim(16).has_value());
  EXPECT_FALSE(session->rows().NextClaim(16).has_value()) << "one claim at a time";
  const std::vector<ChunkSlot> wrong = {{.chunk = 7, .slot = {0}}};
  EXPECT_EQ(session->kv().AddChunks(wrong).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(session->rows().NextClaim(16).has_value());
  const std::vector<ChunkSlot> outside = {{.chunk = 0, .slot = {100'000}}};
  EXPECT_EQ(session->kv().AddChunks(outside).code(), absl::StatusCode::kInternal);
}

// The tiny real model with levels: the fake one knows no trees.
struct TinyParts {
  engine::ChatFixture chat_;
  engine::TestFolder folder_;
  std::unique_ptr<engine::Model> tiny_ = [this] {
    engine::SynthShape shape = engine::TinyShape();
    shape.levels = {20, 60};
    return engine::OpenTiny(folder_, engine::WriteTiny(folder_, shape, engine::GgmlType::kQ8_0));
  }();
};

// One store and engine of its own for each way to answer.
class TinyRig : public SessionRig {
 public:
  TinyRig(engine::Model& model, const engine::ChatFixture& chat, int32_t window)
      : SessionRig(model, chat, window) {}

  struct Answer {
    std::vector<int32_t> tokens;  // of the prompt and the answer
    CallOutcome outcome;
    int32_t steps = 0;
  };
  Answer Run(CallRequest request, const DraftFn& draft) {
    request.context_id = "c";
    const std::unique_ptr<Session> session = Create(request);
    EXPECT_FALSE(session->kv().faulty_chunk().has_value());
    Answer answer;
    answer.outcome = Finish(*session, 64, 1 << 20, draft);
    answer.tokens.assign(session->tokens().begin(), session->tokens().end());
    answer.steps = steps_;
    return answer;
  }
  std::unique_ptr<Session> CreateSession(const CallRequest& request) { return Create(request); }
  // One step.
  void Advance(Session& session) {
    std::vector<engine::KvSlot> claimed;
    Claim(session, 64, &claimed);
    Step(session, 64);
  }
  CallRequest Ask(const std::string& text, int32_t max_tokens) {
    return SessionRig::Ask(text, max_tokens);
  }
  // K and V of all tokens that were committed.
  std::vector<float> Kv() const {
    const engine::KvInfo& kv = served_.info().kv;
    const auto width = static_cast<size_t>(kv.kv_heads * kv.head_dim);
    std::vector<float> all;
    for (const ResidentChunk& chunk : resident_) {
      for (int layer = 0; layer < kv.layers; ++layer) {
        const std::byte* block = arena_->At(chunk.where.slot.Block(geometry(), layer));
        for (int slot = 0; slot < chunk.name.tokens; ++slot) {
          all.resize(all.size() + 2 * width);
          float* k = all.data() + all.size() - 2 * width;
          engine::ReadToken(geometry(), block, slot, k, k + width);
        }
      }
    }
    return all;
  }
  std::vector<Identity> Chunks() const {
    std::vector<Identity> chunks;
    for (const ResidentChunk& chunk : resident_) chunks.push_back(chunk.name.identity);
    return chunks;
  }
};

// A random tree behind `tokens` that hits what `answer` has there now and then.
std::vector<policy::DraftedToken> RandomTree(std::span<const int32_t> tokens,
                                             std::span<const int32_t> answer, int32_t vocab,
                                             std::mt19937& random) {
  std::vector<policy::DraftedToken> tree;
  std::vector<size_t> depths;
  const size_t count = random() % 14;
  while (tree.size() < count) {
    const auto parent = static_cast<int32_t>(random() % (tree.size() + 1)) - 1;
    const size_t depth = parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1;
    const size_t at = tokens.size() + depth;
    const bool right = random() % 4 != 0 && at < answer.size();
    tree.push_back(
        {right ? answer[at] : static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)),
         parent});
    depths.push_back(depth);
  }
  return tree;
}

class DraftedSessionTest : public testing::Test, protected TinyParts {
 protected:
  // Two calls of a context, plain and with random drafts.
  void Compare(const CallRequest& first, const CallRequest& second, uint32_t seed,
               int32_t window = kWindow) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    TinyRig plain(*tiny_, chat_, window), drafted(*tiny_, chat_, window);
    for (const CallRequest& request : {first, second}) {
      const TinyRig::Answer expected = plain.Run(request, nullptr);
      const TinyRig::Answer answer = drafted.Run(request, [&](std::span<const int32_t> tokens) {
        return RandomTree(tokens, expected.tokens, tiny_->info().vocab_size, random);
      });
      ASSERT_EQ(answer.tokens, expected.tokens);
      EXPECT_EQ(answer.outcome.text, expected.outcome.text);
      EXPECT_EQ(answer.outcome.reason, expected.outcome.reason);
      EXPECT_EQ(answer.outcome.usage.reused_tokens, expected.outcome.usage.reused_tokens);
      EXPECT_EQ(drafted.Chunks(), plain.Chunks());
      EXPECT_EQ(drafted.Kv(), plain.Kv());
      plain_steps_ += expected.steps;
      drafted_steps_ += answer.steps;
    }
  }
  CallRequest Ask(const std::string& text, int32_t max_tokens) {
    return TinyRig(*tiny_, chat_, kWindow).Ask(text, max_tokens);
  }

  int32_t plain_steps_ = 0;
  int32_t drafted_steps_ = 0;
};

TEST_F(DraftedSessionTest, GreedyAnswersAndKvAreThoseOfPlainDecoding) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    Compare(Ask("a prompt of more than sixteen tokens", 40), Ask("and on", 17), seed);
  }
  EXPECT_LT(drafted_steps_, plain_steps_ * 2 / 3) << "several tokens a step";
}

TEST_F(DraftedSessionTest, SampledAnswersAreThoseOfPlainDecoding) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    CallRequest request = Ask("a prompt of more than sixteen tokens", 40);
    request.answer.sampling.temperature = 1.1f;
    request.answer.sampling.top_p = seed % 2 == 0 ? 1.0f : 0.9f;
    request.answer.sampling.repetition_penalty = 1.2f;
    request.answer.sampling.seed = seed + 1;
    CallRequest next = request;
    next.answer.prompt = {engine::UserSays("and on")};
    Compare(request, next, seed);
  }
  EXPECT_LT(drafted_steps_, plain_steps_ * 2 / 3) << "several tokens a step";
}

TEST_F(DraftedSessionTest, LowerLevelsToo) {
  CallRequest request = Ask("a prompt of more than sixteen tokens", 20);
  request.answer.level_percent = 20;
  Compare(request, Ask("and on", 20), 1);
}

TEST_F(DraftedSessionTest, TheWindowAndStopStringsEndTheAnswerWhereTheyDo) {
  Compare(Ask("hi", kWindow), Ask("on", 4), 1, /*window=*/64);
  TinyRig plain(*tiny_, chat_, kWindow);
  const std::string text = plain.Run(Ask("hello", 40), nullptr).outcome.text;
  ASSERT_GT(text.size(), 20u);
  CallRequest stopped = Ask("hello", 40);
  stopped.answer.stop = {text.substr(12, 3)};
  for (uint32_t seed = 0; seed < 4; ++seed) Compare(stopped, Ask("on", 8), seed);
}

TEST_F(DraftedSessionTest, ADraftNeedsAnAnswerThatGoesOn) {
  const std::vector<policy::DraftedToken> chain = {{1, -1}, {1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}};
  TinyRig rig(*tiny_, chat_, kWindow);
  const auto session = rig.CreateSession(Ask("hello", 6));
  EXPECT_EQ(session->draft().Set(chain).code(), absl::StatusCode::kFailedPrecondition);
  while (!session->decoding()) rig.Advance(*session);
  ASSERT_EQ(session->tokens().size(), static_cast<size_t>(session->rows().computed()) + 1);
  EXPECT_EQ(session->rows().pending(), 1);
  EXPECT_EQ(session->draft().Set(chain), absl::OkStatus());
  EXPECT_EQ(session->rows().pending(), 5) << "five tokens are left, and the last is not computed";
  EXPECT_EQ(session->draft().Set({}), absl::OkStatus());
  EXPECT_EQ(session->rows().pending(), 1) << "a later draft replaces it";
  session->Finish(FinishReason::kCancelled);
  EXPECT_EQ(session->draft().Set(chain).code(), absl::StatusCode::kFailedPrecondition);
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
  const ChunkNamer kernels(ModelIdentity("m", geometry, "avx2"), "", engine::KvFormat::kQ8);
  EXPECT_NE(kernels.Name({}, tokens, 100), base) << "its last bits differ";
  EXPECT_NE(namer.Name({}, tokens, 100, /*over_compressed=*/true), base);
}

}  // namespace
}  // namespace withy::serving
