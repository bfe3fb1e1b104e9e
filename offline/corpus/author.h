// Writes the parts of scenes: draws entities and wordings from its split's share of the pools and
// records which ones it used. Neighbours: the task files (api.cc, qa.cc, ...) call it; generator.cc
// creates one per record.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offline/corpus/record.h"
#include "offline/corpus/rng.h"

namespace withy::corpus {

// Interchangeable wordings of one template; %1, %2, ... are placeholders. The last quarter (at
// least one) is held out.
struct Wordings {
  std::string_view name;
  std::span<const std::string_view> texts;
};

struct Exchange {
  std::string question;
  std::string answer;
};

// Questions of a task about one context. The user's first message is `context`, a newline and the
// first question, which pruning must keep. Later questions are messages of their own.
struct Scene {
  std::string context;
  std::vector<Exchange> exchanges;  // at least one
};

// Two plain words, such as "send photo" or "red lamp".
struct Pair {
  std::string first;
  std::string second;
  std::string Join(std::string_view with) const;
  bool operator==(const Pair&) const = default;
};

// Whether an entity of this name belongs to the held-out split (about one in six).
bool IsHeldOutEntity(std::string_view name);

// `text` with %1, %2, ... replaced by `args`.
std::string Fill(std::string_view text, std::initializer_list<std::string_view> args);

// Not thread-safe. Deterministic in seed and split.
class Author {
 public:
  // `garbled_percent`: per cent of wordings that are garbled (Garble).
  Author(uint64_t seed, Split split, int garbled_percent = 0)
      : rng_(seed), split_(split), garbled_percent_(garbled_percent) {}

  Rng& rng() { return rng_; }
  int Between(int low, int high) { return rng_.Between(low, high); }
  bool Chance(int percent) { return rng_.Chance(percent); }
  std::string_view Any(std::span<const std::string_view> words);

  // A wording of this split with its placeholders filled.
  std::string Say(const Wordings& list, std::initializer_list<std::string_view> args = {});

  // Entities of this split: invented names, and pairs of known words that occur in only one split.
  std::string Person();
  std::string Place();
  Pair Command();  // verb and noun: "send", "photo"
  Pair Thing();    // adjective and noun: "red", "lamp"

  // `count` different entities; `draw` is one of the four functions above.
  template <typename T>
  std::vector<T> Different(int count, T (Author::*draw)()) {
    std::vector<T> all;
    while (static_cast<int>(all.size()) < count) {
      T next = (this->*draw)();
      bool known = false;
      for (const T& other : all) known = known || other == next;
      if (!known) all.push_back(std::move(next));
    }
    return all;
  }

  // `command` with another verb or noun, in the same split: a near miss.
  Pair NearCommand(const Pair& command);
  // Whether an entity of this name belongs to this split.
  bool Owns(std::string_view name) const;
  // Records an entity as used.
  void Use(std::string name) { entities_.push_back(std::move(name)); }

  std::vector<std::string> TakeEntities() { return std::move(entities_); }
  std::vector<std::string> TakeWordings() { return std::move(wordings_); }

 private:
  std::string Syllables(int count, bool coda);
  // Rotates a template's words, inserts words between them, or drops one. The neighbours of a
  // placeholder then carry no information, while the topic of the sentence remains.
  std::string Garble(std::string_view text);

  Rng rng_;
  Split split_;
  int garbled_percent_;
  std::vector<std::string> entities_;
  std::vector<std::string> wordings_;
};

// Closed lists shared by both splits: days, months, jobs. These are values, not entities.
std::span<const std::string_view> Weekdays();
std::span<const std::string_view> Months();
std::span<const std::string_view> Jobs();
std::span<const std::string_view> Nouns();

}  // namespace withy::corpus
