#include "offline/inflate/scatter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "base/status.h"
#include "engine/gguf/quants.h"
#include "offline/corpus/rng.h"

namespace withy::inflate {
namespace {

constexpr float kDeviation = 0.02f;  // standard deviation of added weights
constexpr size_t kRandomBlocks = 512;

}  // namespace

// Random blocks of one type from a pool, because quantising each one would take minutes.
class RandomBlocks {
 public:
  static absl::StatusOr<std::shared_ptr<const RandomBlocks>> Make(engine::GgmlType type,
                                                                  uint64_t seed) {
    auto made = std::make_shared<RandomBlocks>();
    WITHY_ASSIGN_OR_RETURN(made->block_bytes_, engine::RowBytes(type, kBlock));
    made->bytes_.resize(kRandomBlocks * made->block_bytes_);
    std::vector<float> values(kRandomBlocks * kBlock);
    corpus::Rng rng(seed);
    for (float& value : values) {  // uniform with that deviation
      const double u = static_cast<double>(rng.Next() >> 11) * 0x1p-53;
      value = kDeviation * static_cast<float>((2 * u - 1) * std::sqrt(3.0));
    }
    WITHY_RETURN_IF_ERROR(engine::Quantize(type, values, made->bytes_));
    return std::shared_ptr<const RandomBlocks>(std::move(made));
  }

  uint64_t block_bytes() const { return block_bytes_; }
  std::span<const uint8_t> Draw(corpus::Rng& rng) const {
    return std::span(bytes_).subspan(rng.Below(kRandomBlocks) * block_bytes_, block_bytes_);
  }

 private:
  uint64_t block_bytes_ = 0;
  std::vector<uint8_t> bytes_;
};

Map Identity(int64_t count) {
  Map map(static_cast<size_t>(count));
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<int32_t>(i);
  return map;
}

Map Expand(const std::vector<int32_t>& places, int32_t room, int32_t width) {
  Map map(static_cast<size_t>(room) * static_cast<size_t>(width), -1);
  for (size_t unit = 0; unit < places.size(); ++unit) {
    if (places[unit] >= room) continue;
    for (int32_t i = 0; i < width; ++i) {
      map[static_cast<size_t>(places[unit] * width + i)] = static_cast<int32_t>(unit) * width + i;
    }
  }
  return map;
}

absl::StatusOr<std::shared_ptr<const RandomBlocks>> Scatterer::BlocksOf(
    const engine::TensorInfo& tensor) {
  const engine::GgmlTypeTraits* traits = engine::FindTypeTraits(tensor.type);
  if (traits == nullptr || kBlock % traits->block_elements != 0 ||
      !engine::CanQuantize(tensor.type) || tensor.cols() % kBlock != 0) {
    return absl::UnimplementedError(
        absl::StrCat(source_.path(), ": tensor ", tensor.name, " has type ",
                     ToAbsl(engine::TypeName(tensor.type)), " and ", tensor.cols(),
                     " columns; inflating needs F32, F16, BF16, Q8_0, Q4_0 or Q4_1 and columns "
                     "in multiples of ",
                     kBlock));
  }
  std::shared_ptr<const RandomBlocks>& blocks = random_[tensor.type];
  if (blocks == nullptr) {
    WITHY_ASSIGN_OR_RETURN(blocks, RandomBlocks::Make(tensor.type, seed_));
  }
  return blocks;
}

absl::StatusOr<engine::TensorSource> Scatterer::Scatter(const engine::TensorInfo& tensor,
                                                        const std::string& name, ScatterPlan plan) {
  WITHY_ASSIGN_OR_RETURN(const std::shared_ptr<const RandomBlocks> random, BlocksOf(tensor));
  const std::span<const uint8_t> bytes = source_.Data(tensor);
  const uint64_t width = random->block_bytes();
  const uint64_t source_row = static_cast<uint64_t>(tensor.cols() / kBlock) * width;
  const uint64_t seed = seed_ + std::hash<std::string>{}(name);
  return engine::TensorSource(
      [=, plan = std::move(plan)](const engine::TensorSink& sink) -> absl::Status {
        corpus::Rng rng(seed);
        std::vector<uint8_t> row(plan.blocks.size() * width);
        for (const int32_t from : plan.rows) {
          std::fill(row.begin(), row.end(), uint8_t{0});
          for (size_t b = 0; b < plan.blocks.size(); ++b) {
            const bool real = from >= 0 && plan.blocks[b] >= 0;
            const Filler filler = from < 0 ? plan.missing_rows : plan.missing_blocks;
            if (!real && filler == Filler::kZero) continue;
            const std::span<const uint8_t> block =
                real ? bytes.subspan(static_cast<uint64_t>(from) * source_row +
                                         static_cast<uint64_t>(plan.blocks[b]) * width,
                                     width)
                     : random->Draw(rng);
            std::memcpy(&row[b * width], block.data(), width);
          }
          WITHY_RETURN_IF_ERROR(sink(row));
        }
        return absl::OkStatus();
      });
}

}  // namespace withy::inflate
