// GetStatus: what all five processes say of themselves, asked at the same time under a short
// deadline.
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "orchestrator/gateway.h"
#include "rpc/daemon.h"

namespace withy::orchestrator {
namespace {

template <typename Response>
void Fill(const absl::StatusOr<Response>& info, v1::ProcessState* state) {
  if (info.ok()) {
    *state->mutable_status() = info->status();
    state->mutable_status()->set_process(state->process());
    return;
  }
  if (state->health() == "serving") state->set_health("not serving");
  // Why, by what it says itself: it may wait for room.
  state->mutable_status()->set_process(state->process());
  state->mutable_status()->set_detail(std::string(info.status().message()));
}

std::string TlmInUse(const TlmReader* tlm) {
  if (tlm == nullptr) return "no TLM";
  return absl::StrCat("TLM ", tlm->description().name(), "; ",
                      tlm->calibrated() ? "calibrated" : "not calibrated");
}

}  // namespace

v1::GetStatusResponse Gateway::GetStatus(absl::Time deadline) {
  v1::GetStatusResponse response;
  v1::ProcessState* self = response.add_processes();
  self->set_process("orchestrator");
  const std::string why = readiness_.Why();
  self->set_health(why.empty() ? "serving" : "not serving");
  rpc::FillProcessStatus("orchestrator", self->mutable_status());
  const policy::Admission::Counts counts = calls_.counts();
  self->mutable_status()->set_running_calls(counts.running);
  self->mutable_status()->set_queued_calls(counts.waiting);
  self->mutable_status()->set_queue_limit(counts.limit);
  if (auditor_ != nullptr) {
    for (v1::LevelPairChance& pair : auditor_->Report()) {
      *response.add_level_pairs() = std::move(pair);
    }
  }

  const std::pair<const char*, std::function<void(v1::ProcessState*)>> others[] = {
      {"model_worker",
       [&](auto* s) {
         const auto info = backends_.WorkerInfo(policy::Lane::kTarget, deadline, false);
         if (info.ok()) tlm_.For(*info);
         Fill(info, s);
       }},
      {"draft_worker",
       [&](auto* s) { Fill(backends_.WorkerInfo(policy::Lane::kDraft, deadline, false), s); }},
      {"context_store", [&](auto* s) { Fill(backends_.StoreInfo(deadline), s); }},
      {"profiler_agent", [&](auto* s) { Fill(backends_.ProfilerInfo(deadline), s); }},
  };
  std::vector<std::thread> threads;
  for (const auto& [process, ask] : others) {
    v1::ProcessState* state = response.add_processes();
    state->set_process(process);
    threads.emplace_back([this, state, &ask = ask, deadline] {
      state->set_health(backends_.Health(state->process(), deadline));
      if (state->health() != "unreachable") ask(state);
    });
  }
  for (std::thread& thread : threads) thread.join();
  self->mutable_status()->set_detail(why.empty() ? TlmInUse(tlm_.Last().get()) : why);
  return response;
}

}  // namespace withy::orchestrator
