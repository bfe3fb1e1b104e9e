// Types of an elastic file's matrices: chosen from the source, kept bit for bit if weights only
// move, and supported by the engine.
#include "offline/elastic/matrix_types.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/writer.h"
#include "engine/model/testing.h"
#include "offline/elastic/export.h"
#include "offline/elastic/importance.h"
#include "offline/elastic/network.h"
#include "offline/elastic/recovery.h"
#include "offline/elastic/reorder.h"
#include "offline/elastic/text/batches.h"

namespace withy::elastic {
namespace {

using engine::GgmlType;
using torch::Tensor;

constexpr int64_t kLength = 24;

TEST(FindMatrixTypeTest, NamesWhatCanBeWritten) {
  EXPECT_EQ(*FindMatrixType("q4_1"), GgmlType::kQ4_1);
  EXPECT_EQ(*FindMatrixType("auto"), MatrixType());
  const absl::Status status = FindMatrixType("q4_k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("q4_1"), absl::string_view::npos) << status;
}

// Random weights of one type, and their elastic form.
class TypedTest : public testing::TestWithParam<GgmlType> {
 protected:
  TypedTest() {
    torch::manual_seed(3);
    shape_ = engine::TinyShape();
    plain_ = folder_ / "plain.gguf";
    Quantise(engine::WriteTiny(folder_, shape_, GgmlType::kF32, "floats.gguf"), plain_);
    file_ = std::make_unique<engine::GgufFile>(engine::GgufFile::Open(plain_).value());
    network_ = std::make_unique<Network>(Network::FromGguf(*file_, torch::kCPU).value());
    const Tensor tokens = torch::randint(shape_.vocab_size, {4, kLength}, torch::kInt64);
    batches_ = {{tokens, torch::roll(tokens, -1, 1).flatten(), torch::ones({4 * kLength})}};
  }

  // Writes the model with matrices of the type.
  static void Quantise(const std::string& from, const std::string& to) {
    const auto file = engine::GgufFile::Open(from);
    engine::GgufWriter writer;
    writer.CopyMetadata(*file);
    std::deque<std::vector<uint8_t>> contents;
    for (const engine::TensorInfo& info : file->tensors()) {
      const GgmlType type = IsMatrix(info) ? GetParam() : info.type;
      std::vector<float> values(static_cast<size_t>(info.elements()));
      ASSERT_TRUE(engine::Dequantize(info.type, file->Data(info), values).ok());
      std::vector<uint8_t>& bytes = contents.emplace_back(*engine::RowBytes(type, info.elements()));
      ASSERT_TRUE(engine::Quantize(type, values, bytes).ok());
      writer.AddTensor(info.name, type, info.dims, bytes);
    }
    ASSERT_TRUE(writer.Write(to).ok());
  }

  Tensor Engines(const std::string& path, int32_t level) const {
    const auto model = engine::OpenTiny(folder_, path);
    std::vector<engine::Row> rows =
        engine::PlainRows(engine::SomeTokens(kLength, shape_.vocab_size));
    for (engine::Row& row : rows) row.level = level;
    const std::vector<float> logits =
        engine::RunRows(*model, engine::ScratchKv(model->info(), 32), rows);
    return torch::tensor(logits).view({kLength, -1});
  }

  // A matrix's rows as stored in a file, sorted.
  static std::vector<std::string> Rows(const engine::GgufFile& file, const std::string& name) {
    const engine::TensorInfo& info = **file.GetTensor(name);
    const std::span<const uint8_t> data = file.Data(info);
    const size_t bytes = data.size() / static_cast<size_t>(info.rows());
    std::vector<std::string> rows;
    for (size_t at = 0; at < data.size(); at += bytes)
      rows.emplace_back(reinterpret_cast<const char*>(data.data()) + at, bytes);
    std::sort(rows.begin(), rows.end());
    return rows;
  }

  engine::TestFolder folder_;
  engine::SynthShape shape_;
  std::string plain_;
  std::unique_ptr<engine::GgufFile> file_;
  std::unique_ptr<Network> network_;
  std::vector<Batch> batches_;
};

double Cosine(const Tensor& a, const Tensor& b) {
  return (a * b).sum().item<double>() / (a.norm() * b.norm()).item<double>();
}

TEST_P(TypedTest, TheTypeStaysAndTheEngineRunsEveryLevel) {
  const std::string description = DescribeTypes(*file_, {});
  EXPECT_NE(description.find("stay as they are (" + std::string(engine::TypeName(GetParam()))),
            std::string::npos)
      << description;
  EXPECT_NE(description.find("ffn_down"), std::string::npos) << description;
  const Tensor whole = Engines(plain_, -1);
  const engine::ModelShape& s = network_->shape();
  const engine::LevelSpec all{.percent = 100,
                              .layers = std::vector<engine::LayerExtent>(3, {s.heads, s.d_ff})};
  Reorder(*network_, MeasureUnits(*network_, batches_, all, {}));
  const engine::LevelSpec half = engine::PlanLevel(s, 50, {}, 1.0, nullptr);
  const std::vector<ElasticLevel> levels = {
      {half, TrainLora(*network_, half, batches_, {.steps = 5})}};
  const std::string path = folder_ / "elastic.gguf";
  ASSERT_EQ(ExportElastic(*file_, *network_, levels, 8, {}, MatrixType(), path + ".overlay", path),
            absl::OkStatus());
  const auto elastic = engine::GgufFile::Open(path);
  ASSERT_TRUE(elastic.ok()) << elastic.status();
  for (const engine::TensorInfo& info : file_->tensors()) {
    const bool columns_move = info.name.find("ffn_down") != std::string::npos;
    EXPECT_EQ((*elastic->GetTensor(info.name))->type, columns_move ? GgmlType::kQ8_0 : info.type)
        << info.name;
  }
  // Rows, and whole heads within a row of O, move without changing.
  for (const char* name : {"attn_q.weight", "ffn_gate.weight", "ffn_up.weight"}) {
    EXPECT_EQ(Rows(*elastic, std::string("blk.1.") + name),
              Rows(*file_, std::string("blk.1.") + name))
        << name;
  }
  EXPECT_GT(Cosine(Engines(path, -1), whole), 0.99);
  torch::NoGradGuard no_grad;
  const std::vector<int32_t> ids = engine::SomeTokens(kLength, shape_.vocab_size);
  const Tensor tokens = torch::tensor(std::vector<int64_t>(ids.begin(), ids.end())).unsqueeze(0);
  const View view{.extents = &levels[0].spec.layers, .lora = &levels[0].lora};
  EXPECT_GT(Cosine(Engines(path, 0), network_->Logits(network_->Hidden(tokens, view))), 0.98);
}

// A quantiser that weights its errors produces blocks that requantising would change.
TEST_P(TypedTest, BlocksOfAnotherQuantiserAreCopied) {
  std::vector<uint8_t> bytes(file_->bytes().begin(), file_->bytes().end());
  const engine::TensorInfo& info = **file_->GetTensor("blk.1.ffn_gate.weight");
  const size_t first = static_cast<size_t>(file_->Data(info).data() - file_->bytes().data());
  const engine::GgmlTypeTraits& traits = *engine::FindTypeTraits(info.type);
  // Gives the first blocks quants that use only a few codes.
  for (size_t block = 0; block < 8; ++block) {
    for (size_t b = traits.block_bytes - 16; b < traits.block_bytes; ++b)
      bytes[first + block * traits.block_bytes + b] = static_cast<uint8_t>(0x67 ^ (b % 2));
  }
  const auto other = engine::GgufFile::FromBytes(bytes, "other.gguf");
  ASSERT_TRUE(other.ok()) << other.status();
  const auto network = Network::FromGguf(*other, torch::kCPU);
  ASSERT_TRUE(network.ok()) << network.status();
  const std::string path = folder_ / "copied.gguf";
  const std::vector<ElasticLevel> levels = {
      {engine::PlanLevel(network->shape(), 50, {}, 1.0, nullptr), {}}};
  ASSERT_EQ(ExportElastic(*other, *network, levels, 0, {}, MatrixType(), path + ".overlay", path),
            absl::OkStatus());
  const auto copied = engine::GgufFile::Open(path);
  ASSERT_TRUE(copied.ok()) << copied.status();
  const std::span<const uint8_t> was = other->Data(**other->GetTensor(info.name));
  const std::span<const uint8_t> is = copied->Data(**copied->GetTensor(info.name));
  EXPECT_TRUE(std::equal(was.begin(), was.end(), is.begin(), is.end()));
}

INSTANTIATE_TEST_SUITE_P(Types, TypedTest,
                         testing::Values(GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1),
                         [](const auto& test) {
                           return std::string(engine::TypeName(test.param));
                         });

TEST(DescribeTypesTest, FloatsAreQuantisedOnce) {
  const engine::TestFolder folder;
  const auto file =
      engine::GgufFile::Open(engine::WriteTiny(folder, engine::TinyShape(), GgmlType::kF32));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(DescribeTypes(*file, {}),
            "matrices of layers are written as Q8_0 from F32 (--type names another)");
  EXPECT_EQ(DescribeTypes(*file, GgmlType::kQ4_1),
            "matrices of layers are written as Q4_1 from F32");
}

}  // namespace
}  // namespace withy::elastic
