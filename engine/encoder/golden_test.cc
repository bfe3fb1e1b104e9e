// Compares the encoder with the output of transformers' MobileBertModel for small random models, in
// F32 and Q8_0, on every kernel target of this CPU. tests/golden/make_mobilebert_goldens.py makes
// the files.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "engine/encoder/encoder.h"
#include "engine/encoder/import_mobilebert.h"
#include "engine/encoder/testing.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"

namespace withy::engine {
namespace {

constexpr int kSharedLayers = 1;

struct Case {
  std::string model;
  GgmlType type;
  std::string kind;     // of the golden tensors
  double max_distance;  // |ours - theirs| / |theirs| of a row
};

std::vector<float> Floats(const GgufFile& file, const std::string& name) {
  const TensorInfo* info = file.FindTensor(name);
  if (info == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(info->elements()));
  EXPECT_TRUE(Dequantize(info->type, file.Data(*info), values).ok());
  return values;
}

std::vector<int32_t> Tokens(const GgufFile& file, const std::string& name) {
  const TensorInfo* info = file.FindTensor(name);
  EXPECT_NE(info, nullptr) << name;
  std::vector<int32_t> values(static_cast<size_t>(info->elements()));
  std::memcpy(values.data(), file.Data(*info).data(), values.size() * sizeof(int32_t));
  return values;
}

double Distance(std::span<const float> ours, std::span<const float> theirs) {
  double apart = 0;
  double length = 0;
  for (size_t i = 0; i < theirs.size(); ++i) {
    apart += std::pow(double{ours[i]} - theirs[i], 2);
    length += std::pow(double{theirs[i]}, 2);
  }
  return std::sqrt(apart / length);
}

// The maximum over rows, so that one bad token is not hidden by good ones.
double WorstRow(std::span<const float> ours, std::span<const float> theirs, size_t width) {
  if (ours.size() != theirs.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < ours.size(); i += width) {
    worst = std::max(worst, Distance(ours.subspan(i, width), theirs.subspan(i, width)));
  }
  return worst;
}

double Length(std::span<const float> x) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  return std::sqrt(squares);
}

// Distance of `logits` from head(x) + bias computed with the checkpoint's floats, relative to
// |weights| |x|, because the outputs of a new head are small compared with their summands.
double HeadDistance(const TlmCheckpoint& tlm, const std::string& name, const std::vector<float>& x,
                    const std::vector<float>& logits) {
  const std::vector<float>& weight = *tlm.Find(name + ".weight");
  std::vector<float> apart = *tlm.Find(name + ".bias");
  for (size_t o = 0; o < apart.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) apart[o] += weight[o * x.size() + i] * x[i];
    apart[o] -= logits[o];
  }
  return Length(apart) / (Length(weight) * Length(x));
}

class EncoderGoldenTest : public testing::TestWithParam<Case> {};

TEST_P(EncoderGoldenTest, HiddenStatesAndDecisionMatchTheReference) {
  const Case& c = GetParam();
  const std::string folder = "tests/golden/data/mobilebert_" + c.model;
  auto tlm = ImportMobileBert(folder, {.shared_layers = kSharedLayers});
  ASSERT_TRUE(tlm.ok()) << tlm.status();
  const TempFolder temp("encoder_golden");
  ASSERT_TRUE(WriteTlm(*tlm, c.type, temp / "tlm.gguf").ok());
  auto file = GgufFile::Open(temp / "tlm.gguf");
  auto golden = GgufFile::Open(folder + "/golden.gguf");
  ASSERT_TRUE(file.ok() && golden.ok());
  auto weights = LoadTlmWeights(*file);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto hidden = static_cast<size_t>(tlm->shape.encoder.hidden);

  for (const Target target : SupportedTargets()) {
    ThreadPool pool(2);
    Encoder encoder(**weights, &pool, *KernelsFor(target));
    std::map<std::pair<EncoderTower, int32_t>, std::vector<float>> states;
    encoder.SetTap([&](EncoderTower tower, int32_t layer, std::span<const float> values) {
      states[{tower, layer}].assign(values.begin(), values.end());
    });
    const auto check = [&](EncoderTower tower, int32_t layer, const std::string& name) {
      const std::vector<float> wanted = Floats(*golden, name);
      if (wanted.empty()) return;  // the files hold inner layers of only one input
      EXPECT_LT(WorstRow(states.at({tower, layer}), wanted, hidden), c.max_distance)
          << KernelsFor(target)->name << " " << name;
    };
    for (const std::string input : {"0", "1"}) {
      const std::vector<std::vector<int32_t>> windows = {Tokens(*golden, "tokens." + input)};
      EncoderOutput out;
      const absl::Status status = encoder.Run(windows, &out);
      ASSERT_TRUE(status.ok()) << status;
      const std::string prefix = c.kind + "." + input + ".hidden.";
      check(EncoderTower::kShared, -1, prefix + "-1");
      check(EncoderTower::kShared, 0, prefix + "0");
      for (const EncoderTower tower : {EncoderTower::kScore, EncoderTower::kDecision}) {
        check(tower, 0, prefix + "1");
        check(tower, 1, prefix + "2");
      }
      const std::vector<float> pooled = Floats(*golden, c.kind + "." + input + ".pooled");
      EXPECT_LT(HeadDistance(*tlm, "decision.prompt", pooled, out.prompt), c.max_distance);
      EXPECT_LT(HeadDistance(*tlm, "decision.model", pooled, out.model), c.max_distance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, EncoderGoldenTest,
    testing::Values(Case{"shared_qk", GgmlType::kF32, "f", 2e-5},
                    Case{"shared_qk", GgmlType::kQ8_0, "q8_0", 0.03},
                    Case{"bottleneck_attention", GgmlType::kF32, "f", 2e-5},
                    Case{"bottleneck_attention", GgmlType::kQ8_0, "q8_0", 0.03},
                    Case{"own_qk", GgmlType::kF32, "f", 2e-5},
                    Case{"own_qk", GgmlType::kF16, "f",
                         2e-5},  // F16 represents the weights exactly
                    Case{"plain", GgmlType::kF32, "f", 2e-5},
                    Case{"plain", GgmlType::kQ8_0, "q8_0", 0.03}),
    [](const auto& c) { return c.param.model + "_" + std::string(TypeName(c.param.type)); });

}  // namespace
}  // namespace withy::engine
