#include "policy/kv/kv_place.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace withy::policy {
namespace {

std::string ActionWords(const KvAction& action) {
  switch (action.kind) {
    case KvAction::Kind::kDemote:
      return absl::StrCat("be demoted to format ", static_cast<int>(action.format));
    case KvAction::Kind::kWrite:
      return "be written";
    case KvAction::Kind::kDrop:
      return "be dropped";
    case KvAction::Kind::kDeleteCopy:
      return "lose its stored copy";
    case KvAction::Kind::kRead:
      return "be read";
    case KvAction::Kind::kRecompute:
      return "be recomputed";
  }
  return "";
}

std::string PlaceWords(const KvPlace& place) {
  if (const auto* stored = std::get_if<KvStored>(&place); stored != nullptr) {
    return absl::StrCat("stored in format ", static_cast<int>(stored->format));
  }
  const auto* resident = std::get_if<KvResident>(&place);
  if (resident == nullptr) return "to be recomputed";
  return absl::StrCat("resident in format ", static_cast<int>(resident->format),
                      resident->copy.has_value() ? absl::StrCat(" with a copy in format ",
                                                                static_cast<int>(*resident->copy))
                                                 : " without a copy");
}

// Nothing: the action is impossible.
std::optional<KvPlace> AfterAction(const KvAction& action, const KvPlace& place) {
  const auto* resident = std::get_if<KvResident>(&place);
  const auto* stored = std::get_if<KvStored>(&place);
  switch (action.kind) {
    case KvAction::Kind::kDemote:
      if (resident == nullptr || action.format <= resident->format) return std::nullopt;
      return KvResident{action.format, resident->copy};
    case KvAction::Kind::kWrite:
      if (resident == nullptr || resident->copy == resident->format) return std::nullopt;
      return KvResident{resident->format, resident->format};
    case KvAction::Kind::kDrop:
      if (resident == nullptr) return std::nullopt;
      if (!resident->copy.has_value()) return KvToRecompute{};
      return KvStored{*resident->copy};
    case KvAction::Kind::kDeleteCopy:
      if (stored != nullptr) return KvToRecompute{};
      if (resident == nullptr || !resident->copy.has_value()) return std::nullopt;
      return KvResident{resident->format, std::nullopt};
    case KvAction::Kind::kRead:
      if (stored != nullptr) return KvResident{stored->format, stored->format};
      if (resident == nullptr || !resident->copy.has_value()) return std::nullopt;
      if (*resident->copy >= resident->format) return std::nullopt;
      return KvResident{*resident->copy, resident->copy};
    case KvAction::Kind::kRecompute:
      if (stored != nullptr) return KvResident{0, stored->format};
      if (resident == nullptr) return KvResident{0, std::nullopt};
      if (resident->format == 0) return std::nullopt;
      return KvResident{0, resident->copy};
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<KvPlace> ApplyAction(const KvAction& action, const KvPlace& place) {
  const std::optional<KvPlace> after = AfterAction(action, place);
  if (after.has_value()) return *after;
  return absl::FailedPreconditionError(
      absl::StrCat("a chunk that is ", PlaceWords(place), " cannot ", ActionWords(action)));
}

}  // namespace withy::policy
