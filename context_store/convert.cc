#include "context_store/convert.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"

namespace withy::context_store {
namespace {

constexpr size_t kDigestBytes = 32;

absl::Status BadSegment(size_t number) {
  return absl::DataLossError(absl::StrCat("segment ", number, " of the context cannot be read"));
}

bool SpansFit(const proto::Segment& segment) {
  for (const auto* spans : {&segment.kept(), &segment.fixed()}) {
    uint32_t from = 0;
    for (const proto::ByteSpan& span : *spans) {
      if (span.begin() < from || span.end() < span.begin() || span.end() > segment.text().size()) {
        return false;
      }
      from = span.end();
    }
  }
  return true;
}

}  // namespace

proto::ContextInfo ToProto(const ContextSummary& summary, const ContextKv& kv) {
  proto::ContextInfo info;
  info.set_context_id(summary.context_id);
  info.set_title(summary.record.title);
  info.set_created_unix_s(summary.record.created_unix_ns / kNanosPerSecond);
  info.set_last_used_unix_s(summary.record.last_used_unix_ns / kNanosPerSecond);
  info.set_messages(summary.record.segments);
  info.set_tokens(summary.record.tokens);
  info.set_resident_bytes(kv.resident_bytes);
  info.set_stored_bytes(kv.stored_bytes);
  info.set_kv_tokens(kv.tokens);
  info.set_compressed_kv_tokens(kv.compressed_tokens);
  info.set_dropped_messages(summary.record.dropped);
  info.set_kept_by_service(summary.record.kept_by_service);
  return info;
}

absl::StatusOr<Geometry> FromProto(const proto::AttachRequest& request) {
  if (request.worker_instance() == 0) {
    return absl::InvalidArgumentError("worker_instance must be set");
  }
  Geometry geometry{request.model_id(), request.layers(),      request.kv_heads(),
                    request.head_dim(), request.block_bytes(), request.window_reach()};
  int64_t before = -1;
  for (const uint32_t layer : request.windowed_layers()) {
    if (layer <= before || layer >= request.layers() || layer >= engine::KvLayerSet::kMost) {
      return absl::InvalidArgumentError(
          absl::StrCat("windowed_layers has ", layer, " behind ", before,
                       ": they must ascend, each below layers (", request.layers(), ") and ",
                       engine::KvLayerSet::kMost));
    }
    geometry.windowed.Add(static_cast<int>(layer));
    before = layer;
  }
  return geometry;
}

absl::StatusOr<KvCosts> FromProto(const proto::KvCosts& costs) {
  const auto check = [](const char* name, double value) -> absl::Status {
    if (std::isfinite(value) && value >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("kv_costs.", name, " is ", value, ": it must be finite and not negative"));
  };
  WITHY_RETURN_IF_ERROR(check("recompute_fixed_ms", costs.recompute_fixed_ms()));
  WITHY_RETURN_IF_ERROR(check("recompute_chunk_ms", costs.recompute_chunk_ms()));
  WITHY_RETURN_IF_ERROR(check("recompute_position_ms", costs.recompute_position_ms()));
  KvCosts known;
  if (costs.recompute_chunk_ms() > 0) {
    known.load.recompute_fixed_ms = costs.recompute_fixed_ms();
    known.load.recompute_chunk_ms = costs.recompute_chunk_ms();
    known.load.recompute_position_ms = costs.recompute_position_ms();
  }
  FormatErrors errors = {};
  for (const proto::KvFormatError& error : costs.errors()) {
    WITHY_RETURN_IF_ERROR(check("errors.divergence", error.divergence()));
    if (error.format() < proto::KV_FORMAT_Q8 || error.format() > proto::KV_FORMAT_Q4_Q2) {
      return absl::InvalidArgumentError(absl::StrCat("kv_costs.errors.format is ", error.format(),
                                                     ": it must be 8, 4 or 2 bits"));
    }
    errors[static_cast<size_t>(error.format())] = error.divergence();
  }
  if (costs.errors().empty()) return known;
  // Beyond 8 bits. A measurement of few tokens may find less for fewer bits.
  double most = 0;
  for (const KvFormat format : {KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2}) {
    const double exact = errors[static_cast<size_t>(KvFormat::kQ8)];
    most = std::max(most, errors[static_cast<size_t>(format)] - exact);
    known.errors[static_cast<size_t>(format)] = most;
  }
  return known;
}

NewContext FromProto(const proto::StoreCreateContextRequest& wire, int64_t now_unix_s) {
  const proto::CreateContextRequest& request = wire.request();
  NewContext context{request.title(),
                     request.request_id(),
                     {},
                     Sha256(request.system_prompt()),
                     wire.kept_by_service()};
  if (!request.system_prompt().empty()) {
    proto::Segment segment;
    segment.set_role("system");
    segment.set_text(request.system_prompt());
    segment.set_unix_s(now_unix_s);
    context.segments.push_back(segment.SerializeAsString());
  }
  return context;
}

absl::StatusOr<LeaseOutcome> FromProto(const proto::LeaseCommit& commit) {
  LeaseOutcome outcome;
  outcome.tokens = commit.context_tokens();
  outcome.added_tokens = commit.appended_tokens();
  outcome.dropped = commit.dropped_segments();
  for (const proto::Segment& segment : commit.appended()) {
    if (!SpansFit(segment)) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", outcome.segments.size(),
                       ": its spans must be ascending and within its text of ",
                       segment.text().size(), " bytes"));
    }
    outcome.segments.push_back(segment.SerializeAsString());
  }
  for (const proto::ChunkIdentity& chunk : commit.chunks()) {
    outcome.chunks.push_back({.identity = chunk.identity(),
                              .tokens = chunk.tokens(),
                              .model_level_percent = chunk.model_level_percent(),
                              .density = std::isfinite(chunk.density()) ? chunk.density() : 0,
                              .density_rows = chunk.density_rows()});
  }
  if (commit.broken_off() && commit.request_id().empty()) return outcome;
  if (!commit.request_id().empty()) {
    if (commit.request_digest().size() != kDigestBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "request_digest of ", commit.request_digest().size(), " bytes: must be ", kDigestBytes));
    }
    if (commit.broken_off()) {
      outcome.unfinished = RequestKey{commit.request_id(), commit.request_digest()};
      return outcome;
    }
    outcome.result = NewResult{commit.request_id(), commit.request_digest(),
                               commit.result().SerializeAsString()};
  }
  return outcome;
}

