// Draft heads and targets made for tests: with random weights, and a pair whose head knows what the
// target will say.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/gguf/types.h"
#include "engine/gguf/writer.h"
#include "engine/model/model.h"

namespace withy::engine {

// Tensors of a GGUF, which a test may change before it is written.
struct TestTensors {
  struct Tensor {
    std::vector<int64_t> dims;  // ggml's order
    std::vector<float> values;
  };
  std::map<std::string, Tensor> f32;
  std::vector<int64_t> d2t;  // empty: none

  void Matrix(const std::string& name, int64_t rows, int64_t cols) {
    f32[name] = {{cols, rows}, std::vector<float>(static_cast<size_t>(rows * cols))};
  }
  void Ones(const std::string& name, int64_t count) {
    f32[name] = {{count}, std::vector<float>(static_cast<size_t>(count), 1.0f)};
  }
  float& At(const std::string& name, int64_t row, int64_t col) {
    Tensor& tensor = f32.at(name);
    return tensor.values[static_cast<size_t>(row * tensor.dims[0] + col)];
  }
  void Randomize(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto& [name, tensor] : f32) {
      if (tensor.dims.size() == 1) continue;
      const float scale = 1.0f / std::sqrt(static_cast<float>(tensor.dims[0]));
      for (float& value : tensor.values) value = scale * normal(random);
    }
  }
  void AddTo(GgufWriter* writer) const {
    const auto bytes = [](const auto& values) {
      return std::span(reinterpret_cast<const uint8_t*>(values.data()),
                       values.size() * sizeof(values[0]));
    };
    for (const auto& [name, tensor] : f32) {
      writer->AddTensor(name, GgmlType::kF32, tensor.dims, bytes(tensor.values));
    }
    if (d2t.empty()) return;
    writer->AddTensor("d2t", GgmlType::kI64, {static_cast<int64_t>(d2t.size())}, bytes(d2t));
  }
};

// A head for a target. Its fields may be changed before it is written.
struct TestHead {
  int32_t width = 64;
  int32_t target_width = 0;
  int32_t vocab_size = 0;
  int32_t blocks = 1;
  std::vector<int32_t> layers = {1, 1, 2};
  TestTensors tensors;

  // Drafts every second token of the target.
  static TestHead Random(const ModelInfo& target, uint32_t seed = 1) {
    TestHead head;
    head.target_width = target.d_model;
    head.vocab_size = target.vocab_size;
    head.Shape(2, 96, target.vocab_size / 2);
    head.tensors.Matrix("token_embd.weight", head.vocab_size, head.width);
    for (int32_t token = 0; token < target.vocab_size / 2; ++token) {
      head.tensors.d2t.push_back(2 * token + 1);
    }
    head.tensors.Randomize(seed);
    return head;
  }
  // All tensors but the embedding, of zeros; heads of 32.
  void Shape(int32_t heads, int32_t neurons, int32_t drafted) {
    heads_ = heads;
    neurons_ = neurons;
    const int32_t rows = 32 * heads;
    tensors.Matrix("fc.weight", width, int64_t{target_width} * static_cast<int64_t>(layers.size()));
    tensors.Matrix("blk.0.attn_q.weight", rows, 2 * width);
    tensors.Matrix("blk.0.attn_k.weight", 32, 2 * width);
    tensors.Matrix("blk.0.attn_v.weight", 32, 2 * width);
    tensors.Matrix("blk.0.attn_output.weight", width, rows);
    tensors.Matrix("blk.0.ffn_gate.weight", neurons, width);
    tensors.Matrix("blk.0.ffn_up.weight", neurons, width);
    tensors.Matrix("blk.0.ffn_down.weight", width, neurons);
    tensors.Matrix("output.weight", drafted, width);
    for (const char* norm : {"blk.0.attn_norm.weight", "blk.0.attn_norm_2.weight",
                             "blk.0.ffn_norm.weight", "output_norm.weight"}) {
      tensors.Ones(norm, width);
    }
  }
  std::string Write(const std::string& path) const {
    GgufWriter writer;
    writer.SetString("general.architecture", "eagle3");
    writer.SetString("general.name", "test head");
    const auto set = [&writer](const char* key, int32_t value) {
      writer.Set<uint32_t>(std::string("eagle3.") + key, static_cast<uint32_t>(value));
    };
    set("block_count", blocks);
    set("embedding_length", width);
    set("feed_forward_length", neurons_);
    set("context_length", 64);
    set("attention.head_count", heads_);
    set("attention.head_count_kv", 1);
    set("attention.key_length", 32);
    set("attention.value_length", 32);
    set("target_hidden_size", target_width);
    set("vocab_size", vocab_size);
    writer.SetArray<int32_t>("eagle3.target_layers", layers);
    writer.Set<float>("eagle3.attention.layer_norm_rms_epsilon", 1e-5f);
    tensors.AddTo(&writer);
    EXPECT_TRUE(writer.Write(path).ok());
    return path;
  }

