#!/usr/bin/env python3
"""Makes the vectors of the tests of stretched RoPE (engine/weights/shape_test.cc).

Computes frequencies and the scale of cosines and sines by the formulas of transformers (modeling_rope_utils.py,
_compute_yarn_parameters and _compute_longrope_parameters), written anew in plain Python. Each case of OUT is two lines: its
parameters, and then the scale and the frequencies. Only a developer runs this; tests read the file.

    python3 tests/golden/make_rope_vectors.py tests/golden/data/rope/vectors.txt
"""

import math
import random
import sys


def magnitude(factor, by=1.0):
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def yarn(dims, base, factor, original, fast, slow, all_dims):
    """all_dims: mscale_all_dim, with an mscale of 1; 0: neither is given."""

    def correction(turns):
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction(fast)), 0)
    high = min(math.ceil(correction(slow)), dims - 1)
    if low == high:
        high += 0.001
    frequencies = []
    for i in range(dims // 2):
        of_position = base ** (2 * i / dims)
        extrapolated = 1 - min(max((i - low) / (high - low), 0), 1)
        frequencies.append((1 - extrapolated) / (factor * of_position) + extrapolated / of_position)
    scale = magnitude(factor) / magnitude(factor, all_dims) if all_dims else magnitude(factor)
    return scale, frequencies


def longrope(dims, base, original, context, factors):
    stretched = context / original
    scale = 1.0 if stretched <= 1 else math.sqrt(1 + math.log(stretched) / math.log(original))
    return scale, [1 / (factor * base ** (2 * i / dims)) for i, factor in enumerate(factors)]


def line(*values):
    return " ".join(v if isinstance(v, str) else repr(v) for v in values) + "\n"


def main():
    with open(sys.argv[1], "w") as out:
        # Qwen2.5, a Llama 2 of 64k, DeepSeek's multiplier, bounds of one's own, a short original context, a factor of 1.
        for case in [(128, 1e6, 4.0, 32768, 32.0, 1.0, 0.0), (128, 1e4, 16.0, 4096, 32.0, 1.0, 0.0),
                     (64, 1e4, 40.0, 4096, 32.0, 1.0, 0.707), (64, 5e5, 8.0, 8192, 16.0, 2.0, 0.0),
                     (32, 1e4, 2.0, 16, 32.0, 1.0, 0.0), (64, 1e4, 1.0, 2048, 32.0, 1.0, 0.0)]:
            scale, frequencies = yarn(*case)
            out.write(line("yarn", *case) + line(scale, *frequencies))
        # The shapes of Phi-3 mini and of Phi-4 mini, which turns a part of each head.
        rng = random.Random(3)
        for dims, base, original, context in [(96, 1e4, 4096, 131072), (48, 1e4, 4096, 8192)]:
            short = sorted(round(rng.uniform(1, 3), 3) for _ in range(dims // 2))
            long = sorted(round(rng.uniform(1, 65), 3) for _ in range(dims // 2))
            for window, factors in [(original, short), (original + 1, long)]:
                scale, frequencies = longrope(dims, base, original, context, factors)
                out.write(line("longrope", dims, base, original, context, window, *short, *long) + line(scale, *frequencies))


main()
