#include "tests/e2e/test_model.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/model/synth.h"

namespace withy::e2e {
namespace {

// Removed when the test binary ends.
struct ModelDir {
  ModelDir() {
    char pattern[] = "/tmp/withy-models-XXXXXX";
    path = mkdtemp(pattern);
  }
  ~ModelDir() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string Write(const std::string& name, uint64_t seed) {
  static const ModelDir dir;
  const std::string path = dir.path + "/" + name + ".gguf";
  const auto shape = engine::FindSynthShape("tiny");
  const auto type = engine::FindSynthType("q8_0");
  if (!shape.ok() || !type.ok()) std::abort();
  const absl::Status status = engine::WriteSynthModel(*shape, *type, seed, path);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::abort();
  }
  return path;
}

}  // namespace

const std::string& TestTargetPath() {
  static const std::string path = Write("target", 1);
  return path;
}

const std::string& TestDraftPath() {
  static const std::string path = Write("draft", 2);
  return path;
}

}  // namespace withy::e2e
