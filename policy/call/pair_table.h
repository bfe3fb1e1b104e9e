// The chance that a pair of levels, of the prompt and of the model, agrees with the full model on
// the whole prompt, learnt on the board from audits: what decisions go by where no TLM was trained
// for the model. Pure. Neighbours: the orchestrator's audits feed it and keep it, call_plan.h
// weighs settings by it, agreement.h counts.
//
// Source: ElastiLM section 3.3, self-induced labels. The paper makes them before deployment and
// trains the TLM on them; ours are counted in use, by app, and old ones fade.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "policy/call/agreement.h"
#include "policy/constants.h"

namespace withy::policy {

// Per cent.
struct LevelPair {
  uint32_t prompt_percent = kFullPercent;
  uint32_t level_percent = kFullPercent;
  bool operator==(const LevelPair&) const = default;
  bool operator<(const LevelPair& other) const {
    return std::pair(prompt_percent, level_percent) <
           std::pair(other.prompt_percent, other.level_percent);
  }
};

struct PairChance {
  double mean = 0;    // 0..1
  double spread = 0;  // standard deviation of what the mean may be
  double audits = 0;  // that it was learnt from, faded
};

// The values closest to `values` in weighted least squares that nowhere fall: neighbours that fall
// get their common mean. `weights`: as many, above 0. Source: pool-adjacent-violators (Ayer and
// others 1955).
std::vector<double> Ascending(const std::vector<double>& values,
                              const std::vector<double>& weights);

// A level's chance before any audit, [levels], ascending. With `loss_above_full` ([levels], nats a
// token of the calibration text, by which the level's loss exceeds the full model's): the share of
// the full model's probability that a token keeps, exp(-loss). Without: the level's share of the
// layers. `levels`: per cent, ascending. A list of another length counts as none.
std::vector<double> ChancesBefore(const std::vector<uint32_t>& levels,
                                  const std::vector<double>& loss_above_full);

// A level's chance never falls with the level. It begins as ChancesBefore on the whole prompt and
// as 0 on a shorter one, counted as kAgreementPrior audits; an app's begins as the board's, counted
// as kAppPrior audits. Not thread-safe.
class PairTable {
 public:
  static constexpr size_t kApps = 64;  // that are kept, those that learnt last
  using Counts = std::map<LevelPair, AuditCount>;

  // Knows no levels: every chance is 0.
  PairTable() = default;
  // `levels`: per cent, ascending, the last is kFullPercent. `loss_above_full`: as ChancesBefore.
  PairTable(std::vector<uint32_t> levels, const std::vector<double>& loss_above_full);

  // An audit of an answer to `app`: `agreement` is how much of it agreed, 0..1. The full model on
  // the whole prompt agrees by definition, and a level that the model lacks is left out.
  void Learn(const std::string& app, LevelPair pair, double agreement);

  // For an app, or for any of the board's.
  PairChance ChanceOf(const std::string& app, LevelPair pair) const;
  PairChance BoardChanceOf(LevelPair pair) const;
  // The app's own audits on the whole prompt.
  Agreement AgreementOf(const std::string& app) const;

  // Pairs of levels of which the board has audits, and those of the whole prompt below the full
  // model, ascending.
  std::vector<LevelPair> Pairs() const;
  const std::vector<uint32_t>& levels() const { return levels_; }

  // What a record keeps and brings back.
  const Counts& board() const { return board_; }
  std::vector<std::pair<std::string, const Counts*>> apps() const;  // that learnt longest ago first
  // Replaces what is known of a pair: of the board, or of an app as if it learnt now. Counts that
  // no audits could have made, and levels that the model lacks, are left out; returns whether it
  // was taken.
  bool RestoreBoard(LevelPair pair, AuditCount count);
  bool RestoreApp(const std::string& app, LevelPair pair, AuditCount count);

 private:
  struct App {
    Counts counts;
    uint64_t learnt = 0;  // of all audits, the number of its last one
  };
  // By level.
  struct Row {
    std::vector<double> mean;
    std::vector<double> weight;  // audits, and what counts as such
  };

  bool Learns(LevelPair pair) const;
  App& Of(const std::string& app);
  Row RowOf(const Counts& counts, uint32_t prompt_percent, const std::vector<double>& before,
            const std::vector<double>& prior) const;
  Row BoardRow(uint32_t prompt_percent) const;
  PairChance ChanceIn(const Row& row, const Counts& counts, LevelPair pair) const;

  std::vector<uint32_t> levels_;
  std::vector<double> before_;  // [levels], on the whole prompt
  Counts board_;
  std::map<std::string, App> apps_;
  uint64_t audits_ = 0;
};

}  // namespace withy::policy
