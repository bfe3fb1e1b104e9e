// gRPC in TLS, with gRPC's client.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/tls/test_ca.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "rpc/server.h"
#include "rpc/status.h"
#include "rpc/tls_credentials.h"
#include "withy/v1/context_store.grpc.pb.h"

namespace withy::rpc {
namespace {

// Says whom it takes a caller for, at once or when it is let go.
class WhoService final : public v1::ContextStore::CallbackService {
 public:
  grpc::ServerUnaryReactor* AuthenticateApp(grpc::CallbackServerContext* context,
                                            const v1::AuthenticateAppRequest* request,
                                            v1::AuthenticateAppResponse* response) override {
    const CallerTls caller = TlsOfCaller(*context);
    response->set_app(caller.certified_name);
    response->set_app_id(caller.encrypted ? "encrypted" : "plain");
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (request->token() != "wait") {
      reactor->Finish(grpc::Status::OK);
      return reactor;
    }
    waiting_ = reactor;
    arrived.Notify();
    return reactor;
  }
  void LetGo() { waiting_->Finish(grpc::Status::OK); }

  absl::Notification arrived;

 private:
  grpc::ServerUnaryReactor* waiting_ = nullptr;
};

class RpcTlsTest : public ::testing::Test {
 protected:
  RpcTlsTest() { files_.Put(ca_.Issue({.common_name = "first"})); }
  ~RpcTlsTest() override { server_.reset(); }

  void Start(const std::string& client_ca = "", bool on_loopback = true) {
    TlsFiles paths{.certificate = files_.certificate(), .key = files_.key()};
    if (!client_ca.empty()) paths.client_ca = files_.Write("clients.pem", client_ca);
    auto source = TlsSource::Open(paths);
    ASSERT_TRUE(source.ok()) << source.status();
    auto server = Server::Start({.name = "test",
                                 .listen = {"127.0.0.1:0"},
                                 .tls = {.source = *std::move(source), .on_loopback = on_loopback}},
                                {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::shared_ptr<grpc::Channel> Channel(const TestCertificate* own = nullptr,
                                         const TestCa* trusted = nullptr) const {
    ClientTls tls{.ca_pem = (trusted == nullptr ? ca_ : *trusted).pem()};
    if (own != nullptr) {
      tls.certificate_pem = own->certificate_pem;
      tls.key_pem = own->key_pem;
    }
    return Connect(server_->addresses()[0], &tls);
  }
  static absl::StatusOr<v1::AuthenticateAppResponse> Ask(
      const std::shared_ptr<grpc::Channel>& channel, const std::string& token = "") {
    grpc::ClientContext context;
    SetTimeout(&context, absl::Seconds(30));
    v1::AuthenticateAppRequest request;
    request.set_token(token);
    v1::AuthenticateAppResponse response;
    const grpc::Status status =
        v1::ContextStore::NewStub(channel)->AuthenticateApp(&context, request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  const TestCa ca_, clients_;
  const TestTlsFiles files_;
  WhoService service_;
  std::unique_ptr<Server> server_;
};

TEST_F(RpcTlsTest, ClientsOfTheRightCaAreServedAndOthersAreNot) {
  Start();
  const auto answer = Ask(Channel());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->app_id(), "encrypted");
  EXPECT_EQ(answer->app(), "");
  EXPECT_TRUE(absl::IsUnavailable(Ask(Channel(nullptr, &clients_)).status()));
  EXPECT_TRUE(absl::IsUnavailable(Ask(Connect(server_->addresses()[0])).status()));  // in the clear
}

TEST_F(RpcTlsTest, CertificatesNameTheCallers) {
  Start(clients_.pem());
  const TestCertificate mail = clients_.Issue({.common_name = "mail"});
  const auto answer = Ask(Channel(&mail));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->app(), "mail");
  const TestCertificate notes = clients_.Issue({.dns_name = "notes"});
  const auto by_dns = Ask(Channel(&notes));
  ASSERT_TRUE(by_dns.ok()) << by_dns.status();
  EXPECT_EQ(by_dns->app(), "notes");
}

TEST_F(RpcTlsTest, ClientsWithoutAValidCertificateAreNotServed) {
  Start(clients_.pem());
  EXPECT_TRUE(absl::IsUnavailable(Ask(Channel()).status()));
  const TestCertificate foreign = ca_.Issue({.common_name = "mail"});
  EXPECT_TRUE(absl::IsUnavailable(Ask(Channel(&foreign)).status()));
}

TEST_F(RpcTlsTest, TheLoopbackStaysInTheClearUnlessAsked) {
  Start("", /*on_loopback=*/false);
  const auto answer = Ask(Connect(server_->addresses()[0]));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->app_id(), "plain");
}

TEST_F(RpcTlsTest, ANewCertificateServesNewConnectionsWhileCallsGoOn) {
  Start();
  absl::StatusOr<v1::AuthenticateAppResponse> held;
  std::thread caller([&] { held = Ask(Channel(), "wait"); });
  service_.arrived.WaitForNotification();
  // Of another CA: who gets an answer has seen the new certificate.
  files_.Put(clients_.Issue({.common_name = "second"}));
  const auto answer = Ask(Channel(nullptr, &clients_));
  EXPECT_TRUE(answer.ok()) << answer.status();
  service_.LetGo();
  caller.join();
  EXPECT_TRUE(held.ok()) << held.status();
}

TEST_F(RpcTlsTest, FilesThatCannotBeUsedLeaveTheCertificateInForce) {
  Start();
  files_.Put({clients_.Issue({}).certificate_pem, ca_.Issue({}).key_pem});
  const auto answer = Ask(Channel());
  EXPECT_TRUE(answer.ok()) << answer.status();
}

}  // namespace
}  // namespace withy::rpc
