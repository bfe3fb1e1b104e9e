#include "base/tls/tls_files.h"

#include <sys/stat.h>

#include <atomic>

#include "absl/time/clock.h"
#include "base/tls/test_ca.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest() { files_.Put(server_); }

  TlsFiles Paths() const { return {.certificate = files_.certificate(), .key = files_.key()}; }
  // The error's words; "" where the files can be used.
  std::string Refusal(const TlsFiles& paths) const {
    return std::string(ReadTlsFiles(paths, absl::Now()).status().message());
  }

  const TestCa ca_;
  const TestCertificate server_ = ca_.Issue({.common_name = "board"});
  const TestTlsFiles files_;
};

TEST_F(TlsFilesTest, WhatBelongsTogetherIsRead) {
  const auto read = ReadTlsFiles(Paths(), absl::Now());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->certificate_pem, server_.certificate_pem);
  EXPECT_EQ(read->key_pem, server_.key_pem);
  EXPECT_GT(read->expires, absl::Now() + absl::Hours(23));
  EXPECT_LT(read->expires, absl::Now() + absl::Hours(25));
}

TEST_F(TlsFilesTest, AKeyThatOthersCanReadIsRefused) {
  chmod(files_.key().c_str(), 0604);
  EXPECT_THAT(Refusal(Paths()),
              AllOf(HasSubstr(files_.key()), HasSubstr("604"), HasSubstr("chmod")));
  chmod(files_.key().c_str(), 0600);
  EXPECT_EQ(Refusal(Paths()), "");
}

TEST_F(TlsFilesTest, WhatCannotBeUsedIsNamedWithItsCause) {
  TlsFiles paths = Paths();
  paths.certificate = files_.Write("none.pem", "no certificate\n");
  EXPECT_THAT(Refusal(paths), AllOf(HasSubstr(paths.certificate), HasSubstr("no certificate")));
  paths = Paths();
  paths.key = files_.Write("other.key", ca_.Issue({}).key_pem);
  EXPECT_THAT(Refusal(paths), AllOf(HasSubstr(paths.key), HasSubstr("not the key")));
  paths.key = files_.Write("none.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n");
  EXPECT_THAT(Refusal(paths), AllOf(HasSubstr(paths.key), HasSubstr("no private key")));
  paths = Paths();
  paths.client_ca = files_.Write("ca.pem", ca_.pem() + "-----BEGIN CERTIFICATE-----\nA\n");
  EXPECT_THAT(Refusal(paths), AllOf(HasSubstr("tls.client_ca_file"), HasSubstr("certificate 1")));
  paths = Paths();
  paths.key = "/nowhere/server.key";
  EXPECT_TRUE(absl::IsNotFound(ReadTlsFiles(paths, absl::Now()).status()));
}

TEST_F(TlsFilesTest, ACertificateOutOfItsTimeIsRefused) {
  files_.Put(ca_.Issue({.valid_from = -absl::Hours(3), .valid_for = -absl::Hours(2)}));
  EXPECT_THAT(Refusal(Paths()), AllOf(HasSubstr("expired on"), HasSubstr("clock")));
  files_.Put(ca_.Issue({.valid_from = absl::Hours(2)}));
  EXPECT_THAT(Refusal(Paths()), AllOf(HasSubstr("valid from"), HasSubstr("clock")));
}

TEST_F(TlsFilesTest, NewFilesAreInForceAtOnceAndBrokenOnesNever) {
  std::atomic<int> problems{0};
  auto source = TlsSource::Open(Paths(), [&](const absl::Status& problem, absl::Time expires) {
    if (!problem.ok()) ++problems;
    EXPECT_GT(expires, absl::Now());
  });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->Current()->certificate_pem, server_.certificate_pem);
  const TestCertificate next = ca_.Issue({.common_name = "next"});
  files_.Put(next);
  EXPECT_EQ((*source)->Current()->certificate_pem, next.certificate_pem);
  // A certificate without its key, as between two copies.
  const TestCertificate third = ca_.Issue({.common_name = "third"});
  files_.Put({third.certificate_pem, next.key_pem});
  EXPECT_EQ((*source)->Current()->certificate_pem, next.certificate_pem);
  EXPECT_EQ((*source)->Current()->key_pem, next.key_pem);
  EXPECT_GE(problems, 1);
  files_.Put(third);
  EXPECT_EQ((*source)->Current()->certificate_pem, third.certificate_pem);
}

TEST_F(TlsFilesTest, TheLoopbackIsCoveredWhereThatIsAsked) {
  auto source = TlsSource::Open(Paths());
  ASSERT_TRUE(source.ok()) << source.status();
  TcpTls tls{.source = *std::move(source)};
  for (const char* address : {"0.0.0.0:1", "[::]:1", "board.lan:1", "127.example.org:1"}) {
    EXPECT_TRUE(tls.Covers(address)) << address;
  }
  EXPECT_FALSE(tls.Covers("unix:/run/withy/withy.sock"));
  for (const char* address : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1"}) {
    EXPECT_FALSE(tls.Covers(address)) << address;
  }
  tls.on_loopback = true;
  EXPECT_TRUE(tls.Covers("127.0.0.1:1"));
  EXPECT_FALSE(tls.Covers("unix:/run/withy/withy.sock"));
}

}  // namespace
}  // namespace withy
