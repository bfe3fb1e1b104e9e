#include "orchestrator/testing.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <utility>

#include "base/config.h"
#include "gtest/gtest.h"
#include "orchestrator/process.h"

namespace withy::orchestrator {
namespace {

using grpc::Status;
using grpc::StatusCode;

template <typename Service>
std::unique_ptr<rpc::Server> Serve(const std::string& name, const std::string& address,
                                   Service* service) {
  auto server = rpc::Server::Start({name, {address}}, {service});
  EXPECT_TRUE(server.ok()) << server.status();
  (*server)->SetServing(true);
  return *std::move(server);
}

v1::RunResponse TokenEvent(const std::string& text) {
  v1::RunResponse event;
  event.mutable_delta()->set_text(text);
  event.mutable_delta()->add_tokens()->set_id(static_cast<unsigned char>(text[0]));
  return event;
}

}  // namespace

Status FakeStore::AuthenticateApp(grpc::ServerContext*, const v1::AuthenticateAppRequest* request,
                                  v1::AuthenticateAppResponse* response) {
  const std::lock_guard lock(mutex_);
  ++authentications_;
  if (request->token() != "good" && request->certified_app() != "one")
    return {StatusCode::UNAUTHENTICATED, "unknown token"};
  response->set_app_id("app_1");
  response->set_app("one");
  return Status::OK;
}

Status FakeStore::FindResult(grpc::ServerContext*, const v1::FindResultRequest* request,
                             v1::FindResultResponse* response) {
  const std::lock_guard lock(mutex_);
  const auto it = results_.find(request->request_id());
  if (it == results_.end()) return {StatusCode::NOT_FOUND, "no such result"};
  if (it->second.first != request->request_digest())
    return {StatusCode::ALREADY_EXISTS, "another request"};
  *response->mutable_result() = it->second.second;
  return Status::OK;
}

Status FakeStore::BindApp(grpc::ServerContext*, const v1::StoreBindAppRequest* request,
                          v1::BindAppResponse* response) {
  if (request->operator_renewal()) return {StatusCode::INTERNAL, "not for the orchestrator"};
  if (request->app() == "one" && request->current_token() != "good")
    return {StatusCode::ALREADY_EXISTS, "an app named one is registered"};
  response->set_app_id(request->app() == "one" ? "app_1" : "app_2");
  response->set_token("fresh");
  return Status::OK;
}

Status FakeStore::CreateContext(grpc::ServerContext*, const v1::StoreCreateContextRequest* request,
                                v1::CreateContextResponse* response) {
  {
    const std::lock_guard lock(mutex_);
    created_.push_back(*request);
    if (refuses_contexts_)
      return {StatusCode::RESOURCE_EXHAUSTED, "the app has 5 contexts; the limit is 5"};
  }
  response->mutable_context()->set_context_id("ctx_of_" + request->app_id());
  response->mutable_context()->set_title(request->request().title());
  return Status::OK;
}

Status FakeStore::GetContext(grpc::ServerContext*, const v1::StoreGetContextRequest* request,
                             v1::GetContextResponse* response) {
  if (request->context_id() != "ctx_of_" + request->app_id())
    return {StatusCode::NOT_FOUND, "unknown context"};
  response->mutable_context()->set_context_id(request->context_id());
  return Status::OK;
}

Status FakeStore::GetStoreInfo(grpc::ServerContext*, const v1::GetStoreInfoRequest*,
                               v1::GetStoreInfoResponse* response) {
  response->mutable_status()->set_arena_bytes(77);
  return Status::OK;
}

void FakeStore::Keep(const std::string& request_id, const std::string& digest,
                     const v1::StoredResult& result) {
  const std::lock_guard lock(mutex_);
  results_[request_id] = {digest, result};
}

int FakeStore::authentications() const {
  const std::lock_guard lock(mutex_);
  return authentications_;
}

std::vector<v1::StoreCreateContextRequest> FakeStore::created() const {
  const std::lock_guard lock(mutex_);
  return created_;
}

void FakeStore::RefuseContexts() {
  const std::lock_guard lock(mutex_);
  refuses_contexts_ = true;
}

namespace {

bool AsksForCall(const v1::RunRequest& request) {
  const v1::Messages& said = request.prompt().messages();
  return !said.messages().empty() && said.messages().rbegin()->content() == "call";
}

void AnswerWithCall(v1::RunResponse event, grpc::ServerWriter<v1::RunResponse>* writer) {
  event.mutable_finished()->set_text(
      "<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 1}}</tool_call>");
  writer->Write(TokenEvent(event.finished().text()));
  event.mutable_finished()->set_reason(v1::FINISH_REASON_TOOL_CALLS);
  v1::ToolCall* call = event.mutable_finished()->add_tool_calls();
  call->set_id("i1");
  call->set_name("look");
  call->set_arguments_json(R"({"at": 1})");
  writer->Write(event);
}

}  // namespace

std::optional<Status> FakeWorker::AwaitRelease(grpc::ServerContext* context,
                                               const v1::RunRequest& request, v1::RunResponse event,
                                               grpc::ServerWriter<v1::RunResponse>* writer) {
  std::unique_lock lock(mutex_);
  const auto stopped = [&] { return stopped_.contains(request.call_id()); };
  while (!released_ && !stopped() && !context->IsCancelled())
    changed_.wait_for(lock, std::chrono::milliseconds(1));
  holding_.erase(request.call_id());
  if (stopped()) {
    event.mutable_finished()->set_text("a");
    event.mutable_finished()->set_reason(v1::FINISH_REASON_CANCELLED);
    writer->Write(event);
    return Status::OK;
  }
  if (context->IsCancelled()) {
    ++cancelled_;
    changed_.notify_all();
    return Status(StatusCode::CANCELLED, "cancelled");
  }
  return std::nullopt;
}

Status FakeWorker::Run(grpc::ServerContext* context, const v1::RunRequest* request,
                       grpc::ServerWriter<v1::RunResponse>* writer) {
  const std::string& script = request->prompt().text();
  bool die_now = false;
  double slowdown = 0;
  bool hold = script == "hold";
  {
    const std::lock_guard lock(mutex_);
    if (request->worker_instance() != instance_) {
      return {StatusCode::ABORTED, "worker was restarted since the call was decided"};
    }
    hold = hold || (!held_.empty() && script.starts_with(held_)) ||
           (script == "hold later" &&
            std::any_of(runs_.begin(), runs_.end(), [&](const v1::RunRequest& before) {
              return before.prompt().text() == script;
            }));
    runs_.push_back(*request);
    slowdown = slowdown_;
    if (hold) holding_.insert(request->call_id());
    changed_.notify_all();
    die_now = script == "die early" && !died_;
    died_ = died_ || die_now;
  }
  if (die_now) return {StatusCode::UNAVAILABLE, "worker is gone"};
  v1::RunResponse event;
  event.mutable_accepted()->set_prefill_tokens(5);
  event.set_board_slowdown(slowdown);
  writer->Write(event);
  if (request->report_progress()) {
    event.mutable_progress()->set_computed_tokens(3);
    event.mutable_progress()->set_prefill_tokens(5);
    writer->Write(event);
  }
  if (AsksForCall(*request)) {
    AnswerWithCall(event, writer);
    return Status::OK;
  }
  writer->Write(TokenEvent("a"));
  if (script == "die late") return {StatusCode::UNAVAILABLE, "worker is gone"};
  if (hold) {
    if (const auto ended = AwaitRelease(context, *request, event, writer)) return *ended;
  }
  writer->Write(TokenEvent("b"));
  const bool differs = script == "low differs" && request->model_level_percent() < 60;
  writer->Write(TokenEvent(differs ? "d" : "c"));
  event.mutable_finished()->set_text(differs ? "abd" : "abc");
  event.mutable_finished()->set_reason(v1::FINISH_REASON_END_OF_TURN);
  event.mutable_finished()->set_seed(request->sampling().seed());
  event.mutable_finished()->mutable_usage()->set_completion_tokens(3);
  event.mutable_finished()->mutable_usage()->set_pruned_words(request->pruned_words());
  writer->Write(event);
  return Status::OK;
}

Status FakeWorker::Cancel(grpc::ServerContext*, const v1::CancelRunRequest* request,
                          v1::CancelRunResponse*) {
  const std::lock_guard lock(mutex_);
  if (!holding_.contains(request->call_id())) return {StatusCode::NOT_FOUND, "no such call"};
  stopped_.insert(request->call_id());
  changed_.notify_all();
  return Status::OK;
}

Status FakeWorker::Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                            v1::TokenizeResponse* response) {
  size_t bytes = request->prompt().text().size();
  for (const v1::Message& message : request->prompt().messages().messages()) {
    bytes += message.content().size();
  }
  if (!request->kept().empty()) {
    bytes = 0;
    for (int i = 0; i < request->kept_size(); ++i) {
      const auto& messages = request->prompt().messages().messages();
      if (request->kept(i).spans().empty())
        bytes += messages.empty() ? request->prompt().text().size() : messages[i].content().size();
      for (const v1::ByteSpan& span : request->kept(i).spans()) bytes += span.end() - span.begin();
    }
  }
  const std::lock_guard lock(mutex_);
  response->set_prompt_tokens(static_cast<uint32_t>(bytes / bytes_per_token_));
  ++tokenized_;
  if (request->prompt().text() == "adapted") response->set_adapted_messages(2);
  response->set_instance(instance_);
  return Status::OK;
}

