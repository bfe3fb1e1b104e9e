#include "bench/slo/slo_measure.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "base/status.h"
#include "base/unique_fd.h"
#include "bench/engine/engine_bench.h"
#include "bench/samples.h"
#include "engine/model/scratch_kv.h"

namespace withy::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int32_t kDepth = 256;
constexpr int32_t kDeepRows = 64;
constexpr std::array<size_t, 6> kTextBytes = {128, 256, 512, 1024, 2048, 4096};

double MillisSince(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

// One context whose first kDepth tokens are computed.
class Passes {
 public:
  explicit Passes(engine::Model& model)
      : model_(model),
        kv_(model.info(), kDepth + kPassRows.back()),
        logits_(static_cast<size_t>(model.info().vocab_size)) {}

  absl::StatusOr<double> Run(int32_t level, int32_t rows, int32_t depth) {
    std::vector<engine::Row> batch;
    for (int32_t i = 0; i < rows; ++i) {
      batch.push_back({.token = (i * 37 + depth) % model_.info().vocab_size,
                       .position = depth + i,
                       .slot = depth + i,
                       .level = level,
                       .want_logits = i + 1 == rows});
    }
    const engine::ContextView view = kv_.View();
    const SteadyClock::time_point start = SteadyClock::now();
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = batch, .contexts = {&view, 1}}, logits_.data()));
    return MillisSince(start);
  }

 private:
  engine::Model& model_;
  engine::ScratchKv kv_;
  std::vector<float> logits_;
};

// Samples of one level.
struct LevelSamples {
  std::array<std::vector<double>, kPassRows.size()> pass;
  std::vector<double> deep_many, deep_one;
};

absl::Status MeasureRound(Passes& passes, int32_t level, LevelSamples* samples) {
  // Fills the context, too.
  for (int32_t depth = 0; depth < kDepth; depth += kPassRows.back()) {
    WITHY_RETURN_IF_ERROR(passes.Run(level, kPassRows.back(), depth).status());
  }
  for (size_t i = 0; i < kPassRows.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(samples->pass[i].emplace_back(), passes.Run(level, kPassRows[i], 0));
  }
  WITHY_ASSIGN_OR_RETURN(samples->deep_many.emplace_back(), passes.Run(level, kDeepRows, kDepth));
  WITHY_ASSIGN_OR_RETURN(samples->deep_one.emplace_back(), passes.Run(level, 1, kDepth));
  return absl::OkStatus();
}

VariantTimes TimesOf(const LevelSamples& samples) {
  VariantTimes times;
  for (size_t i = 0; i < kPassRows.size(); ++i) {
    times.pass_ms[i] = Summarize(samples.pass[i]).median;
    // More rows never take less.
    if (i > 0) times.pass_ms[i] = std::max(times.pass_ms[i], times.pass_ms[i - 1]);
  }
  const auto depth_us = [](double deep_ms, double ms, int32_t rows) {
    return std::max(0.0, (deep_ms - ms) * 1e3 / rows / kDepth);
  };
  times.prefill_depth_us =
      depth_us(Summarize(samples.deep_many).median, times.PassMs(kDeepRows, 0), kDeepRows);
  times.decode_depth_us = depth_us(Summarize(samples.deep_one).median, times.pass_ms[0], 1);
  return times;
}

// A file mapped for reading.
class Mapping {
 public:
  static absl::StatusOr<std::unique_ptr<Mapping>> Open(const std::string& path) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!fd.valid() || fstat(fd.get(), &status) != 0) return ErrnoError("open " + path);
    const auto bytes = static_cast<size_t>(status.st_size);
    void* address = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (address == MAP_FAILED) return ErrnoError("map " + path);
    return std::unique_ptr<Mapping>(new Mapping(address, bytes));
  }
  ~Mapping() { munmap(address_, bytes_); }
  const void* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  void* address_;
  size_t bytes_;
};

