// Packing, the cache, and damaged files.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/test_seed.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/testing.h"
#include "engine/gguf/writer.h"
#include "engine/model/bundle.h"
#include "engine/model/testing.h"
#include "engine/weights/layout.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/packer.h"
#include "engine/weights/source_identity.h"
#include "engine/weights/types/packed_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteAll(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class PackedTest : public testing::Test {
 protected:
  // Copies the tiny model's GGUF with changed tensors and metadata.
  std::string Changed(const std::function<bool(const TensorInfo&, std::vector<int64_t>*,
                                               std::vector<uint8_t>*, GgmlType*)>& change,
                      const std::function<void(GgufWriter*)>& metadata = nullptr) {
    const auto base = GgufFile::Open(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0, "base.gguf"));
    EXPECT_TRUE(base.ok());
    GgufWriter writer;
    writer.CopyMetadata(*base);
    if (metadata) metadata(&writer);
    std::vector<std::vector<uint8_t>> data(base->tensors().size());
    for (size_t i = 0; i < data.size(); ++i) {
      const TensorInfo& tensor = base->tensors()[i];
      std::vector<int64_t> dims = tensor.dims;
      GgmlType type = tensor.type;
      const auto bytes = base->Data(tensor);
      data[i].assign(bytes.begin(), bytes.end());
      if (change && !change(tensor, &dims, &data[i], &type)) continue;
      writer.AddTensor(tensor.name, type, dims, data[i]);
    }
    EXPECT_TRUE(writer.Write(folder_ / "changed.gguf").ok());
    return folder_ / "changed.gguf";
  }

  absl::Status Open(const std::string& path) {
    ModelOptions options;
    options.threads = 1;
    options.cache_dir = folder_.path();
    return Model::Open(path, options).status();
  }

  std::string Pack(const std::string& gguf) {
    const auto path = EnsurePacked(gguf, folder_.path(), pool_);
    EXPECT_TRUE(path.ok()) << path.status();
    return path.ok() ? *path : "";
  }

  TestFolder folder_;
  ThreadPool pool_{2};
};

TEST_F(PackedTest, WeightsMoveToMemoryUnchanged) {
  const std::string path = Pack(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0));
  const auto mapped = PackedFile::Open(path);
  const auto moved = PackedFile::Open(path);
  ASSERT_TRUE(mapped.ok() && moved.ok());
  ASSERT_TRUE((*moved)->MoveToMemory().ok());
  for (const PackedTensor& tensor : (*moved)->tensors()) {
    const PackedTensor& source = *(*mapped)->Find(tensor.name);
    const bool matrix = tensor.kind == PackedKind::kMatrix;
    const void* now = matrix ? static_cast<const void*>(tensor.matrix.data) : tensor.values.data();
    const void* before =
        matrix ? static_cast<const void*>(source.matrix.data) : source.values.data();
    ASSERT_NE(now, before);
    EXPECT_EQ(std::memcmp(now, before, tensor.bytes), 0) << tensor.name;
  }
}

// Opening looks at samples of the weights only; what is copied is looked at byte for byte.
TEST_F(PackedTest, DamageShowsWhenWeightsMoveToMemory) {
  const std::string path = Pack(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0));
  const auto packed = PackedFile::Open(path);
  ASSERT_TRUE(packed.ok());
  const uint64_t at = (*packed)->tensors().front().file_offset;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  const absl::Status status = (*packed)->MoveToMemory();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path));
}

