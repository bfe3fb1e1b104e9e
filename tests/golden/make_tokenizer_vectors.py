#!/usr/bin/env python3
"""Makes the small vocabularies and vectors of the tests of normal form C and of Unigram (tests/golden/tokenizer_test.cc).

Trains a byte-level BPE vocabulary with Qwen2's rules by the package tokenizers, and Unigram vocabularies by sentencepiece, writes both
as GGUF, and for texts in many scripts the ids of tokenizers (qwen2) and of sentencepiece (unigram, unigram_bytes). Says how many of
the latter tokenizers agrees with: it applies rules to graphemes, and knows no dummy prefix of white space. Each vectors file has
`text HEXADECIMAL` and then the ids in a line. Only a developer runs this, when a vocabulary has to change; tests read the files.

    pip install tokenizers sentencepiece
    python3 tests/golden/make_tokenizer_vectors.py tests/golden/data/tokenizers
"""

import io
import os
import random
import struct
import sys
import tempfile
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MARK = "\u2581"

TEXTS = [
    "Hello, world! It's 12345 o'clock, isn't it?", "  two  spaces   three\t\ttabs \n\n  \n new\r\nlines\n", "", " ", "\n", "trailing   ",
    "cafe\u0301 na\u00efve nai\u0308ve A\u030angstro\u0308m \u212bngstr\u00f6m \u2126 \u1e9b\u0323 \u0344",
    "\u0e17\u0e35\u0e48 \u0e01\u0e33\u0e25\u0e31\u0e07 \u0928\u092e\u0938\u094d\u0924\u0947 \u0958 \u0915\u093c \u09cb \u09c7\u09be",
    "\u0645\u0631\u062d\u0628\u0627 \u0622 \u0627\u0653 \ufb1d \u05d9\u05b4 \u05e9\u05bc\u05c1 \u05e9\u05c1\u05bc",
    "\ud55c\uae00 \u1112\u1161\u11ab\u1100\u1173\u11af \uac00\u11a8 \u1100\u1161",
    "\u30ac\u30d1 \u304b\u3099\u306f\u309a \uff76\uff9e \uff21\uff22\uff23 \u5168\u89d2 \uf900 \u8c48",
    "\u0419\u043e\u0433 \u0418\u0306\u043e\u0433 \u03ac \u03b1\u0301 \u1fb4 \u03b1\u0301\u0345 \u1f82",
    "Vie\u0323\u0302t Vi\u1ec7t Vie\u0302\u0323t q\u0307\u0323 q\u0323\u0307 \u1e0b\u0323 d\u0323\u0307",
    "\ufb01ne \ufb03 \u2460 \u00bd x\u00b2 \u2163 \u33a1 \u2122 \u2026 \u00a8 \u3000wide\u3000",
    "\U0001f600 \U0001f468\u200d\U0001f469 \U0001d15e \U000110ab \U0001109a \u00a0nbsp\u00a0 \u200bzero",
    "abc" + "\u0301" * 5 + "\u0323" * 3, "\u0301 starts \u0323\u0301", "x" * 40 + "ing sing thing something nothing king",
    MARK + "mark " + MARK + MARK + " in text", "Der Fluss flie\u00dft; \u00c4rger \u00dcber \u00d6l.", "\u4e2d\u6587\u5b57\u7b26\uff0c\u6587\u5b57\u3002",
]
CORPUS = [
    "The quick brown fox jumps over the lazy dog. Something is nothing, and the king sings a song about it.",
    "Hello world, this is a text about words, numbers like 12345 and 67890, and isn't it nice that it's here?",
    "Der schnelle braune Fuchs springt \u00fcber den faulen Hund. \u00c4rger mit \u00d6l und S\u00fc\u00dfem.",
    "Caf\u00e9 na\u00efve fa\u00e7ade \u00e9t\u00e9 Vi\u1ec7t Nam ti\u1ebfng Vi\u1ec7t \u00c5ngstr\u00f6m.",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0419\u043e\u0433 \u0438 \u0447\u0430\u0439.",
    "\ud55c\uae00 \uac00\ub098\ub2e4 \uac01 \u30ac\u30d1\u306f\u304c \u4e2d\u6587\u5b57\u7b26\u6587\u5b57\u3002\u0e17\u0e35\u0e48 \u0928\u092e\u0938\u094d\u0924\u0947",
]
# Rules of the Unigram vocabulary, besides those of characters that NFKC changes.
EXTRA_RULES = {"\n": " ", "\t": " ", "\r": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "ij": "\u0133", "...": "\u2026"}


