// withyctl generate, plan, count-tokens.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/strings.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/prompt_flags.h"
#include "cli/stats.h"
#include "cli/terminal_text.h"
#include "cli/token_json.h"
#include "cli/utf8.h"

namespace withy::cli {
namespace {

constexpr absl::Duration kGenerateTimeout = absl::Minutes(10);

absl::StatusOr<v1::GenerateRequest> RequestFromArgs(const Args& args) {
  WITHY_ASSIGN_OR_RETURN(v1::GenerateRequest request, SettingsFromArgs(args));
  WITHY_ASSIGN_OR_RETURN(*request.mutable_prompt(), PromptFromArgs(args));
  return request;
}

int RunGenerate(const Args& args) {
  if (args.Has("logprobs") && !args.Has("json"))
    return FailUsage("--logprobs needs --json, which prints them");
  auto request = RequestFromArgs(args);
  if (!request.ok()) return FailUsage(ToStd(request.status().message()));
  const auto timeout = TimeoutFromArgs(args, kGenerateTimeout);
  if (!timeout.ok()) return FailUsage(ToStd(timeout.status().message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());

  const bool json = args.Has("json");
  if (!json) request->set_report_progress(isatty(STDERR_FILENO) != 0);
  v1::GenerateStarted started;
  v1::GenerateFinished finished;
  v1::GenerateDelta tokens;
  PromptProgressBar bar;
  AnswerCancel cancel;
  const auto show = [&](const v1::GenerateResponse& message) {
    bar.Show(message);
    if (message.has_started()) started = message.started();
    if (message.has_finished()) finished = message.finished();
    if (!message.has_delta()) return;
    if (json) {
      tokens.mutable_tokens()->MergeFrom(message.delta().tokens());
    } else if (!(std::cout << ForStandardOutput(message.delta().text()) << std::flush)) {
      cancel.Cancel();  // the output has no reader
    }
  };
  const absl::Status status = (*client)->Generate(*request, *timeout, &cancel, show);
  bar.Remove();
  if (!std::cout) return kExitFailed;  // main prints the reason
  if (json && status.ok()) {
    const std::string token_json =
        args.Has("logprobs") ? absl::StrCat(",\"tokens\":", TokensJson(tokens.tokens())) : "";
    std::cout << "{\"started\":" << ToJson(started) << ",\"finished\":" << ToJson(finished)
              << token_json << "}\n";
  }
  if (!json && !finished.text().empty()) std::cout << "\n";
  std::cout << std::flush;
  if (!status.ok()) return Fail(status);
  if (!json) std::cerr << CallsText(finished.tool_calls());
  const bool stats = args.Has("stats") || (!json && isatty(STDERR_FILENO) != 0);
  std::cerr << (stats ? StatsText(request->slo(), started, finished) : CutNote(finished));
  return kExitOk;
}

int RunPlan(const Args& args) {
  const auto request = RequestFromArgs(args);
  if (!request.ok()) return FailUsage(ToStd(request.status().message()));
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto plan = (*client)->Plan(*request);
  if (!plan.ok()) return Fail(plan.status());
  if (args.Has("json")) {
    std::cout << ToJson(*plan) << "\n";
    return kExitOk;
  }
  const v1::Decision& decision = plan->decision();
  std::cout << Printable(decision.explanation()) << "\n"
            << Table({{"", "TTFT ms", "TPOT ms", "end to end ms"},
                      LatencyRow("predicted now", decision.predicted()),
                      LatencyRow("full model, idle", decision.full_model())})
            << "model level " << decision.model_level_percent() << " %, prompt level "
            << decision.prompt_level_percent() << " %, " << plan->prompt_tokens()
            << " prompt tokens (" << decision.predicted_prompt_tokens() << " to compute, "
            << decision.predicted_reused_tokens() << " reused), "
            << Counted(plan->queue_position(), "call") << " ahead in the queue\n";
  return kExitOk;
}

int RunCountTokens(const Args& args) {
  v1::CountTokensRequest request;
  const auto prompt = PromptFromArgs(args);
  if (!prompt.ok()) return FailUsage(ToStd(prompt.status().message()));
  *request.mutable_prompt() = *prompt;
  const auto model = ModelFromArgs(args);
  if (!model.ok()) return FailUsage(ToStd(model.status().message()));
  request.set_model(*model);
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto counted = (*client)->CountTokens(request);
  if (!counted.ok()) return Fail(counted.status());
  std::cout << (args.Has("json") ? ToJson(*counted) : absl::StrCat(counted->tokens())) << "\n";
  return kExitOk;
}

int RunCancel(const Args& args) {
  v1::CancelRequest request;
  if (const absl::Status text = CheckFlagsUtf8(args, {"request-id"}); !text.ok())
    return FailUsage(ToStd(text.message()));
  request.set_request_id(args.Get("request-id"));
  if (args.positional().size() + (args.Has("request-id") ? 1 : 0) != 1)
    return FailUsage(
        "cancel takes one CALL_ID, as the call's first message says it, or "
        "--request-id");
  if (!args.positional().empty()) request.set_call_id(args.positional()[0]);
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto cancelled = (*client)->Cancel(request);
  return cancelled.ok() ? kExitOk : Fail(cancelled.status());
}

std::vector<Flag> Join(std::vector<Flag> a, const std::vector<Flag>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

std::vector<Command> GenerateCommands() {
  const Flag json{"json", "", "print JSON"};
  return {
      {"generate", "[TEXT...]", "answer a prompt, printing the text as it arrives",
       WithConnection(Join(
           Join(PromptFlags(), SettingFlags()),
           {json,
            {"stats", "", "print the decision and the latency to stderr (default on a terminal)"},
            TimeoutFlag(kGenerateTimeout)})),
       RunGenerate},
      {"plan", "[TEXT...]", "print what generate would decide and predict now, without running it",
       WithConnection(Join(Join(PromptFlags(), SettingFlags()), {json})), RunPlan},
      {"count-tokens", "[TEXT...]", "count the tokens of a prompt, chat template included",
       WithConnection(Join(Join(PromptFlags(), ModelFlags()), {json})), RunCountTokens},
      {"cancel", "[CALL_ID]",
       "end a running answer of the app and keep its text so far as the result",
       WithConnection({Flag{"request-id", "ID", "the answer to this request, instead of CALL_ID"}}),
       RunCancel},
  };
}

}  // namespace withy::cli
