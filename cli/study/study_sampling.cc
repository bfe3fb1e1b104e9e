#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/charts/line_chart.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/ticks.h"
#include "cli/study/cut_match.h"
#include "cli/study/profiled_model.h"
#include "cli/study/study.h"

namespace withy::cli {
namespace {

constexpr int32_t kDraws = 200;  // of subsets that are judged
constexpr size_t kLeastPrompts = 10;
constexpr int32_t kDistributions = 32;              // of the model, that settings are matched over
constexpr double kCutTargets[] = {0.05, 0.2, 0.5};  // nats
constexpr int32_t kPicksPerRound = 3;               // of each distribution

// The prompts of the data set that fit the model.
struct PromptSet {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<int32_t> lengths;
  size_t too_long = 0;
};

absl::StatusOr<PromptSet> EncodePrompts(const StudyOptions& options, const ProfiledModel& model) {
  PromptSet set;
  for (const std::string& prompt : options.prompts) {
    std::vector<int32_t> tokens = model.tokenizer().Encode(prompt);
    if (tokens.empty()) continue;
    if (static_cast<int32_t>(tokens.size()) > model.info().context_length) {
      ++set.too_long;
      continue;
    }
    set.lengths.push_back(static_cast<int32_t>(tokens.size()));
    set.tokens.push_back(std::move(tokens));
  }
  if (set.tokens.size() < kLeastPrompts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "study sampling needs --prompts FILE with at least ", kLeastPrompts,
        " prompts, one a line, that fit the model's context; there are ", set.tokens.size()));
  }
  return set;
}

double MeanOf(const std::vector<double>& values, std::span<const size_t> chosen) {
  double sum = 0;
  for (const size_t i : chosen) sum += values[i];
  return sum / static_cast<double>(std::max<size_t>(chosen.size(), 1));
}

// How draws of one way to choose come out.
struct DrawSamples {
  std::vector<double> divergences, length_errors, time_errors;
};

