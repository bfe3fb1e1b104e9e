// A load's two copies: what each answers, and that they agree over a link that delays and reorders.
#include "policy/kv/kv_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "policy/constants.h"
#include "policy/kv/kv_load_source.h"

namespace withy::policy {
namespace {

using Chunk = KvLoad::Chunk;
using Kind = KvLoadEvent::Kind;
constexpr uint32_t kLayers = 3;

KvLoadEvent Layers(uint32_t change, uint32_t layers) {
  return {.kind = Kind::kLayers, .change = change, .layers = layers};
}
KvLoadEvent Failed(uint32_t change, uint32_t chunk) {
  return {.kind = Kind::kFailed, .change = change, .chunks = {chunk}};
}
KvLoadEvent Yielded(uint32_t change, std::vector<uint32_t> chunks, uint64_t arrived_blocks = 0) {
  return {.kind = Kind::kYielded,
          .change = change,
          .chunks = std::move(chunks),
          .arrived_blocks = arrived_blocks};
}

TEST(KvLoadTest, RowsAttendToWhatHasArrived) {
  KvLoad load({Chunk::kResident, Chunk::kToCompute, Chunk::kReading, Chunk::kReading}, kLayers);
  EXPECT_EQ(load.Find(Chunk::kToCompute), 1u);
  EXPECT_EQ(load.LayersFor(1), KvLoad::kAllLayers) << "nothing before it is being read";
  EXPECT_EQ(load.LayersFor(2), 0u);
  EXPECT_TRUE(load.Apply(Layers(0, 2)));
  EXPECT_EQ(load.LayersFor(7), 2u);
  EXPECT_FALSE(load.may_yield());
  EXPECT_TRUE(load.Apply(Layers(0, 1)));
  EXPECT_EQ(load.LayersFor(7), 2u) << "told earlier";
  EXPECT_TRUE(load.Apply(Layers(0, kLayers)));
  EXPECT_FALSE(load.reading());
  EXPECT_EQ(load.state(3), Chunk::kResident);
  EXPECT_EQ(load.LayersFor(7), KvLoad::kAllLayers);
  EXPECT_EQ(KvLoad().LayersFor(0), KvLoad::kAllLayers);
}

TEST(KvLoadTest, NoLayerOvertakesAYieldOrAFailure) {
  KvLoad load({Chunk::kReading, Chunk::kReading, Chunk::kReading}, kLayers);
  load.OnAsked(0);
  EXPECT_TRUE(load.Apply(Layers(2, kLayers)));
  EXPECT_TRUE(load.Apply(Failed(2, 2)));
  EXPECT_EQ(load.LayersFor(2), 0u);
  EXPECT_EQ(load.Find(Chunk::kLost), KvLoad::kNone);
  EXPECT_TRUE(load.Apply(Yielded(1, {0})));
  EXPECT_EQ(load.state(0), Chunk::kToCompute);
  EXPECT_EQ(load.state(1), Chunk::kResident);
  EXPECT_EQ(load.state(2), Chunk::kLost);
  EXPECT_EQ(load.changes(), 2u);
}

TEST(KvLoadTest, WhatCannotBeIsRefused) {
  KvLoad load({Chunk::kResident, Chunk::kReading}, kLayers);
  EXPECT_FALSE(load.Apply(Yielded(1, {0}))) << "it is not being read";
  EXPECT_FALSE(load.Apply(Failed(1, 0)));
  EXPECT_TRUE(load.Apply(Yielded(1, {1, 5}))) << "chunks behind were given up";
  EXPECT_FALSE(load.Apply(Failed(1, 1))) << "that change was made";
}

TEST(KvLoadTest, AWorkerThatIsRefusedAsksAgainWhileItWaits) {
  KvLoad load({Chunk::kReading, Chunk::kReading}, kLayers);
  int64_t now = kNanosPerSecond;
  ASSERT_TRUE(load.MayAsk(now));
  load.OnAsked(0);
  EXPECT_FALSE(load.MayAsk(now)) << "once at a time";
  EXPECT_TRUE(load.Apply(Yielded(1, {}), now));
  EXPECT_FALSE(load.MayAsk(now + kNanosPerSecond)) << "it has something to compute";
  load.BeginWait(now);
  EXPECT_EQ(load.NextStep(now), KvLoad::Next::kNothing);
  now += kAskForYieldNs;
  EXPECT_EQ(load.NextStep(now), KvLoad::Next::kAsk);
  load.OnAsked(0);
  EXPECT_TRUE(load.Apply(Yielded(2, {0}), now));
  EXPECT_TRUE(load.MayAsk(now)) << "there was something: at once";
  load.OnGivenUp(1);
  EXPECT_FALSE(load.MayAsk(now)) << "nothing is being read";
}

TEST(KvLoadTest, WhatShowsNoLifeIsGivenUp) {
  KvLoad load({Chunk::kReading, Chunk::kReading}, kLayers);
  int64_t now = kNanosPerSecond;
  load.BeginWait(now);
  const int64_t begun = now;
  for (uint32_t change = 1; change <= 5; ++change) {
    now += kStuckLoadNs;
    EXPECT_NE(load.NextStep(now), KvLoad::Next::kGiveUp) << "blocks arrive";
    load.OnAsked(0);
    EXPECT_TRUE(load.Apply(Yielded(change, {}, change), now));
  }
  load.OnAsked(0);
  EXPECT_TRUE(load.Apply(Yielded(6, {}, 5), now + kStuckLoadNs));
  EXPECT_EQ(load.NextStep(now + kStuckLoadNs + 1), KvLoad::Next::kGiveUp) << "none since";
  EXPECT_EQ(load.EndWait(), begun);
  EXPECT_EQ(load.NextStep(now + kStuckLoadNs + 1), KvLoad::Next::kNothing);
  load.BeginWait(now);
  load.OnEnded();
  EXPECT_EQ(load.NextStep(now + 9 * kStuckLoadNs), KvLoad::Next::kNothing);
  EXPECT_FALSE(load.reading());
}

// One load after another: a store with a disk, a worker, and a link whose messages take any time
// and come in any order. Whatever can happen next is drawn at random.
class RandomLink {
 public:
  explicit RandomLink(uint32_t seed) : random_(seed) {}

