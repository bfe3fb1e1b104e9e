// Tests overlays: the full level of an applied file is the plain model, its levels are those of the
// model that is reordered by hand, and malformed overlays are refused by name.
#include "engine/weights/overlay.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "absl/strings/str_replace.h"
#include "base/test_seed.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/testing.h"
#include "engine/gguf/writer.h"
#include "engine/model/testing.h"
#include "engine/weights/layout.h"
#include "engine/weights/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::span<const uint8_t> BytesOfFloats(const std::vector<float>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
}

std::vector<float> FloatsOf(const GgufFile& file, const TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  EXPECT_TRUE(Dequantize(tensor.type, file.Data(tensor), values).ok()) << tensor.name;
  return values;
}

// A plain tiny model, an overlay with random orders of its units, and the elastic file.
class OverlayTest : public testing::Test {
 protected:
  // `shape` without levels; `percents`: of the overlay.
  void Make(const SynthShape& shape, const std::vector<int32_t>& percents,
            GgmlType type = GgmlType::kF32) {
    shape_ = shape;
    WriteTiny(folder_, shape_, GgmlType::kF32, "floats.gguf");
    SynthShape levelled = shape;
    levelled.levels = percents;
    WriteTiny(folder_, levelled, GgmlType::kF32, "levels.gguf");
    WritePlain(type);
    plain_ = std::make_unique<GgufFile>(GgufFile::Open(folder_ / "plain.gguf").value());
    levels_ = std::make_unique<GgufFile>(GgufFile::Open(folder_ / "levels.gguf").value());
    DrawOrders();
    WriteOverlay("overlay.gguf", [](GgufWriter&) {});
  }

  // floats.gguf with its matrices as `type`.
  void WritePlain(GgmlType type) const {
    const GgufFile floats = GgufFile::Open(folder_ / "floats.gguf").value();
    GgufWriter writer;
    writer.CopyMetadata(floats);
    std::vector<std::vector<uint8_t>> contents(floats.tensors().size());
    for (size_t i = 0; i < contents.size(); ++i) {
      const TensorInfo& tensor = floats.tensors()[i];
      const GgmlType to = IsMatrix(tensor) ? type : tensor.type;
      contents[i].resize(*RowBytes(to, tensor.elements()));
      ASSERT_TRUE(Quantize(to, FloatsOf(floats, tensor), contents[i]).ok());
      writer.AddTensor(tensor.name, to, tensor.dims, contents[i]);
    }
    ASSERT_TRUE(writer.Write(folder_ / "plain.gguf").ok());
  }

