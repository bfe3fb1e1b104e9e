#include "engine/encoder/tlm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/gguf/reader.h"

namespace withy::engine {
namespace {

constexpr size_t kWindowsAtOnce = 8;  // limits the memory for a long text

absl::StatusOr<const Kernels*> PickKernels(const std::string& target) {
  if (target.empty()) return &DefaultKernels();
  Target parsed{};
  const Kernels* kernels = ParseTarget(target, &parsed) ? KernelsFor(parsed) : nullptr;
  if (kernels != nullptr) return kernels;
  return absl::InvalidArgumentError(
      absl::StrCat("kernel target \"", target, "\" is not supported here; leave it empty"));
}

// The mean of the windows' logits, weighted by their text tokens.
LevelChoice Merge(const std::vector<int32_t>& percents, const std::vector<float>& logits,
                  const WindowedText& text) {
  const size_t levels = percents.size();
  std::vector<double> sum(levels);
  double weights = 0;
  for (size_t w = 0; w < text.windows.size(); ++w) {
    const auto tokens = static_cast<int32_t>(text.windows[w].size());
    const double weight = std::max(1, tokens - kWindowPrefix - kWindowSuffix);
    weights += weight;
    for (size_t i = 0; i < levels; ++i) sum[i] += weight * double{logits[w * levels + i]};
  }
  LevelChoice choice{.percents = percents, .logits = {}};
  for (const double x : sum) choice.logits.push_back(static_cast<float>(x / weights));
  return choice;
}

double Sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}

// The mean over each word's tokens.
std::vector<WordScore> ScoreWords(const WindowedText& text, const std::vector<float>& keep) {
  std::vector<size_t> window_begin;
  size_t at = 0;
  for (const std::vector<int32_t>& window : text.windows) {
    window_begin.push_back(at);
    at += window.size();
  }
  std::vector<WordScore> words;
  words.reserve(text.words.size());
  for (size_t w = 0; w < text.words.size(); ++w) {
    const auto [first, last] = text.word_tokens[w];
    double sum = 0;
    for (int32_t i = first; i < last; ++i) {
      const TextToken& token = text.tokens[static_cast<size_t>(i)];
      sum += Sigmoid(double{
          keep[window_begin[static_cast<size_t>(token.window)] + static_cast<size_t>(token.row)]});
    }
    const int32_t tokens = last - first;
    words.push_back({text.words[w], static_cast<float>(sum / std::max(1, tokens)), tokens});
  }
  return words;
}

}  // namespace

double PairChance(double prompt_logit, double model_logit) {
  return Sigmoid(prompt_logit + model_logit);
}

Tlm::Tlm(std::unique_ptr<TlmWeights> weights, std::unique_ptr<Tokenizer> tokenizer,
         WindowMaker windows, const Kernels& kernels, const TlmOptions& options)
    : weights_(std::move(weights)),
      tokenizer_(std::move(tokenizer)),
      windows_(std::move(windows)),
      pool_(options.threads, options.spin_us),
      encoder_(*weights_, &pool_, kernels),
      max_text_bytes_(options.max_text_bytes) {}

absl::StatusOr<std::unique_ptr<Tlm>> Tlm::Open(const std::string& path, const TlmOptions& options) {
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLM threads is ", options.threads, "; at least 1"));
  }
  WITHY_ASSIGN_OR_RETURN(const Kernels* kernels, PickKernels(options.target));
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<TlmWeights> weights, LoadTlmWeights(file));
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(file));
  WITHY_ASSIGN_OR_RETURN(WindowMaker windows,
                         WindowMaker::Create(*tokenizer, weights->shape, path));
  return std::unique_ptr<Tlm>(
      new Tlm(std::move(weights), std::move(tokenizer), std::move(windows), *kernels, options));
}

absl::Status Tlm::Run(const WindowedText& text, EncoderOutput* all) {
  const std::span<const std::vector<int32_t>> windows(text.windows);
  EncoderOutput part;
  for (size_t at = 0; at < windows.size(); at += kWindowsAtOnce) {
    const size_t n = std::min(kWindowsAtOnce, windows.size() - at);
    WITHY_RETURN_IF_ERROR(encoder_.Run(windows.subspan(at, n), &part));
    all->keep.insert(all->keep.end(), part.keep.begin(), part.keep.end());
    all->prompt.insert(all->prompt.end(), part.prompt.begin(), part.prompt.end());
    all->model.insert(all->model.end(), part.model.begin(), part.model.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<TlmReading> Tlm::Read(std::string_view text, const TlmSlo& slo,
                                     std::span<const ByteSpan> words) {
  WITHY_ASSIGN_OR_RETURN(const WindowedText windowed,
                         windows_.Make(text, slo, words, max_text_bytes_));
  EncoderOutput output;
  WITHY_RETURN_IF_ERROR(Run(windowed, &output));
  TlmReading reading;
  reading.words = ScoreWords(windowed, output.keep);
  reading.prompt_level = Merge(shape().prompt_levels, output.prompt, windowed);
  reading.model_level = Merge(shape().model_levels, output.model, windowed);
  reading.windows = static_cast<int32_t>(windowed.windows.size());
  reading.tokens = static_cast<int32_t>(output.keep.size());
  return reading;
}

}  // namespace withy::engine
