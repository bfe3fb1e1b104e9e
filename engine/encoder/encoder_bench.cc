// Time of a TLM for windows of several lengths: encoder_bench [threads [tlm.gguf | mobilebert]].
// Without a file uses random weights of the pocket shape, or of MobileBERT's published shape with
// both towers.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <vector>

#include "engine/encoder/checkpoint.h"
#include "engine/encoder/tlm.h"
#include "engine/gguf/reader.h"

namespace withy::engine {
namespace {

TlmCheckpoint RandomTlm(bool published) {
  std::string lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";
  for (int i = 0; i < 8000; ++i) lines += "w" + std::to_string(i) + "\n";
  WordPieceVocab vocab = *ParseVocab(lines, "vocab");
  AddSloTokens(10, &vocab);
  TlmShape shape;
  shape.encoder = {.vocab = vocab.size(),
                   .embedding = 64,
                   .hidden = 128,
                   .bottleneck = 64,
                   .ffn = 256,
                   .ffn_count = 2,
                   .heads = 2};
  shape.shared_layers = 2;
  shape.score_layers = shape.decision_layers = 2;
  if (published) {
    shape.encoder = {.vocab = vocab.size(),
                     .embedding = 128,
                     .hidden = 512,
                     .bottleneck = 128,
                     .ffn = 512,
                     .ffn_count = 4,
                     .heads = 4};
    shape.shared_layers = shape.score_layers = shape.decision_layers = 12;
  }
  shape.prompt_levels = shape.model_levels = DefaultLevels();
  return *MakeTlmCheckpoint(shape, vocab, 1);
}

// CPU time of this process, which busy neighbours affect least.
double CpuMs() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

int64_t Parameters(const TlmShape& shape) {
  int64_t n = 0;
  for (const TensorSpec& spec : TlmTensors(shape)) n += spec.elements();
  return n;
}

int Main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  std::vector<std::string> paths(argv + std::min(argc, 2), argv + argc);
  const bool published = paths == std::vector<std::string>{"mobilebert"};
  const bool made = paths.empty() || published;
  if (made) {
    paths.clear();
    for (const GgmlType type : {GgmlType::kF32, GgmlType::kQ8_0}) {
      const std::string name = type == GgmlType::kF32 ? "f32" : "q8_0";
      paths.push_back(std::filesystem::temp_directory_path() / ("encoder_bench_" + name + ".gguf"));
      if (!WriteTlm(RandomTlm(published), type, paths.back()).ok()) return 1;
    }
  }
  for (const std::string& path : paths) {
    auto tlm = Tlm::Open(path, {.threads = threads});
    if (!tlm.ok()) {
      std::fprintf(stderr, "%s\n", std::string(tlm.status().message()).c_str());
      return 1;
    }
    std::printf("%s: %.2f M parameters, %d threads\n", path.c_str(),
                static_cast<double>(Parameters((*tlm)->shape())) * 1e-6, threads);
    for (const int words : {16, 60, 124, 252, 508, 2032}) {
      std::string text;
      for (int i = 0; i < words; ++i) text += "w" + std::to_string(i * 7 % 8000) + " ";
      std::vector<double> ms;
      const int kRounds = published ? 3 : 15;
      const double cpu = CpuMs();
      int tokens = 0;
      for (int round = 0; round < kRounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        tokens = (*tlm)->Read(text, {.ttft_ratio = 0.5})->tokens;
        ms.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                .count());
      }
      const double used = (CpuMs() - cpu) / kRounds;
      std::sort(ms.begin(), ms.end());
      std::printf("  %4d words, %4d tokens: median %.3f ms, best %.3f ms, processor %.3f ms\n",
                  words, tokens, ms[ms.size() / 2], ms[0], used);
      std::fflush(stdout);
    }
    if (made) std::filesystem::remove(path);
  }
  return 0;
}

}  // namespace
}  // namespace withy::engine

int main(int argc, char** argv) { return withy::engine::Main(argc, argv); }
