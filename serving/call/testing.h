// What the worker's tests share: a store in memory that grants leases by script, a sink that
// remembers, and waits that end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "engine/cpu/aligned.h"
#include "engine/session/testing.h"
#include "serving/call/task_thread.h"
#include "serving/session/lease.h"

namespace withy::serving {

// Long for any machine, however busy: a test that waits so long has failed.
inline constexpr absl::Duration kTestLimit = absl::Minutes(2);

// The context window of a test's session, in tokens.
inline constexpr int32_t kWindow = 256;

// Whether `condition` has come true within kTestLimit.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoSeconds(kTestLimit);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Takes a std:: semaphore's permit; false when none has come within kTestLimit.
template <typename Semaphore>
bool Acquire(Semaphore& semaphore) {
  return semaphore.try_acquire_for(absl::ToChronoSeconds(kTestLimit));
}

// Moves by a microsecond with every look, whatever the machine is busy with: so that nobody's
// patience ends while a test is held up. Thread-safe.
class CrawlingClock final : public Clock {
 public:
  int64_t SteadyNanos() const override { return steady_nanos_ += 1000; }
  int64_t UnixNanos() const override { return 1'700'000'000'000'000'000 + steady_nanos_; }

 private:
  mutable std::atomic<int64_t> steady_nanos_{kNanosPerSecond};
};

inline engine::KvGeometry GeometryOf(const engine::KvInfo& kv) {
  return {kv.layers, kv.kv_heads, kv.head_dim, kv.windowed};
}

// The slot of 8 bits that begins where `number` such slots end.
inline engine::KvSlot NthSlot(const engine::KvGeometry& geometry, uint32_t number) {
  const size_t bytes = geometry.ChunkBytes(engine::KvFormat::kQ8);
  return {static_cast<uint32_t>(number * bytes / engine::KvBlockName::kUnitBytes)};
}

class FakeArena final : public Arena {
 public:
  FakeArena(uint64_t epoch, size_t bytes) : epoch_(epoch), bytes_(bytes) {}
  uint64_t epoch() const override { return epoch_; }
  engine::KvMemory memory() const override {
    return {const_cast<std::byte*>(bytes_.data()), bytes_.size()};
  }
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }

 private:
  uint64_t epoch_;
  engine::AlignedArray<std::byte> bytes_;
};

// Contexts and chunks in memory, with the rules of ContextStore.Lease. Events come from a thread of
// its own. Thread-safe.
class FakeStore final : public LeaseSource {
 public:
  struct Context {
    std::vector<engine::Segment> segments;
    std::vector<ResidentChunk> resident;
    std::string unfinished = {};  // request_id that the last `unfinished_segments` are of
    size_t unfinished_segments = 0;
  };
  struct State {
    absl::Mutex mutex;
    std::shared_ptr<FakeArena> arena;
    std::set<uint32_t> free;  // slots, by their units
    std::map<std::string, Context> contexts;
    std::vector<LeaseCommit> commits;
    int faults = 0;
    int aborts = 0;
    absl::Status open_error;
    bool hold_commits = false;  // they wait for LetCommit
    std::vector<Task> held;
    // Called with what a lease is about to be told.
    std::function<void(OpenedLease*)> on_opened;
    // What a lease that asks for chunks to compute is told.
    std::function<std::vector<ChunkSlot>(State& state, int32_t computed_before, int32_t most)>
        on_yield;
    int yields_asked = 0;
    uint32_t load_changes = 0;               // of the load of the lease that was told last
    std::vector<LoadEvent> after_opening;    // told a lease when it is open
    std::set<int32_t> claimed_from;          // first chunks of the claims so far
    std::weak_ptr<LeaseEvents> last_opened;  // events of the lease that was told last
    // What other contexts have of the wanted chunks; null: nothing.
    std::function<std::vector<ResidentChunk>(State&, const WantedChunks&)> on_share;
    int shares = 0;  // times that it was asked
  };

  FakeStore(const engine::KvInfo& kv, uint32_t chunks) : state_(std::make_shared<State>()) {
    const engine::KvGeometry geometry = GeometryOf(kv);
    state_->arena =
        std::make_shared<FakeArena>(1, chunks * geometry.ChunkBytes(engine::KvFormat::kQ8));
    for (uint32_t i = 0; i < chunks; ++i) state_->free.insert(NthSlot(geometry, i).units);
  }