  void DrawOrders() {
    std::mt19937 random(TestSeed());
    const auto shuffled = [&](int32_t count) {
      std::vector<uint32_t> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), random);
      return order;
    };
    const int32_t group = shape_.heads / shape_.kv_heads;
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      std::vector<uint32_t> groups = shuffled(shape_.kv_heads);
      if (group >= 3) std::sort(groups.begin(), groups.end());
      for (const uint32_t from : groups) {
        for (const uint32_t head : shuffled(group)) {
          heads_.push_back(from * static_cast<uint32_t>(group) + head);
        }
      }
      const std::vector<uint32_t> neurons = shuffled(shape_.d_ff);
      neurons_.insert(neurons_.end(), neurons.begin(), neurons.end());
    }
  }

  void WriteOverlay(const std::string& name, const std::function<void(GgufWriter&)>& change,
                    const std::function<bool(std::string_view)>& leave_out = nullptr) const {
    GgufWriter writer;
    writer.CopyMetadata(*levels_, [&](std::string_view key) {
      return !key.starts_with("withy.") || (leave_out && leave_out(key));
    });
    const auto set = [&](std::string_view key, const std::vector<uint32_t>& values) {
      if (!leave_out || !leave_out(key)) writer.SetArray<uint32_t>(key, values);
    };
    if (!leave_out || !leave_out(kOverlaySource)) {
      writer.SetString(kOverlaySource, Sha256Of(*plain_));
    }
    set(kOverlayHeads, heads_);
    set(kOverlayNeurons, neurons_);
    change(writer);
    for (const TensorInfo& tensor : levels_->tensors()) {
      if (!tensor.name.starts_with("withy.") || (leave_out && leave_out(tensor.name))) continue;
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, levels_->Data(tensor));
    }
    ASSERT_TRUE(writer.Write(folder_ / name).ok());
  }

  absl::Status Apply(const std::string& overlay = "overlay.gguf",
                     const OverlayOptions& options = {}) const {
    const auto file = GgufFile::Open(folder_ / overlay);
    if (!file.ok()) return file.status();
    return ApplyOverlay(*plain_, *file, options, folder_ / "elastic.gguf");
  }

  // A tensor of the plain file with its units moved, element by element.
  std::vector<float> MovedByHand(const TensorInfo& tensor) const {
    const std::vector<float> was = FloatsOf(*plain_, tensor);
    if (!tensor.name.starts_with("blk.")) return was;
    const auto layer = static_cast<size_t>(std::stoi(tensor.name.substr(4)));
    const auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const auto group = static_cast<size_t>(shape_.heads / shape_.kv_heads);
    const auto head_at = [&](size_t p) {
      return size_t{heads_[layer * static_cast<size_t>(shape_.heads) + p]};
    };
    const auto q = [&](size_t at) { return head_at(at / dim) * dim + at % dim; };
    const auto kv = [&](size_t at) { return head_at(at / dim * group) / group * dim + at % dim; };
    const auto neuron = [&](size_t at) {
      return size_t{neurons_[layer * static_cast<size_t>(shape_.d_ff) + at]};
    };
    const auto cols = static_cast<size_t>(tensor.cols());
    std::vector<float> moved;
    for (size_t i = 0; i < was.size(); ++i) {
      size_t row = i / cols;
      size_t col = i % cols;
      if (has("attn_q.weight")) row = q(row);
      if (has("attn_q.bias") || has("attn_output.")) col = q(col);
      if (has("attn_k.weight") || has("attn_v.weight")) row = kv(row);
      if (has("attn_k.bias") || has("attn_v.bias")) col = kv(col);
      if (has("ffn_gate.") || has("ffn_up.")) row = neuron(row);
      if (has("ffn_down.")) col = neuron(col);
      moved.push_back(was[row * cols + col]);
    }
    return moved;
  }

  // The reordered model in F32 with the levels of levels.gguf.
  void WriteByHand() const {
    GgufWriter writer;
    writer.CopyMetadata(*levels_);
    std::vector<std::vector<float>> contents;
    contents.reserve(plain_->tensors().size());
    for (const TensorInfo& tensor : plain_->tensors()) {
      contents.push_back(MovedByHand(tensor));
      writer.AddTensor(tensor.name, GgmlType::kF32, tensor.dims, BytesOfFloats(contents.back()));
    }
    for (const TensorInfo& tensor : levels_->tensors()) {
      if (!tensor.name.starts_with("withy.")) continue;
      writer.AddTensor(tensor.name, tensor.type, tensor.dims, levels_->Data(tensor));
    }
    ASSERT_TRUE(writer.Write(folder_ / "by_hand.gguf").ok());
  }

  std::vector<float> LogitsOf(const std::string& name, int32_t level) const {
    const auto model = OpenTiny(folder_, folder_ / name);
    std::vector<Row> rows = PlainRows(SomeTokens(24, model->info().vocab_size));
    for (Row& row : rows) row.level = level;
    return RunRows(*model, ScratchKv(model->info(), 32), rows);
  }

  // Sums are added in another order. KV has 8 bits, so that in a few contexts a value next to the
  // middle of two codes gets the other one.
  void ExpectTheFullLevelIsThePlainModel() const {
    constexpr uint32_t kContexts = 16;
    const auto plain = OpenTiny(folder_, folder_ / "plain.gguf");
    const auto elastic = OpenTiny(folder_, folder_ / "elastic.gguf");
    uint32_t same = 0;
    for (uint32_t i = 0; i < kContexts; ++i) {
      const std::vector<int32_t> tokens = SomeTokens(3, shape_.vocab_size, i + 1);
      const auto logits = [&](Model& model) {
        return RunRows(model, ScratchKv(model.info(), 16), PlainRows(tokens));
      };
      const std::vector<float> before = logits(*plain);
      const std::vector<float> after = logits(*elastic);
      float largest = 0;
      float difference = 0;
      for (size_t at = 0; at < before.size(); ++at) {
        largest = std::max(largest, std::abs(before[at]));
        difference = std::max(difference, std::abs(before[at] - after[at]));
      }
      EXPECT_GT(largest, 0.1f);
      EXPECT_LE(difference, 1e-3f * largest);
      same += difference <= 1e-5f * largest ? 1 : 0;
    }
    EXPECT_GE(same, kContexts * 3 / 4);
  }

  void ExpectLevelsAreThoseByHand(int32_t levels) const {
    WriteByHand();
    for (int32_t level = 0; level < levels; ++level) {
      EXPECT_EQ(LogitsOf("elastic.gguf", level), LogitsOf("by_hand.gguf", level)) << level;
      EXPECT_NE(LogitsOf("elastic.gguf", level), LogitsOf("levels.gguf", level)) << level;
    }
  }

  static SynthShape Heads(int32_t heads, int32_t kv_heads, const char* architecture = "llama") {
    SynthShape shape = TinyShape();
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    shape.architecture = architecture;
    return shape;
  }

  TestFolder folder_;
  SynthShape shape_;
  std::vector<uint32_t> heads_;
  std::vector<uint32_t> neurons_;
  std::unique_ptr<GgufFile> plain_;
  std::unique_ptr<GgufFile> levels_;
};

