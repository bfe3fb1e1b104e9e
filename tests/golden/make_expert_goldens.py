#!/usr/bin/env python3
"""Makes the golden models and outputs of mixtures of experts.

Small random models, computed in double precision by the equations of their architectures as transformers' modelling code has them
(Qwen3Moe, Olmoe, GraniteMoe), in plain numpy. The files are those of make_goldens.py: weights in NAME.gguf (F16, which holds them
exactly), the tokens, the hidden states after every layer and the logits in NAME.golden.gguf, of qwen3moe once per weight type, on the
dequantised weights of that type. Only a developer runs this, when a golden has to change; tests read the files.

    python3 tests/golden/make_expert_goldens.py tests/golden/data [NAME ...]
"""

import sys

import numpy as np

from gguf_files import F16, F32, I32, half, q4_0, q8_0, write_gguf

TOKENS, VOCAB, WIDTH, LAYERS, EPSILON, THETA = 40, 96, 64, 2, 1e-5, 1e6
LEAST_GAP = 0.02  # between the logits of the last expert that is chosen and of the next: rounding must not decide

# adjacent: RoPE turns (2i, 2i + 1), not (i, i + n / 2). norm: RMS norms of Q and K, of heads or of all together. normed: the weights
# of the chosen experts add up to 1. The factors are of what the embedding gives, of what a branch adds, of q.k, and 1 / of the logits.
PLAIN = dict(adjacent=False, norm=None, normed=True, embedding=1.0, residual=1.0, attention=None, logits=1.0, tied=False)
MODELS = {
    "qwen3moe": dict(PLAIN, heads=4, kv_heads=2, head_dim=32, norm="heads", experts=7, used=3, neurons=32),
    "olmoe": dict(PLAIN, heads=2, kv_heads=2, head_dim=32, norm="whole", normed=False, experts=6, used=2, neurons=64),
    "granitemoe": dict(PLAIN, heads=2, kv_heads=1, head_dim=32, adjacent=True, embedding=1.5, residual=0.4, attention=0.1,
                       logits=1.25, tied=True, experts=5, used=2, neurons=64),
}


def build(m, seed):
    """GGUF name -> array f32; every value is exact in F16."""
    random = np.random.default_rng(seed)

    def matrix(*shape, gain=1.0):
        values = random.standard_normal(shape) * gain / np.sqrt(shape[-1])
        return half(values.astype(np.float32)).astype(np.float32)

    def norm(n):
        return half((1 + 0.3 * random.standard_normal(n)).astype(np.float32)).astype(np.float32)

    q, kv, n = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"], m["neurons"]
    w = {"token_embd.weight": matrix(VOCAB, WIDTH, gain=np.sqrt(WIDTH)), "output_norm.weight": norm(WIDTH)}
    if not m["tied"]:
        w["output.weight"] = matrix(VOCAB, WIDTH)
    for layer in range(LAYERS):
        part = {"attn_norm": norm(WIDTH), "ffn_norm": norm(WIDTH), "attn_q": matrix(q, WIDTH), "attn_k": matrix(kv, WIDTH),
                "attn_v": matrix(kv, WIDTH), "attn_output": matrix(WIDTH, q), "ffn_gate_inp": matrix(m["experts"], WIDTH, gain=4.0),
                "ffn_gate_exps": matrix(m["experts"], n, WIDTH), "ffn_up_exps": matrix(m["experts"], n, WIDTH),
                "ffn_down_exps": matrix(m["experts"], WIDTH, n)}
        if m["norm"]:
            part["attn_q_norm"] = norm(m["head_dim"] if m["norm"] == "heads" else q)
            part["attn_k_norm"] = norm(m["head_dim"] if m["norm"] == "heads" else kv)
        w.update({f"blk.{layer}.{name}.weight": value for name, value in part.items()})
    return w


