// Random interleavings of all operations on the table of leases.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "context_store/lease/lease_table.h"
#include "context_store/lease/lease_table_testing.h"
#include "policy/kv/kv_window.h"

namespace withy::context_store {
namespace {

// Checked against a model of who may write which slot.
class LeaseTableFuzz {
 public:
  // `lacking`: the models have layers with a window, and the arena has room for contexts that are
  // long enough to hide something; chunks that leases are given without blocks are added to it.
  explicit LeaseTableFuzz(uint32_t seed, uint32_t* lacking = nullptr)
      : lacking_(lacking), random_(seed) {}

  void Run(int steps) {
    table_.SetPublicChunks({std::string(31, 'A') + 'x', std::string(31, 'B') + 'x'});
    Attach();
    for (int i = 0; i < steps; ++i) {
      Step();
      ASSERT_EQ(AuditLeases(table_.state()), "") << "step " << i;
      ASSERT_NO_FATAL_FAILURE(CheckWriters()) << "step " << i;
    }
  }

 private:
  struct Lease {
    WorkerInstance worker = 0;
    uint64_t epoch = 0;
    std::string context;
    bool granted = false;
    bool committing = false;
    bool rebuild = false;
    bool ahead = false;
    uint32_t next = 0;    // first chunk not claimed yet
    uint32_t wished = 0;  // chunks of a claim that waits
    std::set<SlotAt> writes = {};
  };

  // Three contexts are of one app, the fourth of another one.
  static std::string AppOf(const std::string& context) {
    return context.empty() ? "" : context == "d" ? "q" : "p";
  }
  // Mostly what other contexts have there, too.
  std::string Identity(uint32_t chunk) {
    return std::string(31, static_cast<char>('A' + chunk % 26)) +
           static_cast<char>(Pick(5) == 0 ? 'a' + Pick(26) : 'x');
  }

