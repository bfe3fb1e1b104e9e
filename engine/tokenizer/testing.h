// Small vocabularies for tests: an in-memory GGUF file with a tokenizer.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/writer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocab.h"

namespace withy::engine {

inline constexpr char kMark[] = "\xE2\x96\x81";  // U+2581, which vocabularies use for a space

// CPU time of this thread in seconds, for tests of complexity that must not depend on other load.
inline double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// A precompiled_charsmap of a few rules: the children of each beginning have a block of their own.
inline std::vector<uint8_t> MakeCharsmap(const std::map<std::string, std::string>& rules) {
  constexpr size_t kBlock = 256;
  std::map<std::string, size_t> blocks = {{"", 0}};  // by beginning
  for (const auto& [text, replacement] : rules) {
    for (size_t bytes = 1; bytes <= text.size(); ++bytes) {
      blocks.emplace(text.substr(0, bytes), blocks.size());
    }
  }
  std::vector<uint32_t> units(kBlock * blocks.size());
  std::string replacements;
  for (const auto& [text, block] : blocks) {
    const size_t children = kBlock * block;
    size_t node = 0;
    if (!text.empty()) {
      const auto label = static_cast<uint8_t>(text.back());
      node = kBlock * blocks.at(text.substr(0, text.size() - 1)) + label;
      units[node] |= label;
    }
    units[node] |= static_cast<uint32_t>((node ^ children) << 10);
    const auto rule = rules.find(text);
    if (rule == rules.end()) continue;
    units[node] |= 1u << 8;
    units[children] = static_cast<uint32_t>(replacements.size()) | 1u << 31;
    replacements += rule->second + '\0';
  }
  std::vector<uint8_t> bytes;
  const auto add = [&bytes](uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8)
      bytes.push_back(static_cast<uint8_t>(value >> shift));
  };
  add(static_cast<uint32_t>(sizeof(uint32_t) * units.size()));
  for (const uint32_t unit : units) add(unit);
  bytes.insert(bytes.end(), replacements.begin(), replacements.end());
  return bytes;
}

// Collects tokens and merges, then writes and reads a file. Ids are assigned in order of Add.
class TestVocab {
 public:
  int32_t Add(std::string text, TokenKind kind = TokenKind::kNormal, float score = 0.0f) {
    texts_.push_back(std::move(text));
    kinds_.push_back(static_cast<int32_t>(kind));
    scores_.push_back(score);
    return static_cast<int32_t>(texts_.size()) - 1;
  }

  // Adds the 256 byte tokens of byte-level BPE; id == byte if called first.
  void AddByteAlphabet() {
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      std::string text;
      AppendUtf8(printable ? static_cast<char32_t>(byte) : next++, text);
      Add(text);
    }
  }

  // "<0x00>" … "<0xFF>".
  int32_t AddByteFallback() {
    const auto first = static_cast<int32_t>(texts_.size());
    constexpr char kHex[] = "0123456789ABCDEF";
    for (int byte = 0; byte < 256; ++byte) {
      Add(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", TokenKind::kByte);
    }
    return first;
  }

  // Adds a merge, and its result as a token if it is not one yet.
  void AddMerge(const std::string& left, const std::string& right) {
    merges_.push_back(left + " " + right);
    for (const std::string& text : texts_) {
      if (text == left + right) return;
    }
    Add(left + right);
  }
  // Changes a token's text, so that its old text has no token, and its kind.
  void Change(int32_t id, std::string text, TokenKind kind = TokenKind::kNormal) {
    texts_[static_cast<size_t>(id)] = std::move(text);
    kinds_[static_cast<size_t>(id)] = static_cast<int32_t>(kind);
  }
  // Writes a file without token kinds.
  void LeaveOutKinds() { with_kinds_ = false; }
  void AddRawMerge(std::string line) { merges_.push_back(std::move(line)); }

  // For additional metadata.
  GgufWriter& writer() { return writer_; }

  absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const std::string& model,
                                                  const std::string& pre = "") {
    writer_.SetString("tokenizer.ggml.model", model);
    if (!pre.empty()) writer_.SetString("tokenizer.ggml.pre", pre);
    writer_.SetStringArray("tokenizer.ggml.tokens", texts_);
    if (with_kinds_) writer_.SetArray<int32_t>("tokenizer.ggml.token_type", kinds_);
    writer_.SetArray<float>("tokenizer.ggml.scores", scores_);
    writer_.SetStringArray("tokenizer.ggml.merges", merges_);
    const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                       ("withy_vocab_" + std::to_string(getpid()) + ".gguf");
    absl::Status status = writer_.Write(path.string());
    if (!status.ok()) return status;
    auto file = GgufFile::Open(path.string());
    std::filesystem::remove(path);
    if (!file.ok()) return file.status();
    return MakeTokenizer(*file);
  }

 private:
  std::vector<std::string> texts_;
  std::vector<int32_t> kinds_;
  bool with_kinds_ = true;
  std::vector<float> scores_;
  std::vector<std::string> merges_;
  GgufWriter writer_;
};

}  // namespace withy::engine
