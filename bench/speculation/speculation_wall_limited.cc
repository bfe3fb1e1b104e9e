#include "bench/speculation/speculation_wall_limited.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "bench/service/memory_cgroup.h"

namespace withy::bench {
namespace {

// The flags of speculation_wall.cc that say the same.
std::vector<std::string> CommandOf(const WallRun& run, const std::string& cgroup) {
  return {"/proc/self/exe",
          absl::StrCat("--contestant=", run.contestant),
          absl::StrCat("--model=", run.packed),
          absl::StrCat("--draft=", run.draft),
          absl::StrCat("--gguf=", run.gguf),
          absl::StrCat("--peer=", run.program),
          absl::StrCat("--budget_bytes=", run.budget_bytes),
          absl::StrCat("--tokens=", run.tokens),
          absl::StrCat("--ways=", absl::StrJoin(run.ways, ",")),
          absl::StrCat("--prompts=", run.prompts),
          absl::StrCat("--prompt_file=", run.prompt_file),
          absl::StrCat("--open_prompts=", run.open_prompts),
          absl::StrCat("--answer_tokens=", run.answer_tokens),
          absl::StrCat("--threads=", run.threads),
          absl::StrCat("--cgroup=", cgroup)};
}

}  // namespace

absl::StatusOr<WallResult> RunLimited(const WallRun& run, uint64_t limit_bytes) {
  for (const std::string& path : {run.packed, run.draft, run.gguf}) {
    if (!path.empty()) WITHY_RETURN_IF_ERROR(DropFromCache(path));
  }
  WITHY_ASSIGN_OR_RETURN(const MemoryCgroup cgroup, MemoryCgroup::Create("withy-wall"));
  WITHY_RETURN_IF_ERROR(cgroup.SetLimit(limit_bytes));
  const absl::StatusOr<std::string> output = cgroup.Run(CommandOf(run, cgroup.directory()));
  if (!output.ok()) {
    return Annotate(output.status(),
                    absl::StrCat(run.contestant, " under a limit of ", limit_bytes, " bytes"));
  }
  return ParseWallResult(*output);
}

}  // namespace withy::bench
