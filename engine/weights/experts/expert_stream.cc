#include "engine/weights/experts/expert_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/crc32c.h"
#include "base/huge_memory.h"
#include "base/status.h"
#include "base/thread_role.h"

namespace withy::engine {
namespace {

constexpr uint32_t kExpertQueueDepth = 16;
// Guesses are taken while fewer reads of them are due, so that what is needed now need not wait for
// all of them, and one that has proved wrong is not read.
constexpr size_t kMostGuessReads = 8;
constexpr absl::Duration kExpertPoll = absl::Milliseconds(2);
// Passes after which a use counts half. Not tuned.
constexpr double kHalfLifePasses = 64;
constexpr double kLargestGain = 1e200;

// Whole pages around a part of an expert.
struct PartRead {
  int32_t slot = 0;
  int32_t id = 0;
  size_t part = 0;
  bool guessed = false;
  uint64_t offset = 0;  // of the file
  std::span<std::byte> memory;
  uint64_t begin = 0;  // of the part within `memory`
  uint64_t bytes = 0;
  uint64_t done = 0;  // bytes that arrived, if the disk gave fewer than asked for
};

}  // namespace

// An expert is named by its id, layer * experts + expert.
class ExpertStream::Core {
 public:
  Core(StreamedExperts plan, const WeightStreamOptions& options, const std::string& path,
       WeightFile file, std::vector<ChunkSum> sums, HugeMemory memory)
      : plan_(std::move(plan)),
        stall_ns_(options.stall_ns),
        path_(path),
        file_(std::move(file)),
        sums_(std::move(sums)),
        memory_(std::move(memory)),
        queue_(options.make_queue ? options.make_queue(kExpertQueueDepth)
                                  : DiskQueue::CreateBest(kExpertQueueDepth)),
        slots_(static_cast<size_t>(plan_.slots)),
        experts_(plan_.layers.size() * static_cast<size_t>(plan_.experts)) {
    for (uint64_t tag = 0; tag < kExpertQueueDepth; ++tag) free_tags_.push_back(tag);
    under_way_.resize(kExpertQueueDepth);
  }

  bool guesses() const { return plan_.slots >= 2 * plan_.experts; }

  void Choose(const void* pass, int32_t layer, std::span<const int32_t> experts, bool counts) {
    absl::MutexLock lock(&mutex_);
    if (!counts && pass == pass_) return;
    pass_ = pass;
    ++epoch_;
    if (counts && layer == 0) Age();
    wanted_.clear();
    guessed_.clear();
    for (const int32_t expert : experts) {
      const int32_t id = layer * plan_.experts + expert;
      Expert& chosen = ExpertAt(id);
      chosen.chosen = epoch_;
      if (counts) chosen.score += gain_;
      if (chosen.slot < 0) wanted_.push_back(id);
      if (counts) Count(chosen);
    }
    if (!wanted_.empty()) queue_->Wake();
  }

  void SortByPresence(int32_t layer, std::span<int32_t> experts) {
    absl::MutexLock lock(&mutex_);
    const auto is_there = [&](int32_t expert) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return IsThere(ExpertAt(layer * plan_.experts + expert), 0);
    };
    std::stable_partition(experts.begin(), experts.end(), is_there);
  }

  void Guess(int32_t layer, std::span<const int32_t> experts) {
    absl::MutexLock lock(&mutex_);
    for (const int32_t expert : experts) {
      const int32_t id = layer * plan_.experts + expert;
      Expert& guess = ExpertAt(id);
      guess.guessed = epoch_;
      if (guess.slot < 0) guessed_.push_back(id);
    }
    if (!guessed_.empty()) queue_->Wake();
  }

  absl::StatusOr<const std::byte*> Await(int32_t layer, int32_t expert, ExpertPart part) {
    const int32_t id = layer * plan_.experts + expert;
    const auto at = static_cast<size_t>(part);
    absl::MutexLock lock(&mutex_);
    const Expert& awaited = ExpertAt(id);
    if (!IsThere(awaited, at)) WITHY_RETURN_IF_ERROR(Wait(id, at));
    return AddressOf(awaited.slot, id, at);
  }

