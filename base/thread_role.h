// Scheduling priority of a thread. Threads that pass messages on run before threads that compute: a
// token does not wait for a core, and the interrupted computation loses little.
#pragma once

namespace withy {

enum class ThreadRole {
  kCarries,   // passes messages between processes: short runs, immediately
  kComputes,  // runs long; gives way to any thread that wakes on its core
};

// Sets the role of the calling thread and of threads it starts later. kCarries: nice -10 if the
// process may (root, or LimitNICE of systemd), else the nice value it was started with. kComputes:
// no nice value below 0, and SCHED_BATCH, so that a thread waking between two steps does not
// preempt an app that reads a token. Where threads may have time slices of their own (Linux 6.12),
// kCarries gets the shortest and kComputes a long one. Settings that the system refuses are
// skipped. Threads of policies other than SCHED_OTHER are left unchanged.
void SetThreadRole(ThreadRole role);

}  // namespace withy
