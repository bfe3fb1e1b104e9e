#!/usr/bin/env python3
"""Makes the golden model and outputs of gpt-oss.

A small random model runs through transformers' own modelling code (GptOss) in double precision. As in published files the matrices of
experts are MXFP4, others F16, both exact. The files are those of make_goldens.py. Only a developer runs this, when a golden has to
change; tests read the files.

    pip install torch transformers numpy
    python3 tests/golden/make_gpt_oss_goldens.py tests/golden/data
"""

import sys

import numpy as np
import torch
import transformers

from gguf_files import F16, F32, I32, MXFP4, half, mxfp4, write_gguf

TOKENS, VOCAB, WIDTH, LAYERS, NEURONS, EXPERTS, USED = 40, 96, 64, 2, 32, 5, 2
HEADS, KV_HEADS, HEAD_DIM, WINDOW = 6, 2, 32, 12
# Between the logits of the last expert that is chosen and of the next: rounding must not decide. K and V in 8 bits change a logit of the
# second layer by up to 0.04.
LEAST_GAP = 0.15
# YaRN's range of pairs is 1.6 to 7.7: rounded to whole pairs it would be another.
ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=512)


def config():
    return transformers.GptOssConfig(
        num_hidden_layers=LAYERS, num_local_experts=EXPERTS, num_experts_per_tok=USED, vocab_size=VOCAB, hidden_size=WIDTH,
        intermediate_size=NEURONS, head_dim=HEAD_DIM, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, sliding_window=WINDOW,
        rope_parameters=ROPE, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"], attn_implementation="eager", experts_implementation="eager")


def build(seed):
    """GGUF name -> (type, values f32); every value is exact in its type."""
    random = np.random.default_rng(seed)

    def exact(values):
        return half(values.astype(np.float32)).astype(np.float32)

    def vector(*shape, size=0.5, middle=0.0):
        return F32, exact(middle + size * random.standard_normal(shape))

    def matrix(*shape, gain=1.0):
        return F16, exact(random.standard_normal(shape) * gain / np.sqrt(shape[-1]))

    def experts(*shape, gain=1.0):
        values = (random.standard_normal((EXPERTS, *shape)) * gain / np.sqrt(shape[-1])).astype(np.float32)
        return MXFP4, mxfp4(values)[0]

    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    w = {"token_embd.weight": matrix(VOCAB, WIDTH, gain=np.sqrt(WIDTH)), "output.weight": matrix(VOCAB, WIDTH),
         "output_norm.weight": vector(WIDTH, size=0.3, middle=1.0)}
    for layer in range(LAYERS):
        part = {"attn_norm.weight": vector(WIDTH, size=0.3, middle=1.0), "post_attention_norm.weight": vector(WIDTH, size=0.3, middle=1.0),
                "attn_sinks.weight": vector(HEADS, size=2.0)}
        for name, rows, cols in (("attn_q", q, WIDTH), ("attn_k", kv, WIDTH), ("attn_v", kv, WIDTH), ("attn_output", WIDTH, q)):
            part |= {f"{name}.weight": matrix(rows, cols), f"{name}.bias": vector(rows)}
        part |= {"ffn_gate_inp.weight": matrix(EXPERTS, WIDTH, gain=2.0), "ffn_gate_inp.bias": vector(EXPERTS, size=1.0)}
        # Gates and ups that the limits cut.
        for name, rows, cols, gain in (("gate", NEURONS, WIDTH, 5.0), ("up", NEURONS, WIDTH, 5.0), ("down", WIDTH, NEURONS, 0.2)):
            part |= {f"ffn_{name}_exps.weight": experts(rows, cols, gain=gain), f"ffn_{name}_exps.bias": vector(EXPERTS, rows)}
        w.update({f"blk.{layer}.{name}": value for name, value in part.items()})
    return w


def load(model, tensors):
    """Copies the tensors into a model of transformers."""
    def of(name):
        return torch.from_numpy(tensors[name][1]).double()

    state = {"model.embed_tokens.weight": of("token_embd.weight"), "lm_head.weight": of("output.weight"),
             "model.norm.weight": of("output_norm.weight")}
    names = {"attn_norm.weight": "input_layernorm.weight", "post_attention_norm.weight": "post_attention_layernorm.weight",
             "attn_sinks.weight": "self_attn.sinks", "ffn_gate_inp.weight": "mlp.router.weight", "ffn_gate_inp.bias": "mlp.router.bias",
             "ffn_down_exps.bias": "mlp.experts.down_proj_bias"}
    for x, name in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")):
        names |= {f"attn_{x}.{kind}": f"self_attn.{name}_proj.{kind}" for kind in ("weight", "bias")}
    for layer in range(LAYERS):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        state |= {theirs + target: of(ours + source) for source, target in names.items()}
        for kind, target in (("weight", "gate_up_proj"), ("bias", "gate_up_proj_bias")):  # rows of gate and up alternate
            gate, up = of(f"{ours}ffn_gate_exps.{kind}"), of(f"{ours}ffn_up_exps.{kind}")
            both = torch.stack([gate, up], dim=2).flatten(1, 2)
            state[f"{theirs}mlp.experts.{target}"] = both.transpose(1, 2) if kind == "weight" else both
        state[f"{theirs}mlp.experts.down_proj"] = of(f"{ours}ffn_down_exps.weight").transpose(1, 2)
    model.load_state_dict(state, strict=True)


def run(model, tokens):
    """Hidden states after each layer, logits, and the smallest gap of a choice of experts."""
    states, gaps = [], []

    def keep(_module, _inputs, output):
        states.append((output[0] if isinstance(output, tuple) else output).numpy().reshape(TOKENS, -1))

    def measure(module, inputs, _output):
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, WIDTH), module.weight, module.bias)
        ranked = logits.sort(dim=-1, descending=True).values
        gaps.append((ranked[:, USED - 1] - ranked[:, USED]).min().item())

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    hooks += [layer.mlp.router.register_forward_hook(measure) for layer in model.model.layers]
    with torch.no_grad():
        logits = model(torch.tensor([tokens.tolist()]), use_cache=False).logits[0].numpy()
    for hook in hooks:
        hook.remove()
    return states, logits, min(gaps)


