// withy-bench-agreement: compares two GGUFs that should compute the same, such as Q8_0 with F32, or
// an elastic model with its original. Both are fed held-out prompts of the corpus with the right
// answers. Reports how often both have the same likeliest token, the perplexity of both, and how
// many greedy answers are equal. Prints a table on stderr and one JSON line last on stdout.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "engine/model/scratch_kv.h"

ABSL_FLAG(std::string, model, "", "GGUF file that is judged");
ABSL_FLAG(std::string, reference, "", "GGUF file that it is compared with");
ABSL_FLAG(int, count, 2400, "held-out prompts");
ABSL_FLAG(int, threads, 2, "threads");

namespace withy::bench {
namespace {

constexpr int32_t kLongestAnswer = 64;

struct Side {
  std::vector<float> logits;
  double loss = 0;  // sum over all positions
  int right = 0;    // number of right greedy answers
};

double LossOf(std::span<const float> logits, int32_t token) {
  const float top = logits[static_cast<size_t>(Best(logits))];
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value - top));
  return std::log(sum) + top - logits[static_cast<size_t>(token)];
}

// The greedy answer, with the token that ends it.
absl::StatusOr<std::vector<int32_t>> Answer(const engine::ModelBundle& bundle,
                                            const std::vector<int32_t>& prompt) {
  engine::Model& model = *bundle.model;
  const auto begin = static_cast<int32_t>(prompt.size());
  const engine::ScratchKv kv(model.info(), begin + kLongestAnswer);
  std::vector<float> logits(static_cast<size_t>(model.info().vocab_size));
  WITHY_RETURN_IF_ERROR(engine::Prefill(model, kv, prompt, 0, logits.data()));
  std::vector<int32_t> answer = {Best(logits)};
  while (!bundle.tokenizer->IsEndOfGeneration(answer.back()) &&
         static_cast<int32_t>(answer.size()) < kLongestAnswer) {
    const int32_t position = begin + static_cast<int32_t>(answer.size()) - 1;
    WITHY_RETURN_IF_ERROR(
        engine::Prefill(model, kv, std::span(&answer.back(), 1), position, logits.data()));
    answer.push_back(Best(logits));
  }
  return answer;
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("count", absl::GetFlag(FLAGS_count), 1, 1'000'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 1024));
  engine::ModelOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle model,
                         engine::OpenBundle(absl::GetFlag(FLAGS_model), options));
  WITHY_ASSIGN_OR_RETURN(const engine::ModelBundle reference,
                         engine::OpenBundle(absl::GetFlag(FLAGS_reference), options));
  if (model.tokenizer->fingerprint() != reference.tokenizer->fingerprint()) {
    return absl::InvalidArgumentError(
        "--model and --reference have different tokenizers: their answers cannot be compared");
  }
  const int count = absl::GetFlag(FLAGS_count);
  WITHY_ASSIGN_OR_RETURN(const std::vector<Question> questions,
                         EncodeAll(reference, corpus::HeldOutSpec(), count));
  const auto vocabulary = static_cast<size_t>(model.model->info().vocab_size);
  Side own, other;
  int64_t positions = 0, agreed = 0, same_answers = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    for (auto [bundle, side] : {std::pair(&model, &own), std::pair(&reference, &other)}) {
      WITHY_RETURN_IF_ERROR(AnswerLogits(*bundle->model, question.prompt, question.answer,
                                         /*level=*/-1, &side->logits));
      const auto length = static_cast<int32_t>(question.answer.size());
      side->right += AgreedTokens(side->logits, question.answer) == length ? 1 : 0;
    }
    for (size_t t = 0; t < question.answer.size(); ++t) {
      const std::span a = std::span(own.logits).subspan(t * vocabulary, vocabulary);
      const std::span b = std::span(other.logits).subspan(t * vocabulary, vocabulary);
      agreed += Best(a) == Best(b) ? 1 : 0;
      own.loss += LossOf(a, question.answer[t]);
      other.loss += LossOf(b, question.answer[t]);
      ++positions;
    }
    // The model gives the reference's answer if each token of it is its own likeliest, too.
    WITHY_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, Answer(reference, question.prompt));
    WITHY_RETURN_IF_ERROR(
        AnswerLogits(*model.model, question.prompt, answer, /*level=*/-1, &own.logits));
    same_answers += AgreedTokens(own.logits, answer) == static_cast<int32_t>(answer.size()) ? 1 : 0;
    if (i % 50 == 0) std::fprintf(stderr, "\rprompt %zu of %d", i, count);
  }
  const auto share = [](int64_t part, int64_t all) {
    return all == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(all);
  };
  const double own_perplexity = std::exp(own.loss / static_cast<double>(positions));
  const double other_perplexity = std::exp(other.loss / static_cast<double>(positions));
  std::fprintf(stderr, "\r%-24s %10s %10s\n", "", "model", "reference");
  std::fprintf(stderr, "%-24s %10.4f %10.4f\n", "greedy answers right", share(own.right, count),
               share(other.right, count));
  std::fprintf(stderr, "%-24s %10.5f %10.5f\n", "perplexity", own_perplexity, other_perplexity);
  std::fprintf(stderr, "%-24s %10.5f of %lld positions\n", "same likeliest token",
               share(agreed, positions), static_cast<long long>(positions));
  std::fprintf(stderr, "%-24s %10.5f\n", "same greedy answer", share(same_answers, count));
  std::printf(
      "{\"prompts\": %d, \"positions\": %lld, \"top1_agreement\": %.5f, \"perplexity_ratio\": "
      "%.5f, \"same_answers\": %.5f, \"accuracy\": %.4f, \"reference_accuracy\": %.4f}\n",
      count, static_cast<long long>(positions), share(agreed, positions),
      own_perplexity / other_perplexity, share(same_answers, count), share(own.right, count),
      share(other.right, count));
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "How far one GGUF is from another of the same function.\n"
      "usage: withy-bench-agreement --model FILE.gguf --reference FILE.gguf",
      argc, argv, withy::bench::Main, [] {
        return !(absl::GetFlag(FLAGS_model).empty() || absl::GetFlag(FLAGS_reference).empty());
      });
}
