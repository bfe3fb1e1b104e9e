// Kernel spans of passes on the GPU, in the runner: there, in order, inside the pass; and the clock
// that they are told in.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "engine/cuda/gpu/gpu_clock.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/model/testing.h"
#include "engine/session/kernel_spans.h"
#include "gtest/gtest.h"
#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::engine {
namespace {

using on_cpu::GpuOnCpu;

class Collector final : public KernelObserver {
 public:
  explicit Collector(TickClock clock) : KernelObserver(clock) {}
  uint16_t OnPassBegins(int32_t) override { return weight; }
  void OnPassDone(int32_t rows, size_t ops, int64_t ticks, int64_t stamping) override {
    done.push_back({rows, ops, ticks, stamping});
  }
  void OnKernel(const KernelRun& run) override { runs.push_back(run); }
  void OnEmbedded(const PassTag& pass, int64_t started, int64_t ended) override {
    embedded.push_back({pass.number, started, ended});
  }

  struct Done {
    int32_t rows;
    size_t ops;
    int64_t ticks;
    int64_t stamping;
  };
  struct Embedded {
    uint32_t number;
    int64_t started;
    int64_t ended;
  };
  uint16_t weight = 1;
  std::vector<KernelRun> runs;
  std::vector<Embedded> embedded;
  std::vector<Done> done;
};

class StampsTest : public testing::Test {
 protected:
  void Open(TickClock clock) {
    observer_ = std::make_unique<Collector>(clock);
    ModelOptions options;
    options.device = "cuda";
    options.kernel_observer = observer_.get();
    options.open_gpu = [this](int32_t) {
      auto made = std::make_unique<GpuOnCpu>(on_cpu::RunnerOptions{.checks = true, .counts = true});
      gpu_ = made.get();
      return made;
    };
    model_ = OpenTiny(folder_, WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0), options);
    gpu_->runner().watch().ClearCounts();
  }
  uint64_t Stamps() const {
    const auto& counts = gpu_->runner().watch().counts();
    const auto found = counts.find("stamp");
    return found == counts.end() ? 0 : found->second.launches;
  }
  // A pass that pauses once if `pauses`. Returns when it began and ended.
  std::pair<int64_t, int64_t> RunPass(bool pauses = false) {
    const std::vector<Row> rows = PlainRows(SomeTokens(5, model_->info().vocab_size));
    const ScratchKv kv(model_->info(), 16);
    const ContextView view = kv.View();
    std::vector<float> logits(rows.size() * static_cast<size_t>(model_->info().vocab_size));
    const int64_t begun = observer_->clock().Now();
    const auto pass =
        model_->Begin({.rows = rows, .contexts = {&view, 1}, .tag = {42, 7}}, logits.data());
    EXPECT_TRUE(pass.ok()) << pass.status();
    if (pauses) {
      EXPECT_FALSE((*pass)->Run(nullptr, 0.4));
    }
    EXPECT_TRUE((*pass)->Run(nullptr, 1));
    return {begun, observer_->clock().Now()};
  }

  TestFolder folder_;
  std::unique_ptr<Collector> observer_;
  GpuOnCpu* gpu_ = nullptr;
  std::unique_ptr<Model> model_;
};

TEST_F(StampsTest, SpansAreOrderedInsideThePass) {
  for (const TickClock clock : {TickClock(), TickClock::Counter()}) {
    for (const bool pauses : {false, true}) {
      Open(clock);
      const auto [begun, ended] = RunPass(pauses);
      ASSERT_EQ(observer_->done.size(), 1u);
      ASSERT_EQ(observer_->runs.size(), observer_->done[0].ops);
      EXPECT_EQ(Stamps(), observer_->done[0].ops + (pauses ? 2 : 1));
      EXPECT_GT(observer_->done[0].stamping, 0);
      EXPECT_LE(observer_->done[0].ticks, ended - begun);
      int64_t last = begun;
      int64_t sum = 0;
      for (const KernelRun& run : observer_->runs) {
        EXPECT_EQ(run.pass.number, 7u);
        EXPECT_EQ(run.pass.call_id, 42u);
        EXPECT_GE(run.dispatched, begun);
        EXPECT_GE(run.arrived, run.dispatched);
        EXPECT_GE(run.started, run.arrived);
        EXPECT_GE(run.started, last);
        EXPECT_GE(run.ended, run.started);
        last = run.ended;
        sum += run.ended - run.started;
      }
      EXPECT_LE(last, ended);
      EXPECT_GT(sum, 0);
      EXPECT_LE(sum, ended - begun);
      ASSERT_EQ(observer_->embedded.size(), 1u);
      EXPECT_EQ(observer_->embedded[0].number, 7u);
      EXPECT_EQ(observer_->embedded[0].started, observer_->runs[0].started);
      EXPECT_EQ(observer_->embedded[0].ended, observer_->runs[0].ended);
      EXPECT_TRUE(gpu_->runner().watch().findings().empty());
    }
  }
}

