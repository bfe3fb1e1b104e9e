#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "profiler_agent/exporter.h"

namespace withy::profiler_agent {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using telemetry::MetricKind;
using telemetry::MetricSample;
using telemetry::SourceInfo;
using telemetry::SpanKind;
using telemetry::Unit;

using Labels = std::vector<ClientMetric::Label>;

// Spans that are figures of a whole call instead of phases have their own families.
struct CallFigure {
  const char* span;
  const char* family;
  const char* help;
};
constexpr CallFigure kCallFigures[] = {
    {"ttft", "withy_ttft_seconds", "Time to first token of a call."},
    {"tpot", "withy_tpot_seconds", "Mean time per output token of a call, after the first."},
    {"end_to_end", "withy_end_to_end_seconds", "Time from a call's arrival to its last token."},
};

// Spans that last as long as an SLO allowed.
constexpr std::string_view kLimitPrefix = "slo_";

// Families under construction, by name.
class Families {
 public:
  // The family `name`, created on first use; nullptr if it exists with another type.
  MetricFamily* Get(const std::string& name, const std::string& help, MetricType type) {
    const auto [place, made] = families_.try_emplace(name);
    if (made) place->second = {name, help, type, {}};
    return place->second.type == type ? &place->second : nullptr;
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& [name, family] : families_) names.insert(name);
    return names;
  }

  void AddHistogram(MetricFamily* family, Labels labels, const LatencyHistogram& histogram) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram.sample_count = histogram.count();
    metric.histogram.sample_sum = histogram.total_ns() * 1e-9;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < kBucketBoundsNs.size(); ++i) {
      cumulative += histogram.bucket(i);
      metric.histogram.bucket.push_back(
          {cumulative, static_cast<double>(kBucketBoundsNs[i]) / 1e9});
    }
    metric.histogram.bucket.push_back({histogram.count(), std::numeric_limits<double>::infinity()});
    family->metric.push_back(std::move(metric));
  }

  void AddSizes(MetricFamily* family, const std::string& process, const SizeHistogram& sizes) {
    ClientMetric metric;
    metric.label = {{"process", process}};
    metric.histogram.sample_count = sizes.count();
    metric.histogram.sample_sum = sizes.total();
    uint64_t cumulative = 0;
    for (size_t i = 0; i < SizeHistogram::kBounds; ++i) {
      cumulative += sizes.bucket(i);
      metric.histogram.bucket.push_back(
          {cumulative, static_cast<double>(SizeHistogram::BoundOf(i))});
    }
    metric.histogram.bucket.push_back({sizes.count(), std::numeric_limits<double>::infinity()});
    family->metric.push_back(std::move(metric));
  }

  // A counter or gauge of one value.
  void AddValue(const char* name, const char* help, MetricType type, Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    Get(name, help, type)->metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> Take() {
    std::vector<MetricFamily> result;
    for (auto& [name, family] : families_) {
      if (!family.metric.empty()) result.push_back(std::move(family));
    }
    return result;
  }

 private:
  std::map<std::string, MetricFamily> families_;
};

void SetValue(ClientMetric* metric, MetricType type, double value) {
  (type == MetricType::Counter ? metric->counter.value : metric->gauge.value) = value;
}

// The family that a row belongs to, and its second label.
struct FamilyOfRow {
  std::string name;
  std::string help;
  Labels labels;  // without the process
};
FamilyOfRow FamilyOf(const PhaseRow& row) {
  const bool phase = row.kind == SpanKind::kPhase;
  for (const CallFigure& figure : kCallFigures) {
    if (phase && row.name == figure.span) return {figure.family, figure.help, {}};
  }
  if (phase && row.name.starts_with(kLimitPrefix)) {
    return {"withy_slo_limit_seconds",
            "Times that the SLOs of finished calls allowed.",
            {{"limit", row.name.substr(kLimitPrefix.size())}}};
  }
  if (row.kind == SpanKind::kKernel) {
    return {"withy_kernel_duration_seconds",
            "Time of one kernel on one thread.",
            {{"kernel", row.name}}};
  }
  return {"withy_phase_duration_seconds",
          "Time spent in one phase of a call, by process.",
          {{"phase", row.name}}};
}

