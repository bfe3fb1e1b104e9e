// Runs a fuzz target on its stored corpus and on truncated and damaged copies, without libFuzzer.
// Run in the repository root; linked with one X_fuzz.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace withy {
namespace {

// Copies the input to a buffer of exactly its size, so that a sanitizer detects reads past the end.
void RunTarget(std::vector<uint8_t> input) {
  input.shrink_to_fit();
  EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
}

TEST(FuzzReplayTest, CorpusAndDamagedCopies) {
  size_t files = 0;
  std::mt19937 random(1);
  for (const auto& entry : std::filesystem::directory_iterator(WITHY_FUZZ_CORPUS)) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<uint8_t> input{std::istreambuf_iterator<char>(in), {}};
    RunTarget(input);
    for (int i = 0; i < 20 && !input.empty(); ++i) {
      std::vector<uint8_t> damaged(input.begin(), input.end());
      damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
      RunTarget(damaged);
      damaged.resize(random() % damaged.size());
      RunTarget(damaged);
    }
    ++files;
  }
  EXPECT_GT(files, 0u) << "no corpus at " << WITHY_FUZZ_CORPUS << "; run from the repository root";
}

}  // namespace
}  // namespace withy
