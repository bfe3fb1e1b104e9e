#include "engine/session/kernel_spans.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/model/testing.h"
#include "gtest/gtest.h"
#include "telemetry/reader.h"

namespace withy::engine {
namespace {

using telemetry::Span;
using telemetry::SpanKind;

struct Taken {
  std::string name;
  Span span;
};

class KernelSpansTest : public ::testing::Test {
 protected:
  KernelSpansTest() {
    recorder_ = *telemetry::Recorder::Open(folder_ / "rings", "engine", {.ring_capacity = 4096});
    reader_ = *telemetry::Reader::Open(folder_ / "rings");
    spans_ = std::make_unique<KernelSpans>(*recorder_);
  }

  // Runs some rows of a prompt as pass `number`, and returns the spans of it. A thread tells of its
  // last operation when it rests; the model's end makes sure of that.
  std::vector<Taken> RunPass(int threads, int32_t rows, uint32_t number, bool watch = true) {
    spans_->Watch(watch);
    std::vector<int32_t> tokens;
    {
      ModelOptions options;
      options.threads = threads;
      options.kernel_observer = spans_.get();
      const std::string path = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
      auto model = OpenTiny(folder_, path, options);
      layers_ = model->info().layers;
      spans_->set_layers(layers_);
      const ScratchKv kv(model->info(), 64);
      tokens = SomeTokens(rows, model->info().vocab_size);
      const std::vector<Row> batch = PlainRows(tokens);
      std::vector<float> logits(batch.size() * static_cast<size_t>(model->info().vocab_size));
      const ContextView view = kv.View();
      EXPECT_TRUE(
          model
              ->Forward({.rows = batch, .contexts = {&view, 1}, .tag = {42, number}}, logits.data())
              .ok());
    }
    std::vector<Taken> taken;
    EXPECT_TRUE(reader_
                    ->Drain([&](const telemetry::SpanEvent& event) {
                      taken.push_back({std::string(event.name), event.span});
                    })
                    .empty());
    return taken;
  }

  TestFolder folder_;
  std::unique_ptr<telemetry::Recorder> recorder_;
  std::unique_ptr<telemetry::Reader> reader_;
  std::unique_ptr<KernelSpans> spans_;
  int32_t layers_ = 0;
};

TEST_F(KernelSpansTest, EveryOperationOfEveryLayerIsRecordedWithItsThreads) {
  for (const int threads : {1, 2, 3}) {
    for (const int32_t rows : {1, 40}) {
      const std::vector<Taken> taken = RunPass(threads, rows, 7);
      std::map<std::string, std::set<uint64_t>> layers;  // by operation
      std::map<uint32_t, int64_t> last_end;              // by thread
      int embeddings = 0;
      for (const auto& [name, span] : taken) {
        EXPECT_EQ(span.call_id, 42u);
        EXPECT_EQ(span.sequence, 7u);
        if (span.kind == SpanKind::kPhase) {
          EXPECT_EQ(name, "embedding");
          ++embeddings;
          continue;
        }
        ASSERT_EQ(span.kind, SpanKind::kKernel);
        layers[name].insert(span.value);
        EXPECT_LE(span.queued_ns, span.started_ns) << name;
        EXPECT_LE(span.submitted_ns, span.started_ns) << name;
        EXPECT_LE(span.started_ns, span.ended_ns) << name;
        // A thread does one thing after the other, and arrives where it has ended.
        EXPECT_GE(span.submitted_ns, last_end[span.thread]) << name;
        last_end[span.thread] = span.ended_ns;
      }
      EXPECT_EQ(embeddings, 1) << "whatever the number of threads";
      EXPECT_LE(last_end.size(), static_cast<size_t>(threads));
      for (const char* name :
           {"norm", "qkv", "store_kv", "attend", "attention_out", "gate_up", "down"}) {
        EXPECT_EQ(layers[name].size(), static_cast<size_t>(layers_)) << name;
      }
      for (const char* name : {"embed", "head"}) {
        EXPECT_EQ(layers[name], std::set<uint64_t>{static_cast<uint64_t>(layers_)}) << name;
      }
    }
  }
}

// On one thread there is nobody to wait for: each operation is reached where the one before ended.
TEST_F(KernelSpansTest, OnOneThreadOperationsFollowEachOther) {
  const std::vector<Taken> taken = RunPass(1, 40, 1);
  int64_t last_end = 0;
  for (const auto& [name, span] : taken) {
    if (span.kind != SpanKind::kKernel) continue;
    if (last_end != 0) {
      EXPECT_EQ(span.submitted_ns, last_end) << name;
    }
    last_end = span.ended_ns;
  }
}

TEST_F(KernelSpansTest, NothingIsRecordedOfPassesThatAreNotWatched) {
  EXPECT_TRUE(RunPass(2, 3, 1, /*watch=*/false).empty());
  EXPECT_FALSE(RunPass(2, 3, 2).empty());
}

// The estimate of what all kernels take, from those of the passes that are recorded.
TEST_F(KernelSpansTest, PassesThatAreRecordedStandForTheOthers) {
  const std::string path = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  ModelOptions options;
  options.threads = 1;
  options.kernel_observer = spans_.get();
  auto model = OpenTiny(folder_, path, options);
  spans_->set_layers(model->info().layers);
  spans_->set_share(0.001);
  const ScratchKv kv(model->info(), 64);
  const ContextView view = kv.View();
  const std::vector<int32_t> tokens = SomeTokens(1, model->info().vocab_size);
  const std::vector<Row> batch = PlainRows(tokens);
  std::vector<float> logits(static_cast<size_t>(model->info().vocab_size));
  constexpr uint32_t kPasses = 4000;
  double stood_for = 0;
  uint32_t recorded = 0, embeddings = 0;
  for (uint32_t pass = 0; pass < kPasses; ++pass) {
    ASSERT_TRUE(
        model->Forward({.rows = batch, .contexts = {&view, 1}, .tag = {42, pass}}, logits.data())
            .ok());
    reader_->Drain([&](const telemetry::SpanEvent& event) {
      if (event.name == "embedding") ++embeddings;
      if (event.name != "head") return;
      ++recorded;
      stood_for += event.span.weight;
    });
  }
  EXPECT_EQ(embeddings, kPasses) << "a phase is always recorded";
  EXPECT_LT(recorded, kPasses / 2) << "a tiny model's passes are short";
  EXPECT_GT(recorded, 0u);
  EXPECT_NEAR(stood_for, kPasses, PassSampler::kMostPasses);
}

TEST_F(KernelSpansTest, KernelsHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kOpKinds; ++kind) names.insert(OpName(static_cast<OpKind>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kOpKinds));
}

}  // namespace
}  // namespace withy::engine
