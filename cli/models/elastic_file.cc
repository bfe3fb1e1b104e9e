#include "cli/models/elastic_file.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "engine/gguf/output_file.h"
#include "engine/gguf/reader.h"
#include "engine/weights/overlay.h"
#include "engine/weights/sha256.h"

namespace withy::cli {
namespace {

using engine::GgufFile;

constexpr std::string_view kOverlayEnding = ".overlay.gguf";

// All overlays of a directory, by name.
std::vector<std::string> OverlaysIn(const std::string& dir) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator at(dir, error), end; !error && at != end;
       at.increment(error)) {
    std::string path = at->path().string();
    if (path.ends_with(kOverlayEnding)) paths.push_back(std::move(path));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Path of the overlay for the file with this digest; empty: there is none.
absl::StatusOr<std::string> FindOverlay(const std::string& dir, const std::string& sha256) {
  absl::Status unreadable;
  for (const std::string& path : OverlaysIn(dir)) {
    const auto file = GgufFile::Open(path);
    if (!file.ok()) {
      unreadable = file.status();
      continue;
    }
    const auto source = file->GetString(engine::kOverlaySource);
    if (source.ok() && *source == sha256) return path;
  }
  WITHY_RETURN_IF_ERROR(unreadable);
  return "";
}

// What ELASTIC.sha256 contains.
absl::StatusOr<std::string> SumLine(const std::string& elastic) {
  WITHY_ASSIGN_OR_RETURN(const std::string digest, engine::Sha256OfFile(elastic));
  return absl::StrCat(digest, "  ", std::filesystem::path(elastic).filename().string(), "\n");
}

std::string SumPath(const std::string& elastic) { return elastic + ".sha256"; }

// Each caller writes a temporary file of its own.
absl::Status WriteSum(const std::string& elastic) {
  WITHY_ASSIGN_OR_RETURN(const std::string line, SumLine(elastic));
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::OutputFile> file,
                         engine::OutputFile::Create(SumPath(elastic)));
  WITHY_RETURN_IF_ERROR(file->Append({reinterpret_cast<const uint8_t*>(line.data()), line.size()}));
  return file->Commit();
}

// Whether the elastic file is as it was written, and was made of these two files by this version.
bool IsUpToDate(const std::string& elastic, const std::string& plain_sha256,
                const std::string& overlay_sha256) {
  constexpr size_t kMostSumBytes = 8192;
  const auto file = GgufFile::Open(elastic);
  if (!file.ok() || file->GetString(engine::kOverlaySource).value_or("") != plain_sha256 ||
      file->GetString(engine::kOverlayApplied).value_or("") != overlay_sha256 ||
      file->GetUintOr(engine::kOverlayAppliedBy, 0).value_or(0) != engine::kOverlayRevision) {
    return false;
  }
  const auto line = SumLine(elastic);
  const auto written = ReadRegularFile(SumPath(elastic), kMostSumBytes);
  return line.ok() && written.ok() && *line == *written;
}

// Copies the TLM that ships beside the overlay, unless it is there; gives its path, empty without
// one.
absl::StatusOr<std::string> PlaceTlm(const std::string& overlay, const std::string& elastic) {
  constexpr size_t kMostTlmBytes = size_t{256} << 20;
  const std::string shipped =
      absl::StrCat(overlay.substr(0, overlay.size() - kOverlayEnding.size()), ".tlm.gguf");
  std::error_code error;
  if (!std::filesystem::is_regular_file(shipped, error)) return "";
  const std::string path = std::filesystem::path(elastic).replace_extension("tlm.gguf").string();
  WITHY_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(shipped, kMostTlmBytes));
  const auto there = ReadRegularFile(path, kMostTlmBytes);
  if (there.ok() && *there == bytes) return path;
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::OutputFile> file,
                         engine::OutputFile::Create(path));
  WITHY_RETURN_IF_ERROR(
      file->Append({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  WITHY_RETURN_IF_ERROR(file->Commit());
  return path;
}

absl::StatusOr<ElasticFile> FindOrMake(const std::string& plain, const std::string& overlay_dir,
                                       const FetchProgress& progress) {
  WITHY_ASSIGN_OR_RETURN(const std::string sha256, engine::Sha256OfFile(plain));
  WITHY_ASSIGN_OR_RETURN(const std::string overlay_path, FindOverlay(overlay_dir, sha256));
  if (overlay_path.empty()) return ElasticFile{.path = plain};
  WITHY_ASSIGN_OR_RETURN(const GgufFile overlay, GgufFile::Open(overlay_path));
  ElasticFile elastic{.path = ElasticPath(plain),
                      .overlay = std::filesystem::path(overlay_path).filename().string()};
  if (!IsUpToDate(elastic.path, sha256, engine::Sha256Of(overlay))) {
    WITHY_ASSIGN_OR_RETURN(const GgufFile source, GgufFile::Open(plain));
    const auto applied = [&](uint64_t written, uint64_t all) {
      progress(static_cast<double>(written) / static_cast<double>(all), "adding levels");
    };
    WITHY_RETURN_IF_ERROR(engine::ApplyOverlay(
        source, overlay, {.source_sha256 = sha256, .progress = applied}, elastic.path));
    WITHY_RETURN_IF_ERROR(WriteSum(elastic.path));
    elastic.made = true;
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> levels,
                         overlay.GetIntArray("withy.level.percent"));
  elastic.levels.assign(levels.begin(), levels.end());
  WITHY_ASSIGN_OR_RETURN(elastic.tlm, PlaceTlm(overlay_path, elastic.path));
  return elastic;
}

}  // namespace

std::string ElasticPath(const std::string& plain) {
  return std::filesystem::path(plain).replace_extension("elastic.gguf").string();
}

absl::StatusOr<ElasticFile> EnsureElastic(const std::string& plain, const std::string& overlay_dir,
                                          const FetchProgress& progress) {
  absl::StatusOr<ElasticFile> elastic = FindOrMake(plain, overlay_dir, progress);
  if (elastic.ok()) return elastic;
  return absl::Status(elastic.status().code(),
                      absl::StrCat(elastic.status().message(),
                                   ". The model was not made elastic: --plain takes it as it is"));
}

}  // namespace withy::cli
