// The complete store behind a real gRPC server on a unix socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/config.h"
#include "context_store/convert.h"
#include "context_store/process.h"
#include "context_store/testing.h"
#include "engine/kv/block.h"
#include "rpc/channel.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::context_store {
namespace {

using Stream = grpc::ClientReaderWriter<v1::LeaseRequest, v1::LeaseEvent>;

// KV of the model that the tests' worker serves.
constexpr engine::KvGeometry kServed{2, 1, 16};
const uint64_t kServedChunk = kServed.ChunkBytes(engine::KvFormat::kQ8);
constexpr uint64_t kArena = 1 << 20;

// A worker's side of one Lease stream.
class LeaseClient {
 public:
  LeaseClient(v1::ContextStore::Stub& stub, uint64_t epoch, const std::string& app,
              const std::string& context, uint32_t claim_chunks = 0,
              const std::string& request_id = "") {
    rpc::SetTimeout(&context_, absl::Seconds(30));
    stream_ = stub.Lease(&context_);
    v1::LeaseRequest request;
    request.mutable_open()->set_epoch(epoch);
    request.mutable_open()->set_app_id(app);
    request.mutable_open()->set_context_id(context);
    request.mutable_open()->set_claim_chunks(claim_chunks);
    request.mutable_open()->set_request_id(request_id);
    if (!request_id.empty()) request.mutable_open()->set_request_digest(std::string(32, 'd'));
    stream_->Write(request);
  }
  ~LeaseClient() { Cancel(); }

  // Reads the next event; one without a case if the stream is over.
  v1::LeaseEvent Read() {
    v1::LeaseEvent event;
    if (!stream_->Read(&event)) event.Clear();
    return event;
  }
  v1::LeaseEvent Claim(uint32_t first, uint32_t chunks) {
    v1::LeaseRequest request;
    request.mutable_claim()->set_first_chunk(first);
    request.mutable_claim()->set_chunks(chunks);
    stream_->Write(request);
    return Read();
  }
  // Asks for `chunks` chunks, of the identity that Commit gives, from `first` on.
  v1::LeaseEvent Share(uint32_t first, int chunks) {
    v1::LeaseRequest request;
    request.mutable_share()->set_first_chunk(first);
    v1::ChunkIdentities* way = request.mutable_share()->add_ways();
    for (int i = 0; i < chunks; ++i) way->add_identities(std::string(32, 'i'));
    stream_->Write(request);
    return Read();
  }
  v1::LeaseEvent Commit(const std::string& text, uint32_t chunks,
                        const std::string& request_id = "") {
    v1::LeaseRequest request;
    v1::LeaseCommit* commit = request.mutable_commit();
    v1::Segment* segment = commit->add_appended();
    segment->set_role("user");
    segment->set_text(text);
    for (uint32_t i = 0; i < chunks; ++i) {
      v1::ChunkIdentity* chunk = commit->add_chunks();
      chunk->set_identity(std::string(32, 'i'));
      chunk->set_tokens(16);
      chunk->set_model_level_percent(100);
    }
    commit->set_context_tokens(chunks * 16);
    if (!request_id.empty()) {
      commit->set_request_id(request_id);
      commit->set_request_digest(std::string(32, 'd'));
      commit->mutable_result()->mutable_finished()->set_text("answer to " + text);
    }
    stream_->Write(request);
    return Read();
  }
  // Commits `text` as the partial answer of a call that broke off.
  v1::LeaseEvent BreakOff(const std::string& text, const std::string& request_id) {
    v1::LeaseRequest request;
    v1::LeaseCommit* commit = request.mutable_commit();
    commit->add_appended()->set_text(text);
    commit->set_request_id(request_id);
    commit->set_request_digest(std::string(32, 'd'));
    commit->set_broken_off(true);
    stream_->Write(request);
    return Read();
  }
  // Commits a question and `text`, an answer that was cut short, as a result.
  v1::LeaseEvent CommitCancelled(const std::string& text, const std::string& request_id,
                                 bool by_caller) {
    v1::LeaseRequest request;
    v1::LeaseCommit* commit = request.mutable_commit();
    commit->add_appended()->set_role("user");
    v1::Segment* answer = commit->add_appended();
    answer->set_role("assistant");
    answer->set_text(text);
    answer->set_cancelled(true);
    commit->set_request_id(request_id);
    commit->set_request_digest(std::string(32, 'd'));
    commit->mutable_result()->mutable_finished()->set_reason(v1::FINISH_REASON_CANCELLED);
    commit->mutable_result()->mutable_finished()->set_text(text);
    commit->mutable_result()->set_cancelled_by_caller(by_caller);
    stream_->Write(request);
    return Read();
  }
  void Begin(const std::string& app) {
    v1::LeaseRequest request;
    request.mutable_begin()->set_app_id(app);
    request.mutable_begin()->set_call_id(7);
    stream_->Write(request);
  }
  void Abort() {
    v1::LeaseRequest request;
    request.mutable_abort()->set_reason("test");
    stream_->Write(request);
  }
  void CloseWriting() { stream_->WritesDone(); }
  grpc::Status Finish() {
    finished_ = true;
    return stream_->Finish();
  }
  void Cancel() {
    if (finished_) return;
    context_.TryCancel();
    Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
  bool finished_ = false;
};

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() { Start("state"); }

