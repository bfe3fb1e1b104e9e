// KV blocks in memory of the GPU: copies of those that passes read, on cards that share no memory
// with the board. A chunk is copied once, before the first pass that reads it; what a pass computes
// is written to both places, so that the host's memory always has everything. Neighbours:
// pass_inputs.cc asks before each pass, store_kv-inl.cuh writes twice and copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/cuda/kernels/args.h"
#include "engine/kv/block.h"
#include "engine/model/model.h"

namespace withy::engine::cuda {

// For one thread at a time. `gpu` outlives it.
class KvMirror {
 public:
  // Chunks that passes under way read: they keep their places.
  using Pins = std::vector<int32_t>;

  KvMirror(Gpu& gpu, const KvGeometry& geometry);

  // Whether a context's blocks can be read here: its chunks have versions and no 16-bit blocks, and
  // none is still being read from disk.
  bool Takes(const ContextView& view) const;
  // Makes room for `chunks` chunks of passes, beside those that are pinned, as far as half of what
  // the GPU has free goes. What is here may be lost, but for pinned chunks. Errors: of the GPU.
  absl::Status Reserve(size_t chunks);
  // Gives places to chunks of a context that Takes() (`chunks`: ascending) and pins them; adds to
  // `copies` what has to be copied before they are read. `host`: where kernels see view.memory.
  // Returns names of all blocks in memory(), [chunk * layers + layer], those of other chunks
  // without meaning; empty where there is no room: then the context is read in place, and Forget()
  // has been called.
  std::vector<KvBlockName> Place(const ContextView& view, std::span<const int32_t> chunks,
                                 const uint8_t* host, Pins* pins, std::vector<KvCopy>* copies);
  void Unpin(Pins* pins);
  // A pass writes to these chunks in place: the copies here are not theirs any more.
  void Forget(const ContextView& view);
  uint8_t* memory() const { return buffer_.as<uint8_t>(); }

 private:
  struct Slot {
    uint64_t version = 0;  // 0: nothing is here
    uint64_t used = 0;     // number of the Place that used it last
    int32_t pins = 0;
  };

  int32_t FreeSlot();

  Gpu& gpu_;
  const KvGeometry geometry_;
  const bool off_;  // the GPU's memory is the board's
  Buffer buffer_;
  std::vector<Slot> slots_;
  std::unordered_map<uint64_t, int32_t> slot_of_;  // by version
  uint64_t places_ = 0;
  int32_t pinned_ = 0;  // pins of all slots
};

}  // namespace withy::engine::cuda
