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

// Looks at done() for at most `spin_us`; true once it holds.
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

// Notices that a thread shares its core with somebody busy, from the times it was switched off
// against its will, and gives way between pieces: to be switched off in the middle of one would
// hold up all threads for the neighbour's time slice.
class Manners {
 public:
  void AfterPiece() {
    if (++pieces_ % 4 != 0) return;
    const Clock::time_point now = Clock::now();
    if (now - looked_ < milliseconds(1)) return;
    looked_ = now;
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    if (usage.ru_nivcsw != switches_) {
      switches_ = usage.ru_nivcsw;
      crowded_until_ = now + kMemory;
      if (now - rested_ > kTurn) rested_ = now;
    }
    if (now < crowded_until_ && now - rested_ >= kTurn) {
      std::this_thread::yield();
      rested_ = Clock::now();
    }
  }

 private:
  static constexpr milliseconds kTurn{2};     // less than a usual time slice
  static constexpr milliseconds kMemory{50};  // for how long a neighbour is believed to be there

  uint32_t pieces_ = 0;
  Clock::time_point looked_;
  Clock::time_point rested_;
  Clock::time_point crowded_until_;
  long switches_ = 0;
};

constexpr int kMaxUnits = 1 << 16;  // of a step

bool Pin(pthread_t thread, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  return pthread_setaffinity_np(thread, sizeof cores, &cores) == 0;
}

// That the process may use; none where there are more than a cpu_set_t holds.
std::vector<int> AllowedCores() {
  std::vector<int> allowed;
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &cores)) allowed.push_back(core);
  }
  return allowed;
}

// What a waiting thread fetches of a later step: as much as memory gives while the others finish,
// and little enough to still be in the second-level cache then.
constexpr size_t kFetchBytes = 128 << 10;
constexpr uint32_t kStepsAhead = 6;  // how far away that step may be
constexpr size_t kCacheLine = 64;

int FirstRun(int units) { return (units + 1) / 2; }

int UnitsLeft(uint64_t next, int run) { return static_cast<uint16_t>(next >> (16 * run)); }

}  // namespace

struct alignas(64) StepList::Step {
  // (job number << 32 | units left of the second run << 16 | of the first). Two runs, so that each
  // of two threads goes on where it stopped and memory sees long streams; when its own is empty it
  // takes from the other. A piece, some units, is taken by compare-and-swap, so a late thread
  // cannot take one of a job that is over; and while units are left or unfinished the other fields
  // do not change, so that what is read after a successful take is the step's own. What is read to
  // know how much to take may be another step's; then the take fails.
  std::atomic<uint64_t> next{0};
  std::atomic<int> finished{0};  // units
  int units = 0;
  int count = 0;
  int unit = 1;              // items
  std::atomic<int> most{1};  // units a piece
  Call call = nullptr;
  StepList::FirstRead first_read = nullptr;
  // What the first piece of each run reads first; null: nothing worth fetching. To be fetched only,
  // so that a thread that comes late does no harm with it.
  std::array<std::atomic<const std::byte*>, 2> first{};
  alignas(64) std::array<std::byte, kClosureBytes> closure;
};

StepList::StepList(int threads)
    : threads_(threads), steps_(std::make_unique<Step[]>(size_t{kMaxSteps})) {}

StepList::~StepList() = default;

void* StepList::NewStep(int count, PieceSize size, Call call, FirstRead first_read) {
  if (size_ == kMaxSteps) std::abort();  // whoever adds has not looked at room()
  Step& step = steps_[static_cast<size_t>(size_++)];
  step.count = count;
  step.unit = std::max({size.least, 1, count / kMaxUnits + 1});
  step.units = (count + step.unit - 1) / step.unit;
  step.most.store(std::max(size.most / step.unit, 1), std::memory_order_relaxed);
  step.call = call;
  step.first_read = first_read;
  return step.closure.data();
}

void StepList::Clear() { size_ = done_ = 0; }

struct ThreadPool::State {
  using Step = StepList::Step;

  int spin_us = 0;
  std::vector<std::thread> workers;
  std::vector<std::unique_ptr<StepList>> lists;  // the caller's own
  uint32_t job = 0;                              // number of the last run; the caller's own
  Manners caller_manners;

