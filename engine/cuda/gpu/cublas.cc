#include "engine/cuda/gpu/cublas.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::engine::cuda {
namespace {

// What is used of cublas_v2.h and library_types.h (cuBLAS 12 and 13).
using CublasHandle = void*;
constexpr int kCublasSuccess = 0;
constexpr int kCublasAsIs = 0;        // CUBLAS_OP_N
constexpr int kCublasTransposed = 1;  // CUBLAS_OP_T
constexpr int kCudaR32F = 0;
constexpr int kCudaR16F = 2;
constexpr int kCublasCompute32F = 68;
constexpr int kCublasGemmDefault = -1;

// What NVIDIA recommends for Hopper; memory of a fixed size is what stream capture needs.
constexpr size_t kCublasWorkspace = size_t{32} << 20;

struct CublasFunctions {
  int (*create)(CublasHandle*) = nullptr;
  int (*destroy)(CublasHandle) = nullptr;
  int (*get_version)(CublasHandle, int*) = nullptr;
  int (*set_stream)(CublasHandle, void*) = nullptr;
  int (*set_workspace)(CublasHandle, void*, size_t) = nullptr;
  int (*gemm)(CublasHandle, int transa, int transb, int m, int n, int k, const void* alpha,
              const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
              const void* beta, void* c, int c_type, int ldc, int compute_type,
              int algorithm) = nullptr;
};

class Cublas final : public DenseMath {
 public:
  Cublas(Gpu& gpu, LibraryLoader loader, void* library)
      : loader_(std::move(loader)), library_(library), gpu_(gpu), workspace_(gpu) {}
  ~Cublas() override {
    if (handle_ != nullptr) functions_.destroy(handle_);
    loader_.close(library_);
  }

  absl::Status Open() {
    WITHY_RETURN_IF_ERROR(Find("cublasCreate_v2", &functions_.create));
    WITHY_RETURN_IF_ERROR(Find("cublasDestroy_v2", &functions_.destroy));
    WITHY_RETURN_IF_ERROR(Find("cublasGetVersion_v2", &functions_.get_version));
    WITHY_RETURN_IF_ERROR(Find("cublasSetStream_v2", &functions_.set_stream));
    WITHY_RETURN_IF_ERROR(Find("cublasSetWorkspace_v2", &functions_.set_workspace));
    WITHY_RETURN_IF_ERROR(Find("cublasGemmEx", &functions_.gemm));
    WITHY_RETURN_IF_ERROR(workspace_.Reserve(kCublasWorkspace));
    void* const stream = gpu_.stream();  // also makes the GPU the thread's current one
    WITHY_RETURN_IF_ERROR(Accepted(functions_.create(&handle_), "cublasCreate"));
    WITHY_RETURN_IF_ERROR(Accepted(functions_.set_stream(handle_, stream), "cublasSetStream"));
    // After the stream, which resets it.
    WITHY_RETURN_IF_ERROR(
        Accepted(functions_.set_workspace(handle_, workspace_.as<void>(), workspace_.bytes()),
                 "cublasSetWorkspace"));
    int version = 0;
    WITHY_RETURN_IF_ERROR(Accepted(functions_.get_version(handle_, &version), "cublasGetVersion"));
    description_ = absl::StrCat("cuBLAS ", version / 10000, ".", version / 100 % 100);
    return absl::OkStatus();
  }

  std::string_view description() const override { return description_; }

  // cuBLAS takes columns: rows of a, b and c are columns of A^T, B and C of C = A * B.
  absl::Status Multiply(const DenseProduct& p) override {
    gpu_.stream();  // the thread's current GPU
    const float one = 1.0f;
    const float zero = 0.0f;
    const int status =
        functions_.gemm(handle_, kCublasTransposed, kCublasAsIs, p.outputs, p.rows, p.inputs, &one,
                        p.a, kCudaR16F, p.inputs, p.b, kCudaR16F, p.inputs, &zero, p.c, kCudaR32F,
                        p.outputs, kCublasCompute32F, kCublasGemmDefault);
    if (status == kCublasSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(
        description_, " failed with status ", status, " in a product of ", p.outputs, " outputs, ",
        p.rows, " rows, ", p.inputs, " inputs; model.cuda_exact_prefill does without it"));
  }

 private:
  template <typename Function>
  absl::Status Find(const char* name, Function* function) {
    void* const symbol = loader_.symbol(library_, name);
    if (symbol == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("cuBLAS has no ", name, " (12 or later is needed)"));
    }
    *function = reinterpret_cast<Function>(symbol);
    return absl::OkStatus();
  }
  static absl::Status Accepted(int status, const char* what) {
    if (status == kCublasSuccess) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(what, " failed with status ", status));
  }

  const LibraryLoader loader_;
  void* const library_;
  Gpu& gpu_;
  Buffer workspace_;
  CublasFunctions functions_;
  CublasHandle handle_ = nullptr;
  std::string description_ = "cuBLAS";
};

}  // namespace

absl::StatusOr<std::unique_ptr<DenseMath>> OpenCublas(Gpu& gpu, const LibraryLoader& loader) {
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
    void* const library = loader.open(name);
    if (library == nullptr) continue;
    auto cublas = std::make_unique<Cublas>(gpu, loader, library);
    WITHY_RETURN_IF_ERROR(cublas->Open());
    return cublas;
  }
  return absl::NotFoundError(
      "neither libcublas.so.13 nor libcublas.so.12 nor libcublas.so was found");
}

}  // namespace withy::engine::cuda
