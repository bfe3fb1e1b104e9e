#include "cli/stop_signals.h"

#include <csignal>

namespace withy::cli {
namespace {

// Global because a signal handler has no other state.
std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { g_stop = true; };
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

const std::atomic<bool>& StopRequested() { return g_stop; }

}  // namespace withy::cli