TEST_F(PackedTest, AModelComputesTheSameFromEitherPlace) {
  const std::string path = Pack(WriteTiny(folder_, TinyShape(), GgmlType::kQ4_0));
  std::vector<std::vector<float>> logits;
  for (const auto place :
       {ModelOptions::WeightPlace::kMapped, ModelOptions::WeightPlace::kCopied}) {
    ModelOptions options;
    options.weight_place = place;
    const auto model = OpenTiny(folder_, path, options);
    const auto tokens = SomeTokens(20, model->info().vocab_size);
    logits.push_back(RunRows(*model, ScratchKv(model->info(), 32), PlainRows(tokens)));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST_F(PackedTest, PackedWeightsAreTheSourcesInPackedOrder) {
  for (const GgmlType type :
       {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0}) {
    const std::string gguf = WriteTiny(folder_, TinyShape(), type);
    const auto source = GgufFile::Open(gguf);
    const auto packed = PackedFile::Open(Pack(gguf), PackedFile::Verify::kFull);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto order = QueryHeadOrder(8, 2);
    for (const PackedTensor& tensor : (*packed)->tensors()) {
      if (tensor.kind != PackedKind::kMatrix) continue;
      EXPECT_EQ(tensor.file_offset % kPackedPage, 0u);
      const TensorInfo* info = source->FindTensor(tensor.name + ".weight");
      ASSERT_NE(info, nullptr);
      std::vector<float> values(static_cast<size_t>(info->elements()));
      ASSERT_TRUE(Dequantize(info->type, source->Data(*info), values).ok());
      const bool is_q = tensor.name.ends_with("attn_q");
      const bool is_o = tensor.name.ends_with("attn_output");
      std::vector<float> row(static_cast<size_t>(tensor.matrix.n_in));
      for (int32_t r = 0; r < tensor.matrix.n_out; ++r) {
        UnpackRow(tensor.matrix, r, row.data());
        const int32_t from = is_q ? order[static_cast<size_t>(r / 32)] * 32 + r % 32 : r;
        for (int32_t c = 0; c < tensor.matrix.n_in; ++c) {
          const int32_t col = is_o ? order[static_cast<size_t>(c / 32)] * 32 + c % 32 : c;
          ASSERT_EQ(row[static_cast<size_t>(c)],
                    values[static_cast<size_t>(from * tensor.matrix.n_in + col)])
              << tensor.name << " " << r << " " << c;
        }
      }
    }
  }
}

// K-quants have blocks of 256 with scales inside; any bytes are a valid block if its halves are
// finite.
TEST_F(PackedTest, KQuantsKeepTheirValues) {
  SynthShape shape = TinyShape();
  shape.d_model = 256;
  const auto base = GgufFile::Open(WriteTiny(folder_, shape, GgmlType::kF32));
  ASSERT_TRUE(base.ok());
  struct Kind {
    GgmlType type;
    std::vector<size_t> halves;  // byte offsets of f16 scales in a block
    double tolerance;            // per value, relative to the tensor's largest
  };
  // What packed_type.h says of each type: exact, scales rounded to halves, or 8 bits anew.
  for (const Kind& kind :
       {Kind{GgmlType::kQ4_K, {0, 2}, 1e-3}, Kind{GgmlType::kQ5_K, {0, 2}, 5e-3},
        Kind{GgmlType::kQ6_K, {208}, 5e-3}, Kind{GgmlType::kQ2_K, {80, 82}, 5e-3},
        Kind{GgmlType::kQ3_K, {108}, 0}, Kind{GgmlType::kIQ4_XS, {0}, 5e-4},
        Kind{GgmlType::kTQ1_0, {52}, 0}, Kind{GgmlType::kTQ2_0, {64}, 0}}) {
    const size_t block = FindTypeTraits(kind.type)->block_bytes;
    std::vector<uint8_t> bytes(block * 512);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i * 31 >> 4);
    const uint16_t scale = FloatToHalf(0.01f);
    for (size_t b = 0; b < 512; ++b) {
      for (size_t at : kind.halves) std::memcpy(&bytes[b * block + at], &scale, 2);
    }
    std::vector<float> values(size_t{512} * 256);
    ASSERT_TRUE(Dequantize(kind.type, bytes, values).ok());
    GgufWriter writer;
    writer.CopyMetadata(*base);
    for (const TensorInfo& tensor : base->tensors()) {
      const bool changed = tensor.name == "output.weight";
      writer.AddTensor(tensor.name, changed ? kind.type : tensor.type, tensor.dims,
                       changed ? std::span<const uint8_t>(bytes) : base->Data(tensor));
    }
    ASSERT_TRUE(writer.Write(folder_ / "k.gguf").ok());
    const auto packed = PackedFile::Open(Pack(folder_ / "k.gguf"));
    ASSERT_TRUE(packed.ok()) << packed.status();
    const PackedMatrix& matrix = (*packed)->Find("output")->matrix;
    EXPECT_EQ(matrix.type, PackedTypeFor(kind.type).value());
    float largest = 0;
    for (float v : values) largest = std::max(largest, std::abs(v));
    std::vector<float> row(256);
    for (int32_t r = 0; r < 512; ++r) {
      UnpackRow(matrix, r, row.data());
      for (size_t c = 0; c < 256; ++c) {
        ASSERT_NEAR(row[c], values[static_cast<size_t>(r) * 256 + c], kind.tolerance * largest)
            << TypeName(kind.type) << " " << r << " " << c;
      }
    }
  }
}

TEST_F(PackedTest, TheCacheIsReusedAndRenewed) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string packed = Pack(gguf);
  const std::string first_id = (*PackedFile::Open(packed))->model_id();
  const auto inode = [&] { return fs::last_write_time(packed); };
  const auto made = inode();
  EXPECT_EQ(Pack(gguf), packed);
  EXPECT_EQ(inode(), made) << "packed again without need";

  ASSERT_TRUE(WriteSynthModel(TinyShape(), GgmlType::kQ8_0, /*seed=*/8, gguf).ok());
  EXPECT_EQ(Pack(gguf), packed);
  EXPECT_NE((*PackedFile::Open(packed))->model_id(), first_id) << "stale weights";

  ASSERT_TRUE(WriteSynthModel(TinyShape(), GgmlType::kQ8_0, /*seed=*/7, gguf).ok());
  Pack(gguf);
  EXPECT_EQ((*PackedFile::Open(packed))->model_id(), first_id) << "the id follows the weights";
}