LegacyResults MakeLegacyResults() {
  LegacyResults form;
  form.is_answer = [](std::string_view result) {
    proto::StoredResult stored;
    if (!stored.ParseFromArray(result.data(), static_cast<int>(result.size()))) return true;
    return stored.finished().reason() != proto::FINISH_REASON_CANCELLED ||
           stored.cancelled_by_caller();
  };
  // Finds the last answer that was cut short at this text, and its prompt. All segments of one
  // commit have the same time and contain only one answer.
  form.find = [](const std::vector<std::string>& segments, std::string_view result) {
    proto::StoredResult stored;
    if (!stored.ParseFromArray(result.data(), static_cast<int>(result.size()))) {
      return SegmentRange();
    }
    proto::Segment answer, before;
    for (size_t i = segments.size(); i-- > 0;) {
      if (!answer.ParseFromString(segments[i]) || !answer.cancelled() ||
          answer.text() != stored.finished().text()) {
        continue;
      }
      size_t first = i;
      while (first > 0 && before.ParseFromString(segments[first - 1]) &&
             before.role() != answer.role() && before.unix_s() == answer.unix_s()) {
        --first;
      }
      return SegmentRange{static_cast<uint32_t>(first), static_cast<uint32_t>(i + 1 - first)};
    }
    return SegmentRange();
  };
  return form;
}

