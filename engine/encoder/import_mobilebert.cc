#include "engine/encoder/import_mobilebert.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "engine/encoder/safetensors.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uintmax_t kMaxTextFileBytes = 64 << 20;

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", error.message(),
                     "; a MobileBERT directory holds config.json, vocab.txt, model.safetensors"));
  }
  if (size > kMaxTextFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", size, " bytes, limit ", kMaxTextFileBytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(size))) {
    return absl::DataLossError(absl::StrCat(path, ": cannot be read"));
  }
  return text;
}

// A JSON object whose getters name file and key; a missing key gives the fallback.
class Config {
 public:
  static absl::StatusOr<Config> Read(const std::string& path) {
    WITHY_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
    Config config;
    config.path_ = path;
    if (!ParseJson(text, &config.json_).ok() || !config.json_.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
    }
    return config;
  }

  absl::Status Get(const char* key, int32_t* value) {
    const Json* found = Find(key);
    if (found == nullptr) return absl::OkStatus();
    const int64_t n = found->is_number_integer() ? found->get<int64_t>() : -1;
    if (n < 0 || n > std::numeric_limits<int32_t>::max()) return Bad(key, "a count");
    *value = static_cast<int32_t>(n);
    return absl::OkStatus();
  }
  absl::Status Get(const char* key, bool* value) {
    const Json* found = Find(key);
    if (found == nullptr) return absl::OkStatus();
    if (!found->is_boolean()) return Bad(key, "true or false");
    *value = found->get<bool>();
    return absl::OkStatus();
  }
  absl::Status Get(const char* key, float* value) {
    const Json* found = Find(key);
    if (found == nullptr) return absl::OkStatus();
    if (!found->is_number()) return Bad(key, "a number");
    *value = found->get<float>();
    return absl::OkStatus();
  }
  // One of `known`; the first is the fallback.
  absl::StatusOr<size_t> Choice(const char* key, const std::vector<std::string>& known) {
    const Json* found = Find(key);
    if (found == nullptr) return size_t{0};
    for (size_t i = 0; found->is_string() && i < known.size(); ++i) {
      if (found->get_ref<const std::string&>() == known[i]) return i;
    }
    return absl::UnimplementedError(absl::StrCat(path_, ": ", key, " is ", Shown(*found),
                                                 "; known here: ", absl::StrJoin(known, ", ")));
  }

 private:
  const Json* Find(const char* key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  absl::Status Bad(const char* key, const char* wanted) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", key, " is ", Shown(json_.at(key)), ", wanted ", wanted));
  }
  static std::string Shown(const Json& value) {
    return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 60);
  }

  std::string path_;
  Json json_;
};

// The encoder of config.json, with transformers' defaults, and its number of layers.
struct Source {
  EncoderShape encoder;
  int32_t layers = 24;
  bool pooler = true;
};

absl::StatusOr<Source> ReadSource(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(Config config, Config::Read(path));
  WITHY_RETURN_IF_ERROR(config.Choice("model_type", {"mobilebert"}).status());
  WITHY_RETURN_IF_ERROR(config.Choice("hidden_act", {"relu"}).status());
  Source source;
  EncoderShape& e = source.encoder;
  e = {.vocab = 30522,
       .embedding = 128,
       .hidden = 512,
       .bottleneck = 128,
       .ffn = 512,
       .ffn_count = 4,
       .heads = 4};
  WITHY_RETURN_IF_ERROR(config.Get("vocab_size", &e.vocab));
  WITHY_RETURN_IF_ERROR(config.Get("embedding_size", &e.embedding));
  WITHY_RETURN_IF_ERROR(config.Get("hidden_size", &e.hidden));
  WITHY_RETURN_IF_ERROR(config.Get("intra_bottleneck_size", &e.bottleneck));
  WITHY_RETURN_IF_ERROR(config.Get("intermediate_size", &e.ffn));
  WITHY_RETURN_IF_ERROR(config.Get("num_feedforward_networks", &e.ffn_count));
  WITHY_RETURN_IF_ERROR(config.Get("num_attention_heads", &e.heads));
  WITHY_RETURN_IF_ERROR(config.Get("max_position_embeddings", &e.positions));
  WITHY_RETURN_IF_ERROR(config.Get("type_vocab_size", &e.token_types));
  WITHY_RETURN_IF_ERROR(config.Get("trigram_input", &e.trigram));
  WITHY_RETURN_IF_ERROR(config.Get("use_bottleneck", &e.use_bottleneck));
  WITHY_RETURN_IF_ERROR(config.Get("use_bottleneck_attention", &e.bottleneck_attention));
  WITHY_RETURN_IF_ERROR(config.Get("key_query_shared_bottleneck", &e.shared_qk));
  WITHY_RETURN_IF_ERROR(config.Get("layer_norm_eps", &e.epsilon));
  WITHY_RETURN_IF_ERROR(config.Get("num_hidden_layers", &source.layers));
  WITHY_RETURN_IF_ERROR(config.Get("classifier_activation", &source.pooler));
  WITHY_ASSIGN_OR_RETURN(const size_t norm,
                         config.Choice("normalization_type", {"no_norm", "layer_norm"}));
  e.norm = norm == 0 ? EncoderNorm::kNoNorm : EncoderNorm::kLayerNorm;
  if (!e.use_bottleneck) e.bottleneck = e.hidden;
  return source;
}

