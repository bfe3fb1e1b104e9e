#include "engine/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/thread_role.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace withy::engine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void CpuRelax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Polls done() for at most `spin_us`. Returns true once done() does.
template <typename Done>
bool SpinUntil(int spin_us, Done done) {
  if (done()) return true;
  const auto until = Clock::now() + std::chrono::microseconds(spin_us);
  do {
    for (int i = 0; i < 16; ++i) {
      CpuRelax();
      if (done()) return true;
    }
  } while (Clock::now() < until);
  return false;
}

// Decides when a thread yields its core. Involuntary context switches show that a busy process
// shares the core. The thread then yields between pieces, because all threads would wait for the
// other process's time slice if it were descheduled in the middle of a piece.
class YieldPolicy {
 public:
  // Returns whether it yielded.
  bool AfterPiece() {
    if (++pieces_ % 4 != 0) return false;
    const Clock::time_point now = Clock::now();
    if (now - last_check_ < milliseconds(1)) return false;
    last_check_ = now;
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    if (usage.ru_nivcsw != involuntary_switches_) {
      involuntary_switches_ = usage.ru_nivcsw;
      shared_until_ = now + kSharedCoreMemory;
      if (now - last_pause_ > kYieldInterval) last_pause_ = now;
    }
    if (now >= shared_until_ || now - last_pause_ < kYieldInterval) return false;
    std::this_thread::yield();
    last_pause_ = Clock::now();
    return true;
  }

 private:
  static constexpr milliseconds kYieldInterval{2};  // shorter than a usual time slice
  // How long the core counts as shared after an involuntary switch.
  static constexpr milliseconds kSharedCoreMemory{50};

  uint32_t pieces_ = 0;
  Clock::time_point last_check_;
  Clock::time_point last_pause_;  // last yield or noticed involuntary switch
  Clock::time_point shared_until_;
  long involuntary_switches_ = 0;
};

constexpr int kMaxUnits = 1 << 16;  // limit of a step's units, see StepList::Step

bool Pin(pthread_t thread, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  return pthread_setaffinity_np(thread, sizeof cores, &cores) == 0;
}

// Cores that the process may use. Empty if the machine has more than a cpu_set_t holds.
std::vector<int> AllowedCores() {
  std::vector<int> allowed;
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &cores)) allowed.push_back(core);
  }
  return allowed;
}

// Bytes of a later step that a waiting thread prefetches. About what memory delivers while the
// other threads finish, and little enough to stay in the second-level cache until then.
constexpr size_t kFetchBytes = 128 << 10;
constexpr uint32_t kStepsAhead = 6;  // how many steps ahead it looks
constexpr size_t kCacheLine = 64;

int FirstHalf(int units) { return (units + 1) / 2; }

int UnitsLeft(uint64_t next, int half) { return static_cast<uint16_t>(next >> (16 * half)); }

}  // namespace

struct alignas(64) StepList::Step {
  // job number << 32 | units left in the second half << 16 | units left in the first half. A job is
  // one Run() of a list.
  //
  // A step's units form two halves. A thread takes from its own half, so that it continues where it
  // stopped and memory sees long streams, and from the other half once its own is empty.
  //
  // A thread takes a piece, which is some units, by compare-and-swap, so a late thread cannot take
  // a piece of an earlier job. The other fields do not change while units are left or unfinished,
  // so after a successful take they belong to the step. Fields read before the take may belong to
  // another step; the take then fails.
  std::atomic<uint64_t> next{0};
  std::atomic<int> finished{0};  // units
  int units = 0;
  int count = 0;             // items
  int unit = 1;              // items per unit
  std::atomic<int> most{1};  // units per piece
  Call call = nullptr;
  StepList::FirstRead first_read = nullptr;
  StepLabel label;
  int64_t dispatched = 0;  // when the step before was done, by the clock of the list's watch
  // First address that each half reads; null: unknown. Only prefetched, so a stale address does no
  // harm.
  std::array<std::atomic<const std::byte*>, 2> first{};
  alignas(64) std::array<std::byte, kClosureBytes> closure;
};

StepList::StepList(int threads)
    : threads_(threads), steps_(std::make_unique<Step[]>(size_t{kMaxSteps})) {}