absl::StatusOr<double> CopyMs(const std::string& path, int rounds) {
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<Mapping> mapping, Mapping::Open(path));
  std::vector<char> copy(mapping->bytes());
  std::vector<double> ms;
  for (int round = 0; round < rounds; ++round) {
    const SteadyClock::time_point start = SteadyClock::now();
    std::memcpy(copy.data(), mapping->address(), copy.size());
    ms.push_back(MillisSince(start));
  }
  return Summarize(ms).median / static_cast<double>(copy.size());
}

absl::Status Forget(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError("open " + path);
  if (fsync(fd.get()) != 0) return ErrnoError("sync " + path);
  if (posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) != 0) return ErrnoError("forget " + path);
  return absl::OkStatus();
}

absl::StatusOr<double> LoadMs(const std::string& path, const engine::ModelOptions& options,
                              int rounds) {
  std::vector<double> ms;
  double bytes = 1;
  for (int round = 0; round < rounds; ++round) {
    WITHY_RETURN_IF_ERROR(Forget(path));
    const SteadyClock::time_point start = SteadyClock::now();
    WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model,
                           engine::Model::Open(path, options));
    Passes passes(*model);
    WITHY_RETURN_IF_ERROR(passes.Run(-1, 1, 0).status());
    const double loaded_ms = MillisSince(start);
    WITHY_ASSIGN_OR_RETURN(const double warm_ms, passes.Run(-1, 1, 0));
    ms.push_back(std::max(0.0, loaded_ms - warm_ms));
    bytes = static_cast<double>(model->info().levels.back().weight_bytes);
  }
  return Summarize(ms).median / bytes;
}

}  // namespace

absl::StatusOr<std::vector<VariantTimes>> MeasureVariants(engine::Model& model, int rounds) {
  if (model.info().context_length < kDepth + kPassRows.back()) {
    return absl::InvalidArgumentError(absl::StrCat("the model's context of ",
                                                   model.info().context_length,
                                                   " tokens is too short to be measured"));
  }
  Passes passes(model);
  std::vector<LevelSamples> samples(model.info().levels.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t level = 0; level < samples.size(); ++level) {
      WITHY_RETURN_IF_ERROR(MeasureRound(passes, static_cast<int32_t>(level), &samples[level]));
      if (round == 0) samples[level] = {};  // warm now
    }
  }
  std::vector<VariantTimes> times;
  for (const LevelSamples& level : samples) times.push_back(TimesOf(level));
  return times;
}

absl::StatusOr<TlmTimes> MeasureTlm(engine::Tlm& tlm, std::string_view text, int rounds) {
  std::string all;
  while (all.size() < kTextBytes.back()) absl::StrAppend(&all, ToAbsl(text), "\n");
  std::array<std::vector<double>, kTextBytes.size()> samples;
  for (int round = 0; round <= rounds; ++round) {
    for (size_t i = 0; i < kTextBytes.size(); ++i) {
      const SteadyClock::time_point start = SteadyClock::now();
      WITHY_RETURN_IF_ERROR(
          tlm.Read(std::string_view(all).substr(0, kTextBytes[i]), engine::TlmSlo{}).status());
      if (round > 0) samples[i].push_back(MillisSince(start));
    }
  }
  TlmTimes times;
  for (size_t i = 0; i < kTextBytes.size(); ++i) {
    times.points.emplace_back(kTextBytes[i], Summarize(samples[i]).median);
  }
  return times;
}

absl::StatusOr<SwitchTimes> MeasureSwitch(const std::string& packed_path,
                                          const engine::ModelOptions& options, int rounds) {
  SwitchTimes times;
  WITHY_ASSIGN_OR_RETURN(times.load_ms_per_byte, LoadMs(packed_path, options, rounds));
  WITHY_ASSIGN_OR_RETURN(times.copy_ms_per_byte, CopyMs(packed_path, rounds));
  return times;
}

}  // namespace withy::bench
