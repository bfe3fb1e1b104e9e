// The hand that writes scenes: draws entities and wordings from its own split's part of the pools
// and remembers which it used. Neighbours: the task files (api.cc, qa.cc, ...) call it;
// generator.cc owns one per record.
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

// Interchangeable wordings of one template; %1, %2, ... stand for what is filled in. The last
// quarter (at least one) is held out.
struct Wordings {
  std::string_view name;
  std::span<const std::string_view> texts;
};

struct Exchange {
  std::string question;
  std::string answer;
};

// Questions of a task on one context. The user's first message is `context`, a newline, the first
// question, which is what pruning must keep; those that follow are messages of their own.
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

// True when an entity of this name belongs to the held-out split (about one in six).
bool IsHeldOutEntity(std::string_view name);

// `text` with %1, %2, ... replaced by `args`.
std::string Fill(std::string_view text, std::initializer_list<std::string_view> args);

// Not thread-safe; equal seeds and splits write equal scenes.
class Author {
 public:
  // `garbled_percent`: so many wordings are not as they stand in the lists (Garble).
  Author(uint64_t seed, Split split, int garbled_percent = 0)
      : rng_(seed), split_(split), garbled_percent_(garbled_percent) {}

  Rng& rng() { return rng_; }
  int Between(int low, int high) { return rng_.Between(low, high); }
  bool Chance(int percent) { return rng_.Chance(percent); }
  std::string_view Any(std::span<const std::string_view> words);

  // A wording of this split, filled in.
  std::string Say(const Wordings& list, std::initializer_list<std::string_view> args = {});

  // Entities of this split: invented names, and pairs of known words that occur in one split only.
  std::string Person();
  std::string Place();
  Pair Command();  // verb and noun: "send", "photo"
  Pair Thing();    // adjective and noun: "red", "lamp"

  // `count` different entities; `draw` is one of the four above.
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

  // `command` with its verb or its noun exchanged, still of this split: a near miss.
  Pair NearCommand(const Pair& command);
  // Records a pair as used and returns whether it belongs to this split.
  bool Owns(std::string_view name) const;
  void Use(std::string name) { entities_.push_back(std::move(name)); }

  std::vector<std::string> TakeEntities() { return std::move(entities_); }
  std::vector<std::string> TakeWordings() { return std::move(wordings_); }

 private:
  std::string Syllables(int count, bool coda);
  // The words of a template in another cyclic order, with others between them, or one left out:
  // what stands beside a slot says nothing, what the sentence speaks of still does.
  std::string Garble(std::string_view text);

  Rng rng_;
  Split split_;
  int garbled_percent_;
  std::vector<std::string> entities_;
  std::vector<std::string> wordings_;
};

// Closed lists that both splits share: days, months, jobs. Values, not entities.
std::span<const std::string_view> Weekdays();
std::span<const std::string_view> Months();
std::span<const std::string_view> Jobs();
std::span<const std::string_view> Nouns();

}  // namespace withy::corpus
