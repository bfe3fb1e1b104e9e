#include "offline/vocab/vocabulary.h"

#include <array>
#include <vector>

#include "base/status.h"
#include "engine/gguf/reader.h"

namespace withy::vocab {
namespace {

constexpr int32_t kNormalToken = 1;
constexpr int32_t kControlToken = 3;

constexpr std::string_view kChatTemplate =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}";

std::string Utf8(uint32_t code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// Byte-level vocabularies represent each byte by one visible character: itself if visible in
// Latin-1, otherwise the next one from U+0100 on.
std::array<std::string, 256> VisibleBytes() {
  std::array<std::string, 256> visible;
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool shows =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    visible[byte] = Utf8(shows ? byte : next++);
  }
  return visible;
}

std::string Visible(const std::array<std::string, 256>& visible, std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += visible[static_cast<uint8_t>(c)];
  return text;
}

}  // namespace

void SetTokenizerMetadata(const BpeVocabulary& vocabulary, engine::GgufWriter& writer) {
  const std::array<std::string, 256> visible = VisibleBytes();
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
  for (size_t i = 0; i < vocabulary.pieces.size(); ++i) {
    const bool special = i < vocabulary.specials.size();
    tokens.push_back(special ? vocabulary.pieces[i] : Visible(visible, vocabulary.pieces[i]));
    kinds.push_back(special ? kControlToken : kNormalToken);
  }
  std::vector<std::string> merges;
  for (const auto& [left, right] : vocabulary.merges) {
    merges.push_back(tokens[static_cast<size_t>(left)] + " " + tokens[static_cast<size_t>(right)]);
  }
  writer.SetString("tokenizer.ggml.model", "gpt2");
  writer.SetString("tokenizer.ggml.pre", kPreTokenizerName);
  writer.SetStringArray("tokenizer.ggml.tokens", tokens);
  writer.SetArray<int32_t>("tokenizer.ggml.token_type", kinds);
  writer.SetStringArray("tokenizer.ggml.merges", merges);
  writer.Set<uint32_t>("tokenizer.ggml.bos_token_id", 0);
  writer.Set<uint32_t>("tokenizer.ggml.eos_token_id", 2);
  writer.Set<uint32_t>("tokenizer.ggml.padding_token_id", 0);
  writer.Set<bool>("tokenizer.ggml.add_bos_token", false);
  writer.SetString("tokenizer.chat_template", kChatTemplate);
}

absl::StatusOr<std::unique_ptr<engine::Tokenizer>> MakeTokenizer(const BpeVocabulary& vocabulary,
                                                                 const std::string& path) {
  engine::GgufWriter writer;
  writer.SetString("general.architecture", "llama");
  SetTokenizerMetadata(vocabulary, writer);
  WITHY_RETURN_IF_ERROR(writer.Write(path));
  WITHY_ASSIGN_OR_RETURN(const engine::GgufFile file, engine::GgufFile::Open(path));
  return engine::MakeTokenizer(file);
}

}  // namespace withy::vocab
