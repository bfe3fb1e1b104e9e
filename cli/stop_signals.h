// Ctrl-C and SIGTERM as a flag, for commands that measure for minutes and have something to tidy
// up. Neighbour: chat.cc, whose Ctrl-C ends an answer, has its own.
#pragma once

#include <atomic>

namespace withy::cli {

// From now on the first SIGINT or SIGTERM sets StopRequested(); a second one ends the process.
void StopOnSignals();

// Any thread.
const std::atomic<bool>& StopRequested();

}  // namespace withy::cli
