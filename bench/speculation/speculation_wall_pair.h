// Answers held-out prompts with a target under a weight budget, in several ways that take turns in
// one process, so that they meet the same disk. Neighbours: speculation_wall_run.h starts it,
// speculation_decoder.h decodes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/speculation/speculation_wall_figures.h"
#include "bench/speculation/speculation_wall_run.h"
#include "engine/model/bundle.h"
#include "engine/tokenizer/tokenizer.h"
#include "offline/corpus/record.h"

namespace withy::bench {

// The first `count` prompts of the run's file, or of the benchmark's held-out ones: of every ten of
// a task the one with the longest answer, tasks taking turns. Errors: those of
// tlm::ReadOwnPrompts; INVALID_ARGUMENT if the file has fewer.
absl::StatusOr<std::vector<corpus::Record>> WallPrompts(const WallRun& run,
                                                        const engine::Tokenizer& tokenizer,
                                                        int count);

// The run's prompts in its ways, which take turns: held-out prompts whose answers end where the
// model ends them, and `open_prompts` others behind which it goes on to `answer_tokens`, beyond the
// end of its turn, with text that drafts know less well. Prompts and answers are numbered through.
// `draft`: null if no way uses it. Errors: those of PairDecoder.
absl::StatusOr<std::vector<WallAnswer>> AnswerInTurns(const engine::ModelBundle& target,
                                                      engine::Model* draft, const WallRun& run,
                                                      const std::vector<WallWay>& ways);

// WallRun::contestant "pair". The draft's weights are copied to memory that the kernel cannot
// reclaim; they come on top of the budget. Errors: those of OpenBundle, ParseWay and PairDecoder.
absl::StatusOr<WallResult> RunPair(const WallRun& run);

}  // namespace withy::bench
