// What people want to know after an answer: decided, predicted, measured.
#pragma once

#include <string>
#include <vector>

#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// `slo` as it was asked for: without a target in it there is no verdict.
std::string StatsText(const v1::Slo& slo, const v1::GenerateStarted& started,
                      const v1::GenerateFinished& finished);
// A line for people where the answer was cut; "" where it was not.
std::string CutNote(const v1::GenerateFinished& finished);
// "temperature 0.7, top-p 0.95, repetition penalty 1.1, seed 5", or "greedy".
std::string SamplingText(const v1::Sampling& sampling);
// A table row: label, TTFT, TPOT, end to end.
std::vector<std::string> LatencyRow(const std::string& label, const v1::Latency& latency);
// "end of turn", "max tokens", ...
std::string ReasonText(v1::FinishReason reason);

}  // namespace withy::cli
