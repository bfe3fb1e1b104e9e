// withyctl profile study: runs one of LM-Meter's studies on this board, in this process. Neighbour:
// study/study.h measures.
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/config.h"
#include "base/files.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/stop_signals.h"
#include "cli/study/requantize.h"
#include "cli/study/study.h"
#include "engine/gguf/reader.h"
#include "engine/session/recommended_sampling.h"
#include "wire/answer_defaults.h"

namespace withy::cli {
namespace {

constexpr int64_t kMostRounds = 1000;
constexpr int64_t kMostTokens = 1 << 20;
constexpr int64_t kMostTextBytes = int64_t{1} << 28;

// An empty directory, removed with all that it holds.
class ScratchDirectory {
 public:
  static absl::StatusOr<ScratchDirectory> Create() {
    std::error_code error;
    std::string pattern =
        (std::filesystem::temp_directory_path(error) / "withy-study-XXXXXX").string();
    if (error || mkdtemp(pattern.data()) == nullptr) {
      return Annotate(ErrnoError("create " + pattern),
                      "no room for temporary files; TMPDIR names their directory");
    }
    return ScratchDirectory(std::move(pattern));
  }
  ScratchDirectory(ScratchDirectory&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

absl::StatusOr<std::string> TextOf(const Args& args, const std::string& flag) {
  const std::string path = args.Get(flag);
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " ", path, ": ", error.message(), "; give a file of text"));
  }
  if (bytes > static_cast<uint64_t>(kMostTextBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", path, " has ", bytes,
                                                   " bytes; the limit is ", kMostTextBytes));
  }
  WITHY_ASSIGN_OR_RETURN(std::string text, ReadRegularFile(path, kMostTextBytes));
  if (text.empty())
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " ", path, " is empty"));
  return text;
}

