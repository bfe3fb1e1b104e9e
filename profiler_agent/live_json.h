// The live page and its data. Neighbours: live_page.html asks for the data once a second;
// pages.h serves both. No text of any call is in it.
#pragma once

#include <string>
#include <vector>

#include "profiler_agent/agent.h"
#include "profiler_agent/pages.h"

namespace withy::profiler_agent {

// One object in JSON:
//   now_unix_ms, slo_objective
//   processes  [{name, up, pid, start_unix_s, spans, dropped}]
//   apps       [{app, calls, missed, attainment, budget}]: since the orchestrator started
//   Ids of calls are texts, because a number in a browser has 53 bits.
//   calls      [{id, ago_s, queue_ms, ttft_ms, tpot_ms, end_to_end_ms, prompt, answer, slo_ttft_ms,
//              slo_tpot_ms, slo_end_to_end_ms, met, app, level, prompt_level, why, error,
//              error_text, method, reason, refusals}], oldest first, with those that failed or were
//              refused (method, reason, refusals as CallReport's); met: true, false or null; error:
//              the name of a status or ""
//   trend      [{ago_s, calls, tokens, ttft_ms, ttft_max_ms, tpot_ms, slo_calls, slo_missed}]
//   recent     {covered_s, rows}, and all, the same since the agent started; a row:
//              [process, name, kind, count, total_ms, mean_ms, p99_ms, share]
//   timeline   {seconds, spans: [[process, name, call, start_ms, duration_ms]]} from -seconds to 0
//   last_pass  {process, sequence, kernels: [[name, layer, thread, start_us, duration_us]]}
//   metrics    [[process, name, label, value]]: counters and gauges as the processes keep them
std::string LiveJson(const Agent& agent, double slo_objective);

// The page at "/" and its data at "/live.json". `agent` is borrowed.
std::vector<Page> LivePages(const Agent& agent, double slo_objective);

extern const char kLivePage[];  // live_page.html

}  // namespace withy::profiler_agent
