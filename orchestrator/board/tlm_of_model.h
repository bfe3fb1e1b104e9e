// The TLM of the model that is served: a model that takes another's place (withyctl models use)
// brings its own. Neighbours: tlm_reader.h opens one and reads with it; prepare.cc asks for it by
// what the worker says of its model.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/board/tlm_reader.h"
#include "orchestrator/board/workers.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::orchestrator {

// Thread-safe. A TLM lives for as long as a call has it.
class TlmOfModel {
 public:
  // Opens the TLM of the model of `config` (filled); `workers` are told of its speed now and
  // whenever another one is opened.
  TlmOfModel(const v1::Config& config, const Clock& clock, Workers& workers);

  // The TLM of the model that model_worker says it serves, opened now if that is another one than
  // before, for which calls wait; null: there is none. One that the configuration names stays for
  // all models.
  std::shared_ptr<TlmReader> For(const v1::GetWorkerInfoResponse& worker);
  // As it was found last.
  std::shared_ptr<TlmReader> Last() const;

 private:
  void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  Workers& workers_;
  mutable absl::Mutex mutex_;
  v1::Config config_ ABSL_GUARDED_BY(mutex_);  // model.path: of the model that is served
  std::string path_ ABSL_GUARDED_BY(mutex_);   // that was opened, or could not be; empty: none
  // Shared with the calls that it decides for.
  std::shared_ptr<TlmReader> tlm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::orchestrator
