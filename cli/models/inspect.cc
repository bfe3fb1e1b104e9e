#include "cli/models/inspect.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "cli/output.h"
#include "cli/terminal_text.h"
#include "engine/encoder/tlm.h"
#include "engine/gguf/reader.h"
#include "engine/head/head_file.h"
#include "engine/model/bundle.h"
#include "engine/model/plan_weights.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/file_kind.h"
#include "engine/weights/types/packed_type.h"

namespace withy::cli {
namespace {

// The architecture of every TLM (docs/formats-tlm.md).
constexpr char kTlmArchitecture[] = "mobilebert";

void Note(const absl::Status& status, Inspection* out) {
  const std::string text(status.message());
  if (!status.ok() &&
      std::find(out->problems.begin(), out->problems.end(), text) == out->problems.end()) {
    out->problems.push_back(text);
  }
}

void CountTensors(const engine::GgufFile& file, Inspection* out) {
  std::map<std::string, TypeShare> types;
  for (const engine::TensorInfo& tensor : file.tensors()) {
    TypeShare& share = types[std::string(engine::TypeName(tensor.type))];
    share.tensors += 1;
    share.bytes += tensor.bytes;
    if (const auto packed = engine::PackedChoiceFor(tensor.type); packed.ok()) {
      const absl::string_view accuracy = ToAbsl(engine::AccuracyText(packed->accuracy));
      share.packed_as = absl::StrCat(engine::WeightTypeName(packed->type), ", ", accuracy);
    }
    const bool lora = tensor.name.starts_with("withy.lora.");
    if (!lora) out->parameters += static_cast<uint64_t>(tensor.elements());
  }
  for (auto& [name, share] : types) {
    share.type = name;
    out->types.push_back(share);
  }
  std::sort(out->types.begin(), out->types.end(),
            [](const TypeShare& a, const TypeShare& b) { return a.bytes > b.bytes; });
}

uint64_t BytesOf(const engine::GgufFile& file, const std::string& name) {
  const engine::TensorInfo* tensor = file.FindTensor(name);
  return tensor == nullptr ? 0 : tensor->bytes;
}

// Prefixes of the layers, the level's LoRA, and the whole output head.
uint64_t LevelBytes(const engine::GgufFile& file, const engine::ModelShape& shape,
                    const engine::LevelSpec& level) {
  uint64_t bytes = BytesOf(file, "output.weight");
  if (bytes == 0) bytes = BytesOf(file, "token_embd.weight");
  for (size_t i = 0; i < level.layers.size(); ++i) {
    const engine::LayerExtent& extent = level.layers[i];
    const auto add = [&](std::initializer_list<const char*> parts, int32_t kept, int32_t all) {
      for (const char* part : parts) {
        bytes += BytesOf(file, absl::StrCat("blk.", i, ".", part, ".weight")) *
                 static_cast<uint64_t>(kept) / static_cast<uint64_t>(all);
      }
    };
    const auto layer = static_cast<int32_t>(i);
    const bool own_kv = shape.KvSourceOf(layer) == layer;
    if (!own_kv && extent == engine::LayerExtent{}) continue;  // left out
    add({"attn_norm", "ffn_norm", "laurel_l", "laurel_r", "inp_gate", "proj"}, 1, 1);
    if (own_kv) add({"attn_k", "attn_v"}, 1, 1);
    add({"attn_q", "attn_output"}, extent.heads, shape.heads);
    add({"ffn_gate", "ffn_up", "ffn_down"}, extent.neurons, shape.NeuronsOf(layer));
  }
  const std::string lora = absl::StrCat("withy.lora.", level.percent, ".");
  for (const engine::TensorInfo& tensor : file.tensors()) {
    if (tensor.name.starts_with(lora)) bytes += tensor.bytes;
  }
  return bytes;
}

void PlanBudgets(const engine::PackedLayout& layout, Inspection* out) {
  const engine::UnpackedWeights weights(layout);
  out->least_budget_bytes = engine::LeastWeightBudget(weights.tensors, weights.facts);
  const auto half =
      engine::PlanWeights(weights.tensors, weights.facts, {.budget_bytes = layout.data_bytes / 2});
  if (half.ok()) out->half_budget_read_bytes = half->level_bytes.back();
}

// A chat that shows the template's markup: with instructions where it takes them.
std::string SampleChat(const engine::ChatTemplate& chat) {
  const std::vector<engine::ChatMessage> messages = {
      {.role = engine::kSystemRole, .content = "Be brief."},
      {.role = engine::kUserRole, .content = "Hello?"},
      {.role = engine::kAssistantRole, .content = "Hi."},
      {.role = engine::kUserRole, .content = "How are you?"}};
  const auto rendered = chat.Render(
      messages, engine::ChatOptions{.add_generation_prompt = true,
                                    .unix_s = Clock::Real().UnixNanos() / kNanosPerSecond});
  return rendered.ok() ? rendered->Text() : std::string(rendered.status().message());
}

void InspectModel(const engine::GgufFile& file, const engine::TextOptions& text, Inspection* out) {
  const engine::Servability judged = engine::JudgeServability(file, text);
  for (const absl::Status& problem : judged.problems) Note(problem, out);
  if (judged.layout) {
    out->shape = judged.layout->shape;
    out->levels = judged.layout->levels;
    out->packed_bytes = judged.layout->data_bytes;
    PlanBudgets(*judged.layout, out);
    for (const engine::LevelSpec& level : out->levels.levels)
      out->level_bytes.push_back(LevelBytes(file, out->shape, level));
    out->anchors = file.GetIntArray("withy.level.anchors").value_or(std::vector<int64_t>());
  }
  out->text = judged.text;
  if (judged.tokenizer != nullptr) out->vocabulary = judged.tokenizer->vocab_size();
  if (judged.chat) {
    out->chat_template = judged.chat->name();
    out->executes_template = judged.chat->executes_file();
    out->sample_chat = SampleChat(*judged.chat);
  }
}

void InspectTlm(const engine::GgufFile& file, const std::string& path, Inspection* out) {
  out->tlm.emplace();
  if (const auto tokenizer = engine::MakeTokenizer(file); tokenizer.ok()) {
    out->vocabulary = (*tokenizer)->vocab_size();
  }
  if (const auto shape = engine::ReadTlmShape(file); shape.ok()) out->tlm = *shape;
  Note(engine::Tlm::Open(path, {}).status(), out);
}

void InspectHead(const engine::GgufFile& file, Inspection* out) {
  out->head.emplace();
  out->vocabulary = static_cast<int32_t>(file.GetArrayCount("tokenizer.ggml.tokens").value_or(0));
  const auto head = engine::ReadHead(file);
  Note(head.status(), out);
  if (head.ok()) out->head = engine::DescribeHead(*head);
}

std::string ServedText(const Inspection& in) {
  if (!in.problems.empty()) return "no";
  if (in.tlm) return "as the TLM: for orchestrator.tlm_path, not for model.path";
  if (in.head) return "as the draft head (EAGLE-3) of a model: for model.head_path, not model.path";
  return "yes";
}

}  // namespace

absl::StatusOr<Inspection> Inspect(const std::string& path, const engine::TextOptions& text) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  Inspection out;
  out.path = path;
  out.parts = file.parts().size();
  for (const engine::GgufPart& part : file.parts()) out.file_bytes += part.bytes.size();
  out.gguf_version = file.version();
  const auto shown = [&file](const char* key) {
    return ValidUtf8(file.GetStringOr(key, "").value_or(""), kMaxShownBytes);
  };
  out.architecture = shown("general.architecture");
  out.name = shown("general.name");
  out.tokenizer = shown("tokenizer.ggml.model");
  CountTensors(file, &out);
  if (out.architecture == kTlmArchitecture) {
    InspectTlm(file, path, &out);
  } else if (engine::IsDraftHead(file)) {
    InspectHead(file, &out);
  } else {
    InspectModel(file, text, &out);
  }
  return out;
}

