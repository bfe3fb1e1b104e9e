#include "bench/contexts/contexts_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/unique_fd.h"
#include "bench/contexts/stand_in_worker.h"
#include "bench/service/processes.h"

namespace withy::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDiskBytes = uint64_t{64} << 30;
constexpr uint64_t kMegabyte = 1'000'000;
// Least size of the arena, in whole contexts: slots of several sizes leave gaps.
constexpr double kSlack = 1.25;
constexpr size_t kDirectRead = 512 << 10;
constexpr int kReadThreads = 8;

// A store of its own, and the stand-in attached to it.
struct Board {
  TemporaryDirectory directory;
  std::unique_ptr<Processes> processes;
  std::unique_ptr<StandInWorker> worker;

  std::string address() const { return "unix:" + processes->run_dir() + "/context_store.sock"; }
};

// What the store is told: per chunk what `cost` says per row.
v1::KvCosts CostsFor(const RecomputeCost& cost) {
  v1::KvCosts costs;
  costs.set_recompute_chunk_ms(cost.Ms(0, engine::kChunkTokens));
  costs.set_recompute_position_ms(cost.Ms(engine::kChunkTokens, engine::kChunkTokens) -
                                  cost.Ms(0, engine::kChunkTokens));
  return costs;
}

absl::Status StartStore(const engine::KvGeometry& kv, const RecomputeCost& recompute, uint64_t seed,
                        Board* board) {
  WITHY_RETURN_IF_ERROR(board->processes->Start("context_store"));
  if (board->worker != nullptr) return board->worker->Reattach();
  auto worker = StandInWorker::Connect(board->address(), kv, CostsFor(recompute), recompute, seed);
  if (!worker.ok()) {
    return Annotate(worker.status(),
                    absl::StrCat("context_store: ", board->processes->LogTail("context_store")));
  }
  board->worker = *std::move(worker);
  return absl::OkStatus();
}

absl::StatusOr<Board> MakeBoard(std::string_view contestant, uint64_t arena_bytes,
                                uint64_t disk_bytes_per_s, const engine::KvGeometry& kv,
                                const RecomputeCost& recompute, uint64_t seed) {
  WITHY_ASSIGN_OR_RETURN(TemporaryDirectory directory,
                         TemporaryDirectory::Create("withy-contexts"));
  const std::string config = absl::StrCat("log_level: \"warn\"\nstore { arena_bytes: ", arena_bytes,
                                          " kv_disk_bytes: ", kDiskBytes,
                                          " kv_disk_bytes_per_second: ", disk_bytes_per_s, " }\n");
  WITHY_ASSIGN_OR_RETURN(Processes processes, Processes::Create(directory.path(), config));
  Board board{.directory = std::move(directory),
              .processes = std::make_unique<Processes>(std::move(processes)),
              .worker = nullptr};
  board.processes->Use("context_store", kContestantStore);
  board.processes->set_environment({absl::StrCat(kContestantVariable, "=", ToAbsl(contestant))});
  WITHY_RETURN_IF_ERROR(StartStore(kv, recompute, seed, &board));
  return board;
}

// KV at 16 bits is stood in for by heads of twice the size at 8 bits: 3 % more bytes than kF16
// where a head has 64 numbers, because of their scales.
engine::KvGeometry GeometryFor(const engine::KvGeometry& kv, const Contestant& contestant) {
  engine::KvGeometry geometry = kv;
  if (contestant.working_bits == 16) geometry.head_dim *= 2;
  return geometry;
}

// Tokens that stay when a call adds `delta` and the window has `max_tokens`.
uint32_t KeptTokens(uint32_t tokens, uint32_t delta, uint32_t max_tokens) {
  if (tokens + delta <= max_tokens) return tokens;
  const uint32_t room = max_tokens - std::min(delta, max_tokens);
  return room / engine::kChunkTokens * engine::kChunkTokens;
}

