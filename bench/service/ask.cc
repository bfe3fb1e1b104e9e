#include "bench/service/ask.h"

#include <grpcpp/grpcpp.h>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/channel.h"
#include "rpc/status.h"

namespace withy::bench {

absl::StatusOr<ServedAnswer> AskService(v1::LlmService::Stub& stub, const std::string& token,
                                        const v1::GenerateRequest& request) {
  constexpr absl::Duration kCall = absl::Minutes(10);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token);
  rpc::SetTimeout(&context, kCall);
  const int64_t asked_ns = Clock::Real().SteadyNanos();
  const auto reader = stub.Generate(&context, request);
  ServedAnswer answer;
  int64_t first_ns = 0, last_ns = 0;
  size_t first_tokens = 0;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_started()) answer.decision = response.started().decision();
    for (const v1::Token& one : response.delta().tokens()) answer.tokens.push_back(one.id());
    if (response.delta().tokens_size() > 0) {
      last_ns = Clock::Real().SteadyNanos();
      if (first_ns == 0) {
        first_ns = last_ns;
        first_tokens = answer.tokens.size();
      }
    }
    if (response.has_finished()) answer.finished = response.finished();
  }
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish()));
  if (first_ns == 0) return answer;
  answer.ttft_ms = Millis(first_ns - asked_ns);
  answer.decode_ms = Millis(last_ns - first_ns);
  const size_t later = answer.tokens.size() - first_tokens;
  if (later > 0) answer.tpot_ms = answer.decode_ms / static_cast<double>(later);
  return answer;
}

v1::GenerateRequest GreedyRequest(const std::string& text, uint32_t max_tokens) {
  v1::GenerateRequest request;
  v1::Message* message = request.mutable_prompt()->mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(text);
  request.mutable_limits()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  return request;
}

}  // namespace withy::bench
