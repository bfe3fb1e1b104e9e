#include "engine/encoder/shape.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace withy::engine {
namespace {

constexpr char kArchitecture[] = "mobilebert";
constexpr char kPromptLevels[] = "withy.tlm.prompt_levels";
constexpr char kModelLevels[] = "withy.tlm.model_levels";
constexpr char kPairAccuracy[] = "withy.tlm.pair_accuracy";
constexpr char kPairAccuracyExamples[] = "withy.tlm.pair_accuracy_examples";
constexpr char kModelId[] = "withy.tlm.model_id";
constexpr char kNormKey[] = "mobilebert.normalization";
constexpr char kEpsilonKey[] = "mobilebert.attention.layer_norm_epsilon";
constexpr size_t kMaxLevels = 100;

struct IntKey {
  const char* key;
  int32_t* value;
  int32_t min;
  int32_t max;
};

// The integer keys with their fields and ranges.
std::vector<IntKey> IntKeys(TlmShape* s) {
  EncoderShape& e = s->encoder;
  return {{"mobilebert.vocab_size", &e.vocab, 4, 1 << 20},
          {"mobilebert.token_embedding_length", &e.embedding, 1, 4096},
          {"mobilebert.embedding_length", &e.hidden, 1, 4096},
          {"mobilebert.bottleneck_length", &e.bottleneck, 1, 4096},
          {"mobilebert.feed_forward_length", &e.ffn, 1, 16384},
          {"mobilebert.feed_forward_count", &e.ffn_count, 1, 16},
          {"mobilebert.attention.head_count", &e.heads, 1, 256},
          {"mobilebert.context_length", &e.positions, 8, 8192},
          {"mobilebert.token_type_count", &e.token_types, 1, 16},
          {"withy.tlm.shared_layers", &s->shared_layers, 0, 128},
          {"withy.tlm.score_layers", &s->score_layers, 0, 128},
          {"withy.tlm.decision_layers", &s->decision_layers, 0, 128},
          {"withy.tlm.window", &s->window, 8, 8192},
          {"withy.tlm.slo_steps", &s->slo_steps, 1, 99}};
}

struct BoolKey {
  const char* key;
  bool* value;
};

std::vector<BoolKey> BoolKeys(TlmShape* s) {
  EncoderShape& e = s->encoder;
  return {{"mobilebert.trigram_input", &e.trigram},
          {"mobilebert.use_bottleneck", &e.use_bottleneck},
          {"mobilebert.bottleneck_attention", &e.bottleneck_attention},
          {"mobilebert.shared_query_key_bottleneck", &e.shared_qk},
          {"withy.tlm.decision_pooler", &s->pooler}};
}

absl::Status Bad(std::string_view where, std::string_view key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(where), ": ", ToAbsl(key), " ", what));
}

