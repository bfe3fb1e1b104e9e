#include "bench/quality/choices.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::bench {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostChoiceBytes = size_t{256} << 20;

// The member if it is a string.
std::optional<std::string> Text(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return std::nullopt;
  return it->get<std::string>();
}

std::vector<std::string> Texts(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return texts;
  for (const Json& text : *it) {
    if (!text.is_string()) return {};
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

// An index that the file has as a number or as its text; `first` is that of the first choice.
std::optional<size_t> Index(const Json& object, const char* key, int64_t first = 0) {
  const auto it = object.find(key);
  if (it == object.end()) return std::nullopt;
  int64_t value = 0;
  if (it->is_number_integer()) {
    value = it->get<int64_t>();
  } else if (!it->is_string() || !absl::SimpleAtoi(it->get<std::string>(), &value)) {
    return std::nullopt;
  }
  if (value < first) return std::nullopt;
  return static_cast<size_t>(value - first);
}

// Choices behind one context, each after a space. `right` of no index makes no question.
std::optional<ChoiceQuestion> Behind(const std::string& context,
                                     const std::vector<std::string>& texts,
                                     std::optional<size_t> right) {
  if (!right.has_value() || *right >= texts.size() || texts.size() < 2) return std::nullopt;
  ChoiceQuestion question{.right = *right};
  for (const std::string& text : texts) {
    question.choices.push_back(
        {.context = std::string(absl::StripTrailingAsciiWhitespace(context)),
         .text = absl::StrCat(" ", absl::StripLeadingAsciiWhitespace(text))});
  }
  return question;
}

std::optional<ChoiceQuestion> ReadArc(const Json& line) {
  const Json& question = line["question"];
  const std::optional<std::string> stem = Text(question, "stem");
  const auto choices = question.find("choices");
  if (!stem.has_value() || choices == question.end() || !choices->is_array()) return std::nullopt;
  const std::optional<std::string> key = Text(line, "answerKey");
  std::vector<std::string> texts;
  std::optional<size_t> right;
  for (const Json& choice : *choices) {
    if (!choice.is_object()) return std::nullopt;
    if (key.has_value() && Text(choice, "label") == key) right = texts.size();
    texts.push_back(Text(choice, "text").value_or(""));
  }
  return Behind(absl::StrCat("Question: ", *stem, "\nAnswer:"), texts, right);
}

// HellaSwag's texts of WikiHow have marks of their titles and steps.
std::string WithoutMarks(const std::string& text) {
  std::string out = absl::StrReplaceAll(absl::StripAsciiWhitespace(text), {{" [title]", ". "}});
  for (size_t begin = out.find('['); begin != std::string::npos; begin = out.find('[', begin)) {
    const size_t end = out.find(']', begin);
    if (end == std::string::npos) break;
    out.erase(begin, end - begin + 1);
  }
  return absl::StrReplaceAll(out, {{"  ", " "}});
}

std::optional<ChoiceQuestion> ReadHellaSwag(const Json& line) {
  std::string context = Text(line, "ctx").value_or("");
  if (const auto first = Text(line, "ctx_a"); first.has_value()) {
    std::string second = Text(line, "ctx_b").value_or("");
    if (!second.empty()) second[0] = absl::ascii_toupper(static_cast<unsigned char>(second[0]));
    context = absl::StrCat(*first, " ", second);
  }
  if (const auto label = Text(line, "activity_label"); label.has_value()) {
    context = absl::StrCat(*label, ": ", context);
  }
  std::vector<std::string> endings = Texts(line, "endings");
  for (std::string& ending : endings) ending = WithoutMarks(ending);
  return Behind(WithoutMarks(context), endings, Index(line, "label"));
}

std::optional<ChoiceQuestion> ReadPiqa(const Json& line, const std::string& label) {
  std::optional<size_t> right = Index(line, "label");
  if (int64_t value = 0; !right.has_value() && absl::SimpleAtoi(label, &value) && value >= 0) {
    right = static_cast<size_t>(value);
  }
  const auto first = Text(line, "sol1"), second = Text(line, "sol2");
  if (!first.has_value() || !second.has_value()) return std::nullopt;
  return Behind(absl::StrCat("Question: ", Text(line, "goal").value_or(""), "\nAnswer:"),
                {*first, *second}, right);
}

std::optional<ChoiceQuestion> ReadBoolQ(const Json& line) {
  const auto asked = Text(line, "question");
  const auto answer = line.find("answer");
  if (!asked.has_value() || answer == line.end() || !answer->is_boolean()) return std::nullopt;
  return Behind(absl::StrCat(Text(line, "passage").value_or(""),
                             "\nQuestion: ", absl::StripSuffix(*asked, "?"), "?\nAnswer:"),
                {"no", "yes"}, answer->get<bool>() ? 1 : 0);
}

// What differs is the context; the text that is scored is the same.
std::optional<ChoiceQuestion> AfterEach(const std::vector<std::string>& contexts,
                                        const std::string& text, std::optional<size_t> right) {
  if (!right.has_value() || *right >= contexts.size() || contexts.size() < 2) return std::nullopt;
  ChoiceQuestion question{.right = *right};
  for (const std::string& context : contexts) {
    question.choices.push_back(
        {.context = std::string(absl::StripTrailingAsciiWhitespace(context)),
         .text = absl::StrCat(" ", absl::StripLeadingAsciiWhitespace(text))});
  }
  return question;
}

std::optional<ChoiceQuestion> ReadWinoGrande(const Json& line) {
  const std::string sentence = Text(line, "sentence").value_or("");
  const size_t gap = sentence.find('_');
  const auto first = Text(line, "option1"), second = Text(line, "option2");
  if (gap == std::string::npos || !first.has_value() || !second.has_value()) return std::nullopt;
  const std::string before = sentence.substr(0, gap);
  return AfterEach({absl::StrCat(before, *first), absl::StrCat(before, *second)},
                   sentence.substr(gap + 1), Index(line, "answer", 1));
}

std::optional<ChoiceQuestion> ReadLine(const Json& line, const std::string& label) {
  if (line.contains("question") && line["question"].is_object()) return ReadArc(line);
  if (line.contains("endings")) return ReadHellaSwag(line);
  if (line.contains("sol1")) return ReadPiqa(line, label);
  if (line.contains("passage")) return ReadBoolQ(line);
  if (line.contains("sentence")) return ReadWinoGrande(line);
  if (line.contains("context_options")) {
    return AfterEach(Texts(line, "context_options"), Text(line, "continuation").value_or(""),
                     Index(line, "gold"));
  }
  if (!line.contains("query")) return std::nullopt;
  return Behind(Text(line, "query").value_or(""), Texts(line, "choices"), Index(line, "gold"));
}

// The ids of a choice, and where its text begins.
engine::ScoredText Scored(const Choice& choice, const engine::Tokenizer& tokenizer) {
  const engine::EncodeOptions options = {.add_bos = tokenizer.wants_bos()};
  const std::vector<int32_t> context = tokenizer.Encode(choice.context, options);
  engine::ScoredText scored = {.ids = tokenizer.Encode(choice.context + choice.text, options)};
  // A token may span the seam: it is scored with the text.
  const size_t shared =
      std::mismatch(context.begin(), context.end(), scored.ids.begin(), scored.ids.end()).first -
      context.begin();
  const size_t last = scored.ids.empty() ? 0 : scored.ids.size() - 1;
  scored.first_scored =
      static_cast<int32_t>(std::clamp<size_t>(shared, 1, std::max<size_t>(last, 1)));
  return scored;
}

size_t Largest(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace

absl::StatusOr<std::vector<ChoiceQuestion>> ParseChoices(std::string_view lines,
                                                         std::string_view labels,
                                                         std::string_view name) {
  const std::vector<std::string> marks =
      absl::StrSplit(ToAbsl(labels), absl::ByAnyChar("\r\n"), absl::SkipWhitespace());
  std::vector<ChoiceQuestion> questions;
  size_t number = 0;
  for (const absl::string_view text : absl::StrSplit(ToAbsl(lines), '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(text).empty()) continue;
    const Json line = Json::parse(text.begin(), text.end(), nullptr, false);
    const std::string label = questions.size() < marks.size() ? marks[questions.size()] : "";
    std::optional<ChoiceQuestion> question =
        line.is_object() ? ReadLine(line, label) : std::nullopt;
    if (!question.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          ToAbsl(name), ", line ", number,
          ": no question with two choices and the right one in the form of ARC, HellaSwag, PIQA, "
          "BoolQ, WinoGrande or {\"query\", \"choices\", \"gold\"}: give a split whose answers are "
          "published"));
    }
    questions.push_back(*std::move(question));
  }
  if (questions.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), " has no question"));
  }
  if (!marks.empty() && marks.size() != questions.size()) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), " has ", questions.size(),
                                                   " questions and its labels' file ", marks.size(),
                                                   " labels: they belong to different splits"));
  }
  return questions;
}

