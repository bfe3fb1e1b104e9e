#include "serving/session/public_prompts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/files.h"
#include "base/status.h"
#include "base/utf8.h"

namespace withy::serving {
namespace {

constexpr size_t kShownBytes = 40;

// Tokens of a conversation that begins with the system prompt and goes on with `user`.
absl::StatusOr<std::vector<int32_t>> EncodeWith(const SessionEnv& env, const std::string& prompt,
                                                const char* user) {
  const std::vector<engine::Segment> segments = {{.role = "system", .text = prompt},
                                                 {.role = "user", .text = user}};
  WITHY_ASSIGN_OR_RETURN(engine::EncodedConversation encoded,
                         env.encoder.EncodePrompt(segments, env.window));
  return std::move(encoded.ids);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadPublicPrompts(std::span<const std::string> files) {
  std::vector<std::string> prompts;
  for (const std::string& path : files) {
    absl::StatusOr<std::string> read = ReadRegularFile(path, 2 * kMaxPromptBytes);
    if (!read.ok()) return Annotate(read.status(), "store.public_system_prompt_files");
    std::string text = *std::move(read);
    if (text.ends_with('\n')) text.pop_back();
    if (text.empty() || text.size() > kMaxPromptBytes || ValidUtf8(text) != text) {
      return absl::InvalidArgumentError(
          absl::StrCat("store.public_system_prompt_files: ", path, " has ", text.size(),
                       " bytes; it must be a text in UTF-8 of 1 to ", kMaxPromptBytes, " bytes"));
    }
    prompts.push_back(std::move(text));
  }
  return prompts;
}

absl::StatusOr<std::vector<Identity>> NamePublicChunks(const SessionEnv& env,
                                                       std::span<const std::string> prompts) {
  std::vector<Identity> identities;
  for (const std::string& prompt : prompts) {
    // What two conversations have in common that differ from their first word on.
    auto one = EncodeWith(env, prompt, "a");
    auto other = EncodeWith(env, prompt, "1");
    for (const absl::Status& status : {one.status(), other.status()}) {
      if (status.ok()) continue;
      return Annotate(
          status, absl::StrCat("public system prompt \"", ValidUtf8(prompt, kShownBytes), "...\""));
    }
    const auto end = one->begin() + static_cast<int64_t>(std::min(one->size(), other->size()));
    const auto common = std::mismatch(one->begin(), end, other->begin()).first - one->begin();
    const size_t chunks = static_cast<size_t>(common) / engine::kChunkTokens;
    one->resize(chunks * engine::kChunkTokens);
    for (const engine::LevelInfo& level : env.model.levels) {
      const std::vector<int32_t> levels(chunks, level.percent);
      for (const ChunkName& name : env.namer.NameAll({}, *one, levels)) {
        identities.push_back(name.identity);
      }
    }
  }
  return identities;
}

}  // namespace withy::serving
