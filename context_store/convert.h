// Conversions between wire messages and the store's structs. Neighbours: service.cc,
// lease_reactor.cc.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "context_store/store.h"
#include "withy/v1/context_store.pb.h"

namespace withy::context_store {

namespace proto = ::withy::v1;

proto::ContextInfo ToProto(const ContextSummary& summary, const ContextKv& kv);
void AddChunks(const std::vector<ContextChunk>& chunks, proto::GetContextResponse* response);
// Errors: INVALID_ARGUMENT naming the field.
absl::StatusOr<Geometry> FromProto(const proto::AttachRequest& request);
// What it does not tell is as uncalibrated. Errors: INVALID_ARGUMENT naming the field.
absl::StatusOr<KvCosts> FromProto(const proto::KvCosts& costs);
NewContext FromProto(const proto::StoreCreateContextRequest& wire, int64_t now_unix_s);
absl::StatusOr<LeaseOutcome> FromProto(const proto::LeaseCommit& commit);
LegacyResults MakeLegacyResults();

std::vector<LeaseChunks::Identities> FromProto(const proto::LeaseShare& share);
proto::ChunkSlot ToProto(const ChunkSlot& slot);
proto::ResidentChunk ToProto(const ResidentChunk& chunk);
proto::LeaseEvent ToProto(const LoadEvent& event);
// All fields of the response that tell of KV.
void Fill(const StoreStats& stats, proto::GetStoreInfoResponse* response);
// Errors: DATA_LOSS if a stored segment is not a valid message.
absl::StatusOr<proto::LeaseOpened> ToProto(LeaseId lease, const LoadedContext& loaded);
// Appends the messages of a context. Errors: as above.
absl::Status AddMessages(const std::vector<std::string>& segments,
                         proto::GetContextResponse* response);
// Appends the segments as stored. Errors: as above.
absl::Status AddSegments(const std::vector<std::string>& segments,
                         google::protobuf::RepeatedPtrField<proto::Segment>* messages);

}  // namespace withy::context_store
