#include "engine/model/rows.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/kv/block.h"

namespace withy::engine {
namespace {

absl::Status OutOfRange(size_t row, std::string_view what, int64_t value, int64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("row ", row, ": ", ToAbsl(what), " ", value, " is outside 0 to ", limit - 1));
}

absl::Status CheckRow(const Batch& batch, const ModelInfo& info, size_t index) {
  const Row& row = batch.rows[index];
  const auto in = [](int64_t value, int64_t limit) { return value >= 0 && value < limit; };
  if (!in(row.context, static_cast<int64_t>(batch.contexts.size()))) {
    return OutOfRange(index, "context", row.context, static_cast<int64_t>(batch.contexts.size()));
  }
  if (!in(row.token, info.vocab_size)) {
    return OutOfRange(index, "token", row.token, info.vocab_size);
  }
  if (!in(row.position, info.context_length)) {
    return OutOfRange(index, "position", row.position, info.context_length);
  }
  const auto levels = static_cast<int64_t>(info.levels.size());
  if (row.level != -1 && !in(row.level, levels)) {
    return OutOfRange(index, "level", row.level, levels);
  }
  if (row.context_level != -1 && !in(row.context_level, levels)) {
    return OutOfRange(index, "context level", row.context_level, levels);
  }
  const ContextView& context = batch.contexts[static_cast<size_t>(row.context)];
  const int64_t chunks = static_cast<int64_t>(context.blocks.size()) / info.kv.layers;
  const int64_t slots = chunks * info.kv.chunk_tokens;
  if (!in(row.slot, slots)) return OutOfRange(index, "slot", row.slot, slots);
  if (row.slot < context.committed_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("row ", index, ": slot ", row.slot,
                                                   " is committed; the context has ",
                                                   context.committed_tokens, " committed tokens"));
  }
  const auto ancestors = static_cast<int64_t>(row.ancestor_slots.size());
  if (ancestors > row.position) return OutOfRange(index, "ancestors", ancestors, row.position + 1);
  for (const int32_t slot : row.ancestor_slots) {
    if (!in(slot, slots)) return OutOfRange(index, "ancestor slot", slot, slots);
  }
  if (row.position - ancestors > slots) {
    return OutOfRange(index, "position", row.position, slots + ancestors + 1);
  }
  return absl::OkStatus();
}

absl::Status CheckSlotsDiffer(const Batch& batch) {
  std::vector<std::pair<int32_t, int32_t>> written;
  written.reserve(batch.rows.size());
  for (const Row& row : batch.rows) written.emplace_back(row.context, row.slot);
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  if (twice == written.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("two rows write slot ", twice->second, " of context ", twice->first));
}

// Which chunks of a context the rows of a batch read or write in layers with a window.
class WindowReads {
 public:
  WindowReads(const Batch& batch, const KvInfo& kv, size_t context) : reach_(kv.window_reach) {
    for (const Row& row : batch.rows) {
      if (static_cast<size_t>(row.context) != context) continue;
      positions_.push_back(row.position);
      written_.push_back(row.slot / kChunkTokens);
      for (const int32_t slot : row.ancestor_slots) written_.push_back(slot / kChunkTokens);
    }
    std::sort(positions_.begin(), positions_.end());
    std::sort(written_.begin(), written_.end());
  }
  // A row reads no chunk that begins behind it, and none that its window hides.
  bool Has(int32_t chunk) const {
    if (std::binary_search(written_.begin(), written_.end(), chunk)) return true;
    const auto row = std::lower_bound(positions_.begin(), positions_.end(), chunk * kChunkTokens);
    return row != positions_.end() && *row < (chunk + 1) * kChunkTokens + reach_;
  }

 private:
  const int32_t reach_;
  std::vector<int32_t> positions_;  // ascending
  std::vector<int32_t> written_;    // chunks, ascending; copied from for trees
};

// Every block that a row reads or writes must exist.
absl::Status CheckBlocks(const Batch& batch, const KvInfo& kv) {
  const auto layers = static_cast<size_t>(kv.layers);
  const auto chunks_up_to = [](int32_t slot) {
    return static_cast<size_t>(slot / kChunkTokens) + 1;
  };
  std::vector<size_t> needed(batch.contexts.size(), 0);
  for (const Row& row : batch.rows) {
    size_t& chunks = needed[static_cast<size_t>(row.context)];
    const int32_t linear = row.position - static_cast<int32_t>(row.ancestor_slots.size());
    chunks = std::max(chunks, chunks_up_to(row.slot));
    if (linear > 0) chunks = std::max(chunks, chunks_up_to(linear - 1));
    for (const int32_t slot : row.ancestor_slots) chunks = std::max(chunks, chunks_up_to(slot));
  }
  for (size_t c = 0; c < needed.size(); ++c) {
    const auto blocks = batch.contexts[c].blocks.first(needed[c] * layers);
    std::optional<WindowReads> reads;
    const auto gap = std::find_if(blocks.begin(), blocks.end(), [&](const KvBlockName& name) {
      if (name.exists()) return name.format == KvFormat::kEmpty;
      const auto at = static_cast<size_t>(&name - blocks.data());
      if (!kv.windowed.Has(static_cast<int>(at % layers))) return true;
      if (!reads.has_value()) reads.emplace(batch, kv, c);
      return reads->Has(static_cast<int32_t>(at / layers));
    });
    if (gap == blocks.end()) continue;
    const auto at = static_cast<size_t>(gap - blocks.begin());
    return absl::InvalidArgumentError(absl::StrCat("context ", c, " has no block for chunk ",
                                                   at / layers, ", layer ", at % layers));
  }
  return absl::OkStatus();
}

