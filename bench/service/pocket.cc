// withy-bench-pocket: sends held-out prompts of the corpus to a running service, decodes greedily,
// and scores exact matches. Then measures how often the draft would have predicted the target's
// next token. Prints a table on stderr and one JSON line last on stdout. Neighbours: offline/corpus
// writes the prompts; ./withy bench pocket starts a service.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "base/clock.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "bench/service/ask.h"
#include "bench/service/prompt_wire.h"
#include "offline/corpus/generator.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "withy/v1/llm_service.grpc.pb.h"

ABSL_FLAG(std::string, address, "", "of the service");
ABSL_FLAG(std::string, token, "", "of an app bound to it");
ABSL_FLAG(std::string, draft, "", "the draft's GGUF file");
ABSL_FLAG(int, count, 2400, "held-out prompts");
ABSL_FLAG(int, callers, 4, "calls at once");
ABSL_FLAG(std::string, errors, "", "file for the target's wrong answers, a JSON line each");

namespace withy::bench {
namespace {

// One model's answers to the prompts.
struct Score {
  std::array<int, corpus::kTaskCount> asked{}, right{};
  std::vector<std::vector<int32_t>> answers;  // token ids, by prompt
  std::vector<std::string> texts;
  double seconds = 0;

  double Accuracy() const {
    int asked_sum = 0, right_sum = 0;
    for (int task = 0; task < corpus::kTaskCount; ++task) {
      asked_sum += asked[task];
      right_sum += right[task];
    }
    return asked_sum == 0 ? 0 : static_cast<double>(right_sum) / asked_sum;
  }
  double TaskAccuracy(int task) const {
    return asked[task] == 0 ? 0 : static_cast<double>(right[task]) / asked[task];
  }
};

v1::GenerateRequest RequestFor(const corpus::Record& record, const std::string& model) {
  v1::GenerateRequest request;
  FillPrompt(record, request.mutable_prompt());
  request.mutable_limits()->set_max_tokens(64);
  request.mutable_sampling()->set_temperature(0);
  request.set_model(model);
  return request;
}

// Makes one call; retries it while the service asks for a retry.
absl::StatusOr<ServedAnswer> Ask(v1::LlmService::Stub& stub, const v1::GenerateRequest& request) {
  while (true) {
    absl::StatusOr<ServedAnswer> answer = AskService(stub, absl::GetFlag(FLAGS_token), request);
    if (!absl::IsResourceExhausted(answer.status())) return answer;
  }
}

absl::StatusOr<Score> Run(const std::string& model) {
  const int count = absl::GetFlag(FLAGS_count);
  const int caller_count = absl::GetFlag(FLAGS_callers);
  const corpus::Generator generator(corpus::HeldOutSpec());
  const auto stub = v1::LlmService::NewStub(rpc::Connect(absl::GetFlag(FLAGS_address)));
  Score score;
  score.answers.resize(static_cast<size_t>(count));
  score.texts.resize(static_cast<size_t>(count));
  std::vector<char> right(static_cast<size_t>(count));
  std::atomic<int> next = 0, done = 0;
  std::vector<absl::Status> failures(static_cast<size_t>(caller_count));
  const int64_t start = Clock::Real().SteadyNanos();
  std::vector<std::thread> callers;
  callers.reserve(static_cast<size_t>(caller_count));
  for (int caller = 0; caller < caller_count; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = next++; i < count && failures[caller].ok(); i = next++) {
        const corpus::Record record = generator.At(static_cast<uint64_t>(i));
        absl::StatusOr<ServedAnswer> answer = Ask(*stub, RequestFor(record, model));
        failures[caller] = answer.status();
        if (!answer.ok()) break;
        right[i] = answer->finished.text() == record.answer ? 1 : 0;
        score.texts[static_cast<size_t>(i)] = std::move(*answer->finished.mutable_text());
        score.answers[i] = std::move(answer->tokens);
        if (++done % 100 == 0)
          std::fprintf(stderr, "\r%s: %d of %d", model.c_str(), done.load(), count);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::fprintf(stderr, "\r%*s\r", 40, "");
  for (const absl::Status& failure : failures) WITHY_RETURN_IF_ERROR(failure);
  score.seconds = static_cast<double>(Clock::Real().SteadyNanos() - start) / kNanosPerSecond;
  for (int i = 0; i < count; ++i) {
    const auto task = static_cast<size_t>(generator.At(static_cast<uint64_t>(i)).task);
    ++score.asked[task];
    score.right[task] += right[i];
  }
  return score;
}

// Number of positions in the target's answers, and of those at which the draft's likeliest next
// token is the target's.
struct Agreement {
  int64_t positions = 0, agreed = 0;
  double Share() const {
    return positions == 0 ? 0 : static_cast<double>(agreed) / static_cast<double>(positions);
  }
};

// Runs the draft over prompt and answer in one pass, and compares its likeliest token at each
// position with the target's.
absl::Status Compare(const engine::ModelBundle& draft, const corpus::Record& record,
                     const std::vector<int32_t>& answer, Agreement* agreement) {
  if (answer.empty()) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt, PromptIds(draft, record));
  std::vector<float> logits;
  WITHY_RETURN_IF_ERROR(AnswerLogits(*draft.model, prompt, answer, /*level=*/-1, &logits));
  agreement->positions += static_cast<int64_t>(answer.size());
  agreement->agreed += AgreedTokens(logits, answer);
  return absl::OkStatus();
}

absl::StatusOr<Agreement> MeasureAgreement(const Score& target) {
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle draft,
                         engine::OpenBundle(absl::GetFlag(FLAGS_draft), {}));
  const corpus::Generator generator(corpus::HeldOutSpec());
  Agreement agreement;
  for (int i = 0; i < absl::GetFlag(FLAGS_count); ++i) {
    WITHY_RETURN_IF_ERROR(
        Compare(draft, generator.At(static_cast<uint64_t>(i)), target.answers[i], &agreement));
  }
  return agreement;
}

void PrintTable(const Score& target, const Score& draft) {
  std::fprintf(stderr, "%-10s %8s %10s %10s\n", "task", "prompts", "target", "draft");
  for (int task = 0; task < corpus::kTaskCount; ++task) {
    std::fprintf(stderr, "%-10s %8d %10.4f %10.4f\n", std::string(corpus::kTaskNames[task]).c_str(),
                 target.asked[task], target.TaskAccuracy(task), draft.TaskAccuracy(task));
  }
  std::fprintf(stderr, "%-10s %8s %10.4f %10.4f\n", "all", "", target.Accuracy(), draft.Accuracy());
  std::fprintf(stderr, "%-10s %8s %9.1fs %9.1fs\n", "time", "", target.seconds, draft.seconds);
}

absl::Status WriteErrors(const Score& target, const std::string& path) {
  std::ofstream file(path);
  const corpus::Generator generator(corpus::HeldOutSpec());
  for (size_t i = 0; i < target.texts.size(); ++i) {
    const corpus::Record record = generator.At(i);
    if (target.texts[i] == record.answer) continue;
    nlohmann::json line = {{"record", i},
                           {"task", corpus::kTaskNames[static_cast<size_t>(record.task)]},
                           {"difficulty", record.difficulty},
                           {"prompt", record.messages.back().content},
                           {"right", record.answer},
                           {"answer", target.texts[i]}};
    file << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }
  file.close();
  return file ? absl::OkStatus()
              : absl::UnavailableError(
                    absl::StrCat("cannot write ", path, ": is its folder there?"));
}

absl::Status Main() {
  WITHY_ASSIGN_OR_RETURN(const Score target, Run(""));
  if (const std::string path = absl::GetFlag(FLAGS_errors); !path.empty()) {
    WITHY_RETURN_IF_ERROR(WriteErrors(target, path));
  }
  WITHY_ASSIGN_OR_RETURN(const Score draft, Run("draft"));
  WITHY_ASSIGN_OR_RETURN(const Agreement agreement, MeasureAgreement(target));
  PrintTable(target, draft);
  std::string by_task;
  for (int task = 0; task < corpus::kTaskCount; ++task) {
    absl::StrAppend(&by_task, task == 0 ? "" : ", ", "\"", ToAbsl(corpus::kTaskNames[task]),
                    "\": ", target.TaskAccuracy(task));
  }
  std::printf(
      "{\"prompts\": %d, \"target_accuracy\": %.4f, \"target_accuracy_by_task\": {%s}, "
      "\"draft_accuracy\": %.4f, \"draft_agreement\": %.4f}\n",
      absl::GetFlag(FLAGS_count), target.Accuracy(), by_task.c_str(), draft.Accuracy(),
      agreement.Share());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Scores held-out prompts through a running service, which ./withy bench pocket starts.\n"
      "usage: withy-bench-pocket --address unix:PATH --token TOKEN --draft FILE.gguf",
      argc, argv, withy::bench::Main, [] {
        return !(absl::GetFlag(FLAGS_address).empty() || absl::GetFlag(FLAGS_token).empty() ||
                 absl::GetFlag(FLAGS_draft).empty() || absl::GetFlag(FLAGS_count) < 1 ||
                 absl::GetFlag(FLAGS_callers) < 1);
      });
}