  // (job number << 32 | index of the step that is under way); past the last step: idle. The list
  // and what stops it are set before, so that a thread that sees a place sees its list or a later
  // one, whose steps are of another job.
  alignas(64) std::atomic<uint64_t> place{0};
  std::atomic<StepList*> list{nullptr};
  std::atomic<const std::atomic<bool>*> stop_list{nullptr};
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<int> parked{0};
  std::atomic<uint32_t> wakes{0};  // what parked threads wait on

  void MoveTo(uint64_t to) {
    place.store(to, std::memory_order_seq_cst);
    if (parked.load(std::memory_order_seq_cst) > 0) {
      wakes.fetch_add(1, std::memory_order_seq_cst);
      wakes.notify_all();
    }
  }

  // Takes and runs one piece of the step at `at`; false when there is none left.
  bool RunPiece(uint64_t at, int run) {
    const auto index = static_cast<uint32_t>(at);
    StepList* const walked = list.load(std::memory_order_acquire);
    if (walked == nullptr || index >= static_cast<uint32_t>(StepList::kMaxSteps)) return false;
    Step& step = walked->steps_[index];
    const int most = step.most.load(std::memory_order_relaxed);
    uint64_t value = step.next.load(std::memory_order_acquire);
    int from = run;
    int taken = 0;
    do {
      if (value >> 32 != at >> 32 || static_cast<uint32_t>(value) == 0) return false;
      from = UnitsLeft(value, run) > 0 ? run : 1 - run;
      const int left = UnitsLeft(value, from);
      taken = std::min((left + walked->threads_ - 1) / walked->threads_, most);
    } while (!step.next.compare_exchange_weak(
        value, value - (static_cast<uint64_t>(taken) << (16 * from)), std::memory_order_acq_rel,
        std::memory_order_acquire));
    const int end_of_run = from == 0 ? FirstRun(step.units) : step.units;
    const int begin = (end_of_run - UnitsLeft(value, from)) * step.unit;
    step.call(step.closure.data(), begin, std::min(begin + taken * step.unit, step.count));
    const int units = step.units;
    if (step.finished.fetch_add(taken, std::memory_order_acq_rel) + taken == units) {
      StepDone(walked, at);
    }
    return true;
  }

  // On the thread that finished the last piece of the step at `at`. Steps of one piece that follow
  // it does at once: there is nobody to share them with, nor to be told of them.
  void StepDone(StepList* walked, uint64_t at) {
    const std::atomic<bool>* stopped = stop_list.load(std::memory_order_relaxed);
    const auto leave = [stopped] {
      return stopped != nullptr && stopped->load(std::memory_order_relaxed);
    };
    const int begun = static_cast<int>(static_cast<uint32_t>(at));
    int next = begun + 1;
    for (; next < walked->end_ && !leave(); ++next) {
      const Step& step = walked->steps_[static_cast<size_t>(next)];
      if (step.units > 1) break;
      step.call(step.closure.data(), 0, step.count);
    }
    walked->done_ = next;
    MoveTo(leave() ? EndOf(*walked, at) : at + static_cast<uint64_t>(next - begun));
  }

  static uint64_t EndOf(const StepList& walked, uint64_t at) {
    return (at >> 32 << 32) + static_cast<uint64_t>(walked.end_);
  }

  // What a thread has fetched of the step that it will read next.
  struct Fetched {
    const std::byte* from = nullptr;
    size_t bytes = 0;
  };

  // Fetches what the run reads first of the next step that tells, while done() does not hold.
  template <typename Done>
  void FetchAhead(uint64_t at, int run, Fetched* fetched, Done done) {
    const StepList* const walked = list.load(std::memory_order_acquire);
    if (walked == nullptr) return;
    const auto index = static_cast<uint32_t>(at);
    const std::byte* from = nullptr;
    for (uint32_t i = index + 1; from == nullptr && i <= index + kStepsAhead; ++i) {
      if (i >= static_cast<uint32_t>(StepList::kMaxSteps)) return;
      from = walked->steps_[i].first[static_cast<size_t>(run)].load(std::memory_order_relaxed);
    }
    if (from == nullptr) return;
    if (from != fetched->from) *fetched = {from, 0};
    while (fetched->bytes < kFetchBytes && !done()) {
      for (int i = 0; i < 8; ++i, fetched->bytes += kCacheLine) {
        __builtin_prefetch(from + fetched->bytes, 0, 2);
      }
    }
  }

