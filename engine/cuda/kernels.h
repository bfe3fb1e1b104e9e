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
  // `attend` takes tiles of one row, with blocks of any format; `attend_tiles` tiles without blocks
  // of kF16. Bits do not depend on which.
  void (*attend)(void* stream, const AttendArgs& args);
  void (*attend_tiles)(void* stream, const AttendArgs& args);
  void (*merge)(void* stream, const AttendArgs& args);
};

}  // namespace withy::engine::cuda
