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
#include "absl/flags/usage.h"
#include "base/clock.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "engine/model/model.h"
#include "rpc/channel.h"
#include "rpc/status.h"
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
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + absl::GetFlag(FLAGS_token));
  rpc::SetTimeout(&context, absl::Seconds(300));
  const int64_t start = Clock::Real().SteadyNanos();
  int64_t first = 0, last = 0;
  int first_tokens = 0, tokens = 0;
  Call call;
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.delta().tokens_size() > 0) {
      last = Clock::Real().SteadyNanos();
      tokens += response.delta().tokens_size();
      if (first == 0) {
        first = last;
        first_tokens = tokens;
      }
    }
    if (response.has_finished()) {
      call.prompt_tokens = static_cast<int>(response.finished().usage().prompt_tokens());
      call.told = response.finished().latency();
    }
  }
  WITHY_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish()));
  if (tokens - first_tokens < kAnswerTokens / 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model ended its answer after ", tokens,
                     " tokens: too few to time; take another model"));
  }
  call.ttft_ms = static_cast<double>(first - start) / kNanosPerMilli;
  call.tpot_ms = static_cast<double>(last - first) / kNanosPerMilli / (tokens - first_tokens);
  return call;
}

absl::StatusOr<Call> ByEngine(EngineBench& engine, int prompt_tokens) {
  WITHY_ASSIGN_OR_RETURN(const double prefill, engine.Prefill(prompt_tokens));
  WITHY_ASSIGN_OR_RETURN(const double decode, engine.Decode(1, prompt_tokens, kAnswerTokens - 1));
  return Call{.ttft_ms = prompt_tokens / prefill * 1e3,
              .tpot_ms = 1e3 / decode,
              .prompt_tokens = prompt_tokens};
}

void Print(const char* name, const Spread& spread, const char* unit) {
  std::fprintf(stderr, "%-28s %9.2f (%.2f to %.2f) %s\n", name, spread.median, spread.low,
               spread.high, unit);
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
  std::vector<double> served_ttft, served_tpot, own_ttft, own_tpot, more_ttft, more_tpot;
  std::vector<double> queue, load, prefill, rest;  // parts of the served TTFT
  int prompt_tokens = 0;
  for (int pair = 0; pair < pairs; ++pair) {
    WITHY_ASSIGN_OR_RETURN(const Call served, ThroughService(*stub, pair));
    WITHY_ASSIGN_OR_RETURN(const Call own, ByEngine(engine, served.prompt_tokens));
    prompt_tokens = served.prompt_tokens;
    served_ttft.push_back(served.ttft_ms);
    served_tpot.push_back(served.tpot_ms);
    own_ttft.push_back(own.ttft_ms);
    own_tpot.push_back(own.tpot_ms);
    queue.push_back(served.told.queue_ms());
    load.push_back(served.told.load_ms());
    prefill.push_back(served.told.prefill_ms() - own.ttft_ms);
    rest.push_back(served.ttft_ms - served.told.queue_ms() - served.told.load_ms() -
                   served.told.prefill_ms());
    more_ttft.push_back(served.ttft_ms - own.ttft_ms);
    more_tpot.push_back(served.tpot_ms / own.tpot_ms - 1);
    std::fprintf(stderr, "\rpair %d of %d", pair + 1, pairs);
  }
  std::fprintf(stderr, "\r%d prompt tokens, %d answer tokens, %d pairs\n", prompt_tokens,
               kAnswerTokens, pairs);
  Print("engine TTFT", Summarize(own_ttft), "ms");
  Print("service TTFT", Summarize(served_ttft), "ms");
  Print("engine TPOT", Summarize(own_tpot), "ms");
  Print("service TPOT", Summarize(served_tpot), "ms");
  const Spread ttft = Summarize(more_ttft);
  const Spread tpot = Summarize(more_tpot);
  Print("service adds to TTFT", ttft, "ms");
  Print("  until the worker starts it", Summarize(queue), "ms");
  Print("  for the lease", Summarize(load), "ms");
  Print("  prefill beyond the engine's", Summarize(prefill), "ms");
  Print("  on the way", Summarize(rest), "ms");
  Print("service adds to TPOT", tpot, "of it");
  std::printf("{\"prompt_tokens\": %d, \"ttft_added_ms\": %.3f, \"tpot_added\": %.4f}\n",
              prompt_tokens, ttft.median, tpot.median);
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  withy::ParseProgramFlags(
      "What a running service, which ./withy bench service --model FILE.gguf starts, adds to the "
      "engine's time.\n"
      "usage: withy-bench-service --address unix:PATH --token TOKEN --model FILE.gguf",
      argc, argv);
  if (absl::GetFlag(FLAGS_address).empty() || absl::GetFlag(FLAGS_token).empty() ||
      absl::GetFlag(FLAGS_model).empty() || absl::GetFlag(FLAGS_pairs) < 1 ||
      absl::GetFlag(FLAGS_words) < 1) {
    std::fprintf(stderr, "withy-bench-service: %s\n",
                 std::string(absl::ProgramUsageMessage()).c_str());
    return 2;
  }
  const absl::Status status = withy::bench::Main();
  if (!status.ok()) {
    std::fprintf(stderr, "withy-bench-service: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
