#!/usr/bin/env python3
"""The independent runtime of `./withy bench real`: llama.cpp by the Python package xllamacpp, and jinja2.

Reads one JSON request a line from standard input and answers with one line each:
  {"what": "hello"}                                 {"runtime": "...", "jinja2": "..."}, null where a package is missing
  {"what": "render", "template", "chats"}           {"texts": [...]}; a chat is a list of {"role", "content"}
  {"what": "tokens", "texts"}                       {"ids": [[...], ...]}, plain text without special tokens
  {"what": "predict", "windows"}                    {"top": [...], "logprobs": [...]} for every token but a window's first
  {"what": "speed", "prompt", "generate"}           {"prefill_tok_s", "decode_tok_s"}
A request that fails is answered by {"error": "..."}.

    real_peer.py MODEL.gguf THREADS
"""
import ctypes
import importlib.metadata
import json
import os
import pathlib
import sys
import time

MODEL, THREADS = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "chat"))

# What the libraries print goes to standard error.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Blob(ctypes.Structure):
    """A parameter struct of llama.h, larger than any version's: only its first fields are named."""
    _fields_ = [("first", ctypes.c_uint32 * 8), ("rest", ctypes.c_uint8 * 992)]


class Batch(ctypes.Structure):
    """llama_batch."""
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
                ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8))]


ROWS = 512


class Runtime:
    """llama.cpp by its C interface, which the package xllamacpp exports."""

    def __init__(self):
        import xllamacpp
        folder = pathlib.Path(xllamacpp.__file__).parent
        self.name = f"llama.cpp (xllamacpp {importlib.metadata.version('xllamacpp')})"
        self.c = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
        pointer, integer = ctypes.c_void_p, ctypes.c_int32
        for name, result, arguments in [
                ("llama_backend_init", None, []), ("ggml_backend_load_all", None, []),
                ("llama_log_set", None, [pointer, pointer]), ("llama_model_default_params", Blob, []),
                ("llama_context_default_params", Blob, []), ("llama_model_load_from_file", pointer, [ctypes.c_char_p, Blob]),
                ("llama_model_get_vocab", pointer, [pointer]), ("llama_vocab_n_tokens", integer, [pointer]),
                ("llama_init_from_model", pointer, [pointer, Blob]),
                ("llama_tokenize", integer, [pointer, ctypes.c_char_p, integer, ctypes.POINTER(integer), integer, ctypes.c_bool,
                                             ctypes.c_bool]),
                ("llama_batch_init", Batch, [integer, integer, integer]), ("llama_decode", integer, [pointer, Batch]),
                ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer]), ("llama_get_memory", pointer, [pointer]),
                ("llama_memory_clear", None, [pointer, ctypes.c_bool]), ("llama_synchronize", None, [pointer]),
                ("llama_set_n_threads", None, [pointer, integer, integer])]:
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self.silence = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)(lambda *_: None)
        self.c.llama_log_set(ctypes.cast(self.silence, pointer), None)
        self.c.llama_backend_init()
        self.c.ggml_backend_load_all()
        self.model = self.c.llama_model_load_from_file(MODEL.encode(), self.c.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {MODEL}")
        self.vocab = self.c.llama_model_get_vocab(self.model)
        self.vocabulary = self.c.llama_vocab_n_tokens(self.vocab)
        params = self.c.llama_context_default_params()
        if list(params.first[1:4]) != [2048, 512, 1]:  # n_batch, n_ubatch, n_seq_max
            raise RuntimeError("llama_context_params begins otherwise than in llama.h of 2026")
        params.first[0], params.first[1], params.first[2] = 2048, ROWS, ROWS
        self.context = self.c.llama_init_from_model(self.model, params)
        self.c.llama_set_n_threads(self.context, THREADS, THREADS)
        self.batch = self.c.llama_batch_init(ROWS, 0, 1)

    def clear(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def decode(self, ids, first, all_logits):
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, first + i, 1, 0
            batch.logits[i] = 1 if all_logits or i == len(ids) - 1 else 0
        failed = self.c.llama_decode(self.context, batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")

    def tokens(self, text):
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        return list(ids[:max(self.c.llama_tokenize(self.vocab, data, len(data), ids, room, False, False), 0)])

    def predict(self, windows):
        import numpy
        top, logprobs = [], []
        for ids in windows:
            self.clear()
            self.decode(ids[:-1], 0, True)
            logits = numpy.ctypeslib.as_array(self.c.llama_get_logits(self.context), (len(ids) - 1, self.vocabulary))
            for row, following in zip(logits.astype(numpy.float64), ids[1:]):
                row -= row.max()
                top.append(int(row.argmax()))
                logprobs.append(float(row[following] - numpy.log(numpy.exp(row).sum())))
        return {"top": top, "logprobs": logprobs}

    def speed(self, prompt, generate):
        ids = [100 + i % 1000 for i in range(prompt)]
        self.clear()
        begun = time.perf_counter()
        for first in range(0, prompt, ROWS):
            self.decode(ids[first:first + ROWS], first, False)
        self.c.llama_synchronize(self.context)
        prefill = prompt / (time.perf_counter() - begun)
        self.clear()
        self.decode(ids[:1], 0, False)
        self.c.llama_synchronize(self.context)
        begun = time.perf_counter()
        for i in range(generate):
            self.decode(ids[i:i + 1], 1 + i, False)
            self.c.llama_synchronize(self.context)
        return {"prefill_tok_s": prefill, "decode_tok_s": generate / (time.perf_counter() - begun)}


def render(template, chats):
    import jinja_reference
    source = jinja_reference.ENV.from_string(template)
    return [source.render(messages=chat, add_generation_prompt=True, bos_token="", eos_token="")
            for chat in chats]


def main():
    runtime = jinja2 = None
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("what")
        try:
            if what == "hello":
                answer = {"runtime": None, "jinja2": None, "why": ""}
                try:
                    runtime = Runtime()
                    answer["runtime"] = runtime.name
                except ImportError as error:
                    answer["why"] = str(error)
                try:
                    import jinja2
                    answer["jinja2"] = jinja2.__version__
                except ImportError:
                    pass
            elif what == "render":
                answer = {"texts": render(**request)}
            elif what == "tokens":
                answer = {"ids": [runtime.tokens(text) for text in request["texts"]]}
            else:
                answer = getattr(runtime, what)(**request)
        except Exception as error:  # the caller says it
            answer = {"error": f"{type(error).__name__}: {error}"}
        ANSWERS.write(json.dumps(answer) + "\n")
        ANSWERS.flush()


main()
