#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/charts/line_chart.h"
#include "base/status.h"
#include "cli/study/profiled_model.h"
#include "cli/study/study.h"

namespace withy::cli {
namespace {

using engine::OpKind;
using telemetry::Phase;

constexpr int32_t kDeepest = 2048;  // of the default depths
constexpr int32_t kDefaultDepths = 9;
// Whatever disturbs a step makes it longer: the line is fitted to the fast ones.
constexpr double kFastSteps = 0.1;
constexpr int32_t kStepsPerVisit = 8;  // decode steps at a depth in a round; one more warms up

// Samples at one depth, by decode step.
struct DepthSamples {
  std::vector<double> attention, rest;
  std::array<std::vector<double>, engine::kOpKinds> ops;
};

// The depths of the options, or those by default; ascending.
absl::StatusOr<std::vector<int32_t>> DepthsFor(const StudyOptions& options,
                                               const ProfiledModel& model) {
  const int32_t window = model.info().context_length;
  std::vector<int32_t> depths = options.depths;
  if (depths.empty()) {
    const int32_t deepest = std::min(kDeepest, window - 1);
    for (int32_t i = 0; i < kDefaultDepths; ++i) {
      depths.push_back(std::max(deepest * i / (kDefaultDepths - 1), 1));
    }
  }
  std::sort(depths.begin(), depths.end());
  depths.erase(std::unique(depths.begin(), depths.end()), depths.end());
  if (depths.front() < 1 || depths.back() >= window) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--depths must be between 1 and ", window - 1, ", below the context of ", model.path(),
        "; there is ", depths.front() < 1 ? depths.front() : depths.back()));
  }
  return depths;
}

absl::Status SampleDepth(const Subject& subject, std::span<const int32_t> tokens, int32_t depth,
                         DepthSamples* samples) {
  ProfiledModel& model = *subject.model;
  // The same token again and again at its place: its KV stays what it was.
  const auto token = tokens.subspan(static_cast<size_t>(depth), 1);
  for (int32_t step = 0; step <= kStepsPerVisit; ++step) {
    WITHY_RETURN_IF_ERROR(model.Run(token, depth, subject.level, Phase::kDecode));
  }
  WITHY_ASSIGN_OR_RETURN(const RunTimes times, model.Collect());
  if (samples == nullptr) return absl::OkStatus();
  for (size_t i = 1; i < times.passes.size(); ++i) {
    const PassTimes& pass = times.passes[i];
    const double attention = pass.WallOf(OpKind::kAttend);
    samples->attention.push_back(attention);
    samples->rest.push_back(std::max(pass.wall_us - attention, 0.0));
    for (size_t op = 0; op < samples->ops.size(); ++op) {
      samples->ops[op].push_back(pass.WallOf(static_cast<OpKind>(op)));
    }
  }
  return absl::OkStatus();
}

using Points = std::vector<std::pair<double, double>>;

struct DepthCurve {
  std::vector<int32_t> depths;
  std::vector<DepthSamples> samples;

  // Fast steps against the depth.
  Points Fast(const std::function<const std::vector<double>&(const DepthSamples&)>& of) const {
    Points points;
    for (size_t i = 0; i < depths.size(); ++i) {
      points.emplace_back(depths[i], QuantileOf(of(samples[i]), kFastSteps));
    }
    return points;
  }
};

// Operations besides attention that grow by more than a tenth of what attention grows by.
std::vector<std::string> OthersThatGrow(const DepthCurve& curve, double attention_slope) {
  std::vector<std::string> others;
  for (size_t op = 0; op < engine::kOpKinds; ++op) {
    if (static_cast<OpKind>(op) == OpKind::kAttend) continue;
    const LinearFit fit =
        FitLine(curve.Fast([op](const DepthSamples& s) -> const auto& { return s.ops[op]; }));
    if (fit.slope > attention_slope / 10 && fit.r_squared > 0.5) {
      others.emplace_back(engine::OpName(static_cast<OpKind>(op)));
    }
  }
  return others;
}

LineChart::Line BandedLine(const std::string& name, const DepthCurve& curve,
                           std::vector<double> DepthSamples::*samples) {
  LineChart::Line line{name, {}};
  for (size_t i = 0; i < curve.depths.size(); ++i) {
    const Spread spread = SpreadOf(curve.samples[i].*samples);
    line.points.emplace_back(curve.depths[i], spread.median / 1e3);
    line.band.emplace_back(spread.low / 1e3, spread.high / 1e3);
  }
  return line;
}

