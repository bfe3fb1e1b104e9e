// What a study found: tables, sentences and plots, as text for people and JSON for programs. Pure.
// Neighbours: study.h makes reports, profile_study.cc prints and stores them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/study/figures.h"

namespace withy::cli {

struct Cell {
  std::string text;              // for people, with its unit
  nlohmann::ordered_json value;  // for programs: in the unit that the column's key names
};

Cell NameCell(std::string_view text);
Cell CountCell(int64_t count);
Cell NumberCell(double value);         // four significant digits
Cell ShareCell(double share);          // "12.3 %"
Cell ShareCell(const Spread& share);   // "12.3 % (11.9 to 12.8)"
Cell TimeCell(double us);              // "1.23 ms"
Cell TimeCell(const Spread& us);       // "1.23 ms (1.20 to 1.31)"
Cell NumberCell(const Spread& value);  // "1.234 (1.220 to 1.250)"
Cell NoCell();                         // "-", null

struct StudyColumn {
  std::string head;  // for people
  std::string key;   // for programs; the unit comes last: "prefill_us_per_token"
};

struct StudyTable {
  std::string key;    // for programs: "phases"
  std::string title;  // for people, one line
  std::vector<StudyColumn> columns;
  std::vector<std::vector<Cell>> rows;
};

struct StudyPlot {
  std::string file;  // name without directory: "phases.svg"
  std::string svg;
};

struct StudyReport {
  std::string study;                // "phases"
  nlohmann::ordered_json settings;  // what was measured how
  std::vector<StudyTable> tables;
  std::vector<std::string> findings;  // a sentence each
  // What LM-Meter reports of the same thing, a sentence each, with its place in the paper. Its
  // boards are phones whose GPU computes, so that absolute times compare nothing.
  std::vector<std::string> paper;
  std::vector<StudyPlot> plots;
};

std::string ReportText(const StudyReport& report);
// One JSON object. A spread is {"median", "low", "high"}: quartiles.
std::string ReportJson(const StudyReport& report);

}  // namespace withy::cli