  void Start(const std::string& state_dir) {
    stub_.reset();
    process_.reset();
    config_.set_run_dir(dir_ / ("run" + std::to_string(++runs_)));
    config_.set_state_dir(state_dir.starts_with('/') ? state_dir : dir_ / state_dir);
    config_.mutable_store()->clear_listen();
    config_.mutable_store()->set_arena_bytes(kArena);
    config_.mutable_orchestrator()->set_contexts_per_app(3);
    proto::Config filled = config_;
    ASSERT_TRUE(FillDefaults(&filled).ok());
    std::filesystem::create_directories(filled.state_dir());
    auto process = StartContextStore(filled, {});
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    stub_ = v1::ContextStore::NewStub(rpc::Connect(filled.store().listen()));
  }

  // Calls a unary RPC and expects it to end with `code`.
  template <typename Response, typename Request>
  Response Call(grpc::Status (v1::ContextStore::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                const Request& request, grpc::StatusCode code = grpc::StatusCode::OK) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(30));
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    last_error_ = status.error_message();
    return response;
  }
  using Stub = v1::ContextStore::Stub;

  v1::BindAppResponse Bind(const std::string& app) {
    v1::StoreBindAppRequest request;
    request.set_app(app);
    return Call(&Stub::BindApp, request);
  }
  std::string CreateContext(const std::string& app, const std::string& system_prompt = "") {
    v1::StoreCreateContextRequest request;
    request.set_app_id(app);
    request.mutable_request()->set_system_prompt(system_prompt);
    return Call(&Stub::CreateContext, request).context().context_id();
  }
  v1::GetContextResponse Get(const std::string& app, const std::string& id,
                             grpc::StatusCode code = grpc::StatusCode::OK) {
    v1::StoreGetContextRequest request;
    request.set_app_id(app);
    request.set_context_id(id);
    return Call(&Stub::GetContext, request, code);
  }
  uint64_t Attach(uint64_t instance = 5) {
    v1::AttachRequest request;
    request.set_model_id(std::string(32, 'm'));
    request.set_layers(static_cast<uint32_t>(kServed.layers));
    request.set_kv_heads(static_cast<uint32_t>(kServed.kv_heads));
    request.set_head_dim(static_cast<uint32_t>(kServed.head_dim));
    request.set_block_bytes(static_cast<uint32_t>(kServed.BlockBytes(engine::KvFormat::kQ8)));
    request.set_worker_instance(instance);
    return Call(&Stub::Attach, request).epoch();
  }
  v1::GetStoreInfoResponse Info() { return Call(&Stub::GetStoreInfo, v1::GetStoreInfoRequest()); }

