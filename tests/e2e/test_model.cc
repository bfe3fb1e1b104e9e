#include "tests/e2e/test_model.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/encoder/testing.h"
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

std::string PathOf(const std::string& name) {
  static const ModelDir dir;
  return dir.path + "/" + name + ".gguf";
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

engine::SynthShape TinyShape() {
  auto shape = engine::FindSynthShape("tiny");
  Check(shape.status());
  return *std::move(shape);
}

std::string Write(const std::string& name, uint64_t seed, const engine::SynthShape& shape) {
  const auto type = engine::FindSynthType("q8_0");
  Check(type.status());
  Check(engine::WriteSynthModel(shape, *type, seed, PathOf(name)));
  return PathOf(name);
}

std::string WriteSlow() {
  engine::SynthShape shape = TinyShape();
  shape.layers = 12;
  shape.d_model = 512;
  shape.head_dim = 64;
  shape.d_ff = 2048;
  return Write("story", 3, shape);
}

std::string WriteElastic() {
  engine::SynthShape shape = TinyShape();
  shape.levels = {20, 60};
  return Write("elastic", 1, shape);
}

std::string WriteLargeElastic() {
  engine::SynthShape shape = TinyShape();
  shape.layers = 12;
  shape.d_model = 256;
  shape.head_dim = 32;
  shape.d_ff = 2048;
  shape.levels = {20, 60};
  return Write("large-elastic", 5, shape);
}

std::string WriteTinyTlm() {
  Check(engine::WriteTlm(engine::SmallTlm(), engine::GgmlType::kQ8_0, PathOf("tlm")));
  return PathOf("tlm");
}

}  // namespace

const std::string& TestTargetPath() {
  static const std::string path = Write("target", 1, TinyShape());
  return path;
}

const std::string& TestForeignDraftPath() {
  static const std::string path = [] {
    engine::SynthShape shape = TinyShape();
    shape.vocab_size += 64;
    return Write("foreign", 2, shape);
  }();
  return path;
}

const std::string& TestDraftPath() {
  static const std::string path = Write("draft", 2, TinyShape());
  return path;
}

const std::string& TestSlowPath() {
  static const std::string path = WriteSlow();
  return path;
}

const std::string& SlowModelPath() {
  static const std::string path = [] {
    auto shape = engine::FindSynthShape("tiny");
    if (!shape.ok()) std::abort();
    shape->layers = 12;
    shape->d_model = 768;
    shape->heads = 12;
    shape->kv_heads = 2;
    shape->head_dim = 64;
    shape->d_ff = 3072;
    shape->context_length = 8192;
    Check(engine::WriteSynthModel(*shape, *engine::FindSynthType("q8_0"), 1, PathOf("slow")));
    return PathOf("slow");
  }();
  return path;
}

const std::string& TestWindowedPath() {
  static const std::string path = [] {
    engine::SynthShape shape = TinyShape();
    shape.architecture = "gemma3";
    shape.layers = 6;
    shape.sliding_window = 32;
    shape.context_length = 4096;
    return Write("windowed", 6, shape);
  }();
  return path;
}

const std::string& TestElasticPath() {
  static const std::string path = WriteElastic();
  return path;
}

const std::string& LargeElasticPath() {
  static const std::string path = WriteLargeElastic();
  return path;
}

const std::string& TestTlmPath() {
  static const std::string path = WriteTinyTlm();
  return path;
}

}  // namespace withy::e2e
