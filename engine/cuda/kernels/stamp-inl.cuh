// Writes the time between two operations of a pass that is watched. Included by kernels-inl.cuh.
namespace withy::engine::WITHY_GPU {

inline constexpr int kStampThreads = 32;

WITHY_GLOBAL void WITHY_THREADS(kStampThreads) StampKernel(StampArgs args) {
  LetNextStart();
  WaitForPrior();
  if (ThreadX() == 0) Store(args.to, GlobalTimer());
}

}  // namespace withy::engine::WITHY_GPU