Status FakeWorker::GetWorkerInfo(grpc::ServerContext*, const v1::GetWorkerInfoRequest*,
                                 v1::GetWorkerInfoResponse* response) {
  {
    const std::lock_guard lock(mutex_);
    response->set_without_model(without_model_);
    if (!without_model_.empty()) return Status::OK;
  }
  v1::ModelDescription& model = *response->mutable_model();
  model.set_name("fake");
  model.set_role("target");
  model.set_context_length(32'768);
  model.set_vocabulary(1000);
  model.set_embedding_values(4);
  {
    const std::lock_guard lock(mutex_);
    model.set_warning(warning_);
    model.set_model_id(model_id_);
    model.mutable_level_loss_above_full()->Add(losses_.begin(), losses_.end());
    model.mutable_levels_percent()->Add(levels_.begin(), levels_.end());
    response->mutable_cost()->set_prefill_us_per_token(prefill_us_per_token_);
    response->set_encoder_fingerprint(encoder_fingerprint_);
    response->set_instance(instance_);
    response->set_model_path(model_path_);
  }
  response->mutable_cost()->set_decode_us_per_token(10'000);
  response->mutable_status()->set_model_bytes(123);
  return Status::OK;
}

Status FakeWorker::Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                         grpc::ServerWriter<v1::EmbedResponse>* writer) {
  {
    const std::lock_guard lock(mutex_);
    ++embeds_;
    changed_.notify_all();
  }
  uint64_t computed = 0;
  for (const v1::EmbedInput& input : request->inputs()) {
    const auto tokens = static_cast<uint32_t>(
        input.has_tokens() ? static_cast<size_t>(input.tokens().ids_size()) : input.text().size());
    v1::EmbedResponse response;
    v1::Embedding& embedding = *response.add_embeddings();
    for (const float value : {static_cast<float>(tokens), 0.25F, -0.5F, 0.0F}) {
      embedding.add_values(value);
    }
    embedding.set_tokens(tokens);
    response.set_computed_tokens(computed += tokens);
    writer->Write(response);
    if (input.text() != "hold") continue;
    std::unique_lock lock(mutex_);
    while (!released_ && !context->IsCancelled()) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (!context->IsCancelled()) continue;
    ++cancelled_;
    changed_.notify_all();
    return {StatusCode::CANCELLED, "cancelled"};
  }
  return Status::OK;
}

void FakeWorker::Hold(const std::string& beginning) {
  const std::lock_guard lock(mutex_);
  held_ = beginning;
}

void FakeWorker::Release() {
  scorer.Release();
  const std::lock_guard lock(mutex_);
  released_ = true;
  changed_.notify_all();
}

Status FakeScorer::Score(grpc::ServerContext* context, const v1::ScoreRequest& request,
                         grpc::ServerWriter<v1::ScoreResponse>* writer) {
  {
    const std::lock_guard lock(mutex_);
    most_at_once_ = std::max(most_at_once_, ++scoring_);
    changed_.notify_all();
  }
  const Status status = Answer(context, request, writer);
  const std::lock_guard lock(mutex_);
  --scoring_;
  if (status.ok()) scored_.push_back(request);
  changed_.notify_all();
  return status;
}

Status FakeScorer::Answer(grpc::ServerContext* context, const v1::ScoreRequest& request,
                          grpc::ServerWriter<v1::ScoreResponse>* writer) {
  v1::ScoreResponse response;
  response.set_progress(0.5);
  response.set_computed_tokens(request.text().size() / 2);
  writer->Write(response);
  if (request.text() == "die late") return {StatusCode::UNAVAILABLE, "died"};
  if (request.text().starts_with("hold") || request.prompt().text() == "hold score") {
    std::unique_lock lock(mutex_);
    while (!released_ && !context->IsCancelled()) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (context->IsCancelled()) {
      ++cancelled_;
      changed_.notify_all();
      return {StatusCode::CANCELLED, "cancelled"};
    }
  }
  for (size_t i = 1; request.report_tokens() && i < request.text().size(); ++i) {
    v1::Token& token = *response.add_tokens();
    token.set_text(request.text().substr(i, 1));
    token.set_logprob(-1);
    if (request.logprobs() == 0) continue;
    token.add_alternatives()->set_text("e");
    token.mutable_alternatives(0)->set_logprob(-0.5);
  }
  response.set_progress(1);
  response.set_computed_tokens(request.text().size());
  response.mutable_result()->set_tokens(static_cast<uint32_t>(request.text().size()));
  response.mutable_result()->set_logprob_sum(-static_cast<double>(request.text().size()));
  const bool differs =
      request.prompt().text() == "low differs" && request.setting().model_level_percent() < 60;
  response.mutable_result()->set_top1_share(differs ? 1.0 / 3 : 1);
  writer->Write(response);
  return Status::OK;
}

Status FakeProfiler::ReportCall(grpc::ServerContext*, const v1::ReportCallRequest* request,
                                v1::ReportCallResponse*) {
  const std::lock_guard lock(mutex_);
  reports_.push_back(request->report());
  changed_.notify_all();
  return Status::OK;
}

v1::CallReport FakeProfiler::Next() {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, std::chrono::seconds(60),
                                      [this] { return reports_.size() > taken_; });
  return came ? reports_[taken_++] : v1::CallReport();
}

