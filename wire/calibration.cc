#include "wire/calibration.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/cpu/kernels.h"
#include "engine/gguf/output_file.h"
#include "engine/weights/packer.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;
using google::protobuf::TextFormat;

constexpr char kRemedy[] = "measure again with `withyctl calibrate`";
constexpr int kMaxSamples = 1000;

// Records whether the text has fields unknown to this build, and the first other error.
class Complaints final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (error_.empty()) error_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    if (warning_.empty()) warning_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& error() const { return error_; }
  const std::string& warning() const { return warning_; }

 private:
  std::string error_;
  std::string warning_;
};

absl::Status Damaged(std::string_view path, std::string_view what) {
  return absl::DataLossError(absl::StrCat("the calibration ", ToAbsl(path), " is damaged (",
                                          ToAbsl(what), "): ", kRemedy));
}

std::string WhatIsWrong(const v1::CalibrationPoint& point) {
  const std::string name = v1::CalibrationKind_Name(point.kind());
  if (name.empty() || point.kind() == v1::CALIBRATION_KIND_UNSPECIFIED) return "unknown point";
  if (point.level_percent() > 100) return absl::StrCat(name, " of level ", point.level_percent());
  const bool read = point.kind() == v1::CALIBRATION_KIND_READ;
  if ((read ? point.text_bytes() : point.rows()) == 0) return absl::StrCat(name, " of nothing");
  if (point.sample_us_size() > kMaxSamples) {
    return absl::StrCat(name, " with ",
                        Counted(static_cast<uint64_t>(point.sample_us_size()), "sample"));
  }
  for (const double us : point.sample_us()) {
    const bool possible = us > 0 || point.kind() == v1::CALIBRATION_KIND_SWITCH;
    if (!std::isfinite(us) || !possible) return absl::StrCat(name, " of ", us, " us");
  }
  return "";
}

std::string WhatIsWrong(const v1::KvFormatError& error) {
  if (error.format() < v1::KV_FORMAT_Q8 || error.format() > v1::KV_FORMAT_Q4_Q2) {
    return absl::StrCat("error of the unknown KV format ", error.format());
  }
  if (std::isfinite(error.divergence()) && error.divergence() >= 0) return "";
  return absl::StrCat("error of ", v1::KvFormat_Name(error.format()), " of ", error.divergence());
}

bool SamePoint(const v1::CalibrationPoint& a, const v1::CalibrationPoint& b) {
  return a.kind() == b.kind() && a.level_percent() == b.level_percent() && a.rows() == b.rows() &&
         a.depth() == b.depth() && a.text_bytes() == b.text_bytes();
}

std::string PowerMode(const v1::CalibrationKey& key) {
  if (key.governor().empty() && key.max_khz() == 0) return "unknown";
  return absl::StrCat(key.governor(), " up to ", key.max_khz() / 1000, " MHz");
}

// Decode times of one level, by (depth, rows).
using DecodeTimes = std::map<std::pair<uint32_t, uint32_t>, double>;

// Time that a context token adds to each later prompt token, from the growth of the time per token
// with the prompt's length, which is due to attention alone. Uses the farthest points, where noise
// matters least. 0 with fewer than three points.
double PrefillDepthUs(std::span<const PrefillTime> times) {
  const auto up_to = [&](double tokens) -> const PrefillTime* {
    const PrefillTime* found = nullptr;
    for (const PrefillTime& time : times) {
      if (time.tokens <= tokens) found = &time;
    }
    return found;
  };
  if (times.size() < 3) return 0;
  const PrefillTime& high = times.back();
  const PrefillTime* middle = up_to(high.tokens / 4.0);
  const PrefillTime* low = middle != nullptr ? up_to(middle->tokens / 4.0) : nullptr;
  if (low == nullptr) return 0;
  const auto slope = [](const PrefillTime& a, const PrefillTime& b) {
    return (b.us - a.us) / (b.tokens - a.tokens);
  };
  const double apart = (high.tokens - low->tokens) / 2.0;
  return std::max(0.0, (slope(*middle, high) - slope(*low, *middle)) / apart);
}

LevelTimes Summarize(uint32_t percent, std::vector<PrefillTime> prefill,
                     const DecodeTimes& decode) {
  LevelTimes times;
  times.percent = static_cast<int32_t>(percent);
  std::sort(prefill.begin(), prefill.end(),
            [](const PrefillTime& a, const PrefillTime& b) { return a.tokens < b.tokens; });
  double longest_us = 0;
  for (PrefillTime& time : prefill) longest_us = time.us = std::max(time.us, longest_us);
  times.prefill = std::move(prefill);
  times.prefill_us_per_context_token = PrefillDepthUs(times.prefill);
  const auto base = decode.begin();  // smallest depth, then fewest rows
  times.decode_us = base->second;
  const auto [base_depth, base_rows] = base->first;
  for (const auto& [place, us] : decode) {
    const auto [depth, rows] = place;
    // The farthest point of each direction, where noise matters least.
    if (rows == base_rows && depth > base_depth)
      times.decode_us_per_context_token = std::max(0.0, (us - base->second) / (depth - base_depth));
    if (depth == base_depth && rows > base_rows)
      times.decode_us_per_extra_row = std::max(0.0, (us - base->second) / (rows - base_rows));
  }
  return times;
}

