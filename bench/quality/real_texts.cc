#include "bench/quality/real_texts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace withy::bench {
namespace {

constexpr std::string_view kWords[] = {"the",
                                       "of",
                                       "and",
                                       "measure",
                                       "Level",
                                       "don't",
                                       "we'll",
                                       "I'm",
                                       "naïve",
                                       "Straße",
                                       "façade",
                                       "smörgåsbord",
                                       "Ελληνικά",
                                       "κόσμος",
                                       "привет",
                                       "мир",
                                       "שלום",
                                       "مرحبا",
                                       "नमस्ते",
                                       "สวัสดี",
                                       "你好",
                                       "世界",
                                       "日本語",
                                       "テスト",
                                       "한국어",
                                       "tokenizer",
                                       "HTTPServer",
                                       "snake_case_name",
                                       "camelCase",
                                       "https://example.org/a?b=c&d=%20",
                                       "user@example.org",
                                       "e.g.",
                                       "U.S.A.",
                                       "2026-11-27",
                                       "3.14159",
                                       "1,234,567",
                                       "0xDEADBEEF",
                                       "42",
                                       "1000000007",
                                       "v1.2.3-rc4",
                                       "🙂",
                                       "👩‍👩‍👧",
                                       "🇩🇪",
                                       "e\u0301",
                                       "ﬁ",
                                       "½",
                                       "№",
                                       "€",
                                       "→",
                                       "…",
                                       "“quoted”",
                                       "‘it’s’",
                                       "—",
                                       "x²",
                                       "H₂O"};

constexpr std::string_view kJoins[] = {" ",    " ",  " ",    " ",      " ",      "  ",  "\n",
                                       "\n\n", ", ", ". ",   ": ",     "\t",     "   ", "; ",
                                       "-",    "/",  "\r\n", "\u00a0", "\u3000", "",    "!!! "};

constexpr std::string_view kCode[] = {
    "for (int i = 0; i < n; ++i) {\n    sum += values[i] * 2;\n}\n",
    "def mean(values):\n\treturn sum(values) / len(values)  # may fail\n",
    "{\"key\": [1, 2.5e-3, null, true], \"nested\": {\"a\": \"\\u00e9\"}}\n",
    "SELECT name, COUNT(*) FROM calls WHERE app = 'x' GROUP BY name;\n",
    "$ curl -sS -H 'Authorization: Bearer TOKEN' http://127.0.0.1:8080/v1/models | jq .\n",
    "<p class=\"note\">a &amp; b</p>\n"};

constexpr std::string_view kQuestions[] = {"What is the capital of France?",
                                           "Write a haiku about rain.",
                                           "  Leading and trailing spaces  ",
                                           "Line one\nline two\n\nline four",
                                           "Erkläre Quantenverschränkung in einem Satz.",
                                           "为什么天空是蓝色的?",
                                           "Sum these: 1, 2, 3,\t4",
                                           "{\"a\": [1, 2]} – what is this?",
                                           "ok",
                                           "Please continue.\n",
                                           "Что такое язык программирования?",
                                           "🙂?"};

constexpr std::string_view kAnswers[] = {
    "Paris.",        "Rain on the window,\nsoft as a letter unsent,\nwrites its name and leaves.",
    "It is 10.",     "",
    " Yes ",         "1. One\n2. Two\n",
    "蓝光散射更强。"};

constexpr std::string_view kSystems[] = {"You are a helpful assistant.",
                                         "Answer in one sentence.\n", "Du antwortest auf Deutsch.",
                                         "  Be brief.  "};

template <size_t kCount>
std::string Any(const std::string_view (&of)[kCount], std::mt19937_64& random) {
  return std::string(of[random() % kCount]);
}

}  // namespace

std::vector<Chat> RealChats(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<Chat> chats;
  while (chats.size() < count) {
    Chat chat;
    if (random() % 2 == 0) chat.push_back({"system", Any(kSystems, random)});
    for (uint64_t exchanges = random() % 5; exchanges > 0; --exchanges) {
      chat.push_back({"user", Any(kQuestions, random)});
      chat.push_back({"assistant", Any(kAnswers, random)});
    }
    chat.push_back({"user", Any(kQuestions, random)});
    chats.push_back(std::move(chat));
  }
  return chats;
}

std::vector<std::string> VariedPieces(uint64_t seed, size_t bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::string> pieces;
  for (size_t made = 0; made < bytes; made += pieces.back().size()) {
    std::string& piece = pieces.emplace_back();
    while (piece.size() < 1000) {
      const uint64_t kind = random() % 20;
      if (kind == 0) {
        piece += Any(kCode, random);
      } else if (kind == 1) {
        piece += std::string(1 + random() % 40, " \n\t=-#*."[random() % 8]);
      } else if (kind == 2) {
        piece += std::to_string(random() >> (random() % 60));
      } else {
        piece += Any(kWords, random) + Any(kJoins, random);
      }
    }
  }
  return pieces;
}

std::string DocumentText(const std::string& source, size_t bytes) {
  std::vector<std::filesystem::path> files;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(source + "/docs", missing)) {
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  if (text.size() <= bytes) return text;
  const std::vector<std::string> cut = CutText(text, bytes);
  return cut.front();
}

std::vector<std::string> CutText(const std::string& text, size_t bytes) {
  std::vector<std::string> pieces;
  for (size_t first = 0; first < text.size();) {
    size_t end = std::min(first + bytes, text.size());
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) ++end;
    pieces.push_back(text.substr(first, end - first));
    first = end;
  }
  return pieces;
}

}  // namespace withy::bench