void FakeScorer::Release() {
  const std::lock_guard lock(mutex_);
  released_ = true;
  changed_.notify_all();
}

std::vector<v1::ScoreRequest> FakeScorer::scored() const {
  const std::lock_guard lock(mutex_);
  return scored_;
}

int FakeScorer::most_at_once() const {
  const std::lock_guard lock(mutex_);
  return most_at_once_;
}

bool FakeScorer::Await(const std::function<bool()>& happened) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(60), happened);
}

bool FakeScorer::AwaitScoring() {
  return Await([this] { return scoring_ > 0; });
}

bool FakeScorer::AwaitScored(size_t count) {
  return Await([=, this] { return scored_.size() >= count; });
}

bool FakeScorer::AwaitCancelled(int count) {
  return Await([=, this] { return cancelled_ >= count; });
}

bool FakeWorker::AwaitCancelled(int count, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return cancelled_ >= count; });
}

bool FakeWorker::AwaitEmbeds(int count) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return embeds_ >= count; });
}

bool FakeWorker::AwaitRuns(size_t count, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return runs_.size() >= count; });
}

std::vector<v1::RunRequest> FakeWorker::runs() const {
  const std::lock_guard lock(mutex_);
  return runs_;
}

void FakeWorker::SetLevels(std::vector<uint32_t> percents, const std::string& model_id,
                           std::vector<float> loss_above_full) {
  const std::lock_guard lock(mutex_);
  levels_ = std::move(percents);
  model_id_ = model_id;
  losses_ = std::move(loss_above_full);
  ++instance_;
}

