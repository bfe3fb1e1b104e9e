#!/usr/bin/env python3
"""Makes the vectors of the tests of tensor types (engine/gguf/quant_vectors_test.cc).

For each type TYPE.bin holds random blocks, whose scales are finite, and then their values as the package gguf (PyPI) decodes them,
in float32. Only a developer runs this, when a type is added; tests read the files.

    pip install gguf numpy
    python3 tests/golden/make_quant_vectors.py tests/golden/data/quants
"""

import os
import sys

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type

BLOCKS = 3
# Where the half-precision scales are, in bytes from the block's beginning.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "TQ1_0": [52], "TQ2_0": [64],
}


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for seed, (name, halves) in enumerate(HALVES.items()):
        random = np.random.default_rng(seed)
        _, block_bytes = GGML_QUANT_SIZES[Type[name]]
        blocks = random.integers(0, 256, (BLOCKS, block_bytes), dtype=np.uint8)
        for at in halves:
            scale = random.normal(0, 0.02, BLOCKS).astype("<f2")
            blocks[:, at:at + 2] = scale.view(np.uint8).reshape(BLOCKS, 2)
        if name == "MXFP4":
            blocks[:, 0] = [113, 127, 138]
        values = quants.dequantize(blocks.reshape(-1), Type[name]).astype("<f4")
        with open(os.path.join(folder, name + ".bin"), "wb") as out:
            out.write(blocks.tobytes())
            out.write(values.tobytes())


main()
