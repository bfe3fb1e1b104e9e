#include "engine/kv/encode.h"

#include <cstring>

#include "engine/kv/encode_targets.h"

namespace withy::engine {

#if !defined(WITHY_HAVE_X86)
EncodeHeadFn Avx2EncodeHead() { return nullptr; }
#endif

void EncodeBlock(const KvGeometry& g, const std::byte* block, KvFormat from, KvFormat to,
                 std::byte* out) {
  static const EncodeHeadFn kEncode =
      Avx2EncodeHead() != nullptr ? Avx2EncodeHead() : PortableEncodeHead();
  for (int head = 0; head < g.kv_heads; ++head) kEncode(g, head, block, from, to, out);
  const size_t end = g.HeadOffset(to, g.kv_heads);
  std::memset(out + end, 0, g.BlockBytes(to) - end);
}

}  // namespace withy::engine