void FakeWorker::SetEncoder(uint64_t fingerprint) {
  const std::lock_guard lock(mutex_);
  encoder_fingerprint_ = fingerprint;
  ++instance_;
}

void FakeWorker::SetModelPath(const std::string& path) {
  const std::lock_guard lock(mutex_);
  model_path_ = path;
  ++instance_;
}

void FakeWorker::SetWarning(const std::string& warning) {
  const std::lock_guard lock(mutex_);
  warning_ = warning;
  ++instance_;
}

void FakeWorker::SetBytesPerToken(size_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_per_token_ = bytes;
}

void FakeWorker::SetWithoutModel(const std::string& why) {
  const std::lock_guard lock(mutex_);
  without_model_ = why;
}

int FakeWorker::tokenized() const {
  const std::lock_guard lock(mutex_);
  return tokenized_;
}

void FakeWorker::SetSlowdown(double slowdown) {
  const std::lock_guard lock(mutex_);
  slowdown_ = slowdown;
}

void FakeWorker::SetPrefillCost(double us_per_token) {
  const std::lock_guard lock(mutex_);
  prefill_us_per_token_ = us_per_token;
}

v1::Config Board::Limits(uint32_t queue_limit, uint32_t max_batch) {
  v1::Config config;
  config.mutable_orchestrator()->set_queue_limit(queue_limit);
  config.mutable_model()->set_max_batch(max_batch);
  config.mutable_orchestrator()->set_probe_off(true);
  return config;
}

