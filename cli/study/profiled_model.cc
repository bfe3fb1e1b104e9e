#include "cli/study/profiled_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "engine/session/kv_errors.h"

namespace withy::cli {
namespace {

using engine::OpKind;
using telemetry::Phase;
using telemetry::SpanKind;

// Holds the spans of kDrainEvery passes of 64 layers.
constexpr uint32_t kRingSpans = 16384;
constexpr uint32_t kDrainEvery = 16;
// A thread that finds no more work records its last operation within this time.
constexpr absl::Duration kSettling = absl::Microseconds(300);

double Us(int64_t ns) { return static_cast<double>(ns) / 1e3; }

const std::map<std::string, OpKind, std::less<>>& OpsByName() {
  static const auto* ops = [] {
    auto* map = new std::map<std::string, OpKind, std::less<>>;
    for (int kind = 0; kind < engine::kOpKinds; ++kind) {
      map->emplace(engine::OpName(static_cast<OpKind>(kind)), static_cast<OpKind>(kind));
    }
    return map;
  }();
  return *ops;
}

// Joins the spans that threads recorded of the same operation: those that do not lie behind all
// others of its kind and layer. All threads leave an operation before one of them begins the next.
// A GPU's operations are queued before those ahead of them end, but it does one after the other.
void JoinKernels(std::vector<SpanLog::Seen> kernels, PassTimes* times) {
  std::sort(kernels.begin(), kernels.end(), [](const SpanLog::Seen& a, const SpanLog::Seen& b) {
    return a.span.started_ns < b.span.started_ns;
  });
  struct Open {
    size_t index;
    int64_t started, ended;
    uint32_t thread;  // that began
  };
  std::map<std::pair<OpKind, uint64_t>, Open> latest;
  std::map<uint32_t, std::pair<OpKind, uint64_t>> last_of_thread;
  for (const SpanLog::Seen& seen : kernels) {
    const auto op = OpsByName().find(seen.name);
    if (op == OpsByName().end()) continue;
    const telemetry::Span& span = seen.span;
    const auto key = std::pair(op->second, span.value);
    auto found = latest.find(key);
    if (found == latest.end() || span.queued_ns >= found->second.ended ||
        (span.thread == found->second.thread && last_of_thread[span.thread] != key)) {
      const Open open{times->ops.size(), span.started_ns, span.ended_ns, span.thread};
      found = latest.insert_or_assign(key, open).first;
      times->ops.push_back({.op = op->second, .layer = static_cast<int32_t>(span.value)});
    }
    last_of_thread[span.thread] = key;
    Open& open = found->second;
    open.ended = std::max(open.ended, span.ended_ns);
    OpTime& time = times->ops[open.index];
    time.wall_us = Us(open.ended - open.started);
    time.busy_us += Us(span.ended_ns - span.started_ns);
    times->busy_us += Us(span.ended_ns - span.started_ns);
  }
}

}  // namespace

double PassTimes::WallOf(OpKind op) const {
  double sum = 0;
  for (const OpTime& time : ops) sum += time.op == op ? time.wall_us : 0;
  return sum;
}

absl::StatusOr<std::unique_ptr<SpanLog>> SpanLog::Open(const std::string& directory) {
  std::unique_ptr<SpanLog> log(new SpanLog(directory));
  WITHY_ASSIGN_OR_RETURN(
      log->recorder_, telemetry::Recorder::Open(directory, "study", {.ring_capacity = kRingSpans}));
  WITHY_ASSIGN_OR_RETURN(log->reader_, telemetry::Reader::Open(directory));
  return log;
}

SpanLog::~SpanLog() {
  reader_.reset();
  recorder_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

uint32_t SpanLog::NextNumber() {
  if (++numbers_ % kDrainEvery == 0) Drain();
  return numbers_;
}

void SpanLog::Drain() {
  const std::vector<absl::Status> problems = reader_->Drain([&](const telemetry::SpanEvent& event) {
    seen_.push_back({std::string(event.name), event.span});
  });
  if (!problems.empty() && problem_.ok()) problem_ = problems.front();
}

absl::StatusOr<std::vector<SpanLog::Seen>> SpanLog::Take() {
  absl::SleepFor(kSettling);
  Drain();
  std::vector<Seen> seen = std::exchange(seen_, {});
  if (const absl::Status problem = std::exchange(problem_, absl::OkStatus()); !problem.ok()) {
    return absl::DataLossError(absl::StrCat("spans of this measurement are lost (",
                                            problem.message(), "): run the study again"));
  }
  if (const uint64_t dropped = recorder_->dropped(); dropped != std::exchange(dropped_, dropped)) {
    return absl::DataLossError(
        absl::StrCat("spans were dropped in ", directory_,
                     ": give that file system room, or use fewer threads (--threads)"));
  }
  return seen;
}

absl::StatusOr<std::unique_ptr<ProfiledModel>> ProfiledModel::Open(const std::string& path,
                                                                   const StudyOptions& options,
                                                                   SpanLog& log) {
  std::unique_ptr<ProfiledModel> profiled(new ProfiledModel(log));
  profiled->path_ = path;
  profiled->stop_ = options.stop;
  profiled->kernels_ = std::make_unique<engine::KernelSpans>(log.recorder());
  profiled->kernels_->set_share(1);  // of every pass: a study counts them
  engine::ModelOptions model = options.model;
  model.kernel_observer = profiled->kernels_.get();
  if (path.starts_with(options.scratch_dir + "/")) model.cache_dir = options.scratch_dir;
  WITHY_ASSIGN_OR_RETURN(profiled->model_, engine::Model::Open(path, model));
  WITHY_ASSIGN_OR_RETURN(profiled->tokenizer_, engine::MakeTokenizer(profiled->model_->metadata()));
  profiled->model_->PinThreads();
  const engine::ModelInfo& info = profiled->info();
  profiled->kernels_->set_layers(info.layers);
  profiled->name_ = info.name;
  profiled->logits_.resize(static_cast<size_t>(info.vocab_size));
  return profiled;
}

absl::Status ProfiledModel::Reserve(int32_t tokens) {
  if (tokens > info().context_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the study needs a context of ", tokens, " tokens; ", path_, " has ", info().context_length,
        ": lower --prompt-tokens, --answer-tokens or --depths"));
  }
  if (tokens > reserved_) kv_ = std::make_unique<engine::ScratchKv>(info(), reserved_ = tokens);
  return absl::OkStatus();
}

