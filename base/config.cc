#include "base/config.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/status.h"

namespace withy {
namespace {

namespace fs = std::filesystem;
using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// Keeps the first complaint of the text parser, with its place.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

absl::Status ParseText(std::string_view text, std::string_view name, proto::Config* config) {
  FirstError error;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  if (parser.Merge(&input, config)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(name), ":", error.text(), " (the fields are in proto/withy/v1/config.proto)"));
}

std::string Quoted(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text.push_back('\\');
    text.push_back(c);
  }
  return text + "\"";
}

std::string FromEnvironment(const char* variable) {
  const char* value = std::getenv(variable);
  // systemd gives several directories separated by colons: ours is the first.
  return value == nullptr ? "" : std::string(value).substr(0, std::string_view(value).find(':'));
}

std::string DefaultDir(const char* systemd_variable, const char* root_dir, const char* xdg_variable,
                       const char* home_suffix) {
  if (std::string dir = FromEnvironment(systemd_variable); !dir.empty()) return dir;
  if (geteuid() == 0) return root_dir;
  if (std::string dir = FromEnvironment(xdg_variable); !dir.empty()) return dir + "/withy";
  const std::string home = FromEnvironment("HOME");
  return (home.empty() ? "/tmp" : home) + home_suffix;
}

absl::Status CheckRange(std::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("config field ", ToAbsl(field), " is ", value,
                                                 "; it must be between ", low, " and ", high));
}