TEST_F(OverlayTest, HeadsMoveWithinTheirGroup) {
  Make(Heads(6, 2), {45, 70});
  ASSERT_TRUE(Apply().ok()) << Apply();
  ExpectTheFullLevelIsThePlainModel();
  ExpectLevelsAreThoseByHand(2);
}

TEST_F(OverlayTest, KvHeadsMoveWhereLevelsCutThem) {
  Make(Heads(8, 4), {42, 70});
  ASSERT_TRUE(Apply().ok()) << Apply();
  ExpectTheFullLevelIsThePlainModel();
  ExpectLevelsAreThoseByHand(2);
}

TEST_F(OverlayTest, BiasesMoveWithTheirRows) {
  Make(Heads(8, 4, "qwen2"), {42});
  ASSERT_TRUE(Apply().ok()) << Apply();
  ExpectTheFullLevelIsThePlainModel();
  ExpectLevelsAreThoseByHand(1);
}

// All but ffn_down, whose columns leave their blocks, is copied bit for bit.
void ExpectBlocksAreCopied(const GgufFile& plain, const GgufFile& elastic,
                           const std::function<std::vector<float>(const TensorInfo&)>& by_hand) {
  for (const TensorInfo& was : plain.tensors()) {
    const TensorInfo& is = **elastic.GetTensor(was.name);
    const bool down = was.name.find("ffn_down") != std::string::npos;
    EXPECT_EQ(is.type, down ? GgmlType::kQ8_0 : was.type) << was.name;
    const std::vector<float> values = FloatsOf(elastic, is);
    const std::vector<float> wanted = by_hand(was);
    if (!down) {
      EXPECT_EQ(values, wanted) << was.name;
      continue;
    }
    float largest = 0;
    float difference = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      largest = std::max(largest, std::abs(wanted[i]));
      difference = std::max(difference, std::abs(wanted[i] - values[i]));
    }
    EXPECT_LE(difference, largest / 127) << was.name;
  }
}

