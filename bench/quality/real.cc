// withy-bench-real: a real model through the engine and the service against an independent runtime
// on the same file: whether chats, tokens and predictions are the same, what the HTTP API adds to
// the first token, and with --peer the speeds in turn. Prints a table on stderr and one JSON line
// last on stdout; what cannot be compared here is left out, and the table says why. Neighbours:
// real_peer.h asks the other runtime, real_texts.h has the texts, real_door.h runs the service.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/engine/engine_bench.h"
#include "bench/quality/real_door.h"
#include "bench/quality/real_peer.h"
#include "bench/quality/real_texts.h"
#include "bench/samples.h"
#include "engine/session/served_model.h"
#include "engine/session/text_scorer.h"

ABSL_FLAG(std::string, model, "", "GGUF file of a published model");
ABSL_FLAG(std::string, source, ".", "the project's directory: its documents are texts");
ABSL_FLAG(std::string, python, "",
          "a python3 with xllamacpp, numpy and jinja2; empty: nothing is compared");
ABSL_FLAG(bool, peer, false, "also measure both speeds, in turn");
ABSL_FLAG(int, threads, 2, "of both runtimes");
ABSL_FLAG(int, chats, 200, "chats that are rendered");
ABSL_FLAG(int, text_kb, 400, "text that is tokenized, in kB");
ABSL_FLAG(int, windows, 6, "windows of 512 tokens that are predicted");
ABSL_FLAG(int, rounds, 9, "pairs of measurements of each speed");
ABSL_FLAG(int, door_rounds, 40, "pairs of calls, by HTTP and gRPC; 0: none");

namespace withy::bench {
namespace {

constexpr int32_t kRealWindow = 512;
constexpr size_t kPieceBytes = 1000;

// What is printed.
class Report {
 public:
  void Add(const std::string& key, double value, const std::string& what) {
    json_[key] = value;
    std::fprintf(stderr, "%-22s %10.4f  %s\n", key.c_str(), value, what.c_str());
  }
  void LeaveOut(const std::string& keys, const std::string& why) {
    std::fprintf(stderr, "%-22s %10s  %s\n", keys.c_str(), "-", why.c_str());
  }
  void Name(const std::string& key, const std::string& value) { json_[key] = value; }
  std::string Line() const { return json_.dump(); }

