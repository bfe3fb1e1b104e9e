#include "engine/cuda/on_cpu/watch.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace withy::engine::on_cpu {
namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr uint64_t kBanks = 32;
constexpr uint64_t kBankBytes = 4;
constexpr int kLanes = 32;

const char* Name(Finding::Kind kind) {
  switch (kind) {
    case Finding::Kind::kRace:
      return "race";
    case Finding::Kind::kDivergentBarrier:
      return "divergent barrier";
    case Finding::Kind::kOutOfBounds:
      return "access out of bounds";
    case Finding::Kind::kMisaligned:
      return "misaligned access";
  }
  return "?";
}

std::string At(const Site& site) {
  const std::string_view file = site.file;
  const std::string name(file.substr(file.rfind('/') + 1));
  return absl::StrCat(name, ":", site.line);
}

uint64_t SiteId(const Site& site) {
  return reinterpret_cast<uint64_t>(site.file) * 31 + (static_cast<uint64_t>(site.line) << 12);
}

}  // namespace

std::string Describe(const Finding& finding) {
  return absl::StrCat(Name(finding.kind), " in kernel ", finding.kernel, ", block (",
                      finding.block.x, ",", finding.block.y, ",", finding.block.z, "), thread ",
                      finding.thread, ": ", finding.what);
}

void KernelCounts::Add(const KernelCounts& other) {
  launches += other.launches;
  requests += other.requests;
  load_bytes += other.load_bytes;
  store_bytes += other.store_bytes;
  sectors += other.sectors;
  unique_sectors += other.unique_sectors;
  wide_requests += other.wide_requests;
  shared_requests += other.shared_requests;
  shared_passes += other.shared_passes;
  for (size_t i = 0; i < std::size(instructions); ++i) instructions[i] += other.instructions[i];
}

void Watch::Allow(const void* begin, size_t bytes) {
  allowed_[reinterpret_cast<uint64_t>(begin)] = bytes;
}

void Watch::Forbid(const void* begin) { allowed_.erase(reinterpret_cast<uint64_t>(begin)); }

bool Watch::Allowed(uint64_t address, size_t bytes) const {
  auto after = allowed_.upper_bound(address);
  if (after == allowed_.begin()) return false;
  --after;
  return address + bytes <= after->first + after->second;
}

void Watch::Report(Finding::Kind kind, int thread, std::string what) {
  if (findings_.size() < kMaxFindings) {
    findings_.push_back({kind, kernel_, block_, thread, std::move(what)});
  }
}

void Watch::BeginLaunch(const char* kernel) {
  kernel_ = kernel;
  now_ = {};
  now_.launches = 1;
  global_.clear();
  sectors_.clear();
  blocks_begun_ = 0;
}

void Watch::EndLaunch() {
  now_.unique_sectors = sectors_.size();
  if (counts_) counts_by_kernel_[kernel_].Add(now_);
}

void Watch::BeginBlock(Dim block, const std::byte* shared, size_t shared_bytes, int threads) {
  block_ = block;
  shared_begin_ = reinterpret_cast<uint64_t>(shared);
  shared_bytes_ = shared_bytes;
  threads_ = threads;
  ++blocks_begun_;
  epoch_ = 0;
  warp_epochs_.assign(static_cast<size_t>((threads + kLanes - 1) / kLanes), 0);
  if (checks_) shared_.assign(shared_bytes, Shadow{});
  requests_.clear();
  visits_.resize(static_cast<size_t>(threads));
  for (auto& visits : visits_) visits.clear();
}

void Watch::EndBlock() {
  if (counts_) CountRequests();
}

bool Watch::OnAccess(int thread, const void* p, size_t bytes, size_t alignment, bool write,
                     const Site& site) {
  const auto address = reinterpret_cast<uint64_t>(p);
  const bool shared = address >= shared_begin_ && address < shared_begin_ + shared_bytes_;
  if (checks_) {
    if (shared ? address + bytes > shared_begin_ + shared_bytes_ : !Allowed(address, bytes)) {
      Report(Finding::Kind::kOutOfBounds, thread,
             absl::StrCat(write ? "writes " : "reads ", bytes, " bytes outside of any allocation (",
                          At(site), ")"));
      return false;
    }
    if (address % alignment != 0) {
      Report(Finding::Kind::kMisaligned, thread,
             absl::StrCat(write ? "writes " : "reads ", bytes, " bytes at an address that is ",
                          address % alignment, " beyond a multiple of ", alignment, " (", At(site),
                          ")"));
      return false;
    }
    CheckRace(thread, address, bytes, write, shared, site);
  }
  if (counts_) {
    const uint64_t id = SiteId(site);
    const uint32_t number = visits_[static_cast<size_t>(thread)][id]++;
    requests_.push_back(
        {id, number, thread / kLanes, write, shared, static_cast<uint32_t>(bytes), address});
  }
  return true;
}