TEST_F(OverlayTest, QuantisedBlocksAreCopied) {
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_1}) {
    SCOPED_TRACE(std::string(TypeName(type)));
    heads_.clear();
    neurons_.clear();
    Make(Heads(6, 2), {45}, type);
    ASSERT_TRUE(Apply().ok()) << Apply();
    const GgufFile elastic = GgufFile::Open(folder_ / "elastic.gguf").value();
    ExpectBlocksAreCopied(*plain_, elastic,
                          [&](const TensorInfo& tensor) { return MovedByHand(tensor); });
    const std::vector<float> plain = LogitsOf("plain.gguf", -1);
    EXPECT_GT(RowLikeness(plain, LogitsOf("elastic.gguf", -1)), 0.9995);
    WriteByHand();
    EXPECT_GT(RowLikeness(LogitsOf("by_hand.gguf", 0), LogitsOf("elastic.gguf", 0)), 0.999);
  }
}

TEST_F(OverlayTest, ATypeMayBeNamed) {
  Make(TinyShape(), {50});
  ASSERT_TRUE(Apply("overlay.gguf", {.type = GgmlType::kQ8_0}).ok());
  const GgufFile elastic = GgufFile::Open(folder_ / "elastic.gguf").value();
  EXPECT_EQ((*elastic.GetTensor("blk.1.attn_q.weight"))->type, GgmlType::kQ8_0);
  EXPECT_EQ((*elastic.GetTensor("blk.1.ffn_down.weight"))->type, GgmlType::kQ8_0);
  EXPECT_EQ((*elastic.GetTensor("token_embd.weight"))->type, GgmlType::kF32);
  EXPECT_GT(RowLikeness(LogitsOf("plain.gguf", -1), LogitsOf("elastic.gguf", -1)), 0.999);
}

TEST_F(OverlayTest, TheFileSaysWhatItWasMadeOf) {
  Make(TinyShape(), {50});
  ASSERT_TRUE(Apply().ok());
  const GgufFile elastic = GgufFile::Open(folder_ / "elastic.gguf").value();
  EXPECT_EQ(*elastic.GetString(kOverlaySource), Sha256Of(*plain_));
  EXPECT_EQ(*elastic.GetString(kOverlayApplied), *Sha256OfFile(folder_ / "overlay.gguf"));
  EXPECT_EQ(*elastic.GetUint(kOverlayAppliedBy), kOverlayRevision);
  EXPECT_FALSE(IsOverlay(elastic));
  const GgufFile overlay = GgufFile::Open(folder_ / "overlay.gguf").value();
  EXPECT_TRUE(IsOverlay(overlay));
  EXPECT_THAT(std::string(PlanLayout(overlay).status().message()), HasSubstr("it is an overlay"));
  EXPECT_THAT(std::string(ApplyOverlay(elastic, overlay, {}, folder_ / "twice.gguf").message()),
              HasSubstr("it has levels already"));
}

// The digest that an overlay names is that of all parts.
TEST_F(OverlayTest, ASplitModelBecomesElastic) {
  Make(TinyShape(), {50});
  ASSERT_TRUE(Apply().ok());
  const std::vector<std::string> parts = WriteSplit(*plain_, folder_ / "split", 2);
  const GgufFile whole = GgufFile::Open(folder_ / "elastic.gguf").value();
  plain_ = std::make_unique<GgufFile>(GgufFile::Open(parts[0]).value());
  EXPECT_EQ(Apply().code(), absl::StatusCode::kFailedPrecondition) << "of the whole file";
  WriteOverlay("overlay.gguf", [](GgufWriter&) {});
  const absl::Status applied = Apply();
  ASSERT_TRUE(applied.ok()) << applied;
  const GgufFile elastic = GgufFile::Open(folder_ / "elastic.gguf").value();
  EXPECT_EQ(elastic.parts().size(), 1u);
  EXPECT_FALSE(elastic.Has(kGgufSplitCount));
  ASSERT_EQ(elastic.tensors().size(), whole.tensors().size());
  for (const TensorInfo& tensor : whole.tensors()) {
    const TensorInfo* other = elastic.FindTensor(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(whole.Data(tensor), elastic.Data(*other))) << tensor.name;
  }
}