// The numbers of a list such as 16,64,256.
absl::StatusOr<std::vector<double>> Numbers(const Args& args, const std::string& flag) {
  std::vector<double> numbers;
  for (const absl::string_view part : absl::StrSplit(args.Get(flag), ',')) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || !std::isfinite(number)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " takes numbers such as 1,10,100; \"", part, "\" is none"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::Status ReadCount(const Args& args, const char* flag, int64_t low, int64_t high,
                       int32_t* value) {
  WITHY_ASSIGN_OR_RETURN(const auto given, args.Integer(flag, low, high));
  if (given) *value = static_cast<int32_t>(*given);
  return absl::OkStatus();
}

absl::Status ReadCounts(const Args& args, StudyOptions* options) {
  WITHY_RETURN_IF_ERROR(ReadCount(args, "rounds", 1, kMostRounds, &options->rounds));
  WITHY_RETURN_IF_ERROR(ReadCount(args, "prompt-tokens", 1, kMostTokens, &options->prompt_tokens));
  WITHY_RETURN_IF_ERROR(ReadCount(args, "answer-tokens", 2, kMostTokens, &options->answer_tokens));
  WITHY_RETURN_IF_ERROR(ReadCount(args, "text-tokens", 1, kMostTokens, &options->text_tokens));
  WITHY_RETURN_IF_ERROR(ReadCount(args, "bins", 1, 1000, &options->bins));
  WITHY_RETURN_IF_ERROR(ReadCount(args, "threads", 1, 256, &options->model.threads));
  WITHY_ASSIGN_OR_RETURN(const auto seed, args.Unsigned("seed"));
  options->seed = seed.value_or(options->seed);
  WITHY_ASSIGN_OR_RETURN(const auto share, args.Number("share"));
  options->share = share.value_or(options->share);
  if (!(options->share > 0 && options->share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--share is ", args.Get("share"), ": it must be above 0 and at most 1"));
  }
  return absl::OkStatus();
}

absl::Status ReadLists(const Args& args, StudyOptions* options) {
  if (args.Has("types")) {
    options->types = absl::StrSplit(args.Get("types"), ',');
    for (const std::string& type : options->types) {
      WITHY_RETURN_IF_ERROR(Annotate(FindWritableType(type).status(), "--types"));
    }
  }
  if (args.Has("depths")) {
    WITHY_ASSIGN_OR_RETURN(const std::vector<double> depths, Numbers(args, "depths"));
    for (const double depth : depths) {
      if (!(depth >= 1 && depth <= kMostTokens)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--depths has ", depth, ": depths are 1 to ", kMostTokens));
      }
      options->depths.push_back(static_cast<int32_t>(depth));
    }
  }
  if (args.Has("pauses")) {
    WITHY_ASSIGN_OR_RETURN(options->pauses_s, Numbers(args, "pauses"));
  }
  return absl::OkStatus();
}

absl::Status ReadTexts(const Args& args, StudyOptions* options) {
  options->text_name = "the text that comes with withy";
  if (args.Has("text")) {
    WITHY_ASSIGN_OR_RETURN(options->text, TextOf(args, "text"));
    options->text_name = args.Get("text");
  }
  if (args.Has("prompts")) {
    WITHY_ASSIGN_OR_RETURN(const std::string prompts, TextOf(args, "prompts"));
    options->prompts = absl::StrSplit(prompts, '\n', absl::SkipEmpty());
  }
  return absl::OkStatus();
}

// The sampling of a service with this model: the configuration's if it is the configured one, else
// the file's recommendation, else the built-in one.
engine::SamplingParams ServedSampling(const v1::Config& config, const std::string& model) {
  const bool configured = config.model().path() == model;
  engine::RecommendedSampling recommended;
  if (const auto file = engine::GgufFile::Open(model); file.ok()) {
    recommended = engine::ReadRecommendedSampling(*file);
  }
  return engine::ParamsOf(engine::DefaultsFor(configured ? config.model() : v1::ModelConfig(),
                                              recommended, std::numeric_limits<int32_t>::max())
                              .sampling);
}

absl::Status ReadModels(const Args& args, const v1::Config& config, StudyOptions* options) {
  options->models = args.GetAll("model");
  if (options->models.empty()) options->models.push_back(config.model().path());
  for (const std::string& path : options->models) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      return absl::NotFoundError(
          absl::StrCat("the model ", path, " does not exist: --model names a GGUF or packed file"));
    }
  }
  options->sampling = ServedSampling(config, options->models.front());
  if (args.Has("greedy")) options->sampling = {};
  options->sampling.seed = options->seed;
  // The directory of a service's packed files, where this user may write to it.
  const std::string shared = config.state_dir() + "/packed";
  if (CheckOutput(shared + "/study", {}).ok()) options->model.cache_dir = shared;
  if (options->model.threads == 0) {
    options->model.threads = static_cast<int32_t>(config.model().threads());
  }
  if (options->model.threads == 0) {
    options->model.threads =
        static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  }
  return absl::OkStatus();
}

// The directory is there and files can be written to it.
absl::Status PrepareOut(const std::string& directory, std::string_view study) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("--out ", directory, ": ", error.message(), "; name a directory to write to"));
  }
  return Annotate(CheckOutput(absl::StrCat(directory, "/", ToAbsl(study), ".json"), {}),
                  "--out " + directory);
}

absl::Status WriteReport(const StudyReport& report, const std::string& directory) {
  const auto write = [&](const std::string& file, std::string_view bytes) {
    const std::string path = absl::StrCat(directory, "/", file);
    WITHY_RETURN_IF_ERROR(WriteAtomically(path, bytes));
    std::cerr << "wrote " << path << "\n";
    return absl::OkStatus();
  };
  WITHY_RETURN_IF_ERROR(write(report.study + ".json", ReportJson(report) + "\n"));
  for (const StudyPlot& plot : report.plots) {
    WITHY_RETURN_IF_ERROR(write(plot.file, plot.svg));
  }
  return absl::OkStatus();
}

absl::StatusOr<StudyOptions> OptionsFromArgs(const Args& args) {
  StudyOptions options;
  WITHY_RETURN_IF_ERROR(ReadCounts(args, &options));
  WITHY_RETURN_IF_ERROR(ReadLists(args, &options));
  WITHY_RETURN_IF_ERROR(ReadTexts(args, &options));
  options.levels = args.Has("levels");
  options.whole_set = args.Has("whole-set");
  return options;
}

