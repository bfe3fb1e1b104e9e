// withy-bench-service: measures the time that the service adds to the engine's own. The running
// service and an engine in this process answer the same prompts in turn with the same weights; TTFT
// and TPOT are compared. Prints a table on stderr and one JSON line last on stdout. Neighbours:
// engine_bench.h times the engine; ./withy bench service starts the service.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "base/clock.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "bench/samples.h"
#include "bench/service/ask.h"
#include "engine/model/model.h"
#include "rpc/channel.h"
#include "withy/v1/llm_service.grpc.pb.h"

ABSL_FLAG(std::string, address, "", "of the service");
ABSL_FLAG(std::string, token, "", "of an app bound to it");
ABSL_FLAG(std::string, model, "", "the GGUF file that it serves");
ABSL_FLAG(
    std::string, packed_dir, "",
    "where the service keeps packed files: a copy of its own would lie in other memory, which "
    "alone may be a tenth faster or slower");
ABSL_FLAG(int, pairs, 9, "calls by the service, each beside one by the engine");
ABSL_FLAG(int, threads, 2, "of the engine");
ABSL_FLAG(int, words, 200, "of the prompt");

namespace withy::bench {
namespace {

constexpr int kAnswerTokens = 64;
constexpr char kAddedTtft[] = "service adds to TTFT, ms";
constexpr char kAddedTpot[] = "service adds to TPOT, share";

struct Call {
  double ttft_ms = 0;
  double tpot_ms = 0;
  int prompt_tokens = 0;
  v1::LatencyReport told = {};  // the service's breakdown of its time
};

// A prompt that differs in every round, so that no part of it is cached.
std::string Prompt(int words, int round) {
  std::string prompt;
  for (int i = 0; i < words; ++i)
    absl::StrAppend(&prompt, i == 0 ? "" : " ", "w", (i * 37 + round * 101) % 1000);
  return prompt;
}

absl::StatusOr<Call> ThroughService(v1::LlmService::Stub& stub, int round) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(Prompt(absl::GetFlag(FLAGS_words), round));
  request.mutable_limits()->set_max_tokens(kAnswerTokens);
  request.mutable_sampling()->set_temperature(0);
  WITHY_ASSIGN_OR_RETURN(const ServedAnswer answer,
                         AskService(stub, absl::GetFlag(FLAGS_token), request));
  if (answer.tokens.size() < kAnswerTokens / 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model ended its answer after ", answer.tokens.size(),
                     " tokens: too few to time; take another model"));
  }
  return Call{.ttft_ms = answer.ttft_ms,
              .tpot_ms = answer.tpot_ms,
              .prompt_tokens = static_cast<int>(answer.finished.usage().prompt_tokens()),
              .told = answer.finished.latency()};
}

absl::StatusOr<Call> ByEngine(EngineBench& engine, int prompt_tokens) {
  WITHY_ASSIGN_OR_RETURN(const double prefill, engine.Prefill(prompt_tokens));
  WITHY_ASSIGN_OR_RETURN(const double decode, engine.Decode(1, prompt_tokens, kAnswerTokens - 1));
  return Call{.ttft_ms = prompt_tokens / prefill * 1e3,
              .tpot_ms = 1e3 / decode,
              .prompt_tokens = prompt_tokens};
}

absl::Status Main() {
  const int pairs = absl::GetFlag(FLAGS_pairs);
  engine::ModelOptions model_options;
  model_options.threads = absl::GetFlag(FLAGS_threads);
  model_options.cache_dir = absl::GetFlag(FLAGS_packed_dir);
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model,
                         engine::Model::Open(absl::GetFlag(FLAGS_model), model_options));
  EngineBench engine(*model);
  const auto stub = v1::LlmService::NewStub(rpc::Connect(absl::GetFlag(FLAGS_address)));
  WITHY_RETURN_IF_ERROR(ThroughService(*stub, pairs).status());  // warms the service up
  Samples samples;  // ms, but for the TPOT that is added, a share
  int prompt_tokens = 0;
  for (int pair = 0; pair < pairs; ++pair) {
    WITHY_ASSIGN_OR_RETURN(const Call served, ThroughService(*stub, pair));
    WITHY_ASSIGN_OR_RETURN(const Call own, ByEngine(engine, served.prompt_tokens));
    prompt_tokens = served.prompt_tokens;
    samples.Add("engine TTFT, ms", own.ttft_ms);
    samples.Add("service TTFT, ms", served.ttft_ms);
    samples.Add("engine TPOT, ms", own.tpot_ms);
    samples.Add("service TPOT, ms", served.tpot_ms);
    samples.Add(kAddedTtft, served.ttft_ms - own.ttft_ms);
    samples.Add("  until the worker starts it, ms", served.told.queue_ms());
    samples.Add("  for the lease, ms", served.told.load_ms());
    samples.Add("  prefill beyond the engine's, ms", served.told.prefill_ms() - own.ttft_ms);
    samples.Add("  on the way, ms", served.ttft_ms - served.told.queue_ms() -
                                        served.told.load_ms() - served.told.prefill_ms());
    samples.Add(kAddedTpot, served.tpot_ms / own.tpot_ms - 1);
    std::fprintf(stderr, "\rpair %d of %d", pair + 1, pairs);
  }
  std::fprintf(stderr, "\r%d prompt tokens, %d answer tokens, %d pairs\n", prompt_tokens,
               kAnswerTokens, pairs);
  samples.Print(stderr);
  std::printf("{\"prompt_tokens\": %d, \"ttft_added_ms\": %.3f, \"tpot_added\": %.4f}\n",
              prompt_tokens, samples.Median(kAddedTtft), samples.Median(kAddedTpot));
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "What a running service, which ./withy bench service --model FILE.gguf starts, adds to the "
      "engine's time.\n"
      "usage: withy-bench-service --address unix:PATH --token TOKEN --model FILE.gguf",
      argc, argv, withy::bench::Main, [] {
        return !(absl::GetFlag(FLAGS_address).empty() || absl::GetFlag(FLAGS_token).empty() ||
                 absl::GetFlag(FLAGS_model).empty() || absl::GetFlag(FLAGS_pairs) < 1 ||
                 absl::GetFlag(FLAGS_words) < 1);
      });
}
