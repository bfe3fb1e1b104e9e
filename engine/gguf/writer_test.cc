#include "engine/gguf/writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"

namespace withy::engine {
namespace {

using std::filesystem::path;

class WriterTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = path(testing::TempDir()) / ("gguf_writer_" + std::to_string(getpid()));
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string File(const std::string& name) const { return directory_ / name; }
  size_t FileCount() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory_))
      ++count;
    return count;
  }

  path directory_;
};

GgufWriter AllTypes() {
  GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  writer.Set<bool>("t.bool", true);
  writer.Set<uint8_t>("t.u8", 200);
  writer.Set<int8_t>("t.i8", -5);
  writer.Set<uint16_t>("t.u16", 60000);
  writer.Set<int16_t>("t.i16", -30000);
  writer.Set<uint32_t>("t.u32", 4000000000u);
  writer.Set<int32_t>("t.i32", -2000000000);
  writer.Set<uint64_t>("t.u64", ~uint64_t{0});
  writer.Set<int64_t>("t.i64", INT64_MIN);
  writer.Set<float>("t.f32", 0.5f);
  writer.Set<double>("t.f64", 1e300);
  const std::vector<std::string> strings = {"a", "", std::string("b\0c", 3)};
  writer.SetStringArray("t.strings", strings);
  const std::vector<int32_t> ints = {1, -2, 3};
  writer.SetArray<int32_t>("t.ints", ints);
  const std::vector<float> floats = {0.25f, -1.0f};
  writer.SetArray<float>("t.floats", floats);
  return writer;
}

