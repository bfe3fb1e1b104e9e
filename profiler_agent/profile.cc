#include "profiler_agent/profile.h"

#include <algorithm>
#include <tuple>

namespace withy::profiler_agent {
namespace {

using telemetry::Span;
using telemetry::SpanKind;

constexpr std::string_view kOther = "other";

int64_t DurationNs(const Span& span) { return span.ended_ns - span.started_ns; }

}  // namespace

uint16_t Profile::IdOf(std::string_view text) {
  // An address may have another text later, so the text is compared.
  Seen& seen = seen_[(reinterpret_cast<uintptr_t>(text.data()) >> 5) % seen_.size()];
  if (!texts_.empty() && seen.data == text.data() && *texts_[seen.id] == text) return seen.id;
  seen = {text.data(), FindOrAdd(text)};
  return seen.id;
}

uint16_t Profile::FindOrAdd(std::string_view text) {
  const auto known = ids_.find(text);
  if (known != ids_.end()) return known->second;
  if (texts_.size() >= kTextLimit - 1 && text != kOther) return FindOrAdd(kOther);
  const auto id = static_cast<uint16_t>(texts_.size());
  const auto [place, added] = ids_.emplace(std::string(text), id);
  texts_.push_back(&place->first);
  if (text == kOther) other_ = id;
  return id;
}

const StoredSpan& Profile::Add(const telemetry::SpanEvent& event) {
  const uint16_t process = IdOf(event.process);
  const uint16_t name = IdOf(event.name);
  ++spans_seen_;
  std::deque<StoredSpan>& kept = event.span.kind == SpanKind::kKernel ? kernels_ : spans_;
  if (kept.size() >= span_limit_) kept.pop_front();
  const StoredSpan& stored = kept.emplace_back(StoredSpan{event.span, event.pid, process, name});
  if (LatencyHistogram* histogram = HistogramOf(stored); histogram != nullptr) {
    histogram->Add(DurationNs(event.span), event.span.weight);
  }
  if (event.span.kind == SpanKind::kPhase) AddSizes(stored);
  return stored;
}

LatencyHistogram* Profile::HistogramOf(const StoredSpan& stored) {
  PhaseKey key{stored.process, stored.name, stored.span.kind};
  if (stored.name == other_) ++names_folded_;
  const auto known = phases_.find(key);
  if (known != phases_.end()) return &known->second;
  size_t& names = names_[{stored.process, stored.span.kind}];
  if (names >= kNameLimit && stored.name != other_) {
    ++names_folded_;
    key.name = FindOrAdd(kOther);
    const auto other = phases_.find(key);
    if (other != phases_.end()) return &other->second;
  }
  if (phases_.size() >= kPhaseLimit) {
    ++phase_overflows_;
    return nullptr;
  }
  ++names;
  return &phases_[key];
}

void Profile::AddSizes(const StoredSpan& stored) {
  // The value of these spans is a number of tokens; 0 = not recorded.
  const std::string& name = *texts_[stored.name];
  if (stored.span.value == 0) return;
  if (name == "ttft") sizes_[stored.process].prompt_tokens.Add(stored.span.value);
  if (name == "end_to_end") sizes_[stored.process].answer_tokens.Add(stored.span.value);
}

std::vector<SpanRow> Profile::Spans(uint64_t call_id, size_t limit) const {
  std::vector<const StoredSpan*> chosen;
  for (const bool kernels : {false, true}) {
    const std::deque<StoredSpan>& kept = Kept(kernels);
    const size_t most = chosen.size() + limit;
    for (auto it = kept.rbegin(); it != kept.rend() && chosen.size() < most; ++it) {
      if (call_id == 0 || it->span.call_id == call_id) chosen.push_back(&*it);
    }
  }
  std::sort(chosen.begin(), chosen.end(), [](const StoredSpan* a, const StoredSpan* b) {
    return std::tie(a->span.started_ns, a->span.ended_ns) <
           std::tie(b->span.started_ns, b->span.ended_ns);
  });
  if (chosen.size() > limit) {
    chosen.erase(chosen.begin(), chosen.end() - static_cast<std::ptrdiff_t>(limit));
  }
  std::vector<SpanRow> rows;
  rows.reserve(chosen.size());
  for (const StoredSpan* stored : chosen) rows.push_back(RowOf(*stored));
  return rows;
}

SpanSet Profile::Since(int64_t since_ns, size_t limit) const {
  SpanSet set;
  set.texts = Texts();
  // Spans arrive in the order in which they ended, but for the threads of a drain; a longer run of
  // older ones ends the search.
  constexpr size_t kOlderInARow = 5000;
  for (const bool kernels : {false, true}) {
    const std::deque<StoredSpan>& kept = Kept(kernels);
    size_t taken = 0, older = 0;
    for (auto it = kept.rbegin(); it != kept.rend() && taken < limit && older < kOlderInARow;
         ++it) {
      const bool wanted = it->span.ended_ns > since_ns;
      older = wanted ? 0 : older + 1;
      if (!wanted) continue;
      set.spans.push_back(*it);
      ++taken;
    }
  }
  return set;
}

std::vector<PhaseRow> Profile::Rows(const Histograms& histograms) const {
  std::vector<PhaseRow> rows;
  rows.reserve(histograms.size());
  for (const auto& [key, histogram] : histograms) {
    rows.push_back({*texts_[key.process], *texts_[key.name], key.kind, histogram});
  }
  std::sort(rows.begin(), rows.end(), [](const PhaseRow& a, const PhaseRow& b) {
    return std::tie(a.process, a.name, a.kind) < std::tie(b.process, b.name, b.kind);
  });
  return rows;
}

std::vector<PhaseRow> Profile::Phases() const { return Rows(phases_); }

std::vector<PhaseRow> Profile::PhasesSince(int64_t since_ns, int64_t* oldest_ns) const {
  Histograms histograms;
  *oldest_ns = since_ns;
  for (const bool kernels : {false, true}) {
    const std::deque<StoredSpan>& kept = Kept(kernels);
    // What was thrown away was not older than what is kept first.
    if (kept.size() >= span_limit_) {
      *oldest_ns = std::max(*oldest_ns, kept.front().span.ended_ns);
    }
    for (const StoredSpan& stored : kept) {
      if (stored.span.ended_ns <= since_ns) continue;
      const PhaseKey key{stored.process, stored.name, stored.span.kind};
      const auto place = histograms.find(key);
      if (place == histograms.end() && histograms.size() >= kPhaseLimit) continue;
      histograms[key].Add(DurationNs(stored.span), stored.span.weight);
    }
  }
  return Rows(histograms);
}

std::vector<SizeRow> Profile::Sizes() const {
  std::vector<SizeRow> rows;
  for (const auto& [process, sizes] : sizes_) {
    rows.push_back({*texts_[process], sizes.prompt_tokens, sizes.answer_tokens});
  }
  std::sort(rows.begin(), rows.end(),
            [](const SizeRow& a, const SizeRow& b) { return a.process < b.process; });
  return rows;
}

std::vector<std::string> Profile::Texts() const {
  std::vector<std::string> texts;
  texts.reserve(texts_.size());
  for (const std::string* text : texts_) texts.push_back(*text);
  return texts;
}

}  // namespace withy::profiler_agent
