#include "engine/tokenizer/normal_form.h"

#include <unicode/unorm2.h>
#include <unicode/utf16.h>

#include <algorithm>
#include <array>
#include <string>

#include "engine/tokenizer/unicode.h"

namespace withy::engine {
namespace {

constexpr size_t kUnitsPerChar = 2;  // of UTF-16
// A character becomes at most three of the form.
constexpr size_t kMostUnits = 3 * kUnitsPerChar * (kMostCombined + 1);

// Null if ICU has no data; then text stays as it is.
const UNormalizer2* Composer() {
  static const UNormalizer2* const composer = [] {
    UErrorCode error = U_ZERO_ERROR;
    const UNormalizer2* found = unorm2_getNFCInstance(&error);
    return U_FAILURE(error) ? nullptr : found;
  }();
  return composer;
}

// Characters that may combine with each other, but with none before or after them.
class CombiningRun {
 public:
  explicit CombiningRun(const UNormalizer2* composer) : composer_(composer) {}

  bool Takes(char32_t code) const {
    return chars_ > 0 && chars_ < kMostCombined &&
           unorm2_hasBoundaryBefore(composer_, static_cast<UChar32>(code)) == 0;
  }
  void Add(char32_t code) {
    U16_APPEND_UNSAFE(units_, size_, static_cast<UChar32>(code));
    ++chars_;
  }
  void Clear() { chars_ = size_ = 0; }

  // The characters' normal form as UTF-8; false if they are in it.
  bool Normalise(std::string* out) const {
    UErrorCode error = U_ZERO_ERROR;
    if (unorm2_quickCheck(composer_, units_.data(), static_cast<int32_t>(size_), &error) ==
            UNORM_YES ||
        U_FAILURE(error)) {
      return false;
    }
    std::array<UChar, kMostUnits> form;
    const int32_t count = unorm2_normalize(composer_, units_.data(), static_cast<int32_t>(size_),
                                           form.data(), static_cast<int32_t>(form.size()), &error);
    if (U_FAILURE(error)) return false;
    out->clear();
    const UChar* const units = form.data();
    for (int32_t i = 0; i < count;) {
      UChar32 code = 0;
      U16_NEXT_UNSAFE(units, i, code);
      AppendUtf8(static_cast<char32_t>(code), *out);
    }
    return true;
  }

 private:
  const UNormalizer2* const composer_;
  std::array<UChar, kUnitsPerChar * kMostCombined> units_;
  size_t size_ = 0;
  size_t chars_ = 0;
};

}  // namespace

bool MayNeedNormalForm(std::string_view text) {
  // Characters below U+0300, which 0xCC begins, are in normal form and combine with none of them.
  constexpr uint8_t kFirstLead = 0xCC;
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) >= kFirstLead; });
}

void NormalForm(std::string_view text, uint32_t source_begin, CancelPoll& poll, MappedText* out) {
  out->Clear();
  const UNormalizer2* const composer = Composer();
  if (composer == nullptr) {
    out->Keep(text, source_begin);
    return;
  }
  CombiningRun run(composer);
  std::string form;
  size_t begin = 0;  // of the run
  const auto finish = [&](size_t end) {
    const std::string_view bytes = text.substr(begin, end - begin);
    const auto at = source_begin + static_cast<uint32_t>(begin);
    if (run.Normalise(&form) && form != bytes) {
      out->Replace(form, {at, at + static_cast<uint32_t>(bytes.size())});
    } else {
      out->Keep(bytes, at);
    }
    run.Clear();
    begin = end;
  };
  for (size_t at = 0; at < text.size() && !poll.Stop();) {
    char32_t code = 0;
    const size_t length = Utf8CharAt(text, at, &code);
    if (length == 0 || !run.Takes(code)) finish(at);
    if (length > 0) run.Add(code);
    at += std::max<size_t>(1, length);
    if (length == 0) finish(at);
  }
  finish(text.size());
}

}  // namespace withy::engine
