#!/usr/bin/env python3
"""Makes the golden models and outputs for the tests of engine/model.

Small random models of each architecture run through transformers' own modelling code; the weights go to NAME.gguf (F16, or MXFP4
for gpt-oss's experts, which hold them exactly) and the reference's hidden states after every layer and logits to NAME.golden.gguf,
once per weight type, computed on the dequantised weights of that type. Models that are not in ALL_TYPES have states and logits for
the file's own types alone. Names of tensors and keys are those of llama.cpp's converters, except that every file has a vocab_size.
Only a developer runs this, when a golden has to change; tests read the files.

    pip install torch transformers numpy
    python3 tests/golden/make_goldens.py tests/golden/data [NAME ...]
"""

import math
import os
import sys

import numpy as np
import torch
import transformers

from gguf_files import F16, F32, I32, MXFP4, Q4_1, half, mxfp4, q4_0, q8_0, write_gguf

TOKENS = 40
VOCAB = 96


def q4_1(w):
    """(values, bytes) of w as Q4_1: scale (max - min)/15, minimum."""
    b = w.reshape(-1, 32)
    low = b.min(axis=1, keepdims=True)
    d = (b.max(axis=1, keepdims=True) - low) / np.float32(15)
    inv = np.where(d != 0, np.float32(1) / np.where(d != 0, d, 1), 0)
    q = np.minimum(15, np.trunc((b - low) * inv + np.float32(0.5))).astype(np.uint8)
    values = (q * half(d).astype(np.float32) + half(low).astype(np.float32)).reshape(w.shape)
    packed = np.concatenate(
        [half(d).view(np.uint8), half(low).view(np.uint8), q[:, :16] | (q[:, 16:] << 4)], axis=1)
    return values.astype(np.float32), packed.tobytes()


# Models.

