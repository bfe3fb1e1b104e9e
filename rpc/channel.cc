#include "rpc/channel.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

namespace withy::rpc {

std::shared_ptr<grpc::Channel> Connect(const std::string& address, const ClientTls* tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Minimum time for one connection attempt (not the pause before the next one): a busy board is
  // slow to complete a handshake.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Channels of one process to one address must not share a connection, whose back-off one of them
  // may have increased.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(
      address, tls == nullptr ? grpc::InsecureChannelCredentials() : ClientCredentials(*tls),
      arguments);
}

void SetTimeout(grpc::ClientContext* context, absl::Duration timeout) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
}

}  // namespace withy::rpc
