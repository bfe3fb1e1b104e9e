// What this machine can do at most, measured: the denominators of the benchmark's fractions. Runs
// for tens of milliseconds a call; takes the best of many short pieces, because neighbours only
// ever make a piece slower.
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"

namespace withy::engine {

// Operations a second (a multiply and an add are two) of the target's 8-bit dot product from
// registers, over all threads of the pool.
double MeasureInt8Peak(ThreadPool& pool, const Kernels& kernels);

// Bytes a second that all threads of the pool together read from memory, streaming through far more
// than the caches hold. `buffer_bytes` is what it allocates; 0: 768 MiB.
double MeasureReadBandwidth(ThreadPool& pool, const Kernels& kernels, size_t buffer_bytes = 0);

}  // namespace withy::engine
