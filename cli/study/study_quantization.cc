#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/charts/line_chart.h"
#include "base/status.h"
#include "cli/output.h"
#include "cli/study/answer.h"
#include "cli/study/requantize.h"
#include "cli/study/study.h"
#include "cli/study/text_score.h"

namespace withy::cli {
namespace {

using engine::TextScore;

// The options with the files that --types asks for.
absl::StatusOr<StudyOptions> WithTypes(const StudyOptions& options) {
  StudyOptions all = options;
  all.levels = false;
  for (const std::string& name : options.types) {
    WITHY_ASSIGN_OR_RETURN(const engine::GgmlType type, FindWritableType(name));
    const std::string source = options.models.front();
    const std::string path =
        absl::StrCat(options.scratch_dir, "/", std::filesystem::path(source).stem().string(), "-",
                     name, ".gguf");
    Tell(options, 0, absl::StrCat("writing ", source, " as ", name));
    WITHY_RETURN_IF_ERROR(CheckStop(options));
    WITHY_RETURN_IF_ERROR(Requantize(source, type, path));
    all.models.push_back(path);
  }
  if (all.models.size() < 2) {
    return absl::InvalidArgumentError(
        "study quantization compares files of one model: give two or more with --model, or "
        "--types f16,q8_0,q4_0 to make them of one file");
  }
  return all;
}

// Whether both are of one model but for the types of their weights.
absl::Status CheckSameModel(const ProfiledModel& a, const ProfiledModel& b) {
  const engine::ModelInfo& x = a.info();
  const engine::ModelInfo& y = b.info();
  const auto refuse = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(a.path(), " and ", b.path(), " are not of one model: ", ToAbsl(what),
                     "; give files that differ in the types of their weights only"));
  };
  if (x.vocab_size != y.vocab_size) {
    return refuse(
        absl::StrCat("their vocabularies have ", x.vocab_size, " and ", y.vocab_size, " tokens"));
  }
  for (int32_t id = 0; id < x.vocab_size; ++id) {
    if (a.tokenizer().TokenText(id) != b.tokenizer().TokenText(id)) {
      return refuse(absl::StrCat("token ", id, " of their vocabularies differs"));
    }
  }
  if (x.architecture != y.architecture || x.layers != y.layers || x.d_model != y.d_model ||
      x.d_ff != y.d_ff || x.heads != y.heads || x.kv_heads != y.kv_heads) {
    return refuse(absl::StrCat(x.architecture, " of ", x.layers, " layers of ", x.d_model,
                               " dimensions, and ", y.architecture, " of ", y.layers, " of ",
                               y.d_model));
  }
  return absl::OkStatus();
}

// Latencies by round.
struct SpeedSamples {
  std::vector<double> prefill, decode;
};

// Speed-ups over the reference by round, and HQ from them and the quality.
struct QuantScore {
  double quality = 1;        // ratio
  double quality_error = 0;  // its standard error
  Spread prefill, decode, hq;
};

QuantScore Weigh(const TextScore& score, const TextScore& reference, const SpeedSamples& speed,
                 const SpeedSamples& reference_speed) {
  QuantScore result;
  std::vector<double> differences;
  for (size_t i = 0; i < score.losses.size(); ++i) {
    differences.push_back(score.losses[i] - reference.losses[i]);
  }
  double mean = 0, square = 0;
  const auto count = static_cast<double>(std::max<size_t>(differences.size(), 1));
  for (const double difference : differences) mean += difference / count;
  for (const double difference : differences) {
    square += (difference - mean) * (difference - mean) / count;
  }
  // A is the inverse of perplexity: the geometric mean of the probabilities of the text's tokens.
  result.quality = reference.perplexity / score.perplexity;
  result.quality_error = result.quality * std::sqrt(square / count);
  std::vector<double> prefill, decode, hq;
  for (size_t i = 0; i < speed.prefill.size(); ++i) {
    prefill.push_back(reference_speed.prefill[i] / std::max(speed.prefill[i], 1e-9));
    decode.push_back(reference_speed.decode[i] / std::max(speed.decode[i], 1e-9));
    hq.push_back(HarmonicQuantization(result.quality, prefill.back(), decode.back()));
  }
  result.prefill = SpreadOf(prefill);
  result.decode = SpreadOf(decode);
  result.hq = SpreadOf(hq);
  return result;
}

absl::Status SampleSpeeds(const StudyOptions& options, const std::vector<Subject>& subjects,
                          std::vector<SpeedSamples>* speeds) {
  for (int32_t round = 0; round <= options.rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      Tell(options, 0.5 + 0.5 * round / (options.rounds + 1), subjects[i].name);
      WITHY_RETURN_IF_ERROR(CheckStop(options));
      const std::vector<int32_t> prompt =
          subjects[i].model->Tokens(StudyText(options), options.prompt_tokens);
      WITHY_ASSIGN_OR_RETURN(const AnswerTimes answer,
                             RunAnswer(subjects[i], prompt, options.answer_tokens, {}));
      if (round == 0) continue;
      (*speeds)[i].prefill.push_back(answer.prefill_us_per_token);
      (*speeds)[i].decode.push_back(answer.decode_us_per_token);
    }
  }
  return absl::OkStatus();
}

