#!/usr/bin/env python3
"""Makes the golden MobileBERT models and outputs for the tests of engine/encoder.

Small random models run through transformers' own MobileBertModel. Each goes to mobilebert_NAME/ as Hugging Face saves it (config.json,
vocab.txt, model.safetensors), with golden.gguf beside it: token ids, hidden states after the embeddings and every layer, the
pooler's output, and the same on weights that went through Q8_0. Only a developer runs this, when a golden has to change.

    pip install torch transformers numpy safetensors
    python3 tests/golden/make_mobilebert_goldens.py tests/golden/data
"""

import json
import os
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import MobileBertConfig, MobileBertModel

from make_goldens import F32, I32, q8_0, write_gguf

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[unused0]", "the", "cat", "sat", "on", "mat", "##s", "##ing", "un", "##able", ",", "."]
VOCAB += [f"w{i}" for i in range(32)]
LENGTHS = [37, 70]  # neither is a multiple of a block

COMMON = dict(vocab_size=len(VOCAB), num_hidden_layers=3, max_position_embeddings=96, embedding_size=32, hidden_size=64,
              intra_bottleneck_size=32, intermediate_size=64, num_attention_heads=2, num_feedforward_networks=2)
MODELS = {
    "shared_qk": (torch.float16, dict()),
    "bottleneck_attention": (torch.bfloat16, dict(use_bottleneck_attention=True, key_query_shared_bottleneck=False, trigram_input=False,
                                                  normalization_type="layer_norm", num_attention_heads=4)),
    "own_qk": (torch.float16, dict(key_query_shared_bottleneck=False, hidden_size=48, intra_bottleneck_size=48, embedding_size=48,
                                   trigram_input=False, num_feedforward_networks=1)),
    "plain": (torch.float32, dict(use_bottleneck=False, hidden_size=32, normalization_type="layer_norm", classifier_activation=False)),
}


def build(dtype, changes, seed):
    torch.manual_seed(seed)
    config = MobileBertConfig(**{**COMMON, **changes})
    config._attn_implementation = "eager"
    model = MobileBertModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "LayerNorm.weight" in name:
                p.normal_(1.0, 0.2)
            elif p.dim() == 1:
                p.normal_(0.0, 0.1)
            else:
                p.normal_(0.0, p.shape[1] ** -0.5)
            p.copy_(p.to(dtype).float())  # exactly the values in the file
    return model, config


def run(model, ids):
    states = []
    hooks = [module.register_forward_hook(lambda _m, _i, o: states.append((o[0] if isinstance(o, tuple) else o).detach()))
             for module in [model.embeddings, *model.encoder.layer]]
    with torch.no_grad():
        out = model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return [s.numpy().reshape(len(ids), -1) for s in states], out.pooler_output.numpy()


def quantised(model):
    """The model's matrices with Q8_0's values, if their rows are whole blocks; added tables are unchanged."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 and p.shape[1] % 32 == 0 and "position" not in name and "token_type" not in name:
                p.copy_(torch.from_numpy(q8_0(p.detach().numpy())))
    return model


def main(folder):
    for index, (name, (dtype, changes)) in enumerate(MODELS.items()):
        where = f"{folder}/mobilebert_{name}"
        os.makedirs(where, exist_ok=True)
        model, config = build(dtype, changes, seed=40 + index)
        shown = {k: getattr(config, k) for k in [*COMMON, "hidden_act", "type_vocab_size", "layer_norm_eps", "trigram_input", "use_bottleneck",
                 "use_bottleneck_attention", "key_query_shared_bottleneck", "normalization_type", "classifier_activation"]}
        with open(f"{where}/config.json", "w") as f:
            json.dump({"model_type": "mobilebert", **shown}, f, indent=1)
            f.write("\n")
        with open(f"{where}/vocab.txt", "w") as f:
            f.write("\n".join(VOCAB) + "\n")
        save_file({k: v.to(dtype).contiguous() for k, v in model.named_parameters()}, f"{where}/model.safetensors")
        random = np.random.default_rng(70 + index)
        golden = {}
        inputs = [random.integers(0, len(VOCAB), n).astype(np.int32) for n in LENGTHS]
        for kind, m in (("f", model), ("q8_0", quantised(build(dtype, changes, seed=40 + index)[0]))):
            for i, ids in enumerate(inputs):
                golden[f"tokens.{i}"] = (I32, ids.shape, ids.tobytes())
                states, pooled = run(m, ids.tolist())
                keep = states if kind == "f" and i == 0 else states[-1:]
                for state, layer in zip(reversed(keep), range(len(states) - 2, -2, -1)):
                    golden[f"{kind}.{i}.hidden.{layer}"] = (F32, state.shape, np.ascontiguousarray(state).tobytes())
                golden[f"{kind}.{i}.pooled"] = (F32, pooled.shape, pooled.tobytes())
        write_gguf(f"{where}/golden.gguf", {"general.architecture": "golden"}, golden)
        print(name, "made with transformers", transformers.__version__)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/data")
