// The service with both models on a GPU: the five processes, whose workers have the kernels for
// GPUs in the runner of engine/cuda/on_cpu/.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"

namespace withy::e2e {
namespace {

using ::testing::HasSubstr;

constexpr char kPrompt[] = "Good morning to you";

// Two turns of a conversation on `device`.
std::string Converse(const std::string& device, std::string* log) {
  Board board({"model.device=" + device, "draft.device=" + device});
  if (device != "cpu") {
    board.Use("model_worker", "withy-model-worker-cuda-on-cpu");
    board.Use("draft_worker", "withy-draft-worker-cuda-on-cpu");
  }
  board.StartAll();
  EXPECT_TRUE(board.WaitUntilServing()) << board.Log("model_worker");
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

// The program itself has no device for tests, and says so.
TEST(CudaServiceTest, TheDeviceForTestsIsNoPartOfTheProduct) {
  Board board({"model.device=cuda-on-cpu"});
  board.Start("model_worker");
  EXPECT_NE(board.WaitForExit("model_worker"), 0);
  EXPECT_THAT(board.Log("model_worker"), HasSubstr("\"cuda-on-cpu\" is for tests"));
}

}  // namespace
}  // namespace withy::e2e
