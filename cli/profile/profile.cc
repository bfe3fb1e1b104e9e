// withyctl profile: what profiler_agent knows of all processes, for the operator on the board.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/call_name.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/profile/profile_text.h"
#include "cli/progress.h"

namespace withy::cli {
namespace {

constexpr int64_t kMostCaptureSeconds = 60;
constexpr int64_t kMostWindowSeconds = 3600;
constexpr int64_t kMostSpans = 100'000;

int RunSummaries(const Args& args, const std::string& kind) {
  const auto window = args.Integer("window-s", 1, kMostWindowSeconds);
  if (!window.ok()) return FailUsage(ToStd(window.status().message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  v1::GetPhasesRequest request;
  request.set_kind(kind);
  request.set_window_s(static_cast<uint32_t>(window->value_or(0)));
  const auto phases = (*client)->GetPhases(request);
  if (!phases.ok()) return Fail(phases.status());
  std::cout << (args.Has("json") ? ToJson(*phases) + "\n"
                                 : SummariesText(*phases, kind, args.Get("process")));
  return kExitOk;
}

int RunPhases(const Args& args) { return RunSummaries(args, "phase"); }
int RunKernels(const Args& args) { return RunSummaries(args, "kernel"); }

void PrintSpan(const Args& args, const v1::Span& span) {
  std::cout << (args.Has("json") ? ToJson(span) + "\n" : SpanText(span));
}

// A file that gets its name only when it is whole.
class NewFile {
 public:
  static absl::StatusOr<NewFile> Create(const std::string& path) {
    NewFile file;
    file.path_ = path;
    file.partial_ = path + ".partial";
    if (std::filesystem::is_directory(path)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is a directory: --out must name a file"));
    }
    file.fd_ = UniqueFd(
        open(file.partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.fd_.valid()) return ErrnoError("create " + file.partial_);
    return file;
  }
  NewFile(NewFile&&) = default;
  ~NewFile() {
    if (fd_.valid()) unlink(partial_.c_str());
  }

  absl::Status Append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t wrote = write(fd_.get(), bytes.data(), bytes.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return ErrnoError("write " + partial_);
      bytes.remove_prefix(static_cast<size_t>(wrote));
      bytes_ += static_cast<uint64_t>(wrote);
    }
    return absl::OkStatus();
  }
  absl::Status Finish() {
    if (rename(partial_.c_str(), path_.c_str()) != 0) return ErrnoError("rename to " + path_);
    fd_.Reset();
    return absl::OkStatus();
  }
  uint64_t bytes() const { return bytes_; }

 private:
  NewFile() = default;

  std::string path_;
  std::string partial_;
  UniqueFd fd_;
  uint64_t bytes_ = 0;
};

int RunTimeline(const Args& args) {
  const auto seconds = args.Integer("seconds", 1, kMostCaptureSeconds);
  if (!seconds.ok()) return FailUsage(ToStd(seconds.status().message()));
  const std::string path = args.Get("out");
  if (path.empty()) return FailUsage("--out must name the file to write");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  auto file = NewFile::Create(path);
  if (!file.ok()) return Fail(file.status());
  v1::CaptureTimelineRequest request;
  request.set_seconds(static_cast<uint32_t>(seconds->value_or(5)));
  absl::Status written;
  v1::TimelineSummary summary;
  bool began = false;
  const absl::Status captured =
      (*client)->CaptureTimeline(request, [&](const v1::CaptureTimelineResponse& piece) {
        if (!std::exchange(began, true)) {
          std::cerr << "withyctl: recording for " << Counted(request.seconds(), "second") << "\n";
        }
        if (written.ok()) written = file->Append(piece.trace());
        if (piece.has_summary()) summary = piece.summary();
        return written.ok();
      });
  if (!written.ok()) return Fail(written);
  if (!captured.ok()) return Fail(captured);
  if (const absl::Status done = file->Finish(); !done.ok()) return Fail(done);
  std::cout << TimelineText(summary, path, file->bytes());
  return kExitOk;
}

// The call that --call names; none without it.
absl::StatusOr<std::optional<uint64_t>> CallOf(const Args& args) {
  if (!args.Has("call")) return std::nullopt;
  const std::optional<uint64_t> call = ParseCallName(args.Get("call"));
  if (call.has_value()) return call;
  return absl::InvalidArgumentError(
      absl::StrCat("--call is \"", args.Get("call"),
                   "\": it must be the id of a call, up to 16 hexadecimal digits"));
}

int RunSpans(const Args& args) {
  const auto call = CallOf(args);
  if (!call.ok()) return FailUsage(ToStd(call.status().message()));
  const auto limit = args.Integer("limit", 1, kMostSpans);
  if (!limit.ok()) return FailUsage(ToStd(limit.status().message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  v1::GetSpansRequest request;
  request.set_call_id(call->value_or(0));
  request.set_limit(static_cast<uint32_t>(limit->value_or(0)));
  const auto spans = (*client)->GetSpans(request);
  if (!spans.ok()) return Fail(spans.status());
  for (const v1::Span& span : spans->spans()) PrintSpan(args, span);
  return kExitOk;
}

int RunWatch(const Args& args) {
  const auto seconds = args.Integer("seconds", 1, kMostWindowSeconds);
  if (!seconds.ok()) return FailUsage(ToStd(seconds.status().message()));
  const auto call = CallOf(args);
  if (!call.ok()) return FailUsage(ToStd(call.status().message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  v1::WatchSpansRequest request;
  request.set_call_id(call->value_or(0));
  request.set_kernels(args.Has("kernels"));
  uint64_t dropped = 0;
  const absl::Status watched = (*client)->WatchSpans(
      request, absl::Seconds(seconds->value_or(10)), [&](const v1::WatchSpansResponse& message) {
        for (const v1::Span& span : message.spans()) {
          PrintSpan(args, span);
        }
        std::cout.flush();
        dropped = message.dropped();
        return true;
      });
  if (!watched.ok()) return Fail(watched);
  if (dropped > 0) {
    std::cerr << "withyctl: " << Counted(dropped, "span")
              << " left out, because they came faster than they were printed\n";
  }
  return kExitOk;
}

std::vector<Flag> SummaryFlags() {
  return WithConnection(
      {{"window-s", "N",
        "look at the last N seconds, as far as spans are kept (default: since the agent started)"},
       {"process", "NAME", "only this process"},
       {"json", "", "print JSON"}});
}

}  // namespace

std::vector<Command> ProfileCommands() {
  return {{"profile phases", "",
           "where the time of calls goes: share, count, mean and p99 of each phase", SummaryFlags(),
           RunPhases},
          {"profile kernels", "",
           "where the time of passes goes: share, count, mean and p99 of each kernel",
           SummaryFlags(), RunKernels},
          {"profile timeline", "",
           "record all processes for some seconds into a trace that ui.perfetto.dev opens",
           WithConnection({{"seconds", "N", "length, 1 to 60 (default 5)"},
                           {"out", "FILE", "the file to write, for example trace.perfetto-trace"}}),
           RunTimeline},
          {"profile spans", "", "print the latest spans, or those of one call",
           WithConnection(
               {{"call", "ID", "only spans of this call, as `withyctl generate` and logs name it"},
                {"limit", "N", "how many at most, up to 100000 (default 1000)"},
                {"json", "", "print JSON, one span a line"}}),
           RunSpans},
          {"profile watch", "", "print spans as they come",
           WithConnection(
               {{"seconds", "N", "how long (default 10)"},
                {"call", "ID", "only spans of this call, as `withyctl generate` and logs name it"},
                {"kernels", "", "kernels, too"},
                {"json", "", "print JSON, one span a line"}}),
           RunWatch}};
}

}  // namespace withy::cli
