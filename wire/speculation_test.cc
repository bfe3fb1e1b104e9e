#include "wire/speculation.h"

#include <gtest/gtest.h>

namespace withy::wire {
namespace {

TEST(SpeculationWireTest, EveryModeHasItsOwnMeaning) {
  using policy::SpeculationMode;
  EXPECT_EQ(ModeFromWire(v1::SPECULATION_UNSPECIFIED), SpeculationMode::kAuto);
  EXPECT_EQ(ModeFromWire(v1::SPECULATION_UNSPECIFIED, SpeculationMode::kOff),
            SpeculationMode::kOff);
  EXPECT_EQ(ModeFromWire(v1::SPECULATION_AUTO, SpeculationMode::kOff), SpeculationMode::kAuto);
  EXPECT_EQ(ModeFromWire(v1::SPECULATION_OFF), SpeculationMode::kOff);
  for (const SpeculationMode mode :
       {SpeculationMode::kAuto, SpeculationMode::kOff, SpeculationMode::kLookup,
        SpeculationMode::kPrefix, SpeculationMode::kDraft, SpeculationMode::kHead}) {
    EXPECT_EQ(ModeFromWire(ToWire(mode)), mode);
  }
  for (const policy::DraftSourceKind source :
       {policy::DraftSourceKind::kLookup, policy::DraftSourceKind::kPrefix,
        policy::DraftSourceKind::kDraft, policy::DraftSourceKind::kHead}) {
    const SpeculationMode alone = ModeFromWire(ToWire(source));
    for (const policy::DraftSourceKind other :
         {policy::DraftSourceKind::kLookup, policy::DraftSourceKind::kPrefix,
          policy::DraftSourceKind::kDraft, policy::DraftSourceKind::kHead}) {
      EXPECT_EQ(policy::Allows(alone, other), other == source);
    }
  }
}

}  // namespace
}  // namespace withy::wire
