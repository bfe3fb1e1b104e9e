#include "bench/speculation/speculation_wall_run.h"

#include <sys/stat.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "base/disk_io.h"
#include "base/huge_memory.h"
#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "bench/engine/peer_bench.h"
#include "bench/samples.h"
#include "bench/service/memory_cgroup.h"
#include "bench/speculation/speculation_wall_pair.h"
#include "bench/speculation/speculation_wall_service.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"

namespace withy::bench {
namespace {

constexpr double kDiskSeconds = 1.0;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::StatusOr<engine::ModelOptions> OptionsOf(const WallRun& run) {
  using Place = engine::ModelOptions::WeightPlace;
  engine::ModelOptions options;
  options.threads = run.threads;
  if (run.contestant == "resident") {
    options.weight_place = Place::kCopied;
  } else if (run.contestant == "mmap") {
    options.weight_place = Place::kMapped;
  } else if (run.contestant == "stream" || run.contestant == "layers") {
    options.weight_budget_bytes = run.budget_bytes;
    options.hooks.stream_whole_layers = run.contestant == "layers";
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--contestant ", run.contestant,
                     ": must be resident, mmap, stream, layers, peer, pair or service"));
  }
  return options;
}

class Decoder {
 public:
  explicit Decoder(engine::Model& model, int32_t tokens)
      : model_(model),
        kv_(model.info(), tokens + 1),
        logits_(static_cast<size_t>(model.info().vocab_size)) {}

  absl::Status Next() {
    const engine::Row row{.token = (position_ * 7919) % model_.info().vocab_size,
                          .position = position_,
                          .slot = position_,
                          .want_logits = true};
    ++position_;
    const engine::ContextView view = kv_.View();
    return model_.Forward({.rows = {&row, 1}, .contexts = {&view, 1}}, logits_.data());
  }

 private:
  engine::Model& model_;
  engine::ScratchKv kv_;
  std::vector<float> logits_;
  int32_t position_ = 0;
};

}  // namespace

absl::StatusOr<double> MeasureDisk(const std::string& path, double seconds) {
  constexpr uint64_t kRead = 1 << 20;
  constexpr uint32_t kDepth = 16;
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoError(absl::StrCat("stat ", path));
  const auto blocks = static_cast<uint64_t>(info.st_size) / kRead;
  WITHY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenDiskFile(path, {}));
  WITHY_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(kRead * kDepth));
  const std::unique_ptr<DiskQueue> queue = DiskQueue::CreateBest(kDepth);
  queue->Prepare(memory.bytes());
  uint64_t next = 0, done = 0;
  const auto submit = [&](uint64_t tag) {
    queue->Submit({.fd = fd.get(),
                   .offset = next++ % blocks * kRead,
                   .memory = memory.bytes().subspan(tag * kRead, kRead),
                   .tag = tag});
  };
  const double started = Now();
  for (uint64_t tag = 0; tag < kDepth; ++tag) submit(tag);
  double elapsed = 0;
  for (uint64_t under_way = kDepth; under_way > 0;) {
    const auto completion = queue->Wait();
    if (!completion.has_value()) continue;
    if (completion->result != static_cast<int64_t>(kRead)) {
      return absl::InternalError(absl::StrCat("reading ", path, " with O_DIRECT failed"));
    }
    ++done;
    elapsed = Now() - started;
    if (elapsed < seconds) {
      submit(completion->tag);
    } else {
      --under_way;
    }
  }
  return static_cast<double>(done * kRead) / elapsed;
}

namespace {

absl::StatusOr<WallResult> RunPeer(const WallRun& run) {
  constexpr int32_t kPrompt = 1;
  WITHY_ASSIGN_OR_RETURN(const PeerBench peer, PeerBench::Open(run.program));
  WITHY_ASSIGN_OR_RETURN(const PeerSpeed speed, peer.Run(run.gguf, run.threads, kPrompt, run.tokens,
                                                         PeerBench::Repack::kNever));
  WallResult result;
  result.token_s = 1 / speed.decode_tok_s;
  return result;
}

nlohmann::json ToJson(const WallAnswer& one) {
  const DecodedAnswer& a = one.answer;
  return {{"way", one.way},
          {"prompt", one.prompt},
          {"tokens", a.tokens},
          {"decoded", a.decoded},
          {"target_passes", a.target_passes},
          {"drafted", a.drafted},
          {"accepted", a.accepted},
          {"ms", a.ms},
          {"draft_ms", a.draft_ms},
          {"window_drafted", a.window_drafted}};
}

WallAnswer ParseAnswer(const nlohmann::json& json) {
  WallAnswer one{json.value("way", ""), json.value("prompt", 0), {}};
  one.answer.tokens = json.value("tokens", std::vector<int32_t>());
  one.answer.decoded = json.value("decoded", 0);
  one.answer.target_passes = json.value("target_passes", 0);
  one.answer.drafted = json.value("drafted", int64_t{0});
  one.answer.accepted = json.value("accepted", int64_t{0});
  one.answer.ms = json.value("ms", 0.0);
  one.answer.draft_ms = json.value("draft_ms", 0.0);
  one.answer.window_drafted = json.value("window_drafted", 0);
  return one;
}

}  // namespace

