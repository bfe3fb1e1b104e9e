#include "policy/call/pair_table.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace withy::policy {
namespace {

AuditCount CountIn(const PairTable::Counts& counts, LevelPair pair) {
  const auto found = counts.find(pair);
  return found == counts.end() ? AuditCount() : found->second;
}

bool Possible(const AuditCount& count) {
  return std::isfinite(count.audits) && count.audits > 0 && count.agreeing >= 0 &&
         count.agreeing <= count.audits;
}

}  // namespace

std::vector<double> Ascending(const std::vector<double>& values,
                              const std::vector<double>& weights) {
  struct Pool {
    double sum = 0, weight = 0;
    size_t values = 0;
    double mean() const { return sum / weight; }
  };
  std::vector<Pool> pools;
  for (size_t i = 0; i < values.size(); ++i) {
    pools.push_back({values[i] * weights[i], weights[i], 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().sum += last.sum;
      pools.back().weight += last.weight;
      pools.back().values += last.values;
    }
  }
  std::vector<double> ascending;
  for (const Pool& pool : pools) ascending.insert(ascending.end(), pool.values, pool.mean());
  return ascending;
}

std::vector<double> ChancesBefore(const std::vector<uint32_t>& levels,
                                  const std::vector<double>& loss_above_full) {
  std::vector<double> chances;
  for (size_t i = 0; i < levels.size(); ++i) {
    const double share = std::min(1.0, static_cast<double>(levels[i]) / kFullPercent);
    const bool known = loss_above_full.size() == levels.size() && std::isfinite(loss_above_full[i]);
    chances.push_back(known ? std::exp(-std::max(0.0, loss_above_full[i])) : share);
  }
  return Ascending(chances, std::vector<double>(chances.size(), 1));
}

PairTable::PairTable(std::vector<uint32_t> levels, const std::vector<double>& loss_above_full)
    : levels_(std::move(levels)), before_(ChancesBefore(levels_, loss_above_full)) {}

bool PairTable::Learns(LevelPair pair) const {
  const bool full = pair == LevelPair();
  return !full && pair.prompt_percent >= 1 && pair.prompt_percent <= kFullPercent &&
         std::binary_search(levels_.begin(), levels_.end(), pair.level_percent);
}

PairTable::App& PairTable::Of(const std::string& app) {
  if (!apps_.contains(app) && apps_.size() >= kApps) {
    apps_.erase(std::min_element(apps_.begin(), apps_.end(), [](const auto& a, const auto& b) {
      return a.second.learnt < b.second.learnt;
    }));
  }
  App& of = apps_[app];
  of.learnt = ++audits_;
  return of;
}

void PairTable::Learn(const std::string& app, LevelPair pair, double agreement) {
  if (!Learns(pair) || std::isnan(agreement)) return;
  board_[pair].Learn(agreement, kBoardAgreementMemory);
  Of(app).counts[pair].Learn(agreement, kAgreementMemory);
}

PairTable::Row PairTable::RowOf(const Counts& counts, uint32_t prompt_percent,
                                const std::vector<double>& before,
                                const std::vector<double>& prior) const {
  Row row;
  for (size_t i = 0; i < levels_.size(); ++i) {
    const AuditCount count = CountIn(counts, {prompt_percent, levels_[i]});
    row.mean.push_back(count.Mean(before[i], prior[i]));
    row.weight.push_back(prior[i] + count.audits);
  }
  row.mean = Ascending(row.mean, row.weight);
  if (prompt_percent == kFullPercent && !row.mean.empty()) row.mean.back() = 1;
  return row;
}

PairTable::Row PairTable::BoardRow(uint32_t prompt_percent) const {
  const std::vector<double> before =
      prompt_percent == kFullPercent ? before_ : std::vector<double>(levels_.size(), 0);
  return RowOf(board_, prompt_percent, before,
               std::vector<double>(levels_.size(), kAgreementPrior));
}

// The standard deviation is that of a Beta distribution, which for shares of an answer is at most
// too large.
PairChance PairTable::ChanceIn(const Row& row, const Counts& counts, LevelPair pair) const {
  const auto level = std::find(levels_.begin(), levels_.end(), pair.level_percent);
  if (level == levels_.end()) return {};
  const auto i = static_cast<size_t>(level - levels_.begin());
  const double mean = row.mean[i];
  return {.mean = mean,
          .spread = std::sqrt(mean * (1 - mean) / (row.weight[i] + 1)),
          .audits = CountIn(counts, pair).audits};
}

PairChance PairTable::BoardChanceOf(LevelPair pair) const {
  return ChanceIn(BoardRow(pair.prompt_percent), board_, pair);
}

PairChance PairTable::ChanceOf(const std::string& app, LevelPair pair) const {
  const auto found = apps_.find(app);
  if (found == apps_.end()) return BoardChanceOf(pair);
  const Row board = BoardRow(pair.prompt_percent);
  std::vector<double> prior;
  for (const double weight : board.weight) prior.push_back(std::min(weight, kAppPrior));
  const Counts& own = found->second.counts;
  return ChanceIn(RowOf(own, pair.prompt_percent, board.mean, prior), own, pair);
}

Agreement PairTable::AgreementOf(const std::string& app) const {
  std::map<uint32_t, AuditCount> levels;
  const auto found = apps_.find(app);
  if (found == apps_.end()) return Agreement();
  for (const auto& [pair, count] : found->second.counts) {
    if (pair.prompt_percent == kFullPercent) levels[pair.level_percent] = count;
  }
  return Agreement(std::move(levels));
}

std::vector<LevelPair> PairTable::Pairs() const {
  std::vector<LevelPair> pairs;
  for (const auto& [pair, count] : board_) {
    if (pair.prompt_percent != kFullPercent) pairs.push_back(pair);
  }
  for (const uint32_t level : levels_) {
    if (level != kFullPercent) pairs.push_back({kFullPercent, level});
  }
  return pairs;
}

std::vector<std::pair<std::string, const PairTable::Counts*>> PairTable::apps() const {
  std::vector<std::pair<uint64_t, const std::string*>> order;
  for (const auto& [name, app] : apps_) order.emplace_back(app.learnt, &name);
  std::sort(order.begin(), order.end());
  std::vector<std::pair<std::string, const Counts*>> apps;
  for (const auto& [learnt, name] : order) apps.emplace_back(*name, &apps_.at(*name).counts);
  return apps;
}

bool PairTable::RestoreBoard(LevelPair pair, AuditCount count) {
  if (!Learns(pair) || !Possible(count)) return false;
  board_[pair] = count;
  return true;
}

bool PairTable::RestoreApp(const std::string& app, LevelPair pair, AuditCount count) {
  if (!Learns(pair) || !Possible(count)) return false;
  Of(app).counts[pair] = count;
  return true;
}

}  // namespace withy::policy
