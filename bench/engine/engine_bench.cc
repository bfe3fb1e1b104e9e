#include "bench/engine/engine_bench.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <span>

#include "base/status.h"
#include "engine/cpu/ceilings.h"
#include "engine/cpu/kernels.h"

namespace withy::bench {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Arbitrary tokens; the time does not depend on them.
int32_t TokenAt(int32_t position, int32_t vocab) {
  return static_cast<int32_t>((static_cast<uint32_t>(position) * 2654435761u >> 7) %
                              static_cast<uint32_t>(vocab));
}

std::vector<int32_t> Tokens(int32_t count, int32_t vocab) {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens.push_back(TokenAt(i, vocab));
  return tokens;
}

const engine::Kernels& KernelsOf(const engine::Model& model) {
  engine::Target target = engine::BestTarget();
  engine::ParseTarget(model.target(), &target);
  return *engine::KernelsFor(target);
}

}  // namespace

EngineBench::EngineBench(engine::Model& model)
    : model_(model),
      pool_(model.threads()),
      logits_(static_cast<size_t>(model.info().vocab_size) * kMostRows) {
  const int32_t tokens = std::min(model.info().context_length, kDepthTokens + 2 * kDecodeTokens);
  for (int32_t i = 0; i < kMostRows; ++i) {
    kv_.push_back(
        std::make_unique<engine::ScratchKv>(model.info(), i == 0 ? tokens : 2 * kDecodeTokens));
  }
}

absl::StatusOr<double> EngineBench::Prefill(int32_t prompt_tokens) {
  const std::vector<int32_t> tokens = Tokens(prompt_tokens, model_.info().vocab_size);
  const auto start = std::chrono::steady_clock::now();
  WITHY_RETURN_IF_ERROR(engine::Prefill(model_, *kv_[0], tokens, 0, logits_.data()));
  return prompt_tokens / SecondsSince(start);
}

absl::Status EngineBench::Fill() {
  const std::vector<int32_t> tokens = Tokens(kDepthTokens, model_.info().vocab_size);
  return engine::Prefill(model_, *kv_[0], tokens, 0, nullptr);
}

absl::StatusOr<double> EngineBench::Decode(int32_t rows, int32_t depth, int32_t steps) {
  std::vector<engine::ContextView> views;
  views.reserve(static_cast<size_t>(rows));
  for (int32_t i = 0; i < rows; ++i) views.push_back(kv_[static_cast<size_t>(i)]->View(depth));
  std::vector<engine::Row> batch(static_cast<size_t>(rows));
  const auto start = std::chrono::steady_clock::now();
  for (int32_t step = 0; step < steps; ++step) {
    const int32_t position = depth + step;
    for (int32_t i = 0; i < rows; ++i) {
      batch[static_cast<size_t>(i)] = {.token = TokenAt(position, model_.info().vocab_size),
                                       .position = position,
                                       .slot = position,
                                       .context = i,
                                       .want_logits = true};
    }
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = batch, .contexts = views}, logits_.data()));
  }
  return rows * steps / SecondsSince(start);
}

double EngineBench::Peak() { return engine::MeasureInt8Peak(pool_, KernelsOf(model_)); }

double EngineBench::Bandwidth() { return engine::MeasureReadBandwidth(pool_, KernelsOf(model_)); }

double EngineBench::PrefillOperations() const {
  const engine::ModelInfo& info = model_.info();
  const double head = 2.0 * info.vocab_size * info.d_model;
  const double layers = static_cast<double>(info.levels.back().flops_per_token) - head;
  return kPrefillTokens * layers + head;
}

double EngineBench::DecodeBytes() const {
  return static_cast<double>(model_.info().levels.back().weight_bytes);
}

absl::StatusOr<std::unique_ptr<BusyNeighbour>> BusyNeighbour::Start() {
  const int pid = fork();
  if (pid < 0) return ErrnoError("start a busy neighbour");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (volatile uint64_t spin = 0;;) spin = spin * 6364136223846793005u + 1;
  }
  return std::unique_ptr<BusyNeighbour>(new BusyNeighbour(pid));
}

BusyNeighbour::~BusyNeighbour() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::Status PinToCores(int32_t count) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return ErrnoError("read CPU affinity");
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&chosen) < count; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &chosen);
  }
  if (sched_setaffinity(0, sizeof(chosen), &chosen) != 0) return ErrnoError("set CPU affinity");
  return absl::OkStatus();
}

}  // namespace withy::bench