TEST_F(OverlayTest, AnotherFilesOverlayIsRefused) {
  Make(TinyShape(), {50});
  const absl::Status status = Apply("overlay.gguf", {.source_sha256 = std::string(64, 'a')});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("withy.overlay.source_sha256"), HasSubstr(std::string(64, 'a')),
                    HasSubstr("take the overlay that belongs to this model")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elastic.gguf"));
}

TEST_F(OverlayTest, AModelWhoseMatricesAreJoinedIsRefused) {
  Make(Heads(8, 2, "phi3"), {20, 60});
  const absl::Status status = Apply();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("plain.gguf: tensor blk.0.ffn_up.weight"),
                    HasSubstr("use the model without levels")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elastic.gguf"));
}

TEST_F(OverlayTest, HeadsStayInTheirGroup) {
  Make(TinyShape(), {50});
  const size_t group = static_cast<size_t>(shape_.heads / shape_.kv_heads);
  std::swap(heads_[0], heads_[group]);
  WriteOverlay("overlay.gguf", [](GgufWriter&) {});
  EXPECT_THAT(std::string(Apply().message()),
              AllOf(HasSubstr("withy.overlay.heads is"), HasSubstr("at position 0 of layer 0"),
                    HasSubstr("must be of group 0")));
}

// Each key and tensor, missing, of another type, of another length, and with another value.
TEST_F(OverlayTest, EveryMalformedPartIsRefusedByName) {
  Make(TinyShape(), {40, 70});
  const auto refusal = [&](const std::function<void(GgufWriter&)>& change,
                           const std::function<bool(std::string_view)>& leave_out = nullptr) {
    WriteOverlay("bad.gguf", change, leave_out);
    return std::string(Apply("bad.gguf").message());
  };
  const std::vector<const char*> keys = {"withy.overlay.source_sha256", "withy.overlay.heads",
                                         "withy.overlay.neurons",       "withy.level.percent",
                                         "withy.level.heads",           "withy.level.neurons"};
  const GgufFile overlay = GgufFile::Open(folder_ / "overlay.gguf").value();
  std::mt19937 random(TestSeed());
  for (const std::string key : keys) {
    SCOPED_TRACE(key);
    const auto named =
        AllOf(HasSubstr("bad.gguf"), HasSubstr(key), HasSubstr("./withy elasticize"));
    const auto names = AllOf(HasSubstr("bad.gguf"), HasSubstr(key));
    EXPECT_THAT(refusal([](GgufWriter&) {}, [&](std::string_view k) { return k == key; }), names);
    EXPECT_THAT(refusal([&](GgufWriter& w) { w.Set<float>(key, 1.0f); }), names);
    EXPECT_THAT(refusal([&](GgufWriter& w) { w.SetString(key, "x"); }), names);
    if (key == kOverlaySource) continue;
    const std::vector<int64_t> were = overlay.GetIntArray(key).value();
    std::vector<uint32_t> values(were.begin(), were.end());
    for (const uint32_t wrong : {100000u, 4000000000u}) {
      std::vector<uint32_t> changed = values;
      changed[random() % changed.size()] = wrong;
      EXPECT_THAT(refusal([&](GgufWriter& w) { w.SetArray<uint32_t>(key, changed); }), named);
    }
    std::vector<uint32_t> shorter(values.begin(), values.end() - 1);
    EXPECT_THAT(refusal([&](GgufWriter& w) { w.SetArray<uint32_t>(key, shorter); }),
                AnyOf(names, HasSubstr("withy.level.heads has")));
    if (key == kOverlayHeads || key == kOverlayNeurons) {
      values[1] = values[0];
      EXPECT_THAT(refusal([&](GgufWriter& w) { w.SetArray<uint32_t>(key, values); }), named);
    }
  }
  EXPECT_THAT(refusal([](GgufWriter& w) { w.Set<uint32_t>("withy.lora.rank", 900); }),
              HasSubstr("withy.lora.rank"));
  EXPECT_THAT(refusal([](GgufWriter& w) { w.Set<uint32_t>("withy.lora.rang", 8); }),
              HasSubstr("withy.lora.rang does not belong"));
  const std::vector<float> many(100);
  EXPECT_THAT(refusal([&](GgufWriter& w) { w.SetArray<float>("withy.level.loss", many); }),
              HasSubstr("withy.level.loss has 100 numbers"));
  for (const TensorInfo& tensor : overlay.tensors()) {
    EXPECT_THAT(refusal([](GgufWriter&) {}, [&](std::string_view n) { return n == tensor.name; }),
                HasSubstr(tensor.name));
  }
}

