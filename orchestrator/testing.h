// Stand-ins for context_store and model_worker that answer by script, and the board they make with
// a real orchestrator in a temporary directory. For orchestrator_test.cc.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/daemon.h"
#include "rpc/server.h"
#include "withy/v1/config.pb.h"
#include "withy/v1/context_store.grpc.pb.h"
#include "withy/v1/draft_worker.grpc.pb.h"
#include "withy/v1/llm_service.grpc.pb.h"
#include "withy/v1/model_worker.grpc.pb.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::orchestrator {

// Knows the token "good" of app "app_1", which is registered as "one", and its certificate.
// Thread-safe.
class FakeStore final : public v1::ContextStore::Service {
 public:
  grpc::Status AuthenticateApp(grpc::ServerContext*, const v1::AuthenticateAppRequest* request,
                               v1::AuthenticateAppResponse* response) override;
  grpc::Status FindResult(grpc::ServerContext*, const v1::FindResultRequest* request,
                          v1::FindResultResponse* response) override;
  grpc::Status BindApp(grpc::ServerContext*, const v1::StoreBindAppRequest* request,
                       v1::BindAppResponse* response) override;
  grpc::Status CreateContext(grpc::ServerContext*, const v1::StoreCreateContextRequest* request,
                             v1::CreateContextResponse* response) override;
  grpc::Status GetContext(grpc::ServerContext*, const v1::StoreGetContextRequest* request,
                          v1::GetContextResponse* response) override;
  grpc::Status ListContexts(grpc::ServerContext*, const v1::StoreListContextsRequest*,
                            v1::ListContextsResponse*) override {
    return grpc::Status::OK;  // none: an empty message
  }
  grpc::Status DeleteContext(grpc::ServerContext*, const v1::StoreDeleteContextRequest*,
                             v1::DeleteContextResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status GetStoreInfo(grpc::ServerContext*, const v1::GetStoreInfoRequest*,
                            v1::GetStoreInfoResponse* response) override;

  void Keep(const std::string& request_id, const std::string& digest,
            const v1::StoredResult& result);
  int authentications() const;
  // Every CreateContext.
  std::vector<v1::StoreCreateContextRequest> created() const;
  // CreateContext is refused from now on, as over the app's limit.
  void RefuseContexts();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::pair<std::string, v1::StoredResult>>
      results_;  // by request_id: digest, result
  int authentications_ = 0;
  std::vector<v1::StoreCreateContextRequest> created_;
  bool refuses_contexts_ = false;
};

// Scores a token a byte but the first, each at -1; the likeliest is "e". A text that begins with
// "hold", or stands behind the prompt "hold score", is scored by Release(). Behind the prompt "low
// differs" a third of the tokens are the likeliest at levels below 60 %; else all are. Thread-safe.
class FakeScorer {
 public:
  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest& request,
                     grpc::ServerWriter<v1::ScoreResponse>* writer);
  void Release();
  // The requests that were answered, and how many came at the same time at most.
  std::vector<v1::ScoreRequest> scored() const;
  int most_at_once() const;
  // Wait until a text is being scored, so many have been, so many were cancelled; false when not.
  bool AwaitScoring();
  bool AwaitScored(size_t count);
  bool AwaitCancelled(int count);

 private:
  bool Await(const std::function<bool()>& happened);
  grpc::Status Answer(grpc::ServerContext* context, const v1::ScoreRequest& request,
                      grpc::ServerWriter<v1::ScoreResponse>* writer);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::ScoreRequest> scored_;
  int scoring_ = 0;  // texts, now
  int most_at_once_ = 0;
  int cancelled_ = 0;
  bool released_ = false;
};

