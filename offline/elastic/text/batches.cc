#include "offline/elastic/text/batches.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/shape.h"
#include "offline/corpus/generator.h"
#include "offline/train/batches.h"
#include "offline/train/chat_encoder.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

constexpr int64_t kPieceTokens = 512;
constexpr size_t kTensorsOfBatch = 5;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The positions of a batch that count, and their targets.
struct Asked {
  Tensor logits;  // [positions, vocab_size]
  Tensor right;   // [positions]
  Tensor weight;  // [positions]
};

Asked Ask(const Network& network, const Batch& batch, const View& view) {
  const Tensor asked = batch.weight.nonzero().squeeze(1);
  const Tensor hidden = network.Hidden(batch.tokens.to(network.device()), view)
                            .index_select(0, asked.to(network.device()));
  return {network.Logits(hidden), batch.next.index_select(0, asked).to(network.device()),
          batch.weight.index_select(0, asked).to(network.device())};
}

}  // namespace

void Batch::AddLabels() {
  taught_ids = torch::zeros({next.size(0), kTaught}, torch::kInt32);
  taught_logs = torch::zeros({next.size(0), kTaught}, torch::kFloat16);
}

Batch BatchOf(std::span<const TextLine> lines) {
  size_t longest = 0;
  for (const TextLine& line : lines) longest = std::max(longest, line.tokens.size());
  const auto rows = static_cast<int64_t>(lines.size());
  const auto length = static_cast<int64_t>(longest);
  Batch batch{.tokens = torch::zeros({rows, length}, torch::kInt64),
              .next = torch::zeros({rows * length}, torch::kInt64),
              .weight = torch::zeros({rows * length}, torch::kFloat32)};
  for (int64_t r = 0; r < rows; ++r) {
    const TextLine& line = lines[static_cast<size_t>(r)];
    int64_t* tokens = batch.tokens.data_ptr<int64_t>() + r * length;
    int64_t* next = batch.next.data_ptr<int64_t>() + r * length;
    float* weight = batch.weight.data_ptr<float>() + r * length;
    for (size_t i = 0; i < line.tokens.size(); ++i) {
      tokens[i] = line.tokens[i];
      if (i == 0) continue;
      next[i - 1] = line.tokens[i];
      weight[i - 1] = line.weight[i];
    }
  }
  return batch;
}

absl::StatusOr<std::vector<Batch>> TextBatches(const engine::GgufFile& model,
                                               const std::string& path,
                                               const BatchOptions& options) {
  WITHY_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  WITHY_ASSIGN_OR_RETURN(const engine::ModelShape shape, engine::ReadShape(model));
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Tokenizer> tokenizer,
                         engine::MakeTokenizer(model));
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  const auto tokens = static_cast<int64_t>(ids.size());
  const int64_t window =
      std::min({options.window_tokens, options.batch_tokens, int64_t{shape.context_length}});
  const int64_t lines_a_batch = options.batch_tokens / window;
  const int64_t count = std::min(options.count, tokens / (lines_a_batch * window));
  if (count < 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", tokens, " tokens; one batch of ",
                                                   options.batch_tokens, " needs ",
                                                   lines_a_batch * window, ": give more text"));
  }
  // Windows are spread evenly over the text.
  const int64_t step = tokens / (lines_a_batch * count);
  std::vector<Batch> batches;
  for (int64_t b = 0; b < count; ++b) {
    std::vector<TextLine> lines;
    for (int64_t i = 0; i < lines_a_batch; ++i) {
      const auto first = ids.begin() + (i * count + b) * step;
      TextLine& line = lines.emplace_back();
      line.tokens.assign(first, first + window);
      line.weight.assign(line.tokens.size(), 1.0f);
    }
    batches.push_back(BatchOf(lines));
  }
  return batches;
}

