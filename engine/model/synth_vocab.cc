#include "engine/model/synth_vocab.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"

namespace withy::engine {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kByte = 6;
constexpr std::string_view kSpiece = "\xE2\x96\x81";  // U+2581, SentencePiece's space

struct Vocab {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;

  void Add(std::string token, int32_t type) {
    tokens.push_back(std::move(token));
    scores.push_back(type == kNormal ? -static_cast<float>(tokens.size()) : 0.0f);
    types.push_back(type);
  }
};

void AppendUtf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else {  // below 0x800 here
    out->push_back(static_cast<char>(0xC0 | (code >> 6)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

// GPT-2's printable stand-in for a byte.
std::string ByteCharacter(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  uint32_t code = static_cast<uint32_t>(byte);
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  std::string out;
  AppendUtf8(code, &out);
  return out;
}

// The word after `word` in a, b, ..., z, aa, ab, ... Every prefix of a word comes before the word,
// so that merges can build it.
std::string NextWord(std::string word) {
  for (size_t i = word.size(); i-- > 0;) {
    if (word[i] != 'z') {
      ++word[i];
      return word;
    }
    word[i] = 'a';
  }
  return "a" + word;
}

}  // namespace

void AddSentencePieceVocab(int32_t vocab_size, GgufWriter* writer) {
  Vocab v;
  v.Add("<unk>", kUnknown);
  v.Add("<s>", kControl);
  v.Add("</s>", kControl);
  for (int b = 0; b < 256; ++b) v.Add(absl::StrFormat("<0x%02X>", b), kByte);
  const auto full = [&] { return v.tokens.size() >= static_cast<size_t>(vocab_size); };
  v.Add(std::string(kSpiece), kNormal);
  for (std::string word = "a"; !full(); word = NextWord(word)) {
    v.Add(word, kNormal);
    if (!full()) v.Add(std::string(kSpiece) + word, kNormal);
  }
  writer->SetString("tokenizer.ggml.model", "llama");
  writer->SetStringArray("tokenizer.ggml.tokens", v.tokens);
  writer->SetArray<float>("tokenizer.ggml.scores", v.scores);
  writer->SetArray<int32_t>("tokenizer.ggml.token_type", v.types);
  writer->Set<uint32_t>("tokenizer.ggml.bos_token_id", 1);
  writer->Set<uint32_t>("tokenizer.ggml.eos_token_id", 2);
  writer->Set<uint32_t>("tokenizer.ggml.unknown_token_id", 0);
  writer->SetString("tokenizer.chat_template",
                    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + "
                    "message['content'] + eos_token + '\\n' }}{% endfor %}"
                    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
                    "{# roles: <|user|> <|system|> <|assistant|> #}");
}

void AddByteLevelVocab(int32_t vocab_size, GgufWriter* writer) {
  Vocab v;
  v.Add("<|endoftext|>", kControl);
  v.Add("<|im_start|>", kControl);
  v.Add("<|im_end|>", kControl);
  for (int b = 0; b < 256; ++b) v.Add(ByteCharacter(b), kNormal);
  const std::string space = ByteCharacter(' ');
  std::vector<std::string> merges;
  const auto add = [&](const std::string& begin, char last) {
    if (v.tokens.size() >= static_cast<size_t>(vocab_size)) return;
    merges.push_back(begin + " " + last);
    v.Add(begin + last, kNormal);
  };
  for (std::string word = "a"; v.tokens.size() < static_cast<size_t>(vocab_size);
       word = NextWord(word)) {
    const std::string begin = word.substr(0, word.size() - 1);
    if (!begin.empty()) add(begin, word.back());
    add(space + begin, word.back());
  }
  writer->SetString("tokenizer.ggml.model", "gpt2");
  writer->SetString("tokenizer.ggml.pre", "llama-bpe");
  writer->SetStringArray("tokenizer.ggml.tokens", v.tokens);
  writer->SetArray<int32_t>("tokenizer.ggml.token_type", v.types);
  writer->SetStringArray("tokenizer.ggml.merges", merges);
  writer->Set<uint32_t>("tokenizer.ggml.bos_token_id", 0);
  writer->Set<uint32_t>("tokenizer.ggml.eos_token_id", 2);
  writer->SetString("tokenizer.chat_template",
                    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
                    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}");
}

}  // namespace withy::engine
