#include "serving/session/leases_ahead.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace withy::serving {

// Receives the events of one lease that was opened ahead: keeps them until a call takes the lease,
// then passes them on.
class LeasesAhead::Spare final : public LeaseEvents,
                                 public std::enable_shared_from_this<LeasesAhead::Spare> {
 public:
  explicit Spare(std::weak_ptr<Pool> pool) : pool_(std::move(pool)) {}

  bool open() const {
    absl::MutexLock lock(&mutex_);
    return state_ == State::kOpen;
  }
  // Gives the lease to `call`: from now on its events go to `events`, OnOpened first. False when
  // the lease is not open any more.
  bool Give(const std::shared_ptr<Lease>& lease, const LeaseOpen& call,
            const std::shared_ptr<LeaseEvents>& events);

  void OnOpened(std::shared_ptr<Lease> lease, OpenedLease opened) override;
  void OnLoad(LoadEvent) override {}                     // a stateless call reads nothing
  void OnShared(std::vector<ResidentChunk>) override {}  // nor does it share anything
  void OnClaimed(std::vector<ChunkSlot> chunks, std::string refused) override {
    if (const auto call = Call()) call->OnClaimed(std::move(chunks), std::move(refused));
  }
  void OnCommitted() override;
  void OnBroken(absl::Status status) override;

 private:
  enum class State { kOpening, kOpen, kGiving, kTaken, kBroken };

  std::shared_ptr<LeaseEvents> Call() const {
    absl::MutexLock lock(&mutex_);
    return call_;
  }
  const std::weak_ptr<Pool> pool_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpening;
  OpenedLease opened_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<LeaseEvents> call_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);  // while it was given
};

// The leases that no call has taken yet.
class LeasesAhead::Pool final : public std::enable_shared_from_this<LeasesAhead::Pool> {
 public:
  Pool(LeaseSource& source, size_t leases) : source_(source), leases_(leases) {}

  void SetChunks(int32_t chunks) {
    absl::MutexLock lock(&mutex_);
    chunks_ = chunks;
  }

  void Refill() {
    while (true) {
      const auto spare = std::make_shared<Spare>(weak_from_this());
      int32_t chunks = 0;
      {
        absl::MutexLock lock(&mutex_);
        chunks = chunks_;
        if (closed_ || chunks == 0 || spares_.size() >= leases_) return;
        // Its place in the list must exist before its events come.
        spares_.push_back({.lease = nullptr, .events = spare});
      }
      auto lease = source_.Open({.claim_chunks = chunks}, spare);
      if (!lease.ok()) return Remove(spare.get());
      absl::MutexLock lock(&mutex_);
      const auto place = std::find_if(spares_.begin(), spares_.end(),
                                      [&](const Entry& entry) { return entry.events == spare; });
      if (place != spares_.end()) place->lease = *std::move(lease);
    }
  }

  absl::StatusOr<std::shared_ptr<Lease>> Open(LeaseOpen open, std::shared_ptr<LeaseEvents> events) {
    if (!open.context_id.empty()) return source_.Open(std::move(open), std::move(events));
    if (std::shared_ptr<Lease> lease = Give(open, events)) return lease;
    auto opened = source_.Open(std::move(open), std::move(events));
    Refill();
    return opened;
  }

  // Null: no lease is open.
  std::shared_ptr<Lease> Give(const LeaseOpen& call, const std::shared_ptr<LeaseEvents>& events) {
    while (true) {
      Entry entry;
      {
        absl::MutexLock lock(&mutex_);
        const auto found = std::find_if(spares_.begin(), spares_.end(), [](const Entry& spare) {
          return spare.lease != nullptr && spare.events->open();
        });
        if (found == spares_.end()) return nullptr;
        entry = std::move(*found);
        spares_.erase(found);
      }
      if (entry.events->Give(entry.lease, call, events)) return std::move(entry.lease);
    }
  }

  void Remove(const Spare* spare) {
    Entry removed;  // destroyed after the lock
    absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(spares_.begin(), spares_.end(), [&](const Entry& entry) {
      return entry.events.get() == spare;
    });
    if (found == spares_.end()) return;
    removed = std::move(*found);
    spares_.erase(found);
  }

  void Close() {
    std::vector<Entry> last;  // destroyed after the lock
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    last.swap(spares_);
  }

 private:
  struct Entry {
    std::shared_ptr<Lease> lease;
    std::shared_ptr<Spare> events;
  };
  LeaseSource& source_;
  const size_t leases_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int32_t chunks_ ABSL_GUARDED_BY(mutex_) = 0;  // claimed with each
  std::vector<Entry> spares_ ABSL_GUARDED_BY(mutex_);
};

void LeasesAhead::Spare::OnOpened(std::shared_ptr<Lease>, OpenedLease opened) {
  absl::MutexLock lock(&mutex_);
  state_ = State::kOpen;
  opened_ = std::move(opened);
}

bool LeasesAhead::Spare::Give(const std::shared_ptr<Lease>& lease, const LeaseOpen& call,
                              const std::shared_ptr<LeaseEvents>& events) {
  OpenedLease opened;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kOpen) return false;
    state_ = State::kGiving;
    call_ = events;
    opened = std::move(opened_);
  }
  lease->Begin(call.app_id, call.call_id, call.need_tokens);
  events->OnOpened(lease, std::move(opened));
  absl::Status broken;
  {
    absl::MutexLock lock(&mutex_);
    state_ = State::kTaken;
    broken = broken_;
  }
  // One event at a time.
  if (!broken.ok()) events->OnBroken(broken);
  return true;
}

void LeasesAhead::Spare::OnCommitted() {
  if (const auto call = Call()) call->OnCommitted();
  if (const auto pool = pool_.lock()) pool->Refill();
}

void LeasesAhead::Spare::OnBroken(absl::Status status) {
  std::shared_ptr<LeaseEvents> call;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kGiving) {
      broken_ = std::move(status);
      return;
    }
    state_ = State::kBroken;
    call = call_;
  }
  if (call != nullptr) return call->OnBroken(std::move(status));
  if (const auto pool = pool_.lock()) pool->Remove(this);
}

LeasesAhead::LeasesAhead(LeaseSource& source, size_t leases)
    : pool_(std::make_shared<Pool>(source, leases)) {}

LeasesAhead::~LeasesAhead() { pool_->Close(); }

void LeasesAhead::Refill(int32_t chunks) {
  pool_->SetChunks(chunks);
  pool_->Refill();
}

absl::StatusOr<std::shared_ptr<Lease>> LeasesAhead::Open(LeaseOpen open,
                                                         std::shared_ptr<LeaseEvents> events) {
  return pool_->Open(std::move(open), std::move(events));
}

}  // namespace withy::serving
