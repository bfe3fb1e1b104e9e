#include "bench/quality/kv_tasks.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/status.h"
#include "bench/quality/held_out.h"
#include "bench/quality/kv_ratios.h"
#include "bench/quality/kv_scores.h"
#include "engine/model/scratch_kv.h"
#include "policy/kv/kv_precision.h"

namespace withy::bench {
namespace {

using engine::kChunkTokens;

constexpr double kHalf = 0.5;
// Tokens at the end of a prompt that belong to the question: the call computes them itself.
constexpr size_t kQuestionTokens = 32;

// A prompt and its right answer over KV of which the first `chunks` chunks are stored.
class KvTask {
 public:
  KvTask(engine::Model& model, const Question& question)
      : model_(model),
        question_(question),
        chunks_((question.prompt.size() - std::min(question.prompt.size(), kQuestionTokens)) /
                kChunkTokens),
        kv_(model.info(), static_cast<int32_t>(question.prompt.size() + question.answer.size())) {}

  // Computes the stored chunks and measures their densities.
  absl::Status Prefill() {
    density_.assign(chunks_ + 1, 0);
    if (chunks_ == 0) return absl::OkStatus();
    std::vector<engine::Row> rows;
    AddRows(question_.prompt, 0, chunks_ * kChunkTokens, &rows);
    engine::ContextView view = kv_.View();
    view.density = std::span(density_).first(chunks_);
    return model_.Forward({.rows = rows, .contexts = {&view, 1}}, nullptr);
  }

  // Stores the chunks in the formats of half of the bytes; returns the share that it came to.
  double StoreHalf() {
    if (chunks_ == 0) return 1;
    const engine::KvInfo& info = model_.info().kv;
    const engine::KvGeometry g{info.layers, info.kv_heads, info.head_dim};
    std::vector<policy::DensityChunk> chunks;
    for (size_t c = 0; c < chunks_; ++c) {
      const auto rows = static_cast<double>((chunks_ - c) * kChunkTokens);
      chunks.push_back({.density = static_cast<double>(density_[c]) / rows,
                        .tokens = kChunkTokens,
                        .pinned = c < kFirstKept || c + kLastKept >= chunks_});
    }
    const policy::FormatChoice choice = policy::ChooseFormats(StoredFormatCosts(g), chunks, kHalf);
    for (size_t c = 0; c < chunks_; ++c) {
      if (choice.formats[c] == 0) continue;
      kv_.Encode(static_cast<int32_t>(c), StoredFormats()[choice.formats[c]]);
    }
    return static_cast<double>(choice.bytes) /
           static_cast<double>(chunks_ * g.ChunkBytes(engine::KvFormat::kQ8));
  }

  // Whether greedy decoding gives the right answer: see held_out.h.
  absl::StatusOr<bool> Answer() {
    std::vector<int32_t> ids = question_.prompt;
    ids.insert(ids.end(), question_.answer.begin(), question_.answer.end() - 1);
    const size_t first = chunks_ * kChunkTokens;
    std::vector<engine::Row> rows;
    AddRows(ids, first, ids.size() - first, &rows);
    for (engine::Row& row : rows) {
      row.want_logits = static_cast<size_t>(row.position) + 1 >= question_.prompt.size();
    }
    std::vector<float> logits(question_.answer.size() *
                              static_cast<size_t>(model_.info().vocab_size));
    const engine::ContextView view = kv_.View(static_cast<int32_t>(first));
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data()));
    return AgreedTokens(logits, question_.answer) == static_cast<int32_t>(question_.answer.size());
  }

 private:
  static void AddRows(std::span<const int32_t> ids, size_t first, size_t count,
                      std::vector<engine::Row>* rows) {
    for (size_t i = first; i < first + count; ++i) {
      const auto position = static_cast<int32_t>(i);
      rows->push_back({.token = ids[i], .position = position, .slot = position});
    }
  }

  engine::Model& model_;
  const Question& question_;
  const size_t chunks_;
  engine::ScratchKv kv_;
  std::vector<float> density_;  // sums by chunk
};

}  // namespace

absl::StatusOr<KvTaskScores> ScoreKvTasks(const engine::ModelBundle& bundle, int count) {
  corpus::Spec spec = corpus::HeldOutSpec();
  spec.five_shot_percent = 100;
  WITHY_ASSIGN_OR_RETURN(const std::vector<Question> questions, EncodeAll(bundle, spec, count));
  KvTaskScores scores{.prompts = count};
  for (const Question& question : questions) {
    KvTask task(*bundle.model, question);
    WITHY_RETURN_IF_ERROR(task.Prefill());
    WITHY_ASSIGN_OR_RETURN(const bool eight, task.Answer());
    scores.bytes_of_half += task.StoreHalf();
    WITHY_ASSIGN_OR_RETURN(const bool half, task.Answer());
    scores.tokens += static_cast<double>(question.prompt.size());
    scores.eight += eight ? 1 : 0;
    scores.half += half ? 1 : 0;
  }
  for (double* sum : {&scores.tokens, &scores.eight, &scores.half, &scores.bytes_of_half}) {
    *sum /= count;
  }
  return scores;
}

}  // namespace withy::bench
