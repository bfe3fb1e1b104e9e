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

void AddPhases(const std::vector<PhaseRow>& phases, Families* families) {
  for (const PhaseRow& row : phases) {
    const CallFigure* figure = nullptr;
    for (const CallFigure& candidate : kCallFigures) {
      if (row.kind == SpanKind::kPhase && row.name == candidate.span) figure = &candidate;
    }
    if (figure != nullptr) {
      MetricFamily* family = families->Get(figure->family, figure->help, MetricType::Histogram);
      families->AddHistogram(family, {{"process", row.process}}, row.histogram);
    } else if (row.kind == SpanKind::kKernel) {
      MetricFamily* family = families->Get("withy_kernel_duration_seconds", "Time of one kernel.",
                                           MetricType::Histogram);
      families->AddHistogram(family, {{"process", row.process}, {"kernel", row.name}},
                             row.histogram);
    } else {
      MetricFamily* family =
          families->Get("withy_phase_duration_seconds",
                        "Time spent in one phase of a call, by process.", MetricType::Histogram);
      families->AddHistogram(family, {{"process", row.process}, {"phase", row.name}},
                             row.histogram);
    }
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
    totals.overflows += static_cast<double>(source.overflows);
  }
  const auto add = [&](const char* name, const char* help, MetricType type,
                       const std::string& process, double value) {
    ClientMetric metric;
    metric.label = {{"process", process}};
    SetValue(&metric, type, value);
    families->Get(name, help, type)->metric.push_back(std::move(metric));
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
  built_in.insert({"withy_phase_duration_seconds", "withy_kernel_duration_seconds"});
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

std::vector<MetricFamily> MakeFamilies(const std::vector<PhaseRow>& phases,
                                       const std::vector<SourceInfo>& sources,
                                       const std::vector<std::string>& known_processes) {
  Families families;
  AddPhases(phases, &families);
  AddProcesses(sources, known_processes, &families);
  AddRegistered(sources, &families);
  return families.Take();
}

}  // namespace withy::profiler_agent