void AddPhases(const std::vector<PhaseRow>& phases, Families* families) {
  for (const PhaseRow& row : phases) {
    FamilyOfRow of = FamilyOf(row);
    Labels labels = {{"process", row.process}};
    labels.insert(labels.end(), of.labels.begin(), of.labels.end());
    families->AddHistogram(families->Get(of.name, of.help, MetricType::Histogram),
                           std::move(labels), row.histogram);
    // Waiting is a phase and a figure of a call.
    if (row.kind != SpanKind::kPhase || row.name != "queue") continue;
    families->AddHistogram(
        families->Get("withy_queue_seconds", "Time that a call waited for its turn.",
                      MetricType::Histogram),
        {{"process", row.process}}, row.histogram);
  }
}

void AddSizes(const std::vector<SizeRow>& rows, Families* families) {
  for (const SizeRow& row : rows) {
    if (row.prompt_tokens.count() > 0) {
      families->AddSizes(
          families->Get("withy_prompt_tokens", "Tokens of a call's prompt.", MetricType::Histogram),
          row.process, row.prompt_tokens);
    }
    if (row.answer_tokens.count() > 0) {
      families->AddSizes(
          families->Get("withy_answer_tokens", "Tokens of a call's answer.", MetricType::Histogram),
          row.process, row.answer_tokens);
    }
  }
}

void AddSlos(const std::vector<SourceInfo>& sources, double objective, Families* families) {
  families->AddValue("withy_slo_objective_ratio",
                     "Share of the calls with an SLO that are to meet it.", MetricType::Gauge, {},
                     objective);
  for (const AppSlo& slo : AppSlos(sources)) {
    families->AddValue("withy_slo_attainment_ratio",
                       "Share of an app's calls with an SLO that met it, since the start.",
                       MetricType::Gauge, {{"app", slo.app}}, slo.attainment());
    families->AddValue("withy_slo_error_budget_ratio",
                       "Share of the misses that the objective allows an app which is left.",
                       MetricType::Gauge, {{"app", slo.app}}, slo.BudgetLeft(objective));
  }
}

// The agent's own data about one process; the files of a restarted process are added up.
struct ProcessTotals {
  bool up = false;
  double start_s = 0;
  double rings = 0;
  double spans = 0;
  double dropped = 0;
  double malformed = 0;
  double untimed = 0;
  double clock_faults = 0;
  double overflows = 0;
};

void AddProcesses(const std::vector<SourceInfo>& sources, const std::vector<std::string>& known,
                  Families* families) {
  std::map<std::string, ProcessTotals> processes;
  for (const std::string& name : known) processes[name];
  for (const SourceInfo& source : sources) {
    ProcessTotals& totals = processes[source.process];
    totals.up = true;
    totals.start_s = std::max(totals.start_s, static_cast<double>(source.start_unix_ns) / 1e9);
    totals.rings += source.rings;
    totals.spans += static_cast<double>(source.spans);
    totals.dropped += static_cast<double>(source.dropped);
    totals.malformed += static_cast<double>(source.malformed);
    totals.untimed += static_cast<double>(source.untimed);
    totals.clock_faults += static_cast<double>(source.clock_faults);
    totals.overflows += static_cast<double>(source.overflows);
  }
  const auto add = [&](const char* name, const char* help, MetricType type,
                       const std::string& process, double value) {
    families->AddValue(name, help, type, {{"process", process}}, value);
  };
  for (const auto& [process, totals] : processes) {
    add("withy_up", "Whether the process runs.", MetricType::Gauge, process, totals.up ? 1 : 0);
    if (!totals.up) continue;
    add("withy_process_start_time_seconds", "Start of the process since the Unix epoch.",
        MetricType::Gauge, process, totals.start_s);
    add("withy_span_rings", "Threads that record spans.", MetricType::Gauge, process, totals.rings);
    add("withy_spans_total", "Spans read.", MetricType::Counter, process, totals.spans);
    add("withy_spans_dropped_total", "Spans lost because a ring was full.", MetricType::Counter,
        process, totals.dropped);
    add("withy_spans_malformed_total", "Spans with invalid fields.", MetricType::Counter, process,
        totals.malformed);
    add("withy_spans_untimed_total",
        "Spans left out because the processor's counter had a fault at their time.",
        MetricType::Counter, process, totals.untimed);
    add("withy_clock_faults_total", "Times that the processor's counter jumped or stopped.",
        MetricType::Counter, process, totals.clock_faults);
    add("withy_telemetry_overflows_total",
        "Names and metrics rejected by a full table or as malformed.", MetricType::Counter, process,
        totals.overflows);
  }
}

