// Arbitrary entries in the KV directory and an arbitrary index, opened as a start opens them: it
// succeeds, what is read is either what was written or refused, and KV can be written and read
// again.
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/ids.h"
#include "base/unique_fd.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;

constexpr engine::KvGeometry kFuzzKv{2, 1, 16};
constexpr char kContext[] = "ctx_fuzz";

void Require(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "kv_directory_fuzz: %s\n", what);
  std::abort();
}

Geometry FuzzGeometry() {
  return {std::string(32, 'm'), 2, 1, 16, static_cast<uint32_t>(kFuzzKv.BlockBytes(KvFormat::kQ8))};
}

// Takes numbers and bytes off the input; zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return left_.empty(); }
  uint8_t Byte() {
    const std::string_view one = Bytes(1);
    return one.empty() ? 0 : static_cast<uint8_t>(one[0]);
  }
  std::string_view Bytes(size_t count) {
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(bytes.size());
    return bytes;
  }

 private:
  std::string_view left_;
};

// The database and the keys of all runs, and the directory of one. Lives as long as the process.
class World {
 public:
  World() {
    spdlog::set_level(spdlog::level::off);
    std::string pattern = (fs::temp_directory_path() / "withy-kv-fuzz-XXXXXX").string();
    Require(mkdtemp(pattern.data()) != nullptr, "no directory");
    dir_ = pattern;
    db_ = *RecordDb::Open({.path = dir_ + "/db"});
    keys_ = *ContextKeys::Open(*db_, {dir_ + "/key"});
    db_->UseKeys(*keys_);
  }
  ~World() { Clear(dir_); }

  void Run(Input input) {
    Clear(kv());
    fs::create_directory(kv());
    std::vector<uint64_t> numbers;
    const size_t entries = input.Byte() % 8;
    for (size_t i = 0; i < entries; ++i) numbers.push_back(AddEntry(&input));
    AddIndex(&input, numbers);
    // A worker's first attachment, and the next start with what the first one left.
    for (int start = 0; start < 2; ++start) OpenAndUse();
  }

 private:
  std::string kv() const { return dir_ + "/kv"; }

  static void Clear(const std::string& path) {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }

  // Returns the number that a segment of this name would have.
  uint64_t AddEntry(Input* input) {
    const uint8_t kind = input->Byte();
    const uint64_t number =
        (kind & 0x80) != 0 ? kMaxKvSegment - input->Byte() % 3 : 1 + input->Byte() % 6;
    std::string path = KvSegmentPath(kv(), number);
    if ((kind & 0x40) != 0) {
      std::string name(input->Bytes(1 + input->Byte() % 40));
      for (char& c : name) c = c == '/' || c == '\0' ? '_' : c;
      if (!name.empty() && name != "." && name != "..") path = kv() + "/" + name;
    }
    std::error_code ignored;
    const std::string_view content = input->Bytes(input->Byte() * size_t{16});
    // Writing to an earlier entry of the run, such as a pipe, would wait.
    if (fs::exists(fs::symlink_status(path, ignored))) return number;
    switch (kind % 8) {
      case 0:
        fs::create_symlink("/nonexistent", path, ignored);
        break;
      case 1:
        fs::create_symlink(path, path, ignored);
        break;
      case 2:
        fs::create_directories(path, ignored);
        break;
      case 3:
        fs::create_directories(path + "/inside", ignored);
        break;
      case 4:
        mkfifo(path.c_str(), 0600);
        break;
      case 5:
        std::ofstream(path) << "unreadable";
        chmod(path.c_str(), 0);
        break;
      case 6:  // sparse and large
        std::ofstream(path) << content;
        fs::resize_file(path, uint64_t{content.size()} << (content.size() % 30), ignored);
        break;
      default:
        std::ofstream(path) << content;
    }
    return number;
  }