def rms(x, weight):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * weight


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rope(x, adjacent):
    """x: [tokens, heads, head_dim]."""
    n = x.shape[-1]
    angle = np.arange(len(x))[:, None, None] * THETA ** (-np.arange(0, n, 2) / n)
    a, b = (x[..., 0::2], x[..., 1::2]) if adjacent else (x[..., :n // 2], x[..., n // 2:])
    turned = (a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle))
    return np.stack(turned, axis=-1).reshape(x.shape) if adjacent else np.concatenate(turned, axis=-1)


def attention(m, w, x):
    heads, kv_heads, dim = m["heads"], m["kv_heads"], m["head_dim"]
    q, k, v = (x @ w[f"attn_{part}"].T for part in "qkv")
    if m["norm"] == "whole":
        q, k = rms(q, w["attn_q_norm"]), rms(k, w["attn_k_norm"])
    q, k, v = q.reshape(len(x), heads, dim), k.reshape(len(x), kv_heads, dim), v.reshape(len(x), kv_heads, dim)
    if m["norm"] == "heads":
        q, k = rms(q, w["attn_q_norm"]), rms(k, w["attn_k_norm"])
    q, k = rope(q, m["adjacent"]), rope(k, m["adjacent"])
    k, v = np.repeat(k, heads // kv_heads, axis=1), np.repeat(v, heads // kv_heads, axis=1)
    scores = np.einsum("thd,shd->hts", q, k) * (m["attention"] or dim ** -0.5)
    scores[:, np.triu(np.ones((len(x), len(x)), dtype=bool), 1)] = -np.inf
    return np.einsum("hts,shd->thd", softmax(scores), v).reshape(len(x), -1) @ w["attn_output"].T


def mixture(m, w, x, gaps):
    logits = x @ w["ffn_gate_inp"].T
    ranked = -np.sort(-logits, axis=-1)
    gaps.append((ranked[:, m["used"] - 1] - ranked[:, m["used"]]).min())
    probabilities = softmax(logits)
    out = np.zeros_like(x)
    for row, (p, token) in enumerate(zip(probabilities, x)):
        chosen = np.argsort(-p)[:m["used"]]
        scale = p[chosen].sum() if m["normed"] else 1.0
        for e in chosen:
            gate, up = w["ffn_gate_exps"][e] @ token, w["ffn_up_exps"][e] @ token
            out[row] += p[e] / scale * (w["ffn_down_exps"][e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def run(m, tensors, tokens):
    """Hidden states after each layer, logits, and the smallest gap of a choice."""
    w = {name.removesuffix(".weight"): value.astype(np.float64) for name, value in tensors.items()}
    x = w["token_embd"][tokens] * m["embedding"]
    states, gaps = [], []
    for layer in range(LAYERS):
        part = {name.removeprefix(f"blk.{layer}."): value for name, value in w.items() if name.startswith(f"blk.{layer}.")}
        x = x + m["residual"] * attention(m, part, rms(x, part["attn_norm"]))
        x = x + m["residual"] * mixture(m, part, rms(x, part["ffn_norm"]), gaps)
        states.append(x)
    head = w["token_embd"] if m["tied"] else w["output"]
    return states, rms(x, w["output_norm"]) @ head.T / m["logits"], min(gaps)


def metadata_of(arch, m):
    meta = {"general.architecture": arch, "general.name": f"golden {arch}"}
    numbers = {"block_count": LAYERS, "embedding_length": WIDTH, "context_length": 128, "attention.head_count": m["heads"],
               "attention.head_count_kv": m["kv_heads"], "attention.key_length": m["head_dim"],
               "attention.value_length": m["head_dim"], "attention.layer_norm_rms_epsilon": EPSILON, "rope.freq_base": THETA,
               "vocab_size": VOCAB, "expert_count": m["experts"], "expert_used_count": m["used"],
               "feed_forward_length": m["neurons"]}
    if arch == "qwen3moe":
        numbers.update({"expert_feed_forward_length": m["neurons"], "feed_forward_length": m["used"] * m["neurons"]})
    if arch == "granitemoe":
        numbers.update({"embedding_scale": m["embedding"], "residual_scale": m["residual"], "attention.scale": m["attention"],
                        "logit_scale": m["logits"]})
    return meta | {f"{arch}.{key}": value for key, value in numbers.items()}


def main(folder, names):
    for index, (name, m) in enumerate(MODELS.items()):
        if names and name not in names:
            continue
        tokens = np.random.default_rng(400 + index).integers(0, VOCAB, TOKENS).astype(np.int32)
        kinds = {"f": lambda v: v}
        if name == "qwen3moe":
            kinds |= {"q8_0": q8_0, "q4_0": q4_0}
        for seed in range(1000 * index, 1000 * (index + 1)):
            tensors = build(m, seed)
            runs = {kind: run(m, {k: v if v.ndim == 1 else change(v) for k, v in tensors.items()}, tokens)
                    for kind, change in kinds.items()}
            if min(gap for _, _, gap in runs.values()) >= LEAST_GAP:
                break
        else:
            sys.exit(f"{name}: every seed has a close choice")
        write_gguf(f"{folder}/{name}.gguf", metadata_of(name, m),
                   {k: (F32, v.shape, v.tobytes()) if v.ndim == 1 else (F16, v.shape, half(v).tobytes()) for k, v in tensors.items()})
        golden = {"tokens": (I32, tokens.shape, tokens.tobytes())}
        for kind, (states, logits, _) in runs.items():
            for label, value in [(f"hidden.{i}", state) for i, state in enumerate(states)] + [("logits", logits)]:
                golden[f"{kind}.{label}"] = (F32, value.shape, np.ascontiguousarray(value, dtype=np.float32).tobytes())
        print(name, "seed", seed)
        write_gguf(f"{folder}/{name}.golden.gguf", {"general.architecture": "golden"}, golden)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/data", sys.argv[2:])