absl::StatusOr<std::vector<ChoiceQuestion>> ReadChoices(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const std::string lines, ReadRegularFile(path, kMostChoiceBytes));
  absl::StatusOr<std::string> labels = ReadRegularFile(
      absl::StrCat(absl::StripSuffix(path, ".jsonl"), "-labels.lst"), kMostChoiceBytes);
  if (!labels.ok() && !absl::IsNotFound(labels.status())) return labels.status();
  return ParseChoices(lines, labels.ok() ? *labels : "", path);
}

std::vector<ChoiceQuestion> SpreadChoices(std::vector<ChoiceQuestion> questions, size_t count) {
  if (questions.size() <= count) return questions;
  std::vector<ChoiceQuestion> spread;
  for (size_t i = 0; i < count; ++i) {
    spread.push_back(std::move(questions[i * questions.size() / count]));
  }
  return spread;
}

absl::StatusOr<std::vector<ChosenShares>> AskChoices(
    std::span<const ChoiceQuestion> questions, const engine::Tokenizer& tokenizer,
    const std::vector<engine::ScoreContestant>& contestants, void (*progress)(size_t asked)) {
  std::vector<ChosenShares> shares(contestants.size());
  const double one = 1.0 / static_cast<double>(std::max<size_t>(1, questions.size()));
  for (size_t asked = 0; asked < questions.size(); ++asked) {
    const ChoiceQuestion& question = questions[asked];
    std::vector<std::vector<double>> likelihoods(contestants.size());
    std::vector<std::vector<double>> by_byte(contestants.size());
    for (const Choice& choice : question.choices) {
      WITHY_ASSIGN_OR_RETURN(const auto scorer, engine::TextScorer::Create(
                                                    contestants, Scored(choice, tokenizer), {}));
      while (!scorer->finished()) WITHY_RETURN_IF_ERROR(scorer->Run(nullptr).status());
      const std::vector<engine::TextScore> scores = scorer->Scores();
      const double bytes = static_cast<double>(std::max<size_t>(2, choice.text.size()) - 1);
      for (size_t c = 0; c < scores.size(); ++c) {
        double loss = 0;
        for (const double token : scores[c].losses) loss += token;
        likelihoods[c].push_back(-loss);
        by_byte[c].push_back(-loss / bytes);
      }
    }
    for (size_t c = 0; c < contestants.size(); ++c) {
      const size_t chosen = Largest(likelihoods[c]);
      if (chosen == question.right) shares[c].right += one;
      if (Largest(by_byte[c]) == question.right) shares[c].right_norm += one;
      if (chosen == Largest(likelihoods.front())) shares[c].agreed += one;
    }
    progress(asked + 1);
  }
  return shares;
}

}  // namespace withy::bench