// Calls until a context has `tokens`, of at most `step` tokens each.
absl::Status Grow(StandInWorker& worker, uint32_t tokens, uint32_t step, StandInContext* context) {
  while (context->tokens() < tokens) {
    const uint32_t delta = std::min(step, tokens - context->tokens());
    WITHY_RETURN_IF_ERROR(worker.Call(context, context->tokens(), delta).status());
    WITHY_RETURN_IF_ERROR(worker.AwaitIdle());
  }
  return absl::OkStatus();
}

// Reads the files with O_DIRECT, kReadThreads requests at a time. Returns bytes a second.
absl::StatusOr<double> DirectSpeed(const std::string& directory) {
  struct Piece {
    int fd;
    off_t offset;
  };
  std::vector<UniqueFd> files;
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files.emplace_back(open(entry.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!files.back().valid()) return ErrnoError("open " + entry.path().string());
    const auto size = static_cast<off_t>(entry.file_size());
    for (off_t at = 0; at < size; at += static_cast<off_t>(kDirectRead)) {
      pieces.push_back({files.back().get(), at});
    }
    bytes += static_cast<uint64_t>(size);
  }
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto read = [&] {
    void* buffer = std::aligned_alloc(4096, kDirectRead);
    for (size_t i = next++; i < pieces.size(); i = next++) {
      if (pread(pieces[i].fd, buffer, kDirectRead, pieces[i].offset) < 0) failed = true;
    }
    std::free(buffer);
  };
  const int64_t begin = Clock::Real().SteadyNanos();
  std::vector<std::thread> threads;
  for (int i = 0; i < kReadThreads; ++i) threads.emplace_back(read);
  for (std::thread& thread : threads) thread.join();
  if (failed) return absl::UnavailableError("cannot read " + directory + " with O_DIRECT");
  return static_cast<double>(bytes) * kNanosPerSecond /
         static_cast<double>(Clock::Real().SteadyNanos() - begin);
}

}  // namespace

std::vector<uint32_t> InitialTokens(const ContextTraceSpec& spec, uint32_t max_tokens) {
  const double calls = spec.hours * 3600 / spec.mean_gap_s / 2 / spec.contexts;
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < spec.contexts; ++i) {
    const ContextDataset& dataset = ContextDatasets()[i % kContextDatasets];
    const double grown = calls * (dataset.low_tokens + dataset.high_tokens) / 2;
    tokens.push_back(static_cast<uint32_t>(std::clamp<double>(grown, 1, max_tokens)));
  }
  return tokens;
}

uint64_t ArenaBytes(const ContextSetting& setting, const ContextRun& run) {
  const double context_bytes =
      static_cast<double>(run.kv.ChunkBytes()) *
      std::ceil(run.max_tokens / static_cast<double>(engine::kChunkTokens));
  const double wanted = context_bytes * setting.contexts * setting.budget_percent / 100;
  return static_cast<uint64_t>(std::max(wanted, kSlack * context_bytes)) / 4096 * 4096;
}

