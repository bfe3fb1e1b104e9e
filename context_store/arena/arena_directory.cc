#include "context_store/arena/arena_directory.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/crc32c.h"
#include "base/round_up.h"

namespace withy::context_store {
namespace {

constexpr uint32_t kMagic = 0x44594857;  // "WHYD"
constexpr uint32_t kVersion = 2;         // also changes with the layout of KV blocks
constexpr size_t kMaxContextId = 44;
constexpr uint64_t kArenaBytesPerEntry = 4096;  // smaller chunks than that are of toy models

// Keeps the compiler from moving stores across. Another process reads them after this one's death.
void OrderStores() { std::atomic_signal_fence(std::memory_order_seq_cst); }

// Of a struct without its first field and its last bytes.
template <typename T>
uint32_t CheckOf(const T& value, size_t last_bytes = 0) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return std::max<uint32_t>(
      1, Crc32c(0, bytes.subspan(sizeof(uint32_t), bytes.size() - sizeof(uint32_t) - last_bytes)));
}

engine::KvLayerSet ReadLayers(std::span<const uint8_t> bits) {
  engine::KvLayerSet layers;
  for (int layer = 0; layer < engine::KvLayerSet::kMost; ++layer) {
    if ((bits[static_cast<size_t>(layer) / 8] >> (layer % 8) & 1) != 0) layers.Add(layer);
  }
  return layers;
}

void PutLayers(const engine::KvLayerSet& layers, std::span<uint8_t> bits) {
  for (int layer = 0; layer < engine::KvLayerSet::kMost; ++layer) {
    if (layers.Has(layer))
      bits[static_cast<size_t>(layer) / 8] |= static_cast<uint8_t>(1 << layer % 8);
  }
}

}  // namespace

// `check` covers what follows. 0: no entry.
struct ArenaDirectory::Entry {
  uint32_t check;
  uint32_t units;
  uint32_t chunk;
  uint8_t format;
  uint8_t tokens;
  uint8_t level_percent;
  uint8_t context_id_bytes;
  float density;
  uint32_t density_rows;
  uint8_t identity[kIdentityBytes];
  char context_id[kMaxContextId];
  uint8_t reserved[28];

  std::string_view context() const { return {context_id, context_id_bytes}; }
};

struct ArenaDirectory::Header {
  uint32_t check;
  uint32_t magic;
  uint64_t arena_bytes;
  uint32_t version;
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t block_bytes;
  uint32_t window_reach;
  uint8_t windowed[engine::KvLayerSet::kMost / 8];  // a bit for each layer, the lowest first
  uint8_t model_id[kIdentityBytes];
  // Not checked, since it changes with each new entry. Entries from here on were never written.
  uint32_t used;

  uint32_t Check() const { return CheckOf(*this, sizeof(Header) - offsetof(Header, used)); }
};

uint64_t ArenaDirectory::BytesFor(uint64_t arena_bytes) {
  static_assert(sizeof(Entry) == 128 && sizeof(Header) <= sizeof(Entry));
  constexpr uint64_t kDirectoryPage = 4096;
  return RoundUp(sizeof(Entry) * (1 + arena_bytes / kArenaBytesPerEntry), kDirectoryPage);
}

ArenaDirectory::Entry* ArenaDirectory::At(uint32_t entry) const {
  return reinterpret_cast<Entry*>(memory_.data()) + 1 + entry;  // the header takes the first place
}

ArenaDirectory::ArenaDirectory(std::span<std::byte> memory, uint64_t arena_bytes)
    : memory_(memory), arena_bytes_(arena_bytes) {
  if (memory.size() < 2 * sizeof(Entry)) return;
  capacity_ = static_cast<uint32_t>(memory.size() / sizeof(Entry) - 1);
  Header header;
  std::memcpy(&header, memory.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion || header.check != header.Check() ||
      header.arena_bytes != arena_bytes) {
    return;
  }
  geometry_ = Geometry{std::string(reinterpret_cast<const char*>(header.model_id), kIdentityBytes),
                       header.layers,
                       header.kv_heads,
                       header.head_dim,
                       header.block_bytes,
                       header.window_reach,
                       ReadLayers(header.windowed)};
  used_ = std::min(header.used, capacity_);
  for (uint32_t i = 0; i < used_; ++i) {
    Entry entry;
    std::memcpy(&entry, At(i), sizeof entry);
    if (entry.check == 0) continue;
    const bool sound = entry.check == CheckOf(entry) && entry.context_id_bytes <= kMaxContextId &&
                       entry.format > static_cast<uint8_t>(KvFormat::kEmpty) &&
                       entry.format < engine::kKvFormats && entry.tokens >= 1 &&
                       entry.tokens <= kChunkTokens &&
                       Find(entry.units, entry.context()) == entry_of_.end();
    if (sound) {
      entry_of_.emplace(entry.units, i);
    } else {
      At(i)->check = 0;
    }
  }
  std::vector<bool> taken(used_, false);
  for (const auto& [slot, entry] : entry_of_) taken[entry] = true;
  for (uint32_t i = 0; i < used_; ++i) {
    if (!taken[i]) free_.push_back(i);
  }
}

