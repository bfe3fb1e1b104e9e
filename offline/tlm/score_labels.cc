#include "offline/tlm/score_labels.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "engine/encoder/windows.h"

namespace withy::tlm {
namespace {

using engine::ByteSpan;
using nlohmann::json;

// In nats of the whole answer. Dropping an irrelevant word changes its loss slightly in either
// direction; ranking such changes would teach the head noise.
constexpr double kNoticeable = 0.02;

// Returns false unless `word` is [begin, end] with both within the text.
bool ParseSpan(const json& word, size_t text_bytes, uint32_t from, ByteSpan* span) {
  if (!word.is_array() || word.size() != 2 || !word[0].is_number_unsigned() ||
      !word[1].is_number_unsigned()) {
    return false;
  }
  const auto begin = word[0].get<uint64_t>();
  const auto end = word[1].get<uint64_t>();
  if (begin < from || end < begin || end > text_bytes) return false;
  *span = {static_cast<uint32_t>(begin), static_cast<uint32_t>(end)};
  return true;
}

}  // namespace

std::string ToLine(const ScoreExample& example) {
  json words = json::array();
  json keep = json::array();
  for (const ByteSpan& word : example.words) words.push_back({word.begin, word.end});
  for (const float k : example.keep) {
    // Rounded, because a probability by rank has no more significant digits.
    keep.push_back(k < 0 ? json() : json(std::round(double{k} * 1e4) / 1e4));
  }
  return json({{"text", example.text}, {"words", words}, {"keep", keep}})
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<ScoreExample> ParseScoreExample(std::string_view line, std::string_view where) {
  const auto bad = [where](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(where), ": ", ToAbsl(what),
                     R"(; a line is {"text": "a b", "words": [[0,1],[2,3]], "keep": [1, 0.2]})"));
  };
  const json parsed = json::parse(line, nullptr, false);
  if (!parsed.is_object()) return bad("is not a JSON object");
  const auto text = parsed.find("text");
  const auto keep = parsed.find("keep");
  if (text == parsed.end() || !text->is_string()) return bad("has no string \"text\"");
  if (keep == parsed.end() || !keep->is_array()) return bad("has no list \"keep\"");
  ScoreExample example{.text = text->get<std::string>(), .words = {}, .keep = {}};
  if (const auto words = parsed.find("words"); words == parsed.end()) {
    example.words = engine::SplitWords(example.text);
  } else {
    for (const json& word : *words) {
      const uint32_t from = example.words.empty() ? 0 : example.words.back().end;
      if (!ParseSpan(word, example.text.size(), from, &example.words.emplace_back())) {
        return bad("\"words\" must be ascending pairs of bytes within the text");
      }
    }
  }
  for (const json& k : *keep) {
    if (k.is_null()) {
      example.keep.push_back(-1);
    } else if (k.is_number() && k.get<double>() >= 0 && k.get<double>() <= 1) {
      example.keep.push_back(k.get<float>());
    } else {
      return bad("\"keep\" must hold numbers from 0 to 1, or null");
    }
  }
  if (example.keep.size() != example.words.size()) {
    return bad(absl::StrCat("\"keep\" has ", example.keep.size(), " entries for ",
                            example.words.size(), " words"));
  }
  return example;
}

absl::StatusOr<std::vector<ScoreExample>> ReadScoreExamples(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<ScoreExample> examples;
  for (std::string line; std::getline(in, line);) {
    WITHY_ASSIGN_OR_RETURN(
        examples.emplace_back(),
        ParseScoreExample(line, absl::StrCat(path, ", line ", examples.size() + 1)));
  }
  if (examples.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no lines"));
  return examples;
}

std::vector<float> RetainProbabilities(std::span<const double> worth,
                                       const std::vector<bool>& asked) {
  std::vector<size_t> order;
  for (size_t i = 0; i < worth.size(); ++i) {
    if (asked[i]) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return worth[a] < worth[b]; });
  std::vector<float> keep(worth.size(), -1);
  const double last = std::max<double>(1, static_cast<double>(order.size()) - 1);
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && worth[order[end]] == worth[order[begin]]) ++end;
    const double mean = static_cast<double>(begin + end - 1) / 2;
    for (; begin < end; ++begin) keep[order[begin]] = static_cast<float>(mean / last);
  }
  if (order.size() == 1) keep[order[0]] = 1;
  return keep;
}

absl::StatusOr<ScoreExample> LabelByLoss(const corpus::Prompt& prompt, int32_t max_variants,
                                         Target* target) {
  const size_t n = prompt.words.size();
  std::vector<bool> asked(n);
  for (size_t i = 0; i < n; ++i) asked[i] = !prompt.words[i].fixed;
  const auto loose = static_cast<size_t>(std::count(asked.begin(), asked.end(), true));
  const size_t variants = static_cast<size_t>(std::max(1, max_variants));
  const size_t group = std::max<size_t>(1, (loose + variants - 1) / variants);
  WITHY_ASSIGN_OR_RETURN(const Judgement whole, target->JudgeFirst(prompt.record));
  std::vector<double> worth(n, 0);
  for (size_t begin = 0; begin < n;) {
    if (!asked[begin]) {
      ++begin;
      continue;
    }
    std::vector<bool> stays(n, true);
    size_t end = begin;
    while (end < n && end - begin < group && asked[end] &&
           prompt.words[end].message == prompt.words[begin].message) {
      stays[end++] = false;
    }
    WITHY_ASSIGN_OR_RETURN(const Judgement without,
                           target->JudgeVariant(corpus::KeepWords(prompt, stays)));
    double increase = (without.loss - whole.loss) / static_cast<double>(end - begin);
    if (increase < kNoticeable) increase = 0;
    for (; begin < end; ++begin) worth[begin] = increase;
  }
  return ScoreExample{
      .text = prompt.text, .words = prompt.text_words, .keep = RetainProbabilities(worth, asked)};
}

}  // namespace withy::tlm