// Counts one token a byte that is kept; 1 ms a prompt token, 10 ms a generated one. Its answer to a
// prompt follows the prompt's words:
//   "hold"        one token, then nothing until Release() or the end of the call
//   "hold later"  the first time as anything else, later as "hold"
//   "low differs" at levels below 60 % another answer, "abd"
//   "die early"   UNAVAILABLE before the first token, once
//   "die late"    UNAVAILABLE after the first token
//   "adapted"     as anything else; its context had to be adapted to the template
//   anything else three tokens "a", "b", "c"
// A last message "call" is answered by a call of the tool "look".
// Thread-safe.
class FakeWorker final : public v1::ModelWorker::Service {
 public:
  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   grpc::ServerWriter<v1::RunResponse>* writer) override;
  // A call that holds ends as far as it is.
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRunRequest* request,
                      v1::CancelRunResponse*) override;
  grpc::Status Tokenize(grpc::ServerContext*, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;
  grpc::Status GetWorkerInfo(grpc::ServerContext*, const v1::GetWorkerInfoRequest*,
                             v1::GetWorkerInfoResponse* response) override;
  grpc::Status ForgetContext(grpc::ServerContext*, const v1::ForgetContextRequest* request,
                             v1::ForgetContextResponse*) override {
    const std::lock_guard lock(mutex_);
    forgotten_.push_back(request->app_id() + "/" + request->context_id());
    return grpc::Status::OK;
  }

  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                     grpc::ServerWriter<v1::ScoreResponse>* writer) override {
    return scorer.Score(context, *request, writer);
  }

  // A vector of four numbers, of which the first is the input's bytes or tokens, and so many
  // tokens. Behind a text "hold" waits until Release() or the end of the call.
  grpc::Status Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                     grpc::ServerWriter<v1::EmbedResponse>* writer) override;

  // Waits until it has begun so many requests for vectors; false when it has not.
  bool AwaitEmbeds(int count);

  // APP/CONTEXT of the contexts that it was to forget.
  std::vector<std::string> forgotten() const {
    const std::lock_guard lock(mutex_);
    return forgotten_;
  }
  // From now on prompts that begin so hold, too.
  void Hold(const std::string& beginning);
  // Lets the calls that hold finish, these and later ones.
  void Release();
  // Waits until so many calls have ended because they were cancelled; false when they have not.
  bool AwaitCancelled(int count, std::chrono::milliseconds timeout = std::chrono::seconds(60));
  std::vector<v1::RunRequest> runs() const;
  // Waits until so many calls have been given to it; false when they have not.
  bool AwaitRuns(size_t count, std::chrono::milliseconds timeout = std::chrono::seconds(60));
  // From now on it is as if it had restarted with a model of these levels, in per cent, with this
  // identity and these losses (ModelDescription); until then it has the full one alone.
  void SetLevels(std::vector<uint32_t> percents, const std::string& model_id = "",
                 std::vector<float> loss_above_full = {});
  // The same, with such an encoder; until then it does not tell.
  void SetEncoder(uint64_t fingerprint);
  // The same, with the model of this file; until then it does not tell.
  void SetModelPath(const std::string& path);
  // Likewise with a model that warns so.
  void SetWarning(const std::string& warning);
  // The next count is of so many bytes a token; until then one.
  void SetBytesPerToken(size_t bytes);
  // From now on it serves none.
  void SetWithoutModel(const std::string& why);
  // How often it was asked to count.
  int tokenized() const;
  // What it says a token of a prompt takes; it takes no time in fact. Before the first call.
  void SetPrefillCost(double us_per_token);
  // What it tells of its board's speed when it accepts a call; 0: nothing.
  void SetSlowdown(double slowdown);

  FakeScorer scorer;

 private:
  // Waits until the call may go on; what it ends with if it was stopped or cancelled meanwhile.
  std::optional<grpc::Status> AwaitRelease(grpc::ServerContext* context,
                                           const v1::RunRequest& request, v1::RunResponse event,
                                           grpc::ServerWriter<v1::RunResponse>* writer);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> levels_ = {100};
  std::string model_id_;
  std::string model_path_;
  std::vector<float> losses_;
  uint64_t instance_ = 1;
  uint64_t encoder_fingerprint_ = 0;
  std::string warning_;
  int tokenized_ = 0;
  size_t bytes_per_token_ = 1;
  std::string without_model_;
  double prefill_us_per_token_ = 1000;
  double slowdown_ = 0;
  std::vector<v1::RunRequest> runs_;
  std::vector<std::string> forgotten_;
  std::string held_;            // beginning of the prompts that are held
  std::set<uint64_t> holding_;  // ids of calls
  std::set<uint64_t> stopped_;  // of those: told to end
  bool released_ = false;
  bool died_ = false;
  int cancelled_ = 0;
  int embeds_ = 0;  // that were begun
};

