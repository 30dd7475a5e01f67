"""The server on a socket: bytes that are no requests, floods, clients that stall, TLS."""

import asyncio
import contextlib
import gc
import http.client
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time

import numpy as np
import pytest

from funcgrad.serve import App, Batching, Repository
from funcgrad.serve.__main__ import parse_args, told
from tests.serve.clients import call, get, infer_path, request, results
from tests.serve.test_app import W, X, mlp, slow_model
from tests.serve.test_page import served

uvicorn = pytest.importorskip("uvicorn")


def raw(body, more=""):
    head = f"POST {infer_path('mlp')} HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def told_to(port, data, wait=10.0):
    """What a server says to some bytes, as far as it comes before the connection ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while part := s.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


def asked(port, **more):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request("POST", infer_path("mlp"), request(x=X, **more))
        answer = client.getresponse()
        return answer.status, answer.read()
    finally:
        client.close()


def is_right(port):
    status, body = asked(port)
    assert status == 200, body
    np.testing.assert_allclose(results(body)["output"], np.tanh(X @ W), rtol=1e-5)


def mutated(data, chance):
    """Bytes of which some are others, or gone, or there again."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at, what = chance.randrange(len(found)), chance.randrange(4)
        if what == 0:
            found[at] = chance.randrange(256)
        elif what == 1:
            del found[at : at + chance.randint(1, 20)]
        elif what == 2:
            found[at:at] = found[at : at + chance.randint(1, 20)]
        else:
            found[at:at] = chance.choice([b"-", b"9" * 20, b"[", b'"', b"\0", b"NaN", b"e999"])
        if not found:
            return data
    return bytes(found)


def test_what_is_no_request_is_refused():
    chance = random.Random(0)
    good = request(x=X)
    head = good[:-2] + b', "parameters": {"binary_data_output": true}}'
    texts = [raw(good), raw(head, f"Inference-Header-Content-Length: {len(head)}\r\n")]
    # A mutated shape may have more elements than memory, and a mutated body is never computed long.
    with served(App(Repository([mlp()]), max_body=10_000)) as port:
        for i in range(300):
            whole = texts[i % 2]
            at = whole.index(b"\r\n\r\n") + 4
            body = mutated(whole[at:], chance)
            data = mutated(whole, chance) if i % 3 == 0 else raw(body)
            answer = told_to(port, data)
            assert not answer.startswith(b"HTTP/1.1 5"), (data, answer)
        is_right(port)


def test_a_flood_is_refused_and_then_all_is_well():
    model, sizes = slow_model(0.02)
    how = Batching(max_batch_size=1, max_queue=4)
    with served(App(Repository([model]), how)) as port:
        found = []
        threads = [threading.Thread(target=lambda: found.append(asked(port)[0])) for _ in range(40)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert set(found) == {200, 503}
        assert len(sizes) == found.count(200)
        is_right(port)


def test_clients_that_stall_or_hang_up():
    model, sizes = slow_model(0.3)
    app = App(Repository([model]), Batching(max_batch_size=1), body_timeout=0.2)
    with served(app) as port:
        whole = raw(request(x=X))
        with socket.create_connection(("127.0.0.1", port), timeout=10) as s:
            s.sendall(whole[:-5])
            assert s.recv(12) == b"HTTP/1.1 408"
        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        for s in waiting:
            s.sendall(whole)
        time.sleep(0.1)
        for s in waiting:
            s.close()
        is_right(port)
    # The first ran already; the others were dropped before the last, which got its answer.
    assert len(sizes) == 2
    text = get(app, "/metrics")[2].decode()
    assert 'funcgrad_inference_failure{reason="slow"} 1' in text
    assert 'funcgrad_inference_failure{reason="cancelled"} 5' in text


def test_heads_that_do_not_come_in_time():
    whole = raw(request(x=X))
    with served(App(Repository([mlp()])), head_timeout=0.4) as port:
        connect = lambda: socket.create_connection(("127.0.0.1", port), timeout=10)
        with connect() as silent, connect() as slow, connect() as again:
            again.sendall(whole)
            answer = b""
            while not answer.endswith(b'"id": "7"}'):
                answer += again.recv(1 << 16)
            with contextlib.suppress(ConnectionError):  # a busy machine may be slower than that
                for byte in whole[:12]:
                    slow.sendall(bytes([byte]))
                    again.sendall(bytes([byte]))
                    time.sleep(0.02)
            is_right(port)
            for s in (silent, slow, again):
                with contextlib.suppress(ConnectionError):
                    assert s.recv(1 << 16) == b""


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_tls(tmp_path):
    files = "-keyout", tmp_path / "key", "-out", tmp_path / "cert"
    curve = "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"
    name = "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"
    subprocess.run(["openssl", "req", "-x509", *curve, *name, *files], check=True,
                   capture_output=True)  # fmt: skip
    args = parse_args(["none", "--certificate", str(tmp_path / "cert"),
                       "--key", str(tmp_path / "key")])  # fmt: skip
    app = App(Repository([mlp()]), token="secret")
    with served(app, **told(args)) as port:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert"))
        client = http.client.HTTPSConnection("localhost", port, context=trusting, timeout=30)
        for headers, status in (({}, 401), ({"Authorization": "Bearer secret"}, 200)):
            client.request("POST", infer_path("mlp"), request(x=X), headers)
            answer = client.getresponse()
            answer.read()
            assert answer.status == status
        client.close()
        assert not told_to(port, raw(request(x=X))).startswith(b"HTTP/1.1 200")


def test_nothing_of_requests_is_kept():
    model = mlp()
    app = App(Repository([model]), Batching(max_batch_size=4))

    async def some(n):
        for _ in range(n):
            await asyncio.gather(
                *(call(app, "POST", infer_path("mlp"), request(x=X)) for _ in range(4)),
                *(call(app, "POST", infer_path("mlp"), b"{") for _ in range(4)),
            )

    def kept():
        gc.collect()
        return len(gc.get_objects())

    asyncio.run(some(20))
    before = kept()
    asyncio.run(some(100))
    assert kept() - before < 200
