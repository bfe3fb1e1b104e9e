#include "engine/tokenizer/unigram/charsmap.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::engine {
namespace {

constexpr size_t kBlock = 256;        // children of a node are within an aligned block
constexpr size_t kMostKeyBytes = 64;  // of a rule; published ones have at most 18

// A unit of a double array, as Darts writes it: a node with the label by which it is reached and
// the offset of its children, or the value of the node whose child 0 it is.
bool HasLeaf(uint32_t unit) { return ((unit >> 8) & 1u) != 0; }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t LabelOf(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

uint32_t ReadU32(const uint8_t* bytes) {
  return uint32_t{bytes[0]} | uint32_t{bytes[1]} << 8 | uint32_t{bytes[2]} << 16 |
         uint32_t{bytes[3]} << 24;
}

absl::Status Damaged(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("is damaged: ", what));
}

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(std::vector<uint8_t> bytes) {
  constexpr size_t kUnit = sizeof(uint32_t);
  if (bytes.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", bytes.size(), " bytes, at most ", kMaxBytes, " can be read"));
  }
  if (bytes.size() < kUnit) {
    return Damaged(absl::StrCat("it has ", bytes.size(), " bytes, at least 4 are needed"));
  }
  const size_t array = ReadU32(bytes.data());
  if (array % (kUnit * kBlock) != 0 || array > bytes.size() - kUnit) {
    return Damaged(absl::StrCat("its double array has ", array, " bytes; it must be a multiple of ",
                                kUnit * kBlock, " up to the ", bytes.size() - kUnit,
                                " that follow"));
  }
  Charsmap map;
  map.units_.resize(array / kUnit);
  for (size_t i = 0; i < map.units_.size(); ++i) {
    map.units_[i] = ReadU32(&bytes[kUnit * (i + 1)]);
  }
  map.replacements_.assign(bytes.begin() + static_cast<ptrdiff_t>(kUnit + array), bytes.end());
  if (!map.replacements_.empty() && map.replacements_.back() != '\0') {
    return Damaged("its last replacement has no end");
  }
  WITHY_RETURN_IF_ERROR(map.Check());
  return map;
}

// Visits each node once, the shallowest first: several nodes may lead to the same one.
absl::Status Charsmap::Check() const {
  if (units_.empty()) return absl::OkStatus();
  std::vector<bool> seen(units_.size());
  std::vector<std::pair<uint32_t, size_t>> nodes = {{0u, size_t{0}}};  // and bytes up to them
  for (size_t next = 0; next < nodes.size(); ++next) {
    const auto [node, depth] = nodes[next];
    const uint32_t unit = units_[node];
    const uint32_t children = node ^ OffsetOf(unit);
    if (children >= units_.size()) {
      return Damaged(
          absl::StrCat("the children of unit ", node, " are at ", children, " of ", units_.size()));
    }
    if (HasLeaf(unit) && depth > 0 && ValueOf(units_[children]) >= replacements_.size()) {
      return Damaged(absl::StrCat("unit ", children, " names replacement ",
                                  ValueOf(units_[children]), " of ", replacements_.size(),
                                  " bytes"));
    }
    if (depth == kMostKeyBytes) continue;
    for (uint32_t byte = 1; byte < kBlock; ++byte) {
      const uint32_t child = children ^ byte;
      if (LabelOf(units_[child]) != byte || seen[child]) continue;
      seen[child] = true;
      nodes.emplace_back(child, depth + 1);
    }
  }
  return absl::OkStatus();
}

Charsmap::Rule Charsmap::Find(std::string_view text) const {
  Rule rule;
  if (units_.empty()) return rule;
  uint32_t children = OffsetOf(units_[0]);
  const size_t limit = std::min(text.size(), kMostKeyBytes);
  for (size_t at = 0; at < limit; ++at) {
    const auto byte = static_cast<uint8_t>(text[at]);
    const uint32_t node = children ^ byte;
    const uint32_t unit = units_[node];
    if (byte == 0 || LabelOf(unit) != byte) break;
    children = node ^ OffsetOf(unit);
    if (!HasLeaf(unit)) continue;
    rule.bytes = at + 1;
    rule.replacement = replacements_.c_str() + ValueOf(units_[children]);
  }
  return rule;
}

}  // namespace withy::engine