// Like rsync -t, cp -p and image layers: other bytes, but unchanged attributes.
TEST_F(PackedTest, OneOtherByteOfTheWeightsIsNoticedWhateverElseIsTheSame) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string good = ReadAll(gguf);
  const uint64_t data_begin = GgufFile::Open(gguf)->tensors()[0].offset;
  const auto time = fs::last_write_time(gguf);
  const std::string packed = Pack(gguf);
  const std::string first_id = (*PackedFile::Open(packed))->model_id();
  for (int round = 0; round < 24; ++round) {
    std::string other = good;
    const size_t at = data_begin + random() % (good.size() - data_begin);
    other[at] = static_cast<char>(other[at] ^ (1 << random() % 8));
    const bool in_place = round % 2 == 0;
    WriteAll(in_place ? gguf : folder_ / "incoming", other);
    fs::last_write_time(in_place ? gguf : folder_ / "incoming", time);
    if (!in_place) fs::rename(folder_ / "incoming", gguf);
    const SourceIdentity source = (*PackedFile::Open(Pack(gguf)))->source();
    WriteAll(gguf, good);
    fs::last_write_time(gguf, time);
    EXPECT_NE((*PackedFile::Open(Pack(gguf)))->source(), source) << "byte " << at;
    EXPECT_EQ((*PackedFile::Open(packed))->model_id(), first_id);
  }
}

TEST_F(PackedTest, TheSameBytesAreNotPackedAgain) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string packed = Pack(gguf);
  const auto made = fs::last_write_time(packed);
  fs::last_write_time(gguf, fs::last_write_time(gguf) + std::chrono::hours(1));
  Pack(gguf);
  fs::copy_file(gguf, folder_ / "incoming");
  fs::rename(folder_ / "incoming", gguf);
  Pack(gguf);
  EXPECT_EQ(fs::last_write_time(packed), made);
}

// A split model computes what the whole one does, from a packed file that knows all parts.
TEST_F(PackedTest, AllPartsOfASplitModelArePacked) {
  const std::string whole = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::vector<std::string> parts =
      WriteSplit(GgufFile::Open(whole).value(), folder_ / "split", 3);
  const std::string packed = Pack(parts[0]);
  const auto a = PackedFile::Open(Pack(whole));
  const auto b = PackedFile::Open(packed);
  ASSERT_TRUE(a.ok() && b.ok()) << b.status();
  ASSERT_EQ((*a)->tensors().size(), (*b)->tensors().size());
  const auto bytes = [](const std::string& path, const PackedTensor& tensor) {
    return ReadAll(path).substr(tensor.file_offset, tensor.bytes);
  };
  for (const PackedTensor& tensor : (*a)->tensors()) {
    const PackedTensor& other = *(*b)->Find(tensor.name);
    EXPECT_EQ(bytes((*a)->path(), tensor), bytes(packed, other)) << tensor.name;
  }
  EXPECT_FALSE((*b)->metadata().GetUintOr(kGgufSplitCount, 0).value());
  const auto made = fs::last_write_time(packed);
  Pack(parts[0]);
  EXPECT_EQ(fs::last_write_time(packed), made);
  std::string last = ReadAll(parts[2]);
  last.back() = static_cast<char>(last.back() ^ 1);
  WriteAll(parts[2], last);
  Pack(parts[0]);
  EXPECT_NE(fs::last_write_time(packed), made) << "the last part changed";
  fs::remove(parts[1]);
  const absl::Status missing = EnsurePacked(parts[0], folder_.path(), pool_).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(Message(missing), HasSubstr(parts[1]));
}