// Most of a pass in the runner is kernels: the spans say so.
TEST_F(StampsTest, SpansSayWhereTheTimeGoes) {
  Open(TickClock());
  RunPass();
  int64_t sum = 0;
  for (const KernelRun& run : observer_->runs) sum += run.ended - run.started;
  EXPECT_GT(2 * sum, observer_->done[0].ticks);
}

TEST_F(StampsTest, APassOfWhichNothingIsToldIsOnlyEmbedded) {
  Open(TickClock());
  observer_->weight = 0;
  const auto [begun, ended] = RunPass();
  EXPECT_TRUE(observer_->runs.empty());
  EXPECT_TRUE(observer_->done.empty());
  EXPECT_EQ(Stamps(), 2u);
  ASSERT_EQ(observer_->embedded.size(), 1u);
  EXPECT_GE(observer_->embedded[0].started, begun);
  EXPECT_GE(observer_->embedded[0].ended, observer_->embedded[0].started);
  EXPECT_LE(observer_->embedded[0].ended, ended);
}

TEST_F(StampsTest, APassThatNobodyWatchesHasNoStamp) {
  Open(TickClock());
  observer_->Watch(false);
  RunPass();
  EXPECT_EQ(Stamps(), 0u);
  EXPECT_TRUE(observer_->embedded.empty());
  observer_->Watch(true);
  RunPass();
  EXPECT_EQ(observer_->embedded.size(), 1u);
}

// A pass that is given up tells what it did, and leaves nothing for the next one.
TEST_F(StampsTest, APassThatIsGivenUp) {
  Open(TickClock());
  const std::vector<Row> rows = PlainRows(SomeTokens(5, model_->info().vocab_size));
  const ScratchKv kv(model_->info(), 16);
  const ContextView view = kv.View();
  std::vector<float> logits(rows.size() * static_cast<size_t>(model_->info().vocab_size));
  {
    const auto pass = model_->Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
    ASSERT_TRUE(pass.ok());
    EXPECT_FALSE((*pass)->Run(nullptr, 0.4));
  }
  EXPECT_GT(observer_->runs.size(), 0u);
  EXPECT_TRUE(observer_->done.empty());
  observer_->runs.clear();
  RunPass();
  ASSERT_EQ(observer_->done.size(), 1u);
  EXPECT_EQ(observer_->runs.size(), observer_->done[0].ops);
}

