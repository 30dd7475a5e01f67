"""Requests a second of a served MLP, by a client of its own over loopback.

    python -m benchmarks.serving     # ratios of interleaved rounds: batches against none

Server and client are a process each; the client keeps connections open, with one request each
under way, and checks every answer against NumPy's.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.serve import App, Batching, Model, Repository

ROOT = Path(__file__).parent.parent
WIDTHS = {"small": (16, 64, 64, 4), "wide": (64, 1024, 1024, 4)}
DELAY = 0.002


def weights(kind: str) -> list[np.ndarray]:
    """The layers of the MLP of a kind."""
    rng, sizes = np.random.default_rng(0), WIDTHS[kind]
    return [
        (rng.standard_normal(shape) / shape[0] ** 0.5).astype("f4") for shape in pairwise(sizes)
    ]


def application(kind: str, batch: int, delay: float) -> App:
    """The MLP behind the protocol."""
    layers = weights(kind)

    def mlp(x):
        for w in layers[:-1]:
            x = fnp.maximum(x @ w, 0)
        return x @ layers[-1]

    model = Model("mlp", mlp, {"x": ("float32", (-1, WIDTHS[kind][0]))})
    how = Batching(max_batch_size=batch, max_delay=delay)
    model.warm_up(how.sizes)
    return App(Repository([model]), how)


def serve(kind: str, batch: int, delay: float, listening: int) -> None:
    """The server's process."""
    import uvicorn

    # As a socket, not as `fd`, which uvicorn takes for one of Unix: answers would wait for
    # acknowledgements (TCP_NODELAY isn't set there), and that is all that was measured.
    config = uvicorn.Config(application(kind, batch, delay), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listening)])


def requests(kind: str, n: int, binary: bool) -> list[tuple[bytes, np.ndarray]]:
    """Some requests, and what their answers must hold."""
    rng, found = np.random.default_rng(1), []
    for _ in range(n):
        x = rng.standard_normal((1, WIDTHS[kind][0])).astype("f4")
        y = x
        for w in weights(kind)[:-1]:
            y = np.maximum(y @ w, 0)
        item: dict = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
        told: dict = {"inputs": [item]}
        if binary:
            item["parameters"] = {"binary_data_size": x.nbytes}
            told["parameters"] = {"binary_data_output": True}
        else:
            item["data"] = x.reshape(-1).tolist()
        head = json.dumps(told).encode()
        body = head + x.tobytes() if binary else head
        more = f"Inference-Header-Content-Length: {len(head)}\r\n" if binary else ""
        start = f"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: x\r\n{more}"
        text = f"{start}Content-Length: {len(body)}\r\n\r\n".encode() + body
        found.append((text, (y @ weights(kind)[-1])[0]))
    return found


def answered(kind: str, data: bytes, binary: bool) -> np.ndarray | None:
    """The result in an answer, or None where it isn't whole yet."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return None
    head = head.lower()
    length = int(head.split(b"content-length:", 1)[1].split(b"\r", 1)[0])
    if len(body) < length:
        return None
    if b" 200 " not in head[:15]:
        raise SystemExit(f"the server answered {data[:300]!r}")
    if binary:
        return np.frombuffer(body[-4 * WIDTHS[kind][-1] :], "f4")
    return np.array(json.loads(body)["outputs"][0]["data"])


def ask(kind: str, port: int, connections: int, seconds: float, binary: bool) -> np.ndarray:
    """The latencies of all requests that were answered in this time."""
    texts = requests(kind, 16, binary)
    selector, latencies = selectors.DefaultSelector(), []
    state: dict = {}
    for i in range(connections):
        s = socket.create_connection(("127.0.0.1", port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(s, selectors.EVENT_READ, i % len(texts))
        s.sendall(texts[i % len(texts)][0])
        state[s] = [b"", time.perf_counter()]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not latencies:
        for event, _ in selector.select(1):
            s, i = event.fileobj, event.data
            state[s][0] += s.recv(65536)
            got = answered(kind, state[s][0], binary)
            if got is None:
                continue
            latencies.append(time.perf_counter() - state[s][1])
            if not np.allclose(got, texts[i][1], atol=1e-4):
                raise SystemExit(f"a wrong answer: {got}, not {texts[i][1]}")
            state[s] = [b"", time.perf_counter()]
            s.sendall(texts[i][0])
    for s in state:
        s.close()
    return np.array(latencies)


class Server:
    """A server's process, until the end of the `with`."""

    def __init__(self, kind: str, batch: int, delay: float):
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        listening.set_inheritable(True)
        call = [sys.executable, "-m", "benchmarks.serving", "--serve", kind, str(batch), str(delay),
                str(listening.fileno())]  # fmt: skip
        self.process = subprocess.Popen(
            call, cwd=ROOT, pass_fds=[listening.fileno()], env=os.environ
        )
        listening.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.serve:
        kind, batch, delay, listening = args.serve
        serve(kind, int(batch), float(delay), int(listening))
        return
    for kind in WIDTHS:
        hows = {"none": (1, 0.0), "batches": (32, 0.0), "delay": (32, DELAY)}
        for binary in (False, True):
            rates: dict = {how: [] for how in hows}
            slow: dict = {how: [] for how in hows}
            for _ in range(args.rounds):
                for how, (batch, delay) in hows.items():
                    with Server(kind, batch, delay) as server:
                        ask(kind, server.port, args.connections, 0.5, binary)
                        took = ask(kind, server.port, args.connections, args.seconds, binary)
                    rates[how].append(len(took) / args.seconds)
                    slow[how].append(np.percentile(took, 99))
            middle = {how: statistics.median(r) for how, r in rates.items()}
            print(f"{kind}, {'bytes' if binary else 'JSON'}, {args.connections} connections")
            for how, rate in middle.items():
                print(
                    f"  {how:8} {rate:8.0f} requests/s, {rate / middle['none']:.2f} x none; "
                    f"p99 {statistics.median(slow[how]) * 1e3:.1f} ms"
                )


if __name__ == "__main__":
    main()
