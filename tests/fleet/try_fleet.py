#!/usr/bin/env python3
"""Tries a fleet on one machine: two boards with the same apps, and a gRPC client that finds them by xDS.

    python3 -m venv build/fleet && build/fleet/bin/pip install grpcio xds-protos
    build/fleet/bin/python tests/fleet/try_fleet.py [--namespaces] [BINARIES] [MODEL.gguf]

Starts one board, registers an app, copies its state directory to a second board, and starts both on TCP. A control plane in
this process (aggregated discovery, static resources) tells a gRPC client with an xDS bootstrap where they are. The client
calls "xds:///boards" with the app's token; what each board answered is read from its own metrics. Then one board is killed
and the calls go on. Prints what it saw as JSON; exit code 0 if
both boards answered and none of the later calls failed.

With --namespaces (as root, with iproute2) each board has a network namespace of its own and is reached through a pair of
virtual interfaces. There the second board is not killed: its cable is pulled, and plugged in again.
"""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from boards import Options, make_fleet, remove_fleet


def control_plane(boards):
    """Serves aggregated discovery with what never changes; returns its port and the server."""
    import grpc
    from envoy.config.cluster.v3 import cluster_pb2
    from envoy.config.core.v3 import base_pb2, config_source_pb2
    from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
    from envoy.config.listener.v3 import api_listener_pb2, listener_pb2
    from envoy.config.route.v3 import route_components_pb2, route_pb2
    from envoy.extensions.filters.http.router.v3 import router_pb2
    from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as manager_pb2
    from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
    from google.protobuf import any_pb2

    def packed(message):
        box = any_pb2.Any()
        box.Pack(message)
        return box

    router = manager_pb2.HttpFilter(name="router", typed_config=packed(router_pb2.Router()))
    route = route_components_pb2.Route(match=route_components_pb2.RouteMatch(prefix=""),
                                       route=route_components_pb2.RouteAction(cluster="boards"))
    routes = route_pb2.RouteConfiguration(
        name="boards", virtual_hosts=[route_components_pb2.VirtualHost(name="boards", domains=["*"], routes=[route])])
    manager = manager_pb2.HttpConnectionManager(route_config=routes, http_filters=[router])
    here = config_source_pb2.ConfigSource(ads=config_source_pb2.AggregatedConfigSource(), resource_api_version="V3")
    endpoints = [endpoint_components_pb2.LbEndpoint(health_status=1, endpoint=endpoint_components_pb2.Endpoint(address={
        "socket_address": {"address": board.network.address, "port_value": board.port}})) for board in boards]
    locality = endpoint_components_pb2.LocalityLbEndpoints(locality=base_pb2.Locality(region="here"), load_balancing_weight={"value": 1},
                                                lb_endpoints=endpoints)
    resources = [
        listener_pb2.Listener(name="boards", api_listener=api_listener_pb2.ApiListener(api_listener=packed(manager))),
        cluster_pb2.Cluster(name="boards", type=cluster_pb2.Cluster.EDS,
                            eds_cluster_config=cluster_pb2.Cluster.EdsClusterConfig(eds_config=here)),
        endpoint_pb2.ClusterLoadAssignment(cluster_name="boards", endpoints=[locality])]
    by_type = {packed(resource).type_url: packed(resource) for resource in resources}

    class Discovery(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
        def StreamAggregatedResources(self, requests, context):
            told = set()
            for request in requests:
                if request.type_url in by_type and request.type_url not in told:
                    told.add(request.type_url)
                    yield discovery_pb2.DiscoveryResponse(version_info="1", nonce=request.type_url, type_url=request.type_url,
                                                          resources=[by_type[request.type_url]])

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(Discovery(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return port, server


def field(number, payload):
    return bytes([number << 3 | 2, len(payload)]) + payload


# GenerateRequest{prompt {text: "hello"} limits {max_tokens: 4}}
REQUEST = field(2, field(1, b"hello")) + field(5, b"\x08\x04")


def main():
    try:
        import grpc
        import envoy.service.discovery.v3.ads_pb2_grpc  # noqa: F401
    except ImportError as missing:
        sys.exit(f"{missing}: pip install grpcio xds-protos")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="withy-fleet-"))
    options = Options(sys.argv[1:])
    seen, boards = {}, []
    try:
        boards = make_fleet(directory, 2, options)
        first, second = boards
        token = first.token
        port, server = control_plane([first, second])
        os.environ["GRPC_XDS_BOOTSTRAP_CONFIG"] = json.dumps({
            "xds_servers": [{"server_uri": f"127.0.0.1:{port}", "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}],
            "node": {"id": "try_fleet"}})
        # A board whose cable is pulled says nothing: keepalive finds out.
        alive = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 2_000)]
        with grpc.insecure_channel("xds:///boards", options=alive) as channel:
            generate = channel.unary_stream("/withy.v1.LlmService/Generate", request_serializer=bytes, response_deserializer=bytes)

            def calls(count):
                failed = 0
                for _ in range(count):
                    try:
                        list(generate(REQUEST, timeout=30, wait_for_ready=True, metadata=[("authorization", f"Bearer {token}")]))
                    except grpc.RpcError as error:
                        failed += 1
                        seen.setdefault("errors", []).append(f"{error.code()}: {error.details()}"[:200])
                return failed

            seen["failed_with_two"] = calls(20)
            seen["answered"] = [first.answered(), second.answered()]
            if options.namespaces:
                second.network.plug(False)
            else:
                second.stop(signal.SIGKILL)
            seen["failed_at_the_fault"] = calls(5)
            seen["failed_with_one"] = calls(20)
            if options.namespaces:
                second.network.plug(True)
                end = time.time() + 120
                while second.answered() <= seen["answered"][1] and time.time() < end:
                    seen["failed_when_back"] = seen.get("failed_when_back", 0) + calls(4)
                    time.sleep(2)
                seen["answered_when_back"] = second.answered() - seen["answered"][1]
        server.stop(0)
    finally:
        remove_fleet(boards)
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(seen))
    both = min(seen["answered"]) > 0 and seen.get("answered_when_back", 1) > 0
    return 0 if both and seen["failed_with_two"] == 0 and seen["failed_with_one"] == 0 else 1


sys.exit(main())