  void AddIndex(Input* input, const std::vector<uint64_t>& numbers) {
    RecordBatch batch;
    const auto data_key = keys_->GetOrCreate(kContext);
    Require(data_key.ok(), "no key");
    if (input->Byte() % 4 == 0) {
      batch.Put(KvIndexKey(kContext), input->Bytes(4096), *data_key);
      Require(db_->Write(batch).ok(), "no index");
      return;
    }
    KvContextIndex index{.model = ToBytes32(std::string(32, 'm')), .chunks = {}, .extents = {}};
    for (const uint64_t number : numbers) {
      KvExtent& extent = index.extents.emplace_back();
      extent.id = RandomId64();
      extent.segment = number;
      extent.offset = uint64_t{input->Byte() % 4u} * kDiskAlign;
      extent.format = static_cast<uint8_t>(KvFormat::kQ8);
      extent.protection = static_cast<KvProtection>(input->Byte() % 2);
      extent.layers = 2;
      extent.block_bytes = FuzzGeometry().block_bytes;
      extent.identities.assign(1 + input->Byte() % 3, ToBytes32(std::string(32, 'i')));
      index.chunks.push_back({.identity = extent.identities[0],
                              .tokens = 16,
                              .level_percent = 100,
                              .format = extent.format,
                              .density = 0,
                              .extent = static_cast<uint32_t>(index.extents.size() - 1),
                              .position = 0});
    }
    batch.Put(KvIndexKey(kContext), EncodeKvIndex(index), *data_key);
    Require(db_->Write(batch).ok(), "no index");
  }

  // Returns how many of the copies could not be read.
  size_t ReadAll(KvStorage& storage, const std::vector<StoredCopy>& copies) {
    const Geometry geometry = FuzzGeometry();
    std::vector<ChunkLoad> loads;
    const auto units =
        static_cast<uint32_t>(geometry.ChunkBytes(KvFormat::kQ8) / engine::KvBlockName::kUnitBytes);
    for (uint32_t i = 0; i < copies.size(); ++i) {
      loads.push_back({.chunk = i, .slot = {(i + 1) * units, KvFormat::kQ8}, .stored = copies[i]});
    }
    memory_.assign((copies.size() + 1) * geometry.ChunkBytes(KvFormat::kQ8), std::byte{0});
    std::set<size_t> lost;
    absl::Notification done;
    storage.StartRead(
        kContext, geometry, {memory_.data(), memory_.size()}, loads,
        {.on_layer = [](uint32_t) {},
         .on_failed =
             [&lost](std::span<const size_t> failed) { lost.insert(failed.begin(), failed.end()); },
         .on_done = [&done] { done.Notify(); }});
    done.WaitForNotification();
    return lost.size();
  }

  void OpenAndUse() {
    const Geometry geometry = FuzzGeometry();
    auto storage =
        KvStorage::Open({.directory = kv(), .direct = false, .uring = false}, *keys_, *db_);
    Require(storage.ok(), "the directory was not opened");
    const auto contexts = (*storage)->Adopt(geometry, [](std::string_view) { return true; });
    Require(contexts.ok(), "nothing was adopted");
    std::vector<StoredCopy> adopted;
    for (const StoredContext& context : *contexts) {
      for (const ContextChunk& chunk : context.chunks) {
        if (chunk.stored != 0 && context.context_id == kContext) adopted.push_back(chunk.stored);
      }
    }
    // Salts and keys are random: no bytes of the input pass for KV.
    if (!adopted.empty()) {
      Require(ReadAll(**storage, adopted) == adopted.size(), "noise was read as KV");
    }
    std::vector<std::byte> bytes(geometry.ChunkBytes(KvFormat::kQ8), std::byte{7});
    const std::vector<ChunkWork> work = {{.context_id = kContext,
                                          .chunk = 0,
                                          .from = {0, KvFormat::kQ8},
                                          .identity = std::string(32, 'w')}};
    std::vector<StoredCopy> copies;
    absl::Status written;
    std::set<StoredCopy> lost;
    const auto last_used = [](std::string_view) { return int64_t{0}; };
    do {  // a sparse file may count for more than the bound until it is given up
      written = (*storage)->Write(kContext, geometry, {bytes.data(), bytes.size()}, work, &copies);
    } while (absl::IsResourceExhausted(written) &&
             (*storage)->MakeRoom(bytes.size(), last_used, &lost));
    Require(written.ok(), "KV cannot be written");
    Require(ReadAll(**storage, copies) == 0, "what was written cannot be read");
    Require(std::memcmp(memory_.data() + bytes.size(), bytes.data(), bytes.size()) == 0,
            "other bytes are read than were written");
  }

  std::string dir_;
  std::unique_ptr<RecordDb> db_;
  std::unique_ptr<ContextKeys> keys_;
  std::vector<std::byte> memory_;
};

}  // namespace
}  // namespace withy::context_store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static withy::context_store::World world;
  world.Run({data, size});
  return 0;
}
