// Arbitrary bytes as a GGUF file: refused with a status, or everything in it can be read.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "base/utf8.h"
#include "engine/chat/template.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/model/bundle.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/small_stack.h"

namespace withy::engine {
namespace {

void ReadMetadata(const GgufFile& file) {
  for (const MetadataEntry& entry : file.metadata()) {
    (void)file.GetString(entry.key);
    (void)file.GetUint(entry.key);
    (void)file.GetInt(entry.key);
    (void)file.GetFloat(entry.key);
    (void)file.GetBool(entry.key);
    (void)file.GetStringArray(entry.key);
    (void)file.GetIntArray(entry.key);
    (void)file.GetFloatArray(entry.key);
  }
}

void ReadTensors(const GgufFile& file) {
  constexpr int64_t kMaxElements = 1 << 16;
  for (const TensorInfo& tensor : file.tensors()) {
    const std::span<const uint8_t> data = file.Data(tensor);
    uint32_t sum = 0;
    for (const uint8_t byte : data) sum += byte;
    if (sum == 0xFFFFFFFF) std::abort();  // prevents the reads from being optimised away
    if (tensor.elements() > kMaxElements) continue;
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    (void)Dequantize(tensor.type, data, values);
  }
}

void UseTokenizer(const GgufFile& file) {
  const auto tokenizer = MakeTokenizer(file);
  if (!tokenizer.ok()) return;
  const std::vector<int32_t> ids =
      (*tokenizer)
          ->Encode("Hello, w\xC3\xB6rld <s> 123\n\xFF", {.add_bos = true, .parse_special = true});
  (void)(*tokenizer)->Decode(ids, true);
}

// A file's messages, and its own name in them, are valid UTF-8.
void Judge(const GgufFile& file) {
  const Servability judged = JudgeServability(file, {});
  for (const absl::Status& problem : judged.problems) {
    const std::string_view message = ToStd(problem.message());
    if (ValidUtf8(message) != message) std::abort();
  }
  for (const auto* texts : {&judged.text.notes, &judged.text.warnings}) {
    for (const std::string& text : *texts) {
      if (ValidUtf8(text) != text) std::abort();
    }
  }
  if (judged.layout && ValidUtf8(judged.layout->shape.name) != judged.layout->shape.name) {
    std::abort();
  }
  if (judged.problems.empty() && (!judged.layout || !judged.tokenizer || !judged.chat)) {
    std::abort();
  }
}

}  // namespace
}  // namespace withy::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  withy::OnSmallStack([&] {
    const auto file = withy::engine::GgufFile::FromBytes({data, size}, "input");
    if (!file.ok()) {
      const std::string_view message = withy::ToStd(file.status().message());
      if (withy::ValidUtf8(message) != message) std::abort();
      return;
    }
    withy::engine::ReadMetadata(*file);
    withy::engine::ReadTensors(*file);
    withy::engine::UseTokenizer(*file);
    (void)withy::engine::ChatTemplate::FromFile(*file);
    withy::engine::Judge(*file);
  });
  return 0;
}