TEST_F(PackedTest, DigestsOfPartsAreRememberedTogether) {
  const std::string whole = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::vector<std::string> parts =
      WriteSplit(GgufFile::Open(whole).value(), folder_ / "split", 2);
  const std::string memo = folder_ / "memo";
  const GgufFile file = GgufFile::Open(parts[0]).value();
  std::vector<SourceFile> sources = *StampSources(file.parts());
  if (!ChangeTimeIsSafe(sources[0].stamp)) GTEST_SKIP() << "the change time says nothing here";
  const int64_t later = sources[1].stamp.ctime_ns + 61'000'000'000;
  const auto source = IdentifySources(sources, memo, later, pool_);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->size, fs::file_size(parts[0]) + fs::file_size(parts[1]));
  ASSERT_TRUE(fs::exists(memo));
  EXPECT_EQ(*IdentifySources(sources, memo, later, pool_), *source);
  std::swap(sources[0], sources[1]);
  EXPECT_NE(*IdentifySources(sources, memo, later, pool_), *source) << "in another order";
}

TEST_F(PackedTest, ADigestIsRememberedOnlyOfAFileThatWasLeftAlone) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string memo = folder_ / "memo";
  FileStamp stamp = *StampOf(gguf);
  // Makes the test independent of the file system and of the time of writing.
  if (!ChangeTimeIsSafe(stamp)) GTEST_SKIP() << "the change time says nothing here";
  const int64_t at_once = stamp.ctime_ns + 1'000'000'000;
  const int64_t later = stamp.ctime_ns + 61'000'000'000;
  const auto source = IdentifySources(std::vector<SourceFile>{{gguf, stamp}}, memo, at_once, pool_);
  const auto identify = [&] {
    return IdentifySources(std::vector<SourceFile>{{gguf, stamp}}, memo, later, pool_);
  };
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_FALSE(fs::exists(memo));
  EXPECT_EQ(*identify(), *source);
  ASSERT_TRUE(fs::exists(memo));
  EXPECT_EQ(*identify(), *source);
  // A memo of other bytes, or a torn one, is ignored.
  const auto time = fs::last_write_time(gguf);
  std::string other = ReadAll(gguf);
  other.back() = static_cast<char>(other.back() ^ 1);
  WriteAll(gguf, other);
  fs::last_write_time(gguf, time);
  stamp = *StampOf(gguf);
  EXPECT_NE(*identify(), *source);
  fs::resize_file(memo, fs::file_size(memo) / 2);
  EXPECT_NE(*identify(), *source);
  EXPECT_EQ(DigestFile(gguf, FileStamp{.size = stamp.size}, pool_).status().code(),
            absl::StatusCode::kAborted);
}

TEST(SourceIdentityTest, ChangeTimesThatAnImageOrAUserMayHaveSetSayNothing) {
  FileStamp stamp{.ctime_ns = 1'700'000'000'123'456'789, .file_system = 0xEF53};
  EXPECT_TRUE(ChangeTimeIsSafe(stamp));
  for (const uint64_t magic :
       {0x4d44ull /* FAT */, 0x2011BAB0ull /* exFAT */, 0x73717368ull /* squashfs */,
        0xE0F5E1E2ull /* EROFS */, 0x794c7630ull /* overlay */, 0x6969ull /* NFS */,
        0x65735546ull /* FUSE */, 0x01021997ull /* 9p */, 0ull}) {
    FileStamp there = stamp;
    there.file_system = magic;
    EXPECT_FALSE(ChangeTimeIsSafe(there)) << std::hex << magic;
  }
  stamp.ctime_ns = 1'700'000'000'000'000'000;  // a whole second, as written by an image's author
  EXPECT_FALSE(ChangeTimeIsSafe(stamp));
  EXPECT_FALSE(HasSettled(stamp, stamp.ctime_ns));
  EXPECT_FALSE(HasSettled(stamp, stamp.ctime_ns - 1)) << "the clock went back";
  EXPECT_TRUE(HasSettled(stamp, stamp.ctime_ns + 60'000'000'000));
}

TEST_F(PackedTest, WhatAKilledPackerLeftIsClearedAway) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string packed = PackedPath(gguf, folder_.path());
  WriteAll(packed + ".a1b2c3.partial", "half");
  WriteAll(folder_ / "other.withy.a1b2c3.partial", "another model's");
  Pack(gguf);
  EXPECT_FALSE(fs::exists(packed + ".a1b2c3.partial"));
  EXPECT_TRUE(fs::exists(folder_ / "other.withy.a1b2c3.partial"));
}

TEST_F(PackedTest, ALockFileThatIsNoneIsRefusedAndLeft) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string lock = PackedPath(gguf, folder_.path()) + ".lock";
  WriteAll(folder_ / "notes", "mine");
  fs::create_symlink(folder_ / "notes", lock);
  EXPECT_THAT(Message(Open(gguf)), HasSubstr(lock));
  EXPECT_TRUE(fs::is_symlink(lock));
  EXPECT_EQ(ReadAll(folder_ / "notes"), "mine");
  fs::remove(lock);
  ASSERT_EQ(mkfifo(lock.c_str(), 0600), 0);
  EXPECT_THAT(Message(Open(gguf)), HasSubstr(lock));
}