// Threads of a warp are ordered by the collectives of the warp, those of a block by its barriers,
// those of different blocks by nothing.
bool Watch::Conflicts(const Access& before, const Access& now) const {
  if (before.thread < 0 || before.thread == now.thread) return false;
  if (before.thread / threads_ != now.thread / threads_) return true;
  if (before.epoch != now.epoch) return false;
  return before.thread / kLanes != now.thread / kLanes || before.warp_epoch == now.warp_epoch;
}

void Watch::CheckRace(int thread, uint64_t address, size_t bytes, bool write, bool shared,
                      const Site& site) {
  const Access now = {(blocks_begun_ - 1) * threads_ + thread, epoch_,
                      warp_epochs_[static_cast<size_t>(thread / kLanes)]};
  for (uint64_t at = address; at < address + bytes; ++at) {
    Shadow& shadow = shared ? shared_[at - shared_begin_] : global_[at];
    const Access* with = nullptr;
    if (Conflicts(shadow.write, now)) with = &shadow.write;
    if (write && Conflicts(shadow.read, now)) with = &shadow.read;
    if (write && Conflicts(shadow.other_read, now)) with = &shadow.other_read;
    if (with != nullptr) {
      const bool same_block = with->thread / threads_ == now.thread / threads_;
      Report(Finding::Kind::kRace, thread,
             absl::StrCat(write ? "writes " : "reads ", shared ? "shared" : "global",
                          " memory that thread ", with->thread % threads_,
                          same_block ? "" : " of another block",
                          with == &shadow.write ? " writes" : " reads",
                          ", with no barrier in between (", At(site), ")"));
      return;
    }
    if (write) {
      shadow.write = now;
    } else if (shadow.read.thread / kLanes != now.thread / kLanes) {
      shadow.other_read = shadow.read;
      shadow.read = now;
    } else {
      shadow.read = now;
    }
  }
}

void Watch::CountRequests() {
  std::stable_sort(requests_.begin(), requests_.end(), [](const Request& a, const Request& b) {
    return std::tie(a.warp, a.site, a.number, a.shared) <
           std::tie(b.warp, b.site, b.number, b.shared);
  });
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (size_t begin = 0; begin < requests_.size();) {
    const Request& first = requests_[begin];
    size_t end = begin;
    ranges.clear();
    while (end < requests_.size() && requests_[end].warp == first.warp &&
           requests_[end].site == first.site && requests_[end].number == first.number &&
           requests_[end].shared == first.shared) {
      ranges.emplace_back(requests_[end].address, requests_[end].bytes);
      ++end;
    }
    std::sort(ranges.begin(), ranges.end());
    ranges.erase(std::unique(ranges.begin(), ranges.end()), ranges.end());
    if (first.shared) {
      // Memory takes the lanes of a wide access in parts of 128 bytes; words of one bank are taken
      // one after the other.
      std::vector<uint64_t> words;
      for (const auto& [address, bytes] : ranges) {
        for (uint64_t w = address / kBankBytes; w <= (address + bytes - 1) / kBankBytes; ++w) {
          words.push_back(w);
        }
      }
      std::sort(words.begin(), words.end());
      words.erase(std::unique(words.begin(), words.end()), words.end());
      uint64_t of_bank[kBanks] = {};
      uint64_t most = 0;
      for (const uint64_t w : words) most = std::max(most, ++of_bank[w % kBanks]);
      const uint64_t least = (words.size() + kBanks - 1) / kBanks;
      // A request of more than 128 bytes needs several passes in any case: these count as requests.
      now_.shared_requests += least;
      now_.shared_passes += most;
    } else {
      ++now_.requests;
      if (first.bytes == 16) ++now_.wide_requests;
      uint64_t last = UINT64_MAX;
      uint64_t covered = 0;
      for (const auto& [address, bytes] : ranges) {
        const uint64_t from = std::max(address, covered);
        if (address + bytes > from) {
          (first.write ? now_.store_bytes : now_.load_bytes) += address + bytes - from;
          covered = address + bytes;
        }
        for (uint64_t s = address / kSectorBytes; s <= (address + bytes - 1) / kSectorBytes; ++s) {
          if (s == last) continue;
          last = s;
          ++now_.sectors;
          sectors_.insert(s);
        }
      }
    }
    begin = end;
  }
}

}  // namespace withy::engine::on_cpu
