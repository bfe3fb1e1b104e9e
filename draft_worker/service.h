// DraftWorker on the wire. Neighbours: answerer.h does the work.
#pragma once

#include <memory>

#include "draft_worker/answerer.h"
#include "engine/session/served_model.h"
#include "rpc/open_streams.h"
#include "worker_wire/answer_defaults.h"
#include "worker_wire/worker_cost.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace withy::draft_worker {

// Everything is borrowed and outlives the service. `answers` counts those not fully sent.
std::unique_ptr<grpc::Service> MakeDraftWorkerService(
    Answerer& answerer, const engine::ServedModel& model, const engine::WorkerCost& cost,
    const engine::AnswerDefaults& defaults, size_t queue_limit, rpc::OpenStreams& answers);

}  // namespace withy::draft_worker
