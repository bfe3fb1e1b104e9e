#include "policy/step/step_plan.h"

#include <algorithm>

#include "policy/step/prompts_beside_answers.h"

namespace withy::policy {
namespace {

// The rows of prompts being dealt out.
class Piece {
 public:
  Piece(std::span<const StepCall> calls, int32_t rows)
      : calls_(calls), left_(rows), given_(calls.size()) {}

  void Give(size_t call, int32_t at_most) {
    const int32_t rows =
        std::clamp(calls_[call].ready_rows - given_[call], 0, std::min(at_most, left_));
    given_[call] += rows;
    left_ -= rows;
  }
  int32_t left() const { return left_; }
  int32_t given(size_t call) const { return given_[call]; }

 private:
  std::span<const StepCall> calls_;
  int32_t left_;
  std::vector<int32_t> given_;
};

// Plans one step; lives as long as PlanStep takes.
class Planner {
 public:
  explicit Planner(const StepInputs& inputs)
      : inputs_(inputs), calls_(inputs.calls.begin(), inputs.calls.end()) {}

  StepPlan Plan() {
    StepPlan plan;
    if (inputs_.under_way.has_value() && inputs_.under_way->preempted && AnswersAreUnderWay()) {
      return plan;
    }
    plan.level_changes = LowerPromptLevels();
    std::vector<StepCall> candidates;
    std::vector<size_t> indices;
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (inputs_.under_way.has_value() && !PreemptsStep(calls_[i])) continue;
      if (calls_[i].waits_for_kv && OthersAreReady()) continue;
      candidates.push_back(calls_[i]);
      indices.push_back(i);
    }
    plan.entries = DealRows(candidates, PieceRows(candidates), inputs_.now_ns);
    for (StepEntry& entry : plan.entries) entry.call = indices[entry.call];
    for (const StepEntry& entry : plan.entries) {
      const StepCall& call = calls_[entry.call];
      plan.shape.Add(inputs_.levels[LevelOf(call)], entry.rows, call.depth, entry.decode);
      for (int32_t row = 0; row < entry.rows; ++row) {
        plan.expected_ms += inputs_.levels[LevelOf(call)].RowsMs(1, call.depth + row);
      }
    }
    return plan;
  }

 private:
  bool AnswersAreUnderWay() const {
    return std::any_of(calls_.begin(), calls_.end(), [](const StepCall& call) {
      return call.decoding && call.under_way_rows > 0;
    });
  }

  bool OthersAreReady() const {
    return std::any_of(calls_.begin(), calls_.end(), [](const StepCall& call) {
      return !call.waits_for_kv && !call.reader_behind && call.ready_rows > 0;
    });
  }

  size_t LevelOf(const StepCall& call) const {
    return call.level.value_or(inputs_.levels.size() - 1);
  }
  PromptTurn PromptOf(const StepCall& call) const {
    return {.pacer = call.pacer,
            .turn = call.turn,
            .rows = call.pending_rows,
            .level = LevelOf(call),
            .depth = call.depth};
  }
  AnswerTurn AnswerOf(const StepCall& call, int32_t rows) const {
    return {.pacer = call.pacer,
            .level = LevelOf(call),
            .depth = call.depth,
            .rows = std::max(1, rows)};
  }

