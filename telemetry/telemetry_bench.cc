// Cost of recording for the recording thread. docs/formats-rings.md has the figures, measured on a
// 2-core Zen 5 virtual machine whose clock is read through the vDSO.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::telemetry {
namespace {

// A recorder on /dev/shm, and a reader that keeps the rings from filling.
class Setup {
 public:
  Setup() {
    if (mkdtemp(directory_.data()) == nullptr) abort();
    recorder_ = *Recorder::Open(directory_, "bench", {.ring_capacity = 65536});
    reader_ = *Reader::Open(directory_);
  }
  ~Setup() {
    recorder_.reset();
    reader_.reset();
    std::filesystem::remove_all(directory_);
  }
  Recorder& recorder() { return *recorder_; }
  void Drain() {
    reader_->Drain([](const SpanEvent&) {});
  }

 private:
  std::string directory_ = "/dev/shm/withy_bench_XXXXXX";
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Reader> reader_;
};

template <typename Body>
void RunDrained(benchmark::State& state, Body body) {
  Setup setup;
  int64_t n = 0;
  for (auto _ : state) {
    body(setup.recorder());
    if (++n % 32768 == 0) {
      state.PauseTiming();
      setup.Drain();
      state.ResumeTiming();
    }
  }
  state.counters["dropped"] = static_cast<double>(setup.recorder().dropped());
}

void BM_ScopedSpan(benchmark::State& state) {
  RunDrained(state, [](Recorder& recorder) {
    const ScopedSpan span(recorder, Phase::kDecode, 1, 2);
    benchmark::ClobberMemory();
  });
}
BENCHMARK(BM_ScopedSpan);

// One read of the clock for each span.
void BM_SpanChain(benchmark::State& state) {
  Setup setup;
  SpanChain chain(setup.recorder(), 1);
  int64_t n = 0;
  for (auto _ : state) {
    chain.End(Phase::kDecode, 2);
    if (++n % 32768 == 0) {
      state.PauseTiming();
      setup.Drain();
      state.ResumeTiming();
    }
  }
  state.counters["dropped"] = static_cast<double>(setup.recorder().dropped());
}
BENCHMARK(BM_SpanChain);

void BM_ScopedSpanBySteadyClock(benchmark::State& state) {
  RunDrained(state, [](Recorder& recorder) {
    const ScopedSpan span(recorder, Phase::kDecode, 1, 2, TickClock());
    benchmark::ClobberMemory();
  });
}
BENCHMARK(BM_ScopedSpanBySteadyClock);

void BM_Record(benchmark::State& state) {
  RunDrained(state,
             [](Recorder& recorder) { RecordDuration(recorder, Phase::kDecode, 1, 100, 200); });
}
BENCHMARK(BM_Record);

void BM_RecordIntoAFullRing(benchmark::State& state) {
  Setup setup;
  for (auto _ : state) RecordDuration(setup.recorder(), Phase::kDecode, 1, 100, 200);
}
BENCHMARK(BM_RecordIntoAFullRing);

void BM_ScopedSpanDisabled(benchmark::State& state) {
  auto recorder = Recorder::Disabled();
  for (auto _ : state) {
    const ScopedSpan span(*recorder, Phase::kDecode, 1, 2);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_ScopedSpanDisabled);

void BM_CounterAdd(benchmark::State& state) {
  Setup setup;
  Counter& counter = setup.recorder().counter({.name = "withy_bench_total"});
  for (auto _ : state) counter.Add();
}
BENCHMARK(BM_CounterAdd);

void BM_ClockRead(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(SteadyNowNs());
}
BENCHMARK(BM_ClockRead);

void BM_CounterRead(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(ReadCounter());
}
BENCHMARK(BM_CounterRead);

void BM_Drain1000(benchmark::State& state) {
  Setup setup;
  for (auto _ : state) {
    for (int i = 0; i < 1000; ++i) RecordDuration(setup.recorder(), Phase::kDecode, 1, 100, 200);
    setup.Drain();
  }
}
BENCHMARK(BM_Drain1000);

void BM_DrainIdle(benchmark::State& state) {
  Setup setup;
  for (auto _ : state) setup.Drain();
}
BENCHMARK(BM_DrainIdle);

}  // namespace
}  // namespace withy::telemetry

BENCHMARK_MAIN();
