// Statistics after an answer: decision, prediction, measurement.
#pragma once

#include <string>
#include <vector>

#include "withy/v1/llm_service.pb.h"

namespace withy::cli {

// `slo`: the requested one. Without a target there is no verdict.
std::string StatsText(const v1::Slo& slo, const v1::GenerateStarted& started,
                      const v1::GenerateFinished& finished);
// One line for people if the answer was cut; else "".
std::string CutNote(const v1::GenerateFinished& finished);
// "temperature 0.7, top-p 0.95, repetition penalty 1.1, seed 5", or "greedy".
std::string SamplingText(const v1::Sampling& sampling);
// One table row: label, TTFT, TPOT, end to end.
std::vector<std::string> LatencyRow(const std::string& label, const v1::Latency& latency);
// "end of turn", "max tokens", ...
// What speculation did: "12 of 20 drafted tokens accepted (lookup 12 of 20); 2.00
// accepted a pass, 3.00 tokens a pass";
// empty if nothing was drafted.
std::string SpeculationText(const v1::GenerateFinished& finished);
// A table of how much answers of levels agree with the full model's; "" where nothing is known.
std::string LevelPairsText(const v1::GetStatusResponse& status);
std::string ReasonText(v1::FinishReason reason);
// A line for each tool that a message or an answer calls; "" for none.
std::string CallsText(const google::protobuf::RepeatedPtrField<v1::ToolCall>& calls);

}  // namespace withy::cli