// On a separate file system that is too small.
TEST_F(PackedTest, AFullDiskIsNamedWithWhatIsFreeAndNeeded) {
  const std::string small = folder_ / "small";
  fs::create_directory(small);
  if (mount("withy-test", small.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  }
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kF16);
  ASSERT_GT(fs::file_size(gguf), 300'000u);
  const absl::Status full = EnsurePacked(gguf, small, pool_).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(full),
              AllOf(HasSubstr(small), HasSubstr("disk full"), HasSubstr("bytes, 2")));
  ASSERT_EQ(mount("withy-test", small.c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0);
  EXPECT_TRUE(EnsurePacked(gguf, small, pool_).ok());
  umount2(small.c_str(), MNT_DETACH);
}

TEST_F(PackedTest, ADamagedCacheIsMadeAgain) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string packed = Pack(gguf);
  fs::resize_file(packed, fs::file_size(packed) / 2);
  EXPECT_EQ(PackedFile::Open(packed).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Open(gguf).ok());
  EXPECT_TRUE(PackedFile::Open(packed, PackedFile::Verify::kFull).ok());
}

// Whatever became of the file, and wherever the weights are kept: the answers are the model's.
TEST_F(PackedTest, DamageIsToldAndPackedAgain) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string packed = Pack(gguf);
  const std::string good = ReadAll(packed);
  const auto flipped = [&](size_t at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    return bad;
  };
  std::vector<std::string> contents = {"", "WITHYPK\n", std::string(good.size(), '\0'),
                                       good.substr(0, good.size() - 1)};
  for (size_t at = 70; at < good.size(); at += good.size() / 7) contents.push_back(flipped(at));
  using Place = ModelOptions::WeightPlace;
  std::vector<ModelOptions> ways(3);
  ways[0].weight_place = Place::kMapped;
  ways[1].weight_place = Place::kCopied;
  ways[2].weight_budget_bytes = 1 << 30;
  for (ModelOptions& options : ways) {
    absl::Status told;
    options.cache_dir = folder_.path();
    options.threads = 1;
    options.on_damage = [&](const absl::Status& damage) { told = damage; };
    uint32_t epoch = 0;
    for (const std::string& content : contents) {
      told = absl::OkStatus();
      WriteAll(packed, content);
      const auto model = Model::Open(gguf, options);
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_TRUE(absl::IsDataLoss(told)) << told;
      EXPECT_THAT(std::string(told.message()), HasSubstr(packed));
      EXPECT_NE((*model)->info().kv_epoch, epoch);
      epoch = (*model)->info().kv_epoch;
      // The weights are the same again; only the epoch of the KV differs.
      const std::string again = ReadAll(packed);
      EXPECT_EQ(again.substr(0, again.size() - kPackedPage),
                good.substr(0, good.size() - kPackedPage));
    }
  }
}

// Damage between the blocks that every opening samples.
TEST_F(PackedTest, DamageThatNoSampleSeesIsFoundWhereWeightsAreMapped) {
  SynthShape shape = TinyShape();
  shape.vocab_size = 300'000;  // 77 MB, of which every second MiB is sampled
  const std::string gguf = WriteTiny(folder_, shape, GgmlType::kF16);
  const std::string packed = Pack(gguf);
  const auto file = PackedFile::Open(packed);
  ASSERT_TRUE(file.ok());
  const uint64_t at = (*file)->data_offset() + kPackedChecksumBlock + 5;
  {
    std::fstream stream(packed, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(static_cast<char>(byte ^ 1));
  }
  ASSERT_TRUE(PackedFile::Open(packed).ok()) << "a sampled block: choose another";
  ModelOptions options;
  options.cache_dir = folder_.path();
  options.weight_place = ModelOptions::WeightPlace::kMapped;
  absl::Status told;
  options.on_damage = [&](const absl::Status& damage) { told = damage; };
  ASSERT_TRUE(Model::Open(gguf, options).ok());
  EXPECT_THAT(Message(told), AllOf(HasSubstr(absl::StrCat(at - 5)), HasSubstr("tensor ")));
  EXPECT_TRUE(PackedFile::Open(packed, PackedFile::Verify::kFull).ok());
}

TEST_F(PackedTest, AnotherVersionIsPackedAgainWithoutAWarning) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string packed = Pack(gguf);
  std::string other = ReadAll(packed);
  PackedTrailer trailer;
  char* const end = other.data() + other.size() - kPackedPage;
  std::memcpy(&trailer, end, sizeof(trailer));
  trailer.version = kPackedVersion + 1;
  trailer.trailer_crc = 0;
  trailer.trailer_crc = Crc32c(0, std::as_bytes(std::span(&trailer, 1)));
  std::memcpy(end, &trailer, sizeof(trailer));
  WriteAll(packed, other);
  EXPECT_THAT(Message(Open(packed)), AllOf(HasSubstr("version"), HasSubstr("withyctl models")));
  int told = 0;
  const auto again =
      EnsurePacked(gguf, folder_.path(), pool_, nullptr, [&](const absl::Status&) { ++told; });
  EXPECT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(told, 0);
  EXPECT_TRUE(PackedFile::Open(packed).ok());
}

