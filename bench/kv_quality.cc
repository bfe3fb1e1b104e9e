// withy-bench-kv-quality: how much the formats of stored KV change what a model predicts. Cuts a
// text into windows of 2,048 tokens. The first half of a window is prefilled; then its chunks,
// except the first and the last ones, are encoded in the format under test; then the second half is
// scored. The reference keeps all KV at 16 bits. Prints a table on stderr and one JSON line last on
// stdout. Neighbours: engine/kv/encode.h makes the formats; agreement.cc compares model files.
//   withy-bench-kv-quality --model SmolLM2.gguf --text book.txt
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "engine/model/bundle.h"
#include "engine/model/scratch_kv.h"

ABSL_FLAG(std::string, model, "", "GGUF file");
ABSL_FLAG(std::string, text, "", "file of UTF-8 text, about 8 KiB for each window");
ABSL_FLAG(int, windows, 4, "windows of 2,048 tokens");
ABSL_FLAG(int, threads, 2, "threads");

namespace withy::bench {
namespace {

using engine::KvFormat;

constexpr int32_t kPrefilled = 1024;
constexpr int32_t kScored = 1023;  // each row predicts the next token of the window
constexpr int32_t kWindow = kPrefilled + kScored + 1;
constexpr int32_t kFirstKept = 4;  // chunks that stay as they are: the attention sink,
constexpr int32_t kLastKept = 8;   // and the most recent tokens
constexpr int32_t kPiece = 128;    // rows scored in one pass; bounds the memory for logits

struct Scores {
  std::vector<double> losses;       // by scored token
  std::vector<double> divergences;  // Kullback-Leibler, from the reference
  int64_t agreed = 0;               // rows whose likeliest token is the reference's
};

double Mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double Median(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<ptrdiff_t>(x.size() / 2);
  std::nth_element(x.begin(), middle, x.end());
  return *middle;
}

// Standard error of the perplexity ratio, from the differences of the losses token by token.
double RatioError(const Scores& scores, const Scores& exact) {
  std::vector<double> squares;
  const double mean = Mean(scores.losses) - Mean(exact.losses);
  for (size_t i = 0; i < exact.losses.size(); ++i) {
    squares.push_back(std::pow(scores.losses[i] - exact.losses[i] - mean, 2));
  }
  return std::exp(mean) * std::sqrt(Mean(squares) / static_cast<double>(squares.size()));
}

// Turns logits into log-probabilities.
void LogSoftmax(std::span<float> row) {
  const float top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += static_cast<double>(std::exp(value - top));
  const float shift = top + static_cast<float>(std::log(sum));
  for (float& value : row) value -= shift;
}

double Divergence(std::span<const float> from, std::span<const float> to) {
  double sum = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    sum += static_cast<double>(std::exp(from[i]) * (from[i] - to[i]));
  }
  return std::max(sum, 0.0);
}

size_t Likeliest(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Log-probabilities of one window's rows at 16 bits, [kScored, vocab_size].
using Reference = std::vector<float>;

// Scores the second half of a window over KV whose first half is in `format`. With kF16, fills the
// reference; otherwise compares with it.
absl::Status ScoreWindow(engine::Model& model, std::span<const int32_t> tokens, KvFormat format,
                         Reference* reference, Scores* scores) {
  const auto vocabulary = static_cast<size_t>(model.info().vocab_size);
  const bool exact = format == KvFormat::kF16;
  engine::ScratchKv kv(model.info(), kWindow, exact ? format : KvFormat::kQ8);
  WITHY_RETURN_IF_ERROR(engine::Prefill(model, kv, tokens.first(kPrefilled), 0, nullptr));
  const int32_t chunks = kPrefilled / model.info().kv.chunk_tokens;
  for (int32_t c = kFirstKept; c < chunks - kLastKept; ++c) {
    if (!exact && format != KvFormat::kQ8) kv.Encode(c, format);
  }
  if (exact) reference->resize(kScored * vocabulary);
  std::vector<float> logits(kPiece * vocabulary);
  for (int32_t first = 0; first < kScored; first += kPiece) {
    std::vector<engine::Row> rows;
    for (int32_t i = first; i < std::min(first + kPiece, kScored); ++i) {
      const int32_t position = kPrefilled + i;
      rows.push_back({.token = tokens[static_cast<size_t>(position)],
                      .position = position,
                      .slot = position,
                      .want_logits = true});
    }
    const engine::ContextView view = kv.View();
    WITHY_RETURN_IF_ERROR(model.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data()));
    for (size_t r = 0; r < rows.size(); ++r) {
      const std::span row = std::span(logits).subspan(r * vocabulary, vocabulary);
      const std::span want =
          std::span(*reference).subspan((static_cast<size_t>(first) + r) * vocabulary, vocabulary);
      LogSoftmax(row);
      if (exact) std::copy(row.begin(), row.end(), want.begin());
      const auto next = static_cast<size_t>(tokens[static_cast<size_t>(rows[r].position) + 1]);
      scores->losses.push_back(-static_cast<double>(row[next]));
      scores->divergences.push_back(Divergence(want, row));
      scores->agreed += Likeliest(want) == Likeliest(row) ? 1 : 0;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> TextTokens(const engine::ModelBundle& bundle,
                                                const std::string& path, int windows) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) {
    return absl::NotFoundError(absl::StrCat("--text: ", path, " cannot be read, or is empty"));
  }
  std::vector<int32_t> tokens = bundle.tokenizer->Encode(text, {.add_bos = false});
  const auto needed = static_cast<size_t>(windows) * kWindow;
  if (tokens.size() < needed) {
    return absl::InvalidArgumentError(absl::StrCat("--text: ", path, " has ", tokens.size(),
                                                   " tokens, ", windows, " windows need ", needed));
  }
  tokens.resize(needed);
  return tokens;
}

void Report(const std::map<KvFormat, Scores>& all) {
  const Scores& exact = all.at(KvFormat::kF16);
  const Scores& eight = all.at(KvFormat::kQ8);
  const auto rows = static_cast<double>(exact.losses.size());
  const auto ratio = [&](const Scores& s) { return std::exp(Mean(s.losses) - Mean(exact.losses)); };
  nlohmann::json formats = nlohmann::json::object();
  std::fprintf(stderr, "%-8s %12s %12s %12s %12s %12s %10s\n", "KV", "perplexity", "ratio",
               "std. error", "KLD median", "KLD mean", "same top");
  for (const KvFormat format :
       {KvFormat::kF16, KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2}) {
    const Scores& s = all.at(format);
    const double agreed = static_cast<double>(s.agreed) / rows;
    std::fprintf(stderr, "%-8s %12.4f %12.5f %12.5f %12.6f %12.6f %10.4f\n", KvFormatName(format),
                 std::exp(Mean(s.losses)), ratio(s), RatioError(s, exact), Median(s.divergences),
                 Mean(s.divergences), agreed);
    formats[KvFormatName(format)] = {{"ppl_ratio", ratio(s)},
                                     {"ppl_ratio_std_error", RatioError(s, exact)},
                                     {"kld_median", Median(s.divergences)},
                                     {"kld_mean", Mean(s.divergences)},
                                     {"top1_agreement", agreed}};
  }
  const Scores& four = all.at(KvFormat::kQ4);
  const nlohmann::json json = {
      {"windows", absl::GetFlag(FLAGS_windows)},
      {"scored_tokens", exact.losses.size()},
      {"ppl_16bit", std::exp(Mean(exact.losses))},
      {"ppl_ratio_8bit", ratio(eight)},
      {"ppl_ratio_4bit", ratio(four)},
      {"kld_median_4bit_vs_8bit", Median(four.divergences) / Median(eight.divergences)},
      {"formats", formats}};
  std::printf("%s\n", json.dump().c_str());
}

absl::Status Main() {
  const int windows = absl::GetFlag(FLAGS_windows);
  WITHY_RETURN_IF_ERROR(CheckFlag("windows", windows, 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle,
                         engine::OpenBundle(absl::GetFlag(FLAGS_model), options));
  if (bundle.model->info().context_length < kWindow) {
    return absl::InvalidArgumentError(absl::StrCat("--model: a context length of ",
                                                   bundle.model->info().context_length,
                                                   " is below a window's ", kWindow, " tokens"));
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                         TextTokens(bundle, absl::GetFlag(FLAGS_text), windows));
  std::map<KvFormat, Scores> scores;
  Reference reference;
  for (int w = 0; w < windows; ++w) {
    const auto window = std::span(tokens).subspan(static_cast<size_t>(w) * kWindow, kWindow);
    for (const KvFormat format :
         {KvFormat::kF16, KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2}) {
      WITHY_RETURN_IF_ERROR(
          ScoreWindow(*bundle.model, window, format, &reference, &scores[format]));
    }
    std::fprintf(stderr, "\rwindow %d of %d", w + 1, windows);
  }
  std::fprintf(stderr, "\r%*s\r", 40, "");
  Report(scores);
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "Perplexity and divergence of a model over KV in every format.\n"
      "usage: withy-bench-kv-quality --model FILE.gguf --text FILE",
      argc, argv);
  if (absl::GetFlag(FLAGS_model).empty() || absl::GetFlag(FLAGS_text).empty()) {
    std::fprintf(stderr, "withy-bench-kv-quality: %s\n",
                 std::string(absl::ProgramUsageMessage()).c_str());
    return 2;
  }
  const absl::Status status = withy::bench::Main();
  if (!status.ok()) {
    std::fprintf(stderr, "withy-bench-kv-quality: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
