#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/charts/bar_chart.h"
#include "base/charts/line_chart.h"
#include "base/status.h"
#include "cli/study/answer.h"
#include "cli/study/study.h"

namespace withy::cli {
namespace {

// The samples of one model or level, by round.
struct PhaseSamples {
  std::array<std::vector<double>, kAnswerPhases> shares, totals;
  std::array<int64_t, kAnswerPhases> counts = {};
  std::vector<double> prefill, decode, whole;

  void Add(const AnswerTimes& answer) {
    for (size_t phase = 0; phase < kAnswerPhases; ++phase) {
      shares[phase].push_back(answer.us[phase] / std::max(answer.Whole(), 1e-9));
      totals[phase].push_back(answer.us[phase]);
    }
    counts = answer.counts;
    prefill.push_back(answer.prefill_us_per_token);
    decode.push_back(answer.decode_us_per_token);
    whole.push_back(answer.Whole());
  }
};

StudyTable PhaseTable(const std::vector<Subject>& subjects,
                      const std::vector<PhaseSamples>& samples) {
  StudyTable table{"phases",
                   "phases of an answer; they exclude each other",
                   {{"MODEL", "model"},
                    {"PHASE", "phase"},
                    {"SHARE", "share"},
                    {"COUNT", "count"},
                    {"TOTAL", "total_us"},
                    {"MEAN", "mean_us"}},
                   {}};
  for (size_t i = 0; i < subjects.size(); ++i) {
    for (size_t phase = 0; phase < kAnswerPhases; ++phase) {
      const int64_t count = samples[i].counts[phase];
      std::vector<Cell>& row = table.rows.emplace_back();
      row = {NameCell(subjects[i].name), NameCell(AnswerPhaseName(phase))};
      if (count == 0) {  // a greedy token has no softmax
        row.insert(row.end(), {ShareCell(0), CountCell(0), NoCell(), NoCell()});
        continue;
      }
      const Spread total = SpreadOf(samples[i].totals[phase]);
      row.insert(row.end(), {ShareCell(SpreadOf(samples[i].shares[phase])), CountCell(count),
                             TimeCell(total), TimeCell(total.median / static_cast<double>(count))});
    }
  }
  return table;
}

StudyTable SizeTable(const std::vector<Subject>& subjects,
                     const std::vector<PhaseSamples>& samples) {
  StudyTable table{"models",
                   "time of a token",
                   {{"MODEL", "model"},
                    {"TYPE", "type"},
                    {"PARAMETERS A TOKEN", "parameters_per_token"},
                    {"PREFILL", "prefill_us_per_token"},
                    {"DECODE", "decode_us_per_token"},
                    {"ANSWER", "answer_us"}},
                   {}};
  for (size_t i = 0; i < subjects.size(); ++i) {
    table.rows.push_back(
        {NameCell(subjects[i].name), NameCell(subjects[i].quantisation),
         NumberCell(subjects[i].parameters), TimeCell(SpreadOf(samples[i].prefill)),
         TimeCell(SpreadOf(samples[i].decode)), TimeCell(SpreadOf(samples[i].whole))});
  }
  return table;
}

StudyPlot SharesPlot(const std::vector<Subject>& subjects,
                     const std::vector<PhaseSamples>& samples) {
  BarChart chart{"Phases of an answer", "share of the answer's time, %", {}, {}};
  for (size_t phase = 0; phase < kAnswerPhases; ++phase) {
    chart.parts.emplace_back(AnswerPhaseName(phase));
  }
  for (size_t i = 0; i < subjects.size(); ++i) {
    BarChart::Bar& bar = chart.bars.emplace_back();
    bar.name = subjects[i].name;
    for (const std::vector<double>& shares : samples[i].shares) {
      bar.parts.push_back(100 * SpreadOf(shares).median);
    }
  }
  return {"phases-shares.svg", chart.Svg()};
}

StudyPlot TokenPlot(const std::vector<Subject>& subjects, const std::vector<PhaseSamples>& samples,
                    const std::vector<size_t>& by_size) {
  LineChart chart{"Time of a token against the model's size",
                  "million parameters a token",
                  "ms a token, median and quartiles",
                  {{"decode", {}}, {"prefill", {}}}};
  chart.y_from_zero = false;
  chart.x_log = chart.y_log = true;
  for (const size_t i : by_size) {
    const auto add = [&](const std::vector<double>& us, LineChart::Line* line) {
      const Spread spread = SpreadOf(us);
      line->points.emplace_back(subjects[i].parameters / 1e6, spread.median / 1e3);
      line->band.emplace_back(spread.low / 1e3, spread.high / 1e3);
    };
    add(samples[i].decode, &chart.lines[0]);
    add(samples[i].prefill, &chart.lines[1]);
  }
  return {"phases-tokens.svg", chart.Svg()};
}

std::vector<std::string> PhaseFindings(const std::vector<Subject>& subjects,
                                       const std::vector<PhaseSamples>& samples,
                                       const std::vector<size_t>& by_size) {
  std::vector<std::string> findings;
  for (size_t i = 0; i < subjects.size(); ++i) {
    std::vector<double> computing;  // by round: medians of parts do not add up
    for (size_t round = 0; round < samples[i].whole.size(); ++round) {
      double sum = 0;
      for (const AnswerPhase phase :
           {AnswerPhase::kPrefill, AnswerPhase::kDecode, AnswerPhase::kSoftmax}) {
        sum += samples[i].shares[static_cast<size_t>(phase)][round];
      }
      computing.push_back(sum);
    }
    findings.push_back(absl::StrFormat(
        "%s: prefill, decode and softmax take %.1f %% of an answer; a token of the prompt takes "
        "%.2g of a token of the answer",
        subjects[i].name, 100 * SpreadOf(computing).median,
        SpreadOf(samples[i].prefill).median / std::max(SpreadOf(samples[i].decode).median, 1e-9)));
  }
  const size_t small = by_size.front(), large = by_size.back();
  if (subjects[small].parameters < subjects[large].parameters) {
    findings.push_back(absl::StrFormat(
        "from %s to %s, %.3g times the parameters, a token takes %.3g times as long in prefill and "
        "%.3g times in decode",
        subjects[small].name, subjects[large].name,
        subjects[large].parameters / subjects[small].parameters,
        SpreadOf(samples[large].prefill).median / SpreadOf(samples[small].prefill).median,
        SpreadOf(samples[large].decode).median / SpreadOf(samples[small].decode).median));
  }
  return findings;
}

}  // namespace

absl::StatusOr<StudyReport> StudyPhases(const StudyOptions& options) {
  WITHY_ASSIGN_OR_RETURN(const Subjects opened, OpenSubjects(options));
  const std::vector<Subject>& subjects = opened.all;
  for (const auto& model : opened.models) {
    WITHY_RETURN_IF_ERROR(model->Reserve(options.prompt_tokens + options.answer_tokens));
  }
  std::vector<PhaseSamples> samples(subjects.size());
  for (int32_t round = 0; round <= options.rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      Tell(options, static_cast<double>(round) / (options.rounds + 1), subjects[i].name);
      WITHY_RETURN_IF_ERROR(CheckStop(options));
      const std::vector<int32_t> prompt =
          subjects[i].model->Tokens(StudyText(options), options.prompt_tokens);
      WITHY_ASSIGN_OR_RETURN(
          const AnswerTimes answer,
          RunAnswer(subjects[i], prompt, options.answer_tokens, options.sampling));
      if (round > 0) samples[i].Add(answer);
    }
  }
  std::vector<size_t> by_size(subjects.size());
  for (size_t i = 0; i < by_size.size(); ++i) by_size[i] = i;
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return subjects[a].parameters < subjects[b].parameters;
  });
  StudyReport report;
  report.tables = {SizeTable(subjects, samples), PhaseTable(subjects, samples)};
  report.findings = PhaseFindings(subjects, samples, by_size);
  report.paper = {
      "prefill, decode and softmax take over 99 % of the time (section 4.2)",
      "SmolLM2-360M in FP16 on a Pixel 8 Pro: embedding 0.98 ms, prefill 2399, one decode 44.8, "
      "softmax 222, probabilities to the CPU 0.31, sampling 0.03 (Table 4)",
      "from Pythia 70M to 1.4B, 20 times the parameters, a token takes 158 times as long in "
      "prefill and 10 times in decode; prefill is the bottleneck (section 5.1)"};
  report.plots = {SharesPlot(subjects, samples), TokenPlot(subjects, samples, by_size)};
  return report;
}

}  // namespace withy::cli
