// What a pass reads besides weights and activations: rows, block tables, tiles of attention,
// extents, products. Collected on the host, copied to the device at once. Neighbours: run.cc has it
// prepared before the first operation; pass_data.h is the memory, op_products.h has the products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/attend_tiles.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/op_products.h"
#include "engine/cuda/pass_data.h"
#include "engine/cuda/workspace.h"
#include "engine/model/executor.h"

namespace withy::engine::cuda {

// Tiles of attention (AttendTiles), on the host and in pass data.
struct TileList {
  std::vector<AttendTile> host;
  const AttendTile* on_device = nullptr;
};
struct Tiles {
  TileList tiles;
  TileList tails;
  TileList single;
};

// Addresses in pass data, and sizes.
struct PassAddresses {
  int32_t density_chunks = 0;  // 0: nobody wants densities
  int32_t runs = 0;            // of attention, of the row that sees most
  const Row* rows = nullptr;
  const int32_t* tokens = nullptr;
  const float* angles = nullptr;
  const float* fetched = nullptr;  // rows of the embedding; null: it is in device memory
  const Context* contexts = nullptr;
  const KvPlaces* places = nullptr;
  const int32_t* wanted = nullptr;
  const int32_t* logit_rows = nullptr;
  TileLimits tile_limits;
  Tiles all_tiles;
  Tiles wanted_tiles;  // of the rows that want logits
  const TailCopy* copies = nullptr;
  int copy_count = 0;
};

// Of one pass at a time. All arguments must outlive it.
class PassInputs {
 public:
  PassInputs(CudaExecutor& executor, const Shape& kernel_shape, Workspace& workspace);

  // Makes room for the pass and queues the copies that it needs. `program`, `plan` and what `batch`
  // names must stay until Release(). Errors: as Gpu::Allocate and Gpu::MapKv.
  absl::Status Prepare(const Program& program, const RowPlan& plan, const Batch& batch);
  // The contexts' memory is not used any more: what was queued is done.
  void Release();

  const PassAddresses& at() const { return at_; }
  const OpData& op(size_t i) const { return ops_[i]; }
  std::span<const OpData> ops() const { return ops_; }
  // Whether the operation before the norm `op` makes its outputs.
  bool normed(size_t op) const { return products_.normed(op); }

 private:
  PassSizes Sizes();
  size_t Bytes() const;
  void PutRows();
  void PutWanted();
  void PutTails();
  void PutTiles();
  void PutOps();
  void PutExtents(const Op& op, OpData* data);
  void PutRuns(const Op& op, OpData* data);
  absl::Status PutContexts();

  const ModelShape& shape() const { return executor_.facts().shape; }

  CudaExecutor& executor_;
  Gpu& gpu_;
  const Shape& kernel_shape_;
  Workspace& workspace_;
  PassData pass_data_;
  OpProductPlan products_;

  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  Batch batch_;
  std::vector<bool> half_contexts_;  // [context]: it has blocks of 16 bits
  std::vector<KvMemory> mapped_;     // of the contexts, until Release()
  KvMirror::Pins mirror_pins_;       // likewise
  std::vector<KvCopy> kv_copies_;
  PassAddresses at_;
  std::vector<OpData> ops_;
};

}  // namespace withy::engine::cuda
