// The CUDA kernels: one table of launches for each body of device-inl.cuh. Neighbours: args.h has
// the arguments, gpu.h hands the table out. Launches return at once; kernels of a stream run in
// order.
#pragma once

#include "engine/cuda/args.h"

namespace withy::engine::cuda {

// How rows are multiplied with quantised weights. Bits do not depend on it.
enum class ProductPath : uint8_t { kDp4a, kMma };

struct Kernels {
  void (*repack)(void* stream, const PackedArgs& args);
  void (*embed)(void* stream, const EmbedArgs& args, int rows);
  void (*norm)(void* stream, const NormArgs& args, int rows);
  // `fused`: the products are one of gate and up.
  void (*products)(void* stream, const ProductArgs& args, ProductPath path, bool fused);
  void (*store_kv)(void* stream, const StoreKvArgs& args);
  void (*gather)(void* stream, const GatherArgs& args);
  void (*keep)(void* stream, const KeepArgs& args);
  void (*attend)(void* stream, const AttendArgs& args);
  void (*merge)(void* stream, const AttendArgs& args);
  // F16 matrices of the weights and of the inputs of dense products, and what is made of their
  // sums.
  void (*dense_weights)(void* stream, const DenseArgs& args);
  void (*dense_inputs)(void* stream, const DenseArgs& args);
  void (*dense_finish)(void* stream, const DenseArgs& args);
};

}  // namespace withy::engine::cuda
