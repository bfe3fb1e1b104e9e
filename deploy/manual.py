#!/usr/bin/env python3
"""Writes the manual pages and the completion of a built withyctl: manual.py CONFIG_PROTO VERSION OUT_DIR WITHYCTL...

WITHYCTL...: how withyctl is started, with an emulator before it if another machine's is.

  OUT_DIR/man1/withyctl.1.gz          from what its --help says
  OUT_DIR/man5/withy.textproto.5.gz   from the comments of the configuration's fields
  OUT_DIR/completions/withyctl        for bash
"""
import gzip
import pathlib
import re
import subprocess
import sys

config_proto, version, out = sys.argv[1:4]
withyctl = sys.argv[4:]
out = pathlib.Path(out)


def run(*words):
    return subprocess.run([*withyctl, *words, "--help"], check=True, capture_output=True, text=True).stdout


def commands():
    """(name, operands, summary, {flag: (argument, what it does)}) of each command."""
    for line in run().splitlines()[1:]:
        head, summary = re.fullmatch(r"  (.+?)  +(.*)", line).groups()
        words = re.match(r"[a-z -]+", head + " ").group().split()
        name = " ".join(words)
        flags = {}
        for flag in run(*words).splitlines()[2:]:
            match = re.fullmatch(r"  (--[a-z0-9-]+) ?(.*?)  +(.*)", flag)
            if match is None:
                sys.exit(f"manual.py: cannot read this line of `withyctl {name} --help`: {flag}")
            flags[match[1]] = (match[2], match[3])
        yield name, head[len(name):].strip(), summary, flags


def roff(text):
    """Text as troff prints it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def write_page(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def client_page(all_commands):
    page = [f'.TH WITHYCTL 1 "" "withy {version}" "User Commands"', ".SH NAME", "withyctl \\- command\\-line client of withy, the board's LLM service",
            ".SH SYNOPSIS", ".B withyctl", "COMMAND [FLAGS]", ".SH DESCRIPTION",
            "Talks to the service at unix:/run/withy/withy.sock, or where WITHY_ADDRESS, \\-\\-address or \\-\\-config says.", ".SH COMMANDS"]
    for name, operands, summary, flags in all_commands:
        page += [f'.SS "{roff(f"withyctl {name} {operands}".strip())}"', roff(summary)]
        for flag, (argument, meaning) in flags.items():
            page += [".TP", f"\\fB{roff(flag)}\\fR {roff(argument)}", roff(meaning)]
    page += [".SH EXIT STATUS", "0: done. 1: the call failed. 2: the command line is wrong.", ".SH SEE ALSO", ".BR withy.textproto (5)"]
    return "\n".join(page) + "\n"


def config_fields(text):
    """(path, type, comment) of each field, messages in the place of the fields that have them."""
    messages, name, comment = {}, None, []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("//"):
            comment.append(line[2:].strip())
            continue
        if match := re.fullmatch(r"message (\w+) \{", line):
            name = match[1]
            messages[name] = []
        elif (match := re.match(r"(repeated |optional )?([\w.]+) (\w+) = \d+.*;", line)) and name:
            messages[name].append((match[3], match[2], (match[1] or "").strip(), " ".join(comment)))
        elif line == "}":
            name = None
        comment = []

    def walk(message, prefix):
        for field, kind, label, said in messages[message]:
            yield prefix + field, (label + " " + kind).strip(), said
            if kind in messages:
                yield from walk(kind, prefix + field + ".")

    return list(walk("Config", ""))


def config_page(text):
    head = text[:text.index("syntax =")]
    about = " ".join(line[2:].strip() for line in head.splitlines() if line.startswith("//"))
    page = [f'.TH WITHY.TEXTPROTO 5 "" "withy {version}" "File Formats"', ".SH NAME", "withy.textproto \\- configuration of withy", ".SH DESCRIPTION", roff(about),
            "Check a file with \\fBwithyctl config check\\fR, install it with \\fBwithyctl config install\\fR.", ".SH FIELDS"]
    for path, kind, said in config_fields(text):
        page += [".TP", f"\\fB{roff(path)}\\fR ({roff(kind)})", roff(said) or "\\&"]
    page += [".SH SEE ALSO", ".BR withyctl (1)"]
    return "\n".join(page) + "\n"


def completion(all_commands):
    names = [name for name, *_ in all_commands]
    firsts = sorted({name.split()[0] for name in names})
    lines = ["# bash completion of withyctl", "_withyctl() {", '  local word=${COMP_WORDS[COMP_CWORD]} words=""',
             "  if ((COMP_CWORD == 1)); then", f'    words="{" ".join(firsts)} --version --help"', "  else",
             '    case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in']
    for first in firsts:
        seconds = [name.split()[1] for name in names if name.startswith(first + " ")]
        for name, _, _, flags in all_commands:
            if name.split()[0] == first:
                lines.append(f'      "{name}"*) words="{" ".join(flags)} --help" ;;')
        if seconds:
            lines.append(f'      "{first} "*) words="{" ".join(seconds)}" ;;')
    lines += ["    esac", "  fi", '  [[ $word == -* || COMP_CWORD -lt 3 ]] || words=""',
              '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")', "}", "complete -o default -F _withyctl withyctl", ""]
    return "\n".join(lines)


everything = list(commands())
if len(everything) < 20:
    sys.exit("manual.py: withyctl --help names too few commands")
proto = pathlib.Path(config_proto).read_text()
write_page(out / "man1/withyctl.1.gz", client_page(everything))
write_page(out / "man5/withy.textproto.5.gz", config_page(proto))
(out / "completions").mkdir(parents=True, exist_ok=True)
(out / "completions/withyctl").write_text(completion(everything))