  // Works until done(place) holds.
  template <typename Done>
  void Walk(Manners& manners, int run, Done done) {
    Fetched fetched;
    for (uint64_t at = place.load(std::memory_order_acquire); !done(at);
         at = place.load(std::memory_order_acquire)) {
      if (RunPiece(at, run)) {
        manners.AfterPiece();
        continue;
      }
      const auto moved = [&] { return place.load(std::memory_order_seq_cst) != at; };
      FetchAhead(at, run, &fetched, moved);
      if (SpinUntil(spin_us, moved)) continue;
      parked.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t seen = wakes.load(std::memory_order_seq_cst);
      if (!moved() && !stop.load(std::memory_order_seq_cst)) {
        wakes.wait(seen, std::memory_order_seq_cst);
      }
      parked.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  void Work(int run) {
    SetThreadRole(ThreadRole::kComputes);
    Manners manners;
    Walk(manners, run, [&](uint64_t) { return stop.load(std::memory_order_acquire); });
  }

  // Without workers there is nobody to share with: piece after piece, in order.
  static void RunAlone(StepList& walked, const std::atomic<bool>* stopped) {
    while (walked.done_ < walked.end_) {
      if (stopped != nullptr && stopped->load(std::memory_order_relaxed)) return;
      const Step& step = walked.steps_[static_cast<size_t>(walked.done_)];
      const int size = step.unit * step.most.load(std::memory_order_relaxed);
      for (int begin = 0; begin < step.count; begin += size) {
        step.call(step.closure.data(), begin, std::min(begin + size, step.count));
      }
      ++walked.done_;
    }
  }

  void RunTogether(StepList& walked, const std::atomic<bool>* stopped) {
    if (stopped != nullptr && stopped->load(std::memory_order_relaxed)) return;
    ++job;
    const uint64_t base = static_cast<uint64_t>(job) << 32;
    for (int i = walked.done_; i < walked.end_; ++i) {
      Step& step = walked.steps_[static_cast<size_t>(i)];
      step.finished.store(0, std::memory_order_relaxed);
      const int first_run = FirstRun(step.units);
      for (const int run : {0, 1}) {
        const int begin = run == 0 ? 0 : first_run * step.unit;
        const bool reads = step.first_read != nullptr && begin < step.count;
        step.first[static_cast<size_t>(run)].store(
            reads ? step.first_read(step.closure.data(), begin) : nullptr,
            std::memory_order_relaxed);
      }
      step.next.store(base | static_cast<uint64_t>(step.units - first_run) << 16 |
                          static_cast<uint64_t>(first_run),
                      std::memory_order_release);
    }
    const int beyond = std::min(walked.end_ + static_cast<int>(kStepsAhead), StepList::kMaxSteps);
    for (int i = walked.end_; i < beyond; ++i) {
      for (auto& first : walked.steps_[static_cast<size_t>(i)].first) {
        first.store(nullptr, std::memory_order_relaxed);
      }
    }
    stop_list.store(stopped, std::memory_order_relaxed);
    list.store(&walked, std::memory_order_release);
    const uint64_t end = EndOf(walked, base);
    MoveTo(base + static_cast<uint64_t>(walked.done_));
    Walk(caller_manners, 0, [&](uint64_t at) { return at == end; });
  }
};

ThreadPool::ThreadPool(int threads, int spin_us) : state_(std::make_unique<State>()) {
  state_->spin_us = spin_us;
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([state = state_.get(), run = i % 2] { state->Work(run); });
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
    State::RunAlone(list, stop);
  } else {
    s.RunTogether(list, stop);
  }
  if (list.done_ < list.size_) return false;
  list.Clear();
  return true;
}

}  // namespace withy::engine
