// The service with both models on a GPU: the five processes, whose workers have the kernels for
// GPUs in the runner of engine/cuda/on_cpu/.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <set>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/e2e/board.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::e2e {
namespace {

using ::testing::HasSubstr;

constexpr char kPrompt[] = "Good morning to you";

// Starts the workers with the device for tests.
void StartOnGpu(Board& board) {
  board.Use("model_worker", "withy-model-worker-cuda-on-cpu");
  board.Use("draft_worker", "withy-draft-worker-cuda-on-cpu");
  board.StartAll();
  ASSERT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
}

// Two turns of a conversation on `device`.
std::string Converse(const std::string& device, std::string* log) {
  Board board({"model.device=" + device, "draft.device=" + device});
  if (device == "cpu") {
    board.StartAll();
    EXPECT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
  } else {
    StartOnGpu(board);
  }
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("test.app");
  const std::string context = CreateContext(*stub, token, "You are brief.");
  std::string text;
  for (int turn = 0; turn < 2; ++turn) {
    const Answer answer = Generate(*stub, token, UserRequest(context, kPrompt, 12));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    text += answer.text + "\n";
  }
  *log = board.Log("model_worker");
  return text;
}

TEST(CudaServiceTest, AnswersOfTheGpuAreThoseOfTheCpu) {
  std::string log;
  const std::string on_cpu = Converse("cpu", &log);
  const std::string on_gpu = Converse("cuda-on-cpu", &log);
  EXPECT_THAT(log, HasSubstr("the model is computed on the runner of CUDA kernels"));
  EXPECT_THAT(log, HasSubstr("prompts are computed exactly"));
  EXPECT_EQ(on_gpu, on_cpu);
}

// Kernels of the GPU are where the CPU's are: each in the phase that computed it, its times in
// order.
TEST(CudaServiceTest, SpansOfTheGpuAreInTheirPhases) {
  Board board({"model.device=cuda-on-cpu", "draft.device=cuda-on-cpu",
               "profiler.kernel_spans_per_mille=1000"});
  StartOnGpu(board);
  const auto stub = board.NewStub();
  const std::string token = board.BindApp("test.app");
  const std::string context = CreateContext(*stub, token, "You are brief.");
  ASSERT_TRUE(Generate(*stub, token, UserRequest(context, kPrompt, 4)).status.ok());
  const auto profiler =
      v1::Profiler::NewStub(rpc::Connect("unix:" + board.dir() + "/run/profiler_agent.sock"));
  // The agent reads the rings now and then.
  const absl::Time end = absl::Now() + absl::Seconds(30);
  std::set<std::string> kernels;
  while (!kernels.contains("qkv") || !kernels.contains("head")) {
    ASSERT_LT(absl::Now(), end) << "no kernels of the GPU in a phase";
    kernels.clear();
    grpc::ClientContext call;
    v1::GetSpansRequest request;
    request.set_limit(100'000);
    v1::GetSpansResponse response;
    ASSERT_TRUE(profiler->GetSpans(&call, request, &response).ok());
    for (const v1::Span& span : response.spans()) {
      if (span.kind() != "kernel" || span.process() != "model_worker") continue;
      ASSERT_LE(span.queued_ns(), span.submitted_ns()) << span.name();
      ASSERT_LE(span.submitted_ns(), span.started_ns()) << span.name();
      ASSERT_LE(span.started_ns(), span.ended_ns()) << span.name();
      for (const v1::Span& phase : response.spans()) {
        const bool computes = phase.name() == "prefill" || phase.name() == "decode";
        if (computes && phase.process() == "model_worker" &&
            phase.started_ns() <= span.started_ns() && span.ended_ns() <= phase.ended_ns()) {
          kernels.insert(span.name());
        }
      }
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
}

// The program itself has no device for tests, and says so.
TEST(CudaServiceTest, TheDeviceForTestsIsNoPartOfTheProduct) {
  Board board({"model.device=cuda-on-cpu"});
  board.Start("model_worker");
  EXPECT_NE(board.WaitForExit("model_worker"), 0);
  EXPECT_THAT(board.Log("model_worker"), HasSubstr("\"cuda-on-cpu\" is for tests"));
}

}  // namespace
}  // namespace withy::e2e