absl::StatusOr<std::string> TlmId(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return ErrnoError(absl::StrCat("open ", path));
  uint32_t crc = 0;
  uint64_t bytes = 0;
  std::vector<char> piece(size_t{1} << 20);
  while (in) {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const auto count = static_cast<size_t>(in.gcount());
    crc = Crc32c(crc, std::as_bytes(std::span(piece.data(), count)));
    bytes += count;
  }
  if (in.bad()) return ErrnoError(absl::StrCat("read ", path));
  return absl::StrFormat("tlm-%x-%08x", bytes, crc);
}

// A wider tree takes at least as long as a narrower one.
void AddTrees(std::vector<PrefillTime> trees, LevelTimes* level) {
  if (trees.empty()) return;
  trees.push_back({1, level->decode_us});
  std::sort(trees.begin(), trees.end(),
            [](const PrefillTime& a, const PrefillTime& b) { return a.tokens < b.tokens; });
  double longest_us = 0;
  for (PrefillTime& tree : trees) longest_us = tree.us = std::max(tree.us, longest_us);
  level->trees = std::move(trees);
}

}  // namespace

std::string PackedDir(const std::string& state_dir) { return state_dir + "/packed"; }

std::string CalibrationPath(const std::string& model_path, const std::string& packed_dir) {
  const std::string packed = PackedPath(model_path, packed_dir);
  return fs::path(packed).replace_extension(".calibration.textproto");
}

v1::CalibrationKey MakeCalibrationKey(std::string_view model_id, std::string_view kernel_target,
                                      int32_t threads, const BoardInfo& board,
                                      uint64_t weight_budget_bytes) {
  v1::CalibrationKey key;
  key.set_model_id(std::string(model_id));
  key.set_processor(board.processor);
  key.set_cores(board.cores);
  key.set_threads(static_cast<uint32_t>(threads));
  key.set_kernel_target(std::string(kernel_target));
  key.set_governor(board.governor);
  key.set_max_khz(board.max_khz);
  key.set_weight_budget_bytes(weight_budget_bytes);
  return key;
}

absl::StatusOr<v1::CalibrationKey> MakeTlmKey(const std::string& path,
                                              std::string_view kernel_target, int32_t threads,
                                              const BoardInfo& board) {
  WITHY_ASSIGN_OR_RETURN(const std::string id, TlmId(path));
  return MakeCalibrationKey(id, kernel_target.empty() ? DefaultKernels().name : kernel_target,
                            threads, board);
}

absl::StatusOr<v1::Calibration> ReadCalibration(const std::string& path) {
  constexpr size_t kMostBytes = 16 << 20;
  WITHY_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path, kMostBytes));
  v1::Calibration record;
  Complaints complaints;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&complaints);
  // A later format may have unknown fields; its number must still be read.
  parser.AllowUnknownField(true);
  google::protobuf::io::ArrayInputStream input(bytes.data(), static_cast<int>(bytes.size()));
  if (!parser.Parse(&input, &record)) return Damaged(path, complaints.error());
  if (record.format() != kCalibrationFormat) {
    if (record.format() == 0) return Damaged(path, "it has no format number");
    return absl::FailedPreconditionError(
        absl::StrCat("the calibration ", path, " has ",
                     record.format() < kCalibrationFormat ? "an older" : "a later", " format (",
                     record.format(), "; this build reads ", kCalibrationFormat, "): ", kRemedy));
  }
  if (!complaints.warning().empty()) return Damaged(path, complaints.warning());
  for (const v1::CalibrationPoint& point : record.points()) {
    if (const std::string wrong = WhatIsWrong(point); !wrong.empty()) return Damaged(path, wrong);
  }
  for (const v1::KvFormatError& error : record.kv_errors()) {
    if (const std::string wrong = WhatIsWrong(error); !wrong.empty()) return Damaged(path, wrong);
  }
  return record;
}

