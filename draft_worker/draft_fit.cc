#include "draft_worker/draft_fit.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::draft_worker {
namespace {

absl::StatusOr<std::unique_ptr<engine::Tokenizer>> OpenTokenizer(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  return engine::MakeTokenizer(file);
}

}  // namespace

absl::StatusOr<std::string> WhyNoDraftFor(const std::string& draft_path,
                                          const std::string& target_path) {
  WITHY_ASSIGN_OR_RETURN(const auto draft, OpenTokenizer(draft_path));
  WITHY_ASSIGN_OR_RETURN(const auto target, OpenTokenizer(target_path));
  if (draft->fingerprint() == target->fingerprint()) return std::string();
  return absl::StrCat("the vocabulary of ", draft_path, " (", draft->vocab_size(),
                      " tokens) is not that of ", target_path, " (", target->vocab_size(), ")");
}

}  // namespace withy::draft_worker
