"""Requests to an application, without a network."""

import asyncio
import json

import numpy as np

from funcgrad.serve.protocol import NAMES


async def call(app, method, path, body=b"", headers=(), chunks=None):
    """Status, headers and body of an answer."""
    parts = [body] if chunks is None else list(chunks)
    messages = [
        {"type": "http.request", "body": p, "more_body": i < len(parts) - 1}
        for i, p in enumerate(parts)
    ]
    sent = []

    async def receive():
        return messages.pop(0) if messages else await asyncio.Future()

    async def send(message):
        sent.append(message)

    given = [(k.encode(), v.encode()) for k, v in headers]
    await app({"type": "http", "method": method, "path": path, "headers": given}, receive, send)
    start, *rest = sent
    return start["status"], dict(start["headers"]), b"".join(m["body"] for m in rest)


def get(app, path, **more):
    return asyncio.run(call(app, "GET", path, **more))


def tensor(name, value):
    value = np.asarray(value)
    return {
        "name": name, "datatype": NAMES[value.dtype], "shape": list(value.shape),
        "data": value.reshape(-1).tolist(),
    }  # fmt: skip


def request(**inputs):
    return json.dumps({"id": "7", "inputs": [tensor(k, v) for k, v in inputs.items()]}).encode()


def infer_path(name):
    return f"/v2/models/{name}/infer"


def results(body):
    told = json.loads(body)
    assert "error" not in told, told
    return {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in told["outputs"]}