  // The reading thread.
  void Run() {
    SetThreadRole(ThreadRole::kCarries);
    while (TakeReads()) {
      while (!free_tags_.empty() && SubmitNext()) {
      }
      const std::optional<DiskCompletion> completion = queue_->Wait();
      if (completion.has_value()) Complete(*completion);
    }
    while (free_tags_.size() < kExpertQueueDepth) {
      const std::optional<DiskCompletion> completion = queue_->Wait();
      if (completion.has_value()) free_tags_.push_back(completion->tag);
    }
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  // True once the reading thread has nothing under way any more; false: the disk hangs.
  bool Stop() {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    queue_->Wake();
    return mutex_.AwaitWithTimeout(absl::Condition(&ended_), absl::Nanoseconds(stall_ns_));
  }

  ExpertStats stats() {
    absl::MutexLock lock(&mutex_);
    return stats_;
  }

  std::thread thread;

 private:
  struct Expert {
    int32_t slot = -1;     // -1: not in memory, and not being read
    uint64_t chosen = 0;   // epoch in which it was chosen last
    uint64_t guessed = 0;  // likewise
    uint64_t failed = 0;   // epoch in which it could not be read
    double score = 0;      // of its uses, newer ones counting more
  };
  struct Slot {
    int32_t id = -1;
    size_t reads = 0;  // due or under way
    std::array<bool, kExpertParts> here{};
    bool broken = false;  // a read has failed
  };

  Expert& ExpertAt(int32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return experts_[static_cast<size_t>(id)];
  }
  Slot& SlotAt(int32_t slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return slots_[static_cast<size_t>(slot)];
  }
  bool IsThere(const Expert& expert, size_t part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return expert.slot >= 0 && SlotAt(expert.slot).here[part];
  }

  // A new use counts more than the ones before it, which saves making all others less.
  void Age() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    gain_ *= std::exp2(1 / kHalfLifePasses);
    if (gain_ < kLargestGain) return;
    for (Expert& expert : experts_) expert.score /= gain_;
    gain_ = 1;
  }

  void Count(const Expert& chosen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++stats_.chosen;
    if (chosen.slot < 0) return;
    ++(SlotAt(chosen.slot).reads == 0 ? stats_.in_memory : stats_.arriving);
  }

  // Waits until a part has arrived.
  absl::Status Wait(int32_t id, size_t part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int64_t started = Clock::Real().SteadyNanos();
    if (waiting_++ == 0) {
      ++stats_.waits;
      waiting_since_ns_ = started;
    }
    absl::Status status;
    const Expert& awaited = ExpertAt(id);
    while (status.ok() && !IsThere(awaited, part)) {
      if (awaited.failed == epoch_) {
        status = failure_;
      } else if (Clock::Real().SteadyNanos() - std::max(started, last_arrival_ns_) > stall_ns_) {
        status = absl::UnavailableError(absl::StrFormat(
            "weights cannot be read: the disk of %s has delivered nothing for %d ms: check the "
            "disk, then call again",
            path_, stall_ns_ / kNanosPerMilli));
      } else {
        arrived_.WaitWithTimeout(&mutex_, kExpertPoll);
      }
    }
    if (--waiting_ == 0) stats_.wait_ns += Clock::Real().SteadyNanos() - waiting_since_ns_;
    if (!status.ok()) ++stats_.failures;
    return status;
  }

  // First byte of a part in the file.
  uint64_t OffsetOf(int32_t id, size_t part) const {
    const auto& p = plan_.layers[static_cast<size_t>(id / plan_.experts)][part];
    return p.file_offset + static_cast<uint64_t>(id % plan_.experts) * p.bytes;
  }

  // Where the pages around a part of the expert in `slot` lie.
  std::byte* RoomOf(int32_t slot, size_t part) {
    uint64_t at = static_cast<uint64_t>(slot) * plan_.slot_bytes();
    for (size_t before = 0; before < part; ++before) at += plan_.part_room[before];
    return memory_.bytes().data() + at;
  }

  const std::byte* AddressOf(int32_t slot, int32_t id, size_t part) {
    return RoomOf(slot, part) + OffsetOf(id, part) % kWeightPage;
  }

  // Gives what is wanted slots and makes reads of it; false: the stream ends.
  bool TakeReads() {
    absl::MutexLock lock(&mutex_);
    while (!wanted_.empty() && TakeSlot(wanted_.front(), /*guess=*/false)) wanted_.pop_front();
    while (wanted_.empty() && !guessed_.empty() &&
           guess_reads_.size() + guess_reads_under_way_ < kMostGuessReads) {
      TakeSlot(guessed_.front(), /*guess=*/true);
      guessed_.pop_front();
    }
    return !stopping_;
  }

