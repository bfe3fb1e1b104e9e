// Changes the model of a running worker (ModelWorker.UseModel): checks and packs the file while the
// present model goes on answering, and writes the choice down. Neighbours: base/config.h keeps the
// choice, which every start applies; process.cc begins anew when `wish` says so.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/session/served_model.h"
#include "rpc/open_streams.h"
#include "serving/call/task_thread.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/model_worker.pb.h"

namespace grpc {
class CallbackServerContext;
template <typename Response>
class ServerWriteReactor;
}  // namespace grpc

namespace withy::model_worker {

// Thread-safe. The destructor ends a file's packing, which the next try begins again.
class ModelChange {
 public:
  struct Parts {
    v1::Config config;  // as it is served: model.path is the present model's
    rpc::OpenStreams& answers;
    std::function<uint32_t()> running_calls;
  };
  explicit ModelChange(Parts parts);
  ~ModelChange();
  ModelChange(const ModelChange&) = delete;
  ModelChange& operator=(const ModelChange&) = delete;

  // Answers UseModel.
  grpc::ServerWriteReactor<v1::UseModelResponse>* Use(grpc::CallbackServerContext* context,
                                                      const v1::UseModelRequest& request);
  // Ends a file's packing, and that of every later request: before the server is shut down, which
  // waits for its streams.
  void End();
  // "changes to FILE" once a choice is written; empty: none is.
  std::string wish() const;

 private:
  absl::Status Choose(const std::string& path, const std::function<void(double packed)>& on_packed);

  const Parts parts_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> cancel_{false};  // the packing that is under way
  std::atomic<bool> busy_{false};
  mutable absl::Mutex mutex_;
  std::string wish_ ABSL_GUARDED_BY(mutex_);
  serving::TaskThread thread_;  // last: it ends before what it uses
};

// Writes down that the model at `path` is chosen from now on (the configured one's path: none is),
// and the choice by which `config`, as it is served, has its model: a way back, until the new one
// has been served. Errors: as WriteModelChoice.
absl::Status WriteChosen(const v1::Config& config, const std::string& path);

// Opens the model of `config` by `open`. Where that is a choice that was never served, writes down
// how it went: one that cannot be opened is given up, so that the next start has the model of
// before, another choice or the configured one; the error then says to begin anew
// (rpc::kBeginAnew). A choice that was served once is not given up: its disk may come late.
absl::StatusOr<std::unique_ptr<engine::ServedModel>> OpenChosen(
    const v1::Config& config,
    const std::function<absl::StatusOr<std::unique_ptr<engine::ServedModel>>()>& open);

// Why the model that was chosen is not served; empty: it is, or none was chosen.
std::string RefusedChoice(const v1::Config& config);

}  // namespace withy::model_worker
