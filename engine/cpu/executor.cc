#include "engine/cpu/executor.h"

#include <algorithm>
#include <vector>

namespace withy::engine {

class CpuExecutor::PoolRun final : public ProgramRun {
 public:
  explicit PoolRun(CpuExecutor& executor)
      : pool_(executor.pool_),
        stream_(executor.stream_),
        observer_(executor.observer_),
        steps_(executor.pool_.NewList()),
        lowering_(executor.facts_, executor.weights_, executor.key_bias_, executor.kernels_,
                  executor.pool_.threads(), executor.tap_, executor.stream_) {}

  void Start(const Program& program, const RowPlan& plan, const Batch& batch,
             float* logits) override {
    program_ = &program;
    level_ = plan.count() > 0 ? plan.LevelOf(0) : 0;
    first_listed_ = next_op_ = 0;
    op_ends_.clear();
    rows_ = plan.count();
    computed_ticks_ = 0;
    const bool watched = observer_ != nullptr && observer_->watches();
    watch_ = {watched ? observer_ : nullptr, batch.tag,
              watched ? observer_->OnPassBegins(rows_) : uint16_t{0}};
    steps_.set_watch(watch_);
    lowering_.Start(program, plan, batch, logits);
  }

  bool Run(const std::atomic<bool>* stop, int32_t end) override {
    lowering_.Resume();
    if (!watch_.kernels()) return Compute(stop, end);
    const int64_t started = observer_->clock().Now();
    const bool done = Compute(stop, end);
    computed_ticks_ += observer_->clock().Now() - started;
    if (done) observer_->OnPassDone(rows_, program_->ops.size(), computed_ticks_, 0);
    return done;
  }

  double ops_done() const override {
    if (steps_.empty()) return next_op_;
    const int done = steps_.steps_done();
    const auto end = std::upper_bound(op_ends_.begin(), op_ends_.end(), done);
    if (end == op_ends_.end()) return next_op_;
    const int begin = end == op_ends_.begin() ? 0 : *(end - 1);
    return first_listed_ + static_cast<double>(end - op_ends_.begin()) +
           static_cast<double>(done - begin) / (*end - begin);
  }

  absl::Status status() const override { return lowering_.status(); }

  void Abandon() override { steps_.Clear(); }

 private:
  bool Compute(const std::atomic<bool>* stop, int32_t end) {
    do {
      if (!pool_.Run(steps_, stop, StepsUntil(end)) || !lowering_.status().ok()) return false;
    } while (LowerMore());
    return true;
  }

  // Adds steps for the next operations while the list has room; false if no operation is left.
  bool LowerMore() {
    const auto ops = static_cast<int32_t>(program_->ops.size());
    if (next_op_ == ops) return false;
    first_listed_ = next_op_;
    op_ends_.clear();
    while (next_op_ < ops && steps_.room() > Lowering::kMaxStepsPerOp) {
      const Op& op = program_->ops[static_cast<size_t>(next_op_)];
      steps_.set_label({.op = static_cast<uint8_t>(op.kind),
                        .embeds = op.kind == OpKind::kEmbed,
                        .layer = op.layer,
                        .number = next_op_++});
      lowering_.Lower(op, steps_);
      ReleaseBehind(op);
      op_ends_.push_back(steps_.steps());
    }
    return true;
  }

  // Adds a step that releases the streamed weights of the operation.
  void ReleaseBehind(const Op& op) {
    const int32_t stage = op.Stage();
    if (stream_ == nullptr || stage < 0 || !stream_->Needs(stage, level_)) return;
    steps_.Add(1, 1, [stream = stream_, stage, level = level_](int, int) {
      stream->Release(stage, level);
    });
  }

  // Index of the list's step before which Run(`end`) pauses.
  int StepsUntil(int32_t end) const {
    const int32_t listed = end - first_listed_;
    if (listed <= 0) return 0;
    if (static_cast<size_t>(listed) > op_ends_.size()) return StepList::kMaxSteps;
    return op_ends_[static_cast<size_t>(listed) - 1];
  }

  ThreadPool& pool_;
  WeightStream* const stream_;      // null: all weights stay in memory
  KernelObserver* const observer_;  // null: nobody watches
  StepList& steps_;
  Lowering lowering_;
  const Program* program_ = nullptr;
  StepWatch watch_;             // of the program
  int32_t rows_ = 0;            // of the program
  int64_t computed_ticks_ = 0;  // that its runs took so far, where its kernels are watched
  int32_t level_ = 0;           // highest level of the program's rows
  int32_t first_listed_ = 0;    // first operation in the list
  int32_t next_op_ = 0;         // first operation that is not in the list yet
  std::vector<int> op_ends_;    // [op - first_listed_]: number of steps up to the operation's end
};

CpuExecutor::CpuExecutor(const PackedFile& file, const ModelFacts& facts, const Kernels& kernels,
                         int threads, const LayerTap& tap, WeightStream* stream,
                         KernelObserver* observer)
    : facts_(facts),
      weights_(file, facts),
      key_bias_(facts, weights_),
      kernels_(kernels),
      tap_(tap),
      stream_(stream),
      observer_(observer),
      pool_(threads) {}

CpuExecutor::~CpuExecutor() = default;

std::unique_ptr<ProgramRun> CpuExecutor::NewRun() { return std::make_unique<PoolRun>(*this); }

}  // namespace withy::engine
