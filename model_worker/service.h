// ModelWorker on the wire: requests in, answers out. Neighbours: scheduler.h does the work.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/model/model.h"
#include "engine/session/segment.h"
#include "model_worker/model_change.h"
#include "rpc/open_streams.h"
#include "serving/call/scheduler.h"
#include "serving/session/session.h"
#include "store_client/lease_client.h"
#include "wire/answer_defaults.h"
#include "wire/worker_cost.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace withy::model_worker {

// Everything is borrowed and outlives the service.
struct ServiceParts {
  serving::Scheduler& scheduler;
  store_client::LeaseClient& leases;
  const serving::SessionEnv& env;
  engine::Model& model;  // scored texts use it, on the engine thread
  engine::WorkerCost cost;
  engine::AnswerDefaults defaults;
  policy::SpeculationMode speculation;  // of calls that do not say
  rpc::OpenStreams& answers;            // counts those that have not fully been sent
  ModelChange& change;
  std::string model_path = {};     // GetWorkerInfoResponse.model_path
  std::string refused_model = {};  // GetWorkerInfoResponse.refused_model
  std::string warning = {};        // ModelDescription.warning
  // Whether calls may be answered with the weights as they are.
  std::function<absl::Status()> trust_weights = [] { return absl::OkStatus(); };
};

std::unique_ptr<grpc::Service> MakeModelWorkerService(const ServiceParts& parts);

}  // namespace withy::model_worker