DrawSamples Judge(const PromptSet& set, const std::vector<double>& times, size_t count,
                  bool matched, const StudyOptions& options) {
  const std::vector<double> lengths(set.lengths.begin(), set.lengths.end());
  std::vector<size_t> all(lengths.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const double mean_length = MeanOf(lengths, all);
  const double mean_time = times.empty() ? 0 : MeanOf(times, all);
  DrawSamples samples;
  for (int32_t draw = 0; draw < kDraws; ++draw) {
    const uint64_t seed = options.seed + static_cast<uint64_t>(draw);
    const std::vector<size_t> chosen = matched
                                           ? MatchedSubset(set.lengths, count, options.bins, seed)
                                           : RandomSubset(all.size(), count, seed);
    samples.divergences.push_back(SubsetDivergence(set.lengths, chosen, options.bins));
    samples.length_errors.push_back(std::abs(MeanOf(lengths, chosen) / mean_length - 1));
    if (mean_time > 0) {
      samples.time_errors.push_back(std::abs(MeanOf(times, chosen) / mean_time - 1));
    }
  }
  return samples;
}

std::vector<Cell> DrawRow(const std::string& name, size_t count, const DrawSamples& samples) {
  std::vector<Cell> row = {NameCell(name), CountCell(static_cast<int64_t>(count)),
                           NumberCell(SpreadOf(samples.divergences)),
                           ShareCell(QuantileOf(samples.length_errors, 0.5)),
                           ShareCell(QuantileOf(samples.length_errors, 0.95))};
  const bool timed = !samples.time_errors.empty();
  row.push_back(timed ? ShareCell(QuantileOf(samples.time_errors, 0.5)) : NoCell());
  row.push_back(timed ? ShareCell(QuantileOf(samples.time_errors, 0.95)) : NoCell());
  return row;
}

// Prefill of each chosen prompt; those of others are 0.
absl::StatusOr<std::vector<double>> TimePrompts(const StudyOptions& options, Subject subject,
                                                const PromptSet& set,
                                                std::span<const size_t> chosen) {
  std::vector<double> times(set.tokens.size(), 0);
  const int32_t longest = *std::max_element(set.lengths.begin(), set.lengths.end());
  WITHY_RETURN_IF_ERROR(subject.model->Reserve(longest));
  WITHY_RETURN_IF_ERROR(subject.model->Run(set.tokens[chosen.front()], 0, subject.level,
                                           telemetry::Phase::kPrefill));  // warms up
  for (size_t i = 0; i < chosen.size(); ++i) {
    Tell(options, 0.5 * static_cast<double>(i) / static_cast<double>(chosen.size()),
         absl::StrCat("prompt ", i + 1, " of ", chosen.size()));
    WITHY_RETURN_IF_ERROR(CheckStop(options));
    WITHY_RETURN_IF_ERROR(subject.model->Collect().status());
    WITHY_RETURN_IF_ERROR(
        subject.model->Run(set.tokens[chosen[i]], 0, subject.level, telemetry::Phase::kPrefill));
    WITHY_ASSIGN_OR_RETURN(const RunTimes run, subject.model->Collect());
    for (const PassTimes& pass : run.passes) times[chosen[i]] += pass.wall_us;
  }
  return times;
}

StudyPlot LengthsPlot(const PromptSet& set, std::span<const size_t> matched,
                      std::span<const size_t> random, int bins) {
  LineChart chart{
      "Lengths of all prompts and of subsets", "tokens of a prompt", "share of the prompts, %", {}};
  const int32_t least = *std::min_element(set.lengths.begin(), set.lengths.end());
  const int32_t most = *std::max_element(set.lengths.begin(), set.lengths.end());
  const double width = (most - least + 1.0) / bins;
  const auto add = [&](const std::string& name, std::span<const size_t> chosen) {
    std::vector<int32_t> lengths;
    for (const size_t i : chosen) lengths.push_back(set.lengths[i]);
    const std::vector<int64_t> counts = Histogram(set.lengths, lengths, bins);
    LineChart::Line line{name, {}};
    for (size_t bin = 0; bin < counts.size(); ++bin) {
      line.points.emplace_back(least + width * (static_cast<double>(bin) + 0.5),
                               100.0 * static_cast<double>(counts[bin]) /
                                   static_cast<double>(std::max<size_t>(lengths.size(), 1)));
    }
    chart.lines.push_back(std::move(line));
  };
  std::vector<size_t> all(set.lengths.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  add("all", all);
  add("KL-matched", matched);
  add("drawn at random", random);
  return {"sampling-lengths.svg", chart.Svg()};
}

absl::Status StudySubsets(const StudyOptions& options, const Subject& subject, const PromptSet& set,
                          StudyReport* report) {
  const auto count = std::clamp<size_t>(
      static_cast<size_t>(std::lround(options.share * static_cast<double>(set.tokens.size()))), 1,
      set.tokens.size());
  const std::vector<size_t> matched = MatchedSubset(set.lengths, count, options.bins, options.seed);
  const std::vector<size_t> random = RandomSubset(set.tokens.size(), count, options.seed);
  std::vector<size_t> measured = matched;
  if (options.whole_set) {
    measured.resize(set.tokens.size());
    for (size_t i = 0; i < measured.size(); ++i) measured[i] = i;
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<double> times,
                         TimePrompts(options, subject, set, measured));
  const std::vector<double> known = options.whole_set ? times : std::vector<double>();
  StudyTable table{"subsets",
                   absl::StrCat("subsets of ", set.tokens.size(),
                                " prompts: Kullback-Leibler divergence of their lengths from all, "
                                "and errors of their mean length and prefill (median and p95 of ",
                                kDraws, " draws)"),
                   {{"SUBSET", "subset"},
                    {"PROMPTS", "prompts"},
                    {"DIVERGENCE", "divergence_nats"},
                    {"LENGTH", "length_error_median"},
                    {"P95", "length_error_p95"},
                    {"PREFILL", "prefill_error_median"},
                    {"P95", "prefill_error_p95"}},
                   {}};
  table.rows.push_back(DrawRow("KL-matched", count, Judge(set, known, count, true, options)));
  table.rows.push_back(DrawRow("random", count, Judge(set, known, count, false, options)));
  report->tables.push_back(std::move(table));
  const double mean_us = MeanOf(times, matched);
  report->findings.push_back(absl::StrFormat(
      "%s: a prompt takes %s by the KL-matched %d, whose lengths diverge by %.4f nats from all %d",
      subject.name, TimeCell(mean_us).text, count,
      SubsetDivergence(set.lengths, matched, options.bins), set.tokens.size()));
  if (options.whole_set) {
    std::vector<size_t> all = measured;
    report->findings.push_back(
        absl::StrFormat("by all of them it takes %s; measuring them took %.3g times as long",
                        TimeCell(MeanOf(times, all)).text,
                        MeanOf(times, all) * static_cast<double>(all.size()) /
                            std::max(mean_us * static_cast<double>(count), 1e-9)));
  } else {
    report->findings.emplace_back("--whole-set measures all prompts, and says what subsets err by");
  }
  if (set.too_long > 0) {
    report->findings.push_back(
        absl::StrCat(Counted(set.too_long, "prompt"), " longer than the context left out"));
  }
  report->plots.push_back(LengthsPlot(set, matched, random, options.bins));
  return absl::OkStatus();
}

// The model's logits behind each of the first tokens of the text.
absl::StatusOr<std::vector<std::vector<float>>> CollectLogits(const StudyOptions& options,
                                                              const Subject& subject) {
  WITHY_RETURN_IF_ERROR(subject.model->Reserve(kDistributions));
  const std::vector<int32_t> tokens = subject.model->Tokens(StudyText(options), kDistributions);
  std::vector<std::vector<float>> logits;
  for (int32_t i = 0; i < kDistributions; ++i) {
    WITHY_RETURN_IF_ERROR(CheckStop(options));
    WITHY_RETURN_IF_ERROR(subject.model->Run({&tokens[static_cast<size_t>(i)], 1}, i, subject.level,
                                             telemetry::Phase::kDecode));
    logits.emplace_back(subject.model->logits().begin(), subject.model->logits().end());
  }
  WITHY_RETURN_IF_ERROR(subject.model->Collect().status());
  return logits;
}

// One way to cut at one divergence.
struct MatchedCut {
  CutKind kind = CutKind::kTemperature;
  engine::SamplingParams params;
  double target = 0;
  double reached = 0;
  std::vector<double> us;  // by pick
};

absl::Status TimeCuts(const StudyOptions& options, const std::vector<std::vector<float>>& logits,
                      std::vector<MatchedCut>* cuts) {
  for (int32_t round = 0; round <= options.rounds; ++round) {
    for (MatchedCut& cut : *cuts) {
      Tell(options, 0.5 + 0.5 * round / (options.rounds + 1), CutName(cut.kind, cut.params));
      WITHY_RETURN_IF_ERROR(CheckStop(options));
      WITHY_ASSIGN_OR_RETURN(engine::Sampler sampler, engine::Sampler::Create(cut.params));
      for (int32_t i = 0; i < kPicksPerRound; ++i) {
        for (size_t at = 0; at < logits.size(); ++at) {
          const int64_t started = SteadyNowNs();
          WITHY_RETURN_IF_ERROR(sampler.Pick(logits[at], at, {}).status());
          const int64_t ended = SteadyNowNs();
          if (round > 0) cut.us.push_back(static_cast<double>(ended - started) / 1e3);
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StudyCuts(const StudyOptions& options, const Subject& subject, StudyReport* report) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> logits,
                         CollectLogits(options, subject));
  std::vector<SortedProbabilities> distributions;
  for (const std::vector<float>& row : logits) distributions.push_back(SortedSoftmax(row));
  std::vector<MatchedCut> cuts;
  for (const double target : kCutTargets) {
    for (const CutKind kind : kCutKinds) {
      MatchedCut cut;
      cut.kind = kind;
      cut.target = target;
      cut.params = MatchCut(kind, target, distributions, &cut.reached);
      cut.params.seed = options.seed;
      cuts.push_back(std::move(cut));
    }
  }
  WITHY_RETURN_IF_ERROR(TimeCuts(options, logits, &cuts));
  StudyTable table{"cuts",
                   absl::StrCat("settings of sampling that diverge equally far from ", subject.name,
                                "'s own distribution, and what a token costs"),
                   {{"TARGET, NATS", "target_nats"},
                    {"SETTING", "setting"},
                    {"DIVERGENCE", "divergence_nats"},
                    {"A TOKEN", "pick_us"}},
                   {}};
  for (const double target : kCutTargets) {
    const MatchedCut* cheapest = nullptr;
    const MatchedCut* dearest = nullptr;
    for (const MatchedCut& cut : cuts) {
      if (cut.target != target) continue;
      const double us = SpreadOf(cut.us).median;
      if (cheapest == nullptr || us < SpreadOf(cheapest->us).median) cheapest = &cut;
      if (dearest == nullptr || us > SpreadOf(dearest->us).median) dearest = &cut;
      table.rows.push_back({NumberCell(cut.target), NameCell(CutName(cut.kind, cut.params)),
                            NumberCell(cut.reached), TimeCell(SpreadOf(cut.us))});
    }
    report->findings.push_back(absl::StrFormat(
        "at %.2g nats %s is the cheapest (%s a token) and %s the dearest (%s)", target,
        CutName(cheapest->kind, cheapest->params), TimeCell(SpreadOf(cheapest->us).median).text,
        CutName(dearest->kind, dearest->params), TimeCell(SpreadOf(dearest->us).median).text));
  }
  report->tables.push_back(std::move(table));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StudyReport> StudySampling(const StudyOptions& options) {
  if (options.models.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("study sampling measures one model: give --model once, not ",
                     options.models.size(), " times"));
  }
  WITHY_ASSIGN_OR_RETURN(const Subjects opened, OpenSubjects(options));
  const Subject& subject = opened.all.back();
  WITHY_ASSIGN_OR_RETURN(const PromptSet set, EncodePrompts(options, *subject.model));
  StudyReport report;
  WITHY_RETURN_IF_ERROR(StudySubsets(options, subject, set, &report));
  WITHY_RETURN_IF_ERROR(StudyCuts(options, subject, &report));
  report.paper = {
      "10 % of ARC-Easy, ARC-Challenge and GSM8K and 1 % of HellaSwag, matched by the lengths of "
      "their prompts, diverge by less than 0.0433 from the whole sets (section 5.1, Figure 5); "
      "settings of sampling are not studied"};
  return report;
}

}  // namespace withy::cli
