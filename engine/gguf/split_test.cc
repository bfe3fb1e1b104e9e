#include "engine/gguf/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/strings.h"
#include "base/utf8.h"
#include "engine/gguf/testing.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::vector<uint8_t> Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Write(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

class SplitTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    GgufWriter writer;
    writer.SetString("general.name", "seven tensors");
    for (uint8_t i = 0; i < 7; ++i) {
      std::vector<uint8_t>& bytes = data_.emplace_back(4u * (i + 1u), i);
      writer.AddTensor("t" + std::to_string(i), GgmlType::kF32, {i + 1}, bytes);
    }
    ASSERT_TRUE(writer.Write(Path("whole.gguf")).ok());
    whole_ = *GgufFile::Open(Path("whole.gguf"));
    paths_ = WriteSplit(*whole_, Path("m"), 3);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }

  // Checks that the model is refused, and what is said of it.
  template <typename Matcher>
  void ExpectRefused(const std::string& path, absl::StatusCode code, const Matcher& says) {
    const absl::Status status = GgufFile::Open(path).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), says);
  }
  template <typename Matcher>
  void ExpectRefused(const Matcher& says) {
    ExpectRefused(paths_[0], absl::StatusCode::kInvalidArgument, says);
  }

  const fs::path folder_ =
      fs::path(testing::TempDir()) / ("gguf_split_" + std::to_string(getpid()));
  std::vector<std::vector<uint8_t>> data_;
  std::optional<GgufFile> whole_;
  std::vector<std::string> paths_;
};

TEST_F(SplitTest, AllPartsAreOneModel) {
  auto opened = GgufFile::Open(paths_[0]);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const GgufFile file = *std::move(opened);
  EXPECT_EQ(file.GetString("general.name").value(), "seven tensors");
  ASSERT_EQ(file.parts().size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(file.parts()[i].path, paths_[i]);
  ASSERT_EQ(file.tensors().size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    const TensorInfo* tensor = file.FindTensor("t" + std::to_string(i));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor, &file.tensors()[i]);
    EXPECT_TRUE(std::ranges::equal(file.Data(*tensor), data_[i])) << i;
  }
}

// As with gguf-split --no-tensor-first-split.
TEST_F(SplitTest, TheFirstPartMayHaveMetadataOnly) {
  WritePart(*whole_, {0, 2, 7}, 0, 0, Path("n-00001-of-00002.gguf"));
  WritePart(*whole_, {1, 2, 7}, 0, 7, Path("n-00002-of-00002.gguf"));
  const auto file = GgufFile::Open(Path("n-00001-of-00002.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::ranges::equal(file->Data(**file->GetTensor("t6")), data_[6]));
}

TEST_F(SplitTest, ACopyIsWholeAndDoesNotSayThatItIsSplit) {
  const auto file = GgufFile::Open(paths_[0]);
  ASSERT_TRUE(file.ok()) << file.status();
  GgufWriter writer;
  writer.CopyMetadata(*file);
  for (const TensorInfo& tensor : file->tensors()) {
    writer.AddTensor(tensor.name, tensor.type, tensor.dims, file->Data(tensor));
  }
  ASSERT_TRUE(writer.Write(Path("copy.gguf")).ok());
  EXPECT_EQ(Read(Path("copy.gguf")), Read(Path("whole.gguf")));
}

TEST_F(SplitTest, ALaterPartNamesTheFirst) {
  ExpectRefused(paths_[1], absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("part 2 of 3"), HasSubstr("name its first part, " + paths_[0])));
  fs::rename(paths_[2], Path("renamed.gguf"));
  ExpectRefused(Path("renamed.gguf"), absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("part 3 of 3"), HasSubstr("NAME-00001-of-00003.gguf")));
}

TEST_F(SplitTest, AMissingPartIsNamed) {
  fs::remove(paths_[2]);
  ExpectRefused(paths_[0], absl::StatusCode::kNotFound,
                AllOf(HasSubstr(paths_[2]), HasSubstr("part 3 of 3"), HasSubstr("download")));
}

TEST_F(SplitTest, ARenamedFirstPartSaysHowItMustBeNamed) {
  for (const char* name : {"renamed.gguf", "m-00001-of-00004.gguf", "m-00002-of-00003.gguf"}) {
    fs::copy_file(paths_[0], Path(name), fs::copy_options::overwrite_existing);
    ExpectRefused(Path(name), absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(Path(name)), HasSubstr("must end in -00001-of-00003.gguf")));
  }
}

