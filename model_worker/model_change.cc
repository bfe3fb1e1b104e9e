#include "model_worker/model_change.h"

#include <grpcpp/support/server_callback.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/config.h"
#include "base/config/model_choice.h"
#include "base/status.h"
#include "base/thread_role.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/bundle.h"
#include "rpc/daemon.h"
#include "rpc/error_reason.h"
#include "rpc/write_queue.h"
#include "wire/calibration.h"

namespace withy::model_worker {
namespace {

using Queue = rpc::WriteQueue<v1::UseModelResponse>;

// The choice that holds for `config`, if one does.
std::optional<v1::ModelChoice> ChoiceOf(const v1::Config& config) {
  const auto choice = HeldModelChoice(config.state_dir());
  if (!choice.ok()) spdlog::warn("{}", std::string(choice.status().message()));
  if (!choice.ok() || !choice->has_value()) return std::nullopt;
  if ((*choice)->path() != config.model().path()) return std::nullopt;
  return **choice;
}

std::string ConfiguredPath(const v1::Config& config) {
  const std::optional<v1::ModelChoice> choice = ChoiceOf(config);
  return choice.has_value() ? choice->configured_path() : config.model().path();
}

// A failure to write it down costs no answers. False: it was not.
bool Write(const v1::Config& config, const v1::ModelChoice& choice) {
  const absl::Status written = WriteModelChoice(config.state_dir(), choice);
  if (!written.ok()) spdlog::warn("{}", std::string(written.message()));
  return written.ok();
}

// Keeps the choice that is served now, if one is, for the case that `next` cannot be. One of the
// same file is no way back.
absl::Status KeepServed(const v1::Config& config, const v1::ModelChoice& next) {
  const std::optional<v1::ModelChoice> served = ChoiceOf(config);
  const bool keep = !next.path().empty() && served.has_value() && served->served() &&
                    served->path() != next.path();
  return WriteChoiceBefore(config.state_dir(), keep ? *served : v1::ModelChoice());
}

// What was served before the present choice is not needed any more.
void ForgetBefore(const v1::Config& config) {
  const absl::Status removed = WriteChoiceBefore(config.state_dir(), v1::ModelChoice());
  if (!removed.ok()) spdlog::warn("{}", std::string(removed.message()));
}

// A choice of just now that was written for another configured model, as where the configuration
// has come to name what was chosen before: from now on it is for this one. One that has waited for
// room is not of just now: another model.path is how an operator ends that.
absl::Status AdoptChoice(const v1::Config& config) {
  auto choice = ReadModelChoice(config.state_dir());
  if (!choice.ok() || !choice->has_value() || (*choice)->begun() || !(*choice)->failure().empty() ||
      (*choice)->path() == config.model().path()) {
    return absl::OkStatus();
  }
  (*choice)->set_configured_path(config.model().path());
  if (!Write(config, **choice)) return absl::OkStatus();
  return WithReason(absl::AbortedError("a model was chosen for another configuration"),
                    rpc::kBeginAnew);
}

}  // namespace

ModelChange::ModelChange(Parts parts) : parts_(std::move(parts)), thread_(/*limit=*/1) {}
ModelChange::~ModelChange() { End(); }

void ModelChange::End() {
  ended_ = true;
  cancel_ = true;
}

std::string ModelChange::wish() const {
  const absl::MutexLock lock(&mutex_);
  return wish_;
}

absl::Status ModelChange::Choose(const std::string& path,
                                 const std::function<void(double packed)>& on_packed) {
  const std::string file = path.empty() ? ConfiguredPath(parts_.config) : path;
  if (!file.starts_with('/')) {
    return absl::InvalidArgumentError(absl::StrCat("path is \"", file, "\"; it must be absolute"));
  }
  engine::ThreadPool pool(1);  // the present model has the other cores
  WITHY_RETURN_IF_ERROR(engine::PackBundle(file, engine::PackedDir(parts_.config.state_dir()), pool,
                                           on_packed, &cancel_));
  if (cancel_) return absl::CancelledError("the change was given up");
  WITHY_RETURN_IF_ERROR(WriteChosen(parts_.config, file));
  const absl::MutexLock lock(&mutex_);
  wish_ = absl::StrCat("changes to ", file);
  return absl::OkStatus();
}

grpc::ServerWriteReactor<v1::UseModelResponse>* ModelChange::Use(
    grpc::CallbackServerContext* context, const v1::UseModelRequest& request) {
  const std::shared_ptr<Queue> queue = Queue::Create(parts_.answers, context);
  if (busy_.exchange(true)) {
    queue->Close(absl::AbortedError("another change of the model is under way: try again later"));
    return queue->reactor();
  }
  cancel_ = false;
  if (ended_) cancel_ = true;
  queue->OnCancelled([this] { cancel_ = true; });
  const bool posted = thread_.Post([this, queue, path = request.path()] {
    // The present model goes before.
    SetThreadRole(ThreadRole::kComputes);
    constexpr int kLowest = 19;
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowest);
    const absl::Status chosen = Choose(path, [&queue](double packed) {
      if (!queue->HasRoom()) return;
      v1::UseModelResponse response;
      response.set_packed(packed);
      queue->Push(std::move(response));
    });
    if (chosen.ok()) {
      v1::UseModelResponse response;
      response.set_packed(1);
      response.set_changes(true);
      response.set_running_calls(parts_.running_calls());
      queue->Push(std::move(response));
    } else {
      busy_ = false;
    }
    queue->Close(chosen);
  });
  if (!posted) {
    busy_ = false;
    queue->Close(absl::AbortedError("another change has just ended: try again"));
  }
  return queue->reactor();
}

absl::Status WriteChosen(const v1::Config& config, const std::string& path) {
  v1::ModelChoice choice;
  choice.set_configured_path(ConfiguredPath(config));
  if (path != choice.configured_path()) choice.set_path(path);
  WITHY_RETURN_IF_ERROR(KeepServed(config, choice));
  return WriteModelChoice(config.state_dir(), choice);
}

absl::StatusOr<std::unique_ptr<engine::ServedModel>> OpenChosen(
    const v1::Config& config,
    const std::function<absl::StatusOr<std::unique_ptr<engine::ServedModel>>()>& open) {
  WITHY_RETURN_IF_ERROR(AdoptChoice(config));
  std::optional<v1::ModelChoice> choice = ChoiceOf(config);
  if (!choice.has_value() || choice->served()) return open();
  choice->set_begun(true);
  Write(config, *choice);
  auto model = open();
  if (model.ok()) {
    spdlog::info("{} was chosen in place of {}", choice->path(), choice->configured_path());
    choice->set_served(true);
    choice->clear_failure();
    if (Write(config, *choice)) ForgetBefore(config);
    return model;
  }
  choice->set_failure(std::string(model.status().message()));
  if (absl::IsResourceExhausted(model.status())) {  // it will be tried again
    choice->set_begun(false);
    Write(config, *choice);
    return model;
  }
  return Write(config, *choice) ? WithReason(model.status(), rpc::kBeginAnew) : model.status();
}

std::string RefusedChoice(const v1::Config& config) {
  const auto choice = ReadModelChoice(config.state_dir());
  if (!choice.ok() || !choice->has_value() || !(*choice)->begun() || (*choice)->served() ||
      (*choice)->configured_path() != ConfiguredPath(config)) {
    return "";
  }
  const std::string& failure = (*choice)->failure();
  return absl::StrCat((*choice)->path(), " was chosen and cannot be served: ",
                      failure.empty() ? "the process ended while it opened it" : failure);
}

}  // namespace withy::model_worker
