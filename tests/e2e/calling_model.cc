// Each token's embedding is one dimension of the residual stream. The head's rows say which token
// follows which. A tool's result is seen by attention: all keys weigh the same, so that the values
// of <tool_response> tokens add up in a dimension of their own, however far away they are.
#include "tests/e2e/calling_model.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/chat/testing.h"
#include "engine/tokenizer/testing.h"

namespace withy::e2e {
namespace {

constexpr int64_t kModel = 128;  // d_model
constexpr int64_t kHeads = 8, kKvHeads = 2, kHead = 32, kFf = 512, kVocab = 512;
constexpr int kLayers = 2;

// Dimensions of the residual stream.
enum Dimension : int64_t { kNewline, kCallBegins, kCallEnds, kAnswer, kResponse, kOther, kSeen };

// [rows, cols], zeros but for what is set.
struct Matrix {
  Matrix(int64_t matrix_rows, int64_t matrix_cols)
      : rows(matrix_rows), cols(matrix_cols), values(static_cast<size_t>(rows * cols)) {}
  float& At(int64_t row, int64_t col) { return values[static_cast<size_t>(row * cols + col)]; }
  // A little everywhere, so that no row is zero.
  void Spread(float value) {
    for (int64_t row = 0; row < rows; ++row) At(row, row % cols) = value;
  }
  int64_t rows, cols;
  std::vector<float> values;
};

void Add(const std::string& name, const Matrix& matrix, engine::GgufWriter* writer) {
  std::vector<uint8_t> bytes(matrix.values.size() * sizeof(float));
  std::memcpy(bytes.data(), matrix.values.data(), bytes.size());
  std::vector<int64_t> dims = {matrix.cols};
  if (matrix.rows > 1) dims.push_back(matrix.rows);
  writer->AddTensor(name, engine::GgmlType::kF32, std::move(dims),
                    [bytes](const engine::TensorSink& sink) { return sink(bytes); });
}

void AddMetadata(engine::GgufWriter* writer) {
  writer->SetString("general.architecture", "llama");
  writer->SetString("general.name", "calls a tool");
  const auto count = [&](const char* key, int64_t value) {
    writer->Set<uint32_t>(std::string("llama.") + key, static_cast<uint32_t>(value));
  };
  count("block_count", kLayers);
  count("embedding_length", kModel);
  count("feed_forward_length", kFf);
  count("context_length", 4096);
  count("attention.head_count", kHeads);
  count("attention.head_count_kv", kKvHeads);
  count("attention.key_length", kHead);
  count("attention.value_length", kHead);
  count("rope.dimension_count", kHead);
  count("vocab_size", kVocab);
  writer->Set<float>("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer->Set<float>("llama.rope.freq_base", 10000.0f);
  writer->SetString("tokenizer.chat_template", engine::kToolTemplate);
}

void AddLayers(engine::GgufWriter* writer) {
  Matrix ones(1, kModel);
  std::fill(ones.values.begin(), ones.values.end(), 1.0f);
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    Matrix q(kHeads * kHead, kModel), k(kKvHeads * kHead, kModel), v(kKvHeads * kHead, kModel);
    Matrix o(kModel, kHeads * kHead), gate(kFf, kModel), up(kFf, kModel), down(kModel, kFf);
    q.Spread(1e-3f);
    k.Spread(1e-3f);
    gate.Spread(1e-3f);
    up.Spread(1e-3f);
    if (layer == 0) {
      v.At(0, kResponse) = 1.0f;
      // Norms make an embedding sqrt(d_model) long; of hundreds of keys one is enough.
      o.At(kSeen, 0) = 400.0f;
    }
    Add(blk + "attn_norm.weight", ones, writer);
    Add(blk + "attn_q.weight", q, writer);
    Add(blk + "attn_k.weight", k, writer);
    Add(blk + "attn_v.weight", v, writer);
    Add(blk + "attn_output.weight", o, writer);
    Add(blk + "ffn_norm.weight", ones, writer);
    Add(blk + "ffn_gate.weight", gate, writer);
    Add(blk + "ffn_up.weight", up, writer);
    Add(blk + "ffn_down.weight", down, writer);
  }
  Add("output_norm.weight", ones, writer);
}

std::string Write() {
  engine::TestVocab vocab;
  vocab.AddByteAlphabet();
  const std::string call = kCallingText;
  const size_t half = call.find("\"arguments\"");
  const auto text = [&](const std::string& token) {
    return vocab.Add(token, engine::TokenKind::kUserDefined);
  };
  const int32_t begins = text(call.substr(0, half)), ends = text(call.substr(half));
  const int32_t answer = text(kCalledText), response = text("<tool_response>");
  vocab.Add("<|im_start|>", engine::TokenKind::kControl);
  const int32_t end = vocab.Add("<|im_end|>", engine::TokenKind::kControl);
  int32_t last = end;
  while (last + 1 < kVocab) last = vocab.Add("unused" + std::to_string(last));
  engine::GgufWriter& writer = vocab.writer();
  writer.Set<uint32_t>("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(end));
  const auto made = vocab.Make("gpt2", "gpt-2");  // fills the writer

  Matrix embeddings(kVocab, kModel), head(kVocab, kModel);
  for (int64_t token = 0; token < kVocab; ++token) embeddings.At(token, kOther) = 1.0f;
  const auto embed = [&](int32_t token, Dimension dimension) {
    embeddings.At(token, kOther) = 0.0f;
    embeddings.At(token, dimension) = 1.0f;
  };
  embed('\n', kNewline);
  embed(begins, kCallBegins);
  embed(ends, kCallEnds);
  embed(answer, kAnswer);
  embed(response, kResponse);
  head.At(begins, kNewline) = 1.0f;
  head.At(answer, kSeen) = 1.0f;
  // More than what attention adds.
  head.At(ends, kCallBegins) = 1000.0f;
  head.At(end, kCallEnds) = 1000.0f;
  head.At(end, kAnswer) = 1000.0f;
  Add("token_embd.weight", embeddings, &writer);
  Add("output.weight", head, &writer);
  AddMetadata(&writer);
  AddLayers(&writer);

  static const struct Dir {
    Dir() {
      char pattern[] = "/tmp/withy-calling-XXXXXX";
      path = mkdtemp(pattern);
    }
    ~Dir() { std::filesystem::remove_all(path); }
    std::string path;
  } dir;
  std::string path = dir.path + "/calling.gguf";
  const absl::Status written = made.ok() ? writer.Write(path) : made.status();
  if (!written.ok()) {
    std::fprintf(stderr, "%s\n", written.ToString().c_str());
    std::abort();
  }
  return path;
}

}  // namespace

const std::string& CallingModelPath() {
  static const std::string path = Write();
  return path;
}

}  // namespace withy::e2e
