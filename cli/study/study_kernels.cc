#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/charts/bar_chart.h"
#include "base/status.h"
#include "cli/study/profiled_model.h"
#include "cli/study/study.h"

namespace withy::cli {
namespace {

using engine::OpKind;
using telemetry::Phase;

constexpr int32_t kDecodesPerRound = 8;

// What one operation took in the passes of one kind.
struct KernelSamples {
  std::vector<double> shares;  // of the pass's threads' time, by pass
  std::vector<double> walls;   // by time that it was computed
  double sum_us = 0;
  int64_t passes = 0;
};

struct PassSamples {
  std::array<KernelSamples, engine::kOpKinds> kernels;
  std::vector<double> walls, idle;  // by pass

  void Add(const PassTimes& pass, int32_t threads) {
    const double available = std::max(pass.wall_us * threads, 1e-9);
    std::array<double, engine::kOpKinds> busy = {};
    for (const OpTime& op : pass.ops) {
      KernelSamples& kernel = kernels[static_cast<size_t>(op.op)];
      kernel.walls.push_back(op.wall_us);
      kernel.sum_us += op.wall_us;
      busy[static_cast<size_t>(op.op)] += op.busy_us;
    }
    for (size_t i = 0; i < busy.size(); ++i) {
      kernels[i].shares.push_back(busy[i] / available);
      ++kernels[i].passes;
    }
    walls.push_back(pass.wall_us);
    idle.push_back(std::clamp(1 - pass.busy_us / available, 0.0, 1.0));
  }
};

struct SubjectSamples {
  PassSamples prefill, decode;
};

void AddRows(const Subject& subject, const char* pass, const PassSamples& samples,
             StudyTable* table) {
  std::vector<size_t> order;
  for (size_t i = 0; i < samples.kernels.size(); ++i) {
    if (!samples.kernels[i].walls.empty()) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return SpreadOf(samples.kernels[a].shares).median > SpreadOf(samples.kernels[b].shares).median;
  });
  for (const size_t i : order) {
    const KernelSamples& kernel = samples.kernels[i];
    const auto count = static_cast<double>(kernel.walls.size());
    table->rows.push_back({NameCell(subject.name), NameCell(pass),
                           NameCell(engine::OpName(static_cast<OpKind>(i))),
                           ShareCell(SpreadOf(kernel.shares)),
                           CountCell(std::lround(count / static_cast<double>(kernel.passes))),
                           TimeCell(kernel.sum_us / count), TimeCell(QuantileOf(kernel.walls, 0.5)),
                           TimeCell(QuantileOf(kernel.walls, 0.99))});
  }
  table->rows.push_back({NameCell(subject.name), NameCell(pass), NameCell("idle"),
                         ShareCell(SpreadOf(samples.idle)), NoCell(), NoCell(), NoCell(),
                         NoCell()});
}

BarChart::Bar ShareBar(const std::string& name, const PassSamples& samples) {
  BarChart::Bar bar{name, {}};
  for (const KernelSamples& kernel : samples.kernels) {
    bar.parts.push_back(100 * SpreadOf(kernel.shares).median);
  }
  bar.parts.push_back(100 * SpreadOf(samples.idle).median);
  return bar;
}

double MedianShare(const PassSamples& samples, std::initializer_list<OpKind> ops) {
  double share = 0;
  for (const OpKind op : ops) {
    share += SpreadOf(samples.kernels[static_cast<size_t>(op)].shares).median;
  }
  return share;
}

std::string KernelFinding(const std::string& name, const PassSamples& decode) {
  return absl::StrFormat(
      "%s: in decode the MLP's products take %.1f %% of the threads' time, attention's products "
      "%.1f %%, attention itself %.1f %%, the output head %.1f %%; %.1f %% is idle",
      name,
      100 * MedianShare(decode, {OpKind::kGateUp, OpKind::kDown, OpKind::kExpertGateUp,
                                 OpKind::kExpertDown}),
      100 * MedianShare(decode, {OpKind::kQkv, OpKind::kAttentionOut}),
      100 * MedianShare(decode, {OpKind::kAttend}), 100 * MedianShare(decode, {OpKind::kHead}),
      100 * SpreadOf(decode.idle).median);
}

StudyPlot KernelPlot(const std::vector<Subject>& subjects,
                     const std::vector<SubjectSamples>& samples) {
  BarChart chart{"Where the compute threads' time goes", "share of their time, %", {}, {}};
  std::vector<BarChart::Bar> bars;
  for (size_t i = 0; i < subjects.size(); ++i) {
    bars.push_back(ShareBar(subjects[i].name + ", prefill", samples[i].prefill));
    bars.push_back(ShareBar(subjects[i].name + ", decode", samples[i].decode));
  }
  // Operations that no pass has get neither a colour nor a line of the legend.
  chart.bars.resize(bars.size());
  for (size_t b = 0; b < bars.size(); ++b) chart.bars[b].name = bars[b].name;
  for (size_t part = 0; part <= engine::kOpKinds; ++part) {
    const bool used = std::any_of(bars.begin(), bars.end(),
                                  [&](const BarChart::Bar& bar) { return bar.parts[part] > 0; });
    if (!used) continue;
    chart.parts.emplace_back(part == engine::kOpKinds ? "idle"
                                                      : engine::OpName(static_cast<OpKind>(part)));
    for (size_t b = 0; b < bars.size(); ++b) chart.bars[b].parts.push_back(bars[b].parts[part]);
  }
  return {"kernels.svg", chart.Svg()};
}

// One prefill and some decode steps behind it.
absl::Status SampleKernels(const StudyOptions& options, const Subject& subject,
                           SubjectSamples* samples) {
  ProfiledModel& model = *subject.model;
  const std::vector<int32_t> tokens =
      model.Tokens(StudyText(options), options.prompt_tokens + kDecodesPerRound);
  const std::span<const int32_t> all(tokens);
  const auto prompt = static_cast<size_t>(options.prompt_tokens);
  WITHY_RETURN_IF_ERROR(model.Run(all.first(prompt), 0, subject.level, Phase::kPrefill));
  for (size_t i = prompt; i < all.size(); ++i) {
    WITHY_RETURN_IF_ERROR(
        model.Run(all.subspan(i, 1), static_cast<int32_t>(i), subject.level, Phase::kDecode));
  }
  WITHY_ASSIGN_OR_RETURN(const RunTimes times, model.Collect());
  if (samples == nullptr) return absl::OkStatus();
  const size_t prefills = times.passes.size() - kDecodesPerRound;
  for (size_t i = 0; i < times.passes.size(); ++i) {
    (i < prefills ? samples->prefill : samples->decode)
        .Add(times.passes[i], model.model().threads());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StudyReport> StudyKernels(const StudyOptions& options) {
  WITHY_ASSIGN_OR_RETURN(const Subjects opened, OpenSubjects(options));
  const std::vector<Subject>& subjects = opened.all;
  for (const auto& model : opened.models) {
    WITHY_RETURN_IF_ERROR(model->Reserve(options.prompt_tokens + kDecodesPerRound));
  }
  std::vector<SubjectSamples> samples(subjects.size());
  for (int32_t round = 0; round <= options.rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      Tell(options, static_cast<double>(round) / (options.rounds + 1), subjects[i].name);
      WITHY_RETURN_IF_ERROR(CheckStop(options));
      WITHY_RETURN_IF_ERROR(SampleKernels(options, subjects[i], round > 0 ? &samples[i] : nullptr));
    }
  }
  StudyReport report;
  StudyTable& table = report.tables.emplace_back();
  table = {"kernels",
           "operations of a pass: SHARE is of the time of all compute threads, COUNT is of one "
           "pass, times are from the first thread's begin to the last one's end",
           {{"MODEL", "model"},
            {"PASS", "pass"},
            {"KERNEL", "kernel"},
            {"SHARE", "share"},
            {"COUNT", "count_per_pass"},
            {"MEAN", "mean_us"},
            {"P50", "p50_us"},
            {"P99", "p99_us"}},
           {}};
  for (size_t i = 0; i < subjects.size(); ++i) {
    AddRows(subjects[i], "prefill", samples[i].prefill, &table);
    AddRows(subjects[i], "decode", samples[i].decode, &table);
    report.findings.push_back(KernelFinding(subjects[i].name, samples[i].decode));
  }
  report.paper = {
      "in decode of Gemma-2-2B in 4 bits on a Pixel 8 Pro three GEMM kernels of the MLP take over "
      "60 %, more than attention's; the GPU is idle for over 21 %; short kernels (norm, RoPE, KV "
      "append) take less than 10 % (section 5.2, Figure 10)"};
  report.plots = {KernelPlot(subjects, samples)};
  return report;
}

}  // namespace withy::cli