void AddChunks(const std::vector<ContextChunk>& chunks, proto::GetContextResponse* response) {
  proto::ChunkRun* run = nullptr;
  for (const ContextChunk& chunk : chunks) {
    const auto resident = chunk.slot.has_value() ? static_cast<proto::KvFormat>(chunk.slot->format)
                                                 : proto::KV_FORMAT_UNSPECIFIED;
    const auto stored = chunk.indexed ? static_cast<proto::KvFormat>(chunk.stored_format)
                                      : proto::KV_FORMAT_UNSPECIFIED;
    if (run == nullptr || run->resident() != resident || run->stored() != stored ||
        run->shared() != chunk.shared) {
      run = response->add_chunks();
      run->set_resident(resident);
      run->set_stored(stored);
      run->set_shared(chunk.shared);
    }
    run->set_chunks(run->chunks() + 1);
  }
}

proto::ChunkSlot ToProto(const ChunkSlot& where) {
  proto::ChunkSlot message;
  message.set_chunk(where.chunk);
  message.set_units(where.slot.units);
  message.set_format(static_cast<proto::KvFormat>(where.slot.format));
  return message;
}

proto::ResidentChunk ToProto(const ResidentChunk& chunk) {
  proto::ResidentChunk message;
  *message.mutable_where() = ToProto(chunk.where);
  message.mutable_identity()->set_identity(chunk.identity.identity);
  message.mutable_identity()->set_tokens(chunk.identity.tokens);
  message.mutable_identity()->set_model_level_percent(chunk.identity.model_level_percent);
  message.mutable_identity()->set_density(chunk.identity.density);
  message.mutable_identity()->set_density_rows(chunk.identity.density_rows);
  message.set_state(static_cast<proto::ChunkState>(chunk.state));
  return message;
}

std::vector<LeaseChunks::Identities> FromProto(const proto::LeaseShare& share) {
  std::vector<LeaseChunks::Identities> ways;
  for (const proto::ChunkIdentities& way : share.ways()) {
    ways.emplace_back(way.identities().begin(), way.identities().end());
  }
  return ways;
}

absl::Status AddSegments(const std::vector<std::string>& segments,
                         google::protobuf::RepeatedPtrField<proto::Segment>* messages) {
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!messages->Add()->ParseFromString(segments[i])) return BadSegment(i);
  }
  return absl::OkStatus();
}

proto::LeaseEvent ToProto(const LoadEvent& event) {
  proto::LeaseEvent message;
  switch (event.what.kind) {
    case policy::KvLoadEvent::Kind::kLayers:
      message.mutable_layer_ready()->set_layer(event.what.layers - 1);
      message.mutable_layer_ready()->set_change(event.what.change);
      break;
    case policy::KvLoadEvent::Kind::kFailed:
      message.mutable_load_failed()->set_chunk(event.what.chunks.front());
      message.mutable_load_failed()->set_change(event.what.change);
      break;
    case policy::KvLoadEvent::Kind::kYielded:
      for (const ChunkSlot& chunk : event.slots) {
        *message.mutable_yielded()->add_chunks() = ToProto(chunk);
      }
      message.mutable_yielded()->set_arrived_blocks(event.what.arrived_blocks);
      message.mutable_yielded()->set_change(event.what.change);
  }
  return message;
}

absl::StatusOr<proto::LeaseOpened> ToProto(LeaseId lease, const LoadedContext& loaded) {
  proto::LeaseOpened opened;
  opened.set_lease_id(lease);
  opened.set_left_out_segments(loaded.left_out);
  WITHY_RETURN_IF_ERROR(AddSegments(loaded.segments, opened.mutable_segments()));
  for (const ResidentChunk& chunk : loaded.resident) *opened.add_resident() = ToProto(chunk);
  return opened;
}

