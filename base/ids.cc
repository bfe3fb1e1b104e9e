#include "base/ids.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace withy {

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t filled = 0; filled < count;) {
    const ssize_t got = getrandom(bytes.data() + filled, count - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) std::abort();
    filled += static_cast<size_t>(got);
  }
  return bytes;
}

uint64_t RandomId64() {
  uint64_t id = 0;
  while (id == 0) std::memcpy(&id, RandomBytes(sizeof id).data(), sizeof id);
  return id;
}

std::string NewId(std::string_view prefix) {
  return std::string(prefix) + "_" + ToHex(RandomBytes(16));
}

std::string ToHex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace withy