  // Of all prompts that are not part of the step under way; changes calls_.
  std::vector<LevelChange> LowerPromptLevels() {
    std::vector<size_t> indices;
    std::vector<PromptTurn> prompts;
    for (size_t i = 0; i < calls_.size(); ++i) {
      const StepCall& call = calls_[i];
      if (call.decoding || call.under_way_rows > 0 || !call.level.has_value()) continue;
      indices.push_back(i);
      prompts.push_back(PromptOf(call));
    }
    const std::vector<size_t> chosen =
        ChoosePromptLevels(inputs_.levels, prompts, inputs_.slowdown, inputs_.now_ns);
    std::vector<LevelChange> changes;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] == prompts[i].level) continue;
      changes.push_back({.call = indices[i], .from = prompts[i].level, .to = chosen[i]});
      calls_[indices[i]].level = chosen[i];
    }
    return changes;
  }

  // Whether a call is computed in the middle of the step under way.
  bool PreemptsStep(const StepCall& call) const {
    if (call.under_way_rows > 0 || call.waits_for_kv) return false;
    if (inputs_.under_way->waits_for_kv) return true;
    return call.decoding ? AnswerPreempts(call) : PromptPreempts(call);
  }

  bool PromptPreempts(const StepCall& call) const {
    std::vector<Turn> step_prompts;
    for (const StepCall& other : calls_) {
      if (other.under_way_rows > 0 && !other.decoding) step_prompts.push_back(other.turn);
    }
    return PromptPreemptsStep(call.turn, call.begun, step_prompts, inputs_.now_ns);
  }

  bool AnswerPreempts(const StepCall& call) const {
    if (!call.level.has_value() || AnswersAreUnderWay()) return false;
    std::vector<PromptTurn> step_prompts;
    for (const StepCall& other : calls_) {
      if (other.under_way_rows == 0) continue;
      if (!other.level.has_value()) return false;
      step_prompts.push_back(PromptOf(other));
      step_prompts.back().rows -= other.under_way_rows;
      step_prompts.back().depth += other.under_way_rows;
    }
    return AnswerPreemptsStep(inputs_.levels, AnswerOf(call, call.ready_rows), step_prompts,
                              LeftOfStepMs(*inputs_.under_way, inputs_.slowdown), inputs_.slowdown,
                              inputs_.now_ns);
  }

  // Rows of prompts beside the answers among `candidates`, and beside those of the step under way,
  // whose tokens come later by what is computed in its middle.
  int32_t PieceRows(std::span<const StepCall> candidates) const {
    int32_t decode_rows = 0;
    std::vector<AnswerTurn> answers;
    std::vector<PromptTurn> prompts;
    for (const StepCall& call : candidates) {
      if (!call.decoding) {
        prompts.push_back(PromptOf(call));
      } else if (!call.reader_behind) {
        answers.push_back(AnswerOf(call, call.ready_rows));
        decode_rows += answers.back().rows;
      }
    }
    if (decode_rows == 0 && !inputs_.under_way.has_value()) return inputs_.rows_without_answers;
    for (const StepCall& call : calls_) {
      if (!call.decoding || call.under_way_rows == 0) continue;
      answers.push_back(AnswerOf(call, call.under_way_rows));
      decode_rows += answers.back().rows;
    }
    const int32_t at_most = inputs_.sizer.Rows(decode_rows, RowTimeShare(inputs_.levels, prompts));
    return PromptRowsBesideAnswers(inputs_.levels, answers, prompts, at_most, inputs_.slowdown,
                                   inputs_.now_ns);
  }

  const StepInputs& inputs_;
  std::vector<StepCall> calls_;  // with their levels after the changes
};

}  // namespace

bool StepPlan::has_prefill() const {
  return std::any_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return !entry.decode; });
}

bool StepPlan::has_decode() const {
  return std::any_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return entry.decode; });
}

int32_t StepPlan::rows() const {
  int32_t rows = 0;
  for (const StepEntry& entry : entries) rows += entry.rows;
  return rows;
}

const StepEntry* StepPlan::OnlyPrompt() const {
  const StepEntry* prompt = nullptr;
  for (const StepEntry& entry : entries) {
    if (entry.decode) continue;
    if (prompt != nullptr) return nullptr;
    prompt = &entry;
  }
  return prompt;
}

StepPlan PlanStep(const StepInputs& inputs) { return Planner(inputs).Plan(); }

std::vector<StepEntry> DealRows(std::span<const StepCall> calls, int32_t piece_rows,
                                int64_t now_ns) {
  std::vector<StepEntry> entries;
  std::vector<size_t> prompts;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].reader_behind || calls[i].ready_rows <= 0) continue;
    if (calls[i].decoding) {
      entries.push_back({.call = i, .rows = calls[i].ready_rows, .decode = true});
    } else {
      prompts.push_back(i);
    }
  }
  if (prompts.empty()) return entries;
  std::sort(prompts.begin(), prompts.end(),
            [&](size_t a, size_t b) { return GoesBefore(calls[a].turn, calls[b].turn, now_ns); });
  Piece piece(calls, piece_rows);
  const size_t first = prompts.front();
  const bool has_deadline = calls[first].turn.deadline_ns != 0;
  piece.Give(first, has_deadline ? piece_rows : (piece_rows + 1) / 2);
  std::stable_sort(prompts.begin(), prompts.end(), [&](size_t a, size_t b) {
    return calls[a].pending_rows < calls[b].pending_rows;
  });
  // The first token of a prompt with a deadline that ends here does not wait for rows of others.
  const bool alone = has_deadline && piece.given(first) == calls[first].pending_rows;
  for (const size_t i : prompts) {
    if (!alone) piece.Give(i, piece.left());
  }
  for (const size_t i : prompts) {
    if (piece.given(i) > 0) entries.push_back({.call = i, .rows = piece.given(i), .decode = false});
  }
  return entries;
}

double LeftOfStepMs(const StepUnderWay& step, double slowdown) {
  if (step.done >= kDoneThatTells) return step.computed_ms * (1 - step.done) / step.done;
  return std::max(0.0, step.expected_ms * slowdown - step.computed_ms);
}

}  // namespace withy::policy
