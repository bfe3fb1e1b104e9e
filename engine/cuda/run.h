// Walks one program on the GPU: resolves names and queues the kernels of each operation.
// Neighbours: executor.h makes it, args.h has what kernels take, pass_data.h what is copied for a
// pass.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/attend_tiles.h"
#include "engine/cuda/dense_rows.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/pass_data.h"
#include "engine/cuda/pass_stamps.h"
#include "engine/cuda/workspace.h"
#include "engine/model/executor.h"

namespace withy::engine::cuda {

// Passes of few rows are started whole, as a graph where possible; a stop takes effect before one.
// Of longer ones operations are queued at most two layers ahead of the GPU, so that a stop takes
// effect within three layers. A pause waits for what is queued.
class CudaRun final : public ProgramRun {
 public:
  explicit CudaRun(CudaExecutor& executor);

  void Start(const Program& program, const RowPlan& plan, const Batch& batch,
             float* logits) override;
  bool Run(const std::atomic<bool>* stop, int32_t end) override;
  double ops_done() const override { return next_op_; }
  void Abandon() override;
  absl::Status status() const override { return status_; }

 private:
  // Products of one operation, in pass data.
  struct OpProducts {
    const Product* products = nullptr;
    int count = 0;
    int strips = 0;
    int rows = 0;
  };
  // A product before it is cut by rows, and what its rows have; null: all of the matrix.
  struct Planned {
    Product product;
    const int32_t* outputs = nullptr;
    const int32_t* inputs = nullptr;
  };
  struct ProductList {
    std::vector<Product> products;
    int strips = 0;
    int rows = 0;  // of the product with most
    // Rows [first, first + rows) of a product; the first row computes most.
    void Add(const Planned& planned, int first, int rows);
  };
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
  // Addresses of what the operation reads from pass data.
  struct OpData {
    OpProducts products;            // of the operation
    OpProducts lower;               // A of the LoRA of gate and up, after a norm
    std::vector<DenseGroup> dense;  // those of long prompts
    const LowRankRun* runs = nullptr;
    int run_count = 0;
    const int32_t* heads = nullptr;  // extents
    const int32_t* q_rows = nullptr;
    const int32_t* kv_rows = nullptr;
    const int32_t* neurons = nullptr;
  };

  absl::Status Prepare();
  absl::Status ReserveBuffers();
  size_t PassDataBytes() const;
  void PutRows();
  absl::Status PutContexts();
  void PutTails();
  void PutTiles();
  void PutOps();
  void PutExtents(const Op& op, OpData* data);
  void PutRuns(const Op& op, OpData* data);
  void PutProducts(const Op& op, OpData* data);
  OpProducts PutList(const ProductList& list);
  std::vector<Planned> PlanQkv(const Op& op, const OpData& data);
  std::vector<Planned> PlanResidual(const Op& op, const OpData& data);
  std::vector<Planned> PlanGateUp(const Op& op, const OpData& data);
  std::vector<Planned> PlanHead(const Op& op);
  std::vector<RowRun> RunsOf(const Op& op, int first, int rows) const;
  void PutDense(std::span<const Planned> products, int first, int rows, OpData* data);
  void AddLoraInputs(const Op& op, ProductList* list);
  Product NewProduct(const Matrix& w, const InputBuffer& x, int rows, float* y,
                     int64_t stride) const;
  void FuseNorm(const Op& op, Product* product);

  absl::Status Launch(const Op& op, const OpData& data);
  absl::Status LaunchStage(const Op& op);
  void LaunchEmbed(const Op& op);
  void LaunchNorm(const Op& op, const OpData& data);
  absl::Status LaunchAll(const OpData& data, bool fused);
  void LaunchProducts(const OpProducts& products, bool fused);
  void LaunchStoreKv(const Op& op, const OpData& data);
  void LaunchAttend(const Op& op, const OpData& data);
  absl::Status Tap(const Op& op, const OpData& data);
  void LaunchTakeLogitRows(const Op& op, const OpData& data);

  void UnmapContexts();
  // Whether the operations are started together, as a graph where the same were started before.
  bool StartsTogether(int32_t end) const;
  absl::Status LaunchNext();
  absl::Status LaunchTogether();
  absl::Status LaunchUntil(int32_t end, const std::atomic<bool>* stop);
  bool Fail(absl::Status status);
  absl::Status Finish();
  absl::Status AddDensities();

  const ModelShape& shape() const { return executor_.facts().shape; }
  int32_t LastLayer() const { return shape().layers - 1; }
  float* LoraInputs(LoraPart in) const;
  int LoraOffset(LoraPart in) const;

  CudaExecutor& executor_;
  Gpu& gpu_;
  const Kernels& kernels_;
  DeviceWeights& weights_;
  Shape kernel_shape_;
  uint32_t block_bytes_ = 0;  // of kQ8

  // Of the program.
  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  Batch batch_;
  float* logits_ = nullptr;
  int32_t next_op_ = 0;
  absl::Status status_;
  bool prepared_ = false;
  bool finished_ = false;
  int32_t marked_layer_ = -1;
  int32_t density_chunks_ = 0;
  int32_t runs_ = 0;                 // of the row that sees most
  std::vector<bool> half_contexts_;  // [context]: it has blocks of 16 bits
  bool half_blocks_ = false;         // some context has
  std::vector<KvMemory> mapped_;     // of the contexts, until the program is over
  KvMirror::Pins mirror_pins_;       // likewise
  std::vector<OpData> op_data_;
  std::vector<bool> normed_;  // [op]: the operation before it has done this norm

  // In pass data.
  const Row* rows_ = nullptr;
  const int32_t* tokens_ = nullptr;
  const float* angles_ = nullptr;
  const float* fetched_ = nullptr;
  const Context* contexts_ = nullptr;
  const KvPlaces* places_ = nullptr;
  const int32_t* wanted_ = nullptr;
  const int32_t* logit_rows_ = nullptr;
  TileLimits tile_limits_;
  Tiles tiles_;         // of all rows
  Tiles wanted_tiles_;  // of those that want logits
  const TailCopy* copies_ = nullptr;
  int copy_count_ = 0;
  const KvCopy* kv_copies_ = nullptr;
  int kv_copy_count_ = 0;

  PassStamps stamps_;
  PassData pass_data_;
  InputBuffer input_;
  InputBuffer attention_input_;
  InputBuffer neurons_;
  InputBuffer head_input_;
  Buffer x_;
  Buffer q_;
  Buffer k_;
  Buffer v_;
  Buffer lora_;
  Buffer query_bytes_;
  Queries queries_;
  Buffer parts_;
  Buffer tail_;
  Buffer density_;
  Buffer tapped_;
  Buffer logits_buffer_;
};

}  // namespace withy::engine::cuda
