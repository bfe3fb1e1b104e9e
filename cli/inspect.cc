#include "cli/inspect.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cli/output.h"
#include "engine/chat/template.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/layout.h"

namespace withy::cli {
namespace {

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
    out->parameters += static_cast<uint64_t>(tensor.elements());
  }
  for (auto& [name, share] : types) {
    share.type = name;
    out->types.push_back(share);
  }
  std::sort(out->types.begin(), out->types.end(),
            [](const TypeShare& a, const TypeShare& b) { return a.bytes > b.bytes; });
}

}  // namespace

absl::StatusOr<Inspection> Inspect(const std::string& path, std::string_view chat_template) {
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  Inspection out;
  out.path = path;
  out.file_bytes = file.bytes().size();
  out.gguf_version = file.version();
  out.architecture = file.GetStringOr("general.architecture", "").value_or("");
  out.name = file.GetStringOr("general.name", "").value_or("");
  out.tokenizer = file.GetStringOr("tokenizer.ggml.model", "").value_or("");
  CountTensors(file, &out);
  if (const auto layout = engine::PlanLayout(file); layout.ok()) {
    out.shape = layout->shape;
    out.packed_bytes = layout->data_bytes;
  } else {
    Note(layout.status(), &out);
  }
  if (const auto tokenizer = engine::MakeTokenizer(file); tokenizer.ok()) {
    out.vocabulary = (*tokenizer)->vocab_size();
  } else {
    Note(tokenizer.status(), &out);
  }
  if (const auto chat = engine::ChatTemplate::FromFile(file, chat_template); chat.ok()) {
    out.chat_template = chat->name();
  } else {
    Note(chat.status(), &out);
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

std::string InspectionText(const Inspection& in) {
  const engine::ModelShape& s = in.shape;
  std::vector<std::vector<std::string>> rows = {
      {"file", absl::StrCat(Printable(in.path), ", ", Bytes(in.file_bytes), ", GGUF version ",
                            in.gguf_version)},
      {"model", absl::StrCat(Printable(in.name), " (", Printable(in.architecture), "), ",
                             Count(in.parameters), " parameters")}};
  if (s.layers > 0) {
    rows.push_back(
        {"shape", absl::StrCat(s.layers, " layers, width ", s.d_model, ", ", s.heads, " heads on ",
                               s.kv_heads, " KV heads of ", s.head_dim, ", ", s.d_ff, " neurons")});
    rows.push_back({"window", absl::StrCat(s.context_length, " tokens")});
    rows.push_back({"packed", Bytes(in.packed_bytes)});
  }
  rows.push_back(
      {"tokenizer", absl::StrCat(Printable(in.tokenizer), ", ", in.vocabulary, " tokens")});
  if (!in.chat_template.empty()) rows.push_back({"chat", in.chat_template});
  rows.push_back({"levels", "100 %"});
  for (const TypeShare& share : in.types) {
    rows.push_back({"weights", absl::StrCat(share.type, ": ", share.tensors, " tensors, ",
                                            Bytes(share.bytes))});
  }
  rows.push_back({"served", in.problems.empty() ? "yes" : "no"});
  std::string text = Table(rows);
  for (const std::string& problem : in.problems)
    absl::StrAppend(&text, "  ", Printable(problem), "\n");
  return text;
}

std::string InspectionJson(const Inspection& in) {
  nlohmann::json types = nlohmann::json::array();
  for (const TypeShare& share : in.types) {
    types.push_back({{"type", share.type}, {"tensors", share.tensors}, {"bytes", share.bytes}});
  }
  const nlohmann::json json = {{"path", in.path},
                               {"file_bytes", in.file_bytes},
                               {"gguf_version", in.gguf_version},
                               {"architecture", in.architecture},
                               {"name", in.name},
                               {"parameters", in.parameters},
                               {"packed_bytes", in.packed_bytes},
                               {"layers", in.shape.layers},
                               {"d_model", in.shape.d_model},
                               {"heads", in.shape.heads},
                               {"kv_heads", in.shape.kv_heads},
                               {"head_dim", in.shape.head_dim},
                               {"d_ff", in.shape.d_ff},
                               {"context_length", in.shape.context_length},
                               {"tokenizer", in.tokenizer},
                               {"vocabulary", in.vocabulary},
                               {"chat_template", in.chat_template},
                               {"levels_percent", {100}},
                               {"types", types},
                               {"can_be_served", in.problems.empty()},
                               {"problems", in.problems}};
  // A file may name itself in bytes that are no UTF-8.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace withy::cli
