#include "orchestrator/board/tlm_of_model.h"

#include <spdlog/spdlog.h>

namespace withy::orchestrator {

TlmOfModel::TlmOfModel(const v1::Config& config, const Clock& clock, Workers& workers)
    : clock_(clock), workers_(workers), config_(config) {
  absl::MutexLock lock(&mutex_);
  path_ = TlmReader::PathOf(config_);
  Open();
}

void TlmOfModel::Open() {
  tlm_ = TlmReader::Open(config_, clock_);
  workers_.SetTlmSpeed(tlm_ == nullptr ? 0 : tlm_->us_per_byte());
}

std::shared_ptr<TlmReader> TlmOfModel::For(const v1::GetWorkerInfoResponse& worker) {
  absl::MutexLock lock(&mutex_);
  const std::string& model = worker.model_path();
  if (model.empty() || model == config_.model().path()) return tlm_;
  config_.mutable_model()->set_path(model);
  const std::string path = TlmReader::PathOf(config_);
  if (path == path_) return tlm_;
  spdlog::info("{} is served: TLM {} takes the place of {}", model, path.empty() ? "none" : path,
               path_.empty() ? "none" : path_);
  path_ = path;
  Open();
  return tlm_;
}

std::shared_ptr<TlmReader> TlmOfModel::Last() const {
  absl::MutexLock lock(&mutex_);
  return tlm_;
}

}  // namespace withy::orchestrator
