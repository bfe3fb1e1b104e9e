// The merge of attention: adds a row's runs in order, rotates back, and writes the inputs of the
// next product. Included by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

// Merges the runs of a head and rotates it back; grid [heads by kHeadWarps, rows].
WITHY_GLOBAL void WITHY_THREADS(kHeadWarps * 32) MergeKernel(AttendArgs args) {
  LetNextStart();
  WaitForPrior();
  const Shape& s = args.shape;
  const int at = BlockY();
  const int row = args.first_row + at;
  const int lane = ThreadX() % 32;
  const int h = BlockX() * kHeadWarps + ThreadX() / 32;
  if (h >= s.heads) return;
  const int planned = args.wanted == nullptr ? row : LoadConst(args.wanted + row);
  const int visible = args.row[planned].position + 1;
  const int runs = (visible + kRunKeys - 1) / kRunKeys;
  const bool computed = args.head_extent == nullptr || h < LoadConst(args.head_extent + row);
  const int stride = s.head_dim + kPartExtra;
  const float* part = args.parts + (int64_t{at} * s.heads + h) * args.runs * stride;
  Head head = {};
  if (computed) {
    float max = -3.0e38f;
    for (int run = 0; run < runs; ++run) max = Max(max, Load(part + run * stride + s.head_dim));
    float sum = 0.0f;
    for (int run = 0; run < runs; ++run) {
      const float* of_run = part + run * stride;
      const float factor = Exp(Load(of_run + s.head_dim) - max);
      sum = Fma(Load(of_run + s.head_dim + 1), factor, sum);
#pragma unroll
      for (int j = 0; j < kHeadRegisters; ++j) {
        const int d = j * 32 + lane;
        if (d < s.head_dim) head.v[j] = Fma(Load(of_run + d), factor, head.v[j]);
      }
    }
    const float inverse = Divide(1.0f, sum);
#pragma unroll
    for (int j = 0; j < kHeadRegisters; ++j) head.v[j] *= inverse;
    if (args.density != nullptr) {
      float* density = args.density + (int64_t{planned} * s.heads + h) * args.density_stride;
      const int chunks = (visible + kChunkTokens - 1) / kChunkTokens;
      for (int c = lane; c < chunks && c < args.density_stride; c += 32) {
        const float* of_run = part + c / kRunGroups * stride + s.head_dim;
        const float factor = Exp(Load(of_run) - max) * inverse;
        Store(density + c, Fma(Load(of_run + 2 + c % kRunGroups), factor, Load(density + c)));
      }
    }
    RotateHead(s.head_dim, s.rotation, &head);
  }
#pragma unroll
  for (int j = 0; j < kHeadRegisters; ++j) {
    if (j * 32 >= s.head_dim) break;
    WriteBlock(args.to, row, h * (s.head_dim / 32) + j, head.v[j], args.quantise, args.keep_floats);
  }
}

}  // namespace withy::engine::WITHY_GPU
