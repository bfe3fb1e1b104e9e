#include "engine/weights/packer.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <vector>

#include "base/crc32c.h"
#include "base/round_up.h"
#include "base/status.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/gguf/output_file.h"
#include "engine/gguf/quants.h"
#include "engine/weights/hasher.h"
#include "engine/weights/layout.h"
#include "engine/weights/types/packed_type.h"
#include "engine/weights/types/row_decoder.h"

namespace withy::engine {
namespace {

constexpr uint64_t kTableOffset = 64;
constexpr int kChunkRows = 64 * kTileRows;  // rows of a row-cut matrix packed at a time
constexpr int kRowGrain = 16;

std::span<const std::byte> AsBytes(std::span<const uint8_t> bytes) { return std::as_bytes(bytes); }

// The GGUF's metadata as a GGUF file without tensors.
std::vector<uint8_t> MetadataBytes(const GgufFile& file) {
  constexpr size_t kHeaderBytes = 24;
  const uint8_t* base = file.bytes().data();
  size_t end = kHeaderBytes;
  for (const MetadataEntry& entry : file.metadata()) {
    end = std::max(end, static_cast<size_t>(entry.payload.data() + entry.payload.size() - base));
  }
  std::vector<uint8_t> out(RoundUp(end, std::max<uint64_t>(64, file.alignment())));
  std::copy(base, base + end, out.begin());
  std::fill_n(out.begin() + 8, 8, uint8_t{0});  // the tensor count
  for (const MetadataEntry& entry : file.metadata()) {
    if (!DescribesStorage(entry.key) || entry.type == GgufValueType::kArray) continue;
    std::fill_n(out.begin() + (entry.payload.data() - base), entry.payload.size(), uint8_t{0});
  }
  return out;
}

// Checks that the file system of `path` has room for a packed file with `data_bytes` of data; the
// rest of the file is small. A file system that cannot report its room is no error.
absl::Status CheckRoom(const std::string& path, uint64_t data_bytes) {
  const std::string folder = std::filesystem::path(path).parent_path();
  struct statvfs room {};
  if (statvfs(folder.empty() ? "." : folder.c_str(), &room) != 0) return absl::OkStatus();
  const uint64_t free_bytes = uint64_t{room.f_bavail} * room.f_frsize;
  if (free_bytes >= data_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("disk full: ", path, " needs ", data_bytes, " bytes, ", free_bytes,
                   " are free: make room there, or set state_dir to a larger disk"));
}

class Packer {
 public:
  Packer(const GgufFile& file, const SourceIdentity& source, ThreadPool& pool,
         const PackProgress& progress, uint32_t kv_epoch, const std::atomic<bool>* cancel)
      : file_(file), pool_(pool), progress_(progress), cancel_(cancel) {
    trailer_.source = source;
    trailer_.kv_epoch = kv_epoch;
  }

  absl::Status Run(const std::string& path) {
    WITHY_ASSIGN_OR_RETURN(layout_, PlanLayout(file_));
    WITHY_RETURN_IF_ERROR(CheckRoom(path, layout_.data_bytes));
    WITHY_ASSIGN_OR_RETURN(out_, OutputFile::Create(path));
    WITHY_RETURN_IF_ERROR(WriteFront());
    for (const LayoutItem& item : layout_.items) WITHY_RETURN_IF_ERROR(WriteItem(item));
    WITHY_RETURN_IF_ERROR(PadTo(trailer_.data.offset + layout_.data_bytes));
    WITHY_RETURN_IF_ERROR(WriteBack());
    return out_->Commit();
  }

