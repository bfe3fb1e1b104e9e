#include "wire/speculation.h"

namespace withy::wire {

policy::SpeculationMode ModeFromWire(v1::Speculation speculation,
                                     policy::SpeculationMode unspecified) {
  switch (speculation) {
    case v1::SPECULATION_OFF:
      return policy::SpeculationMode::kOff;
    case v1::SPECULATION_AUTO:
      return policy::SpeculationMode::kAuto;
    case v1::SPECULATION_LOOKUP:
      return policy::SpeculationMode::kLookup;
    case v1::SPECULATION_PREFIX:
      return policy::SpeculationMode::kPrefix;
    case v1::SPECULATION_DRAFT:
      return policy::SpeculationMode::kDraft;
    case v1::SPECULATION_HEAD:
      return policy::SpeculationMode::kHead;
    default:
      return unspecified;
  }
}

v1::Speculation ToWire(policy::SpeculationMode mode) {
  switch (mode) {
    case policy::SpeculationMode::kAuto:
      return v1::SPECULATION_AUTO;
    case policy::SpeculationMode::kOff:
      return v1::SPECULATION_OFF;
    case policy::SpeculationMode::kLookup:
      return v1::SPECULATION_LOOKUP;
    case policy::SpeculationMode::kPrefix:
      return v1::SPECULATION_PREFIX;
    case policy::SpeculationMode::kDraft:
      return v1::SPECULATION_DRAFT;
    case policy::SpeculationMode::kHead:
      return v1::SPECULATION_HEAD;
  }
  return v1::SPECULATION_UNSPECIFIED;
}

v1::Speculation ToWire(policy::DraftSourceKind source) {
  switch (source) {
    case policy::DraftSourceKind::kLookup:
      return v1::SPECULATION_LOOKUP;
    case policy::DraftSourceKind::kPrefix:
      return v1::SPECULATION_PREFIX;
    case policy::DraftSourceKind::kDraft:
      return v1::SPECULATION_DRAFT;
    case policy::DraftSourceKind::kHead:
      return v1::SPECULATION_HEAD;
  }
  return v1::SPECULATION_UNSPECIFIED;
}

}  // namespace withy::wire
