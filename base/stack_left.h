// How much of its stack a thread has left. A function that recurses over what a user, a file or a
// network gave asks before each level, so that deep nesting is an error and not a crash: threads
// have between 64 KiB and 8 MiB of stack, and a level takes more of it under a sanitizer.
// Neighbour: base/json.h, whose values are walked by recursion.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "absl/status/status.h"

// Sanitizers put red zones between locals, and without optimisation each local has its own place:
// frames take two to four times the bytes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define WITHY_WIDE_FRAMES 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define WITHY_WIDE_FRAMES 1
#endif
#endif

namespace withy {

#ifdef WITHY_WIDE_FRAMES
inline constexpr size_t kFrameScale = 2;
#else
inline constexpr size_t kFrameScale = 1;
#endif

// What a level that asked, and all that it calls without asking again, may take: a few frames of
// its own, printing a number, sorting, an error's text, malloc.
inline constexpr size_t kStackReserveBytes = kFrameScale * (14 << 10);

// Bytes of the calling thread's stack below the caller. Where the system does not tell the stack's
// bounds, as if 64 KiB had been left when the thread asked first. Not for code that runs on a stack
// other than its thread's own.
size_t StackLeft();

// Whether another level may be entered that takes up to `bytes` besides kStackReserveBytes.
inline bool StackAllows(size_t bytes = 0) { return StackLeft() >= kStackReserveBytes + bytes; }

// RESOURCE_EXHAUSTED: `what` ("the template") is nested too deep for this thread's stack.
absl::Status StackExhausted(std::string_view what);

// The stack on which tests and fuzzers walk over deep input.
inline constexpr size_t kSmallStackBytes = 64 << 10;

// Runs `work` on a thread of its own whose stack has `bytes`, and returns when it has ended. False:
// no thread could be made, and `work` did not run.
[[nodiscard]] bool RunOnStack(size_t bytes, const std::function<void()>& work);

}  // namespace withy