 private:
  nlohmann::ordered_json json_;
};

absl::StatusOr<std::string> PromptAsSeen(const engine::ServedModel& model, const Chat& chat) {
  std::vector<engine::Segment> segments;
  for (const ChatTurn& turn : chat) {
    segments.push_back({.role = turn.role, .text = turn.content});
    segments.back().ended = turn.role == "assistant";
  }
  WITHY_ASSIGN_OR_RETURN(const engine::EncodedConversation encoded,
                         model.encoder.MeasurePrompt(segments, model.window));
  return model.bundle.tokenizer->Decode(encoded.ids, /*render_special=*/true);
}

absl::Status CompareTemplates(const engine::ServedModel& model, RealPeer& peer, Report& report) {
  const auto source = model.bundle.model->metadata().GetString("tokenizer.chat_template");
  if (!source.ok()) {
    report.LeaveOut("template_equal", "the file has no chat template");
    return absl::OkStatus();
  }
  const auto chats = RealChats(33, static_cast<size_t>(absl::GetFlag(FLAGS_chats)));
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::string> wanted,
                         peer.Render(std::string(*source), chats));
  int equal = 0;
  std::string first;
  for (size_t i = 0; i < chats.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(const std::string seen, PromptAsSeen(model, chats[i]));
    if (seen == wanted[i]) {
      ++equal;
    } else if (first.empty()) {
      first = absl::StrCat("\n  ours: ", nlohmann::json(seen).dump(),
                           "\n  jinja2: ", nlohmann::json(wanted[i]).dump());
    }
  }
  report.Add("template_equal", equal / static_cast<double>(chats.size()),
             absl::StrCat("of ", chats.size(), " chats, as jinja2 ", peer.jinja2(),
                          " renders the file's template", first));
  return absl::OkStatus();
}

absl::Status CompareTokens(const engine::ServedModel& model, RealPeer& peer, Report& report) {
  const auto bytes = static_cast<size_t>(absl::GetFlag(FLAGS_text_kb)) * 1000;
  std::vector<std::string> texts = VariedPieces(33, bytes / 2);
  for (std::string& piece :
       CutText(DocumentText(absl::GetFlag(FLAGS_source), bytes / 2), kPieceBytes)) {
    texts.push_back(std::move(piece));
  }
  WITHY_ASSIGN_OR_RETURN(const auto wanted, peer.Tokens(texts));
  size_t equal = 0, all = 0;
  std::string first;
  for (size_t i = 0; i < texts.size(); ++i) {
    all += texts[i].size();
    if (model.bundle.tokenizer->Encode(texts[i]) == wanted[i]) {
      equal += texts[i].size();
    } else if (first.empty()) {
      first = absl::StrCat("; first otherwise: ",
                           nlohmann::json(texts[i].substr(0, 80))
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
  }
  report.Add("tokens_equal", static_cast<double>(equal) / static_cast<double>(all),
             absl::StrCat("of ", all, " bytes in ", texts.size(), " texts", first));
  return absl::OkStatus();
}

// Ours, with KV of 8 bits as in the service.
absl::StatusOr<Predictions> PredictHere(engine::Model& model,
                                        const std::vector<std::vector<int32_t>>& windows) {
  Predictions predictions;
  for (const std::vector<int32_t>& ids : windows) {
    WITHY_ASSIGN_OR_RETURN(const auto scorer,
                           engine::TextScorer::Create({{.model = &model}}, {.ids = ids},
                                                      {.report_tokens = true, .top_logprobs = 1}));
    while (!scorer->finished()) {
      WITHY_RETURN_IF_ERROR(scorer->Run(nullptr).status());
      for (const engine::Sample& token : scorer->Fresh()) {
        predictions.top.push_back(token.top.front().id);
        predictions.logprobs.push_back(static_cast<double>(token.logprob));
      }
    }
  }
  return predictions;
}

absl::Status ComparePredictions(engine::ServedModel& model, RealPeer& peer, Report& report) {
  const std::vector<int32_t> ids =
      model.bundle.tokenizer->Encode(DocumentText(absl::GetFlag(FLAGS_source), size_t{1} << 20));
  const auto count = static_cast<size_t>(absl::GetFlag(FLAGS_windows));
  if (ids.size() < count * kRealWindow) {
    report.LeaveOut("top1_agreement, ppl_ratio",
                    absl::StrCat("--source ", absl::GetFlag(FLAGS_source), " has documents of ",
                                 ids.size(), " tokens, and --windows takes ", count * kRealWindow));
    return absl::OkStatus();
  }
  std::vector<std::vector<int32_t>> windows;
  for (size_t w = 0; w < count; ++w) {
    const auto first = ids.begin() + static_cast<ptrdiff_t>(w * (ids.size() / count));
    windows.emplace_back(first, first + kRealWindow);
  }
  WITHY_ASSIGN_OR_RETURN(const Predictions theirs, peer.Predict(windows));
  WITHY_ASSIGN_OR_RETURN(const Predictions ours, PredictHere(*model.bundle.model, windows));
  if (ours.top.size() != theirs.top.size()) return absl::InternalError("real_peer.py: predict");
  double agreed = 0, difference = 0, loss = 0;
  const auto places = static_cast<double>(ours.top.size());
  for (size_t i = 0; i < ours.top.size(); ++i) {
    agreed += ours.top[i] == theirs.top[i] ? 1 : 0;
    difference += theirs.logprobs[i] - ours.logprobs[i];
    loss -= ours.logprobs[i];
  }
  report.Add("top1_agreement", agreed / places,
             absl::StrCat("of ", ours.top.size(), " places the likeliest token is the same; ours ",
                          "over KV of 8 bits, theirs of 16"));
  report.Add("ppl_ratio", std::exp(difference / places),
             absl::StrFormat("our perplexity, %.3f, over theirs", std::exp(loss / places)));
  return absl::OkStatus();
}

absl::Status CompareSpeeds(engine::ServedModel& model, RealPeer& peer, Report& report) {
  EngineBench bench(*model.bundle.model);
  std::vector<double> prefill, decode;
  RealPeer::Speed last;
  for (int round = -1; round < absl::GetFlag(FLAGS_rounds); ++round) {
    WITHY_ASSIGN_OR_RETURN(const double our_prefill, bench.Prefill());
    WITHY_ASSIGN_OR_RETURN(const double our_decode, bench.Decode(1, 0));
    WITHY_ASSIGN_OR_RETURN(last, peer.MeasureSpeed(kPrefillTokens, kDecodeTokens));
    if (round < 0) continue;  // pages are touched
    prefill.push_back(our_prefill / last.prefill_tok_s);
    decode.push_back(our_decode / last.decode_tok_s);
  }
  const auto add = [&](const char* key, const std::vector<double>& ratios, double theirs) {
    const Spread spread = Summarize(ratios);
    report.Add(key, spread.median,
               absl::StrFormat("%.2f to %.2f in %d rounds; theirs last %.1f tokens/s", spread.low,
                               spread.high, ratios.size(), theirs));
  };
  add("prefill_vs_peer", prefill, last.prefill_tok_s);
  add("decode_vs_peer", decode, last.decode_tok_s);
  return absl::OkStatus();
}

absl::Status CompareWithPeer(engine::ServedModel& model, Report& report) {
  const std::string python = absl::GetFlag(FLAGS_python);
  if (python.empty()) {
    report.LeaveOut("all but the door", "--python is not given: no runtime to compare with");
    return absl::OkStatus();
  }
  WITHY_ASSIGN_OR_RETURN(
      const auto peer,
      RealPeer::Start(python, absl::GetFlag(FLAGS_source) + "/bench/quality/real_peer.py",
                      absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_threads)));
  report.Name("peer", peer->runtime());
  if (peer->jinja2().empty()) {
    report.LeaveOut("template_equal", python + " has no jinja2: pip install jinja2");
  } else {
    WITHY_RETURN_IF_ERROR(CompareTemplates(model, *peer, report));
  }
  if (peer->runtime().empty()) {
    report.LeaveOut("tokens, predictions",
                    absl::StrCat(python, ": ", peer->why_none(), ": pip install xllamacpp numpy"));
    return absl::OkStatus();
  }
  WITHY_RETURN_IF_ERROR(CompareTokens(model, *peer, report));
  WITHY_RETURN_IF_ERROR(ComparePredictions(model, *peer, report));
  return absl::GetFlag(FLAGS_peer) ? CompareSpeeds(model, *peer, report) : absl::OkStatus();
}

double MedianOfTimes(std::vector<double> times) { return Summarize(std::move(times)).median; }

absl::Status CompareDoor(Report& report) {
  const int rounds = absl::GetFlag(FLAGS_door_rounds);
  if (rounds == 0) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const DoorTimes times, MeasureDoor(absl::GetFlag(FLAGS_model),
                                                            absl::GetFlag(FLAGS_threads), rounds));
  std::vector<double> added;
  for (size_t i = 0; i < times.grpc_ms.size(); ++i) {
    added.push_back(times.http_ms[i] - times.grpc_ms[i]);
  }
  report.Add("door_ttft_added_ms", MedianOfTimes(added),
             absl::StrFormat("median of %d pairs; TTFT %.2f ms over gRPC, %.2f by HTTP", rounds,
                             MedianOfTimes(times.grpc_ms), MedianOfTimes(times.http_ms)));
  return absl::OkStatus();
}

absl::Status Main() {
  WITHY_RETURN_IF_ERROR(CheckFlag("chats", absl::GetFlag(FLAGS_chats), 1, 100'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("text_kb", absl::GetFlag(FLAGS_text_kb), 2, 100'000));
  WITHY_RETURN_IF_ERROR(CheckFlag("windows", absl::GetFlag(FLAGS_windows), 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("rounds", absl::GetFlag(FLAGS_rounds), 1, 1000));
  WITHY_RETURN_IF_ERROR(CheckFlag("door_rounds", absl::GetFlag(FLAGS_door_rounds), 0, 100'000));
  Report report;
  {
    engine::ServedModelOptions options;
    options.path = absl::GetFlag(FLAGS_model);
    options.model.threads = absl::GetFlag(FLAGS_threads);
    WITHY_ASSIGN_OR_RETURN(const auto model, engine::OpenServedModel(options));
    report.Name("model", model->bundle.model->info().name);
    WITHY_RETURN_IF_ERROR(CompareWithPeer(*model, report));
  }
  WITHY_RETURN_IF_ERROR(CompareDoor(report));
  std::printf("%s\n", report.Line().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "A real model against an independent runtime on the same file.\n"
      "usage: withy-bench-real --model FILE.gguf [--python build/real-peer/bin/python] [--peer]",
      argc, argv, withy::bench::Main, [] { return !(absl::GetFlag(FLAGS_model).empty()); });
}
