// Downloads from file URLs, which libcurl reads and continues as it does those of a server.
#include "cli/models/model_fetch.h"

#include <archive.h>
#include <archive_entry.h>
#include <openssl/sha.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}

class ModelFetchTest : public ::testing::Test {
 protected:
  ModelFetchTest() {
    std::string pattern = testing::TempDir() + "fetch_XXXXXX";
    dir_ = mkdtemp(pattern.data());
    archive_ = dir_ + "/package.zip";
    for (uint64_t i = 0; i < 300'000; ++i) content_ += static_cast<char>(i * i >> 5);
    WriteArchive();
    const std::string bytes = ReadAll(archive_);
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
    model_ = {.name = "m",
              .description = "",
              .file = "m.gguf",
              .url = "file://" + archive_,
              .bytes = bytes.size(),
              .sha256 = absl::BytesToHexString(
                  absl::string_view(reinterpret_cast<const char*>(digest), sizeof digest))};
  }
  ~ModelFetchTest() override { fs::remove_all(dir_); }

  void WriteArchive() const {
    archive* out = archive_write_new();
    archive_write_set_format_zip(out);
    ASSERT_EQ(archive_write_open_filename(out, archive_.c_str()), ARCHIVE_OK);
    for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
             {"package/readme.txt", "hello"}, {"package/m.gguf", content_}}) {
      archive_entry* entry = archive_entry_new();
      archive_entry_set_pathname(entry, name.c_str());
      archive_entry_set_size(entry, static_cast<int64_t>(text.size()));
      archive_entry_set_filetype(entry, AE_IFREG);
      archive_entry_set_perm(entry, 0644);
      archive_write_header(out, entry);
      archive_write_data(out, text.data(), text.size());
      archive_entry_free(entry);
    }
    archive_write_free(out);
  }
  absl::StatusOr<std::string> Fetch() {
    return FetchModel(model_, dir_ + "/models", [this](double done, std::string_view) {
      EXPECT_GE(done, 0);
      EXPECT_LE(done, 1);
      ++reports_;
    });
  }
  std::string part() const { return dir_ + "/models/.m.part"; }

  std::string dir_;
  std::string archive_;
  std::string content_;
  NamedModel model_;
  int reports_ = 0;
};

TEST_F(ModelFetchTest, TheFileComesOnce) {
  const auto path = Fetch();
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, dir_ + "/models/m.gguf");
  EXPECT_EQ(ReadAll(*path), content_);
  EXPECT_GT(reports_, 0);
  EXPECT_FALSE(fs::exists(part()));
  fs::remove(archive_);
  EXPECT_TRUE(Fetch().ok()) << "it is there";
}

TEST_F(ModelFetchTest, ABrokenDownloadIsContinued) {
  fs::create_directories(dir_ + "/models");
  std::ofstream(part(), std::ios::binary) << ReadAll(archive_).substr(0, model_.bytes / 2);
  const auto path = Fetch();
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(ReadAll(*path), content_);
}

TEST_F(ModelFetchTest, AWholeDownloadIsNotRepeated) {
  fs::create_directories(dir_ + "/models");
  fs::copy(archive_, part());
  fs::remove(archive_);
  EXPECT_TRUE(Fetch().ok());
}

TEST_F(ModelFetchTest, AnotherArchiveIsRefusedAndRemoved) {
  fs::create_directories(dir_ + "/models");
  std::ofstream(part(), std::ios::binary) << std::string(model_.bytes / 2, 'x');
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(model_.sha256));
  EXPECT_FALSE(fs::exists(dir_ + "/models/m.gguf"));
  EXPECT_TRUE(Fetch().ok()) << "the next try begins anew";
}

TEST_F(ModelFetchTest, WithoutANetworkItSaysWhatToDo) {
  fs::remove(archive_);
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(model_.url));
  EXPECT_THAT(std::string(status.message()), HasSubstr("another machine"));
}

TEST_F(ModelFetchTest, AnArchiveWithoutTheFileIsNamed) {
  model_.file = "other.gguf";
  const absl::Status status = Fetch().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("other.gguf"));
}

TEST(NamedModelTest, NamesAreKnown) {
  EXPECT_TRUE(FindNamedModel("smollm2").ok());
  const absl::Status status = FindNamedModel("gpt").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("smollm2"));
}

}  // namespace
}  // namespace withy::cli