Board::Board(const v1::Config& config) : config_(config) {
  char pattern[] = "/tmp/withy_orchestrator_XXXXXX";
  dir_ = mkdtemp(pattern);
  config_.set_run_dir(dir_ + "/run");
  config_.set_state_dir(dir_ + "/state");
  if (config_.orchestrator().tlm_path().empty() && config_.model().path().empty())
    config_.mutable_orchestrator()->set_tlm_path("off");
  // The board that runs the tests may be hot.
  if (config_.orchestrator().board_root().empty())
    config_.mutable_orchestrator()->set_board_root(dir_);
  EXPECT_TRUE(FillDefaults(&config_).ok());
  std::filesystem::create_directory(config_.run_dir());
  store_server_ = Serve("context_store", config_.store().listen(), &store);
  StartWorker();
  auto started = StartOrchestrator(config_);
  EXPECT_TRUE(started.ok()) << started.status();
  orchestrator_ = *std::move(started);
  stub_ = v1::LlmService::NewStub(
      grpc::CreateChannel(config_.orchestrator().listen(), grpc::InsecureChannelCredentials()));
}

Board::~Board() {
  worker.Release();
  draft.model.Release();
  orchestrator_.reset();
  StopWorker();
  draft_server_.reset();
  profiler_server_.reset();
  store_server_.reset();
  std::filesystem::remove_all(dir_);
}

void Board::StartWorker() {
  worker_server_ = Serve("model_worker", config_.model().listen(), &worker);
}

void Board::StopWorker() { worker_server_.reset(); }

void Board::StartDraft() {
  draft_server_ = Serve("draft_worker", config_.draft().listen(), &draft);
}

