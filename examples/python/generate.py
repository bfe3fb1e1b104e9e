#!/usr/bin/python3
"""Sends a prompt to withy and prints the answer as it arrives.

Needs: apt-get install python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc
Usage: generate.py [--address unix:/run/withy/withy.sock] [--ttft-ms 200] PROMPT
The token: WITHY_TOKEN, or that of the app that `withyctl apps bind NAME` bound last.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

PACKAGES = "python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc"


def fail(what):
    sys.exit(f"generate.py: {what}")


def import_grpc():
    """Imports the gRPC module, or names the package that provides it."""
    try:
        import google.protobuf
        import grpc
    except ImportError as error:
        fail(f"{error}: apt-get install {PACKAGES}, and use Debian's python3")
    return grpc


def load_stubs():
    """Makes the Python stubs of the contract and imports them."""
    root = pathlib.Path(__file__).resolve().parents[2] / "proto"
    if not (root / "withy/v1/llm_service.proto").is_file():
        fail(f"the contract is not in {root}: this script finds it from its place in withy's tree or installation")
    plugin = shutil.which("grpc_python_plugin")
    if plugin is None or shutil.which("protoc") is None:
        fail(f"protoc or its plugin for Python is missing: apt-get install {PACKAGES}")
    with tempfile.TemporaryDirectory() as out:
        command = ["protoc", f"-I{root}", f"--python_out={out}", f"--grpc_python_out={out}"]
        command += [f"--plugin=protoc-gen-grpc_python={plugin}"]
        made = subprocess.run(command + ["withy/v1/types.proto", "withy/v1/llm_service.proto"])
        if made.returncode != 0:
            fail("protoc could not make the stubs; what it says stands above")
        sys.path.insert(0, out)
        try:
            from withy.v1 import llm_service_pb2, llm_service_pb2_grpc
        except Exception as error:  # the protobuf module's version differs from protoc's
            fail(f"the stubs that protoc made do not fit the Python modules ({error}): apt-get install {PACKAGES}")
    return llm_service_pb2, llm_service_pb2_grpc


def find_token():
    token = os.environ.get("WITHY_TOKEN", "")
    if not token:
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        path = pathlib.Path(home, "withy", "token")
        try:
            token = path.read_text().strip()
        except FileNotFoundError:
            fail("no token: run `withyctl apps bind NAME` first, or set WITHY_TOKEN")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"no token: cannot read {path} ({error}); run `withyctl apps bind NAME`, or set WITHY_TOKEN")
    if not token or not all("!" <= c <= "~" for c in token):
        fail("the token is empty or has characters that no token has: run `withyctl apps bind NAME`")
    return token


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt")
    parser.add_argument("--address", default=os.environ.get("WITHY_ADDRESS") or "unix:/run/withy/withy.sock")
    parser.add_argument("--ttft-ms", type=float, default=0, help="ask for the first token within this time")
    parser.add_argument("--max-tokens", type=int, default=0, help="default: until the model ends its turn")
    parser.add_argument("--temperature", type=float, help="0 is greedy; default: the service's for this model")
    args = parser.parse_args()

    grpc = import_grpc()
    pb, pb_grpc = load_stubs()
    request = pb.GenerateRequest()
    try:
        request.prompt.messages.messages.add(role="user", content=args.prompt)
        request.limits.max_tokens = args.max_tokens
        request.slo.ttft_ms = args.ttft_ms
        if args.temperature is not None:
            request.sampling.temperature = args.temperature
    except ValueError as error:
        fail(f"the request cannot be made: {error}")

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
                elif event == "finished":
                    print(flush=True)
                    report(message.finished, args.ttft_ms > 0)
        except grpc.RpcError as error:
            help_text = ""
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                help_text = f"; is withy running at {args.address}? `./withy up` or `systemctl start withy.target`"
                help_text += " starts it, --address or WITHY_ADDRESS says where it is"
            fail(f"{error.code().name}: {error.details()}{help_text}")
        except UnicodeEncodeError as error:
            fail(f"the answer cannot be printed here: {error}; set PYTHONIOENCODING=utf-8")


def report(finished, asked_for_speed):
    """Prints statistics of the answer to standard error."""
    if finished.explanation:
        print(finished.explanation, file=sys.stderr)
    latency = finished.latency
    verdict = f", SLO {'met' if latency.slo_met else 'missed'}" if asked_for_speed else ""
    print(
        f"TTFT {latency.measured.ttft_ms:.1f} ms, TPOT {latency.measured.tpot_ms:.2f} ms{verdict}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # standard output is full or closed, or the stubs cannot be written
        fail(error)