def metadata():
    numbers = {"block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": NEURONS, "expert_feed_forward_length": NEURONS,
               "context_length": 2048, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
               "attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-5,
               "attention.sliding_window": WINDOW, "expert_count": EXPERTS, "expert_used_count": USED, "vocab_size": VOCAB,
               "rope.freq_base": ROPE["rope_theta"], "rope.scaling.type": "yarn", "rope.scaling.factor": ROPE["factor"],
               "rope.scaling.original_context_length": ROPE["original_max_position_embeddings"]}
    return {"general.architecture": "gpt-oss", "general.name": "golden gpt-oss"} | {f"gpt-oss.{k}": v for k, v in numbers.items()}


def encoded(kind, values):
    if kind == MXFP4:
        return kind, values.shape, mxfp4(values)[1]
    return kind, values.shape, (half(values) if kind == F16 else values).tobytes()


def main(folder):
    model = transformers.GptOssForCausalLM(config()).double().eval()
    tokens = np.random.default_rng(500).integers(0, VOCAB, TOKENS).astype(np.int32)
    for seed in range(1000):
        tensors = build(seed)
        load(model, tensors)
        states, logits, gap = run(model, tokens)
        if gap >= LEAST_GAP:
            break
    else:
        sys.exit("every seed has a close choice")
    write_gguf(f"{folder}/gpt-oss.gguf", metadata(), {name: encoded(*tensor) for name, tensor in tensors.items()})
    golden = {"tokens": (I32, tokens.shape, tokens.tobytes())}
    for label, value in [(f"hidden.{i}", state) for i, state in enumerate(states)] + [("logits", logits)]:
        golden[f"f.{label}"] = (F32, value.shape, np.ascontiguousarray(value, dtype=np.float32).tobytes())
    write_gguf(f"{folder}/gpt-oss.golden.gguf", {"general.architecture": "golden"}, golden)
    print("seed", seed, "made with transformers", transformers.__version__)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/data")
