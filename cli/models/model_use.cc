#include "cli/models/model_use.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/config.h"
#include "base/config/model_choice.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/terminal_text.h"
#include "engine/weights/packer.h"
#include "wire/calibration.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;

// Waits until another process of the worker answers than `before`.
absl::StatusOr<v1::GetWorkerInfoResponse> WaitForNext(Client& client, uint64_t before) {
  constexpr absl::Duration kLongest = absl::Minutes(15);
  constexpr absl::Duration kPause = absl::Milliseconds(250);
  const absl::Time end = absl::Now() + kLongest;
  while (true) {
    auto info = client.GetWorkerInfo();
    if (info.ok() && info->instance() != before) return info;
    if (absl::Now() >= end) {
      return absl::DeadlineExceededError(
          "model_worker has not served again for 15 minutes: `withyctl status` and its log say "
          "why");
    }
    absl::SleepFor(kPause);
  }
}

// A file that is here, and that the worker does not find or may not read.
absl::Status WithPlace(const absl::Status& error, const std::string& path) {
  std::error_code ignored;
  const bool hidden = absl::IsNotFound(error) || absl::IsPermissionDenied(error);
  if (!hidden || !fs::exists(path, ignored)) return error;
  return absl::Status(
      error.code(),
      absl::StrCat(error.message(),
                   ": the file is there, but model_worker cannot see it; put it "
                   "outside of /home, /root and /tmp, readable for the worker's user"));
}

// The packed files that the configuration, or a choice, has a use for.
std::set<std::string> UsedPacked(const v1::Config& config) {
  std::set<std::string> sources = {config.model().path(), config.draft().path()};
  for (const auto& choice :
       {ReadModelChoice(config.state_dir()), ReadChoiceBefore(config.state_dir())}) {
    if (choice.ok() && choice->has_value()) {
      sources.insert({(*choice)->path(), (*choice)->configured_path()});
    }
  }
  std::set<std::string> packed;
  const std::string dir = engine::PackedDir(config.state_dir());
  for (const std::string& source : sources) {
    std::error_code ignored;
    packed.insert({engine::PackedPath(source, dir), fs::weakly_canonical(source, ignored)});
  }
  return packed;
}

struct PackedModel {
  std::string path;
  uint64_t bytes = 0;
  bool used = false;
};

absl::StatusOr<std::vector<PackedModel>> ListPacked(const v1::Config& config) {
  const std::string dir = engine::PackedDir(config.state_dir());
  const std::set<std::string> used = UsedPacked(config);
  std::vector<PackedModel> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string path = entry.path().string();
    std::error_code gone;
    const uint64_t bytes = entry.file_size(gone);
    if (!path.ends_with(".withy") || gone) continue;
    std::error_code ignored;
    const bool in_use =
        used.contains(path) || used.contains(fs::weakly_canonical(path, ignored).string());
    models.push_back({path, bytes, in_use});
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return absl::ErrnoToStatus(error.value(), "cannot list " + dir);
  }
  std::ranges::sort(models, {}, &PackedModel::path);
  return models;
}

// The file, and what is kept beside it, but for its lock: two would hold it otherwise.
absl::Status Remove(const std::string& path) {
  for (const char* beside : {"", ".checked", ".source", ".damaged"}) {
    std::error_code error;
    fs::remove(path + beside, error);
    if (error) return absl::ErrnoToStatus(error.value(), "cannot remove " + path + beside);
  }
  return absl::OkStatus();
}

}  // namespace

int RunUse(const Args& args) {
  const bool configured = args.Has("configured");
  if (args.positional().size() != (configured ? 0u : 1u)) {
    return FailUsage("models use takes one FILE, or --configured");
  }
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto before = (*client)->GetWorkerInfo();
  if (!before.ok()) return Fail(before.status());
  v1::UseModelRequest request;
  if (!configured) request.set_path(fs::absolute(args.positional()[0]).lexically_normal().string());
  absl::Status changes;
  {
    ProgressBar bar(Clock::Real());
    changes = (*client)->UseModel(request, [&](const v1::UseModelResponse& response) {
      bar.Update(response.packed(), "packing");
    });
  }
  if (!changes.ok()) return Fail(WithPlace(changes, request.path()));
  const auto after = WaitForNext(**client, before->instance());
  if (!after.ok()) return Fail(after.status());
  if (!configured && after->model_path() != request.path()) {
    return Fail(absl::FailedPreconditionError(
        after->refused_model().empty()
            ? absl::StrCat(after->model_path(), " is served, not ", request.path())
            : after->refused_model()));
  }
  std::cout << "serves " << Printable(after->model().name()) << " (" << after->model_path()
            << ")\n";
  return kExitOk;
}

int RunPacked(const Args& args) {
  if (!args.positional().empty()) return FailUsage("models packed takes no operand");
  const auto config = LoadConfig(args.Get("config"));
  if (!config.ok()) return Fail(config.status());
  const auto models = ListPacked(*config);
  if (!models.ok()) return Fail(models.status());
  std::vector<std::vector<std::string>> rows = {{"FILE", "BYTES", "USE"}};
  for (const PackedModel& model : *models) {
    const bool remove = !model.used && args.Has("remove-unused");
    if (remove) {
      if (const absl::Status removed = Remove(model.path); !removed.ok()) return Fail(removed);
    }
    rows.push_back({Printable(model.path), Bytes(model.bytes),
                    model.used ? "named"
                    : remove   ? "removed"
                               : "none"});
  }
  std::cout << Table(rows);
  return kExitOk;
}

}  // namespace withy::cli
