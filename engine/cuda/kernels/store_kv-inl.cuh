// Finishes q, k and v of a row and writes K and V into blocks: LoRA, bias, head norm, RoPE,
// rotation, rounding. A warp has one head of one row, dimension 32 j + lane in register j. Included
// by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

inline constexpr int kHeadRegisters = kMaxHeadDim / 32;
inline constexpr int kHeadWarps = 4;  // heads that a thread block takes

// A head in the registers of a warp; zero beyond head_dim.
struct Head {
  float v[kHeadRegisters];
};

WITHY_DEVICE int HeadRegisters(int head_dim) { return (head_dim + 31) / 32; }

// The rotation of kv/rotation.h: pairs `stride` apart become their sum and difference.
WITHY_DEVICE void RotateHead(int head_dim, int rotation, Head* head) {
  const int lane = ThreadX() % 32;
  const int n = HeadRegisters(head_dim);
  for (int stride = 1; stride < rotation && stride < 32; stride *= 2) {
#pragma unroll
    for (int j = 0; j < kHeadRegisters; ++j) {
      if (j >= n) break;
      const float other = ShuffleXor(head->v[j], stride);
      head->v[j] = (lane & stride) != 0 ? other - head->v[j] : head->v[j] + other;
    }
  }
#pragma unroll
  for (int stride = 1; stride < kHeadRegisters; stride *= 2) {
    if (stride * 32 >= rotation) break;
#pragma unroll
    for (int j = 0; j < kHeadRegisters; ++j) {
      if ((j & stride) != 0 || j + stride >= n) continue;
      const float a = head->v[j];
      const float b = head->v[j + stride];
      head->v[j] = a + b;
      head->v[j + stride] = a - b;
    }
  }
  const float norm = Divide(1.0f, SquareRoot(static_cast<float>(rotation)));
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) head->v[j] *= norm;
}

WITHY_DEVICE float MaxAbs(const Head& head) {
  float max = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) max = Max(max, Abs(head.v[j]));
  return WarpMax(max);
}

WITHY_DEVICE int32_t QuantOf(float v, float inverse) {
  const float x = v * inverse;
  return RoundToInt(x > -127.0f ? x : -127.0f);
}

// head = rms_norm(head) * weight.
WITHY_DEVICE void NormHead(int head_dim, float epsilon, const float* weight, Head* head) {
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) squares = Fma(head->v[j], head->v[j], squares);
  const float mean = Divide(WarpSum(squares), static_cast<float>(head_dim));
  const float factor = Divide(1.0f, SquareRoot(mean + epsilon));
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    const int d = j * 32 + ThreadX() % 32;
    if (d < head_dim) head->v[j] = head->v[j] * factor * LoadConst(weight + d);
  }
}

// RoPE by a row's angles (cpu/kernels.h, RopeAngles). `scratch`: head_dim floats of the warp.
WITHY_DEVICE void Rope(int head_dim, bool interleaved, const float* angles, float* scratch,
                       Head* head) {
  const int lane = ThreadX() % 32;
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    if (j * 32 + lane < head_dim) StoreShared(scratch + j * 32 + lane, head->v[j]);
  }
  SyncWarp();
  const int half = head_dim / 2;
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    const int d = j * 32 + lane;
    if (d >= head_dim) continue;
    const float pair = LoadShared(scratch + (interleaved ? d ^ 1 : d < half ? d + half : d - half));
    head->v[j] = head->v[j] * LoadConst(angles + d) + pair * LoadConst(angles + head_dim + d);
  }
  SyncWarp();
}

WITHY_DEVICE uint8_t* BlockAt(const Context& context, int layers, int layer, int slot,
                              KvFormat* format) {
  const KvBlockName* name = context.blocks + int64_t{slot / kChunkTokens} * layers + layer;
  *format = name->format;
  return context.memory + uint64_t{name->units} * KvBlockName::kUnitBytes;
}

// The same block in the host's memory; null: it is the same.
WITHY_DEVICE uint8_t* HostBlockAt(const Context& context, int layers, int layer, int slot) {
  if (context.host_memory == nullptr) return nullptr;
  const KvBlockName* name = context.host_blocks + int64_t{slot / kChunkTokens} * layers + layer;
  return context.host_memory + uint64_t{name->units} * KvBlockName::kUnitBytes;
}

// A head's part of a block, in both places; `second` may be null.
struct HeadPlaces {
  uint8_t* first = nullptr;
  uint8_t* second = nullptr;
};

template <typename T>
WITHY_DEVICE void StoreBoth(const HeadPlaces& to, int64_t offset, T v) {
  Store(reinterpret_cast<T*>(to.first + offset), v);
  if (to.second != nullptr) Store(reinterpret_cast<T*>(to.second + offset), v);
}

