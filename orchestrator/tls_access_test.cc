// Apps that are known by their certificates, over gRPC and HTTP.
#include <curl/curl.h>

#include <memory>
#include <string>

#include "base/tls/test_ca.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/testing.h"
#include "rpc/channel.h"

namespace withy::orchestrator {
namespace {

using ::testing::HasSubstr;

struct HttpsAnswer {
  CURLcode code = CURLE_OK;
  long status = 0;
  std::string body = {};
};

size_t AppendTo(char* bytes, size_t size, size_t count, void* to) {
  static_cast<std::string*>(to)->append(bytes, size * count);
  return size * count;
}

class TlsAccessTest : public ::testing::Test {
 protected:
  void Start(bool certificates) {
    files_.Put(ca_.Issue({.common_name = "board"}));
    v1::Config config;
    config.mutable_orchestrator()->set_http_listen("127.0.0.1:0");
    config.mutable_tls()->set_certificate_file(files_.certificate());
    config.mutable_tls()->set_key_file(files_.key());
    config.mutable_tls()->set_on_loopback(true);
    if (certificates) {
      config.mutable_tls()->set_client_ca_file(files_.Write("clients.pem", clients_.pem()));
    }
    board_ = std::make_unique<Board>(config);
  }
  // GET /v1/models. `own` null: without a certificate.
  HttpsAnswer Models(const TestCertificate* own, const std::string& token = "") const {
    HttpsAnswer answer;
    const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(),
                                                                   curl_easy_cleanup);
    const std::string url = board_->http_address() + "/v1/models";
    const std::string ca = files_.Write("ca.pem", ca_.pem());
    curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_CAINFO, ca.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, AppendTo);
    curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer.body);
    if (own != nullptr) {
      const std::string certificate = files_.Write("app.pem", own->certificate_pem);
      const std::string key = files_.Write("app.key", own->key_pem);
      curl_easy_setopt(curl.get(), CURLOPT_SSLCERT, certificate.c_str());
      curl_easy_setopt(curl.get(), CURLOPT_SSLKEY, key.c_str());
    }
    const std::string bearer = "Authorization: Bearer " + token;
    curl_slist* const headers = curl_slist_append(nullptr, bearer.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers);
    answer.code = curl_easy_perform(curl.get());
    curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer.status);
    curl_slist_free_all(headers);
    return answer;
  }

  const TestCa ca_, clients_;
  const TestTlsFiles files_;
  std::unique_ptr<Board> board_;
};

TEST_F(TlsAccessTest, WithoutClientCertificatesTokensCount) {
  Start(/*certificates=*/false);
  EXPECT_EQ(Models(nullptr, "good").status, 200);
  EXPECT_EQ(Models(nullptr, "bad").status, 401);
}

TEST_F(TlsAccessTest, ACertificateNamesTheAppAndATokenDoesNot) {
  Start(/*certificates=*/true);
  const TestCertificate one = clients_.Issue({.common_name = "one"});
  EXPECT_EQ(Models(&one).status, 200);
  EXPECT_EQ(Models(&one, "bad").status, 200);
  const TestCertificate unknown = clients_.Issue({.common_name = "unknown"});
  EXPECT_EQ(Models(&unknown).status, 401);
  EXPECT_EQ(Models(&unknown, "good").status, 401);
  const TestCertificate nameless = clients_.Issue({});
  const HttpsAnswer refused = Models(&nameless, "good");
  EXPECT_EQ(refused.status, 401);
  EXPECT_THAT(refused.body, HasSubstr("common name"));
  EXPECT_NE(Models(nullptr, "good").code, CURLE_OK);
}

TEST_F(TlsAccessTest, UnixSocketsTakeTokensAsEver) {
  Start(/*certificates=*/true);
  EXPECT_TRUE(board_->Generate(Ask("hello")).status.ok());
  grpc::ClientContext context;
  Authorise(&context, "one");  // a name is no token
  EXPECT_EQ(board_->Generate(Ask("hello"), &context).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace withy::orchestrator
