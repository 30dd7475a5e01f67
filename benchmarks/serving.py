"""Requests a second of a served MLP, by a client in C over loopback.

    python -m benchmarks.serving small      # ratios of interleaved rounds
    python -m benchmarks.serving wide --connections 64 --tensors bytes

Server and client are a process each, the client with one request under way on each connection, and
every answer is checked. `constant` is an application of three lines on the same server: what the
machine and the server leave to any. `two` are two processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from http.client import HTTPResponse
from itertools import pairwise
from pathlib import Path

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import export
from funcgrad.serve import load_model

ROOT = Path(__file__).parent.parent
# The weights of the wide one are larger than a processor's caches: a single row waits for them.
WIDTHS = {"small": (16, 64, 64, 4), "wide": (64, 3072, 3072, 4)}
DELAY, MOST = 0.002, 32
HOWS = {
    "constant": "", "none": "--max-batch-size 1", "batches": f"--max-batch-size {MOST}",
    "delay": f"--max-batch-size {MOST} --max-delay {DELAY}",
    "two": f"--max-batch-size {MOST} --processes 2",
}  # fmt: skip


def weights(kind: str) -> list[np.ndarray]:
    """The layers of the MLP of a kind."""
    rng, sizes = np.random.default_rng(0), WIDTHS[kind]
    return [
        (rng.standard_normal(shape) / shape[0] ** 0.5).astype("f4") for shape in pairwise(sizes)
    ]


def exported(kind: str, path: Path) -> None:
    """Write the MLP to a file."""
    layers = weights(kind)

    def mlp(x):
        for w in layers[:-1]:
            x = fnp.maximum(x @ w, 0)
        return x @ layers[-1]

    rows = fg.ShapeDtypeStruct(export.symbolic_shape(f"b, {WIDTHS[kind][0]}"), "float32")
    export.export(fg.jit(mlp))(rows).save(path)


def constant(kind: str, binary: bool) -> Callable[..., Awaitable[None]]:
    """An application that says what the MLP says of the first request."""
    (_, wanted), *_ = requests(kind, 1, binary)
    told: dict = {"model_name": "mlp", "model_version": "1", "outputs": [
        {"name": "output", "datatype": "FP32", "shape": [1, len(wanted)]}]}  # fmt: skip
    if not binary:
        told["outputs"][0]["data"] = wanted.tolist()
    body = json.dumps(told).encode() + (wanted.tobytes() if binary else b"")
    headers = [(b"content-length", str(len(body)).encode())]

    async def app(scope: dict, receive: Callable, send: Callable) -> None:
        if scope["type"] == "http":
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return app


def serve(kind: str, binary: bool, port: int) -> None:
    """The constant's process."""
    import uvicorn

    uvicorn.run(constant(kind, binary), port=port, log_level="warning", access_log=False)


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


def written(path: Path, asked: list[tuple[bytes, np.ndarray]]) -> Path:
    """A file of requests, as the client reads it."""
    parts = [np.array([len(asked), len(asked[0][1])], "i4").tobytes()]
    for text, wanted in asked:
        parts += [np.int32(len(text)).tobytes(), text, wanted.astype("f4").tobytes()]
    path.write_bytes(b"".join(parts))
    return path


def ask(client: Path, port: int, connections: int, seconds: float, file: Path) -> np.ndarray:
    """Requests a second, and the seconds that half and 99 % of them took."""
    call = [client, str(port), str(connections), str(seconds), file]
    told = subprocess.run(call, check=True, stdout=subprocess.PIPE).stdout.split()
    return np.array([int(told[0]) / seconds, float(told[1]), float(told[2])])


@contextlib.contextmanager
def served(kind: str, how: str, binary: bool, path: Path) -> Iterator[int]:
    """The port of a server that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    if how == "constant":
        call = ["benchmarks.serving", kind, "--constant", str(port), str(int(binary))]
    else:
        call = ["funcgrad.serve", str(path), "--port", str(port), *HOWS[how].split()]
    process = subprocess.Popen([sys.executable, "-m", *call], cwd=ROOT, env=os.environ)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), request(port, "v2/health/ready"):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def request(port: int, path: str) -> HTTPResponse:
    """What a server says at a path."""
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60)


def computed(port: int) -> tuple[float, float]:
    """How long batches took so far, and how many there were."""
    with request(port, "metrics") as answer:
        text = answer.read().decode(errors="replace")  # the constant says what it always says
    found = [re.search(rf"compute_seconds_{what}{{.*}} (.*)", text) for what in ("sum", "count")]
    return tuple(float(f.group(1)) if f else 0.0 for f in found)


def alone(path: Path, seconds: float) -> np.ndarray:
    """The seconds of each two full batches in a row, of the model without a server."""
    model = load_model(path)
    rows = [np.zeros((MOST, *spec.shape[1:]), spec.dtype) for spec in model.inputs]
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(took) < 3:
        start = time.monotonic()
        model.run(rows)
        took.append(time.monotonic() - start)
    return np.add(took[1:-1], took[2:])  # the first compiles


def measured(kind: str, binary: bool, args: argparse.Namespace, folder: Path) -> None:
    """Print what each way gives."""
    some, one = (written(folder / f"{n}", requests(kind, n, binary)) for n in (16, 1))
    found: dict[str, list[np.ndarray]] = {how: [] for how in args.hows.split(",")}
    with contextlib.ExitStack() as stack:
        ports = {
            how: stack.enter_context(served(kind, how, binary, folder / "mlp.fg"))
            for how in args.hows.split(",")
        }
        for i in range(args.rounds + 1):
            for how, port in ports.items():
                sums = np.array(computed(port))
                given = one if how == "constant" else some
                took = ask(folder / "client", port, args.connections, args.seconds, given)
                total, count = np.array(computed(port)) - sums
                if i:  # the first warms up
                    found[how].append(np.append(took, total / max(count, 1)))
    print(f"{kind}, {'bytes' if binary else 'JSON'}, {args.connections} connections")
    middle = {how: np.median(rows, axis=0) for how, rows in found.items()}
    for how, (rate, half, most, batch) in middle.items():
        ratio = statistics.median(
            a[0] / b[0] for a, b in zip(found[how], found["none"], strict=True)
        )
        print(f"  {how:8} {rate:7.0f} requests/s, {ratio:.2f} x none; p50 {half * 1e3:.2f} ms, "
              f"p99 {most * 1e3:.2f} ms; a batch computes {batch * 1e3:.3f} ms")  # fmt: skip
    two = 1e3 * alone(folder / "mlp.fg", args.seconds)
    print(f"  without a server two batches of {MOST} in a row take {two.mean():.2f} ms, "
          f"p99 {np.quantile(two, 0.99):.2f} ms")  # fmt: skip


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=tuple(WIDTHS))
    parser.add_argument("--constant", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--hows", default=",".join(HOWS), help="ways to serve, none among them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tensors", choices=("json", "bytes"), default="json")
    args = parser.parse_args()
    binary = args.tensors == "bytes"
    if args.constant:
        port, binary = args.constant
        serve(args.kind, bool(binary), port)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = str(Path(__file__).with_suffix(".c"))
        subprocess.run(["cc", "-D_GNU_SOURCE", "-O2", source, "-lm", "-o", folder / "client"],
                       check=True)  # fmt: skip
        exported(args.kind, folder / "mlp.fg")
        measured(args.kind, binary, args, folder)


if __name__ == "__main__":
    main()