// Answers as FakeWorker does. Thread-safe.
class FakeDraft final : public v1::DraftWorker::Service {
 public:
  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   grpc::ServerWriter<v1::RunResponse>* writer) override {
    return model.Run(context, request, writer);
  }
  grpc::Status Cancel(grpc::ServerContext* context, const v1::CancelRunRequest* request,
                      v1::CancelRunResponse* response) override {
    return model.Cancel(context, request, response);
  }
  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    return model.Tokenize(context, request, response);
  }
  grpc::Status GetWorkerInfo(grpc::ServerContext* context, const v1::GetWorkerInfoRequest* request,
                             v1::GetWorkerInfoResponse* response) override {
    return model.GetWorkerInfo(context, request, response);
  }

  FakeWorker model;
};

// Keeps what it is told of calls, and has a metric of each kind of page. Thread-safe.
class FakeProfiler final : public v1::Profiler::Service {
 public:
  grpc::Status ReportCall(grpc::ServerContext*, const v1::ReportCallRequest* request,
                          v1::ReportCallResponse*) override;
  grpc::Status GetMetrics(grpc::ServerContext*, const v1::GetMetricsRequest* request,
                          v1::GetMetricsResponse* response) override {
    response->set_text(request->lean() ? "withy_lean 1\n" : "withy_whole 1\n");
    return grpc::Status::OK;
  }
  // Waits for the next report; empty when none comes.
  v1::CallReport Next();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::CallReport> reports_;
  size_t taken_ = 0;  // of reports_
};

// What an app got from one Generate.
struct Outcome {
  grpc::Status status;
  v1::GenerateStarted started;
  v1::GenerateFinished finished;
  std::string text;
  std::string retry_after_ms;
};

// A real orchestrator before the fakes. The store and the worker are up from the start, the draft
// and the profiler when they are asked for; there is no TLM unless the configuration names one, or
// a model that has one beside it.
class Board {
 public:
  explicit Board(uint32_t queue_limit = 8, uint32_t max_batch = 4)
      : Board(Limits(queue_limit, max_batch)) {}
  // `config` without its directories. The others measure nothing after refusals.
  explicit Board(const v1::Config& config);
  ~Board();

  void StartWorker();
  void StopWorker();
  void StartDraft();
  // Before the first call.
  void StartProfiler();
  // Drains the orchestrator.
  void Drain();

  // `context` null: one with the token "good" and ten seconds.
  Outcome Generate(const v1::GenerateRequest& request, grpc::ClientContext* context = nullptr);
  v1::LlmService::Stub& stub() { return *stub_; }
  const v1::Config& config() const { return config_; }
  // Waits until so many calls run or wait; what the orchestrator says of itself then. A call that
  // its client has cancelled ends a little later than the client's stream.
  v1::ProcessStatus AwaitCalls(uint32_t calls);
  // What the orchestrator's health service says, as Backends::Health.
  bool IsServing() const;
  // "http://HOST:PORT" or "https://HOST:PORT"; the configuration must have
  // orchestrator.http_listen.
  std::string http_address() const;
  // What a second orchestrator says with `config`, in a directory of its own.
  absl::Status StartAnother(v1::Config config) const;

  FakeStore store;
  FakeWorker worker;
  FakeDraft draft;
  FakeProfiler profiler;

 private:
  static v1::Config Limits(uint32_t queue_limit, uint32_t max_batch);

  std::string dir_;
  v1::Config config_;
  std::unique_ptr<rpc::Server> store_server_;
  std::unique_ptr<rpc::Server> worker_server_;
  std::unique_ptr<rpc::Server> draft_server_;
  std::unique_ptr<rpc::Server> profiler_server_;
  std::unique_ptr<rpc::Process> orchestrator_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
};

// Starts a call and waits for its first token; the call then goes on.
struct OpenCall {
  OpenCall(Board& board, const v1::GenerateRequest& request);
  grpc::Status Finish();
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
};

// Starts to score a text.
struct ScoreCall {
  ScoreCall(Board& board, const v1::ScoreRequest& request, const std::string& token = "good");
  // Whether the worker has it: waits for its first message.
  bool HasBegun();
  // Reads to the end.
  grpc::Status Finish();
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::ScoreResponse>> reader;
  v1::ScoreResponse last;
};
v1::ScoreRequest TextRequest(const std::string& text);

v1::GenerateRequest Ask(const std::string& text);
// With the token and a deadline ten seconds away.
void Authorise(grpc::ClientContext* context, const std::string& token = "good");

}  // namespace withy::orchestrator