StepList::~StepList() = default;

void* StepList::NewStep(int count, PieceSize size, Call call, FirstRead first_read) {
  if (size_ == kMaxSteps) std::abort();  // the caller did not check room()
  Step& step = steps_[static_cast<size_t>(size_++)];
  step.count = count;
  step.unit = std::max({size.least, 1, count / kMaxUnits + 1});
  step.units = (count + step.unit - 1) / step.unit;
  step.most.store(std::max(size.most / step.unit, 1), std::memory_order_relaxed);
  step.call = call;
  step.first_read = first_read;
  step.label = label_;
  return step.closure.data();
}

// The next run of the list begins.
void StepList::Dispatch() {
  Step& first = steps_[static_cast<size_t>(done_)];
  if (watch_.times(first.label)) first.dispatched = watch_.observer->clock().Now();
}

// The step at `index` is done: the next one is dispatched, unless it belongs to the same operation.
void StepList::OnStepDone(int index, StepTrace& trace) {
  const Step& step = steps_[static_cast<size_t>(index)];
  if (!watch_.times(step.label)) return;
  Step* const next = index + 1 < size_ ? &steps_[static_cast<size_t>(index) + 1] : nullptr;
  if (next != nullptr && next->label == step.label) {
    next->dispatched = step.dispatched;
    return;
  }
  const int64_t now = watch_.kernels() ? trace.OnOperationDone() : watch_.observer->clock().Now();
  if (step.label.embeds) watch_.observer->OnEmbedded(watch_.pass, step.dispatched, now);
  if (next != nullptr) next->dispatched = now;
}

void StepList::Clear() { size_ = done_ = 0; }

struct ThreadPool::State {
  using Step = StepList::Step;

  int spin_us = 0;
  std::vector<std::thread> workers;
  // Only the caller uses these.
  std::vector<std::unique_ptr<StepList>> lists;
  uint32_t job = 0;  // number of the last job
  YieldPolicy caller_yield;
  StepTrace caller_trace;

  // job number << 32 | index of the current step; an index past the last step means idle. `list`
  // and `stop_list` are set before it, so a thread that sees a place sees the place's list or a
  // later one, whose steps have another job number.
  alignas(64) std::atomic<uint64_t> place{0};
  std::atomic<StepList*> list{nullptr};
  std::atomic<const std::atomic<bool>*> stop_list{nullptr};  // the caller's flag; may be null
  std::atomic<bool> stop{false};                             // ends the workers
  alignas(64) std::atomic<int> parked{0};
  std::atomic<uint32_t> wakes{0};  // what parked threads wait on

  // Returns whether it woke somebody, which takes a system call.
  bool MoveTo(uint64_t to) {
    place.store(to, std::memory_order_seq_cst);
    if (parked.load(std::memory_order_seq_cst) == 0) return false;
    wakes.fetch_add(1, std::memory_order_seq_cst);
    wakes.notify_all();
    return true;
  }

  // Takes and runs one piece of the step at `at`. Returns false if none is left.
  bool RunPiece(uint64_t at, int half, StepTrace& trace) {
    const auto index = static_cast<uint32_t>(at);
    StepList* const walked = list.load(std::memory_order_acquire);
    if (walked == nullptr || index >= static_cast<uint32_t>(StepList::kMaxSteps)) return false;
    Step& step = walked->steps_[index];
    const int most = step.most.load(std::memory_order_relaxed);
    uint64_t value = step.next.load(std::memory_order_acquire);
    int from = half;
    int taken = 0;
    do {
      if (value >> 32 != at >> 32 || static_cast<uint32_t>(value) == 0) return false;
      from = UnitsLeft(value, half) > 0 ? half : 1 - half;
      const int left = UnitsLeft(value, from);
      taken = std::min((left + walked->threads_ - 1) / walked->threads_, most);
    } while (!step.next.compare_exchange_weak(
        value, value - (static_cast<uint64_t>(taken) << (16 * from)), std::memory_order_acq_rel,
        std::memory_order_acquire));
    const int end_of_half = from == 0 ? FirstHalf(step.units) : step.units;
    const int begin = (end_of_half - UnitsLeft(value, from)) * step.unit;
    trace.OnPiece(walked->watch_, static_cast<uint32_t>(at >> 32), step.label, step.dispatched);
    step.call(step.closure.data(), begin, std::min(begin + taken * step.unit, step.count));
    const int units = step.units;
    if (step.finished.fetch_add(taken, std::memory_order_acq_rel) + taken == units) {
      StepDone(walked, at, trace);
    }
    return true;
  }

