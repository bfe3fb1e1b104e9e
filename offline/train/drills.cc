#include "offline/train/drills.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace withy::train {
namespace {

using Tokens = std::vector<int32_t>;

// Marks with the same meaning in all recall samples; any fixed tokens would do.
enum Mark : int32_t { kLink = 10, kFactEnd = 11, kAsk = 12, kAnswer = 13, kFirstWord = 16 };

int32_t AnyToken(corpus::Rng& rng, int32_t vocab_size) {
  return kFirstWord +
         static_cast<int32_t>(rng.Below(static_cast<uint32_t>(vocab_size - kFirstWord)));
}

Tokens AnyTokens(corpus::Rng& rng, int32_t vocab_size, int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(AnyToken(rng, vocab_size));
  return tokens;
}

// `count` different keys.
std::vector<Tokens> DrawKeys(corpus::Rng& rng, int32_t vocab_size, const RecallShape& shape) {
  const Tokens shared = AnyTokens(rng, vocab_size, 3);
  std::vector<Tokens> keys;
  while (static_cast<int>(keys.size()) < shape.keys) {
    Tokens key = AnyTokens(rng, vocab_size, shape.key_tokens);
    if (shape.keys_look_alike) {
      // All but one token come from a small set, and the remaining one may, too.
      const size_t own = rng.Below(static_cast<uint32_t>(key.size()));
      for (size_t i = 0; i < key.size(); ++i) {
        if (i != own || rng.Chance(20)) key[i] = shared[rng.Below(3)];
      }
    }
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
  }
  return keys;
}

void Append(Sample& sample, const Tokens& tokens, bool answer = false) {
  sample.tokens.insert(sample.tokens.end(), tokens.begin(), tokens.end());
  sample.answer.resize(sample.tokens.size(), answer);
}

struct Fact {
  size_t key = 0;
  size_t relation = 0;
  Tokens value;
};

}  // namespace

Sample EchoSample(corpus::Rng& rng, int32_t vocab_size, int64_t phrase_tokens) {
  Sample sample;
  for (int64_t i = 0; i < phrase_tokens; ++i) {
    sample.tokens.push_back(static_cast<int32_t>(rng.Below(static_cast<uint32_t>(vocab_size))));
  }
  sample.answer.assign(sample.tokens.size(), false);
  sample.last_answer = sample.tokens.size();
  sample.tokens.insert(sample.tokens.end(), sample.tokens.begin(),
                       sample.tokens.begin() + phrase_tokens);
  // The first token of the second copy cannot be predicted.
  sample.answer.push_back(false);
  sample.answer.resize(sample.tokens.size(), true);
  return sample;
}

RecallShape DrawRecallShape(corpus::Rng& rng, double hardness) {
  const double h = hardness;
  const auto up_to = [&](int least, int most) {
    return rng.Between(least, least + static_cast<int>(std::lround(h * (most - least))));
  };
  const auto chance = [&](double share) { return rng.Chance(static_cast<int>(100 * share)); };
  RecallShape shape;
  shape.keys = up_to(2, 7);
  shape.relations = shape.keys <= 4 && h > 0.5 ? up_to(1, 3) : 1;
  shape.key_tokens = up_to(1, 3);
  shape.value_tokens = rng.Between(1, 3);
  shape.mark = chance(std::min(1.0, 3 * h));
  shape.link_tokens = up_to(0, 2);
  shape.ask_tokens = up_to(0, 3);
  shape.value_first = h > 0.3 && chance(0.4 * h);
  shape.keys_look_alike = shape.key_tokens > 1 && chance(h / 2);
  shape.questions = std::min(shape.keys * shape.relations, rng.Between(3, 6));
  return shape;
}

Sample RecallSample(corpus::Rng& rng, int32_t vocab_size, const RecallShape& shape) {
  const std::vector<Tokens> keys = DrawKeys(rng, vocab_size, shape);
  std::vector<Tokens> links;  // tokens of a relation, the first of which a question repeats
  for (int r = 0; r < shape.relations; ++r) {
    links.push_back(
        AnyTokens(rng, vocab_size, std::max(shape.link_tokens, shape.relations > 1 ? 1 : 0)));
  }
  std::vector<Fact> facts;
  for (size_t k = 0; k < keys.size(); ++k) {
    for (size_t r = 0; r < links.size(); ++r) {
      facts.push_back({k, r, AnyTokens(rng, vocab_size, shape.value_tokens)});
    }
  }
  rng.Shuffle(facts);
  Sample sample;
  for (const Fact& fact : facts) {
    Append(sample, shape.value_first ? fact.value : keys[fact.key]);
    Append(sample, links[fact.relation]);
    if (shape.mark) Append(sample, {kLink});
    Append(sample, shape.value_first ? keys[fact.key] : fact.value);
    Append(sample, {kFactEnd});
  }
  const Tokens before = AnyTokens(rng, vocab_size, shape.ask_tokens);
  const Tokens after = AnyTokens(rng, vocab_size, shape.ask_tokens);
  rng.Shuffle(facts);
  sample.last_answer = sample.tokens.size();
  for (size_t q = 0; q < static_cast<size_t>(shape.questions); ++q) {
    const Fact& fact = facts[q];
    Append(sample, {kAsk});
    Append(sample, before);
    if (shape.relations > 1) Append(sample, {links[fact.relation].front()});
    Append(sample, keys[fact.key]);
    Append(sample, after);
    if (shape.mark) Append(sample, {kAnswer});
    Append(sample, fact.value, true);
    Append(sample, {kFactEnd}, true);
  }
  return sample;
}

}  // namespace withy::train
