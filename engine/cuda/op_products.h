// Which products the kernels of an operation compute: of which rows, from which inputs to which
// outputs, and which of them as F16 matrices. Neighbours: pass_inputs.h asks for each operation of
// a pass, run.cc launches what comes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cuda/dense_rows.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/pass_data.h"
#include "engine/cuda/workspace.h"
#include "engine/model/program.h"

namespace withy::engine::cuda {

// Products of one operation, in pass data.
struct OpProducts {
  const Product* products = nullptr;
  int count = 0;
  int strips = 0;
  int rows = 0;
};

// Addresses of what an operation reads from pass data.
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

// Of one pass at a time. All arguments must outlive it.
class OpProductPlan {
 public:
  OpProductPlan(CudaExecutor& executor, Workspace& workspace, PassData& pass_data)
      : executor_(executor),
        weights_(executor.weights()),
        workspace_(workspace),
        pass_data_(pass_data) {}

  void Start(const Program& program, const RowPlan& plan);
  // Puts the operation's products into pass data; extents and runs are in `data` already.
  void Put(const Op& op, OpData* data);
  // Whether the products before the norm `op` make its outputs. Once all operations were put.
  bool normed(size_t op) const { return normed_[op]; }

  // Where A's outputs of this part begin in a row of Workspace::lora.
  int LoraOffset(LoraPart in) const;

 private:
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

  OpProducts PutList(const ProductList& list);
  std::vector<Planned> Plan(const Op& op, const OpData& data);
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

  const ModelShape& shape() const { return executor_.facts().shape; }

  CudaExecutor& executor_;
  DeviceWeights& weights_;
  Workspace& workspace_;
  PassData& pass_data_;
  const Program* program_ = nullptr;
  const RowPlan* plan_ = nullptr;
  std::vector<bool> normed_;
};

}  // namespace withy::engine::cuda