  // Called by the thread that finished the last piece of the step at `at`; moves all threads to the
  // next step. First it runs the steps of one unit that follow: they cannot be shared, so no other
  // thread needs to know of them.
  void StepDone(StepList* walked, uint64_t at, StepTrace& trace) {
    const std::atomic<bool>* stopped = stop_list.load(std::memory_order_relaxed);
    const auto leave = [stopped] {
      return stopped != nullptr && stopped->load(std::memory_order_relaxed);
    };
    const int begun = static_cast<int>(static_cast<uint32_t>(at));
    int next = begun + 1;
    walked->OnStepDone(begun, trace);
    for (; next < walked->end_ && !leave(); ++next) {
      const Step& step = walked->steps_[static_cast<size_t>(next)];
      if (step.units > 1) break;
      trace.OnPiece(walked->watch_, static_cast<uint32_t>(at >> 32), step.label, step.dispatched);
      step.call(step.closure.data(), 0, step.count);
      walked->OnStepDone(next, trace);
    }
    walked->done_ = next;
    if (MoveTo(leave() ? EndOf(*walked, at) : at + static_cast<uint64_t>(next - begun))) {
      trace.OnNothingLeft();
    }
  }

  static uint64_t EndOf(const StepList& walked, uint64_t at) {
    return (at >> 32 << 32) + static_cast<uint64_t>(walked.end_);
  }

  // The part of a later step that a thread has prefetched.
  struct Fetched {
    const std::byte* from = nullptr;
    size_t bytes = 0;
  };

  // Prefetches the first bytes that `half` reads of the next step whose first read is known, until
  // done() returns true.
  template <typename Done>
  void FetchAhead(uint64_t at, int half, Fetched* fetched, Done done) {
    const StepList* const walked = list.load(std::memory_order_acquire);
    if (walked == nullptr) return;
    const auto index = static_cast<uint32_t>(at);
    const std::byte* from = nullptr;
    for (uint32_t i = index + 1; from == nullptr && i <= index + kStepsAhead; ++i) {
      if (i >= static_cast<uint32_t>(StepList::kMaxSteps)) return;
      from = walked->steps_[i].first[static_cast<size_t>(half)].load(std::memory_order_relaxed);
    }
    if (from == nullptr) return;
    if (from != fetched->from) *fetched = {from, 0};
    while (fetched->bytes < kFetchBytes && !done()) {
      for (int i = 0; i < 8; ++i, fetched->bytes += kCacheLine) {
        __builtin_prefetch(from + fetched->bytes, 0, 2);
      }
    }
  }

