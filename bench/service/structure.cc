// withy-bench-structure: answers in a form, through a service of its own: whether they are valid,
// with and without drafts, and what the form costs. Prints a table on stderr and one JSON line last
// on stdout. Neighbours: grammar/testing.h has the schemas and the validator; own_service.h starts
// the service.
#include <time.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/program_flags.h"
#include "base/status.h"
#include "bench/samples.h"
#include "bench/service/own_service.h"
#include "engine/gguf/reader.h"
#include "engine/sampling/output_grammar.h"
#include "engine/tokenizer/tokenizer.h"
#include "grammar/compiler.h"
#include "grammar/testing.h"

ABSL_FLAG(std::string, model, "", "the model that is served: a GGUF file; empty: the pocket model");
ABSL_FLAG(std::string, vocabulary, "",
          "whose tokens the masks are of: a GGUF file, which needs no weights; empty: the model");
ABSL_FLAG(int, schemas, 100, "schemas: 20 examples, then random ones");
ABSL_FLAG(int, tokens, 400, "of an answer, at most");

namespace withy::bench {
namespace {

using grammar::TestJson;

constexpr char kPrompt[] = "Tell me about the garden";
constexpr char kPocketModel[] = "models/withy-pocket-q8_0.gguf";

struct Unsupported {
  const char* keyword;
  const char* schema;
};
constexpr Unsupported kUnsupported[] = {
    {"not", R"({"not": {"type": "string"}})"},
    {"if", R"({"if": {"type": "string"}})"},
    {"uniqueItems", R"({"type": "array", "uniqueItems": true})"},
    {"contains", R"({"type": "array", "contains": {"type": "null"}})"},
    {"patternProperties", R"({"type": "object", "patternProperties": {"^a": {}}})"},
    {"dependentRequired", R"({"type": "object", "dependentRequired": {"a": ["b"]}})"},
    {"multipleOf", R"({"type": "number", "multipleOf": 0.1})"},
    {"format", R"({"type": "string", "format": "iri"})"},
    {"allOf", R"({"allOf": [{"type": "string"}, {"minLength": 2}]})"},
    {"oneOf", R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})"}};

std::vector<std::string> Schemas(int count) {
  std::vector<std::string> schemas;
  for (const char* schema : grammar::kExampleSchemas) schemas.emplace_back(schema);
  std::mt19937 random(7);
  while (static_cast<int>(schemas.size()) < count) {
    schemas.push_back(grammar::RandomSchema(random, 3).dump());
  }
  schemas.resize(static_cast<size_t>(count));
  return schemas;
}

struct Figures {
  int ended = 0;  // by themselves: others were cut by the limit
  int valid = 0;  // of these
  int equal = 0;  // with and without drafts
  int refused = 0;
  double constrained_ms = 0, drafted_ms = 0, free_ms = 0;  // of decoding
  double constrained_tokens = 0, drafted_tokens = 0, free_tokens = 0;
  Samples mask_us;

