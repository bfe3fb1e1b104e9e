#include "cli/study/study.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/board.h"
#include "base/status.h"
#include "base/utf8.h"

namespace withy::cli {
namespace {

struct NamedStudy {
  const char* name;
  absl::StatusOr<StudyReport> (*run)(const StudyOptions&);
};
constexpr std::array<NamedStudy, 6> kStudies = {{{"phases", StudyPhases},
                                                 {"kernels", StudyKernels},
                                                 {"quantization", StudyQuantization},
                                                 {"sampling", StudySampling},
                                                 {"kv-length", StudyKvLength},
                                                 {"idle", StudyIdle}}};

nlohmann::ordered_json Settings(const StudyOptions& options, const BoardInfo& board) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  for (const std::string& path : options.models) models.push_back(ValidUtf8(path));
  return {{"models", models},
          {"threads", options.model.threads},
          {"rounds", options.rounds},
          {"prompt_tokens", options.prompt_tokens},
          {"answer_tokens", options.answer_tokens},
          {"sampling",
           {{"temperature", options.sampling.temperature},
            {"top_k", options.sampling.top_k},
            {"top_p", options.sampling.top_p},
            {"min_p", options.sampling.min_p},
            {"repetition_penalty", options.sampling.repetition_penalty}}},
          {"text", ValidUtf8(options.text_name)},
          {"seed", options.seed},
          {"board",
           {{"processor", ValidUtf8(board.processor)},
            {"cores", board.cores},
            {"governor", ValidUtf8(board.governor)},
            {"load_average", board.load_average}}}};
}

}  // namespace

std::vector<std::string> StudyNames() {
  std::vector<std::string> names;
  for (const NamedStudy& study : kStudies) names.emplace_back(study.name);
  return names;
}

absl::StatusOr<StudyReport> RunStudy(std::string_view name, const StudyOptions& options) {
  for (const NamedStudy& study : kStudies) {
    if (name != study.name) continue;
    // Before the study itself loads the board.
    const BoardInfo board = ReadBoard();
    WITHY_ASSIGN_OR_RETURN(StudyReport report, study.run(options));
    report.study = study.name;
    report.settings = Settings(options, board);
    if (board.load_average > kQuietLoad) {
      report.findings.push_back(
          absl::StrCat("measured under a load average of ", board.load_average,
                       ": another program was computing, and times may be too long"));
    }
    return report;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no study \"", ToAbsl(name), "\": there are ", absl::StrJoin(StudyNames(), ", ")));
}

}  // namespace withy::cli
