// withy-bench-engine: measures the engine's speed on this machine, against the machine's ceilings
// and against other runtimes. Prints a table and last one JSON line on stdout; progress on stderr.
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "base/strings.h"
#include "bench/engine/engine_bench.h"
#include "bench/engine/peer_bench.h"
#include "bench/samples.h"
#include "engine/model/model.h"

ABSL_FLAG(std::string, model, "", "a GGUF (packed first when needed) or a packed file");
ABSL_FLAG(int, threads, 2, "compute threads");
ABSL_FLAG(std::vector<std::string>, peer, {},
          "llama-bench programs to compare with, at least nine interleaved pairs");
ABSL_FLAG(int, runs, 9, "measurements of each figure");
ABSL_FLAG(std::string, device, "", "cpu (default), cuda or cuda:N");
ABSL_FLAG(std::string, target, "", "kernel target; default: the best of this CPU");
ABSL_FLAG(std::string, weights, "auto",
          "mapped, copied into pages of 2 MiB, or auto: copied where there is room for twice their "
          "bytes");
ABSL_FLAG(std::string, cache_dir, "", "directory of packed files; default: as the engine's");

namespace withy::bench {
namespace {

constexpr int kPairs = 9;

struct Options {
  std::string model;
  std::vector<std::string> peers;
  int runs = kPairs;
  engine::ModelOptions engine;
};

absl::StatusOr<engine::ModelOptions::WeightPlace> ParsePlace(const std::string& text) {
  using Place = engine::ModelOptions::WeightPlace;
  if (text == "auto") return Place::kAuto;
  if (text == "mapped") return Place::kMapped;
  if (text == "copied") return Place::kCopied;
  return absl::InvalidArgumentError(
      absl::StrCat("--weights ", text, ": must be auto, mapped or copied"));
}

absl::StatusOr<Options> OptionsOfFlags() {
  Options options{.model = absl::GetFlag(FLAGS_model),
                  .peers = absl::GetFlag(FLAGS_peer),
                  .runs = absl::GetFlag(FLAGS_runs),
                  .engine = {}};
  WITHY_RETURN_IF_ERROR(CheckFlag("runs", options.runs, 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("threads", absl::GetFlag(FLAGS_threads), 1, 256));
  options.engine.threads = absl::GetFlag(FLAGS_threads);
  options.engine.device = absl::GetFlag(FLAGS_device);
  options.engine.on_device = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  options.engine.target = absl::GetFlag(FLAGS_target);
  options.engine.cache_dir = absl::GetFlag(FLAGS_cache_dir);
  WITHY_ASSIGN_OR_RETURN(options.engine.weight_place, ParsePlace(absl::GetFlag(FLAGS_weights)));
  return options;
}

void Say(const std::string& what) { std::fprintf(stderr, "\r\033[K%s", what.c_str()); }

// Measures each figure right beside its ceiling, because the load of other processes changes.
absl::Status MeasureAlone(EngineBench& bench, int runs, Samples* report) {
  for (int run = 0; run < runs; ++run) {
    Say(absl::StrCat("alone, ", run + 1, " of ", runs));
    const double peak = bench.Peak();
    WITHY_ASSIGN_OR_RETURN(double prefill, bench.Prefill());
    report->Add("prefill_tok_s", prefill);
    report->Add("prefill_fraction_of_peak",
                prefill / kPrefillTokens * bench.PrefillOperations() / peak);
    const double bandwidth = bench.Bandwidth();
    WITHY_ASSIGN_OR_RETURN(double decode, bench.Decode(1, 0));
    report->Add("decode_tok_s", decode);
    report->Add("decode_fraction_of_bandwidth", decode * bench.DecodeBytes() / bandwidth);
    WITHY_ASSIGN_OR_RETURN(double batch, bench.Decode(kBatchRows, 0));
    report->Add("batch4_vs_1", batch / decode);
    report->Add("int8 peak, TOPS", peak / 1e12);
    report->Add("read bandwidth, GB/s", bandwidth / 1e9);
  }
  return absl::OkStatus();
}

// On a GPU, whose ceilings `withyctl device` measures.
absl::Status MeasureOnDevice(EngineBench& bench, const engine::ModelInfo& info, int runs,
                             Samples* report) {
  for (int run = 0; run < runs; ++run) {
    Say(absl::StrCat("on the device, ", run + 1, " of ", runs));
    WITHY_ASSIGN_OR_RETURN(double decode, bench.Decode(1, 0));
    report->Add("decode_tok_s", decode);
    report->Add("decode_gb_s", decode * bench.DecodeBytes() / 1e9);
    for (const int32_t rows : {2, 4, kMostRows}) {
      WITHY_ASSIGN_OR_RETURN(double batch, bench.Decode(rows, 0));
      report->Add(absl::StrCat("batch", rows, "_vs_1"), batch / decode);
    }
    WITHY_ASSIGN_OR_RETURN(double prefill, bench.Prefill());
    report->Add("prefill_tok_s", prefill);
    if (info.context_length < kDepthTokens + kDecodeTokens) continue;
    WITHY_ASSIGN_OR_RETURN(double longer, bench.Prefill(kDepthTokens));
    report->Add("prefill2048_tok_s", longer);
    WITHY_ASSIGN_OR_RETURN(double deep, bench.Decode(1, kDepthTokens));
    report->Add("depth2048_vs_0", deep / decode);
  }
  return absl::OkStatus();
}

absl::Status MeasureDepth(EngineBench& bench, const engine::ModelInfo& info, int runs,
                          Samples* report) {
  if (info.context_length < kDepthTokens + kDecodeTokens) {
    std::fprintf(stderr, "\nthe model's context of %d tokens is too short for depth %d\n",
                 info.context_length, kDepthTokens);
    return absl::OkStatus();
  }
  Say("filling a context");
  for (int run = 0; run < runs; ++run) {
    WITHY_ASSIGN_OR_RETURN(double shallow, bench.Decode(1, 0));
    if (run == 0) WITHY_RETURN_IF_ERROR(bench.Fill());
    Say(absl::StrCat("at depth 2048, ", run + 1, " of ", runs));
    WITHY_ASSIGN_OR_RETURN(double deep, bench.Decode(1, kDepthTokens));
    report->Add("depth2048_vs_0", deep / shallow);
  }
  return absl::OkStatus();
}

absl::Status MeasureHog(EngineBench& bench, int runs, Samples* report) {
  for (int run = 0; run < runs; ++run) {
    Say(absl::StrCat("beside a busy process, ", run + 1, " of ", runs));
    WITHY_ASSIGN_OR_RETURN(double alone, bench.Decode(1, 0));
    WITHY_ASSIGN_OR_RETURN(std::unique_ptr<BusyNeighbour> hog, BusyNeighbour::Start());
    WITHY_ASSIGN_OR_RETURN(double beside, bench.Decode(1, 0));
    report->Add("hog_vs_alone", beside / alone);
  }
  return absl::OkStatus();
}

// Measures our engine and each peer in turn. The JSON line has the ratio to the best peer.
absl::Status MeasurePeers(EngineBench& bench, const Options& options, Samples* report) {
  std::vector<PeerBench> peers;
  for (const std::string& program : options.peers) {
    WITHY_ASSIGN_OR_RETURN(PeerBench peer, PeerBench::Open(program));
    peers.push_back(std::move(peer));
  }
  const int pairs = std::max(options.runs, kPairs);
  for (int pair = 0; pair < pairs && !peers.empty(); ++pair) {
    std::vector<double> prefill_ratios;
    std::vector<double> decode_ratios;
    for (const PeerBench& peer : peers) {
      Say(absl::StrCat("against ", peer.program(), ", ", pair + 1, " of ", pairs));
      WITHY_ASSIGN_OR_RETURN(double prefill, bench.Prefill());
      WITHY_ASSIGN_OR_RETURN(double decode, bench.Decode(1, 0));
      WITHY_ASSIGN_OR_RETURN(PeerSpeed speed, peer.Run(options.model, options.engine.threads,
                                                       kPrefillTokens, kDecodeTokens));
      prefill_ratios.push_back(prefill / speed.prefill_tok_s);
      decode_ratios.push_back(decode / speed.decode_tok_s);
      report->Add(absl::StrCat("prefill tok/s of ", peer.program()), speed.prefill_tok_s);
      report->Add(absl::StrCat("decode tok/s of ", peer.program()), speed.decode_tok_s);
    }
    report->Add("prefill_vs_peer", *std::min_element(prefill_ratios.begin(), prefill_ratios.end()));
    report->Add("decode_vs_peer", *std::min_element(decode_ratios.begin(), decode_ratios.end()));
  }
  return absl::OkStatus();
}

absl::Status Main() {
  WITHY_ASSIGN_OR_RETURN(const Options options, OptionsOfFlags());
  // Binds before any thread starts, so that all threads and the busy neighbour share the cores.
  WITHY_RETURN_IF_ERROR(PinToCores(options.engine.threads));
  engine::ModelOptions engine_options = options.engine;
  engine_options.progress = [](double done, std::string_view what) {
    Say(absl::StrCat("packing ", static_cast<int>(done * 100), " % (", ToAbsl(what), ")"));
  };
  const auto start = std::chrono::steady_clock::now();
  WITHY_ASSIGN_OR_RETURN(std::unique_ptr<engine::Model> model,
                         engine::Model::Open(options.model, engine_options));
  const double open_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const engine::ModelInfo& info = model->info();
  std::printf("%s: %s, %.1f M parameters, %.1f MiB of weights; %d threads, %s; opened in %.2f s\n",
              info.name.c_str(), info.quantisation.c_str(),
              static_cast<double>(info.parameters) / 1e6,
              static_cast<double>(info.weight_bytes) / (1 << 20), model->threads(),
              std::string(model->target()).c_str(), open_s);
  EngineBench bench(*model);
  Say("warming up");
  WITHY_RETURN_IF_ERROR(bench.Prefill().status());
  Samples report;
  if (options.engine.device.empty() || options.engine.device == "cpu") {
    WITHY_RETURN_IF_ERROR(MeasureAlone(bench, options.runs, &report));
    WITHY_RETURN_IF_ERROR(MeasureDepth(bench, info, options.runs, &report));
    WITHY_RETURN_IF_ERROR(MeasureHog(bench, options.runs, &report));
  } else {
    WITHY_RETURN_IF_ERROR(MeasureOnDevice(bench, info, options.runs, &report));
  }
  WITHY_RETURN_IF_ERROR(MeasurePeers(bench, options, &report));
  Say("");
  report.Print(stdout);
  nlohmann::ordered_json line;
  for (const std::string& key : report.keys()) {
    // Keys with a space are details and only appear in the table.
    if (key.find(' ') == std::string::npos) line[key] = report.Median(key);
  }
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Measures the engine's speed against this machine's ceilings and other runtimes.\n"
      "usage: withy-bench-engine --model FILE [--threads N] [--peer LLAMA_BENCH,LLAMA_BENCH]",
      argc, argv, withy::bench::Main, [] { return !absl::GetFlag(FLAGS_model).empty(); });
}
