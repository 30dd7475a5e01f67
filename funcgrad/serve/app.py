"""The ASGI application: routes, limits, errors.

It needs no framework: a server of the protocol (uvicorn, granian) calls it with each request.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from funcgrad.errors import ArgumentError, FuncgradError
from funcgrad.serve.batching import Batcher, Batching, Receive
from funcgrad.serve.deadlines import Deadlines
from funcgrad.serve.decoding import Decoder
from funcgrad.serve.generation import Generator
from funcgrad.serve.limits import check_count, check_seconds
from funcgrad.serve.log import Entry
from funcgrad.serve.metrics import Metrics
from funcgrad.serve.models import Model, Repository, Served
from funcgrad.serve.pages import page
from funcgrad.serve.protocol import Request, RequestError, priority_in, response
from funcgrad.serve.streams import (
    begun,
    collected,
    events,
    generated,
    generation_request,
    sent_in_parts,
    unless_gone,
)

Send = Callable[[dict], Awaitable[None]]
# Status, body or its parts as they come, and headers; without any it is JSON.
Answer = tuple[int, bytes | AsyncGenerator[bytes, None], list[tuple[bytes, bytes]]]
HEADER = b"inference-header-content-length"
JSON = (b"content-type", b"application/json")
BYTES = (b"content-type", b"application/octet-stream")


class App:
    """Models as an ASGI application by the Open Inference Protocol, version 2.

    max_body: bytes of a request; body_timeout: seconds for a client to send it; token: what
    requests but those for health must bring, as `Authorization: Bearer …`; threads: how many
    batches are computed at a time; reload: reads a model's file again, in place of
    `models.reload`; log: is given a dictionary for each request that was answered; totals: gives
    the text of /metrics, where other processes count, too

    >>> from funcgrad.serve import App, Model, Repository
    >>> app = App(Repository([Model("double", lambda x: 2 * x, {"x": ("float32", (-1,))})]))
    >>> app.models.names()
    ['double']
    """

    def __init__(
        self, models: Repository, batching: Batching | None = None, *, max_body: int = 64 << 20,
        body_timeout: float = 30.0, token: str | None = None, threads: int = 1,
        reload: Callable[[str], Awaitable[None]] | None = None,
        log: Callable[[dict], None] | None = None,
        totals: Callable[[], Awaitable[str]] | None = None,
    ):  # fmt: skip
        if not isinstance(models, Repository):
            raise ArgumentError(f"App takes a Repository of models, got {models!r}")
        check_count("App", "max_body", max_body)
        check_count("App", "threads", threads)
        check_seconds("App", "body_timeout", body_timeout)
        if not isinstance(batching, Batching | None):
            raise ArgumentError(f"App: batching is a Batching, got {batching!r}")
        if token is not None and (not isinstance(token, str) or not token):
            raise ArgumentError("App: token must be a text, and not an empty one")
        self.models = models
        self.batching = batching or Batching()
        self.max_body, self.token = max_body, token
        self.reload, self.log = reload or self._reload, log
        self.metrics = Metrics()
        self.totals = totals or self._totals
        self._bodies = Deadlines(body_timeout, _Reader.give_up)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="funcgrad-serve")
        # A model that is replaced finishes what waits for it, and is gone with its queue.
        self._batchers: weakref.WeakKeyDictionary[Model, Batcher] = weakref.WeakKeyDictionary()
        self._decoders: weakref.WeakKeyDictionary[Generator, Decoder] = weakref.WeakKeyDictionary()

    async def _totals(self) -> str:
        return self.metrics.text()

    async def _reload(self, name: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.models.reload, name)

    async def __call__(self, scope: dict, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        body: bytes | AsyncGenerator[bytes, None]
        entry = Entry(scope["method"], scope["path"])
        try:
            status, body, headers = await self._answer(scope, entry, receive)
        except RequestError as e:
            status, body, headers = e.status, json.dumps({"error": str(e)}).encode(), []
            self.metrics.add("inference_failure", 1, reason=e.reason)
        except Exception as e:
            error = {"error": f"{type(e).__name__}: {e}"}
            status, body, headers = 500, json.dumps(error).encode(), []
            self.metrics.add("inference_failure", 1, reason="internal")
        if not headers:
            headers.append(JSON)
        headers.append((b"x-request-id", entry.id.encode()))
        if not isinstance(body, bytes):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await sent_in_parts(body, receive, send)
            self._log(entry, status)
            return
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self._log(entry, status)

    def _log(self, entry: Entry, status: int) -> None:
        if self.log is not None:
            self.log(entry.told(status))

    async def _answer(self, scope: dict, entry: Entry, receive: Receive) -> Answer:
        parts = [p for p in scope["path"].split("/") if p]
        method = scope["method"]
        if parts[:2] == ["v2", "health"] and len(parts) == 3 and parts[2] in ("live", "ready"):
            return 200, b"{}", []
        if method == "GET" and (shown := page(scope["path"])):
            return 200, *shown
        self._check_token(scope)
        if parts == ["metrics"] and method == "GET":
            kind = b"text/plain; version=0.0.4"
            return 200, (await self.totals()).encode(), [(b"content-type", kind)]
        if parts == ["v2"] and method == "GET":
            told = {"name": "funcgrad", "version": "2", "extensions": ["binary_tensor_data"]}
            return 200, json.dumps(told).encode(), []
        if parts[:2] == ["v2", "models"] and len(parts) >= 3:
            return await self._model(parts[2:], scope, entry, receive)
        if parts[:2] == ["v2", "repository"]:
            return await self._repository(parts[2:], method)
        raise RequestError(f"there is nothing at {scope['path']}", 404, "not_found")

    async def _model(self, parts: list[str], scope: dict, entry: Entry, receive: Receive) -> Answer:
        name, version, rest, method = parts[0], None, parts[1:], scope["method"]
        if rest[:1] == ["versions"] and len(rest) > 1:
            version, rest = rest[1], rest[2:]
        model = self.models.get(name, version)
        entry.model, entry.version = name, model.version
        if not rest and method == "GET":
            return 200, json.dumps(model.described(self.models.versions(name))).encode(), []
        if rest == ["ready"] and method == "GET":
            return 200, b"{}", []
        if rest == ["infer"] and method == "POST":
            return await self._infer(model, dict(scope["headers"]), entry, receive)
        if rest in (["generate"], ["generate_stream"]) and method == "POST":
            body = await self._body(dict(scope["headers"]), receive)
            return await self._generate(model, rest == ["generate_stream"], body, entry, receive)
        raise RequestError(f"there is no {method} {scope['path']}", 404, "not_found")

    async def _repository(self, parts: list[str], method: str) -> Answer:
        if parts == ["index"] and method == "POST":
            told = [
                {"name": n, "version": v, "state": "READY"}
                for n in self.models.names() for v in self.models.versions(n)
            ]  # fmt: skip
            return 200, json.dumps(told).encode(), []
        if parts[:1] == ["models"] and parts[2:] == ["load"] and method == "POST":
            try:
                await self.reload(parts[1])
            except (FuncgradError, OSError) as e:
                raise RequestError(f"{parts[1]} is served as before: {e}", 400, "load") from None
            return 200, b"{}", []
        raise RequestError("a repository has index and models/…/load", 404, "not_found")

    async def _infer(
        self, model: Served, headers: dict[bytes, bytes], entry: Entry, receive: Receive
    ) -> Answer:
        if not isinstance(model, Model):
            raise RequestError(f"{model.name} generates: ask generate or generate_stream")
        body = await self._body(headers, receive)
        length = headers.get(HEADER)
        if length is not None and not length.isdigit():
            raise RequestError(f"{HEADER.decode()} is {length!r}")
        request = Request(body, None if length is None else int(length))
        entry.named(request.id)
        priority = priority_in(request.parameters)
        values = model.arguments(request.inputs)
        batcher = self._batchers.get(model)
        if batcher is None:
            batcher = Batcher(model, self.batching, self.metrics, self._pool)
            self._batchers[model] = batcher
        outs = await batcher.infer(values, priority, entry, receive)
        text, head = response(model.name, model.version, request, outs)
        self.metrics.add("inference_success", 1, model=model.name, version=model.version)
        if head is None:
            return 200, text, []
        return 200, text, [(HEADER, str(head).encode()), BYTES]

    async def _generate(
        self, model: Served, is_stream: bool, body: bytes, entry: Entry, receive: Receive
    ) -> Answer:
        if not isinstance(model, Generator):
            raise RequestError(f"{model.name} doesn't generate: ask infer")
        prompt, options, priority, name = generation_request(model, body)
        entry.named(name)
        decoder = self._decoders.get(model)
        if decoder is None:
            decoder = Decoder(model, self.batching, self.metrics, self._pool)
            self._decoders[model] = decoder
        tokens = decoder.generate(prompt, options, priority)
        if is_stream:
            # The first token is there before the status says that all is well.
            parts = await begun(events(model, tokens))
            kinds = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            self.metrics.add("inference_success", 1, model=model.name, version=model.version)
            return 200, parts, kinds
        found = await unless_gone(collected(tokens), receive)
        self.metrics.add("inference_success", 1, model=model.name, version=model.version)
        return 200, json.dumps(generated(model, found)).encode(), []

    async def _body(self, headers: dict, receive: Receive) -> bytes:
        reader = _Reader()
        self._bodies.add(reader)
        try:
            return await self._whole_body(headers, receive)
        except asyncio.CancelledError:
            if not reader.gave_up:
                raise
            reader.task.uncancel()
            raise RequestError("the request's body didn't come in time", 408, "slow") from None
        finally:
            self._bodies.remove(reader)

    async def _whole_body(self, headers: dict, receive: Receive) -> bytes:
        parts, size = [], 0
        told = headers.get(b"content-length", b"0")
        size_told = int(told) if told.isdigit() else 0
        if size_told > self.max_body:
            raise RequestError(f"{size_told} bytes are more than {self.max_body}", 413, "too_large")
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestError("the client has gone", 499, "cancelled")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.max_body:
                raise RequestError(f"more than {self.max_body} bytes", 413, "too_large")
            if not message.get("more_body"):
                return b"".join(parts)

    def _check_token(self, scope: dict) -> None:
        if self.token is None:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
            raise RequestError("a token is needed", 401, "token")


class _Reader:
    """The task that reads a body, which gives up where that doesn't come in time."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task, self.gave_up = task, False

    def give_up(self) -> None:
        """Read no more."""
        self.gave_up = self.task.cancel()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
