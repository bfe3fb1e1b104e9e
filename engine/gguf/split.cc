#include "engine/gguf/split.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "engine/gguf/parser.h"

namespace withy::engine {
namespace {

// Choice. Each part is a mapping, of which Linux allows a process 65,530. Models of a terabyte are
// published in fewer than 50 parts.
constexpr uint64_t kMaxParts = 1024;

// "-00001-of-00003.gguf".
std::string PartEnding(uint64_t number, uint64_t count) {
  return absl::StrFormat("-%05d-of-%05d.gguf", number, count);
}

// A path that ends in such a name.
struct PartName {
  std::string stem;
  uint64_t number = 0;  // from 1 on
  uint64_t count = 0;

  std::string Path(uint64_t part) const { return stem + PartEnding(part, count); }
};

std::optional<PartName> ParsePartName(std::string_view path) {
  constexpr size_t kDigits = 5;
  const size_t ending = PartEnding(1, 1).size();
  if (path.size() <= ending) return std::nullopt;
  PartName name{.stem = std::string(path.substr(0, path.size() - ending))};
  const std::string_view tail = path.substr(name.stem.size());
  const size_t count_at = tail.size() - std::string_view(".gguf").size() - kDigits;
  if (!absl::SimpleAtoi(ToAbsl(tail.substr(1, kDigits)), &name.number) ||
      !absl::SimpleAtoi(ToAbsl(tail.substr(count_at, kDigits)), &name.count) || name.number < 1 ||
      name.number > name.count || name.Path(name.number) != path) {
    return std::nullopt;
  }
  return name;
}

absl::Status Refuse(const GgufFile& file, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", what));
}

// Where the first part of a split model is, of which `file` is another part.
std::string FirstPart(const GgufFile& file, uint64_t count) {
  const auto name = ParsePartName(file.path());
  return name ? name->Path(1) : absl::StrCat("NAME", PartEnding(1, count));
}

absl::Status CheckFirst(const GgufFile& file, uint64_t count) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t index, file.GetUintOr(kGgufSplitIndex, 0));
  if (index != 0) {
    return Refuse(file, absl::StrCat("it is part ", index + 1, " of ", count,
                                     " of a split model (split.no): name its first part, ",
                                     FirstPart(file, count)));
  }
  if (count > kMaxParts) {
    return Refuse(file, absl::StrCat("split.count is ", count, "; it must be at most ", kMaxParts,
                                     ": merge the parts with llama-gguf-split --merge"));
  }
  const auto name = ParsePartName(file.path());
  if (name && name->number == 1 && name->count == count) return absl::OkStatus();
  return Refuse(file, absl::StrCat("it is the first of ", count,
                                   " parts of a split model (split.count), and the others are "
                                   "found by its name, which must end in ",
                                   PartEnding(1, count),
                                   ": give all parts the names that they were published with"));
}

absl::StatusOr<uint64_t> RequireUint(const GgufFile& part, std::string_view key) {
  const absl::StatusOr<uint64_t> value = part.GetUint(key);
  if (!absl::IsNotFound(value.status())) return value;
  return Refuse(part, absl::StrCat(ToAbsl(key), " is missing: it is no part of a split model"));
}

}  // namespace

std::vector<std::string> GgufPartPaths(const std::string& path) {
  const auto name = ParsePartName(path);
  if (!name || name->number != 1 || name->count > kMaxParts) return {path};
  std::vector<std::string> paths;
  for (uint64_t i = 1; i <= name->count; ++i) paths.push_back(name->Path(i));
  return paths;
}

absl::Status GgufJoiner::Join(GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t count, file.GetUintOr(kGgufSplitCount, 0));
  if (count <= 1) return absl::OkStatus();
  WITHY_RETURN_IF_ERROR(CheckFirst(file, count));
  const std::vector<std::string> paths = GgufPartPaths(file.path());
  for (uint64_t i = 1; i < count; ++i) {
    const std::string where = absl::StrCat("part ", i + 1, " of ", count, " of ", file.path());
    absl::StatusOr<GgufFile> part = GgufParser::OpenOne(paths[i]);
    if (absl::IsNotFound(part.status())) {
      return absl::NotFoundError(absl::StrCat(paths[i], " is missing, ", where,
                                              ": download every part into the same folder"));
    }
    absl::Status added = part.status();
    if (added.ok()) added = CheckPart(file, *part, i);
    if (added.ok()) added = Add(file, *std::move(part));
    if (!added.ok()) {
      return absl::Status(added.code(), absl::StrCat(added.message(), " (it was opened as ", where,
                                                     "; take all parts from one download)"));
    }
  }
  WITHY_ASSIGN_OR_RETURN(const uint64_t tensors,
                         file.GetUintOr(kGgufSplitTensors, file.tensors_.size()));
  if (tensors == file.tensors_.size()) return absl::OkStatus();
  return Refuse(file, absl::StrCat("its ", count, " parts have ", file.tensors_.size(),
                                   " tensors, and split.tensors.count is ", tensors,
                                   ": a part is of another model; take all parts from one "
                                   "download"));
}

absl::Status GgufJoiner::CheckPart(const GgufFile& first, const GgufFile& part, uint64_t index) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t own_index, RequireUint(part, kGgufSplitIndex));
  if (own_index != index) {
    return Refuse(part, absl::StrCat("split.no is ", own_index, " where its name says ", index,
                                     ": it was given another part's name"));
  }
  for (const std::string_view key : {kGgufSplitCount, kGgufSplitTensors}) {
    if (!first.Has(key)) continue;
    WITHY_ASSIGN_OR_RETURN(const uint64_t expected, first.GetUint(key));
    WITHY_ASSIGN_OR_RETURN(const uint64_t value, RequireUint(part, key));
    if (value == expected) continue;
    return Refuse(part, absl::StrCat(ToAbsl(key), " is ", value, ", and the first part's is ",
                                     expected, ": it is a part of another model"));
  }
  return absl::OkStatus();
}

absl::Status GgufJoiner::Add(GgufFile& first, GgufFile part) {
  std::vector<std::string_view> names(part.tensors_.size());  // views into the part's bytes
  for (const auto& [name, index] : part.tensor_index_) names[index] = name;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto [other, is_new] = first.tensor_index_.emplace(names[i], first.tensors_.size());
    if (!is_new) {
      return Refuse(part, absl::StrCat("it has the tensor ", ValidUtf8(names[i], kMaxShownBytes),
                                       ", which is also in ",
                                       first.parts_[first.tensors_[other->second].part].path));
    }
    part.tensors_[i].part = static_cast<uint32_t>(first.parts_.size());
    first.tensors_.push_back(std::move(part.tensors_[i]));
  }
  first.parts_.push_back(std::move(part.parts_[0]));
  part.parts_.clear();  // `first` unmaps it
  return absl::OkStatus();
}

}  // namespace withy::engine