absl::StatusOr<StudyReport> Study(const Args& args, const std::string& name, StudyOptions options) {
  WITHY_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(args.Get("config")));
  WITHY_RETURN_IF_ERROR(ReadModels(args, config, &options));
  if (args.Has("out")) WITHY_RETURN_IF_ERROR(PrepareOut(args.Get("out"), name));
  WITHY_ASSIGN_OR_RETURN(const ScratchDirectory scratch, ScratchDirectory::Create());
  options.scratch_dir = scratch.path();
  StopOnSignals();
  options.stop = &StopRequested();
  ProgressBar bar(Clock::Real());
  options.progress = [&](double done, std::string_view what) { bar.Update(done, what); };
  auto report = RunStudy(name, options);
  if (absl::IsCancelled(report.status())) {
    return absl::CancelledError("interrupted; nothing was written");
  }
  return report;
}

int RunProfileStudy(const Args& args) {
  const std::vector<std::string> names = StudyNames();
  const std::string all = absl::StrJoin(names, ", ");
  if (args.positional().size() != 1) {
    return FailUsage(absl::StrCat("profile study takes one study: ", all));
  }
  const std::string& name = args.positional()[0];
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return FailUsage(absl::StrCat("there is no study \"", name, "\": there are ", all));
  }
  auto options = OptionsFromArgs(args);
  if (!options.ok()) return FailUsage(ToStd(options.status().message()));
  const auto report = Study(args, name, *std::move(options));
  if (!report.ok()) return Fail(report.status());
  std::cout << (args.Has("json") ? ReportJson(*report) + "\n" : ReportText(*report));
  if (args.Has("out")) {
    if (const absl::Status written = WriteReport(*report, args.Get("out")); !written.ok()) {
      return Fail(written);
    }
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> ProfileStudyCommands() {
  return {{"profile study",
           "STUDY",
           absl::StrCat("measure models on this board without a service, as LM-Meter does: ",
                        absl::StrJoin(StudyNames(), ", ")),
           {{"model", "FILE",
             "GGUF or packed file; again for each to compare (default: the configuration's "
             "model.path)"},
            {"out", "DIR", "write STUDY.json and plots (SVG) there"},
            {"levels", "", "each level of an elastic model, too (not: quantization, sampling)"},
            {"rounds", "N",
             "samples of each thing that is compared, besides one that warms up "
             "(default 7)"},
            {"prompt-tokens", "N", "tokens of a prompt (default 128)"},
            {"answer-tokens", "N",
             "tokens of an answer (default 32; idle: the longest of 16, 64, ...)"},
            {"threads", "N", "compute threads (default: the configuration's model.threads)"},
            {"greedy", "", "take the likeliest token, as the paper does (default: as the service)"},
            {"text", "FILE", "text to compute, and to judge quality by (default: a short one)"},
            {"text-tokens", "N", "quantization: tokens of the text that are read (default 4096)"},
            {"types", "LIST",
             "quantization: also compare the first model rewritten as f32, f16, bf16, q8_0, q4_0, "
             "q4_1"},
            {"depths", "LIST", "kv-length: tokens in the KV (default: nine up to 2048)"},
            {"pauses", "LIST", "idle: pauses in seconds (default 0,0.01,0.1,1,3,10)"},
            {"prompts", "FILE", "sampling: the set of prompts, one a line"},
            {"share", "X", "sampling: the share of them in a subset (default 0.1)"},
            {"whole-set", "", "sampling: measure all prompts, to say what subsets err by"},
            {"bins", "N", "sampling: bins of the lengths' histogram (default 20)"},
            {"seed", "N", "default 1"},
            {"config", "FILE", "the service's configuration (default /etc/withy/withy.textproto)"},
            {"json", "", "print JSON"}},
           RunProfileStudy}};
}

}  // namespace withy::cli
