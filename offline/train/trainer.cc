#include "offline/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "base/time_left.h"
#include "offline/train/evaluate.h"

namespace withy::train {
namespace {

using torch::Tensor;
using Clock = std::chrono::steady_clock;

constexpr double kLastRate = 0.02;  // fraction of the full rate at the last step

struct StepResult {
  double answer_loss = 0;  // mean over the answers' tokens
  double gradient_norm = 0;
  int64_t tokens = 0;
};

// Next tokens [rows] and their loss weights [rows] of the flattened batch. The last position of
// each sample and padding have weight 0.
void MakeTargets(const std::vector<Sample>& samples, int64_t longest, double prompt_weight,
                 Tensor& next, Tensor& weight) {
  const int64_t rows = static_cast<int64_t>(samples.size()) * longest;
  next = torch::zeros({rows}, torch::kInt64);
  weight = torch::zeros({rows}, torch::kFloat32);
  for (size_t s = 0; s < samples.size(); ++s) {
    int64_t* to = next.data_ptr<int64_t>() + static_cast<int64_t>(s) * longest;
    float* by = weight.data_ptr<float>() + static_cast<int64_t>(s) * longest;
    for (size_t i = 1; i < samples[s].tokens.size(); ++i) {
      to[i - 1] = samples[s].tokens[i];
      by[i - 1] = samples[s].answer[i] ? 1.0f : static_cast<float>(prompt_weight);
    }
  }
}

double TotalWeight(const std::vector<Sample>& samples, double prompt_weight) {
  double total = 0;
  for (const Sample& sample : samples) {
    const int64_t answers = std::count(sample.answer.begin(), sample.answer.end(), true);
    total += static_cast<double>(answers) +
             prompt_weight *
                 static_cast<double>(static_cast<int64_t>(sample.tokens.size()) - 1 - answers);
  }
  return total;
}

// Runs one batch forward and backward; returns (sum of answer losses, answer tokens).
std::pair<double, double> Accumulate(const Model& model, const std::vector<Sample>& samples,
                                     double prompt_weight, double total_weight) {
  const Tensor tokens = PadTokens(samples, model.device());
  Tensor next;
  Tensor weight;
  MakeTargets(samples, tokens.size(1), prompt_weight, next, weight);
  const Tensor kept = weight.nonzero().squeeze(1);
  const Tensor kept_weight = weight.index_select(0, kept).to(model.device());
  const Tensor kept_next = next.index_select(0, kept).to(model.device());
  const Tensor hidden = model.Hidden(tokens).index_select(0, kept.to(model.device()));
  const Tensor loss = torch::nn::functional::cross_entropy(
      model.Logits(hidden), kept_next,
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  ((loss * kept_weight).sum() / total_weight).backward();
  const Tensor is_answer = (kept_weight == 1.0).to(torch::kFloat32);
  return {(loss.detach() * is_answer).sum().item<double>(), is_answer.sum().item<double>()};
}

StepResult RunStep(const TrainOptions& options, const std::vector<Model>& replicas,
                   Optimizer& optimizer, BatchStream& stream, double schedule) {
  const Workers workers(options.threads);
  StepResult result;
  std::vector<std::vector<Sample>> batches;
  double total_weight = 0;
  for (int64_t i = 0; i < options.batches_a_step; ++i) {
    batches.push_back(stream.Next());
    total_weight += TotalWeight(batches.back(), options.prompt_weight);
    for (const Sample& sample : batches.back())
      result.tokens += static_cast<int64_t>(sample.tokens.size());
  }
  std::vector<std::pair<double, double>> sums(batches.size());
  workers.Run(options.batches_a_step, [&](int64_t i) {
    const size_t b = static_cast<size_t>(i);
    sums[b] = Accumulate(replicas[b], batches[b], options.prompt_weight, total_weight);
  });
  double loss = 0;
  double answers = 0;
  for (const auto& [batch_loss, batch_answers] : sums) {
    loss += batch_loss;
    answers += batch_answers;
  }
  result.answer_loss = loss / std::max(1.0, answers);
  result.gradient_norm = optimizer.Step(schedule, replicas, workers);
  return result;
}

double SecondsNow() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Reports speed and loss over the steps since the last report, and the time left for all steps,
// evaluations included.
class Meter {
 public:
  Meter(std::string curve_path, int64_t first_step, int64_t last_step)
      : curve_path_(std::move(curve_path)),
        last_step_(last_step),
        left_({{"steps", static_cast<double>(last_step - first_step)}}, /*estimated=*/false) {
    left_.Begin(0, 0, 1, SecondsNow());
  }

  void Add(const StepResult& result) {
    ++steps_;
    tokens_ += result.tokens;
    loss_ += result.answer_loss;
    norm_ += result.gradient_norm;
    left_.Advance(1, SecondsNow());
  }

  void Report(int64_t step, int64_t tokens_in_all, double schedule) {
    const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
    const double count = static_cast<double>(std::max<int64_t>(1, steps_));
    const int filled = static_cast<int>(20 * step / std::max<int64_t>(1, last_step_));
    std::printf("[%-20.*s] step %lld/%lld loss %.4f grad %.2f rate %.2f %.0f tok/s %.2fM tok, %s\n",
                filled, "####################", static_cast<long long>(step),
                static_cast<long long>(last_step_), loss_ / count, norm_ / count, schedule,
                static_cast<double>(tokens_) / seconds, static_cast<double>(tokens_in_all) * 1e-6,
                step >= last_step_ ? "done"
                                   : (DurationText(left_.OfStage(SecondsNow())) + " left").c_str());
    std::fflush(stdout);
    std::ofstream(curve_path_, std::ios::app)
        << step << "," << tokens_in_all << "," << loss_ / count << "," << schedule << ",\n";
    since_ = Clock::now();
    steps_ = tokens_ = 0;
    loss_ = norm_ = 0;
  }

  void ReportAccuracy(int64_t step, int64_t tokens_in_all, const Accuracy& accuracy) {
    std::printf("step %lld accuracy %s\n", static_cast<long long>(step),
                accuracy.Summary().c_str());
    std::fflush(stdout);
    std::ofstream(curve_path_, std::ios::app)
        << step << "," << tokens_in_all << ",,," << accuracy.overall.value() << "\n";
    since_ = Clock::now();
  }

 private:
  std::string curve_path_;
  int64_t last_step_;
  TimeLeft left_;
  Clock::time_point since_ = Clock::now();
  int64_t steps_ = 0;
  int64_t tokens_ = 0;
  double loss_ = 0;
  double norm_ = 0;
};

// Held-out wordings and entities with another seed than the set that the shipped models are
// evaluated on.
corpus::Spec ValidationSpec() {
  corpus::Spec spec = corpus::HeldOutSpec();
  spec.seed += 1000;
  return spec;
}

}  // namespace

double Schedule(const TrainOptions& options, int64_t step) {
  const double warm =
      std::min(1.0, static_cast<double>(step - options.first_step + 1) /
                        static_cast<double>(std::max<int64_t>(1, options.warmup_steps)));
  const double fall_steps = std::max(1.0, options.decay_share * static_cast<double>(options.steps));
  const double fall = static_cast<double>(options.steps - step) / fall_steps;
  return warm * std::clamp(fall, kLastRate, 1.0);
}

absl::Status Train(const TrainOptions& options, Model& model, const ChatEncoder& encoder) {
  const std::string checkpoint = options.directory + "/checkpoint.pt";
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error)
    return absl::PermissionDeniedError(absl::StrCat(options.directory, ": ", error.message()));
  Optimizer optimizer(model, options.optimizer);
  BatchStream stream(options.batches, encoder);
  Progress progress;
  progress.step = options.first_step;
  const absl::Status loaded = LoadCheckpoint(checkpoint, model, &optimizer, &progress);
  if (!loaded.ok() && !absl::IsNotFound(loaded)) return loaded;
  if (loaded.ok())
    std::printf("going on from %s, step %lld\n", checkpoint.c_str(),
                static_cast<long long>(progress.step));
  stream.Seek(progress.position);
  // A new run with an earlier run's weights must not repeat that run's batches.
  while (stream.position().count < progress.step * options.batches_a_step) stream.Next();