std::string Count(uint64_t count) {
  const double value = static_cast<double>(count);
  if (value >= 1e9) return absl::StrFormat("%.2f B", value / 1e9);
  if (value >= 1e6) return absl::StrFormat("%.1f M", value / 1e6);
  if (value >= 1e3) return absl::StrFormat("%.1f k", value / 1e3);
  return absl::StrCat(count);
}

// "4 to 32", or "32" if both are equal.
std::string Range(const engine::LevelSpec& level, int32_t engine::LayerExtent::*member) {
  const auto [low, high] =
      std::minmax_element(level.layers.begin(), level.layers.end(),
                          [&](const auto& a, const auto& b) { return a.*member < b.*member; });
  return (*low).*member == (*high).*member ? absl::StrCat((*low).*member)
                                           : absl::StrCat((*low).*member, " to ", (*high).*member);
}

void AddLevels(const Inspection& in, std::vector<std::vector<std::string>>* rows) {
  std::string all;
  for (const engine::LevelSpec& level : in.levels.levels)
    absl::StrAppend(&all, level.percent, ", ");
  const std::string lora =
      in.levels.lora_rank > 0 ? absl::StrCat(", LoRA of rank ", in.levels.lora_rank) : "";
  rows->push_back({"levels", absl::StrCat(all, "100 %", lora)});
  if (!in.anchors.empty()) {
    rows->push_back(
        {"anchors", absl::StrCat("layers by importance: ", absl::StrJoin(in.anchors, ", "))});
  }
  for (size_t i = 0; i < in.levels.levels.size(); ++i) {
    const engine::LevelSpec& level = in.levels.levels[i];
    int32_t whole = 0;
    for (int32_t layer = 0; layer < in.shape.layers; ++layer) {
      const engine::LayerExtent& extent = level.layers[static_cast<size_t>(layer)];
      whole += extent == engine::FullExtent(in.shape, layer) ? 1 : 0;
    }
    rows->push_back(
        {absl::StrCat("  ", level.percent, " %"),
         absl::StrCat(Bytes(in.level_bytes[i]), ", ", Range(level, &engine::LayerExtent::heads),
                      " heads, ", Range(level, &engine::LayerExtent::neurons), " neurons a layer, ",
                      whole, " layers whole")});
  }
}

