#include "bench/profiler/governors.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::bench {
namespace {

std::vector<std::string> WordsOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istream_iterator<std::string>(file), std::istream_iterator<std::string>()};
}

absl::Status WriteWord(const std::string& path, std::string_view word) {
  std::ofstream file(path);
  file << word;
  file.close();
  if (file) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("cannot write ", ToAbsl(word), " to ", path,
                                                  ": run as root, or without other governors"));
}

}  // namespace

Governors::Governors(const std::string& root) {
  std::error_code ignored;
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(root, ignored)) {
    if (entry.path().filename().string().starts_with("policy")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  for (const std::string& folder : folders) {
    Policy policy{.file = folder + "/scaling_governor",
                  .found = "",
                  .offered = WordsOf(folder + "/scaling_available_governors")};
    const std::vector<std::string> found = WordsOf(policy.file);
    if (found.empty()) continue;
    policy.found = found.front();
    policies_.push_back(std::move(policy));
  }
  if (!policies_.empty()) first_ = policies_.front().found;
}

Governors::~Governors() {
  if (!changed_) return;
  for (const Policy& policy : policies_) WriteWord(policy.file, policy.found).IgnoreError();
}

std::vector<std::string> Governors::Offered(std::span<const std::string_view> wanted) const {
  std::vector<std::string> offered;
  if (policies_.empty()) return offered;
  for (const std::string_view governor : wanted) {
    const bool everywhere =
        std::all_of(policies_.begin(), policies_.end(), [&](const Policy& policy) {
          return std::find(policy.offered.begin(), policy.offered.end(), governor) !=
                 policy.offered.end();
        });
    if (everywhere) offered.emplace_back(governor);
  }
  return offered;
}

absl::Status Governors::Set(std::string_view governor) {
  changed_ = true;
  for (const Policy& policy : policies_) {
    if (absl::Status status = WriteWord(policy.file, governor); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace withy::bench
