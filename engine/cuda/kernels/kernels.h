// The CUDA kernels: one table of launches for each body of device-inl.cuh. Neighbours: args.h has
// the arguments, gpu.h hands the table out, launch.h takes the launches. Launches return at once;
// kernels run in the order in which they were launched.
#pragma once

#include "engine/cuda/kernels/args.h"
#include "engine/cuda/kernels/launch.h"

namespace withy::engine::cuda {

// How rows are multiplied with quantised weights. Bits do not depend on it.
enum class ProductPath : uint8_t { kDp4a, kMma };

struct Kernels {
  void (*repack)(LaunchSink& to, const PackedArgs& args);
  void (*embed)(LaunchSink& to, const EmbedArgs& args, int rows);
  void (*norm)(LaunchSink& to, const NormArgs& args, int rows);
  // `fused`: the products are one of gate and up.
  void (*products)(LaunchSink& to, const ProductArgs& args, ProductPath path, bool fused);
  void (*store_kv)(LaunchSink& to, const StoreKvArgs& args);
  void (*gather)(LaunchSink& to, const GatherArgs& args);
  void (*copy_kv)(LaunchSink& to, const KvCopyArgs& args);
  void (*keep)(LaunchSink& to, const KeepArgs& args);
  // `attend` takes tiles of one row, with blocks of any format; `attend_tiles` tiles without blocks
  // of kF16. Bits do not depend on which.
  void (*attend)(LaunchSink& to, const AttendArgs& args);
  void (*attend_tiles)(LaunchSink& to, const AttendArgs& args);
  void (*merge)(LaunchSink& to, const AttendArgs& args);
  void (*stamp)(LaunchSink& to, const StampArgs& args);
  void (*fill_memory)(LaunchSink& to, const MemoryArgs& args);
  void (*read_memory)(LaunchSink& to, const MemoryArgs& args);
  // F16 matrices of the weights and of the inputs of dense products, and what is made of their
  // sums.
  void (*dense_weights)(LaunchSink& to, const DenseArgs& args);
  void (*dense_inputs)(LaunchSink& to, const DenseArgs& args);
  void (*dense_finish)(LaunchSink& to, const DenseArgs& args);
};

}  // namespace withy::engine::cuda
