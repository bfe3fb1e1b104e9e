// JSON that a user, a file or a network gave: how it is parsed, and the type for objects whose
// order is kept. nlohmann's parser and destructor are loops, but writing, copying and comparing a
// value are recursions, its callback for depths makes parsing quadratic in the values of a list,
// and its ordered object is a list that is searched for each key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace withy {

// Levels of lists and objects in a value of a request.
inline constexpr int kMaxJsonDepth = 64;

// nlohmann's ordered object with an index by key, which is made once there are many.
template <class Key, class T, class IgnoredLess = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>>
class IndexedObject : public std::vector<std::pair<const Key, T>, Allocator> {
 public:
  using Container = std::vector<std::pair<const Key, T>, Allocator>;
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<>;
  using typename Container::const_iterator;
  using typename Container::iterator;
  using typename Container::size_type;
  using typename Container::value_type;

  IndexedObject() = default;
  template <class Iterator>
  IndexedObject(Iterator first, Iterator last) {
    insert(first, last);
  }

  std::pair<iterator, bool> emplace(std::string_view key, T&& value) {
    if (const iterator known = find(key); known != this->end()) return {known, false};
    Container::emplace_back(Key(key), std::move(value));
    Index();
    return {std::prev(this->end()), true};
  }
  std::pair<iterator, bool> insert(value_type&& value) {
    return emplace(value.first, std::move(value.second));
  }
  std::pair<iterator, bool> insert(const value_type& value) {
    return emplace(value.first, T(value.second));
  }
  template <class Iterator>
  void insert(Iterator first, Iterator last) {
    for (; first != last; ++first) insert(*first);
  }

  iterator find(std::string_view key) { return this->begin() + At(key); }
  const_iterator find(std::string_view key) const { return this->begin() + At(key); }
  size_type count(std::string_view key) const { return find(key) == this->end() ? 0 : 1; }
  T& operator[](std::string_view key) { return emplace(key, T()).first->second; }
  T& at(std::string_view key) { return Container::at(static_cast<size_t>(At(key))).second; }
  const T& at(std::string_view key) const {
    return Container::at(static_cast<size_t>(At(key))).second;
  }

  iterator erase(iterator first, iterator last) {
    const auto begin = first - this->begin();
    Container kept;
    kept.reserve(this->size());
    for (auto it = this->begin(); it != this->end(); ++it) {
      if (it < first || it >= last) kept.emplace_back(it->first, std::move(it->second));
    }
    Container::swap(kept);
    slots_.clear();
    Index();
    return this->begin() + begin;
  }
  iterator erase(iterator at) { return erase(at, std::next(at)); }
  size_type erase(std::string_view key) {
    const iterator found = find(key);
    if (found == this->end()) return 0;
    erase(found);
    return 1;
  }
  void clear() {
    Container::clear();
    slots_.clear();
  }

 private:
  static constexpr size_t kListed = 16;  // fewer are found faster without an index

  size_t SlotOf(std::string_view key) const {
    return std::hash<std::string_view>()(key) & (slots_.size() - 1);
  }

  // Where the key is; size() if it is nowhere.
  std::ptrdiff_t At(std::string_view key) const {
    const auto end = static_cast<std::ptrdiff_t>(this->size());
    if (slots_.empty()) {
      std::ptrdiff_t at = 0;
      while (at < end && (*this)[at].first != key) ++at;
      return at;
    }
    for (size_t slot = SlotOf(key); slots_[slot] != 0; slot = (slot + 1) & (slots_.size() - 1)) {
      const std::ptrdiff_t at = slots_[slot] - 1;
      if ((*this)[at].first == key) return at;
    }
    return end;
  }

  const value_type& operator[](std::ptrdiff_t at) const {
    return Container::operator[](static_cast<size_t>(at));
  }

  // Adds the last key, or all of them where the table has become too small.
  void Index() {
    if (this->size() <= kListed) return;
    size_t next = this->size() - 1;
    if (slots_.size() < 2 * this->size()) {
      size_t slots = 4 * kListed;
      while (slots < 4 * this->size()) slots *= 2;
      slots_.assign(slots, 0);
      next = 0;
    }
    for (; next < this->size(); ++next) {
      size_t slot = SlotOf((*this)[static_cast<std::ptrdiff_t>(next)].first);
      while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = static_cast<uint32_t>(next + 1);
    }
  }

  std::vector<uint32_t> slots_;  // 1 + a key's place; 0: free. Open addressing, half free.
};

// Keeps the order of keys, which a model sees. A key that is given twice has its last value.
using OrderedJson = nlohmann::basic_json<IndexedObject>;

// Levels of lists and objects in `text`, whether it is JSON or not.
int JsonDepth(std::string_view text);

// Takes time in proportion to the text. Errors, to be put behind a field's name: INVALID_ARGUMENT
// for text that is no JSON or no UTF-8, or is nested deeper than `max_depth`, or so deep that a
// walk over the value might not fit this thread's stack.
absl::Status ParseJson(std::string_view text, OrderedJson* json, int max_depth = kMaxJsonDepth);
absl::Status ParseJson(std::string_view text, nlohmann::json* json, int max_depth = kMaxJsonDepth);

}  // namespace withy
