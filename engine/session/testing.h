// Helpers for tests of sessions and workers: a byte-level tokenizer with a chat template, and a
// model whose next token is a simple function of the previous tokens, which it reads back from the
// KV blocks it wrote.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/chat/template.h"
#include "engine/gguf/writer.h"
#include "engine/kv/block.h"
#include "engine/model/model.h"
#include "engine/session/conversation.h"
#include "engine/tokenizer/testing.h"
#include "gtest/gtest.h"

namespace withy::engine {

// A window that holds every prompt of a test.
inline constexpr int32_t kWide = 1 << 20;

// A file's template with this text.
inline ChatTemplate ChatOfFile(std::string_view text) {
  GgufWriter writer;
  writer.SetString("tokenizer.chat_template", text);
  const std::string path =
      ::testing::TempDir() + "withy_chat_" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(writer.Write(path).ok());
  const GgufFile file = GgufFile::Open(path).value();
  std::filesystem::remove(path);
  return ChatTemplate::FromFile(file).value();
}

// Ids 0..255 are the bytes; ChatML's markers follow. `end` ends a turn.
struct ChatFixture {
  explicit ChatFixture(std::string_view chat_name = "chatml")
      : ChatFixture(ChatTemplate::FromName(chat_name).value()) {}
  explicit ChatFixture(ChatTemplate chat_template) : chat(std::move(chat_template)) {
    vocab.AddByteAlphabet();
    vocab.AddMerge("l", "l");  // id 256: "hello" has two encodings
    start = vocab.Add("<|im_start|>", TokenKind::kControl);
    end = vocab.Add("<|im_end|>", TokenKind::kControl);
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(end));
    auto made = vocab.Make("gpt2", "gpt-2");
    EXPECT_TRUE(made.ok()) << made.status();
    tokenizer = *std::move(made);
    encoder.emplace(*tokenizer, chat);
  }
  std::vector<int32_t> Ids(std::string_view text) const {
    return tokenizer->Encode(text, {.parse_special = true});
  }
  // The text of `ids`, markers included.
  std::string Text(std::span<const int32_t> ids) const { return tokenizer->Decode(ids, true); }

  TestVocab vocab;
  ChatTemplate chat;
  int32_t start = 0;
  int32_t end = 0;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ConversationEncoder> encoder;
};

// Wraps a tokenizer. An encoding with a cancel check never ends until it is cancelled, like a
// prompt that takes forever. Encodings without one go through.
class StuckTokenizer final : public Tokenizer {
 public:
  explicit StuckTokenizer(const Tokenizer& other) : other_(other) {}

  Encoding EncodePieces(std::span<const TextPiece> pieces,
                        const EncodeOptions& options) const override {
    if (options.cancelled == nullptr) return other_.EncodePieces(pieces, options);
    ++begun_;
    while (!(*options.cancelled)()) std::this_thread::yield();
    return {.ids = {}, .spans = {}, .cancelled = true};
  }
  // Number of encodings that have started to wait for cancellation.
  int begun() const { return begun_; }

  int32_t vocab_size() const override { return other_.vocab_size(); }
  std::string_view TokenText(int32_t id) const override { return other_.TokenText(id); }
  std::string_view TokenBytes(int32_t id) const override { return other_.TokenBytes(id); }
  bool IsControl(int32_t id) const override { return other_.IsControl(id); }
  bool IsSpecial(int32_t id) const override { return other_.IsSpecial(id); }
  std::optional<int32_t> FindToken(std::string_view text) const override {
    return other_.FindToken(text);
  }
  int32_t bos_id() const override { return other_.bos_id(); }
  int32_t eos_id() const override { return other_.eos_id(); }
  int32_t eot_id() const override { return other_.eot_id(); }
  std::span<const int32_t> end_of_generation_ids() const override {
    return other_.end_of_generation_ids();
  }
  bool wants_bos() const override { return other_.wants_bos(); }
  bool adds_space_prefix() const override { return other_.adds_space_prefix(); }
  uint64_t fingerprint() const override { return other_.fingerprint(); }

 private:
  const Tokenizer& other_;
  mutable std::atomic<int> begun_{0};
};

// Writes each row's token into its slot and computes the next token from the tokens it reads from
// the slots that a row sees. A wrong block, slot or order therefore changes the answer.
class FakeModel final : public Model {
 public:
  using Next = std::function<int32_t(const std::vector<int32_t>& history)>;
  static constexpr int32_t kLayers = 2;
  static constexpr int32_t kWidth = 8;  // hidden states are 1 at the row's token modulo it, else 0

  explicit FakeModel(int32_t vocab_size, int32_t context_length = 256, Next next = Letters) {
    info_.name = "fake";
    info_.id = "00000000000000000000000000000000";
    info_.layers = kLayers;
    info_.d_model = kWidth;
    info_.vocab_size = vocab_size;
    info_.context_length = context_length;
    info_.kv = {.chunk_tokens = kChunkTokens,
                .layers = kLayers,
                .kv_heads = 1,
                .head_dim = 16,
                .block_bytes = KvGeometry{kLayers, 1, 16}.BlockBytes()};
    info_.levels = {LevelInfo{}};
    next_ = std::move(next);
  }

  // Levels by per cent, ascending, up to 100. All levels answer alike.
  void set_levels(const std::vector<int32_t>& percents) {
    info_.levels.clear();
    for (const int32_t percent : percents) {
      info_.levels.emplace_back().percent = percent;
    }
  }

