// What `withyctl score` prints for people. Neighbour: score.cc.
#pragma once

#include <string>

#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

struct ScoreSummary {
  std::string model;
  std::string reference_model;
  v1::ScoreRequest request;  // its settings
  v1::ScoreResult result;
};

std::string ScoreSummaryText(const ScoreSummary& summary);

}  // namespace withy::cli
