// Linked into every program of a thread-sanitizer build. Debian's Abseil is not instrumented, so
// the sanitizer does not see the ordering by absl::Mutex and absl::Notification and reports false
// races. These definitions take precedence over the library's (also for gRPC, which uses the same
// library), inform the sanitizer, and call the real functions.
#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>
#include <absl/time/time.h>
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

// NOLINTBEGIN(bugprone-reserved-identifier): names that the sanitizer looks for.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
// Ignores memory accesses of libraries that are not instrumented (RocksDB's skip list, gRPC's
// queues).
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }

// gRPC's header templates are compiled here with instrumentation, but the library that calls them
// is not. The hooks at the end of this file order a batch's inputs before its completion. The
// suppressions cover ordering inside the library that no call exposes. `race` matches any frame and
// is used only for functions that do not call ours; `race_top` matches the frame that touches the
// memory, so that races in our reactors, which the templates call, are still reported.
const char* __tsan_default_suppressions() {
  return "race:grpc::internal::*::CallOnDone\n"
         "race:grpc::internal::CallOp\n"
         "race:grpc::internal::Call::\n"
         "race:grpc::internal::InterceptorBatchMethodsImpl\n"
         "race:grpc::internal::CallbackWithSuccessTag::Set\n"
         "race:grpc::internal::CallbackWithSuccessTag::Clear\n"
         "race_top:grpc::internal::Callback\n";
}
}
// NOLINTEND(bugprone-reserved-identifier)

namespace {

// The library's own definition.
void* Next(const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found != nullptr) return found;
  std::fprintf(stderr, "tsan_hooks: no %s in the libraries linked\n", symbol);
  std::abort();
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

#define WITHY_REAL(type, symbol) static const auto real = reinterpret_cast<type>(Next(symbol))

namespace {

// A thread that unlocks evaluates the conditions of waiting threads: still under the lock, but
// after we have reported its release.
class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// A Notification is a Mutex followed by the flag that HasBeenNotified() reads inline.
void* FlagOf(const Notification* n) {
  return const_cast<char*>(reinterpret_cast<const char*>(n)) + sizeof(Mutex);
}

}  // namespace

#define WITHY_LOCK(name, symbol)          \
  void Mutex::name() {                    \
    WITHY_REAL(void (*)(Mutex*), symbol); \
    {                                     \
      IgnoreReads ignore;                 \
      real(this);                         \
    }                                     \
    __tsan_acquire(this);                 \
  }
#define WITHY_UNLOCK(name, symbol)        \
  void Mutex::name() {                    \
    WITHY_REAL(void (*)(Mutex*), symbol); \
    __tsan_release(this);                 \
    IgnoreReads ignore;                   \
    real(this);                           \
  }
#define WITHY_TRY(name, symbol)           \
  bool Mutex::name() {                    \
    WITHY_REAL(bool (*)(Mutex*), symbol); \
    const bool locked = real(this);       \
    if (locked) __tsan_acquire(this);     \
    return locked;                        \
  }

WITHY_LOCK(Lock, "_ZN4absl7debian35Mutex4LockEv")
WITHY_LOCK(ReaderLock, "_ZN4absl7debian35Mutex10ReaderLockEv")
WITHY_UNLOCK(Unlock, "_ZN4absl7debian35Mutex6UnlockEv")
WITHY_UNLOCK(ReaderUnlock, "_ZN4absl7debian35Mutex12ReaderUnlockEv")
WITHY_TRY(TryLock, "_ZN4absl7debian35Mutex7TryLockEv")
WITHY_TRY(ReaderTryLock, "_ZN4absl7debian35Mutex13ReaderTryLockEv")

void Mutex::LockWhen(const Condition& condition) {
  WITHY_REAL(void (*)(Mutex*, const Condition&),
             "_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE");
  {
    IgnoreReads ignore;
    real(this, condition);
  }
  __tsan_acquire(this);
}

void Mutex::Await(const Condition& condition) {
  WITHY_REAL(void (*)(Mutex*, const Condition&), "_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  {
    IgnoreReads ignore;
    real(this, condition);
  }
  __tsan_acquire(this);
}

#define WITHY_AWAIT(name, Limit, symbol)                           \
  bool Mutex::name(const Condition& condition, Limit limit) {      \
    WITHY_REAL(bool (*)(Mutex*, const Condition&, Limit), symbol); \
    __tsan_release(this);                                          \
    bool held = false;                                             \
    {                                                              \
      IgnoreReads ignore;                                          \
      held = real(this, condition, limit);                         \
    }                                                              \
    __tsan_acquire(this);                                          \
    return held;                                                   \
  }

WITHY_AWAIT(AwaitWithTimeout, Duration,
            "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE")
WITHY_AWAIT(AwaitWithDeadline, Time,
            "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE")

void CondVar::Wait(Mutex* mutex) {
  WITHY_REAL(void (*)(CondVar*, Mutex*), "_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  WITHY_REAL(bool (*)(CondVar*, Mutex*, Duration),
             "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  __tsan_release(mutex);
  const bool expired = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return expired;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  WITHY_REAL(bool (*)(CondVar*, Mutex*, Time),
             "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  __tsan_release(mutex);
  const bool expired = real(this, mutex, deadline);
  __tsan_acquire(mutex);
  return expired;
}

void Notification::Notify() {
  WITHY_REAL(void (*)(Notification*), "_ZN4absl7debian312Notification6NotifyEv");
  __tsan_release(FlagOf(this));
  real(this);
}

void Notification::WaitForNotification() const {
  WITHY_REAL(void (*)(const Notification*),
             "_ZNK4absl7debian312Notification19WaitForNotificationEv");
  real(this);
  __tsan_acquire(FlagOf(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  WITHY_REAL(bool (*)(const Notification*, Duration),
             "_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = real(this, timeout);
  if (notified) __tsan_acquire(FlagOf(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  WITHY_REAL(bool (*)(const Notification*, Time),
             "_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE");
  const bool notified = real(this, deadline);
  if (notified) __tsan_acquire(FlagOf(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl

// gRPC's core functions, as called by its C++ library. Starting a batch happens before finishing
// it; the batch's tag or the call identifies it.
#define WITHY_NEXT(name) static const auto real = reinterpret_cast<decltype(&name)>(Next(#name))

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  WITHY_NEXT(grpc_call_start_batch);
  __tsan_release(call);
  __tsan_release(tag);
  return real(call, ops, count, tag, reserved);
}

// A call's last reference is released after its last callback, and a server's after all of its
// calls.
static char ended_calls;

void grpc_call_unref(grpc_call* call) {
  WITHY_NEXT(grpc_call_unref);
  __tsan_release(&ended_calls);
  __tsan_release(call);
  __tsan_acquire(call);
  real(call);
}

void grpc_server_destroy(grpc_server* server) {
  WITHY_NEXT(grpc_server_destroy);
  real(server);
  __tsan_acquire(&ended_calls);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  WITHY_NEXT(grpc_completion_queue_next);
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}
