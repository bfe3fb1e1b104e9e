// withy-bench-pocket: held-out prompts of the project's corpus through the served path, greedy,
// scored by exact match; then how often the draft would have said the target's next token. A table
// on stderr, one JSON line last on stdout. Neighbours: elasticizer/corpus writes the prompts; a
// running service answers them (./withy bench pocket starts one).
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "elasticizer/corpus/generator.h"
#include "engine/model/bundle.h"
#include "engine/model/scratch_kv.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {
namespace {

struct Options {
  std::string address, token, draft_path;
  int count = 2400;
  int callers = 4;
};

// What one model made of the prompts.
struct Score {
  std::array<int, corpus::kTaskCount> asked{}, right{};
  std::vector<std::vector<int32_t>> answers;  // token ids, by prompt
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
  for (const corpus::Message& message : record.messages) {
    v1::Message* out = request.mutable_prompt()->mutable_messages()->add_messages();
    out->set_role(message.role);
    out->set_content(message.content);
    for (const corpus::Span& span : message.fixed) {
      v1::ByteSpan* fixed = out->add_fixed();
      fixed->set_begin(static_cast<uint32_t>(span.begin));
      fixed->set_end(static_cast<uint32_t>(span.end));
    }
  }
  request.mutable_limits()->set_max_tokens(64);
  request.set_model(model);
  return request;
}

// One call; retried while the service asks for it.
absl::Status Ask(v1::LlmService::Stub& stub, const Options& options,
                 const v1::GenerateRequest& request, std::string* text, std::vector<int32_t>* ids) {
  while (true) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + options.token);
    rpc::SetTimeout(&context, absl::Seconds(120));
    const auto reader = stub.Generate(&context, request);
    v1::GenerateResponse response;
    ids->clear();
    while (reader->Read(&response)) {
      for (const v1::Token& token : response.delta().tokens()) ids->push_back(token.id());
      if (response.has_finished()) *text = response.finished().text();
    }
    absl::Status status = rpc::FromGrpc(reader->Finish());
    if (status.code() != absl::StatusCode::kResourceExhausted) return status;
  }
}