// What stands in the file's place and cannot be removed is named.
TEST_F(PackedTest, AFolderInThePlaceOfThePackedFile) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  const std::string packed = PackedPath(gguf, folder_.path());
  fs::create_directory(packed);
  EXPECT_TRUE(EnsurePacked(gguf, folder_.path(), pool_).ok());
  fs::remove(packed);
  fs::create_directory(packed);
  WriteAll(packed + "/file", "x");
  const absl::Status kept = EnsurePacked(gguf, folder_.path(), pool_).status();
  EXPECT_THAT(Message(kept), AllOf(HasSubstr(packed), HasSubstr("move it away")));
}

TEST_F(PackedTest, WithoutItsGgufTheStateOfThePackedFileIsTold) {
  const std::string gguf = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  ModelOptions options;
  options.cache_dir = folder_.path();
  EXPECT_THAT(Message(OpenBundle(folder_ / "other.gguf", options).status()),
              Not(HasSubstr("packed")));
  const std::string packed = Pack(gguf);
  fs::remove(gguf);
  const absl::Status whole = OpenBundle(gguf, options).status();
  EXPECT_EQ(whole.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(whole), AllOf(HasSubstr(gguf), HasSubstr(packed), HasSubstr("is whole")));
  fs::resize_file(packed, fs::file_size(packed) - kPackedPage);
  const absl::Status damaged = OpenBundle(gguf, options).status();
  EXPECT_EQ(damaged.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(damaged), AllOf(HasSubstr("damaged"), HasSubstr("put the GGUF back")));
}

TEST_F(PackedTest, NothingDamagedIsTakenForGood) {
  const std::string packed = Pack(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0));
  const std::string good = ReadAll(packed);
  const std::string bad_path = folder_ / "bad.withy";
  for (size_t keep = 0; keep < good.size(); keep += good.size() / 37 + 1) {
    WriteAll(bad_path, std::string_view(good).substr(0, keep));
    EXPECT_FALSE(PackedFile::Open(bad_path).ok()) << "cut to " << keep;
  }
  // All bytes of trailer and table, some of the data. Padding between sections has no checksum.
  const auto table = (*PackedFile::Open(packed))->tensors().size() * sizeof(PackedEntry);
  const auto flip = [&](size_t at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x41);
    WriteAll(bad_path, bad);
    EXPECT_EQ(PackedFile::Open(bad_path, PackedFile::Verify::kFull).status().code(),
              absl::StatusCode::kDataLoss)
        << "byte " << at;
  };
  for (size_t i = 0; i < sizeof(PackedTrailer); i += 3) flip(good.size() - kPackedPage + i);
  for (size_t i = 64; i < 64 + table; i += 101) flip(i);
  for (int i = 1; i < 8; ++i) flip(good.size() / 8 * static_cast<size_t>(i));
}

