// Tests output to a terminal and through a pipe: foreign text, tables, and a standard output that
// cannot be written.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/test_seed.h"
#include "base/unique_fd.h"
#include "cli/output.h"
#include "cli/standard_output.h"
#include "cli/terminal_text.h"
#include "engine/tokenizer/unicode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::HasSubstr;

TEST(TerminalTextTest, TerminalsAreNotFooled) {
  EXPECT_EQ(Printable("a\x1b[31m\tb\n\x7f"), "a?[31m\tb\n?");
  EXPECT_EQ(Printable("größe"), "größe");
  EXPECT_EQ(Printable("a\xC2\x9B"
                      "31mb"),
            "a?31mb")
      << "C1's CSI";
  EXPECT_EQ(Printable("a\x9B"
                      "b"),
            "a\xEF\xBF\xBD"
            "b")
      << "the same as one byte";
  EXPECT_EQ(Printable("a\xE2\x80\xAE"
                      "b"),
            "a?b")
      << "right-to-left override";
  EXPECT_EQ(Printable("a\rb"), "a?b");
  EXPECT_EQ(OneLine("a\nb\tc\rd\x1b"), "a\\nb\\tc\\rd?");
}

TEST(TerminalTextTest, WidthIsWhatATerminalTakes) {
  EXPECT_EQ(DisplayWidth("abc"), 3u);
  EXPECT_EQ(DisplayWidth("größe"), 5u);
  EXPECT_EQ(DisplayWidth("日本語"), 6u);
  EXPECT_EQ(DisplayWidth("e\xCC\x81"), 1u) << "a combining accent";
  EXPECT_EQ(DisplayWidth("한국"), 4u);
  EXPECT_EQ(DisplayWidth("🙂"), 2u);
  EXPECT_EQ(DisplayWidth(""), 0u);
}

TEST(TerminalTextTest, ACellStaysInItsLineAndItsColumn) {
  const std::string table = Table({{"ID", "TITLE", "N"},
                                   {"1", "two\nlines", "x"},
                                   {"2", "日本", "x"},
                                   {"3", "e\xCC\x81t\xCC\x81", "x"},
                                   {"4", "\x1b[2J", "x"}});
  const std::vector<std::string> lines = absl::StrSplit(table, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5u) << table;
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(DisplayWidth(lines[i]), DisplayWidth(lines[1])) << lines[i];
    EXPECT_EQ(lines[i].back(), 'x');
  }
  EXPECT_THAT(lines[1], HasSubstr("two\\nlines"));
}

// For arbitrary bytes, output to a terminal is UTF-8 without control characters, and a table has
// exactly its own lines.
TEST(TerminalTextTest, NoBytesGetThrough) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> pieces = {"\x1b]0;x\x07",
                                           "\xC2\x85",
                                           "\xE2\x80\xA8",
                                           "\xF0\x9F\x99\x82",
                                           "\n",
                                           "\r\n",
                                           "\t",
                                           "é",
                                           "\xE2\x81\xA6",
                                           "\x9B",
                                           "日"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint32_t k = random() % 12; k > 0; --k) {
      if (random() % 2) text += pieces[random() % pieces.size()];
      if (random() % 2) text += static_cast<char>(random());
    }
    for (const std::string& shown : {Printable(text), OneLine(text)}) {
      for (size_t at = 0; at < shown.size();) {
        char32_t code = 0;
        const size_t length = engine::Utf8CharAt(shown, at, &code);
        ASSERT_GT(length, 0u) << "no UTF-8";
        const bool layout = code == '\n' || code == '\t';
        EXPECT_TRUE((code >= 0x20 && code != 0x7F && (code < 0x80 || code >= 0xA0)) || layout);
        at += length;
      }
    }
    EXPECT_EQ(OneLine(text).find_first_of("\n\t\r"), std::string::npos);
    const std::string table = Table({{"A", "B"}, {text, "x"}});
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 2);
    EXPECT_TRUE(table.ends_with("x\n"));
  }
}

TEST(StandardOutputTest, AllOfItIsWritten) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  {
    StandardOutput output(to.get());
    std::ostream stream(&output);
    stream << "first " << std::flush << std::string(30'000, 'x') << '\n';
    EXPECT_TRUE(output.Finish().ok());
  }
  to = UniqueFd();
  std::string all;
  char piece[4096];
  for (ssize_t got = 0; (got = read(from.get(), piece, sizeof piece)) > 0;)
    all.append(piece, static_cast<size_t>(got));
  EXPECT_EQ(all, "first " + std::string(30'000, 'x') + "\n");
}

TEST(StandardOutputTest, WhatCannotBeWrittenIsSaid) {
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  for (const size_t bytes : {size_t{1}, size_t{100'000}}) {
    StandardOutput output(full.get());
    std::ostream stream(&output);
    stream << std::string(bytes, 'x') << std::flush;
    EXPECT_FALSE(stream.good());
    EXPECT_THAT(std::string(output.Finish().message()), HasSubstr("No space left on device"));
  }
  StandardOutput nothing(full.get());
  EXPECT_TRUE(nothing.Finish().ok()) << "nothing was to be written";
  StandardOutput closed(-1);
  std::ostream(&closed) << "x";
  EXPECT_THAT(std::string(closed.Finish().message()), HasSubstr("Bad file descriptor"));
}

}  // namespace
}  // namespace withy::cli
