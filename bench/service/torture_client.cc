#include "bench/service/torture_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/status.h"

namespace withy::bench {
namespace {

constexpr int kMostApps = 64;
constexpr uint32_t kAnswerTokens = 12;
constexpr absl::Duration kCall = absl::Seconds(30);       // one try
constexpr absl::Duration kPatience = absl::Seconds(180);  // all tries
constexpr absl::Duration kPause = absl::Milliseconds(30);
constexpr uint64_t kMostPrinted = 20;

// Whether an app repeats a call that ended so.
bool MayBeRetried(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

// Repeats `call` while it fails with an error that a retry may mend.
absl::Status Retry(const std::function<absl::Status()>& call) {
  const absl::Time end = absl::Now() + kPatience;
  while (true) {
    const absl::Status status = call();
    if (status.ok() || !MayBeRetried(status) || absl::Now() > end) return status;
    absl::SleepFor(kPause);
  }
}

void Prepare(grpc::ClientContext* context, const std::string& token, absl::Duration timeout) {
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  rpc::SetTimeout(context, timeout);
}

}  // namespace

std::string TortureSecret(int app, int script) {
  return absl::StrFormat("secret%02d%02dq", app, script);
}

std::string TorturePrompt(int app, int script, int turn) {
  return absl::StrCat("turn ", turn, ", keep ", TortureSecret(app, script), " in mind and say ",
                      (app * 31 + script * 7 + turn * 3) % 97);
}

TortureLedger::Counts TortureLedger::counts() const {
  absl::MutexLock lock(&mutex_);
  Counts counts = counts_;
  counts.calls = calls_;
  return counts;
}

void TortureLedger::Note(uint64_t Counts::*count, const char* kind, const std::string& what) {
  absl::MutexLock lock(&mutex_);
  if (++(counts_.*count) <= kMostPrinted) std::fprintf(stderr, "%s: %s\n", kind, what.c_str());
}

absl::StatusOr<std::unique_ptr<TortureApp>> TortureApp::Create(const std::string& address,
                                                               int app) {
  if (app < 0 || app >= kMostApps)
    return absl::InvalidArgumentError("at most 64 apps are possible");
  std::unique_ptr<TortureApp> one(
      new TortureApp(app, v1::LlmService::NewStub(rpc::Connect(address))));
  v1::BindAppRequest request;
  request.set_app(absl::StrCat("torture", app));
  v1::BindAppResponse response;
  grpc::ClientContext context;
  Prepare(&context, "", kCall);
  context.set_wait_for_ready(true);
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(one->stub_->BindApp(&context, request, &response)));
  one->token_ = response.token();
  return one;
}

v1::GenerateRequest TortureApp::RequestOf(const Conversation& conversation, int turn) const {
  v1::GenerateRequest request;
  request.set_context_id(conversation.context_id);
  request.set_request_id(absl::StrCat("r", conversation.number, "-", turn));
  v1::Message* message = request.mutable_prompt()->mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(TorturePrompt(app_, conversation.script, turn));
  request.mutable_limits()->set_max_tokens(kAnswerTokens);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

absl::StatusOr<std::string> TortureApp::Generate(const v1::GenerateRequest& request,
                                                 absl::Duration timeout) {
  grpc::ClientContext context;
  Prepare(&context, token_, timeout);
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  std::string text;
  bool finished = false;
  while (reader->Read(&response)) {
    if (!response.has_finished()) continue;
    finished = true;
    text = response.finished().text();
  }
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish()));
  if (!finished) return absl::InternalError("an answer ended well without its last message");
  return text;
}

absl::StatusOr<std::string> TortureApp::CreateContext(const std::string& request_id) {
  std::string context_id;
  WITHY_RETURN_IF_ERROR(Retry([&] {
    grpc::ClientContext context;
    Prepare(&context, token_, kCall);
    v1::CreateContextRequest request;
    request.set_request_id(request_id);
    v1::CreateContextResponse response;
    const absl::Status status = rpc::FromGrpc(stub_->CreateContext(&context, request, &response));
    context_id = response.context().context_id();
    return status;
  }));
  return context_id;
}

absl::StatusOr<std::string> TortureApp::Say(const std::string& context_id,
                                            const std::string& text) {
  v1::GenerateRequest request;
  request.set_context_id(context_id);
  v1::Message* message = request.mutable_prompt()->mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(text);
  request.mutable_limits()->set_max_tokens(kAnswerTokens);
  request.mutable_sampling()->set_temperature(0);
  return Generate(request, kCall);
}

absl::StatusOr<int> TortureApp::Messages(const std::string& context_id) {
  grpc::ClientContext context;
  Prepare(&context, token_, kCall);
  v1::GetContextRequest request;
  request.set_context_id(context_id);
  v1::GetContextResponse kept;
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(stub_->GetContext(&context, request, &kept)));
  return kept.messages_size();
}

absl::StatusOr<std::vector<std::string>> TortureApp::Record(int script) {
  Conversation conversation{.script = script, .number = ++last_number_};
  WITHY_ASSIGN_OR_RETURN(conversation.context_id,
                         CreateContext(absl::StrCat("c", conversation.number)));
  for (int turn = 0; turn < kTortureTurns; ++turn) {
    WITHY_ASSIGN_OR_RETURN(conversation.answers.emplace_back(),
                           Generate(RequestOf(conversation, turn), kCall));
  }
  return conversation.answers;
}

