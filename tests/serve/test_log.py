"""A line for each request; ids."""

import asyncio
import json

from funcgrad.serve import App, Batching, Repository
from funcgrad.serve.log import writer
from tests.serve.clients import call, get, infer_path, request
from tests.serve.test_app import X, mlp, refused, slow_model


def test_each_request_has_an_entry():
    seen = []
    model, _ = slow_model(0.01)
    app = App(Repository([model]), Batching(max_batch_size=8), log=seen.append)

    async def every():
        body = request(x=X[:1])
        return await asyncio.gather(*(call(app, "POST", infer_path("mlp"), body) for _ in range(5)))

    answers = asyncio.run(every())
    assert all(headers[b"x-request-id"] == b"7" for _, headers, _ in answers)
    assert {e["batch_size"] for e in seen} == {5}
    first = seen[0]
    assert (first["id"], first["model"], first["version"], first["status"]) == (
        "7",
        "mlp",
        "1",
        200,
    )
    assert first["total_us"] >= first["compute_us"] > 9000
    assert first["queue_us"] >= 0
    get(app, "/none")
    assert (seen[-1]["status"], seen[-1]["path"]) == (404, "/none")
    assert seen[-1]["id"] != seen[-2]["id"]


def test_ids_are_strings_that_fit_in_a_header():
    app = App(Repository([mlp()]))
    told = json.loads(request(x=X))
    refused(app, 400, "an id is a string", json.dumps({**told, "id": 5}).encode())
    refused(app, 400, "an id is a string", json.dumps({**told, "id": "x" * 201}).encode())
    body = json.dumps({**told, "id": "a\r\nSet-Cookie: é"}).encode()
    status, headers, body = asyncio.run(call(app, "POST", infer_path("mlp"), body))
    assert (status, headers[b"x-request-id"]) == (200, b"aSet-Cookie: ")
    assert json.loads(body)["id"] == "a\r\nSet-Cookie: é"


def test_no_entry_spans_lines(capsys):
    for kind in ("json", "text"):
        writer(kind)({"path": "/a\nb\rc", "status": 404})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["path"] == "/a\nb\rc"
    assert writer("none") is None
