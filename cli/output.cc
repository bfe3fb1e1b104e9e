#include "cli/output.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/strings.h"
#include "cli/terminal_text.h"

namespace withy::cli {

std::string ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string json;
  // Fails only for Any and invalid UTF-8, neither of which occurs in the contract.
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return "{}";
  return json;
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  std::vector<std::vector<std::string>> lines = rows;
  for (auto& row : lines) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = OneLine(row[i]);
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  std::string text;
  for (const auto& row : lines) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - DisplayWidth(row[i]) + 2, ' ');
    }
    text += '\n';
  }
  return text;
}

std::string Bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Seconds(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f days", seconds / 86400);
}

std::string Ago(int64_t unix_s, int64_t now_unix_s) {
  if (unix_s == 0) return "never";
  return Seconds(static_cast<double>(std::max<int64_t>(0, now_unix_s - unix_s))) + " ago";
}

ProgressBar::ProgressBar(const Clock& clock)
    : clock_(clock), terminal_(isatty(STDERR_FILENO) != 0), started_ns_(clock.SteadyNanos()) {}

ProgressBar::~ProgressBar() {
  if (drawn_ns_ != 0) std::fputs("\r\033[K", stderr);
}

void ProgressBar::Update(double done, std::string_view what) {
  const int64_t now = clock_.SteadyNanos();
  const int64_t elapsed = now - started_ns_;
  if (!terminal_ || elapsed < kNanosPerSecond || now - drawn_ns_ < 100 * kNanosPerMilli) return;
  drawn_ns_ = now;
  done = std::clamp(done, 0.0, 1.0);
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(done * kWidth);
  const double left_s = done > 0.01 ? elapsed / 1e9 * (1 - done) / done : 0;
  absl::FPrintF(stderr, "\r\033[K[%s%s] %3.0f %%  %s  %s left", std::string(filled, '#'),
                std::string(kWidth - filled, '.'), done * 100, OneLine(what),
                done > 0.01 ? Seconds(left_s) : "?");
}

}  // namespace withy::cli
