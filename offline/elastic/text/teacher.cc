#include "offline/elastic/text/teacher.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/model/scratch_kv.h"

namespace withy::elastic {
namespace {

constexpr int64_t kWrittenAtOnce = 32;  // windows

// What a user's message begins with: the template's text in front of its content.
absl::StatusOr<std::vector<int32_t>> Beginning(const engine::ModelBundle& bundle) {
  const std::array<engine::ChatMessage, 1> messages = {
      {{.role = engine::kUserRole, .content = "content"}}};
  engine::RenderedChat front;
  if (const auto rendered = bundle.chat.Render(messages, false); rendered.ok()) {
    for (const engine::ChatPiece& piece : rendered->pieces) {
      if (piece.message >= 0) break;
      front.pieces.push_back(piece);
    }
  }
  const std::vector<engine::TextPiece> pieces = front.TextPieces();
  std::vector<int32_t> ids =
      bundle.tokenizer->EncodePieces(pieces, {.add_bos = pieces.empty()}).ids;
  if (ids.empty()) ids = bundle.tokenizer->Encode("\n");
  if (ids.empty()) ids = {0};
  return ids;
}

// Index drawn by the probabilities whose logarithms these are, which need not add up to 1.
size_t Draw(std::span<const float> logs, std::mt19937_64& random) {
  double sum = 0;
  for (const float log : logs) sum += std::exp(log);
  double left = std::uniform_real_distribution<double>(0, sum)(random);
  for (size_t i = 0; i + 1 < logs.size(); ++i) {
    left -= std::exp(logs[i]);
    if (left < 0) return i;
  }
  return logs.size() - 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Teacher>> Teacher::Open(const std::string& model,
                                                       const std::string& cache_dir, int threads) {
  engine::ModelOptions options;
  options.threads = threads;
  options.cache_dir = cache_dir;
  WITHY_ASSIGN_OR_RETURN(engine::ModelBundle bundle, engine::OpenBundle(model, options));
  if (bundle.model->info().vocab_size < kTaught) {
    return absl::InvalidArgumentError(absl::StrCat(
        model, ": has ", bundle.model->info().vocab_size,
        " tokens; learning from its probabilities needs ", kTaught, ": use --learn=text"));
  }
  WITHY_ASSIGN_OR_RETURN(std::vector<int32_t> beginning, Beginning(bundle));
  return std::unique_ptr<Teacher>(new Teacher(std::move(bundle), std::move(beginning), threads));
}

int64_t Teacher::LengthOf(const BatchOptions& options) const {
  return std::min(
      {options.window_tokens, options.batch_tokens, int64_t{bundle_.model->info().context_length}});
}

int64_t Teacher::BatchesAtOnce(const BatchOptions& options) const {
  const int64_t lines_a_batch = options.batch_tokens / LengthOf(options);
  return std::max<int64_t>(1, kWrittenAtOnce / lines_a_batch);
}

Teacher::Probable Teacher::MostProbable(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  const float log_sum = most + static_cast<float>(std::log(sum));
  // A heap with the least probable of those found on top.
  std::vector<std::pair<float, int32_t>> found;
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  for (size_t id = 0; id < logits.size(); ++id) {
    if (found.size() == kTaught) {
      if (logits[id] <= found.front().first) continue;
      std::pop_heap(found.begin(), found.end(), before);
      found.pop_back();
    }
    found.emplace_back(logits[id], static_cast<int32_t>(id));
    std::push_heap(found.begin(), found.end(), before);
  }
  std::sort_heap(found.begin(), found.end(), before);
  Probable probable;
  for (const auto& [logit, id] : found) {
    probable.ids.push_back(id);
    probable.logs.push_back(logit - log_sum);
  }
  return probable;
}

std::vector<Teacher::Probable> Teacher::MostProbable(int64_t rows) const {
  const auto width = static_cast<size_t>(bundle_.model->info().vocab_size);
  std::vector<Probable> all(static_cast<size_t>(rows));
  workers_.Run(rows, [&](int64_t r) {
    const auto row = static_cast<size_t>(r);
    all[row] = MostProbable(std::span(logits_).subspan(row * width, width));
  });
  return all;
}

void Teacher::SetLabel(const Probable& probable, int64_t position, Batch* batch) {
  int32_t* ids = batch->taught_ids.data_ptr<int32_t>() + position * kTaught;
  at::Half* logs = batch->taught_logs.data_ptr<at::Half>() + position * kTaught;
  std::copy(probable.ids.begin(), probable.ids.end(), ids);
  std::copy(probable.logs.begin(), probable.logs.end(), logs);
}

absl::StatusOr<std::vector<Batch>> Teacher::Write(int64_t first, const BatchOptions& options) {
  const engine::ModelInfo& info = model().info();
  const int64_t length = LengthOf(options);
  const int64_t lines_a_batch = options.batch_tokens / length;
  const int64_t count = BatchesAtOnce(options);
  const int64_t lines = count * lines_a_batch;
  const auto given = static_cast<int64_t>(
      std::min(beginning_.size(), static_cast<size_t>(std::max<int64_t>(1, length / 2))));
  std::vector<std::mt19937_64> random;
  std::vector<engine::ScratchKv> kv;
  std::vector<TextLine> written(static_cast<size_t>(lines));
  std::vector<std::vector<Probable>> labels(static_cast<size_t>(lines));
  for (int64_t i = 0; i < lines; ++i) {
    std::seed_seq seed{options.seed, static_cast<uint64_t>(first * lines_a_batch + i)};
    random.emplace_back(seed);
    kv.emplace_back(info, static_cast<int32_t>(length));
    TextLine& line = written[static_cast<size_t>(i)];
    line.tokens.assign(beginning_.end() - given, beginning_.end());
    line.weight.assign(static_cast<size_t>(given), 0.0f);
  }
  logits_.resize(static_cast<size_t>(lines * info.vocab_size));
  for (int64_t position = 0; position + 1 < length; ++position) {
    const bool writes = position + 1 >= given;
    std::vector<engine::ContextView> views;
    std::vector<engine::Row> rows;
    for (int64_t i = 0; i < lines; ++i) {
      const auto at = static_cast<int32_t>(position);
      views.push_back(kv[static_cast<size_t>(i)].View(at));
      rows.push_back(
          {.token = written[static_cast<size_t>(i)].tokens[static_cast<size_t>(position)],
           .position = at,
           .slot = at,
           .context = static_cast<int32_t>(i),
           .want_logits = writes});
    }
    WITHY_RETURN_IF_ERROR(model().Forward({.rows = rows, .contexts = views}, logits_.data()));
    if (!writes) continue;
    std::vector<Probable> next = MostProbable(lines);
    for (int64_t i = 0; i < lines; ++i) {
      const auto at = static_cast<size_t>(i);
      written[at].tokens.push_back(next[at].ids[Draw(next[at].logs, random[at])]);
      written[at].weight.push_back(1.0f);
      labels[at].push_back(std::move(next[at]));
    }
  }
  std::vector<Batch> batches;
  for (int64_t b = 0; b < count; ++b) {
    const int64_t from = b * lines_a_batch;
    Batch& batch = batches.emplace_back(BatchOf(
        std::span(written).subspan(static_cast<size_t>(from), static_cast<size_t>(lines_a_batch))));
    batch.AddLabels();
    for (int64_t i = 0; i < lines_a_batch; ++i) {
      const std::vector<Probable>& line = labels[static_cast<size_t>(from + i)];
      for (size_t t = 0; t < line.size(); ++t) {
        SetLabel(line[t], i * length + given - 1 + static_cast<int64_t>(t), &batch);
      }
    }
  }
  return batches;
}

absl::Status Teacher::Label(Batch* batch) {
  const engine::ModelInfo& info = model().info();
  const int64_t length = batch->tokens.size(1);
  const float* weight = batch->weight.data_ptr<float>();
  batch->AddLabels();
  for (int64_t line = 0; line < batch->tokens.size(0); ++line) {
    const int64_t* tokens = batch->tokens.data_ptr<int64_t>() + line * length;
    std::vector<engine::Row> rows;
    std::vector<int64_t> asked;
    for (int64_t t = 0; t < length; ++t) {
      const bool counts = weight[line * length + t] > 0;
      const auto at = static_cast<int32_t>(t);
      rows.push_back({.token = static_cast<int32_t>(tokens[t]),
                      .position = at,
                      .slot = at,
                      .want_logits = counts});
      if (counts) asked.push_back(line * length + t);
    }
    const engine::ScratchKv kv(info, static_cast<int32_t>(length));
    const engine::ContextView view = kv.View();
    const auto count = static_cast<int64_t>(asked.size());
    logits_.resize(static_cast<size_t>(count * info.vocab_size));
    WITHY_RETURN_IF_ERROR(model().Forward({.rows = rows, .contexts = {&view, 1}}, logits_.data()));
    const std::vector<Probable> probable = MostProbable(count);
    for (size_t i = 0; i < asked.size(); ++i) SetLabel(probable[i], asked[i], batch);
  }
  return absl::OkStatus();
}

}  // namespace withy::elastic
