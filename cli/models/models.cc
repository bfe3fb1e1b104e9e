// withyctl models: lists served models, inspects files, packs files in advance, adds levels by an
// overlay, and writes random weights for benchmarks.
#include <algorithm>
#include <iostream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/files.h"
#include "base/status.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/models/elastic_file.h"
#include "cli/models/inspect.h"
#include "cli/models/model_fetch.h"
#include "cli/models/model_use.h"
#include "cli/output.h"
#include "cli/profile/plots.h"
#include "cli/terminal_text.h"
#include "engine/gguf/matrix_types.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/split.h"
#include "engine/model/synth.h"
#include "engine/weights/overlay.h"
#include "engine/weights/packer.h"

namespace withy::cli {
namespace {

int ListModels(const Args& args) {
  const auto client = Client::Open(args);
  if (!client.ok()) return Fail(client.status());
  const auto models = (*client)->ListModels();
  if (!models.ok()) return Fail(models.status());
  if (args.Has("json")) {
    std::cout << ToJson(*models) << "\n";
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {{"ROLE", "NAME", "ARCHITECTURE", "PARAMETERS",
                                                 "WEIGHTS", "WINDOW", "VOCABULARY", "LEVELS %"}};
  for (const v1::ModelDescription& model : models->models()) {
    rows.push_back({model.role(), model.name(), model.architecture(), Count(model.parameters()),
                    Bytes(model.weight_bytes()), absl::StrCat(model.context_length()),
                    absl::StrCat(model.vocabulary()), absl::StrJoin(model.levels_percent(), " ")});
  }
  std::cout << Table(rows);
  for (const v1::ModelDescription& model : models->models()) {
    if (!model.warning().empty()) {
      std::cout << model.role() << ": warning: " << Printable(model.warning()) << "\n";
    }
    if (!model.note().empty()) std::cout << model.role() << ": " << Printable(model.note()) << "\n";
  }
  for (const std::string& note : models->notes()) std::cout << Printable(note) << "\n";
  return kExitOk;
}

int RunInspect(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("models inspect takes one FILE");
  const auto inspection = Inspect(
      args.positional()[0],
      {.chat_template = args.Get("chat-template"), .pre_tokenizer = args.Get("pre-tokenizer")});
  if (!inspection.ok()) return Fail(inspection.status());
  if (args.Has("plots")) {
    const auto plots = WritePlots(args.positional()[0], args.Get("plots"));
    if (!plots.ok()) return Fail(plots.status());
    for (const std::string& path : *plots) std::cerr << "wrote " << path << "\n";
  }
  std::cout << (args.Has("json") ? InspectionJson(*inspection) + "\n"
                                 : InspectionText(*inspection));
  return inspection->problems.empty() ? kExitOk : kExitFailed;
}

// Directory where the workers keep packed models.
absl::StatusOr<std::string> PackedDir(const Args& args) {
  if (args.Has("cache-dir")) return args.Get("cache-dir");
  WITHY_ASSIGN_OR_RETURN(const proto::Config config, LoadConfig(args.Get("config")));
  return config.state_dir() + "/packed";
}

int RunImport(const Args& args) {
  if (args.positional().size() != 1) return FailUsage("models import takes one FILE");
  const auto dir = PackedDir(args);
  if (!dir.ok()) return Fail(dir.status());
  engine::ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  absl::StatusOr<std::string> packed;
  {
    ProgressBar bar(Clock::Real());
    packed =
        engine::EnsurePacked(args.positional()[0], *dir, pool,
                             [&](double done, std::string_view what) { bar.Update(done, what); });
  }
  if (!packed.ok()) return Fail(packed.status());
  std::cout << *packed << "\n";
  return kExitOk;
}

int RunGet(const Args& args) {
  if (args.positional().size() != 1) {
    std::string known;
    for (const NamedModel& model : NamedModels()) {
      absl::StrAppend(&known, "\n  ", model.name, "  ", model.description);
    }
    return FailUsage("models get takes one NAME of" + known);
  }
  const auto model = FindNamedModel(args.positional()[0]);
  if (!model.ok()) return Fail(model.status());
  absl::StatusOr<std::string> path;
  {
    ProgressBar bar(Clock::Real());
    path = FetchModel(*model, args.Get("dir", "."),
                      [&](double done, std::string_view what) { bar.Update(done, what); });
  }
  if (!path.ok()) return Fail(path.status());
  if (!args.Has("plain")) {
    absl::StatusOr<ElasticFile> elastic;
    {
      ProgressBar bar(Clock::Real());
      elastic = EnsureElastic(*path, DefaultModelsDir(),
                              [&](double done, std::string_view what) { bar.Update(done, what); });
    }
    if (!elastic.ok()) return Fail(elastic.status());
    if (!elastic->overlay.empty()) {
      std::cerr << (elastic->made ? "made elastic" : "elastic") << " by " << elastic->overlay
                << ": levels " << absl::StrJoin(elastic->levels, ", ") << " %"
                << (elastic->tlm.empty() ? "" : ", with a TLM") << " (--plain: without them)\n";
    }
    *path = elastic->path;
  }
  std::cout << *path << "\n";
  return kExitOk;
}

int RunOverlay(const Args& args) {
  if (args.positional().size() != 1 || !args.Has("overlay") || !args.Has("out")) {
    return FailUsage("models overlay takes FILE --overlay OVERLAY --out ELASTIC");
  }
  const std::string& plain_path = args.positional()[0];
  const std::string out = args.Get("out");
  const auto type = engine::FindMatrixType(args.Get("type"));
  if (!type.ok()) return FailUsage(ToStd(type.status().message()));
  std::vector<std::string> inputs = engine::GgufPartPaths(plain_path);
  inputs.push_back(args.Get("overlay"));
  const absl::Status writable = CheckOutput(out, inputs);
  if (!writable.ok()) return Fail(writable);
  const auto plain = engine::GgufFile::Open(plain_path);
  if (!plain.ok()) return Fail(plain.status());
  const auto overlay = engine::GgufFile::Open(args.Get("overlay"));
  if (!overlay.ok()) return Fail(overlay.status());
  absl::Status status;
  {
    ProgressBar bar(Clock::Real());
    engine::OverlayOptions options{.type = *type};
    options.progress = [&](uint64_t written, uint64_t all) {
      bar.Update(static_cast<double>(written) / static_cast<double>(all), out);
    };
    status = engine::ApplyOverlay(*plain, *overlay, options, out);
  }
  if (!status.ok()) return Fail(status);
  std::cout << out << "\n";
  return kExitOk;
}

int RunSynth(const Args& args) {
  if (!args.Has("out")) return FailUsage("models synth takes --shape NAME --type TYPE --out FILE");
  auto shape = engine::FindSynthShape(args.Get("shape", "tinyllama-1.1b"));
  if (!shape.ok()) return FailUsage(ToStd(shape.status().message()));
  std::vector<std::string> levels;
  if (args.Has("levels")) levels = absl::StrSplit(args.Get("levels"), ',');
  for (const std::string& part : levels) {
    if (!absl::SimpleAtoi(part, &shape->levels.emplace_back())) {
      return FailUsage(absl::StrCat("--levels takes numbers from 1 to 99, such as 20,50,80; \"",
                                    part, "\" is none"));
    }
  }
  const auto type = engine::FindSynthType(args.Get("type", "q8_0"));
  if (!type.ok()) return FailUsage(ToStd(type.status().message()));
  const auto seed = args.Unsigned("seed");
  if (!seed.ok()) return FailUsage(ToStd(seed.status().message()));
  const std::string path = args.Get("out");
  absl::Status status;
  {
    ProgressBar bar(Clock::Real());
    status = engine::WriteSynthModel(
        *shape, *type, seed->value_or(1), path, [&](uint64_t written, uint64_t all) {
          bar.Update(static_cast<double>(written) / static_cast<double>(all), path);
        });
  }
  if (!status.ok()) return Fail(status);
  std::cout << path << "\n";
  return kExitOk;
}

}  // namespace

std::vector<Command> ModelCommands() {
  const Flag json{"json", "", "print JSON"};
  const Flag config{"config", "FILE",
                    "the service's configuration (default /etc/withy/withy.textproto)"};
  return {
      {"models list", "", "list the served models", WithConnection({json}), ListModels},
      {"models inspect",
       "FILE",
       "describe a GGUF file and whether withy can serve it (exit code 1 if not)",
       {{"chat-template", "NAME", "use this chat template instead of the file's"},
        {"pre-tokenizer", "NAME", "use this pre-tokenizer instead of the file's"},
        {"plots", "DIR", "also plot the data that an elastic file's levels were chosen by (SVG)"},
        json},
       RunInspect},
      {"models import",
       "FILE",
       "pack a GGUF file for the workers and print the packed file's path",
       {{"cache-dir", "DIR", "directory of packed files (default: STATE_DIR/packed)"}, config},
       RunImport},
      {"models use", "FILE",
       "serve another model from now on, without a restart of the service (for the operator)",
       WithConnection({{"configured", "", "serve what the configuration names again"}}), RunUse},
      {"models packed",
       "",
       "list the packed models in the state directory (for the operator)",
       {{"remove-unused", "", "remove those that neither the configuration names nor was chosen"},
        config},
       RunPacked},
      {"models get",
       "NAME",
       "download a model that is known by name (smollm2) and print its file's path",
       {{"dir", "DIR", "where the file goes (default: the present directory)"},
        {"plain", "", "do not add levels to it, even if an overlay for it ships with withy"}},
       RunGet},
      {"models overlay",
       "FILE",
       "add the levels of an overlay to the plain GGUF that it was made for",
       {{"overlay", "OVERLAY", "the overlay (NAME.overlay.gguf)"},
        {"out", "ELASTIC", "GGUF file to write"},
        {"type", "TYPE",
         "type of all matrices whose units move: q8_0, q4_0, q4_1, f16, bf16, f32 (default: each "
         "keeps its own; a quantised ffn_down becomes q8_0)"}},
       RunOverlay},
      {"models synth",
       "",
       "write a random-weight model of a published shape, for benchmarks",
       {{"shape", "NAME",
         absl::StrJoin(engine::SynthShapeNames(), ", ") + " (default tinyllama-1.1b)"},
        {"type", "TYPE", "q8_0 (default), q4_0, mxfp4, f16, bf16, f32"},
        {"levels", "LIST", "elastic levels in per cent, each with a LoRA, such as 20,50,80"},
        {"seed", "N", "default 1"},
        {"out", "FILE", "GGUF file to write"}},
       RunSynth},
  };
}

}  // namespace withy::cli
