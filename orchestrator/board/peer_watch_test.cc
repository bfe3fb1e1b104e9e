// A client that leaves cancels its call; nothing else does.
#include "orchestrator/board/peer_watch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace withy::orchestrator {
namespace {

// Two ends of a connection over the loopback.
struct Connection {
  Connection() {
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), name, length), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), name, &length), 0);
    client.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), name, length), 0);
    server.Reset(accept(listener.get(), nullptr, nullptr));
  }
  UniqueFd client, server;
};

TEST(PeerWatchTest, TheCallOfAPeerThatLeftIsCancelled) {
  Connection leaves, stays;
  PeerWatch watch;
  absl::Notification cancelled;
  const auto left = std::make_shared<CallControl>(absl::InfiniteFuture());
  const auto stayed = std::make_shared<CallControl>(absl::InfiniteFuture());
  left->SetHook([&] { cancelled.Notify(); });
  const uint64_t first = watch.Enter(leaves.server.get(), left);
  const uint64_t second = watch.Enter(stays.server.get(), stayed);
  leaves.client.Reset();
  cancelled.WaitForNotification();
  EXPECT_FALSE(stayed->cancelled());
  watch.Leave(first);
  watch.Leave(second);
  watch.CancelAll();
  EXPECT_FALSE(stayed->cancelled()) << "its call had ended";
}

TEST(PeerWatchTest, AllAreCancelledAtTheEnd) {
  const Connection first, second;
  PeerWatch watch;
  const auto control = std::make_shared<CallControl>(absl::InfiniteFuture());
  watch.Enter(first.server.get(), control);
  watch.CancelAll();
  EXPECT_TRUE(control->cancelled());
  const auto late = std::make_shared<CallControl>(absl::InfiniteFuture());
  watch.Enter(second.server.get(), late);
  EXPECT_TRUE(late->cancelled());
}

}  // namespace
}  // namespace withy::orchestrator