TEST_F(OverlayTest, LoraTensorsAreChecked) {
  Make(TinyShape(), {40});
  const std::string name = LoraName(40, 1, LoraPart::kDown);
  const TensorInfo& tensor = **levels_->GetTensor(name);
  const auto refusal = [&](std::vector<int64_t> dims, float value, const std::string& as) {
    std::vector<float> values(static_cast<size_t>(
        std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>())));
    values.back() = value;
    WriteOverlay(
        "bad.gguf",
        [&](GgufWriter& w) {
          w.AddTensor(as, GgmlType::kF32, dims,
                      [values](const TensorSink& sink) { return sink(BytesOfFloats(values)); });
        },
        [&](std::string_view n) { return n == as; });
    return std::string(Apply("bad.gguf").message());
  };
  EXPECT_EQ(refusal(tensor.dims, 1, name), "");
  EXPECT_THAT(refusal({tensor.cols(), tensor.rows() + 1}, 1, name),
              AllOf(HasSubstr(name), HasSubstr("the levels ask for")));
  EXPECT_THAT(refusal(tensor.dims, NAN, name), AllOf(HasSubstr(name), HasSubstr("no number")));
  EXPECT_THAT(refusal(tensor.dims, 1, "withy.lora.50.blk.0.attn_q.b"),
              HasSubstr("withy.lora.50.blk.0.attn_q.b does not belong"));
  EXPECT_THAT(refusal({32}, 1, "blk.0.attn_q.weight"),
              HasSubstr("blk.0.attn_q.weight does not belong"));
}

// Bytes changed at random before the LoRA's data: the overlay is refused by name, or, where a byte
// does not matter, gives a file that can be served.
TEST_F(OverlayTest, RandomDamageIsRefusedOrHarmless) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Make(TinyShape(), {40});
  const GgufFile overlay = GgufFile::Open(folder_ / "overlay.gguf").value();
  const std::vector<uint8_t> whole(overlay.bytes().begin(), overlay.bytes().end());
  const size_t table = *overlay.GetUint(kGgufOwnTensors) + 4096;
  std::mt19937 random(seed);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::vector<uint8_t> bytes = whole;
    for (uint32_t change = 0; change <= random() % 3; ++change) {
      bytes[random() % std::min(table, bytes.size())] ^= static_cast<uint8_t>(1 + random() % 255);
    }
    if (i % 10 == 0) bytes.resize(random() % bytes.size());
    const auto damaged = GgufFile::FromBytes(bytes, "damaged.gguf");
    const absl::Status status =
        damaged.ok() ? ApplyOverlay(*plain_, *damaged, {.source_sha256 = Sha256Of(*plain_)},
                                    folder_ / "elastic.gguf")
                     : damaged.status();
    if (status.ok()) {
      const GgufFile elastic = GgufFile::Open(folder_ / "elastic.gguf").value();
      EXPECT_TRUE(PlanLayout(elastic).ok()) << PlanLayout(elastic).status();
      continue;
    }
    ++refused;
    EXPECT_THAT(std::string(status.message()), HasSubstr("damaged.gguf"));
  }
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace withy::engine