absl::Status WriteCalibration(const v1::Calibration& record, const std::string& path) {
  std::string text;
  if (!TextFormat::PrintToString(record, &text)) {
    return absl::InternalError(absl::StrCat(path, ": the record cannot be written as text"));
  }
  text.insert(0,
              "# Made by `withyctl calibrate`; the fields are in "
              "proto/withy/v1/calibration.proto.\n");
  std::error_code ignored;  // the write error of the file itself is more precise
  fs::create_directories(fs::path(path).parent_path(), ignored);
  const auto write = [&]() -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::Create(path));
    WITHY_RETURN_IF_ERROR(
        file->Append({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
    return file->Commit();
  };
  const absl::Status status = write();
  if (!absl::IsPermissionDenied(status)) return status;
  return Annotate(status,
                  "the calibration cannot be saved: run as root or as the user that the workers "
                  "run as");
}

std::string KeyDifference(const v1::CalibrationKey& recorded, const v1::CalibrationKey& here) {
  std::vector<std::string> different;
  const auto compare = [&](const char* what, const auto& then, const auto& now) {
    if (then == now) return;
    different.push_back(absl::StrCat("another ", what, " (", then, "; here ", now, ")"));
  };
  compare("model", recorded.model_id(), here.model_id());
  compare("processor", recorded.processor(), here.processor());
  compare("number of cores", recorded.cores(), here.cores());
  compare("number of threads", recorded.threads(), here.threads());
  compare("kernel target", recorded.kernel_target(), here.kernel_target());
  compare("weight budget", recorded.weight_budget_bytes(), here.weight_budget_bytes());
  compare("power mode", PowerMode(recorded), PowerMode(here));
  return absl::StrJoin(different, ", ");
}

absl::StatusOr<v1::Calibration> UsableCalibration(const std::string& path,
                                                  const v1::CalibrationKey& here) {
  WITHY_ASSIGN_OR_RETURN(v1::Calibration record, ReadCalibration(path));
  if (const std::string difference = KeyDifference(record.key(), here); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the calibration ", path, " was made with ", difference, ": ", kRemedy));
  }
  if (!record.complete()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the calibration ", path,
        " was interrupted and is not complete: continue it with `withyctl calibrate`"));
  }
  return record;
}

std::vector<v1::CalibrationPoint> MergeSamples(std::span<const v1::CalibrationPoint> planned,
                                               const v1::Calibration& recorded) {
  std::vector<v1::CalibrationPoint> points(planned.begin(), planned.end());
  for (v1::CalibrationPoint& point : points) {
    const auto known =
        std::find_if(recorded.points().begin(), recorded.points().end(),
                     [&](const v1::CalibrationPoint& old) { return SamePoint(old, point); });
    if (known != recorded.points().end()) point = *known;
  }
  return points;
}

double MedianUs(const v1::CalibrationPoint& point) {
  if (point.sample_us().empty()) return 0;
  std::vector<double> sorted(point.sample_us().begin(), point.sample_us().end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

std::vector<LevelTimes> LevelTimesOf(const v1::Calibration& record) {
  std::map<uint32_t, std::vector<PrefillTime>> prefill;
  std::map<uint32_t, DecodeTimes> decode;
  std::map<uint32_t, std::vector<PrefillTime>> trees;
  for (const v1::CalibrationPoint& point : record.points()) {
    if (point.sample_us().empty()) continue;
    if (point.kind() == v1::CALIBRATION_KIND_PREFILL) {
      prefill[point.level_percent()].push_back(
          {static_cast<int32_t>(point.rows()), MedianUs(point)});
    } else if (point.kind() == v1::CALIBRATION_KIND_DECODE) {
      decode[point.level_percent()][{point.depth(), point.rows()}] = MedianUs(point);
    } else if (point.kind() == v1::CALIBRATION_KIND_TREE) {
      trees[point.level_percent()].push_back({static_cast<int32_t>(point.rows()), MedianUs(point)});
    }
  }
  std::vector<LevelTimes> levels;
  for (const auto& [percent, times] : decode) {
    levels.push_back(Summarize(percent, std::move(prefill[percent]), times));
    AddTrees(std::move(trees[percent]), &levels.back());
  }
  return levels;
}

StepCost FullStepCost(std::span<const LevelTimes> levels) {
  // Number of tokens that a probe prefills.
  constexpr int32_t kProbeTokens = 64;
  const LevelTimes& full = levels.back();
  StepCost cost;
  for (const PrefillTime& time : full.prefill) {
    cost.prefill_us_per_token = time.us / time.tokens;
    if (time.tokens >= kProbeTokens) break;
  }
  cost.decode_us = full.decode_us;
  cost.decode_us_per_extra = full.decode_us_per_extra_row;
  cost.prefill = full.prefill;
  cost.trees = full.trees;
  const auto depth = [](const LevelTimes& level) {
    return DepthCost{level.prefill_us_per_context_token, level.decode_us_per_context_token};
  };
  cost.depth = depth(full);
  cost.lowest_level_depth = depth(levels.front());
  return cost;
}

std::vector<KvFormatError> KvErrorsOf(const v1::Calibration& record) {
  std::vector<KvFormatError> errors;
  for (const v1::KvFormatError& error : record.kv_errors()) {
    errors.push_back({static_cast<KvFormat>(error.format()), error.divergence()});
  }
  return errors;
}

void SetKvErrors(std::span<const KvFormatError> errors, v1::Calibration* record) {
  record->clear_kv_errors();
  for (const KvFormatError& error : errors) {
    v1::KvFormatError& wire = *record->add_kv_errors();
    wire.set_format(static_cast<v1::KvFormat>(error.format));
    wire.set_divergence(error.divergence);
  }
}

double ReadUsPerByte(const v1::Calibration& record) {
  v1::CalibrationPoint per_byte;
  for (const v1::CalibrationPoint& point : record.points()) {
    if (point.kind() != v1::CALIBRATION_KIND_READ || point.sample_us().empty()) continue;
    if (point.text_bytes() > 0) per_byte.add_sample_us(MedianUs(point) / point.text_bytes());
  }
  return MedianUs(per_byte);
}

}  // namespace withy::engine