// A trailer and table with correct checksums and hostile contents.
TEST_F(PackedTest, HostileTablesAreRefused) {
  const std::string packed = Pack(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0));
  const std::string good = ReadAll(packed);
  const std::string bad_path = folder_ / "bad.withy";
  PackedTrailer trailer;
  std::memcpy(&trailer, good.data() + good.size() - kPackedPage, sizeof(trailer));
  const auto refused = [&](const char* what,
                           const std::function<void(PackedTrailer*, PackedEntry*)>& spoil) {
    std::string bad = good;
    PackedTrailer t = trailer;
    auto* entries = reinterpret_cast<PackedEntry*>(bad.data() + trailer.table.offset);
    spoil(&t, entries);
    t.table_crc =
        Crc32c(0, std::as_bytes(std::span(bad.data() + trailer.table.offset, trailer.table.bytes)));
    t.trailer_crc = 0;
    t.trailer_crc = Crc32c(0, std::as_bytes(std::span(&t, 1)));
    std::memcpy(bad.data() + bad.size() - kPackedPage, &t, sizeof(t));
    WriteAll(bad_path, bad);
    EXPECT_EQ(Open(bad_path).code(), absl::StatusCode::kDataLoss) << what;
  };
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max() - 63;
  refused("data outside", [](auto* t, auto*) { t->data.offset = kHuge / 4096 * 4096; });
  refused("table outside", [](auto* t, auto*) { t->table.offset = kHuge; });
  refused("checksums short", [](auto* t, auto*) { t->checksums.bytes -= 4; });
  refused("metadata moved", [](auto* t, auto*) { t->metadata.offset += 64; });
  refused("tensor outside", [](auto*, auto* e) { e[0].offset = kHuge / 4096 * 4096; });
  refused("tensor size", [](auto*, auto* e) { e[0].bytes = kHuge; });
  refused("rows", [](auto*, auto* e) { e[0].n_out = 0xFFFFFFFF; });
  refused("no rows", [](auto*, auto* e) { e[0].n_out = 0; });
  refused("columns", [](auto*, auto* e) { e[0].n_in = 0x7FFFFFE0; });
  refused("panel", [](auto*, auto* e) { e[0].panel_inputs = 0; });
  refused("type", [](auto*, auto* e) { e[0].type = 99; });
  refused("kind", [](auto*, auto* e) { e[0].kind = static_cast<PackedKind>(7); });
  refused("twice", [](auto*, auto* e) { e[1].name = e[0].name; });
  refused("missing tensor", [](auto*, auto* e) { e[0].name = {'x'}; });
  refused("other shape", [](auto*, auto* e) { e[0].n_out = 16; });
}

TEST_F(PackedTest, ImportErrorsNameTheThing) {
  const auto without = [&](const std::string& name) {
    return Open(Changed([&](const TensorInfo& t, auto*, auto*, auto*) { return t.name != name; }));
  };
  EXPECT_THAT(Message(without("blk.1.ffn_up.weight")), HasSubstr("blk.1.ffn_up.weight"));
  EXPECT_THAT(Message(without("token_embd.weight")), HasSubstr("token_embd.weight"));

  const absl::Status shape = Open(Changed([](const TensorInfo& t, auto* dims, auto* data, auto*) {
    if (t.name == "blk.0.attn_k.weight") {
      (*dims)[1] /= 2;
      data->resize(data->size() / 2);
    }
    return true;
  }));
  EXPECT_THAT(Message(shape), HasSubstr("blk.0.attn_k.weight is [32, 128]"));
  EXPECT_THAT(Message(shape), HasSubstr("[64, 128]"));

  const auto with_metadata = [&](const std::function<void(GgufWriter*)>& set) {
    return Open(Changed(nullptr, set));
  };
  const absl::Status architecture =
      with_metadata([](GgufWriter* w) { w->SetString("general.architecture", "mamba"); });
  EXPECT_EQ(architecture.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(architecture), HasSubstr("llama, qwen2, qwen3"));
  EXPECT_THAT(Message(with_metadata(
                  [](GgufWriter* w) { w->Set<uint32_t>("llama.embedding_length", 100); })),
              HasSubstr("multiple of 32"));
  EXPECT_THAT(Message(with_metadata(
                  [](GgufWriter* w) { w->Set<uint32_t>("llama.attention.head_count_kv", 3); })),
              HasSubstr("divisor"));
  EXPECT_THAT(Message(with_metadata(
                  [](GgufWriter* w) { w->SetString("llama.rope.scaling.type", "dynamic"); })),
              HasSubstr("none, linear, llama3"));
  EXPECT_THAT(
      Message(with_metadata([](GgufWriter* w) { w->Set<uint32_t>("llama.expert_count", 8); })),
      HasSubstr("expert_count"));
  EXPECT_THAT(
      Message(with_metadata([](GgufWriter* w) { w->Set<uint32_t>("llama.block_count", 2); })),
      HasSubstr("does not belong"));
  EXPECT_THAT(Message(with_metadata(
                  [](GgufWriter* w) { w->Set<uint32_t>("llama.block_count", 4000000000u); })),
              HasSubstr("block_count"));
}