absl::StatusOr<std::vector<Batch>> CorpusBatches(const engine::GgufFile& model,
                                                 const BatchOptions& options) {
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Tokenizer> tokenizer,
                         engine::MakeTokenizer(model));
  if (!tokenizer->FindToken("<|im_start|>").has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        model.path(),
        ": its tokenizer has no <|im_start|>, which the corpus is written with; give a "
        "text with --text"));
  }
  const train::ChatEncoder encoder(std::move(tokenizer));
  train::BatchOptions stream_options;
  stream_options.spec = corpus::TrainSpec();
  stream_options.spec.seed += options.seed;
  stream_options.tokens = options.batch_tokens;
  stream_options.shortened_percent = train::kShortenedPercent;
  // Exercises of full difficulty from the start: their garbled wordings are what transfers to
  // unseen wordings, and what a cut level would forget first.
  stream_options.exercise_ramp_batches = 1;
  train::BatchStream stream(stream_options, encoder);
  std::vector<Batch> batches;
  for (int64_t b = 0; b < options.count; ++b) {
    if (options.progress) options.progress(b, options.count);
    std::vector<TextLine> lines;
    for (const train::Sample& sample : stream.Next()) {
      lines.push_back({sample.tokens, {sample.answer.begin(), sample.answer.end()}});
    }
    batches.push_back(BatchOf(lines));
  }
  return batches;
}

std::vector<Tensor> TensorsOf(const std::vector<Batch>& batches) {
  std::vector<Tensor> tensors;
  for (const Batch& batch : batches) {
    for (const Tensor& tensor :
         {batch.tokens, batch.next, batch.weight, batch.taught_ids, batch.taught_logs}) {
      tensors.push_back(tensor.defined() ? tensor : torch::zeros({0}));
    }
  }
  return tensors;
}

bool BatchesFrom(const std::vector<Tensor>& tensors, std::vector<Batch>* batches) {
  if (tensors.empty() || tensors.size() % kTensorsOfBatch != 0) return false;
  std::vector<Batch> found;
  for (size_t i = 0; i < tensors.size(); i += kTensorsOfBatch) {
    const auto label = [&](size_t at) {
      return tensors[i + at].numel() == 0 ? Tensor() : tensors[i + at];
    };
    Batch& batch =
        found.emplace_back(Batch{tensors[i], tensors[i + 1], tensors[i + 2], label(3), label(4)});
    if (batch.tokens.dim() != 2 || batch.next.numel() != batch.tokens.numel() ||
        batch.weight.numel() != batch.tokens.numel()) {
      return false;
    }
  }
  *batches = std::move(found);
  return true;
}

std::vector<Batch> Pieces(const Batch& batch) {
  const int64_t lines = batch.tokens.size(0);
  const int64_t length = batch.tokens.size(1);
  const int64_t lines_a_piece = std::max<int64_t>(1, kPieceTokens / length);
  std::vector<Batch> pieces;
  for (int64_t first = 0; first < lines; first += lines_a_piece) {
    const int64_t count = std::min(lines_a_piece, lines - first);
    const auto part = [&](const Tensor& all) {
      return all.defined() ? all.narrow(0, first * length, count * length) : all;
    };
    pieces.push_back({batch.tokens.narrow(0, first, count), part(batch.next), part(batch.weight),
                      part(batch.taught_ids), part(batch.taught_logs)});
  }
  return pieces;
}

Tensor Loss(const Network& network, const Batch& batch, const View& view) {
  const Asked asked = Ask(network, batch, view);
  const Tensor loss = torch::nn::functional::cross_entropy(
      asked.logits, asked.right,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  return (loss * asked.weight).sum() / asked.weight.sum();
}

Tensor Margin(const Network& network, const Batch& batch, const View& view) {
  const Asked asked = Ask(network, batch, view);
  const Tensor at = asked.right.unsqueeze(1);
  const Tensor others =
      asked.logits.scatter(1, at, -std::numeric_limits<double>::infinity()).logsumexp(1);
  const Tensor margin = asked.logits.gather(1, at).squeeze(1) - others;
  return (margin * asked.weight).sum() / asked.weight.sum();
}

Tensor Judge(const Network& network, const Batch& batch, const View& view) {
  return batch.taught_ids.defined() ? Divergence(network, batch, view) : Loss(network, batch, view);
}

double MeanLoss(const Network& network, const std::vector<Batch>& batches, const View& view) {
  torch::NoGradGuard no_grad;
  double sum = 0;
  for (const Batch& batch : batches) sum += Loss(network, batch, view).item<double>();
  return sum / static_cast<double>(batches.size());
}

}  // namespace withy::elastic