WITHY_DEVICE void WriteKey(const KvPlaces& at, KvFormat format, int head_dim, int slot,
                           const Head& head, const HeadPlaces& to) {
  const int lane = ThreadX() % 32;
  const float max = MaxAbs(head);
  const float inverse = max > 1e-30f ? Divide(127.0f, max) : 0.0f;
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    const int d = j * 32 + lane;
    if (d >= head_dim) continue;
    if (format == KvFormat::kF16) {
      StoreBoth(to, at.k + 2 * (d * kChunkTokens + slot), FloatHalf(head.v[j]));
    } else {
      const int32_t q = QuantOf(head.v[j], inverse);
      StoreBoth(to, at.k + d / 4 * 64 + slot * 4 + d % 4, static_cast<uint8_t>(q + 128));
    }
  }
  if (lane == 0 && format != KvFormat::kF16) {
    StoreBoth(to, at.k_scale + 4 * slot, Divide(max, 127.0f));
  }
}

WITHY_DEVICE void WriteValue(const KvPlaces& at, KvFormat format, int head_dim, int slot,
                             const Head& head, const HeadPlaces& to) {
  const int lane = ThreadX() % 32;
  const float max = MaxAbs(head);
  const float inverse = max > 1e-30f ? Divide(127.0f, max) : 0.0f;
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    const int d = j * 32 + lane;
    if (d >= head_dim) continue;
    if (format == KvFormat::kF16) {
      StoreBoth(to, at.v + 2 * (slot * head_dim + d), FloatHalf(head.v[j]));
    } else {
      const int32_t q = QuantOf(head.v[j], inverse);
      StoreBoth(to, at.v + slot / 4 * head_dim * 4 + d * 4 + slot % 4,
                static_cast<uint8_t>(static_cast<int8_t>(q)));
    }
  }
  if (lane == 0 && format != KvFormat::kF16) {
    StoreBoth(to, at.v_scale + 4 * slot, Divide(max, 127.0f));
  }
}

// Writes a query as attention reads it.
WITHY_DEVICE void WriteQuery(const StoreKvArgs& args, int row, int h, Head* head, float* scratch) {
  const Shape& s = args.shape;
  const int lane = ThreadX() % 32;
  const int64_t at = int64_t{row} * s.heads + h;
  const int kv_head = s.rank_major ? h % s.kv_heads : h / (s.heads / s.kv_heads);
  if (args.to.bias != nullptr) {  // factors of the key bias, of the query before it is rotated
#pragma unroll
    for (int j = 0; j < kHeadRegisters; ++j) {
      if (j * 32 + lane < s.head_dim) StoreShared(scratch + j * 32 + lane, head->v[j]);
    }
    SyncWarp();
    if (lane < LoadConst(args.bias.counts + kv_head)) {
      const BiasPair& pair = args.bias.pairs[kv_head * kMaxBiasPairs + lane];
      const float x = LoadShared(scratch + pair.first) * s.scale;
      const float y = LoadShared(scratch + pair.second) * s.scale;
      float* to = args.to.bias + (at * kMaxBiasPairs + lane) * 2;
      Store(to, x * pair.bias_first + y * pair.bias_second);
      Store(to + 1, y * pair.bias_first - x * pair.bias_second);
    }
    SyncWarp();
  }
  RotateHead(s.head_dim, s.rotation, head);
  const float max = MaxAbs(*head);
  const float inverse = max > 1e-30f ? Divide(127.0f, max) : 0.0f;
  int32_t sum = 0;
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    const int d = j * 32 + lane;
    if (d >= s.head_dim) continue;
    const int32_t q = QuantOf(head->v[j], inverse);
    sum += q;
    Store(args.to.q + at * s.head_dim + d, static_cast<int8_t>(q));
    if (args.to.rotated != nullptr) Store(args.to.rotated + at * s.head_dim + d, head->v[j]);
  }
  sum = WarpSum(sum);
  if (lane == 0) {
    Store(args.to.scale + at, Divide(max, 127.0f) * s.scale);
    Store(args.to.sum + at, sum);
  }
}

// Reads a head of k, v or q, with what is added to it. `part`: 0 Q, 1 K, 2 V.
WITHY_DEVICE void ReadHead(const StoreKvArgs& args, int row, int part, int h, const float* x,
                           int width, const float* bias, Head* head) {
  const LowRankRun* run = RunOf(args.runs, args.run_count, row);
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    const int d = j * 32 + ThreadX() % 32;
    head->v[j] = 0.0f;
    if (d >= args.shape.head_dim) continue;
    const int o = h * args.shape.head_dim + d;
    float v = Load(x + int64_t{row} * width + o);
    if (run != nullptr) {
      const float* a = args.a + int64_t{row} * args.a_stride + run->a_offset[part];
      v = AddLowRank(run->b[part], a, o, v);
    }
    if (bias != nullptr) v += LoadConst(bias + o);
    head->v[j] = v;
  }
}