absl::StatusOr<WallResult> RunContestant(const WallRun& run) {
  if (run.contestant == "peer") return RunPeer(run);
  if (run.contestant == "pair") return RunPair(run);
  if (run.contestant == "service") return RunService(run);
  WITHY_ASSIGN_OR_RETURN(const engine::ModelOptions options, OptionsOf(run));
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Model> model,
                         engine::Model::Open(run.packed, options));
  Decoder decoder(*model, run.tokens + 2);
  WITHY_RETURN_IF_ERROR(decoder.Next());  // warms up, and fills what the kernel keeps of a mapping
  WallResult result;
  WITHY_ASSIGN_OR_RETURN(const double disk_before, MeasureDisk(run.packed, kDiskSeconds));
  WITHY_RETURN_IF_ERROR(decoder.Next());  // reads ahead while the disk was measured are used up
  std::vector<double> times;
  const engine::WeightStreamStats before = model->weight_stats();
  const double started = Now();
  double last = started;
  for (int32_t i = 0; i < run.tokens && last - started < run.seconds; ++i) {
    WITHY_RETURN_IF_ERROR(decoder.Next());
    const double now = Now();
    times.push_back(now - last);
    last = now;
  }
  const engine::WeightStreamStats after = model->weight_stats();
  if (!run.cgroup.empty()) result.memory_bytes = CgroupMemory(run.cgroup);
  WITHY_ASSIGN_OR_RETURN(const double disk_after, MeasureDisk(run.packed, kDiskSeconds));
  result.token_s = Summarize(times).median;
  result.read_bytes_s =
      static_cast<double>(after.read_bytes - before.read_bytes) / (last - started);
  result.wait_share = static_cast<double>(after.wait_ns - before.wait_ns) / 1e9 / (last - started);
  result.disk_bytes_s = (disk_before + disk_after) / 2;
  result.weights_bytes = after.resident_bytes + after.buffer_bytes;
  result.pass_bytes = after.pass_bytes;
  result.locked_bytes = static_cast<int64_t>(after.locked_bytes);
  result.direct = after.direct;
  return result;
}

std::string ToJson(const WallResult& r) {
  nlohmann::json answers = nlohmann::json::array();
  for (const WallAnswer& one : r.answers) answers.push_back(ToJson(one));
  return nlohmann::json{{"token_s", r.token_s},
                        {"read_bytes_s", r.read_bytes_s},
                        {"wait_share", r.wait_share},
                        {"disk_bytes_s", r.disk_bytes_s},
                        {"memory_bytes", r.memory_bytes},
                        {"weights_bytes", r.weights_bytes},
                        {"pass_bytes", r.pass_bytes},
                        {"locked_bytes", r.locked_bytes},
                        {"direct", r.direct},
                        {"answers", answers}}
      .dump();
}

absl::StatusOr<WallResult> ParseWallResult(const std::string& json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("token_s")) {
    return absl::InternalError(absl::StrCat("a contestant printed no result: ", json));
  }
  WallResult r;
  r.token_s = parsed.value("token_s", 0.0);
  r.read_bytes_s = parsed.value("read_bytes_s", 0.0);
  r.wait_share = parsed.value("wait_share", 0.0);
  r.disk_bytes_s = parsed.value("disk_bytes_s", 0.0);
  r.memory_bytes = parsed.value("memory_bytes", uint64_t{0});
  r.weights_bytes = parsed.value("weights_bytes", uint64_t{0});
  r.pass_bytes = parsed.value("pass_bytes", uint64_t{0});
  r.locked_bytes = parsed.value("locked_bytes", int64_t{0});
  r.direct = parsed.value("direct", false);
  for (const auto& one : parsed.value("answers", nlohmann::json::array())) {
    r.answers.push_back(ParseAnswer(one));
  }
  return r;
}

}  // namespace withy::bench