TEST_F(SplitTest, PartsThatDoNotBelongTogetherAreRefused) {
  const std::string second = paths_[1];
  struct Wrong {
    SplitKeys keys;
    size_t begin = 0;
    size_t end = 0;
    std::string says;
  };
  for (const Wrong& wrong : std::vector<Wrong>{
           {{2, 3, 7}, 2, 4, "split.no is 2"},
           {{1, 4, 7}, 2, 4, "split.count is 4, and the first part's is 3"},
           {{1, 3, 8}, 2, 4, "split.tensors.count is 8, and the first part's is 7"},
           {{1, 3, 7}, 1, 4, "it has the tensor t1, which is also in " + paths_[0]},
       }) {
    WritePart(*whole_, wrong.keys, wrong.begin, wrong.end, second);
    ExpectRefused(AllOf(HasSubstr(second), HasSubstr(wrong.says),
                        HasSubstr("take all parts from one download")));
  }
  WritePart(*whole_, {1, 3, 7}, 2, 3, second);
  ExpectRefused(AllOf(HasSubstr("3 parts have 6 tensors, and split.tensors.count is 7"),
                      HasSubstr("take all parts")));
  fs::copy_file(Path("whole.gguf"), second, fs::copy_options::overwrite_existing);
  ExpectRefused(AllOf(HasSubstr(second), HasSubstr("split.no is missing")));
  Write(second, {'G', 'G'});
  ExpectRefused(AllOf(HasSubstr(second), HasSubstr("not a GGUF file")));
}

TEST_F(SplitTest, TooManyPartsAreRefused) {
  WritePart(*whole_, {0, 2000, 7}, 0, 7, Path("m-00001-of-02000.gguf"));
  ExpectRefused(Path("m-00001-of-02000.gguf"), absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("split.count is 2000"), HasSubstr("--merge")));
}

TEST(GgufPartPathsTest, OnlyANameOfAFirstPartHasOthers) {
  EXPECT_THAT(GgufPartPaths("/a/m-00001-of-00002.gguf"),
              testing::ElementsAre("/a/m-00001-of-00002.gguf", "/a/m-00002-of-00002.gguf"));
  for (const char* path :
       {"", "m.gguf", "-00001-of-00002.gguf", "m-00002-of-00002.gguf", "m-00001-of-00000.gguf",
        "m-00001-of-0000x.gguf", "m-00001-of- 0002.gguf", "m-00001-of-00002.GGUF",
        "m-00001_of-00002.gguf", "m-00001-of-99999.gguf"}) {
    EXPECT_THAT(GgufPartPaths(path), testing::ElementsAre(path));
  }
}

// Whatever the parts contain, the model is refused with a message, or all of it can be read.
TEST_F(SplitTest, RandomDamageOfPartsNeverCrashes) {
  std::vector<std::vector<uint8_t>> sound;
  for (const std::string& path : paths_) sound.push_back(Read(path));
  std::mt19937 random(23);
  int opened = 0;
  constexpr int kRounds = 500;
  for (int round = 0; round < kRounds; ++round) {
    const size_t part = random() % paths_.size();
    std::vector<uint8_t> damaged = sound[random() % 8 == 0 ? random() % sound.size() : part];
    const size_t changes = random() % 4;
    for (size_t i = 0; i < changes; ++i) {
      damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    Write(paths_[part], damaged);
    const auto file = GgufFile::Open(paths_[0]);
    if (file.ok()) {
      ++opened;
      uint32_t sum = 0;
      for (const TensorInfo& tensor : file->tensors()) {
        ASSERT_LT(tensor.part, file->parts().size());
        ASSERT_LE(tensor.offset + tensor.bytes, file->parts()[tensor.part].bytes.size());
        for (const uint8_t byte : file->Data(tensor)) sum += byte;
      }
      EXPECT_NE(sum, UINT32_MAX);
    } else {
      const std::string_view message = ToStd(file.status().message());
      EXPECT_EQ(ValidUtf8(message), message);
      EXPECT_THAT(std::string(message), HasSubstr(Path("m-0000")));
    }
    Write(paths_[part], sound[part]);
  }
  EXPECT_GT(opened, kRounds / 20) << "nothing but refusals was tried";
  EXPECT_LT(opened, kRounds / 2);
}

}  // namespace
}  // namespace withy::engine