// Adds what was found of one model.
void ReportCurve(const Subject& subject, const DepthCurve& curve, StudyReport* report,
                 LineChart* chart) {
  for (size_t i = 0; i < curve.depths.size(); ++i) {
    report->tables[0].rows.push_back({NameCell(subject.name), CountCell(curve.depths[i]),
                                      TimeCell(SpreadOf(curve.samples[i].attention)),
                                      TimeCell(QuantileOf(curve.samples[i].attention, kFastSteps)),
                                      TimeCell(SpreadOf(curve.samples[i].rest))});
  }
  const LinearFit fit =
      FitLine(curve.Fast([](const DepthSamples& s) -> const auto& { return s.attention; }));
  const double rest = QuantileOf(curve.samples.front().rest, kFastSteps);
  const double even = fit.slope > 0 ? (rest - fit.intercept) / fit.slope : 0;
  report->tables[1].rows.push_back({NameCell(subject.name), TimeCell(fit.intercept),
                                    NumberCell(fit.slope), NumberCell(fit.r_squared),
                                    even > 0 ? CountCell(static_cast<int64_t>(even)) : NoCell()});
  report->findings.push_back(
      absl::StrFormat("%s: attention of one step takes %s + %.3g µs a token of KV (R² %.3f)",
                      subject.name, TimeCell(fit.intercept).text, fit.slope, fit.r_squared));
  const std::vector<std::string> others = OthersThatGrow(curve, fit.slope);
  std::string finding = absl::StrCat(subject.name, ": ");
  if (others.empty()) {
    absl::StrAppend(&finding, "no other operation grows with it by a tenth as much");
  } else {
    absl::StrAppend(&finding, "also growing with it, by a tenth as much or more:");
    for (const std::string& other : others) absl::StrAppend(&finding, " ", other);
  }
  report->findings.push_back(std::move(finding));
  chart->lines.push_back(BandedLine(subject.name + ": attention", curve, &DepthSamples::attention));
  LineChart::Line line{"line through the fastest tenth", {}};
  line.dashed = true;
  for (const int32_t depth : curve.depths) line.points.emplace_back(depth, fit.At(depth) / 1e3);
  chart->lines.push_back(std::move(line));
  chart->lines.push_back(BandedLine("the rest of the step", curve, &DepthSamples::rest));
}

}  // namespace

absl::StatusOr<StudyReport> StudyKvLength(const StudyOptions& options) {
  WITHY_ASSIGN_OR_RETURN(const Subjects opened, OpenSubjects(options));
  const std::vector<Subject>& subjects = opened.all;
  StudyReport report;
  report.tables = {{"depths",
                    "one decode step behind so many tokens of KV",
                    {{"MODEL", "model"},
                     {"KV TOKENS", "kv_tokens"},
                     {"ATTENTION", "attention_us"},
                     {"FASTEST TENTH", "attention_p10_us"},
                     {"THE REST", "rest_us"}},
                    {}},
                   {"fits",
                    "attention of one step = FIXED + SLOPE * tokens of KV, fitted to the fastest "
                    "tenth; EVEN: tokens at which it takes as long as all else",
                    {{"MODEL", "model"},
                     {"FIXED", "fixed_us"},
                     {"SLOPE, µs A TOKEN", "slope_us_per_token"},
                     {"R2", "r_squared"},
                     {"EVEN", "even_tokens"}},
                    {}}};
  LineChart chart{"Attention of a decode step against its KV",
                  "tokens of KV",
                  "ms a step, median and quartiles",
                  {}};
  std::vector<DepthCurve> curves(subjects.size());
  std::vector<std::vector<int32_t>> tokens(subjects.size());
  for (size_t i = 0; i < subjects.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(curves[i].depths, DepthsFor(options, *subjects[i].model));
    curves[i].samples.resize(curves[i].depths.size());
    const int32_t room = curves[i].depths.back() + 1;
    WITHY_RETURN_IF_ERROR(subjects[i].model->Reserve(room));
    tokens[i] = subjects[i].model->Tokens(StudyText(options), room);
  }
  for (size_t i = 0; i < subjects.size(); ++i) {
    // The KV of one model at a time, since its levels share it.
    WITHY_RETURN_IF_ERROR(subjects[i].model->Run(tokens[i], 0, subjects[i].level, Phase::kPrefill));
    WITHY_RETURN_IF_ERROR(subjects[i].model->Collect().status());
    for (int32_t round = 0; round <= options.rounds; ++round) {
      for (size_t d = 0; d < curves[i].depths.size(); ++d) {
        Tell(options,
             (static_cast<double>(i) + static_cast<double>(round) / (options.rounds + 1)) /
                 static_cast<double>(subjects.size()),
             subjects[i].name);
        WITHY_RETURN_IF_ERROR(CheckStop(options));
        WITHY_RETURN_IF_ERROR(SampleDepth(subjects[i], tokens[i], curves[i].depths[d],
                                          round > 0 ? &curves[i].samples[d] : nullptr));
      }
    }
    ReportCurve(subjects[i], curves[i], &report, &chart);
  }
  report.paper = {
      "attention grows nearly linearly with the KV, to 0.9 ms a call at step 250 of 256 "
      "(Gemma-2-2B "
      "in 4 bits on a Pixel 8 Pro), and is the only kernel of decode that grows (section 5.2, "
      "Figure 11)"};
  report.plots = {{"kv-length.svg", chart.Svg()}};
  return report;
}

}  // namespace withy::cli
