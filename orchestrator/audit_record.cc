#include "orchestrator/audit_record.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::orchestrator {
namespace {

constexpr char kFormat[] = "withy-audits 1";
constexpr char kEnd[] = "end";

std::string KeyLine(const AuditKey& key) {
  return absl::StrCat(key.model_id, " ", absl::StrJoin(key.levels, ","),
                      key.measure == AuditMeasure::kAnswers ? " answers" : " tokens");
}

std::string Line(std::string_view whose, policy::LevelPair pair, const policy::AuditCount& count) {
  return absl::StrFormat("%s %u %u %.3f %.3f\n", ToAbsl(whose), pair.prompt_percent,
                         pair.level_percent, count.audits, count.agreeing);
}

// Whether `words`, a line's last four, were taken.
bool Restore(const std::string& app, const std::vector<std::string>& words,
             policy::PairTable* table) {
  const size_t at = words.size() - 4;
  policy::LevelPair pair;
  policy::AuditCount count;
  if (!absl::SimpleAtoi(words[at], &pair.prompt_percent) ||
      !absl::SimpleAtoi(words[at + 1], &pair.level_percent) ||
      !absl::SimpleAtod(words[at + 2], &count.audits) ||
      !absl::SimpleAtod(words[at + 3], &count.agreeing)) {
    return false;
  }
  return app.empty() ? table->RestoreBoard(pair, count) : table->RestoreApp(app, pair, count);
}

bool RestoreLine(const std::string& line, policy::PairTable* table) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words.size() == 5 && words[0] == "board") return Restore("", words, table);
  return words.size() == 6 && words[0] == "app" && !words[1].empty() &&
         Restore(words[1], words, table);
}

}  // namespace

std::string AuditRecord(const AuditKey& key, const policy::PairTable& table) {
  std::string record = absl::StrCat(kFormat, "\n", KeyLine(key), "\n");
  for (const auto& [pair, count] : table.board()) record += Line("board", pair, count);
  for (const auto& [app, counts] : table.apps()) {
    if (app.find_first_of(" \n") != std::string::npos) continue;  // it would not be read back
    for (const auto& [pair, count] : *counts) {
      record += Line(absl::StrCat("app ", app), pair, count);
    }
  }
  return absl::StrCat(record, kEnd, "\n");
}

absl::Status ReadAuditRecord(std::string_view record, const AuditKey& key,
                             policy::PairTable* table) {
  std::vector<std::string> lines = absl::StrSplit(ToAbsl(record), '\n');
  const auto damaged = [](size_t line) {
    return absl::InvalidArgumentError(absl::StrCat("line ", line + 1, " cannot be read"));
  };
  if (lines.size() < 2 || lines[0] != kFormat) return damaged(0);
  if (lines[1] != KeyLine(key)) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is of \"", lines[1], "\", and this is \"", KeyLine(key), "\""));
  }
  policy::PairTable filled = *table;
  for (size_t i = 2; i < lines.size(); ++i) {
    if (lines[i] == kEnd) {
      *table = std::move(filled);
      return absl::OkStatus();
    }
    if (!RestoreLine(lines[i], &filled)) return damaged(i);
  }
  return damaged(lines.size() - 1);
}

}  // namespace withy::orchestrator
