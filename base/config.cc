#include "base/config.h"

#include <fcntl.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/config/defaults.h"
#include "base/files.h"
#include "base/status.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace withy {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::TextFormat;

// Keeps the place and text of the parser's first error, and of all fields that it does not know.
class ParseErrors final : public google::protobuf::io::ErrorCollector {
 public:
  struct Error {
    int line, column;
    std::string text;
  };

  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!first_.has_value()) first_ = Error{line, column, message};
  }
  // The parser goes on behind a field that it does not know.
  void AddWarning(int line, google::protobuf::io::ColumnNumber column,
                  const std::string& message) override {
    unknown_.push_back({line, column, message});
  }
  const std::optional<Error>& first() const { return first_; }
  const std::vector<Error>& unknown() const { return unknown_; }

 private:
  std::optional<Error> first_;
  std::vector<Error> unknown_;
};

absl::Status ErrorAt(std::string_view name, const ParseErrors::Error& error) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(name), ":", error.line + 1, ":", error.column + 1, ": ", error.text,
                   " (the fields are in proto/withy/v1/config.proto)"));
}

void Parse(std::string_view text, bool skip_unknown, proto::Config* config,
           TextFormat::ParseInfoTree* places, ParseErrors* errors) {
  TextFormat::Parser parser;
  parser.RecordErrorsTo(errors);
  parser.WriteLocationsTo(places);
  parser.AllowUnknownField(skip_unknown);
  google::protobuf::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  parser.Merge(&input, config);
}

// Overwrites with blanks what the parser cannot read: the field whose value it is, or the rest of
// the line. Every other place stays as it was. False: there was nothing to overwrite.
bool BlankOut(const ParseErrors::Error& error, std::string* text) {
  size_t line = 0;
  for (int i = 0; i < error.line && line != std::string::npos; ++i) {
    line = text->find('\n', line);
    if (line != std::string::npos) ++line;
  }
  if (line == std::string::npos || line >= text->size()) line = text->rfind('\n') + 1;
  const size_t end = std::min(text->find('\n', line), text->size());
  size_t at = std::min(line + static_cast<size_t>(std::max(error.column, 0)), end);
  while (at > line &&
         std::string_view(" \t:;,{}").find((*text)[at - 1]) == std::string_view::npos) {
    --at;  // to where the word begins
  }
  // "name: value" with the error at the value.
  constexpr std::string_view kBlank = " \t";
  size_t from = text->find_last_not_of(kBlank, at == 0 ? 0 : at - 1);
  size_t to = end;
  if (from != std::string::npos && from > line && at < end && (*text)[from] == ':') {
    const size_t name = text->find_last_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", from - 1);
    from = name == std::string::npos || name < line ? line : name + 1;
    to = std::min(text->find_first_of(" \t;,}", at), end);
  } else {
    from = line;
  }
  if (to <= at && to < end) to = at + 1;
  bool changed = false;
  for (size_t i = from; i < to; ++i) changed |= std::exchange((*text)[i], ' ') != ' ';
  return changed;
}

void NoteOrigins(const google::protobuf::Message& message, const TextFormat::ParseInfoTree& places,
                 const std::string& file, const std::string& prefix, ConfigOrigins* origins) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = prefix + field->name();
    if (field->is_repeated()) {
      // What is wrong in one of them is told with its value; its place is that of the first.
      const TextFormat::ParseLocation at = places.GetLocation(field, 0);
      (*origins)[path] = absl::StrCat(file, ":", at.line + 1, ":", at.column + 1);
    } else if (field->message_type() != nullptr) {
      const TextFormat::ParseInfoTree* nested = places.GetTreeForNested(field, -1);
      if (nested == nullptr) continue;
      NoteOrigins(message.GetReflection()->GetMessage(message, field), *nested, file, path + ".",
                  origins);
    } else {
      const TextFormat::ParseLocation at = places.GetLocation(field, -1);
      (*origins)[path] = absl::StrCat(file, ":", at.line + 1, ":", at.column + 1);
    }
  }
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::string what = "read configuration file " + path;
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(what);
  std::string text;
  char piece[4096];
  ssize_t got = 0;
  while ((got = read(fd.get(), piece, sizeof piece)) > 0)
    text.append(piece, static_cast<size_t>(got));
  if (got < 0) return ErrnoError(what);
  return text;
}

