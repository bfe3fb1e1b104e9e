#include "engine/encoder/prune.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace withy::engine {
namespace {

struct WordRef {
  size_t message = 0;
  size_t word = 0;
};

// `fixed` is ascending; a long prompt may have as many fixed parts as words.
bool Touches(const ByteSpan& word, const std::vector<ByteSpan>& fixed) {
  const auto span = std::partition_point(
      fixed.begin(), fixed.end(), [&](const ByteSpan& other) { return other.end <= word.begin; });
  return span != fixed.end() && span->begin < word.end;
}

// The white space between words `from` and `to` that is kept if all words between them are dropped:
// the one with most line breaks, then any, then the last.
ByteSpan Separator(const PrunableText& message, size_t from, size_t to) {
  ByteSpan best;
  std::tuple<int64_t, bool> best_rank(-1, false);
  for (size_t i = from; i < to; ++i) {
    const ByteSpan gap{message.words[i].span.end, message.words[i + 1].span.begin};
    const std::string_view space = message.text.substr(gap.begin, gap.end - gap.begin);
    const std::tuple rank(std::count(space.begin(), space.end(), '\n'), !space.empty());
    if (rank >= best_rank) {
      best = gap;
      best_rank = rank;
    }
  }
  return best;
}

void Append(const ByteSpan& span, std::vector<ByteSpan>* spans) {
  if (span.begin >= span.end) return;
  if (!spans->empty() && spans->back().end == span.begin) {
    spans->back().end = span.end;
  } else {
    spans->push_back(span);
  }
}

// `spans` and `fixed` as one list.
std::vector<ByteSpan> Union(std::vector<ByteSpan> spans, const std::vector<ByteSpan>& fixed) {
  spans.insert(spans.end(), fixed.begin(), fixed.end());
  std::sort(spans.begin(), spans.end(),
            [](const ByteSpan& a, const ByteSpan& b) { return a.begin < b.begin; });
  std::vector<ByteSpan> merged;
  for (const ByteSpan& span : spans) {
    if (merged.empty() || span.begin > merged.back().end) {
      merged.push_back(span);
    } else {
      merged.back().end = std::max(merged.back().end, span.end);
    }
  }
  return merged;
}

// Marks words that are kept in any case: those in fixed parts, and the best word of a message
// without any.
size_t MarkFixed(const PrunableText& message, std::vector<bool>* stays) {
  size_t marked = 0;
  size_t best = 0;
  for (size_t i = 0; i < message.words.size(); ++i) {
    if (message.words[i].keep > message.words[best].keep) best = i;
    if (!Touches(message.words[i].span, message.fixed)) continue;
    (*stays)[i] = true;
    ++marked;
  }
  if (marked > 0 || message.words.empty()) return marked;
  (*stays)[best] = true;
  return 1;
}

// Messages [begin, end), which may be dropped together.
struct Exchange {
  size_t begin = 0;
  size_t end = 0;
  size_t words = 0;
  float score = 0;  // mean over the words
};

// The exchange of these messages, unless a part of it must be kept.
std::optional<Exchange> LooseExchange(const std::vector<PrunableText>& messages, size_t begin,
                                      size_t end) {
  Exchange exchange{.begin = begin, .end = end};
  for (size_t m = begin; m < end; ++m) {
    if (!messages[m].fixed.empty() || messages[m].words.empty()) return std::nullopt;
    for (const ScoredWord& word : messages[m].words) exchange.score += word.keep;
    exchange.words += messages[m].words.size();
  }
  exchange.score /= static_cast<float>(exchange.words);
  return exchange;
}

std::vector<Exchange> LooseExchanges(const std::vector<PrunableText>& messages) {
  std::vector<Exchange> exchanges;
  size_t begin = 0;
  for (size_t m = 0; m < messages.size(); ++m) {
    if (messages[m].role == "system") begin = m + 1;
    const bool answered = messages[m].role == "assistant" &&
                          (m + 1 == messages.size() ||
                           (messages[m + 1].role != "assistant" && messages[m + 1].role != "tool"));
    if (!answered) continue;
    if (const auto exchange = LooseExchange(messages, begin, m + 1)) exchanges.push_back(*exchange);
    begin = m + 1;
  }
  return exchanges;
}

void LeaveOut(const Exchange& exchange, std::vector<std::vector<bool>>* stays) {
  for (size_t m = exchange.begin; m < exchange.end; ++m)
    (*stays)[m].assign((*stays)[m].size(), false);
}

// Keeps the `wanted` best words of these messages.
void Shorten(const std::vector<PrunableText>& messages, const std::vector<size_t>& which,
             size_t wanted, std::vector<std::vector<bool>>* stays) {
  std::vector<WordRef> ranked;
  size_t staying = 0;
  for (const size_t m : which) {
    std::vector<bool>& marks = (*stays)[m];
    marks.assign(marks.size(), false);
    staying += MarkFixed(messages[m], &marks);
    for (size_t i = 0; i < marks.size(); ++i) {
      if (!marks[i]) ranked.push_back({m, i});
    }
  }
  const auto score = [&](const WordRef& ref) { return messages[ref.message].words[ref.word].keep; };
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](const WordRef& a, const WordRef& b) { return score(a) > score(b); });
  for (const WordRef& ref : ranked) {
    if (staying >= wanted) break;
    (*stays)[ref.message][ref.word] = true;
    ++staying;
  }
}

