#include "engine/session/kv_errors.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/kv/exact_chunks.h"
#include "engine/model/scratch_kv.h"
#include "engine/session/predictions.h"

namespace withy::engine {
namespace {

constexpr std::array<KvFormat, 4> kMeasured = {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2,
                                               KvFormat::kQ2};
// Rows of one context in a pass: bounds the memory for logits.
constexpr int32_t kScoredRows = 8;
constexpr int32_t kPrefilledRows = 128;

// The first context has 16 bits, the others kMeasured.
using ErrorContexts = std::vector<ScratchKv>;

class ErrorMeter {
 public:
  ErrorMeter(Model& model, std::span<const int32_t> tokens, const std::atomic<bool>* cancel,
             const std::function<void(double)>& progress)
      : model_(model),
        vocabulary_(static_cast<size_t>(model.info().vocab_size)),
        tokens_(tokens),
        prefilled_(static_cast<int32_t>(tokens.size()) * 5 / 8 / kChunkTokens * kChunkTokens),
        scored_(static_cast<int32_t>(tokens.size()) - prefilled_),
        cancel_(cancel),
        progress_(progress) {
    contexts_.reserve(kMeasured.size() + 1);
    contexts_.emplace_back(model.info(), Count(), KvFormat::kF16);
    for (size_t i = 0; i < kMeasured.size(); ++i) contexts_.emplace_back(model.info(), Count());
  }

  absl::StatusOr<std::vector<KvFormatError>> Run() {
    for (int32_t first = 0; first < prefilled_; first += kPrefilledRows) {
      WITHY_RETURN_IF_ERROR(
          Forward(first, std::min(first + kPrefilledRows, prefilled_), /*contexts=*/2, nullptr));
    }
    EncodeAll();
    std::vector<float> logits(contexts_.size() * kScoredRows * vocabulary_);
    std::array<double, kMeasured.size()> sums = {};
    for (int32_t first = prefilled_; first < Count(); first += kScoredRows) {
      const int32_t end = std::min(first + kScoredRows, Count());
      WITHY_RETURN_IF_ERROR(Forward(first, end, contexts_.size(), logits.data()));
      AddDivergences(static_cast<size_t>(end - first), logits, &sums);
    }
    std::vector<KvFormatError> errors;
    for (size_t i = 0; i < kMeasured.size(); ++i) {
      errors.push_back({kMeasured[i], std::max(sums[i] / scored_, 0.0)});
    }
    return errors;
  }

 private:
  int32_t Count() const { return static_cast<int32_t>(tokens_.size()); }

  // Computes tokens [first, end) in the first `contexts` contexts. `logits`, if not null, gets
  // those of context 0, then of context 1, and so on.
  absl::Status Forward(int32_t first, int32_t end, size_t contexts, float* logits) {
    std::vector<Row> rows;
    std::vector<ContextView> views;
    for (size_t c = 0; c < contexts; ++c) {
      views.push_back(contexts_[c].View(first));
      for (int32_t i = first; i < end; ++i) {
        rows.push_back({.token = tokens_[static_cast<size_t>(i)],
                        .position = i,
                        .slot = i,
                        .context = static_cast<int32_t>(c),
                        .want_logits = logits != nullptr});
      }
    }
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = views}, logits, cancel_));
    done_ += static_cast<double>(rows.size());
    const auto all = 2 * prefilled_ + static_cast<int32_t>(contexts_.size()) * scored_;
    if (progress_) progress_(done_ / all);
    return absl::OkStatus();
  }

  // Copies the prefilled chunks of the context at 8 bits to the others, and encodes them there.
  void EncodeAll() {
    const KvInfo& kv = model_.info().kv;
    const int32_t chunks = prefilled_ / kChunkTokens;
    const ContextView from = contexts_[1].View();
    for (size_t c = 2; c < contexts_.size(); ++c) {
      const ContextView to = contexts_[c].View();
      for (size_t i = 0; i < static_cast<size_t>(chunks * kv.layers); ++i) {
        std::memcpy(to.memory.At(to.blocks[i]), from.memory.At(from.blocks[i]), kv.block_bytes);
      }
      contexts_[c].Touch();
      for (int32_t chunk = kExactChunks; chunk < chunks - kExactChunks; ++chunk) {
        contexts_[c].Encode(chunk, kMeasured[c - 1]);
      }
    }
  }

  void AddDivergences(size_t rows, std::span<float> logits,
                      std::array<double, kMeasured.size()>* sums) const {
    const auto row = [&](size_t context, size_t i) {
      return logits.subspan((context * rows + i) * vocabulary_, vocabulary_);
    };
    for (size_t i = 0; i < rows; ++i) {
      LogSoftmax(row(0, i));
      for (size_t f = 0; f < kMeasured.size(); ++f) {
        LogSoftmax(row(f + 1, i));
        (*sums)[f] += Divergence(row(0, i), row(f + 1, i));
      }
    }
  }

  Model& model_;
  const size_t vocabulary_;
  const std::span<const int32_t> tokens_;
  const int32_t prefilled_;
  const int32_t scored_;
  const std::atomic<bool>* cancel_;
  const std::function<void(double)>& progress_;
  ErrorContexts contexts_;
  double done_ = 0;  // rows
};

}  // namespace

