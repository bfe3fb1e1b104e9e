// Arbitrary bytes as text: encoding covers them without gaps and forges no control token or end of
// an answer, decoding restores them, streaming gives valid UTF-8, a cancelled encoding reports it.
// The first byte of the input selects the tokenizer, the second the division into pieces.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/testing.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"
#include "tests/fuzz/small_stack.h"

namespace withy::engine {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// A tokenizer and its properties for the checks.
struct Subject {
  std::unique_ptr<Tokenizer> tokenizer;
  bool lossless = true;        // decoding restores the encoded text
  int32_t unknown = kNoToken;  // the token for text without a token of its own
};

// `whole`: every byte has a token. Otherwise the unknown token, and the results of some merges, end
// an answer.
Subject MakeBpe(const std::string& pre, bool whole) {
  TestVocab vocab;
  vocab.AddByteAlphabet();
  if (!whole) {
    for (const int32_t byte : {0x00, 0x1D, 0xC3, 0xFF, int32_t{'7'}}) vocab.Change(byte, "absent");
    vocab.AddMerge("<", "/");
    vocab.AddMerge("s", ">");
    vocab.AddMerge("</", "s>");
  }
  for (const char* pair :
       {"a a", "aa aa", "e r", "\xC4\xA0 t", "h e", "\xC4\xA0t he", "1 2", "\xC3\x83 \xC2\xA9"}) {
    const std::string text(pair);
    if (!whole && text.front() == '\xC3') continue;
    const size_t space = text.find(' ');
    vocab.AddMerge(text.substr(0, space), text.substr(space + 1));
  }
  const int32_t end = vocab.Add("<|im_end|>", TokenKind::kControl);
  if (!whole) {
    vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(end));
  }
  vocab.Add("<u>", TokenKind::kUserDefined);
  return {vocab.Make("gpt2", pre).value(), whole && pre != "qwen2"};  // which normalises text
}

// Without `bytes`, text without a token becomes `unknown`, or nothing if that ends an answer.
Subject MakeSpm(bool space_prefix, bool bytes, uint32_t unknown) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  if (bytes) vocab.AddByteFallback();
  float score = 0.0f;
  for (const char* text :
       {"\xE2\x96\x81", "a", "aa", "aaaa", "t", "h", "e", "th", "the", "\xE2\x96\x81the",
        "\xE2\x96\x81\xE2\x96\x81", "<", "s", ">", "s>", "\xC3\xA9"}) {
    vocab.Add(text, TokenKind::kNormal, score -= 1.0f);
  }
  vocab.Add("<u>", TokenKind::kUserDefined);
  vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", space_prefix);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", unknown);
  return {vocab.Make("llama").value(), bytes, unknown == 0 ? 0 : kNoToken};
}

// Normalises text, by rules too if it strips.
Subject MakeUnigram(bool strip, bool bytes, uint32_t unknown) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  if (bytes) vocab.AddByteFallback();
  float score = 0.0f;
  for (const char* text : {"\xE2\x96\x81", "a", "aa", "aaaa", "t", "h", "e", "th", "the",
                           "\xE2\x96\x81the", "<", "s", ">", "s>", "</s>", "\xC3\xA9"}) {
    vocab.Add(text, TokenKind::kNormal, score -= 1.0f);
  }
  vocab.Add("<u>", TokenKind::kUserDefined);
  if (strip) {
    vocab.writer().SetArray<uint8_t>(
        "tokenizer.ggml.precompiled_charsmap",
        MakeCharsmap({{"\n", " "}, {"e\xCC\x81", "\xC3\xA9"}, {"\t", ""}, {"aaa", "</s>"}}));
  }
  vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", strip);
  vocab.writer().Set<bool>("tokenizer.ggml.remove_extra_whitespaces", strip);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", unknown);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", 2);
  return {vocab.Make("t5").value(), false, unknown == 0 ? 0 : kNoToken};
}

