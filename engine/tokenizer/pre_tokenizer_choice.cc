#include "engine/tokenizer/pre_tokenizer_choice.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace withy::engine {
namespace {

struct Place {
  uint32_t id;
  std::string_view text;
};

// A published vocabulary, known by tokens that no other one has at these ids.
struct Family {
  std::string_view name;  // for people
  std::string_view pre;
  std::array<Place, 4> places;  // empty texts are left out
};

constexpr Family kFamilies[] = {
    {"Llama 3", "llama-bpe", {{{128000, "<|begin_of_text|>"}, {128001, "<|end_of_text|>"}}}},
    {"DeepSeek-R1-Distill-Llama",
     "llama-bpe",
     {{{128000, "<｜begin▁of▁sentence｜>"}, {128001, "<｜end▁of▁sentence｜>"}}}},
    {"Llama 4", "llama4", {{{200000, "<|begin_of_text|>"}, {200001, "<|end_of_text|>"}}}},
    {"Qwen2",
     "qwen2",
     {{{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}}},
    {"DeepSeek-R1-Distill-Qwen",
     "deepseek-r1-qwen",
     {{{151643, "<｜end▁of▁sentence｜>"}, {151646, "<｜begin▁of▁sentence｜>"}}}},
    {"SmolLM",
     "smollm",
     {{{0, "<|endoftext|>"}, {1, "<|im_start|>"}, {2, "<|im_end|>"}, {3, "<repo_name>"}}}},
    {"StarCoder",
     "starcoder",
     {{{0, "<|endoftext|>"}, {1, "<fim_prefix>"}, {2, "<fim_middle>"}, {3, "<fim_suffix>"}}}},
    {"GPT-2", "gpt-2", {{{0, "!"}, {262, "Ġthe"}, {50256, "<|endoftext|>"}}}},
    {"GPT-NeoX", "olmo", {{{0, "<|endoftext|>"}, {1, "<|padding|>"}, {2, "!"}}}},
    {"GPT-4o", "gpt-4o", {{{0, "!"}, {199999, "<|endoftext|>"}}}},
    {"Tekken (Mistral)", "tekken", {{{1, "<s>"}, {2, "</s>"}, {3, "[INST]"}, {4, "[/INST]"}}}},
    {"DeepSeek-V3",
     "deepseek-v3",
     {{{0, "<｜begin▁of▁sentence｜>"}, {1, "<｜end▁of▁sentence｜>"}}}},
    {"DeepSeek-Coder",
     "deepseek-coder",
     {{{32013, "<｜begin▁of▁sentence｜>"}, {32014, "<｜end▁of▁sentence｜>"}}}},
    {"Command-R",
     "command-r",
     {{{0, "<PAD>"}, {1, "<UNK>"}, {4, "<MASK_TOKEN>"}, {5, "<BOS_TOKEN>"}}}},
};

// Null if it is none of them.
const Family* FindFamily(std::span<const std::string_view> tokens) {
  for (const Family& family : kFamilies) {
    const bool fits =
        std::all_of(family.places.begin(), family.places.end(), [&](const Place& place) {
          return place.text.empty() || (place.id < tokens.size() && tokens[place.id] == place.text);
        });
    if (fits) return &family;
  }
  return nullptr;
}

constexpr std::string_view kPreTokenizerKey = "tokenizer.ggml.pre";

}  // namespace

PreTokenizerChoice ChoosePreTokenizer(const GgufFile& file, std::string_view configured) {
  PreTokenizerChoice choice;
  if (file.GetStringOr("tokenizer.ggml.model", "").value_or("") != "gpt2") return choice;
  const std::string named(file.GetStringOr(kPreTokenizerKey, "").value_or(""));
  if (!configured.empty()) {
    choice.name = configured;
    if (named != configured) {
      choice.note =
          absl::StrCat("pre-tokenizer: ", choice.name, ", as model.pre_tokenizer says (",
                       ToAbsl(kPreTokenizerKey), named.empty() ? " is missing)" : " differs)");
    }
    return choice;
  }
  if (!named.empty() && named != choice.name) {
    choice.name = named;
    return choice;
  }
  const auto tokens = file.GetStringArray("tokenizer.ggml.tokens");
  const Family* family = tokens.ok() ? FindFamily(*tokens) : nullptr;
  if (named.empty() && family != nullptr) {
    choice.name = family->pre;
    choice.note = absl::StrCat("the file names no pre-tokenizer (", ToAbsl(kPreTokenizerKey),
                               "): its vocabulary is that of ", ToAbsl(family->name), ", and ",
                               choice.name, " is used");
  } else if (family != nullptr) {
    choice.doubtful = true;
    choice.note = absl::StrCat(
        "the file names the pre-tokenizer default (", ToAbsl(kPreTokenizerKey),
        "), but its vocabulary is that of ", ToAbsl(family->name),
        ": answers are worse than the model's if that is wrong; set model.pre_tokenizer: \"",
        ToAbsl(family->pre), "\"");
  } else if (named.empty()) {
    choice.doubtful = true;
    choice.note = absl::StrCat(
        "the file names no pre-tokenizer (", ToAbsl(kPreTokenizerKey),
        "), and its vocabulary tells none: text is split as by default, and answers are worse than "
        "the model's if it was trained otherwise; set model.pre_tokenizer to the model's own, or "
        "take a newer file of it");
  }
  return choice;
}

}  // namespace withy::engine