std::string_view KvErrorText() {
  return "The lighthouse keeper of the northern island wrote a letter to his sister every Sunday. "
         "In March he told her that the storms had carried away the small pier, that the boat with "
         "the mail could no longer land, and that he had learned to bake bread from the flour in "
         "the cellar. \"You would laugh,\" he wrote, \"if you saw how proud I am of a loaf that "
         "weighs as much as a stone.\" She answered in April: the apple trees behind the house "
         "were in bloom, their father's clock had stopped at twenty minutes past seven, and the "
         "neighbour, Mr. Halloran, had at last sold his horse.\n\n"
         "To calculate the area of a triangle, multiply the length of its base by its height and "
         "divide the product by two. A triangle with a base of 12 cm and a height of 7 cm has an "
         "area of 42 square centimetres. If the base is doubled and the height stays the same, the "
         "area doubles as well, to 84 square centimetres.\n\n"
         "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
         "    return total / len(values)\n\n"
         "Installation: copy the archive to the target machine, unpack it, and run the script "
         "`setup.sh` as an administrator. The script asks for the port (default: 8080), the name "
         "of the database, and the address to which warnings are sent. Restart the service "
         "afterwards. If the service does not start, look for lines that contain the word ERROR in "
         "the log file; most often another program is already using the port.\n\n"
         "Water boils at 100 degrees Celsius at sea level. On a high mountain the pressure of the "
         "air is lower, and so is the temperature at which water boils: about 72 degrees on the "
         "top of Mount Everest. Food that is cooked there needs more time. In a closed pot the "
         "pressure rises, and with it the temperature.\n\n"
         "User: My train leaves at 9:40 and the walk to the station takes a quarter of an hour. "
         "When should I go?\nAssistant: If you leave at 9:20, you arrive at 9:35 and have five "
         "minutes to find the platform.\nUser: And who wrote the letter that I mentioned at the "
         "beginning, and what did he bake?\nAssistant: The lighthouse keeper of the northern "
         "island wrote it. He baked bread from the flour in the cellar, and he was proud of a loaf "
         "that weighed as much as a stone. His sister answered in April and wrote about the apple "
         "trees, about their father's clock, which had stopped at twenty minutes past seven, and "
         "about Mr. Halloran, who had sold his horse.\n\n"
         "The committee met on the second of June to discuss the budget of the coming year. Three "
         "members asked for a smaller increase of the fees; two others argued that the repair of "
         "the roof could not wait until autumn. After a long debate the committee decided to raise "
         "the fees by three per cent and to ask the town for a loan.\n";
}

absl::StatusOr<std::vector<KvFormatError>> MeasureKvErrors(
    Model& model, std::span<const int32_t> tokens, const std::atomic<bool>* cancel,
    const std::function<void(double)>& progress) {
  if (tokens.size() < kLeastKvErrorTokens) {
    return absl::InvalidArgumentError(absl::StrCat("the errors of KV formats are measured with ",
                                                   kLeastKvErrorTokens, " tokens or more, not ",
                                                   tokens.size()));
  }
  const size_t count = std::min<size_t>(tokens.size(), kKvErrorTokens);
  return ErrorMeter(model, tokens.first(count), cancel, progress).Run();
}

}  // namespace withy::engine