void ExpectAllTypes(const GgufFile& file) {
  EXPECT_EQ(file.GetString("general.architecture").value(), "llama");
  EXPECT_TRUE(file.GetBool("t.bool").value());
  EXPECT_EQ(file.GetUint("t.u8").value(), 200u);
  EXPECT_EQ(file.GetInt("t.i8").value(), -5);
  EXPECT_EQ(file.GetUint("t.u16").value(), 60000u);
  EXPECT_EQ(file.GetInt("t.i16").value(), -30000);
  EXPECT_EQ(file.GetUint("t.u32").value(), 4000000000u);
  EXPECT_EQ(file.GetInt("t.i32").value(), -2000000000);
  EXPECT_EQ(file.GetUint("t.u64").value(), ~uint64_t{0});
  EXPECT_EQ(file.GetInt("t.i64").value(), INT64_MIN);
  EXPECT_EQ(file.GetFloat("t.f32").value(), 0.5);
  EXPECT_EQ(file.GetFloat("t.f64").value(), 1e300);
  const auto strings = file.GetStringArray("t.strings").value();
  ASSERT_EQ(strings.size(), 3u);
  EXPECT_EQ(strings[0], "a");
  EXPECT_EQ(strings[1], "");
  EXPECT_EQ(strings[2], std::string_view("b\0c", 3));
  EXPECT_EQ(file.GetIntArray("t.ints").value(), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(file.GetFloatArray("t.floats").value(), (std::vector<float>{0.25f, -1.0f}));
  EXPECT_EQ(file.GetArrayCount("t.floats").value(), 2u);
}

TEST_F(WriterTest, EveryMetadataTypeSurvives) {
  ASSERT_TRUE(AllTypes().Write(File("a.gguf")).ok());
  auto file = GgufFile::Open(File("a.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  ExpectAllTypes(*file);
  GgufWriter copy;
  copy.CopyMetadata(*file, [](std::string_view key) { return key == "t.bool"; });
  copy.Set<bool>("t.bool", true);
  ASSERT_TRUE(copy.Write(File("b.gguf")).ok());
  auto second = GgufFile::Open(File("b.gguf"));
  ASSERT_TRUE(second.ok()) << second.status();
  ExpectAllTypes(*second);
  EXPECT_EQ(FileCount(), 2u);
}

TEST_F(WriterTest, SettingAgainReplaces) {
  GgufWriter writer;
  writer.Set<uint32_t>("a", 1);
  writer.Set<uint32_t>("b", 2);
  writer.SetString("a", "x");
  ASSERT_TRUE(writer.Write(File("a.gguf")).ok());
  const GgufFile file = GgufFile::Open(File("a.gguf")).value();
  ASSERT_EQ(file.metadata().size(), 2u);
  EXPECT_EQ(file.metadata()[0].key, "a");
  EXPECT_EQ(file.GetString("a").value(), "x");
}

TEST_F(WriterTest, TensorsAreAlignedAndStreamed) {
  std::vector<uint8_t> small(3 * 4);
  for (size_t i = 0; i < small.size(); ++i) small[i] = static_cast<uint8_t>(i);
  const int64_t rows = 5000;  // larger than the writer's buffer
  GgufWriter writer;
  writer.Set<uint32_t>("general.alignment", 128);
  writer.AddTensor("small", GgmlType::kF32, {3}, small);
  writer.AddTensor("big", GgmlType::kQ8_0, {256, rows}, [&](const TensorSink& sink) {
    std::vector<uint8_t> row(256 / 32 * 34);
    for (int64_t r = 0; r < rows; ++r) {
      std::fill(row.begin(), row.end(), static_cast<uint8_t>(r));
      if (absl::Status status = sink(row); !status.ok()) return status;
    }
    return absl::OkStatus();
  });
  uint64_t last = 0;
  ASSERT_TRUE(writer
                  .Write(File("a.gguf"),
                         [&](uint64_t done, uint64_t total) {
                           EXPECT_GT(done, last);
                           EXPECT_LE(done, total);
                           last = done;
                         })
                  .ok());
  EXPECT_GT(last, 0u);
  const GgufFile file = GgufFile::Open(File("a.gguf")).value();
  EXPECT_EQ(file.alignment(), 128u);
  const TensorInfo* info = file.GetTensor("small").value();
  EXPECT_EQ(info->offset % 128, 0u);
  EXPECT_EQ(info->rows(), 1);
  EXPECT_EQ(std::vector<uint8_t>(file.Data(*info).begin(), file.Data(*info).end()), small);
  info = file.GetTensor("big").value();
  EXPECT_EQ(info->offset % 128, 0u);
  EXPECT_EQ(info->cols(), 256);
  EXPECT_EQ(info->rows(), rows);
  EXPECT_EQ(file.Data(*info).back(), static_cast<uint8_t>(rows - 1));
  EXPECT_EQ(file.GetTensor("none").status().code(), absl::StatusCode::kNotFound);
}

// Other runtimes count the tensors they know and refuse a file with more.
TEST_F(WriterTest, OurTensorsStandBehindAPlainFile) {
  const std::vector<uint8_t> plain(16, 1);
  const std::vector<uint8_t> ours(8, 2);
  GgufWriter writer;
  writer.Set<uint32_t>("a", 1);
  writer.AddTensor("withy.lora", GgmlType::kF32, {2}, ours);
  writer.AddTensor("w", GgmlType::kF32, {4}, plain);
  ASSERT_TRUE(writer.Write(File("a.gguf")).ok());
  const GgufFile file = GgufFile::Open(File("a.gguf")).value();
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.Data(*file.GetTensor("w").value())[15], 1);
  EXPECT_EQ(file.Data(*file.GetTensor("withy.lora").value())[7], 2);
  uint64_t counted = 0;
  std::memcpy(&counted, file.bytes().data() + 8, sizeof counted);
  EXPECT_EQ(counted, 1u) << "what the header tells other runtimes";
  const uint64_t where = file.GetUint("withy.tensors").value();
  const auto alone = GgufFile::FromBytes(file.bytes().subspan(where), "ours");
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->tensors().size(), 1u);

  GgufWriter copy;  // without our tensors: no trace of them
  copy.CopyMetadata(file);
  copy.AddTensor("w", GgmlType::kF32, {4}, plain);
  ASSERT_TRUE(copy.Write(File("b.gguf")).ok());
  EXPECT_FALSE(GgufFile::Open(File("b.gguf")).value().Has("withy.tensors"));
}

TEST_F(WriterTest, RefusesWhatDoesNotFit) {
  const std::vector<uint8_t> data(34);
  const auto write = [&](std::string name, std::vector<int64_t> dims, size_t bytes) {
    GgufWriter writer;
    writer.AddTensor(std::move(name), GgmlType::kQ8_0, std::move(dims),
                     std::span(data).first(bytes));
    return writer.Write(File("a.gguf"));
  };
  EXPECT_TRUE(write("t", {32}, 34).ok());
  std::filesystem::remove(File("a.gguf"));
  EXPECT_TRUE(absl::IsInvalidArgument(write("t", {33}, 34)));
  EXPECT_TRUE(absl::IsInvalidArgument(write("t", {32, 0}, 34)));
  EXPECT_TRUE(absl::IsInvalidArgument(write("t", {32, INT64_MAX}, 34)));
  EXPECT_TRUE(absl::IsInvalidArgument(write("t", {}, 34)));
  EXPECT_TRUE(absl::IsInvalidArgument(write("", {32}, 34)));
  EXPECT_TRUE(absl::IsInvalidArgument(write(std::string(64, 'x'), {32}, 34)));
  EXPECT_TRUE(absl::IsInvalidArgument(write("t", {64}, 34)));
  EXPECT_TRUE(absl::IsInvalidArgument(write("t", {32}, 33)));
  GgufWriter twice;
  twice.AddTensor("t", GgmlType::kQ8_0, {32}, data);
  twice.AddTensor("t", GgmlType::kQ8_0, {32}, data);
  EXPECT_TRUE(absl::IsInvalidArgument(twice.Write(File("a.gguf"))));
  GgufWriter alignment;
  alignment.Set<uint32_t>("general.alignment", 48);
  EXPECT_TRUE(absl::IsInvalidArgument(alignment.Write(File("a.gguf"))));
  EXPECT_EQ(FileCount(), 0u) << "a failed write leaves nothing behind";
}

TEST_F(WriterTest, FailureKeepsTheOldFile) {
  ASSERT_TRUE(AllTypes().Write(File("a.gguf")).ok());
  GgufWriter broken = AllTypes();
  broken.AddTensor("t", GgmlType::kF32, {1},
                   [](const TensorSink&) { return absl::DataLossError("source failed"); });
  EXPECT_EQ(broken.Write(File("a.gguf")).code(), absl::StatusCode::kDataLoss);
  ExpectAllTypes(GgufFile::Open(File("a.gguf")).value());
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(WriterTest, DiskErrorsNameThePath) {
  const absl::Status status = AllTypes().Write(File("missing/a.gguf"));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(status.message().find("missing/a.gguf"), absl::string_view::npos) << status;
}

TEST_F(WriterTest, AFullDiskIsToldAndLeavesNothing) {
  // A limit on file sizes simulates a full disk.
  struct rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {.rlim_cur = 1 << 20, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::vector<uint8_t> data(4 << 20);
  GgufWriter writer = AllTypes();
  writer.AddTensor("t", GgmlType::kI8, {4 << 20}, data);
  const absl::Status status = writer.Write(File("a.gguf"));
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.message().find("a.gguf"), absl::string_view::npos) << status;
  EXPECT_EQ(FileCount(), 0u);
}

}  // namespace
}  // namespace withy::engine
