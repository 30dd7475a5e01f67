"""Several processes: a worker that dies, swaps, a kill during a swap, the end."""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from funcgrad.serve.metrics import Metrics
from funcgrad.serve.models import Repository
from funcgrad.serve.workers import Channel, Worker
from tests.serve.clients import infer_path, request, results
from tests.serve.test_app import W, written

pytest.importorskip("uvicorn")
X = np.ones((1, 3), "f4")


class Server:
    """The command, until the end of the `with`."""

    def __init__(self, folder, *options):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        environment = {k: v for k, v in os.environ.items() if k != "FUNCGRAD_TOKEN"}
        call = [sys.executable, "-m", "funcgrad.serve", str(folder), "--port", str(self.port),
                "--max-batch-size", "1", *options]  # fmt: skip
        self.process = subprocess.Popen(call, env=environment, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        for _ in range(600):
            try:
                if self.ask("GET", "/v2/health/ready")[0] == 200:
                    return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server didn't start")

    def ask(self, method, path, body=b""):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            client.request(method, path, body)
            answer = client.getresponse()
            return answer.status, answer.read()
        finally:
            client.close()

    def infer(self):
        status, body = self.ask("POST", infer_path("linear"), request(x=X))
        assert status == 200, body
        return round(float(results(body)["output"][0, 0] / (X @ W)[0, 0]))

    def answered(self):
        text = self.ask("GET", "/metrics")[1].decode()
        (line,) = [x for x in text.split("\n") if x.startswith("funcgrad_inference_success{")]
        return float(line.split()[-1])

    def workers(self):
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(path) as file:
            return [int(p) for p in file.read().split()]

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=40)


def test_workers_die_and_swap_and_end(tmp_path):
    path = written(tmp_path / "linear.onnx", 1)
    with Server(tmp_path, "--processes", "2") as server:
        assert server.infer() == 1
        stop, seen, errors = threading.Event(), [], []

        def asking():
            while not stop.is_set():
                asked = time.monotonic()
                try:
                    seen.append((asked, server.infer()))
                except Exception as e:
                    errors.append(e)

        def seen_since(moment):
            return [result for asked, result in seen if asked > moment]

        threads = [threading.Thread(target=asking) for _ in range(3)]
        for t in threads:
            t.start()
        try:
            written(path, 2)
            assert server.ask("POST", "/v2/repository/models/linear/load")[0] == 200
            loaded = time.monotonic()
            while len(seen_since(loaded)) < 20:
                time.sleep(0.01)
            assert set(seen_since(loaded)) == {2}
            path.write_bytes(b"no model")
            status, body = server.ask("POST", "/v2/repository/models/linear/load")
            assert (status, "served as before" in json.loads(body)["error"]) == (400, True)
            assert server.ask("POST", "/v2/repository/models/none/load")[0] == 404
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not errors
        assert set(seen_since(0)) == {1, 2}

        # What all have counted is told by each of them, and kept where one dies.
        time.sleep(1.5)
        before = server.answered()
        assert before == server.answered()
        assert before >= len(seen)

        # One that is killed, during a swap, is replaced, by one that serves what the others do.
        written(path, 3)
        old = server.workers()
        swap = threading.Thread(target=survives, args=(server,))
        swap.start()
        os.kill(old[0], signal.SIGKILL)
        swap.join()
        while len(new := server.workers()) < 2 or old[0] in new:
            time.sleep(0.05)
        time.sleep(0.5)
        found = {server.infer() for _ in range(20)}
        assert found in ({2}, {3})
        time.sleep(1.5)
        assert server.answered() >= before + 20
    assert server.process.returncode == 0
    assert not any(os.path.exists(f"/proc/{p}") for p in new)


def survives(server):
    # The worker that was asked may be the one that was killed.
    with contextlib.suppress(OSError, http.client.HTTPException):
        server.ask("POST", "/v2/repository/models/linear/load")


def test_sums_of_many_models_reach_a_worker():
    mine, theirs = socket.socketpair()
    many = Metrics()
    for i in range(2000):
        many.add("generated_tokens", 1, model=f"a model with a long name, number {i}", version="1")

    def supervise():
        channel = Channel(mine)
        while (told := channel.receive(10)) is not None:
            if told.get("sum"):
                channel.send(sums=many.state())

    async def asking():
        worker = Worker(theirs, Repository([]))
        running = asyncio.create_task(worker.run(lambda: True))
        await asyncio.sleep(0.05)
        found = await worker.totals()
        running.cancel()  # at its end a worker ends its process
        worker._writer.close()
        await worker._writer.wait_closed()
        return found

    thread = threading.Thread(target=supervise)
    thread.start()
    assert asyncio.run(asking()).count("a model with") == 2000
    thread.join()
    mine.close()


def test_workers_that_can_t_serve_end_the_server():
    code = (
        "from funcgrad.serve.workers import Supervisor\n"
        "from funcgrad.serve.models import Repository\n"
        "def work(models, end): raise ValueError('broken')\n"
        "raise SystemExit(Supervisor(Repository(), work, 2).run())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert re.search("a worker failed: ValueError: broken", done.stderr)