std::vector<KeptChunk> ArenaDirectory::Chunks() const {
  std::vector<KeptChunk> chunks;
  for (const auto& [slot, number] : entry_of_) {
    const Entry& entry = *At(number);
    chunks.push_back(
        {.context_id = std::string(entry.context()),
         .chunk = entry.chunk,
         .slot = {slot, static_cast<KvFormat>(entry.format)},
         .identity = {
             .identity = std::string(reinterpret_cast<const char*>(entry.identity), kIdentityBytes),
             .tokens = entry.tokens,
             .model_level_percent = entry.level_percent,
             .density = entry.density,
             .density_rows = entry.density_rows}});
  }
  return chunks;
}

void ArenaDirectory::Reset(const Geometry& geometry) {
  if (capacity_ == 0) return;
  Header header{};
  std::memcpy(memory_.data(), &header, sizeof header);  // nothing is sound from here on
  OrderStores();
  for (uint32_t i = 0; i < used_; ++i) At(i)->check = 0;
  entry_of_.clear();
  free_.clear();
  used_ = 0;
  OrderStores();
  header.magic = kMagic;
  header.arena_bytes = arena_bytes_;
  header.version = kVersion;
  header.layers = geometry.layers;
  header.kv_heads = geometry.kv_heads;
  header.head_dim = geometry.head_dim;
  header.block_bytes = geometry.block_bytes;
  header.window_reach = geometry.window_reach;
  PutLayers(geometry.windowed, header.windowed);
  std::memcpy(header.model_id, geometry.model_id.data(),
              std::min(geometry.model_id.size(), sizeof header.model_id));
  header.check = header.Check();
  std::memcpy(memory_.data(), &header, sizeof header);
  geometry_ = geometry;
}

void ArenaDirectory::Put(const KeptChunk& chunk) {
  if (chunk.context_id.size() > kMaxContextId || capacity_ == 0) return;
  Entry entry{};
  entry.units = chunk.slot.units;
  entry.chunk = chunk.chunk;
  entry.format = static_cast<uint8_t>(chunk.slot.format);
  entry.tokens = static_cast<uint8_t>(chunk.identity.tokens);
  entry.level_percent = static_cast<uint8_t>(chunk.identity.model_level_percent);
  entry.context_id_bytes = static_cast<uint8_t>(chunk.context_id.size());
  entry.density = chunk.identity.density;
  entry.density_rows = chunk.identity.density_rows;
  std::memcpy(entry.identity, chunk.identity.identity.data(),
              std::min(chunk.identity.identity.size(), sizeof entry.identity));
  std::memcpy(entry.context_id, chunk.context_id.data(), chunk.context_id.size());
  entry.check = CheckOf(entry);
  const auto found = Find(chunk.slot.units, chunk.context_id);
  if (found != entry_of_.end()) {
    std::memcpy(At(found->second), &entry, sizeof entry);
    return;
  }
  uint32_t number = used_;
  if (!free_.empty()) {
    number = free_.back();
    free_.pop_back();
  } else if (used_ < capacity_) {
    ++used_;
    std::memcpy(memory_.data() + offsetof(Header, used), &used_, sizeof used_);
    OrderStores();
  } else {
    return;
  }
  std::memcpy(At(number), &entry, sizeof entry);
  entry_of_.emplace(chunk.slot.units, number);
  OrderStores();
}

ArenaDirectory::Entries::iterator ArenaDirectory::Find(SlotAt slot, std::string_view context_id) {
  const auto [first, last] = entry_of_.equal_range(slot);
  const auto found = std::find_if(
      first, last, [&](const auto& entry) { return At(entry.second)->context() == context_id; });
  return found == last ? entry_of_.end() : found;
}

ArenaDirectory::Entries::iterator ArenaDirectory::Erase(Entries::iterator entry) {
  At(entry->second)->check = 0;
  free_.push_back(entry->second);
  return entry_of_.erase(entry);
}

void ArenaDirectory::Remove(SlotAt slot) {
  for (auto entry = entry_of_.find(slot); entry != entry_of_.end(); entry = entry_of_.find(slot)) {
    Erase(entry);
  }
  OrderStores();
}

void ArenaDirectory::Remove(SlotAt slot, std::string_view context_id) {
  const auto entry = Find(slot, context_id);
  if (entry != entry_of_.end()) Erase(entry);
  OrderStores();
}

}  // namespace withy::context_store
