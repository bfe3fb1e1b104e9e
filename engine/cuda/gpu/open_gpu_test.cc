// What is said where no GPU can be opened. With WITHY_OLD_DRIVER a stand-in for libcuda.so.1 comes
// first in the search path, which supports CUDA 11.4 (old_driver.c).
#include "engine/cuda/gpu/open_gpu.h"

#include <dlfcn.h>

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine::cuda {
namespace {

using testing::HasSubstr;

TEST(OpenGpuTest, AMachineWithoutDriverIsTold) {
  if (dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) GTEST_SKIP() << "there is a driver";
  const auto gpu = OpenCudaGpu(0);
  EXPECT_EQ(gpu.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(gpu.status().ToString(), HasSubstr("no NVIDIA driver: libcuda.so.1 was not found"));
}

TEST(OpenGpuTest, ADriverThatIsTooOldIsTold) {
  if (std::getenv("WITHY_OLD_DRIVER") == nullptr) GTEST_SKIP() << "needs the stand-in";
  const auto gpu = OpenCudaGpu(0);
  EXPECT_EQ(gpu.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(gpu.status().ToString(), HasSubstr("driver supports CUDA 11.4, this build needs 1"));
}

}  // namespace
}  // namespace withy::engine::cuda
