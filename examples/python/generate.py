#!/usr/bin/python3
"""Asks withy for an answer and prints it as it comes.

Needs: apt-get install python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc
Usage: generate.py [--address unix:/run/withy/withy.sock] [--ttft-ms 200] PROMPT
The token: WITHY_TOKEN, or that of the app that `withyctl apps bind NAME` bound last.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import grpc


def load_stubs():
    """Makes the Python stubs of the contract and imports them."""
    root = pathlib.Path(__file__).resolve().parents[2] / "proto"
    plugin = shutil.which("grpc_python_plugin")
    if plugin is None or shutil.which("protoc") is None:
        sys.exit("generate.py: protoc is missing: apt-get install protobuf-compiler protobuf-compiler-grpc")
    with tempfile.TemporaryDirectory() as out:
        command = ["protoc", f"-I{root}", f"--python_out={out}", f"--grpc_python_out={out}"]
        command += [f"--plugin=protoc-gen-grpc_python={plugin}"]
        subprocess.run(command + ["withy/v1/types.proto", "withy/v1/llm_service.proto"], check=True)
        sys.path.insert(0, out)
        from withy.v1 import llm_service_pb2, llm_service_pb2_grpc
    return llm_service_pb2, llm_service_pb2_grpc


def find_token():
    token = os.environ.get("WITHY_TOKEN")
    if token:
        return token
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    try:
        return pathlib.Path(home, "withy", "token").read_text().strip()
    except FileNotFoundError:
        sys.exit("generate.py: no token: run `withyctl apps bind NAME` first, or set WITHY_TOKEN")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt")
    parser.add_argument("--address", default=os.environ.get("WITHY_ADDRESS", "unix:/run/withy/withy.sock"))
    parser.add_argument("--ttft-ms", type=float, default=0, help="ask for the first token within this time")
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()

    pb, pb_grpc = load_stubs()
    request = pb.GenerateRequest()
    request.prompt.messages.messages.add(role="user", content=args.prompt)
    request.limits.max_tokens = args.max_tokens
    request.slo.ttft_ms = args.ttft_ms

    with grpc.insecure_channel(args.address) as channel:
        service = pb_grpc.LlmServiceStub(channel)
        metadata = [("authorization", "Bearer " + find_token())]
        try:
            for message in service.Generate(request, metadata=metadata, timeout=120):
                event = message.WhichOneof("event")
                if event == "started":
                    print(message.started.decision.explanation, file=sys.stderr)
                elif event == "delta":
                    print(message.delta.text, end="", flush=True)
                else:
                    latency = message.finished.latency
                    print()
                    verdict = f", SLO {'met' if latency.slo_met else 'missed'}" if args.ttft_ms > 0 else ""
                    print(
                        f"TTFT {latency.measured.ttft_ms:.1f} ms, TPOT {latency.measured.tpot_ms:.2f} ms{verdict}",
                        file=sys.stderr,
                    )
        except grpc.RpcError as error:
            sys.exit(f"generate.py: {error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
