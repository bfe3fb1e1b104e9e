// The server's side of TLS for connections that do not block. Neighbours: socket.h carries a
// connection, base/tls/tls_files.h has certificate and key, server.h accepts.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/tls/tls_files.h"
#include "base/unique_fd.h"
#include "http/socket.h"

typedef struct ssl_ctx_st SSL_CTX;  // OpenSSL's

namespace withy::http {

// Thread-safe. TLS 1.2 or later; with `source`'s CAs of clients every client needs a certificate of
// one of them.
class TlsAcceptor {
 public:
  // `source` is shared with the process's other servers.
  explicit TlsAcceptor(std::shared_ptr<TlsSource> source);
  ~TlsAcceptor();
  TlsAcceptor(const TlsAcceptor&) = delete;
  TlsAcceptor& operator=(const TlsAcceptor&) = delete;

  // A connection in TLS over an accepted one, with the files as they are now. Errors: INTERNAL
  // (OpenSSL takes no certificate or key that was checked before, or memory is out).
  absl::StatusOr<Socket> Begin(UniqueFd fd);

 private:
  // Shared with the connections that were begun with it, by OpenSSL's own count.
  absl::Status Renew(const std::shared_ptr<const TlsMaterial>& material)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<TlsSource> source_;
  absl::Mutex mutex_;
  std::shared_ptr<const TlsMaterial> material_ ABSL_GUARDED_BY(mutex_);  // of context_
  SSL_CTX* context_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace withy::http
