// HTTP APIs beside gRPC, off the same core: OpenAI's /v1/models, /v1/chat/completions,
// /v1/completions and /v1/embeddings, Anthropic's /v1/messages, /metrics, and /health. An app's
// token is the API key.
// Neighbours: api.h has each API's translations, conversations.h finds KV of earlier turns,
// peer_watch.h cancels calls whose client has left, http/server.h speaks HTTP.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/tls/tls_files.h"
#include "orchestrator/gateway.h"

namespace withy::orchestrator {

struct HttpDoorOptions {
  std::string listen;                        // HOST:PORT, [IPV6]:PORT; port 0: any free one
  size_t threads = 64;                       // requests that are answered at the same time
  std::vector<std::string> web_origins;      // of pages that may use it; "*": all
  std::shared_ptr<TlsSource> tls = nullptr;  // shared with other servers; null: HTTP in the clear
};

// Thread-safe. Serves from Start to Stop.
class HttpDoor {
 public:
  // `gateway` is borrowed. Errors: INVALID_ARGUMENT and ALREADY_EXISTS (the address is in use),
  // both with the remedy.
  static absl::StatusOr<std::unique_ptr<HttpDoor>> Start(const HttpDoorOptions& options,
                                                         Gateway& gateway, const Clock& clock);
  ~HttpDoor();
  HttpDoor(const HttpDoor&) = delete;
  HttpDoor& operator=(const HttpDoor&) = delete;

  // "http://HOST:PORT" or "https://HOST:PORT" with the actual port.
  const std::string& address() const { return address_; }
  // Cancels running calls and waits for their clients' last words. May be called more than once.
  void Stop();

 private:
  class Server;
  HttpDoor();

  std::string address_;
  std::unique_ptr<Server> server_;
};

}  // namespace withy::orchestrator
