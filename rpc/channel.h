// Client channels and deadlines, the same everywhere.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace withy::rpc {

// A channel to "unix:PATH" or "HOST:PORT" that connects by itself, reconnects with back-off of 50
// ms to 1 s, and takes messages of any size. Creating it does no I/O.
std::shared_ptr<grpc::Channel> Connect(const std::string& address);

// Every call has one: `timeout` from now.
void SetTimeout(grpc::ClientContext* context, absl::Duration timeout);

}  // namespace withy::rpc
