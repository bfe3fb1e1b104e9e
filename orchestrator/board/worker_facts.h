// What the model of a worker allows, for validation.
#pragma once

#include "orchestrator/call/validate.h"
#include "policy/call/admission.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {

inline ModelLimits LimitsOf(policy::Lane lane, const v1::ModelDescription& model) {
  ModelLimits limits;
  limits.context_length = model.context_length();
  limits.vocabulary = model.vocabulary();
  limits.levels_percent.assign(model.levels_percent().begin(), model.levels_percent().end());
  if (limits.levels_percent.empty()) limits.levels_percent.push_back(100);
  limits.keeps_contexts = lane == policy::Lane::kTarget;
  return limits;
}

}  // namespace withy::orchestrator