  absl::StatusOr<std::shared_ptr<Lease>> Open(LeaseOpen open,
                                              std::shared_ptr<LeaseEvents> events) override {
    auto lease = std::make_shared<FakeLease>(*this, std::move(open), std::move(events));
    absl::MutexLock lock(&state_->mutex);
    if (!state_->open_error.ok()) return state_->open_error;
    Later([this, weak = std::weak_ptr<FakeLease>(lease)] {
      const auto opened = weak.lock();
      if (opened != nullptr) SendOpened(opened);
    });
    return std::shared_ptr<Lease>(lease);
  }

  // What commits were held take place, and those that come are held no more.
  void LetCommit() {
    absl::MutexLock lock(&state_->mutex);
    state_->hold_commits = false;
    for (Task& commit : std::exchange(state_->held, {})) Later(std::move(commit));
  }

  // A look at, or a change of, what is stored.
  template <typename Use>
  auto With(Use use) {
    absl::MutexLock lock(&state_->mutex);
    return use(*state_);
  }

  // Tells the lease that was opened last that layers have arrived, or that a chunk is lost.
  void TellLayers(int32_t layers) {
    TellLoad({.kind = policy::KvLoadEvent::Kind::kLayers, .layers = static_cast<uint32_t>(layers)});
  }
  void TellFailed(uint32_t chunk) {
    TellLoad({.kind = policy::KvLoadEvent::Kind::kFailed, .chunks = {chunk}});
  }

 private:
  void TellLoad(policy::KvLoadEvent what) {
    Later([this, what = std::move(what)]() mutable {
      const auto events = With([&](State& state) {
        if (what.kind == policy::KvLoadEvent::Kind::kFailed) ++state.load_changes;
        what.change = state.load_changes;
        return state.last_opened.lock();
      });
      if (events != nullptr) events->OnLoad({.what = std::move(what)});
    });
  }

  class FakeLease final : public Lease, public std::enable_shared_from_this<FakeLease> {
   public:
    FakeLease(FakeStore& store, LeaseOpen open, std::shared_ptr<LeaseEvents> events)
        : store_(store), open_(std::move(open)), events_(std::move(events)) {}
    ~FakeLease() override { Abort(); }
    void Begin(std::string app_id, uint64_t call_id, int32_t) override {
      open_.app_id = std::move(app_id);
      open_.call_id = call_id;
    }
    void Share(WantedChunks wanted) override {
      store_.Later([self = shared_from_this(), wanted = std::move(wanted)] {
        std::vector<ResidentChunk> chunks = self->store_.With([&](State& state) {
          ++state.shares;
          std::vector<ResidentChunk> found;
          if (state.on_share) found = state.on_share(state, wanted);
          auto& resident = state.contexts[self->open_.context_id].resident;
          resident.insert(resident.end(), found.begin(), found.end());
          return found;
        });
        self->events_->OnShared(std::move(chunks));
      });
    }
    void Claim(int32_t first_chunk, int32_t chunks) override {
      store_.Later([self = shared_from_this(), first_chunk, chunks] {
        self->store_.DoClaim(*self, first_chunk, chunks);
      });
    }
    void Fault(int32_t chunk, std::string /*reason*/) override {
      store_.With([&](State& state) {
        ++state.faults;
        auto& resident = state.contexts[open_.context_id].resident;
        while (resident.size() > static_cast<size_t>(chunk)) {
          claimed_[resident.back().where.chunk] = resident.back().where.slot.units;
          resident.pop_back();
        }
      });
    }
    void Yield(int32_t computed_before, int32_t most) override {
      store_.Later([self = shared_from_this(), computed_before, most] {
        LoadEvent event{.what = {.kind = policy::KvLoadEvent::Kind::kYielded}};
        self->store_.With([&](State& state) {
          ++state.yields_asked;
          event.what.change = ++state.load_changes;
          if (self->over_ || !state.on_yield) return;
          event.slots = state.on_yield(state, computed_before, most);
          for (const ChunkSlot& chunk : event.slots) {
            self->claimed_[chunk.chunk] = chunk.slot.units;
            event.what.chunks.push_back(static_cast<uint32_t>(chunk.chunk));
          }
        });
        self->events_->OnLoad(std::move(event));
      });
    }
    void Commit(LeaseCommit commit) override {
      store_.With([&](State& /*state*/) { over_ = true; });
      store_.LaterUnlessHeld([self = shared_from_this(), commit = std::move(commit)]() mutable {
        self->store_.DoCommit(*self, std::move(commit));
      });
    }
    void Abort() override {
      store_.With([&](State& state) {
        if (std::exchange(over_, true)) return;
        ++state.aborts;
        Free(state);
      });
    }
    void Free(State& state) {
      for (const auto& [chunk, units] : claimed_) state.free.insert(units);
      claimed_.clear();
    }

