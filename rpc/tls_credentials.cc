#include "rpc/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/server_credentials.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace withy::rpc {
namespace {

// The interface of gRPC 1.51's library to certificates that change: its C++ part has one that reads
// a certificate and a key of another one, where both are being replaced.
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(std::shared_ptr<TlsSource> source)
      : source_(std::move(source)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                source_->asks_for_certificates()
                    ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                    : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                &Fetch, this))) {}
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // Called at each handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<ReloadingCredentials*>(self)->FetchNew(config);
  }
  grpc_ssl_certificate_config_reload_status FetchNew(grpc_ssl_server_certificate_config** config) {
    const std::shared_ptr<const TlsMaterial> material = source_->Current();
    absl::MutexLock lock(&mutex_);
    if (material == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {material->key_pem.c_str(),
                                             material->certificate_pem.c_str()};
    // gRPC 1.51 ends the process where it is given no CAs, also if it asks for no certificates and
    // the CAs mean nothing.
    const std::string& cas =
        material->client_ca_pem.empty() ? material->certificate_pem : material->client_ca_pem;
    *config = grpc_ssl_server_certificate_config_create(cas.c_str(), &pair, 1);
    given_ = material;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<TlsSource> source_;  // shared with the process's other servers
  absl::Mutex mutex_;
  std::shared_ptr<const TlsMaterial> given_ ABSL_GUARDED_BY(mutex_);
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerTls(std::shared_ptr<TlsSource> source) {
  return std::make_shared<ReloadingCredentials>(std::move(source));
}

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const ClientTls& tls) {
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = tls.ca_pem;
  options.pem_private_key = tls.key_pem;
  options.pem_cert_chain = tls.certificate_pem;
  return grpc::SslCredentials(options);
}

CallerTls TlsOfCaller(const grpc::ServerContextBase& context) {
  CallerTls caller;
  const auto peer = context.auth_context();
  if (peer == nullptr) return caller;
  const auto first = [&peer](const char* property) -> std::string {
    const auto values = peer->FindPropertyValues(property);
    return values.empty() ? "" : std::string(values.front().data(), values.front().size());
  };
  caller.encrypted =
      first(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME) == GRPC_SSL_TRANSPORT_SECURITY_TYPE;
  if (!caller.encrypted) return caller;
  caller.certified_name = first(GRPC_X509_CN_PROPERTY_NAME);
  if (caller.certified_name.empty()) caller.certified_name = first(GRPC_PEER_DNS_PROPERTY_NAME);
  return caller;
}

}  // namespace withy::rpc
