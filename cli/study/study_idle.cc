#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/board.h"
#include "base/charts/line_chart.h"
#include "base/status.h"
#include "cli/study/answer.h"
#include "cli/study/study.h"

namespace withy::cli {
namespace {

constexpr double kLongestPauseS = 600;
constexpr int32_t kShortestAnswer = 16;
constexpr int32_t kAnswerFactor = 4;  // between the lengths of answers
constexpr int32_t kStepsAfterPause = 8;
constexpr int32_t kStepsBeforePause = 4;
// A pause of zero on a logarithmic axis.
constexpr double kNoPauseDrawnAs = 0.001;

// Sleeps until it is over or a signal comes.
void Pause(double seconds) {
  if (!(seconds > 0)) return;
  timespec rest = {.tv_sec = static_cast<time_t>(seconds),
                   .tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
  nanosleep(&rest, nullptr);
}

// The answer's lengths: 16, 64, ... up to --answer-tokens.
std::vector<int32_t> AnswerLengths(int32_t longest) {
  std::vector<int32_t> lengths;
  for (int32_t tokens = kShortestAnswer; tokens < longest; tokens *= kAnswerFactor) {
    lengths.push_back(tokens);
  }
  lengths.push_back(longest);
  return lengths;
}

struct PauseSamples {
  std::vector<double> first, second, last;
};

// Some decode steps, the pause, and those whose times are told.
absl::Status SamplePause(const Subject& subject, std::span<const int32_t> tokens, double pause_s,
                         PauseSamples* samples) {
  ProfiledModel& model = *subject.model;
  const auto position = static_cast<int32_t>(tokens.size()) - 1;
  const auto step = [&] {
    return model.Run(tokens.last(1), position, subject.level, telemetry::Phase::kDecode);
  };
  for (int32_t i = 0; i < kStepsBeforePause; ++i) WITHY_RETURN_IF_ERROR(step());
  Pause(pause_s);
  for (int32_t i = 0; i < kStepsAfterPause; ++i) WITHY_RETURN_IF_ERROR(step());
  WITHY_ASSIGN_OR_RETURN(const RunTimes times, model.Collect());
  if (samples == nullptr) return absl::OkStatus();
  const auto& passes = times.passes;
  samples->first.push_back(passes[kStepsBeforePause].wall_us);
  samples->second.push_back(passes[kStepsBeforePause + 1].wall_us);
  samples->last.push_back(passes.back().wall_us);
  return absl::OkStatus();
}

absl::Status StudyAnswers(const StudyOptions& options, const std::vector<Subject>& subjects,
                          StudyReport* report) {
  const std::vector<int32_t> lengths = AnswerLengths(options.answer_tokens);
  StudyTable table{"answers",
                   "share of the compute threads' time in which they compute nothing, from the "
                   "first token to the last",
                   {{"MODEL", "model"},
                    {"ANSWER TOKENS", "answer_tokens"},
                    {"IDLE", "idle_share"},
                    {"STEP", "decode_us_per_token"}},
                   {}};
  LineChart chart{"Idle time of the compute threads while an answer is generated",
                  "tokens of the answer",
                  "%, median and quartiles",
                  {}};
  std::vector<std::vector<std::vector<double>>> idle(subjects.size()), steps(subjects.size());
  for (size_t i = 0; i < subjects.size(); ++i) {
    idle[i].resize(lengths.size());
    steps[i].resize(lengths.size());
  }
  for (int32_t round = 0; round <= options.rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      const std::vector<int32_t> prompt =
          subjects[i].model->Tokens(StudyText(options), options.prompt_tokens);
      for (size_t l = 0; l < lengths.size(); ++l) {
        Tell(options, 0.5 * round / (options.rounds + 1), subjects[i].name);
        WITHY_RETURN_IF_ERROR(CheckStop(options));
        WITHY_ASSIGN_OR_RETURN(const AnswerTimes answer,
                               RunAnswer(subjects[i], prompt, lengths[l], options.sampling));
        if (round == 0) continue;
        idle[i][l].push_back(answer.idle_share);
        steps[i][l].push_back(answer.decode_us_per_token);
      }
    }
  }
  for (size_t i = 0; i < subjects.size(); ++i) {
    LineChart::Line line{subjects[i].name, {}};
    for (size_t l = 0; l < lengths.size(); ++l) {
      const Spread share = SpreadOf(idle[i][l]);
      table.rows.push_back({NameCell(subjects[i].name), CountCell(lengths[l]), ShareCell(share),
                            TimeCell(SpreadOf(steps[i][l]))});
      line.points.emplace_back(lengths[l], 100 * share.median);
      line.band.emplace_back(100 * share.low, 100 * share.high);
    }
    report->findings.push_back(
        absl::StrFormat("%s: %.1f %% idle in answers of %d tokens, %.1f %% in those of %d",
                        subjects[i].name, 100 * SpreadOf(idle[i].front()).median, lengths.front(),
                        100 * SpreadOf(idle[i].back()).median, lengths.back()));
    chart.lines.push_back(std::move(line));
  }
  report->tables.push_back(std::move(table));
  report->plots.push_back({"idle-answers.svg", chart.Svg()});
  return absl::OkStatus();
}

absl::Status StudyPauses(const StudyOptions& options, const std::vector<Subject>& subjects,
                         StudyReport* report) {
  StudyTable table{"pauses",
                   "decode steps after a pause",
                   {{"MODEL", "model"},
                    {"PAUSE, S", "pause_s"},
                    {"FIRST STEP", "first_us"},
                    {"SECOND", "second_us"},
                    {absl::StrCat("STEP ", kStepsAfterPause), "last_us"}},
                   {}};
  LineChart chart{"The first decode step after a pause",
                  "pause, s (0 is drawn as 0.001)",
                  "ms, median and quartiles",
                  {}};
  chart.x_log = true;
  std::vector<std::vector<PauseSamples>> samples(
      subjects.size(), std::vector<PauseSamples>(options.pauses_s.size()));
  for (int32_t round = 0; round <= options.rounds; ++round) {
    for (size_t p = 0; p < options.pauses_s.size(); ++p) {
      for (size_t i = 0; i < subjects.size(); ++i) {
        Tell(options, 0.5 + 0.5 * round / (options.rounds + 1),
             absl::StrFormat("a pause of %g s", options.pauses_s[p]));
        WITHY_RETURN_IF_ERROR(CheckStop(options));
        // The first round only warms up: it need not wait.
        const double pause_s = round == 0 ? 0 : options.pauses_s[p];
        const std::vector<int32_t> tokens =
            subjects[i].model->Tokens(StudyText(options), options.prompt_tokens);
        WITHY_RETURN_IF_ERROR(
            SamplePause(subjects[i], tokens, pause_s, round > 0 ? &samples[i][p] : nullptr));
      }
    }
  }
  for (size_t i = 0; i < subjects.size(); ++i) {
    LineChart::Line line{subjects[i].name, {}};
    for (size_t p = 0; p < options.pauses_s.size(); ++p) {
      const Spread first = SpreadOf(samples[i][p].first);
      const double pause = options.pauses_s[p];
      table.rows.push_back({NameCell(subjects[i].name), NumberCell(pause), TimeCell(first),
                            TimeCell(SpreadOf(samples[i][p].second)),
                            TimeCell(SpreadOf(samples[i][p].last))});
      line.points.emplace_back(std::max(pause, kNoPauseDrawnAs), first.median / 1e3);
      line.band.emplace_back(first.low / 1e3, first.high / 1e3);
    }
    const PauseSamples& longest = samples[i].back();
    report->findings.push_back(absl::StrFormat(
        "%s: after %g s the first step takes %.3g times as long as the %dth after it",
        subjects[i].name, options.pauses_s.back(),
        SpreadOf(longest.first).median / std::max(SpreadOf(longest.last).median, 1e-9),
        kStepsAfterPause));
    chart.lines.push_back(std::move(line));
  }
  report->tables.push_back(std::move(table));
  report->plots.push_back({"idle-pauses.svg", chart.Svg()});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StudyReport> StudyIdle(const StudyOptions& options) {
  for (const double pause : options.pauses_s) {
    if (!(pause >= 0 && pause <= kLongestPauseS)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--pauses has ", pause, ": pauses are 0 to ", kLongestPauseS, " s"));
    }
  }
  WITHY_ASSIGN_OR_RETURN(const Subjects opened, OpenSubjects(options));
  for (const auto& model : opened.models) {
    WITHY_RETURN_IF_ERROR(model->Reserve(options.prompt_tokens + options.answer_tokens));
  }
  StudyReport report;
  WITHY_RETURN_IF_ERROR(StudyAnswers(options, opened.all, &report));
  WITHY_RETURN_IF_ERROR(StudyPauses(options, opened.all, &report));
  const std::string governor = ReadBoard().governor;
  report.findings.push_back(governor.empty()
                                ? "this board tells no frequency governor"
                                : absl::StrCat("the frequency governor is ", governor));
  report.paper = {
      "the GPU is idle for 21 % of decode in answers of 16 tokens and for 12 % in those of 256 "
      "(Gemma-2-2B in 4 bits on a Pixel 8 Pro; section 5.2, Figures 10b and 11); pauses are not "
      "studied"};
  return report;
}

}  // namespace withy::cli