absl::StatusOr<ContextRunFigures> RunContextTrace(const ContextSetting& setting,
                                                  const Contestant& contestant,
                                                  const ContextRun& run) {
  ContextTraceSpec spec{.contexts = setting.contexts,
                        .hours = run.hours,
                        .mean_gap_s = run.mean_gap_s,
                        .seed = run.seed};
  WITHY_ASSIGN_OR_RETURN(spec.pattern, FindSwitchPattern(setting.pattern));
  ContextRunFigures figures;
  figures.arena_bytes = ArenaBytes(setting, run);
  WITHY_ASSIGN_OR_RETURN(
      const Board board,
      MakeBoard(contestant.name, figures.arena_bytes, setting.disk_mb_per_s * kMegabyte,
                GeometryFor(run.kv, contestant), run.recompute, run.seed));
  StandInWorker& worker = *board.worker;
  std::vector<StandInContext> contexts(setting.contexts);
  const std::vector<uint32_t> initial = InitialTokens(spec, run.max_tokens);
  for (size_t i = 0; i < contexts.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(contexts[i], worker.CreateContext());
    WITHY_RETURN_IF_ERROR(Grow(worker, initial[i], run.max_tokens, &contexts[i]));
  }
  std::vector<ContextCall> calls = DrawContextTrace(spec);
  if (run.calls > 0 && calls.size() > run.calls) calls.resize(run.calls);
  const StandInPrompt prompt =
      contestant.computes_meanwhile ? StandInPrompt::kBehindLayers : StandInPrompt::kNot;
  std::vector<double> latencies, loads;
  uint32_t previous = setting.contexts - 1;
  for (const ContextCall& next : calls) {
    StandInContext& context = contexts[next.context];
    const uint32_t delta = std::min(next.delta_tokens, run.max_tokens);
    const uint32_t keep = KeptTokens(context.tokens(), delta, run.max_tokens);
    const bool switches = std::exchange(previous, next.context) != next.context;
    WITHY_ASSIGN_OR_RETURN(
        const StandInCall call,
        worker.Call(&context, keep, delta, switches ? prompt : StandInPrompt::kNot));
    if (run.await_idle) WITHY_RETURN_IF_ERROR(worker.AwaitIdle());
    if (!switches) continue;
    const uint32_t missing = keep - std::min(keep, call.resident_tokens);
    const double recompute_ms = run.recompute.Ms(call.resident_tokens, missing);
    loads.push_back(call.load_ms + call.claim_ms + recompute_ms);
    latencies.push_back(loads.back());
    if (call.piece_ms > 0) {
      latencies.back() =
          std::max(0.0, call.piece_ms - worker.TimePiece(keep, delta)) + recompute_ms;
    }
    figures.recomputed_tokens += missing + call.recomputed_chunks * engine::kChunkTokens;
  }
  if (!latencies.empty()) figures.recomputed_tokens /= static_cast<double>(latencies.size());
  figures.switches = SummarizeLatencies(std::move(latencies));
  figures.loads = SummarizeLatencies(std::move(loads));
  return figures;
}

absl::StatusOr<ResidentSwitches> MeasureResidentSwitches(const ContextRun& run, uint32_t rounds) {
  const std::vector<uint32_t> lengths = {16, 100, 1000, run.max_tokens / 2, run.max_tokens};
  const ContextSetting all{.contexts = static_cast<uint32_t>(lengths.size()),
                           .budget_percent = 110};
  WITHY_ASSIGN_OR_RETURN(const Board board, MakeBoard("withy", ArenaBytes(all, run), 0, run.kv,
                                                      run.recompute, run.seed));
  std::vector<StandInContext> contexts(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(contexts[i], board.worker->CreateContext());
    WITHY_RETURN_IF_ERROR(Grow(*board.worker, lengths[i], run.max_tokens, &contexts[i]));
  }
  std::vector<double> latencies, empty;
  for (uint32_t round = 0; round < rounds; ++round) {
    for (const StandInContext& context : contexts) {
      WITHY_ASSIGN_OR_RETURN(const StandInCall call, board.worker->Load(context));
      if (call.resident_tokens != call.context_tokens) {
        return absl::InternalError("a context left an arena that holds all of them");
      }
      WITHY_ASSIGN_OR_RETURN(const double empty_ms, board.worker->TimeEmptyCall());
      if (round == 0) continue;  // it warms up
      latencies.push_back(call.load_ms);
      empty.push_back(empty_ms);
    }
  }
  return ResidentSwitches{SummarizeLatencies(std::move(latencies)),
                          SummarizeLatencies(std::move(empty))};
}

namespace {

// Milliseconds until the whole context is in the arena of a store that has just begun. The store is
// told that recomputing takes `told` times as long as it does.
absl::StatusOr<StandInCall> LoadAfterRestart(const ContextRun& run, double told,
                                             const StandInContext& context, Board* board) {
  board->processes->Kill("context_store");
  WITHY_RETURN_IF_ERROR(board->processes->Start("context_store"));
  board->worker->set_costs(
      CostsFor({run.recompute.row_ms * told, run.recompute.position_ms * told}));
  WITHY_RETURN_IF_ERROR(board->worker->Reattach());
  WITHY_ASSIGN_OR_RETURN(const StandInCall call, board->worker->Load(context));
  if (call.resident_tokens != call.context_tokens) {
    return absl::InternalError(absl::StrCat("of ", call.context_tokens, " tokens only ",
                                            call.resident_tokens, " came back"));
  }
  return call;
}

}  // namespace

