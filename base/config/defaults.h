// What unset fields of the configuration stand for, and which values are refused. Neighbours:
// base/config.h reads the file; model_choice.h keeps the model that was chosen since.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "withy/v1/config.pb.h"

namespace withy {

namespace proto = ::withy::v1;

// Maps a field's path to the place of its value: "FILE:LINE:COLUMN", or the override.
using ConfigOrigins = std::map<std::string, std::string>;

// Fills unset fields and gives a value that is refused its default. Returns what is refused:
// INVALID_ARGUMENT naming the field's full path, its value, its place if `origins` knows one, and
// the remedy.
std::vector<absl::Status> FillAndCheck(const ConfigOrigins& origins, proto::Config* config);

// As textproto writes a string: in quotation marks.
std::string QuotedText(std::string_view value);

// Addresses the orchestrator listens on: orchestrator.listen, and RUN_DIR/withy.sock if that is
// another one, because apps are bound on a unix socket. `config` has its defaults filled in.
std::vector<std::string> AppAddresses(const proto::Config& config);

// Directory of the models that ship with the running program: models/ or share/withy/models beside
// or above the binary, else /usr/share/withy/models.
std::string DefaultModelsDir();

// Whether the draft is the default of an empty draft.path. `config` has its defaults filled in.
bool IsDefaultDraft(const proto::Config& config);

// The default of an empty orchestrator.tlm_path, beside `model_path`: FILE.tlm.gguf of FILE.gguf,
// else withy-pocket-tlm*.gguf, the last by name. Empty = there is none.
std::string DefaultTlmPath(const std::string& model_path);

}  // namespace withy