// Blocks of 32 with one scale become the same values in 8 bits; a scale that half precision cannot
// hold is refused by the tensor's name.
TEST_F(PackedTest, BlocksWithOneScaleAreKeptExactly) {
  SynthShape shape = TinyShape();
  shape.d_model = 256;
  const auto base = GgufFile::Open(WriteTiny(folder_, shape, GgmlType::kF32));
  ASSERT_TRUE(base.ok());
  for (const auto& [type, first] :
       {std::pair{GgmlType::kQ5_0, 0x11}, std::pair{GgmlType::kIQ4_NL, 0x11},
        std::pair{GgmlType::kMXFP4, 120}, std::pair{GgmlType::kMXFP4, 200}}) {
    const size_t block = FindTypeTraits(type)->block_bytes;
    std::vector<uint8_t> bytes(block * 512 * 8);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<uint8_t>(
          i % block == 0 || (i % block == 1 && block != 17) ? first : i * i * 31 >> 4);
    }
    std::vector<float> values(size_t{512} * 256);
    ASSERT_TRUE(Dequantize(type, bytes, values).ok());
    GgufWriter writer;
    writer.CopyMetadata(*base);
    for (const TensorInfo& tensor : base->tensors()) {
      const bool changed = tensor.name == "output.weight";
      writer.AddTensor(tensor.name, changed ? type : tensor.type, tensor.dims,
                       changed ? std::span<const uint8_t>(bytes) : base->Data(tensor));
    }
    ASSERT_TRUE(writer.Write(folder_ / "one.gguf").ok());
    if (first == 200) {
      const std::string message = Message(Open(folder_ / "one.gguf"));
      EXPECT_THAT(message, HasSubstr("output.weight"));
      EXPECT_THAT(message, HasSubstr("at most 65504"));
      continue;
    }
    const auto packed = PackedFile::Open(Pack(folder_ / "one.gguf"));
    ASSERT_TRUE(packed.ok()) << packed.status();
    const PackedMatrix& matrix = (*packed)->Find("output")->matrix;
    std::vector<float> row(256);
    for (int32_t r = 0; r < 512; ++r) {
      UnpackRow(matrix, r, row.data());
      for (size_t c = 0; c < 256; ++c) {
        ASSERT_EQ(row[c], values[static_cast<size_t>(r) * 256 + c])
            << TypeName(type) << " " << r << " " << c;
      }
    }
  }
}

TEST_F(PackedTest, AnUnsupportedTypeListsTheSupported) {
  const absl::Status status =
      Open(Changed([](const TensorInfo& t, auto* dims, auto* data, auto* type) {
        if (t.name == "output.weight") {
          *type = GgmlType::kI8;
          data->assign(static_cast<size_t>((*dims)[0] * (*dims)[1]), 0);
        }
        return true;
      }));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Message(status), HasSubstr("Q4_K"));
}

TEST_F(PackedTest, NotANumberInWeightsDoesNotCrash) {
  const std::string path = Changed([](const TensorInfo& t, auto*, auto* data, auto*) {
    if (t.name == "blk.0.attn_q.weight") (*data)[1] = 0x7E;    // a NaN scale
    if (t.name == "blk.1.ffn_down.weight") (*data)[1] = 0x7C;  // an infinite scale
    return true;
  });
  const auto model = OpenTiny(folder_, path);
  ASSERT_NE(model, nullptr);
  EXPECT_TRUE(GreedyDecode(*model, SomeTokens(20, 512), 3).ok());
}

TEST_F(PackedTest, OtherFilesAreRefused) {
  EXPECT_EQ(Open(folder_ / "nothing.gguf").code(), absl::StatusCode::kNotFound);
  WriteAll(folder_ / "text.gguf", "this is no model");
  EXPECT_FALSE(Open(folder_ / "text.gguf").ok());
  WriteAll(folder_ / "magic.withy", "WITHYPK\n");
  EXPECT_EQ(Open(folder_ / "magic.withy").code(), absl::StatusCode::kDataLoss);
  WriteAll(folder_ / "empty.gguf", "");
  EXPECT_FALSE(Open(folder_ / "empty.gguf").ok());
}

TEST_F(PackedTest, ACacheThatCannotBeWrittenIsNamed) {
  ModelOptions options;
  options.cache_dir = "/proc/withy";
  const auto model = Model::Open(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0), options);
  EXPECT_THAT(Message(model.status()), AllOf(HasSubstr("/proc/withy"), HasSubstr("state_dir")));
}

}  // namespace
}  // namespace withy::engine
