#include "base/config/defaults.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/config/model_choice.h"
#include "base/contract_limits.h"
#include "base/environment.h"
#include "base/listen_address.h"
#include "base/strings.h"

namespace withy {
namespace {

namespace fs = std::filesystem;
constexpr char kAppSocket[] = "withy.sock";
constexpr char kMetricsListen[] = "127.0.0.1:9464";

std::string FromEnvironment(const char* variable) {
  // systemd separates several directories by colons; ours is the first.
  const std::string value = Environment(variable);
  return value.substr(0, value.find(':'));
}

std::string DefaultDir(const char* systemd_variable, const char* root_dir, const char* xdg_variable,
                       const char* home_suffix) {
  if (std::string dir = FromEnvironment(systemd_variable); !dir.empty()) return dir;
  if (geteuid() == 0) return root_dir;
  if (std::string dir = FromEnvironment(xdg_variable); !dir.empty()) return dir + "/withy";
  const std::string home = FromEnvironment("HOME");
  return (home.empty() ? "/tmp" : home) + home_suffix;
}

std::string UnixAddress(const std::string& directory, std::string_view socket) {
  return absl::StrCat(ToAbsl(kUnixPrefix), directory, directory.ends_with('/') ? "" : "/",
                      ToAbsl(socket));
}

// Fills unset fields and refuses invalid values, naming the field's full path and the place of the
// value. Lives for one FillAndCheck.
class Filler {
 public:
  explicit Filler(const ConfigOrigins& origins) : origins_(origins) {}

  const std::vector<absl::Status>& problems() const { return problems_; }

  void Refuse(const std::string& path, std::string_view value, std::string_view remedy) {
    const auto origin = origins_.find(path);
    const std::string where = origin == origins_.end() ? "" : origin->second + ": ";
    problems_.push_back(absl::InvalidArgumentError(
        absl::StrCat(where, path, " is ", ToAbsl(value), "; ", ToAbsl(remedy))));
  }

  // False: it is refused.
  bool InRange(const std::string& path, uint64_t value, uint64_t low, uint64_t high) {
    if (value >= low && value <= high) return true;
    Refuse(path, absl::StrCat(value), absl::StrCat("it must be between ", low, " and ", high));
    return false;
  }

  void Directory(const std::string& path, std::string_view fallback, std::string* field) {
    if (field->empty()) *field = fallback;
    if (!field->starts_with('/')) {
      Refuse(path, QuotedText(*field),
             "it must be an absolute path, because each process has a working directory of its "
             "own");
      *field = fallback;
    }
    *field = (fs::path(*field) / "").lexically_normal().parent_path().string();
  }

  void Listen(const std::string& path, std::string_view fallback, std::string* field) {
    if (field->empty()) *field = fallback;
    if (CheckListenAddress(*field).ok()) return;
    Refuse(path, QuotedText(*field),
           "it must be unix:/PATH, or HOST:PORT with a port from 0 to 65535");
    *field = fallback;
  }

  // An empty fallback: no listening.
  void Tcp(const std::string& path, std::string_view fallback, std::string* field) {
    if (field->empty()) *field = fallback;
    const bool unix_socket = field->starts_with(kUnixPrefix);
    if (field->empty() || (!unix_socket && CheckListenAddress(*field).ok())) return;
    Refuse(path, QuotedText(*field),
           "it must be ADDRESS:PORT with a port from 0 to 65535, as 127.0.0.1:8080");
    *field = fallback;
  }

  void LogLevel(std::string* field) {
    const std::string name = field->empty() ? "info" : absl::AsciiStrToLower(*field);
    for (const std::string_view level : {"trace", "debug", "info", "warn", "error"}) {
      if (name != level) continue;
      *field = name;
      return;
    }
    Refuse("log_level", QuotedText(*field), "it must be trace, debug, info, warn or error");
    *field = "info";
  }