StudyTable HqTable() {
  return {"files",
          "files of one model; QUALITY is the reference's perplexity over the file's, HQ the "
          "harmonic mean of it and the two speed-ups (eq. 3)",
          {{"FILE", "file"},
           {"TYPE", "type"},
           {"WEIGHTS", "weight_bytes"},
           {"PERPLEXITY", "perplexity"},
           {"RIGHT", "next_token_right_share"},
           {"AGREES", "next_token_agreed_share"},
           {"DIVERGENCE", "divergence_nats"},
           {"PREFILL", "prefill_us_per_token"},
           {"DECODE", "decode_us_per_token"},
           {"QUALITY", "quality_ratio"},
           {"+-", "quality_ratio_error"},
           {"PREFILL X", "prefill_speedup"},
           {"DECODE X", "decode_speedup"},
           {"HQ", "hq"}},
          {}};
}

}  // namespace

absl::StatusOr<StudyReport> StudyQuantization(const StudyOptions& given) {
  WITHY_ASSIGN_OR_RETURN(const StudyOptions options, WithTypes(given));
  WITHY_ASSIGN_OR_RETURN(Subjects opened, OpenSubjects(options));
  std::vector<Subject>& subjects = opened.all;
  for (const Subject& subject : subjects) {
    WITHY_RETURN_IF_ERROR(CheckSameModel(*subjects.front().model, *subject.model));
    WITHY_RETURN_IF_ERROR(subject.model->Reserve(options.prompt_tokens + options.answer_tokens));
  }
  // The reference is the file with the most bytes: quantised least.
  std::stable_sort(subjects.begin(), subjects.end(), [](const Subject& a, const Subject& b) {
    return a.model->info().weight_bytes > b.model->info().weight_bytes;
  });
  std::vector<ProfiledModel*> models;
  for (const Subject& subject : subjects) models.push_back(subject.model);
  // Of a short text all tokens, and none twice.
  std::vector<int32_t> tokens = models.front()->tokenizer().Encode(StudyText(options));
  tokens.resize(std::min<size_t>(tokens.size(), static_cast<size_t>(options.text_tokens)));
  WITHY_ASSIGN_OR_RETURN(const std::vector<TextScore> scores,
                         ScoreText(models, tokens, options.stop,
                                   [&](double done) { Tell(options, 0.5 * done, "quality"); }));
  std::vector<SpeedSamples> speeds(subjects.size());
  WITHY_RETURN_IF_ERROR(SampleSpeeds(options, subjects, &speeds));

  StudyReport report;
  report.tables = {HqTable()};
  LineChart chart{"Quality against speed", "decode, ms a token", "perplexity", {}};
  chart.y_from_zero = false;
  size_t best = 0;
  double best_hq = 0;
  for (size_t i = 0; i < subjects.size(); ++i) {
    const QuantScore result = Weigh(scores[i], scores[0], speeds[i], speeds[0]);
    const engine::ModelInfo& info = subjects[i].model->info();
    report.tables[0].rows.push_back(
        {NameCell(std::filesystem::path(subjects[i].model->path()).filename().string()),
         NameCell(info.quantisation),
         {Bytes(static_cast<uint64_t>(info.weight_bytes)), info.weight_bytes},
         NumberCell(scores[i].perplexity),
         ShareCell(scores[i].right_share),
         ShareCell(scores[i].agreed_share),
         NumberCell(scores[i].divergence),
         TimeCell(SpreadOf(speeds[i].prefill)),
         TimeCell(SpreadOf(speeds[i].decode)),
         NumberCell(result.quality),
         NumberCell(result.quality_error),
         NumberCell(result.prefill),
         NumberCell(result.decode),
         NumberCell(result.hq)});
    chart.lines.push_back(
        {absl::StrCat(info.quantisation, absl::StrFormat(", HQ %.3g", result.hq.median)),
         {{SpreadOf(speeds[i].decode).median / 1e3, scores[i].perplexity}}});
    if (result.hq.median > best_hq) {
      best = i;
      best_hq = result.hq.median;
    }
  }
  report.findings.push_back(
      absl::StrFormat("%s has the highest HQ, %.3f; %s, which is quantised least, is the reference",
                      subjects[best].model->info().quantisation, best_hq,
                      std::filesystem::path(models.front()->path()).filename().string()));
  report.findings.push_back(
      absl::StrFormat("judged by %d tokens of %s", scores[0].losses.size(), options.text_name));
  report.paper = {
      "4 bits against 16: HQ of Pythia is 0.98 on ARC-Easy, 1.24 on ARC-Challenge and 1.26 on "
      "GSM8K in the mean, and grows with the model up to 1.4B; SmolLM2 does best at 135M to 360M "
      "(section 5.1, Figure 9). The paper's quality is a task's accuracy, ours the likelihood of a "
      "text"};
  report.plots = {{"quantization.svg", chart.Svg()}};
  return report;
}

}  // namespace withy::cli