 private:
  absl::Status Append(std::span<const std::byte> bytes) {
    if (cancel_ != nullptr && *cancel_) return absl::CancelledError("packing was given up");
    if (in_data_) AddChecksums(bytes);
    return out_->Append({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  }

  absl::Status PadTo(uint64_t offset) {
    const std::vector<std::byte> zeros(offset - out_->bytes_written());
    return Append(zeros);
  }

  void AddChecksums(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t take = std::min<size_t>(bytes.size(), kPackedChecksumBlock - block_fill_);
      block_crc_ = Crc32c(block_crc_, bytes.first(take));
      block_fill_ += take;
      bytes = bytes.subspan(take);
      if (block_fill_ == kPackedChecksumBlock) FinishBlock();
    }
  }

  void FinishBlock() {
    checksums_.push_back(block_crc_);
    block_crc_ = 0;
    block_fill_ = 0;
  }

  absl::Status WriteFront() {
    std::vector<std::byte> magic(kTableOffset);
    std::memcpy(magic.data(), kPackedMagic.data(), kPackedMagic.size());
    WITHY_RETURN_IF_ERROR(Append(magic));
    std::vector<PackedEntry> table;
    for (const LayoutItem& item : layout_.items) table.push_back(item.entry);
    const auto table_bytes = std::as_bytes(std::span(table));
    trailer_.table = {kTableOffset, table_bytes.size()};
    trailer_.table_crc = Crc32c(0, table_bytes);
    WITHY_RETURN_IF_ERROR(Append(table_bytes));
    WITHY_RETURN_IF_ERROR(PadTo(RoundUp(out_->bytes_written(), 64)));
    const std::vector<uint8_t> metadata = MetadataBytes(file_);
    trailer_.metadata = {out_->bytes_written(), metadata.size()};
    trailer_.metadata_crc = Crc32c(0, AsBytes(metadata));
    WITHY_RETURN_IF_ERROR(Append(AsBytes(metadata)));
    WITHY_RETURN_IF_ERROR(PadTo(RoundUp(out_->bytes_written(), kPackedPage)));
    trailer_.data = {out_->bytes_written(), layout_.data_bytes};
    in_data_ = true;
    return absl::OkStatus();
  }

  absl::Status WriteBack() {
    if (block_fill_ > 0) FinishBlock();
    in_data_ = false;
    const auto checksum_bytes = std::as_bytes(std::span(checksums_));
    trailer_.checksums = {out_->bytes_written(), checksum_bytes.size()};
    trailer_.checksums_crc = Crc32c(0, checksum_bytes);
    WITHY_RETURN_IF_ERROR(Append(checksum_bytes));
    trailer_.magic = kPackedMagic;
    trailer_.version = kPackedVersion;
    for (uint64_t half = 0; half < 2; ++half) {
      Hasher hasher(half + 1);
      hasher.Add(std::as_bytes(std::span(&trailer_.table_crc, 1)));
      hasher.Add(std::as_bytes(std::span(&trailer_.metadata_crc, 1)));
      hasher.Add(checksum_bytes);
      trailer_.model_id[half] = hasher.Finish();
    }
    const uint64_t trailer_offset = RoundUp(out_->bytes_written(), kPackedPage);
    WITHY_RETURN_IF_ERROR(PadTo(trailer_offset));
    trailer_.file_bytes = trailer_offset + kPackedPage;
    trailer_.trailer_crc = Crc32c(0, std::as_bytes(std::span(&trailer_, 1)));
    WITHY_RETURN_IF_ERROR(Append(std::as_bytes(std::span(&trailer_, 1))));
    return PadTo(trailer_.file_bytes);
  }

  absl::Status WriteItem(const LayoutItem& item) {
    WITHY_RETURN_IF_ERROR(PadTo(trailer_.data.offset + item.entry.offset));
    if (progress_) {
      progress_(static_cast<double>(item.entry.offset) / static_cast<double>(layout_.data_bytes),
                item.entry.name.data());
    }
    switch (item.entry.kind) {
      case PackedKind::kVector:
        return WriteVector(item);
      case PackedKind::kMatrix:
        return WriteMatrix(item);
      case PackedKind::kLowRank:
        return WriteLowRank(item);
    }
    return absl::InternalError("unknown kind of tensor");
  }

  absl::Status WriteLowRank(const LayoutItem& item) {
    const std::span<const uint8_t> source = file_.Data(*item.source);
    const size_t row_bytes = source.size() / item.entry.n_in;
    const auto outputs = static_cast<int64_t>(item.entry.n_out);
    std::vector<float> scales;  // consecutive ranks, here and below
    std::vector<int8_t> quants;
    RowDecoder decoder(item.source->type, WeightType::kQ8, outputs, {});
    for (uint32_t r = 0; r < item.entry.n_in; ++r) {
      WITHY_RETURN_IF_ERROR(
          DecodeLowRank(decoder, item, source.subspan(r * row_bytes, row_bytes), &scales, &quants));
    }
    return Append(BlockAfterBlock(scales, quants, item.entry.n_in));
  }

  // Reorders to the layout of cpu/low_rank.h.
  static std::vector<std::byte> BlockAfterBlock(const std::vector<float>& scales,
                                                const std::vector<int8_t>& quants, size_t rank) {
    const size_t blocks = scales.size() / rank;
    std::vector<std::byte> bytes;
    const auto append = [&bytes](const auto* from, size_t count) {
      const auto added = std::as_bytes(std::span(from, count));
      bytes.insert(bytes.end(), added.begin(), added.end());
    };
    for (size_t block = 0; block < blocks; ++block) {
      for (size_t r = 0; r < rank; ++r) append(&scales[r * blocks + block], 1);
      for (size_t r = 0; r < rank; ++r) {
        append(&quants[(r * blocks + block) * kQuantBlock], kQuantBlock);
      }
    }
    return bytes;
  }

  // Appends one rank's row in 8 bits.
  static absl::Status DecodeLowRank(RowDecoder& decoder, const LayoutItem& item,
                                    std::span<const uint8_t> row, std::vector<float>* scales,
                                    std::vector<int8_t>* quants) {
    const size_t outputs = item.entry.n_out;
    if (MultipliesAsQ8(PackedTypeFor(item.source->type).value_or(WeightType::kF32))) {
      auto decoded = decoder.Decode(row);
      if (!decoded.ok()) return Annotate(decoded.status(), item.source->name);
      quants->insert(quants->end(), decoded->q8, decoded->q8 + outputs);
      for (size_t block = 0; block < outputs / kQuantBlock; ++block) {
        scales->push_back(F16ToF32(decoded->scales[block]));
      }
      return absl::OkStatus();
    }
    std::vector<float> values(outputs);
    WITHY_RETURN_IF_ERROR(Dequantize(item.source->type, row, values));
    for (size_t begin = 0; begin < outputs; begin += kQuantBlock) {
      float largest = 0;
      for (size_t i = 0; i < kQuantBlock; ++i)
        largest = std::max(largest, std::fabs(values[begin + i]));
      scales->push_back(largest / 127.0f);
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      for (size_t i = 0; i < kQuantBlock; ++i) {
        quants->push_back(static_cast<int8_t>(std::lround(values[begin + i] * inverse)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteVector(const LayoutItem& item) {
    const bool long_rope = item.entry.name.data() == kLongRopeVector;
    std::vector<float> values =
        long_rope ? layout_.shape.long_rope_frequencies : layout_.shape.rope_frequencies;
    if (item.source != nullptr) {
      values.resize(static_cast<size_t>(item.source->elements()));
      WITHY_RETURN_IF_ERROR(Dequantize(item.source->type, file_.Data(*item.source), values));
    }
    if (!item.row_order.empty()) {
      std::vector<float> ordered(item.row_order.size());
      for (size_t i = 0; i < ordered.size(); ++i) {
        ordered[i] = values[static_cast<size_t>(item.row_order[i])];
      }
      values.swap(ordered);
    }
    return Append(std::as_bytes(std::span(values)));
  }

  // Writes a matrix of one panel in runs of tiles; packs one of several panels as a whole, because
  // its rows are scattered.
  absl::Status WriteMatrix(const LayoutItem& item) {
    PackedMatrix whole{.type = static_cast<WeightType>(item.entry.type),
                       .n_out = static_cast<int>(item.entry.n_out),
                       .n_in = static_cast<int>(item.entry.n_in),
                       .panel_inputs = static_cast<int>(item.entry.panel_inputs)};
    const int step = whole.panels() == 1 ? kChunkRows : whole.n_out;
    for (int begin = 0; begin < whole.n_out; begin += step) {
      PackedMatrix part = whole;
      part.n_out = std::min(step, whole.n_out - begin);
      const size_t bytes = PackedBytes(part);
      packed_.Resize(bytes);
      WITHY_RETURN_IF_ERROR(PackRows(item, part, begin));
      WITHY_RETURN_IF_ERROR(Append({packed_.data(), bytes}));
    }
    return absl::OkStatus();
  }

  absl::Status PackRows(const LayoutItem& item, const PackedMatrix& part, int first_row) {
    ZeroPacked(part, packed_.data());
    const std::span<const uint8_t> source = file_.Data(*item.source);
    const size_t row_bytes = source.size() / static_cast<size_t>(item.source->rows());
    std::mutex mutex;
    absl::Status failure;
    pool_.ParallelFor(part.n_out, kRowGrain, [&](int begin, int end) {
      RowDecoder decoder(item.source->type, part.type, part.n_in, item.block_order);
      for (int row = begin; row < end; ++row) {
        const size_t place = static_cast<size_t>(first_row) + static_cast<size_t>(row);
        const size_t from =
            item.row_order.empty() ? place : static_cast<size_t>(item.row_order[place]);
        auto decoded = decoder.Decode(source.subspan(from * row_bytes, row_bytes));
        if (!decoded.ok()) {
          std::lock_guard lock(mutex);
          failure = Annotate(decoded.status(), item.source->name);
          return;
        }
        PackRow(part, row, *decoded, packed_.data());
      }
    });
    return failure;
  }

  const GgufFile& file_;
  ThreadPool& pool_;
  const PackProgress& progress_;
  const std::atomic<bool>* const cancel_;  // null: it is not given up
  PackedLayout layout_;
  PackedTrailer trailer_;
  std::unique_ptr<OutputFile> out_;
  AlignedArray<std::byte> packed_;
  bool in_data_ = false;  // bytes belong to the data section and are checksummed
  uint64_t block_fill_ = 0;
  uint32_t block_crc_ = 0;
  std::vector<uint32_t> checksums_;
};

}  // namespace

absl::Status PackGguf(const GgufFile& file, const SourceIdentity& source, const std::string& path,
                      ThreadPool& pool, const PackProgress& progress, uint32_t kv_epoch,
                      const std::atomic<bool>* cancel) {
  return Annotate(Packer(file, source, pool, progress, kv_epoch, cancel).Run(path), "packing");
}

}  // namespace withy::engine