  TempDir dir_;
  proto::Config config_;
  int runs_ = 0;
  std::string last_error_;
  std::unique_ptr<rpc::Process> process_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(ServiceTest, CostsThatNoWorkerCanMeanAreRefusedByName) {
  v1::AttachRequest request;
  request.set_worker_instance(5);
  request.mutable_kv_costs()->set_recompute_chunk_ms(-1);
  Call(&Stub::Attach, request, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(last_error_, testing::HasSubstr("kv_costs.recompute_chunk_ms is -1"));
  request.mutable_kv_costs()->set_recompute_chunk_ms(1);
  request.add_public_chunks("short");
  Call(&Stub::Attach, request, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(last_error_, testing::HasSubstr("public_chunks: an identity of 5 bytes; must be 32"));
  v1::KvFormatError& error = *request.mutable_kv_costs()->add_errors();
  Call(&Stub::Attach, request, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(last_error_, testing::HasSubstr("kv_costs.errors.format is 0"));
  error.set_format(v1::KV_FORMAT_Q2);
  error.set_divergence(std::numeric_limits<double>::infinity());
  Call(&Stub::Attach, request, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(last_error_, testing::HasSubstr("kv_costs.errors.divergence is inf"));
}

TEST(KvCostsTest, WhatAWorkerDoesNotTellIsUncalibrated) {
  v1::KvCosts wire;
  EXPECT_EQ(FromProto(wire)->errors, UncalibratedErrors());
  EXPECT_EQ(FromProto(wire)->load.recompute_chunk_ms, UncalibratedLoadCosts().recompute_chunk_ms);
  wire.set_recompute_chunk_ms(3);
  // A measurement of few tokens may find less for fewer bits: errors do not fall.
  for (const auto& [format, divergence] :
       {std::pair(v1::KV_FORMAT_Q8, 0.5), std::pair(v1::KV_FORMAT_Q4, 2.0),
        std::pair(v1::KV_FORMAT_Q4_Q2, 1.5), std::pair(v1::KV_FORMAT_Q2, 20.0)}) {
    v1::KvFormatError& error = *wire.add_errors();
    error.set_format(format);
    error.set_divergence(divergence);
  }
  const KvCosts costs = *FromProto(wire);
  EXPECT_EQ(costs.load.recompute_chunk_ms, 3);
  const auto of = [&](KvFormat format) { return costs.errors[static_cast<size_t>(format)]; };
  EXPECT_EQ(of(KvFormat::kQ8), 0);
  EXPECT_EQ(of(KvFormat::kQ4), 1.5);
  EXPECT_EQ(of(KvFormat::kQ4Q2), 1.5);
  EXPECT_EQ(of(KvFormat::kQ2), 19.5);
}

TEST_F(ServiceTest, ALeaseCommitsAndTheNextReusesItsKv) {
  const std::string app = Bind("mail").app_id();
  const std::string id = CreateContext(app, "be brief");
  const uint64_t epoch = Attach();
  {
    LeaseClient lease(*stub_, epoch, app, id);
    const v1::LeaseEvent opened = lease.Read();
    ASSERT_TRUE(opened.has_opened());
    ASSERT_EQ(opened.opened().segments_size(), 1);
    EXPECT_EQ(opened.opened().segments(0).role(), "system");
    EXPECT_EQ(opened.opened().segments(0).text(), "be brief");
    const v1::LeaseEvent claimed = lease.Claim(0, 2);
    ASSERT_EQ(claimed.claimed().chunks_size(), 2);
    EXPECT_EQ(claimed.claimed().chunks(1).format(), v1::KV_FORMAT_Q8);
    EXPECT_EQ(lease.Commit("hello", 2).committed().revision(), 1u);
    EXPECT_TRUE(lease.Finish().ok());
  }
  LeaseClient next(*stub_, epoch, app, id);
  const v1::LeaseEvent opened = next.Read();
  EXPECT_EQ(opened.opened().segments_size(), 2);
  EXPECT_EQ(opened.opened().resident_size(), 2);
  next.Abort();
  EXPECT_TRUE(next.Finish().ok());
  const v1::GetContextResponse got = Get(app, id);
  EXPECT_EQ(got.messages(1).message().content(), "hello");
  EXPECT_EQ(got.context().tokens(), 32u);
  EXPECT_EQ(got.context().resident_bytes(), 2 * kServedChunk);
}

TEST_F(ServiceTest, ContextsOfAnAppShareEqualChunks) {
  const std::string app = Bind("mail").app_id(), stranger = Bind("news").app_id();
  const uint64_t epoch = Attach();
  const std::string first = CreateContext(app), second = CreateContext(app);
  {
    LeaseClient lease(*stub_, epoch, app, first);
    ASSERT_TRUE(lease.Read().has_opened());
    EXPECT_EQ(lease.Share(0, 2).shared().chunks_size(), 0) << "nobody has any";
    ASSERT_EQ(lease.Claim(0, 2).claimed().chunks_size(), 2);
    ASSERT_TRUE(lease.Commit("hello", 2).has_committed());
  }
  {
    LeaseClient lease(*stub_, epoch, stranger, CreateContext(stranger));
    ASSERT_TRUE(lease.Read().has_opened());
    const v1::LeaseEvent event = lease.Share(0, 2);
    ASSERT_TRUE(event.has_shared());
    EXPECT_EQ(event.shared().chunks_size(), 0);
    lease.Abort();
    EXPECT_TRUE(lease.Finish().ok());
  }
  LeaseClient lease(*stub_, epoch, app, second);
  ASSERT_TRUE(lease.Read().has_opened());
  const v1::LeaseShared shared = lease.Share(0, 3).shared();
  ASSERT_EQ(shared.chunks_size(), 2);
  EXPECT_EQ(shared.chunks(1).where().chunk(), 1u);
  EXPECT_EQ(shared.chunks(1).state(), v1::CHUNK_STATE_RESIDENT);
  EXPECT_EQ(shared.chunks(1).identity().tokens(), 16u);
  ASSERT_TRUE(lease.Commit("hello", 2).has_committed());
  EXPECT_TRUE(lease.Finish().ok());
  const v1::GetStoreInfoResponse info = Info();
  EXPECT_EQ(info.arena_bytes() - info.arena_free_bytes(), 2 * kServedChunk);
  EXPECT_EQ(info.shared_chunks(), 2u);
  EXPECT_EQ(info.shared_saved_bytes(), 2 * kServedChunk);
  EXPECT_EQ(info.taken_over_chunks(), 2u);
  const v1::GetContextResponse got = Get(app, first);
  ASSERT_EQ(got.chunks_size(), 1);
  EXPECT_TRUE(got.chunks(0).shared());
}

TEST_F(ServiceTest, ABrokenLeaseLeavesTheRecordAsItWas) {
  const std::string app = Bind("mail").app_id();
  const std::string id = CreateContext(app, "be brief");
  const uint64_t epoch = Attach();
  LeaseClient first(*stub_, epoch, app, id);
  ASSERT_TRUE(first.Read().has_opened());
  ASSERT_EQ(first.Claim(0, 1).claimed().chunks_size(), 1);
  LeaseClient waiting(*stub_, epoch, app, id);
  first.Cancel();
  const v1::LeaseEvent opened = waiting.Read();
  ASSERT_TRUE(opened.has_opened()) << "the next in line gets the context";
  EXPECT_EQ(opened.opened().segments_size(), 1);
  EXPECT_EQ(opened.opened().resident_size(), 0);
  waiting.CloseWriting();
  EXPECT_EQ(waiting.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(Get(app, id).messages_size(), 1);
  EXPECT_EQ(Info().leases_open(), 0u);
}

TEST_F(ServiceTest, NothingCommittedIsLostWhenTheStoreIsKilled) {
  const v1::BindAppResponse app = Bind("mail");
  const std::string id = CreateContext(app.app_id(), "be brief");
  const uint64_t epoch = Attach();
  LeaseClient lease(*stub_, epoch, app.app_id(), id);
  ASSERT_TRUE(lease.Read().has_opened());
  ASSERT_TRUE(lease.Commit("hello", 0, "req").has_committed());
  lease.Finish();
  // Copies the directory as a kill at this moment leaves it, with an open lease.
  LeaseClient open(*stub_, epoch, app.app_id(), id);
  ASSERT_TRUE(open.Read().has_opened());
  const std::string killed = dir_.Snapshot("state");
  open.Cancel();
  Start(killed);

  v1::AuthenticateAppRequest token;
  token.set_token(app.token());
  EXPECT_EQ(Call(&Stub::AuthenticateApp, token).app_id(), app.app_id());
  EXPECT_EQ(Get(app.app_id(), id).messages(1).message().content(), "hello");
  v1::FindResultRequest find;
  find.set_app_id(app.app_id());
  find.set_request_id("req");
  find.set_request_digest(std::string(32, 'd'));
  EXPECT_EQ(Call(&Stub::FindResult, find).result().finished().text(), "answer to hello");
  // The lease from before the restart is stale.
  LeaseClient stale(*stub_, epoch, app.app_id(), id);
  EXPECT_FALSE(stale.Read().has_opened());
  EXPECT_EQ(stale.Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_GT(Attach(), epoch);
}

TEST_F(ServiceTest, ARetryGetsTheStoredResultAndAddsNothing) {
  const std::string app = Bind("mail").app_id();
  const std::string id = CreateContext(app);
  const uint64_t epoch = Attach();
  for (int i = 0; i < 2; ++i) {
    LeaseClient lease(*stub_, epoch, app, id);
    ASSERT_TRUE(lease.Read().has_opened());
    EXPECT_EQ(lease.Commit("hello", 0, "req").has_committed(), i == 0);
    const grpc::StatusCode code = lease.Finish().error_code();
    EXPECT_EQ(code, i == 0 ? grpc::StatusCode::OK : grpc::StatusCode::ALREADY_EXISTS);
  }
  EXPECT_EQ(Get(app, id).messages_size(), 1);
  v1::FindResultRequest find;
  find.set_app_id(app);
  find.set_request_id("req");
  find.set_request_digest(std::string(32, 'x'));
  Call(&Stub::FindResult, find, grpc::StatusCode::ALREADY_EXISTS);
  find.set_request_id("other");
  Call(&Stub::FindResult, find, grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, WhatBrokeOffIsLeftOutForItsRetryAndReplaced) {
  const std::string app = Bind("mail").app_id();
  const std::string id = CreateContext(app, "be brief");
  const uint64_t epoch = Attach();
  {
    LeaseClient lease(*stub_, epoch, app, id);
    ASSERT_TRUE(lease.Read().has_opened());
    EXPECT_TRUE(lease.BreakOff("how are", "req").has_committed());
    EXPECT_TRUE(lease.Finish().ok());
  }
  EXPECT_EQ(Get(app, id).messages_size(), 2) << "what there is stays until the retry";
  v1::FindResultRequest find;
  find.set_app_id(app);
  find.set_request_id("req");
  find.set_request_digest(std::string(32, 'd'));
  Call(&Stub::FindResult, find, grpc::StatusCode::NOT_FOUND);
  v1::StoreGetContextRequest count;
  count.set_app_id(app);
  count.set_context_id(id);
  count.set_request_id("req");
  count.set_request_digest(std::string(32, 'd'));
  EXPECT_EQ(Call(&Stub::ReadContext, count).segments_size(), 1);

  {
    LeaseClient other(*stub_, epoch, app, id);
    EXPECT_EQ(other.Read().opened().segments_size(), 2) << "another call sees what was said";
    other.Abort();
    EXPECT_TRUE(other.Finish().ok());
  }
  {
    LeaseClient retry(*stub_, epoch, app, id, 0, "req");
    const v1::LeaseEvent opened = retry.Read();
    EXPECT_EQ(opened.opened().segments_size(), 1);
    EXPECT_EQ(opened.opened().left_out_segments(), 1u);
    retry.Abort();
    EXPECT_TRUE(retry.Finish().ok());
  }
  EXPECT_EQ(Get(app, id).messages_size(), 2) << "a retry without an answer changes nothing";
  LeaseClient retry(*stub_, epoch, app, id, 0, "req");
  ASSERT_TRUE(retry.Read().has_opened());
  EXPECT_TRUE(retry.Commit("how are you", 0, "req").has_committed());
  EXPECT_TRUE(retry.Finish().ok());
  const v1::GetContextResponse got = Get(app, id);
  ASSERT_EQ(got.messages_size(), 2);
  EXPECT_EQ(got.messages(1).message().content(), "how are you");
  EXPECT_EQ(Call(&Stub::FindResult, find).result().finished().text(), "answer to how are you");
}

// A result stored by an earlier build that treated a broken connection as a cancel.
TEST_F(ServiceTest, AFormerResultThatNobodyCancelledIsNone) {
  const std::string app = Bind("mail").app_id();
  const std::string id = CreateContext(app);
  const uint64_t epoch = Attach();
  for (const bool by_caller : {false, true}) {
    const std::string request = by_caller ? "wanted" : "broken";
    {
      LeaseClient lease(*stub_, epoch, app, id);
      ASSERT_TRUE(lease.Read().has_opened());
      EXPECT_TRUE(lease.CommitCancelled("how are", request, by_caller).has_committed());
      EXPECT_TRUE(lease.Finish().ok());
    }
    v1::FindResultRequest find;
    find.set_app_id(app);
    find.set_request_id(request);
    find.set_request_digest(std::string(32, 'd'));
    Call(&Stub::FindResult, find, by_caller ? grpc::StatusCode::OK : grpc::StatusCode::NOT_FOUND);
    if (by_caller) break;
    LeaseClient retry(*stub_, epoch, app, id, 0, request);
    const v1::LeaseEvent opened = retry.Read();
    EXPECT_EQ(opened.opened().segments_size(), 0);
    EXPECT_EQ(opened.opened().left_out_segments(), 2u) << "the prompt and the part";
    EXPECT_TRUE(retry.Commit("how are you", 0, request).has_committed());
    EXPECT_TRUE(retry.Finish().ok());
    EXPECT_EQ(Get(app, id).messages_size(), 1);
    EXPECT_EQ(Call(&Stub::FindResult, find).result().finished().text(), "answer to how are you");
  }
}

TEST_F(ServiceTest, CreatingAgainWithAnotherSystemPromptIsRefused) {
  v1::StoreCreateContextRequest create;
  create.set_app_id(Bind("mail").app_id());
  create.mutable_request()->set_request_id("r");
  create.mutable_request()->set_system_prompt("be brief");
  const std::string id = Call(&Stub::CreateContext, create).context().context_id();
  EXPECT_EQ(Call(&Stub::CreateContext, create).context().context_id(), id);
  create.mutable_request()->set_system_prompt("be verbose");
  Call(&Stub::CreateContext, create, grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(last_error_, ::testing::HasSubstr("system_prompt"));
  create.mutable_request()->clear_system_prompt();
  Call(&Stub::CreateContext, create, grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(ServiceTest, WhatTheServiceKeepsForItselfIsMarkedWhateverItsTitle) {
  v1::StoreCreateContextRequest create;
  create.set_app_id(Bind("mail").app_id());
  create.mutable_request()->set_title("openai");
  const std::string own = Call(&Stub::CreateContext, create).context().context_id();
  create.set_kept_by_service(true);
  EXPECT_TRUE(Call(&Stub::CreateContext, create).context().kept_by_service());
  EXPECT_FALSE(Get(create.app_id(), own).context().kept_by_service());
}

TEST_F(ServiceTest, AnotherAppsContextIsNotFoundEverywhere) {
  const std::string app = Bind("mail").app_id();
  const std::string other = Bind("chat").app_id();
  const std::string id = CreateContext(app);
  const uint64_t epoch = Attach();
  Get(other, id, grpc::StatusCode::NOT_FOUND);
  const std::string foreign = last_error_;
  Get(other, "ctx_none", grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(foreign.size() - id.size(), last_error_.size() - 8) << "the messages say the same";
  v1::StoreDeleteContextRequest remove;
  remove.set_app_id(other);
  remove.set_context_id(id);
  Call(&Stub::DeleteContext, remove, grpc::StatusCode::NOT_FOUND);
  LeaseClient lease(*stub_, epoch, other, id);
  EXPECT_FALSE(lease.Read().has_opened());
  EXPECT_EQ(lease.Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  v1::StoreListContextsRequest list;
  list.set_app_id(other);
  EXPECT_EQ(Call(&Stub::ListContexts, list).contexts_size(), 0);
  list.set_app_id(app);
  EXPECT_EQ(Call(&Stub::ListContexts, list).contexts_size(), 1);
}

TEST_F(ServiceTest, AFullArenaRefusesTheClaimAndLetsTheAnswerBeKept) {
  const std::string app = Bind("mail").app_id();
  const std::string id = CreateContext(app);
  LeaseClient lease(*stub_, Attach(), app, id);
  ASSERT_TRUE(lease.Read().has_opened());
  const auto all = static_cast<uint32_t>(kArena / kServedChunk);
  ASSERT_EQ(lease.Claim(0, all).claimed().chunks_size(), static_cast<int>(all));
  const v1::LeaseEvent refused = lease.Claim(all, 1);
  EXPECT_THAT(refused.claimed().refused(),
              ::testing::HasSubstr("no room in the KV arena: 1 chunk"));
  EXPECT_TRUE(lease.Commit("as far as it went", all).has_committed());
  lease.Finish();
  EXPECT_EQ(Get(app, id).messages_size(), 1);
}

TEST_F(ServiceTest, AStatelessLeaseMayClaimWithItsOpening) {
  const std::string app = Bind("mail").app_id();
  const uint64_t epoch = Attach();
  LeaseClient lease(*stub_, epoch, app, "", 3);
  const v1::LeaseEvent opened = lease.Read();
  ASSERT_EQ(opened.opened().claimed_size(), 3);
  EXPECT_EQ(opened.opened().claimed(2).chunk(), 2u);
  EXPECT_NE(opened.opened().claimed(2).units(), opened.opened().claimed(1).units());
  const v1::LeaseEvent more = lease.Claim(3, 1);
  ASSERT_EQ(more.claimed().chunks_size(), 1) << "it goes on behind them";
  EXPECT_EQ(more.claimed().chunks(0).chunk(), 3u);

  const auto all = static_cast<uint32_t>(kArena / kServedChunk);
  LeaseClient greedy(*stub_, epoch, app, "", all);
  const v1::LeaseEvent full = greedy.Read();
  ASSERT_TRUE(full.has_opened());
  EXPECT_EQ(full.opened().claimed_size(), 0) << "no room";
  lease.Cancel();
  EXPECT_THAT(greedy.Claim(0, all + 1).claimed().refused(), ::testing::HasSubstr("bytes free"))
      << "no other lease is there to wait for";
  greedy.Cancel();

  LeaseClient wrong(*stub_, epoch, app, CreateContext(app), 1);
  EXPECT_FALSE(wrong.Read().has_opened());
  EXPECT_EQ(wrong.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, ALeaseMayBeOpenedAheadOfItsCall) {
  const std::string app = Bind("mail").app_id();
  const uint64_t epoch = Attach();
  LeaseClient lease(*stub_, epoch, "", "", /*claim_chunks=*/2);
  EXPECT_EQ(lease.Read().opened().claimed_size(), 2);
  lease.Begin(app);
  ASSERT_EQ(lease.Claim(2, 1).claimed().chunks_size(), 1);
  ASSERT_TRUE(lease.Commit("hello", 0, "req").has_committed());
  v1::FindResultRequest find;
  find.set_app_id(app);
  find.set_request_id("req");
  find.set_request_digest(std::string(32, 'd'));
  EXPECT_EQ(Call(&Stub::FindResult, find).result().finished().text(), "answer to hello");

  LeaseClient twice(*stub_, epoch, app, "");
  ASSERT_TRUE(twice.Read().has_opened());
  twice.Begin(app);
  EXPECT_FALSE(twice.Claim(0, 1).has_claimed());
  EXPECT_EQ(twice.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// Leases opened ahead end at once; a call that has begun may finish.
TEST_F(ServiceTest, AStoreThatStopsWaitsForCallsAlone) {
  const std::string app = Bind("mail").app_id();
  const uint64_t epoch = Attach();
  LeaseClient ahead(*stub_, epoch, "", "", /*claim_chunks=*/1);
  ASSERT_TRUE(ahead.Read().has_opened());
  LeaseClient begun(*stub_, epoch, "", "", /*claim_chunks=*/1);
  ASSERT_TRUE(begun.Read().has_opened());
  begun.Begin(app);
  ASSERT_EQ(begun.Claim(1, 1).claimed().chunks_size(), 1);
  std::thread stopping([&] { process_->Drain(absl::Seconds(60)); });
  EXPECT_EQ(ahead.Read().event_case(), v1::LeaseEvent::EVENT_NOT_SET);
  EXPECT_EQ(ahead.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(begun.Commit("hello", 0).has_committed());
  EXPECT_TRUE(begun.Finish().ok());
  stopping.join();
}

TEST_F(ServiceTest, WrongInputGetsTheRightCode) {
  v1::StoreBindAppRequest bind;
  bind.set_app("no spaces");
  Call(&Stub::BindApp, bind, grpc::StatusCode::INVALID_ARGUMENT);
  v1::AuthenticateAppRequest token;
  token.set_token("wrong");
  Call(&Stub::AuthenticateApp, token, grpc::StatusCode::UNAUTHENTICATED);
  v1::StoreCreateContextRequest create;
  create.set_app_id("app_none");
  Call(&Stub::CreateContext, create, grpc::StatusCode::NOT_FOUND);
  const std::string app = Bind("mail").app_id();
  const std::string id = CreateContext(app);
  for (int i = 0; i < 2; ++i) CreateContext(app);
  create.set_app_id(app);
  Call(&Stub::CreateContext, create, grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::AttachRequest attach;
  Call(&Stub::Attach, attach, grpc::StatusCode::INVALID_ARGUMENT);

  const uint64_t epoch = Attach();
  LeaseClient hasty(*stub_, epoch, app, id);
  ASSERT_TRUE(hasty.Read().has_opened());
  v1::StoreDeleteContextRequest remove;
  remove.set_app_id(app);
  remove.set_context_id(id);
  Call(&Stub::DeleteContext, remove, grpc::StatusCode::ABORTED);
  EXPECT_FALSE(hasty.Claim(7, 1).has_claimed());
  EXPECT_EQ(hasty.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Call(&Stub::DeleteContext, remove);
  Get(app, id, grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, InfoTellsWhatIsThere) {
  const std::string app = Bind("mail").app_id();
  CreateContext(app);
  const uint64_t epoch = Attach();
  LeaseClient lease(*stub_, epoch, app, "");
  ASSERT_TRUE(lease.Read().has_opened());
  lease.Claim(0, 3);
  LeaseClient ahead(*stub_, epoch, "", "");
  ASSERT_TRUE(ahead.Read().has_opened());
  const v1::GetStoreInfoResponse info = Info();
  EXPECT_EQ(info.epoch(), epoch);
  EXPECT_EQ(info.apps(), 1u);
  EXPECT_EQ(info.contexts(), 1u);
  EXPECT_EQ(info.leases_open(), 2u);
  EXPECT_EQ(info.status().running_calls(), 1u) << "the other call has not come yet";
  EXPECT_EQ(info.arena_bytes() - info.arena_free_bytes(), 3 * kServedChunk);
  EXPECT_EQ(info.status().arena_used_bytes(), 3 * kServedChunk);
  EXPECT_GT(info.status().resident_bytes(), 0u);
}

TEST_F(ServiceTest, ASecondStoreOnTheSameRecordsIsRefused) {
  proto::Config other = config_;
  other.set_run_dir(dir_ / "elsewhere");
  ASSERT_TRUE(FillDefaults(&other).ok());
  const absl::Status second = StartContextStore(other, {}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
}

}  // namespace
}  // namespace withy::context_store