// By the ring that the profiler agent reads, the spans are those of any kernel, with four times.
TEST(GpuSpansTest, GoThroughTheRing) {
  const TestFolder folder;
  const auto recorder =
      *telemetry::Recorder::Open(folder / "rings", "engine", {.ring_capacity = 4096});
  const auto reader = *telemetry::Reader::Open(folder / "rings");
  KernelSpans spans(*recorder);
  ModelOptions options;
  options.device = "cuda-on-cpu";
  options.kernel_observer = &spans;
  const auto model = OpenTiny(folder, WriteTiny(folder, TinyShape(), GgmlType::kQ8_0), options);
  const int32_t layers = model->info().layers;
  spans.set_layers(layers);
  const std::vector<Row> rows = PlainRows(SomeTokens(3, model->info().vocab_size));
  const int64_t begun = SteadyNowNs();
  RunRows(*model, ScratchKv(model->info(), 16), rows);
  const int64_t ended = SteadyNowNs();
  std::map<std::string, std::set<uint64_t>> seen;  // layers, by operation
  int64_t last = begun - 100'000;                  // the counter is converted with an error
  const auto gone = reader->Drain([&](const telemetry::SpanEvent& event) {
    const telemetry::Span& span = event.span;
    seen[std::string(event.name)].insert(span.value);
    if (span.kind != telemetry::SpanKind::kKernel) return;
    EXPECT_LE(span.queued_ns, span.submitted_ns) << event.name;
    EXPECT_LE(span.submitted_ns, span.started_ns) << event.name;
    EXPECT_LE(last, span.started_ns) << event.name;
    EXPECT_LE(span.started_ns, span.ended_ns) << event.name;
    last = span.ended_ns;
  });
  EXPECT_TRUE(gone.empty());
  EXPECT_LE(last, ended + 100'000);
  for (const char* name :
       {"norm", "qkv", "store_kv", "attend", "attention_out", "gate_up", "down"}) {
    EXPECT_EQ(seen[name].size(), static_cast<size_t>(layers)) << name;
  }
  for (const char* name : {"embed", "head"}) {
    EXPECT_EQ(seen[name], std::set<uint64_t>{static_cast<uint64_t>(layers)}) << name;
  }
  EXPECT_EQ(seen.count("embedding"), 1u) << "the phase";
}

TEST(GpuClockTest, StampsAreOfTheHostsTime) {
  for (const TickClock clock : {TickClock(), TickClock::Counter()}) {
    GpuOnCpu gpu;
    cuda::GpuClock of_gpu(gpu, clock);
    ASSERT_TRUE(of_gpu.Open().ok());
    ASSERT_TRUE(of_gpu.Refresh().ok());
    EXPECT_GE(of_gpu.step_ns(), 1);
    EXPECT_GT(of_gpu.ticks_of_stamp(), 0);
    cuda::Buffer stamp(gpu, cuda::MemoryWay::kHost);
    ASSERT_TRUE(stamp.Reserve(sizeof(uint64_t)).ok());
    // The host may be kept from its work between two readings: the tightest of several.
    int64_t off = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < 20; ++i) {
      const int64_t before = clock.Now();
      gpu.kernels().stamp(gpu.queue(), {.to = stamp.as<uint64_t>()});
      const int64_t after = clock.Now();
      const int64_t ticks = of_gpu.Ticks(*stamp.as<uint64_t>());
      off = std::min(off, std::max(before - ticks, ticks - after));
    }
    EXPECT_LT(off, 1'000'000) << "ticks";
  }
}

// Whatever the rates of both clocks and the errors of their readings: a time between readings, or
// within seconds of one, is converted with the error of a reading.
TEST(ClockMapTest, FollowsClocksThatDrift) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto uniform = [&](double from, double to) {
    return std::uniform_real_distribution<double>(from, to)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const double nominal = round % 2 == 0 ? 1 : uniform(0.02, 4);  // ticks in a nanosecond
    const double rate = nominal * (1 + uniform(-50e-6, 50e-6));
    const double offset = uniform(-1e15, 1e15);
    const double error_ns = uniform(0, 10'000);
    cuda::ClockMap map;
    double now_ns = uniform(0, 1e12);
    for (int reading = 0; reading < 30; ++reading) {
      const auto gpu_ns = static_cast<int64_t>(now_ns);
      const double ticks = static_cast<double>(gpu_ns) * rate + offset;
      map.SetNominal(nominal);
      map.Add({gpu_ns, static_cast<int64_t>(ticks + uniform(-error_ns, error_ns) * nominal)});
      const double apart = uniform(2e9, 4e9);
      const auto asked = static_cast<int64_t>(now_ns + uniform(-2e9, apart));
      const double right = static_cast<double>(asked) * rate + offset;
      // Until two readings are known, the drift of the nominal rate counts, too.
      const double drift_ns = reading == 0 ? 50e-6 * 4e9 : 0;
      const double bound = (6 * error_ns + drift_ns + 2'000) * nominal;
      EXPECT_NEAR(static_cast<double>(map.Ticks(asked)), right, bound)
          << "round " << round << ", reading " << reading;
      now_ns += apart;
    }
  }
}

// A card that was reset begins anew: nothing is extrapolated over it.
TEST(ClockMapTest, BeginsAnewWhereTheTimerWentBack) {
  cuda::ClockMap map;
  map.Add({5'000'000'000, 100});
  map.Add({8'000'000'000, 3'000'000'100});
  map.Add({1'000, 4'000'000'000});
  EXPECT_EQ(map.Ticks(2'000), 4'000'001'000);
}

}  // namespace
}  // namespace withy::engine
