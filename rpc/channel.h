// Client channels and deadlines, the same for all clients.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "rpc/tls_credentials.h"

namespace withy::rpc {

// A channel to "unix:PATH" or "HOST:PORT". It connects on its own, reconnects with a back-off of 50
// ms to 1 s, and accepts messages of any size. Creating it does no I/O. With `tls` it speaks TLS.
std::shared_ptr<grpc::Channel> Connect(const std::string& address, const ClientTls* tls = nullptr);

// Sets the deadline of a call to `timeout` from now. Every call has one.
void SetTimeout(grpc::ClientContext* context, absl::Duration timeout);

}  // namespace withy::rpc