absl::Status CheckLevels(std::string_view where, const char* key,
                         const std::vector<int32_t>& levels) {
  if (levels.empty() || levels.size() > kMaxLevels) {
    return Bad(where, key,
               absl::StrCat("has ", levels.size(), " levels, limits 1 to ", kMaxLevels));
  }
  for (size_t i = 0; i < levels.size(); ++i) {
    const int32_t below = i == 0 ? 0 : levels[i - 1];
    if (levels[i] <= below || levels[i] > 100) {
      return Bad(where, key,
                 absl::StrCat("has ", levels[i], " as level ", i,
                              "; levels are percents above 0 up to 100, ascending"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWidths(const EncoderShape& e, std::string_view where) {
  if (e.bottleneck % e.heads != 0) {
    return Bad(where, "mobilebert.attention.head_count",
               absl::StrCat("is ", e.heads, ", which does not divide the width ", e.bottleneck,
                            " inside a layer"));
  }
  if (!e.use_bottleneck && e.bottleneck != e.hidden) {
    return Bad(where, "mobilebert.bottleneck_length",
               absl::StrCat("is ", e.bottleneck, ", but without bottlenecks it must be ", e.hidden,
                            " (mobilebert.embedding_length)"));
  }
  const bool reads_hidden = e.use_bottleneck && !e.bottleneck_attention && !e.shared_qk;
  if (reads_hidden && e.bottleneck != e.hidden) {
    return Bad(where, "mobilebert.bottleneck_length",
               absl::StrCat("is ", e.bottleneck, ", but queries and keys without a bottleneck of ",
                            "their own need it to be ", e.hidden, "; turn on ",
                            "shared_query_key_bottleneck or bottleneck_attention"));
  }
  return absl::OkStatus();
}

absl::Status CheckAccuracies(std::string_view where, const char* key,
                             const std::vector<float>& known, size_t pairs) {
  if (known.empty()) return absl::OkStatus();
  if (known.size() != pairs) {
    return Bad(where, key,
               absl::StrCat("has ", known.size(), " numbers for ", pairs, " pairs of levels"));
  }
  for (const float share : known) {
    if (!(share >= 0 && share <= 1)) {
      return Bad(where, key, absl::StrCat("holds ", share, ", limits 0 to 1"));
    }
  }
  return absl::OkStatus();
}

// Collects specs; `source` names omit the model's own prefix.
class SpecList {
 public:
  void Add(std::string name, std::vector<int64_t> dims, TensorRole role, std::string source) {
    specs_.push_back({std::move(name), std::move(dims), role, std::move(source)});
  }
  void Linear(const std::string& name, int32_t inputs, int32_t outputs, const std::string& source,
              TensorRole role = TensorRole::kMatrix) {
    const auto from = [&](const char* part) {
      return source.empty() ? std::string() : absl::StrCat(source, part);
    };
    Add(name + ".weight", {inputs, outputs}, role, from(".weight"));
    Add(name + ".bias", {outputs}, TensorRole::kBias, from(".bias"));
  }
  void Norm(const std::string& name, int32_t width, const std::string& source) {
    Add(name + ".weight", {width}, TensorRole::kScale, source + ".weight");
    Add(name + ".bias", {width}, TensorRole::kBias, source + ".bias");
  }
  std::vector<TensorSpec> Take() { return std::move(specs_); }

 private:
  std::vector<TensorSpec> specs_;
};

void AddFeedForward(const EncoderShape& e, const std::string& name, const std::string& source,
                    SpecList* list) {
  list->Linear(name + ".up", e.bottleneck, e.ffn, source + "intermediate.dense");
  list->Linear(name + ".down", e.ffn, e.bottleneck, source + "output.dense");
  list->Norm(name + ".norm", e.bottleneck, source + "output.LayerNorm");
}

void AddLayer(const EncoderShape& e, const std::string& name, const std::string& source,
              SpecList* list) {
  if (e.use_bottleneck) {
    list->Linear(name + "bottleneck_in", e.hidden, e.bottleneck, source + "bottleneck.input.dense");
    list->Norm(name + "bottleneck_in_norm", e.bottleneck, source + "bottleneck.input.LayerNorm");
  }
  if (e.use_bottleneck && e.shared_qk) {
    list->Linear(name + "bottleneck_qk", e.hidden, e.bottleneck,
                 source + "bottleneck.attention.dense");
    list->Norm(name + "bottleneck_qk_norm", e.bottleneck,
               source + "bottleneck.attention.LayerNorm");
  }
  const std::string self = source + "attention.self.";
  list->Linear(name + "attn_q", e.bottleneck, e.bottleneck, self + "query");
  list->Linear(name + "attn_k", e.bottleneck, e.bottleneck, self + "key");
  list->Linear(name + "attn_v", e.value_inputs(), e.bottleneck, self + "value");
  list->Linear(name + "attn_output", e.bottleneck, e.bottleneck, source + "attention.output.dense");
  list->Norm(name + "attn_output_norm", e.bottleneck, source + "attention.output.LayerNorm");
  for (int32_t i = 0; i < e.ffn_count; ++i) {
    const bool last =
        i + 1 == e.ffn_count;  // in the source the last one belongs to the layer itself
    AddFeedForward(e, absl::StrCat(name, "ffn.", i),
                   last ? source : absl::StrCat(source, "ffn.", i, "."), list);
  }
  if (e.use_bottleneck) {
    list->Linear(name + "bottleneck_out", e.bottleneck, e.hidden,
                 source + "output.bottleneck.dense");
    list->Norm(name + "bottleneck_out_norm", e.hidden, source + "output.bottleneck.LayerNorm");
  }
}

void AddTower(const EncoderShape& e, const char* tower, int32_t layers, int32_t first_source,
              SpecList* list) {
  for (int32_t i = 0; i < layers; ++i) {
    AddLayer(e, absl::StrCat(tower, ".", i, "."),
             absl::StrCat("encoder.layer.", first_source + i, "."), list);
  }
}

}  // namespace

std::vector<int32_t> DefaultLevels() { return {20, 30, 40, 50, 60, 70, 80, 90, 100}; }

std::string TtftToken(int32_t step) { return absl::StrFormat("[%02d]", step); }
std::string TpotToken(int32_t step) { return absl::StrFormat("<%02d>", step); }

int64_t TensorSpec::elements() const {
  int64_t n = 1;
  for (const int64_t dim : dims) n *= dim;
  return n;
}

absl::Status CheckTlmShape(const TlmShape& shape, std::string_view where) {
  TlmShape copy = shape;
  for (const IntKey& field : IntKeys(&copy)) {
    if (*field.value < field.min || *field.value > field.max) {
      return Bad(where, field.key,
                 absl::StrCat("is ", *field.value, ", limits ", field.min, " to ", field.max));
    }
  }
  WITHY_RETURN_IF_ERROR(CheckWidths(shape.encoder, where));
  if (shape.shared_layers + shape.score_layers == 0 ||
      shape.shared_layers + shape.decision_layers == 0) {
    return Bad(where, "withy.tlm.shared_layers",
               "is 0 and a head has no layers of its own; each head needs at least one below it");
  }
  if (shape.window > shape.encoder.positions) {
    return Bad(where, "withy.tlm.window",
               absl::StrCat("is ", shape.window, ", more than the ", shape.encoder.positions,
                            " positions of mobilebert.context_length"));
  }
  if (!(shape.encoder.epsilon >= 0) || shape.encoder.epsilon > 1) {
    return Bad(where, kEpsilonKey, absl::StrCat("is ", shape.encoder.epsilon, ", limits 0 to 1"));
  }
  WITHY_RETURN_IF_ERROR(CheckLevels(where, kPromptLevels, shape.prompt_levels));
  WITHY_RETURN_IF_ERROR(CheckLevels(where, kModelLevels, shape.model_levels));
  const size_t pairs = shape.prompt_levels.size() * shape.model_levels.size();
  WITHY_RETURN_IF_ERROR(CheckAccuracies(where, kPairAccuracy, shape.pair_accuracy, pairs));
  return CheckAccuracies(where, kPairAccuracyExamples, shape.pair_accuracy_examples, pairs);
}

const std::vector<float>& TlmShape::PairAccuracies(bool mostly_examples) const {
  const std::vector<float>& own = mostly_examples ? pair_accuracy_examples : pair_accuracy;
  const std::vector<float>& other = mostly_examples ? pair_accuracy : pair_accuracy_examples;
  return own.empty() ? other : own;
}

float TlmShape::PairAccuracy(bool mostly_examples, int32_t prompt_level,
                             int32_t model_level) const {
  const std::vector<float>& known = PairAccuracies(mostly_examples);
  const auto prompt = std::find(prompt_levels.begin(), prompt_levels.end(), prompt_level);
  const auto model = std::find(model_levels.begin(), model_levels.end(), model_level);
  if (known.empty() || prompt == prompt_levels.end() || model == model_levels.end()) {
    return 0;
  }
  const auto row = static_cast<size_t>(prompt - prompt_levels.begin());
  return known[row * model_levels.size() + static_cast<size_t>(model - model_levels.begin())];
}

void WriteTlmShape(const TlmShape& shape, GgufWriter* writer) {
  TlmShape copy = shape;
  writer->SetString("general.architecture", kArchitecture);
  writer->Set<uint32_t>(
      "mobilebert.block_count",
      static_cast<uint32_t>(shape.shared_layers + shape.score_layers + shape.decision_layers));
  for (const IntKey& field : IntKeys(&copy)) {
    writer->Set<uint32_t>(field.key, static_cast<uint32_t>(*field.value));
  }
  for (const BoolKey& field : BoolKeys(&copy)) writer->Set<bool>(field.key, *field.value);
  writer->SetString(kNormKey,
                    shape.encoder.norm == EncoderNorm::kNoNorm ? "no_norm" : "layer_norm");
  writer->Set<float>(kEpsilonKey, shape.encoder.epsilon);
  writer->SetArray<int32_t>(kPromptLevels, shape.prompt_levels);
  writer->SetArray<int32_t>(kModelLevels, shape.model_levels);
  if (!shape.pair_accuracy.empty()) {
    writer->SetArray<float>(kPairAccuracy, shape.pair_accuracy);
  }
  if (!shape.pair_accuracy_examples.empty()) {
    writer->SetArray<float>(kPairAccuracyExamples, shape.pair_accuracy_examples);
  }
  if (!shape.model_id.empty()) writer->SetString(kModelId, shape.model_id);
}

absl::StatusOr<TlmShape> ReadTlmShape(const GgufFile& file) {
  WITHY_ASSIGN_OR_RETURN(const std::string_view architecture,
                         file.GetString("general.architecture"));
  if (architecture != kArchitecture) {
    return Bad(file.path(), "general.architecture",
               absl::StrCat("is \"", ValidUtf8(architecture, kMaxShownBytes), "\"; a TLM's is \"",
                            kArchitecture, "\"; give the file of a prompt-deciding model"));
  }
  TlmShape shape;
  for (const IntKey& field : IntKeys(&shape)) {
    WITHY_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(field.key));
    if (value < field.min || value > field.max) {
      return Bad(file.path(), field.key,
                 absl::StrCat("is ", value, ", limits ", field.min, " to ", field.max));
    }
    *field.value = static_cast<int32_t>(value);
  }
  for (const BoolKey& field : BoolKeys(&shape)) {
    WITHY_ASSIGN_OR_RETURN(*field.value, file.GetBool(field.key));
  }
  WITHY_ASSIGN_OR_RETURN(const std::string_view norm, file.GetString(kNormKey));
  if (norm != "no_norm" && norm != "layer_norm") {
    return Bad(file.path(), kNormKey,
               absl::StrCat("is \"", ValidUtf8(norm, kMaxShownBytes),
                            "\"; known are no_norm and layer_norm"));
  }
  shape.encoder.norm = norm == "no_norm" ? EncoderNorm::kNoNorm : EncoderNorm::kLayerNorm;
  WITHY_ASSIGN_OR_RETURN(const double epsilon, file.GetFloat(kEpsilonKey));
  shape.encoder.epsilon = static_cast<float>(epsilon);
  const auto read_levels = [&file](const char* key, std::vector<int32_t>* out) -> absl::Status {
    WITHY_ASSIGN_OR_RETURN(const std::vector<int64_t> values, file.GetIntArray(key));
    for (const int64_t value : values) {
      out->push_back(value < 0 || value > 1000 ? -1 : static_cast<int32_t>(value));
    }
    return absl::OkStatus();
  };
  WITHY_RETURN_IF_ERROR(read_levels(kPromptLevels, &shape.prompt_levels));
  WITHY_RETURN_IF_ERROR(read_levels(kModelLevels, &shape.model_levels));
  if (file.Has(kPairAccuracy)) {
    WITHY_ASSIGN_OR_RETURN(shape.pair_accuracy, file.GetFloatArray(kPairAccuracy));
  }
  if (file.Has(kPairAccuracyExamples)) {
    WITHY_ASSIGN_OR_RETURN(shape.pair_accuracy_examples, file.GetFloatArray(kPairAccuracyExamples));
  }
  if (file.Has(kModelId)) {
    WITHY_ASSIGN_OR_RETURN(const std::string_view id, file.GetString(kModelId));
    shape.model_id = ValidUtf8(id, kMaxShownBytes);
  }
  WITHY_RETURN_IF_ERROR(CheckTlmShape(shape, file.path()));
  return shape;
}

std::vector<TensorSpec> TlmTensors(const TlmShape& shape) {
  const EncoderShape& e = shape.encoder;
  const std::string embeddings = "embeddings.";
  SpecList list;
  list.Add("token_embd.weight", {e.embedding, e.vocab}, TensorRole::kTokens,
           embeddings + "word_embeddings.weight");
  list.Add("position_embd.weight", {e.hidden, e.positions}, TensorRole::kTable,
           embeddings + "position_embeddings.weight");
  list.Add("token_types.weight", {e.hidden, e.token_types}, TensorRole::kTable,
           embeddings + "token_type_embeddings.weight");
  if (e.has_transform()) {
    list.Linear("embd_transform", e.embedded(), e.hidden, embeddings + "embedding_transformation");
  }
  list.Norm("embd_norm", e.hidden, embeddings + "LayerNorm");
  AddTower(e, "shared", shape.shared_layers, 0, &list);
  AddTower(e, "score", shape.score_layers, shape.shared_layers, &list);
  AddTower(e, "decision", shape.decision_layers, shape.shared_layers, &list);
  list.Linear("score.keep", e.hidden, 1, "", TensorRole::kHead);
  if (shape.pooler) list.Linear("decision.pooler", e.hidden, e.hidden, "pooler.dense");
  list.Linear("decision.prompt", e.hidden, static_cast<int32_t>(shape.prompt_levels.size()), "",
              TensorRole::kHead);
  list.Linear("decision.model", e.hidden, static_cast<int32_t>(shape.model_levels.size()), "",
              TensorRole::kHead);
  return list.Take();
}

}  // namespace withy::engine
