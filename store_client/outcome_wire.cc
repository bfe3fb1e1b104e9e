#include "store_client/outcome_wire.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "wire/speculation.h"
#include "wire/wire.h"

namespace withy::store_client {
namespace {

void FillLatency(const serving::CallOutcome& outcome, v1::LatencyReport* report) {
  const serving::CallTimes& times = outcome.times;
  report->set_queue_ms(Millis(times.queue));
  report->set_load_ms(Millis(times.load));
  report->set_prefill_ms(Millis(times.prefill));
  report->set_decode_ms(Millis(times.decode));
  report->set_commit_ms(Millis(times.commit));
  if (times.first_token_ns == 0) return;
  v1::Latency* measured = report->mutable_measured();
  measured->set_ttft_ms(Millis(times.first_token_ns - times.arrived_ns));
  measured->set_end_to_end_ms(Millis(times.last_token_ns - times.arrived_ns));
  if (outcome.tokens.size() > 1) {
    measured->set_tpot_ms(Millis(times.last_token_ns - times.first_token_ns) /
                          static_cast<double>(outcome.tokens.size() - 1));
  }
}

void FillSpeculation(const serving::SpeculationStats& stats, v1::GenerateFinished* wire) {
  v1::SpeculationReport* report = wire->mutable_speculation();
  report->set_target_passes(static_cast<uint32_t>(stats.target_passes));
  report->set_window_drafted_tokens(static_cast<uint32_t>(stats.window_drafted));
  report->set_window_kept_tokens(static_cast<uint32_t>(stats.window_kept));
  if (stats.took_ms > 0) report->set_speedup(stats.plain_ms / stats.took_ms);
  uint32_t drafted = 0, accepted = 0;
  for (size_t i = 0; i < policy::kDraftSourceKinds; ++i) {
    if (stats.drafted[i] == 0) continue;
    v1::SourceReport* source = report->add_sources();
    source->set_source(wire::ToWire(static_cast<policy::DraftSourceKind>(i)));
    source->set_drafted_tokens(static_cast<uint32_t>(stats.drafted[i]));
    source->set_accepted_tokens(static_cast<uint32_t>(stats.accepted[i]));
    drafted += source->drafted_tokens();
    accepted += source->accepted_tokens();
  }
  wire->mutable_usage()->set_drafted_tokens(drafted);
  wire->mutable_usage()->set_accepted_tokens(accepted);
  wire->mutable_latency()->set_draft_ms(Millis(stats.draft_ns));
  wire->mutable_latency()->set_verify_ms(Millis(stats.verify_ns));
}

void FillChunk(const serving::ChunkName& name, v1::ChunkIdentity* wire) {
  wire->set_identity(name.identity.data(), name.identity.size());
  wire->set_tokens(static_cast<uint32_t>(name.tokens));
  wire->set_model_level_percent(static_cast<uint32_t>(name.level_percent));
  wire->set_density(name.density);
  wire->set_density_rows(static_cast<uint32_t>(name.density_rows));
}

// Explains to which levels the call fell, in its prompt and in its answer.
std::string LevelDrops(int32_t decided, const std::vector<int32_t>& levels) {
  if (levels.empty()) return "";
  std::vector<std::string> falls;
  if (levels.front() != decided) {
    falls.push_back(
        absl::StrCat("before the first token, from ", decided, " % to ", levels.front(), " %"));
  }
  if (levels.size() > 1) {
    falls.push_back(absl::StrCat("in mid-answer, from ", absl::StrJoin(levels, " % to "), " %"));
  }
  if (falls.empty()) return "";
  return absl::StrCat("To keep the SLO the model's level fell ", absl::StrJoin(falls, ", then "),
                      ".");
}

}  // namespace

v1::GenerateFinished ToWire(const serving::CallOutcome& outcome) {
  v1::GenerateFinished wire;
  engine::FillAnswer(outcome.reason, outcome.text, outcome.tool_calls, &wire);
  wire.set_answer_begins_in_thought(outcome.begins_in_thought);
  v1::Usage* usage = wire.mutable_usage();
  usage->set_context_tokens(static_cast<uint32_t>(outcome.usage.context_tokens));
  usage->set_prompt_tokens(static_cast<uint32_t>(outcome.usage.prompt_tokens));
  usage->set_completion_tokens(static_cast<uint32_t>(outcome.tokens.size()));
  usage->set_reused_tokens(static_cast<uint32_t>(outcome.usage.reused_tokens));
  usage->set_compressed_kv_tokens(static_cast<uint32_t>(outcome.usage.compressed_kv_tokens));
  usage->set_other_level_kv_tokens(static_cast<uint32_t>(outcome.usage.other_level_kv_tokens));
  usage->set_prefilled_tokens(static_cast<uint32_t>(outcome.usage.prefilled_tokens));
  usage->set_pruned_words(static_cast<uint32_t>(outcome.usage.pruned_words));
  FillLatency(outcome, wire.mutable_latency());
  FillSpeculation(outcome.speculation, &wire);
  wire.set_seed(outcome.sampling.seed);
  *wire.mutable_sampling() = engine::ToWire(outcome.sampling);
  for (const int32_t level : outcome.levels_percent) {
    wire.add_model_levels_percent(static_cast<uint32_t>(level));
  }
  const std::string drops = LevelDrops(outcome.decided_percent, outcome.levels_percent);
  const std::string cut = engine::CutText(outcome.reason, outcome.tokens.size());
  wire.set_explanation(absl::StrCat(drops, drops.empty() || cut.empty() ? "" : " ", cut));
  return wire;
}

v1::LeaseCommit ToWire(const serving::LeaseCommit& commit, const engine::Tokenizer& tokenizer,
                       const std::string& model) {
  v1::LeaseCommit wire;
  for (const engine::Segment& segment : commit.appended) {
    *wire.add_appended() = engine::ToWire(segment);
  }
  for (const serving::ChunkName& name : commit.chunks) FillChunk(name, wire.add_chunks());
  wire.set_context_tokens(static_cast<uint32_t>(commit.context_tokens));
  wire.set_appended_tokens(static_cast<uint32_t>(commit.appended_tokens));
  wire.set_dropped_segments(static_cast<uint32_t>(commit.dropped_segments));
  if (commit.request_id.empty()) return wire;
  wire.set_request_id(commit.request_id);
  wire.set_request_digest(commit.request_digest);
  wire.set_broken_off(commit.broken_off);
  if (commit.broken_off) return wire;
  v1::StoredResult* result = wire.mutable_result();
  // The bytes were serialised by the orchestrator; a decision that cannot be parsed is left out.
  if (!result->mutable_decision()->ParseFromString(commit.decision)) result->clear_decision();
  *result->mutable_finished() = ToWire(commit.outcome);
  for (const engine::Sample& sample : commit.outcome.tokens) {
    *result->add_tokens() = engine::ToWire(sample, commit.sampling, tokenizer);
  }
  result->set_model(model);
  result->set_cancelled_by_caller(commit.outcome.reason == engine::FinishReason::kCancelled);
  return wire;
}

}  // namespace withy::store_client