absl::Status AddMessages(const std::vector<std::string>& segments,
                         proto::GetContextResponse* response) {
  proto::Segment segment;
  bool leading = true;  // in the leading instructions, which are never dropped
  uint32_t dropped = response->context().dropped_messages();
  for (size_t i = 0; i < segments.size(); ++i) {
    if (!segment.ParseFromString(segments[i])) return BadSegment(i);
    leading = leading && (segment.role() == "system" || segment.role() == "developer");
    proto::ContextMessage* message = response->add_messages();
    message->mutable_message()->set_role(std::move(*segment.mutable_role()));
    message->mutable_message()->set_content(std::move(*segment.mutable_text()));
    *message->mutable_message()->mutable_fixed() = std::move(*segment.mutable_fixed());
    *message->mutable_message()->mutable_tool_calls() = std::move(*segment.mutable_tool_calls());
    message->mutable_message()->set_name(std::move(*segment.mutable_name()));
    message->mutable_message()->set_tool_call_id(std::move(*segment.mutable_tool_call_id()));
    message->set_cancelled(segment.cancelled());
    message->set_model_level_percent(segment.model_level_percent());
    message->set_unix_s(segment.unix_s());
    if (!leading && dropped > 0) {
      message->set_dropped(true);
      --dropped;
    }
  }
  return absl::OkStatus();
}

void Fill(const StoreStats& stats, proto::GetStoreInfoResponse* response) {
  response->set_arena_bytes(stats.space.total);
  response->set_arena_free_bytes(stats.space.free);
  response->set_arena_quarantined_bytes(stats.space.quarantined);
  response->set_arena_largest_gap_bytes(stats.largest_gap);
  response->set_arena_withheld_bytes(stats.space.withheld);
  response->set_arena_locked_bytes(stats.locked_bytes);
  for (size_t i = 0; i < stats.bytes.resident.size(); ++i) {
    if (stats.bytes.resident[i] == 0 && stats.bytes.stored[i] == 0) continue;
    proto::KvFormatBytes* format = response->add_kv();
    format->set_format(static_cast<proto::KvFormat>(i));
    format->set_resident_bytes(stats.bytes.resident[i]);
    format->set_stored_bytes(stats.bytes.stored[i]);
  }
  response->set_faults(stats.faults);
  response->set_kept_chunks(stats.kept_chunks);
  response->set_unkept_chunks(stats.unkept_chunks);
  response->set_evicted_chunks(stats.evicted_chunks);
  response->set_demoted_chunks(stats.demoted_chunks);
  response->set_read_chunks(stats.read_chunks);
  response->set_written_chunks(stats.written_chunks);
  response->set_unwritten_chunks(stats.not_written_chunks);
  response->set_opened_resident(stats.opened_resident);
  response->set_opened_partly(stats.opened_partly);
  response->set_opened_without(stats.opened_without);
  response->set_shared_chunks(stats.space.shared_slots);
  response->set_shared_saved_bytes(stats.space.saved);
  response->set_taken_over_chunks(stats.shared_chunks);
  proto::KvDisk* disk = response->mutable_disk();
  disk->set_segments(stats.disk.segments.segments);
  disk->set_disk_bytes(stats.disk.segments.disk_bytes);
  disk->set_live_bytes(stats.disk.segments.live_bytes);
  disk->set_kv_bytes(stats.disk.segments.kv_bytes);
  disk->set_written_bytes(stats.disk.segments.written_bytes);
  disk->set_read_bytes(stats.disk.segments.read_bytes);
  disk->set_written_day_bytes(stats.disk.written_day_bytes);
  disk->set_daily_limit_bytes(stats.disk.daily_limit_bytes);
  disk->set_given_up_segments(stats.disk.given_up_segments);
  disk->set_missing_extents(stats.disk.damage.missing);
  disk->set_cut_extents(stats.disk.damage.cut);
  disk->set_wrong_extents(stats.disk.damage.wrong);
  disk->set_unread_extents(stats.disk.damage.unread);
}

}  // namespace withy::context_store