absl::Status ProfiledModel::Run(std::span<const int32_t> tokens, int32_t first, int32_t level,
                                Phase phase) {
  std::vector<engine::Row> rows;
  while (!tokens.empty()) {
    rows.resize(std::min<size_t>(tokens.size(), kMostPassRows));
    for (size_t i = 0; i < rows.size(); ++i) {
      const int32_t position = first + static_cast<int32_t>(i);
      rows[i] = {.token = tokens[i],
                 .position = position,
                 .slot = position,
                 .level = level,
                 .want_logits = i + 1 == rows.size()};
    }
    const engine::ContextView view = kv_->View();
    passes_.push_back(log_.NextNumber());
    const engine::Batch batch{.rows = rows, .contexts = {&view, 1}, .tag = {1, passes_.back()}};
    telemetry::ScopedSpan span(log_.recorder(), phase, 1, passes_.back());
    span.set_value(rows.size());
    WITHY_RETURN_IF_ERROR(model().Forward(batch, logits_.data(), stop_));
    span.End();
    tokens = tokens.subspan(rows.size());
    first += static_cast<int32_t>(rows.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> ProfiledModel::Pick(engine::Sampler& sampler, int32_t position,
                                            std::span<const int32_t> history) {
  telemetry::Recorder& recorder = log_.recorder();
  engine::PickTimes times{.clock = recorder.clock()};
  picks_.push_back(log_.NextNumber());
  telemetry::ScopedSpan sampling(recorder, Phase::kSampling, 1, picks_.back());
  WITHY_ASSIGN_OR_RETURN(const engine::Sample sample,
                         sampler.Pick(logits_, static_cast<uint64_t>(position), history, &times));
  sampling.End();
  telemetry::Span span;
  span.call_id = 1;
  span.sequence = picks_.back();
  span.clock = telemetry::ClockOf(times.clock);
  const auto record = [&](Phase phase, int64_t started, int64_t ended) {
    if (started == 0) return;
    span.name = static_cast<uint16_t>(phase);
    span.started_ns = started;
    span.ended_ns = ended;
    recorder.Record(span);
  };
  record(Phase::kCopyProbs, times.copy_started, times.copy_ended);
  record(Phase::kSoftmax, times.softmax_started, times.softmax_ended);
  return sample.id;
}

absl::StatusOr<RunTimes> ProfiledModel::Collect() {
  WITHY_ASSIGN_OR_RETURN(std::vector<SpanLog::Seen> seen, log_.Take());
  std::map<uint32_t, PassTimes> passes;
  std::map<uint32_t, PickParts> picks;
  std::map<uint32_t, std::vector<SpanLog::Seen>> kernels;
  for (SpanLog::Seen& one : seen) {
    const uint32_t number = one.span.sequence;
    const double us = Us(one.span.ended_ns - one.span.started_ns);
    if (one.span.kind == SpanKind::kKernel) {
      kernels[number].push_back(std::move(one));
    } else if (one.name == telemetry::PhaseName(Phase::kEmbedding)) {
      passes[number].embedding_us += us;
    } else if (one.name == telemetry::PhaseName(Phase::kSoftmax)) {
      picks[number].softmax_us += us;
    } else if (one.name == telemetry::PhaseName(Phase::kCopyProbs)) {
      picks[number].copy_us += us;
    } else if (one.name == telemetry::PhaseName(Phase::kSampling)) {
      picks[number].rest_us += us;
    } else {
      passes[number].wall_us += us;
    }
  }
  RunTimes times;
  for (const uint32_t number : std::exchange(passes_, {})) {
    PassTimes& pass = passes[number];
    JoinKernels(std::move(kernels[number]), &pass);
    times.passes.push_back(std::move(pass));
  }
  for (const uint32_t number : std::exchange(picks_, {})) {
    PickParts& pick = picks[number];
    pick.rest_us = std::max(pick.rest_us - pick.softmax_us - pick.copy_us, 0.0);
    times.picks.push_back(pick);
  }
  return times;
}

std::vector<int32_t> ProfiledModel::Tokens(std::string_view text, int32_t count) const {
  const auto wanted = static_cast<size_t>(count);
  // A token has a byte or more: what lies far behind cannot be among the first `count` tokens.
  constexpr size_t kMostBytesPerToken = 64;
  std::vector<int32_t> tokens = tokenizer().Encode(text.substr(0, wanted * kMostBytesPerToken));
  const size_t whole = tokens.size();
  while (whole > 0 && tokens.size() < wanted) tokens.push_back(tokens[tokens.size() - whole]);
  tokens.resize(wanted);
  return tokens;
}

absl::StatusOr<Subjects> OpenSubjects(const StudyOptions& options) {
  Subjects subjects;
  WITHY_ASSIGN_OR_RETURN(subjects.log, SpanLog::Open(options.scratch_dir + "/rings"));
  std::multiset<std::string> names;
  for (const std::string& path : options.models) {
    Tell(options, 0, "opening " + path);
    WITHY_RETURN_IF_ERROR(CheckStop(options));
    WITHY_ASSIGN_OR_RETURN(auto model, ProfiledModel::Open(path, options, *subjects.log));
    names.insert(model->name());
    subjects.models.push_back(std::move(model));
  }
  for (const auto& model : subjects.models) {
    if (names.count(model->name()) > 1) {
      model->set_name(std::filesystem::path(model->path()).stem().string());
    }
    const engine::ModelInfo& info = model->info();
    const auto full = static_cast<int32_t>(info.levels.size()) - 1;
    for (int32_t level = options.levels ? 0 : full; level <= full; ++level) {
      const engine::LevelInfo& cost = info.levels[static_cast<size_t>(level)];
      subjects.all.push_back(
          {.model = model.get(),
           .level = level,
           .name = level == full ? model->name()
                                 : absl::StrCat(model->name(), ", level ", cost.percent, " %"),
           .parameters = static_cast<double>(cost.flops_per_token) / 2,
           .quantisation = info.quantisation});
    }
  }
  return subjects;
}

absl::Status CheckStop(const StudyOptions& options) {
  if (options.stop != nullptr && *options.stop) return absl::CancelledError("interrupted");
  return absl::OkStatus();
}

void Tell(const StudyOptions& options, double done, std::string_view what) {
  if (options.progress) options.progress(done, what);
}

std::string_view StudyText(const StudyOptions& options) {
  return options.text.empty() ? engine::KvErrorText() : std::string_view(options.text);
}

}  // namespace withy::cli
