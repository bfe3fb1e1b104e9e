#include "orchestrator/board/tlm_reader.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/board.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/status.h"
#include "base/utf8.h"
#include "wire/calibration.h"

namespace withy::orchestrator {
namespace {

namespace fs = std::filesystem;
using engine::ByteSpan;

// The text that measures the TLM's speed, and how often it is read: the fastest counts, for a
// disturbance only ever adds.
constexpr size_t kProbeBytes = 1024;
constexpr int kProbeReadings = 2;

// A message of the prompt and the bytes that stand for it in the text that is read.
struct Piece {
  std::string_view text;
  std::string_view role;
  std::vector<ByteSpan> fixed;
  size_t begin = 0;
};

std::vector<ByteSpan> Spans(const google::protobuf::RepeatedPtrField<v1::ByteSpan>& wire) {
  std::vector<ByteSpan> spans;
  for (const v1::ByteSpan& span : wire) spans.push_back({span.begin(), span.end()});
  return spans;
}

std::vector<Piece> PiecesOf(const v1::Prompt& prompt) {
  if (!prompt.has_messages()) return {{prompt.text(), {}, Spans(prompt.fixed())}};
  std::vector<Piece> pieces;
  for (const v1::Message& message : prompt.messages().messages()) {
    pieces.push_back({message.content(), message.role(), Spans(message.fixed())});
  }
  return pieces;
}

// All pieces with a line break between them, so that no word crosses two.
std::string Join(std::vector<Piece>* pieces) {
  std::string text;
  for (Piece& piece : *pieces) {
    if (&piece != &pieces->front()) text.push_back('\n');
    piece.begin = text.size();
    text.append(piece.text);
  }
  return text;
}

// Gives every word to its message, counted from the message's first byte.
std::vector<engine::PrunableText> Distribute(const std::vector<Piece>& pieces,
                                             const std::vector<engine::WordScore>& words) {
  std::vector<engine::PrunableText> messages;
  size_t next = 0;
  for (const Piece& piece : pieces) {
    engine::PrunableText& message = messages.emplace_back();
    message.text = piece.text;
    message.fixed = piece.fixed;
    message.role = piece.role;
    const size_t end = piece.begin + piece.text.size();
    for (; next < words.size() && words[next].span.end <= end; ++next) {
      const auto begin = static_cast<uint32_t>(piece.begin);
      const ByteSpan span{words[next].span.begin - begin, words[next].span.end - begin};
      message.words.push_back({span, words[next].keep, words[next].tokens > 0});
    }
  }
  return messages;
}

v1::ModelDescription Describe(const std::string& path, const engine::TlmShape& shape) {
  v1::ModelDescription out;
  out.set_name(ValidUtf8(fs::path(path).stem().string(), kMaxShownBytes));
  out.set_role("tlm");
  out.set_architecture("mobilebert");
  int64_t parameters = 0;
  for (const engine::TensorSpec& tensor : engine::TlmTensors(shape))
    parameters += tensor.elements();
  out.set_parameters(static_cast<uint64_t>(parameters));
  std::error_code ignored;
  const auto bytes = fs::file_size(path, ignored);
  out.set_weight_bytes(ignored ? 0 : bytes);
  out.set_context_length(static_cast<uint32_t>(shape.window));
  out.set_vocabulary(static_cast<uint32_t>(shape.encoder.vocab));
  for (const int32_t level : shape.model_levels) {
    out.add_levels_percent(static_cast<uint32_t>(level));
  }
  return out;
}

}  // namespace

size_t PromptBytes(const v1::Prompt& prompt) {
  size_t bytes = prompt.text().size();
  for (const v1::Message& message : prompt.messages().messages()) {
    bytes += message.content().size();
  }
  return bytes;
}

std::vector<engine::PrunableText> Unread(const v1::Prompt& prompt) {
  std::vector<engine::PrunableText> messages;
  for (const Piece& piece : PiecesOf(prompt)) {
    engine::PrunableText& message = messages.emplace_back();
    message.text = piece.text;
    message.fixed = piece.fixed;
    message.role = piece.role;
    for (const ByteSpan& word : engine::SplitWords(piece.text)) message.words.push_back({word});
  }
  return messages;
}

TlmReader::TlmReader(const std::string& path, bool named, std::unique_ptr<engine::Tlm> tlm)
    : path_(path),
      named_(named),
      shape_(tlm->shape()),
      description_(Describe(path, tlm->shape())),
      tlm_(std::move(tlm)) {}

std::string TlmReader::PathOf(const v1::Config& config) {
  const std::string& named = config.orchestrator().tlm_path();
  if (named == "off") return "";
  return named.empty() ? DefaultTlmPath(config.model().path()) : named;
}

std::unique_ptr<TlmReader> TlmReader::Open(const v1::Config& config, const Clock& clock) {
  const std::string path = PathOf(config);
  if (path.empty()) return nullptr;
  const bool named = !config.orchestrator().tlm_path().empty();
  engine::TlmOptions options;
  options.threads = static_cast<int>(config.orchestrator().tlm_threads());
  options.target = config.model().kernel_target();
  auto tlm = engine::Tlm::Open(path, options);
  absl::Status status = tlm.status();
  std::unique_ptr<TlmReader> reader;
  if (tlm.ok()) {
    reader.reset(new TlmReader(path, named, *std::move(tlm)));
    reader->calibrated_ = reader->ReadCalibration(config);
    if (!reader->calibrated_) status = reader->Measure(clock);
  }
  if (!status.ok()) {
    spdlog::error("going on without a TLM: {} (orchestrator.tlm_path)",
                  std::string(status.message()));
    return nullptr;
  }
  spdlog::info("opened TLM {} ({}): {:.2f} us a byte of prompt", path,
               reader->calibrated_ ? "calibrated" : "not calibrated", reader->us_per_byte_);
  return reader;
}

bool TlmReader::ReadCalibration(const v1::Config& config) {
  const auto key =
      engine::MakeTlmKey(path_, config.model().kernel_target(),
                         static_cast<int32_t>(config.orchestrator().tlm_threads()), ReadBoard());
  if (!key.ok()) return false;
  const auto record = engine::UsableCalibration(
      engine::CalibrationPath(path_, engine::PackedDir(config.state_dir())), *key);
  if (!record.ok() && !absl::IsNotFound(record.status())) {
    spdlog::warn("going on with a measurement at start-up: {}",
                 std::string(record.status().message()));
  }
  if (!record.ok()) return false;
  us_per_byte_ = engine::ReadUsPerByte(*record);
  return us_per_byte_ > 0;
}

absl::Status TlmReader::Measure(const Clock& clock) {
  std::string text;
  while (text.size() < kProbeBytes) text += "a word of the probe and ";
  absl::MutexLock lock(&mutex_);
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < kProbeReadings; ++i) {
    const int64_t started = clock.SteadyNanos();
    WITHY_RETURN_IF_ERROR(tlm_->Read(text, {}).status());
    fastest = std::min(fastest, clock.SteadyNanos() - started);
  }
  us_per_byte_ = static_cast<double>(fastest) / 1e3 / static_cast<double>(text.size());
  return absl::OkStatus();
}