  uint32_t Pick(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  void Step() {
    switch (Pick(18)) {
      case 14:
        return Share();
      case 15:
        return Fault();
      case 16:
        return Demote();
      case 17:
        return Yield();
      case 12:
        return Write();
      case 13:
        return FinishLoad();
      case 0:
        return Pick(8) == 0 ? Attach() : void();
      case 1:
        return Connect();
      case 2:
        return Pick(4) == 0 ? Die() : void();
      case 3:
      case 4:
      case 5:
        return Open();
      case 6:
      case 7:
      case 8:
        return Claim();
      case 9:
        return Begin();
      case 10:
        return Finish();
      default:
        return End();
    }
  }

  // Moves a lease's slots to those that the worker may write until it acknowledges or dies.
  void MoveToZombie(const Lease& lease) {
    if (live_.contains(lease.worker)) {
      zombies_[lease.worker].insert(lease.writes.begin(), lease.writes.end());
    }
  }
  void Apply(const Effects& effects) {
    for (LeaseId id : effects.ended) {
      MoveToZombie(leases_.at(id));
      leases_.erase(id);
    }
    for (LeaseId id : effects.granted) {
      Lease& lease = leases_.at(id);
      EXPECT_FALSE(lease.granted);
      Grant(id, lease);
    }
    for (const LateClaim& claim : effects.claims) {
      Lease& lease = leases_.at(claim.lease);
      EXPECT_GT(lease.wished, 0u);
      if (claim.refused.empty()) {
        EXPECT_EQ(claim.chunks.size(), lease.wished);
        Take(lease, claim.chunks);
      }
      lease.wished = 0;
    }
  }
  void Take(Lease& lease, const std::vector<ChunkSlot>& chunks) {
    for (const ChunkSlot& chunk : chunks) {
      for (const auto& [worker, slots] : zombies_) {
        EXPECT_FALSE(slots.contains(chunk.slot.units)) << "a quarantined slot was handed out";
      }
      lease.writes.insert(chunk.slot.units);
    }
    // A chunk before them may have been lost while the claim waited.
    if (lease.next >= chunks.front().chunk) lease.next = chunks.back().chunk + 1;
  }
  void Grant(LeaseId id, Lease& lease) {
    lease.granted = true;
    constexpr policy::LoadPolicy kPolicies[] = {policy::LoadPolicy::kReadAll,
                                                policy::LoadPolicy::kPrefix,
                                                policy::LoadPolicy::kRecomputeAll};
    uint64_t evicted = 0;
    auto loads = table_.chunks().BeginLoad(
        id, {.costs = {}, .policy = kPolicies[Pick(3)], .level_percent = 50 * Pick(3)}, &evicted);
    for (const ChunkLoad& load : loads) {
      EXPECT_TRUE(reads_.insert(load.slot.units).second) << "two reads into one slot";
    }
    if (!loads.empty()) loads_.push_back({id, lease.context, std::move(loads)});
    const auto resident = table_.chunks().Resident(id);
    lease.next = static_cast<uint32_t>(resident.size());
    std::vector<bool> lacks;
    for (const ResidentChunk& chunk : resident) {
      if (chunk.state == ResidentChunk::State::kToCompute) {
        EXPECT_TRUE(policy::CanContinue(lacks, chunk.where.chunk * kChunkTokens,
                                        table_.kv().geometry.window_reach))
            << "chunk " << chunk.where.chunk << " cannot be computed";
      }
      lacks.push_back(LacksBlocks(chunk.where.slot.format));
      if (windows_ && lacks.back()) ++*lacking_;
    }
    for (const ResidentChunk& chunk : resident) {
      if (chunk.state == ResidentChunk::State::kToCompute) {
        lease.writes.insert(chunk.where.slot.units);
      }
    }
    if (!resident.empty() && resident.back().identity.tokens < kChunkTokens &&
        resident.back().state == ResidentChunk::State::kResident) {
      lease.writes.insert(resident.back().where.slot.units);
    }
  }
  // Writes a chunk of an idle context to disk, or loses a copy.
  void Write() {
    const std::string context(1, static_cast<char>('a' + Pick(4)));
    if (Pick(8) == 0) {
      table_.idle().ForgetCopies({1 + Pick(static_cast<uint32_t>(copies_ + 1))});
      return;
    }
    for (uint32_t chunk = 0; chunk < (windows_ ? 80 : 12); ++chunk) {
      const auto work = table_.idle().BeginWrite(context, chunk);
      if (work.has_value()) table_.idle().FinishWrite(*work, Pick(4) == 0 ? 0 : ++copies_);
    }
  }
  void FinishLoad() {
    if (loads_.empty()) return;
    const auto load = loads_.begin() + Pick(static_cast<uint32_t>(loads_.size()));
    std::vector<bool> read;
    for (const ChunkLoad& one : load->loads) {
      read.push_back(Pick(4) != 0);
      reads_.erase(one.slot.units);
      const auto lease = leases_.find(load->lease);
      if (!read.back() && lease != leases_.end()) {
        lease->second.next = std::min(lease->second.next, one.chunk);
      }
    }
    table_.chunks().FinishLoad(load->context, load->loads, read);
    loads_.erase(load);
    Apply(table_.Advance());
  }
  // Some of the first chunks of a load, which nobody reads any more, are left to the lease.
  void Yield() {
    if (loads_.empty()) return;
    const auto load = loads_.begin() + Pick(static_cast<uint32_t>(loads_.size()));
    const size_t wanted = 1 + Pick(static_cast<uint32_t>(load->loads.size()));
    uint64_t evicted = 0;
    const auto left = table_.chunks().Yield(
        load->lease, std::span<const ChunkLoad>(load->loads).first(wanted), &evicted);
    EXPECT_LE(left.size(), wanted);
    for (size_t i = 0; i < left.size(); ++i) {
      EXPECT_EQ(left[i].chunk, load->loads[i].chunk);
      reads_.erase(load->loads[i].slot.units);
      leases_.at(load->lease).writes.insert(left[i].slot.units);
    }
    load->loads.erase(load->loads.begin(),
                      load->loads.begin() + static_cast<std::ptrdiff_t>(left.size()));
    if (load->loads.empty()) loads_.erase(load);
  }
  void Attach() {
    const WorkerInstance worker = Pick(3) + 1;
    Geometry geometry = LeaseGeometry(static_cast<char>('a' + Pick(2)));
    if (windows_) {
      geometry.window_reach = 20;
      geometry.windowed.Add(1);
      geometry.windowed.Add(2);
    }
    const auto attached = table_.Attach(worker, geometry);
    if (!attached.ok()) return;
    EXPECT_GT(attached->epoch, epoch_);
    epoch_ = attached->epoch;
    worker_ = worker;
    if (attached->reset) {
      loads_.clear();  // what they give is ignored
      reads_.clear();
    }
    for (LeaseId id : attached->ended) {
      MoveToZombie(leases_.at(id));
      leases_.erase(id);
    }
    for (const auto& [id, lease] : leases_) EXPECT_TRUE(lease.committing);
    zombies_.erase(worker);
  }
  void Connect() {
    if (worker_ == 0 || live_.contains(worker_)) return;
    live_.insert(worker_);
    table_.WorkerConnected(worker_);
  }
  void Die() {
    if (live_.empty()) return;
    const WorkerInstance worker =
        *std::next(live_.begin(), Pick(static_cast<uint32_t>(live_.size())));
    live_.erase(worker);
    const Effects effects = table_.WorkerGone(worker);
    zombies_.erase(worker);
    Apply(effects);
  }
  void Open() {
    const uint64_t epoch = Pick(10) == 0 ? epoch_ - 1 : epoch_;
    const std::string context =
        Pick(4) == 0 ? "" : std::string(1, static_cast<char>('a' + Pick(4)));
    const bool rebuild = Pick(4) == 0;
    const bool ahead = context.empty() && Pick(4) == 0;
    const auto opening = table_.Open({.epoch = epoch,
                                      .context_id = context,
                                      .rebuild = rebuild,
                                      .app_id = AppOf(context),
                                      .ahead = ahead,
                                      .need = Pick(14)});
    if (epoch != epoch_) {
      EXPECT_TRUE(absl::IsAborted(opening.status()));
      return;
    }
    if (!opening.ok()) return;
    Lease& lease = leases_[opening->id];
    lease = {.worker = worker_,
             .epoch = epoch,
             .context = context,
             .rebuild = rebuild && !context.empty(),
             .ahead = ahead};
    if (opening->granted) Grant(opening->id, lease);
  }
  std::pair<const LeaseId, Lease>* PickLease() {
    if (leases_.empty()) return nullptr;
    return &*std::next(leases_.begin(), Pick(static_cast<uint32_t>(leases_.size())));
  }
  void Claim() {
    auto* picked = PickLease();
    if (picked == nullptr) return;
    auto& [id, lease] = *picked;
    if (lease.ahead && Pick(2) == 0) {
      lease.ahead = !table_.Begin(id, Pick(14)).ok();
      return;
    }
    const uint32_t first = Pick(4) == 0 ? Pick(lease.next + 1) : lease.next;
    const uint32_t count = Pick(windows_ ? 30 : 3) + 1;
    uint64_t evicted = 0;
    const auto claimed = table_.Claim(id, first, count, &evicted, Pick(4) != 0);
    if (lease.wished > 0) {
      EXPECT_FALSE(claimed.ok()) << "one claim at a time";
      return;
    }
    if (!lease.granted || lease.committing) {
      EXPECT_FALSE(claimed.ok());
    }
    // What lies behind the claim and cannot be written is dropped, also by a claim that is refused.
    if (absl::IsResourceExhausted(claimed.status())) lease.next = first;
    if (!claimed.ok()) return;
    if (claimed->waits) {
      lease.wished = count;
      lease.next = first;
      return;
    }
    EXPECT_EQ(claimed->chunks.size(), count);
    Take(lease, claimed->chunks);
  }
  void Begin() {
    auto* picked = PickLease();
    if (picked == nullptr) return;
    auto& [id, lease] = *picked;
    const auto resident = table_.chunks().Resident(id);
    std::vector<ChunkIdentity> chunks;
    const uint32_t keep = windows_ && Pick(3) != 0 ? lease.next : Pick(lease.next + 1);
    for (uint32_t i = 0; i < keep; ++i) {
      const bool full = i < resident.size() && resident[i].identity.tokens == kChunkTokens;
      chunks.push_back(full ? resident[i].identity : ChunkIdentity{Identity(i), 16, 50});
    }
    if (keep > resident.size() && Pick(2) == 0) {
      chunks.back() = {std::string(32, 'u'), Pick(15) + 1, 50};
    }
    const bool stamps = Pick(5) != 0;
    const auto begun = table_.BeginCommit(id, chunks, [&](KvSlot, uint64_t) { return stamps; });
    EXPECT_EQ(begun.ok(), lease.granted && !lease.committing) << begun.status();
    lease.committing = lease.committing || begun.ok();
    if (begun.ok()) lease.wished = 0;
  }
  void Finish() {
    auto* picked = PickLease();
    if (picked == nullptr || !picked->second.committing) return;
    const LeaseId id = picked->first;
    leases_.erase(id);
    Apply(table_.FinishCommit(id, Pick(4) != 0));
  }
  void End() {
    auto* picked = PickLease();
    if (picked == nullptr || picked->second.committing) return;
    const LeaseId id = picked->first;
    const Lease lease = picked->second;
    leases_.erase(id);
    if (Pick(2) == 0) {
      Apply(table_.Abort(id));
    } else {
      MoveToZombie(lease);
      Apply(table_.Break(id));
    }
  }

  // No slot may have two writers: two leases, or a lease and a worker that has not acknowledged.
  void CheckWriters() {
    std::map<SlotAt, LeaseId> writers;
    for (const auto& [id, lease] : leases_) {
      if (lease.committing) continue;  // its worker has stopped writing
      for (SlotAt slot : lease.writes) {
        ASSERT_FALSE(reads_.contains(slot)) << "the disk and a worker write to slot " << slot;
        ASSERT_TRUE(writers.emplace(slot, id).second) << "slot " << slot << " has two writers";
        for (const auto& [worker, slots] : zombies_) ASSERT_FALSE(slots.contains(slot));
      }
    }
  }

  // Asks for chunks behind those that the lease has. A worker asks before it writes.
  void Share() {
    auto* picked = PickLease();
    if (picked == nullptr) return;
    auto& [id, lease] = *picked;
    const auto resident = table_.chunks().Resident(id);
    const auto first = static_cast<uint32_t>(resident.empty() ? 0 : Pick(2) * resident.size());
    LeaseChunks::Identities wanted;
    for (uint32_t i = first; i < first + 1 + Pick(6); ++i) wanted.push_back(Identity(i));
    const auto shared = table_.chunks().Share(id, first, {{}, wanted});
    const bool may = lease.granted && !lease.committing && !lease.context.empty() && !lease.rebuild;
    EXPECT_EQ(shared.ok(), may) << shared.status();
    if (!may || shared->empty()) return;
    // What the context had there is gone.
    for (size_t i = first; i < resident.size(); ++i) {
      lease.writes.erase(resident[i].where.slot.units);
    }
    for (size_t i = 0; i < shared->size(); ++i) {
      const ResidentChunk& chunk = (*shared)[i];
      EXPECT_EQ(chunk.where.chunk, first + i);
      EXPECT_EQ(chunk.identity.identity, wanted[i]);
    }
    lease.next = first + static_cast<uint32_t>(shared->size());
  }
  void Fault() {
    auto* picked = PickLease();
    if (picked == nullptr || picked->second.rebuild) return;
    auto& [id, lease] = *picked;
    const auto resident = table_.chunks().Resident(id);
    if (resident.empty()) return;
    const uint32_t chunk = Pick(static_cast<uint32_t>(resident.size()));
    if (table_.chunks().Fault(id, chunk).ok()) lease.next = std::min(lease.next, chunk);
  }
  void Demote() {
    const std::string context(1, static_cast<char>('a' + Pick(4)));
    if (windows_ && Pick(2) == 0) {
      for (const auto& [id, chunk] : table_.idle().Hidden(kSlotBytes * Pick(8))) {
        const auto work = table_.idle().BeginDemotion(id, chunk, KvFormat::kQ8Global);
        ASSERT_TRUE(work.has_value());
        const auto slot = table_.idle().FinishDemotion(*work, KvFormat::kQ8Global);
        ASSERT_TRUE(slot.has_value());
        EXPECT_EQ(table_.kv().pool.at(slot->units).bytes(), kSlotBytes / kLayers);
      }
    }
    const KvFormat to = Pick(2) == 0 ? KvFormat::kQ4 : KvFormat::kQ2;
    const auto work = table_.idle().BeginDemotion(context, Pick(6), to);
    if (work.has_value()) table_.idle().FinishDemotion(*work, to);
    if (Pick(2) == 0) table_.idle().Deduplicate(context);
    if (Pick(4) == 0)
      table_.idle().Compact(1 + Pick(3), UINT64_MAX, [](SlotAt, SlotAt, uint64_t) {});
  }

  uint32_t* const lacking_;
  const bool windows_ = lacking_ != nullptr;
  std::mt19937 random_;
  LeaseTable table_{MakeLimits(windows_ ? 80 : 12), 0};
  uint64_t epoch_ = 0;
  WorkerInstance worker_ = 0;
  std::set<WorkerInstance> live_;
  std::map<LeaseId, Lease> leases_;
  std::map<WorkerInstance, std::set<SlotAt>> zombies_;
  struct Load {
    LeaseId lease = 0;
    std::string context;
    std::vector<ChunkLoad> loads;
  };
  std::vector<Load> loads_;  // under way
  std::set<SlotAt> reads_;   // slots that they fill
  StoredCopy copies_ = 0;
};

TEST(LeaseTableProperty, NoSlotEverHasTwoOwnersAndNoneIsLost) {
  const uint32_t first = TestSeed();
  for (uint32_t i = 0; i < 60; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << first + i);
    LeaseTableFuzz(first + i).Run(1500);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Nor with chunks that lack hidden blocks, and no lease is to compute what it cannot.
TEST(LeaseTableProperty, NorWhereWindowsHideBlocks) {
  const uint32_t first = TestSeed();
  uint32_t lacking = 0;
  for (uint32_t i = 0; i < 40; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << first + i);
    LeaseTableFuzz(first + i, &lacking).Run(1500);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(lacking, 100u);
}

}  // namespace
}  // namespace withy::context_store
