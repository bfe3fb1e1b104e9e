"""Writes the translation units that clang-tidy reads: units.py BUILD_DIR OUT_DIR. Prints their paths, the longest first.

A unit has up to 36 sources of one target, with the flags that the build compiles them with but for precompiled headers, so that the
headers that they share are analysed once. A source of two targets is in the unit of the first; the main.cc of all programs are one unit.
Left out are tests, benchmarks and what supports them, which the compilers' warnings cover, and what includes LibTorch, whose headers take
clang-tidy a minute each.
"""
import json
import os
import re
import shlex
import sys

SOURCES_A_UNIT = 36
root = os.getcwd()
build, out = map(os.path.abspath, sys.argv[1:3])


def is_product(path):
    relative = os.path.relpath(path, root)
    return relative.endswith(".cc") and not relative.startswith(("..", "build", "bench/", "cmake/", "tests/")) and not relative.endswith("_test.cc")


def is_analysed(source):
    return source not in seen and not source.endswith(("_testing.cc", "_bench.cc"))


def flags(command):
    """The arguments before the output, without precompiled headers."""
    words = shlex.split(command)
    compiler = next(i for i, word in enumerate(words) if re.search(r"(\+\+|cc|clang|gcc)(-\d+)?$", word) and "ccache" not in word)
    words = words[compiler:words.index("-o")]
    kept, skip = [], False
    for word, following in zip(words, words[1:] + [""]):
        if skip:
            skip = False
        elif word == "-include" and "cmake_pch" in following:
            skip = True
        elif word == "-isystem":
            skip = True
            kept.append(word + following)
        elif word not in ("-Winvalid-pch", "-fpch-preprocess"):
            kept.append(word)
    return kept


groups = {}  # by target and flags
mains, main_flags = [], []
seen = set()
for entry in json.load(open(os.path.join(build, "compile_commands.json"))):
    unit = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
    sources = re.findall(r'^#include "(.*)"', open(unit).read(), re.M) if "/Unity/" in unit else [unit]
    if "torch/csrc/api" in entry["command"] or not all(map(is_product, sources)):
        continue
    sources = list(filter(is_analysed, map(os.path.realpath, sources)))
    seen.update(sources)
    if sources and all(os.path.basename(source) == "main.cc" for source in sources):
        mains += sources
        main_flags += [flag for flag in flags(entry["command"]) if flag not in main_flags]
    elif sources:
        target = re.search(r" -o \S*?([^/ ]*)\.dir/", entry["command"]).group(1)
        alone = "" if "/Unity/" in unit else unit
        groups.setdefault((target, alone, tuple(flags(entry["command"])), entry["directory"]), []).extend(sources)
groups[("mains", "", tuple(main_flags), build)] = mains

os.makedirs(out, exist_ok=True)
database, sizes = [], {}
for (target, alone, arguments, directory), sources in groups.items():
    for first in range(0, len(sources), SOURCES_A_UNIT):
        part = sources[first:first + SOURCES_A_UNIT]
        unit = alone
        if not alone:
            unit = os.path.join(out, f"{target}_{first // SOURCES_A_UNIT}.cc")
            with open(unit, "w") as file:
                for index, source in enumerate(part):
                    rename = target == "mains"
                    file.write(f'#define main main_{first + index}\n' * rename + f'#include "{source}"\n' + "#undef main\n" * rename)
        database.append({"directory": directory, "file": unit, "arguments": [*arguments, "-c", unit]})
        sizes[unit] = sum(map(os.path.getsize, part))
with open(os.path.join(out, "compile_commands.json"), "w") as file:
    json.dump(database, file)
print("\n".join(sorted(sizes, key=sizes.get, reverse=True)))