 private:
  const ConfigOrigins& origins_;
  std::vector<absl::Status> problems_;
};

// Sets a number that is unset (zero) or out of range to its default.
#define WITHY_FILL(section, message, field, fallback, low, high)                             \
  do {                                                                                       \
    if ((message)->field() == 0) (message)->set_##field(fallback);                           \
    if (!filler.InRange(absl::StrCat(section, "." #field), (message)->field(), low, high)) { \
      (message)->set_##field(fallback);                                                      \
    }                                                                                        \
  } while (false)

// Clears a number that is set and out of range.
#define WITHY_CHECK(section, message, field, low, high)                                      \
  do {                                                                                       \
    if ((message)->field() != 0 &&                                                           \
        !filler.InRange(absl::StrCat(section, "." #field), (message)->field(), low, high)) { \
      (message)->clear_##field();                                                            \
    }                                                                                        \
  } while (false)

constexpr char kModelFile[] = "withy-pocket-q8_0.gguf";
constexpr std::string_view kDraftFile = "withy-pocket-draft-q8_0.gguf";

// Ranges of types.proto's Sampling.
void CheckSampling(Filler& filler, const std::string& section, const proto::Sampling& sampling) {
  struct Field {
    const char* name;
    bool set;
    double value, low, high;
    bool low_allowed, high_allowed;
    std::string range;
  };
  const Field fields[] = {
      {"temperature", sampling.has_temperature(), sampling.temperature(), 0, kMaxTemperature, true,
       true, absl::StrCat("from 0 (greedy) to ", kMaxTemperature)},
      {"top_p", sampling.has_top_p(), sampling.top_p(), 0, 1, false, true,
       "above 0 and at most 1 (off)"},
      {"min_p", sampling.has_min_p(), sampling.min_p(), 0, 1, true, false,
       "from 0 (off) to below 1"},
      {"repetition_penalty", sampling.has_repetition_penalty(), sampling.repetition_penalty(), 0,
       kMaxRepetitionPenalty, false, true,
       absl::StrCat("above 0 and at most ", kMaxRepetitionPenalty, " (1 is off)")},
      {"repetition_window", sampling.has_repetition_window(),
       static_cast<double>(sampling.repetition_window()), 0, kMaxRepetitionWindow, true, true,
       absl::StrCat("from 0 to ", kMaxRepetitionWindow)},
      {"presence_penalty", sampling.has_presence_penalty(), sampling.presence_penalty(),
       -kMaxPenalty, kMaxPenalty, true, true,
       absl::StrCat("from -", kMaxPenalty, " to ", kMaxPenalty)},
      {"frequency_penalty", sampling.has_frequency_penalty(), sampling.frequency_penalty(),
       -kMaxPenalty, kMaxPenalty, true, true,
       absl::StrCat("from -", kMaxPenalty, " to ", kMaxPenalty)}};
  for (const Field& field : fields) {
    const bool low = field.low_allowed ? field.value >= field.low : field.value > field.low;
    const bool high = field.high_allowed ? field.value <= field.high : field.value < field.high;
    if (!field.set || (low && high)) continue;  // NaN is neither below nor above
    filler.Refuse(absl::StrCat(section, ".sampling.", field.name), absl::StrCat(field.value),
                  absl::StrCat("it must be ", field.range));
  }
  if (sampling.logit_bias_size() > 0) {
    filler.Refuse(section + ".sampling.logit_bias", absl::StrCat(sampling.logit_bias_size()),
                  "leave it out: every call sets its own");
  }
  if (!sampling.has_seed()) return;
  filler.Refuse(section + ".sampling.seed", absl::StrCat(sampling.seed()),
                "leave it out: every call sets its own seed");
}

// Puts the model that was chosen in the place of the configured one, if the choice was made for it.
void ApplyChoice(const std::string& state_dir, proto::ModelConfig* model) {
  const auto choice = HeldModelChoice(state_dir);
  if (!choice.ok() || !choice->has_value()) return;
  const std::string configured =
      model->path().empty() ? absl::StrCat(DefaultModelsDir(), "/", kModelFile) : model->path();
  if ((*choice)->configured_path() != configured) return;
  model->set_path((*choice)->path());
  model->clear_chat_template();
  model->clear_pre_tokenizer();
  model->clear_context_length();
  model->clear_sampling();
}

void FillModel(Filler& filler, const std::string& section, std::string_view run,
               std::string_view process, std::string_view file, proto::ModelConfig* model) {
  if (model->path().empty()) {
    model->set_path(DefaultModelsDir() + "/" + std::string(file));
    // The pocket models are trained to answer exactly.
    if (!model->sampling().has_temperature()) model->mutable_sampling()->set_temperature(0);
  }
  CheckSampling(filler, section, model->sampling());
  WITHY_CHECK(section, model, max_tokens, 1, 1 << 20);
  filler.Listen(section + ".listen", absl::StrCat(ToAbsl(run), ToAbsl(process), ".sock"),
                model->mutable_listen());
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  WITHY_FILL(section, model, threads, cores, 1, 1024);
  WITHY_FILL(section, model, max_batch, 8, 1, 64);
  WITHY_FILL(section, model, queue_limit, 64, 1, 100000);
  WITHY_FILL(section, model, prefill_piece_ms, 50, 1, 10000);
  WITHY_CHECK(section, model, weight_budget_bytes, uint64_t{1} << 20, uint64_t{1} << 44);
  WITHY_FILL(section, model, tree_rows, 65, 2, 256);
  if (model->speculation() == proto::SPECULATION_UNSPECIFIED) {
    model->set_speculation(proto::SPECULATION_AUTO);
  }
  if (!model->has_scrub_bytes_per_s()) model->set_scrub_bytes_per_s(uint64_t{32} << 20);
  WITHY_CHECK(section, model, scrub_bytes_per_s, uint64_t{1} << 16, uint64_t{1} << 44);
  WITHY_FILL(section, model, scrub_interval_s, 86400, 1, 31536000);
  if (!model->has_idle_upgrade_s()) model->set_idle_upgrade_s(5);
  WITHY_CHECK(section, model, idle_upgrade_s, 0, 86400);
  WITHY_CHECK(section, model, idle_release_s, 1, 31536000);
  WITHY_CHECK(section, model, context_length, 16, 1 << 20);
}

void CheckPublicPrompts(Filler& filler, const proto::StoreConfig& store) {
  constexpr int kMostPrompts = 64;
  const int prompts = store.public_system_prompts_size() + store.public_system_prompt_files_size();
  if (prompts > kMostPrompts) {
    filler.Refuse("store.public_system_prompts", absl::StrCat("a list of ", prompts),
                  absl::StrCat("at most ", kMostPrompts, " are possible, files included"));
  }
  for (const std::string& text : store.public_system_prompts()) {
    if (!text.empty()) continue;
    filler.Refuse("store.public_system_prompts", QuotedText(text), "it must not be empty");
  }
  for (const std::string& path : store.public_system_prompt_files()) {
    if (path.starts_with('/')) continue;
    filler.Refuse("store.public_system_prompt_files", QuotedText(path),
                  "it must be an absolute path");
  }
}

// "SCHEME://HOST[:PORT]", as browsers send it: without a path.
bool IsWebOrigin(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == 0 || scheme == std::string_view::npos || scheme + 3 == origin.size()) return false;
  return origin.find_first_of("/ *?#@\t\r\n", scheme + 3) == std::string_view::npos;
}

void CheckWebOrigins(Filler& filler, const proto::OrchestratorConfig& orchestrator) {
  constexpr int kMaxWebOrigins = 64;
  if (orchestrator.http_web_origins_size() > kMaxWebOrigins) {
    filler.Refuse("orchestrator.http_web_origins",
                  absl::StrCat(orchestrator.http_web_origins_size(), " entries"),
                  absl::StrCat("it may have ", kMaxWebOrigins, " at most"));
  }
  for (const std::string& origin : orchestrator.http_web_origins()) {
    if (origin == "*" || IsWebOrigin(origin)) continue;
    filler.Refuse("orchestrator.http_web_origins", QuotedText(origin),
                  "each must be SCHEME://HOST[:PORT] without a path, as "
                  "http://localhost:3000, or *");
  }
}

// Files of TLS: all that belong together, by absolute paths.
void CheckTlsFiles(Filler& filler, const proto::TlsConfig& tls) {
  const bool certificate = !tls.certificate_file().empty();
  const bool key = !tls.key_file().empty();
  if (certificate != key) {
    filler.Refuse(certificate ? "tls.key_file" : "tls.certificate_file", QuotedText(""),
                  absl::StrCat("it must be set, because tls.",
                               certificate ? "certificate_file" : "key_file", " is"));
  }
  if (!tls.client_ca_file().empty() && !certificate) {
    filler.Refuse("tls.client_ca_file", QuotedText(tls.client_ca_file()),
                  "set tls.certificate_file and tls.key_file, too, or leave it out");
  }
  if (tls.on_loopback() && !certificate) {
    filler.Refuse("tls.on_loopback", "true",
                  "set tls.certificate_file and tls.key_file, too, or leave it out");
  }
  const std::pair<const char*, const std::string&> files[] = {
      {"tls.certificate_file", tls.certificate_file()},
      {"tls.key_file", tls.key_file()},
      {"tls.client_ca_file", tls.client_ca_file()}};
  for (const auto& [path, file] : files) {
    if (file.empty() || file.starts_with('/')) continue;
    filler.Refuse(path, QuotedText(file), "it must be an absolute path");
  }
}

// Refuses what would be open to a network in the clear.
void CheckPlaintext(Filler& filler, proto::Config* config, const std::string& run) {
  if (config->tls().allow_plaintext_tcp()) return;
  struct Address {
    const char* path;
    bool has_tls;
    std::string* listen;
    std::string safe;
  };
  const Address addresses[] = {
      {"orchestrator.listen", true, config->mutable_orchestrator()->mutable_listen(),
       run + kAppSocket},
      {"orchestrator.http_listen", true, config->mutable_orchestrator()->mutable_http_listen(), ""},
      {"profiler.metrics_listen", true, config->mutable_profiler()->mutable_metrics_listen(),
       kMetricsListen},
      {"model.listen", false, config->mutable_model()->mutable_listen(), run + "model_worker.sock"},
      {"draft.listen", false, config->mutable_draft()->mutable_listen(), run + "draft_worker.sock"},
      {"store.listen", false, config->mutable_store()->mutable_listen(),
       run + "context_store.sock"},
      {"profiler.listen", false, config->mutable_profiler()->mutable_listen(),
       run + "profiler_agent.sock"}};
  for (const Address& at : addresses) {
    const bool local = at.listen->empty() || *at.listen == "off" ||
                       at.listen->starts_with(kUnixPrefix) || IsLoopback(*at.listen);
    if (local || (at.has_tls && !config->tls().certificate_file().empty())) continue;
    filler.Refuse(at.path, QuotedText(*at.listen),
                  at.has_tls ? "it is open to a network in the clear: set tls.certificate_file and "
                               "tls.key_file, or listen on 127.0.0.1 (behind a tunnel), or set "
                               "tls.allow_plaintext_tcp"
                             : "it is open to a network without encryption or tokens: listen on a "
                               "unix socket or 127.0.0.1, or set tls.allow_plaintext_tcp");
    *at.listen = at.safe;
  }
}

void CheckAppBudgets(Filler& filler, const proto::OrchestratorConfig& orchestrator) {
  constexpr int kMostBudgets = 4096;
  const std::string path = "orchestrator.app_budgets";
  if (orchestrator.app_budgets_size() > kMostBudgets) {
    filler.Refuse(path, absl::StrCat("a list of ", orchestrator.app_budgets_size()),
                  absl::StrCat("at most ", kMostBudgets, " are possible"));
  }
  std::set<std::string> apps;
  for (const proto::AppBudget& budget : orchestrator.app_budgets()) {
    if (budget.app().empty()) {
      filler.Refuse(path, "an entry without an app", "app must be the name of an app, or *");
    } else if (!apps.insert(budget.app()).second) {
      filler.Refuse(path, absl::StrCat("a second entry for ", QuotedText(budget.app())),
                    "an app may have one entry only");
    }
  }
}

void Fill(Filler& filler, proto::Config* config) {
  filler.LogLevel(config->mutable_log_level());
  filler.Directory(
      "run_dir",
      DefaultDir("RUNTIME_DIRECTORY", "/run/withy", "XDG_RUNTIME_DIR", "/.local/state/withy/run"),
      config->mutable_run_dir());
  filler.Directory(
      "state_dir",
      DefaultDir("STATE_DIRECTORY", "/var/lib/withy", "XDG_STATE_HOME", "/.local/state/withy"),
      config->mutable_state_dir());
  const std::string run = UnixAddress(config->run_dir(), "");

  proto::OrchestratorConfig* orchestrator = config->mutable_orchestrator();
  filler.Listen("orchestrator.listen", run + kAppSocket, orchestrator->mutable_listen());
  filler.Tcp("orchestrator.http_listen", "", orchestrator->mutable_http_listen());
  CheckWebOrigins(filler, *orchestrator);
  CheckAppBudgets(filler, *orchestrator);
  WITHY_FILL("orchestrator", orchestrator, queue_limit, 64, 1, 100000);
  WITHY_FILL("orchestrator", orchestrator, contexts_per_app, 1000, 1, 1000000);
  WITHY_FILL("orchestrator", orchestrator, drain_s, 20, 1, 3600);

  ApplyChoice(config->state_dir(), config->mutable_model());
  FillModel(filler, "model", run, "model_worker", kModelFile, config->mutable_model());
  WITHY_FILL("orchestrator", orchestrator, tlm_threads, config->model().threads(), 1, 1024);
  FillModel(filler, "draft", run, "draft_worker", kDraftFile, config->mutable_draft());

  proto::StoreConfig* store = config->mutable_store();
  filler.Listen("store.listen", run + "context_store.sock", store->mutable_listen());
  WITHY_FILL("store", store, arena_bytes, uint64_t{256} << 20, uint64_t{1} << 20,
             uint64_t{1} << 40);
  WITHY_FILL("store", store, result_ttl_s, 86400, 1, 86400 * 365);
  WITHY_FILL("store", store, kv_ratio_percent, 50, 25, 100);
  WITHY_FILL("store", store, kv_disk_bytes, uint64_t{8} << 30, uint64_t{16} << 20,
             uint64_t{1} << 40);
  WITHY_FILL("store", store, tokens_per_context, UINT32_MAX, 16, UINT32_MAX);
  WITHY_FILL("store", store, bytes_per_app, uint64_t{1} << 40, uint64_t{1} << 16,
             uint64_t{1} << 40);
  WITHY_FILL("store", store, disk_bytes, uint64_t{1} << 40, uint64_t{32} << 20, uint64_t{1} << 40);
  if (const std::string& key = store->master_key_path(); !key.empty() && !key.starts_with('/')) {
    filler.Refuse("store.master_key_path", QuotedText(key), "it must be an absolute path");
  }
  CheckPublicPrompts(filler, *store);
  WITHY_FILL("store", store, kv_daily_write_bytes, uint64_t{32} << 30, uint64_t{16} << 20,
             uint64_t{1} << 50);
  WITHY_FILL("store", store, memory_pressure_percent, 10, 1, 100);
  WITHY_CHECK("store", store, kv_disk_bytes_per_second, uint64_t{1} << 20, uint64_t{1} << 40);

  proto::ProfilerConfig* profiler = config->mutable_profiler();
  filler.Listen("profiler.listen", run + "profiler_agent.sock", profiler->mutable_listen());
  if (profiler->metrics_listen() != "off") {
    filler.Tcp("profiler.metrics_listen", kMetricsListen, profiler->mutable_metrics_listen());
  }
  WITHY_FILL("profiler", profiler, poll_ms, 50, 1, 1000);
  WITHY_FILL("profiler", profiler, slo_objective_per_mille, 990, 1, 999);
  WITHY_FILL("profiler", profiler, kernel_spans_per_mille, 3, 1, 1000);
  CheckTlsFiles(filler, config->tls());
  CheckPlaintext(filler, config, run);
}

}  // namespace

std::vector<absl::Status> FillAndCheck(const ConfigOrigins& origins, proto::Config* config) {
  Filler filler(origins);
  Fill(filler, config);
  return filler.problems();
}

std::string QuotedText(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text.push_back('\\');
    text.push_back(c);
  }
  return text + "\"";
}

std::vector<std::string> AppAddresses(const proto::Config& config) {
  const std::string own = UnixAddress(config.run_dir(), kAppSocket);
  const std::string& listen = config.orchestrator().listen();
  const auto path = [](std::string_view address) {
    std::error_code ignored;
    return fs::weakly_canonical(address.substr(kUnixPrefix.size()), ignored);
  };
  if (listen.starts_with(kUnixPrefix) && path(listen) == path(own)) return {listen};
  return {listen, own};
}

std::string DefaultModelsDir() {
  std::error_code ignored;
  fs::path dir = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (int up = 0; up < 4 && !dir.empty(); ++up, dir = dir.parent_path()) {
    for (const fs::path& models : {dir / "models", dir / "share" / "withy" / "models"}) {
      if (fs::exists(models / "withy-pocket-q8_0.gguf", ignored)) return models.string();
    }
  }
  return "/usr/share/withy/models";
}

bool IsDefaultDraft(const proto::Config& config) {
  return config.draft().path() == absl::StrCat(DefaultModelsDir(), "/", ToAbsl(kDraftFile));
}

std::string DefaultTlmPath(const std::string& model_path) {
  const fs::path parent = fs::path(model_path).parent_path();
  std::string found = fs::path(model_path).replace_extension("tlm.gguf").string();
  std::error_code error;
  if (fs::is_regular_file(found, error)) return found;
  found.clear();
  for (const auto& entry : fs::directory_iterator(parent.empty() ? "." : parent, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("withy-pocket-tlm") || !name.ends_with(".gguf")) continue;
    found = std::max(found, entry.path().string());
  }
  return found;
}

}  // namespace withy
