"""Calls of OpenAI's API at times that do not wait for answers, as many apps make them; and a brake that slows a board.

    load = Load(token, "fleet", slo={"ttft": 200, "tpot": 20})
    outcomes = load.run("127.0.0.1:10000", count=1000, per_second=20, events={300: slow_a_board})

Neighbour: try_gateway.py, which judges the outcomes.
"""
import concurrent.futures
import dataclasses
import http.client
import json
import multiprocessing
import os
import random
import signal
import time

from envoy_proxy import BOARD

PATH = "/v1/chat/completions"
QUESTIONS = [f"Tell me a story about {what}." for what in (
    "a garden", "a boat", "the sea", "a mountain", "two friends", "a bird", "a house", "the night", "a river", "a road")]
MAX_TOKENS = 24
THREADS, TIMEOUT_S = 96, 60
# How often a client repeats a call that failed in a way that may pass.
REPEATS = 5
MAY_PASS = (429, 502, 503, 504)
PERIOD_S = 0.02


@dataclasses.dataclass
class Outcome:
    """What became of a call."""
    index: int
    sent_at: float
    board: str = ""
    text: str = ""
    met: bool = False
    attempts: int = 0  # Envoy's, of the last request
    repeats: int = 0   # the client's
    lost: str = ""     # why it has no answer
    measured: dict = dataclasses.field(default_factory=dict)


class Broken(Exception):
    """A call that may be repeated, after so long."""

    def __init__(self, reason, after_s=0.0):
        super().__init__(reason)
        self.after_s = after_s


def body_of(index, stream):
    return {"messages": [{"role": "user", "content": QUESTIONS[index % len(QUESTIONS)]}], "max_tokens": MAX_TOKENS, "temperature": 0,
            "stream": stream}


def read_answer(response, stream):
    """Returns the text and what the board says of its latency."""
    if not stream:
        document = json.loads(response.read())
        return document["choices"][0]["message"]["content"], document["withy"]["latency"]
    text, latency, ended = "", {}, False
    for line in response:
        if line.strip() == b"data: [DONE]":
            ended = True
        elif line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "error" in event:
                raise Broken(event["error"]["message"])
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            latency = event.get("withy", {}).get("latency", latency)
    if not ended:
        raise Broken("the stream broke off")
    return text, latency


def request(address, body, headers):
    """One request. Returns board, attempts of Envoy, text, latency. Raises Broken where a retry may help."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("POST", PATH, json.dumps(body), {"content-type": "application/json", **headers})
        response = connection.getresponse()
        if response.status in MAY_PASS:
            raise Broken(f"{response.status} {response.read()[:200]!r}", float(response.getheader("retry-after", "0")))
        if response.status != 200:
            raise AssertionError(f"{response.status} {response.read()[:500]!r}")
        text, latency = read_answer(response, body["stream"])
        return response.getheader(BOARD, address), int(response.getheader("x-envoy-attempt-count", "1")), text, latency
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


class Load:
    """Makes calls with one SLO. Thread-safe after it is made."""

    def __init__(self, token, name, slo=None):
        self.name = name
        # Answers at the full level are the same on every board.
        self.headers = {"authorization": f"Bearer {token}", "x-withy-model-level": "100"}
        for key, limit_ms in (slo or {}).items():
            self.headers[f"x-llm-d-slo-{key}-ms"] = f"{limit_ms:.3f}"

    def call(self, address, index, stream):
        outcome = Outcome(index, time.monotonic())
        headers = dict(self.headers, **{"idempotency-key": f"{self.name}-{index}"})
        for outcome.repeats in range(REPEATS + 1):
            try:
                outcome.board, outcome.attempts, outcome.text, latency = request(address, body_of(index, stream), headers)
                outcome.met, outcome.measured, outcome.lost = latency.get("slo_met", False), latency["measured"], ""
                return outcome
            except Broken as broken:
                outcome.lost = str(broken)
                time.sleep(max(broken.after_s, 0.05 * 2 ** outcome.repeats))  # a client's pause before it tries again
            except (AssertionError, KeyError, ValueError) as wrong:
                outcome.lost = f"{type(wrong).__name__}: {wrong}"
                return outcome
        return outcome

    def run(self, address, count, per_second, events=None, seed=1):
        """Calls begin at the times of a Poisson process; events[i]() happens before call i. Half of the calls are streams."""
        chance, begun, at = random.Random(seed), time.monotonic(), 0.0
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            futures = []
            for index in range(count):
                if events and index in events:
                    events[index]()
                at += chance.expovariate(per_second)
                time.sleep(max(0.0, begun + at - time.monotonic()))
                futures.append(pool.submit(self.call, address, index, index % 2 == 1))
            return [future.result() for future in futures]

    def throughput(self, address, count, at_once):
        """Calls a second that are answered while `at_once` run."""
        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            outcomes = list(pool.map(lambda index: self.call(address, index, False), range(count)))
        lost = [outcome.lost for outcome in outcomes if outcome.lost]
        assert not lost, lost[0]
        return count / (time.monotonic() - begun)


def brake_loop(pid, share):
    while True:
        run_s = PERIOD_S * share.value
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PERIOD_S - run_s)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return
        time.sleep(run_s)


class Brake:
    """Lets a process run only a share of the time, so that several boards on one machine do not slow each other, and one can
    be slowed. Owned by a script, which releases it before the process ends."""

    def __init__(self, pid, share):
        self.pid, self.share = pid, multiprocessing.Value("d", share)
        self.process = multiprocessing.Process(target=brake_loop, args=(pid, self.share), daemon=True)
        self.process.start()

    def set(self, share):
        self.share.value = share

    def release(self):
        if self.process is None:
            return
        self.process.kill()
        self.process.join()
        self.process = None
        os.kill(self.pid, signal.SIGCONT)
