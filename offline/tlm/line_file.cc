#include "offline/tlm/line_file.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace withy::tlm {
namespace {

constexpr size_t kLinesAThread = 8;  // between two writes

}  // namespace

absl::StatusOr<LineFile> LineFile::Open(const std::string& path, const std::string& made_of) {
  LineFile file(path);
  std::string text;
  if (std::ifstream in(path, std::ios::binary); in) {
    std::ostringstream all;
    all << in.rdbuf();
    text = all.str();
  }
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole < text.size()) {
    std::error_code error;
    std::filesystem::resize_file(path, whole, error);
    if (error) return absl::PermissionDeniedError(absl::StrCat(path, ": ", error.message()));
  }
  std::istringstream lines(text.substr(0, whole));
  std::string line;
  if (!std::getline(lines, line)) {
    WITHY_RETURN_IF_ERROR(file.Append({made_of}));
    file.lines_.clear();
    return file;
  }
  if (line != made_of) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was made from \"", line, "\", not from \"", made_of,
                     "\": give another --run, or remove the whole directory ",
                     std::filesystem::path(path).parent_path().string()));
  }
  while (std::getline(lines, line)) file.lines_.push_back(line);
  return file;
}

absl::Status LineFile::Append(const std::vector<std::string>& lines) {
  std::ofstream out(path_, std::ios::binary | std::ios::app);
  for (const std::string& line : lines) out << line << '\n';
  out.close();
  if (!out) return absl::ResourceExhaustedError(absl::StrCat(path_, ": cannot be written"));
  lines_.insert(lines_.end(), lines.begin(), lines.end());
  return absl::OkStatus();
}

absl::Status FillLines(
    size_t count, int threads,
    const std::function<absl::StatusOr<std::string>(size_t index, int thread)>& make,
    const std::function<void(size_t done, size_t all)>& progress, LineFile* file) {
  while (file->lines().size() < count) {
    const size_t begin = file->lines().size();
    const size_t n = std::min(count - begin, kLinesAThread * static_cast<size_t>(threads));
    std::vector<absl::StatusOr<std::string>> made(n, absl::UnknownError("not made"));
    std::atomic<size_t> next{0};
    std::vector<std::thread> workers;
    for (int thread = 0; thread < threads; ++thread) {
      workers.emplace_back([&, thread] {
        for (size_t i = next++; i < n; i = next++) made[i] = make(begin + i, thread);
      });
    }
    for (std::thread& worker : workers) worker.join();
    std::vector<std::string> lines;
    for (absl::StatusOr<std::string>& line : made) {
      if (!line.ok()) return line.status();
      lines.push_back(*std::move(line));
    }
    WITHY_RETURN_IF_ERROR(file->Append(lines));
    if (progress) progress(file->lines().size(), count);
  }
  return absl::OkStatus();
}

}  // namespace withy::tlm