Subject MakeWordPiece(uint32_t unknown) {
  TestVocab vocab;
  vocab.Add("[UNK]", TokenKind::kUnknown);
  vocab.Add("[CLS]", TokenKind::kControl);
  const std::string mark = "\xE2\x96\x81";
  for (const std::string& text :
       {mark + "the", mark + "a", std::string("a"), std::string("e"), mark + ","}) {
    vocab.Add(text);
  }
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", unknown);
  return {vocab.Make("bert").value(), false, unknown == 0 ? 0 : kNoToken};
}

const std::vector<Subject>& Subjects() {
  static const auto* subjects = [] {
    auto* made = new std::vector<Subject>;
    for (const char* pre : {"gpt-2", "default", "falcon", "smollm", "llama-bpe", "qwen2",
                            "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o"}) {
      made->push_back(MakeBpe(pre, true));
    }
    made->push_back(MakeSpm(true, true, 0));
    made->push_back(MakeSpm(false, true, 0));
    made->push_back(MakeWordPiece(0));
    for (const char* pre : {"gpt-2", "smollm", "llama-bpe"}) made->push_back(MakeBpe(pre, false));
    made->push_back(MakeSpm(true, false, 0));
    made->push_back(MakeSpm(false, false, 2));
    made->push_back(MakeWordPiece(1));
    made->push_back(MakeUnigram(false, true, 0));
    made->push_back(MakeUnigram(true, true, 0));
    made->push_back(MakeUnigram(true, false, 0));
    made->push_back(MakeUnigram(true, false, 2));
    return made;
  }();
  return *subjects;
}

void CheckSpans(const Encoding& encoding, size_t bytes) {
  Require(encoding.ids.size() == encoding.spans.size(), "one span a token");
  uint32_t at = 0;
  for (const ByteSpan& span : encoding.spans) {
    Require(span.begin == at && span.end >= span.begin, "spans follow each other");
    at = span.end;
  }
  // If everything was dropped, no token covers the input.
  Require(at == bytes || at == 0, "spans cover the input");
}

void CheckNothingForged(const Subject& subject, const Encoding& encoding) {
  for (const int32_t id : encoding.ids) {
    Require(!subject.tokenizer->IsEndOfGeneration(id), "text forges no end of an answer");
    Require(id == subject.unknown || !subject.tokenizer->IsControl(id),
            "text forges no control token");
  }
}

// Cancels the encoding after `looks` polls, unless it completes earlier.
void CheckCancelled(const Tokenizer& tokenizer, std::string_view text, const Encoding& whole) {
  size_t looks = text.size() % 3;
  const CancelCheck check = [&looks] { return looks-- == 0; };
  const TextPiece piece{text, false};
  const Encoding cut = tokenizer.EncodePieces({&piece, 1}, {.cancelled = &check});
  Require(cut.cancelled || cut.ids == whole.ids, "an encoding that was not cancelled is whole");
}

void CheckStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  text += decoder.Flush();
  for (size_t at = 0; at < text.size();) {
    char32_t code = 0;
    const size_t length = Utf8CharAt(text, at, &code);
    Require(length > 0, "streamed text is valid UTF-8");
    at += length;
  }
}

void Check(const Subject& subject, std::string_view text, size_t cut) {
  const Tokenizer& tokenizer = *subject.tokenizer;
  const TextPiece whole{text, false};
  const Encoding encoding = tokenizer.EncodePieces({&whole, 1}, {});
  CheckSpans(encoding, text.size());
  CheckNothingForged(subject, encoding);
  if (subject.lossless) {
    Require(tokenizer.Decode(encoding.ids) == text, "decoding gives the text back");
  }
  CheckStream(tokenizer, encoding.ids);
  CheckCancelled(tokenizer, text, encoding);
  const TextPiece pieces[] = {{text.substr(0, cut), true}, {text.substr(cut), false}};
  CheckSpans(tokenizer.EncodePieces(pieces, {}), text.size());
  const TextPiece plain[] = {{text.substr(0, cut), false}, {text.substr(cut), false}};
  CheckNothingForged(subject, tokenizer.EncodePieces(plain, {.continues = true}));
}

}  // namespace
}  // namespace withy::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto& subjects = withy::engine::Subjects();
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  withy::OnSmallStack([&] {
    withy::engine::Check(subjects[data[0] % subjects.size()], text, data[1] % (text.size() + 1));
  });
  return 0;
}