def random_texts(rng, count):
    signs = list("aegin st,.'1 2\n  ") + ["\u0301", "\u0323", "\u0302", "\u00e9", "\u1ec7", "\uac00", "\u11a8", "\u1112", "\u1161", "\u4e2d",
                                          "\uff21", "\ufb01", "\u0418", "\u0306", "\u304b", "\u3099", "thing", "\u200b", "ij", "..", "\u2603"]
    return ["".join(rng.choice(signs) for _ in range(rng.randint(1, 30))) for _ in range(count)]


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(x):
    if isinstance(x, bool):
        return struct.pack("<I?", 7, x)
    if isinstance(x, int):
        return struct.pack("<II", 4, x)
    if isinstance(x, bytes):
        return struct.pack("<IIQ", 9, 0, len(x)) + x
    if isinstance(x, list) and isinstance(x[0], float):
        return struct.pack("<IIQ", 9, 6, len(x)) + struct.pack(f"<{len(x)}f", *x)
    if isinstance(x, list) and isinstance(x[0], int):
        return struct.pack("<IIQ", 9, 5, len(x)) + struct.pack(f"<{len(x)}i", *x)
    if isinstance(x, list):
        return struct.pack("<IIQ", 9, 8, len(x)) + b"".join(map(string, x))
    return struct.pack("<I", 8) + string(x)


def write_gguf(path, metadata):
    with open(path, "wb") as out:
        out.write(struct.pack("<IIQQ", 0x46554747, 3, 0, len(metadata)))
        for key, x in metadata.items():
            out.write(string(key) + value(x))
        out.write(b"\0" * (-out.tell() % 32))


def write_vectors(path, texts, encode):
    with open(path, "w") as out:
        for text in texts:
            out.write(f"text {text.encode().hex()}\n{' '.join(map(str, encode(text)))}\n")


def qwen2(folder, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(CORPUS, trainer)
    end = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<|im_end|>"])
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    import json
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in merges]
    write_gguf(f"{folder}/qwen2.gguf", {
        "general.architecture": "qwen2", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if i == end else NORMAL for i in range(len(tokens))], "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": end})
    # A text of a special token would be one of these.
    write_vectors(f"{folder}/qwen2.txt", texts, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def rules_tsv():
    """Characters of these texts as NFKC changes them, and the extra rules: code points in hexadecimal, source and target."""
    rules = dict(EXTRA_RULES)
    for c in set("".join(TEXTS)) | {"\uff21", "\ufb01"}:
        form = unicodedata.normalize("NFKC", c)
        if form != c and c not in rules:
            rules[c] = form
        decomposed = unicodedata.normalize("NFD", c)
        if len(decomposed) > 1 and unicodedata.normalize("NFC", decomposed) == c:
            rules[decomposed] = c
    code = lambda text: " ".join(f"{ord(c):X}" for c in text)
    return "".join(f"{code(source)}\t{code(target)}\n" for source, target in sorted(rules.items()))


def unigram(folder, name, texts, byte_fallback, strip):
    with tempfile.TemporaryDirectory() as work:
        tsv = os.path.join(work, "rules.tsv")
        with open(tsv, "w") as out:
            out.write(rules_tsv())
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 3), model_writer=model, model_type="unigram", vocab_size=420 if byte_fallback else 200,
            normalization_rule_tsv=tsv, character_coverage=0.98, byte_fallback=byte_fallback, remove_extra_whitespaces=strip,
            pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False, num_threads=1, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    spec = proto.normalizer_spec
    write_gguf(f"{folder}/{name}.gguf", {
        "general.architecture": "t5", "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": [p.piece for p in proto.pieces],
        "tokenizer.ggml.scores": [float(p.score) for p in proto.pieces], "tokenizer.ggml.token_type": [int(p.type) for p in proto.pieces],
        "tokenizer.ggml.add_space_prefix": bool(spec.add_dummy_prefix),
        "tokenizer.ggml.remove_extra_whitespaces": bool(spec.remove_extra_whitespaces),
        "tokenizer.ggml.precompiled_charsmap": bytes(spec.precompiled_charsmap), "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2, "tokenizer.ggml.padding_token_id": 0})
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(p.piece, float(p.score)) for p in proto.pieces]
    other = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=byte_fallback))
    other.normalizer = normalizers.Sequence([normalizers.Precompiled(bytes(spec.precompiled_charsmap))] + (
        [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")] if strip else []))
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    ids = {text: processor.encode(text) for text in texts}
    same = sum(other.encode(text, add_special_tokens=False).ids == ids[text] for text in texts)
    write_vectors(f"{folder}/{name}.txt", texts, ids.get)
    print(name, len(proto.pieces), "tokens; tokenizers gives", same, "of", len(texts), "texts the same ids")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/data/tokenizers"
    os.makedirs(folder, exist_ok=True)
    texts = TEXTS + random_texts(random.Random(11), 120)
    qwen2(folder, texts)
    unigram(folder, "unigram", texts, byte_fallback=False, strip=True)
    unigram(folder, "unigram_bytes", texts, byte_fallback=True, strip=False)


if __name__ == "__main__":
    main()
