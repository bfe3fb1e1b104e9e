// withyctl explain: why a call was slow, for the operator on the board.
#include <iostream>
#include <optional>

#include "base/call_name.h"
#include "base/clock.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/profile/explain_text.h"

namespace withy::cli {
namespace {

constexpr int64_t kMostCalls = 256;

int ListLastCalls(Client& client, const Args& args) {
  const auto limit = args.Integer("limit", 1, kMostCalls);
  if (!limit.ok()) return FailUsage(ToStd(limit.status().message()));
  v1::ListCallsRequest request;
  request.set_limit(static_cast<uint32_t>(limit->value_or(0)));
  const auto calls = client.ListCalls(request);
  if (!calls.ok()) return Fail(calls.status());
  std::cout << (args.Has("json") ? ToJson(*calls) + "\n"
                                 : CallsText(*calls, Clock::Real().SteadyNanos()));
  return kExitOk;
}

int RunExplain(const Args& args) {
  if (args.positional().size() > 1) return FailUsage("explain takes one call at most");
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  if (args.positional().empty()) return ListLastCalls(**client, args);
  // An id of a call is 16 hexadecimal digits; everything else is a request_id, and so may they be.
  const std::string& name = args.positional()[0];
  v1::ExplainCallRequest request;
  request.set_call_id(ParseCallName(name).value_or(0));
  if (request.call_id() == 0) request.set_request_id(name);
  auto told = (*client)->ExplainCall(request);
  if (absl::IsNotFound(told.status()) && request.call_id() != 0) {
    request.set_call_id(0);
    request.set_request_id(name);
    told = (*client)->ExplainCall(request);
  }
  if (!told.ok()) return Fail(told.status());
  std::cout << (args.Has("json") ? ToJson(*told) + "\n" : ExplainText(*told));
  return kExitOk;
}

}  // namespace

std::vector<Command> ExplainCommands() {
  return {
      {"explain", "[CALL]",
       "why a call was slow or refused: its id or request_id; without one: the last calls of all "
       "apps",
       WithConnection(
           {{"limit", "N", "list N calls (default 20, at most 256)"}, {"json", "", "print JSON"}}),
       RunExplain}};
}

}  // namespace withy::cli