std::vector<size_t> Range(size_t begin, size_t end) {
  std::vector<size_t> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

}  // namespace

std::vector<std::vector<bool>> ChooseWords(const std::vector<PrunableText>& messages,
                                           uint32_t percent) {
  std::vector<std::vector<bool>> stays;
  size_t words = 0;
  for (const PrunableText& message : messages) {
    stays.emplace_back(message.words.size(), true);
    words += message.words.size();
  }
  const size_t wanted = (words * percent + 99) / 100;
  std::vector<Exchange> exchanges = LooseExchanges(messages);
  std::vector<size_t> others = Range(0, messages.size());
  size_t needed = words;  // words of messages outside droppable exchanges
  for (const Exchange& exchange : exchanges) {
    needed -= exchange.words;
    std::erase_if(others, [&](size_t m) { return exchange.begin <= m && m < exchange.end; });
  }
  if (wanted < needed) Shorten(messages, others, wanted, &stays);
  size_t room = wanted - std::min(wanted, needed);
  std::reverse(exchanges.begin(), exchanges.end());
  std::stable_sort(exchanges.begin(), exchanges.end(),
                   [](const Exchange& a, const Exchange& b) { return a.score > b.score; });
  for (const Exchange& exchange : exchanges) {
    if (2 * room < exchange.words) {
      LeaveOut(exchange, &stays);
      continue;
    }
    if (room < exchange.words) {
      Shorten(messages, Range(exchange.begin, exchange.end), room, &stays);
    }
    room -= std::min(room, exchange.words);
  }
  return stays;
}

uint32_t ShareWithoutExamples(const std::vector<PrunableText>& messages) {
  size_t words = 0;
  for (const PrunableText& message : messages) words += message.words.size();
  size_t others = words;
  for (const Exchange& exchange : LooseExchanges(messages)) others -= exchange.words;
  return others == 0 ? 100 : static_cast<uint32_t>((100 * others + words - 1) / words);
}

std::vector<bool> LeftOut(const std::vector<PrunableText>& messages,
                          const std::vector<std::vector<bool>>& stays) {
  std::vector<bool> left_out(messages.size());
  for (const Exchange& exchange : LooseExchanges(messages)) {
    const std::vector<size_t> range = Range(exchange.begin, exchange.end);
    const bool gone = std::none_of(range.begin(), range.end(), [&](size_t m) {
      return std::find(stays[m].begin(), stays[m].end(), true) != stays[m].end();
    });
    for (const size_t m : range) left_out[m] = gone;
  }
  return left_out;
}

// White space before the first and after the last word belongs to that word.
std::vector<ByteSpan> KeptSpans(const PrunableText& message, const std::vector<bool>& stays) {
  if (std::find(stays.begin(), stays.end(), false) == stays.end()) return {};
  std::vector<ByteSpan> spans;
  const size_t none = message.words.size();
  size_t last = none;
  for (size_t i = 0; i < message.words.size(); ++i) {
    if (!stays[i]) continue;
    if (last != none) {
      Append(Separator(message, last, i), &spans);
    } else if (i == 0) {
      Append({0, message.words[i].span.begin}, &spans);
    }
    Append(message.words[i].span, &spans);
    last = i;
  }
  if (last != none && last + 1 == message.words.size()) {
    Append({message.words[last].span.end, static_cast<uint32_t>(message.text.size())}, &spans);
  }
  return Union(std::move(spans), message.fixed);
}

PrunedPrompt Prune(const std::vector<PrunableText>& messages, uint32_t percent) {
  const std::vector<std::vector<bool>> stays = ChooseWords(messages, percent);
  const std::vector<bool> left_out = LeftOut(messages, stays);
  PrunedPrompt out;
  for (size_t m = 0; m < messages.size(); ++m) {
    out.words += static_cast<uint32_t>(stays[m].size());
    out.pruned_words += static_cast<uint32_t>(std::count(stays[m].begin(), stays[m].end(), false));
    out.text_bytes += messages[m].text.size();
    if (left_out[m]) {
      out.kept.push_back({ByteSpan{}});
      continue;
    }
    const std::vector<ByteSpan>& kept = out.kept.emplace_back(KeptSpans(messages[m], stays[m]));
    if (kept.empty()) out.kept_bytes += messages[m].text.size();
    for (const ByteSpan& span : kept) out.kept_bytes += span.end - span.begin;
  }
  return out;
}

std::string WhyNotPrunable(const std::vector<PrunableText>& messages) {
  bool words = false, readable = false, loose = false;
  for (const PrunableText& message : messages) {
    for (const ScoredWord& word : message.words) {
      words = true;
      readable = readable || word.readable;
      loose = loose || !Touches(word.span, message.fixed);
    }
  }
  if (!words) return "it has no words";
  if (!readable) return "the TLM can read none of its words";
  if (!loose) return "the caller fixed all of it";
  return "";
}

}  // namespace withy::engine