    FakeStore& store_;
    LeaseOpen open_;
    const std::shared_ptr<LeaseEvents> events_;
    std::map<int32_t, uint32_t> claimed_;  // units by chunk
    size_t replaces_ = 0;                  // last segments of the context
    bool over_ = false;                    // committed or aborted; under the store's mutex
  };

  void Later(Task task) {
    if (!events_.Post(std::move(task))) std::abort();
  }

  void LaterUnlessHeld(Task commit) {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->hold_commits) return Later(std::move(commit));
    state_->held.push_back(std::move(commit));
  }

  void SendOpened(const std::shared_ptr<FakeLease>& lease) {
    std::vector<LoadEvent> told;
    OpenedLease opened = With([&](State& state) {
      const Context& context = state.contexts[lease->open_.context_id];
      OpenedLease made{
          .segments = context.segments, .resident = context.resident, .arena = state.arena};
      const bool retries =
          !context.unfinished.empty() && context.unfinished == lease->open_.request_id;
      if (retries) {
        lease->replaces_ = context.unfinished_segments;
        made.segments.resize(made.segments.size() - lease->replaces_);
        made.left_out = static_cast<int32_t>(lease->replaces_);
      }
      if (lease->open_.claim_chunks > 0) {
        Take(state, *lease, 0, lease->open_.claim_chunks, &made.claimed);
      }
      if (state.on_opened) state.on_opened(&made);
      state.last_opened = lease->events_;
      state.load_changes = static_cast<uint32_t>(state.after_opening.size());
      told = state.after_opening;
      return made;
    });
    lease->events_->OnOpened(lease, std::move(opened));
    for (LoadEvent& event : told) lease->events_->OnLoad(std::move(event));
  }

  // Free slots for `chunks` chunks; false: there are not enough.
  static bool Take(State& state, FakeLease& lease, int32_t first_chunk, int32_t chunks,
                   std::vector<ChunkSlot>* given) {
    if (state.free.size() < static_cast<size_t>(chunks)) return false;
    for (int32_t i = 0; i < chunks; ++i) {
      const auto [slot, added] = lease.claimed_.try_emplace(first_chunk + i, *state.free.begin());
      if (added) state.free.erase(state.free.begin());
      given->push_back({.chunk = first_chunk + i, .slot = {slot->second}});
    }
    return true;
  }

  // What comes after a lease's end is ignored.
  void DoClaim(FakeLease& lease, int32_t first_chunk, int32_t chunks) {
    std::vector<ChunkSlot> given;
    bool over = false;
    const bool refused = With([&](State& state) {
      over = lease.over_;
      if (over) return false;
      state.claimed_from.insert(first_chunk);
      auto& resident = state.contexts[lease.open_.context_id].resident;
      while (!lease.open_.rebuild &&
             resident.size() > static_cast<size_t>(first_chunk)) {  // taken out of the context
        lease.claimed_[resident.back().where.chunk] = resident.back().where.slot.units;
        resident.pop_back();
      }
      return !Take(state, lease, first_chunk, chunks, &given);
    });
    if (!over) lease.events_->OnClaimed(std::move(given), refused ? "no free slots" : "");
  }

  void DoCommit(FakeLease& lease, LeaseCommit commit) {
    With([&](State& state) {
      Context& context = state.contexts[lease.open_.context_id];
      for (size_t i = 0; i < commit.chunks.size(); ++i) {
        const auto chunk = static_cast<int32_t>(i);
        if (i == context.resident.size()) {
          context.resident.push_back({.where = {.chunk = chunk, .slot = {}}, .name = {}});
        }
        if (const auto claimed = lease.claimed_.extract(chunk)) {
          engine::KvSlot& slot = context.resident[i].where.slot;
          if (slot.units != engine::KvBlockName::kNone) state.free.insert(slot.units);
          slot.units = claimed.mapped();
        }
        context.resident[i].name = commit.chunks[i];
      }
      while (context.resident.size() > commit.chunks.size()) {
        state.free.insert(context.resident.back().where.slot.units);
        context.resident.pop_back();
      }
      if (!lease.open_.context_id.empty() && !commit.appended.empty()) {
        context.segments.resize(context.segments.size() - lease.replaces_);
        context.unfinished = commit.broken_off ? commit.request_id : "";
        context.unfinished_segments = commit.appended.size();
        context.segments.insert(context.segments.end(), commit.appended.begin(),
                                commit.appended.end());
      }
      lease.Free(state);
      state.commits.push_back(std::move(commit));
    });
    lease.events_->OnCommitted();
  }

  // Shared with nobody; a pointer so that With can be used before events_ starts.
  const std::shared_ptr<State> state_;
  TaskThread events_{4096};
};

