#include "serving/call/request_names.h"

#include "absl/strings/str_cat.h"

namespace withy::serving {

absl::Status RequestNames::Begin(const std::string& app_id, const std::string& request_id,
                                 int64_t now_ns) {
  if (request_id.empty()) return absl::OkStatus();
  while (!stored_.empty() && now_ns - stored_.front().first >= kKeptNs) {
    names_.erase(stored_.front().second);
    stored_.pop_front();
  }
  const auto [place, fresh] = names_.emplace(Name(app_id, request_id), false);
  if (fresh) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("request_id \"", request_id, "\" ",
                   place->second ? "has just been answered" : "is being answered right now",
                   ": retry to get its result"));
}

void RequestNames::End(const std::string& app_id, const std::string& request_id, bool stored,
                       int64_t now_ns) {
  if (request_id.empty()) return;
  Name name(app_id, request_id);
  if (!stored) {
    names_.erase(name);
    return;
  }
  names_[name] = true;
  stored_.emplace_back(now_ns, std::move(name));
  if (stored_.size() <= kKept) return;
  names_.erase(stored_.front().second);
  stored_.pop_front();
}

}  // namespace withy::serving
