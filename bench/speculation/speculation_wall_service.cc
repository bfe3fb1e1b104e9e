#include "bench/speculation/speculation_wall_service.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/service/memory_cgroup.h"
#include "bench/service/own_service.h"
#include "bench/speculation/speculation_wall_pair.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/packed_file.h"
#include "wire/speculation.h"

namespace withy::bench {
namespace {

absl::StatusOr<std::unique_ptr<OwnService>> Start(const WallRun& run) {
  const std::string threads = absl::StrCat("threads: ", run.threads);
  std::string model = absl::StrCat(threads, " path: \"", run.packed, "\"");
  if (run.budget_bytes > 0) absl::StrAppend(&model, " weight_budget_bytes: ", run.budget_bytes);
  return OwnService::Start(
      {.orchestrator = "probe_off: true",
       .model = model,
       .draft = absl::StrCat(threads, " path: \"", run.draft.empty() ? "off" : run.draft, "\"")});
}

// Of a packed file or a GGUF.
absl::StatusOr<std::unique_ptr<engine::Tokenizer>> TokenizerOf(const std::string& path) {
  if (!engine::PackedFile::LooksPacked(path)) {
    WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
    return engine::MakeTokenizer(file);
  }
  WITHY_ASSIGN_OR_RETURN(const auto file, engine::PackedFile::Open(path));
  return engine::MakeTokenizer(file->metadata());
}

v1::GenerateRequest RequestOf(const corpus::Record& record, const WallRun& run,
                              const DecodeWay& way) {
  v1::GenerateRequest request;
  for (const corpus::Message& message : record.messages) {
    v1::Message* wire = request.mutable_prompt()->mutable_messages()->add_messages();
    wire->set_role(message.role);
    wire->set_content(message.content);
  }
  request.mutable_limits()->set_max_tokens(static_cast<uint32_t>(run.answer_tokens));
  request.mutable_sampling()->set_temperature(0);
  request.set_speculation(wire::ToWire(way.speculation));
  return request;
}

DecodedAnswer AnswerOf(const ServedAnswer& served) {
  const v1::SpeculationReport& report = served.finished.speculation();
  DecodedAnswer answer{.tokens = served.tokens};
  answer.decoded = served.tpot_ms > 0 ? static_cast<int32_t>(served.tokens.size()) - 1 : 0;
  answer.target_passes = static_cast<int32_t>(report.target_passes());
  answer.window_drafted = static_cast<int32_t>(report.window_drafted_tokens());
  for (const v1::SourceReport& source : report.sources()) {
    answer.drafted += source.drafted_tokens();
    answer.accepted += source.accepted_tokens();
  }
  answer.ms = served.decode_ms;
  return answer;
}

}  // namespace

absl::StatusOr<WallResult> RunService(const WallRun& run) {
  constexpr int kFirstPrompts = 2;  // asked before, so that drafts' confidence is known
  std::vector<WallWay> ways;
  for (const std::string& name : run.ways) {
    WITHY_ASSIGN_OR_RETURN(WallWay way, ParseWay(name));
    ways.push_back(std::move(way));
  }
  WITHY_ASSIGN_OR_RETURN(const auto tokenizer, TokenizerOf(run.packed));
  WITHY_ASSIGN_OR_RETURN(const std::vector<corpus::Record> prompts,
                         WallPrompts(run, *tokenizer, run.prompts + kFirstPrompts));
  if (!run.cgroup.empty()) ForgetCgroupPeak(run.cgroup);
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<OwnService> service, Start(run));
  const auto count = static_cast<size_t>(run.prompts);
  for (size_t first = count; first < prompts.size(); ++first) {
    for (const WallWay& way : ways) {
      WITHY_RETURN_IF_ERROR(service->Ask(RequestOf(prompts[first], run, way.decode)).status());
    }
  }
  WallResult result;
  for (size_t prompt = 0; prompt < count; ++prompt) {
    for (size_t i = 0; i < ways.size(); ++i) {
      const WallWay& way = ways[(prompt + i) % ways.size()];  // none is always first
      WITHY_ASSIGN_OR_RETURN(const ServedAnswer served,
                             service->Ask(RequestOf(prompts[prompt], run, way.decode)));
      result.answers.push_back({way.name, static_cast<int32_t>(prompt), AnswerOf(served)});
    }
  }
  result.token_s = SumOf(result.answers).token_s();
  if (!run.cgroup.empty()) result.memory_bytes = CgroupPeak(run.cgroup);
  return result;
}

}  // namespace withy::bench
