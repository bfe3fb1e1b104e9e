#include "cli/device_report.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/strings.h"
#include "base/ticks.h"
#include "cli/output.h"
#include "cli/terminal_text.h"
#include "engine/cuda/gpu/gpu_clock.h"
#include "engine/cuda/gpu/memory_ways.h"
#include "engine/cuda/gpu/self_check.h"
#include "engine/model/gpu_check.h"

namespace withy::cli {
namespace {

using engine::cuda::Gpu;
using engine::cuda::GpuFacts;
using engine::cuda::MemoryWay;
using engine::cuda::WayResult;

std::string Line(const absl::Status& status) { return Printable(ToStd(status.message())); }

std::string WayState(const WayResult& way) {
  if (way.bytes == 0) return absl::StrCat("left out: ", Printable(way.left_out));
  const std::string speed = way.bytes_per_second > 0
                                ? absl::StrFormat("%.1f GB/s", way.bytes_per_second / 1e9)
                                : "not timed";
  return absl::StrCat(
      speed, way.wrong == 0 ? ", right" : absl::StrCat(", ", way.wrong, " words are WRONG"), " (",
      Bytes(way.bytes), " read)");
}

void AddMemory(Gpu& gpu, std::vector<GpuFact>* facts) {
  const GpuFacts of_gpu = gpu.facts();
  facts->push_back(
      {"memory", absl::StrCat(Bytes(of_gpu.total_bytes), ", ", Bytes(of_gpu.free_bytes), " free, ",
                              of_gpu.integrated ? "the board's" : "its own")});
  const auto ways = engine::cuda::MeasureMemory(gpu, /*all=*/true);
  if (!ways.ok()) {
    facts->push_back({"memory ways", Line(ways.status())});
    return;
  }
  for (const WayResult& way : *ways) {
    facts->push_back({absl::StrCat(std::string(engine::cuda::MemoryWayName(way.way)), " memory",
                                   way.way == MemoryWay::kRegistered ? " (KV)" : ""),
                      WayState(way)});
  }
  const MemoryWay best = engine::cuda::WayForWeights(*ways);
  facts->push_back(
      {"weights", absl::StrCat("in ", std::string(engine::cuda::MemoryWayName(best)), " memory")});
}

std::string RateState(const absl::StatusOr<double>& rate, std::string_view by) {
  if (!rate.ok()) return Line(rate.status());
  const std::string speed = *rate > 0 ? absl::StrFormat("%.1f Tops", *rate / 1e12) : "not timed";
  return Printable(absl::StrCat(speed, " by ", std::string(by)));
}

std::string DenseState(Gpu& gpu) {
  const auto math = gpu.OpenDense();
  if (!math.ok()) return absl::StrCat("none: ", Line(math.status()));
  const absl::Status right = engine::cuda::CheckDense(gpu, **math);
  if (!right.ok()) return Line(right);
  return RateState(engine::cuda::MeasureF16Rate(gpu, **math), (*math)->description());
}

void AddMatrixUnits(Gpu& gpu, std::vector<GpuFact>* facts) {
  facts->push_back({"int8 products", RateState(engine::cuda::MeasureMmaRate(gpu), "mma")});
  facts->push_back({"F16 products", DenseState(gpu)});
  const auto rows = engine::cuda::MeasureMmaRows(gpu, [] { return Clock::Real().SteadyNanos(); });
  facts->push_back({"matrix units", rows.ok()
                                        ? absl::StrCat("faster than dp4a from ", *rows, " rows on")
                                        : Line(rows.status())});
}

void AddClock(Gpu& gpu, std::vector<GpuFact>* facts) {
  engine::cuda::GpuClock clock(gpu, TickClock());
  const absl::Status opened = clock.Open();
  facts->push_back({"timer", opened.ok()
                                 ? absl::StrFormat("steps of %d ns; a stamp takes %.2f us",
                                                   clock.step_ns(), clock.ticks_of_stamp() / 1e3)
                                 : Line(opened)});
}

void AddChecks(Gpu& gpu, std::vector<GpuFact>* facts) {
  facts->push_back(
      {"repack, products", "passed: f32, f16, bf16, 8 and 4 bits; dp4a and mma equal bit for bit"});
  const auto check = engine::CheckGpu(gpu);
  facts->push_back(
      {"all kernels",
       check.ok()
           ? absl::StrFormat(
                 "passed: embed, norm, products, gate and up, store_kv, gather, keep, "
                 "attend, attend_tiles, merge; %d rows of a small model, cosine %.6f with the CPU",
                 check->rows, check->least_cosine)
           : Line(check.status())});
}

}  // namespace

std::vector<GpuFact> ReportGpu(Gpu& gpu) {
  std::vector<GpuFact> facts = {{"card", Printable(std::string(gpu.description()))}};
  const GpuFacts of_gpu = gpu.facts();
  if (!of_gpu.driver.empty()) {
    facts.push_back(
        {"driver", Printable(absl::StrCat(of_gpu.driver, "; built with ", of_gpu.built))});
  }
  AddChecks(gpu, &facts);
  AddMemory(gpu, &facts);
  AddMatrixUnits(gpu, &facts);
  AddClock(gpu, &facts);
  return facts;
}

}  // namespace withy::cli