void TortureApp::Start(const TortureAnswers& expected, TortureLedger& ledger) {
  expected_ = &expected;
  ledger_ = &ledger;
  thread_ = std::thread([this] { Talk(); });
}

void TortureApp::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void TortureApp::Talk() {
  std::vector<Conversation> open(kTortureInterleaved);
  for (Conversation& conversation : open) {
    if (!Begin(&conversation)) return;
  }
  for (size_t next = 0; !stop_; next = (next + 1) % open.size()) {
    Conversation& conversation = open[next];
    if (!Turn(&conversation)) return;
    const bool complete = conversation.answers.size() == kTortureTurns;
    if (complete && (!Finish(conversation) || !Begin(&conversation))) return;
  }
  for (const Conversation& conversation : open) {
    if (!Finish(conversation)) return;
  }
}

bool TortureApp::Begin(Conversation* conversation) {
  const int number = ++last_number_;
  *conversation = {.script = number % kTortureScripts, .number = number};
  absl::StatusOr<std::string> id = CreateContext(absl::StrCat("c", number));
  if (!id.ok()) {
    ledger_->Failed(absl::StrCat("app ", app_, " creates a context: ", id.status().ToString()));
    return false;
  }
  conversation->context_id = *std::move(id);
  return true;
}

bool TortureApp::Turn(Conversation* conversation) {
  const auto turn = static_cast<int>(conversation->answers.size());
  const v1::GenerateRequest request = RequestOf(*conversation, turn);
  std::string text;
  const absl::Status status = Retry([&]() -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(text, Generate(request, kCall));
    return absl::OkStatus();
  });
  const std::string where = absl::StrCat("app ", app_, ", script ", conversation->script, ", turn ",
                                         turn, ", ", conversation->context_id);
  if (absl::IsNotFound(status)) ledger_->Lost(absl::StrCat(where, ": ", status.ToString()));
  if (!status.ok()) {
    ledger_->Failed(absl::StrCat(where, ": ", status.ToString()));
    return false;
  }
  ledger_->Returned();
  CheckSecrets(*conversation, text);
  const auto expected = expected_->find({app_, conversation->script});
  if (expected != expected_->end() && expected->second[static_cast<size_t>(turn)] != text) {
    ledger_->Mismatched(absl::StrCat(where, ": \"", text, "\" instead of \"",
                                     expected->second[static_cast<size_t>(turn)], "\""));
  }
  conversation->answers.push_back(std::move(text));
  return true;
}

bool TortureApp::Finish(const Conversation& conversation) {
  const std::string where = absl::StrCat("app ", app_, ", ", conversation.context_id);
  v1::GetContextResponse kept;
  absl::Status status = Retry([&] {
    grpc::ClientContext context;
    Prepare(&context, token_, kCall);
    v1::GetContextRequest request;
    request.set_context_id(conversation.context_id);
    kept.Clear();
    return rpc::FromGrpc(stub_->GetContext(&context, request, &kept));
  });
  if (!status.ok()) {
    ledger_->Lost(absl::StrCat(where, ": ", status.ToString()));
    return false;
  }
  const size_t turns = conversation.answers.size();
  bool whole = static_cast<size_t>(kept.messages_size()) == 2 * turns;
  for (size_t turn = 0; whole && turn < turns; ++turn) {
    const auto said = [&](size_t i) {
      return kept.messages(static_cast<int>(i)).message().content();
    };
    whole = said(2 * turn) == TorturePrompt(app_, conversation.script, static_cast<int>(turn)) &&
            said(2 * turn + 1) == conversation.answers[turn];
  }
  if (!whole) ledger_->Lost(absl::StrCat(where, ": the record is ", kept.ShortDebugString()));
  for (const v1::ContextMessage& message : kept.messages()) {
    CheckSecrets(conversation, message.message().content());
  }
  if (turns == 0) return true;
  // A retry of an answered request gets the answer that it had.
  std::string again;
  status = Retry([&]() -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(again,
                           Generate(RequestOf(conversation, static_cast<int>(turns) - 1), kCall));
    return absl::OkStatus();
  });
  if (!status.ok() || again != conversation.answers.back()) {
    ledger_->Lost(absl::StrCat(where, ": a retry got \"", again, "\", ", status.ToString()));
  }
  (void)Retry([&] {
    grpc::ClientContext context;
    Prepare(&context, token_, kCall);
    v1::DeleteContextRequest request;
    request.set_context_id(conversation.context_id);
    v1::DeleteContextResponse response;
    return rpc::FromGrpc(stub_->DeleteContext(&context, request, &response));
  });
  return true;
}

void TortureApp::CheckSecrets(const Conversation& conversation, const std::string& text) {
  for (int app = 0; app < kMostApps; ++app) {
    for (int script = 0; script < kTortureScripts; ++script) {
      if (app == app_ && script == conversation.script) continue;
      if (!absl::StrContains(text, TortureSecret(app, script))) continue;
      ledger_->Foreign(
          absl::StrCat("app ", app_, ", script ", conversation.script, " got \"", text, "\""));
    }
  }
}

}  // namespace withy::bench
