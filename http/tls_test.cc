// The server in TLS, over real sockets, with OpenSSL's client.
#include "http/tls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/tcp_listener.h"
#include "base/tls/test_ca.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "http/server.h"

namespace withy::http {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// A client that trusts one CA, with a certificate or without.
class TlsClient {
 public:
  TlsClient(int port, const std::string& ca_pem, const TestCertificate* own = nullptr)
      : fd_(ConnectTo(port)), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), Parse(ca_pem).get());
    if (own != nullptr) {
      SSL_CTX_use_certificate(context_.get(), Parse(own->certificate_pem).get());
      BIO* const bio = BIO_new_mem_buf(own->key_pem.data(), static_cast<int>(own->key_pem.size()));
      EVP_PKEY* const key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
      SSL_CTX_use_PrivateKey(context_.get(), key);
      EVP_PKEY_free(key);
      BIO_free(bio);
    }
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_.get());
    connected_ = SSL_connect(ssl_.get()) == 1;
  }

  bool connected() const { return connected_; }
  std::string PeerName() const {
    const std::unique_ptr<X509, decltype(&X509_free)> peer(SSL_get1_peer_certificate(ssl_.get()),
                                                           X509_free);
    char name[64] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(peer.get()), NID_commonName, name, sizeof name);
    return name;
  }
  // False: the server has ended the connection.
  bool Send(std::string_view bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) > 0;
  }
  // Until the server closes.
  std::string Read() {
    std::string all;
    char piece[4096];
    for (int got; (got = SSL_read(ssl_.get(), piece, sizeof piece)) > 0;) {
      all.append(piece, static_cast<size_t>(got));
    }
    ended_well_ = SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN;
    return all;
  }
  bool ended_well() const { return ended_well_; }

 private:
  static std::unique_ptr<X509, decltype(&X509_free)> Parse(const std::string& pem) {
    BIO* const bio = BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()));
    X509* const parsed = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
    BIO_free(bio);
    return {parsed, X509_free};
  }

  UniqueFd fd_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, SslFree> ssl_;
  bool connected_ = false;
  bool ended_well_ = false;
};

// Answers with the name in the client's certificate and the body.
class TlsTest : public ::testing::Test {
 protected:
  TlsTest() { files_.Put(ca_.Issue({.common_name = "first"})); }

  void Start(const std::string& client_ca = "") {
    TlsFiles paths{.certificate = files_.certificate(), .key = files_.key()};
    if (!client_ca.empty()) paths.client_ca = files_.Write("clients.pem", client_ca);
    auto source = TlsSource::Open(paths);
    ASSERT_TRUE(source.ok()) << source.status();
    absl::StatusOr<UniqueFd> listener = ListenTcp("127.0.0.1:0", "test", "fix it");
    ASSERT_TRUE(listener.ok()) << listener.status();
    const std::string address = BoundAddress(*listener, "127.0.0.1:0");
    port_ = std::stoi(address.substr(address.rfind(':') + 1));
    ServerOptions options;
    options.tls = *std::move(source);
    auto server = Server::Start(
        *std::move(listener), options,
        {.answer =
             [](Exchange& exchange) {
               std::string body;
               const auto failure = exchange.ReadBody(&body);
               exchange.Send(absl::StrCat("HTTP/1.1 ", failure ? failure->status : 200,
                                          " X\r\nConnection: close\r\n\r\n",
                                          exchange.CertifiedName(), "/", body));
             },
         .refuse =
             [](const Failure& failure, const RequestHead& /*head*/) {
               return absl::StrCat("HTTP/1.1 ", failure.status, " X\r\n\r\n", failure.message);
             }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  static std::string Post(const std::string& body) {
    return absl::StrCat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n",
                        body);
  }
  std::string Exchanged(const TestCertificate* own, const std::string& body = "") const {
    TlsClient client(port_, ca_.pem(), own);
    client.Send(Post(body));
    return client.Read();
  }

  const TestCa ca_, clients_;
  const TestTlsFiles files_;
  int port_ = 0;
  std::unique_ptr<Server> server_;
};

TEST_F(TlsTest, LargeBodiesGoBothWaysAndTheEndIsTold) {
  Start();
  const std::string large(3 << 20, 'x');
  TlsClient client(port_, ca_.pem());
  ASSERT_TRUE(client.connected());
  ASSERT_TRUE(client.Send(Post(large)));
  EXPECT_THAT(client.Read(), EndsWith("\r\n\r\n/" + large));
  EXPECT_TRUE(client.ended_well());
}

TEST_F(TlsTest, ARequestInOnePieceIsReadWhole) {
  Start();
  // Head and body in one record: nothing is left in the socket when the body is wanted.
  EXPECT_THAT(Exchanged(nullptr, std::string(9000, 'y')), EndsWith("/" + std::string(9000, 'y')));
}

TEST_F(TlsTest, PlaintextGetsNoAnswer) {
  Start();
  const UniqueFd fd(ConnectTo(port_));
  const std::string request = Post("secret");
  send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string all;
  char piece[512];
  for (ssize_t got; (got = recv(fd.get(), piece, sizeof piece, 0)) > 0;) {
    all.append(piece, static_cast<size_t>(got));
  }
  EXPECT_EQ(all.find("HTTP/"), std::string::npos);
}

TEST_F(TlsTest, AServerOfAnotherCaIsNotBelieved) {
  Start();
  const TlsClient client(port_, clients_.pem());
  EXPECT_FALSE(client.connected());
}

TEST_F(TlsTest, ClientsAreKnownByTheirCertificates) {
  Start(clients_.pem());
  const TestCertificate named = clients_.Issue({.common_name = "mail"});
  EXPECT_THAT(Exchanged(&named, "hello"), EndsWith("\r\n\r\nmail/hello"));
  const TestCertificate by_dns = clients_.Issue({.dns_name = "notes"});
  EXPECT_THAT(Exchanged(&by_dns), EndsWith("\r\n\r\nnotes/"));
  const TestCertificate nameless = clients_.Issue({});
  EXPECT_THAT(Exchanged(&nameless), EndsWith("\r\n\r\n/"));
}

TEST_F(TlsTest, ClientsWithoutAValidCertificateGetNoAnswer) {
  Start(clients_.pem());
  EXPECT_EQ(Exchanged(nullptr), "");
  const TestCertificate foreign = ca_.Issue({.common_name = "mail"});
  EXPECT_EQ(Exchanged(&foreign), "");
  const TestCertificate expired =
      clients_.Issue({.common_name = "mail", .valid_for = -absl::Minutes(1)});
  EXPECT_EQ(Exchanged(&expired), "");
}

TEST_F(TlsTest, NewConnectionsGetTheNewCertificateAndOldOnesGoOn) {
  Start();
  TlsClient before(port_, ca_.pem());
  ASSERT_TRUE(before.connected());
  const std::string request = Post("still here");
  ASSERT_TRUE(before.Send(request.substr(0, 40)));
  files_.Put(ca_.Issue({.common_name = "second"}));
  const TlsClient after(port_, ca_.pem());
  ASSERT_TRUE(after.connected());
  EXPECT_EQ(before.PeerName(), "first");
  EXPECT_EQ(after.PeerName(), "second");
  ASSERT_TRUE(before.Send(request.substr(40)));
  EXPECT_THAT(before.Read(), HasSubstr("/still here"));
}

}  // namespace
}  // namespace withy::http
