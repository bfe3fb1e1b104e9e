// gRPC's credentials for TLS: of a server whose files may change, and of a client; and the app that
// a client's certificate names. Neighbours: base/tls/tls_files.h reads the files, server.h and
// channel.h use the credentials.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/tls/tls_files.h"

namespace grpc {
class ChannelCredentials;
class ServerContextBase;
class ServerCredentials;
}  // namespace grpc

namespace withy::rpc {

// Each handshake uses the files as they are then; running calls go on. With `source`'s CAs of
// clients every client needs a certificate of one of them.
std::shared_ptr<grpc::ServerCredentials> ServerTls(std::shared_ptr<TlsSource> source);

// What a client needs to talk to a server in TLS. Content of PEM files.
struct ClientTls {
  std::string ca_pem;                // of the server's certificate
  std::string certificate_pem = {};  // of the client, with `key_pem`; "": none
  std::string key_pem = {};
};
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(const ClientTls& tls);

// How a call came, and what the certificate of its client says.
struct CallerTls {
  bool encrypted = false;
  // The certificate's common name; without one its first DNS name. "": the server asks for no
  // certificates, or it has no name.
  std::string certified_name = {};
};
CallerTls TlsOfCaller(const grpc::ServerContextBase& context);

}  // namespace withy::rpc
