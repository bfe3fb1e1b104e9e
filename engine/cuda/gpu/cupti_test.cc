// CUPTI, with a library that stands for it: what is called, what is told when it is missing or
// refuses, and its records beside stamps.
#include "engine/cuda/gpu/cupti.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "engine/cuda/stamp_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// As cupti_activity.h lays a kernel's record out: kind at 0, start at 16, end at 24, name at 104.
constexpr size_t kRecordBytes = 208;
using Record = std::array<uint8_t, kRecordBytes>;

Record KernelRecord(const char* name, uint64_t start, uint64_t end, int32_t kind = 10) {
  Record record = {};
  std::memcpy(record.data(), &kind, sizeof(kind));
  std::memcpy(record.data() + 16, &start, sizeof(start));
  std::memcpy(record.data() + 24, &end, sizeof(end));
  std::memcpy(record.data() + 104, &name, sizeof(name));
  return record;
}

struct FakeCupti {
  using Wanted = void (*)(uint8_t**, size_t*, size_t*);
  using Filled = void (*)(void*, uint32_t, uint8_t*, size_t, size_t);
  static inline std::vector<Record> records;
  static inline std::string missing;
  static inline int refuses = 0;  // enabling, with this result
  static inline int open = 0;
  static inline bool enabled = false;
  static inline Wanted wanted = nullptr;
  static inline Filled filled = nullptr;

  static int Register(Wanted want, Filled fill) {
    wanted = want;
    filled = fill;
    return 0;
  }
  static int Enable(int kind) {
    if (kind != 10) return 1;
    enabled = refuses == 0;
    return refuses;
  }
  static int Disable(int) {
    enabled = false;
    return 0;
  }
  // Two records a buffer.
  static int Flush(uint32_t) {
    for (size_t i = 0; i < records.size(); i += 2) {
      uint8_t* buffer = nullptr;
      size_t size = 0;
      size_t most = 1;
      wanted(&buffer, &size, &most);
      const size_t count = std::min<size_t>(2, records.size() - i);
      if (buffer == nullptr || size < count * kRecordBytes || most != 0) return 1;
      std::memcpy(buffer, records[i].data(), count * kRecordBytes);
      filled(nullptr, 0, buffer, size, count * kRecordBytes);
    }
    records.clear();
    return 0;
  }
  static int Next(uint8_t* buffer, size_t valid, void** record) {
    uint8_t* const next =
        *record == nullptr ? buffer : static_cast<uint8_t*>(*record) + kRecordBytes;
    if (next >= buffer + valid) return 12;
    *record = next;
    return 0;
  }
  static int ResultString(int, const char** text) {
    *text = "CUPTI_ERROR_OF_THE_TEST";
    return 0;
  }

  static void Reset() {
    records.clear();
    missing.clear();
    refuses = 0;
    open = 0;
    enabled = false;
  }
  static LibraryLoader Loader() {
    return {.open = [](const char* name) -> void* {
              if (std::string(name) != "libcupti.so.12") return nullptr;
              ++open;
              return &open;
            },
            .symbol = [](void*, const char* name) -> void* {
              const std::string symbol = name;
              if (symbol == missing) return nullptr;
              if (symbol == "cuptiActivityRegisterCallbacks")
                return reinterpret_cast<void*>(&Register);
              if (symbol == "cuptiActivityEnable") return reinterpret_cast<void*>(&Enable);
              if (symbol == "cuptiActivityDisable") return reinterpret_cast<void*>(&Disable);
              if (symbol == "cuptiActivityFlushAll") return reinterpret_cast<void*>(&Flush);
              if (symbol == "cuptiActivityGetNextRecord") return reinterpret_cast<void*>(&Next);
              if (symbol == "cuptiGetResultString") return reinterpret_cast<void*>(&ResultString);
              return nullptr;
            },
            .close = [](void*) { --open; }};
  }
};

TEST(CuptiTest, KernelsAreTakenInTheOrderOfTheirStart) {
  FakeCupti::Reset();
  const auto cupti = Cupti::Open(FakeCupti::Loader());
  ASSERT_TRUE(cupti.ok()) << cupti.status();
  EXPECT_TRUE(FakeCupti::enabled);
  FakeCupti::records = {KernelRecord("b", 30, 40), KernelRecord("a", 10, 25),
                        KernelRecord("no kernel", 11, 12, /*kind=*/2),
                        KernelRecord("without times", 0, 0), KernelRecord("c", 50, 51)};
  const auto kernels = (*cupti)->Take();
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  ASSERT_EQ(kernels->size(), 3u);
  EXPECT_EQ((*kernels)[0].name, "a");
  EXPECT_EQ((*kernels)[0].ended_ns, 25u);
  EXPECT_EQ((*kernels)[1].name, "b");
  EXPECT_EQ((*kernels)[2].started_ns, 50u);
  EXPECT_TRUE((*cupti)->Take()->empty()) << "taken once";
}