  // A lower-case letter that depends on all previous tokens.
  static int32_t Letters(const std::vector<int32_t>& history) {
    uint32_t hash = 2166136261u;
    for (const int32_t token : history) hash = (hash ^ static_cast<uint32_t>(token)) * 16777619u;
    return 'a' + static_cast<int32_t>((hash >> 8) % 26);
  }

  const ModelInfo& info() const override { return info_; }
  std::string_view target() const override { return "fake"; }
  int32_t piece_rows() const override { return 128; }
  int32_t threads() const override { return 1; }
  bool PinThreads() override { return false; }
  bool Rest() override {
    ++rests;
    return true;
  }
  WeightStreamStats weight_stats() const override { return weights; }
  const GgufFile& metadata() const override { std::abort(); }

  absl::StatusOr<std::unique_ptr<Pass>> Begin(const Batch& batch, float* logits) override {
    for (const Row& row : batch.rows) {
      const ContextView& view = batch.contexts[static_cast<size_t>(row.context)];
      if (row.slot < view.committed_tokens) return absl::InvalidArgumentError("read-only slot");
    }
    return std::make_unique<FakePass>(*this, batch, logits);
  }

  std::atomic<int> rests{0};
  // Called once per batch, before it is computed.
  std::function<void(const Batch&)> on_forward;
  // Polled until the batch may finish, so that a test controls how long a step lasts.
  std::function<bool(const Batch&)> may_finish;
  // Why a batch cannot be computed; OK: it can.
  std::function<absl::Status(const Batch&)> failure;
  // What weight_stats() says. A pass waits for weights if it may do something meanwhile, until that
  // is done.
  WeightStreamStats weights;
  // Called with the share done whenever a pass stops at its `until`.
  std::function<void(double)> on_left;

 private:
  class FakePass final : public Pass {
   public:
    FakePass(FakeModel& model, const Batch& batch, float* logits)
        : model_(model), batch_(batch), logits_(logits) {}
    bool Run(const std::atomic<bool>* stop, double until) override {
      if (!std::exchange(seen_, true) && model_.on_forward) model_.on_forward(batch_);
      if (WaitsForKv()) return false;
      status_ = model_.failure ? model_.failure(batch_) : absl::OkStatus();
      if (!status_.ok()) return false;
      if (batch_.meanwhile) batch_.meanwhile(/*arrived=*/false);
      if (batch_.meanwhile && batch_.resumed) batch_.resumed();
      if (until < 1) {
        done_ = std::max(done_, until);
        if (model_.on_left) model_.on_left(done_);
        return false;
      }
      do {
        if (stop != nullptr && *stop) return false;
      } while (model_.may_finish && !model_.may_finish(batch_));
      model_.Compute(batch_, logits_);
      return true;
    }
    bool WaitsForKv() const override {
      return std::any_of(batch_.contexts.begin(), batch_.contexts.end(), [](const auto& view) {
        return view.layers_ready != nullptr && view.layers_ready->load() < kLayers;
      });
    }
    absl::Status status() const override { return status_; }
    double Done() const override { return done_; }

   private:
    FakeModel& model_;
    const Batch batch_;
    float* const logits_;
    absl::Status status_;
    bool seen_ = false;
    double done_ = 0;
  };

  void Compute(const Batch& batch, float* logits) const {
    for (const Row& row : batch.rows) {
      const ContextView& view = batch.contexts[static_cast<size_t>(row.context)];
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        std::memcpy(Slot(view, layer, row.slot), &row.token, sizeof(row.token));
      }
      if (!row.want_logits) continue;
      if (batch.hidden) {
        std::fill_n(logits, kWidth, 0.0f);
        logits[row.token % kWidth] = 1.0f;
        logits += kWidth;
        continue;
      }
      std::vector<int32_t> history;
      const auto see = [&](int32_t slot) {
        int32_t token = 0;
        std::memcpy(&token, Slot(view, slot % kLayers, slot), sizeof(token));
        history.push_back(token);
      };
      const auto ancestors = static_cast<int32_t>(row.ancestor_slots.size());
      for (int32_t slot = 0; slot < row.position - ancestors; ++slot) see(slot);
      for (const int32_t slot : row.ancestor_slots) see(slot);
      see(row.slot);
      std::fill_n(logits, info_.vocab_size, 0.0f);
      logits[next_(history)] = 1.0f;
      logits += info_.vocab_size;
    }
  }

  static std::byte* Slot(const ContextView& view, int32_t layer, int32_t slot) {
    const auto block = static_cast<size_t>(slot / kChunkTokens * kLayers + layer);
    EXPECT_LT(block, view.blocks.size());
    return view.memory.At(view.blocks[block]) + sizeof(KvBlockHeader) +
           static_cast<size_t>(slot % kChunkTokens) * sizeof(int32_t);
  }

  ModelInfo info_;
  Next next_;
};

inline Segment UserSays(std::string text) { return {.role = "user", .text = std::move(text)}; }
inline Segment AssistantSays(std::string text) {
  return {.role = "assistant", .text = std::move(text)};
}
inline Segment SystemSays(std::string text) { return {.role = "system", .text = std::move(text)}; }
inline Segment RawText(std::string text) { return {.role = "", .text = std::move(text)}; }

}  // namespace withy::engine