absl::StatusOr<Score> Run(const Options& options, const std::string& model) {
  const corpus::Generator generator(corpus::HeldOutSpec());
  const auto stub = v1::LlmService::NewStub(rpc::Connect(options.address));
  Score score;
  score.answers.resize(static_cast<size_t>(options.count));
  std::vector<char> right(static_cast<size_t>(options.count));
  std::atomic<int> next = 0, done = 0;
  std::vector<absl::Status> failures(static_cast<size_t>(options.callers));
  const int64_t start = Clock::Real().SteadyNanos();
  std::vector<std::thread> callers;
  callers.reserve(static_cast<size_t>(options.callers));
  for (int caller = 0; caller < options.callers; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = next++; i < options.count && failures[caller].ok(); i = next++) {
        const corpus::Record record = generator.At(static_cast<uint64_t>(i));
        std::string text;
        failures[caller] = Ask(*stub, options, RequestFor(record, model), &text, &score.answers[i]);
        right[i] = text == record.answer ? 1 : 0;
        if (++done % 100 == 0)
          std::fprintf(stderr, "\r%s: %d of %d", model.c_str(), done.load(), options.count);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::fprintf(stderr, "\r%*s\r", 40, "");
  for (const absl::Status& failure : failures) WITHY_RETURN_IF_ERROR(failure);
  score.seconds = static_cast<double>(Clock::Real().SteadyNanos() - start) / kNanosPerSecond;
  for (int i = 0; i < options.count; ++i) {
    const auto task = static_cast<size_t>(generator.At(static_cast<uint64_t>(i)).task);
    ++score.asked[task];
    score.right[task] += right[i];
  }
  return score;
}

// Positions of the target's answers, and those at which the draft's likeliest next token is the
// target's.
struct Agreement {
  int64_t positions = 0, agreed = 0;
  double Share() const {
    return positions == 0 ? 0 : static_cast<double>(agreed) / static_cast<double>(positions);
  }
};

absl::StatusOr<std::vector<int32_t>> PromptIds(const engine::ModelBundle& bundle,
                                               const corpus::Record& record) {
  std::vector<engine::ChatMessage> messages;
  for (const corpus::Message& message : record.messages)
    messages.push_back({message.role, message.content, {}});
  WITHY_ASSIGN_OR_RETURN(const engine::RenderedChat rendered, bundle.chat.Render(messages, true));
  return bundle.tokenizer
      ->EncodePieces(rendered.TextPieces(), {.add_bos = bundle.tokenizer->wants_bos()})
      .ids;
}

// Runs the draft over prompt and answer in one pass and compares each position with what the target
// said there.
absl::Status Compare(const engine::ModelBundle& draft, const corpus::Record& record,
                     const std::vector<int32_t>& answer, Agreement* agreement) {
  if (answer.empty()) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(std::vector<int32_t> ids, PromptIds(draft, record));
  const size_t first = ids.size() - 1;  // its logits are the answer's first token
  ids.insert(ids.end(), answer.begin(), answer.end() - 1);
  engine::Model& model = *draft.model;
  const engine::ScratchKv kv(model.info(), static_cast<int32_t>(ids.size()));
  std::vector<engine::Row> rows(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto position = static_cast<int32_t>(i);
    rows[i] = {.token = ids[i], .position = position, .slot = position, .want_logits = i >= first};
  }
  const auto vocabulary = static_cast<size_t>(model.info().vocab_size);
  std::vector<float> logits(answer.size() * vocabulary);
  const engine::ContextView view = kv.View();
  WITHY_RETURN_IF_ERROR(model.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data()));
  for (size_t i = 0; i < answer.size(); ++i) {
    const auto row = logits.begin() + static_cast<ptrdiff_t>(i * vocabulary);
    const auto best = std::max_element(row, row + static_cast<ptrdiff_t>(vocabulary)) - row;
    ++agreement->positions;
    agreement->agreed += best == answer[i] ? 1 : 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<Agreement> MeasureAgreement(const Options& options, const Score& target) {
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle draft,
                         engine::OpenBundle(options.draft_path, {}));
  const corpus::Generator generator(corpus::HeldOutSpec());
  Agreement agreement;
  for (int i = 0; i < options.count; ++i) {
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

absl::Status Main(const Options& options) {
  WITHY_ASSIGN_OR_RETURN(const Score target, Run(options, ""));
  WITHY_ASSIGN_OR_RETURN(const Score draft, Run(options, "draft"));
  WITHY_ASSIGN_OR_RETURN(const Agreement agreement, MeasureAgreement(options, target));
  PrintTable(target, draft);
  std::string by_task;
  for (int task = 0; task < corpus::kTaskCount; ++task) {
    absl::StrAppend(&by_task, task == 0 ? "" : ", ", "\"", ToAbsl(corpus::kTaskNames[task]),
                    "\": ", target.TaskAccuracy(task));
  }
  std::printf(
      "{\"prompts\": %d, \"target_accuracy\": %.4f, \"target_accuracy_by_task\": {%s}, "
      "\"draft_accuracy\": %.4f, \"draft_agreement\": %.4f}\n",
      options.count, target.Accuracy(), by_task.c_str(), draft.Accuracy(), agreement.Share());
  return absl::OkStatus();
}

bool ParseFlags(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 >= argc) return false;
    if (flag == "--address") {
      options->address = argv[i + 1];
    } else if (flag == "--token") {
      options->token = argv[i + 1];
    } else if (flag == "--draft") {
      options->draft_path = argv[i + 1];
    } else if (flag == "--count") {
      options->count = std::atoi(argv[i + 1]);
    } else if (flag == "--callers") {
      options->callers = std::atoi(argv[i + 1]);
    } else {
      return false;
    }
  }
  return !options->address.empty() && !options->token.empty() && !options->draft_path.empty() &&
         options->count > 0 && options->callers > 0 && options->callers <= 64;
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  withy::bench::Options options;
  if (!withy::bench::ParseFlags(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: withy-bench-pocket --address unix:PATH --token TOKEN --draft FILE.gguf "
                 "[--count 2400] "
                 "[--callers 4]\n(./withy bench pocket starts a service and fills these in)\n");
    return 2;
  }
  const absl::Status status = withy::bench::Main(options);
  if (!status.ok()) {
    std::fprintf(stderr, "withy-bench-pocket: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
