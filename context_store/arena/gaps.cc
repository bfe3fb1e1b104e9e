#include "context_store/arena/gaps.h"

#include <iterator>

namespace withy::context_store {

void Gaps::Clear() {
  gaps_.clear();
  by_size_.clear();
}

void Gaps::Add(Gap freed) {
  auto next = gaps_.lower_bound(freed.at);
  if (next != gaps_.end() && next->first == freed.end()) {
    freed.units += next->second;
    const auto after = std::next(next);
    Remove(next);
    next = after;
  }
  if (const std::optional<Gap> before = EndingAt(freed.at)) {
    freed = {before->at, before->units + freed.units};
    Remove(std::prev(next));
  }
  gaps_.emplace(freed.at, freed.units);
  by_size_.emplace(freed.units, freed.at);
}

bool Gaps::Cut(Gap taken) {
  auto found = gaps_.upper_bound(taken.at);
  if (found == gaps_.begin()) return false;
  --found;
  const Gap gap{found->first, found->second};
  if (taken.end() > gap.end()) return false;
  Remove(found);
  if (taken.at > gap.at) Add({gap.at, taken.at - gap.at});
  if (taken.end() < gap.end()) {
    Add({taken.at + taken.units, static_cast<uint32_t>(gap.end() - taken.end())});
  }
  return true;
}

void Gaps::Remove(ByPlace::const_iterator gap) {
  by_size_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

std::optional<Gap> Gaps::Smallest(uint32_t units) const {
  const auto fits = by_size_.lower_bound({units, 0});
  if (fits == by_size_.end()) return std::nullopt;
  return Gap{fits->second, fits->first};
}

Gap Gaps::Largest() const {
  return by_size_.empty() ? Gap{} : Gap{by_size_.rbegin()->second, by_size_.rbegin()->first};
}

std::optional<Gap> Gaps::EndingAt(uint32_t end) const {
  auto gap = gaps_.lower_bound(end);
  if (gap == gaps_.begin()) return std::nullopt;
  --gap;
  if (uint64_t{gap->first} + gap->second != end) return std::nullopt;
  return Gap{gap->first, gap->second};
}

}  // namespace withy::context_store