TEST(CuptiTest, ItRecordsUntilItsEnd) {
  FakeCupti::Reset();
  {
    const auto cupti = Cupti::Open(FakeCupti::Loader());
    FakeCupti::records = {KernelRecord("late", 1, 2)};
  }
  EXPECT_FALSE(FakeCupti::enabled);
  const auto again = Cupti::Open(FakeCupti::Loader());
  EXPECT_TRUE((*again)->Take()->empty()) << "nothing is left of the one before";
}

TEST(CuptiTest, SaysWhatIsMissingAndWhatToDo) {
  FakeCupti::Reset();
  LibraryLoader nowhere = FakeCupti::Loader();
  nowhere.open = [](const char*) -> void* { return nullptr; };
  const absl::Status none = Cupti::Open(nowhere).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.ToString(), AllOf(HasSubstr("libcupti.so.13"), HasSubstr("LD_LIBRARY_PATH")));
  for (const char* name :
       {"cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityDisable",
        "cuptiActivityFlushAll", "cuptiActivityGetNextRecord", "cuptiGetResultString"}) {
    FakeCupti::missing = name;
    EXPECT_THAT(Cupti::Open(FakeCupti::Loader()).status().ToString(), HasSubstr(name));
  }
  FakeCupti::missing.clear();
  const std::pair<int, const char*> refusals[] = {{35, "root"}, {39, "Nsight"}, {7, "(7)"}};
  for (const auto& [result, remedy] : refusals) {
    FakeCupti::refuses = result;
    const absl::Status refused = Cupti::Open(FakeCupti::Loader()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.ToString(), AllOf(HasSubstr("CUPTI_ERROR_OF_THE_TEST"), HasSubstr(remedy)));
  }
  EXPECT_EQ(FakeCupti::open, 0) << "libraries are left open";
}

KernelRun RunOf(OpKind kind, int64_t started, int64_t ended) {
  KernelRun run;
  run.op = static_cast<uint8_t>(kind);
  run.started = started;
  run.ended = ended;
  return run;
}

TEST(CompareStampsTest, KernelsBetweenTwoStampsAreOfOneOperation) {
  const std::vector<KernelRun> runs = {
      RunOf(OpKind::kEmbed, 0, 3'000), RunOf(OpKind::kAttend, 3'000, 9'000),
      RunOf(OpKind::kEmbed, 20'000, 22'000), RunOf(OpKind::kAttend, 22'000, 30'000)};
  const std::string stamp = "_ZN5withy11StampKernelE";
  std::vector<KernelTime> kernels = {
      {stamp, 100, 101},           {"embed", 200, 1'200},    {stamp, 1'300, 1'301},
      {"attend", 1'400, 3'400},    {"merge", 3'500, 4'000},  {stamp, 4'100, 4'101},
      {"of nobody", 5'000, 6'000}, {stamp, 7'100, 7'101},    {"embed", 7'200, 8'000},
      {stamp, 8'300, 8'301},       {"attend", 8'400, 9'400}, {stamp, 9'500, 9'501}};
  const auto ops = CompareStamps(runs, 2, kernels);
  ASSERT_TRUE(ops.ok()) << ops.status();
  ASSERT_EQ(ops->size(), 2u);
  for (const StampedOp& op : *ops) {
    EXPECT_EQ(op.count, 2u);
    const bool embeds = op.kind == OpKind::kEmbed;
    EXPECT_DOUBLE_EQ(op.stamped_us, embeds ? 5 : 14);
    EXPECT_DOUBLE_EQ(op.recorded_us, embeds ? 1.8 : 3.5);
  }
  kernels.pop_back();
  EXPECT_THAT(CompareStamps(runs, 2, kernels).status().ToString(), HasSubstr("5 stamps"));
  EXPECT_FALSE(CompareStamps({}, 0, kernels).ok());
}

}  // namespace
}  // namespace withy::engine::cuda