  // False if no slot is free for the expert; of a guess, if all hold experts of more use.
  bool TakeSlot(int32_t id, bool guess) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Expert& expert = ExpertAt(id);
    if (expert.slot >= 0) return true;
    const int32_t number = LeastUsed(guess);
    if (number < 0) return false;
    Slot& slot = SlotAt(number);
    if (guess && slot.id >= 0 && ExpertAt(slot.id).score > expert.score + gain_) return false;
    if (slot.id >= 0) ExpertAt(slot.id).slot = -1;
    slot = {.id = id, .reads = kExpertParts};
    expert.slot = number;
    if (guess) ++stats_.guessed;
    for (size_t part = 0; part < kExpertParts; ++part) {
      const uint64_t at = OffsetOf(id, part);
      const uint64_t first = at / kWeightPage * kWeightPage;
      const uint64_t bytes = plan_.layers[static_cast<size_t>(id / plan_.experts)][part].bytes;
      (guess ? guess_reads_ : reads_)
          .push_back({.slot = number,
                      .id = id,
                      .part = part,
                      .guessed = guess,
                      .offset = first,
                      .memory = {RoomOf(number, part), RoundUp(at + bytes, kWeightPage) - first},
                      .begin = at - first,
                      .bytes = bytes});
    }
    return true;
  }

  // An empty slot, or the one whose expert is used least, of those that nobody computes with and no
  // read fills; last those of guesses for the next layer. -1: there is none.
  int32_t LeastUsed(bool guess) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int32_t best = -1;
    std::pair<bool, double> best_rank;
    for (int32_t i = 0; i < plan_.slots; ++i) {
      const Slot& slot = SlotAt(i);
      if (slot.id < 0) return i;
      const Expert& expert = ExpertAt(slot.id);
      const bool expected = expert.guessed == epoch_;
      if (slot.reads > 0 || expert.chosen == epoch_ || (guess && expected)) continue;
      const std::pair<bool, double> rank{expected, expert.score};
      if (best >= 0 && rank >= best_rank) continue;
      best = i;
      best_rank = rank;
    }
    return best;
  }

  // False if nothing may be read now.
  bool SubmitNext() {
    std::deque<PartRead>& from = reads_.empty() ? guess_reads_ : reads_;
    if (from.empty()) return false;
    const PartRead read = from.front();
    from.pop_front();
    if (read.guessed) ++guess_reads_under_way_;
    const uint64_t tag = free_tags_.back();
    free_tags_.pop_back();
    under_way_[tag] = read;
    queue_->Submit({.kind = DiskRequest::Kind::kRead,
                    .fd = file_.fd.get(),
                    .offset = read.offset + read.done,
                    .memory = read.memory.subspan(read.done),
                    .tag = tag});
    return true;
  }

  void Complete(const DiskCompletion& completion) {
    PartRead read = under_way_[completion.tag];
    free_tags_.push_back(completion.tag);
    if (read.guessed) --guess_reads_under_way_;
    const uint64_t got = completion.result > 0 ? static_cast<uint64_t>(completion.result) : 0;
    const uint64_t end = read.begin + read.bytes;
    // A disk may deliver less than was asked for: the rest is asked for again.
    if (got > 0 && read.done + got < end && got % kWeightPage == 0) {
      read.done += got;
      (read.guessed ? guess_reads_ : reads_).push_front(read);
      return;
    }
    const absl::Status status = StatusOf(read, completion.result, read.done + got >= end);
    if (!file_.direct) {
      posix_fadvise(file_.fd.get(), static_cast<off_t>(read.offset),
                    static_cast<off_t>(read.memory.size()), POSIX_FADV_DONTNEED);
    }
    absl::MutexLock lock(&mutex_);
    stats_.read_bytes += read.memory.size();
    last_arrival_ns_ = Clock::Real().SteadyNanos();
    EndRead(read, status);
    arrived_.SignalAll();
  }

  void EndRead(const PartRead& read, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Slot& slot = SlotAt(read.slot);
    Expert& expert = ExpertAt(read.id);
    --slot.reads;
    slot.here[read.part] = status.ok();
    if (!status.ok()) {
      failure_ = status;
      if (absl::IsDataLoss(status)) ++stats_.bad_reads;
      slot.broken = true;
      expert.failed = epoch_;
    }
    if (slot.reads > 0 || !slot.broken) return;
    // What has not arrived whole is forgotten, and read again if it was chosen since.
    slot = Slot();
    expert.slot = -1;
    if (expert.chosen == epoch_ && expert.failed != epoch_) wanted_.push_back(read.id);
  }

  absl::Status StatusOf(const PartRead& read, int64_t result, bool whole) const {
    const std::string what =
        absl::StrFormat("weights of expert %d of layer %d at byte %d of %s",
                        read.id % plan_.experts, read.id / plan_.experts, read.offset, path_);
    if (result < 0) {
      return absl::UnavailableError(
          absl::StrFormat("%s: cannot be read: %s: check the disk, then call again", what,
                          std::strerror(static_cast<int>(-result))));
    }
    if (!whole) {
      return absl::DataLossError(absl::StrFormat(
          "%s: the file ends before them: its worker packs it again; call again in a moment",
          what));
    }
    const auto sum = static_cast<size_t>(read.id) * kExpertParts + read.part;
    if (Crc32cLanes(read.memory.subspan(read.begin, read.bytes)) == sums_[sum]) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrFormat(
        "%s: have changed since the model was opened: its worker checks the file, and packs it "
        "again if it is damaged; call again in a moment",
        what));
  }

  const StreamedExperts plan_;
  const int64_t stall_ns_;
  const std::string path_;
  const WeightFile file_;
  const std::vector<ChunkSum> sums_;
  HugeMemory memory_;  // the slots; a slot's owner is guarded, its bytes are not
  const std::unique_ptr<DiskQueue> queue_;

  // Only the reading thread uses these.
  std::vector<uint64_t> free_tags_;
  std::vector<PartRead> under_way_;  // [tag]
  size_t guess_reads_under_way_ = 0;
  std::deque<PartRead> reads_;  // due
  std::deque<PartRead> guess_reads_;

  absl::Mutex mutex_;
  absl::CondVar arrived_;
  std::vector<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<Expert> experts_ ABSL_GUARDED_BY(mutex_);  // [id]
  const void* pass_ ABSL_GUARDED_BY(mutex_) = nullptr;   // that chose last
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 1;           // grows with each choice
  double gain_ ABSL_GUARDED_BY(mutex_) = 1;              // of a use's score
  std::deque<int32_t> wanted_ ABSL_GUARDED_BY(mutex_);   // chosen, without a slot yet
  std::deque<int32_t> guessed_ ABSL_GUARDED_BY(mutex_);  // likewise
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);         // of the last read that failed
  int64_t last_arrival_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads
  int64_t waiting_since_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  ExpertStats stats_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<ExpertStream>> ExpertStream::Start(
    StreamedExperts plan, const WeightStreamOptions& options, const std::string& path,
    std::vector<ChunkSum> sums) {
  WITHY_ASSIGN_OR_RETURN(WeightFile file, OpenWeightFile(path, options.direct));
  WITHY_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(plan.buffer_bytes()));
  auto core = std::make_shared<Core>(std::move(plan), options, path, std::move(file),
                                     std::move(sums), std::move(memory));
  core->thread = std::thread([core] { core->Run(); });
  return std::unique_ptr<ExpertStream>(new ExpertStream(std::move(core)));
}

ExpertStream::~ExpertStream() {
  std::thread thread = std::move(core_->thread);
  if (core_->Stop()) {
    thread.join();
  } else {
    thread.detach();
  }
}

void ExpertStream::Choose(const void* pass, int32_t layer, std::span<int32_t> experts) {
  core_->Choose(pass, layer, experts, /*counts=*/true);
  core_->SortByPresence(layer, experts);
}

void ExpertStream::Resume(const void* pass, int32_t layer, std::span<const int32_t> experts) {
  core_->Choose(pass, layer, experts, /*counts=*/false);
}

bool ExpertStream::guesses() const { return core_->guesses(); }

void ExpertStream::Guess(int32_t layer, std::span<const int32_t> experts) {
  core_->Guess(layer, experts);
}

absl::StatusOr<const std::byte*> ExpertStream::Await(int32_t layer, int32_t expert,
                                                     ExpertPart part) {
  return core_->Await(layer, expert, part);
}

ExpertStats ExpertStream::stats() const { return core_->stats(); }

}  // namespace withy::engine