nlohmann::json LevelsJson(const Inspection& in) {
  nlohmann::json levels = nlohmann::json::array();
  for (size_t i = 0; i < in.levels.levels.size(); ++i) {
    const engine::LevelSpec& level = in.levels.levels[i];
    nlohmann::json heads = nlohmann::json::array();
    nlohmann::json neurons = nlohmann::json::array();
    for (const engine::LayerExtent& extent : level.layers) {
      heads.push_back(extent.heads);
      neurons.push_back(extent.neurons);
    }
    levels.push_back({{"percent", level.percent},
                      {"bytes", in.level_bytes[i]},
                      {"heads", heads},
                      {"neurons", neurons}});
  }
  return levels;
}

// KV bytes in the arena per token.
uint64_t KvBytesPerToken(const engine::ModelShape& shape) {
  const engine::KvGeometry kv = {
      .layers = shape.kv_layers(), .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
  return kv.ChunkBytes() / engine::kChunkTokens;
}

void AddBudget(const Inspection& in, std::vector<std::vector<std::string>>* rows) {
  if (in.least_budget_bytes == 0) return;
  std::string text = absl::StrCat("at least ", Bytes(in.least_budget_bytes));
  if (in.half_budget_read_bytes > 0) {
    absl::StrAppend(&text, "; with ", Bytes(in.packed_bytes / 2), ", each pass reads ",
                    Bytes(in.half_budget_read_bytes));
  }
  rows->push_back({"budget", text});
}

std::string FileText(const Inspection& in) {
  const std::string parts = in.parts > 1 ? absl::StrCat(", ", in.parts, " parts") : "";
  return absl::StrCat(in.path, parts, ", ", Bytes(in.file_bytes), ", GGUF version ",
                      in.gguf_version);
}

std::string NeuronText(const engine::ModelShape& s) {
  if (!s.layer_neurons.empty()) return absl::StrCat("up to ", s.d_ff, " neurons");
  if (s.experts == 0) return absl::StrCat(s.d_ff, " neurons");
  return absl::StrCat(s.experts, " experts of ", s.expert_neurons,
                      " neurons, of which a token uses ", s.experts_used);
}

std::string WindowText(const engine::ModelShape& s) {
  const std::string text = absl::StrCat(s.context_length, " tokens");
  if (s.long_rope_frequencies.empty()) return text;
  return absl::StrCat(text, "; LongRoPE: contexts of more than ", s.long_rope_above,
                      " take the long factors, others the short");
}

std::string InspectionText(const Inspection& in) {
  const engine::ModelShape& s = in.shape;
  std::vector<std::vector<std::string>> rows = {
      {"file", FileText(in)},
      {"model",
       absl::StrCat(in.name, " (", in.architecture, "), ", Count(in.parameters), " parameters")}};
  if (s.layers > 0) {
    rows.push_back(
        {"shape", absl::StrCat(s.layers, " layers, width ", s.d_model, ", ", s.heads, " heads on ",
                               s.kv_heads, " KV heads of ", s.head_dim, ", ", NeuronText(s))});
    rows.push_back({"window", WindowText(s)});
    const std::string beyond = engine::BeyondLlama(s);
    if (!beyond.empty()) rows.push_back({"computed", absl::StrCat("on the CPU only: ", beyond)});
    rows.push_back({"packed", Bytes(in.packed_bytes)});
    AddBudget(in, &rows);
    const uint64_t token_bytes = KvBytesPerToken(s);
    rows.push_back({"KV", absl::StrCat(Bytes(token_bytes), " a token, ",
                                       Bytes(token_bytes * static_cast<uint64_t>(s.context_length)),
                                       " for the whole window (store.arena_bytes; a smaller arena "
                                       "serves a smaller window)")});
  }
  if (in.tlm && in.problems.empty()) {
    rows.push_back(
        {"shape", absl::StrCat(in.tlm->shared_layers, " shared layers, ", in.tlm->score_layers,
                               " of the word scores, ", in.tlm->decision_layers,
                               " of the decision, width ", in.tlm->encoder.hidden)});
    rows.push_back({"window", absl::StrCat(in.tlm->window, " tokens")});
  }
  rows.push_back({"tokenizer", absl::StrCat(in.tokenizer, ", ", in.vocabulary, " tokens")});
  if (!in.chat_template.empty()) {
    rows.push_back({"chat", in.executes_template
                                ? absl::StrCat("the file's template (", in.chat_template, ")")
                                : in.chat_template});
  }
  if (in.tlm && in.problems.empty()) {
    rows.push_back(
        {"levels", absl::StrCat("prompt ", absl::StrJoin(in.tlm->prompt_levels, ", "), " %; model ",
                                absl::StrJoin(in.tlm->model_levels, ", "), " %")});
  } else if (!in.tlm && !in.head) {
    AddLevels(in, &rows);
  }
  if (in.head && in.problems.empty()) rows.push_back({"fits", *in.head});
  for (const TypeShare& share : in.types) {
    rows.push_back(
        {"weights", absl::StrCat(share.type, ": ", share.tensors, " tensors, ", Bytes(share.bytes),
                                 share.packed_as.empty() ? "" : "; packed as ", share.packed_as)});
  }
  rows.push_back({"served", ServedText(in)});
  std::string text = Table(rows);
  for (const std::string& problem : in.problems)
    absl::StrAppend(&text, "  ", Printable(problem), "\n");
  for (const std::string& warning : in.text.warnings)
    absl::StrAppend(&text, "warning: ", Printable(warning), "\n");
  for (const std::string& note : in.text.notes)
    absl::StrAppend(&text, "note: ", Printable(note), "\n");
  if (!in.sample_chat.empty()) {
    absl::StrAppend(&text, "\na sample chat, as the model gets it:\n");
    for (const absl::string_view line : absl::StrSplit(in.sample_chat, '\n')) {
      absl::StrAppend(&text, "  ", Printable(std::string(line)), "\n");
    }
  }
  return text;
}

std::string InspectionJson(const Inspection& in) {
  nlohmann::json types = nlohmann::json::array();
  for (const TypeShare& share : in.types) {
    types.push_back({{"type", share.type},
                     {"tensors", share.tensors},
                     {"bytes", share.bytes},
                     {"packed_as", share.packed_as}});
  }
  std::vector<int32_t> percents;
  for (const engine::LevelSpec& level : in.levels.levels) percents.push_back(level.percent);
  if (!in.tlm && !in.head) percents.push_back(100);
  const nlohmann::json json = {{"path", in.path},
                               {"parts", in.parts},
                               {"file_bytes", in.file_bytes},
                               {"gguf_version", in.gguf_version},
                               {"architecture", in.architecture},
                               {"role", in.tlm    ? "tlm"
                                        : in.head ? "head"
                                                  : "model"},
                               {"name", in.name},
                               {"parameters", in.parameters},
                               {"packed_bytes", in.packed_bytes},
                               {"least_weight_budget_bytes", in.least_budget_bytes},
                               {"half_weight_budget_read_bytes", in.half_budget_read_bytes},
                               {"layers", in.shape.layers},
                               {"d_model", in.shape.d_model},
                               {"heads", in.shape.heads},
                               {"kv_heads", in.shape.kv_heads},
                               {"head_dim", in.shape.head_dim},
                               {"d_ff", in.shape.d_ff},
                               {"experts", in.shape.experts},
                               {"experts_used", in.shape.experts_used},
                               {"context_length", in.shape.context_length},
                               {"kv_bytes_per_token", KvBytesPerToken(in.shape)},
                               {"tokenizer", in.tokenizer},
                               {"vocabulary", in.vocabulary},
                               {"chat_template", in.chat_template},
                               {"executes_chat_template", in.executes_template},
                               {"notes", in.text.notes},
                               {"warnings", in.text.warnings},
                               {"sample_chat", in.sample_chat},
                               {"levels_percent", percents},
                               {"levels", LevelsJson(in)},
                               {"anchors", in.anchors},
                               {"lora_rank", in.levels.lora_rank},
                               {"types", types},
                               {"can_be_served", in.problems.empty()},
                               {"problems", in.problems}};
  // The file's path may not be valid UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace withy::cli