  void Run(int64_t steps) {
    while (steps_ < steps && !testing::Test::HasFailure()) RunLoad();
  }
  struct Counts {
    int64_t loads = 0, deaths = 0, hung = 0, gave_up = 0, yields = 0, refusals = 0, failures = 0,
            taken_back = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Ask {  // to the store
    uint32_t computed_before = 0;
    size_t most = 0;
    std::optional<uint32_t> claimed_from = std::nullopt;  // no ask, but a claim
  };
  struct Reading {
    KvLoadSource::Group group;
    uint32_t layers = 0;
  };

  uint32_t Pick(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  void RunLoad() {
    Begin();
    int pauses = 0;  // in a row
    while (!testing::Test::HasFailure() && !over_) {
      ++steps_;
      if (Step()) {
        pauses = 0;
      } else if (Quiet()) {
        return CheckEnd();
      } else {  // a pause goes by
        now_ns_ += kAskForYieldNs;
        ASSERT_LT(++pauses, 1000) << "somebody waits and nothing is to come";
      }
    }
    if (over_) CheckDeath();
  }

  void Begin() {
    ++counts_.loads;
    const uint32_t count = 1 + Pick(20);
    std::vector<Chunk> chunks;
    std::vector<MissingChunk> reads;
    const uint32_t computed_first = Pick(3) == 0 ? Pick(count) : 0;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t kind = Pick(8);
      chunks.push_back(i < computed_first ? Chunk::kToCompute
                       : kind == 0        ? Chunk::kResident
                       : kind == 1        ? Chunk::kToCompute
                                          : Chunk::kReading);
    }
    chunks.back() = Chunk::kReading;
    for (uint32_t i = 0; i < count; ++i) {
      if (chunks[i] == Chunk::kReading) reads.push_back({i, 1 << 20});
    }
    first_ = chunks;
    there_.assign(count, 0);
    times_.assign(count, 0);
    for (uint32_t i = 0; i < count; ++i) there_[i] = chunks[i] == Chunk::kResident ? kLayers : 0;
    const double read_ms = 0.1 + Pick(20);
    LoadSourceOptions options{.yieldable = Pick(static_cast<uint32_t>(reads.size()) + 1),
                              .tail_ms = Pick(2) * 3.0,
                              .tells_whole_chunks = Pick(4) == 0};
    store_ = std::make_unique<KvLoadSource>(
        KvLoad(chunks, kLayers), kLayers, reads,
        LoadCosts{.recompute_chunk_ms = 0.5 + Pick(8), .read_mib_ms = read_ms}, options, NowMs());
    worker_ = KvLoad(chunks, kLayers);
    reads_ = reads;
    to_worker_.clear();
    to_store_.clear();
    disk_.clear();
    yield_.reset();
    position_ = 0;
    given_up_from_ = KvLoad::kNone;
    over_ = false;
    fails_ = Pick(3) == 0;
    hangs_ = Pick(20) == 0;
    dies_ = Pick(8) == 0;
    counts_.hung += hangs_ ? 1 : 0;
    BeginReads();
  }

