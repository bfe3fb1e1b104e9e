#include "base/config/model_choice.h"

#include <google/protobuf/text_format.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace withy {
namespace {

namespace fs = std::filesystem;
using google::protobuf::TextFormat;

std::string ModelChoicePath(const std::string& state_dir) { return state_dir + "/model_choice"; }

}  // namespace

absl::StatusOr<std::optional<proto::ModelChoice>> ReadModelChoice(const std::string& state_dir) {
  constexpr size_t kMostBytes = 1 << 16;
  const std::string path = ModelChoicePath(state_dir);
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kMostBytes);
  if (absl::IsNotFound(text.status()) || absl::IsPermissionDenied(text.status()))
    return std::nullopt;
  WITHY_RETURN_IF_ERROR(text.status());
  proto::ModelChoice choice;
  if (!TextFormat::ParseFromString(*text, &choice) || choice.path().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is damaged: remove it, or choose a model again (withyctl models use)"));
  }
  return choice;
}

absl::Status WriteModelChoice(const std::string& state_dir, const proto::ModelChoice& choice) {
  const std::string path = ModelChoicePath(state_dir);
  if (choice.path().empty()) {
    std::error_code error;
    fs::remove(path, error);
    if (error) return absl::ErrnoToStatus(error.value(), "cannot remove " + path);
    return SyncDirectoryOf(path);
  }
  std::string text;
  TextFormat::PrintToString(choice, &text);
  return WriteAtomically(path, text);
}

}  // namespace withy
