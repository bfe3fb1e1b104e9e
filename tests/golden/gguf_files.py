"""GGUF files and block types of weights, as far as the makers of goldens need them."""

import struct

import numpy as np

F32, F16, Q4_1, I32, MXFP4 = 0, 1, 3, 26, 39


# GGUF writing, as far as these files need it.

def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):  # of one type
        kind, code = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}[type(value[0])]
        return struct.pack("<IIQ", 9, kind, len(value)) + struct.pack(f"<{len(value)}{code}", *value)
    return struct.pack("<I", 8) + _string(value)


def write_gguf(path, metadata, tensors):
    """tensors: name -> (type, shape outermost first, bytes)."""
    out = bytearray(struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        dims = list(reversed(shape))
        out += _string(name) + struct.pack("<I", len(dims))
        out += struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)
        offset += -(-len(data) // 32) * 32
    out += b"\0" * (-len(out) % 32)
    for kind, shape, data in tensors.values():
        out += data + b"\0" * (-len(data) % 32)
    with open(path, "wb") as f:
        f.write(out)


# Block types, by their definition.

def half(x):
    return x.astype(np.float16)


def round_away(x):
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def q8_0(w):
    """Values of w after Q8_0: scale max|x|/127 per block of 32."""
    b = w.reshape(-1, 32)
    d = np.abs(b).max(axis=1, keepdims=True) / np.float32(127)
    inv = np.where(d > 0, np.float32(1) / np.where(d > 0, d, 1), 0)
    return (round_away(b * inv) * half(d).astype(np.float32)).reshape(w.shape).astype(np.float32)


def q4_0(w):
    """Values of w after Q4_0: scale (signed extreme)/-8."""
    b = w.reshape(-1, 32)
    extreme = np.take_along_axis(b, np.abs(b).argmax(axis=1)[:, None], axis=1)
    d = extreme / np.float32(-8)
    inv = np.where(d != 0, np.float32(1) / np.where(d != 0, d, 1), 0)
    q = np.minimum(15, np.trunc(b * inv + np.float32(8.5)))
    return ((q - 8) * half(d).astype(np.float32)).reshape(w.shape).astype(np.float32)


def mxfp4(w):
    """(values, bytes) of w as MXFP4: an exponent byte, then 4-bit floats, element i beside element i + 16."""
    sizes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
    b = w.reshape(-1, 32)
    exponent = np.floor(np.log2(np.maximum(np.abs(b).max(axis=1, keepdims=True), 1e-30))) - 2  # 4 is the largest power of 2
    scale = np.exp2(exponent).astype(np.float32)
    code = np.abs(np.abs(b / scale)[..., None] - sizes).argmin(axis=-1)
    values = np.sign(b) * sizes[code] * scale
    code = (code + 8 * (b < 0)).astype(np.uint8)
    packed = np.concatenate([(exponent + 127).astype(np.uint8), code[:, :16] | (code[:, 16:] << 4)], axis=1)
    return values.reshape(w.shape).astype(np.float32), packed.tobytes()
