// Tests reading a peer's figures; a script stands in for the peer.
#include "bench/engine/peer_bench.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

class PeerBenchTest : public testing::Test {
 protected:
  PeerBenchTest() {
    std::string pattern = testing::TempDir() + "withy_peer_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~PeerBenchTest() override { fs::remove_all(folder_); }

  // A program that prints `help` for --help. Otherwise it writes its arguments to a file and prints
  // `output`.
  std::string Script(const std::string& help, const std::string& output, int status = 0) {
    const fs::path path = folder_ / "llama-bench";
    std::ofstream(path) << "#!/bin/sh\nif [ \"$1\" = --help ]; then echo '" << help
                        << "'; exit 1; fi\necho \"$@\" > " << (folder_ / "arguments").string()
                        << "\necho '" << output << "'\nexit " << status << "\n";
    fs::permissions(path, fs::perms::owner_all);
    return path;
  }
  std::string Arguments() {
    std::ifstream in(folder_ / "arguments");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path folder_;
};

constexpr char kGood[] =
    R"([{"n_prompt": 512, "n_gen": 0, "avg_ts": 140.5}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 37.25}])";

TEST_F(PeerBenchTest, ReadsBothSpeeds) {
  const auto peer = PeerBench::Open(Script("usage", kGood));
  ASSERT_TRUE(peer.ok()) << peer.status();
  const auto speed = peer->Run("a.gguf", 2, 512, 64);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_EQ(speed->prefill_tok_s, 140.5);
  EXPECT_EQ(speed->decode_tok_s, 37.25);
  EXPECT_EQ(Arguments(), "-m a.gguf -t 2 -p 512 -n 64 -r 1 -o json\n");
}

TEST_F(PeerBenchTest, RepacksWhereThePeerCan) {
  const auto peer = PeerBench::Open(Script("-rtr, --run-time-repack <0|1>", kGood));
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE(peer->Run("a.gguf", 2, 512, 64).ok());
  EXPECT_NE(Arguments().find("-rtr 1"), std::string::npos);
  ASSERT_TRUE(peer->Run("a.gguf", 2, 512, 64, PeerBench::Repack::kNever).ok());
  EXPECT_EQ(Arguments().find("-rtr 1"), std::string::npos);
}

TEST_F(PeerBenchTest, SaysWhatWentWrong) {
  EXPECT_EQ(PeerBench::Open(folder_ / "missing").status().code(), absl::StatusCode::kNotFound);
  for (const auto& [output, status] :
       {std::pair("nonsense", 0), std::pair("[]", 0), std::pair(kGood, 3)}) {
    const auto peer = PeerBench::Open(Script("usage", output, status));
    ASSERT_TRUE(peer.ok());
    EXPECT_EQ(peer->Run("a.gguf", 2, 512, 64).status().code(), absl::StatusCode::kInternal)
        << output;
  }
}

}  // namespace
}  // namespace withy::bench
