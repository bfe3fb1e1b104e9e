#include "serving/session/step_rows.h"

#include "base/status.h"

namespace withy::serving {

void StepRows::Begin() {
  computed_ = of_.kv.holes().SkipPresent(0);
  of_.usage.prefilled_tokens = 0;
  of_.usage.reused_tokens = of_.tokens.prompt_end;
  CountMore(pending());
}

void StepRows::CountMore(int32_t rows) {
  of_.usage.prefilled_tokens += rows;
  of_.usage.reused_tokens -= rows;
  of_.usage.compressed_kv_tokens = of_.kv.compressed_tokens();
  of_.usage.other_level_kv_tokens = of_.kv.other_level_tokens(of_.request.answer.level_percent);
}

int32_t StepRows::ready() const {
  if (held_by_load()) return 0;
  const bool stops = of_.kv.load().reading() && !waits_for_kv();
  const int32_t end = stops ? of_.kv.holes().FirstReading() : of_.kv.blocks().slots();
  return std::min(pending(), of_.kv.holes().Count(computed_, end));
}

int32_t StepRows::Append(int32_t count, int32_t context, std::vector<engine::Row>* rows) {
  const CallTokens& tokens = of_.tokens;
  const policy::TokenTree& tree = of_.draft.tree();
  of_.draft.ClearDensity();
  const int32_t last = tokens.count() - 1;  // the root of the tree
  int32_t want_logits = 0;
  for (int32_t slot = computed_; count > 0; slot = of_.kv.holes().SkipPresent(slot + 1), --count) {
    const bool recomputed = slot < of_.kv.reused_tokens();  // at the level that its chunk has
    const int32_t level = recomputed ? tokens.levels.first_index() : tokens.levels.index();
    engine::Row row{.slot = slot,
                    .context = context,
                    .level = level,
                    .context_level = std::min(level, of_.kv.lowest_level()),
                    .want_logits = !of_.request.rebuild && slot >= last,
                    .ancestor_slots = {},
                    .density = {}};
    if (slot <= last) {
      row.token = tokens.ids[static_cast<size_t>(slot)];
      row.position = slot;
    } else {
      row.token = tree.token(slot - last);
      row.position = last + tree.depth(slot - last);
      row.ancestor_slots = tree.AncestorSlots(slot - last);
      row.density = of_.draft.DensityOfRow(slot - last);
    }
    want_logits += row.want_logits ? 1 : 0;
    rows->push_back(row);
  }
  return want_logits;
}

engine::ContextView StepRows::View() {
  engine::ContextView view = of_.kv.blocks().View(of_.kv.holes().SkipPresent(0));
  if (waits_for_kv()) view.layers_ready = &of_.kv.layers_ready();
  return view;
}

// Rows of an accepted path lie behind those before it, so that what is written over is not wanted.
void StepRows::Accept(int32_t slot, std::span<const float> density) {
  if (slot != computed_) of_.kv.blocks().CopySlot(slot, computed_);
  of_.kv.blocks().AddDensity(density);
  ++computed_;
}

std::optional<ClaimRange> StepRows::NextClaim(int32_t ahead) {
  // Slots for tokens that are not sampled yet, so that they need not wait for their blocks.
  const bool ends = of_.answer.finished() || of_.request.rebuild;
  const int32_t more = ends ? 0 : engine::kChunkTokens / 2;
  const int32_t drafted = of_.draft.slots_ahead();
  const int32_t useful = of_.tokens.count() + std::max(more, drafted);
  const int32_t wanted = of_.kv.holes().After(computed_, std::max(ahead, drafted + 1));
  return of_.kv.BeginClaim(std::min({wanted, useful, of_.tokens.window}));
}

std::optional<StepRows::More> StepRows::NextYield(int32_t ahead, int64_t now_ns) {
  policy::KvLoad& load = of_.kv.load();
  if (!load.MayAsk(now_ns)) return std::nullopt;
  const int32_t reading = of_.kv.holes().FirstReading();
  const int32_t left = of_.kv.holes().Count(computed_, reading);
  if (left > ahead / 2) return std::nullopt;
  const More more{.computed_before = std::min(computed_, reading) / engine::kChunkTokens,
                  .chunks = (ahead - left) / engine::kChunkTokens};
  load.OnAsked(static_cast<uint32_t>(more.computed_before));
  return more;
}

absl::Status StepRows::OnLoad(const LoadEvent& event, int64_t now_ns) {
  const int32_t before = pending();
  WITHY_RETURN_IF_ERROR(of_.kv.Apply(event, now_ns));
  if (event.slots.empty()) return absl::OkStatus();
  const int32_t first = event.slots.front().chunk * engine::kChunkTokens;
  if (first < of_.kv.reused_tokens()) {
    computed_ = of_.kv.holes().SkipPresent(std::min(computed_, first));
  }
  CountMore(pending() - before);
  return absl::OkStatus();
}

void StepRows::GiveUp(uint32_t chunk) {
  of_.kv.Truncate(static_cast<int32_t>(chunk));
  const int32_t before = pending();
  computed_ = of_.kv.holes().SkipPresent(std::min(computed_, of_.kv.reused_tokens()));
  CountMore(pending() - before);
}

}  // namespace withy::serving
