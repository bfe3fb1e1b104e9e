#include "cli/study/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/utf8.h"
#include "cli/output.h"
#include "cli/profile/profile_text.h"

namespace withy::cli {
namespace {

nlohmann::ordered_json SpreadJson(const Spread& spread) {
  return {{"median", spread.median}, {"low", spread.low}, {"high", spread.high}};
}

std::string Percent(double share) { return absl::StrFormat("%.3g", 100 * share); }

}  // namespace

Cell NameCell(std::string_view text) { return {std::string(text), ValidUtf8(text)}; }
Cell CountCell(int64_t count) { return {absl::StrCat(count), count}; }
Cell NumberCell(double value) { return {absl::StrFormat("%.4g", value), value}; }
Cell ShareCell(double share) { return {Percent(share) + " %", share}; }
Cell TimeCell(double us) { return {Duration(us / 1e3), us}; }
Cell NoCell() { return {"-", nullptr}; }

Cell ShareCell(const Spread& share) {
  return {absl::StrCat(Percent(share.median), " % (", Percent(share.low), " to ",
                       Percent(share.high), ")"),
          SpreadJson(share)};
}

Cell TimeCell(const Spread& us) {
  const double most = std::max(us.median, us.high);  // which chooses the unit of all three
  const double unit = most >= 1e6 ? 1e6 : most >= 1e3 ? 1e3 : 1;
  return {absl::StrFormat("%.3g %s (%.3g to %.3g)", us.median / unit,
                          most >= 1e6   ? "s"
                          : most >= 1e3 ? "ms"
                                        : "µs",
                          us.low / unit, us.high / unit),
          SpreadJson(us)};
}

Cell NumberCell(const Spread& value) {
  return {absl::StrFormat("%.4g (%.4g to %.4g)", value.median, value.low, value.high),
          SpreadJson(value)};
}

std::string ReportText(const StudyReport& report) {
  std::string text;
  for (const StudyTable& table : report.tables) {
    std::vector<std::vector<std::string>> rows(1);
    for (const StudyColumn& column : table.columns) rows[0].push_back(column.head);
    for (const std::vector<Cell>& cells : table.rows) {
      std::vector<std::string>& row = rows.emplace_back();
      for (const Cell& cell : cells) row.push_back(cell.text);
    }
    absl::StrAppend(&text, table.title, "\n", Table(rows), "\n");
  }
  for (const std::string& finding : report.findings) absl::StrAppend(&text, finding, "\n");
  for (const std::string& line : report.paper) absl::StrAppend(&text, "LM-Meter: ", line, "\n");
  return text;
}

std::string ReportJson(const StudyReport& report) {
  nlohmann::ordered_json json = {{"study", report.study}, {"settings", report.settings}};
  for (const StudyTable& table : report.tables) {
    nlohmann::ordered_json& rows = json[table.key] = nlohmann::ordered_json::array();
    for (const std::vector<Cell>& cells : table.rows) {
      nlohmann::ordered_json row;
      for (size_t i = 0; i < cells.size(); ++i) row[table.columns[i].key] = cells[i].value;
      rows.push_back(std::move(row));
    }
  }
  json["findings"] = report.findings;
  json["paper"] = report.paper;
  return json.dump(1);
}

}  // namespace withy::cli
