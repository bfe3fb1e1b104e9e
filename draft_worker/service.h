// The gRPC service DraftWorker. Neighbour: answerer.h does the work.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/compute_baton.h"
#include "draft_worker/answerer.h"
#include "engine/session/served_model.h"
#include "rpc/open_streams.h"
#include "wire/answer_defaults.h"
#include "wire/worker_cost.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace withy::draft_worker {

struct DraftServiceOptions {
  size_t queue_limit = 0;
  engine::AnswerDefaults defaults;
  std::string note;               // ModelDescription.note
  std::string warning = {};       // ModelDescription.warning
  ComputeBaton* baton = nullptr;  // by which trees grow while the target waits; null: they do not
};

// All arguments are borrowed and must outlive the service. `answers` counts answers not fully sent.
std::unique_ptr<grpc::Service> MakeDraftWorkerService(Answerer& answerer,
                                                      const engine::ServedModel& model,
                                                      const engine::WorkerCost& cost,
                                                      const DraftServiceOptions& options,
                                                      rpc::OpenStreams& answers);

// The service of a process without a model. Every call gets NOT_FOUND with `why`, which is also its
// status detail.
std::unique_ptr<grpc::Service> MakeNoDraftService(std::string why);

}  // namespace withy::draft_worker