  static double Tpot(double ms, double tokens) { return tokens > 0 ? ms / tokens : 0; }
};

absl::StatusOr<ServedAnswer> Ask(OwnService& service, const std::string& schema,
                                 v1::Speculation speculation, double* ms, double* tokens) {
  v1::GenerateRequest request =
      GreedyRequest(kPrompt, static_cast<uint32_t>(absl::GetFlag(FLAGS_tokens)));
  if (!schema.empty()) request.mutable_output_format()->set_json_schema(schema);
  request.set_speculation(speculation);
  WITHY_ASSIGN_OR_RETURN(ServedAnswer answer, service.Ask(request));
  if (answer.tokens.size() > 1) {
    *ms += answer.decode_ms;
    *tokens += static_cast<double>(answer.tokens.size() - 1);
  }
  return answer;
}

// Free answers are as long as the constrained ones are on average, in the same minutes.
absl::Status MeasureAnswers(OwnService& service, const std::vector<std::string>& schemas,
                            Figures* figures) {
  for (size_t i = 0; i < schemas.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(const ServedAnswer plain,
                           Ask(service, schemas[i], v1::SPECULATION_OFF, &figures->constrained_ms,
                               &figures->constrained_tokens));
    WITHY_ASSIGN_OR_RETURN(const ServedAnswer drafted,
                           Ask(service, schemas[i], v1::SPECULATION_LOOKUP, &figures->drafted_ms,
                               &figures->drafted_tokens));
    if (figures->free_tokens <= figures->constrained_tokens) {
      WITHY_RETURN_IF_ERROR(
          Ask(service, "", v1::SPECULATION_OFF, &figures->free_ms, &figures->free_tokens).status());
    }
    figures->equal += plain.tokens == drafted.tokens ? 1 : 0;
    if (plain.finished.reason() != v1::FINISH_REASON_END_OF_TURN) continue;
    ++figures->ended;
    const TestJson value =
        TestJson::parse(plain.finished.text(), nullptr, /*allow_exceptions=*/false);
    const grammar::SchemaValidator validator(TestJson::parse(schemas[i]));
    const bool valid = !value.is_discarded() && validator.Allows(value);
    figures->valid += valid ? 1 : 0;
    if (!valid) {
      std::fprintf(stderr, "not valid under %s: %s\n", schemas[i].c_str(),
                   plain.finished.text().c_str());
    }
    std::fprintf(stderr, "\r%zu of %zu", i + 1, schemas.size());
  }
  std::fprintf(stderr, "\r%20s\r", "");
  return absl::OkStatus();
}

void MeasureRefusals(OwnService& service, Figures* figures) {
  for (const auto& [keyword, schema] : kUnsupported) {
    double ms = 0, tokens = 0;
    const absl::Status status = Ask(service, schema, v1::SPECULATION_OFF, &ms, &tokens).status();
    const bool named =
        absl::IsInvalidArgument(status) && absl::StrContains(status.message(), keyword);
    figures->refused += named ? 1 : 0;
    if (!named) std::fprintf(stderr, "%s: %s\n", keyword, status.ToString().c_str());
  }
}

// Of this thread's processor, so that what else the machine does is not counted.
int64_t ProcessorNanos() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// What a mask takes along random answers, without a model's passes in between.
absl::Status MeasureMasks(const std::vector<std::string>& schemas, const std::string& vocabulary,
                          Figures* figures) {
  constexpr int kMostTokens = 100;
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(vocabulary));
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Tokenizer> tokenizer,
                         engine::MakeTokenizer(file));
  const int32_t vocab_size = tokenizer->vocab_size();
  grammar::Compiler compiler(*tokenizer, vocab_size);
  std::vector<uint32_t> mask(engine::MaskWords(vocab_size));
  std::mt19937 random(7);
  for (const std::string& schema : schemas) {
    const int64_t compiling = ProcessorNanos();
    WITHY_ASSIGN_OR_RETURN(
        const auto grammar,
        compiler.Compile({.kind = engine::OutputFormat::Kind::kJsonSchema, .text = schema}));
    figures->mask_us.Add("compiling", 1e-3 * static_cast<double>(ProcessorNanos() - compiling));
    const auto state = grammar->Begin();
    for (int i = 0; i < kMostTokens; ++i) {
      const int64_t started = ProcessorNanos();
      state->FillMask(mask);
      figures->mask_us.Add("mask", 1e-3 * static_cast<double>(ProcessorNanos() - started));
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocab_size; ++id) {
        if (engine::MaskHas(mask, id) && !tokenizer->IsEndOfGeneration(id)) {
          allowed.push_back(id);
        }
      }
      if (allowed.empty()) break;
      state->Accept(allowed[random() % allowed.size()]);
    }
  }
  return absl::OkStatus();
}

absl::Status Main() {
  const std::vector<std::string> schemas = Schemas(absl::GetFlag(FLAGS_schemas));
  const std::string model = absl::GetFlag(FLAGS_model);
  Figures figures;
  const std::string vocabulary = absl::GetFlag(FLAGS_vocabulary);
  WITHY_RETURN_IF_ERROR(MeasureMasks(schemas,
                                     !vocabulary.empty() ? vocabulary
                                     : !model.empty()    ? model
                                                         : kPocketModel,
                                     &figures));
  OwnServiceOptions options;
  if (!model.empty()) options.model = absl::StrCat("path: \"", model, "\"");
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<OwnService> service, OwnService::Start(options));
  WITHY_RETURN_IF_ERROR(MeasureAnswers(*service, schemas, &figures));
  MeasureRefusals(*service, &figures);
  figures.mask_us.Print(stderr);
  const double constrained = Figures::Tpot(figures.constrained_ms, figures.constrained_tokens);
  const double drafted = Figures::Tpot(figures.drafted_ms, figures.drafted_tokens);
  const double free = Figures::Tpot(figures.free_ms, figures.free_tokens);
  const std::vector<double>& masks = figures.mask_us.At("mask");
  const nlohmann::ordered_json line = {
      {"schemas", schemas.size()},
      {"ended", figures.ended},
      {"valid", figures.ended > 0 ? static_cast<double>(figures.valid) / figures.ended : 0},
      {"refused_by_name", static_cast<double>(figures.refused) / std::size(kUnsupported)},
      {"mask_us_mean", Mean(masks)},
      {"mask_us_p999", Quantile(masks, 0.999)},
      {"compile_ms_max", 1e-3 * Quantile(figures.mask_us.At("compiling"), 1)},
      {"tpot_added", free > 0 ? constrained / free - 1 : 0},
      {"forced_drafts_gain", drafted > 0 ? constrained / drafted : 0},
      {"equal_with_drafts",
       static_cast<double>(figures.equal) / static_cast<double>(schemas.size())}};
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace withy::bench

int main(int argc, char** argv) {
  return withy::RunProgram(
      "Asks a service of its own for answers in a form, and checks and times them.\n"
      "usage: withy-bench-structure [--model=FILE.gguf] [--vocabulary=FILE.gguf] [--schemas=N] "
      "[--tokens=N]",
      argc, argv, withy::bench::Main,
      [] { return absl::GetFlag(FLAGS_schemas) >= 1 && absl::GetFlag(FLAGS_tokens) >= 1; });
}
