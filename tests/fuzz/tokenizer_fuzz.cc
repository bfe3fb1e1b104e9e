// Any bytes as text: encoding covers them without gaps, decoding gives them back, streaming gives
// valid UTF-8. The first byte of the input picks the tokenizer, the second where the text is cut
// into pieces.
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

namespace withy::engine {
namespace {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

std::unique_ptr<Tokenizer> MakeBpe(const std::string& pre) {
  TestVocab vocab;
  vocab.AddByteAlphabet();
  for (const char* pair :
       {"a a", "aa aa", "e r", "\xC4\xA0 t", "h e", "\xC4\xA0t he", "1 2", "\xC3\x83 \xC2\xA9"}) {
    const std::string text(pair);
    const size_t space = text.find(' ');
    vocab.AddMerge(text.substr(0, space), text.substr(space + 1));
  }
  vocab.Add("<|im_end|>", TokenKind::kControl);
  vocab.Add("<u>", TokenKind::kUserDefined);
  return vocab.Make("gpt2", pre).value();
}

std::unique_ptr<Tokenizer> MakeSpm(bool space_prefix) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  vocab.AddByteFallback();
  float score = 0.0f;
  for (const char* text :
       {"\xE2\x96\x81", "a", "aa", "aaaa", "t", "h", "e", "th", "the", "\xE2\x96\x81the",
        "\xE2\x96\x81\xE2\x96\x81", "<", "s", ">", "s>", "\xC3\xA9"}) {
    vocab.Add(text, TokenKind::kNormal, score -= 1.0f);
  }
  vocab.Add("<u>", TokenKind::kUserDefined);
  vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", space_prefix);
  return vocab.Make("llama").value();
}

std::unique_ptr<Tokenizer> MakeWordPiece() {
  TestVocab vocab;
  vocab.Add("[UNK]", TokenKind::kUnknown);
  vocab.Add("[CLS]", TokenKind::kControl);
  const std::string mark = "\xE2\x96\x81";
  for (const std::string& text :
       {mark + "the", mark + "a", std::string("a"), std::string("e"), mark + ","}) {
    vocab.Add(text);
  }
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", 0);
  return vocab.Make("bert").value();
}

const std::vector<std::unique_ptr<Tokenizer>>& Tokenizers() {
  static const auto* tokenizers = [] {
    auto* made = new std::vector<std::unique_ptr<Tokenizer>>;
    for (const char* pre : {"gpt-2", "default", "falcon", "smollm", "llama-bpe", "qwen2",
                            "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o"}) {
      made->push_back(MakeBpe(pre));
    }
    made->push_back(MakeSpm(true));
    made->push_back(MakeSpm(false));
    made->push_back(MakeWordPiece());
    return made;
  }();
  return *tokenizers;
}

void CheckSpans(const Encoding& encoding, size_t bytes) {
  Require(encoding.ids.size() == encoding.spans.size(), "one span a token");
  uint32_t at = 0;
  for (const ByteSpan& span : encoding.spans) {
    Require(span.begin == at && span.end >= span.begin, "spans follow each other");
    at = span.end;
  }
  Require(at == bytes, "spans cover the input");
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

void Check(const Tokenizer& tokenizer, std::string_view text, size_t cut) {
  const TextPiece whole{text, false};
  const Encoding encoding = tokenizer.EncodePieces({&whole, 1}, {});
  if (&tokenizer == Tokenizers().back().get()) return;  // WordPiece drops white space and accents
  CheckSpans(encoding, text.size());
  Require(tokenizer.Decode(encoding.ids) == text, "decoding gives the text back");
  for (const int32_t id : encoding.ids)
    Require(!tokenizer.IsControl(id), "text forges no control token");
  CheckStream(tokenizer, encoding.ids);
  const TextPiece pieces[] = {{text.substr(0, cut), true}, {text.substr(cut), false}};
  CheckSpans(tokenizer.EncodePieces(pieces, {}), text.size());
}

}  // namespace
}  // namespace withy::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto& tokenizers = withy::engine::Tokenizers();
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  withy::engine::Check(*tokenizers[data[0] % tokenizers.size()], text, data[1] % (text.size() + 1));
  return 0;
}
