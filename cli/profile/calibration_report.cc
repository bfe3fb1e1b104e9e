#include "cli/profile/calibration_report.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "cli/output.h"
#include "cli/profile/calibration_run.h"
#include "cli/terminal_text.h"
#include "wire/calibration.h"

namespace withy::cli {
namespace {

using PointTest = std::function<bool(const v1::CalibrationPoint&)>;

// On a quiet board samples differ by less than this share of their median.
constexpr double kQuietSpread = 0.25;

std::string Millis(double us) {
  return us < 1e6 ? absl::StrFormat("%.3g", us / 1e3) : absl::StrFormat("%.0f", us / 1e3);
}

// Median of the first point of `level` for which `is` holds; "-" if there is none or it was
// skipped.
std::string Find(const v1::Calibration& record, uint32_t level, const PointTest& is,
                 std::string (*print)(double us)) {
  for (const v1::CalibrationPoint& point : record.points()) {
    if (point.level_percent() == level && is(point) && !point.sample_us().empty())
      return print(engine::MedianUs(point));
  }
  return "-";
}

// One line per level: prefill by length, decode by depth, a further row, switching.
std::string LevelTable(const v1::Calibration& record) {
  std::set<uint32_t> levels, lengths, depths;
  uint32_t most_rows = 0;
  for (const v1::CalibrationPoint& point : record.points()) {
    levels.insert(point.level_percent());
    if (point.kind() == v1::CALIBRATION_KIND_PREFILL) lengths.insert(point.rows());
    if (point.kind() != v1::CALIBRATION_KIND_DECODE) continue;
    depths.insert(point.depth());
    most_rows = std::max(most_rows, point.rows());
  }
  std::vector<std::vector<std::string>> rows = {{"LEVEL %"}};
  for (const uint32_t length : lengths) rows[0].push_back(absl::StrCat("PREFILL ", length));
  for (const uint32_t depth : depths) rows[0].push_back(absl::StrCat("STEP AT ", depth));
  rows[0].push_back(absl::StrCat("STEP OF ", most_rows));
  rows[0].push_back("SWITCH");
  for (const uint32_t level : levels) {
    auto& row = rows.emplace_back();
    row.push_back(absl::StrCat(level));
    const auto add = [&](const PointTest& is) { row.push_back(Find(record, level, is, Millis)); };
    for (const uint32_t length : lengths) {
      add([&](const auto& p) {
        return p.kind() == v1::CALIBRATION_KIND_PREFILL && p.rows() == length;
      });
    }
    for (const uint32_t depth : depths) {
      add([&](const auto& p) {
        return p.kind() == v1::CALIBRATION_KIND_DECODE && p.rows() == 1 && p.depth() == depth;
      });
    }
    add([&](const auto& p) {
      return p.kind() == v1::CALIBRATION_KIND_DECODE && p.rows() == most_rows && p.depth() == 0;
    });
    add([](const auto& p) { return p.kind() == v1::CALIBRATION_KIND_SWITCH; });
  }
  return Table(rows);
}

// Cost of resuming a context with resident KV, and of recomputing its KV.
std::string ContextLines(const v1::Calibration& record) {
  const auto levels = engine::LevelTimesOf(record);
  if (levels.empty() || levels.back().prefill.empty()) return "";
  const engine::PrefillTime& longest = levels.back().prefill.back();
  std::string text;
  for (const v1::CalibrationPoint& point : record.points()) {
    if (point.kind() != v1::CALIBRATION_KIND_RESUME || point.sample_us().empty()) continue;
    absl::StrAppend(&text, "a context of ", point.depth(), " tokens: first step ",
                    Millis(engine::MedianUs(point)), " ms with its KV resident, about ",
                    Millis(longest.us / longest.tokens * point.depth()),
                    " ms more to recompute it\n");
  }
  return text;
}

// What predictions lose by KV in fewer bits.
std::string KvErrorLine(const v1::Calibration& record) {
  if (record.kv_errors().empty()) return "";
  std::string text = "mean divergence of predictions from those over KV of 16 bits, in nats:";
  for (const engine::KvFormatError& error : engine::KvErrorsOf(record)) {
    absl::StrAppend(&text,
                    absl::StrFormat(" %s %.2g", KvFormatName(error.format), error.divergence));
  }
  return text + "\n";
}

// Spread of the samples of each point, relative to its median.
std::string SpreadLine(const v1::Calibration& record) {
  std::vector<double> spreads;
  double worst = 0;
  std::string worst_name;
  for (const v1::CalibrationPoint& point : record.points()) {
    if (point.sample_us_size() < 2 || point.kind() == v1::CALIBRATION_KIND_SWITCH) continue;
    const auto [low, high] =
        std::minmax_element(point.sample_us().begin(), point.sample_us().end());
    spreads.push_back((*high - *low) / engine::MedianUs(point));
    if (spreads.back() <= worst) continue;
    worst = spreads.back();
    worst_name = PointName(point);
  }
  if (spreads.empty()) return "";
  const auto middle = spreads.begin() + static_cast<int64_t>(spreads.size() / 2);
  std::nth_element(spreads.begin(), middle, spreads.end());
  std::string text =
      absl::StrFormat("samples lie %.0f %% apart in the median, %.0f %% at most (%s)\n",
                      *middle * 100, worst * 100, worst_name);
  if (*middle > kQuietSpread) {
    absl::StrAppend(&text,
                    "the board was not quiet: stop other programs and measure again with "
                    "--force\n");
  }
  return text;
}

std::string LeftOutLines(const v1::Calibration& record) {
  std::string text;
  for (const v1::CalibrationPoint& point : record.points()) {
    if (point.left_out().empty()) continue;
    absl::StrAppend(&text, "left out: ", PointName(point), ": ", point.left_out(), "\n");
  }
  return text;
}

std::string Head(const CalibrationResult& result, int64_t now_unix_ns) {
  const v1::CalibrationKey& key = result.record.key();
  std::string text = absl::StrCat(OneLine(result.name), ": ", key.processor(), ", ", key.threads(),
                                  key.threads() == 1 ? " thread, " : " threads, ",
                                  key.kernel_target(), " kernels\n");
  if (!result.measured_now) {
    absl::StrAppend(&text, "measured already, ",
                    Ago(result.record.measured_unix_s(), now_unix_ns / kNanosPerSecond),
                    "; --force measures again\n");
  }
  if (result.record.load_average() > kBusyLoad) {
    absl::StrAppend(&text, "measured under a load average of ", result.record.load_average(),
                    ": the times may be too long\n");
  }
  return text;
}

std::string TlmLines(const v1::Calibration& record) {
  std::string text;
  for (const v1::CalibrationPoint& point : record.points()) {
    if (point.sample_us().empty()) continue;
    absl::StrAppend(&text, "a prompt of ", point.text_bytes(),
                    " bytes: ", Millis(engine::MedianUs(point)), " ms\n");
  }
  return text;
}

nlohmann::json ResultJson(const CalibrationResult& result) {
  return {{"path", result.path},
          {"measured_now", result.measured_now},
          {"record", nlohmann::json::parse(ToJson(result.record))}};
}

}  // namespace

std::string ReportText(const CalibrationReport& report, int64_t now_unix_ns) {
  const v1::Calibration& model = report.model.record;
  std::string text =
      absl::StrCat(StampTable(report.stamps), Head(report.model, now_unix_ns), "milliseconds:\n",
                   LevelTable(model), ContextLines(model), KvErrorLine(model), SpreadLine(model),
                   LeftOutLines(model), "kept in ", report.model.path, "\n");
  if (report.tlm.has_value()) {
    const v1::Calibration& tlm = report.tlm->record;
    absl::StrAppend(&text, Head(*report.tlm, now_unix_ns), TlmLines(tlm), SpreadLine(tlm),
                    LeftOutLines(tlm), "kept in ", report.tlm->path, "\n");
  }
  if (report.model.measured_now || (report.tlm.has_value() && report.tlm->measured_now)) {
    absl::StrAppend(&text, "the services use it after their next start\n");
  }
  return text;
}

std::string ReportJson(const CalibrationReport& report) {
  nlohmann::json json = {{"model", ResultJson(report.model)}};
  if (report.tlm.has_value()) json["tlm"] = ResultJson(*report.tlm);
  for (const StampTimes& pass : report.stamps) {
    for (const engine::cuda::StampedOp& op : pass.ops) {
      json["stamps"].push_back({{"pass", pass.pass},
                                {"op", engine::OpName(op.kind)},
                                {"count", op.count},
                                {"stamped_us", op.stamped_us},
                                {"recorded_us", op.recorded_us}});
    }
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace withy::cli
