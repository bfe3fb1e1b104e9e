#include "offline/tlm/decision_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"

namespace withy::tlm {
namespace {

using nlohmann::json;

constexpr double kRounding = 1e-9;  // a ratio met exactly counts as met

bool Meets(const Cost& cost, const engine::TlmSlo& slo) {
  return cost.ttft <= slo.ttft_ratio + kRounding && cost.tpot <= slo.tpot_ratio + kRounding;
}

}  // namespace

DecisionSpace MakeSpace(const engine::ModelInfo& info, std::vector<int32_t> prompt_levels) {
  DecisionSpace space{
      .prompt_levels = std::move(prompt_levels), .model_levels = {}, .flops = {}, .bytes = {}};
  const engine::LevelInfo& full = info.levels.back();
  for (const engine::LevelInfo& level : info.levels) {
    space.model_levels.push_back(level.percent);
    space.flops.push_back(static_cast<double>(level.flops_per_token) /
                          static_cast<double>(full.flops_per_token));
    space.bytes.push_back(static_cast<double>(level.weight_bytes) /
                          static_cast<double>(full.weight_bytes));
  }
  return space;
}

std::string ToLine(const DecisionRow& row) {
  std::string right;
  for (const bool r : row.right) right.push_back(r ? '1' : '0');
  return json({{"tokens", row.tokens}, {"right", right}}).dump();
}

absl::StatusOr<DecisionRow> ParseDecisionRow(std::string_view line, const DecisionSpace& space,
                                             std::string_view where) {
  const json parsed = json::parse(line, nullptr, false);
  const bool object = parsed.is_object() && parsed.contains("tokens") && parsed.contains("right") &&
                      parsed["tokens"].is_array() && parsed["right"].is_string();
  DecisionRow row;
  if (object) {
    for (const json& tokens : parsed["tokens"]) {
      if (tokens.is_number_integer()) row.tokens.push_back(tokens.get<int32_t>());
    }
    for (const char c : parsed["right"].get<std::string>()) row.right.push_back(c == '1');
  }
  if (row.tokens.size() != space.prompt_levels.size() || row.right.size() != space.pairs() ||
      row.tokens.back() <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToAbsl(where), ": is not a row of ", space.prompt_levels.size(), " x ",
        space.model_levels.size(), " levels; remove the file, and it will be rebuilt"));
  }
  return row;
}

absl::StatusOr<DecisionRow> Traverse(const corpus::Prompt& prompt, std::span<const float> keep,
                                     const DecisionSpace& space, Target* target) {
  DecisionRow row;
  std::vector<bool> before;
  for (const int32_t percent : space.prompt_levels) {
    std::vector<bool> stays = corpus::ChooseWords(prompt, keep, percent);
    if (stays == before) {
      row.tokens.push_back(row.tokens.back());
      const size_t models = space.model_levels.size();
      for (size_t m = 0; m < models; ++m) row.right.push_back(row.right[row.right.size() - models]);
      continue;
    }
    const corpus::Record record = corpus::KeepWords(prompt, stays);
    int32_t tokens = 0;
    for (size_t m = 0; m < space.model_levels.size(); ++m) {
      WITHY_ASSIGN_OR_RETURN(const Judgement judged,
                             target->Judge(record, static_cast<int32_t>(m)));
      row.right.push_back(judged.right);
      tokens = judged.prompt_tokens;
    }
    row.tokens.push_back(tokens);
    before = std::move(stays);
  }
  return row;
}

Cost CostOf(const DecisionSpace& space, const DecisionRow& row, size_t pair) {
  const size_t prompt = pair / space.model_levels.size();
  const size_t model = pair % space.model_levels.size();
  const double share =
      static_cast<double>(row.tokens[prompt]) / static_cast<double>(row.tokens.back());
  return {share * space.flops[model], space.bytes[model]};
}

std::vector<size_t> Feasible(const DecisionSpace& space, const DecisionRow& row,
                             const engine::TlmSlo& slo) {
  std::vector<size_t> feasible;
  for (size_t pair = 0; pair < space.pairs(); ++pair) {
    if (Meets(CostOf(space, row, pair), slo)) feasible.push_back(pair);
  }
  return feasible;
}

std::vector<size_t> Frontier(const DecisionSpace& space, const DecisionRow& row,
                             const engine::TlmSlo& slo) {
  const std::vector<size_t> feasible = Feasible(space, row, slo);
  const size_t models = space.model_levels.size();
  std::vector<size_t> frontier;
  for (const size_t pair : feasible) {
    const bool dominated = std::any_of(feasible.begin(), feasible.end(), [&](size_t other) {
      return other != pair && other / models >= pair / models && other % models >= pair % models;
    });
    if (!dominated) frontier.push_back(pair);
  }
  return frontier;
}

std::vector<double> MeanRight(const DecisionSpace& space, std::span<const DecisionRow> rows) {
  std::vector<double> mean(space.pairs(), 0);
  for (const DecisionRow& row : rows) {
    for (size_t pair = 0; pair < mean.size(); ++pair) mean[pair] += row.right[pair] ? 1 : 0;
  }
  for (double& m : mean) m /= std::max<double>(1, static_cast<double>(rows.size()));
  return mean;
}

size_t DefaultPair(const DecisionSpace& space, const DecisionRow& row,
                   std::span<const double> mean_right, const engine::TlmSlo& slo) {
  const std::vector<size_t> feasible = Feasible(space, row, slo);
  if (feasible.empty()) return 0;
  size_t best = feasible.front();
  for (const size_t pair : feasible) {
    if (mean_right[pair] >= mean_right[best]) best = pair;
  }
  return best;
}

}  // namespace withy::tlm
