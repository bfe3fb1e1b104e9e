// Measures what this machine can do at most: the denominators of the benchmarks' fractions. A call
// takes tens of milliseconds and returns the best of many short trials, because other processes
// only ever make a trial slower.
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"

namespace withy::engine {

// Operations per second (a multiply-add is two) of the target's 8-bit dot product from registers,
// over all threads of the pool.
double MeasureInt8Peak(ThreadPool& pool, const Kernels& kernels);

// Bytes per second that all threads of the pool together read from memory. They stream through
// `buffer_bytes` in huge pages, which it allocates and which must be far more than the caches hold
// (0: 768 MiB), with and without requesting lines ahead. 0 if there is no memory for them.
double MeasureReadBandwidth(ThreadPool& pool, const Kernels& kernels, size_t buffer_bytes = 0);

}  // namespace withy::engine
