// The certificate, the private key and the CAs of clients that a server's TLS uses: read from
// files, checked, and read again when the files change. Neighbours: rpc/ makes gRPC's credentials
// of them, http/ its own TLS. Knows no connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace withy {

// Paths of PEM files; config.proto's TlsConfig says what they hold.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string client_ca = {};  // "": clients need no certificate
};

// The content of the files, which belongs together.
struct TlsMaterial {
  std::string certificate_pem;
  std::string key_pem;
  std::string client_ca_pem = {};
  absl::Time expires;  // of the server's certificate
};

// Reads and checks the files. Errors, each with the file, the cause and the remedy: those of
// open(2) and read(2); PERMISSION_DENIED (others can read the key); FAILED_PRECONDITION (no PEM, a
// key with a passphrase, a key of another certificate, a certificate that is not valid at `now`).
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsFiles& files, absl::Time now);

// Thread-safe. Owned by a process, shared by its servers.
class TlsSource {
 public:
  // Told of each change: OK after files were read, else why those that are there now are not in
  // force; and when the certificate in force expires. Not called under a lock of the caller.
  using OnChange = std::function<void(const absl::Status& problem, absl::Time expires)>;

  // Reads the files, and calls `on_change`, which may be empty. Errors: as ReadTlsFiles.
  static absl::StatusOr<std::unique_ptr<TlsSource>> Open(TlsFiles files, OnChange on_change = {});
  ~TlsSource();
  TlsSource(const TlsSource&) = delete;
  TlsSource& operator=(const TlsSource&) = delete;

  // What is in force: the files as they are now, or as they were when they could last be used.
  // Never null. Another pointer than before is another content.
  std::shared_ptr<const TlsMaterial> Current();
  bool asks_for_certificates() const { return !files_.client_ca.empty(); }

 private:
  TlsSource(TlsFiles files, OnChange on_change);
  absl::Status Look();
  absl::Status ReadAll(absl::Time now);
  void Tell(const absl::Status& problem) ABSL_EXCLUSIVE_LOCKS_REQUIRED(look_mutex_);

  const TlsFiles files_;
  const OnChange on_change_;
  absl::Mutex look_mutex_;                         // held while files are read; taken before mutex_
  std::string seen_ ABSL_GUARDED_BY(look_mutex_);  // what tells that the files have changed
  std::string told_ ABSL_GUARDED_BY(look_mutex_);  // the last problem; "": none
  absl::Mutex mutex_;
  // Shared with connections that were begun with it.
  std::shared_ptr<const TlsMaterial> material_ ABSL_GUARDED_BY(mutex_);
  absl::Notification stop_;
  std::thread thread_;  // looks at idle times, too
};

// The TLS of a server's TCP addresses.
struct TcpTls {
  std::shared_ptr<TlsSource> source = nullptr;  // shared by all servers of a process; null: no TLS
  bool on_loopback = false;

  bool Covers(std::string_view listen_address) const;
};

}  // namespace withy
