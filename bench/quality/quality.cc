// withy-bench-quality: compares the levels of an elastic model with other ways to make the model
// smaller. Scores exact matches of greedy answers on held-out prompts at every level, with a paired
// test against the first method. Prints a table on stderr, optionally a plot, and one JSON line
// last on stdout. Neighbours: offline/elastic makes the files; elastic.cc measures speed.
//   withy-bench-quality --models ours=elastic.gguf,random=random.gguf,layers@60=dropped-60.gguf
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/charts/line_chart.h"
#include "base/files.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "engine/gguf/reader.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"

ABSL_FLAG(std::vector<std::string>, models, {},
          "NAME=FILE.gguf for every level of an elastic file, NAME@LEVEL=FILE.gguf for a plain "
          "file that stands for one level; what comes first is what the others are compared with");
ABSL_FLAG(int, count, 2400, "held-out prompts");
ABSL_FLAG(int, threads, 2, "threads");
ABSL_FLAG(std::string, plot, "", "SVG file to write");

namespace withy::bench {
namespace {

using nlohmann::json;
using Hits = std::vector<bool>;  // by prompt
struct Method {
  std::string name;
  std::map<int32_t, Hits> levels;
  std::vector<corpus::Task> tasks;  // by prompt
};

double Share(const Hits& hits) {
  return static_cast<double>(std::count(hits.begin(), hits.end(), true)) /
         static_cast<double>(std::max<size_t>(1, hits.size()));
}

// One-sided p-value of McNemar's exact test. Of the prompts that exactly one method gets right, at
// least as many as observed are `other`'s with this probability if both are equally good. Small:
// `other` is better.
double ChanceThatNotBetter(const Hits& own, const Hits& other) {
  int own_alone = 0, other_alone = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    own_alone += own[i] && !other[i] ? 1 : 0;
    other_alone += other[i] && !own[i] ? 1 : 0;
  }
  const int n = own_alone + other_alone;
  double tail = 0;
  for (int k = other_alone; k <= n; ++k)
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) -
                     n * std::log(2.0));
  return std::min(1.0, tail);
}

struct Source {
  std::string name, path;
  int32_t percent = 0;  // 0: all levels of the file
};

absl::StatusOr<Source> ParseSource(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::pair<std::string, std::string> name =
      absl::StrSplit(parts.first, absl::MaxSplits('@', 1));
  Source source{name.first, parts.second, 0};
  const bool number = name.second.empty() || (absl::SimpleAtoi(name.second, &source.percent) &&
                                              source.percent >= 1 && source.percent <= 100);
  if (source.name.empty() || source.path.empty() || !number) {
    return absl::InvalidArgumentError(
        absl::StrCat("--models: \"", text, "\" is neither NAME=FILE nor NAME@LEVEL=FILE"));
  }
  return source;
}

// Checks before minutes of measuring that every file exists and is of the kind its source says.
absl::StatusOr<std::vector<Source>> SourcesFromFlags() {
  std::vector<Source> sources;
  for (const std::string& text : absl::GetFlag(FLAGS_models)) {
    WITHY_ASSIGN_OR_RETURN(const Source source, ParseSource(text));
    sources.push_back(source);
    std::error_code error;
    if (!std::filesystem::is_regular_file(source.path, error)) {
      return absl::NotFoundError(absl::StrCat("--models: \"", text, "\": there is no file ",
                                              source.path, ": name one that is there"));
    }
    if (source.percent == 0) continue;
    WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(source.path));
    WITHY_ASSIGN_OR_RETURN(const engine::ModelShape shape, engine::ReadShape(file));
    WITHY_ASSIGN_OR_RETURN(const engine::LevelTable table, engine::ReadLevels(file, shape));
    if (table.levels.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--models: \"", text, "\": ", source.path,
                                                   " has levels of its own: write ", source.name,
                                                   "=", source.path, " for all of them"));
  }
  return sources;
}

absl::Status Measure(const Source& source, Method* method) {
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle bundle,
                         engine::OpenBundle(source.path, options));
  WITHY_ASSIGN_OR_RETURN(const std::vector<Question> questions,
                         EncodeAll(bundle, corpus::HeldOutSpec(), absl::GetFlag(FLAGS_count)));
  method->tasks.clear();
  for (const Question& question : questions) method->tasks.push_back(question.task);
  const std::vector<engine::LevelInfo>& levels = bundle.model->info().levels;
  std::vector<float> logits;
  for (size_t level = 0; level < levels.size(); ++level) {
    const int32_t percent = source.percent != 0 ? source.percent : levels[level].percent;
    Hits& hits = method->levels[percent];
    hits.clear();
    for (const Question& question : questions) {
      WITHY_RETURN_IF_ERROR(AnswerLogits(*bundle.model, question.prompt, question.answer,
                                         static_cast<int32_t>(level), &logits));
      hits.push_back(AgreedTokens(logits, question.answer) ==
                     static_cast<int32_t>(question.answer.size()));
    }
    std::fprintf(stderr, "%s at %d %%: %.4f\n", source.name.c_str(), percent, Share(hits));
  }
  return absl::OkStatus();
}

std::vector<int32_t> AllPercents(const std::vector<Method>& methods) {
  std::vector<int32_t> percents;
  for (const Method& method : methods) {
    for (const auto& [percent, hits] : method.levels) percents.push_back(percent);
  }
  std::sort(percents.begin(), percents.end());
  percents.erase(std::unique(percents.begin(), percents.end()), percents.end());
  return percents;
}

