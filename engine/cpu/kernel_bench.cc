// Measures the kernels alone, as fractions of what the machine can do: products in the shapes of a
// 1.1 B model over numbers of rows, attention, and the encoder of KV. Usage: kernel_bench [--target
// NAME]
// [--threads N] [--quick]. Reports the best of many runs, because other processes only make them
// slower.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "engine/cpu/ceilings.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/kv/encode.h"

namespace withy::engine {
namespace {

struct Options {
  Target target = BestTarget();
  int threads = 1;
  double seconds = 0.25;  // per measurement
  std::string only;       // the part to run; empty: all
};

struct Ceilings {
  double ops;
  double bytes;
};

template <typename F>
double BestSeconds(double budget, F&& run) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  const auto until = Clock::now() + std::chrono::duration<double>(budget);
  for (int i = 0; i < 3 || Clock::now() < until; ++i) {
    const auto start = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

std::vector<float> Noise(size_t n) {
  std::mt19937 rng(1);
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(rng() % 2001) / 1000.0f - 1.0f;
  return x;
}

// Enough copies of one matrix that they do not fit the caches, as in decoding.
struct Weights {
  PackedMatrix shape;
  size_t stride;
  int copies;
  AlignedArray<std::byte> bytes;
  PackedMatrix Copy(int i) const {
    PackedMatrix m = shape;
    m.data = bytes.data() + static_cast<size_t>(i % copies) * stride;
    return m;
  }
};

Weights MakeWeights(WeightType type, int n_out, int n_in, int panel, int copies = 0) {
  Weights w{{type, n_out, n_in, panel, nullptr}, 0, 0, {}};
  w.stride = PackedBytes(w.shape);
  w.copies = copies > 0 ? copies : std::max(1, static_cast<int>((size_t{600} << 20) / w.stride));
  w.bytes.Resize(w.stride * static_cast<size_t>(w.copies));
  std::mt19937_64 rng(1);
  for (size_t i = 0; i + 8 <= w.stride; i += 8) {
    const uint64_t value = rng() & 0x2fff2fff2fff2fffu;  // finite halves where read as scales
    std::memcpy(w.bytes.data() + i, &value, 8);
  }
  for (int c = 1; c < w.copies; ++c) {
    std::memcpy(w.bytes.data() + static_cast<size_t>(c) * w.stride, w.bytes.data(), w.stride);
  }
  return w;
}

void BenchMatMul(const Options& options, const Ceilings& top, ThreadPool& pool) {
  const Kernels& kernels = *KernelsFor(options.target);
  const struct {
    int n_out, n_in, panel;
  } shapes[] = {{5632, 2048, 2048}, {2048, 2048, 2048}, {2048, 5632, 256}};
  std::printf("%-4s %-10s %5s %9s %9s %8s %8s %9s\n", "type", "out x in", "rows", "us", "GOPS",
              "of peak", "GB/s", "of memory");
  for (const WeightType type :
       {WeightType::kQ8, WeightType::kQ4, WeightType::kQ4M, WeightType::kFp4, WeightType::kNl4}) {
    if (!options.only.empty() && options.only != WeightTypeName(type)) continue;
    for (const auto& s : shapes) {
      const Weights w = MakeWeights(type, s.n_out, s.n_in, s.panel);
      for (const int rows : {1, 2, 4, 8, 16, 128, 512}) {
        const std::vector<float> x = Noise(static_cast<size_t>(rows) * static_cast<size_t>(s.n_in));
        Activations in;
        PrepareRows(pool, kernels, x.data(), s.n_in, rows, s.n_in, kActQ8, &in);
        std::vector<float> y(static_cast<size_t>(rows) * static_cast<size_t>(s.n_out));
        int copy = 0;
        // With few rows, passes over all copies, so that products do not read from the cache.
        const int passes = rows <= 16 ? w.copies : 1;
        const double seconds =
            BestSeconds(options.seconds,
                        [&] {
                          for (int i = 0; i < passes; ++i) {
                            const MatMulArgs args{w.Copy(copy++), &in, 0, rows, y.data(), s.n_out};
                            MatMuls(pool, kernels, {&args, 1});
                          }
                        }) /
            passes;
        const double ops = 2.0 * rows * s.n_out * s.n_in / seconds;
        const double bytes = static_cast<double>(w.stride) / seconds;
        char shape[32];
        std::snprintf(shape, sizeof shape, "%dx%d", s.n_out, s.n_in);
        std::printf("%-4s %-10s %5d %9.1f %9.1f %8.3f %8.2f %9.3f\n", WeightTypeName(type), shape,
                    rows, seconds * 1e6, ops / 1e9, ops / top.ops, bytes / 1e9, bytes / top.bytes);
      }
    }
  }
}

void BenchAttention(const Options& options, const Ceilings& top, ThreadPool& pool) {
  const Kernels& kernels = *KernelsFor(options.target);
  const KvGeometry g{1, 4, 64};
  const int q_heads = 32;
  const int tokens = 2048;
  AlignedArray<std::byte> bytes(g.BlockBytes() * (tokens / 16));
  std::vector<KvBlockName> blocks;
  const std::vector<float> kv = Noise(256 + tokens);
  for (int p = 0; p < tokens; ++p) {
    const size_t offset = static_cast<size_t>(p / 16) * g.BlockBytes();
    std::byte* block = bytes.data() + offset;
    if (p % 16 == 0) blocks.push_back(KvBlockName::AtOffset(offset));
    kernels.write_kv(g, kv.data() + p, kv.data() + p, KvFormat::kQ8, block, p % 16);
  }
  std::printf("attention, 32 query heads on 4 KV heads of 64, last row at depth\n%6s %6s %9s %9s\n",
              "rows", "depth", "us", "of peak");
  for (const int rows : {1, 4, 64, 512}) {
    for (const int depth : {512, 2048}) {
      const size_t width = static_cast<size_t>(q_heads * g.head_dim);
      const std::vector<float> q = Noise(static_cast<size_t>(rows) * width);
      std::vector<float> out(q.size());
      std::vector<AttentionRow> row;
      double keys = 0;
      for (int r = 0; r < rows; ++r) {
        row.push_back({bytes.data(), blocks.data(), 1, depth - rows + 1 + r});
        keys += depth - rows + 1 + r;
      }
      AttentionArgs args;
      args.geometry = g;
      args.q_heads = q_heads;
      args.scale = 0.125f;
      args.rows = rows;
      args.row = row.data();
      args.q = q.data();
      args.out = out.data();
      args.q_stride = args.out_stride = static_cast<ptrdiff_t>(width);
      const double seconds = BestSeconds(options.seconds, [&] { Attend(pool, kernels, args); });
      const double ops = keys * 4.0 * static_cast<double>(width) / seconds;
      std::printf("%6d %6d %9.1f %9.3f\n", rows, depth, seconds * 1e6, ops / top.ops);
    }
  }
}

// KV of many layers in one format, so that attention reads it from memory.
class FormatKv {
 public:
  static constexpr int kLayers = 64;
  static constexpr int kDepth = 2048;

  FormatKv(const KvGeometry& g, const Kernels& kernels, KvFormat format)
      : format_(format), bytes_(g.BlockBytes(format) * (kDepth / 16) * kLayers) {
    const std::vector<float> noise = Noise(256 + 16 * kDepth);
    AlignedArray<std::byte> q8(g.BlockBytes());
    for (size_t b = 0; b < size_t{kDepth / 16} * kLayers; ++b) {
      const size_t offset = b * g.BlockBytes(format);
      std::byte* out = bytes_.data() + offset;
      const bool written = format == KvFormat::kQ8 || format == KvFormat::kF16;
      for (int slot = 0; slot < 16; ++slot) {
        const float* token = noise.data() + (b * 16 + static_cast<size_t>(slot)) % (16 * kDepth);
        kernels.write_kv(g, token, token, written ? format : KvFormat::kQ8,
                         written ? out : q8.data(), slot);
      }
      if (!written) EncodeBlock(g, q8.data(), KvFormat::kQ8, format, out);
      blocks_.push_back(KvBlockName::AtOffset(offset, format));
    }
  }
  KvFormat format() const { return format_; }
  AttentionRow Row(int layer, int visible) const {
    return {bytes_.data(), blocks_.data() + layer, kLayers, visible};
  }

 private:
  KvFormat format_;
  AlignedArray<std::byte> bytes_;
  std::vector<KvBlockName> blocks_;
};

// Attention by format. Formats take turns, so that all of them see the same machine.
void BenchFormats(const Options& options, ThreadPool& pool) {
  const Kernels& kernels = *KernelsFor(options.target);
  const KvGeometry g{1, 4, 64};
  const int q_heads = 32;
  const size_t width = static_cast<size_t>(q_heads * g.head_dim);
  std::vector<FormatKv> kv;
  for (const KvFormat format : {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2}) {
    kv.emplace_back(g, kernels, format);
  }
  std::printf("attention by format, 32 query heads on 4 KV heads of 64, depth %d, KV in memory\n",
              FormatKv::kDepth);
  std::printf("%6s %-6s %10s %9s %9s\n", "rows", "format", "us", "of q8", "GB/s");
  for (const int rows : {1, 16, 256}) {
    const std::vector<float> q = Noise(static_cast<size_t>(rows) * width);
    std::vector<float> out(q.size());
    std::vector<double> best(kv.size(), 1e9);
    for (int round = 0; round < 12; ++round) {
      for (size_t f = 0; f < kv.size(); ++f) {
        const int layers = rows == 256 ? 2 : FormatKv::kLayers;
        const double seconds = BestSeconds(options.seconds / 12, [&] {
          for (int layer = 0; layer < layers; ++layer) {
            std::vector<AttentionRow> row;
            for (int r = 0; r < rows; ++r) {
              row.push_back(kv[f].Row(layer, FormatKv::kDepth - rows + 1 + r));
            }
            AttentionArgs args;
            args.geometry = g;
            args.q_heads = q_heads;
            args.scale = 0.125f;
            args.rows = rows;
            args.row = row.data();
            args.q = q.data();
            args.out = out.data();
            args.q_stride = args.out_stride = static_cast<ptrdiff_t>(width);
            Attend(pool, kernels, args);
          }
        });
        best[f] = std::min(best[f], seconds / layers);
      }
    }
    for (size_t f = 0; f < kv.size(); ++f) {
      const auto bytes =
          static_cast<double>(g.BlockBytes(kv[f].format())) * (FormatKv::kDepth / 16.0);
      std::printf("%6d %-6s %10.1f %9.3f %9.2f\n", rows, KvFormatName(kv[f].format()),
                  best[f] * 1e6, best[f] / best[0], bytes / best[f] / 1e9);
    }
  }
}

// Encoding of 8-bit blocks on one core.
void BenchEncode(const Options& options) {
  const Kernels& kernels = *KernelsFor(options.target);
  std::printf("encoding 8-bit KV on one core\n%9s %-6s %9s\n", "head_dim", "format", "GB/s");
  for (const int head_dim : {64, 128}) {
    const KvGeometry g{1, 4, head_dim};
    AlignedArray<std::byte> in(g.BlockBytes());
    AlignedArray<std::byte> out(g.BlockBytes());
    for (int slot = 0; slot < 16; ++slot) {
      const std::vector<float> token = Noise(static_cast<size_t>(4 * head_dim + slot));
      kernels.write_kv(g, token.data() + slot, token.data() + slot, KvFormat::kQ8, in.data(), slot);
    }
    for (const KvFormat format : {KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2}) {
      const double seconds = BestSeconds(
          options.seconds, [&] { EncodeBlock(g, in.data(), KvFormat::kQ8, format, out.data()); });
      std::printf("%9d %-6s %9.2f\n", head_dim, KvFormatName(format),
                  static_cast<double>(g.BlockBytes()) / seconds / 1e9);
    }
  }
}

// The kernels of one forward pass of a 1.1 B model, 4-bit or 8-bit, over `rows` rows of short
// contexts.
class Forward {
 public:
  Forward(const Kernels& kernels, WeightType type, int rows, int depth)
      : kernels_(kernels),
        qkv_(MakeWeights(type, 2560, 2048, 2048, kLayers)),
        out_(MakeWeights(type, 2048, 2048, 256, kLayers)),
        gate_(MakeWeights(type, 5632, 2048, 2048, kLayers)),
        up_(MakeWeights(type, 5632, 2048, 2048, kLayers)),
        down_(MakeWeights(type, 2048, 5632, 256, kLayers)),
        rows_(rows),
        x_(Noise(static_cast<size_t>(rows) * 2048)),
        norm_(2048, 1.0f),
        y_(static_cast<size_t>(rows) * 2560),
        gate_y_(static_cast<size_t>(rows) * 5632),
        up_y_(static_cast<size_t>(rows) * 5632),
        kv_(geometry_.BlockBytes() * static_cast<size_t>((depth / 16 + 1) * kLayers)) {
    for (int i = 0; i < (depth / 16 + 1) * kLayers; ++i) {
      blocks_.push_back(KvBlockName::AtOffset(static_cast<size_t>(i) * geometry_.BlockBytes()));
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int r = 0; r < rows; ++r) {
        row_.push_back({kv_.data(), blocks_.data() + layer, kLayers, depth});
      }
    }
  }

  double bytes() const {
    return static_cast<double>(kLayers) *
           static_cast<double>(qkv_.stride + out_.stride + 2 * gate_.stride + down_.stride);
  }

  void Run(ThreadPool& pool) {
    StepList& steps = pool.list();
    in_.Reset(rows_, 2048, kActQ8);
    h_.Reset(rows_, 5632, kActQ8);
    AttentionArgs args;
    args.geometry = geometry_;
    args.q_heads = 32;
    args.scale = 0.125f;
    args.rows = rows_;
    args.q = y_.data();
    args.q_stride = 2560;
    args.out = gate_y_.data();
    args.out_stride = 2048;
    for (int layer = 0; layer < kLayers; ++layer) {
      AddNormAndPrepareRows(steps, kernels_, x_.data(), 2048, rows_, {norm_.data(), 1e-5f}, &in_);
      const MatMulArgs qkv{qkv_.Copy(layer), &in_, 0, rows_, y_.data(), 2560};
      AddMatMuls(steps, kernels_, {&qkv, 1});
      args.row = row_.data() + layer * rows_;
      AddAttend(steps, kernels_, args);
      AddPrepareRows(steps, kernels_, gate_y_.data(), 2048, rows_, &in_);
      MatMulArgs product{out_.Copy(layer), &in_, 0, rows_, x_.data(), 2048, true};
      AddMatMuls(steps, kernels_, {&product, 1});
      AddNormAndPrepareRows(steps, kernels_, x_.data(), 2048, rows_, {norm_.data(), 1e-5f}, &in_);
      AddGateUp(steps, kernels_, {gate_.Copy(layer), &in_, 0, rows_, gate_y_.data(), 5632},
                {up_.Copy(layer), &in_, 0, rows_, up_y_.data(), 5632}, &h_);
      product = {down_.Copy(layer), &h_, 0, rows_, x_.data(), 2048, true};
      AddMatMuls(steps, kernels_, {&product, 1});
      steps.Add(1, 1, [this](int, int) {  // keeps values small despite random weights
        for (float& v : x_) v = v > 1.0f || v < -1.0f ? 0.5f : v;
      });
    }
    pool.Run(steps);
  }

 private:
  static constexpr int kLayers = 22;
  const Kernels& kernels_;
  const KvGeometry geometry_{1, 4, 64};
  Weights qkv_, out_, gate_, up_, down_;
  int rows_;
  std::vector<float> x_, norm_, y_, gate_y_, up_y_;
  AlignedArray<std::byte> kv_;
  std::vector<KvBlockName> blocks_;
  std::vector<AttentionRow> row_;
  Activations in_, h_;
};

void BenchDecode(const Options& options, const Ceilings& top, ThreadPool& pool) {
  const Kernels& kernels = *KernelsFor(options.target);
  std::printf("layers of a 1.1 B model\n%-4s %5s %6s %9s %9s %9s\n", "type", "rows", "depth", "ms",
              "tok/s", "of memory");
  for (const WeightType type : {WeightType::kQ8, WeightType::kQ4}) {
    for (const int rows : {1, 2, 4, 8, 16}) {
      for (const int depth : {16, 2048}) {
        if (depth > 16 && rows > 1) continue;
        Forward forward(kernels, type, rows, depth);
        const double seconds = BestSeconds(options.seconds * 4, [&] { forward.Run(pool); });
        std::printf("%-4s %5d %6d %9.2f %9.1f %9.3f\n", WeightTypeName(type), rows, depth,
                    seconds * 1e3, rows / seconds, forward.bytes() / seconds / top.bytes);
      }
    }
  }
}

// Measures decoding alone and beside one process that computes all the time.
void BenchHog(const Options& options, ThreadPool& pool) {
  Forward forward(*KernelsFor(options.target), WeightType::kQ4, 1, 16);
  const auto tokens_per_second = [&] {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    int tokens = 0;
    double seconds = 0;
    for (; seconds < 3.0; ++tokens) {
      forward.Run(pool);
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return tokens / seconds;
  };
  const double alone = tokens_per_second();
  const pid_t hog = fork();
  if (hog == 0) {
    for (std::atomic<unsigned> i{0};;) i.fetch_add(1, std::memory_order_relaxed);
  }
  const double beside = tokens_per_second();
  kill(hog, SIGKILL);
  waitpid(hog, nullptr, 0);
  std::printf("decode tok/s alone %.1f, beside a busy process %.1f: %.2f\n", alone, beside,
              beside / alone);
}

void BenchPool(ThreadPool& pool) {
  const double seconds = BestSeconds(0.2, [&] {
    for (int i = 0; i < 1000; ++i) pool.ParallelFor(pool.threads(), 1, [](int, int) {});
  });
  std::printf("parallel-for of nothing: %.2f us\n", seconds * 1e3);
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      options.seconds = 0.05;
    } else if (flag == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else if (flag == "--target" && i + 1 < argc && ParseTarget(argv[i + 1], &options.target)) {
      ++i;
    } else if (flag == "--threads" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      options.threads = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: kernel_bench [--target NAME] [--threads N] [--quick] [--only PART]\n");
      return 2;
    }
  }
  ThreadPool pool(options.threads);
  const Kernels& kernels = *KernelsFor(options.target);
  const Ceilings top{MeasureInt8Peak(pool, kernels), MeasureReadBandwidth(pool, kernels)};
  std::printf("%s, %d threads: int8 peak %.1f GOPS, memory read %.1f GB/s\n", kernels.name,
              options.threads, top.ops / 1e9, top.bytes / 1e9);
  if (options.only.empty()) BenchPool(pool);
  if (options.only.empty() || options.only == "attention") BenchAttention(options, top, pool);
  if (options.only.empty() || options.only == "formats") BenchFormats(options, pool);
  if (options.only.empty() || options.only == "encode") BenchEncode(options);
  if (options.only.empty() || options.only == "decode") BenchDecode(options, top, pool);
  if (options.only == "hog") BenchHog(options, pool);
  BenchMatMul(options, top, pool);
  return 0;
}

}  // namespace
}  // namespace withy::engine

int main(int argc, char** argv) { return withy::engine::Main(argc, argv); }