  // Runs pieces, taking from `half` first, until done(place) returns true.
  template <typename Done>
  void Walk(YieldPolicy& yield_policy, StepTrace& trace, int half, Done done) {
    Fetched fetched;
    for (uint64_t at = place.load(std::memory_order_acquire); !done(at);
         at = place.load(std::memory_order_acquire)) {
      if (RunPiece(at, half, trace)) {
        if (yield_policy.AfterPiece()) trace.OnNothingLeft();
        continue;
      }
      trace.OnNothingLeft();
      const auto moved = [&] { return place.load(std::memory_order_seq_cst) != at; };
      FetchAhead(at, half, &fetched, moved);
      if (SpinUntil(spin_us, moved)) continue;
      trace.Flush();
      parked.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = wakes.load(std::memory_order_seq_cst);
      if (!moved() && !stop.load(std::memory_order_seq_cst)) {
        wakes.wait(seen, std::memory_order_seq_cst);
      }
      parked.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void Work(int half) {
    SetThreadRole(ThreadRole::kComputes);
    YieldPolicy yield_policy;
    StepTrace trace;
    Walk(yield_policy, trace, half, [&](uint64_t) { return stop.load(std::memory_order_acquire); });
    trace.Flush();
  }

  // Runs the list on the calling thread alone, piece after piece in order.
  void RunOnCaller(StepList& walked, const std::atomic<bool>* stopped) {
    ++job;
    walked.Dispatch();
    while (walked.done_ < walked.end_) {
      if (stopped != nullptr && stopped->load(std::memory_order_relaxed)) break;
      const Step& step = walked.steps_[static_cast<size_t>(walked.done_)];
      const int size = step.unit * step.most.load(std::memory_order_relaxed);
      caller_trace.OnPiece(walked.watch_, job, step.label, step.dispatched);
      for (int begin = 0; begin < step.count; begin += size) {
        step.call(step.closure.data(), begin, std::min(begin + size, step.count));
      }
      walked.OnStepDone(walked.done_++, caller_trace);
    }
    caller_trace.Flush();
  }

  void RunOnAll(StepList& walked, const std::atomic<bool>* stopped) {
    if (stopped != nullptr && stopped->load(std::memory_order_relaxed)) return;
    ++job;
    const uint64_t base = static_cast<uint64_t>(job) << 32;
    for (int i = walked.done_; i < walked.end_; ++i) {
      Step& step = walked.steps_[static_cast<size_t>(i)];
      step.finished.store(0, std::memory_order_relaxed);
      const int first_half = FirstHalf(step.units);
      for (const int half : {0, 1}) {
        const int begin = half == 0 ? 0 : first_half * step.unit;
        const bool reads = step.first_read != nullptr && begin < step.count;
        step.first[static_cast<size_t>(half)].store(
            reads ? step.first_read(step.closure.data(), begin) : nullptr,
            std::memory_order_relaxed);
      }
      step.next.store(base | static_cast<uint64_t>(step.units - first_half) << 16 |
                          static_cast<uint64_t>(first_half),
                      std::memory_order_release);
    }
    const int beyond = std::min(walked.end_ + static_cast<int>(kStepsAhead), StepList::kMaxSteps);
    for (int i = walked.end_; i < beyond; ++i) {
      for (auto& first : walked.steps_[static_cast<size_t>(i)].first) {
        first.store(nullptr, std::memory_order_relaxed);
      }
    }
    walked.Dispatch();
    stop_list.store(stopped, std::memory_order_relaxed);
    list.store(&walked, std::memory_order_release);
    const uint64_t end = EndOf(walked, base);
    MoveTo(base + static_cast<uint64_t>(walked.done_));
    Walk(caller_yield, caller_trace, 0, [&](uint64_t at) { return at == end; });
    caller_trace.Flush();
  }
};

ThreadPool::ThreadPool(int threads, int spin_us) : state_(std::make_unique<State>()) {
  state_->spin_us = spin_us;
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([state = state_.get(), half = i % 2] { state->Work(half); });
  }
  NewList();
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_seq_cst);
  state_->wakes.fetch_add(1, std::memory_order_seq_cst);
  state_->wakes.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

bool ThreadPool::PinThreads() {
  const std::vector<int> cores = AllowedCores();
  if (cores.size() != static_cast<size_t>(threads())) return false;
  bool pinned = Pin(pthread_self(), cores.front());
  for (size_t i = 0; i < state_->workers.size(); ++i) {
    pinned = Pin(state_->workers[i].native_handle(), cores[i + 1]) && pinned;
  }
  return pinned;
}

StepList& ThreadPool::NewList() {
  return *state_->lists.emplace_back(std::unique_ptr<StepList>(new StepList(threads())));
}

StepList& ThreadPool::list() { return *state_->lists.front(); }

bool ThreadPool::Run(StepList& list, const std::atomic<bool>* stop, int end) {
  if (list.empty()) return true;
  list.end_ = std::min(list.size_, end);
  if (list.end_ <= list.done_) return false;
  State& s = *state_;
  const bool one_piece =
      list.end_ - list.done_ == 1 && list.steps_[static_cast<size_t>(list.done_)].units == 1;
  if (s.workers.empty() || one_piece) {
    s.RunOnCaller(list, stop);
  } else {
    s.RunOnAll(list, stop);
  }
  if (list.done_ < list.size_) return false;
  list.Clear();
  return true;
}

}  // namespace withy::engine
