// The merge of attention: adds a row's runs in order, rotates back, and writes the inputs of the
// next product. Included by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

// Numbers of runs that a lane has in flight: more where few warps are there to hide the time of
// loads.
constexpr int MergeLoads(int shares) { return shares == 1 ? 32 : 64; }

// A head's parts, one for each run that its row sees.
struct HeadParts {
  const float* first;
  int stride;
  int runs;
  int head_dim;
  // Of a run: its output, its maximum, its sum, then densities.
  WITHY_DEVICE const float* Run(int run) const { return first + int64_t{run} * stride; }
  WITHY_DEVICE float Max(int run) const { return Load(Run(run) + head_dim); }
};

WITHY_DEVICE float MaxOfRuns(const HeadParts& parts) {
  float max = -3.0e38f;
  for (int run = ThreadX() % 32; run < parts.runs; run += 32) max = Max(max, parts.Max(run));
  return WarpMax(max);
}

// Adds the runs of the dimensions 32 j + lane, j = `share` modulo kShares, in order. Returns the
// sum of probabilities.
template <int kShares>
WITHY_DEVICE float AddRuns(const HeadParts& parts, float max, int share, Head* head) {
  constexpr int kRegisters = kHeadRegisters / kShares;
  constexpr int kAhead =
      MergeLoads(kShares) / kRegisters < 32 ? MergeLoads(kShares) / kRegisters : 32;
  const int lane = ThreadX() % 32;
  float sum = 0.0f;
  for (int base = 0; base < parts.runs; base += 32) {
    const int count = parts.runs - base < 32 ? parts.runs - base : 32;
    float factor_of_lane = 0.0f;
    float sum_of_lane = 0.0f;
    if (lane < count) {
      factor_of_lane = Exp(parts.Max(base + lane) - max);
      sum_of_lane = Load(parts.Run(base + lane) + parts.head_dim + 1);
    }
#pragma unroll 1
    for (int first = 0; first < count; first += kAhead) {
      float v[kAhead][kRegisters];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int n = 0; n < kRegisters; ++n) {
          const int d = (n * kShares + share) * 32 + lane;
          const bool has = first + i < count && d < parts.head_dim;
          v[i][n] = has ? Load(parts.Run(base + first + i) + d) : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= count) break;
        const float factor = Shuffle(factor_of_lane, first + i);
        sum = Fma(Shuffle(sum_of_lane, first + i), factor, sum);
#pragma unroll
        for (int n = 0; n < kRegisters; ++n) {
          // Only this share's registers are set: indices are known when it is compiled.
          head->v[n] = Fma(v[i][n], factor, head->v[n]);
        }
      }
    }
  }
  return sum;
}

WITHY_DEVICE void MergeDensities(const HeadParts& parts, int chunks, float max, float inverse,
                                 int first, int step, float* density) {
  for (int c = first; c < chunks; c += step) {
    const float* of_run = parts.Run(c / kRunGroups) + parts.head_dim;
    const float factor = Exp(Load(of_run) - max) * inverse;
    Store(density + c, Fma(Load(of_run + 2 + c % kRunGroups), factor, Load(density + c)));
  }
}

// Merges the runs of a head and rotates it back. kShares warps share a head; grid [heads by
// kHeadWarps / kShares, rows]. Bits do not depend on kShares.
template <int kShares>
WITHY_GLOBAL void WITHY_BLOCKS(kHeadWarps * 32, kShares == 1 ? 4 : 3) MergeKernel(AttendArgs args) {
  LetNextStart();
  WaitForPrior();
  const Shape& s = args.shape;
  const int at = BlockY();
  const int row = args.first_row + at;
  const int lane = ThreadX() % 32;
  const int warp = ThreadX() / 32;
  const int share = warp % kShares;
  const int h = BlockX() * (kHeadWarps / kShares) + warp / kShares;
  if (h >= s.heads) return;
  const int planned = args.wanted == nullptr ? row : LoadConst(args.wanted + row);
  const int visible = args.row[planned].position + 1;
  const bool computed = args.head_extent == nullptr || h < LoadConst(args.head_extent + row);
  Head head = {};
  if (computed) {
    HeadParts parts;
    parts.stride = s.head_dim + kPartExtra;
    parts.first = args.parts + (int64_t{at} * s.heads + h) * args.runs * parts.stride;
    parts.runs = (visible + kRunKeys - 1) / kRunKeys;
    parts.head_dim = s.head_dim;
    const float max = MaxOfRuns(parts);
    const float inverse = Divide(1.0f, AddRuns<kShares>(parts, max, share, &head));
#pragma unroll
    for (int j = 0; j < kHeadRegisters; ++j) head.v[j] *= inverse;
    if (args.density != nullptr) {
      const int chunks = (visible + kChunkTokens - 1) / kChunkTokens;
      MergeDensities(parts, chunks < args.density_stride ? chunks : args.density_stride, max,
                     inverse, share * 32 + lane, kShares * 32,
                     args.density + (int64_t{planned} * s.heads + h) * args.density_stride);
    }
    if constexpr (kShares > 1) {  // every warp rotates the whole head
      auto* shared = reinterpret_cast<float*>(SharedMemory()) + warp / kShares * kMaxHeadDim;
#pragma unroll
      for (int n = 0; n < kHeadRegisters / kShares; ++n) {
        StoreShared(shared + (n * kShares + share) * 32 + lane, head.v[n]);
      }
      SyncBlock();
#pragma unroll
      for (int j = 0; j < kHeadRegisters; ++j) head.v[j] = LoadShared(shared + j * 32 + lane);
    }
    RotateHead(s.head_dim, s.rotation, &head);
  }
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    if (j * 32 >= s.head_dim) break;
    if (j % kShares != share) continue;
    WriteBlock(args.to, row, h * (s.head_dim / 32) + j, head.v[j], args.quantise, args.keep_floats);
  }
}

}  // namespace withy::engine::WITHY_GPU