// Sets an unset (zero) number to its default and checks its range.
#define WITHY_FILL(message, field, fallback, low, high)                       \
  do {                                                                        \
    if ((message)->field() == 0) (message)->set_##field(fallback);            \
    WITHY_RETURN_IF_ERROR(CheckRange(#field, (message)->field(), low, high)); \
  } while (false)

void FillString(std::string* field, std::string_view fallback) {
  if (field->empty()) *field = fallback;
}

absl::Status FillModel(std::string_view run_dir, std::string_view process, std::string_view file,
                       proto::ModelConfig* model) {
  FillString(model->mutable_path(), DefaultModelsDir() + "/" + std::string(file));
  FillString(model->mutable_listen(),
             absl::StrCat("unix:", ToAbsl(run_dir), "/", ToAbsl(process), ".sock"));
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  WITHY_FILL(model, threads, cores, 1, 1024);
  WITHY_FILL(model, max_batch, 8, 1, 64);
  WITHY_FILL(model, queue_limit, 64, 1, 100000);
  WITHY_FILL(model, prefill_piece_ms, 50, 1, 10000);
  if (!model->has_idle_upgrade_s()) model->set_idle_upgrade_s(5);
  WITHY_RETURN_IF_ERROR(CheckRange("idle_upgrade_s", model->idle_upgrade_s(), 0, 86400));
  if (model->context_length() != 0) {
    WITHY_RETURN_IF_ERROR(CheckRange("context_length", model->context_length(), 16, 1 << 20));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<proto::Config> ParseConfig(std::string_view text, std::string_view name) {
  proto::Config config;
  WITHY_RETURN_IF_ERROR(ParseText(text, name, &config));
  return config;
}

absl::Status ApplyOverride(std::string_view assignment, proto::Config* config) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("override '", ToAbsl(assignment), "' must have the form field.path=value"));
  }
  const std::vector<std::string> path = absl::StrSplit(ToAbsl(assignment.substr(0, equals)), '.');
  const std::string_view value = assignment.substr(equals + 1);
  const google::protobuf::Descriptor* descriptor = config->GetDescriptor();
  std::string text, closing;
  for (size_t i = 0; i < path.size(); ++i) {
    const FieldDescriptor* field =
        descriptor == nullptr ? nullptr : descriptor->FindFieldByName(path[i]);
    const bool last = i + 1 == path.size();
    if (field == nullptr || last != (field->message_type() == nullptr)) {
      return absl::InvalidArgumentError(absl::StrCat("override '", ToAbsl(assignment),
                                                     "': no field '", path[i],
                                                     "' there (see proto/withy/v1/config.proto)"));
    }
    if (last) {
      const bool text_field = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
      absl::StrAppend(&text, path[i], ": ", text_field ? Quoted(value) : std::string(value));
    } else {
      absl::StrAppend(&text, path[i], " { ");
      closing += " }";
      descriptor = field->message_type();
    }
  }
  // A later assignment to the same field must win, which the text parser refuses within one parse;
  // so merge.
  WITHY_ASSIGN_OR_RETURN(
      const proto::Config one,
      ParseConfig(text + closing, absl::StrCat("override '", ToAbsl(assignment), "'")));
  config->MergeFrom(one);
  return absl::OkStatus();
}

absl::Status FillDefaults(proto::Config* config) {
  FillString(config->mutable_run_dir(), DefaultDir("RUNTIME_DIRECTORY", "/run/withy",
                                                   "XDG_RUNTIME_DIR", "/.local/state/withy/run"));
  FillString(config->mutable_state_dir(), DefaultDir("STATE_DIRECTORY", "/var/lib/withy",
                                                     "XDG_STATE_HOME", "/.local/state/withy"));
  FillString(config->mutable_log_level(), "info");
  const std::string run = "unix:" + config->run_dir() + "/";

  proto::OrchestratorConfig* orchestrator = config->mutable_orchestrator();
  FillString(orchestrator->mutable_listen(), run + "withy.sock");
  WITHY_FILL(orchestrator, queue_limit, 64, 1, 100000);
  WITHY_FILL(orchestrator, contexts_per_app, 1000, 1, 1000000);
  WITHY_FILL(orchestrator, drain_s, 20, 1, 3600);

  WITHY_RETURN_IF_ERROR(Annotate(FillModel(config->run_dir(), "model_worker",
                                           "withy-pocket-q8_0.gguf", config->mutable_model()),
                                 "model"));
  WITHY_FILL(orchestrator, tlm_threads, config->model().threads(), 1, 1024);
  WITHY_RETURN_IF_ERROR(Annotate(FillModel(config->run_dir(), "draft_worker",
                                           "withy-pocket-draft-q8_0.gguf", config->mutable_draft()),
                                 "draft"));

  proto::StoreConfig* store = config->mutable_store();
  FillString(store->mutable_listen(), run + "context_store.sock");
  WITHY_FILL(store, arena_bytes, uint64_t{256} << 20, uint64_t{1} << 20, uint64_t{1} << 40);
  WITHY_FILL(store, result_ttl_s, 86400, 1, 86400 * 365);

  proto::ProfilerConfig* profiler = config->mutable_profiler();
  FillString(profiler->mutable_listen(), run + "profiler_agent.sock");
  FillString(profiler->mutable_metrics_listen(), "127.0.0.1:9464");
  WITHY_FILL(profiler, poll_ms, 50, 1, 1000);
  return absl::OkStatus();
}

absl::StatusOr<proto::Config> LoadConfig(std::string_view path,
                                         std::span<const std::string> overrides) {
  const std::string file(path.empty() ? kDefaultConfigPath : path);
  proto::Config config;
  std::ifstream in(file);
  if (in) {
    std::stringstream text;
    text << in.rdbuf();
    WITHY_ASSIGN_OR_RETURN(config, ParseConfig(text.str(), file));
  } else if (!path.empty()) {
    return absl::NotFoundError(
        absl::StrCat("cannot read configuration file ", file, ": ", std::strerror(errno)));
  }
  for (const std::string& assignment : overrides) {
    WITHY_RETURN_IF_ERROR(ApplyOverride(assignment, &config));
  }
  WITHY_RETURN_IF_ERROR(FillDefaults(&config));
  return config;
}

std::string DefaultModelsDir() {
  std::error_code ignored;
  fs::path dir = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (int up = 0; up < 4 && !dir.empty(); ++up, dir = dir.parent_path()) {
    if (fs::exists(dir / "models" / "withy-pocket-q8_0.gguf", ignored))
      return (dir / "models").string();
  }
  return "/usr/share/withy/models";
}

std::string DefaultTlmPath(const std::string& model_path) {
  const fs::path parent = fs::path(model_path).parent_path();
  std::string found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent.empty() ? "." : parent, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("withy-pocket-tlm") || !name.ends_with(".gguf")) continue;
    found = std::max(found, entry.path().string());
  }
  return found;
}

}  // namespace withy