// The blocks of `slot` must be of one of `formats`, in all layers.
absl::Status CheckSlotFormat(const Batch& batch, size_t index, size_t layers, int32_t slot,
                             std::initializer_list<KvFormat> formats, std::string_view what) {
  const ContextView& context = batch.contexts[static_cast<size_t>(batch.rows[index].context)];
  const size_t first = static_cast<size_t>(slot / kChunkTokens) * layers;
  for (const KvBlockName& name : context.blocks.subspan(first, layers)) {
    if (std::find(formats.begin(), formats.end(), name.format) != formats.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("row ", index, ": slot ", slot,
                                                   " lies in a block of format ",
                                                   KvFormatName(name.format), "; ", ToAbsl(what)));
  }
  return absl::OkStatus();
}

// What a row writes must be writable, and what a tree row copies must be at 8 bits.
absl::Status CheckFormats(const Batch& batch, size_t layers) {
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const Row& row = batch.rows[i];
    WITHY_RETURN_IF_ERROR(CheckSlotFormat(batch, i, layers, row.slot,
                                          {KvFormat::kQ8, KvFormat::kF16},
                                          "tokens are written as q8 or f16"));
    if (row.ancestor_slots.empty() && row.slot == row.position) continue;
    const auto copied = [&](int32_t slot) {
      return CheckSlotFormat(batch, i, layers, slot, {KvFormat::kQ8}, "token trees need q8");
    };
    WITHY_RETURN_IF_ERROR(copied(row.slot));
    for (const int32_t slot : row.ancestor_slots) WITHY_RETURN_IF_ERROR(copied(slot));
    const int32_t linear = row.position - static_cast<int32_t>(row.ancestor_slots.size());
    if (linear % kChunkTokens != 0) WITHY_RETURN_IF_ERROR(copied(linear - 1));
  }
  return absl::OkStatus();
}

// The layers whose input rows get, and the room for it.
absl::Status CheckFeatures(const Batch& batch, const ModelInfo& info) {
  for (const int32_t layer : batch.feature_layers) {
    if (layer >= 1 && layer < info.kv.layers) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the input of layer ", layer, " is asked for, which is outside 1 to ", info.kv.layers - 1));
  }
  const size_t floats = batch.feature_layers.size() * static_cast<size_t>(info.d_model);
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    const size_t room = batch.rows[i].features.size();
    if (room == 0 || room == floats) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("row ", i, " has room for ", room, " numbers of features, not ", floats));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBatch(const Batch& batch, const ModelInfo& info) {
  if (batch.rows.empty()) return absl::InvalidArgumentError("the batch has no rows");
  for (size_t i = 0; i < batch.contexts.size(); ++i) {
    if (batch.contexts[i].blocks.size() % static_cast<size_t>(info.kv.layers) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("context ", i, ": ", batch.contexts[i].blocks.size(),
                       " blocks are no multiple of the model's ", info.kv.layers, " layers"));
    }
  }
  for (size_t i = 0; i < batch.rows.size(); ++i) {
    WITHY_RETURN_IF_ERROR(CheckRow(batch, info, i));
  }
  WITHY_RETURN_IF_ERROR(CheckFeatures(batch, info));
  WITHY_RETURN_IF_ERROR(CheckSlotsDiffer(batch));
  const auto layers = static_cast<size_t>(info.kv.layers);
  WITHY_RETURN_IF_ERROR(CheckBlocks(batch, info.kv));
  return CheckFormats(batch, layers);
}

void PlanPiece(const Batch& batch, int32_t full_level, int32_t begin, int32_t end,
               int32_t first_logits, std::vector<PlannedRow>* plan) {
  plan->clear();
  for (int32_t i = begin; i < end; ++i) {
    const Row& row = batch.rows[static_cast<size_t>(i)];
    PlannedRow planned{
        .row = &row, .level = row.level == -1 ? full_level : row.level, .batch_row = i};
    planned.attention_level =
        row.context_level == -1 ? planned.level : std::min(planned.level, row.context_level);
    if (row.want_logits) planned.logits_row = first_logits++;
    const int32_t linear = row.position - static_cast<int32_t>(row.ancestor_slots.size());
    for (int32_t p = linear; p <= row.position; ++p) {
      if (planned.SlotAt(p) == p) continue;
      planned.tail_group = linear / kChunkTokens;
      planned.tail_blocks = row.position / kChunkTokens - planned.tail_group + 1;
      break;
    }
    plan->push_back(planned);
  }
  std::stable_sort(plan->begin(), plan->end(),
                   [](const PlannedRow& a, const PlannedRow& b) { return a.level > b.level; });
  int32_t tail_blocks = 0;
  for (PlannedRow& planned : *plan) {
    planned.tail_first = tail_blocks;
    tail_blocks += planned.tail_blocks;
  }
}

}  // namespace withy::engine
