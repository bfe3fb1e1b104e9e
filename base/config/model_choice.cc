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
std::string ChoiceBeforePath(const std::string& state_dir) {
  return ModelChoicePath(state_dir) + ".before";
}

absl::StatusOr<std::optional<proto::ModelChoice>> ReadChoice(const std::string& path) {
  constexpr size_t kMostBytes = 1 << 16;
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

absl::Status WriteChoice(const std::string& path, const proto::ModelChoice& choice) {
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

}  // namespace

absl::StatusOr<std::optional<proto::ModelChoice>> ReadModelChoice(const std::string& state_dir) {
  return ReadChoice(ModelChoicePath(state_dir));
}

absl::StatusOr<std::optional<proto::ModelChoice>> ReadChoiceBefore(const std::string& state_dir) {
  return ReadChoice(ChoiceBeforePath(state_dir));
}

absl::StatusOr<std::optional<proto::ModelChoice>> HeldModelChoice(const std::string& state_dir) {
  WITHY_ASSIGN_OR_RETURN(const std::optional<proto::ModelChoice> last, ReadModelChoice(state_dir));
  if (!last.has_value() || !last->begun() || last->served()) return last;
  WITHY_ASSIGN_OR_RETURN(const std::optional<proto::ModelChoice> before,
                         ReadChoiceBefore(state_dir));
  // One for another configuration does not hold.
  if (before.has_value() && before->configured_path() == last->configured_path()) return before;
  return std::nullopt;
}

absl::Status WriteModelChoice(const std::string& state_dir, const proto::ModelChoice& choice) {
  return WriteChoice(ModelChoicePath(state_dir), choice);
}

absl::Status WriteChoiceBefore(const std::string& state_dir, const proto::ModelChoice& choice) {
  return WriteChoice(ChoiceBeforePath(state_dir), choice);
}

}  // namespace withy
