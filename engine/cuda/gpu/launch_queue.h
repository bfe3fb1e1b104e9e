// Launches of a GPU, in order: started at once, or collected and started together. A list that is
// collected again with the same arguments is played as a graph, which costs the processor one call.
// What changes from pass to pass must therefore be in device memory and not in the arguments; a
// graph is never changed. Neighbours: launch.h, cuda_gpu.cc and on_cpu/gpu_on_cpu.cc start
// launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/kernels/launch.h"

namespace withy::engine::cuda {

// Launches with their arguments.
class LaunchList {
 public:
  void Add(const LaunchShape& shape, const void* args, size_t bytes);
  void Clear();
  size_t size() const { return launches_.size(); }
  const LaunchShape& shape(size_t i) const { return launches_[i].shape; }
  const void* args(size_t i) const { return bytes_.data() + launches_[i].args; }
  uint64_t hash() const { return hash_; }
  bool operator==(const LaunchList& other) const;

 private:
  struct Entry {
    LaunchShape shape;
    size_t args = 0;  // offset
    bool operator==(const Entry&) const = default;
  };
  std::vector<Entry> launches_;
  std::vector<std::byte> bytes_;
  uint64_t hash_ = 0;
};

// For one thread at a time.
class LaunchQueue : public LaunchSink {
 public:
  static constexpr size_t kMostGraphs = 128;

  class Graph {
   public:
    virtual ~Graph() = default;
    virtual absl::Status Play() = 0;
  };

  // Until Submit() or Drop() launches are collected.
  void Collect();
  // Starts what was collected. Errors: of a graph that is played; those of kernels are told by
  // Gpu::Wait. A device that cannot record a graph goes on without.
  absl::Status Submit();
  void Drop();
  // From now on no kernel starts before the one before it has ended: kernels write weights, too,
  // which others load before they wait.
  void KeepApart() { apart_ = true; }

  uint64_t played() const { return played_; }  // lists that were played as graphs

 protected:
  bool apart() const { return apart_; }

 private:
  struct Kept {
    LaunchList list;
    std::unique_ptr<Graph> graph;  // null: the list was seen once
  };

  void TakeBytes(const LaunchShape& shape, const void* args, size_t bytes) final;
  virtual void Start(const LaunchShape& shape, const void* args) = 0;
  // Null: this device has no graphs, or cannot record this one.
  virtual std::unique_ptr<Graph> Record(const LaunchList& list) = 0;

  bool collects_ = false;
  bool apart_ = false;
  bool records_ = true;  // until a list could not be recorded
  LaunchList list_;
  std::list<Kept> kept_;  // the last used first
  uint64_t played_ = 0;
};

}  // namespace withy::engine::cuda
