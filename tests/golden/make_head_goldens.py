#!/usr/bin/env python3
"""Makes the golden draft heads and outputs for the tests of engine/head.

Small random EAGLE-3 heads for the golden model smollm3, computed by the equations of the reference (SafeAILab/EAGLE,
eagle/model/cnets.py) in numpy: hidden states of three layers, which transformers gave (make_goldens.py), pass fc; beside the
embedding of the next token they enter one decoder layer, whose output gives logits and is what the next drafted token goes on
from. Weights go to eagle3*.gguf (F16, d2t as I64, named as by llama.cpp's converter), outputs to eagle3*.golden.gguf. Only a
developer runs this, when a golden has to change; tests read the files.

    pip install numpy
    python3 tests/golden/make_head_goldens.py tests/golden/data
"""

import struct
import sys

import numpy as np

from gguf_files import F16, F32, I32, half, write_gguf

I64 = 27
TARGET, TARGET_WIDTH, VOCAB, LAYERS = "smollm3", 64, 96, [1, 2, 3]
EPSILON, ROPE_BASE, HEAD_DIM = 1e-5, 500000.0, 32
PREFIX = 10  # tokens before the chain of drafted ones
CHAIN = 5
# Width, heads, KV heads, neurons; whether the residual is the normed hidden state and fc reads normed features; the drafted
# tokens, None: all of them; whether the head has an embedding of its own; names of the key and of the norm, which have changed.
HEADS = {
    "eagle3": dict(width=96, heads=4, kv_heads=2, neurons=160, normed=False, drafted=40, own_embedding=True,
                   layers_key="target_layers", hidden_norm="blk.0.attn_norm_2"),
    "eagle3_normed": dict(width=64, heads=2, kv_heads=1, neurons=96, normed=True, drafted=None, own_embedding=False,
                          layers_key="extract_layers", hidden_norm="blk.0.hidden_norm"),
}