def llama(tied, heads, kv_heads, scaling):
    return transformers.LlamaForCausalLM, transformers.LlamaConfig, dict(
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=32, tie_word_embeddings=tied,
        rope_scaling=scaling)


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16, rope_theta=10000.0)
LINEAR = dict(rope_type="linear", factor=2.0, rope_theta=10000.0)
PLAIN = dict(rope_type="default", rope_theta=1000000.0)
MODELS = {
    "llama_gqa": llama(False, 6, 2, LLAMA3),
    "llama_mha_tied": llama(True, 2, 2, LINEAR),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, dict(
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, rope_scaling=PLAIN)),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, dict(
        num_attention_heads=4, num_key_value_heads=1, head_dim=64, tie_word_embeddings=False, rope_scaling=PLAIN)),
    # The last layer of four has no RoPE.
    "smollm3": (transformers.SmolLM3ForCausalLM, transformers.SmolLM3Config, dict(
        num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        rope_scaling=PLAIN, pad_token_id=None)),
    "granite": (transformers.GraniteForCausalLM, transformers.GraniteConfig, dict(
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, rope_scaling=PLAIN,
        embedding_multiplier=1.5, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=16.0)),
    "olmo2": (transformers.Olmo2ForCausalLM, transformers.Olmo2Config, dict(
        num_attention_heads=6, num_key_value_heads=2, hidden_size=192, tie_word_embeddings=False,
        rope_scaling=PLAIN)),
    # GGUF calls it llama. Twelve positions are visible.
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig, dict(
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=False, rope_scaling=PLAIN,
        sliding_window=12)),
    # RoPE turns three quarters of a head.
    "phi3": (transformers.Phi3ForCausalLM, transformers.Phi3Config, dict(
        num_attention_heads=2, num_key_value_heads=1, hidden_size=128, tie_word_embeddings=False, sliding_window=20,
        original_max_position_embeddings=128, pad_token_id=None,
        rope_scaling=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75))),
    "gemma2": (transformers.Gemma2ForCausalLM, transformers.Gemma2Config, dict(
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, rope_scaling=PLAIN, sliding_window=12,
        attn_logit_softcapping=4.0, final_logit_softcapping=6.0, query_pre_attn_scalar=32)),
    "gemma3": (transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig, dict(
        hidden_size=32, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1, head_dim=32, sliding_window=12,
        query_pre_attn_scalar=32, layer_types=["sliding_attention"] * 5 + ["full_attention"],
        rope_parameters=dict(full_attention=dict(LINEAR, rope_theta=1000000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    # Norms that subtract the mean, biases everywhere, learned positions, no gate.
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, dict(
        n_embd=64, n_layer=2, n_head=2, n_inner=160, n_positions=128, layer_norm_epsilon=1e-5,
        activation_function="gelu_new", bos_token_id=0, eos_token_id=0)),
    # The last two layers share K and V of layers 1 and 3. Norms of heads are small, so that attention is not on one key.
    "gemma3n": (transformers.Gemma3nForCausalLM, transformers.Gemma3nTextConfig, dict(
        hidden_size=32, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1, head_dim=32, sliding_window=12,
        intermediate_size=[64, 96, 64, 64, 96, 64], activation_sparsity_pattern=[0.9, 0.6, 0.0, 0.0, 0.0, 0.0],
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention",
                     "sliding_attention"],
        num_kv_shared_layers=2, hidden_size_per_layer_input=32, vocab_size_per_layer_input=VOCAB, altup_num_inputs=4,
        laurel_rank=64, final_logit_softcapping=8.0, pad_token_id=None,
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1000000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
}
ALL_TYPES = ("llama_gqa", "llama_mha_tied", "qwen2", "qwen3", "qwen3moe")
# Architectures of GGUF files whose converter puts the two elements that RoPE turns together side by side.
ADJACENT = ("llama", "smollm3", "granite", "granitemoe")

# Mixtures of experts.
MODELS |= {
    "qwen3moe": (transformers.Qwen3MoeForCausalLM, transformers.Qwen3MoeConfig, dict(
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, rope_scaling=PLAIN, num_experts=7, num_experts_per_tok=3,
        norm_topk_prob=True, moe_intermediate_size=32, intermediate_size=96)),
    "olmoe": (transformers.OlmoeForCausalLM, transformers.OlmoeConfig, dict(
        num_attention_heads=2, rope_scaling=PLAIN, num_experts=6, num_experts_per_tok=2)),
    "granitemoe": (transformers.GraniteMoeForCausalLM, transformers.GraniteMoeConfig, dict(
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, rope_scaling=PLAIN,
        embedding_multiplier=1.5, residual_multiplier=0.4, attention_multiplier=0.1, logits_scaling=16.0,
        num_local_experts=5, num_experts_per_tok=2)),
    # YaRN's range of pairs is 1.6 to 7.7: rounded to whole pairs it would be another.
    "gpt-oss": (transformers.GptOssForCausalLM, transformers.GptOssConfig, dict(
        num_attention_heads=6, num_key_value_heads=2, head_dim=32, intermediate_size=32, num_local_experts=5,
        num_experts_per_tok=2, sliding_window=12, layer_types=["sliding_attention", "full_attention"],
        max_position_embeddings=2048, rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=512))),
}
# Of a mixture: the seed of its weights and tokens, and the least gap between the logits of the last expert that is chosen and of
# the next, so that rounding does not decide. K and V in 8 bits change a logit of gpt-oss's second layer by up to 0.04.
CHOICES = {"qwen3moe": (28, 0.02), "olmoe": (2, 0.02), "granitemoe": (1, 0.02), "gpt-oss": (8824, 0.15)}


def build(name, seed):
    cls, config_cls, extra = MODELS[name]
    options = dict(hidden_size=96 if name == "llama_gqa" else 64, intermediate_size=160 if name in ALL_TYPES else 64,
                   num_hidden_layers=2, vocab_size=VOCAB, max_position_embeddings=128, rms_norm_eps=1e-5,
                   attn_implementation="eager")
    if name == "gpt2":
        options = dict(vocab_size=VOCAB, attn_implementation="eager")
    elif not name.startswith("gemma"):  # whose activation is GELU
        options["hidden_act"] = "silu"
    config = config_cls(**{**options, **extra})
    model = cls(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1 and name == "gemma3n":
                value = (noise * 0.3 + 1.0) * (0.5 if "q_norm" in key or "k_norm" in key else 1.0)
            elif p.dim() == 1:
                value = noise * 0.3 + (0.0 if key.endswith("bias") or name.startswith("gemma") else 1.0)
            elif "modality_router" in key:  # of what it reads it takes a fraction
                value = noise * 2.0
            else:
                width = p.shape[0] if is_transposed(key) else p.shape[-1]
                value = noise * (1.0 if "embed" in key or "wte" in key else 0.5 if "wpe" in key else 1.0 / math.sqrt(width))
            if name in CHOICES:
                value = of_mixture(name, key, noise, value)
            p.copy_(value.bfloat16().float())  # exact in BF16, F16 (no value is that small) and F32
            p.copy_(p.half().float())
    return model, config


def of_mixture(name, key, noise, value):
    """Values of a mixture's parameter, whose logits of experts are far apart."""
    if key.endswith(("sinks", "_bias")):
        return noise
    if "router" in key or key.endswith("mlp.gate.weight"):
        return (2 if name == "gpt-oss" else 4) * value
    if name == "gpt-oss" and "experts" in key:  # in MXFP4, with gates and ups that the limits cut; rows are inputs
        value = value * (5.0 if "gate_up" in key else 0.3)
        return torch.from_numpy(mxfp4(value.mT.numpy())[0]).mT
    return value


def is_transposed(key):
    """Whether the weight is of GPT-2's Conv1D, whose rows are inputs."""
    return ".c_" in key and key.endswith("weight")


def permute(w, heads):
    """Reorders a head's rows from pairs (i, i + half) to adjacent pairs, as in llama files."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def gguf_tensors(name, model, config):
    """GGUF name -> (array f32, is matrix), in llama.cpp's naming."""
    state = {k: v.detach().numpy() for k, v in model.state_dict().items()}
    if name == "gpt2":
        return gpt2_tensors(state)
    adjacent = arch_of(name) in ADJACENT
    out = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    if not config.tie_word_embeddings:
        out["output.weight"] = state["lm_head.weight"]
    parts = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
             "self_attn.o_proj.weight": "attn_output.weight", "mlp.gate_proj.weight": "ffn_gate.weight",
             "mlp.up_proj.weight": "ffn_up.weight", "mlp.down_proj.weight": "ffn_down.weight",
             "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
             "self_attn.qkv_proj.weight": "attn_qkv.weight", "mlp.gate_up_proj.weight": "ffn_up.weight"}
    if name in ("olmo2", "gemma2", "gemma3", "gemma3n"):
        parts["post_attention_layernorm.weight"] = "post_attention_norm.weight"
        parts["pre_feedforward_layernorm.weight"] = "ffn_norm.weight"
        parts["post_feedforward_layernorm.weight"] = "post_ffw_norm.weight"
    for x in "qkv":
        for kind in ("weight", "bias"):
            parts[f"self_attn.{x}_proj.{kind}"] = f"attn_{x}.{kind}"
    if name in CHOICES:
        parts |= {"mlp.gate.weight": "ffn_gate_inp.weight", "mlp.router.weight": "ffn_gate_inp.weight",
                  "mlp.router.bias": "ffn_gate_inp.bias", "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
                  "self_attn.o_proj.bias": "attn_output.bias", "self_attn.sinks": "attn_sinks.weight"}
        out |= expert_tensors(name, state)
    if name == "gpt-oss":
        parts["post_attention_layernorm.weight"] = "post_attention_norm.weight"
    for layer in range(config.num_hidden_layers):
        for source, target in parts.items():
            value = state.get(f"model.layers.{layer}.{source}")
            if value is None:
                continue
            if adjacent and target in ("attn_q.weight", "attn_k.weight"):
                value = permute(value, config.num_attention_heads if "_q" in target else config.num_key_value_heads)
            out[f"blk.{layer}.{target}"] = value
    if name == "gemma3n":
        out |= gemma3n_tensors(state, config)
    elif name.startswith("gemma"):  # whose norms multiply by 1 + weight
        out = {k: v + np.float32(1) if "norm" in k else v for k, v in out.items()}
    return out


def gemma3n_tensors(state, config):
    """What Gemma 3n has beside the parts of other models."""
    def stack(part):
        return np.stack([state[f"model.{part}.{i}.weight"] for i in range(config.altup_num_inputs - 1)])
    out = {"per_layer_token_embd.weight": state["model.embed_tokens_per_layer.weight"],
           "per_layer_model_proj.weight": state["model.per_layer_model_projection.weight"],
           "per_layer_proj_norm.weight": state["model.per_layer_projection_norm.weight"],
           "altup_proj.weight": stack("altup_projections"), "altup_unembd_proj.weight": stack("altup_unembed_projections")}
    parts = {"altup.correct_output_scale": "altup_correct_scale", "altup.correction_coefs.weight": "altup_correct_coef",
             "altup.prediction_coefs.weight": "altup_predict_coef", "altup.modality_router.weight": "altup_router",
             "altup.router_norm.weight": "altup_router_norm", "laurel.linear_left.weight": "laurel_l",
             "laurel.linear_right.weight": "laurel_r", "laurel.post_laurel_norm.weight": "laurel_post_norm",
             "per_layer_input_gate.weight": "inp_gate", "per_layer_projection.weight": "proj",
             "post_per_layer_input_norm.weight": "post_norm"}
    for layer in range(config.num_hidden_layers):
        out |= {f"blk.{layer}.{target}.weight": state[f"model.layers.{layer}.{source}"] for source, target in parts.items()}
    return out


def gpt2_tensors(state):
    """The same of GPT-2, whose head is the embedding."""
    ends = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    parts = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
             "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    out = {}
    for key, value in state.items():
        module, _, kind = key.removeprefix("transformer.").rpartition(".")
        if module in ends:
            out[f"{ends[module]}.{kind}"] = value
        elif module.startswith("h."):
            _, layer, part = module.split(".", 2)
            if part in parts:
                out[f"blk.{layer}.{parts[part]}.{kind}"] = np.ascontiguousarray(value.T) if is_transposed(key) else value
    return out


def expert_tensors(name, state):
    """What each expert has. Rows of gate and up follow each other; in gpt-oss they alternate, and matrices are transposed."""
    out = {}
    for key, value in state.items():
        if ".experts." not in key:
            continue
        kind = "bias" if key.endswith("_bias") else "weight"
        if name == "gpt-oss" and kind == "weight":
            value = value.swapaxes(1, 2)
        parts = {"down": value}
        if "gate_up" in key:
            gate, up = (value[:, ::2], value[:, 1::2]) if name == "gpt-oss" else np.split(value, 2, axis=1)
            parts = {"gate": gate, "up": up}
        out |= {f"blk.{key.split('.')[2]}.ffn_{part}_exps.{kind}": of_part for part, of_part in parts.items()}
    return out


def arch_of(name):
    return "llama" if name == "mistral" else name.split("_")[0]


def head_dim_of(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def metadata_of(name, config):
    arch = arch_of(name)
    if name == "gpt2":
        return {
            "general.architecture": arch, "general.name": "golden gpt2", "gpt2.block_count": config.n_layer,
            "gpt2.context_length": config.n_positions, "gpt2.embedding_length": config.n_embd,
            "gpt2.feed_forward_length": config.n_inner, "gpt2.attention.head_count": config.n_head,
            "gpt2.attention.layer_norm_epsilon": float(config.layer_norm_epsilon), "gpt2.vocab_size": VOCAB,
        }
    rope = {**(config.to_dict().get("rope_parameters") or {}), **(config.to_dict().get("rope_scaling") or {})}
    rope = rope.get("full_attention", rope)
    meta = {
        "general.architecture": arch, "general.name": f"golden {name}",
        f"{arch}.block_count": config.num_hidden_layers, f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size, f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.key_length": head_dim_of(config), f"{arch}.attention.value_length": head_dim_of(config),
        f"{arch}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        f"{arch}.rope.freq_base": float(rope["rope_theta"]), f"{arch}.vocab_size": VOCAB,
    }
    if rope.get("rope_type") in ("linear", "yarn"):
        meta[f"{arch}.rope.scaling.type"] = rope["rope_type"]
        meta[f"{arch}.rope.scaling.factor"] = float(rope["factor"])
    if name in ("granite", "granitemoe"):
        meta[f"{arch}.embedding_scale"] = float(config.embedding_multiplier)
        meta[f"{arch}.residual_scale"] = float(config.residual_multiplier)
        meta[f"{arch}.attention.scale"] = float(config.attention_multiplier)
        meta[f"{arch}.logit_scale"] = float(config.logits_scaling)
    if name in CHOICES:
        meta[f"{arch}.expert_count"] = config.num_local_experts
        meta[f"{arch}.expert_used_count"] = config.num_experts_per_tok
    if name == "qwen3moe":
        meta["qwen3moe.expert_feed_forward_length"] = config.moe_intermediate_size
    if name == "gpt-oss":
        meta["gpt-oss.expert_feed_forward_length"] = config.intermediate_size
        meta["gpt-oss.attention.sliding_window"] = config.sliding_window
        meta["gpt-oss.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if name == "phi3":  # its converter writes no sizes of heads
        del meta["phi3.attention.key_length"], meta["phi3.attention.value_length"]
        meta["phi3.rope.dimension_count"] = int(0.75 * head_dim_of(config))
        meta["phi3.rope.scaling.original_context_length"] = config.original_max_position_embeddings
    if name in ("mistral", "phi3", "gemma2", "gemma3", "gemma3n"):
        meta[f"{arch}.attention.sliding_window"] = config.sliding_window
    if name == "gemma2":
        meta["gemma2.attn_logit_softcapping"] = float(config.attn_logit_softcapping)
        meta["gemma2.final_logit_softcapping"] = float(config.final_logit_softcapping)
    if name == "gemma3n":
        meta |= gemma3n_metadata(config)
    return meta


def gemma3n_metadata(config):
    normal = torch.distributions.normal.Normal(0, 1)
    return {
        "gemma3n.final_logit_softcapping": float(config.final_logit_softcapping),
        "gemma3n.altup.active_idx": config.altup_active_idx, "gemma3n.altup.num_inputs": config.altup_num_inputs,
        "gemma3n.embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "gemma3n.attention.shared_kv_layers": config.num_kv_shared_layers,
        "gemma3n.attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
        "gemma3n.activation_sparsity_scale": [normal.icdf(torch.tensor(s)).item() for s in config.activation_sparsity_pattern],
    }


def llama3_factors(head_dim):
    """rope_freqs.weight as a converter writes it: the divisor of each plain frequency."""
    inv = 1.0 / (LLAMA3["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim))
    original, factor = LLAMA3["original_max_position_embeddings"], LLAMA3["factor"]
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    wave = 2 * math.pi / inv
    smooth = (original / wave - low) / (high - low)
    blended = (1 - smooth) * inv / factor + smooth * inv
    scaled = np.where(wave > original / low, inv / factor, np.where(wave < original / high, inv, blended))
    return (inv / scaled).astype(np.float32)


# Reference outputs.

def run(model, tokens, matrices):
    """Hidden states after each layer and logits with the matrices replaced by `matrices`."""
    saved = {k: p.detach().clone() for k, p in model.named_parameters()}
    states = []
    copies = isinstance(model, transformers.Gemma3nForCausalLM)  # of the stream; the first is kept

    def keep(_module, _inputs, output):
        state = output[0] if isinstance(output, tuple) or copies else output
        states.append(state.detach().clone().numpy().reshape(TOKENS, -1))

    hooks = [layer.register_forward_hook(keep)
             for layer in (model.transformer.h if hasattr(model, "transformer") else model.model.layers)]
    if copies:  # behind the last layer all of them, as they are normed
        hooks.append(model.model.norm.register_forward_pre_hook(
            lambda _m, i: states.__setitem__(-1, i[0].detach().numpy().reshape(TOKENS, -1))))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if key in matrices:
                p.copy_(torch.from_numpy(matrices[key]))
        # Without a cache, layers of Gemma 3n would not share K and V.
        logits = model(torch.tensor([tokens]), use_cache=copies).logits[0].numpy()
        for key, p in model.named_parameters():
            p.copy_(saved[key])
    for hook in hooks:
        hook.remove()
    return states, logits


def watch_choices(model, used):
    """Returns a list that gets the smallest gap of each later choice of `used` experts."""
    gaps = []

    def measure(router, inputs, _output):
        logits = torch.nn.functional.linear(inputs[0].flatten(0, -2), router.weight, getattr(router, "bias", None))
        ranked = logits.sort(dim=-1, descending=True).values
        gaps.append((ranked[:, used - 1] - ranked[:, used]).min().item())

    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            module.register_forward_hook(measure)
    return gaps


def encoded(name, key, matrix):
    """Type, shape and bytes of a matrix in the file."""
    if name == "gpt-oss" and key.endswith("exps.weight"):
        return MXFP4, matrix.shape, mxfp4(matrix)[1]
    return F16, matrix.shape, half(matrix).tobytes()


def main(folder, names):
    os.makedirs(folder, exist_ok=True)
    for index, name in enumerate(MODELS):
        if names and name not in names:
            continue
        seed, least_gap = CHOICES.get(name, (index, None))
        model, config = build(name, seed=100 + seed)
        tensors = gguf_tensors(name, model, config)
        meta = metadata_of(name, config)
        f32 = {k: (F32, v.shape, v.astype(np.float32).tobytes()) for k, v in tensors.items()
               if v.ndim == 1 or k.endswith(".bias")}
        if name == "llama_gqa":
            factors = llama3_factors(config.head_dim)
            f32["rope_freqs.weight"] = (F32, factors.shape, factors.tobytes())
        matrices = {k: v for k, v in tensors.items() if v.ndim > 1}
        write_gguf(f"{folder}/{name}.gguf", meta,
                   {**{k: encoded(name, k, v) for k, v in matrices.items()}, **f32})
        tokens = np.random.default_rng(7 + seed).integers(0, VOCAB, TOKENS).astype(np.int32)
        own = {k: p.detach().numpy() for k, p in model.named_parameters() if p.dim() > 1}
        types = {"f": own}
        if name in ALL_TYPES:
            types |= {"q8_0": {k: q8_0(v) for k, v in own.items()}, "q4_0": {k: q4_0(v) for k, v in own.items()}}
        if name == "llama_gqa":  # the test cannot quantise to this type
            types["q4_1"] = {k: q4_1(v)[0] for k, v in own.items()}
            write_gguf(f"{folder}/{name}.q4_1.gguf", meta,
                       {**{k: (Q4_1, v.shape, q4_1(v)[1]) for k, v in matrices.items()}, **f32})
        gaps = watch_choices(model, config.num_experts_per_tok) if least_gap else []
        golden = {"tokens": (I32, tokens.shape, tokens.tobytes())}
        for kind, values in types.items():
            states, logits = run(model, tokens.tolist(), values)
            for layer, state in enumerate(states):
                golden[f"{kind}.hidden.{layer}"] = (F32, state.shape, np.ascontiguousarray(state).tobytes())
            golden[f"{kind}.logits"] = (F32, logits.shape, np.ascontiguousarray(logits).tobytes())
        if gaps and min(gaps) < least_gap:
            sys.exit(f"{name}: two experts' logits differ by {min(gaps)}: another seed is needed")
        write_gguf(f"{folder}/{name}.golden.gguf", {"general.architecture": "golden"}, golden)
        print(name, "logits", golden["f.logits"][1], "made with transformers", transformers.__version__)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/data", sys.argv[2:])
