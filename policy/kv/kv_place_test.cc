#include "policy/kv/kv_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace withy::policy {
namespace {

using Kind = KvAction::Kind;

constexpr KvFormatIndex kPlaceFormats = 4;
constexpr Kind kAllKinds[] = {Kind::kDemote,     Kind::kWrite, Kind::kDrop,
                              Kind::kDeleteCopy, Kind::kRead,  Kind::kRecompute};

std::vector<KvPlace> AllPlaces() {
  std::vector<KvPlace> places = {KvToRecompute{}};
  for (KvFormatIndex format = 0; format < kPlaceFormats; ++format) {
    places.push_back(KvStored{format});
    places.push_back(KvResident{format, std::nullopt});
    for (KvFormatIndex copy = 0; copy < kPlaceFormats; ++copy) {
      places.push_back(KvResident{format, copy});
    }
  }
  return places;
}

// The same as two independent cells that the actions copy between.
constexpr KvFormatIndex kEmptyCell = 255;
struct KvCells {
  KvFormatIndex arena = kEmptyCell;
  KvFormatIndex disk = kEmptyCell;
  bool operator==(const KvCells&) const = default;
};

KvCells CellsOf(const KvPlace& place) {
  if (const auto* stored = std::get_if<KvStored>(&place)) return {kEmptyCell, stored->format};
  if (const auto* resident = std::get_if<KvResident>(&place)) {
    return {resident->format, resident->copy.value_or(kEmptyCell)};
  }
  return {};
}

KvCells Execute(const KvAction& action, KvCells cells) {
  switch (action.kind) {
    case Kind::kDemote:
      if (cells.arena != kEmptyCell) cells.arena = std::max(cells.arena, action.format);
      break;
    case Kind::kWrite:
      if (cells.arena != kEmptyCell) cells.disk = cells.arena;
      break;
    case Kind::kDrop:
      cells.arena = kEmptyCell;
      break;
    case Kind::kDeleteCopy:
      cells.disk = kEmptyCell;
      break;
    case Kind::kRead:
      cells.arena = std::min(cells.arena, cells.disk);
      break;
    case Kind::kRecompute:
      cells.arena = 0;
      break;
  }
  return cells;
}

TEST(KvPlaceTest, ActionsMoveCopiesAndThoseThatChangeNothingAreRefused) {
  for (const KvPlace& place : AllPlaces()) {
    for (const Kind kind : kAllKinds) {
      for (KvFormatIndex format = 0; format < kPlaceFormats; ++format) {
        const KvAction action{kind, format};
        const KvCells before = CellsOf(place);
        const KvCells after = Execute(action, before);
        const auto applied = ApplyAction(action, place);
        ASSERT_EQ(applied.ok(), after != before) << applied.status();
        if (applied.ok()) {
          EXPECT_EQ(CellsOf(*applied), after);
        } else {
          EXPECT_EQ(applied.status().code(), absl::StatusCode::kFailedPrecondition);
        }
      }
    }
  }
}

TEST(KvPlaceTest, TheLifeOfAChunk) {
  KvPlace place = KvToRecompute{};
  const auto apply = [&](Kind kind, KvFormatIndex format = 0) {
    const auto applied = ApplyAction({kind, format}, place);
    ASSERT_TRUE(applied.ok()) << applied.status();
    place = *applied;
  };
  apply(Kind::kRecompute);
  apply(Kind::kDemote, 1);
  apply(Kind::kWrite);
  EXPECT_EQ(place, KvPlace(KvResident{1, KvFormatIndex{1}}));
  apply(Kind::kDemote, 2);
  apply(Kind::kDrop);
  EXPECT_EQ(place, KvPlace(KvStored{1})) << "the copy has kept the bits that the arena gave up";
  apply(Kind::kRead);
  EXPECT_EQ(place, KvPlace(KvResident{1, KvFormatIndex{1}}));
  apply(Kind::kRecompute);
  EXPECT_EQ(place, KvPlace(KvResident{0, KvFormatIndex{1}}));
  apply(Kind::kDeleteCopy);
  apply(Kind::kDrop);
  EXPECT_EQ(place, KvPlace(KvToRecompute{}));
}

TEST(KvPlaceTest, RefusalsNameActionAndPlace) {
  EXPECT_EQ(ApplyAction({Kind::kDemote, 2}, KvStored{1}).status().message(),
            "a chunk that is stored in format 1 cannot be demoted to format 2");
  EXPECT_EQ(ApplyAction({Kind::kRead}, KvResident{1, std::nullopt}).status().message(),
            "a chunk that is resident in format 1 without a copy cannot be read");
  EXPECT_EQ(ApplyAction({Kind::kWrite}, KvResident{1, KvFormatIndex{1}}).status().message(),
            "a chunk that is resident in format 1 with a copy in format 1 cannot be written");
  EXPECT_EQ(ApplyAction({Kind::kDrop}, KvToRecompute{}).status().message(),
            "a chunk that is to be recomputed cannot be dropped");
}

}  // namespace
}  // namespace withy::policy
