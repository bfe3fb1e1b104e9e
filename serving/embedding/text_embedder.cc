#include "serving/embedding/text_embedder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::serving {
namespace {

// Rows of a pass: as many as are cheap together, and few enough that their hidden states and KV
// stay small.
constexpr int32_t kLeastRows = 32;
constexpr int32_t kMostRows = 512;
// A Run computes this share of a pass, so that it is short beside calls.
constexpr double kShareOfRun = 0.125;

absl::Status CheckText(size_t index, const std::vector<int32_t>& ids, const engine::ModelInfo& info,
                       int32_t window) {
  if (ids.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("inputs[", index, "] has no tokens: give a text, or at least one token"));
  }
  if (ids.size() > static_cast<size_t>(window)) {
    return absl::OutOfRangeError(
        absl::StrCat("inputs[", index, "] has ", ids.size(), " tokens, the window of ", info.name,
                     " ", window, ": shorten it, or send its parts as inputs of their own"));
  }
  for (const int32_t id : ids) {
    if (id >= 0 && id < info.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("inputs[", index, "] has the token ", id, ": ",
                                                   info.name, " has the tokens 0 to ",
                                                   info.vocab_size - 1));
  }
  return absl::OkStatus();
}

int32_t ChunksOf(size_t tokens) {
  return static_cast<int32_t>((tokens + engine::kChunkTokens - 1) / engine::kChunkTokens);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextEmbedder>> TextEmbedder::Create(
    engine::Model& model, std::vector<std::vector<int32_t>> texts, int32_t window) {
  if (texts.empty()) {
    return absl::InvalidArgumentError("inputs is empty: give at least one text");
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    WITHY_RETURN_IF_ERROR(CheckText(i, texts[i], model.info(), window));
  }
  return std::unique_ptr<TextEmbedder>(new TextEmbedder(model, std::move(texts)));
}

TextEmbedder::TextEmbedder(engine::Model& model, std::vector<std::vector<int32_t>> texts)
    : model_(model),
      texts_(std::move(texts)),
      most_rows_(static_cast<size_t>(std::clamp(model.piece_rows(), kLeastRows, kMostRows))),
      kv_(model.info(), 0) {}

void TextEmbedder::AddRows(size_t text, size_t first, size_t end, int32_t first_chunk) {
  const auto layers = static_cast<size_t>(model_.info().kv.layers);
  const auto chunk = static_cast<size_t>(first_chunk);
  const auto chunks = static_cast<size_t>(ChunksOf(texts_[text].size()));
  engine::ContextView view = kv_.View(static_cast<int32_t>(first));
  view.blocks = view.blocks.subspan(chunk * layers, chunks * layers);
  view.chunk_versions = view.chunk_versions.subspan(chunk, chunks);
  views_.push_back(view);
  for (size_t i = first; i < end; ++i) {
    rows_.push_back({.token = texts_[text][i],
                     .position = static_cast<int32_t>(i),
                     .slot = static_cast<int32_t>(i),
                     .context = static_cast<int32_t>(views_.size()) - 1,
                     .want_logits = true});
    texts_of_rows_.push_back(text);
  }
}

// A text that a pass does not end begins the pass, so its KV stays at chunk 0 until it is over.
absl::Status TextEmbedder::Begin() {
  struct Part {
    size_t text, first, end;
    int32_t chunk;
  };
  std::vector<Part> parts;
  size_t room = most_rows_;
  int32_t chunks = 0;
  while (next_text_ < texts_.size() && room > 0) {
    const size_t left = texts_[next_text_].size() - next_token_;
    if (left > room && !parts.empty()) break;
    const size_t end = next_token_ + std::min(left, room);
    parts.push_back({next_text_, next_token_, end, chunks});
    room -= end - next_token_;
    chunks += ChunksOf(texts_[next_text_].size());
    next_token_ = end;
    if (end < texts_[next_text_].size()) break;
    ++next_text_;
    next_token_ = 0;
  }
  kv_.Extend(chunks * engine::kChunkTokens);  // makes views of before invalid
  for (const Part& part : parts) AddRows(part.text, part.first, part.end, part.chunk);
  hidden_.resize(rows_.size() * static_cast<size_t>(model_.info().d_model));
  WITHY_ASSIGN_OR_RETURN(
      pass_, model_.Begin({.rows = rows_, .contexts = views_, .hidden = true}, hidden_.data()));
  return absl::OkStatus();
}

absl::StatusOr<bool> TextEmbedder::Run(const std::atomic<bool>* stop) {
  if (finished()) return true;
  if (pass_ == nullptr) {
    rows_.clear();
    texts_of_rows_.clear();
    views_.clear();
    WITHY_RETURN_IF_ERROR(Begin());
  }
  if (!pass_->Run(stop, pass_->Done() + kShareOfRun)) {
    WITHY_RETURN_IF_ERROR(pass_->status());
    return stop == nullptr || !*stop;
  }
  pass_ = nullptr;
  WITHY_RETURN_IF_ERROR(Finish());
  computed_tokens_ += rows_.size();
  rows_.clear();
  return true;
}

absl::Status TextEmbedder::Finish() {
  const auto width = static_cast<size_t>(model_.info().d_model);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const size_t text = texts_of_rows_[i];
    const auto tokens = static_cast<int32_t>(texts_[text].size());
    sum_.resize(width);
    for (size_t c = 0; c < width; ++c) sum_[c] += static_cast<double>(hidden_[i * width + c]);
    if (rows_[i].position + 1 < tokens) continue;
    double squares = 0;
    for (const double value : sum_) squares += value * value;
    if (!std::isfinite(squares) || squares == 0) {
      return absl::InternalError(
          absl::StrCat(model_.info().name, " gives inputs[", text,
                       "] a vector that is zero or no numbers; its weights are damaged"));
    }
    // The mean has the direction of the sum.
    const double factor = 1 / std::sqrt(squares);
    TextVector& vector = vectors_.emplace_back();
    vector.tokens = tokens;
    for (const double value : sum_) vector.values.push_back(static_cast<float>(value * factor));
    sum_.clear();
  }
  return absl::OkStatus();
}

std::vector<TextVector> TextEmbedder::TakeVectors() { return std::exchange(vectors_, {}); }

}  // namespace withy::serving
