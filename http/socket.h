// A client's connection that does not block: plain, or in TLS. Neighbours: server.h reads requests
// from it and writes answers; tls.h makes those in TLS.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"

typedef struct ssl_st SSL;  // OpenSSL's

namespace withy::http {

struct SslFree {
  void operator()(SSL* ssl) const;
};

// For one thread at a time.
class Socket {
 public:
  Socket() = default;
  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}
  // `ssl` belongs to `fd` and has not shaken hands yet: the first Receive does.
  Socket(UniqueFd fd, std::unique_ptr<SSL, SslFree> ssl)
      : fd_(std::move(fd)), ssl_(std::move(ssl)) {}

  // As recv(2) and send(2): -1 with errno EAGAIN where the connection has to be waited for.
  ssize_t Receive(char* to, size_t bytes);
  ssize_t Send(std::string_view bytes);
  // What to poll for before the last operation that returned EAGAIN is tried again; `usual` where
  // that is no matter of TLS.
  short EventsFor(short usual) const { return ssl_wants_ == 0 ? usual : ssl_wants_; }
  // Tells the peer that nothing follows. Afterwards only Discard is of use.
  void EndSending();
  // Takes what the peer still sends, as recv(2), and forgets it.
  ssize_t Discard();

  // The app that the client's certificate names: its common name, without one its first DNS name.
  // "": there is no certificate, or it names none.
  std::string CertifiedName() const;
  bool encrypted() const { return ssl_ != nullptr; }
  int fd() const { return fd_.get(); }

 private:
  ssize_t SslResult(int result);

  UniqueFd fd_;
  std::unique_ptr<SSL, SslFree> ssl_;  // null: plain; goes before its descriptor
  short ssl_wants_ = 0;
};

}  // namespace withy::http