def read_tensors(path):
    """name -> array, of the F32, F16 and I32 tensors of a GGUF."""
    data = open(path, "rb").read()
    at = 8

    def take(code):
        nonlocal at
        values = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize("<" + code)
        return values[0]

    def text():
        nonlocal at
        count = take("Q")
        at += count
        return data[at - count:at].decode()

    def skip(kind):
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            of, count = take("I"), take("Q")
            for _ in range(count):
                skip(of)
        else:
            at += {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}[kind]

    count, keys = take("Q"), take("Q")
    for _ in range(keys):
        text()
        skip(take("I"))
    infos = []
    for _ in range(count):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, list(reversed(dims)), take("I"), take("Q")))
    start = -(-at // 32) * 32
    types = {F32: np.float32, F16: np.float16, I32: np.int32}
    return {name: np.frombuffer(data, types[kind], int(np.prod(shape)), start + offset).reshape(shape)
            for name, shape, kind, offset in infos}


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * weight


def rope(x, position):
    """Turns pairs (2i, 2i + 1) of each head, as converters order them."""
    angle = position * ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    even, odd = x[:, ::2], x[:, 1::2]
    turned = np.empty_like(x)
    turned[:, ::2] = even * np.cos(angle) - odd * np.sin(angle)
    turned[:, 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return turned


class Head:
    """One decoder layer with a cache. Row by row, in double precision."""

    def __init__(self, weights, spec):
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.spec = spec
        self.keys, self.values = [], []

    def step(self, embedding, hidden):
        """Logits and the hidden state that the next drafted token goes on from."""
        w, spec = self.w, self.spec
        normed = rms_norm(hidden, w[spec["hidden_norm"]])
        both = np.concatenate([rms_norm(embedding, w["blk.0.attn_norm"]), normed])
        position = len(self.keys)
        query = rope((w["blk.0.attn_q"] @ both).reshape(spec["heads"], HEAD_DIM), position)
        self.keys.append(rope((w["blk.0.attn_k"] @ both).reshape(spec["kv_heads"], HEAD_DIM), position))
        self.values.append((w["blk.0.attn_v"] @ both).reshape(spec["kv_heads"], HEAD_DIM))
        group = spec["heads"] // spec["kv_heads"]
        attended = []
        for head in range(spec["heads"]):
            scores = np.array([k[head // group] @ query[head] for k in self.keys]) / np.sqrt(HEAD_DIM)
            share = np.exp(scores - scores.max())
            attended.append(sum(p * v[head // group] for p, v in zip(share / share.sum(), self.values)))
        x = (normed if spec["normed"] else hidden) + w["blk.0.attn_output"] @ np.concatenate(attended)
        read = rms_norm(x, w["blk.0.ffn_norm"])
        gate = w["blk.0.ffn_gate"] @ read
        x = x + w["blk.0.ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w["blk.0.ffn_up"] @ read))
        return w["output"] @ rms_norm(x, w["output_norm"]), x


def make_weights(spec, random):
    width, rows = spec["width"], lambda heads: heads * HEAD_DIM
    shapes = {
        "fc": (width, len(LAYERS) * TARGET_WIDTH), "blk.0.attn_q": (rows(spec["heads"]), 2 * width),
        "blk.0.attn_k": (rows(spec["kv_heads"]), 2 * width), "blk.0.attn_v": (rows(spec["kv_heads"]), 2 * width),
        "blk.0.attn_output": (width, rows(spec["heads"])), "blk.0.ffn_gate": (spec["neurons"], width),
        "blk.0.ffn_up": (spec["neurons"], width), "blk.0.ffn_down": (width, spec["neurons"]),
        "output": (spec["drafted"] or VOCAB, width),
    }
    if spec["own_embedding"]:
        shapes["token_embd"] = (VOCAB, width)
    weights = {name: half(random.normal(size=shape) / np.sqrt(shape[1])) for name, shape in shapes.items()}
    for name in ("blk.0.attn_norm", spec["hidden_norm"], "blk.0.ffn_norm", "output_norm"):
        weights[name] = (1 + 0.3 * random.normal(size=width)).astype(np.float32)
    if spec["normed"]:
        weights["enc.output_norm"] = (1 + 0.3 * random.normal(size=len(LAYERS) * TARGET_WIDTH)).astype(np.float32)
    return weights


def main(folder):
    target = read_tensors(f"{folder}/{TARGET}.gguf")
    golden = read_tensors(f"{folder}/{TARGET}.golden.gguf")
    tokens = golden["tokens"]
    # What enters a layer is what the layer before it gave.
    features = np.concatenate([golden[f"f.hidden.{layer - 1}"] for layer in LAYERS], axis=1).astype(np.float64)
    for seed, (name, spec) in enumerate(HEADS.items()):
        random = np.random.default_rng(40 + seed)
        weights = make_weights(spec, random)
        drafted = np.sort(random.permutation(VOCAB)[:spec["drafted"]]) if spec["drafted"] else np.arange(VOCAB)
        embeddings = weights.get("token_embd", target["token_embd.weight"]).astype(np.float64)
        read = rms_norm(features, weights["enc.output_norm"].astype(np.float64)) if spec["normed"] else features
        fused = read @ weights["fc"].astype(np.float64).T
        head, logits = Head(weights, spec), []
        for position in range(1, len(tokens)):
            logits.append(head.step(embeddings[tokens[position]], fused[position - 1])[0])
        head, chain, chain_logits = Head(weights, spec), [], []
        for position in range(1, PREFIX):
            out, hidden = head.step(embeddings[tokens[position]], fused[position - 1])
        for _ in range(CHAIN):
            chain.append(int(drafted[out.argmax()]))
            out, hidden = head.step(embeddings[chain[-1]], hidden)
            chain_logits.append(out)
        metadata = {
            "general.architecture": "eagle3", "general.name": f"golden {name}", "eagle3.block_count": 1,
            f"eagle3.{spec['layers_key']}": LAYERS, "eagle3.target_hidden_size": TARGET_WIDTH,
            "eagle3.embedding_length": spec["width"], "eagle3.feed_forward_length": spec["neurons"],
            "eagle3.context_length": 128, "eagle3.attention.head_count": spec["heads"],
            "eagle3.attention.head_count_kv": spec["kv_heads"], "eagle3.attention.key_length": HEAD_DIM,
            "eagle3.attention.value_length": HEAD_DIM, "eagle3.rope.dimension_count": HEAD_DIM,
            "eagle3.rope.freq_base": ROPE_BASE, "eagle3.attention.layer_norm_rms_epsilon": EPSILON,
            "eagle3.vocab_size": VOCAB, "eagle3.norm_before_residual": spec["normed"], "eagle3.norm_before_fc": spec["normed"],
        }
        tensors = {f"{key}.weight": (F16 if value.ndim > 1 else F32, value.shape, value.tobytes())
                   for key, value in weights.items()}
        if spec["drafted"]:
            tensors["d2t"] = (I64, drafted.shape, drafted.astype(np.int64).tobytes())
        write_gguf(f"{folder}/{name}.gguf", metadata, tensors)
        out = {"tokens": (I32, drafted.shape, drafted.astype(np.int32).tobytes()),
               "chain": (I32, (CHAIN,), np.array(chain, np.int32).tobytes())}
        for key, rows in (("logits", logits), ("chain.logits", chain_logits)):
            rows = np.array(rows, np.float32)
            out[key] = (F32, rows.shape, rows.tobytes())
        write_gguf(f"{folder}/{name}.golden.gguf", {"general.architecture": "golden"}, out)
        print(name, "chain", chain)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/data")