std::string TlmReader::WhyUnfit(const std::vector<uint32_t>& model_levels,
                                std::string_view model_id) {
  std::vector<int32_t> lacking;
  for (const int32_t level : shape_.model_levels) {
    const auto known = static_cast<uint32_t>(level);
    if (std::find(model_levels.begin(), model_levels.end(), known) == model_levels.end()) {
      lacking.push_back(level);
    }
  }
  std::string unfit;
  if (!lacking.empty()) {
    unfit = absl::StrCat("the TLM knows levels that the model lacks (",
                         absl::StrJoin(lacking, ", "), ")");
  }
  const bool foreign = !shape_.model_id.empty() && !model_id.empty() && shape_.model_id != model_id;
  if (unfit.empty() && foreign && !named_)
    unfit = "the TLM beside it was trained for another model";
  absl::MutexLock lock(&mutex_);
  if (unfit != unfit_ && !unfit.empty()) {
    spdlog::error(
        "going on without TLM {}: {}; the model has {} (train one with ./withy train tlm, or name "
        "this one in orchestrator.tlm_path)",
        path_, unfit, absl::StrJoin(model_levels, ", "));
  }
  unfit_ = unfit;
  if (unfit.empty() && foreign && foreign_ != model_id) {
    spdlog::warn("TLM {} was trained for another model ({}; here {}): what it expects may not hold",
                 path_, shape_.model_id, std::string(model_id));
    foreign_ = std::string(model_id);
  }
  return unfit;
}

double TlmReader::PairAccuracy(bool mostly_examples, uint32_t prompt_percent,
                               uint32_t level_percent) const {
  const std::vector<int32_t>& levels = shape_.prompt_levels;
  const auto level =
      std::lower_bound(levels.begin(), levels.end(), static_cast<int32_t>(prompt_percent));
  if (level == levels.end()) return 0;
  return shape_.PairAccuracy(mostly_examples, *level, static_cast<int32_t>(level_percent));
}

absl::StatusOr<PromptReading> TlmReader::Read(const v1::Prompt& prompt,
                                              const policy::SloRatios& slo) {
  std::vector<Piece> pieces = PiecesOf(prompt);
  const std::string text = Join(&pieces);
  absl::StatusOr<engine::TlmReading> read = absl::UnknownError("not read");
  {
    absl::MutexLock lock(&mutex_);
    read = tlm_->Read(text, {.ttft_ratio = slo.ttft, .tpot_ratio = slo.tpot});
  }
  WITHY_RETURN_IF_ERROR(read.status());
  PromptReading reading;
  reading.messages = Distribute(pieces, read->words);
  reading.prompt_level = std::move(read->prompt_level);
  reading.model_level = std::move(read->model_level);
  return reading;
}

}  // namespace withy::orchestrator