 private:
  int32_t heads_ = 0;
  int32_t neurons_ = 0;
};

// A llama whose next token depends on the last one alone, and its head, which knows it: of letters
// it is the letter after the next ("a", "c", "e", ..., "y", "a"), of other tokens "a". Each token's
// embedding is a dimension of its own; attention and MLPs of the target add nothing.
struct KnowingPair {
  static constexpr int32_t kVocab = 288;

  static int32_t Next(int32_t token) {
    const bool letter = token >= 'a' && token < 'y' && (token - 'a') % 2 == 0;
    return letter ? token + 2 : 'a';
  }

  static std::string WriteTarget(const std::string& path) {
    constexpr int32_t kLayers = 4;
    GgufWriter writer;
    writer.SetString("general.architecture", "llama");
    writer.SetString("general.name", "letters");
    const auto set = [&writer](const char* key, uint32_t value) {
      writer.Set<uint32_t>(std::string("llama.") + key, value);
    };
    set("block_count", kLayers);
    set("embedding_length", kVocab);
    set("feed_forward_length", 32);
    set("context_length", 512);
    set("attention.head_count", 2);
    set("attention.head_count_kv", 1);
    set("attention.key_length", 32);
    set("attention.value_length", 32);
    set("vocab_size", kVocab);
    writer.Set<float>("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    TestTensors tensors;
    tensors.Matrix("token_embd.weight", kVocab, kVocab);
    tensors.Matrix("output.weight", kVocab, kVocab);
    tensors.Ones("output_norm.weight", kVocab);
    for (int32_t token = 0; token < kVocab; ++token) {
      tensors.At("token_embd.weight", token, token) = 1.0f;
      tensors.At("output.weight", Next(token), token) = 1.0f;
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const std::string block = "blk." + std::to_string(layer) + ".";
      tensors.Ones(block + "attn_norm.weight", kVocab);
      tensors.Ones(block + "ffn_norm.weight", kVocab);
      tensors.Matrix(block + "attn_q.weight", 64, kVocab);
      tensors.Matrix(block + "attn_k.weight", 32, kVocab);
      tensors.Matrix(block + "attn_v.weight", 32, kVocab);
      tensors.Matrix(block + "attn_output.weight", kVocab, 64);
      tensors.Matrix(block + "ffn_gate.weight", 32, kVocab);
      tensors.Matrix(block + "ffn_up.weight", 32, kVocab);
      tensors.Matrix(block + "ffn_down.weight", kVocab, 32);
    }
    tensors.AddTo(&writer);
    EXPECT_TRUE(writer.Write(path).ok());
    return path;
  }

  // fc takes the last token's embedding from the features. The MLP turns the hidden state into the
  // next token's, which is what a drafted token goes on from; `output` is that of the target. The
  // embedding is the target's.
  static TestHead Head() {
    TestHead head;
    head.width = head.target_width = head.vocab_size = kVocab;
    head.Shape(2, kVocab, kVocab);
    const float size = std::sqrt(static_cast<float>(kVocab));  // of a normed embedding
    for (int32_t token = 0; token < kVocab; ++token) {
      head.tensors.At("fc.weight", token, token) = 1.0f;
      head.tensors.At("output.weight", Next(token), token) = 1.0f;
      head.tensors.At("blk.0.ffn_gate.weight", token, token) = 1.0f;
      head.tensors.At("blk.0.ffn_up.weight", token, token) = 1.0f;
      head.tensors.At("blk.0.ffn_down.weight", Next(token), token) += 1.0f / (size * size);
      head.tensors.At("blk.0.ffn_down.weight", token, token) -= 1.0f / (size * size);
    }
    return head;
  }
};

}  // namespace withy::engine
