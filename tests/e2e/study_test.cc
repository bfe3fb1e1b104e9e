// `withyctl profile study` as a user runs it: each study on the pocket model, its files, and what
// it refuses. Needs no service.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct StudyRun {
  int code = -1;
  std::string out, err;
};

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class StudyTest : public ::testing::Test {
 protected:
  StudyTest() {
    char pattern[] = "/tmp/withy-e2e-XXXXXX";
    dir_ = mkdtemp(pattern);
    std::ofstream(dir_ + "/withy.textproto")
        << "state_dir: \"" << dir_ << "/state\" run_dir: \"" << dir_ << "/run\"\n";
    std::filesystem::create_directories(dir_ + "/state/packed");
  }
  ~StudyTest() override { std::filesystem::remove_all(dir_); }

  StudyRun Run(const std::string& words) const {
    const std::string withyctl =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "withyctl";
    const std::string command = "TMPDIR=" + dir_ + " " + withyctl + " profile study " + words +
                                " --config " + dir_ + "/withy.textproto >" + dir_ + "/out 2>" +
                                dir_ + "/err";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Slurp(dir_ + "/out"),
            Slurp(dir_ + "/err")};
  }
  // Runs a study and returns what it wrote.
  nlohmann::json Study(const std::string& study, const std::string& flags,
                       const std::vector<std::string>& plots) const {
    const StudyRun run = Run(study + " --rounds 1 --prompt-tokens 24 --answer-tokens 6 --out " +
                             dir_ + "/report " + flags);
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("LM-Meter: "));
    for (const std::string& plot : plots) {
      EXPECT_THAT(Slurp(dir_ + "/report/" + plot), AllOf(HasSubstr("<svg"), HasSubstr("</svg>")))
          << plot;
    }
    for (const auto& entry : std::filesystem::directory_iterator(dir_)) {
      EXPECT_EQ(entry.path().string().find("withy-study-"), std::string::npos)
          << "temporary files are removed: " << entry.path();
    }
    const auto json = nlohmann::json::parse(Slurp(dir_ + "/report/" + study + ".json"), nullptr,
                                            /*allow_exceptions=*/false);
    EXPECT_EQ(json["study"], study);
    EXPECT_FALSE(json["findings"].empty());
    return json;
  }

  std::string dir_;
};

TEST_F(StudyTest, Phases) {
  const auto json = Study("phases", "--levels", {"phases-shares.svg", "phases-tokens.svg"});
  EXPECT_GT(json["models"].size(), 5u) << "the pocket model's levels";
}

TEST_F(StudyTest, Kernels) {
  const auto json = Study("kernels", "", {"kernels.svg"});
  EXPECT_GT(json["kernels"].size(), 10u);
}

TEST_F(StudyTest, Quantization) {
  const auto json = Study("quantization", "--types q4_0 --text-tokens 300", {"quantization.svg"});
  ASSERT_EQ(json["files"].size(), 2u);
  EXPECT_EQ(json["files"][0]["type"], "Q8_0");
  EXPECT_GT(json["files"][1]["divergence_nats"], 0);
}

TEST_F(StudyTest, Sampling) {
  std::ofstream prompts(dir_ + "/prompts.txt");
  for (int i = 0; i < 40; ++i) {
    prompts << "Lonir has " << i;
    for (int w = 0; w < i * i % 23; ++w) prompts << " songs and " << w;
    prompts << " and sells 4.\n";
  }
  prompts.close();
  const auto json = Study("sampling", "--prompts " + dir_ + "/prompts.txt --share 0.25 --whole-set",
                          {"sampling-lengths.svg"});
  EXPECT_EQ(json["subsets"][0]["prompts"], 10);
}

TEST_F(StudyTest, KvLength) {
  const auto json = Study("kv-length", "--depths 16,64", {"kv-length.svg"});
  EXPECT_EQ(json["depths"].size(), 2u);
}

TEST_F(StudyTest, Idle) {
  const auto json =
      Study("idle", "--pauses 0,0.01 --answer-tokens 17", {"idle-answers.svg", "idle-pauses.svg"});
  EXPECT_EQ(json["pauses"].size(), 2u);
}

TEST_F(StudyTest, JsonOnStandardOutput) {
  const StudyRun run = Run("kernels --rounds 1 --prompt-tokens 8 --json");
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(nlohmann::json::accept(run.out)) << run.out;
}

TEST_F(StudyTest, WhatIsWrongIsNamed) {
  struct Case {
    std::string words;
    int code;
    std::vector<std::string> says;
  };
  std::ofstream(dir_ + "/file") << "text";
  const std::vector<Case> cases = {
      {"", 2, {"phases", "kv-length"}},
      {"phase", 2, {"\"phase\"", "phases, kernels, quantization, sampling, kv-length, idle"}},
      {"phases --model /none.gguf", 1, {"/none.gguf", "--model"}},
      {"phases --rounds 0", 2, {"--rounds"}},
      {"phases --text /none.txt", 2, {"/none.txt", "give a file of text"}},
      {"phases --out " + dir_ + "/file", 1, {dir_ + "/file", "--out"}},
      {"phases --out /proc/here", 1, {"/proc/here", "--out"}},
      {"quantization", 1, {"--types", "--model"}},
      {"quantization --types q4_k", 2, {"q4_k", "q4_0"}},
      {"quantization --model models/withy-pocket-q8_0.gguf --model "
       "models/withy-pocket-draft-q8_0.gguf",
       1,
       {"withy-pocket-draft-q8_0.gguf", "not of one model"}},
      {"sampling", 1, {"--prompts"}},
      {"sampling --prompts " + dir_ + "/file", 1, {"at least 10"}},
      {"sampling --share 2", 2, {"--share", "at most 1"}},
      {"kv-length --depths 1,x", 2, {"--depths", "\"x\""}},
      {"kv-length --depths 900000", 1, {"--depths", "900000"}},
      {"idle --pauses -1", 1, {"--pauses", "-1"}},
  };
  for (const Case& wrong : cases) {
    const StudyRun run = Run(wrong.words);
    EXPECT_EQ(run.code, wrong.code) << wrong.words << ": " << run.err;
    EXPECT_EQ(run.out, "") << wrong.words;
    for (const std::string& text : wrong.says) EXPECT_THAT(run.err, HasSubstr(text)) << wrong.words;
  }
}

}  // namespace
}  // namespace withy::e2e