double ValueOf(const MetricSample& sample) {
  const double value = sample.kind == MetricKind::kCounter
                           ? static_cast<double>(sample.bits)
                           : static_cast<double>(static_cast<int64_t>(sample.bits));
  if (sample.unit == Unit::kNanoseconds) return value * 1e-9;
  if (sample.unit == Unit::kMillionths) return value * 1e-6;
  return value;
}

// A counter's name must end in _total.
std::string ExportedName(const MetricSample& sample) {
  if (sample.kind == MetricKind::kGauge || sample.name.ends_with("_total")) return sample.name;
  return sample.name + "_total";
}

void AddRegistered(const std::vector<SourceInfo>& sources, Families* families) {
  std::set<std::string> built_in = families->Names();
  built_in.insert({"withy_phase_duration_seconds", "withy_kernel_duration_seconds",
                   "withy_slo_limit_seconds", "withy_queue_seconds", "withy_prompt_tokens",
                   "withy_answer_tokens", "withy_slo_attainment_ratio",
                   "withy_slo_error_budget_ratio"});
  for (const CallFigure& figure : kCallFigures) built_in.insert(figure.family);
  // Files of a process that has just restarted may have equal labels: their values are added.
  std::map<std::pair<std::string, Labels>, double> values;
  for (const SourceInfo& source : sources) {
    for (const MetricSample& sample : source.metrics) {
      const std::string name = ExportedName(sample);
      const MetricType type =
          sample.kind == MetricKind::kCounter ? MetricType::Counter : MetricType::Gauge;
      if (built_in.contains(name) || sample.label_key == "process") continue;
      if (families->Get(name, sample.help.empty() ? "No description." : sample.help, type) ==
          nullptr) {
        continue;
      }
      Labels labels = {{"process", source.process}};
      if (!sample.label_key.empty()) labels.push_back({sample.label_key, sample.label_value});
      values[{name, std::move(labels)}] += ValueOf(sample);
    }
  }
  for (const auto& [key, value] : values) {
    ClientMetric metric;
    metric.label = key.second;
    const MetricType type = families->Get(key.first, "", MetricType::Counter) != nullptr
                                ? MetricType::Counter
                                : MetricType::Gauge;
    SetValue(&metric, type, value);
    families->Get(key.first, "", type)->metric.push_back(std::move(metric));
  }
}

}  // namespace

std::vector<AppSlo> AppSlos(const std::vector<SourceInfo>& sources) {
  std::map<std::string, AppSlo> apps;
  for (const SourceInfo& source : sources) {
    if (source.process != "orchestrator") continue;
    for (const MetricSample& sample : source.metrics) {
      const bool calls = sample.name == "withy_slo_app_calls_total";
      if ((!calls && sample.name != "withy_slo_app_missed_total") || sample.label_key != "app") {
        continue;
      }
      AppSlo& app = apps[sample.label_value];
      app.app = sample.label_value;
      (calls ? app.calls : app.missed) += static_cast<double>(sample.bits);
    }
  }
  std::vector<AppSlo> rows;
  for (auto& [name, app] : apps) rows.push_back(std::move(app));
  return rows;
}

std::vector<MetricFamily> MakeFamilies(const FamilyInput& input) {
  Families families;
  AddPhases(input.phases, &families);
  AddSizes(input.sizes, &families);
  AddProcesses(input.sources, input.known_processes, &families);
  AddSlos(input.sources, input.slo_objective, &families);
  families.AddValue("withy_profile_folded_spans_total",
                    "Spans whose name had no room for a histogram of its own.", MetricType::Counter,
                    {}, static_cast<double>(input.folded_spans));
  AddRegistered(input.sources, &families);
  return families.Take();
}

}  // namespace withy::profiler_agent