absl::Status CheckCasing(const std::string& path) {
  if (!fs::exists(path)) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(Config config, Config::Read(path));
  bool lower = true;
  WITHY_RETURN_IF_ERROR(config.Get("do_lower_case", &lower));
  if (lower) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      path, ": do_lower_case is false; take an uncased model, text is read in lower case here"));
}

// Fills a checkpoint's tensors from the file.
class Importer {
 public:
  Importer(const SafetensorsFile& file, int32_t added_tokens, uint64_t seed)
      : file_(file), added_tokens_(added_tokens), seed_(seed) {
    prefix_ =
        file.Find("mobilebert.embeddings.word_embeddings.weight") != nullptr ? "mobilebert." : "";
  }

  bool Has(const std::string& source) const { return file_.Find(prefix_ + source) != nullptr; }

  absl::Status Fill(TlmTensor* tensor) {
    const std::string own = "tlm." + tensor->spec.name;
    if (file_.Find(own) != nullptr) return Copy(own, tensor, 0);
    if (tensor->spec.source.empty()) {
      tensor->values.resize(static_cast<size_t>(tensor->spec.elements()));
      InitTensor(tensor->spec.role, ++seed_, tensor->values);
      return absl::OkStatus();
    }
    const bool tokens = tensor->spec.role == TensorRole::kTokens;
    return Copy(prefix_ + tensor->spec.source, tensor, tokens ? added_tokens_ : 0);
  }

 private:
  // Copies a tensor of the file; `missing` further rows stay zero. Allocates nothing before the
  // file's shape has been checked.
  absl::Status Copy(const std::string& name, TlmTensor* tensor, int32_t missing) {
    std::vector<int64_t> wanted(tensor->spec.dims.rbegin(), tensor->spec.dims.rend());
    wanted[0] -= missing;
    const SafeTensor* found = file_.Find(name);
    if (found == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(file_.path(), ": tensor ", name, " is missing, which config.json asks for; ",
                       "take config.json and model.safetensors from the same model"));
    }
    if (found->shape != wanted) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor ", name, " has shape [", absl::StrJoin(found->shape, ", "),
          "], config.json says [", absl::StrJoin(wanted, ", "),
          "]; take config.json and model.safetensors from the same model"));
    }
    tensor->values.resize(static_cast<size_t>(tensor->spec.elements()));
    return file_.Read(name,
                      std::span(tensor->values).first(static_cast<size_t>(found->elements())));
  }

  const SafetensorsFile& file_;
  int32_t added_tokens_;
  uint64_t seed_;
  std::string prefix_;
};

// Initialises the SLO tokens added to the vocabulary, which are its last tokens.
absl::Status InitAddedRows(int32_t added, const MobileBertImport& options, TlmCheckpoint* tlm) {
  if (added == 0) return absl::OkStatus();
  std::vector<int32_t> rows(static_cast<size_t>(added));
  std::iota(rows.begin(), rows.end(), tlm->shape.encoder.vocab - added);
  return InitSloRows(rows, tlm->shape.encoder.embedding, options.seed,
                     *tlm->Find("token_embd.weight"));
}

}  // namespace

absl::StatusOr<TlmCheckpoint> ImportMobileBert(const std::string& directory,
                                               const MobileBertImport& options) {
  const fs::path folder(directory);
  const std::string config_path = folder / "config.json";
  const std::string vocab_path = folder / "vocab.txt";
  WITHY_ASSIGN_OR_RETURN(const Source source, ReadSource(config_path));
  WITHY_RETURN_IF_ERROR(CheckCasing(folder / "tokenizer_config.json"));
  TlmCheckpoint tlm;
  WITHY_ASSIGN_OR_RETURN(const std::string vocab_text, ReadTextFile(vocab_path));
  WITHY_ASSIGN_OR_RETURN(tlm.vocab, ParseVocab(vocab_text, vocab_path));
  if (tlm.vocab.size() != source.encoder.vocab) {
    return absl::InvalidArgumentError(absl::StrCat(
        vocab_path, ": has ", tlm.vocab.size(), " tokens, but vocab_size in config.json is ",
        source.encoder.vocab, "; take vocab.txt and config.json from the same model"));
  }
  const int32_t shared = options.shared_layers < 0 ? source.layers / 2 : options.shared_layers;
  if (shared > source.layers) {
    return absl::InvalidArgumentError(absl::StrCat("shared_layers is ", shared, ", but ",
                                                   config_path, " has ", source.layers, " layers"));
  }
  TlmShape& shape = tlm.shape;
  shape.encoder = source.encoder;
  shape.shared_layers = shared;
  shape.score_layers = shape.decision_layers = source.layers - shared;
  shape.window = std::min(512, source.encoder.positions);
  shape.slo_steps = options.slo_steps;
  shape.prompt_levels = options.prompt_levels;
  shape.model_levels = options.model_levels;
  WITHY_RETURN_IF_ERROR(CheckTlmShape(shape, config_path));
  const int32_t added = AddSloTokens(shape.slo_steps, &tlm.vocab);
  shape.encoder.vocab += added;
  WITHY_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::Open(folder / "model.safetensors"));
  Importer importer(file, added, options.seed);
  shape.pooler = source.pooler && importer.Has("pooler.dense.weight");
  for (TensorSpec& spec : TlmTensors(shape)) {
    tlm.tensors.push_back({.spec = std::move(spec), .values = {}});
    WITHY_RETURN_IF_ERROR(importer.Fill(&tlm.tensors.back()));
  }
  WITHY_RETURN_IF_ERROR(InitAddedRows(added, options, &tlm));
  return tlm;
}

}  // namespace withy::engine
