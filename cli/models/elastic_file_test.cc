// Tests that a downloaded model is made elastic once, by the overlay for it, and anew when the
// result is damaged or of another overlay.
#include "cli/models/elastic_file.h"

#include <filesystem>
#include <fstream>

#include "base/config/defaults.h"
#include "base/files.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "engine/model/synth.h"
#include "engine/weights/overlay.h"
#include "engine/weights/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using testing::HasSubstr;

class ElasticFileTest : public ::testing::Test {
 protected:
  ElasticFileTest() {
    std::string pattern = testing::TempDir() + "elastic_XXXXXX";
    dir_ = mkdtemp(pattern.data());
    shape_ = *engine::FindSynthShape("tiny");
    EXPECT_TRUE(engine::WriteSynthModel(shape_, engine::GgmlType::kQ8_0, 7, plain()).ok());
    std::filesystem::create_directory(overlays());
  }
  ~ElasticFileTest() override { std::filesystem::remove_all(dir_); }

  std::string plain() const { return dir_ + "/model.gguf"; }
  std::string overlays() const { return dir_ + "/overlays"; }

  // The last neuron comes first.
  void WriteOverlay(const std::string& name, const std::vector<int32_t>& levels,
                    const std::string& source_sha256) const {
    engine::SynthShape levelled = shape_;
    levelled.levels = levels;
    const std::string path = dir_ + "/levels.gguf";
    ASSERT_TRUE(engine::WriteSynthModel(levelled, engine::GgmlType::kQ8_0, 7, path).ok());
    const engine::GgufFile file = engine::GgufFile::Open(path).value();
    const auto units = [&](int32_t count, bool turn) {
      std::vector<uint32_t> order;
      for (int32_t layer = 0; layer < shape_.layers; ++layer) {
        for (int32_t i = 0; i < count; ++i) {
          order.push_back(static_cast<uint32_t>(turn ? count - 1 - i : i));
        }
      }
      return order;
    };
    engine::GgufWriter writer;
    writer.CopyMetadata(file, [](std::string_view key) { return !key.starts_with("withy."); });
    writer.SetString(engine::kOverlaySource, source_sha256);
    writer.SetArray<uint32_t>(engine::kOverlayHeads, units(shape_.heads, false));
    writer.SetArray<uint32_t>(engine::kOverlayNeurons, units(shape_.d_ff, true));
    for (const engine::TensorInfo& tensor : file.tensors()) {
      if (!tensor.name.starts_with("withy.")) continue;
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, file.Data(tensor));
    }
    ASSERT_TRUE(writer.Write(overlays() + "/" + name).ok());
  }

  absl::StatusOr<ElasticFile> Ensure() const {
    return EnsureElastic(plain(), overlays(), [](double, std::string_view) {});
  }

  std::string dir_;
  engine::SynthShape shape_;
};

TEST_F(ElasticFileTest, WithoutAnOverlayThePlainFileIsServed) {
  for (const std::string& where : {overlays(), dir_ + "/nowhere"}) {
    const auto file = EnsureElastic(plain(), where, [](double, std::string_view) {});
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->path, plain());
    EXPECT_EQ(file->overlay, "");
  }
  WriteOverlay("other.overlay.gguf", {50}, std::string(64, 'a'));
  EXPECT_EQ(Ensure()->path, plain());
}

TEST_F(ElasticFileTest, TheOverlayForTheFileIsAppliedOnce) {
  WriteOverlay("other.overlay.gguf", {50}, std::string(64, 'a'));
  WriteOverlay("tiny.overlay.gguf", {40, 70}, *engine::Sha256OfFile(plain()));
  const auto first = Ensure();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->path, dir_ + "/model.elastic.gguf");
  EXPECT_EQ(first->overlay, "tiny.overlay.gguf");
  EXPECT_THAT(first->levels, testing::ElementsAre(40, 70));
  EXPECT_TRUE(first->made);
  const auto second = Ensure();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->path, first->path);
  EXPECT_FALSE(second->made);
}

TEST_F(ElasticFileTest, ADamagedOrOlderResultIsMadeAnew) {
  const std::string sha256 = *engine::Sha256OfFile(plain());
  WriteOverlay("tiny.overlay.gguf", {40, 70}, sha256);
  const auto first = Ensure();
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string whole = *engine::Sha256OfFile(first->path);
  const auto size = std::filesystem::file_size(first->path);
  {
    std::fstream file(first->path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size / 2));
    file << "damage";
  }
  EXPECT_TRUE(Ensure()->made);
  EXPECT_EQ(*engine::Sha256OfFile(first->path), whole);
  std::filesystem::resize_file(first->path, size / 2);
  EXPECT_TRUE(Ensure()->made);
  EXPECT_EQ(*engine::Sha256OfFile(first->path), whole);
  std::filesystem::remove(first->path + ".sha256");
  EXPECT_TRUE(Ensure()->made);
  WriteOverlay("tiny.overlay.gguf", {50}, sha256);
  const auto newer = Ensure();
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_TRUE(newer->made);
  EXPECT_THAT(newer->levels, testing::ElementsAre(50));
  EXPECT_FALSE(Ensure()->made);
}

TEST_F(ElasticFileTest, TheTlmThatShipsWithTheOverlayIsWhereTheServiceLooks) {
  WriteOverlay("tiny.overlay.gguf", {50}, *engine::Sha256OfFile(plain()));
  EXPECT_EQ(Ensure()->tlm, "");
  EXPECT_EQ(DefaultTlmPath(dir_ + "/model.elastic.gguf"), "");
  const auto text = [](const std::string& path) { return *ReadRegularFile(path, 100); };
  for (const char* version : {"first", "second"}) {
    std::ofstream(overlays() + "/tiny.tlm.gguf") << version;
    const auto elastic = Ensure();
    ASSERT_TRUE(elastic.ok()) << elastic.status();
    EXPECT_EQ(elastic->tlm, dir_ + "/model.elastic.tlm.gguf");
    EXPECT_EQ(DefaultTlmPath(elastic->path), elastic->tlm);
    EXPECT_EQ(text(elastic->tlm), version);
  }
}

TEST_F(ElasticFileTest, AnOverlayThatCannotBeReadSaysHowToGoOn) {
  std::ofstream(overlays() + "/bad.overlay.gguf") << "no GGUF";
  const absl::Status status = Ensure().status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("bad.overlay.gguf"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--plain takes it as it is"));
  WriteOverlay("tiny.overlay.gguf", {50}, *engine::Sha256OfFile(plain()));
  EXPECT_TRUE(Ensure().ok()) << "another one is for the file";
}

}  // namespace
}  // namespace withy::cli