void Board::StartProfiler() {
  profiler_server_ = Serve("profiler_agent", config_.profiler().listen(), &profiler);
}

v1::ProcessStatus Board::AwaitCalls(uint32_t calls) {
  v1::GetStatusResponse status;
  const absl::Time until = absl::Now() + absl::Seconds(60);
  for (;;) {
    grpc::ClientContext context;
    const grpc::Status asked = stub_->GetStatus(&context, {}, &status);
    EXPECT_TRUE(asked.ok()) << asked.error_message();
    if (!asked.ok()) return {};
    const v1::ProcessStatus& self = status.processes(0).status();
    const uint32_t known = self.running_calls() + self.queued_calls();
    if (known == calls) return self;
    if (absl::Now() < until) continue;
    ADD_FAILURE() << known << " calls run or wait, and not " << calls;
    return {};
  }
}

bool Board::IsServing() const {
  // grpc.health.v1.Health.Check by hand: the request for the whole server is empty.
  grpc::GenericStub stub(
      grpc::CreateChannel(config_.orchestrator().listen(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request, &response,
                 [&done](grpc::Status status) { done.set_value(std::move(status)); });
  EXPECT_TRUE(done.get_future().get().ok());
  grpc::Slice bytes;
  EXPECT_TRUE(response.DumpToSingleSlice(&bytes).ok());
  return bytes.size() == 2 && bytes.begin()[1] == 0x01;
}

std::string Board::http_address() const {
  for (const std::string& address : orchestrator_->addresses()) {
    if (address.starts_with("http")) return address;
  }
  return "";
}

absl::Status Board::StartAnother(v1::Config config) const {
  const std::string dir = dir_ + "/another";
  std::filesystem::create_directories(dir + "/run");
  config.set_run_dir(dir + "/run");
  config.set_state_dir(dir + "/state");
  config.mutable_orchestrator()->set_tlm_path("off");
  config.mutable_orchestrator()->set_board_root(dir);
  EXPECT_TRUE(FillDefaults(&config).ok());
  return StartOrchestrator(config).status();
}

void Board::Drain() { orchestrator_->Drain(absl::Seconds(10)); }

Outcome Board::Generate(const v1::GenerateRequest& request, grpc::ClientContext* context) {
  grpc::ClientContext own;
  if (context == nullptr) {
    Authorise(&own);
    context = &own;
  }
  Outcome outcome;
  const auto reader = stub_->Generate(context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    if (message.has_started()) outcome.started = message.started();
    if (message.has_delta()) outcome.text += message.delta().text();
    if (message.has_finished()) outcome.finished = message.finished();
  }
  outcome.status = reader->Finish();
  const auto& trailing = context->GetServerTrailingMetadata();
  if (const auto it = trailing.find("retry-after-ms"); it != trailing.end()) {
    outcome.retry_after_ms.assign(it->second.data(), it->second.size());
  }
  return outcome;
}

OpenCall::OpenCall(Board& board, const v1::GenerateRequest& request) {
  Authorise(&context);
  reader = board.stub().Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message) && !message.has_delta()) {
  }
}

grpc::Status OpenCall::Finish() {
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  return reader->Finish();
}

ScoreCall::ScoreCall(Board& board, const v1::ScoreRequest& request, const std::string& token) {
  Authorise(&context, token);
  reader = board.stub().Score(&context, request);
}

bool ScoreCall::HasBegun() {
  v1::ScoreResponse message;
  return reader->Read(&message);
}

grpc::Status ScoreCall::Finish() {
  v1::ScoreResponse message;
  while (reader->Read(&message)) last = message;
  return reader->Finish();
}

v1::ScoreRequest TextRequest(const std::string& text) {
  v1::ScoreRequest request;
  request.set_text(text);
  return request;
}

v1::GenerateRequest Ask(const std::string& text) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text);
  return request;
}

void Authorise(grpc::ClientContext* context, const std::string& token) {
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

}  // namespace withy::orchestrator