// Remembers what a call was told. Thread-safe.
class RecordingSink final : public CallSink {
 public:
  void Accepted(const CallAccepted& accepted) override {
    absl::MutexLock lock(&mutex_);
    accepted_ = accepted;
  }
  void Progress(int32_t computed, int32_t tokens) override {
    absl::MutexLock lock(&mutex_);
    progress_.emplace_back(computed, tokens);
  }
  void LevelChanged(int32_t level_percent) override {
    absl::MutexLock lock(&mutex_);
    level_changes_.emplace_back(tokens_, level_percent);
  }
  void Delta(const engine::AnswerDelta& delta) override {
    absl::MutexLock lock(&mutex_);
    text_ += delta.text;
    tokens_ += delta.token.has_value() ? 1 : 0;
  }
  void Flush() override {
    absl::MutexLock lock(&mutex_);
    flushes_.push_back(tokens_);
  }
  void Finished(const CallOutcome& outcome) override {
    absl::MutexLock lock(&mutex_);
    outcome_ = outcome;
    over_.Notify();
  }
  void Failed(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    over_.Notify();
  }
  bool HasRoom() const override {
    absl::MutexLock lock(&mutex_);
    return has_room_;
  }

  // Waits for the end. DEADLINE_EXCEEDED: it does not come.
  absl::StatusOr<CallOutcome> Wait() {
    if (!over_.WaitForNotificationWithTimeout(kTestLimit)) {
      return absl::DeadlineExceededError("the call does not end");
    }
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
    return outcome_;
  }
  bool over() const { return over_.HasBeenNotified(); }
  std::string text() const {
    absl::MutexLock lock(&mutex_);
    return text_;
  }
  int tokens() const {
    absl::MutexLock lock(&mutex_);
    return tokens_;
  }
  // Waits for so many tokens; fails the test when they do not come.
  void WaitForTokens(int count) const {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return tokens_ >= count; };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), kTestLimit))
        << tokens_ << " of " << count << " tokens";
  }
  CallAccepted accepted() const {
    absl::MutexLock lock(&mutex_);
    return accepted_;
  }
  // Computed tokens and all of them, as they were told.
  std::vector<std::pair<int32_t, int32_t>> progress() const {
    absl::MutexLock lock(&mutex_);
    return progress_;
  }
  // Tokens told before the change, and the new level.
  std::vector<std::pair<int, int32_t>> level_changes() const {
    absl::MutexLock lock(&mutex_);
    return level_changes_;
  }
  // Tokens told before each Flush.
  std::vector<int> flushes() const {
    absl::MutexLock lock(&mutex_);
    return flushes_;
  }
  void set_has_room(bool has_room) {
    absl::MutexLock lock(&mutex_);
    has_room_ = has_room;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Notification over_;
  CallAccepted accepted_;
  CallOutcome outcome_;
  absl::Status status_;
  std::string text_;
  int tokens_ = 0;
  std::vector<std::pair<int32_t, int32_t>> progress_;
  std::vector<std::pair<int, int32_t>> level_changes_;
  std::vector<int> flushes_;
  bool has_room_ = true;
};

}  // namespace withy::serving