// Grid [heads of K, V and Q by kHeadWarps, rows].
WITHY_GLOBAL void WITHY_THREADS(kHeadWarps * 32) StoreKvKernel(StoreKvArgs args) {
  LetNextStart();
  WaitForPrior();
  const Shape& s = args.shape;
  const int row = BlockY();
  const int warp = ThreadX() / 32;
  const int job = BlockX() * kHeadWarps + warp;
  float* scratch = reinterpret_cast<float*>(SharedMemory()) + warp * kMaxHeadDim;
  const float* angles = args.angles + int64_t{row} * 2 * s.head_dim;
  if (job >= 2 * s.kv_heads + s.heads) return;
  Head head = {};
  if (job >= 2 * s.kv_heads) {
    const int h = job - 2 * s.kv_heads;
    if (row < args.first_query || row >= args.first_query + args.queries) return;
    if (args.q_extent != nullptr && h * s.head_dim >= LoadConst(args.q_extent + row)) return;
    ReadHead(args, row, 0, h, args.q, s.heads * s.head_dim, args.q_bias, &head);
    if (args.q_norm != nullptr) NormHead(s.head_dim, s.epsilon, args.q_norm, &head);
    Rope(s.head_dim, s.interleaved, angles, scratch, &head);
    WriteQuery(args, row, h, &head, scratch);
    return;
  }
  const bool is_key = job < s.kv_heads;
  const int h = is_key ? job : job - s.kv_heads;
  const bool computed =
      args.kv_extent == nullptr || h * s.head_dim < LoadConst(args.kv_extent + row);
  const int width = s.kv_heads * s.head_dim;
  if (computed && is_key) {
    ReadHead(args, row, 1, h, args.k, width, args.k_bias, &head);
    if (args.k_norm != nullptr) NormHead(s.head_dim, s.epsilon, args.k_norm, &head);
    Rope(s.head_dim, s.interleaved, angles, scratch, &head);
  } else if (computed) {
    ReadHead(args, row, 2, h, args.v, width, args.v_bias, &head);
  }
  RotateHead(s.head_dim, s.rotation, &head);
  const Row& of_row = args.row[row];
  KvFormat format = KvFormat::kQ8;
  const Context& context = args.contexts[of_row.context];
  HeadPlaces to = {.first = BlockAt(context, s.layers, args.layer, of_row.slot, &format),
                   .second = HostBlockAt(context, s.layers, args.layer, of_row.slot)};
  const KvPlaces& at = args.places[static_cast<int>(format)];
  to.first += h * at.head_bytes;
  if (to.second != nullptr) to.second += h * at.head_bytes;
  const int slot = of_row.slot % kChunkTokens;
  if (is_key) {
    WriteKey(at, format, s.head_dim, slot, head, to);
  } else {
    WriteValue(at, format, s.head_dim, slot, head, to);
  }
}

// Copies blocks from the host's memory to the GPU's; grid [copies].
WITHY_GLOBAL void WITHY_THREADS(kThreads) CopyKvKernel(KvCopyArgs args) {
  const KvCopy& copy = args.copies[BlockX()];
  const auto* const from = reinterpret_cast<const Words4*>(copy.from);
  auto* const to = reinterpret_cast<Words4*>(copy.to);
  const int64_t words = copy.bytes / static_cast<int64_t>(sizeof(Words4));
  for (int64_t i = ThreadX(); i < words; i += kThreads) Store(to + i, Load(from + i));
}

// Copies tokens that tree rows see to scratch blocks, both of kQ8; grid [KV heads, copies].
WITHY_GLOBAL void WITHY_THREADS(64) GatherKernel(GatherArgs args) {
  LetNextStart();
  WaitForPrior();
  const Shape& s = args.shape;
  const TailCopy& copy = args.copies[BlockY()];
  if (copy.context < 0) return;
  const KvPlaces& at = args.places[static_cast<int>(KvFormat::kQ8)];
  const int64_t head = int64_t{BlockX()} * at.head_bytes;
  KvFormat format = KvFormat::kQ8;
  const uint8_t* from =
      BlockAt(args.contexts[copy.context], s.layers, args.layer, copy.slot, &format) + head;
  uint8_t* to = args.tail + int64_t{copy.to_block} * args.block_bytes + head;
  const int slot = copy.slot % kChunkTokens;
  for (int d = ThreadX(); d < s.head_dim; d += 64) {
    const int k = d / 4 * 64 + d % 4;
    Store(to + at.k + k + copy.to_slot * 4, Load(from + at.k + k + slot * 4));
    Store(to + at.v + copy.to_slot / 4 * s.head_dim * 4 + d * 4 + copy.to_slot % 4,
          Load(from + at.v + slot / 4 * s.head_dim * 4 + d * 4 + slot % 4));
  }
  if (ThreadX() != 0) return;
  Store(reinterpret_cast<float*>(to + at.k_scale) + copy.to_slot,
        Load(reinterpret_cast<const float*>(from + at.k_scale) + slot));
  Store(reinterpret_cast<float*>(to + at.v_scale) + copy.to_slot,
        Load(reinterpret_cast<const float*>(from + at.v_scale) + slot));
}

}  // namespace withy::engine::WITHY_GPU
