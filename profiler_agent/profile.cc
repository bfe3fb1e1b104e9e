#include "profiler_agent/profile.h"

#include <algorithm>
#include <tuple>

namespace withy::profiler_agent {

uint16_t Profile::IdOf(std::string_view text) {
  const auto known = ids_.find(text);
  if (known != ids_.end()) return known->second;
  if (texts_.size() >= kTextLimit - 1 && text != "other") return IdOf("other");
  const auto id = static_cast<uint16_t>(texts_.size());
  const auto [place, added] = ids_.emplace(std::string(text), id);
  texts_.push_back(&place->first);
  return id;
}

void Profile::Add(const telemetry::SpanEvent& event) {
  const uint16_t process = IdOf(event.process);
  const uint16_t name = IdOf(event.name);
  ++spans_seen_;
  if (spans_.size() >= span_limit_) spans_.pop_front();
  spans_.push_back({event.span, event.pid, process, name});

  const PhaseKey key{process, name, event.span.kind};
  auto phase = phases_.find(key);
  if (phase == phases_.end()) {
    if (phases_.size() >= kPhaseLimit) {
      ++phase_overflows_;
      return;
    }
    phase = phases_.try_emplace(key).first;
  }
  phase->second.Add(event.span.ended_ns - event.span.started_ns);
}

std::vector<SpanRow> Profile::Spans(uint64_t call_id, size_t limit) const {
  std::vector<const Stored*> chosen;
  for (auto it = spans_.rbegin(); it != spans_.rend() && chosen.size() < limit; ++it) {
    if (call_id == 0 || it->span.call_id == call_id) chosen.push_back(&*it);
  }
  std::sort(chosen.begin(), chosen.end(), [](const Stored* a, const Stored* b) {
    return std::tie(a->span.started_ns, a->span.ended_ns) <
           std::tie(b->span.started_ns, b->span.ended_ns);
  });
  std::vector<SpanRow> rows;
  rows.reserve(chosen.size());
  for (const Stored* stored : chosen) {
    rows.push_back({*texts_[stored->process], stored->pid, *texts_[stored->name], stored->span});
  }
  return rows;
}

std::vector<PhaseRow> Profile::Phases() const {
  std::vector<PhaseRow> rows;
  rows.reserve(phases_.size());
  for (const auto& [key, histogram] : phases_) {
    rows.push_back({*texts_[key.process], *texts_[key.name], key.kind, histogram});
  }
  std::sort(rows.begin(), rows.end(), [](const PhaseRow& a, const PhaseRow& b) {
    return std::tie(a.process, a.name, a.kind) < std::tie(b.process, b.name, b.kind);
  });
  return rows;
}

}  // namespace withy::profiler_agent
