#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>

namespace withy {
namespace {

TEST(Crc32cTest, KnownValueAndBothWaysAgree) {
  const std::string check = "123456789";
  EXPECT_EQ(Crc32c(0, std::as_bytes(std::span(check.data(), check.size()))), 0xE3069283u);
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes.push_back(static_cast<char>(i * 37));
  for (size_t n = 0; n < 300; ++n) {
    const auto part = std::as_bytes(std::span(bytes.data(), n));
    EXPECT_EQ(Crc32c(5, part), Crc32cPortable(5, part)) << n;
    EXPECT_EQ(Crc32c(Crc32c(0, part.first(n / 3)), part.subspan(n / 3)), Crc32c(0, part)) << n;
  }
}

TEST(Crc32cTest, LanesAgreeAndEveryByteCounts) {
  std::string bytes;
  for (int i = 0; i < 200; ++i) bytes.push_back(static_cast<char>(i * 73));
  for (size_t n = 0; n <= bytes.size(); ++n) {
    const auto part = std::as_bytes(std::span(bytes.data(), n));
    const auto sums = Crc32cLanes(part);
    EXPECT_EQ(sums, Crc32cLanesPortable(part)) << n;
    for (size_t at = 0; at < n; ++at) {
      bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
      EXPECT_NE(Crc32cLanes(part), sums) << "byte " << at << " of " << n;
      bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    }
  }
}

}  // namespace
}  // namespace withy