// Reads what can be read, without defaults, and names all that cannot.
CheckedConfig ParseWhatCanBe(std::string text, const std::string& file, ConfigOrigins* origins) {
  constexpr size_t kMostProblems = 100;
  CheckedConfig checked;
  while (true) {
    checked.config.Clear();
    TextFormat::ParseInfoTree places;
    ParseErrors errors;
    Parse(text, /*skip_unknown=*/true, &checked.config, &places, &errors);
    if (errors.first().has_value()) {
      checked.problems.push_back(ErrorAt(file, *errors.first()));
      const bool again = checked.problems.size() < kMostProblems;
      if (again && BlankOut(*errors.first(), &text)) continue;
    }
    for (const ParseErrors::Error& unknown : errors.unknown()) {
      checked.problems.push_back(ErrorAt(file, unknown));
    }
    NoteOrigins(checked.config, places, file, "", origins);
    return checked;
  }
}

}  // namespace

absl::StatusOr<proto::Config> ParseConfig(std::string_view text, std::string_view name) {
  proto::Config config;
  ParseErrors errors;
  Parse(text, /*skip_unknown=*/false, &config, nullptr, &errors);
  if (errors.first().has_value()) return ErrorAt(name, *errors.first());
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
  google::protobuf::Message* section = config;  // the message that contains the field
  const FieldDescriptor* cleared = nullptr;
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
      absl::StrAppend(&text, path[i], ": ", text_field ? QuotedText(value) : std::string(value));
      cleared = field;
    } else {
      absl::StrAppend(&text, path[i], " { ");
      closing += " }";
      descriptor = field->message_type();
      section = section->GetReflection()->MutableMessage(section, field);
    }
  }
  // A later assignment to the same field must win, but the text parser refuses that within one
  // parse. Therefore merge; a merged zero or false counts as unset.
  WITHY_ASSIGN_OR_RETURN(
      const proto::Config one,
      ParseConfig(text + closing, absl::StrCat("override '", ToAbsl(assignment), "'")));
  section->GetReflection()->ClearField(section, cleared);
  config->MergeFrom(one);
  return absl::OkStatus();
}

absl::Status FillDefaults(proto::Config* config) { return JoinProblems(FillAndCheck({}, config)); }

absl::StatusOr<CheckedConfig> CheckConfig(std::string_view path,
                                          std::span<const std::string> overrides) {
  const std::string file(path.empty() ? kDefaultConfigPath : path);
  CheckedConfig checked;
  ConfigOrigins origins;
  const absl::StatusOr<std::string> text = ReadFile(file);
  if (text.ok()) {
    checked = ParseWhatCanBe(*text, file, &origins);
  } else if (!path.empty() || !absl::IsNotFound(text.status())) {
    return text.status();
  }
  for (const std::string& assignment : overrides) {
    WITHY_RETURN_IF_ERROR(ApplyOverride(assignment, &checked.config));
    origins[assignment.substr(0, assignment.find('='))] =
        absl::StrCat("override '", assignment, "'");
  }
  const std::vector<absl::Status> refused = FillAndCheck(origins, &checked.config);
  checked.problems.insert(checked.problems.end(), refused.begin(), refused.end());
  return checked;
}

absl::StatusOr<proto::Config> LoadConfig(std::string_view path,
                                         std::span<const std::string> overrides) {
  WITHY_ASSIGN_OR_RETURN(CheckedConfig checked, CheckConfig(path, overrides));
  WITHY_RETURN_IF_ERROR(JoinProblems(checked.problems));
  return std::move(checked.config);
}

}  // namespace withy
