#include "engine/gguf/foreign_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <string_view>

namespace withy::engine {
namespace {

constexpr size_t kLookedAt = 4096;
constexpr char kGetGguf[] = "take a GGUF file of the model, or convert it with llama.cpp";
constexpr char kConvert[] =
    "convert the model's folder with convert_hf_to_gguf.py of llama.cpp, or take a GGUF file of it";
constexpr char kDownload[] =
    "the download went wrong: download the model file itself (from huggingface.co by "
    "/resolve/main/ in place of /blob/main/, with a token where the model asks for one)";
constexpr char kUnpack[] = "unpack it, and name the .gguf file that is in it";

struct Beginning {
  std::string_view bytes;
  std::string_view what;
  std::string_view remedy;
};

// Longer beginnings stand before shorter ones that they begin with.
constexpr Beginning kBeginnings[] = {
    {"version https://git-lfs", "it is a Git LFS pointer, not the file that it points to",
     "run git lfs pull in its folder, or download the model file itself"},
    {"# xet version", "it is a Xet pointer, not the file that it points to",
     "download the model file itself"},
    {"WITHYPK\n", "it is a packed file of withy",
     "name the GGUF that it was made from; only model.path and draft.path take packed files"},
    {"FUGG", "it is a GGUF file with its bytes in another order", kGetGguf},
    {"lmgg", "it is a GGML model of 2023, from before GGUF", kGetGguf},
    {"fmgg", "it is a GGML model (GGMF) of 2023, from before GGUF", kGetGguf},
    {"tjgg", "it is a GGML model (GGJT) of 2023, from before GGUF", kGetGguf},
    {"algg", "it is a LoRA adapter (GGLA) of 2023, from before GGUF",
     "merge the adapter into its model, and convert the result with llama.cpp"},
    {"PK\x03\x04", "it is a ZIP archive, such as a PyTorch checkpoint (.bin, .pt, .pth)", kConvert},
    {"\x80\x02", "it is a Python pickle, such as a PyTorch checkpoint (.bin, .pt, .pth)", kConvert},
    {"\x80\x04", "it is a Python pickle, such as a PyTorch checkpoint (.bin, .pt, .pth)", kConvert},
    {"\x89HDF", "it is an HDF5 file (Keras)", kConvert},
    {"\x93NUMPY", "it is a NumPy array", kGetGguf},
    {"\x1f\x8b", "it is compressed by gzip", kUnpack},
    {"\xFD"
     "7zXZ",
     "it is compressed by xz", kUnpack},
    {"\x28\xB5\x2F\xFD", "it is compressed by zstd", kUnpack},
    {"BZh", "it is compressed by bzip2", kUnpack},
    {"7z\xBC\xAF\x27\x1C", "it is a 7-Zip archive", kUnpack},
    {"Rar!", "it is a RAR archive", kUnpack},
    {"\x7f"
     "ELF",
     "it is a program", "a llamafile has its GGUF inside: unpack it with unzip"},
    {"MZqFpD", "it is a llamafile", "unpack it with unzip, and name the .gguf file that is in it"},
    {"MZ", "it is a program", "a llamafile has its GGUF inside: unpack it with unzip"},
    {"%PDF", "it is a PDF document", kDownload},
    {"SQLite format 3", "it is a SQLite database", kGetGguf},
};

bool StartsWithIgnoringCase(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

std::string Say(std::string_view what, std::string_view remedy) {
  return std::string(what) + ": " + std::string(remedy);
}

// A length, and a JSON object of that length.
bool IsSafetensors(std::string_view text, uint64_t file_bytes) {
  uint64_t length = 0;
  if (text.size() <= sizeof(length)) return false;
  std::memcpy(&length, text.data(), sizeof(length));
  return text[sizeof(length)] == '{' && length >= 2 && length <= file_bytes - sizeof(length);
}

bool IsText(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
}

}  // namespace

std::string DescribeForeignFile(std::span<const uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min(bytes.size(), kLookedAt));
  for (const Beginning& beginning : kBeginnings) {
    if (text.starts_with(beginning.bytes)) return Say(beginning.what, beginning.remedy);
  }
  if (IsSafetensors(text, bytes.size())) return Say("it is a safetensors file", kConvert);
  if (text.size() >= 8 && text.substr(4, 4) == "TFL3") {
    return Say("it is a TensorFlow Lite model", kGetGguf);
  }
  constexpr size_t kTarMagic = 257;
  if (text.size() > kTarMagic && text.substr(kTarMagic).starts_with("ustar")) {
    return Say("it is a tar archive", kUnpack);
  }
  const std::string_view shown =
      text.substr(std::min(text.find_first_not_of("\xEF\xBB\xBF \r\n\t"), text.size()));
  if (StartsWithIgnoringCase(shown, "<!doctype html") || StartsWithIgnoringCase(shown, "<html")) {
    return Say("it is a web page", kDownload);
  }
  if (std::all_of(text.begin(), text.end(), [](char c) { return c == 0; })) {
    return Say("it begins with zeros", "it was not downloaded or copied to its end: do it again");
  }
  if (IsText(text)) {
    return Say(shown.starts_with("{") || shown.starts_with("[")
                   ? "it is a JSON text, such as a server's error or a model's config.json"
               : shown.starts_with("<?xml") ? "it is an XML text, such as a server's error"
                                            : "it is a text",
               kDownload);
  }
  return Say("it does not begin with \"GGUF\"",
             "name a GGUF file; a later piece of a file that was cut into pieces is joined to the "
             "others with cat");
}

}  // namespace withy::engine
