"""An endpoint picker: chooses a board for each request that Envoy asks it about (ext_proc).

    python picker.py LISTEN_PORT PICKS_FILE HTTP_ADDRESS=METRICS_ADDRESS...

It reads each board's metrics ten times a second and expects a call to take as long as the board's time per output token, times
the calls that the board has and was sent since. The board with the least expected time is first in the header of the
destination, the others follow for retries; a board whose metrics cannot be read, or that is not ready, is left out.

A request with the header of a conversation goes home: boards are ordered by a hash of their address and the conversation's
name (highest random weight). So a conversation moves only when its own board is away. Envoy's ring hash, which is asked where
there is no picker, makes its ring anew for those that are left: then others move, too.

Each choice is a line "TIME ADDRESS" of PICKS_FILE, by the clock of time.monotonic().

Needs grpcio and xds-protos. Neighbour: envoy_proxy.py configures the proxy that asks.
"""
import asyncio
import hashlib
import http.client
import re
import sys
import time
import urllib.request

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc
from envoy_proxy import CONVERSATION, DESTINATION

SCRAPE_S, SCRAPE_TIMEOUT_S = 0.1, 0.5
AWAY_S = 1.0  # a board that was not seen for so long is away
# Half of what a board was slower than the best is forgotten after so long without news: then it is tried again.
FORGET_S = 10.0
NEWEST_WEIGHT = 0.3


class Board:
    """What is known of a board. For the thread of the event loop."""

    def __init__(self, address, metrics):
        self.address, self.metrics = address, metrics
        self.ready, self.seen_at, self.calls, self.sent = False, 0.0, 0.0, 0
        self.token_s, self.measured_at, self.total = None, 0.0, None

    def read(self, text, now):
        found = dict(re.findall(r'^(withy_\w+)\{process="orchestrator"\} ([-0-9.e+]+)', text, re.MULTILINE))
        self.calls = float(found["withy_calls_running"]) + float(found["withy_calls_queued"])
        self.ready, self.seen_at, self.sent = float(found["withy_ready"]) == 1, now, 0
        total = float(found.get("withy_tpot_seconds_sum", 0)), float(found.get("withy_tpot_seconds_count", 0))
        if self.total is not None and total[1] > self.total[1]:
            new = (total[0] - self.total[0]) / (total[1] - self.total[1])
            old = new if self.token_s is None else self.token_s
            self.token_s, self.measured_at = old + NEWEST_WEIGHT * (new - old), now
        self.total = total

    def usable(self, now):
        return self.ready and now - self.seen_at < AWAY_S

    def expected_s(self, best_token_s, now):
        slower_s = (self.token_s or best_token_s) - best_token_s
        token_s = best_token_s + slower_s * 0.5 ** ((now - self.measured_at) / FORGET_S)
        return token_s * (self.calls + self.sent + 1)


class Picker(ext_proc_grpc.ExternalProcessorServicer):
    def __init__(self, boards, picks):
        self.boards, self.picks = boards, picks

    def order(self):
        """Usable boards, the best first."""
        now = time.monotonic()
        usable = [board for board in self.boards if board.usable(now)]
        best = min((board.token_s for board in usable if board.token_s), default=1.0)
        usable.sort(key=lambda board: board.expected_s(best, now))
        if usable:
            usable[0].sent += 1
            self.picks.write(f"{now:.6f} {usable[0].address}\n")
        return [board.address for board in usable]

    def home(self, conversation):
        """Usable boards, the conversation's home first."""
        now = time.monotonic()
        usable = [board.address for board in self.boards if board.usable(now)]
        return sorted(usable, key=lambda address: hashlib.blake2b((address + conversation).encode()).digest())

    async def Process(self, request_iterator, context):
        async for request in request_iterator:
            if not request.HasField("request_headers"):
                raise ValueError(f"the picker is asked about {request.WhichOneof('request')}, not about a request's headers")
            answer = ext_proc.ProcessingResponse()
            mutation = answer.request_headers.response.header_mutation
            named = {header.key: header.raw_value.decode("utf-8", "replace") for header in request.request_headers.headers.headers}
            order = self.home(named[CONVERSATION]) if CONVERSATION in named else self.order()
            if order:
                option = mutation.set_headers.add()
                option.header.key, option.header.raw_value = DESTINATION, ",".join(order).encode()
                option.append_action = option.OVERWRITE_IF_EXISTS_OR_ADD
            else:  # no client chooses its board
                mutation.remove_headers.append(DESTINATION)
            yield answer


def scrape(board):
    with urllib.request.urlopen(f"http://{board.metrics}/metrics/lean", timeout=SCRAPE_TIMEOUT_S) as page:
        return page.read().decode()


async def watch(board):
    while True:
        try:
            board.read(await asyncio.to_thread(scrape, board), time.monotonic())
        except (OSError, http.client.HTTPException, KeyError):
            pass  # away, or its orchestrator is: it is not seen
        await asyncio.sleep(SCRAPE_S)


async def serve(port, picks, boards):
    server = grpc.aio.server()
    ext_proc_grpc.add_ExternalProcessorServicer_to_server(Picker(boards, picks), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.gather(*(watch(board) for board in boards))


def main():
    port, picks = int(sys.argv[1]), sys.argv[2]
    boards = [Board(*argument.split("=")) for argument in sys.argv[3:]]
    with open(picks, "w", buffering=1) as out:
        asyncio.run(serve(port, out, boards))


if __name__ == "__main__":
    main()
