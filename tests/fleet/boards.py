"""Boards on one machine, for the scripts of this folder: the five processes of each, with state, ports and, where asked for, a
network of its own.

    boards = make_fleet(directory, 3, Options(sys.argv[1:]))     # serving, with the same app, whose token each has
    boards[1].stop(signal.SIGKILL)
    remove_fleet(boards)

Neighbours: try_fleet.py and try_gateway.py drive them.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROCESSES = ["context-store", "model-worker", "draft-worker", "profiler-agent", "orchestrator"]
START_S = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Network:
    """The loopback of this machine."""
    address, enter = "127.0.0.1", []

    def remove(self):
        pass


class Namespace:
    """A network of its own, joined to this machine's by a cable. Needs root and iproute2."""

    def __init__(self, number):
        self.name, self.cable, self.address = f"withy{number}", f"withy{number}h", f"10.77.{number}.2"
        self.enter = ["ip", "netns", "exec", self.name]
        here, there = ["ip"], ["ip", "-n", self.name]
        self.remove()
        for words in (here + ["netns", "add", self.name],
                      here + ["link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.name],
                      here + ["address", "add", f"10.77.{number}.1/24", "dev", self.cable],
                      here + ["link", "set", self.cable, "up"],
                      there + ["address", "add", f"{self.address}/24", "dev", "eth0"],
                      there + ["link", "set", "eth0", "up"], there + ["link", "set", "lo", "up"]):
            subprocess.run(words, check=True)

    def plug(self, into):
        subprocess.run(["ip", "link", "set", self.cable, "up" if into else "down"], check=True)

    def remove(self):
        subprocess.run(["ip", "netns", "delete", self.name], stderr=subprocess.DEVNULL)


class Options:
    """What the command line says: [--namespaces] [BINARIES] [MODEL.gguf]."""

    def __init__(self, arguments):
        words = [argument for argument in arguments if argument != "--namespaces"]
        self.namespaces = len(words) < len(arguments)
        self.binaries = pathlib.Path(words[0] if words else ROOT / "build/release/bin").resolve()
        self.model = pathlib.Path(words[1] if len(words) > 1 else ROOT / "models/withy-pocket-q8_0.gguf").resolve()


class Board:
    """Owned by a script, which stops it and removes its network. For one thread."""

    def __init__(self, directory, network, options):
        self.directory, self.network, self.options = directory, network, options
        self.port, self.http_port, self.metrics_port = free_port(), free_port(), free_port()
        self.running, self.token = {}, ""

    @property
    def http(self):
        return f"{self.network.address}:{self.http_port}"

    @property
    def metrics(self):
        return f"{self.network.address}:{self.metrics_port}"

    def start(self):
        (self.directory / "run").mkdir(parents=True, exist_ok=True)
        config = self.directory / "withy.textproto"
        config.write_text(f"""
            run_dir: "{self.directory}/run" state_dir: "{self.directory}/state" log_level: "warn"
            orchestrator {{ listen: "unix:{self.directory}/run/withy.sock" listen: "{self.network.address}:{self.port}"
                            http_listen: "{self.http}" tlm_path: "off" audit_off: true }}
            model {{ path: "{self.options.model}" threads: 1 }}
            draft {{ path: "{ROOT}/models/withy-pocket-draft-q8_0.gguf" threads: 1 }} store {{ arena_bytes: 268435456 }}
            profiler {{ metrics_listen: "{self.metrics}" }}
            tls {{ allow_plaintext_tcp: true }}""")
        for name in PROCESSES:
            with open(self.directory / f"{name}.log", "a") as log:
                command = self.network.enter + [self.options.binaries / f"withy-{name}", "--config", config]
                self.running[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def ctl(self, *words):
        environment = dict(os.environ, XDG_CONFIG_HOME=str(self.directory / "home"))
        return subprocess.run([self.options.binaries / "withyctl", *words, "--address", f"unix:{self.directory}/run/withy.sock"],
                              env=environment, capture_output=True, text=True, timeout=60)

    def wait(self):
        end = time.monotonic() + START_S
        while self.ctl("status", "--quiet").returncode != 0:
            if time.monotonic() > end:
                sys.exit(f"{self.directory}: the board does not serve: " + self.ctl("status").stdout + self.logs())
            time.sleep(0.2)

    def logs(self):
        return "".join(f"{name}: {text}" for name in PROCESSES
                       if (text := (self.directory / f"{name}.log").read_text()))

    def pid(self, process):
        return self.running[process].pid

    def stop(self, how=signal.SIGTERM):
        for process in reversed(self.running.values()):
            process.send_signal(how)
        for process in self.running.values():
            process.wait(60)
        self.running = {}

    def kv_tokens(self):
        """Of each context: the tokens whose KV the board has, in memory or on disk."""
        listed = self.ctl("contexts", "list", "--json", "--token", self.token)
        return [context["kv_tokens"] for context in json.loads(listed.stdout)["contexts"]]

    def answered(self):
        """Calls that this board has answered since it started."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics/lean", timeout=10) as page:
            found = re.findall(r'^withy_calls_total\{process="orchestrator",code="OK"\} (\d+)', page.read().decode(), re.MULTILINE)
        return int(found[0]) if found else 0


def make_fleet(directory, count, options, app="fleet"):
    """Starts `count` boards that know the same app: the others begin with the first one's state. Returns them, serving;
    if that fails, none is left running."""
    boards = []
    try:
        for number in range(1, count + 1):
            boards.append(Board(directory / str(number), Namespace(number) if options.namespaces else Network(), options))
        first = boards[0]
        first.start()
        first.wait()
        token = first.ctl("apps", "bind", app, "--print").stdout.strip()
        first.stop()
        for board in boards:
            board.token = token
            if board is not first:
                shutil.copytree(first.directory / "state", board.directory / "state")
        for board in boards:
            board.start()
        for board in boards:
            board.wait()
    except BaseException:
        remove_fleet(boards)
        raise
    return boards


def remove_fleet(boards):
    for board in boards:
        board.stop(signal.SIGKILL)
        board.network.remove()