void PrintTable(const std::vector<Method>& methods) {
  std::fprintf(stderr, "\n%-22s", "accuracy at level, %");
  const std::vector<int32_t> percents = AllPercents(methods);
  for (const int32_t percent : percents) std::fprintf(stderr, " %7d", percent);
  for (const Method& method : methods) {
    std::fprintf(stderr, "\n%-22s", method.name.c_str());
    for (const int32_t percent : percents) {
      const auto it = method.levels.find(percent);
      if (it == method.levels.end()) {
        std::fprintf(stderr, " %7s", "");
        continue;
      }
      const auto own = methods.front().levels.find(percent);
      const bool better = own != methods.front().levels.end() && &method != &methods.front() &&
                          ChanceThatNotBetter(own->second, it->second) < 0.01;
      std::fprintf(stderr, " %6.3f%s", Share(it->second), better ? "*" : " ");
    }
  }
  std::fprintf(stderr, "\n* better than %s, p < 0.01 (McNemar)\n", methods.front().name.c_str());
}

// Share of right answers of one level, by task.
std::map<std::string, double> ShareByTask(const Method& method, const Hits& hits) {
  std::map<std::string, Hits> by_task;
  for (size_t i = 0; i < hits.size(); ++i) {
    by_task[std::string(corpus::TaskName(method.tasks[i]))].push_back(hits[i]);
  }
  std::map<std::string, double> shares;
  for (const auto& [task, own] : by_task) shares[task] = Share(own);
  return shares;
}

void PrintTasks(const Method& method) {
  std::fprintf(stderr, "\n%s, by task", method.name.c_str());
  for (const std::string_view task : corpus::kTaskNames) {
    std::fprintf(stderr, "\n%-22s", std::string(task).c_str());
    for (const auto& [percent, hits] : method.levels) {
      std::fprintf(stderr, " %6.3f ", ShareByTask(method, hits)[std::string(task)]);
    }
  }
  std::fprintf(stderr, "\n");
}

// Mean difference in accuracy, in percentage points, over the levels from 20 to 80 % that both
// have.
std::optional<double> MeanGain(const Method& own, const Method& other) {
  double gain = 0;
  int count = 0;
  for (const auto& [percent, hits] : own.levels) {
    const auto it = other.levels.find(percent);
    if (percent < 20 || percent > 80 || it == other.levels.end()) continue;
    gain += Share(hits) - Share(it->second);
    ++count;
  }
  if (count == 0) return std::nullopt;
  return 100 * gain / count;
}

void PrintJson(const std::vector<Method>& methods) {
  json accuracy = json::object(), by_task = json::object(), gains = json::object();
  json better = json::array();
  const Method& own = methods.front();
  for (const Method& method : methods) {
    for (const auto& [percent, hits] : method.levels) {
      accuracy[method.name][absl::StrCat(percent)] = Share(hits);
      const auto it = own.levels.find(percent);
      if (&method != &own && it != own.levels.end() &&
          ChanceThatNotBetter(it->second, hits) < 0.01) {
        better.push_back(absl::StrCat(method.name, "@", percent));
      }
    }
    if (&method == &own) continue;
    const std::optional<double> gain = MeanGain(own, method);
    gains[method.name] = gain.has_value() ? json(*gain) : json();
  }
  for (const auto& [percent, hits] : own.levels) {
    by_task[absl::StrCat(percent)] = ShareByTask(own, hits);
  }
  std::printf("%s\n", json({{"prompts", absl::GetFlag(FLAGS_count)},
                            {"accuracy", accuracy},
                            {"accuracy_by_task", by_task},
                            {"mean_gain_points_20_to_80", gains},
                            {"significantly_better", better}})
                          .dump()
                          .c_str());
}

absl::Status WritePlot(const std::vector<Method>& methods, const std::string& path) {
  LineChart chart{.title = "Exact match of greedy answers",
                  .x_label = "share of the layers' parameters, %",
                  .y_label = "share right",
                  .lines = {}};
  for (const Method& method : methods) {
    LineChart::Line& line = chart.lines.emplace_back(LineChart::Line{method.name, {}});
    for (const auto& [percent, hits] : method.levels)
      line.points.emplace_back(percent, Share(hits));
  }
  return chart.Write(path);
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("count", absl::GetFlag(FLAGS_count), 1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  WITHY_ASSIGN_OR_RETURN(const std::vector<Source> sources, SourcesFromFlags());
  const std::string plot = absl::GetFlag(FLAGS_plot);
  if (!plot.empty()) {
    std::vector<std::string> inputs;
    for (const Source& source : sources) inputs.push_back(source.path);
    WITHY_RETURN_IF_ERROR(CheckOutput(plot, inputs));
  }
  std::vector<Method> methods;
  for (const Source& source : sources) {
    auto method = std::find_if(methods.begin(), methods.end(),
                               [&](const Method& known) { return known.name == source.name; });
    if (method == methods.end()) method = methods.insert(methods.end(), {source.name, {}, {}});
    WITHY_RETURN_IF_ERROR(Measure(source, &*method));
  }
  PrintTable(methods);
  PrintTasks(methods.front());
  // Printed before the plot, so that nothing is lost if the plot cannot be written.
  PrintJson(methods);
  return plot.empty() ? absl::OkStatus() : WritePlot(methods, plot);
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Accuracy of a model's levels beside other methods.\n"
      "usage: withy-bench-quality --models NAME=FILE.gguf,NAME@LEVEL=FILE.gguf,…",
      argc, argv, withy::bench::Main, [] { return !(absl::GetFlag(FLAGS_models).empty()); });
}
