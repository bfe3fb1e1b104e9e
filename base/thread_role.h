// What a thread is for, to the kernel's scheduler. Threads that pass things on come before those
// that compute: a token waits for no core, and takes little from the computation that makes room.
#pragma once

namespace withy {

enum class ThreadRole {
  kCarries,   // from one process to the next: runs briefly, and at once
  kComputes,  // for long: whoever wakes on its core is due before it
};

// Of the calling thread, and of those that it starts from now on. Carriers have a nice value of -10
// where the process may (root, or LimitNICE of systemd), else what the process was started with;
// threads that compute have none below 0, and SCHED_BATCH: waking up, between two steps, they take
// no core from an app that reads a token there. Where a thread may have a time slice of its own
// (Linux 6.12) carriers have the shortest, threads that compute a long one. What the system refuses
// is left out. Threads of other policies than SCHED_OTHER are left alone.
void SetThreadRole(ThreadRole role);

}  // namespace withy