absl::StatusOr<RecomputeGain> MeasureRecomputeGain(const ContextRun& of_model, uint32_t tokens,
                                                   double read_share) {
  // So much that nothing is recomputed.
  constexpr double kNever = 1e6;
  // The slowest disk that the store simulates. Where that would be too fast, recomputing takes
  // less.
  constexpr double kLeastBytesPerMs = (1 << 20) / 1e3;
  const double chunks = std::ceil(tokens / static_cast<double>(engine::kChunkTokens));
  const double bytes = static_cast<double>(of_model.kv.ChunkBytes()) * chunks;
  ContextRun run = of_model;
  const double faster =
      std::min(1.0, bytes / kLeastBytesPerMs / (run.recompute.Ms(0, tokens) * read_share) * 0.99);
  run.recompute.row_ms *= faster;
  run.recompute.position_ms *= faster;
  const double recompute_ms = run.recompute.Ms(0, tokens);
  const ContextSetting one{.contexts = 1, .budget_percent = 110};
  WITHY_ASSIGN_OR_RETURN(Board board,
                         MakeBoard("withy-8bit", ArenaBytes(one, run),
                                   static_cast<uint64_t>(bytes / (recompute_ms * read_share) * 1e3),
                                   run.kv, run.recompute, run.seed));
  WITHY_ASSIGN_OR_RETURN(StandInContext context, board.worker->CreateContext());
  WITHY_RETURN_IF_ERROR(Grow(*board.worker, tokens, tokens, &context));
  RecomputeGain gain{.read_share = read_share};
  gain.recompute_ms = board.worker->TimeRecompute(tokens);
  WITHY_ASSIGN_OR_RETURN(const StandInCall read, LoadAfterRestart(run, kNever, context, &board));
  gain.read_ms = read.load_ms;
  const auto plan = [&](double told, RecomputeGain::Planned* planned) -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(const StandInCall call, LoadAfterRestart(run, told, context, &board));
    *planned = {.ms = call.load_ms, .recomputed = call.recomputed_chunks / chunks};
    return absl::OkStatus();
  };
  WITHY_RETURN_IF_ERROR(plan(1, &gain.planned));
  WITHY_RETURN_IF_ERROR(plan(10, &gain.told_slow));
  WITHY_RETURN_IF_ERROR(plan(0.1, &gain.told_fast));
  return gain;
}

absl::StatusOr<ColdLoad> MeasureColdLoad(const ContextRun& run, uint32_t rounds) {
  const ContextSetting one{.contexts = 1, .budget_percent = 110};
  WITHY_ASSIGN_OR_RETURN(Board board, MakeBoard("withy-8bit", ArenaBytes(one, run), 0, run.kv,
                                                run.recompute, run.seed));
  WITHY_ASSIGN_OR_RETURN(StandInContext context, board.worker->CreateContext());
  WITHY_RETURN_IF_ERROR(Grow(*board.worker, run.max_tokens, run.max_tokens, &context));
  const double bytes =
      static_cast<double>(run.kv.ChunkBytes()) * static_cast<double>(context.chunks.size());
  std::vector<std::pair<double, ColdLoad>> measured;
  for (uint32_t round = 0; round < rounds; ++round) {
    board.processes->Kill("context_store");
    WITHY_RETURN_IF_ERROR(StartStore(run.kv, run.recompute, run.seed, &board));
    WITHY_ASSIGN_OR_RETURN(const double disk, DirectSpeed(board.processes->state_dir() + "/kv"));
    WITHY_ASSIGN_OR_RETURN(const StandInCall call, board.worker->Load(context));
    if (call.resident_tokens != call.context_tokens) {
      return absl::InternalError(absl::StrCat("of ", call.context_tokens, " tokens only ",
                                              call.resident_tokens, " came back from disk"));
    }
    const double speed = bytes / call.load_ms * 1e3;
    measured.push_back({speed / disk, {speed, disk, speed / disk}});
  }
  std::nth_element(measured.begin(), measured.begin() + rounds / 2, measured.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return measured[rounds / 2].second;
}

}  // namespace withy::bench
