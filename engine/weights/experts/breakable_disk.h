// A disk queue that a test breaks: for tests of streamed weights and experts.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/disk_io.h"

namespace withy::engine {

// What the disk does to reads. A test changes it at any time.
enum class Disk { kWorks, kFails, kLies, kHangs };
class BreakableDisk {
 public:
  // Shared with the queues, whose threads may outlive the model by a moment.
  struct Shared {
    std::atomic<Disk> state = Disk::kWorks;
    std::mutex mutex;
    std::set<DiskQueue*> queues;  // guarded by the mutex
  };

  BreakableDisk& operator=(Disk state) {
    shared_->state = state;
    const std::lock_guard lock(shared_->mutex);
    for (DiskQueue* const queue : shared_->queues) queue->Wake();  // what was withheld comes now
    return *this;
  }
  const std::shared_ptr<Shared>& shared() const { return shared_; }

 private:
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

class BreakableQueue final : public DiskQueue {
 public:
  BreakableQueue(uint32_t depth, std::shared_ptr<BreakableDisk::Shared> disk)
      : inner_(*DiskQueue::Create(Kind::kThreads, depth)), disk_(std::move(disk)) {
    const std::lock_guard lock(disk_->mutex);
    disk_->queues.insert(this);
  }
  ~BreakableQueue() override {
    const std::lock_guard lock(disk_->mutex);
    disk_->queues.erase(this);
  }

  Kind kind() const override { return inner_->kind(); }
  void Prepare(std::span<std::byte> memory) override { inner_->Prepare(memory); }
  void Submit(const DiskRequest& request) override {
    memory_[request.tag] = request.memory;
    inner_->Submit(request);
  }
  std::optional<DiskCompletion> Wait() override {
    if (disk_->state != Disk::kHangs && !withheld_.empty()) {
      const DiskCompletion completion = withheld_.front();
      withheld_.pop_front();
      return completion;
    }
    std::optional<DiskCompletion> completion = inner_->Wait();
    if (!completion.has_value()) return completion;
    switch (disk_->state) {
      case Disk::kWorks:
        break;
      case Disk::kFails:
        completion->result = -EIO;
        break;
      case Disk::kLies:
        Spoil(memory_[completion->tag]);
        break;
      case Disk::kHangs:
        withheld_.push_back(*completion);
        return std::nullopt;
    }
    return completion;
  }
  void Wake() override { inner_->Wake(); }

 private:
  // In every place: a reader may want only a part of the pages.
  static void Spoil(std::span<std::byte> memory) {
    for (std::byte& byte : memory) byte ^= std::byte{1};
  }

  const std::unique_ptr<DiskQueue> inner_;
  const std::shared_ptr<BreakableDisk::Shared> disk_;
  std::map<uint64_t, std::span<std::byte>> memory_;
  std::deque<DiskCompletion> withheld_;
};

}  // namespace withy::engine
