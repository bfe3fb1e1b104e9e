#!/usr/bin/env python3
"""Makes the vectors of the tests of pre-tokenizers (engine/tokenizer/split_test.cc).

Splits texts by the regular expressions of published tokenizer.json files, with the package tokenizers (PyPI). OUT has the texts, each
as `text HEXADECIMAL`, then for each name `rule NAME` and for each text a line with the ends of its words in bytes. Only a developer
runs this, when a rule is added; tests read the file.

    pip install tokenizers
    python3 tests/golden/make_pre_tokenizer_vectors.py tests/golden/data/pre_tokenizers/vectors.txt
"""

import random
import sys

from tokenizers import Regex, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD = r"[^\r\n\p{L}\p{N}]?"
SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters with case, as DeepSeek LLM's tokenizer.json lists them.
CASED = (
    r"\x{0041}-\x{005A}\x{0061}-\x{007A}\x{00B5}\x{00C0}-\x{00D6}\x{00D8}-\x{00F6}\x{00F8}-\x{01BA}\x{01BC}-\x{01BF}"
    r"\x{01C4}-\x{0293}\x{0295}-\x{02AF}\x{0370}-\x{0373}\x{0376}\x{0377}\x{037B}-\x{037D}\x{037F}\x{0386}"
    r"\x{0388}-\x{038A}\x{038C}\x{038E}-\x{03A1}\x{03A3}-\x{03F5}\x{03F7}-\x{0481}\x{048A}-\x{052F}\x{0531}-\x{0556}"
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}"
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}"
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}"
    r"\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}"
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}"
    r"\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}"
    r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)

RULES = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [SHORT + WORD + r"|\p{N}{1,3}" + TAIL],
    "qwen2": [SHORT + WORD + r"|\p{N}" + TAIL],
    "qwen35": [SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "seed-coder": [SHORT + WORD + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"],
    "ufakzeka": [WORD[1:] + r"|\p{N}" + TAIL],
    "laguna": [r"[^\n]+|[\n]+", SHORT + WORD + r"|\p{N}" + TAIL],
    "minicpm5": [r"\p{N}{1,3}", SHORT + WORD + r"|\p{N}+" + TAIL],
    "tekken": [LEAD + UPPER + "*" + LOWER + "+|" + LEAD + UPPER + "+" + LOWER + r"*|\p{N}" + SIGNS],
    "gpt-4o": [LEAD + UPPER + "*" + LOWER + "+" + SHORT + "?|" + LEAD + UPPER + "+" + LOWER + "*" + SHORT + r"?|\p{N}{1,3}" + SIGNS],
    "deepseek-llm": ["[\r\n]", r"\s?[" + CASED + "]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
                     DEEPSEEK_CJK, r"\p{N}+"],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                    r"|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "poro-chat": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"],
    "viking": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", r"\p{N}"],
}

TEXTS = [
    "Hello, world! It's 12345 o'clock, isn't it? WE'LL SEE: they'd've.",
    "  two  spaces   three\t\ttabs \n\n  \n new\r\nlines\n",
    "def f(x):\n    return x**2 + 3.14e-10  # comment\n\n\nclass A_b:\n\tpass\n",
    "camelCaseHTTPServer iPhone McDonald USA's \u01c5ep DzEP",
    "na\u00efve caf\u00e9 e\u0301te\u0301 \u0e17\u0e35\u0e48 \u0928\u092e\u0938\u094d\u0924\u0947\u0964 \u0645\u0631\u062d\u0628\u0627\u060c",
    "\u4e2d\u6587\u5b57\u7b26\uff0c\u3053\u3093\u306b\u3061\u306f\u3002\uc548\ub155 \u03b1\u03b2\u03b3 \u0414\u043e\u0431\u0440\u044b\u0439\u3000\u0434\u0435\u043d\u044c",
    "http://example.com/a/b?c=d&e=f#g $1,000,000.00 50% \u20ac9 \u00bd \u0661\u0662\u0663\u0664 1e9",
    "\U0001f600 emoji\U0001f468\u200d\U0001f469!\u2026 \u2018q\u2019 \u00abz\u00bb [x](y) {a|b} <s> ~~/~~//\n/\n",
    "trailing   ", "\n", " ", "'s", "a's'S 'LL'x '' 1's", "  1  22  333  4444  ", "\u1e9e\u10d0\u10e1 \u2c5e\uab71\ua791",
]


def random_texts(rng, count):
    signs = list("aBc1 2\n\r\t'sS.,/!(\u00e9\u0301\u4e2d\u3042\u00bd$|\u3000\u2026xT") + ["'ll", "  ", "123", "\r\n"]
    return ["".join(rng.choice(signs) for _ in range(rng.randint(1, 30))) for _ in range(count)]


def ends(splitter, text):
    total, out = 0, []
    for _, (begin, end) in splitter.pre_tokenize_str(text):
        assert begin == total, (text, begin, total)
        total = end
        out.append(len(text[:end].encode()))
    assert total == len(text)
    return out


def main():
    texts = TEXTS + random_texts(random.Random(7), 60)
    with open(sys.argv[1], "w") as out:
        out.writelines(f"text {text.encode().hex()}\n" for text in texts)
        for name, patterns in RULES.items():
            splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns])
            out.write(f"rule {name}\n")
            out.writelines(" ".join(map(str, ends(splitter, text))) + "\n" for text in texts)


main()
