#include "cli/utf8.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "engine/tokenizer/unicode.h"

namespace withy::cli {

absl::Status CheckUtf8(std::string_view what, std::string_view text) {
  char32_t code = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = engine::Utf8CharAt(text, at, &code);
    if (length == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is not UTF-8 at byte %d (0x%02X): convert it first, as with `iconv -t "
          "UTF-8`",
          ToAbsl(what), at, static_cast<unsigned char>(text[at])));
    }
    at += length;
  }
  return absl::OkStatus();
}

absl::Status CheckFlagsUtf8(const Args& args, std::initializer_list<const char*> flags) {
  for (const char* flag : flags) {
    for (const std::string& value : args.GetAll(flag))
      WITHY_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("--", flag), value));
  }
  return absl::OkStatus();
}

}  // namespace withy::cli