  std::vector<Model> replicas;
  for (int64_t i = 0; i < options.batches_a_step; ++i) replicas.push_back(model.Replica());
  Meter meter(options.directory + "/curve.csv", progress.step, options.steps);
  Clock::time_point saved = Clock::now();
  int64_t done = 0;  // steps done by this run
  const int64_t end =
      options.stop_after > 0 ? std::min(options.stop_after, options.steps) : options.steps;
  while (progress.step < end) {
    const double schedule = Schedule(options, progress.step);
    const StepResult result = RunStep(options, replicas, optimizer, stream, schedule);
    ++progress.step;
    progress.tokens += result.tokens;
    progress.position = stream.position();
    meter.Add(result);
    const bool last = progress.step == end;
    ++done;
    // Also reports early, because the expected time is of interest first.
    if (progress.step % 20 == 0 || last || done == 3) {
      meter.Report(progress.step, progress.tokens, schedule);
    }
    const double unsaved_s = std::chrono::duration<double>(Clock::now() - saved).count();
    if (progress.step % options.checkpoint_steps == 0 || last ||
        unsaved_s >= options.checkpoint_s) {
      WITHY_RETURN_IF_ERROR(SaveCheckpoint(checkpoint, model, optimizer, progress));
      saved = Clock::now();
    }
    if (options.validate_records > 0 && (progress.step % options.validate_steps == 0 || last)) {
      meter.ReportAccuracy(progress.step, progress.tokens,
                           Evaluate(model, ValidationSpec(), options.validate_records, encoder,
                                    Workers(options.threads)));
    }
  }
  return absl::OkStatus();
}

}  // namespace withy::train
