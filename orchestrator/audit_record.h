// What audits have found, as it is kept over restarts in STATE_DIR/audits: numbers only, no text.
// Pure. Neighbours: auditor.h reads and writes the file, policy/call/pair_table.h counts.
//
// A text file of lines. The first one names the format, the second what was audited; then there is
// a line for each pair of levels, of the board and of each app (the one that learnt longest ago
// first), and a last one:
//
//   withy-audits 1
//   MODEL_ID LEVEL,LEVEL,... MEASURE
//   board PROMPT_PERCENT LEVEL_PERCENT AUDITS AGREEING
//   app APP_ID PROMPT_PERCENT LEVEL_PERCENT AUDITS AGREEING
//   end
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "policy/call/pair_table.h"

namespace withy::orchestrator {

// What an audit compares.
enum class AuditMeasure {
  // Whether a level's greedy answer is the full model's: what a TLM's table counts.
  kAnswers,
  // Of the tokens of the full model's greedy answer, the share that is the level's likeliest token,
  // too, behind the same text. Says as much of a long answer as of a short one, where two good
  // answers go apart after some words.
  kTokens,
};

// What a table holds for.
struct AuditKey {
  std::string model_id;
  std::vector<uint32_t> levels;  // per cent, ascending
  AuditMeasure measure = AuditMeasure::kTokens;
  bool operator==(const AuditKey&) const = default;
};

std::string AuditRecord(const AuditKey& key, const policy::PairTable& table);

// Fills `table`, which has the key's levels. Errors, after which `table` is unchanged:
// FAILED_PRECONDITION (a record of another model, other levels or another measure),
// INVALID_ARGUMENT (a damaged record; names the line).
absl::Status ReadAuditRecord(std::string_view record, const AuditKey& key,
                             policy::PairTable* table);

}  // namespace withy::orchestrator