  double NowMs() const { return static_cast<double>(now_ns_) / 1e6; }

  // Something that can happen; false: nothing can.
  bool Step() {
    now_ns_ += Pick(300'000);
    if (dies_ && Pick(60) == 0) return Die();
    const uint32_t first = Pick(5);
    for (uint32_t i = 0; i < 5; ++i) {
      switch ((first + i) % 5) {
        case 0:
          if (ReadOn()) return true;
          break;
        case 1:
          if (Deliver()) return true;
          break;
        case 2:
          if (HearWorker()) return true;
          break;
        case 3:
          if (EndYield()) return true;
          break;
        default:
          if (Work()) return true;
      }
    }
    return false;
  }

  void Send(std::optional<KvLoadEvent> event) {
    if (event.has_value()) to_worker_.push_back(*std::move(event));
  }
  bool IsNeeded(const KvLoadSource::Group& group) const {
    return std::any_of(reads_.begin() + static_cast<std::ptrdiff_t>(group.begin),
                       reads_.begin() + static_cast<std::ptrdiff_t>(group.end),
                       [this](const MissingChunk& read) {
                         return store_->load().state(read.position) == Chunk::kReading;
                       });
  }
  void BeginReads() {
    while (const auto group = store_->NextGroup(NowMs())) {
      if (IsNeeded(*group)) {
        disk_.push_back({*group, 0});
      } else {
        EXPECT_TRUE(store_->OnGroupEnded(group->number, NowMs()).empty());
      }
    }
    Send(store_->TellLayers());
  }

  bool ReadOn() {
    if (disk_.empty() || hangs_) return false;
    const size_t index = Pick(3) == 0 ? disk_.size() - 1 : 0;
    auto& [group, layers] = disk_[index];
    if (fails_ && Pick(12) == 0) {
      const size_t read = group.begin + Pick(static_cast<uint32_t>(group.end - group.begin));
      if (!store_->failed(read)) {
        ++counts_.failures;
        Send(store_->OnFailed(read));
        return true;
      }
    }
    const bool breaks = fails_ && Pick(40) == 0;
    if (!breaks) {
      EXPECT_TRUE(store_->OnLayers(group.number, ++layers));
      for (size_t read = group.begin; read < group.end; ++read) {
        if (!store_->failed(read)) there_[reads_[read].position] = layers;
      }
    }
    if (breaks || layers == kLayers) {
      const KvLoadSource::Group ended = group;
      disk_.erase(disk_.begin() + static_cast<std::ptrdiff_t>(index));
      for (KvLoadEvent& event : store_->OnGroupEnded(ended.number, NowMs())) {
        Send(std::move(event));
      }
      for (size_t read = ended.begin; read < ended.end; ++read) {
        if (!store_->failed(read)) ++times_[reads_[read].position];
      }
    }
    Send(store_->TellLayers());
    BeginReads();
    return true;
  }

  template <typename T>
  std::optional<T> TakeAny(std::vector<T>* messages) {
    if (messages->empty()) return std::nullopt;
    std::swap((*messages)[Pick(static_cast<uint32_t>(messages->size()))], messages->back());
    T message = std::move(messages->back());
    messages->pop_back();
    return message;
  }

  bool Deliver() {
    const auto event = TakeAny(&to_worker_);
    if (!event.has_value()) return false;
    EXPECT_TRUE(worker_.Apply(*event, now_ns_));
    if (event->kind == Kind::kYielded && !event->chunks.empty()) {
      position_ = std::min(position_, event->chunks.front());
    }
    if (const uint32_t lost = worker_.Find(Chunk::kLost); lost != KvLoad::kNone) GiveUp(lost);
    CheckWhatIsAttendedTo();
    return true;
  }

  void GiveUp(uint32_t chunk) {
    worker_.EndWait();
    worker_.OnGivenUp(chunk);
    given_up_from_ = std::min(given_up_from_, chunk);
    to_store_.push_back({.claimed_from = chunk});
  }

  bool HearWorker() {
    if (yield_.has_value()) return false;
    const auto message = TakeAny(&to_store_);
    if (!message.has_value()) return false;
    if (message->claimed_from.has_value()) {
      store_->OnGivenUp(*message->claimed_from);
    } else {
      // Now and then a read has no number yet that could be cancelled.
      const size_t most = Pick(6) == 0 ? 0 : message->most;
      yield_ = store_->BeginYield(message->computed_before, most, NowMs());
      if (yield_->cancelled.has_value()) Cancel(*yield_->cancelled);
    }
    BeginReads();
    return true;
  }
  void Cancel(uint32_t number) {
    ++counts_.taken_back;
    const auto cancelled = std::find_if(disk_.begin(), disk_.end(), [&](const Reading& reading) {
      return reading.group.number == number;
    });
    ASSERT_NE(cancelled, disk_.end());
    for (size_t read = cancelled->group.begin; read < cancelled->group.end; ++read) {
      there_[reads_[read].position] = 0;
    }
    disk_.erase(cancelled);
  }

  bool EndYield() {
    if (!yield_.has_value()) return false;
    const size_t room = Pick(10) == 0 ? Pick(3) : yield_->count();  // now and then it is short
    const KvLoadEvent event = store_->EndYield(*yield_, std::min(yield_->count(), room));
    ++(event.chunks.empty() ? counts_.refusals : counts_.yields);
    Send(event);
    yield_.reset();
    BeginReads();
    return true;
  }

  // The worker computes, asks, or waits.
  bool Work() {
    const uint32_t next = worker_.Find(Chunk::kToCompute, position_);
    const bool ready = next != KvLoad::kNone && worker_.LayersFor(next) == KvLoad::kAllLayers;
    const bool asks = worker_.MayAsk(now_ns_) && (!ready || Pick(3) == 0);
    if (asks) {
      worker_.OnAsked(std::min(position_, worker_.chunks()));
      to_store_.push_back({.computed_before = worker_.computed_before(), .most = 1 + Pick(8)});
      return true;
    }
    if (ready) {
      worker_.EndWait();
      now_ns_ += Pick(3) * kNanosPerMilli;
      there_[next] = kLayers;
      ++times_[next];
      position_ = next + 1;
      return true;
    }
    if (!worker_.reading() || worker_.arrived() > 0) return false;
    worker_.BeginWait(now_ns_);
    if (worker_.NextStep(now_ns_) != KvLoad::Next::kGiveUp) return false;
    EXPECT_TRUE(hangs_) << "the disk delivers";
    ++counts_.gave_up;
    GiveUp(worker_.Find(Chunk::kReading));
    return true;
  }

  void CheckWhatIsAttendedTo() const {
    if (worker_.chunks() == 0) return;
    const uint32_t layers = std::min(worker_.LayersFor(worker_.chunks() - 1), kLayers);
    for (uint32_t chunk = 0; chunk < worker_.chunks(); ++chunk) {
      const bool was_read = first_[chunk] == Chunk::kReading;
      if (!was_read || worker_.state(chunk) == Chunk::kToCompute) continue;
      ASSERT_GE(there_[chunk], layers) << "chunk " << chunk << " is not there";
    }
  }

  bool Quiet() const {
    const bool silent = to_worker_.empty() && to_store_.empty() && !yield_.has_value();
    if (hangs_) return silent && !worker_.reading();
    return silent && disk_.empty() && store_->done() && !worker_.reading();
  }

  void CheckEnd() const {
    const KvLoad& store = store_->load();
    EXPECT_EQ(store.changes(), worker_.changes());
    EXPECT_EQ(store.arrived(), worker_.arrived());
    EXPECT_EQ(store.asked(), worker_.asked());
    EXPECT_FALSE(worker_.asked());
    EXPECT_EQ(store.computed_before(), worker_.computed_before());
    ASSERT_EQ(store.chunks(), worker_.chunks());
    for (uint32_t chunk = 0; chunk < store.chunks(); ++chunk) {
      EXPECT_EQ(store.state(chunk), worker_.state(chunk)) << chunk;
      EXPECT_EQ(there_[chunk], kLayers) << chunk;
      EXPECT_EQ(times_[chunk], first_[chunk] == Chunk::kResident ? 0 : 1) << chunk;
    }
    EXPECT_EQ(store.chunks(), std::min<size_t>(given_up_from_, first_.size()));
  }

  // One side is gone. The other one has to come to an end by itself.
  bool Die() {
    ++counts_.deaths;
    over_ = true;
    return true;
  }
  void CheckDeath() {
    worker_.OnEnded();  // the store died
    EXPECT_EQ(worker_.NextStep(now_ns_ + 2 * kStuckLoadNs), KvLoad::Next::kNothing);
    EXPECT_FALSE(worker_.MayAsk(now_ns_));
    store_->OnEnded();  // the worker died: what was begun ends, and nothing new begins
    if (yield_.has_value()) {
      EXPECT_TRUE(store_->EndYield(*yield_, 0).chunks.empty());
    }
    for (int round = 0; round < 100 && !store_->done(); ++round) {
      for (const Reading& reading : disk_) {
        EXPECT_TRUE(store_->OnGroupEnded(reading.group.number, NowMs()).empty());
      }
      disk_.clear();
      while (const auto group = store_->NextGroup(NowMs())) {
        EXPECT_FALSE(IsNeeded(*group));
        disk_.push_back({*group, 0});
      }
    }
    EXPECT_TRUE(store_->done());
  }

  std::mt19937_64 random_;
  int64_t steps_ = 0;
  int64_t now_ns_ = kNanosPerSecond;
  Counts counts_;

  std::unique_ptr<KvLoadSource> store_;
  KvLoad worker_;
  std::vector<Chunk> first_;  // states when the load began
  std::vector<MissingChunk> reads_;
  std::vector<uint32_t> there_;  // layers in memory, by chunk
  std::vector<int> times_;       // how often each chunk was read or computed in full
  std::vector<KvLoadEvent> to_worker_;
  std::vector<Ask> to_store_;
  std::vector<Reading> disk_;
  std::optional<KvLoadSource::Yield> yield_;  // begun
  uint32_t position_ = 0;                     // the worker has computed what is before it
  uint32_t given_up_from_ = KvLoad::kNone;
  bool over_ = false;
  bool fails_ = false, hangs_ = false, dies_ = false;
};

TEST(KvLoadTest, TwoCopiesAgreeOverARandomLink) {
  constexpr int64_t kSteps = 10'000'000;
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  RandomLink link(seed);
  link.Run(kSteps);
  const RandomLink::Counts& counts = link.counts();
  for (const int64_t count : {counts.loads, counts.deaths, counts.hung, counts.gave_up,
                              counts.yields, counts.refusals, counts.failures, counts.taken_back}) {
    EXPECT_GT(count, kSteps / 100'000);
  }
}

}  // namespace
}  // namespace withy::policy
